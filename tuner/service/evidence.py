"""Before and after of a change, out of the store: for everybody that it may have touched, and for untouched peers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.runs import run_starts
from collector.protocols import StoreReader
from collector.schema import NOBODY
from collector.window import Window
from tuner.guards import domain_of
from tuner.model import Group, Target
from tuner.planner.views import SHARE_KNOB
from tuner.verify import Evidence, Measured

_FIELDS = (
    "requests_per_second",
    "within_objective_per_second",
    "latency_p99_seconds",
    "steps_count",
    "step_seconds",
)
_KEY = ["cluster", "node", "gpu", "slice"]
_NOTHING = Measured()
_WINDOWS_KEPT = 64


class WindowCache:
    """Windows of slices already read; what lies before a change is asked for again in every cycle of its watch."""

    def __init__(self, store: StoreReader, interval_seconds: float) -> None:
        self._store = store
        self._interval_seconds = interval_seconds
        self._kept: dict[Window, Mapping[Target, tuple[str, Measured]]] = {}

    def __call__(self, window: Window) -> Mapping[Target, tuple[str, Measured]]:
        """Return slice -> (tenant, what was measured) over a window."""
        if window not in self._kept:
            while len(self._kept) >= _WINDOWS_KEPT:
                del self._kept[next(iter(self._kept))]
            rows = self._store.read("slice", window, fields=_FIELDS)
            self._kept[window] = _measured(rows[rows["tenant"] != NOBODY], self._interval_seconds)
        return self._kept[window]


@dataclass(frozen=True, slots=True)
class EvidenceReader:
    """Reads before and after of a group.

    Args:
        windows: where windows come from.
        online: slices with a latency promise, or with nobody's word that they have none.
    """

    windows: WindowCache
    online: frozenset[Target]

    def __call__(self, group: Group, before: Window, after: Window) -> tuple[Sequence[Evidence], Sequence[Evidence]]:
        """Return (affected, peers) of a group."""
        was, now = self.windows(before), self.windows(after)
        ratios = {c.target: c.after / c.before for c in group.changes if c.knob == SHARE_KNOB and c.before > 0}
        cards = {domain_of(c.target) for c in group.changes if c.target.kind != "queue"} | self._admitted(
            group, was, now
        )
        affected, silent, peers = [], [], []
        for target in sorted(was.keys() | now.keys()):
            held_before, held_after = was.get(target), now.get(target)
            earlier = Measured(requests=0.0, throughput=0.0) if held_before is None else held_before[1]
            later = _NOTHING if held_after is None else held_after[1]
            online = target in self.online
            evidence = Evidence(target, online, earlier, later, ratios.get(target, 1.0))
            if domain_of(target) not in cards:
                peers.append(evidence)
            elif self._can_speak(evidence, came=held_before is None, left=held_after is None):
                affected.append(evidence)
            elif target in ratios:
                silent.append(evidence)
        return affected or silent, peers

    @staticmethod
    def _can_speak(evidence: Evidence, *, came: bool, left: bool) -> bool:
        """Whoever left by itself has nothing to say, nor has batch work that did nothing in one of the windows."""
        idle_before = math.isnan(evidence.before.throughput) and not came
        idle = idle_before or math.isnan(evidence.after.throughput)
        return not left and (evidence.online or not idle)

    def _admitted(
        self, group: Group, was: Mapping[Target, object], now: Mapping[Target, tuple[str, Measured]]
    ) -> set[Target]:
        """Return the cards on which work of a raised queue's tenant appeared."""
        tenants = {c.tenant for c in group.changes if c.target.kind == "queue" and not c.is_decrease}
        return {domain_of(t) for t, (tenant, _) in now.items() if tenant in tenants and t not in was}


def _measured(rows: pd.DataFrame, interval_seconds: float) -> dict[Target, tuple[str, Measured]]:
    """Sum each slice's rows, sorted by key: (tenant of the last row, what was measured).

    Throughput is units of work a second while it worked: pauses for evaluation and checkpoints are its own.
    """
    if rows.empty:
        return {}
    key = [rows[name].to_numpy(dtype=object) for name in _KEY]
    tenants = rows["tenant"].to_numpy(dtype=object)
    starts = run_starts(*key)
    rate, within, tail, steps, pace = (rows[name].to_numpy(np.float64) for name in _FIELDS)
    judged = ~np.isnan(rate) & ~np.isnan(within)
    paced = (steps > 0) & (pace > 0)
    requests = _sums(rate * interval_seconds, starts)
    asked, served = (_sums(np.where(judged, values, np.nan), starts) for values in (rate, within))
    done, busy = (_sums(np.where(paced, values, np.nan), starts) for values in (steps, steps * pace))
    counted = _sums(steps, starts)
    seconds = _sums(np.where(np.isnan(steps), np.nan, interval_seconds), starts)
    tails = np.fmax.reduceat(tail, starts)
    with np.errstate(invalid="ignore", divide="ignore"):
        kept = np.where(asked > 0, served / asked, np.nan)
        throughput = np.where(busy > 0, done / busy, np.where(counted > 0, counted / seconds, np.nan))
    last = np.append(starts[1:], len(rows)) - 1
    return {
        Target("slice", *(str(column[first]) for column in key)): (
            str(tenants[end]),
            Measured(
                requests=float(requests[number]),
                kept=float(kept[number]),
                latency_seconds=float(tails[number]),
                throughput=float(throughput[number]),
            ),
        )
        for number, (first, end) in enumerate(zip(starts, last, strict=True))
    }


def _sums(values: npt.NDArray[np.float64], starts: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
    """Sum the runs that begin at `starts`; NaN where nothing of a run is known."""
    known = np.add.reduceat(~np.isnan(values), starts, dtype=np.int64)
    return np.where(known > 0, np.add.reduceat(np.nan_to_num(values, nan=0.0), starts), np.nan)
