"""`python -m bench.overhead.report [--check]`: the tables and plots of docs/performance.md, from the results.

A document's text is written by hand; what is between its marks is replaced.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.overhead import cases, goals, plots, results
from bench.overhead.measure import DISTURBED
from bench.overhead.peers import DIRECT, OURS
from bench.overhead.results import Results, markdown, number
from bench.serving import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

DOCUMENT = ROOT / "docs/performance.md"
_MARK = re.compile(r"(<!-- (\w+): python -m bench\.overhead\.report -->\n).*?(<!-- end -->)", re.DOTALL)
_RATIOS = tuple(
    name for name, case in cases.CASES.items() if case.connections > 1 and case.kind in ("most", "stream")
)


class Figures(Results):
    """Results as sentences and tables in Markdown."""

    def blocks(self) -> dict[str, str]:
        """Return what belongs between a document's marks, by their names."""
        makers: dict[str, Callable[[], str]] = {
            "circumstances": self.circumstances,
            "rivals": self.rivals,
            "goals": lambda: goals.table(self),
            "cpu": self.cpu,
            "ratios": self.ratios,
            "delays": self.delays,
            "requests": self.requests,
            "memory": self.memory,
            "everything": self.everything,
            "trouble": self.trouble,
        }
        return {name: make() for name, make in makers.items()}

    def circumstances(self) -> str:
        """Return on what machine, when, and how often it was measured."""
        about, cells = self.about, self.medians.values()
        samples = [cell["samples"] for cell in cells]
        text = (
            f"Measured on {about['when']}: {about['processor']}, {about['cores']} cores, "
            f"Linux {about['kernel']}, Python {about['python']}. Medians of {about['rounds']} round(s) of "
            f"{about['seconds']:g} s each. {sum(samples):,} requests in all, {min(samples):,} to "
            f"{max(samples):,} in a cell."
        )
        if spreads := [cell["spread"] for cell in cells if cell["rounds"] > 1]:
            text += (
                f" Between rounds CPU a request differed by {_percent(statistics.median(spreads))} in half"
                f" of the cells, and by {_percent(max(spreads))} at most."
            )
        foreign = [cell["foreign"] for cell in cells]
        warning = " **The machine was busy: of these figures only CPU means something.**"
        return (
            f"{text} Of the gateway's core others had {_percent(statistics.median(foreign))} in half of the "
            f"cells, and {_percent(max(foreign))} at most."
            f"{warning if statistics.median(foreign) > DISTURBED else ''}"
        )

    def rivals(self) -> str:
        """Return a table of versions, and of what each gateway does not do."""
        rows = [["gateway", "version", "what it does not do"]]
        rows += [
            [f"`{peer['name']}`", peer["version"] or "-", peer["lacks"] or "-"]
            for peer in self.peers
            if peer["name"] != DIRECT
        ]
        missing = "".join(f"\n\nNot installed, so not measured: `{name}`." for name in self.skipped)
        return markdown(rows) + missing

    def cpu(self) -> str:
        """Return a table of CPU milliseconds a request."""
        return self._table("CPU ms a request", self._of_kind("most"), lambda cell: cell["cpu_s_per_1000"])

    def ratios(self) -> str:
        """Return a table of rivals' CPU time over ours."""
        rows = [["CPU of the rival over ours", *self._shown(_RATIOS)]]
        for name in self.names:
            if name in (OURS, DIRECT):
                continue
            row = [f"`{name}`"]
            for case in self._shown(_RATIOS):
                mine, its = (self.good(peer, case) for peer in (OURS, name))
                row.append(f"{its['cpu_s_per_1000'] / mine['cpu_s_per_1000']:.2f}" if mine and its else "-")
            rows.append(row)
        return markdown(rows)

    def requests(self) -> str:
        """Return a table of requests per second."""
        wanted = self._of_kind("most")
        rows = [["requests a second", *wanted]]
        for name in self.names:
            row = [f"`{name}`"]
            for case in wanted:
                cell = self.good(name, case)
                row.append(f"{number(cell['requests_s'])}{_marks(cell)}" if cell else "-")
            rows.append(row)
        return markdown(rows) + (
            "\n\n† engine and clients had all of their core: it is theirs, not the gateway's limit; "
            "then only CPU counts. ‡ some clients had no answer within 12 s."
        )

    def delays(self) -> str:
        """Return a table of the time that requests and events take more than without a gateway."""
        alone = [name for name in self.cases if name.endswith(" x 1")]
        paced, streams = self._of_kind("paced"), self._of_kind("stream")
        rows = [
            [
                "added ms",
                *(f"{name} p50" for name in alone),
                *(f"{name} p50 / p95 / p99" for name in paced),
                *(f"{name}: first event p50 / p99" for name in streams),
                *(f"{name}: event p50 / p99" for name in streams),
            ]
        ]
        for name in self.names:
            row = [f"`{name}`"]
            row += [self._added(name, case, "outside_ms", ("p50",)) for case in alone]
            row += [self._added(name, case, "outside_ms", ("p50", "p95", "p99")) for case in paced]
            row += [self._added(name, case, "first_event_ms", ("p50", "p99")) for case in streams]
            row += [self._absolute(name, case, "event_delay_ms", ("p50", "p99")) for case in streams]
            rows.append(row)
        return markdown(rows)

    def memory(self) -> str:
        """Return a table of resident memory."""
        held, most = self._of_kind("held"), [name for name in self.cases if name.endswith(" x 256")]
        most = [name for name in most if name not in held and "stream" not in name]
        rows = [
            [
                "peak MiB",
                "at rest",
                *(f"{name} (bodies: {self.bodies_mib(name):.0f})" for name in held),
                *most,
            ]
        ]
        for name in self.names:
            if name == DIRECT:
                continue
            first = next((self.good(name, case) for case in self.cases if self.good(name, case)), None)
            row = [f"`{name}`", f"{first['resting_mib']:.0f}" if first else "-"]
            for case in [*held, *most]:
                cell = self.good(name, case)
                row.append(f"{cell['rss_mib']:.0f}" if cell else "-")
            rows.append(row)
        return markdown(rows)

    def everything(self) -> str:
        """Return a table for each case."""
        return "\n\n".join(self._case(name) for name in self.cases)

    def _case(self, name: str) -> str:
        streamed = cases.CASES[name].events > 0
        timed = "first_event_ms" if streamed else "outside_ms"
        what = "first event " if streamed else ""
        head = ["gateway", "requests/s", f"{what}added p50", "p95", "p99", "CPU s / 1,000 requests"]
        if streamed:
            head += ["CPU s / 1,000 events", "event delay p50", "p95", "p99", "max"]
        rows = [[*head, "peak RSS MiB", "spread", "samples"]]
        for peer in self.names:
            if (peer, name) not in self.medians:
                continue
            cell, good = self.medians[peer, name], self.good(peer, name)
            rate = f"{number(cell['requests_s'])}{_marks(cell)}"
            row = [f"`{peer}`", rate if good else "failed"]
            row += [self._added(peer, name, timed, (percentile,)) for percentile in ("p50", "p95", "p99")]
            row.append(number(good["cpu_s_per_1000"]) if good else "-")
            if streamed:
                row.append(number(good["cpu_s_per_1000_events"]) if good else "-")
                row += [
                    self._absolute(peer, name, "event_delay_ms", (percentile,))
                    for percentile in ("p50", "p95", "p99", "max")
                ]
            row += [f"{cell['rss_mib']:.0f}" if peer != DIRECT else "-", f"{100 * cell['spread']:.0f}%"]
            rows.append([*row, f"{cell['samples']:,}"])
        return f"**{name}**\n\n{markdown(rows)}"

    def trouble(self) -> str:
        """Return a list of what failed."""
        found = [
            f"* `{peer}`, {name}: {cell['failed'] or 'nothing in time,'} beside {cell['samples']:,} answers"
            for (peer, name), cell in self.medians.items()
            if cell["failed"] or not cell["samples"]
        ]
        return "\n".join(found) or "None."

    def _table(
        self, title: str, wanted: Sequence[str], value: Callable[[Mapping[str, Any]], float | None]
    ) -> str:
        rows = [[title, *wanted]]
        for name in self.names:
            if name != DIRECT:
                cells = [self.good(name, case) for case in wanted]
                rows.append([f"`{name}`", *(number(value(cell)) if cell else "-" for cell in cells)])
        return markdown(rows)

    def _of_kind(self, kind: str) -> list[str]:
        return [name for name in self.cases if cases.CASES[name].kind == kind]

    def _shown(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name in self.cases]

    def _added(self, peer: str, case: str, name: str, percentiles: Sequence[str]) -> str:
        """Return percentiles less those without a gateway; within the noise they may be below zero."""
        cell, base = self.good(peer, case), self.good(DIRECT, case)
        if not cell or not base or peer == DIRECT or not cell[name] or not base[name]:
            return "-"
        return " / ".join(number(cell[name][one] - base[name][one]) for one in percentiles)

    def _absolute(self, peer: str, case: str, name: str, percentiles: Sequence[str]) -> str:
        cell = self.good(peer, case)
        return " / ".join(number(cell[name][one]) for one in percentiles) if cell and cell[name] else "-"


def _marks(cell: Mapping[str, Any]) -> str:
    return ("†" if cell["harness_limit"] else "") + ("‡" if cell["cut_short"] else "")


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%"


def filled(document: str, blocks: Mapping[str, str]) -> str:
    """Return a document with the blocks between its marks.

    Raises:
        KeyError: a mark names no block.
    """
    return _MARK.sub(lambda found: f"{found[1]}\n{blocks[found[2]]}\n\n{found[3]}", document)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write a document's tables and the plots, or check that the tables are those of the results."""
    parser = argparse.ArgumentParser(prog="python -m bench.overhead.report", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where the document differs")
    parser.add_argument("--results", type=Path, default=results.RESULTS)
    parser.add_argument("--document", type=Path, default=DOCUMENT)
    options = parser.parse_args(arguments)
    figures = Figures(results.read(options.results))
    written = options.document.read_text()
    wanted = filled(written, figures.blocks())
    if options.check:
        sys.exit(None if wanted == written else f"{options.document} is not what {options.results} says")
    options.document.write_text(wanted)
    plots.draw(figures, options.document.parent / "images")


if __name__ == "__main__":
    main()
