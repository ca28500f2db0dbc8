"""A plan of moves for people: its objective, its steps, the cards that it touches, and what it gains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from analyzer.defragment.model import Cost
from analyzer.findings import plain


class Objective(StrEnum):
    """What a plan is for."""

    ROOM = "room"
    DEMAND = "demand"
    FREE_CARDS = "free-cards"


class Role(StrEnum):
    """What becomes of a part of a card."""

    STAYS = "stays"
    PROTECTED = "protected"
    LEAVES = "leaves"
    COMES = "comes"
    REQUEST = "request"
    FREE = "free"


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a card, from left to right: who, how much of it (0..1), and what becomes of it."""

    label: str
    share: float
    role: Role


@dataclass(frozen=True, slots=True)
class CardChange:
    """A card that a plan touches, before and after."""

    node: str
    gpu: str
    before: tuple[Share, ...]
    after: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """A move in words: who goes from where to where, and what it costs (`lost_seconds` NaN: nobody knows)."""

    kind: str
    pod: str
    tenant: str
    workload: str
    from_node: str
    from_gpus: tuple[str, ...]
    to_node: str
    to_gpus: tuple[str, ...]
    to_start: int | None  # of a MIG instance, in memory slices
    share: float  # of each card, after the move; NaN: an instance
    moved_gib: float
    restarts: int
    drain_minutes: float
    lost_seconds: float


@dataclass(frozen=True, slots=True)
class MovesPlan:
    """A plan for people.

    `before`, `placed`, `bound` are cards' worth of demand that fits (objectives room, demand), or cards in use
    (free-cards: before, after, and the fewest that any plan must keep). `idle_watts` is what the freed cards draw idle.
    """

    objective: str
    asked: str
    demand_waits: bool
    steps: tuple[Step, ...]
    together: int  # so many at the end change places: all stop before the first starts again
    fits: tuple[tuple[str, int], ...]  # request -> how many fit after the moves
    before: float
    placed: float
    bound: float
    gap: float
    exact: bool
    cost: Cost
    freed: tuple[str, ...]  # cards
    freed_models: tuple[str, ...]
    idle_watts: float
    changes: tuple[CardChange, ...]
    left_out: Mapping[str, int]
    protected: int
    pods: int
    cards: int
    none: str  # why there is no plan; empty: there is one

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, NaN as null."""
        document: dict[str, Any] = plain(asdict(self))
        return document
