"""The fragmentation measure of `analyzer.fgd` over many nodes at once: arrays, one row a node.

Shapes: N nodes, G cards of the node with most (shorter rows are padded), M tasks of the mix, D distinct demands on one
card among them. A fleet of 10,000 nodes and some hundred tasks is a second's work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from analyzer.fgd import EPSILON, EPSILON_BYTES, Cause, Fragmentation, NodeIdle, Task

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

_CELLS = 2_000_000  # of a block of nodes x demands x cards: some 16 MB


@dataclass(frozen=True, slots=True)
class Fleet:
    """What each node has left; rows are nodes.

    `left` (N, G) is the idle share a card, -1 where a node has no such card. `memory_left_bytes` (N, G) and
    `memory_bytes` (N,), the size of each card's memory, are NaN where memory is not known (taken as enough).
    `cpu_cores_left` (N,) is inf where it is not known. `gpu_type` (N,) indexes `types`.
    """

    names: tuple[str, ...]
    left: Floats
    cpu_cores_left: Floats
    gpu_type: Ints
    types: tuple[str, ...]
    memory_left_bytes: Floats
    memory_bytes: Floats

    @classmethod
    def of(cls, nodes: Sequence[NodeIdle]) -> Fleet:
        """Build a fleet of nodes; an unknown memory is NaN."""
        most = max((len(node.left) for node in nodes), default=0)
        types = tuple(sorted({node.gpu_type for node in nodes}))
        number = {name: i for i, name in enumerate(types)}
        left, rooms = np.full((len(nodes), most), -1.0), np.full((len(nodes), most), math.nan)
        for i, node in enumerate(nodes):
            left[i, : len(node.left)] = node.left
            rooms[i, : len(node.memory_left_bytes)] = node.memory_left_bytes
        return cls(
            names=tuple(node.name for node in nodes),
            left=left,
            cpu_cores_left=np.array([node.cpu_cores_left for node in nodes], dtype=np.float64),
            gpu_type=np.array([number[node.gpu_type] for node in nodes], dtype=np.int64),
            types=types,
            memory_left_bytes=rooms,
            memory_bytes=np.array([node.memory_bytes for node in nodes], dtype=np.float64),
        )

    def at(self, rows: Ints | Bools) -> Fleet:
        """Return the fleet of these rows, in this order; its arrays are copies."""
        return Fleet(
            names=tuple(np.array(self.names, dtype=object)[rows]),
            left=self.left[rows],
            cpu_cores_left=self.cpu_cores_left[rows],
            gpu_type=self.gpu_type[rows],
            types=self.types,
            memory_left_bytes=self.memory_left_bytes[rows],
            memory_bytes=self.memory_bytes[rows],
        )

    @property
    def amounts(self) -> Floats:
        """Idle share a card (N, G): of share and memory the smaller; 0 where there is no card."""
        with np.errstate(invalid="ignore", divide="ignore"):
            room = self.memory_left_bytes / self.memory_bytes[:, None]
        return np.asarray(np.maximum(np.fmin(self.left, room), 0.0))


@dataclass(frozen=True, slots=True)
class Mix:
    """The tasks of a mix as arrays, bound to a fleet's types; weights are used as they are."""

    tasks: tuple[Task, ...]
    cards: Ints  # (M,)
    cpu_cores: Floats  # (M,)
    weight: Floats  # (M,)
    demand: Ints  # (M,) row of `shares` and `memory_bytes`
    shares: Floats  # (D,) asked of one card, at most 1
    memory_bytes: Floats  # (D,)
    allowed: Bools  # (types, M)

    @classmethod
    def of(cls, tasks: Sequence[Task], types: Sequence[str]) -> Mix:
        """Bind tasks to the card types of a fleet."""
        asked = [(min(task.share, 1.0), task.memory_bytes) for task in tasks]
        distinct = sorted(set(asked))
        number = {pair: i for i, pair in enumerate(distinct)}
        return cls(
            tasks=tuple(tasks),
            cards=np.array([task.cards for task in tasks], dtype=np.int64),
            cpu_cores=np.array([task.cpu_cores for task in tasks], dtype=np.float64),
            weight=np.array([task.weight for task in tasks], dtype=np.float64),
            demand=np.array([number[pair] for pair in asked], dtype=np.int64),
            shares=np.array([share for share, _ in distinct], dtype=np.float64),
            memory_bytes=np.array([memory for _, memory in distinct], dtype=np.float64),
            allowed=np.array([[not t.types or name in t.types for t in tasks] for name in types], dtype=bool).reshape(
                len(types), len(tasks)
            ),
        )


