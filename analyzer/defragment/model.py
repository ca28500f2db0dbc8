"""The world that a defragmentation plan is made for: cards, what lies on them, what is asked for, and the moves.

All amounts are whole numbers, so that no comparison hangs on a last bit: shares in thousandths of a card, CPU in
thousandths of a core, memory in MiB.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

Holder = tuple[str, str]  # tenant, workload
WHOLE = 1000  # thousandths of a card
UNLIMITED = 1 << 40  # CPU or memory that nobody told: taken as enough


@dataclass(frozen=True, slots=True)
class Card:
    """A card: its node (by place in the fleet), its name, memory, and its MIG board's name (empty: not cut).

    `closed`: nothing may come to it, such as while it is unhealthy.
    """

    node: int
    name: str
    memory: int = UNLIMITED
    board: str = ""
    closed: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    """A node: name, CPU that nobody asked for, type of its cards."""

    name: str
    cpu_free: int = UNLIMITED
    type: str = ""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a pod or a request takes: of each of `cards` cards a share and memory, CPU in all, on allowed types.

    On cards that are cut it is a MIG profile instead of a share. `cards` 0: it takes CPU alone.
    """

    cards: int = 1
    share: int = WHOLE
    memory: int = 0
    cpu: int = 0
    types: frozenset[str] = frozenset()
    profile: str = ""

    @property
    def amount(self) -> float:
        """Cards' worth of share."""
        return self.cards * self.share / WHOLE

    def allows(self, type_: str) -> bool:
        """Say whether it may run on cards of this type."""
        return not self.types or type_ in self.types


@dataclass(frozen=True, slots=True)
class Cost:
    """What moving a pod costs: memory to be moved, restarts, minutes of drain, work lost since its checkpoint.

    `lost_seconds` is NaN where nothing tells how long ago the last checkpoint was.
    """

    moved_gib: float = 0.0
    restarts: int = 0
    drain_minutes: float = 0.0
    lost_seconds: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.moved_gib + other.moved_gib,
            self.restarts + other.restarts,
            self.drain_minutes + other.drain_minutes,
            self.lost_seconds + other.lost_seconds,
        )

    @property
    def weight(self) -> float:
        """One number by which plans of equally many moves are told apart: an hour lost weighs as 10 GiB."""
        lost = self.lost_seconds if math.isfinite(self.lost_seconds) else 3600.0
        return self.moved_gib / 10 + self.restarts + self.drain_minutes / 60 + lost / 3600


@dataclass(frozen=True, slots=True)
class Pod:
    """A running pod and where it lies: places of its cards in the fleet (none: CPU alone), its MIG start."""

    name: str
    node: int
    cards: tuple[int, ...]
    shape: Shape
    fixed: bool = False  # protected: never moved, never resized
    start: int = -1
    smaller_share: int = 0  # what would do for it, in place of its share; 0: nothing smaller is known
    cost: Cost = field(default_factory=Cost)
    tenant: str = ""
    workload: str = ""

    @property
    def holder(self) -> Holder:
        """Who it belongs to."""
        return self.tenant, self.workload


@dataclass(frozen=True, slots=True)
class Request:
    """Something that is asked for, so many times."""

    shape: Shape
    count: int = 1
    name: str = ""


