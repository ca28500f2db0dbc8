"""Everything that guards may know, gathered before they run: they do no I/O themselves."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from collector.declarations import Owner, ResolvedWorkload
from tuner.killswitch import Pause
from tuner.model import BackendState, Change, Eviction, Freeze, Group, Knob, KnobEffect, Plan, Target, TargetState
from tuner.record import FAILED_STATES, WRITTEN_STATES, ChangeState, GroupRecord
from tuner.settings import CalendarSettings

SM_QUOTA = "sm_quota_ratio"
MEMORY_QUOTA = "memory_quota_bytes"
QUEUE_QUOTA = "quota_gpu_count"
SUMMED_KNOBS = (SM_QUOTA, MEMORY_QUOTA, QUEUE_QUOTA)

PAST = timedelta(hours=4)  # how far back a World needs all groups
FAILED_PAST = timedelta(hours=24)  # and those that failed


@dataclass(frozen=True, slots=True)
class Vitals:
    """The fleet at a glance, now and one cycle ago; NaN where it is not known."""

    cards: int
    cards_before: int
    cards_unhealthy: int = 0
    activity: float = math.nan  # mean activity of all held slices, 0..1
    activity_before: float = math.nan
    clock_jump_seconds: float = 0.0  # by how much the wall clock moved against the monotonic one


@dataclass(frozen=True, slots=True)
class World:
    """All inputs of the guard chain.

    Attributes:
        now: the instant of the decision.
        state: a fresh read of the backend.
        knobs: what the backend can set.
        harmless_backend: nothing real can be changed through the backend (simulator, dry run).
        capacity: card or pool (see `domain_of`) -> knob -> what its quotas may sum to (sm_quota_ratio: 1).
        health: card -> evidence against it (XID, row remap pending, PCIe trained down, ...); empty: looked at and
            found healthy; a card that is absent is unknown, and unknown is not healthy.
        vitals: the fleet at a glance; None: not known, which holds everything.
        past: `past_groups(state, since=now - PAST, failed_since=now - FAILED_PAST)`.
        proven: kind of group -> how many were confirmed lately, for the waves.
        pause: the kill switch.
        watching_since: since when the inventory is complete and own samples arrive; None: not yet.
        declarations: (cluster, tenant, workload) -> promises.
        calendars: spans without changes.
        peak_memory_bytes: slice -> highest use seen.
        reserves: online slice -> compute share of the card kept for it. Its quota is a cap that it may come near, not
            what the card must hold free: in the card's sum the reserve stands for it. Absent: the quota counts.
        coverage: target -> share of expected samples present, where known.
        unrest: card -> why no probe may begin on it now; empty: it is calm; a card that is absent was not looked at.
        frozen: target -> why it rests (a foreign change, an answer that was lost).
        evictions: group id -> who would be evicted, for groups with a knob that can evict; absent: nobody says.
    """

    now: datetime
    state: BackendState
    knobs: Sequence[Knob]
    harmless_backend: bool
    capacity: Mapping[Target, Mapping[str, float]]
    health: Mapping[Target, tuple[str, ...]]
    vitals: Vitals | None
    past: Sequence[GroupRecord] = ()
    proven: Mapping[str, int] = field(default_factory=dict)
    pause: Pause = field(default_factory=lambda: Pause(Freeze.NONE))
    watching_since: datetime | None = None
    declarations: Mapping[Owner, ResolvedWorkload] = field(default_factory=dict)
    calendars: Sequence[CalendarSettings] = ()
    peak_memory_bytes: Mapping[Target, float] = field(default_factory=dict)
    reserves: Mapping[Target, float] = field(default_factory=dict)
    coverage: Mapping[Target, float] = field(default_factory=dict)
    unrest: Mapping[Target, str] = field(default_factory=dict)
    frozen: Mapping[Target, str] = field(default_factory=dict)
    evictions: Mapping[str, Sequence[Eviction]] = field(default_factory=dict)


def domain_of(target: Target) -> Target:
    """Return what a target depends on: its card, its pool, or for a node-wide daemon the node.

    Only one change is under way in a domain, and quotas add up within it.
    """
    if target.kind == "queue":
        return Target("queue", target.cluster, name=target.name.split("/", 1)[0])
    return Target("card", target.cluster, target.node, target.gpu)


def in_order(changes: Sequence[Change]) -> tuple[Change, ...]:
    """Return changes in the order of application: decreases first."""
    return (*(c for c in changes if c.is_decrease), *(c for c in changes if not c.is_decrease))


@dataclass(frozen=True, slots=True)
class PastChange:
    """One change that reached the backend, and when."""

    at: datetime
    change: Change
    record: GroupRecord

    @property
    def direction(self) -> int:
        """1 for an increase, -1 for a decrease."""
        return -1 if self.change.is_decrease else 1


class Facts:
    """A World with its look-ups made once for all guards of one run over one plan."""

    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.plan = plan
        self._knobs = {(k.name, k.target_kind, k.sharing): k for k in world.knobs}
        self.history: dict[tuple[Target, str], list[PastChange]] = defaultdict(list)
        self.open_domains: dict[Target, GroupRecord] = {}
        self.domain_failures: dict[Target, list[GroupRecord]] = defaultdict(list)
        self.records = [r for r in world.past if r.intent_at is not None]
        for record in self.records:
            at = record.intent_at
            if at is None or record.is_over_trial:  # a probe that set everything back left nothing to remember
                continue
            if record.state in WRITTEN_STATES | FAILED_STATES or record.is_open:
                for change in record.group.changes:
                    self.history[change.target, change.knob].append(PastChange(at, change, record))
            domains = {domain_of(c.target) for c in record.group.changes}
            for domain in domains:
                if record.is_open:
                    self.open_domains[domain] = record
                if record.state in {ChangeState.ROLLED_BACK, ChangeState.ROLLBACK_BLOCKED}:
                    self.domain_failures[domain].append(record)
        self.members: dict[Target, list[TargetState]] = defaultdict(list)
        for held in world.state.targets.values():
            if held.target.kind in {"slice", "queue"}:
                self.members[domain_of(held.target)].append(held)

    def knob(self, change: Change) -> Knob | None:
        """Return the knob that a change turns, by the target's sharing kind; None where there is none."""
        held = self.world.state.targets.get(change.target)
        sharing = None if held is None else held.facts.get("kind")
        kind = change.target.kind
        return self._knobs.get((change.knob, kind, sharing)) or self._knobs.get((change.knob, kind, None))

    def present(self, change: Change) -> float:
        """Return the value in force of a change's knob; NaN where it cannot be read."""
        held = self.world.state.targets.get(change.target)
        return math.nan if held is None else held.values.get(change.knob, math.nan)

    def declaration(self, change: Change) -> ResolvedWorkload | None:
        """Return the promises about the workload that a change touches."""
        return self.world.declarations.get((change.target.cluster, *self.subject(change)))

    def subject(self, change: Change) -> tuple[str, str]:
        """Return (tenant, workload): what the change says, else what the backend says of the target."""
        held = self.world.state.targets.get(change.target)
        facts: Mapping[str, str] = {} if held is None else held.facts
        return change.tenant or facts.get("tenant", ""), change.workload or facts.get("workload", "")

    def restarts(self, group: Group) -> int:
        """Return how many changes of a group restart work."""
        return sum(1 for c in group.changes if (k := self.knob(c)) is not None and k.effect is KnobEffect.NEEDS_RESTART)

    def effects(self, group: Group) -> set[KnobEffect]:
        """Return the effects of all knobs that a group turns."""
        return {k.effect for c in group.changes if (k := self.knob(c)) is not None}


