"""What the forecaster would have said, and what came true: its own error beside two naive ones, series by series."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import numpy as np
import pandas as pd

from analyzer.forecast.experts import leak_target
from analyzer.forecast.features import IntArray, Panel, Rows, check_history, infer_step, make_panel
from analyzer.forecast.forecaster import LoadForecaster

COLUMNS = (
    "series",
    "horizon_seconds",
    "count",
    "mae",
    "mae_last",
    "mae_daily",
    "relative_to_last",
    "relative_to_daily",
    "mase",
    "coverage_80",
    "coverage_95",
)
_LEVELS = (0.025, 0.1, 0.5, 0.9, 0.975)


def backtest(
    history: pd.DataFrame,
    horizons: Sequence[timedelta] = (timedelta(hours=1), timedelta(hours=6), timedelta(hours=24)),
    *,
    forecaster: LoadForecaster | None = None,
    origins: int = 24,
    seed: int = 0,
) -> pd.DataFrame:
    """Forecast the last quarter of the history from random instants in it, and compare with what came.

    The forecaster is fitted once, on what lies before the first instant, then only refreshed, as it runs in practice.

    Args:
        history: columns series, time, value.
        horizons: to be judged; those longer than a quarter of the history get no rows.
        forecaster: a configured one that this call fits; None: a default one.
        origins: how many instants.
        seed: of the instants.

    Returns:
        One row a series and horizon: count of compared forecasts; mean absolute error of the median forecast (mae), of
        the last value (mae_last) and of the same time on the day before (mae_daily), and the ratios to them (below 1:
        better); mase = mae / mean absolute one-day change in the part before (one-step change under two days); share of
        truths within the 80 % and 95 % intervals. NaN where it cannot be said.

    Raises:
        ValueError: a column of the history is missing or its times are naive.
    """
    check_history(history)
    step = infer_step(history)
    newest = history["time"].max() if len(history) else pd.NaT
    if pd.isna(newest):
        return pd.DataFrame(columns=list(COLUMNS))
    model = forecaster if forecaster is not None else LoadForecaster(step=timedelta(seconds=step), seed=seed)
    if model.step is not None:
        step = model.step.total_seconds()
    panel = make_panel(history, step, newest.to_pydatetime(), model.length)
    rng = np.random.default_rng(seed)
    start = max(1, int(panel.columns * 0.75))
    stops = np.arange(start, panel.columns - 1)
    columns = np.sort(rng.choice(stops, min(origins, len(stops)), replace=False))
    parts = []
    for column in columns:
        now = datetime.fromtimestamp(float((panel.first_slot + column) * step), tz=newest.tzinfo)
        past = history[history["time"] <= now]
        if column == columns[0]:
            model.fit(past)
        said = model.forecast(past, now, horizons, _LEVELS)
        parts.append(_compare(panel, said[said["value"].notna()], int(column)))
    parts = [part for part in parts if len(part)]
    judged = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    return _summary(judged, panel, start)


def _compare(panel: Panel, said: pd.DataFrame, origin: int) -> pd.DataFrame:
    wide = said.pivot(index=["series", "horizon_seconds"], columns="quantile", values="value").reset_index()
    places = {name: place for place, name in enumerate(panel.series)}
    series: IntArray = wide["series"].map(places).to_numpy().astype(np.int64)
    steps = np.round(wide["horizon_seconds"].to_numpy(np.float64) / panel.step_seconds)
    horizon: IntArray = np.maximum(steps, 1).astype(np.int64)
    inside = origin + horizon < panel.columns
    wide, series, horizon = wide[inside], series[inside], horizon[inside]
    rows = Rows(series, np.full(len(series), origin, dtype=np.int64), horizon)
    unit = panel.unit[series]
    truth = leak_target(panel, rows) * unit
    day_ago = origin + horizon - -(-horizon // panel.day) * panel.day
    daily = np.where(day_ago >= 0, panel.values[series, np.maximum(day_ago, 0)], np.nan) * unit
    last = panel.last(series, rows.origin) * unit
    low95, low80, middle, high80, high95 = (wide[level].to_numpy(np.float64) for level in _LEVELS)
    seen = np.isfinite(truth)
    tolerance = 1e-9 * unit
    return pd.DataFrame(
        {
            "series": wide["series"].to_numpy(),
            "horizon_seconds": wide["horizon_seconds"].to_numpy(np.float64),
            "error": np.abs(middle - truth),
            "error_last": np.abs(last - truth),
            "error_daily": np.abs(daily - truth),
            "inside_80": ((truth >= low80 - tolerance) & (truth <= high80 + tolerance)).astype(np.float64),
            "inside_95": ((truth >= low95 - tolerance) & (truth <= high95 + tolerance)).astype(np.float64),
        }
    )[seen]


def _summary(judged: pd.DataFrame, panel: Panel, start: int) -> pd.DataFrame:
    if judged.empty:
        return pd.DataFrame(columns=list(COLUMNS))
    lag = panel.day if start >= 2 * panel.day else 1
    change = np.abs(panel.values[:, lag:start] - panel.values[:, : start - lag]) * panel.unit[:, None]
    counts = np.isfinite(change).sum(axis=1)
    scale = np.where(counts > 0, np.nansum(change, axis=1) / np.maximum(counts, 1), np.nan)
    groups = judged.groupby(["series", "horizon_seconds"], sort=True)
    table = groups.agg(
        count=("error", "size"),
        mae=("error", "mean"),
        mae_last=("error_last", "mean"),
        mae_daily=("error_daily", "mean"),
        coverage_80=("inside_80", "mean"),
        coverage_95=("inside_95", "mean"),
    ).reset_index()
    table["relative_to_last"] = _ratio(table["mae"], table["mae_last"])
    table["relative_to_daily"] = _ratio(table["mae"], table["mae_daily"])
    table["mase"] = _ratio(table["mae"], table["series"].map(dict(zip(panel.series, scale, strict=True))))
    return table[list(COLUMNS)]


def _ratio(value: pd.Series, base: pd.Series) -> pd.Series:
    return (value / base.where(base > 0)).astype(np.float64)
