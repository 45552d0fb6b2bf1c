import re
import xml.etree.ElementTree as ET

import msgspec
import pytest

from gateway.tools.sweep import plots
from gateway.tools.sweep.plots import Plot
from gateway.tools.sweep.summary import RouteSummary
from gateway.tools.sweep.sweep_values import DepthChange, Findings, Results, SweepCell, SweptPool
from tests.tools.sweep.synthetic import findings, sweep


def drawn(results: Results, found: Findings | None = None, route: str = "table") -> dict[str, Plot]:
    return {plot.kind: plot for plot in plots.draw(RouteSummary(results, found or findings(results), route))}


def one_route(**options: object) -> Results:
    return sweep(routes=("table",), **options)  # type: ignore[arg-type]


def words(plot: Plot) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", plots.svg(plot, "x"))


def test_every_axis_says_what_it_counts_and_in_which_unit() -> None:
    figures = drawn(one_route())
    assert list(figures) == list(plots.MISSING)
    for plot in figures.values():
        bottom, left = plot.figure.axes[-1], plot.figure.axes[0]
        assert bottom.get_xlabel()
        assert left.get_ylabel()
    assert figures["throughput"].figure.axes[0].get_ylabel() == "output tokens/s of ONE engine"
    assert figures["throughput"].figure.axes[0].get_xlabel() == "requests on ONE engine (log scale)"
    assert figures["latency"].figure.axes[0].get_ylabel() == "seconds (log scale)"


def test_every_plot_of_simulated_engines_says_so_and_of_real_ones_does_not() -> None:
    for simulated in ("h100-9b", ""):
        results = one_route(simulated=simulated, loads=(1, 64))
        for plot in drawn(results).values():
            assert ("simulated, h100-9b" in plot.figure.get_suptitle()) is bool(simulated)
            assert ("simulated" in plot.alt) is bool(simulated)


def test_throughput_has_a_line_a_depth_named_beside_it_and_the_curve_s_own_points() -> None:
    results = one_route(depths=(0, 1, 3))
    found = findings(results)
    plot = drawn(results, found)["throughput"]
    lines = [line for line in plot.figure.axes[0].lines if line.get_linestyle() == "-"][:3]
    for line, pool in zip(lines, ("plain", "mtp1", "mtp3"), strict=True):
        points = found.routes["table"].points[pool]
        assert list(zip(line.get_xdata(), line.get_ydata(), strict=True)) == [
            (p.load, p.rate) for p in points
        ]
    assert len({(line.get_color(), line.get_marker()) for line in lines}) == 3
    assert {"depth 0", "depth 1", "depth 3"} <= set(words(plot))
    assert "depth 3 from 1 to" in plot.alt


def test_bars_are_95_percent_intervals_and_missing_where_no_error_is_known() -> None:
    results = one_route(depths=(0,), loads=(1, 64))
    found = findings(results)
    one, other = found.routes["table"].points["plain"]
    points = {"plain": (one, msgspec.structs.replace(other, stderr=0.0))}
    route = msgspec.structs.replace(found.routes["table"], points=points)
    plot = drawn(results, msgspec.structs.replace(found, routes={"table": route}))["throughput"]
    bars = [bar for group in plot.figure.axes[0].containers for bar in group[2]]
    segments = [segment for bar in bars for segment in bar.get_segments()]
    assert len(segments) == 1
    assert segments[0][:, 1] == pytest.approx([one.rate - 1.96 * one.stderr, one.rate + 1.96 * one.stderr])


def test_a_crossover_is_drawn_with_its_interval_and_marked_where_inside_the_noise() -> None:
    results = one_route(depths=(0, 3))
    found = findings(results)
    for certain in (True, False):
        change = DepthChange(72, 64, 80, "mtp3", "plain", certain)
        route = msgspec.structs.replace(found.routes["table"], changes=(change,))
        plot = drawn(results, msgspec.structs.replace(found, routes={"table": route}))["throughput"]
        (band,) = plot.figure.axes[0].patches
        assert (band.get_x(), band.get_x() + band.get_width()) == (64, 80)  # type: ignore[attr-defined]
        assert any(list(line.get_xdata()) == [72, 72] for line in plot.figure.axes[0].lines)
        label = "72 (95%: 64 to 80): depth 3 → depth 0" + ("" if certain else ", its noise not measured")
        assert label in words(plot)


def test_invalid_windows_are_shown_as_such() -> None:
    results = one_route(depths=(0,), loads=(1, 10))
    first, second = results.windows
    results = Results(results.setting, (msgspec.structs.replace(first, invalid=("an error",)), second))
    plot = drawn(results)["throughput"]
    valid, invalid = plot.figure.axes[0].collections[-2:]
    assert valid.get_offsets().tolist() == [[10, second.rate]]
    assert invalid.get_offsets().tolist() == [[1, first.rate]]


