"""What a fleet still has room for, by pool and card model, and which of its dimensions strands the others.

Card and host run out of different things at different times: a card whose memory is given away keeps idle compute, a
card whose compute is given away keeps idle memory, and a host without CPU keeps both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from analyzer.fgd import EPSILON, Task
from analyzer.fleet import Fleet, Floats, Mix, fit, usable
from analyzer.known import known_sum


@dataclass(frozen=True, slots=True)
class Room:
    """What the free cards of one model in one pool can take.

    largest_piece: the largest free share of one card. most_whole_cards: free cards on the node with most of them.
    biggest: number of the biggest request of the mix that fits here, by cards' worth, then memory; None: none.
    fits_part: weight of the requests of the mix that fit here.
    """

    pool: str
    model: str
    nodes: int
    cards: int
    idle_cards: float
    largest_piece: float
    most_whole_cards: int
    biggest: int | None
    fits_part: float


def rooms(fleet: Fleet, pools: Sequence[str], tasks: Sequence[Task]) -> list[Room]:
    """Return the room of each pool and model, in their order; `pools` (N) names each node's pool."""
    mix = Mix.of(tasks, fleet.types)
    runs = fit(fleet, mix).runs
    amounts = fleet.amounts
    order = sorted(range(len(tasks)), key=lambda m: (tasks[m].cards * tasks[m].share, tasks[m].memory_bytes))
    found = []
    keys = [(pool, fleet.types[kind]) for pool, kind in zip(pools, fleet.gpu_type.tolist(), strict=True)]
    for key in sorted(set(keys)):
        rows = np.array([own == key for own in keys])
        here = runs[rows].any(axis=0)
        left = fleet.left[rows]
        found.append(
            Room(
                pool=key[0],
                model=key[1],
                nodes=int(rows.sum()),
                cards=int((left >= 0).sum()),
                idle_cards=float(amounts[rows].sum()),
                largest_piece=float(amounts[rows].max(initial=0.0)),
                most_whole_cards=int((left >= 1 - EPSILON).sum(axis=1).max(initial=0)),
                biggest=next((m for m in reversed(order) if here[m]), None),
                fits_part=float(mix.weight[here].sum()),
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class Dimensions:
    """Idle amounts that lack another dimension; per card (N, G), NaN where memory is not known, and in all.

    compute_without_memory: free share beyond the free memory's share of the card, in cards; memory_without_compute:
    the reverse, in bytes. compute_without_cpu: idle share of nodes on which the least CPU that a request of the mix
    asks for is not left, in cards; NaN where no node's CPU is known.
    """

    free_share: Floats
    free_memory_share: Floats
    compute_without_memory: float
    memory_without_compute_bytes: float
    compute_without_cpu: float


def dimensions(fleet: Fleet, tasks: Sequence[Task]) -> Dimensions:
    """Return which idle amounts lack another dimension."""
    there = fleet.left >= 0
    share = np.where(there, fleet.left, math.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        memory = np.where(there, fleet.memory_left_bytes / fleet.memory_bytes[:, None], math.nan)
    excess = share - memory
    size = np.broadcast_to(fleet.memory_bytes[:, None], share.shape)
    known = np.isfinite(fleet.cpu_cores_left)
    least = min((task.cpu_cores for task in tasks if task.cards), default=0.0)
    starved = known & (fleet.cpu_cores_left + EPSILON < least)
    return Dimensions(
        free_share=share,
        free_memory_share=memory,
        compute_without_memory=known_sum(np.maximum(excess, 0.0)),
        memory_without_compute_bytes=known_sum(np.maximum(-excess, 0.0) * size),
        compute_without_cpu=float(fleet.amounts[starved].sum()) if known.any() else math.nan,
    )


@dataclass(frozen=True, slots=True)
class Stranding:
    """For one dimension: tasks (numbers) that it alone keeps out everywhere, and idle share that it alone strands.

    stranded_cards is share that serves no task of the mix and would serve one if the dimension did not count.
    """

    lost: tuple[int, ...]
    stranded_cards: float


def strandings(fleet: Fleet, tasks: Sequence[Task]) -> dict[str, Stranding]:
    """Return what CPU, card type and card memory strand, each alone: keys `cpu`, `type`, `memory`.

    A dimension strands what would be of use if it alone did not count; where two are short, neither is to blame alone.
    """
    mix = Mix.of(tasks, fleet.types)
    gpu = mix.cards > 0
    nowhere = gpu & ~fit(fleet, mix).runs.any(axis=0)
    used = usable(fleet, mix)
    relaxed = {
        "cpu": (replace(fleet, cpu_cores_left=np.full_like(fleet.cpu_cores_left, math.inf)), mix),
        "type": (fleet, replace(mix, allowed=np.ones_like(mix.allowed))),
        "memory": (replace(fleet, memory_left_bytes=np.full_like(fleet.left, math.nan)), mix),
    }
    found = {}
    for name, (other, of) in relaxed.items():
        gained = nowhere & fit(other, of).runs.any(axis=0)
        freed = usable(other, of) & ~used
        share = np.maximum(fleet.left, 0.0) if name == "memory" else fleet.amounts
        found[name] = Stranding(tuple(np.flatnonzero(gained).tolist()), float(share[freed].sum()))
    return found
