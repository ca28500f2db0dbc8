"""The forecaster of the house: experts, regression models, a gate, conformal bands, and a guard for level shifts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.forecast.features import FloatArray, IntArray, Panel, Rows, check_history, infer_step, make_panel
from analyzer.forecast.layer import Layer, fit_layer, prior_layer
from analyzer.forecast.shift import find_shift

COLUMNS = ("series", "made_at", "target_time", "horizon_seconds", "quantile", "value", "reason")

CONSTANT = "constant for a day or more"
SHORT = "less than a day of history: recent values only"
SHIFTED = "level shift in the last samples"
STALE = "no value in the last hour"
NO_VALUE = "no forecast: the history has no valid value"

_LOOK_BACK = timedelta(days=14)  # a refresh needs no more: the farthest that an expert looks back is a week


@dataclass(frozen=True, slots=True)
class _Request:
    now: datetime
    horizons: tuple[timedelta, ...]
    levels: FloatArray  # sorted


@dataclass(frozen=True, slots=True)
class _Bounds:
    low: FloatArray  # (series,)
    high: FloatArray


class LoadForecaster:
    """Forecasts load with quantiles; satisfies the protocol `Forecaster`.

    `fit` learns for all series at once (hourly or nightly); `forecast` and `forecast_block_max` only refresh: they read
    the history they are given, never anything later than `now`. Unfitted it answers from recent values with wide bands.
    Column `reason` is empty for a plain forecast; with a value it says how the answer is special (constant, short
    history, level shift, stale); without one (NaN) why there is none.

    Args:
        step: grid of the history; None takes the most common distance of samples.
        length: how far back is looked at.
        capacity: most that a series can reach; forecasts are clipped to [0, capacity].
        seed: of the drawn questions and the models.
    """

    def __init__(
        self,
        *,
        step: timedelta | None = None,
        length: timedelta = timedelta(days=28),
        capacity: Mapping[str, float] | None = None,
        seed: int = 0,
    ) -> None:
        self.step = step
        self.length = length
        self.capacity = dict(capacity or {})
        self.seed = seed
        self._step_seconds: float | None = None if step is None else step.total_seconds()
        self._places: dict[str, int] = {}
        self._point = prior_layer("point")
        self._block: Layer | None = prior_layer("block")
        self._panel: Panel | None = None  # kept until the block layer is asked for

    def fit(self, history: pd.DataFrame) -> LoadForecaster:
        """Learn mixture, models, gate and bands; empty or hopeless history leaves the prior.

        Raises:
            ValueError: a column of the history is missing or its times are naive.
        """
        check_history(history)
        newest = history["time"].max()
        if pd.isna(newest):
            return self
        step_seconds = infer_step(history) if self.step is None else self.step.total_seconds()
        self._step_seconds = step_seconds
        panel = make_panel(history, step_seconds, newest.to_pydatetime(), self.length)
        self._places = {name: place for place, name in enumerate(panel.series)}
        self._point = fit_layer("point", panel, self.seed)
        self._block, self._panel = None, panel
        return self

    def forecast(
        self, history: pd.DataFrame, now: datetime, horizons: Sequence[timedelta], quantiles: Sequence[float]
    ) -> pd.DataFrame:
        """Quantiles of the mean over the grid step at now + horizon, for each series, horizon and quantile.

        Args:
            history: columns series, time, value; rows after `now` are not looked at.
            now: aware.
            horizons: longer than zero.
            quantiles: between 0 and 1; beyond 0.005 and 0.995 the band does not widen any more.

        Returns:
            Columns series, made_at, target_time, horizon_seconds, quantile, value, reason; sorted by series, horizon,
            quantile. A series without any value has one row, value NaN.

        Raises:
            ValueError: naive `now` or times, a missing column, a horizon or quantile out of range.
        """
        return self._refresh(self._point, history, now, horizons, quantiles)

    def forecast_block_max(
        self, history: pd.DataFrame, now: datetime, leads: Sequence[timedelta], quantiles: Sequence[float]
    ) -> pd.DataFrame:
        """Quantiles of the LARGEST value over (now, now + lead], for each lead; never below the present one.

        For a reservation that must hold for a whole block: per-step quantiles under-cover a block. Calibrated on block
        maxima for leads up to 6 hours; longer ones use the 6-hour band. Columns as of `forecast`, with horizon = lead.
        The first question after a fit learns the block layer, which costs as much as the fit.
        """
        if self._block is None and self._panel is not None:
            self._block, self._panel = fit_layer("block", self._panel, self.seed + 1), None
        return self._refresh(self._block or prior_layer("block"), history, now, leads, quantiles)

    def _refresh(
        self,
        layer: Layer,
        history: pd.DataFrame,
        now: datetime,
        horizons: Sequence[timedelta],
        quantiles: Sequence[float],
    ) -> pd.DataFrame:
        request = _request(now, horizons, quantiles)
        check_history(history)
        step_seconds = self._step_seconds or infer_step(history[history["time"] <= now])
        panel = make_panel(history, step_seconds, now, min(self.length, _LOOK_BACK))
        known = np.array([self._places.get(name, len(self._places)) for name in panel.series], dtype=np.int64)
        able = np.flatnonzero(panel.first_valid < panel.columns)
        steps = np.array([_steps_ahead(now, ahead, panel.step_seconds) for ahead in request.horizons], dtype=np.int64)
        origin = np.full(len(able) * len(steps), panel.columns - 1)
        rows = Rows(np.repeat(able, len(steps)), origin, np.tile(steps, len(able)))
        values, shifted = self._values(layer, panel, rows, known, request.levels)
        bounds = _bounds(panel, self.capacity)
        values = np.clip(values, bounds.low[rows.series, None], bounds.high[rows.series, None])
        if layer.kind == "block":
            present = np.where(_age(panel)[rows.series] <= panel.steps(3600), _present(panel)[rows.series], -np.inf)
            values = np.maximum(values, np.minimum(present, bounds.high[rows.series])[:, None])
        values = np.maximum.accumulate(values, axis=1) * panel.unit[rows.series, None]
        return _frame(panel, rows, values, request, _notes(panel, shifted))

    def _values(
        self, layer: Layer, panel: Panel, rows: Rows, known: IntArray, levels: FloatArray
    ) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
        values = _snapped(layer, panel, rows, known, levels)
        shift = find_shift(self._point, panel, known)
        shifted = np.isfinite(shift.ratio)
        moved = np.flatnonzero(shifted[rows.series])
        if len(moved):
            # What was foreseen before the shift, brought to the new level; the band spans both worlds.
            before = shift.before[rows.series[moved]]
            horizon = rows.horizon[moved] + (rows.origin[moved] - before if layer.kind == "point" else 0)
            old = _snapped(layer, panel, Rows(rows.series[moved], before, horizon), known, levels)
            new = old * shift.ratio[rows.series[moved], None]
            worlds = np.stack([values[moved], old, new])
            lower, upper = worlds.min(axis=0), worlds.max(axis=0)
            values[moved] = np.where(levels < 0.5, lower, np.where(levels > 0.5, upper, new))
        steady = _constant(panel)[rows.series]
        return np.where(steady[:, None], _present(panel)[rows.series, None], values), shifted


def _snapped(layer: Layer, panel: Panel, rows: Rows, known: IntArray, levels: FloatArray) -> FloatArray:
    values = layer.answer(panel, rows, known).quantiles(levels)
    if layer.kind == "point":
        values = np.where(levels[None, :] < panel.zero_share(rows)[:, None], 0.0, values)
    return values


def _request(now: datetime, horizons: Sequence[timedelta], quantiles: Sequence[float]) -> _Request:
    if now.tzinfo is None:
        raise ValueError(f"expected an aware instant, got {now!r}; add tzinfo=UTC")
    if not horizons or min(horizons) <= timedelta(0):
        raise ValueError(f"expected horizons longer than zero, got {list(horizons)}")
    if not quantiles or not 0 < min(quantiles) <= max(quantiles) < 1:
        raise ValueError(f"expected quantiles between 0 and 1, got {list(quantiles)}")
    return _Request(now, tuple(sorted(horizons)), np.sort(np.asarray(quantiles, dtype=np.float64)))


def _steps_ahead(now: datetime, horizon: timedelta, step_seconds: float) -> int:
    origin, target = now.timestamp() // step_seconds, (now + horizon).timestamp() // step_seconds
    return max(1, int(target - origin))


def _present(panel: Panel) -> FloatArray:
    every = np.arange(len(panel.series))
    return panel.last(every, np.full(len(every), panel.columns - 1))


def _age(panel: Panel) -> IntArray:
    age: IntArray = panel.columns - 1 - panel.last_valid[:, -1]
    return age


def _constant(panel: Panel) -> npt.NDArray[np.bool_]:
    values = panel.values
    enough = np.isfinite(values).sum(axis=1) >= min(panel.day, 288)
    constant: npt.NDArray[np.bool_] = enough & (np.fmax.reduce(values, axis=1) == np.fmin.reduce(values, axis=1))
    return constant


def _bounds(panel: Panel, capacity: Mapping[str, float]) -> _Bounds:
    # Without a capacity a forecast may pass the largest value seen by twice the range, no more: growth, not explosion.
    low, high = np.fmin.reduce(panel.values, axis=1), np.fmax.reduce(panel.values, axis=1)
    room = 2.0 * np.maximum(high - low, 0.5 * np.abs(high))
    with np.errstate(over="ignore"):  # of a series that is next to nothing, a capacity is no bound
        limit = np.array([capacity.get(name, np.inf) for name in panel.series]) / panel.unit
    return _Bounds(np.where(low >= 0, 0.0, low - room), np.minimum(high + room, limit))


def _notes(panel: Panel, shifted: npt.NDArray[np.bool_]) -> list[str]:
    short = np.isfinite(panel.values).sum(axis=1) < panel.day
    cases = [
        (_constant(panel), CONSTANT),
        (_age(panel) > panel.steps(3600), STALE),
        (shifted, SHIFTED),
        (short, SHORT),
    ]
    return ["; ".join(text for flags, text in cases if flags[i]) for i in range(len(panel.series))]


def _frame(panel: Panel, rows: Rows, values: FloatArray, request: _Request, notes: Sequence[str]) -> pd.DataFrame:
    # One row a question and level, then one for each series that has no value at all.
    levels = len(request.levels)
    hopeless = np.flatnonzero(panel.first_valid >= panel.columns)
    absent = np.full(len(hopeless), np.nan)
    seconds = np.array([horizon.total_seconds() for horizon in request.horizons])
    horizon = np.concatenate([np.repeat(np.tile(seconds, len(rows) // len(seconds)), levels), absent])
    made_at = pd.Timestamp(request.now).tz_convert("UTC").as_unit("ms")
    names, reasons = np.array(panel.series, dtype=object), np.array(notes, dtype=object)
    no_value = np.full(len(hopeless), NO_VALUE, dtype=object)
    frame = pd.DataFrame(
        {
            "series": np.concatenate([np.repeat(names[rows.series], levels), names[hopeless]]).astype(str),
            "made_at": made_at,
            "target_time": made_at + pd.to_timedelta(horizon, unit="s").as_unit("ms"),
            "horizon_seconds": horizon,
            "quantile": np.concatenate([np.tile(request.levels, len(rows)), absent]),
            "value": np.concatenate([values.ravel(), absent]),
            "reason": np.concatenate([np.repeat(reasons[rows.series], levels), no_value]).astype(str),
        },
        columns=list(COLUMNS),
    )
    return frame.sort_values("series", kind="stable", ignore_index=True) if len(hopeless) else frame