def test_loads_are_numbered_as_far_as_there_is_room() -> None:
    plot = drawn(one_route(depths=(0,), loads=(1, 2, 100, 101, 256)))["throughput"]
    numbers = [word for word in words(plot) if word in ("1", "2", "100", "101", "256")]
    assert numbers == ["256", "101", "2", "1"]


def test_no_time_to_first_token_where_answers_were_not_streamed() -> None:
    assert len(drawn(one_route(loads=(1, 64)))["latency"].figure.axes) == 4
    unstreamed = drawn(one_route(loads=(1, 64), streamed=False))["latency"]
    assert len(unstreamed.figure.axes) == 2
    assert "first token" not in unstreamed.alt


def test_times_that_hardly_differ_start_at_zero() -> None:
    axes = drawn(one_route(depths=(0,), loads=(1, 2)))["latency"].figure.axes[0]
    assert (axes.get_yscale(), axes.get_ylim()[0], axes.get_ylabel()) == ("linear", 0, "seconds")


def test_acceptance_is_drawn_position_by_position() -> None:
    results = one_route(depths=(0, 3), loads=(1, 64))
    (line,) = drawn(results)["acceptance"].figure.axes[0].lines
    assert list(line.get_xdata()) == [1, 2, 3]
    assert list(line.get_ydata()) == pytest.approx([0.98, 0.92, 0.63], abs=0.1)


def test_tokens_per_verification_by_depth_leaves_out_pools_of_no_one_depth() -> None:
    results = one_route(depths=(0, 1, 3), loads=(1, 64))
    pools = results.setting.pools | {"mtp1": SweptPool(depth=1, ranges=((1, 63, 1), (64, 512, 0)))}
    plain = drawn(results)["tokens"]
    mixed = drawn(Results(msgspec.structs.replace(results.setting, pools=pools), results.windows))["tokens"]
    assert [word for word in words(plain) if re.fullmatch(r"\d\.\d\d", word)] == ["1.00", "1.98", "3.53"]
    assert [word for word in words(mixed) if re.fullmatch(r"\d\.\d\d", word)] == ["1.00", "3.53"]


def test_what_was_not_measured_is_not_drawn() -> None:
    results = one_route(depths=(0,), loads=(1, 64))
    assert list(drawn(results)) == ["throughput", "latency"]
    open_loop = [
        msgspec.structs.replace(w, cell=SweepCell("table", "plain", 8, 0, 2.0)) for w in results.windows
    ]
    results = Results(results.setting, tuple(open_loop))
    assert drawn(results) == {}


def test_a_single_load_and_a_single_pool_make_a_plot() -> None:
    plot = drawn(one_route(depths=(3,), loads=(32,)))["throughput"]
    low, high = plot.figure.axes[0].get_xlim()
    assert low < 32 < high


def test_a_dollar_sign_and_markup_in_a_name_are_just_text() -> None:
    name = "<script>$x_{1$</script>"
    plot = drawn(sweep(depths=(0,), routes=(name,), loads=(1, 10)), route=name)["throughput"]
    picture = plots.svg(plot, "x")
    assert "<script" not in picture
    assert "&lt;script&gt;$x_{1$&lt;/script&gt;: throughput" in picture
    assert plots.png(plot).startswith(b"\x89PNG")


def test_names_of_lines_that_end_alike_are_pushed_apart_and_others_stay() -> None:
    assert plots._apart([0.5, 0.5, 0.9], 0.1) == pytest.approx([0.45, 0.55, 0.9])
    assert plots._apart([0.1, 0.4], 0.1) == pytest.approx([0.1, 0.4])


def test_pictures_are_the_same_each_time() -> None:
    results = one_route(depths=(0, 3), loads=(1, 64))
    (first, *_), (second, *_) = (
        plots.draw(RouteSummary(results, findings(results), "table")),
        drawn(results).values(),
    )
    assert plots.svg(first, "a") == plots.svg(second, "a")
    assert plots.png(first) == plots.png(second)


def test_an_svg_stands_in_a_page_named_without_ids_of_others_and_in_the_page_s_colours() -> None:
    plot = drawn(one_route(depths=(0, 3), loads=(1, 64)))["throughput"]
    picture, other = plots.svg(plot, "a"), plots.svg(plot, "b")
    root = ET.fromstring(picture)
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-label"] == plot.alt
    assert not set(re.findall(r'\bid="([^"]*)"', picture)) & set(re.findall(r'\bid="([^"]*)"', other))
    used = set(re.findall(r"var\(--(c\d+)\)", picture))
    assert len(used) > 3
    assert all(f"--{name}:" in plots.STYLE for name in used)
    assert not re.search(r"(?:fill|stroke): #", picture)
    assert "<style" not in picture
    assert "<metadata" not in picture