@dataclass(frozen=True)
class Fleet:
    """Nodes, their cards, and the pods on them; `apart`: pairs of holders that must not share a card.

    A pair of one holder keeps two of his pods apart.
    """

    nodes: tuple[Node, ...]
    cards: tuple[Card, ...]
    pods: tuple[Pod, ...]
    apart: frozenset[frozenset[Holder]] = frozenset()

    def may_meet(self, one: int, other: int) -> bool:
        """Say whether two pods may share a card that is not cut."""
        first, second = self.pods[one], self.pods[other]
        return frozenset((first.holder, second.holder)) not in self.apart

    def by_node(self) -> tuple[tuple[int, ...], ...]:
        """Return for each node the places of its cards."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for place, card in enumerate(self.cards):
            found[card.node].append(place)
        return tuple(map(tuple, found))


class Kind(StrEnum):
    """Kinds of moves."""

    MIGRATE = "migrate"
    RECUT = "re-cut"  # the same card, another place on it
    RESIZE = "resize"


@dataclass(frozen=True, slots=True)
class Move:
    """One step of a plan: a pod goes to these cards of a node (MIG: to that start), or gets a smaller share."""

    kind: Kind
    pod: int
    node: int
    cards: tuple[int, ...]
    start: int = -1
    share: int = 0  # of a resize: what it gets


@dataclass(frozen=True, slots=True)
class Placed:
    """A request (by its place in the list) and where it would go once the moves are done."""

    request: int
    node: int
    cards: tuple[int, ...]
    start: int = -1


@dataclass(frozen=True, slots=True)
class Plan:
    """Moves in an order in which each has room when its turn comes, what they make room for, and how good that is.

    `placed` and `before` are cards' worth of demand that fits with and without the moves; `bound` is what no plan of
    as many moves can exceed (`exact`: it is reached by proof, not only by comparison).
    """

    moves: tuple[Move, ...]
    placements: tuple[Placed, ...]
    before: float
    placed: float
    bound: float
    exact: bool
    cost: Cost
    together: int = 0  # so many moves at the end change places: all stop before the first starts again

    @property
    def gap(self) -> float:
        """How far it may lie below the best, as a part of the bound; 0 where the bound is reached."""
        return max(self.bound - self.placed, 0.0) / self.bound if self.bound > 0 else 0.0


def cost_of(fleet: Fleet, moves: Iterable[Move]) -> Cost:
    """Add up what the moves cost; a resize restarts nothing by itself."""
    total = Cost()
    for move in moves:
        if move.kind is not Kind.RESIZE:
            total += fleet.pods[move.pod].cost
    return total


class State:
    """What is free, while pods are taken away and put down. Knows shares and memory, not MIG."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.by_node = fleet.by_node()
        self.share = [WHOLE] * len(fleet.cards)
        self.memory = [card.memory for card in fleet.cards]
        self.cpu = [node.cpu_free for node in fleet.nodes]
        self.on_card: list[list[int]] = [[] for _ in fleet.cards]  # pods; kept up to date where some are kept apart
        for number, pod in enumerate(fleet.pods):
            for card in pod.cards:
                self.share[card] -= pod.shape.share
                self.memory[card] -= pod.shape.memory
                self.on_card[card].append(number)

    def move(self, number: int, node: int, cards: Sequence[int]) -> None:
        """Take a pod away and put it down elsewhere."""
        pod = self.fleet.pods[number]
        self.add(pod.shape, pod.node, pod.cards, -1)
        self.add(pod.shape, node, cards)
        if self.fleet.apart:
            for card in pod.cards:
                self.on_card[card].remove(number)
            for card in cards:
                self.on_card[card].append(number)

    def welcome(self, number: int, card: int) -> bool:
        """Say whether nobody on a card must be kept apart from a pod."""
        apart = self.fleet.apart
        return not apart or all(self.fleet.may_meet(number, other) for other in self.on_card[card] if other != number)

    def add(self, shape: Shape, node: int, cards: Sequence[int], sign: int = 1) -> None:
        """Put a shape down on cards of a node (`sign` -1: take it away)."""
        for card in cards:
            self.share[card] -= sign * shape.share
            self.memory[card] -= sign * shape.memory
        self.cpu[node] -= sign * shape.cpu

    def fitting(self, shape: Shape, node: int) -> tuple[int, ...] | None:
        """Return the cards of a node that a shape would take, the tightest ones; None: it does not fit there."""
        where = self.fleet.nodes[node]
        if self.cpu[node] < shape.cpu or not shape.allows(where.type):
            return None
        if shape.cards == 0:
            return ()
        free = [
            card
            for card in self.by_node[node]
            if self.share[card] >= shape.share
            and self.memory[card] >= shape.memory
            and not self.fleet.cards[card].board
            and not self.fleet.cards[card].closed
        ]
        if len(free) < shape.cards:
            return None
        free.sort(key=lambda card: (self.share[card], self.memory[card], card))
        return tuple(free[: shape.cards])
