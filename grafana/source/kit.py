"""The look of panels, rows and dashboards: everything that they share, on Grafana's own builders.

The SDK is that of Grafana 10.1; every later Grafana reads its schema and converts it. All panels are core panels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

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
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as words
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import heatmap as heat
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from grafana.source.queries import Query

SOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
TAG = "nproxy"
GREEN, ORANGE, RED = "green", "orange", "red"

SHARE, SECONDS, COUNT, BYTES, MONEY = "percentunit", "s", "short", "Bps", "currencyUSD"
PER_SECOND, REQUESTS, TOKENS, CHOICES, CALLS = "ops", "reqps", "tokens/s", "choices/s", "calls/s"
"""Units: Grafana's own names, and words that it shows unchanged."""

Panel = Builder[model.Panel]
_Any = TypeVar("_Any", bargauge.Panel, heatmap.Panel, stat.Panel, statetimeline.Panel, table.Panel, timeseries.Panel)


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a heading, from left to right; they continue below when 24 columns are full."""

    title: str
    panels: Sequence[Panel]


def rising(warn: float, bad: float) -> dashboard.ThresholdsConfig:
    """Thresholds: green below `warn`, orange from there, red from `bad` on."""
    return _steps((None, GREEN), (warn, ORANGE), (bad, RED))


def until(bad: float) -> dashboard.ThresholdsConfig:
    """Thresholds: green below `bad`, red from there on."""
    return _steps((None, GREEN), (bad, RED))


def at_least(good: float) -> dashboard.ThresholdsConfig:
    """Thresholds: red below `good`, green from there on."""
    return _steps((None, RED), (good, GREEN))


def falling(warn: float, bad: float) -> dashboard.ThresholdsConfig:
    """Thresholds: red below `bad`, orange from there, green from `warn` on."""
    return _steps((None, RED), (bad, ORANGE), (warn, GREEN))


IDLE = "no traffic"
"""What a ratio shows if there is nothing to divide by."""

PLAIN = None
"""No thresholds: no value is good or bad by itself."""


def lines(
    title: str,
    unit: str,
    description: str,
    *queries: Query,
    width: int = 8,
    stacked: bool = False,
    thresholds: dashboard.ThresholdsConfig | None = PLAIN,
    top: float | None = None,
) -> Panel:
    """Return lines over time. stacked: parts of a whole. thresholds: drawn as lines. top: the axis's maximum."""
    panel = (
        timeseries.Panel()
        .min(0)
        .fill_opacity(30 if stacked else 8)
        .line_width(1)
        .show_points(words.VisibilityMode.NEVER)
    )
    panel.tooltip(common.VizTooltipOptions().mode(words.TooltipDisplayMode.MULTI).sort(words.SortOrder.DESCENDING))
    legend = common.VizLegendOptions().display_mode(words.LegendDisplayMode.LIST)
    panel.legend(legend.placement(words.LegendPlacement.BOTTOM).show_legend(True).calcs([]))
    if stacked:
        panel.stacking(common.StackingConfig().mode(words.StackingMode.NORMAL).group("A"))
    if thresholds is not None:
        panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(words.GraphTresholdsStyleMode.DASHED))
    if top is not None:
        panel.max(top)
    return _completed(panel, title, unit, description, queries, width, 8, thresholds)


def number(
    title: str,
    unit: str,
    description: str,
    expression: str,
    *,
    legend: str = "",
    width: int = 4,
    thresholds: dashboard.ThresholdsConfig | None = PLAIN,
    none: str = "",
) -> Panel:
    """Return one number, as of now. Its course is for other panels: with it, a number would outlive its series.

    none: what is shown if there is no series.
    """
    panel = stat.Panel().graph_mode(words.BigValueGraphMode.NONE).color_mode(words.BigValueColorMode.VALUE)
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).fields("").values(False))
    if none:
        panel.no_value(none)
    return _completed(panel, title, unit, description, [Query(expression, legend)], width, 4, thresholds, instant=True)


def states(title: str, description: str, *queries: Query, zero: tuple[str, str], one: tuple[str, str]) -> Panel:
    """Return a panel of 0-or-1 values over time, a third of the width. zero, one: the word and the color of each."""
    panel = statetimeline.Panel().show_value(words.VisibilityMode.NEVER).row_height(0.8).merge_values(True)
    options = {
        value: model.ValueMappingResult(text=text, color=colour, index=index)
        for index, (value, (text, colour)) in enumerate({"0": zero, "1": one}.items())
    }
    panel.mappings([model.ValueMap(options=options)])
    return _completed(panel, title, "none", description, queries, 8, 8, PLAIN)


def buckets(title: str, unit: str, description: str, expression: str, *, width: int = 8) -> Panel:
    """Return a histogram over time. expression: the rates of its buckets, by `le`."""
    panel = heatmap.Panel().calculate(False).show_tooltip().show_y_histogram()
    panel.color(
        heatmap.HeatmapColorOptions()
        .mode(heat.HeatmapColorMode.SCHEME)
        .scheme("Blues")
        .fill("dark-blue")
        .scale(heat.HeatmapColorScale.EXPONENTIAL)
        .exponent(0.5)
        .steps(64)
        .reverse(False)
    )
    panel.y_axis(heatmap.YAxisConfig().unit(unit))
    return _completed(panel, title, unit, description, [Query(expression, "{{le}}")], width, 8, PLAIN, buckets=True)


