"""Charts as options: ECharts for lines and bars, Plotly for heat maps alone."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from dashboard.views.contention import COST_WORDS
from dashboard.views.fleet import NO_SAMPLE, Heat
from dashboard.views.palette import HEAT, HEAT_DARK, LEDGER, NO_DATA, NO_DATA_DARK

_GRID = {"left": 8, "right": 16, "top": 36, "bottom": 8, "containLabel": True}
_LEGEND = {"type": "scroll", "top": 0, "left": 0, "icon": "roundRect"}
_SMALL = {"fontSize": 12, "fontWeight": "normal"}
_PERCENT_AXIS = {"type": "value", "min": 0, "axisLabel": {"formatter": "{value} %"}}


def lines(
    table: pd.DataFrame, series: dict[str, dict[str, Any]], *, unit: str = "%", most: float | None = None
) -> dict[str, Any]:
    """Draw columns of `table` over its column `time`.

    Args:
        table: `time` and a column a series; NaN makes a gap.
        series: column -> what is laid over the series, such as its colour or `areaStyle`.
        unit: of all values.
        most: end of the axis; None: as far as the values go.
    """
    axis = {"type": "value", "min": 0, "axisLabel": {"formatter": f"{{value}} {unit}".strip()}}
    return {
        "grid": _GRID,
        "legend": _LEGEND,
        "tooltip": {"trigger": "axis", "valueFormatter": f"%.3g {unit}".replace(" %", " %%").strip()},
        "dataset": {"source": table},
        "xAxis": {"type": "time"},
        "yAxis": axis | ({} if most is None else {"max": most}),
        "series": [
            {
                "type": "line",
                "name": name,
                "encode": {"x": "time", "y": name},
                "showSymbol": False,
                "connectNulls": False,
                "lineStyle": {"width": 2},
                "sampling": "lttb",
                **extra,
            }
            for name, extra in series.items()
        ],
    }


def stack(terms: pd.DataFrame, rows: dict[int, str]) -> dict[str, Any]:
    """Draw the levels of the ledger as stacked bars; `terms` as `ledger_terms` returns them, negative ones left out."""
    names = [t for t in terms["term"].drop_duplicates() if terms.loc[terms["term"] == t, "share"].max() > 0]
    labels = list(rows.values())
    data = pd.DataFrame({"level": labels})
    for name in names:
        values = [terms[(terms["level"] == level) & (terms["term"] == name)]["share"] for level in rows]
        data[name] = [100 * float(v.iloc[0]) if len(v) and v.iloc[0] > 0 else None for v in values]
    return {
        "grid": {**_GRID, "top": 8},
        "tooltip": {"trigger": "item", "valueFormatter": "%.1f %%"},
        "dataset": {"source": data},
        "xAxis": {**_PERCENT_AXIS, "max": 100},
        "yAxis": {"type": "category", "inverse": True, "axisTick": {"show": False}, "axisLine": {"show": False}},
        "series": [
            {
                "type": "bar",
                "stack": "all",
                "name": name,
                "encode": {"x": name, "y": "level", "tooltip": [name]},
                "barWidth": 34,
                "itemStyle": {"color": LEDGER[name], "borderColor": "rgba(127,127,127,0.35)", "borderWidth": 0.5},
                "emphasis": {"focus": "none"},
            }
            for name in names
        ],
    }


def heat_map(heat: Heat, *, dark: bool) -> go.Figure:
    """Draw cards x time; values are sent as bytes, what is missing has a colour of its own."""
    ramp = HEAT_DARK if dark else HEAT
    top = 100 / NO_SAMPLE
    scale = [[top * place / (len(ramp) - 1), colour] for place, colour in enumerate(ramp)]
    missing = NO_DATA_DARK if dark else NO_DATA
    scale += [[top + 1e-6, missing], [1.0, missing]]
    gaps = bool((heat.values == NO_SAMPLE).any())
    figure = go.Figure(
        go.Heatmap(
            z=heat.values,
            y=list(heat.labels),
            x0=heat.start.strftime("%Y-%m-%d %H:%M"),
            dx=heat.step.total_seconds() * 1000,
            zmin=0,
            zmax=NO_SAMPLE,
            colorscale=scale,
            showscale=False,
            ygap=2,
            hovertemplate="%{y}<br>%{x|%a %d %b %H:%M}<br><b>%{z} %</b>"
            + ("<extra>255: no data</extra>" if gaps else "<extra></extra>"),
        )
    )
    figure.update_layout(
        height=max(90 + 22 * len(heat.labels), 140),
        margin={"l": 0, "r": 0, "t": 4, "b": 24},
        xaxis={"type": "date", "showgrid": False},
        yaxis={"autorange": "reversed", "showgrid": False, "ticks": ""},
    )
    return figure


def bars(table: pd.DataFrame, label: str, series: dict[str, str], *, stacked: bool = False) -> dict[str, Any]:
    """Draw percent of something whole as lying bars: a row of `table` a bar, `series` column -> colour."""
    return {
        "grid": {**_GRID, "top": 28},
        "legend": _LEGEND,
        "tooltip": {"trigger": "axis", "axisPointer": {"type": "shadow"}, "valueFormatter": "%.1f %%"},
        "dataset": {"source": table[[label, *series]]},
        "xAxis": {**_PERCENT_AXIS, "max": 100},
        "yAxis": {"type": "category", "inverse": True, "axisTick": {"show": False}},
        "series": [
            {
                "type": "bar",
                "name": name,
                "encode": {"x": name, "y": label},
                "itemStyle": {"color": colour},
                "barMaxWidth": 14,
                **({"stack": "all"} if stacked else {}),
            }
            for name, colour in series.items()
        ],
    }


def hollow_map(cells: pd.DataFrame, *, dark: bool) -> dict[str, Any]:
    """Draw cells `who`, `measure`, `hollow` (percent) as a map; a cell that nobody tells stays empty."""
    ramp = HEAT_DARK if dark else HEAT
    text = "#e6ebf1" if dark else "#16202c"
    measures, who = (list(dict.fromkeys(cells[name])) for name in ("measure", "who"))
    known = cells[cells["hollow"].notna()]
    places = zip(known["measure"], known["who"], known["hollow"], strict=True)
    return {
        "grid": {**_GRID, "top": 8},
        "tooltip": {"trigger": "item"},
        "xAxis": {"type": "category", "data": measures, "axisLabel": {"interval": 0}},
        "yAxis": {"type": "category", "data": who, "inverse": True, "axisTick": {"show": False}},
        "visualMap": {"min": 0, "max": 100, "show": False, "inRange": {"color": list(ramp)}},
        "series": [
            {
                "type": "heatmap",
                "name": "hollow, % of busy time",
                "data": [[measures.index(m), who.index(w), round(float(h))] for m, w, h in places],
                "label": {"show": True, "color": text, "textBorderColor": ramp[0], "textBorderWidth": 2},
                "itemStyle": {"borderColor": ramp[0], "borderWidth": 2},
            }
        ],
    }


def intervals(pairs: pd.DataFrame) -> dict[str, Any]:
    """Draw each pair's effect as a point on its interval, in percent."""
    table = pd.DataFrame(
        {
            "pair": [f"{place + 1}. {name}" for place, name in enumerate(pairs["victim"])],
            "from": pairs["lower"].clip(lower=0).to_numpy(),
            "interval": (pairs["upper"] - pairs["lower"].clip(lower=0)).clip(lower=0).to_numpy(),
            "slower by": pairs["effect"].to_numpy(),
        }
    )
    hidden = {"itemStyle": {"color": "transparent"}, "silent": True, "tooltip": {"show": False}}
    common = {"type": "bar", "stack": "interval", "barWidth": 6}
    return {
        "grid": {**_GRID, "top": 8},
        "tooltip": {"trigger": "item", "valueFormatter": "%.0f %%"},
        "dataset": {"source": table},
        "xAxis": _PERCENT_AXIS,
        "yAxis": {"type": "category", "inverse": True, "axisTick": {"show": False}},
        "series": [
            {**common, "name": "from", "encode": {"x": "from", "y": "pair"}, **hidden},
            {
                **common,
                "name": "interval",
                "encode": {"x": "interval", "y": "pair"},
                "itemStyle": {"color": "#d64545", "opacity": 0.35},
                "silent": True,
                "tooltip": {"show": False},
            },
            {
                "type": "scatter",
                "name": "slower by",
                "encode": {"x": "slower by", "y": "pair", "tooltip": ["slower by"]},
                "symbolSize": 11,
                "itemStyle": {"color": "#d64545"},
            },
        ],
    }


