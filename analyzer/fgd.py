"""FGD: how much of the idle GPU share cannot serve the demand, exactly as Weng et al. define it (ATC'23).

A node n has idle shares R_g in 0..1 a card; a task m of the demand mix asks D_m of each of `cards` cards and comes with
weight p_m. F_n(m) is all idle share when n cannot run m (or m wants no card), else the shares too small for it; F_n is
the sum over m of p_m F_n(m), the cluster's F the sum over nodes. Units here are cards: 0.5 is half a card.
Where memory is shared too (`memory_left_bytes`), a card serves a task only if both fit, and its idle share is the
smaller of the two. One node at a time, readable; `analyzer.fleet` gives the same for many nodes at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

EPSILON = 1e-9  # shares come as sums of decimal fractions: equality must not hang on their last bit
EPSILON_BYTES = 1.0


class Cause(StrEnum):
    """Why idle share does not serve a task."""

    TOO_SMALL = "gpu_share"  # each card's rest is too small, or too few cards have enough
    CPU = "cpu"
    CPU_AND_SHARE = "cpu_and_gpu_share"
    TYPE = "gpu_type"
    MEMORY = "gpu_memory"  # enough share, too little memory on the card
    NO_GPU_TASK = "task_without_gpu"
    NO_GPU_TASK_CPU = "task_without_gpu_cpu"


@dataclass(frozen=True, slots=True)
class Task:
    """A typical request: `cards` cards of `share` each (1.0: whole), CPU cores, allowed types (empty: any), weight.

    `memory_bytes` is asked of each card; 0: nothing is said.
    """

    cards: int
    share: float
    cpu_cores: float = 0.0
    types: frozenset[str] = frozenset()
    memory_bytes: float = 0.0
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class NodeIdle:
    """What a node has left: share a card, CPU cores (inf: not known, taken as enough), memory a card or none.

    `memory_left_bytes` has one entry a card and needs `memory_bytes`, the size of each card's memory.
    """

    name: str
    left: tuple[float, ...]
    cpu_cores_left: float = math.inf
    gpu_type: str = ""
    memory_left_bytes: tuple[float, ...] = ()
    memory_bytes: float = math.nan

    @property
    def amounts(self) -> tuple[float, ...]:
        """Idle share of each card."""
        if not self.memory_left_bytes:
            return self.left
        rooms = (room / self.memory_bytes for room in self.memory_left_bytes)
        return tuple(min(share, room) for share, room in zip(self.left, rooms, strict=True))

    @property
    def idle(self) -> float:
        """Idle share of all cards."""
        return sum(self.amounts)


@dataclass(frozen=True, slots=True)
class Placement:
    """One way to place a task: on which card, and how much the fragment grows; the reference scheduler's score."""

    gpu: int
    delta: float
    score: int


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """Fragmented share (cards) in all, by task and by cause, beside the idle share."""

    idle: float
    fragmented: float
    per_task: tuple[float, ...]
    by_cause: dict[Cause, float]

    @property
    def ratio(self) -> float:
        """Fragmented over idle; 0 when nothing is idle."""
        return self.fragmented / self.idle if self.idle > 0 else 0.0


def _by_share(node: NodeIdle, task: Task) -> list[bool]:
    return [share >= min(task.share, 1.0) - EPSILON for share in node.left]


def _serves(node: NodeIdle, task: Task) -> list[bool]:
    rooms = node.memory_left_bytes or (math.inf,) * len(node.left)
    by_memory = (room >= task.memory_bytes - EPSILON_BYTES for room in rooms)
    return [share and room for share, room in zip(_by_share(node, task), by_memory, strict=True)]


def _allowed(node: NodeIdle, task: Task) -> bool:
    return not task.types or node.gpu_type in task.types


