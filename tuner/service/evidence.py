"""Before and after of a change, out of the store: for everybody that it may have touched, and for untouched peers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

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


@dataclass(slots=True)
class EvidenceReader:
    """Reads windows of slice rows; calls of one cycle over the same window share one read.

    Args:
        store: where the rows are.
        interval_seconds: grid of the rows.
        online: slices with a latency promise, or with nobody's word that they have none.
    """

    store: StoreReader
    interval_seconds: float
    online: frozenset[Target]
    _read: dict[Window, Mapping[Target, tuple[str, Measured]]]

    @classmethod
    def of(cls, store: StoreReader, interval_seconds: float, online: frozenset[Target]) -> EvidenceReader:
        """Make a reader for one cycle."""
        return cls(store, interval_seconds, online, {})

    def __call__(self, group: Group, before: Window, after: Window) -> tuple[Sequence[Evidence], Sequence[Evidence]]:
        """Return (affected, peers) of a group."""
        was, now = self._window(before), self._window(after)
        ratios = {c.target: c.after / c.before for c in group.changes if c.knob == SHARE_KNOB and c.before > 0}
        cards = {domain_of(c.target) for c in group.changes if c.target.kind != "queue"} | self._admitted(
            group, was, now
        )
        affected, peers = [], []
        for target in sorted(was.keys() | now.keys()):
            held_before, held_after = was.get(target), now.get(target)
            earlier = Measured(requests=0.0, throughput=0.0) if held_before is None else held_before[1]
            later = _NOTHING if held_after is None else held_after[1]
            online = target in self.online
            evidence = Evidence(target, online, earlier, later, ratios.get(target, 1.0))
            if domain_of(target) not in cards:
                peers.append(evidence)
            elif target in ratios or self._can_speak(evidence, came=held_before is None, left=held_after is None):
                affected.append(evidence)
        return affected, peers

    @staticmethod
    def _can_speak(evidence: Evidence, *, came: bool, left: bool) -> bool:
        """Whoever left by itself has nothing to say, nor has batch work that did nothing in one of the windows."""
        idle = math.isnan(evidence.before.throughput) or math.isnan(evidence.after.throughput)
        return not left and (evidence.online or came or not idle)

    def _admitted(
        self, group: Group, was: Mapping[Target, object], now: Mapping[Target, tuple[str, Measured]]
    ) -> set[Target]:
        """Return the cards on which work of a raised queue's tenant appeared."""
        tenants = {c.tenant for c in group.changes if c.target.kind == "queue" and not c.is_decrease}
        return {domain_of(t) for t, (tenant, _) in now.items() if tenant in tenants and t not in was}

    def _window(self, window: Window) -> Mapping[Target, tuple[str, Measured]]:
        if window not in self._read:
            rows = self.store.read("slice", window, fields=_FIELDS)
            rows = rows[rows["tenant"] != NOBODY]
            self._read[window] = {
                Target("slice", *(str(part) for part in key)): (str(part["tenant"].iloc[-1]), self._measured(part))
                for key, part in rows.groupby(_KEY, sort=True)
            }
        return self._read[window]

    def _measured(self, rows: pd.DataFrame) -> Measured:
        rates = rows["requests_per_second"].to_numpy(np.float64)
        within = rows["within_objective_per_second"].to_numpy(np.float64)
        judged = ~np.isnan(rates) & ~np.isnan(within)
        asked = float(rates[judged].sum()) * self.interval_seconds
        served = float(within[judged].sum()) * self.interval_seconds
        tail = rows["latency_p99_seconds"].to_numpy(np.float64)
        return Measured(
            requests=float(np.nansum(rates)) * self.interval_seconds if not np.isnan(rates).all() else math.nan,
            kept=served / asked if asked > 0 else math.nan,
            latency_seconds=float(np.nanmax(tail)) if not np.isnan(tail).all() else math.nan,
            throughput=self._throughput(rows),
        )

    def _throughput(self, rows: pd.DataFrame) -> float:
        """Return units of work a second while it worked; pauses for evaluation and checkpoints are its own."""
        steps = rows["steps_count"].to_numpy(np.float64)
        pace = rows["step_seconds"].to_numpy(np.float64)
        known = (steps > 0) & (pace > 0)
        if known.any():
            return float(steps[known].sum() / (steps[known] * pace[known]).sum())
        if np.isnan(steps).all() or np.nansum(steps) == 0:
            return math.nan
        return float(np.nansum(steps) / (np.count_nonzero(~np.isnan(steps)) * self.interval_seconds))
