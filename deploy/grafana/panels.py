"""The kinds of panel that the dashboard is made of: everything about them but what they show."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

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

GREEN, YELLOW, ORANGE, RED, BLUE = "green", "yellow", "orange", "red", "blue"
# From which value on which colour; None is the lowest.
Steps = Sequence[tuple[float | None, str]]
# What a number means, in words and colour.
States = Mapping[int, tuple[str, str]]


@dataclass(frozen=True)
class Query:
    """A query and its legend; `dashed` marks what is no measurement: an estimate or a limit."""

    expr: str
    legend: str = ""
    dashed: bool = False


P = TypeVar(
    "P", bargauge.Panel, heatmap.Panel, stat.Panel, statetimeline.Panel, table.Panel, timeseries.Panel
)


def described(panel: P, title: str, text: str, unit: str, empty: str, width: int, height: int) -> P:
    """Set what every panel has."""
    return (
        panel.title(title)
        .description(text)
        .datasource(SOURCE)
        .unit(unit)
        .no_value(empty)
        .grid_pos(GridPos(h=height, w=width))
    )


def targets(
    queries: Sequence[Query], *, instant: bool, form: PromQueryFormat = PromQueryFormat.TIME_SERIES
) -> list[Builder[Dataquery]]:
    """Build a panel's queries, called A, B, C ... in turn."""
    found: list[Builder[Dataquery]] = []
    for name, query in zip(string.ascii_uppercase, queries, strict=False):
        target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend).format(form)
        target = target.ref_id(name).datasource(SOURCE)
        found.append(target.instant() if instant else target.range())
    return found


def steps(values: Steps) -> dashboard.ThresholdsConfig:
    """Build thresholds."""
    return (
        dashboard.ThresholdsConfig()
        .mode(ThresholdsMode.ABSOLUTE)
        .steps([Threshold(value, color) for value, color in values])
    )


def number(
    title: str,
    text: str,
    *queries: Query,
    unit: str = "short",
    empty: str = "no data",
    colors: Steps = ((None, BLUE),),
    decimals: int | None = None,
    width: int = 4,
    height: int = 4,
) -> stat.Panel:
    """Show figures as they are now, not the last ones of the range."""
    panel = (
        described(stat.Panel(), title, text, unit, empty, width, height)
        .targets(targets(queries, instant=True))
        .thresholds(steps(colors))
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .graph_mode(BigValueGraphMode.NONE)
        .color_mode(BigValueColorMode.VALUE)
        .text_mode(BigValueTextMode.VALUE_AND_NAME if queries[0].legend else BigValueTextMode.VALUE)
    )
    return panel if decimals is None else panel.decimals(decimals)


def graph(
    title: str,
    text: str,
    *queries: Query,
    unit: str = "short",
    empty: str = "no data in this range",
    stacked: bool = False,
    limit: float | None = None,
    low: float | None = 0,
    high: float | None = None,
    width: int = 8,
    repeat: str | None = None,
) -> timeseries.Panel:
    """Draw queries over time; above `limit` the ground is red."""
    panel = (
        described(timeseries.Panel(), title, text, unit, empty, width, 8)
        .targets(targets(queries, instant=False))
        .color_scheme(dashboard.FieldColor().mode(FieldColorModeId.PALETTE_CLASSIC_BY_NAME))
        .line_width(1)
        .fill_opacity(40 if stacked else 0)
        .show_points(VisibilityMode.AUTO)
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
        .stacking(common.StackingConfig().mode(StackingMode.NORMAL if stacked else StackingMode.NONE))
    )
    if low is not None:
        panel = panel.min(low)
    if high is not None:
        panel = panel.max(high)
    if limit is not None:
        style = common.GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.AREA)
        panel = panel.thresholds(steps([(None, "transparent"), (limit, RED)])).thresholds_style(style)
    for name, query in zip(string.ascii_uppercase, queries, strict=False):
        if query.dashed:
            dash = DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [8, 6]})
            panel = panel.override_by_query(name, [dash])
    return panel.repeat(repeat).repeat_direction("h").max_per_row(3) if repeat else panel


