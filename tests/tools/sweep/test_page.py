import re
from html.parser import HTMLParser

import msgspec

from gateway.model import Speculation
from gateway.tools.sweep import plots
from gateway.tools.sweep.page import kinds, page
from gateway.tools.sweep.summary import Summary, routes
from gateway.tools.sweep.sweep_values import Cell, Findings, Pool, Results
from tests.tools.sweep.synthetic import findings, sweep


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


def shown(results: Results, found: Findings | None = None, *, drawn: bool = False) -> Page:
    found = found or findings(results)
    figures = {
        route: plots.draw(Summary(results, found, route)) if drawn else [] for route in routes(results)
    }
    return Page(page(results, found, figures))


def with_windows(results: Results, *changes: dict[str, object]) -> Results:
    """The sweep with its first windows changed."""
    changed = [msgspec.structs.replace(w, **c) for w, c in zip(results.windows, changes, strict=False)]
    return Results(results.setting, (*changed, *results.windows[len(changed) :]))


def small(**options: object) -> Results:
    return sweep(**({"routes": ("table",), "depths": (0, 3), "loads": (1, 64)} | options))  # type: ignore[arg-type]


def test_it_begins_with_what_was_measured_on_what_and_the_recommendation() -> None:
    results = with_windows(small(simulated=""), {"invalid": ("1 request failed",)})
    text = shown(results).text

    for fact in (
        "glm-ocr",
        "1x H100",
        "vLLM 0.30.1",
        "bench-1, 16 CPUs",
        "ocr-gateway 0.2.0",
        "2026-03-14 09:00 UTC",
    ):
        assert fact in text
    assert "4 of 120 s: 3 valid, 1 invalid" in text
    assert (
        text.index("Draft while an engine has room for it.")
        < text.index("Run table at depth")
        < text.index("Output tokens/s")
    )


def test_the_schedule_shows_crossovers_and_margins_with_their_intervals() -> None:
    head, first, second = shown(small(depths=(0, 3), loads=(1, 64, 256))).rows("Requests", "Depth")

    assert head[-1] == "Faster by (95% interval)"
    assert first == ["1 to 255", "3", "mtp3", "-", "plain", "+12.3% (+8.0% to +17.0%)"]
    assert second[:4] == ["256 to 4096", "0", "plain", "256 (204 to 320)"]


def test_a_crossover_inside_the_noise_says_so_and_a_pool_without_a_rival_has_no_margin() -> None:
    results = small(loads=(1, 256))
    found = findings(results)
    route = found.routes["table"]
    route = msgspec.structs.replace(
        route,
        changes=(msgspec.structs.replace(route.changes[0], certain=False),),
        schedule=tuple(msgspec.structs.replace(entry, runner_up="") for entry in route.schedule),
    )
    rows = shown(results, msgspec.structs.replace(found, routes={"table": route})).rows("Requests", "Depth")

    assert rows[2][3:] == ["256 (204 to 320), its noise not measured", "-", "-"]


def test_an_engine_s_own_schedule_is_given_as_vllm_takes_it() -> None:
    text = shown(small(loads=(1, 64, 256))).text

    assert (
        '--speculative-config \'{"method":"mtp","num_speculative_tokens":3,'
        '"num_speculative_tokens_per_batch_size":[[1,255,3],[256,4096,0]]}\'' in text
    )
    assert "no --speculative-config: depth 0 wins everywhere" in shown(small(depths=(0,))).text


def test_rates_stand_with_error_speed_up_and_the_fastest_marked() -> None:
    results = small(loads=(1, 256), repeats=2)
    rows = shown(results).rows("Requests", "depth 0")
    rates = {(w.cell.pool, w.cell.load): w.rate for w in results.windows}

    assert rows[2][0] == "256"
    assert rows[2][1].startswith(f"{rates['plain', 256]:,.0f} (fastest) ± ")
    assert rows[2][2].startswith(f"{rates['mtp3', 256]:,.0f} ± ")
    assert rows[2][2].endswith(f"{rates['mtp3', 256] / rates['plain', 256]:.2f}x, 2 windows")


def test_latency_and_acceptance_stand_by_load_and_depth() -> None:
    results = small()
    tables = {
        rows[1][1]: rows for rows in shown(results).tables if rows[0][0] == "Requests" and len(rows[0]) == 3
    }
    first = results.windows[0].request_s
    assert first

    assert f"{first.mean:#.3g} / {first.p95:#.3g}" in tables
    assert any(
        rows[0] == ["Requests", "depth 3"] and rows[1][1] == "3.53 (3.53)" for rows in shown(results).tables
    )


def test_whether_deeper_drafts_pay_is_told_by_load() -> None:
    _, low, high, accepted = shown(small(depths=(0, 3), loads=(1, 64))).rows("Requests", "depth 0 → 3")

    assert low == ["1", "pays1.40x / 1.01x"]
    assert high == ["64", "does not pay1.40x / 1.64x"]
    assert accepted == ["Accepted, by position", "1: 0.61, 2: 0.61, 3: 0.61"]


