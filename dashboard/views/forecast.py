"""The Forecast page: history and quantile bands of one series, and how wrong such forecasts were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import pandas as pd

from analyzer.settings import ForecastSettings
from collector.protocols import StoreReader
from collector.window import parse_duration
from dashboard.outlook import USED, Outlook, alive_series, look_ahead, read_history

FIELDS = {USED: "compute, in cards", "memory_used_bytes": "memory, in GiB"}
_STEPS = 12  # points between now and the farthest horizon
_SCALES = {USED: 1.0, "memory_used_bytes": 2.0**-30}


@dataclass(frozen=True, slots=True)
class Ahead:
    """History (series, time, value) of what lives, and what comes of it; `outlook` is None without any value."""

    field: str
    history: pd.DataFrame
    outlook: Outlook | None

    @property
    def series(self) -> list[str]:
        """Return the names: the fleet, then workloads, then their ordinals."""
        names = {str(name) for name in self.history["series"]}
        return sorted(names, key=lambda name: (name != "fleet", "#" in name, name))


def read_ahead(
    store: StoreReader, end: datetime, field: str, settings: ForecastSettings, interval_seconds: float
) -> Ahead:
    """Forecast every series that lives, at steps up to the farthest configured horizon."""
    history = read_history(store, end, field, settings, interval_seconds)
    history = history[history["series"].isin(alive_series(history))]
    if not history["value"].notna().any():
        return Ahead(field, history, None)
    return Ahead(field, history, look_ahead(history, ladder(settings.horizons, settings.step_minutes), settings))


def ladder(horizons: Sequence[str], step_minutes: float) -> list[timedelta]:
    """Return the configured horizons and steps between them, all on the grid of the history."""
    configured = {parse_duration(text) for text in horizons}
    step = timedelta(minutes=step_minutes)
    between = {max(round(max(configured) * place / _STEPS / step), 1) * step for place in range(1, _STEPS + 1)}
    return sorted(configured | between)


def bands(ahead: Ahead, series: str, past: timedelta) -> pd.DataFrame:
    """Return one series: `time`, `measured`, `median`, and the quantile columns `q0.1`, ...; in the field's unit.

    The forecast begins at the newest measured value, so that the two lines meet.
    """
    scale = _SCALES[ahead.field]
    own = ahead.history[ahead.history["series"] == series].sort_values("time")
    own = own[own["time"] > own["time"].max() - past]
    measured = pd.DataFrame({"time": own["time"], "measured": own["value"] * scale})
    if ahead.outlook is None:
        return measured
    told = ahead.outlook.forecasts
    told = told[(told["series"] == series) & told["value"].notna()]
    if told.empty:
        return measured
    wide = (told.pivot_table(index="target_time", columns="quantile", values="value") * scale).sort_index()
    wide.columns = pd.Index([f"q{q:g}" for q in wide.columns])
    wide = wide.rename_axis("time").reset_index()
    joint = measured.dropna(subset="measured").tail(1)
    start = joint[["time"]].assign(**{name: joint["measured"] for name in wide.columns if name != "time"})
    return pd.concat([measured, start, wide], ignore_index=True)


def errors(ahead: Ahead, series: str) -> pd.DataFrame:
    """Return the back-test of one series at the horizons that were tried, in the field's unit and as ratios."""
    if ahead.outlook is None or ahead.outlook.errors.empty:
        return pd.DataFrame(
            columns=["ahead", "compared", "error", "against_last", "against_daily", "inside_80", "inside_95"]
        )
    own = ahead.outlook.errors
    own = own[own["series"] == series].sort_values("horizon_seconds")
    return pd.DataFrame(
        {
            "ahead": own["horizon_seconds"] / 3600,
            "compared": own["count"],
            "error": own["mae"] * _SCALES[ahead.field],
            "against_last": own["relative_to_last"],
            "against_daily": own["relative_to_daily"],
            "inside_80": 100 * own["coverage_80"],
            "inside_95": 100 * own["coverage_95"],
        }
    ).reset_index(drop=True)


def note(ahead: Ahead, series: str) -> str:
    """Return what is special about the forecast of a series; empty: nothing."""
    if ahead.outlook is None:
        return "no forecast: the history has no valid value"
    told = ahead.outlook.forecasts
    return str(told[told["series"] == series]["reason"].iloc[0]) if (told["series"] == series).any() else ""