def bars(title: str, text: str, query: Query, *, unit: str, empty: str, high: float) -> bargauge.Panel:
    """Compare figures as they are now."""
    return (
        described(bargauge.Panel(), title, text, unit, empty, 8, 8)
        .targets(targets([query], instant=True))
        .min(0)
        .max(high)
        .color_scheme(dashboard.FieldColor().mode(FieldColorModeId.CONTINUOUS_RD_YL_GR))
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .orientation(VizOrientation.HORIZONTAL)
        .display_mode(BarGaugeDisplayMode.GRADIENT)
    )


def spread(title: str, text: str, query: Query, *, empty: str, repeat: str) -> heatmap.Panel:
    """Draw how a histogram's samples spread over time, in a panel for each value of a variable."""
    return (
        described(heatmap.Panel(), title, text, "short", empty, 24, 8)
        .targets(targets([query], instant=False, form=PromQueryFormat.HEATMAP))
        .calculate(False)
        .color(heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Blues").steps(64).min(0))
        .cell_gap(1)
        .y_axis(heatmap.YAxisConfig().unit("short"))
        .repeat(repeat)
        .repeat_direction("h")
        .max_per_row(3)
    )


def words(values: States) -> ValueMap:
    """Show numbers as words in a colour."""
    return ValueMap(
        {
            str(value): ValueMappingResult(text=text, color=color, index=value)
            for value, (text, color) in values.items()
        }
    )


def timeline(title: str, text: str, query: Query, states: States, *, empty: str) -> statetimeline.Panel:
    """Draw states over time."""
    return (
        described(statetimeline.Panel(), title, text, "short", empty, 24, 6)
        .targets(targets([query], instant=False))
        .mappings([words(states)])
        .color_scheme(dashboard.FieldColor().mode(FieldColorModeId.THRESHOLDS))
        .merge_values(True)
        .show_value(VisibilityMode.NEVER)
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
        )
    )


@dataclass(frozen=True)
class Column:
    """A column of a table: what is asked for, and how it is shown."""

    title: str
    expr: str
    unit: str = "short"
    decimals: int | None = None
    states: States | None = None
    colors: Steps | None = None

    def shown(self) -> list[DynamicConfigValue]:
        """Return the column's settings."""
        values = [DynamicConfigValue("unit", self.unit)]
        if self.decimals is not None:
            values.append(DynamicConfigValue("decimals", self.decimals))
        if self.states is not None:
            values.append(DynamicConfigValue("mappings", [words(self.states)]))
        if self.colors is not None:
            values.append(DynamicConfigValue("thresholds", steps(self.colors).build()))
        if self.states is not None or self.colors is not None:
            values.append(DynamicConfigValue("custom.cellOptions", {"type": "color-text"}))
        return values


def rows_of(
    title: str, text: str, keys: Sequence[str], columns: Sequence[Column], *, empty: str
) -> table.Panel:
    """Show one row for each combination of the labels `keys`."""
    values = [f"Value #{name}" for name, _ in zip(string.ascii_uppercase, columns, strict=False)]
    names = dict(zip(values, (column.title for column in columns), strict=True))
    order = {name: place for place, name in enumerate([*keys, *values])}
    queries = targets([Query(column.expr) for column in columns], instant=True, form=PromQueryFormat.TABLE)
    panel = (
        described(table.Panel(), title, text, "short", empty, 24, 7)
        .targets(queries)
        .with_transformation(DataTransformerConfig(id_val="merge", options={}))
        .with_transformation(
            DataTransformerConfig(
                id_val="organize",
                options={"excludeByName": {"Time": True}, "indexByName": order, "renameByName": names},
            )
        )
    )
    for column in columns:
        panel = panel.with_override(MatcherConfig("byName", column.title), column.shown())
    return panel
