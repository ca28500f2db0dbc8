"""The upper bound: the same arrivals, allocated as a fluid minute by minute by one who knows them all.

No knob has a delay, nothing restarts, nobody is evicted, every request of a live service is answered in time. Memory,
the sharing kind, the width of each process, true interference and lost cards still hold: a MIG instance stays as it is
cut, a card in rotation is shared by time, a queue job runs on a seat of its class.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sample_data.cluster.arrivals import Arrivals, FloatArray
from sample_data.cluster.sharing import Pairs, pressing, water_fill
from sample_data.cluster.spec import MINUTES_PER_DAY, STEP_SECONDS, ClusterSpec


@dataclass(frozen=True, slots=True)
class UpperBound:
    """Most that anyone could have made of the arrivals."""

    useful_ratio: float
    hourly_useful: tuple[float, ...]


def upper_bound(spec: ClusterSpec, minutes: int | None = None) -> UpperBound:
    """Return the bound over the first `minutes` (default: the spec's days)."""
    total = minutes or spec.days * MINUTES_PER_DAY
    fluid = _Fluid(spec)
    useful = np.array([fluid.minute(m) for m in range(total)])
    capacity = sum(c.hardware.sm_count for c in spec.cards) * float(STEP_SECONDS)
    hours = [useful[k : k + 60].mean() / capacity for k in range(0, total, 60)]
    return UpperBound(float(useful.mean() / capacity), tuple(float(h) for h in hours))


class _Fluid:
    def __init__(self, spec: ClusterSpec) -> None:
        self._spec = spec
        self._arrivals = Arrivals(spec)
        self._pairs = Pairs.of(spec)
        slices, cards = spec.slices, spec.cards
        self._card = np.array([s.card for s in slices])
        self._sms = np.array([cards[s.card].hardware.sm_count for s in slices], dtype=np.float64)
        self._unit = np.array([s.unit_sm_seconds for s in slices])
        self._width = np.array([s.width for s in slices])
        self._quota = np.array([s.sm_quota for s in slices])
        self._online = np.array([s.online for s in slices])
        self._seat = np.array([s.role == "seat" for s in slices])
        names = [s.name for s in spec.services]
        self._service = np.array([names.index(s.name) if s.online else 0 for s in slices])
        self._fixed = np.array([s.kind in ("mig", "whole") for s in slices])
        self._rotating = np.array([c.sharing == "timeslice" for c in cards])
        self._classes = [s.seat_class for s in slices]
        self._waiting = {c.name: 0.0 for c in spec.job_classes}  # solo SM-seconds
        self._job_rate = {  # solo SM-seconds of a minute's work on a seat of the class
            c.name: np.mean([min(s.width, s.sm_quota) * cards[s.card].hardware.sm_count * 60.0
                             for s in slices if s.seat_class == c.name] or [0.0])
            for c in spec.job_classes
        }  # fmt: skip

    def minute(self, minute: int) -> float:
        """Return the useful SM-seconds of one minute."""
        day, column = self._arrivals.at(minute)
        alive = np.array([c.fails_at_minute is None or minute < c.fails_at_minute for c in self._spec.cards])
        up = alive[self._card]
        for job in day.jobs[column]:
            self._waiting[job.job_class] += job.solo_minutes * float(self._job_rate[job.job_class])
        serving = self._online & up
        replicas = np.bincount(self._service[serving], minlength=len(self._spec.services))
        requests = day.requests[:, column] / np.maximum(replicas, 1)
        work = np.where(serving, requests[self._service] * self._unit, 0.0)  # solo SM-seconds
        demand = work / (self._sms * STEP_SECONDS)
        wave = np.where(self._online, 0.0, day.wave[:, column]) * up
        open_seats = np.array([self._waiting.get(c, 0.0) > 0 for c in self._classes])
        wave = np.where(self._seat, open_seats & up, wave)
        activity = np.where(self._online, pressing(demand), wave)
        drag = self._pairs.slowing(activity) / day.clock[self._card, column]
        granted = self._grant(demand * drag, wave)
        done = np.where(self._online, 0.0, granted / drag * self._sms * STEP_SECONDS)
        for name, left in self._waiting.items():
            seats = np.array([c == name for c in self._classes])
            offered = done[seats].sum()
            taken = min(float(offered), left)
            self._waiting[name] = left - taken
            if offered > 0:
                done[seats] *= taken / offered
        return float(work.sum() + done.sum())

    def _grant(self, online: FloatArray, wave: FloatArray) -> FloatArray:
        granted = np.where(self._fixed & ~self._online, np.minimum(self._quota, self._width) * wave, 0.0)
        for c in range(len(self._spec.cards)):
            members = np.flatnonzero((self._card == c) & ~self._fixed & ~self._online)
            if not members.size:
                continue
            servers = (self._card == c) & self._online
            if self._rotating[c]:
                left = max(1.0 - float((online[servers] / self._width[servers]).sum()), 0.0)
                granted[members] = water_fill(wave[members], left) * self._width[members]
            else:
                left = max(1.0 - float(online[servers].sum()), 0.0)
                limit = np.where(self._seat[members], self._quota[members], self._width[members])
                granted[members] = water_fill(limit * wave[members], left)
        return granted
