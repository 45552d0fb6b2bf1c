"""The kinds of panel that the dashboard is made of: everything about them but what they show."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.models.common import (
    BarGaugeDisplayMode,
    BigValueColorMode,
    BigValueGraphMode,
    BigValueTextMode,
    GraphThresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    FieldColorModeId,
    GridPos,
    MatcherConfig,
    Panel,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
)
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

if TYPE_CHECKING:
    from grafana_foundation_sdk.cog.builder import Builder
    from grafana_foundation_sdk.cog.variants import Dataquery

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")

# From which value on which colour; None is the lowest.
Colors = Sequence[tuple[float | None, str]]
# What a number means, in words and colour.
States = Mapping[int, tuple[str, str]]
P = TypeVar(
    "P", bargauge.Panel, heatmap.Panel, stat.Panel, statetimeline.Panel, table.Panel, timeseries.Panel
)


class Frame(NamedTuple):
    """What every panel has: its texts, its unit, and its queries as legend and PromQL."""

    title: str
    text: str
    queries: Sequence[tuple[str, str]]
    unit: str
    empty: str

    def around(
        self,
        panel: P,
        width: int,
        height: int,
        *,
        instant: bool = False,
        form: PromQueryFormat = PromQueryFormat.TIME_SERIES,
    ) -> P:
        """Put it around a panel; queries are called A, B, C ... in turn."""
        targets: list[Builder[Dataquery]] = []
        for name, (legend, expr) in zip(string.ascii_uppercase, self.queries, strict=False):
            target = prometheus.Dataquery().expr(expr).legend_format(legend).format(form)
            target = target.ref_id(name).datasource(SOURCE)
            targets.append(target.instant() if instant else target.range())
        return (
            panel.title(self.title)
            .description(self.text)
            .datasource(SOURCE)
            .unit(self.unit)
            .no_value(self.empty)
            .grid_pos(GridPos(h=height, w=width))
            .targets(targets)
        )


def panel(settings: Mapping[str, Any]) -> Builder[Panel]:
    """Build a panel from its settings in dashboard.yaml."""
    options = dict(settings)
    ((kind, title),) = ((kind, options.pop(kind)) for kind in _KINDS if kind in options)
    queries = [*options.pop("queries", {}).items()]
    queries += [("", expr) for expr in (options.pop("query", None),) if expr]
    queries += [("", column["expr"]) for column in options.get("columns", ())]
    queries += [
        (f"p{share * 100:.0f} {legend}", f"histogram_quantile({share}, {buckets})")
        for legend, buckets in options.pop("histogram", {}).items()
        for share in (0.5, 0.95)
    ]
    frame = Frame(title, options.pop("text"), queries, options.pop("unit", "short"), options.pop("empty"))
    return _KINDS[kind](frame, **options)


def _number(
    frame: Frame,
    *,
    colors: Colors = ((None, "blue"),),
    decimals: int | None = None,
    width: int = 4,
    height: int = 4,
) -> stat.Panel:
    """Show figures as they are now, not the last ones of the range."""
    named = any(legend for legend, _ in frame.queries)
    panel = (
        frame.around(stat.Panel(), width, height, instant=True)
        .thresholds(_thresholds(colors))
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .graph_mode(BigValueGraphMode.NONE)
        .color_mode(BigValueColorMode.VALUE)
        .text_mode(BigValueTextMode.VALUE_AND_NAME if named else BigValueTextMode.VALUE)
    )
    return panel if decimals is None else panel.decimals(decimals)


def _graph(
    frame: Frame,
    *,
    dashed: Sequence[str] = (),
    stacked: bool = False,
    limit: float | None = None,
    low: float = 0,
    high: float | None = None,
    width: int = 8,
    repeat: str | None = None,
) -> timeseries.Panel:
    """Draw queries over time; above `limit` the ground is red."""
    panel = (
        frame.around(timeseries.Panel(), width, 8)
        .color_scheme(dashboard.FieldColor().mode(FieldColorModeId.PALETTE_CLASSIC_BY_NAME))
        .line_width(1)
        .fill_opacity(40 if stacked else 0)
        .show_points(VisibilityMode.AUTO)
        .legend(_legend())
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
        .stacking(common.StackingConfig().mode(StackingMode.NORMAL if stacked else StackingMode.NONE))
        .min(low)
    )
    if high is not None:
        panel = panel.max(high)
    if limit is not None:
        style = common.GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.AREA)
        colors = [(None, "transparent"), (limit, "red")]
        panel = panel.thresholds(_thresholds(colors)).thresholds_style(style)
    for name, (legend, _) in zip(string.ascii_uppercase, frame.queries, strict=False):
        if legend in dashed:
            dash = DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [8, 6]})
            panel = panel.override_by_query(name, [dash])
    return panel.repeat(repeat).repeat_direction("h").max_per_row(3) if repeat else panel


def _bars(frame: Frame, *, high: float) -> bargauge.Panel:
    """Compare figures as they are now."""
    return (
        frame.around(bargauge.Panel(), 8, 8, instant=True)
        .min(0)
        .max(high)
        .color_scheme(dashboard.FieldColor().mode(FieldColorModeId.CONTINUOUS_RD_YL_GR))
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .orientation(VizOrientation.HORIZONTAL)
        .display_mode(BarGaugeDisplayMode.GRADIENT)
    )


def _spread(frame: Frame, *, repeat: str) -> heatmap.Panel:
    """Draw how a histogram's samples spread over time, in a panel for each value of a variable."""
    return (
        frame.around(heatmap.Panel(), 24, 8, form=PromQueryFormat.HEATMAP)
        .calculate(False)
        .color(heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Blues").steps(64).min(0))
        .cell_gap(1)
        .y_axis(heatmap.YAxisConfig().unit("short"))
        .repeat(repeat)
        .repeat_direction("h")
        .max_per_row(3)
    )


def _timeline(frame: Frame, *, states: States) -> statetimeline.Panel:
    """Draw states over time."""
    return (
        frame.around(statetimeline.Panel(), 24, 6)
        .mappings([_words(states)])
        .color_scheme(dashboard.FieldColor().mode(FieldColorModeId.THRESHOLDS))
        .merge_values(True)
        .show_value(VisibilityMode.NEVER)
        .legend(_legend())
    )


def _table(frame: Frame, *, keys: Sequence[str], columns: Sequence[Mapping[str, Any]]) -> table.Panel:
    """Show one row for each combination of the labels `keys`."""
    values = [f"Value #{name}" for name, _ in zip(string.ascii_uppercase, columns, strict=False)]
    titles = dict(zip(values, (column["title"] for column in columns), strict=True))
    order = {name: place for place, name in enumerate([*keys, *values])}
    options = {"excludeByName": {"Time": True}, "indexByName": order, "renameByName": titles}
    panel = (
        frame.around(table.Panel(), 24, 7, instant=True, form=PromQueryFormat.TABLE)
        .with_transformation(DataTransformerConfig(id_val="merge", options={}))
        .with_transformation(DataTransformerConfig(id_val="organize", options=options))
    )
    for column in columns:
        panel = panel.with_override(MatcherConfig("byName", column["title"]), list(_column(**column)))
    return panel


def _column(
    title: str,
    expr: str,
    unit: str = "short",
    decimals: int | None = None,
    states: States | None = None,
    colors: Colors | None = None,
) -> Iterator[DynamicConfigValue]:
    """Yield a column's settings."""
    yield DynamicConfigValue("unit", unit)
    if decimals is not None:
        yield DynamicConfigValue("decimals", decimals)
    if states is not None:
        yield DynamicConfigValue("mappings", [_words(states)])
    if colors is not None:
        yield DynamicConfigValue("thresholds", _thresholds(colors).build())
    if states is not None or colors is not None:
        yield DynamicConfigValue("custom.cellOptions", {"type": "color-text"})


def _thresholds(colors: Colors) -> dashboard.ThresholdsConfig:
    steps = [Threshold(value, color) for value, color in colors]
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)


def _legend() -> common.VizLegendOptions:
    legend = common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).show_legend(True)
    return legend.placement(LegendPlacement.BOTTOM)


def _words(states: States) -> ValueMap:
    """Show numbers as words in a colour."""
    return ValueMap(
        {
            str(value): ValueMappingResult(text=text, color=color, index=value)
            for value, (text, color) in states.items()
        }
    )


# By the name that Grafana has for each.
_KINDS: dict[str, Callable[..., Builder[Panel]]] = {
    "stat": _number,
    "timeseries": _graph,
    "bargauge": _bars,
    "heatmap": _spread,
    "statetimeline": _timeline,
    "table": _table,
}
