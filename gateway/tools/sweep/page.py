"""report.html: a sweep as one self-contained page, without a script; any text from outside is escaped."""

from __future__ import annotations

import html
import json
import re
import shlex
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from gateway.policy.choose.gain import Z95
from gateway.tools.sweep import plots
from gateway.tools.sweep.summary import Summary, by_depth, routes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gateway.tools.sweep.plots import Plot
    from gateway.tools.sweep.summary import Time
    from gateway.tools.sweep.sweep_values import Change, Findings, Pool, Results, RouteFindings, Spread

_NONE = "-"
_STYLE = (Path(__file__).parent / "report.css").read_text(encoding="utf-8")


def kinds(errors: Mapping[str, int]) -> str:
    """Failed requests by kind, in words; empty without one."""
    return "; ".join(f"{kind}: {count}" for kind, count in sorted(errors.items()))


class _Html(str):
    """Markup. Any other text is escaped where it enters an element."""

    __slots__ = ()


def _tag(name: str, *content: object, **attributes: object) -> _Html:
    inner = "".join(str(part) if isinstance(part, _Html) else html.escape(str(part)) for part in content)
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
    )
    return _Html(f"<{name}{told}>{inner}</{name}>")


def _join(parts: Iterable[_Html]) -> _Html:
    return _Html("\n".join(parts))


def _paragraphs(words: Iterable[str]) -> _Html:
    return _join(_tag("p", sentence) for sentence in words)