def test_what_is_missing_is_said_in_words() -> None:
    results = small(depths=(0,), streamed=False)
    text = shown(results).text

    assert "No time to first token" in text
    assert "no two depths to compare" in text
    assert plots.MISSING["acceptance"] in text
    assert "no pool of depth 0 to compare with" in shown(small(depths=(3,))).text
    nothing = Results(results.setting, ())
    assert "there is no valid window of this route" in shown(nothing).text
    assert plots.MISSING["throughput"] in shown(nothing).text


def test_cells_tell_invalid_from_not_measured() -> None:
    results = with_windows(small(), {"invalid": ("foreign traffic",)})
    results = Results(results.setting, results.windows[:-1])
    rows = shown(results).rows("Requests", "depth 0")

    assert rows[1][1] == "invalid"
    assert rows[2][2] == "-"


def test_invalid_and_flagged_windows_are_listed_with_every_reason() -> None:
    results = with_windows(
        small(),
        {"invalid": ("1 request failed", "foreign traffic"), "errors": {"http_500": 1, "timeout": 2}},
        {"flags": ("few requests",)},
    )
    shown_page = shown(results)
    invalid, flagged = [rows for rows in shown_page.tables if rows[0][0] == "Route" and rows[0][-1] == "Why"]

    assert invalid[1] == [
        "table",
        "plain",
        "1",
        "1",
        "plain:8000",
        "2026-03-14 09:01 UTC",
        "http_500: 1; timeout: 2",
        "1 request failed; foreign traffic",
    ]
    assert flagged[1][-2:] == ["none", "few requests"]
    assert "No window is invalid." in shown(small()).text


def test_an_open_loop_has_a_table_of_its_own() -> None:
    results = with_windows(
        small(), {"cell": Cell("table", "plain", 64, 0, 2.5), "first_token_s": None, "stderr": 0.0}
    )
    rows = shown(results).rows("Pool", "Sent/s")

    assert rows[1][:3] == ["depth 0", "2.5", "64"]
    assert rows[1][6:] == ["-", "-", "1.0 / 0.0", "yes"]
    flagged = with_windows(small(), {"cell": Cell("table", "plain", 64, 0, 2.5), "flags": ("few",)})
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
    pool = Pool(depth=3, speculative_config={"model": evil}, version=evil, ranges=((1, 2, 3),))
    setting = msgspec.structs.replace(
        results.setting,
        model=evil,
        client=evil,
        tool=evil,
        pools={**results.setting.pools, "mtp3": pool, evil: pool},
    )
    results = with_windows(
        Results(setting, results.windows),
        {"invalid": (evil,), "errors": {evil: 1}, "engine": evil, "source": evil},
        {"flags": (evil,), "cell": Cell(evil, evil, 1)},
    )
    found = msgspec.structs.replace(findings(results), words=(evil,))
    figures = {evil: plots.draw(Summary(results, found, evil))}

    source = page(results, found, figures)

    assert "<script" not in source
    assert Page(source).text.count(evil) > 10


def test_nothing_is_fetched_run_or_hidden_from_keyboards_and_screen_readers() -> None:
    results = small()
    found = findings(results)
    source = page(results, found, {"table": plots.draw(Summary(results, found, "table"))})
    parsed = Page(source)

    names = [name for name, _ in parsed.tags]
    assert not {"script", "link", "iframe", "img", "object"} & set(names)
    for _, attributes in parsed.tags:
        for key in ("src", "href", "xlink:href"):
            assert (attributes.get(key) or "#").startswith("#")
    assert not re.search(r"url\((?!#)|@import", source)
    ids = [attributes["id"] for _, attributes in parsed.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for name, attributes in parsed.tags:
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
    results = small(depths=(3,))
    bare = {
        "source": "bench.json",
        "request_s": None,
        "first_token_s": None,
        "token_s": None,
        "speculation": None,
    }
    results = with_windows(results, *[bare | {"told": Speculation(10, 20), "tokens_per_step": None}] * 2)
    text = shown(results, drawn=True).text

    assert "Read from bench.json" in text
    assert "No request times" in text
    assert plots.MISSING["acceptance"] in text
    assert plots.MISSING["tokens"] not in text


def test_a_pool_that_schedules_itself_is_named_and_its_schedule_shown() -> None:
    results = small()
    own = msgspec.structs.replace(results.setting.pools["mtp3"], ranges=((1, 63, 3), (64, 512, 0)))
    results = Results(
        msgspec.structs.replace(results.setting, pools={**results.setting.pools, "mtp3": own}),
        results.windows,
    )
    shown_page = shown(results)

    assert shown_page.rows("Requests", "depth 0")[0][2] == "mtp3 (schedules itself)"
    assert shown_page.rows("Pool", "Depth")[2][3] == "[[1, 63, 3], [64, 512, 0]]"


def test_kinds_of_errors_are_counted() -> None:
    assert kinds({"timeout": 2, "http_500": 1}) == "http_500: 1; timeout: 2"
    assert kinds({}) == ""