@dataclass(frozen=True, slots=True)
class Fit:
    """Which node can run which task, and what of its idle share is lost for it."""

    runs: Bools  # (N, M); False for a task without a card: it serves no idle share
    lost: Floats  # (N, M) idle share that does not serve the task


def typical(counts: Mapping[Task, float], cover: float = 0.95) -> list[Task]:
    """Return the most frequent kinds of task that together are `cover` of all, weighed by how often they came.

    Weights sum to 1. The first of equally frequent kinds goes first, so the order of `counts` decides ties.
    """
    total = sum(counts.values())
    kept: list[tuple[Task, float]] = []
    seen = 0.0
    for task, count in sorted(counts.items(), key=lambda item: -item[1]):
        if seen >= cover * total - EPSILON:
            break
        kept.append((task, count))
        seen += count
    return [replace(task, weight=count / seen) for task, count in kept]


def serving(fleet: Fleet, share: float, memory_bytes: float) -> Bools:
    """Return which cards (N, G) serve a demand of `share` (at most 1) and `memory_bytes`."""
    enough = fleet.left >= share - EPSILON
    return np.asarray(enough & ~(fleet.memory_left_bytes < memory_bytes - EPSILON_BYTES) & (fleet.left >= 0))


def fit(fleet: Fleet, mix: Mix, amounts: Floats | None = None) -> Fit:
    """Return which node can run which task and what each task cannot use, (N, M) each.

    `amounts` (N, G) is what is lost or served; without, the idle share.
    """
    amounts = fleet.amounts if amounts is None else amounts
    counts, small = _demands(fleet, mix, amounts)
    enough = counts[:, mix.demand] >= mix.cards
    cpu = fleet.cpu_cores_left[:, None] + EPSILON >= mix.cpu_cores
    runs = enough & cpu & mix.allowed[fleet.gpu_type] & (mix.cards > 0)
    idle = amounts.sum(axis=1)[:, None]
    return Fit(runs, np.where(runs, small[:, mix.demand], idle))


def usable(fleet: Fleet, mix: Mix) -> Bools:
    """Return which cards (N, G) serve some task of the mix that their node can run."""
    runs = fit(fleet, mix).runs
    found = np.zeros(fleet.left.shape, dtype=bool)
    for d, (share, memory) in enumerate(zip(mix.shares.tolist(), mix.memory_bytes.tolist(), strict=True)):
        some = np.asarray(runs[:, mix.demand == d].any(axis=1))
        found |= serving(fleet, share, memory) & some[:, None]
    return found


def _demands(fleet: Fleet, mix: Mix, amounts: Floats) -> tuple[Ints, Floats]:
    """Return how many cards serve each demand, and the idle share of the others, (N, D) each."""
    nodes, cards = fleet.left.shape
    if nodes * cards * len(mix.shares) <= _CELLS:
        yes = (fleet.left[:, None, :] >= mix.shares[:, None] - EPSILON) & (fleet.left[:, None, :] >= 0)
        if np.isfinite(fleet.memory_left_bytes).any():
            yes &= ~(fleet.memory_left_bytes[:, None, :] < mix.memory_bytes[:, None] - EPSILON_BYTES)
        served = np.einsum("ndg,ng->nd", yes, amounts)
        counts = yes.sum(axis=2)
    else:
        counts = np.empty((nodes, len(mix.shares)), dtype=np.int64)
        served = np.empty((nodes, len(mix.shares)))
        for d, (share, memory) in enumerate(zip(mix.shares.tolist(), mix.memory_bytes.tolist(), strict=True)):
            yes = serving(fleet, share, memory)
            counts[:, d] = yes.sum(axis=1)
            served[:, d] = (yes * amounts).sum(axis=1)
    return counts, np.asarray(amounts.sum(axis=1)[:, None] - served)