def _grid(caption: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> _Html:
    """A table whose rows begin with their header; it scrolls by itself where the page is too narrow."""
    inner = _tag(
        "table",
        _tag("caption", caption),
        _tag("thead", _tag("tr", *(_tag("th", cell, scope="col") for cell in head))),
        _tag(
            "tbody",
            *(
                _tag("tr", _tag("th", first, scope="row"), *(_tag("td", cell) for cell in rest))
                for first, *rest in rows
            ),
        ),
    )
    return _tag("div", inner, class_="scroll", role="region", aria_label=caption, tabindex="0")


def page(results: Results, findings: Findings, drawn: Mapping[str, Sequence[Plot]]) -> str:
    """Return report.html: self-contained, without a script; simulated figures say so in every heading."""
    setting = results.setting
    summaries = [Summary(results, findings, route) for route in routes(results)]
    mark = " (simulated)" if setting.simulated else ""
    title = f"Speculation sweep of {setting.model}{mark}"
    body = [
        _tag("a", "Skip to the recommendation", href="#recommendation", class_="skip"),
        _tag("header", _tag("h1", title), _simulated(results), _facts(results), _contents(summaries)),
        _tag(
            "main",
            _recommendation(results, findings, summaries, mark),
            *(
                _route(summary, drawn.get(summary.route, ()), mark, number)
                for number, summary in enumerate(summaries)
            ),
            _excluded(results, mark),
            _method(results, mark),
        ),
    ]
    head = _join(
        [
            _Html('<meta charset="utf-8">'),
            _Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            _Html('<meta name="color-scheme" content="light dark">'),
            _tag("title", title),
            _tag("style", _Html(_STYLE + plots.STYLE)),
        ]
    )
    document = _tag("html", _tag("head", head), _tag("body", *body), lang="en")
    return f"<!doctype html>\n{document}\n"


def _simulated(results: Results) -> _Html:
    if not results.setting.simulated:
        return _Html("")
    return _tag(
        "p",
        _tag("strong", "Simulated."),
        f" These figures come from simulated engines ({results.setting.simulated}), not from a GPU.",
        class_="simulated",
    )


def _facts(results: Results) -> _Html:
    setting = results.setting
    windows = results.windows
    wrong = sum(not window.valid for window in windows)
    files = sorted({window.source for window in windows} - {"ours"})
    versions = sorted({pool.version for pool in setting.pools.values() if pool.version})
    started = [setting.started, *(window.started for window in windows if window.started)]
    facts = {
        "Model": setting.model,
        "GPU": "none, simulated" if setting.simulated else setting.gpu or "not named (--gpu)",
        "Engines": ", ".join(versions) or "version not told",
        "Load from": setting.client or "not told",
        "Measured": " to ".join(dict.fromkeys(map(_when, (min(started), max(started))))),
        "Windows": f"{len(windows)} of {setting.window_s:g} s: {len(windows) - wrong} valid, {wrong} invalid",
        "Tool": setting.tool,
    }
    if files:
        facts["Read from"] = ", ".join(files)
    return _tag("dl", *(_tag("div", _tag("dt", name), _tag("dd", told)) for name, told in facts.items()))


def _contents(summaries: Sequence[Summary]) -> _Html:
    places = {"recommendation": "Recommendation"}
    places |= {f"route-{number}": summary.route for number, summary in enumerate(summaries)}
    places |= {"excluded": "Windows with a reservation", "method": "How it was measured"}
    items = (_tag("li", _tag("a", name, href=f"#{place}")) for place, name in places.items())
    return _tag("nav", _tag("ul", *items), aria_label="Contents")


def _recommendation(results: Results, findings: Findings, summaries: Sequence[Summary], mark: str) -> _Html:
    parts = [_tag("h2", f"Recommendation{mark}", id="recommendation"), _paragraphs(findings.words)]
    for summary in summaries:
        parts.append(_tag("h3", f"{summary.route}{mark}"))
        found = summary.found
        if found is None or not found.points:
            parts.append(_tag("p", "Nothing is recommended: there is no valid window of this route."))
            continue
        parts += [_tag("p", words, class_="lead") for words in found.words[:1]]
        parts.append(_paragraphs(found.words[1:]))
        parts.append(_schedule(summary, found))
    pools = results.setting.pools
    if any(found.own_schedule for found in findings.routes.values()):
        parts.append(_tag("h3", f"An engine that schedules its own depth{mark}"))
        parts.append(
            _tag(
                "p",
                "vLLM can change the depth with the batch size by itself. From these figures it would be:",
            )
        )
        own = {"all routes on one engine": findings.own_schedule} | {
            f"an engine for {route} alone": found.own_schedule for route, found in findings.routes.items()
        }
        parts.append(
            _tag(
                "dl",
                *(
                    _tag("div", _tag("dt", name), _tag("dd", _tag("code", _own(ranges, pools))))
                    for name, ranges in own.items()
                    if ranges
                ),
                class_="code",
            )
        )
    return _tag("section", *parts, aria_labelledby="recommendation")


def _own(ranges: Sequence[tuple[int, int, int]], pools: Mapping[str, Pool]) -> str:
    """vLLM's --speculative-config that runs a schedule, made from the pool that drafts as deep."""
    deepest = max(depth for _, _, depth in ranges)
    if not deepest:
        return "no --speculative-config: depth 0 wins everywhere"
    config: dict[str, Any] = next(
        (pool.speculative_config for pool in pools.values() if pool.depth == deepest and not pool.ranges), {}
    )
    config = config | {
        "num_speculative_tokens": deepest,
        "num_speculative_tokens_per_batch_size": ranges,
    }
    return f"--speculative-config {shlex.quote(json.dumps(config, separators=(',', ':')))}"


def _schedule(summary: Summary, found: RouteFindings) -> _Html:
    begins = {change.load: change for change in found.changes}
    rows = [
        (
            f"{entry.first} to {entry.last}",
            entry.depth,
            entry.pool,
            _begin(begins.get(entry.first)),
            entry.runner_up or _NONE,
            f"{entry.margin:+.1%} ({entry.low:+.1%} to {entry.high:+.1%})" if entry.runner_up else _NONE,
        )
        for entry in found.schedule
    ]
    return _grid(
        f"Schedule of {summary.route}: the fastest depth by requests on ONE engine",
        ("Requests", "Depth", "Pool", "Crossover (95% interval)", "Next best", "Faster by (95% interval)"),
        rows,
    )


def _begin(change: Change | None) -> str:
    if change is None:
        return _NONE
    told = f"{change.load} ({change.low} to {change.high})"
    return told if change.certain else f"{told}, its noise not measured"


def _route(summary: Summary, own: Sequence[Plot], mark: str, number: int) -> _Html:
    name = f"route-{number}"
    parts = [_tag("h2", f"{summary.route}{mark}", id=name)]
    parts += [
        _tag("figure", _Html(plots.svg(plot, f"{name}-{plot.kind}")), _tag("figcaption", plot.caption))
        for plot in own
    ]
    drawn = {plot.kind for plot in own}
    parts += [_tag("p", why, class_="note") for kind, why in plots.MISSING.items() if kind not in drawn]
    if summary.loads:
        parts += [_throughput(summary), *_latency(summary), *_acceptance(summary), *_deeper(summary)]
    if summary.open_loop:
        parts.append(_open_loop(summary))
    return _tag("section", *parts, aria_labelledby=name)


def _by_load(
    summary: Summary, caption: str, pools: Sequence[str], cell: Callable[[str, int], object | None]
) -> _Html:
    rows = [
        (load, *(cell(pool, load) or _absent(summary, pool, load) for pool in pools))
        for load in summary.loads
    ]
    return _grid(caption, ("Requests", *(summary.label(pool) for pool in pools)), rows)


def _absent(summary: Summary, pool: str, load: int) -> str:
    return "invalid" if summary.tried(pool, load) and not summary.valid(pool, load) else _NONE


def _throughput(summary: Summary) -> _Html:
    def cell(pool: str, load: int) -> _Html | None:
        point = summary.point(pool, load)
        if point is None:
            return None
        rate: object = _number(point.rate)
        if summary.best(load) == pool:
            rate = _tag("strong", rate, _tag("span", " (fastest)", class_="unseen"))
        ratio = None if pool == summary.baseline else summary.speed_up(pool, load)
        below = [] if ratio is None else [f"{ratio:.2f}x"]
        if point.windows > 1:
            below.append(f"{point.windows} windows")
        return _tag(
            "span", rate, _error(point.stderr) if point.stderr else "", _tag("small", ", ".join(below))
        )

    against = (
        f"below it: times {summary.label(summary.baseline)}'s"
        if summary.baseline
        else "there is no pool of depth 0 to compare with"
    )
    caption = (
        f"Output tokens/s of ONE engine by requests on it, ± 95%; bold: the fastest; {against}. "
        "A dash: not measured."
    )
    return _by_load(summary, caption, summary.pools, cell)


def _latency(summary: Summary) -> Iterable[_Html]:
    streamed = "it is seen only where answers are streamed."
    names: tuple[tuple[Time, str, float, str], ...] = (
        ("request_s", "Whole request, seconds", 1, "No request times: the windows do not tell them."),
        ("first_token_s", "Time to first token, seconds", 1, f"No time to first token: {streamed}"),
        ("token_s", "Time per later output token, ms", 1000, f"No time per output token: {streamed}"),
    )
    for which, name, unit, without in names:

        def cell(pool: str, load: int, which: Time = which, unit: float = unit) -> str | None:
            mean, tail = (summary.time(pool, load, which, part) for part in ("mean", "p95"))
            return (
                None if mean is None or tail is None else f"{_number(mean * unit)} / {_number(tail * unit)}"
            )

        if any(cell(pool, load) for pool in summary.pools for load in summary.loads):
            yield _by_load(summary, f"{name}: mean / 95th percentile", summary.pools, cell)
        else:
            yield _tag("p", without, class_="note")


def _acceptance(summary: Summary) -> Iterable[_Html]:
    def cell(pool: str, load: int) -> str | None:
        told = summary.speculation(pool, load)
        if told is None or told.length is None:
            return None
        delivered = summary.delivered(pool, load)
        return f"{told.length:.2f}" + (f" ({delivered:.2f})" if delivered is not None else "")

    drafting = [pool for pool in summary.pools if summary.speculation(pool)]
    if drafting:
        yield _by_load(
            summary,
            "Acceptance length, tokens per verification: 1 + accepted / drafts (in brackets: tokens that a "
            "step delivered to a request, by the engine's latency histograms)",
            drafting,
            cell,
        )


def _deeper(summary: Summary) -> Iterable[_Html]:
    known = {
        (one.shallow, one.deep, one.load): one for one in (summary.found.deeper if summary.found else ())
    }
    if not known:
        yield _tag("p", "Whether deeper drafts pay: there are no two depths to compare.", class_="note")
        return
    pairs = sorted({(shallow, deep) for shallow, deep, _ in known})
    rows: list[list[object]] = []
    for load in summary.loads:
        cells: list[object] = [load]
        for pair in pairs:
            one = known.get((*pair, load))
            cells.append(
                _tag(
                    "span",
                    "pays" if one.pays else "does not pay",
                    _tag("small", f"{one.tokens:.2f}x / {one.time:.2f}x"),
                )
                if one
                else _NONE
            )
        rows.append(cells)
    accepted: list[object] = ["Accepted, by position"]
    for shallow, deep in pairs:
        shares = [one.accepted for one in known.values() if (one.shallow, one.deep) == (shallow, deep)]
        means = [fmean(place) for place in zip(*shares, strict=False)]
        told = ", ".join(f"{shallow + 1 + place}: {share:.2f}" for place, share in enumerate(means))
        accepted.append(_tag("span", told or _NONE, class_="wrap"))
    yield _grid(
        "Does drafting deeper still pay? Small: tokens of a step / its time, the deeper over the shallower",
        ("Requests", *(f"depth {shallow} → {deep}" for shallow, deep in pairs)),
        [*rows, accepted],
    )


def _open_loop(summary: Summary) -> _Html:
    rows = []
    for window in summary.open_loop:
        drafted = window.speculation or window.told
        rows.append(
            (
                summary.label(window.cell.pool),
                f"{window.cell.per_s:g}",
                window.cell.load,
                _number(window.requests_per_s),
                _number(window.rate) + (_error(window.stderr) if window.stderr else ""),
                _times(window.request_s),
                _times(window.first_token_s),
                f"{drafted.length:.2f}" if drafted and drafted.length else _NONE,
                f"{window.running:.1f} / {window.waiting:.1f}",
                "yes" if window.valid else "no",
            )
        )
    head = (
        "Pool",
        "Sent/s",
        "At most",
        "Answered/s",
        "Tokens/s ± 95%",
        "Request, s: mean / p95 / p99",
        "First token, s: mean / p95 / p99",
        "Acceptance length",
        "Running / waiting",
        "Valid",
    )
    return _grid(
        "Open loop: requests sent at random moments at a fixed rate, whatever is under way", head, rows
    )


def _times(spread: Spread | None) -> str:
    return " / ".join(map(_number, (spread.mean, spread.p95, spread.p99))) if spread else _NONE


def _excluded(results: Results, mark: str) -> _Html:
    parts = [_tag("h2", f"Windows with a reservation{mark}", id="excluded")]
    invalid = [window for window in results.windows if not window.valid]
    flagged = [window for window in results.windows if window.valid and window.flags]
    for windows, caption, without in (
        (invalid, "Invalid windows: no recommendation, curve or mean rests on them", "No window is invalid."),
        (flagged, "Valid windows with a remark", "No valid window has a remark."),
    ):
        head = ("Route", "Pool", "Requests", "Window", "Engine", "Began", "Errors", "Why")
        rows = [
            (
                window.cell.route,
                window.cell.pool,
                f"{window.cell.per_s:g}/s, at most {window.cell.load}"
                if window.cell.per_s
                else window.cell.load,
                window.cell.repeat + 1,
                window.engine or window.source,
                _when(window.started),
                kinds(window.errors) or "none",
                "; ".join((*window.invalid, *window.flags)),
            )
            for window in windows
        ]
        parts.append(_grid(f"{caption} ({len(rows)})", head, rows) if rows else _tag("p", without))
    return _tag("section", *parts, aria_labelledby="excluded", class_="words")


def _method(results: Results, mark: str) -> _Html:
    setting = results.setting
    pools = [
        (
            name,
            pool.depth,
            _tag("code", json.dumps(pool.speculative_config)) if pool.speculative_config else "none",
            _tag("code", json.dumps(pool.ranges)) if pool.ranges else "none",
            pool.max_load,
            pool.engines,
            pool.version or "not told",
        )
        for name in by_depth(results, setting.pools)
        for pool in [setting.pools[name]]
    ]
    shapes = [
        (
            name,
            shape.prompt,
            f"{shape.images}, " + ("drawn by this tool" if shape.rendered else "the operator's own"),
            shape.max_tokens,
            "yes" if shape.streamed else "no",
        )
        for name, shape in setting.routes.items()
    ]
    loads = ", ".join(map(str, setting.loads))
    return _tag(
        "section",
        _tag("h2", f"How it was measured{mark}", id="method"),
        _grid(
            "Pools under test",
            (
                "Pool",
                "Depth",
                "Speculative config",
                "Engines' own schedule",
                "max_load",
                "Engines",
                "Version",
            ),
            pools,
        ),
        _grid("Requests", ("Route", "Prompt", "Images", "max_tokens", "Streamed"), shapes),
        _tag(
            "p",
            f"Closed loop: always so many requests on one engine ({loads}), windows of {setting.window_s:g} "
            "s after throughput was steady. Tokens/s are the engine's own counters, read before and after a "
            "window; times are the client's. Beside this file: windows.csv (one row a window with every "
            "figure, 50th and 99th percentiles, queueing, preemptions and KV use too), results.json, and the "
            "plots as PNG.",
        ),
        aria_labelledby="method",
        class_="words",
    )


def _when(moment: str) -> str:
    return re.sub(r"^(\S{10})T(\d\d:\d\d)\S*(Z|\+00:00)$", r"\1 \2 UTC", moment)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:#.3g}"


def _error(stderr: float) -> str:
    half = float(f"{Z95 * stderr:.2g}")
    return f" ± {half:,.0f}" if half >= 10 else f" ± {half:#.2g}"
