"""A route's plots: the only module that imports matplotlib.

Colours are Okabe and Ito's, which colour-blind readers tell apart; every line has a marker of its own, too.
"""

from __future__ import annotations

import html
import io
import math
import re
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from gateway.policy.choose.gain import Z95

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matplotlib.axes import Axes

    from gateway.tools.sweep.summary import RouteSummary, SpreadPart, TimeName

MISSING = {
    "throughput": "No plot of throughput: there is no valid window in a closed loop.",
    "latency": "No plot of latency: no valid window tells times.",
    "acceptance": "No plot of acceptance by position: no valid window tells it.",
    "tokens": "No plot of tokens per verification: no valid window tells what was drafted.",
}

# Light and dark; the first is for the pool that does not speculate.
_COLOURS = (
    ("#1b1b1b", "#ededed"),
    ("#0072b2", "#4ba8ea"),
    ("#d55e00", "#ff8a3d"),
    ("#009e73", "#2fcb9f"),
    ("#cc79a7", "#e59cc5"),
    ("#e69f00", "#f0b93a"),
    ("#56b4e9", "#a6dbff"),
)
_MARKERS = "osD^vPX*"
_INK, _SOFT, _FAINT = ("#1c1f23", "#e8eaed"), ("#5c636b", "#a3abb5"), ("#d7dbe0", "#3a4048")
_THEMED = {f"c{place}": pair for place, pair in enumerate((*_COLOURS, _INK, _SOFT, _FAINT))}
_RC: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": _SOFT[0],
    "axes.grid": True,
    "axes.labelcolor": _INK[0],
    "axes.labelsize": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "axes.titlecolor": _INK[0],
    "errorbar.capsize": 2,
    "figure.titlesize": 11,
    "font.family": "sans-serif",
    "font.size": 9,
    "grid.color": _FAINT[0],
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.labelcolor": _INK[0],
    "lines.linewidth": 1.5,
    "lines.markersize": 4.5,
    "svg.fonttype": "none",
    "svg.image_inline": True,
    "text.color": _INK[0],
    # A name may hold a dollar sign.
    "text.parse_math": False,
    "xtick.color": _SOFT[0],
    "ytick.color": _SOFT[0],
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}
_WIDTH = 7.6
_DPI = 150
# The least distance of two numbers on the axis of loads, as a share of its length.
_ROOM = 0.038


@dataclass(frozen=True, slots=True)
class Plot:
    """A drawn figure with its words.

    Attributes:
        kind: a key of MISSING.
        caption: how to read it.
        alt: what it shows, for those who cannot see it.
        figure: what was drawn.
    """

    kind: str
    caption: str
    alt: str
    figure: Figure


def draw(summary: RouteSummary) -> list[Plot]:
    """Draw what was measured of a route; a plot for which nothing valid was measured is left out."""
    with _style():
        drawn = (_throughput(summary), _latency(summary), _acceptance(summary), _tokens(summary))
    return [plot for plot in drawn if plot]


def png(plot: Plot) -> bytes:
    """Return a plot as a PNG file; the same plot gives the same bytes."""
    file = io.BytesIO()
    with _style():
        plot.figure.savefig(file, format="png", dpi=_DPI, facecolor="white", metadata={"Software": None})
    return file.getvalue()


def svg(plot: Plot, name: str) -> str:
    """Return a plot as an SVG element for an HTML page with STYLE, in the page's light or dark colours.

    Args:
        plot: which.
        name: tells its definitions from those of the page's other plots.
    """
    file = io.StringIO()
    with _style({"svg.hashsalt": name}):
        plot.figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    text = file.getvalue()
    _, _, inner = text[text.index("<svg") :].partition(">")
    box = re.search(r'viewBox="([^"]*)"', text)
    inner = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>", "", inner, flags=re.DOTALL)
    inner = re.sub(r'<g id="[^"]*"', "<g", inner)
    for variable, (light, _) in _THEMED.items():
        inner = inner.replace(light, f"var(--{variable})")
    opening = (
        f'<svg class="plot" role="img" aria-label="{html.escape(plot.alt)}" viewBox="{box[1] if box else ""}"'
    )
    return f'{opening} xmlns:xlink="http://www.w3.org/1999/xlink">{inner.strip()}'


