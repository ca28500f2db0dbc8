"""The last minutes of all slices: what each used of its card, what it was asked, and what it kept."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.attribution import attribute, busy_weight, first_known
from analyzer.known import known_mean
from analyzer.runs import run_starts
from collector.protocols import StoreReader
from collector.schema import ACTIVITY
from collector.window import Window
from tuner.model import Target

Floats = npt.NDArray[np.float64]
_FIELDS = (
    *ACTIVITY,
    "sm_quota_ratio",
    "requests_per_second",
    "within_objective_per_second",
    "memory_used_bytes",
)
_TAGS = ("cluster", "node", "gpu", "slice", "tenant", "workload")


@dataclass(frozen=True, slots=True)
class Holding:
    """One slice in the hands of its last holder over a short window; shares of the whole card, NaN absent.

    `used`, `quota` and `met` (share of requests within the objective) have one element a row.
    """

    target: Target
    tenant: str
    workload: str
    times_ms: npt.NDArray[np.int64]
    used: Floats
    quota: Floats
    met: Floats
    requests_per_second: float  # mean
    kept: float
    memory_bytes: float  # highest

    @property
    def mean_used(self) -> float:
        """Mean share of the card in use; NaN where no row knows it."""
        return known_mean(self.used)

    def age_seconds(self, end: datetime, interval_seconds: float) -> float:
        """Return how long the slice has been silent at `end`, beyond its interval."""
        return max(end.timestamp() - float(self.times_ms[-1]) / 1000 - interval_seconds, 0.0)

    def coverage(self, last_ms: float, interval_seconds: float) -> float:
        """Return the share of the intervals since its first row that have one."""
        lived = (last_ms - float(self.times_ms[0])) / 1000 / interval_seconds + 1
        return min(len(self.times_ms) / max(lived, 1.0), 1.0)


def read_live(store: StoreReader, window: Window) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the slice rows and the card rows of a window, as `holdings_of` takes them."""
    return store.read("slice", window, fields=_FIELDS), store.read("gpu", window, fields=ACTIVITY)


def holdings_of(
    rows: pd.DataFrame, cards: pd.DataFrame, *, granted: Mapping[Target, float], side_by_side: AbstractSet[Target]
) -> list[Holding]:
    """Attribute each card's activity to the slices on it.

    Under MPS clients run side by side on their shares (weight: busy x quota); under time slicing and vGPU one runs at a
    time (weight: busy). A slice without a quota of its own weighs by busy alone.

    Args:
        rows: slice rows of a few minutes, sorted by key, then time.
        cards: card rows of the same minutes.
        granted: slice -> share that its running work has, as the backend reads it; it knows better than exporters do.
            Empty where the minutes are long past: then each row tells its own.
        side_by_side: slices under MPS.
    """
    if rows.empty:
        return []
    tags = [rows[name].to_numpy(dtype=object) for name in _TAGS]
    starts = run_starts(*tags)
    sizes = np.diff(np.append(starts, len(rows)))
    holders = [tuple(str(column[i]) for column in tags) for i in starts]
    targets = [Target("slice", *holder[:4]) for holder in holders]
    times = rows["time"].to_numpy("datetime64[ms]").astype(np.int64)
    told = np.repeat([granted.get(t, np.nan) for t in targets], sizes)
    quota = np.where(np.isnan(told), rows["sm_quota_ratio"].to_numpy(np.float64), told)
    side = np.repeat([t in side_by_side for t in targets], sizes)
    busy = rows["busy_ratio"].to_numpy(np.float64)
    moment, activity = _moments(tags[2], times, cards)
    used = attribute(_known(rows, ACTIVITY[:2]), busy_weight(busy, quota, side), moment, activity)
    requests, within = (rows[f"{name}_per_second"].to_numpy(np.float64) for name in ("requests", "within_objective"))
    memory = rows["memory_used_bytes"].to_numpy(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        met = within / requests
    newest: dict[Target, Holding] = {}
    for holder, target, first, size in zip(holders, targets, starts, sizes, strict=True):
        part = slice(int(first), int(first + size))
        known = newest.get(target)
        if known is not None and known.times_ms[-1] >= times[part][-1]:
            continue
        judged = ~np.isnan(met[part])
        asked = float(requests[part][judged].sum())
        known_memory = memory[part][~np.isnan(memory[part])]
        newest[target] = Holding(
            target=target,
            tenant=holder[4],
            workload=holder[5],
            times_ms=times[part],
            used=used[part],
            quota=quota[part],
            met=met[part],
            requests_per_second=known_mean(requests[part]),
            kept=float(within[part][judged].sum()) / asked if asked > 0 else math.nan,
            memory_bytes=float(known_memory.max()) if len(known_memory) else math.nan,
        )
    return list(newest.values())


def with_quotas_carried(rows: pd.DataFrame) -> pd.DataFrame:
    """Return slice rows in which a share that a row tells lasts until a row of that slice tells another."""
    return rows.assign(sm_quota_ratio=rows.groupby(list(_TAGS), sort=False)["sm_quota_ratio"].ffill())


def in_steps(
    rows: pd.DataFrame, cards: pd.DataFrame, window: Window, step: timedelta
) -> Iterator[tuple[Window, pd.DataFrame, pd.DataFrame]]:
    """Cut the slice and card rows of a window into steps, oldest first; their order within a step stays."""
    by_step = [dict(iter(f.groupby((f["time"] - window.start) // step, sort=False))) for f in (rows, cards)]
    for number in range(math.ceil((window.end - window.start) / step)):
        start = window.start + number * step
        own, whole = (p.get(number, f.iloc[:0]) for p, f in zip(by_step, (rows, cards), strict=True))
        yield Window(start, start + step), own, whole


def _moments(
    gpus: npt.NDArray[np.object_], times: npt.NDArray[np.int64], cards: pd.DataFrame
) -> tuple[npt.NDArray[np.intp], Floats]:
    """Return the index of each row's card and instant, and the card's activity at each (NaN: no row of the card)."""
    card_times = cards["time"].to_numpy("datetime64[ms]").astype(np.int64)
    activity = _known(cards, ACTIVITY)
    known = dict(zip(zip(cards["gpu"].to_numpy(dtype=object), card_times, strict=True), activity, strict=True))
    places: dict[tuple[object, np.int64], int] = {}
    moment = np.array([places.setdefault(key, len(places)) for key in zip(gpus, times, strict=True)], dtype=np.intp)
    return moment, np.array([known.get(key, np.nan) for key in places], dtype=np.float64)


def _known(frame: pd.DataFrame, names: Sequence[str]) -> Floats:
    return first_known([frame[name].to_numpy(np.float64) for name in names])