def pair_over_time(table: pd.DataFrame, victim: str, suspect: str, field: str) -> dict[str, Any]:
    """Draw the victim's cost above the suspect's activity on one axis of time."""
    data = pd.DataFrame(
        {"time": table["time"], "cost": 1000 * table["cost"].astype(float), "activity": table["activity"]}
    )
    axis = {"type": "time"}
    return {
        "grid": [
            {"left": 60, "right": 12, "top": 34, "height": 120},
            {"left": 60, "right": 12, "top": 196, "height": 92},
        ],
        "tooltip": {"trigger": "axis"},
        "axisPointer": {"link": [{"xAxisIndex": "all"}]},
        "dataset": {"source": data},
        "title": [
            {"text": f"{victim}: {COST_WORDS[field]}, ms", "top": 6, "left": 0, "textStyle": _SMALL},
            {"text": f"{suspect}: share of the card used, %", "top": 168, "left": 0, "textStyle": _SMALL},
        ],
        "xAxis": [{**axis, "gridIndex": 0, "axisLabel": {"show": False}}, {**axis, "gridIndex": 1}],
        "yAxis": [{"type": "value", "gridIndex": 0, "scale": True}, {"type": "value", "gridIndex": 1, "min": 0}],
        "series": [
            _line("cost", 0, "#d64545", {"valueFormatter": "%.3g ms"}),
            _line("activity", 1, "#4a8fe0", {"valueFormatter": "%.0f %%"}),
        ],
    }