@contextmanager
def _style(also: dict[str, str] | None = None) -> Iterator[None]:
    with mpl.rc_context(_RC | (also or {})), warnings.catch_warnings():
        # A name may be in a script that the font lacks; the page's own fonts have it.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield


def _variables(place: int) -> str:
    return "".join(f"--{name}:{pair[place]};" for name, pair in _THEMED.items())


STYLE = f""".plot {{ {_variables(0)} stroke-linejoin: round; width: 100%; height: auto; }}
@media screen and (prefers-color-scheme: dark) {{ .plot {{ {_variables(1)} }} }}
"""


def _throughput(summary: RouteSummary) -> Plot | None:
    lines = {pool: summary.points(pool) for pool in summary.pools}
    lines = {pool: points for pool, points in lines.items() if points}
    if not lines:
        return None
    figure, axes = _figure(summary, "throughput")
    for pool, points in lines.items():
        look = _look(summary, pool)
        axes.plot([p.load for p in points], [p.rate for p in points], **look)
        sure = [p for p in points if p.stderr > 0]
        axes.errorbar(
            [p.load for p in sure],
            [p.rate for p in sure],
            [Z95 * p.stderr for p in sure],
            fmt="none",
            color=look["color"],
            elinewidth=1,
        )
    for pool in summary.pools:
        own = [window for window in summary.windows if window.cell.pool == pool]
        for valid, marker, size in ((True, ".", 16), (False, "x", 22)):
            axes.scatter(
                [window.cell.load for window in own if window.valid is valid],
                [window.rate for window in own if window.valid is valid],
                size,
                _look(summary, pool)["color"],
                marker=marker,
                alpha=0.4,
                linewidths=0.8,
            )
    _loads(axes, summary)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("output tokens/s of ONE engine")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    _crossovers(axes, summary)
    _names(axes, [(pool, points[-1].load, points[-1].rate) for pool, points in lines.items()], summary, 0.05)
    caption = (
        "Output tokens/s of one engine against the requests it has, a line a depth. Bars: 95% interval of a "
        "point. Faint dots: single windows; faint crosses: invalid ones, which count for nothing."
    )
    if summary.found and summary.found.changes:
        caption += (
            " Vertical lines: crossovers, shaded over their 95% interval; dotted where no noise was measured."
        )
    return Plot("throughput", caption, f"{_title(summary, 'throughput')}. {_winners(summary)}", figure)


def _latency(summary: RouteSummary) -> Plot | None:
    rows: list[tuple[TimeName, str]] = [
        ("request_s", "whole request"),
        ("first_token_s", "time to first token"),
    ]
    parts: list[tuple[SpreadPart, str]] = [("mean", "mean"), ("p95", "95th percentile")]
    known = [
        (which, name)
        for which, name in rows
        if any(summary.time(pool, load, which, "mean") for pool in summary.pools for load in summary.loads)
    ]
    if not known:
        return None
    figure = Figure(figsize=(_WIDTH, 0.7 + 2.7 * len(known)), layout="constrained")
    figure.suptitle(_title(summary, "latency"), x=0.01, ha="left")
    grid = figure.subplots(len(known), 2, squeeze=False, sharey="row", sharex=True)
    for row, (which, name) in zip(grid, known, strict=True):
        for axes, (part, part_name) in zip(row, parts, strict=True):
            ends = [end for pool in summary.pools if (end := _times(axes, summary, pool, which, part))]
            axes.set_title(f"{name}, {part_name}")
            _loads(axes, summary, room=2 * _ROOM, label=which == known[-1][0])
        _seconds(row)
        _names(row[-1], ends, summary, gap=0.07)
    return Plot(
        "latency",
        "Seconds against the requests one engine has, as clients saw them; the mean of the windows' figures "
        "where a point has several.",
        f"{_title(summary, 'latency')}: {' and '.join(name for _, name in known)}, mean and 95th percentile, "
        "by requests on one engine and depth. The tables below have the figures.",
        figure,
    )


