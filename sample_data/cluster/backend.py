"""The enforcement backend of a simulated cluster: what can be turned, what it costs, and who would be evicted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sample_data.cluster.cluster import SimulatedCluster
from sample_data.cluster.spec import GIB, MIB, SliceSpec
from tuner.model import (
    ApplyResult,
    ApplyStatus,
    BackendState,
    Change,
    Eviction,
    Group,
    Knob,
    KnobEffect,
    Target,
    TargetState,
)

SM_QUOTA = "sm_quota_ratio"
MEMORY_QUOTA = "memory_quota_bytes"
QUEUE_QUOTA = "quota_gpu_count"
MIG_LAYOUT = "mig_layout"

_LAYOUTS = ("7x1g", "2g+2g+3g", "4g+2g+1g", "4g+3g", "3g+3g", "as cut")
RESTART_SECONDS = 180.0


@dataclass(slots=True)
class _Pending:
    """A change that was accepted and is not readable yet."""

    visible_at: datetime
    before: Mapping[tuple[Target, str], float]


@dataclass(slots=True)
class SimulatorBackend:
    """Turns knobs of a `SimulatedCluster`; docs/simulator.md says what each does to running work.

    Args:
        cluster: what is steered.
        read_back_seconds: how long a change stays unreadable after it was accepted, in simulated time.
    """

    cluster: SimulatedCluster
    read_back_seconds: float = 0.0
    _generation: dict[Target, int] = field(default_factory=dict)
    _pending: list[_Pending] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Plug-in name."""
        return "simulator"

    @property
    def simulated(self) -> bool:
        """Nothing real is behind it."""
        return True

    @property
    def changes_nothing(self) -> bool:
        """The simulated work feels every change."""
        return False

    def knobs(self) -> Sequence[Knob]:
        """Say what can be set, and at which cost."""
        delay = self.read_back_seconds
        live = self.cluster.spec.live_limits
        memory = max(c.hardware.memory_bytes for c in self.cluster.spec.cards)
        return (
            Knob(SM_QUOTA, "slice", "mps", "ratio", 0.01, 0.01, 1.0, KnobEffect.NEW_WORK_ONLY, read_back_seconds=delay),
            Knob(
                SM_QUOTA, "slice", "vgpu", "ratio", 0.01, 0.01, 1.0,
                KnobEffect.LIVE if live else KnobEffect.NEEDS_RESTART,
                read_back_seconds=delay, restart_seconds=0.0 if live else RESTART_SECONDS,
            ),
            Knob(MEMORY_QUOTA, "slice", "vgpu", "bytes", float(MIB), float(GIB), float(memory), KnobEffect.LIVE,
                 read_back_seconds=delay),
            Knob(QUEUE_QUOTA, "queue", None, "cards", 0.25, 0.0, float(len(self.cluster.spec.cards)), KnobEffect.LIVE,
                 can_evict=True, read_back_seconds=delay),
            Knob(MIG_LAYOUT, "card", "mig", "layout", 1.0, 0.0, float(len(_LAYOUTS) - 1), KnobEffect.NEEDS_DRAIN,
                 read_back_seconds=delay, special=dict(enumerate(_LAYOUTS))),
        )  # fmt: skip

    def read(self, targets: Sequence[Target] | None = None) -> BackendState:
        """Read targets (None: all), each with its generation; targets that are not there are left out."""
        states = self._states()
        now = self.cluster.now
        self._pending = [p for p in self._pending if p.visible_at > now]
        for pending in reversed(self._pending):
            for (target, knob), value in pending.before.items():
                if target in states:
                    old = states[target]
                    states[target] = TargetState(
                        target, {**old.values, knob: value}, old.effective, old.generation, old.facts
                    )
        wanted = states if targets is None else {t: states[t] for t in targets if t in states}
        return BackendState(now, wanted)

    def apply(self, group: Group, expected: Mapping[Target, str]) -> ApplyResult:
        """Apply a group, all or nothing; `expected` holds the generations that the decision was made on."""
        states = self._states()
        for change in group.changes:
            result = self._check(change, states, expected)
            if result is not None:
                return result
        before = {(c.target, c.knob): states[c.target].values[c.knob] for c in group.changes}
        for change in sorted(group.changes, key=lambda c: (not c.is_decrease, c.target, c.knob)):
            if states[change.target].values[change.knob] == change.after:
                continue  # said before: nothing moves, nothing restarts
            self._turn(change)
            self._generation[change.target] = self._generation.get(change.target, 0) + 1
        if self.read_back_seconds > 0:
            visible = self.cluster.now + timedelta(seconds=self.read_back_seconds)
            self._pending.append(_Pending(visible, before))
            return ApplyResult(ApplyStatus.ACCEPTED, "readable soon", self.read_back_seconds)
        return ApplyResult(ApplyStatus.APPLIED)

    def predict(self, group: Group) -> Sequence[Eviction]:
        """Say whose jobs the scheduler's next pass would evict under the group's queue quotas."""
        pool, spec = self.cluster.world.pool, self.cluster.spec
        quota = dict(pool.quota)
        moved = [c for c in group.changes if c.knob == QUEUE_QUOTA]
        for change in moved:
            quota[change.target.name.removeprefix(f"{spec.pool}/")] = change.after
        if not moved:
            return ()
        at_rest = {j.arrival.number for j in pool.evictions(pool.quota, self.cluster.world.minute)}
        evicted = pool.evictions(quota, self.cluster.world.minute)
        return [
            Eviction(
                self._queue_target(j.arrival.tenant), f"{j.arrival.tenant}/{j.name}", 1, "the scheduler's next pass"
            )
            for j in evicted
            if j.arrival.number not in at_rest
        ]

    # -- targets ---------------------------------------------------------------------------------------------------

    def _states(self) -> dict[Target, TargetState]:
        world = self.cluster.world
        states: dict[Target, TargetState] = {}
        for i, s in enumerate(self.cluster.spec.slices):
            if world.card_alive[s.card] and (world.holders[i] is not None or s.kind == "mig"):
                state = self._slice_state(i, s)
                states[state.target] = state
        for tenant in world.pool.queues:
            state = self._queue_state(tenant)
            states[state.target] = state
        for c, card in enumerate(self.cluster.spec.cards):
            if world.card_alive[c]:
                target = Target("card", self.cluster.spec.name, card.node, card.uuid)
                values = {MIG_LAYOUT: float(self._layout(c))} if card.sharing == "mig" else {}
                facts = {
                    "kind": card.sharing,
                    "model": card.hardware.name,
                    "memory_bytes": str(card.hardware.memory_bytes),
                    "sm_count": str(card.hardware.sm_count),
                    "open_share": f"{self._open_share(c):g}",
                }
                states[target] = TargetState(target, values, values, self._stamp(target), facts)
        return states

    def _open_share(self, card: int) -> float:
        """Return the share of a card that newly admitted queue jobs may take: the quotas of its empty seats."""
        held = self.cluster.world.holders
        seats = (s.sm_quota for i, s in enumerate(self.cluster.spec.slices) if s.card == card and held[i] is None)
        return float(sum(seats))

    def _slice_state(self, index: int, s: SliceSpec) -> TargetState:
        world, spec = self.cluster.world, self.cluster.spec
        card, holder = spec.cards[s.card], world.holders[index]
        target = Target("slice", spec.name, card.node, card.uuid, world.slice_id(index))
        effective = {SM_QUOTA: float(world.quota[index])}
        values: dict[str, float] = {}
        if s.kind in ("mps", "vgpu") and s.role != "seat":
            values[SM_QUOTA] = float(world.quota_next[index])
        if s.kind == "vgpu":
            values[MEMORY_QUOTA] = effective[MEMORY_QUOTA] = float(world.memory_quota[index])
        facts = {
            "kind": s.kind,
            "tenant": holder.namespace if holder else "none",
            "workload": holder.workload if holder else "none",
            "service_class": "online" if s.online else "offline",
            "ordinal": str(s.ordinal),
            "profile": s.profile,
            "pod": f"{holder.namespace}/{holder.pod}" if holder else "",
            "card_memory_bytes": str(card.hardware.memory_bytes),
            "card_sm_count": str(card.hardware.sm_count),
        }
        pod = holder.pod if holder else "free"
        return TargetState(target, values, effective, f"{pod}:{self._stamp(target)}", facts)

    def _queue_state(self, tenant: str) -> TargetState:
        pool = self.cluster.world.pool
        target = self._queue_target(tenant)
        values = {QUEUE_QUOTA: float(pool.quota[tenant])}
        facts = {
            "tenant": tenant,
            "pool": self.cluster.spec.pool,
            "scheduler": pool.rule,
            "allocated_gpu_count": f"{pool.allocated(tenant):g}",
            "pending_gpu_count": f"{pool.pending_cards(tenant):g}",
            "free_gpu_count": f"{pool.free_cards(tenant):g}",
            "capacity_gpu_count": f"{pool.capacity_cards():g}",
        }
        return TargetState(target, values, values, self._stamp(target), facts)

    def _queue_target(self, tenant: str) -> Target:
        return Target("queue", self.cluster.spec.name, name=f"{self.cluster.spec.pool}/{tenant}")

    def _stamp(self, target: Target) -> str:
        return str(self._generation.get(target, 0))

    def _layout(self, card: int) -> int:
        profiles = sorted(s.profile.partition(".")[0] for s in self.cluster.spec.slices if s.card == card)
        known = {("1g",) * 7: 0, ("2g", "2g", "3g"): 1, ("1g", "2g", "4g"): 2, ("3g", "4g"): 3, ("3g", "3g"): 4}
        return known.get(tuple(profiles), len(_LAYOUTS) - 1)

    # -- changes ---------------------------------------------------------------------------------------------------

    def _check(
        self, change: Change, states: Mapping[Target, TargetState], expected: Mapping[Target, str]
    ) -> ApplyResult | None:
        state = states.get(change.target)
        if state is None:
            return ApplyResult(ApplyStatus.CONFLICT, f"{change.target} is not there any more")
        if expected.get(change.target) != state.generation:
            return ApplyResult(ApplyStatus.CONFLICT, f"{change.target} has moved on: read it again")
        if change.knob not in state.values:
            return ApplyResult(ApplyStatus.REFUSED, f"{change.target} has no knob {change.knob}")
        knob = next(
            k
            for k in self.knobs()
            if k.name == change.knob
            and k.target_kind == change.target.kind
            and k.sharing in (None, state.facts.get("kind"))
        )
        if not math.isfinite(change.after) or not knob.low <= change.after <= knob.high:
            return ApplyResult(
                ApplyStatus.REFUSED, f"{change.knob}: expected {knob.low:g}..{knob.high:g}, got {change.after:g}"
            )
        if change.knob == MIG_LAYOUT:
            return ApplyResult(ApplyStatus.REFUSED, "a re-cut needs an empty card: drain it first")
        return self._check_memory(change, states)

    def _check_memory(self, change: Change, states: Mapping[Target, TargetState]) -> ApplyResult | None:
        if change.knob != MEMORY_QUOTA or change.is_decrease:
            return None
        held = sum(
            s.values.get(MEMORY_QUOTA, 0.0)
            for t, s in states.items()
            if t.kind == "slice" and t.gpu == change.target.gpu and t != change.target
        )
        size = float(states[change.target].facts["card_memory_bytes"])
        if held + change.after > size:
            return ApplyResult(
                ApplyStatus.REFUSED, f"memory quotas would hold more than the card has ({size:.0f} bytes)"
            )
        return None

    def _turn(self, change: Change) -> None:
        world, target = self.cluster.world, change.target
        if target.kind == "queue":
            world.pool.quota[target.name.removeprefix(f"{self.cluster.spec.pool}/")] = change.after
            return
        index = next(
            i
            for i, s in enumerate(self.cluster.spec.slices)
            if self.cluster.spec.cards[s.card].uuid == target.gpu and world.slice_id(i) == target.slice
        )
        if change.knob == MEMORY_QUOTA:
            world.memory_quota[index] = change.after
            return
        world.quota_next[index] = change.after
        if self.cluster.spec.slices[index].kind != "vgpu":
            return
        if self.cluster.spec.live_limits:
            world.quota[index] = change.after
        else:
            world.restart(index)
