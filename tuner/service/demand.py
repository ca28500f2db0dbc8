"""What workloads used, remembered on a regular grid, and how their objective fared at each use of their quota."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd

from collector.clock import grid_floor
from tuner.planner.reserve import BINS, utilisation_limit

_COSTS_EVERY = timedelta(minutes=5)  # how far a look reaches back: nearer ones see the same minutes again
_COSTS_KEPT = 288  # a day of them for a workload of one slice, less for one of more
_COSTS_NEEDED = 6
_CALM_QUANTILE = 0.25


class DemandHistory:
    """Compute share used by each workload (mean over its slices), on a grid; NaN where it was not seen.

    Args:
        step: grid of the history.
        length: how much is remembered.
    """

    def __init__(self, step: timedelta, length: timedelta) -> None:
        self.step = step
        self._most = max(int(length / step), 1)
        self._times: list[datetime] = []
        self._values: dict[str, list[float]] = {}

    def add(self, at: datetime, used: Mapping[str, float]) -> None:
        """Remember the mean use of each series over the step that ends at `at`; a step seen again is replaced."""
        slot = grid_floor(at, self.step.total_seconds())
        while self._times and self._times[-1] < slot:
            self._grow(self._times[-1] + self.step)
        if not self._times:
            self._grow(slot)
        back = round((self._times[-1] - slot) / self.step)
        if back >= len(self._times):
            return
        for name, value in used.items():
            column = self._values.setdefault(name, [float("nan")] * len(self._times))
            column[-1 - back] = value

    def _grow(self, slot: datetime) -> None:
        self._times.append(slot)
        for column in self._values.values():
            column.append(float("nan"))
        if len(self._times) > self._most:
            del self._times[0]
            for column in self._values.values():
                del column[0]

    def frame(self) -> pd.DataFrame:
        """Return the history as forecasters take it: series, time, value."""
        names = sorted(self._values)
        times = pd.DatetimeIndex(self._times, tz=UTC).as_unit("ms")
        return pd.DataFrame(
            {
                "series": np.repeat(np.array(names, dtype=object), len(times)).astype(str),
                "time": np.tile(times.to_numpy(), len(names)) if names else times[:0],
                "value": np.concatenate([self._values[n] for n in names]) if names else np.empty(0),
            }
        ).assign(time=lambda f: pd.to_datetime(f["time"], utc=True).dt.as_unit("ms"))

    def watched_seconds(self, series: str) -> float:
        """Return for how long a series has been seen."""
        column = self._values.get(series, [])
        return float(np.count_nonzero(~np.isnan(column)) * self.step.total_seconds()) if column else 0.0


class UnitCosts:
    """What one request costs a workload, in shares of the card x seconds, from its least disturbed minutes.

    A neighbour makes a request cost more, and what a slice without counters uses is only divided out of its card's
    activity: the low quantile over a day is nearer to the truth than the last value.
    """

    def __init__(self) -> None:
        self._costs: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_COSTS_KEPT))
        self._latest: dict[str, datetime] = {}

    def add(self, series: str, at: datetime, used: float, requests_per_second: float) -> None:
        """Remember the mean use and rate of the 5 minutes that end at `at`, unless some of them are remembered already.

        Slices of one workload at the same instant count each. NaN and idle minutes say nothing.
        """
        latest = self._latest.get(series)
        seen_before = latest is not None and latest != at and at - latest < _COSTS_EVERY
        if requests_per_second > 0 and not np.isnan(used) and not seen_before:
            self._costs[series].append(used / requests_per_second)
            self._latest[series] = at

    def used(self, series: str, requests_per_second: float) -> float:
        """Return the share of the card that this rate needs; NaN while too little is known."""
        known = self._costs.get(series, ())
        if len(known) < _COSTS_NEEDED or np.isnan(requests_per_second):
            return float("nan")
        return float(np.quantile(known, _CALM_QUANTILE)) * requests_per_second


class ResponseCurves:
    """For each workload: in how many minutes at each use of its quota it kept its objective."""

    def __init__(self) -> None:
        self._seen: dict[str, list[int]] = defaultdict(lambda: [0] * BINS)
        self._kept: dict[str, list[int]] = defaultdict(lambda: [0] * BINS)

    def add(self, series: str, use_of_quota: np.ndarray, kept: np.ndarray) -> None:
        """Count minutes.

        Args:
            series: the workload.
            use_of_quota: share of the quota in use, one a minute (NaN absent).
            kept: 1 where the objective was kept, 0 where not, NaN without requests.
        """
        known = ~np.isnan(use_of_quota) & ~np.isnan(kept)
        bins = np.minimum((np.clip(use_of_quota[known], 0.0, 1.0) * BINS).astype(int), BINS - 1)
        for index, good in zip(bins, kept[known], strict=True):
            self._seen[series][index] += 1
            self._kept[series][index] += int(good)

    def limit(self, series: str) -> float:
        """Return the use of its quota up to which the workload kept its objective."""
        return utilisation_limit(self._seen[series], self._kept[series])