def _times(
    axes: Axes, summary: RouteSummary, pool: str, which: TimeName, part: SpreadPart
) -> tuple[str, float, float] | None:
    found = [
        (load, seconds)
        for load in summary.loads
        if (seconds := summary.time(pool, load, which, part)) is not None
    ]
    if not found:
        return None
    axes.plot(*zip(*found, strict=True), **_look(summary, pool))
    return pool, *found[-1]


def _acceptance(summary: RouteSummary) -> Plot | None:
    drafted = {pool: summary.speculation(pool) for pool in summary.pools}
    shares = {
        pool: [accepted / told.drafts for accepted in told.accepted_per_position]
        for pool, told in drafted.items()
        if told and told.accepted_per_position
    }
    if not shares:
        return None
    figure, axes = _figure(summary, "acceptance by position")
    for order, (pool, values) in enumerate(shares.items()):
        # The shallower above the deeper, which go on where those end.
        look = _look(summary, pool) | {"label": summary.label(pool), "zorder": 3 - order / 100}
        axes.plot(range(1, len(values) + 1), values, **look)
    axes.set_ylim(0, 1.03)
    axes.set_xlabel("position in the draft")
    axes.set_ylabel("share of drafts accepted up to here")
    axes.xaxis.set_major_locator(FixedLocator(range(1, 1 + max(map(len, shares.values())))))
    axes.legend(loc="upper right")
    told_off = "; ".join(
        f"{summary.label(pool)}: {', '.join(f'{value:.2f}' for value in values)}"
        for pool, values in shares.items()
    )
    return Plot(
        "acceptance",
        "Share of drafts in which the token at a position and all before it were accepted, over all valid "
        "windows.",
        f"{_title(summary, 'acceptance by position')}. {told_off}.",
        figure,
    )


def _tokens(summary: RouteSummary) -> Plot | None:
    drafted = {
        pool: told
        for pool in summary.pools
        if summary.fixed(pool) and (told := summary.speculation(pool)) and told.length
    }
    if not drafted:
        return None
    figure, axes = _figure(summary, "tokens per verification")
    ends = [(summary.depth(pool), float(told.length or 0)) for pool, told in drafted.items()]
    if summary.baseline:
        ends.insert(0, (0, 1.0))
    deepest, most = max(depth for depth, _ in ends), max(length for _, length in ends)
    axes.plot([0, deepest], [1, deepest + 1], color=_SOFT[0], linestyle=":", linewidth=1)
    axes.plot(*zip(*ends, strict=True), color=_SOFT[0], linewidth=1)
    for pool in drafted:
        look = _look(summary, pool)
        lengths = [told.length for w in summary.valid(pool) if (told := w.speculation or w.told)]
        known = [length for length in lengths if length]
        depths = [summary.depth(pool)] * len(known)
        axes.scatter(depths, known, 16, look["color"], marker=".", alpha=0.4)
    for pool, (depth, length) in zip(
        ([summary.baseline] if summary.baseline else []) + list(drafted), ends, strict=True
    ):
        axes.plot(depth, length, **_look(summary, pool))
        axes.annotate(f"{length:.2f}", (depth, length), (5, -11), textcoords="offset points", fontsize=8)
    axes.set_ylim(0, most * 1.25)
    axes.set_xlim(-0.3, deepest * 1.04 + 0.3)
    axes.set_xlabel("depth (draft tokens at a time)")
    axes.set_ylabel("tokens per verification")
    axes.xaxis.set_major_locator(FixedLocator([depth for depth, _ in ends]))
    return Plot(
        "tokens",
        "Tokens per verification (1 + accepted / drafts) by depth, over all valid windows; faint dots: "
        "single windows. Dotted: if every draft token were accepted.",
        f"{_title(summary, 'tokens per verification')}. "
        + "; ".join(f"depth {depth}: {length:.2f}" for depth, length in ends)
        + ".",
        figure,
    )


def _figure(summary: RouteSummary, what: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(_WIDTH, 4.2), layout="constrained")
    figure.suptitle(_title(summary, what), x=0.01, ha="left")
    return figure, figure.subplots()


def _title(summary: RouteSummary, what: str) -> str:
    simulated = summary.setting.simulated
    return f"{summary.name}: {what}" + (f" (simulated, {simulated})" if simulated else "")


