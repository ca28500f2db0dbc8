"""History on one regular grid, with what experts and models need of it in O(1) a look-up; nothing here looks ahead."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

DAY_SECONDS = 86_400
_SPIKE_FACTOR = 50.0  # beyond median + 50 x spread a value is a fault of measurement, not load


@dataclass(frozen=True, slots=True)
class Rows:
    """Questions to a panel: of series `series`, seen from column `origin`, `horizon` steps ahead (>= 1)."""

    series: IntArray
    origin: IntArray
    horizon: IntArray

    def __len__(self) -> int:
        """Return the number of questions."""
        return len(self.series)

    def take(self, keep: npt.NDArray[np.bool_] | IntArray) -> Rows:
        """Return the questions that `keep` selects."""
        return Rows(self.series[keep], self.origin[keep], self.horizon[keep])


@dataclass(frozen=True)
class Panel:
    """Series on one grid that ends at `now`; values are finite or NaN, in units of `unit` (mean size of the series).

    values: (series, columns); column `c` stands at epoch second (first_slot + c) x step_seconds.
    """

    series: tuple[str, ...]
    step_seconds: float
    first_slot: int
    values: FloatArray
    unit: FloatArray  # (series,)

    @property
    def columns(self) -> int:
        """Number of columns; the last one is `now`."""
        return int(self.values.shape[1])

    @cached_property
    def day(self) -> int:
        """Steps in a day."""
        return max(1, round(DAY_SECONDS / self.step_seconds))

    def steps(self, seconds: float) -> int:
        """Return `seconds` in steps, at least one."""
        return max(1, round(seconds / self.step_seconds))

    @cached_property
    def _valid(self) -> npt.NDArray[np.bool_]:
        return np.isfinite(self.values)

    @cached_property
    def last_valid(self) -> IntArray:
        """(series, columns): the newest column at or before each that has a value, -1 where none has."""
        at = np.where(self._valid, np.arange(self.columns), -1)
        return np.maximum.accumulate(at, axis=1)

    @cached_property
    def first_valid(self) -> IntArray:
        """(series,): the oldest column with a value; `columns` where none has one."""
        return np.where(self._valid.any(axis=1), self._valid.argmax(axis=1), self.columns)

    @cached_property
    def _sums(self) -> dict[str, FloatArray]:
        filled = np.where(self._valid, self.values, 0.0)
        present = self._valid.astype(np.float64)
        at = np.arange(self.columns, dtype=np.float64)
        terms = {
            "count": present,
            "value": filled,
            "square": filled**2,
            "size": np.abs(filled),
            "zero": present * (filled == 0),
            "at": present * at,
            "at2": present * at**2,
            "at_value": filled * at,
        }
        return {name: _prefix(term) for name, term in terms.items()}

    @cached_property
    def _profile(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        # Column c: mean of the same slot on the 7 days before c, hence known one day ahead; with its prefix sums.
        width = self.columns + self.day
        total = np.zeros((len(self.series), width))
        count = np.zeros_like(total)
        filled, present = np.where(self._valid, self.values, 0.0), self._valid.astype(np.float64)
        for days in range(1, 8):
            shift = days * self.day
            if shift < width:
                size = min(self.columns, width - shift)
                total[:, shift : shift + size] += filled[:, :size]
                count[:, shift : shift + size] += present[:, :size]
        mean = _divide(total, count)
        return mean, _prefix(np.nan_to_num(mean)), _prefix(np.isfinite(mean).astype(np.float64))

    def window(self, what: str, series: IntArray, low: IntArray, high: IntArray) -> FloatArray:
        """Sum of `what` (count, value, square, size, zero, at, at2, at_value) over columns low..high, clipped."""
        sums = self._sums[what]
        start = np.clip(low, 0, self.columns)
        stop = np.clip(high + 1, start, self.columns)
        return sums[series, stop] - sums[series, start]

    def mean(self, series: IntArray, low: IntArray, high: IntArray) -> FloatArray:
        """Mean of the values in columns low..high (inclusive); NaN where there is none."""
        return _divide(self.window("value", series, low, high), self.window("count", series, low, high))

    def last(self, series: IntArray, origin: IntArray) -> FloatArray:
        """Newest value at or before `origin`; NaN where there is none."""
        at = self.last_valid[series, origin]
        return np.where(at >= 0, self.values[series, np.maximum(at, 0)], np.nan)

    def profile(self, series: IntArray, column: IntArray) -> FloatArray:
        """Mean of the same slot on the 7 days before `column` (which may lie up to a day after the panel's end)."""
        return self._profile[0][series, column]

    def profile_mean(self, series: IntArray, low: IntArray, high: IntArray) -> FloatArray:
        """Mean of the profile over columns low..high."""
        _, total, count = self._profile
        start, stop = np.maximum(low, 0), np.maximum(high + 1, 0)
        return _divide(total[series, stop] - total[series, start], count[series, stop] - count[series, start])

    def scale(self, series: IntArray, origin: IntArray) -> FloatArray:
        """Typical size of a change, seen from `origin`: deviation of the last 7 days, wide where little was seen.

        The floor falls as 0.5 / sqrt(samples) of the mean size: 35 % of the level at 2 points, 3 % after a day.
        """
        low = origin - 7 * self.day + 1
        count = np.maximum(self.window("count", series, low, origin), 1.0)
        mean = self.window("value", series, low, origin) / count
        spread = np.sqrt(np.maximum(self.window("square", series, low, origin) / count - mean**2, 0.0))
        size = self.window("size", series, low, origin) / count
        return np.maximum(spread, np.maximum(0.5 / np.sqrt(count) * size, 1e-6))

    def zero_share(self, rows: Rows) -> FloatArray:
        """Chance of an exact zero at the target: its slot on past days, the nearer the more also the last hour.

        zeros / (samples + 1) within 15 min of the slot on up to 7 days; near the origin no more than in the last hour.
        """
        step_back = -(-rows.horizon // self.day) * self.day
        zero, count = np.zeros(len(rows)), np.zeros(len(rows))
        around = self.steps(900)
        for days in range(7):
            centre = rows.origin + rows.horizon - step_back - days * self.day
            high = np.minimum(centre + around, rows.origin)
            zero += self.window("zero", rows.series, centre - around, high)
            count += self.window("count", rows.series, centre - around, high)
        slot = zero / (count + 1.0)
        low = rows.origin - max(self.steps(3600), 3) + 1
        recent = self.window("zero", rows.series, low, rows.origin)
        recent = recent / (self.window("count", rows.series, low, rows.origin) + 1.0)
        near = np.exp(-rows.horizon * self.step_seconds / (6 * 3600))
        return near * np.minimum(recent, slot) + (1 - near) * slot


def make_panel(history: pd.DataFrame, step_seconds: float, now: datetime, length: timedelta) -> Panel:
    """Put history on a grid that ends at `now`; later rows are dropped unseen, infinities and absurd spikes tamed.

    Args:
        history: columns series, time (aware), value.
        step_seconds: grid; several rows of one step are averaged.
        now: aware; the last column holds it.
        length: how far back.

    Raises:
        ValueError: a column is missing or times are naive.
    """
    check_history(history)
    codes, names = pd.factorize(history["series"], sort=True)
    series = tuple(str(name) for name in names)
    if not series:
        return Panel((), step_seconds, 0, np.empty((0, 1)), np.empty(0))
    milliseconds = to_milliseconds(history["time"])
    values = history["value"].to_numpy(np.float64, na_value=np.nan)
    end = int(now.timestamp() // step_seconds)
    keep = (milliseconds <= now.timestamp() * 1000) & np.isfinite(values) & (codes >= 0)
    keep &= milliseconds > (now - length).timestamp() * 1000
    slots = np.floor(milliseconds[keep] / (step_seconds * 1000)).astype(np.int64)
    first = int(slots.min()) if len(slots) else end
    columns = end - first + 1
    flat = codes[keep] * columns + (slots - first)
    shape = (len(series), columns)
    with np.errstate(over="ignore"):
        total = np.bincount(flat, weights=values[keep], minlength=shape[0] * columns).astype(np.float64)
    count = np.bincount(flat, minlength=shape[0] * columns).astype(np.float64)
    grid = _divide(total, count).reshape(shape)
    grid = _tame(np.where(np.isfinite(grid), grid, np.nan))
    seen = np.isfinite(grid)
    size = np.where(seen, np.abs(grid), 0.0).sum(axis=1) / np.maximum(seen.sum(axis=1), 1)
    unit = np.where(size > 0, size, 1.0)
    return Panel(series, step_seconds, first, grid / unit[:, None], unit)


def check_history(history: pd.DataFrame) -> None:
    """Make sure that this is a history.

    Raises:
        ValueError: a column is missing, or times are naive.
    """
    missing = [name for name in ("series", "time", "value") if name not in history.columns]
    if missing:
        raise ValueError(f"expected history with columns series, time, value; {', '.join(missing)} missing")
    if len(history) and not isinstance(history["time"].dtype, pd.DatetimeTZDtype):
        raise ValueError(f"expected aware UTC times in column `time`, got {history['time'].dtype}; localize them first")


def infer_step(history: pd.DataFrame) -> float:
    """Return the most common distance of neighbouring rows of a series, in seconds (300 where there are no two)."""
    if len(history) < 2:
        return 300.0
    ordered = history[["series", "time"]].sort_values(["series", "time"], kind="stable")
    gaps = np.diff(to_milliseconds(ordered["time"]))
    codes = pd.factorize(ordered["series"])[0]
    gaps = gaps[(np.diff(codes) == 0) & (gaps > 0)]
    if not len(gaps):
        return 300.0
    distances, counts = np.unique(gaps, return_counts=True)
    return float(distances[counts.argmax()]) / 1000.0


def to_milliseconds(times: pd.Series) -> IntArray:
    """Return aware times as milliseconds since the epoch."""
    milliseconds: IntArray = times.dt.as_unit("ms").to_numpy("datetime64[ms]").astype(np.int64)
    return milliseconds


def _tame(grid: FloatArray) -> FloatArray:
    # Clip to median +- 50 x spread: the distance of the 99 % (1 %) quantile, at least the median's size.
    ordered = np.sort(grid, axis=1)
    count = np.isfinite(grid).sum(axis=1)
    at = np.arange(len(grid))
    low, middle, high = (ordered[at, (np.maximum(count - 1, 0) * q).astype(np.int64)] for q in (0.01, 0.5, 0.99))
    up = np.maximum(high - middle, np.abs(middle))
    down = np.maximum(middle - low, np.abs(middle))
    up = np.where(up > 0, middle + _SPIKE_FACTOR * up, np.inf)
    down = np.where(down > 0, middle - _SPIKE_FACTOR * down, -np.inf)
    return np.clip(grid, down[:, None], up[:, None])


def _prefix(values: FloatArray) -> FloatArray:
    return np.concatenate([np.zeros((values.shape[0], 1)), np.cumsum(values, axis=1)], axis=1)


def _divide(total: FloatArray, count: FloatArray) -> FloatArray:
    quotient: FloatArray = np.divide(total, count, out=np.full(np.shape(total), np.nan), where=count > 0)
    return quotient
