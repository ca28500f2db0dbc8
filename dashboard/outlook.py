"""What each workload and the fleet will need: history out of a store, forecasts, and the forecaster's own error."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import pandas as pd

from analyzer.cards import cards
from analyzer.forecast import FLEET, LoadForecaster, backtest, history_from_rows
from analyzer.settings import AnalyzeSettings, ForecastSettings
from analyzer.shares import Card
from collector.clock import grid_floor
from collector.protocols import StoreReader
from collector.schema import SLICE
from collector.window import Window
from tuner.service.analyse import partitions

USED = "used"  # share of a card's SMs that a slice uses, as `analyzer.shares` finds it
SILENT = timedelta(hours=1)
_DAY = timedelta(days=1)
_TAGS = ["cluster", "node", "gpu", "slice", "tenant", "workload"]


@dataclass(frozen=True, slots=True)
class Outlook:
    """Forecasts (columns of `Forecaster.forecast`) and the back-test of the same forecaster on the same history."""

    made_at: datetime
    step_seconds: float
    forecasts: pd.DataFrame
    errors: pd.DataFrame


def read_history(
    store: StoreReader, end: datetime, field: str, settings: ForecastSettings, interval_seconds: float
) -> pd.DataFrame:
    """Return the history of every workload, of its ordinals, and of the fleet.

    Args:
        store: where rows come from.
        end: the last whole step before it is the newest; one that has only begun would look like a fall of the load.
        field: `used` (in cards), or a field of slice rows that adds up over slices.
        settings: step and length.
        interval_seconds: grid of the rows.

    Returns:
        Columns series, time, value, as forecasters take it.
    """
    step = timedelta(minutes=settings.step_minutes)
    newest = grid_floor(end, step.total_seconds())
    window = Window.last(newest, timedelta(days=settings.history_days))
    oldest = store.span("slice")
    if oldest is not None and window.start < oldest.start < newest:
        window = Window(grid_floor(oldest.start, step.total_seconds()), newest)
    facts = store.facts(window)
    if field != USED:
        slices = store.read("slice", window, fields=[field], by=list(SLICE.tags), every=step)
        return history_from_rows(slices, field, step, facts=facts)
    parts = list(_used(store, window, step, interval_seconds))
    if not parts:
        return history_from_rows(pd.DataFrame(columns=["time", *_TAGS, USED]), USED, step)
    rows = pd.concat(parts, ignore_index=True)
    of_cards = rows["slice"] == ""
    history = history_from_rows(rows[~of_cards], USED, step, facts=facts)
    fleet = history_from_rows(rows[of_cards], USED, step)
    both = [history[history["series"] != FLEET], fleet[fleet["series"] == FLEET]]
    return pd.concat(both, ignore_index=True)


def _used(store: StoreReader, window: Window, step: timedelta, interval_seconds: float) -> Iterator[pd.DataFrame]:
    """Yield what each slice, and each card as a whole (slice empty), used step by step, a day at a time."""
    start = window.start
    while start < window.end:
        day = Window(start, min(start + _DAY, window.end))
        for partition in partitions(store, day, interval_seconds, AnalyzeSettings()):
            for card in cards(partition):
                yield _card_rows(card, step)
        start += _DAY


def _card_rows(card: Card, step: timedelta) -> pd.DataFrame:
    wide = pd.DataFrame(np.where(card.alive, card.used, math.nan))
    wide.columns = pd.RangeIndex(len(card.holdings))
    wide[len(card.holdings)] = card.activity
    slots = card.times_ms() // int(step.total_seconds() * 1000) * int(step.total_seconds() * 1000)
    means = wide.groupby(slots).mean()
    held = [h.held for h in card.holdings] + [True]
    long = means.loc[:, held].melt(ignore_index=False, var_name="holding", value_name=USED).dropna(subset=USED)
    names = [(h.slice, h.tenant, h.workload) for h in card.holdings] + [("", "", "")]
    own = pd.DataFrame(names, columns=["slice", "tenant", "workload"]).loc[long["holding"].astype(int)]
    return pd.DataFrame(
        {
            "time": pd.to_datetime(long.index.to_numpy(), unit="ms", utc=True),
            "cluster": card.cluster,
            "node": card.node,
            "gpu": card.gpu,
            **{name: own[name].to_numpy() for name in own.columns},
            USED: long[USED].to_numpy(),
        }
    )


def alive_series(history: pd.DataFrame) -> list[str]:
    """Return the series that had a value in the last hour of the history: the others are work that ended."""
    seen = history.dropna(subset="value").groupby("series")["time"].max()
    return [str(name) for name in seen.index[seen >= history["time"].max() - SILENT]]


def look_ahead(history: pd.DataFrame, horizons: Sequence[timedelta], settings: ForecastSettings) -> Outlook:
    """Fit, forecast from the end of the history, and back-test.

    Raises:
        ValueError: the history is empty.
    """
    if history.empty:
        raise ValueError("expected a history with rows, got none")
    step = timedelta(minutes=settings.step_minutes)
    made_at = history["time"].max().to_pydatetime() + step
    model = LoadForecaster(step=step, length=timedelta(days=settings.history_days))
    errors = backtest(history, horizons, forecaster=model)
    forecasts = model.fit(history).forecast(history, made_at, horizons, settings.quantiles)
    return Outlook(made_at, step.total_seconds(), forecasts, errors)


def unit_of(field: str) -> str:
    """Return the unit of a series: use is counted in whole cards."""
    return "cards" if field == USED or field.endswith("_ratio") else SLICE.field(field).unit