def _look(summary: RouteSummary, pool: str) -> dict[str, Any]:
    place = summary.place(pool)
    return {
        "color": _COLOURS[place % len(_COLOURS)][0],
        "marker": _MARKERS[place % len(_MARKERS)],
    }


def _loads(axes: Axes, summary: RouteSummary, room: float = _ROOM, *, label: bool = True) -> None:
    """A logarithmic axis, with a number at each measured load as far as there is room."""
    loads = summary.loads
    low, high = math.log(loads[0]) - 0.12, math.log(loads[-1]) + 0.12
    shown: list[int] = []
    for load in reversed(loads):
        if not shown or math.log(shown[-1] / load) > room * (high - low):
            shown.append(load)
    axes.set_xscale("log")
    axes.set_xlim(math.exp(low), math.exp(high))
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    if label:
        axes.set_xlabel("requests on ONE engine (log scale)")


def _seconds(row: Sequence[Axes]) -> None:
    """Start the axis at zero; make it logarithmic where the slowest pool would flatten the others."""
    axes = row[0]
    values = [float(y) for each in row for line in each.lines for y in np.asarray(line.get_ydata())]
    if min(values) > 0 and max(values) > 6 * min(values):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_ylabel("seconds (log scale)")
    else:
        axes.set_ylim(bottom=0)
        axes.set_ylabel("seconds")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))


def _crossovers(axes: Axes, summary: RouteSummary) -> None:
    changes = summary.found.changes if summary.found else ()
    for row, change in enumerate(reversed(changes)):
        axes.axvspan(change.low, change.high, color=_SOFT[0], alpha=0.14, linewidth=0)
        axes.axvline(change.load, color=_INK[0], linewidth=1, linestyle="--" if change.certain else ":")
        words = f"{change.load} (95%: {change.low} to {change.high}): {summary.label(change.before)} → "
        words += summary.label(change.after) + ("" if change.certain else ", its noise not measured")
        axes.annotate(
            words,
            (change.load, 1),
            (0, 3 + 11 * row),
            xycoords=axes.get_xaxis_transform(),
            textcoords="offset points",
            ha="center" if change.load**2 < summary.loads[0] * summary.loads[-1] else "right",
            va="bottom",
            fontsize=8,
        )


def _names(axes: Axes, ends: Sequence[tuple[str, float, float]], summary: RouteSummary, gap: float) -> None:
    """Name the lines at their ends, right of the axes; names keep a gap, as a share of the height."""
    axes.autoscale_view()
    to_share = axes.transData + axes.transAxes.inverted()
    last = sorted((float(to_share.transform((x, y))[1]), pool, x, y) for pool, x, y in ends)
    heights = _apart([share for share, *_ in last], gap)
    for height, (_, pool, x, y) in zip(heights, last, strict=True):
        axes.annotate(
            summary.label(pool),
            (x, y),
            (1.05, height),
            textcoords="axes fraction",
            va="center",
            fontsize=8,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": _look(summary, pool)["color"],
                "linewidth": 0.7,
                "relpos": (0, 0.5),
            },
        )


def _apart(heights: Sequence[float], gap: float) -> list[float]:
    """Move ascending heights as little as keeps the gap between them (isotonic regression)."""
    groups: list[list[float]] = []
    for place, height in enumerate(heights):
        groups.append([height - place * gap])
        while len(groups) > 1 and fmean(groups[-2]) > fmean(groups[-1]):
            groups[-2:] = [groups[-2] + groups[-1]]
    moved = [fmean(group) for group in groups for _ in group]
    return [height + place * gap for place, height in enumerate(moved)]


def _winners(summary: RouteSummary) -> str:
    best = [(load, pool) for load in summary.loads if (pool := summary.best(load))]
    told = []
    for pool, group in groupby(best, key=lambda pair: pair[1]):
        loads = [load for load, _ in group]
        point = summary.point(pool, loads[-1])
        at = f"at {loads[0]}" if len(loads) == 1 else f"from {loads[0]} to {loads[-1]}"
        told.append(f"{summary.label(pool)} {at} requests ({point.rate if point else 0:,.0f} at {loads[-1]})")
    return f"Fastest of those measured: {'; '.join(told)}."