def fragments(fleet: Fleet, mix: Mix) -> Floats:
    """Return the fragmented share of each node, in cards, (N,)."""
    return np.asarray(fit(fleet, mix).lost @ mix.weight)


def measure_fleet(fleet: Fleet, tasks: Sequence[Task]) -> Fragmentation:
    """Measure a fleet: the same numbers as `analyzer.fgd.fragmentation`, in a fraction of the time."""
    return _measure(fleet, tasks, fleet.amounts)


def measure_memory(fleet: Fleet, tasks: Sequence[Task]) -> Fragmentation:
    """Measure the cards' free memory as `measure_fleet` measures their share, in bytes; what is unknown is left out."""
    return _measure(fleet, tasks, np.maximum(np.nan_to_num(fleet.memory_left_bytes, nan=0.0), 0.0))


def _measure(fleet: Fleet, tasks: Sequence[Task], amounts: Floats) -> Fragmentation:
    mix = Mix.of(tasks, fleet.types)
    found = fit(fleet, mix, amounts)
    per_task = found.lost.sum(axis=0)
    return Fragmentation(
        idle=float(amounts.sum()),
        fragmented=float(per_task @ mix.weight),
        per_task=tuple(per_task.tolist()),
        by_cause=_by_cause(fleet, mix, found, amounts),
    )


def causes(fleet: Fleet, mix: Mix) -> dict[Cause, Bools]:
    """Return for each cause which node cannot run which task for it, (N, M); a node that can is in none."""
    bare = replace(fleet, memory_left_bytes=np.full_like(fleet.left, math.nan))
    counts, _ = _demands(fleet, mix, fleet.amounts)
    by_share, _ = _demands(bare, mix, fleet.amounts)
    gpu = mix.cards > 0
    cpu_short = fleet.cpu_cores_left[:, None] + EPSILON < mix.cpu_cores
    wrong = ~mix.allowed[fleet.gpu_type] & gpu
    short = (counts[:, mix.demand] < mix.cards) & gpu & ~wrong
    memory = short & (by_share[:, mix.demand] >= mix.cards)
    return {
        Cause.TYPE: wrong,
        Cause.CPU_AND_SHARE: short & cpu_short,
        Cause.MEMORY: memory & ~cpu_short,
        Cause.TOO_SMALL: short & ~memory & ~cpu_short,
        Cause.CPU: gpu & ~wrong & ~short & cpu_short,
        Cause.NO_GPU_TASK: ~gpu & ~cpu_short,
        Cause.NO_GPU_TASK_CPU: ~gpu & cpu_short,
    }


def _by_cause(fleet: Fleet, mix: Mix, found: Fit, amounts: Floats) -> dict[Cause, float]:
    why = causes(fleet, mix)
    total = {cause: float((found.lost * why[cause]).sum(axis=0) @ mix.weight) for cause in Cause}
    # Of a node that can run a task, cards without enough share are lost for it, and cards without enough memory.
    bare = replace(fleet, memory_left_bytes=np.full_like(fleet.left, math.nan))
    _, without_share = _demands(bare, mix, amounts)
    for_share = np.where(found.runs, without_share[:, mix.demand], 0.0).sum(axis=0) @ mix.weight
    in_all = np.where(found.runs, found.lost, 0.0).sum(axis=0) @ mix.weight
    total[Cause.TOO_SMALL] += float(for_share)
    total[Cause.MEMORY] += float(in_all - for_share)
    return total