def lessen(group: Group, facts: Facts, factor: float) -> Group | None:
    """Move every change of a group toward the present by `factor`, in whole quanta, keeping the sums of moves.

    A change that ends where it began leaves the group. What one knob of a group moves from donors to receivers stays
    balanced: where the parts no longer add up, the larger side moves less.

    Args:
        group: what was asked for.
        facts: the world.
        factor: 0..1; 1 only puts the changes onto the quantum.

    Returns:
        The lessened group, or None when nothing is left of it or a knob is not continuous (drain, reboot).
    """
    if factor < 1 and facts.effects(group) & {KnobEffect.NEEDS_DRAIN, KnobEffect.NEEDS_REBOOT}:
        return None
    steps: list[int] = []
    quanta: list[float] = []
    for change in group.changes:
        knob = facts.knob(change)
        quantum = 0.0 if knob is None else knob.quantum
        if quantum <= 0 or not math.isfinite(change.after - change.before):
            return None
        wanted = abs(change.after - change.before) * max(min(factor, 1.0), 0.0) / quantum
        steps.append(math.floor(wanted + 1e-6) * (-1 if change.is_decrease else 1))
        quanta.append(quantum)
    _balance(group, steps, quanta)
    changes = tuple(
        replace(c, after=c.before + n * q) if abs(c.before + n * q - c.after) > q * 1e-6 else c
        for c, n, q in zip(group.changes, steps, quanta, strict=True)
        if n != 0
    )
    return replace(group, changes=changes) if changes else None


def _balance(group: Group, steps: list[int], quanta: Sequence[float]) -> None:
    """Where the asked changes of a knob sum to nothing (a move), make the steps sum to nothing too."""
    by_knob: dict[tuple[str, float], list[int]] = defaultdict(list)
    for i, change in enumerate(group.changes):
        by_knob[change.knob, quanta[i]].append(i)
    for (_, quantum), places in by_knob.items():
        asked = sum(group.changes[i].after - group.changes[i].before for i in places)
        if len(places) < 2 or abs(asked) > quantum / 2:
            continue
        excess = sum(steps[i] for i in places)
        while excess != 0:  # each turn takes one quantum from the side that moves more
            side = 1 if excess > 0 else -1
            widest = max(places, key=lambda i: steps[i] * side)
            steps[widest] -= side
            excess -= side
