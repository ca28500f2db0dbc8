"""What the planner sees: cards with their slices, and queues. Shares are of the whole card; NaN is absent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from analyzer.contention.probe import Prospect
from tuner.model import Knob, KnobEffect, Target

SHARE_KNOB = "sm_quota_ratio"
MEMORY_KNOB = "memory_quota_bytes"
QUEUE_KNOB = "quota_gpu_count"


@dataclass(frozen=True, slots=True)
class SliceView:
    """One slice: who holds it, what it may use, what it used, and what it will need.

    Attributes:
        quota: compute share in force for new work; NaN where the slice has no such property.
        effective: compute share that running work has now.
        used: compute share used over the last minutes.
        need_lead: upper quantile of the demand within the time that a decrease of a neighbour needs; NaN: no forecast.
        need_hold: the same over the time for which an increase of a neighbour will hold.
        utilisation_limit: use of its own quota up to which it kept its objective, 0..1.
        kept: share of requests within the objective over the last minutes; NaN without requests.
        history_seconds: how long the slice's workload has been watched.
    """

    target: Target
    kind: str
    tenant: str
    workload: str
    service_class: str
    protected: bool
    floor: float
    weight: float
    quota: float
    effective: float
    used: float
    need_lead: float
    need_hold: float
    utilisation_limit: float
    kept: float
    objective_share: float
    memory_quota_bytes: float
    memory_peak_bytes: float
    memory_need_bytes: float
    coverage: float
    age_seconds: float
    history_seconds: float
    suspect_in: tuple[str, ...] = ()
    victim_in: tuple[str, ...] = ()

    @property
    def online(self) -> bool:
        """Whether it has a latency objective (or nobody said that it has none)."""
        return self.service_class != "offline"

    @property
    def misses_objective(self) -> bool:
        """Whether too few of its latest requests met the objective."""
        return not math.isnan(self.kept) and self.kept < self.objective_share


@dataclass(frozen=True, slots=True)
class CardView:
    """One card and the slices on it.

    `open_share` is what newly admitted work may take of it beside the quotas that are granted; NaN: not known.
    """

    cluster: str
    node: str
    gpu: str
    sharing: str  # kind of its slices: mig, mps, timeslice, vgpu, whole
    memory_bytes: float
    slices: tuple[SliceView, ...]
    healthy: bool = True
    open_share: float = 0.0


@dataclass(frozen=True, slots=True)
class QueueView:
    """One queue, in cards: what it may hold, holds and waits for.

    `free` is what its waiting work could take now; `capacity` what all quotas of its pool may sum to.
    """

    target: Target
    tenant: str
    quota: float
    allocated: float
    pending: float
    free: float
    capacity: float = math.nan
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pair whose verdict is open, and what a trial of it could tell.

    `effect` is the slow-down that watching suggests (NaN: none); `suspected` says whether it is more than a question.
    """

    finding: str
    victim: Target
    suspect: Target
    effect: float
    suspected: bool
    prospect: Prospect


@dataclass(frozen=True, slots=True)
class PlannerInput:
    """Everything a plan is made from."""

    now: datetime
    as_of: datetime
    cards: tuple[CardView, ...]
    queues: tuple[QueueView, ...]
    knobs: tuple[Knob, ...]
    simulated: bool = False
    interval_seconds: float = 60.0  # grid of the rows
    candidates: tuple[Candidate, ...] = ()  # open pairs that a probe may decide
    open_pairs: tuple[str, ...] = ()  # of TT101, decidable by a probe or not: how the suspect shares its card
    confidence: Mapping[str, float] | None = None  # kind of group -> factor (0..1): how far such advice came true


def knob_for(knobs: tuple[Knob, ...], name: str, target_kind: str, sharing: str | None) -> Knob | None:
    """Return the knob `name` of that kind of target under that sharing, or None where the backend has none."""
    for knob in knobs:
        if knob.name == name and knob.target_kind == target_kind and knob.sharing in (None, sharing):
            return knob
    return None


def reaches_running_work(knob: Knob) -> bool:
    """Whether a change reaches work that already runs (at once, or through a restart)."""
    return knob.effect in (KnobEffect.LIVE, KnobEffect.NEEDS_RESTART)