def _line(column: str, axis: int, colour: str, tooltip: dict[str, str]) -> dict[str, Any]:
    return {
        "type": "line",
        "name": column,
        "xAxisIndex": axis,
        "yAxisIndex": axis,
        "encode": {"x": "time", "y": column},
        "showSymbol": False,
        "itemStyle": {"color": colour},
        "lineStyle": {"width": 1.5},
        "tooltip": tooltip,
    }


def pair_scatter(table: pd.DataFrame, suspect: str, field: str) -> dict[str, Any]:
    """Draw each moment as a point: how busy the suspect, how slow the victim."""
    data = table[["activity", "cost"]].dropna().astype(float)
    data["cost"] *= 1000
    return {
        "grid": {"left": 8, "right": 16, "top": 34, "bottom": 30, "containLabel": True},
        "tooltip": {"trigger": "item", "valueFormatter": "%.3g"},
        "dataset": {"source": data},
        "xAxis": {
            "type": "value",
            "name": f"{suspect}: share of the card used, %",
            "nameLocation": "middle",
            "nameGap": 26,
            "min": 0,
        },
        "yAxis": {
            "type": "value",
            "scale": True,
            "name": f"{COST_WORDS[field]}, ms",
            "nameTextStyle": {"align": "left"},
        },
        "series": [
            {
                "type": "scatter",
                "name": "moment",
                "encode": {"x": "activity", "y": "cost", "tooltip": ["activity", "cost"]},
                "symbolSize": 6,
                "itemStyle": {"color": "#d64545", "opacity": 0.5},
            }
        ],
    }


def quantile_bands(table: pd.DataFrame, unit: str, made_at: datetime) -> dict[str, Any]:
    """Draw what was measured, and from `made_at` on the median, the 10 % to 90 % band and the 97.5 % line."""
    data = table.copy()
    data["band"] = data["q0.9"] - data["q0.1"] if {"q0.1", "q0.9"} <= set(data) else float("nan")
    common = {"type": "line", "showSymbol": False}
    hidden = {"lineStyle": {"opacity": 0}, "tooltip": {"show": False}, "silent": True}
    series: list[dict[str, Any]] = [
        {
            **common,
            "name": "measured",
            "encode": {"x": "time", "y": "measured"},
            "itemStyle": {"color": "#8a97a5"},
            "markLine": {
                "symbol": "none",
                "silent": True,
                "label": {"formatter": "now"},
                "data": [{"xAxis": made_at.isoformat()}],
            },
        }
    ]
    if "q0.5" in data:
        series += [
            {**common, **hidden, "name": "from", "stack": "band", "encode": {"x": "time", "y": "q0.1"}},
            {
                **common,
                "name": "80 % band",
                "stack": "band",
                "encode": {"x": "time", "y": "band"},
                "itemStyle": {"color": "#4a8fe0"},
                "lineStyle": {"opacity": 0},
                "areaStyle": {"opacity": 0.22},
                "tooltip": {"show": False},
            },
            {**common, "name": "median", "encode": {"x": "time", "y": "q0.5"}, "itemStyle": {"color": "#1d63b8"}},
        ]
    if "q0.975" in data:
        series.append(
            {
                **common,
                "name": "97.5 % below",
                "encode": {"x": "time", "y": "q0.975"},
                "itemStyle": {"color": "#d9772b"},
                "lineStyle": {"type": "dashed", "width": 1.5},
            }
        )
    return {
        "grid": _GRID,
        "legend": {**_LEGEND, "data": [s["name"] for s in series if s["name"] != "from"]},
        "tooltip": {"trigger": "axis", "valueFormatter": f"%.3g {unit}"},
        "dataset": {"source": data},
        "xAxis": {"type": "time"},
        "yAxis": {"type": "value", "min": 0, "axisLabel": {"formatter": f"{{value}} {unit}"}},
        "series": series,
    }