def blocked_by(node: NodeIdle, task: Task) -> Cause | None:
    """Return why `node` cannot run `task`; None when it can."""
    cpu_short = node.cpu_cores_left + EPSILON < task.cpu_cores
    if task.cards == 0:
        return Cause.NO_GPU_TASK_CPU if cpu_short else None
    if not _allowed(node, task):
        return Cause.TYPE
    if sum(_serves(node, task)) < task.cards:
        if cpu_short:
            return Cause.CPU_AND_SHARE
        return Cause.MEMORY if sum(_by_share(node, task)) >= task.cards else Cause.TOO_SMALL
    return Cause.CPU if cpu_short else None


def node_fragmentation(node: NodeIdle, mix: Sequence[Task]) -> Fragmentation:
    """Measure one node; weights of `mix` are used as they are (they should sum to 1)."""
    per_task = []
    by_cause = dict.fromkeys(Cause, 0.0)
    for task in mix:
        cause = blocked_by(node, task)
        if cause is None and task.cards == 0:
            cause = Cause.NO_GPU_TASK
        if cause is None:
            lost = {Cause.TOO_SMALL: 0.0, Cause.MEMORY: 0.0}
            for amount, enough, by_share in zip(node.amounts, _serves(node, task), _by_share(node, task), strict=True):
                lost[Cause.MEMORY if by_share else Cause.TOO_SMALL] += 0.0 if enough else amount
        else:
            lost = {cause: node.idle}
        per_task.append(sum(lost.values()))
        for why, amount in lost.items():
            by_cause[why] += task.weight * amount
    total = sum(task.weight * amount for task, amount in zip(mix, per_task, strict=True))
    return Fragmentation(node.idle, total, tuple(per_task), by_cause)


def fragmentation(nodes: Sequence[NodeIdle], mix: Sequence[Task]) -> Fragmentation:
    """Measure a cluster: the sums over its nodes."""
    measured = [node_fragmentation(node, mix) for node in nodes]
    return Fragmentation(
        idle=sum(m.idle for m in measured),
        fragmented=sum(m.fragmented for m in measured),
        per_task=tuple(sum(m.per_task[i] for m in measured) for i in range(len(mix))),
        by_cause={cause: sum(m.by_cause[cause] for m in measured) for cause in Cause},
    )


def placements(node: NodeIdle, mix: Sequence[Task], task: Task) -> list[Placement | None] | None:
    """Return for each card how the fragment grows if `task` (on one card) goes there; None where it does not fit.

    Returns None alone when the node cannot run the task at all. Rank by `delta` itself: the reference score is floored
    and ties where `delta` does not. Tasks on several cards: `analyzer.placing`.

    Raises:
        ValueError: the task wants no card, or several.
    """
    if task.cards != 1:
        raise ValueError(f"expected a task on one card, got {task.cards} cards")
    if blocked_by(node, task) is not None:
        return None
    before = node_fragmentation(node, mix).fragmented
    found: list[Placement | None] = []
    for gpu, enough in enumerate(_serves(node, task)):
        if not enough:
            found.append(None)
            continue
        delta = node_fragmentation(_after(node, gpu, task), mix).fragmented - before
        found.append(Placement(gpu, delta, score(delta)))
    return found


def score(delta: float) -> int:
    """Return the reference scheduler's score of a placement, floor(100 / (1 + e^delta))."""
    # Round first: the reference counts in thousandths of a card, so noise in the last bit must not cross a whole.
    return math.floor(round(100 / (1 + math.exp(delta)), 9))


def _after(node: NodeIdle, gpu: int, task: Task) -> NodeIdle:
    left = list(node.left)
    left[gpu] = max(left[gpu] - task.share, 0.0)
    rooms = list(node.memory_left_bytes)
    if rooms:
        rooms[gpu] = max(rooms[gpu] - task.memory_bytes, 0.0)
    return replace(
        node, left=tuple(left), memory_left_bytes=tuple(rooms), cpu_cores_left=node.cpu_cores_left - task.cpu_cores
    )
