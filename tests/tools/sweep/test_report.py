import csv
import io
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from gateway.model import Speculation
from gateway.tools.sweep import plots
from gateway.tools.sweep.report import ResultsFile, by_kind, page, table, write
from gateway.tools.sweep.summary import RouteSummary, routes
from gateway.tools.sweep.sweep_values import Findings, Results, SweepCell, SweptPool
from tests.tools.sweep.synthetic import findings, small, with_pools, with_windows


class Page(HTMLParser):
    """A page's text, tags and attributes."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.headings: list[str] = []
        self.tables: list[list[list[str]]] = []
        self._text: list[str] = []
        self._inside: list[str] = []
        self.feed(source)
        self.text = " ".join(" ".join(self._text).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside.append(tag)
        match tag:
            case "h1" | "h2" | "h3":
                self.headings.append("")
            case "table":
                self.tables.append([])
            case "tr":
                self.tables[-1].append([])
            case "th" | "td":
                self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if {"style", "svg"} & set(self._inside):
            return
        self._text.append(data)
        if {"h1", "h2", "h3"} & set(self._inside):
            self.headings[-1] += data
        if {"th", "td"} & set(self._inside):
            self.tables[-1][-1][-1] += data

    def rows(self, first: str, second: str = "") -> list[list[str]]:
        """The rows of the table whose head begins so."""
        return next(t for t in self.tables if t[0][0] == first and (not second or t[0][1] == second))


def written(results: Results, found: Findings | None = None, *, drawn: bool = False) -> str:
    found = found or findings(results)
    figures = {
        route: plots.draw(RouteSummary(results, found, route)) if drawn else [] for route in routes(results)
    }
    return page(results, found, figures)


def shown(results: Results, found: Findings | None = None, *, drawn: bool = False) -> Page:
    return Page(written(results, found, drawn=drawn))


def rows(results: Results) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(table(results))))


def test_it_begins_with_what_was_measured_on_what_and_the_recommendation() -> None:
    text = shown(with_windows(small(simulated=""), {"invalid": ("1 request failed",)})).text
    facts = (
        "glm-ocr",
        "1x H100",
        "vLLM 0.30.1",
        "bench-1, 16 CPUs",
        "ocr-gateway 0.2.0",
        "2026-03-14 09:00 UTC",
    )
    assert [fact for fact in facts if fact not in text] == []
    assert "4 of 120 s: 3 valid, 1 invalid" in text
    recommended = text.index("Draft while an engine has room for it.")
    assert recommended < text.index("Run table at depth") < text.index("Output tokens/s")


def test_the_schedule_shows_crossovers_and_margins_with_their_intervals() -> None:
    head, first, second = shown(small(loads=(1, 64, 256))).rows("Requests", "Depth")
    assert head[-1] == "Faster by (95% interval)"
    assert first == ["1 to 255", "3", "mtp3", "-", "plain", "+12.3% (+8.0% to +17.0%)"]
    assert second[:4] == ["256 to 4096", "0", "plain", "256 (204 to 320)"]


def test_a_crossover_inside_the_noise_says_so_and_a_pool_without_a_rival_has_no_margin() -> None:
    results = small(loads=(1, 256))
    found = findings(results)
    route = found.routes["table"]
    route = replace(
        route,
        changes=(replace(route.changes[0], certain=False),),
        schedule=tuple(replace(entry, runner_up="") for entry in route.schedule),
    )
    schedule = shown(results, replace(found, routes={"table": route})).rows("Requests", "Depth")
    assert schedule[2][3:] == ["256 (204 to 320), its noise not measured", "-", "-"]


def test_an_engine_s_own_schedule_is_given_as_vllm_takes_it() -> None:
    assert (
        '--speculative-config \'{"method":"mtp","num_speculative_tokens":3,'
        '"num_speculative_tokens_per_batch_size":[[1,255,3],[256,4096,0]]}\''
    ) in shown(small(loads=(1, 64, 256))).text
    assert "no --speculative-config: depth 0 wins everywhere" in shown(small(depths=(0,))).text


def test_rates_stand_with_error_speed_up_and_the_fastest_marked() -> None:
    results = small(loads=(1, 256), repeats=2)
    _, _, (load, plain, deep) = shown(results).rows("Requests", "depth 0")
    rates = {(w.cell.pool, w.cell.load): w.rate for w in results.windows}
    assert load == "256"
    assert plain.startswith(f"{rates['plain', 256]:,.0f} (fastest) ± ")
    assert deep.startswith(f"{rates['mtp3', 256]:,.0f} ± ")
    assert deep.endswith(f"{rates['mtp3', 256] / rates['plain', 256]:.2f}x, 2 windows")


def test_latency_acceptance_and_whether_deeper_drafts_pay_stand_by_load_and_depth() -> None:
    results = small()
    shown_page = shown(results)
    first = results.windows[0].request_s
    assert first
    by_load = [found for found in shown_page.tables if found[0][0] == "Requests" and len(found[0]) == 3]
    assert f"{first.mean:#.3g} / {first.p95:#.3g}" in [found[1][1] for found in by_load]
    assert ["Requests", "depth 3"] in [found[0] for found in shown_page.tables]
    assert "3.53 (3.53)" in [
        found[1][1] for found in shown_page.tables if found[0] == ["Requests", "depth 3"]
    ]
    _, low, high, accepted = shown_page.rows("Requests", "depth 0 → 3")
    assert low == ["1", "pays1.40x / 1.01x"]
    assert high == ["64", "does not pay1.40x / 1.64x"]
    assert accepted == ["Accepted, by position", "1: 0.61, 2: 0.61, 3: 0.61"]


def test_what_is_missing_is_said_in_words() -> None:
    results = small(depths=(0,), streamed=False)
    nothing = shown(Results(results.setting, ())).text
    for text, words in (
        (shown(results).text, "No time to first token"),
        (shown(results).text, "no two depths to compare"),
        (shown(results).text, plots.MISSING["acceptance"]),
        (shown(small(depths=(3,))).text, "no pool of depth 0 to compare with"),
        (nothing, "there is no valid window of this route"),
        (nothing, plots.MISSING["throughput"]),
    ):
        assert words in text


def test_cells_tell_invalid_from_not_measured() -> None:
    results = with_windows(small(), {"invalid": ("foreign traffic",)})
    rates = shown(replace(results, windows=results.windows[:-1])).rows("Requests", "depth 0")
    assert rates[1][1] == "invalid"
    assert rates[2][2] == "-"


def test_invalid_and_flagged_windows_are_listed_with_every_reason() -> None:
    spoilt = {"invalid": ("1 request failed", "foreign traffic"), "errors": {"http_500": 1, "timeout": 2}}
    shown_page = shown(with_windows(small(), spoilt, {"flags": ("few requests",)}))
    invalid, flagged = [
        found for found in shown_page.tables if (found[0][0], found[0][-1]) == ("Route", "Why")
    ]
    where = ["table", "plain", "1", "1", "plain:8000", "2026-03-14 09:01 UTC"]
    assert invalid[1] == [*where, "http_500: 1; timeout: 2", "1 request failed; foreign traffic"]
    assert flagged[1][-2:] == ["none", "few requests"]
    assert "No window is invalid." in shown(small()).text


def test_an_open_loop_has_a_table_of_its_own() -> None:
    open_loop = {"cell": SweepCell("table", "plain", 64, 0, 2.5)}
    results = with_windows(small(), open_loop | {"first_token_s": None, "stderr": 0.0})
    row = shown(results).rows("Pool", "Sent/s")[1]
    assert row[:3] == ["depth 0", "2.5", "64"]
    assert row[6:] == ["-", "-", "1.0 / 0.0", "yes"]
    flagged = with_windows(small(), open_loop | {"flags": ("few",)})
    assert shown(flagged).rows("Route", "Pool")[1][2] == "2.5/s, at most 64"


def test_every_heading_of_a_simulated_sweep_says_so_and_none_of_a_real_one() -> None:
    simulated, real = shown(small()), shown(small(simulated=""))
    assert len(simulated.headings) > 5
    assert all("(simulated)" in heading for heading in simulated.headings)
    assert "not from a GPU" in simulated.text
    assert "simulated" not in real.text.lower()


def test_text_from_outside_is_escaped_wherever_it_enters() -> None:
    evil = "<script>alert('&')</script>"
    results = small(routes=(evil,), simulated=evil)
    pool = SweptPool(depth=3, speculative_config={"model": evil}, version=evil, ranges=((1, 2, 3),))
    results = with_windows(
        with_pools(results, **{"mtp3": pool, evil: pool}),
        {"invalid": (evil,), "errors": {evil: 1}, "engine": evil, "source": evil},
        {"flags": (evil,), "cell": SweepCell(evil, evil, 1)},
    )
    results = replace(results, setting=replace(results.setting, model=evil, client=evil, tool=evil))
    source = written(results, replace(findings(results), words=(evil,)), drawn=True)
    assert "<script" not in source
    assert Page(source).text.count(evil) > 10


def test_nothing_is_fetched_run_or_hidden_from_keyboards_and_screen_readers() -> None:
    source = written(small(), drawn=True)
    parsed = Page(source)
    names = [name for name, _ in parsed.tags]
    assert not {"script", "link", "iframe", "img", "object"} & set(names)
    assert not re.search(r"url\((?!#)|@import", source)
    ids = [attributes["id"] for _, attributes in parsed.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for name, attributes in parsed.tags:
        for key in ("src", "href", "xlink:href"):
            assert (attributes.get(key) or "#").startswith("#")
        if name == "th":
            assert attributes["scope"] in ("col", "row")
        if name == "svg":
            assert attributes["aria-label"]
        if attributes.get("class") == "scroll":
            assert attributes["tabindex"] == "0"
    assert names.count("caption") == names.count("table")
    linked = {str(attributes["href"]).removeprefix("#") for name, attributes in parsed.tags if name == "a"}
    assert linked <= set(ids)
    assert "prefers-color-scheme: dark" in source
    assert "@media print" in source


def test_windows_of_another_benchmark_are_named_and_lack_nothing_but_figures() -> None:
    bare: dict[str, Any] = dict.fromkeys(
        ("request_s", "first_token_s", "token_s", "speculation", "tokens_per_step")
    )
    bare |= {"source": "bench.json", "told": Speculation(10, 20)}
    text = shown(with_windows(small(depths=(3,)), bare, bare), drawn=True).text
    assert "Read from bench.json" in text
    assert "No request times" in text
    assert plots.MISSING["acceptance"] in text
    assert plots.MISSING["tokens"] not in text


def test_a_pool_that_schedules_itself_is_named_and_its_schedule_shown() -> None:
    results = small()
    own = replace(results.setting.pools["mtp3"], ranges=((1, 63, 3), (64, 512, 0)))
    shown_page = shown(with_pools(results, mtp3=own))
    assert shown_page.rows("Requests", "depth 0")[0][2] == "mtp3 (schedules itself)"
    assert shown_page.rows("Pool", "Depth")[2][3] == "[[1, 63, 3], [64, 512, 0]]"


def test_kinds_of_errors_are_counted() -> None:
    assert by_kind({"timeout": 2, "http_500": 1}) == "http_500: 1; timeout: 2"
    assert by_kind({}) == ""


def test_page_plots_and_data_are_written_again_over_what_was_there_and_come_back_from_json(
    tmp_path: Path,
) -> None:
    results = small()
    folder = tmp_path / "new" / "out"
    first = write(results, findings(results), folder)
    before = {path: path.read_bytes() for path in first}
    again = write(results, findings(results), folder)
    names = ["report.html", "windows.csv", "results.json"]
    names += [f"table-{kind}.png" for kind in ("throughput", "latency", "acceptance", "tokens")]
    assert [path.name for path in first] == names
    assert sorted(folder.iterdir()) == sorted(first)
    assert before == {path: path.read_bytes() for path in again}
    read = msgspec.json.decode((folder / "results.json").read_bytes(), type=ResultsFile)
    assert read == ResultsFile(results, findings(results))


def test_routes_are_no_paths_and_do_not_overwrite_each_other(tmp_path: Path) -> None:
    results = small(routes=("../a", "__/a", "表"), depths=(0,))
    pictures = [path for path in write(results, findings(results), tmp_path) if path.suffix == ".png"]
    assert len(pictures) == len(set(pictures)) == 6
    assert all(path.parent == tmp_path for path in pictures)


def test_the_csv_has_a_row_a_window_and_a_column_a_figure() -> None:
    results = small(repeats=2)
    read = rows(results)
    assert len(read) == len(results.windows)
    for row, window in zip(read, results.windows, strict=True):
        assert [row[name] for name in ("route", "pool", "load", "repeat")] == [
            str(getattr(window.cell, name)) for name in ("route", "pool", "load", "repeat")
        ]
        assert float(row["rate"]) == window.rate
        assert window.request_s
        assert float(row["request_s_p95"]) == window.request_s.p95
    assert read[-1]["depth"] == "3"
    drafted = results.windows[-1].speculation
    assert drafted
    assert float(read[-1]["speculation_length"]) == drafted.length
    assert float(read[-1]["speculation_accepted_3"]) == drafted.accepted_per_position[2]


def test_what_a_window_lacks_is_empty_in_the_csv_and_the_columns_stay() -> None:
    first, *_ = rows(small(depths=(0,), streamed=False))
    assert first["first_token_s_p99"] == ""
    assert first["speculation_drafts"] == ""
    assert "told_length" in first


def test_invalid_windows_stand_in_the_csv_with_their_reasons_and_errors() -> None:
    spoilt = {"invalid": ("1 request failed", "foreign, traffic"), "flags": ("x",)}
    stray = {"cell": SweepCell("table", "stray", 8, 0, 2.5), "speculation": Speculation(4, 2)}
    first, second = rows(
        with_windows(small(depths=(3,)), spoilt | {"errors": {"http_500": 1, "timeout": 2}}, stray)
    )
    assert first["valid"] == "False"
    assert first["invalid"] == "1 request failed; foreign, traffic"
    assert (first["errors"], first["errors_by_kind"]) == ("3", "http_500: 1; timeout: 2")
    assert first["flags"] == "x"
    assert (second["per_s"], second["depth"]) == ("2.5", "")
    assert second["speculation_draft_tokens"] == second["speculation_accepted_1"] == ""


def test_a_sweep_without_a_window_is_written_too(tmp_path: Path) -> None:
    results = Results(small().setting, ())
    names = [path.name for path in write(results, findings(results), tmp_path)]
    assert names == ["report.html", "windows.csv", "results.json"]
