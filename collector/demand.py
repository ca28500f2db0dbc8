"""Demand for cards in the words of any scheduler: what is asked for, since when, and what its queues grant."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """What a pod asks for: cards, share of each (None: unknown), memory of each (bytes), CPU cores, MIG profile.

    A unit of a shared card is some share of it: how much, only the device plugin's configuration knows.
    """

    cards: float
    share: float | None
    memory_bytes: float | None
    cpu: float
    profile: str

    @property
    def card_equivalents(self) -> float:
        """Cards times share: what the request takes of a pool of cards; a unit of unknown share counts as one."""
        return self.cards if self.share is None else self.cards * self.share


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that a queue keeps itself, before there are pods (Kueue, Volcano) or without any (Slurm).

    key: `namespace/name`, known from poll to poll; namespace: who asks, a namespace or an account.
    request, pods: what one pod (or task) of it asks for, and how many such it has.
    since, granted, ended: seconds since the epoch; None: not yet.
    to_pods: once granted, pods ask in its place.
    """

    key: str
    namespace: str
    workload: str
    pool: str
    request: GpuRequest
    since: float
    pods: int = 1
    granted: float | None = None
    gpu_type: str = ""
    to_pods: bool = True
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def card_equivalents(self) -> float:
        """Cards that all its pods together take of a pool."""
        return self.request.card_equivalents * self.pods


@dataclass(frozen=True, slots=True)
class QueueState:
    """What a queue says of itself, in cards; NaN: not said. `namespace` is empty where it is not one namespace's own.

    quota: cards granted to it (-1: no limit); pending: requests that wait.
    """

    pool: str
    namespace: str = ""
    quota: float = math.nan
    allocated: float = math.nan
    pending: float = math.nan
    pending_cards: float = math.nan


@dataclass(slots=True)
class SchedulerState:
    """Everything that one poll of a scheduler said of demand.

    asks: by key; queues: as they speak of themselves.
    pools: `namespace/queue` that pods name -> the pool that grants to it.
    owners: (namespace, kind, name) of what owns pods -> key of the ask that waited for them.
    cards: who counts (`Slurm`, `the PCI bus`) -> node -> physical cards.
    """

    asks: dict[str, Ask] = field(default_factory=dict)
    queues: list[QueueState] = field(default_factory=list)
    pools: dict[str, str] = field(default_factory=dict)
    owners: dict[tuple[str, str, str], str] = field(default_factory=dict)
    cards: dict[str, dict[str, float]] = field(default_factory=dict)


def merged_states(states: Iterable[SchedulerState]) -> SchedulerState:
    """Return what several schedulers of one cluster say together; a later one goes before an earlier one."""
    whole = SchedulerState()
    for state in states:
        whole.asks |= state.asks
        whole.queues += state.queues
        whole.pools |= state.pools
        whole.owners |= state.owners
        for who, nodes in state.cards.items():
            whole.cards[who] = whole.cards.get(who, {}) | nodes
    return whole