def bars(title: str, unit: str, description: str, *queries: Query, width: int = 8) -> Panel:
    """Return one bar per series, as of now."""
    panel = bargauge.Panel().orientation(words.VizOrientation.HORIZONTAL).display_mode(words.BarGaugeDisplayMode.BASIC)
    panel.min(0)
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).fields("").values(False))
    return _completed(panel, title, unit, description, queries, width, 8, PLAIN, instant=True)


def listing(
    title: str, unit: str, description: str, expression: str, *columns: str, value: str | None = None, width: int = 12
) -> Panel:
    """Return a table of series with these labels as columns. value: the name of the value's column, if any."""
    panel = table.Panel().show_header(True)
    order = {name: index for index, name in enumerate((*columns, "Value"))}
    options = {
        "excludeByName": {"Time": True, "__name__": True, "Value": value is None},
        "indexByName": order,
        "renameByName": {"Value": value or "Value"},
    }
    panel.with_transformation(model.DataTransformerConfig(id_val="organize", options=options))
    return _completed(panel, title, unit, description, [Query(expression)], width, 8, PLAIN, instant=True)


def built(
    uid: str, title: str, description: str, rows: Sequence[Row], *more: Builder[model.VariableModel]
) -> model.Dashboard:
    """Return a dashboard with the variables and links that all dashboards have. more: variables of its own."""
    page = dashboard.Dashboard(title).uid(uid).description(description).tags([TAG]).editable()
    page.tooltip(model.DashboardCursorSync.CROSSHAIR).time("now-1h", "now").refresh("30s").timezone("browser")
    for variable in (*_variables(), *more):
        page.with_variable(variable)
    links = dashboard.DashboardLink("nproxy").type(model.DashboardLinkType.DASHBOARDS).tags([TAG])
    page.link(links.as_dropdown(False).include_vars(True).keep_time(True).target_blank(False).icon("external link"))
    for row in rows:
        page.with_row(dashboard.Row(row.title))
        for panel in row.panels:
            page.with_panel(panel)
    made = page.build()
    for position, place in enumerate(made.panels or (), start=1):
        place.id_val = position
    return made


def price(name: str, label: str, default: str) -> Builder[model.VariableModel]:
    """Return a text field above the dashboard for a price."""
    option = model.VariableOption(selected=True, text=default, value=default)
    return dashboard.TextBoxVariable(name).label(label).default_value(default).current(option).options([option])


def _variables() -> list[Builder[model.VariableModel]]:
    """Return the data source and the variables that filter panels; `All` also matches series without the label."""
    return [
        dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"),
        _values("job", '{__name__=~"nproxy_build_info|nproxy_engine_blocks"}'),
        _values("instance", '{__name__=~"nproxy_build_info|nproxy_engine_blocks",job=~"$job"}'),
        _values("upstream", 'nproxy_inflight_legs{job=~"$job",instance=~"$instance"}'),
        _values(
            "model",
            'nproxy_requests_total{job=~"$job",instance=~"$instance",upstream=~"$upstream",model!=""}',
        ),
    ]


def _values(name: str, selector: str) -> Builder[model.VariableModel]:
    """Return a variable with the values of a label of these series; several or all can be chosen."""
    variable = dashboard.QueryVariable(name).label(name.capitalize()).datasource(SOURCE).multi(True)
    variable.query({"query": f"label_values({selector}, {name})", "refId": name})
    variable.include_all(True).all_value(".*").current(model.VariableOption(selected=True, text="All", value="$__all"))
    return variable.refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(model.VariableSort.ALPHABETICAL_ASC)


def _completed(
    panel: _Any,
    title: str,
    unit: str,
    description: str,
    queries: Sequence[Query],
    width: int,
    height: int,
    thresholds: dashboard.ThresholdsConfig | None,
    *,
    instant: bool = False,
    buckets: bool = False,
) -> _Any:
    """Set what every panel has. instant: as of now instead of over time. buckets: its series are a histogram's."""
    panel.title(title).description(description).unit(unit).span(width).height(height).datasource(SOURCE)
    panel.thresholds(thresholds or _steps((None, GREEN)))
    for position, query in enumerate(queries):
        target = prometheus.Dataquery().datasource(SOURCE).ref_id(chr(ord("A") + position)).expr(query.expression)
        target.legend_format(query.legend or "__auto")
        target = target.instant() if instant else target.range().exemplar("_bucket" in query.expression)
        if buckets or isinstance(panel, table.Panel):
            target.format(PromQueryFormat.HEATMAP if buckets else PromQueryFormat.TABLE)
        panel.with_target(target)
    return panel


def _steps(*steps: tuple[float | None, str]) -> dashboard.ThresholdsConfig:
    levels = [model.Threshold(value=value, color=colour) for value, colour in steps]
    return dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(levels)
