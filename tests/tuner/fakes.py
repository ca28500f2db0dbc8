"""A backend in memory, with switches for everything that goes wrong in real ones, and builders for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from collector.clock import VirtualClock
from collector.declarations import ResolvedWorkload, WorkloadDeclaration
from collector.errors import UnreachableError
from tuner.guards import Vitals, World, domain_of, in_order
from tuner.model import (
    ApplyResult,
    ApplyStatus,
    BackendState,
    Change,
    Eviction,
    Group,
    Knob,
    KnobEffect,
    Plan,
    Target,
    TargetState,
)

START = datetime(2026, 3, 2, tzinfo=UTC)  # a Monday
SM = Knob("sm_quota_ratio", "slice", None, "ratio", 0.01, 0.0, 1.0, KnobEffect.LIVE)
MEMORY = Knob("memory_quota_bytes", "slice", None, "bytes", float(2**20), 0.0, float(2**37), KnobEffect.LIVE)
QUEUE = Knob("quota_gpu_count", "queue", None, "cards", 1.0, 0.0, 32.0, KnobEffect.LIVE, can_evict=True)
PROFILE = Knob("mig_profile", "card", None, "code", 1.0, 0.0, 20.0, KnobEffect.NEEDS_DRAIN)
CORES = Knob("sm_quota_ratio", "slice", "vgpu", "ratio", 0.05, 0.0, 1.0, KnobEffect.NEEDS_RESTART)
KNOBS = (SM, MEMORY, QUEUE, PROFILE, CORES)


class CrashError(BaseException):
    """The process dies here."""


def slice_target(name: str, gpu: str = "GPU-0", node: str = "n0") -> Target:
    return Target("slice", "c", node, gpu, name)


def queue_target(tenant: str, pool: str = "pool") -> Target:
    return Target("queue", "c", name=f"{pool}/{tenant}")


def change(target: Target, before: float, after: float, knob: str = "sm_quota_ratio", **rest: str) -> Change:
    return Change(target, knob, before, after, "test", **rest)


def group(*changes: Change, name: str = "g1", kind: str = "give", **rest: object) -> Group:
    values: dict[str, object] = {"why": "test", "predicted_gain": 10.0, "confidence": 0.9, "coverage": 1.0, **rest}
    return Group(id=name, changes=changes, kind=kind, **values)  # type: ignore[arg-type]


def plan(*groups: Group, now: datetime = START, name: str = "p1", simulated: bool = False) -> Plan:
    return Plan(name, now, now, groups, simulated)


def declared(tenant: str, workload: str, **promise: object) -> ResolvedWorkload:
    values = {"service_class": "offline", **promise}
    return ResolvedWorkload(
        tenant=tenant,
        workload=workload,
        declaration=WorkloadDeclaration.model_validate(values),
        declared=True,
        origin={},
    )


def held(
    target: Target, values: Mapping[str, float], *, kind: str = "mps", workload: str = "w", tenant: str = "t"
) -> TargetState:
    facts = {"kind": kind, "tenant": tenant, "workload": workload}
    return TargetState(target, dict(values), dict(values), "1", {} if target.kind == "card" else facts)


@dataclass
class FakeBackend:
    """Values in memory. `faults` are consumed one an `apply`:

    a status: answer it (and apply for applied and accepted); `lost_before` and `lost_after`: the answer is lost, the
    write happened or not; `half`: only the first change arrives, the answer is lost; `forget`: says applied, did
    nothing; `late`: accepted, arrives after `delay_seconds`; `crash_before`, `crash_after`: the process dies;
    `foreign`: somebody writes first.
    """

    clock: VirtualClock
    held: dict[Target, TargetState]
    faults: list[str] = field(default_factory=list)
    unreadable: int = 0  # how many reads fail from now on
    delay_seconds: float = 30.0
    writes: list[tuple[Target, str, float]] = field(default_factory=list)
    applied_at: list[datetime] = field(default_factory=list)
    _late: list[tuple[datetime, Group]] = field(default_factory=list)
    knob_list: tuple[Knob, ...] = KNOBS

    name = "fake"
    simulated: bool = True
    changes_nothing: bool = False
    predicts: bool = True

    def knobs(self) -> Sequence[Knob]:
        return self.knob_list

    def read(self, targets: Sequence[Target] | None = None) -> BackendState:
        if self.unreadable > 0:
            self.unreadable -= 1
            raise UnreachableError("the fake backend does not answer")
        for at, waiting in list(self._late):
            if self.clock.now() >= at:
                self._late.remove((at, waiting))
                self._write(waiting.changes)
        wanted = list(self.held) if targets is None else [t for t in targets if t in self.held]
        return BackendState(self.clock.now(), {t: self.held[t] for t in wanted})

    def apply(self, group: Group, expected: Mapping[Target, str]) -> ApplyResult:
        fault = self.faults.pop(0) if self.faults else "applied"
        if fault == "crash_before":
            raise CrashError
        if fault == "foreign":
            self.foreign(group.changes[0], 0.07)
        if fault == "lost_before":
            raise UnreachableError("time-out")
        if fault in {s.value for s in ApplyStatus} - {"applied", "accepted"}:
            return ApplyResult(ApplyStatus(fault), "as told")
        if fault == "forget":
            return ApplyResult(ApplyStatus.APPLIED, "as told")
        if any(t not in self.held or self.held[t].generation != g for t, g in expected.items()):
            return ApplyResult(ApplyStatus.CONFLICT, "generation moved")
        knobs = {k.name: k for k in reversed(self.knob_list)}
        for c in group.changes:
            if c.knob not in self.held[c.target].values or not knobs[c.knob].low <= c.after <= knobs[c.knob].high:
                return ApplyResult(ApplyStatus.REFUSED, f"{c.knob} {c.after} is out of range")
        if fault == "late":
            self._late.append((self.clock.now() + timedelta(seconds=self.delay_seconds), group))
            return ApplyResult(ApplyStatus.ACCEPTED, "under way", self.delay_seconds)
        self.applied_at.append(self.clock.now())
        self._write(in_order(group.changes)[:1] if fault in {"half", "crash_half"} else in_order(group.changes))
        if fault in {"crash_after", "crash_half"}:
            raise CrashError
        if fault in {"half", "lost_after"}:
            raise UnreachableError("time-out")
        return ApplyResult(ApplyStatus.APPLIED)

    def predict(self, group: Group) -> Sequence[Eviction] | None:
        if not self.predicts:
            return None
        return [
            Eviction(c.target, "some-job", 1, "at once")
            for c in group.changes
            if c.knob == "quota_gpu_count" and c.is_decrease
        ]

    def foreign(self, change: Change, value: float) -> None:
        """Somebody else sets a value."""
        self._write((replace(change, after=value),))

    def value(self, target: Target, knob: str = "sm_quota_ratio") -> float:
        return self.held[target].values[knob]

    def _write(self, changes: Sequence[Change]) -> None:
        for c in changes:
            now = self.held[c.target]
            self.writes.append((c.target, c.knob, c.after))
            values = {**now.values, c.knob: c.after}
            self.held[c.target] = replace(now, values=values, effective=values, generation=str(int(now.generation) + 1))


def backend_with(clock: VirtualClock, *states: TargetState, **rest: object) -> FakeBackend:
    return FakeBackend(clock, {s.target: s for s in states}, **rest)  # type: ignore[arg-type]


def world_of(states: Sequence[TargetState], now: datetime = START, **rest: object) -> World:
    """A healthy, fresh, fully declared world; `rest` spoils it."""
    targets = {s.target: s for s in states}
    domains = {domain_of(t) for t in targets}
    whole = {"sm_quota_ratio": 1.0, "memory_quota_bytes": float(2**36), "quota_gpu_count": 32.0}
    promises = {
        (s.target.cluster, s.facts["tenant"], s.facts["workload"]): declared(s.facts["tenant"], s.facts["workload"])
        for s in states
        if "tenant" in s.facts
    }
    values: dict[str, object] = {
        "now": now,
        "state": BackendState(now, targets),
        "knobs": KNOBS,
        "harmless_backend": True,
        "capacity": dict.fromkeys(domains, whole),
        "health": dict.fromkeys(domains, ()),
        "vitals": Vitals(cards=16, cards_before=16, activity=0.4, activity_before=0.4),
        "proven": dict.fromkeys(("give", "reserve", "queue", "right_size", "fast"), 100),
        "watching_since": now - timedelta(hours=1),
        "declarations": promises,
        "peak_memory_bytes": dict.fromkeys(targets, 0.0),
        **rest,
    }
    return World(**values)  # type: ignore[arg-type]
