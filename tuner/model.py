"""The words of change: targets, knobs, changes, groups, plans, and what a backend answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal, Protocol

TargetKind = Literal["slice", "queue", "daemon", "card"]


class Mode(StrEnum):
    """How far the tuner may go on its own."""

    RECOMMEND = "recommend"
    APPROVE = "approve"
    AUTO = "auto"


class Freeze(StrEnum):
    """Levels of the kill switch."""

    NONE = "none"
    NEW = "freeze_new"  # no new changes; rollbacks go on
    ALL = "freeze_all"  # no write at all


class KnobEffect(StrEnum):
    """When a change of a knob reaches the work."""

    LIVE = "live"
    NEW_WORK_ONLY = "new_work_only"
    NEEDS_RESTART = "needs_restart"
    NEEDS_DRAIN = "needs_drain"
    NEEDS_REBOOT = "needs_reboot"


class ApplyStatus(StrEnum):
    """What a backend answers to `apply`."""

    APPLIED = "applied"
    ACCEPTED = "accepted"  # under way; settled by read
    REFUSED = "refused"  # nothing is half done
    CONFLICT = "conflict"  # the world moved; nothing is half done
    RETRY_LATER = "retry_later"  # nothing is half done
    UNKNOWN = "unknown"  # the answer was lost: read back and settle first


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """What a knob belongs to.

    slice: cluster, node, gpu, slice. card and daemon: cluster, node, gpu. queue: cluster, pool, tenant in `name`
    (`pool/tenant`).
    """

    kind: TargetKind
    cluster: str
    node: str = ""
    gpu: str = ""
    slice: str = ""
    name: str = ""

    def __str__(self) -> str:
        """Return a readable path such as `slice demo/node-a/GPU-1/gi3`."""
        path = "/".join(p for p in (self.cluster, self.node, self.gpu, self.slice, self.name) if p)
        return f"{self.kind} {path}"


@dataclass(frozen=True, slots=True)
class Knob:
    """A property that the backend can set: field name, unit, step, range, and what a change costs."""

    name: str  # sm_quota_ratio, memory_quota_bytes, priority, quota_gpu_count, ...
    target_kind: TargetKind
    sharing: str | None  # slice kind that it applies to (None: any)
    unit: str
    quantum: float
    low: float
    high: float
    effect: KnobEffect
    can_evict: bool = False
    compare_and_set: bool = True
    read_back_seconds: float = 5.0
    restart_seconds: float = 0.0  # work lost for each restart, where effect is needs_restart
    special: Mapping[float, str] = field(default_factory=dict)  # value -> meaning, such as -1: unlimited

    def quantise(self, value: float) -> float:
        """Return the nearest value that the backend can hold, within range."""
        clipped = min(max(value, self.low), self.high)
        return min(max(round(clipped / self.quantum) * self.quantum, self.low), self.high)


@dataclass(frozen=True, slots=True)
class TargetState:
    """What a target holds now, as the backend reads it."""

    target: Target
    values: Mapping[str, float]  # knob name -> value in force for new work
    effective: Mapping[str, float]  # knob name -> what running work has now
    generation: str
    facts: Mapping[str, str] = field(default_factory=dict)  # kind, tenant, workload, service_class, ...


@dataclass(frozen=True, slots=True)
class BackendState:
    """One consistent read of the backend."""

    read_at: datetime
    targets: Mapping[Target, TargetState]


@dataclass(frozen=True, slots=True)
class Change:
    """One knob of one target from X to Y, with the reason and the way back (`before` is the way back)."""

    target: Target
    knob: str
    before: float
    after: float
    reason: str
    tenant: str = ""
    workload: str = ""

    @property
    def is_decrease(self) -> bool:
        """Whether the value falls."""
        return self.after < self.before


@dataclass(frozen=True, slots=True)
class Trial:
    """How a probe is run: its group's change is made and taken back again, block by block, and in the end taken back.

    Attributes:
        victim: the slice that may be slowed by the one that is held back, and who holds it.
        finding: id of the finding that it decides.
        seed: of the coins that put the throttled block first or second.
        pairs: pairs of blocks, one throttled and one as usual.
        block_seconds: length of a block.
        every_seconds: least time between the starts of two pairs.
        longest_seconds: after so long it ends with what it has.
        busy_share: share of the card that the held-back slice uses at least when a pair begins.
        expected_seconds: how long it will take, by how often both were at work.
        lost_sm_seconds: work that the held-back slice is expected to lose, in SM-seconds of the card (share x time).
        lost_ratio: the same as a share of its work meanwhile.
        detects: smallest slow-down at full swing that it should not miss, as a ratio.
    """

    victim: Target
    victim_tenant: str
    victim_workload: str
    finding: str
    seed: int
    pairs: int
    block_seconds: float
    every_seconds: float
    longest_seconds: float
    busy_share: float
    expected_seconds: float
    lost_sm_seconds: float
    lost_ratio: float
    detects: float


@dataclass(frozen=True, slots=True)
class Group:
    """Changes that stand or fall together: one card, or one quota move."""

    id: str
    changes: tuple[Change, ...]
    why: str  # the plain sentence an operator reads
    kind: str  # reserve, give, queue, right_size, fast, probe, rollback
    predicted_gain: float  # SM-seconds an hour of useful work (0 where it is not about gain)
    confidence: float  # 0..1
    coverage: float  # 0..1
    risk: str = ""
    findings: tuple[str, ...] = ()  # ids of findings that ask for it
    fast: bool = False
    trial: Trial | None = None  # of a probe


@dataclass(frozen=True, slots=True)
class Plan:
    """The groups of one cycle, and what was decided against."""

    id: str
    made_at: datetime
    as_of: datetime  # oldest input
    groups: tuple[Group, ...]
    simulated: bool = False
    notes: tuple[str, ...] = ()  # holds: why nothing was planned for a subject


@dataclass(frozen=True, slots=True)
class Eviction:
    """Who would be evicted by a group, and when."""

    target: Target
    workload: str
    count: int
    when: str


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """What a backend did with a group."""

    status: ApplyStatus
    detail: str = ""
    settles_in_seconds: float = 0.0


class Backend(Protocol):
    """The enforcement backend. Every implementation passes `tuner.backends.conformance`.

    A class that names this one as its base inherits the answers of a real backend: not simulated, and it acts.
    """

    @property
    def name(self) -> str:
        """Plug-in name."""
        ...

    @property
    def simulated(self) -> bool:
        """Whether a simulation is behind it, and nothing real."""
        return False

    @property
    def changes_nothing(self) -> bool:
        """Whether `apply` only pretends: what was applied is gone with the process, and nobody else sees it."""
        return False

    def knobs(self) -> Sequence[Knob]:
        """Say what can be set, and at which cost."""
        ...

    def read(self, targets: Sequence[Target] | None = None) -> BackendState:
        """Read targets (None: all), each with its generation.

        Facts that plans rest on, as text, absent where they are not known: of a slice kind, tenant, workload and
        card_memory_bytes; of a queue tenant, allocated_gpu_count, pending_gpu_count, free_gpu_count (cards that its
        waiting work could take now) and capacity_gpu_count (cards that its pool's quotas may sum to); of a card
        open_share. A backend that lets new work onto a card beside the shares that it reads must tell open_share: how
        much of the card such work may take. Without it only the shares that are granted count as taken.

        Raises:
            UnreachableError: the backend does not answer.
        """
        ...

    def apply(self, group: Group, expected: Mapping[Target, str]) -> ApplyResult:
        """Apply a group, decreases first; `expected` holds the generations that the decision was made on."""
        ...

    def predict(self, group: Group) -> Sequence[Eviction] | None:
        """Say who would be evicted by the group, by the scheduler's own rule; None: it is not known."""
        ...
