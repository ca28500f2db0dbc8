"""Charts as options: ECharts for lines and bars, Plotly for heat maps alone."""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from dashboard.views.fleet import NO_SAMPLE, Heat
from dashboard.views.palette import HEAT, HEAT_DARK, LEDGER, NO_DATA, NO_DATA_DARK

_GRID = {"left": 8, "right": 16, "top": 36, "bottom": 8, "containLabel": True}
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
        "legend": {"top": 0, "left": 0, "icon": "roundRect"},
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
