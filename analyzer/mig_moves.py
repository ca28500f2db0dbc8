"""The fewest instances to move, over several cut (MIG) cards, so that one more request fits: exact search.

A moved instance is destroyed and made anew elsewhere, on its card or another: its work stops meanwhile. Iterative
deepening over the number of moves: what is placed pushes out whoever lies in its place (or takes the compute slices or
the number of its profile that it needs), and those are placed next. Every move of a smallest plan is pushed out by the
request or by another move, so the search misses none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from analyzer.mig import Board, Instance, Profile
from analyzer.mig_layout import CutCard, best_layout, check

_MOST_MOVES = 4  # more are no plan that anybody would carry out for one request
_VISITS = 200_000  # positions looked at before the search gives up


@dataclass(frozen=True, slots=True)
class Move:
    """An instance that leaves its place (`start` of `card`, by number) for another."""

    profile: str
    card: int
    start: int
    to_card: int
    to_start: int


@dataclass(frozen=True, slots=True)
class Room:
    """How a request gets its room: where it goes, and who moves first. `exact`: no plan with fewer moves exists."""

    card: int
    start: int
    moves: tuple[Move, ...]
    exact: bool = True


@dataclass(slots=True)
class _Spots:
    """One card during the search: what may still be pushed out, and bits, compute and counts of everything on it."""

    board: Board
    movable: list[Instance]
    mask: int
    compute: int
    counts: Counter[str]

    def copy(self) -> _Spots:
        return _Spots(self.board, list(self.movable), self.mask, self.compute, Counter(self.counts))

    def bits(self, instance: Instance) -> int:
        return ((1 << self.board.profiles[instance.profile].size) - 1) << instance.start

    def take(self, instance: Instance, sign: int) -> None:
        if sign > 0:
            self.mask |= self.bits(instance)
        else:
            self.mask &= ~self.bits(instance)
        self.compute += sign * self.board.profiles[instance.profile].compute
        self.counts[instance.profile] += sign


@dataclass(frozen=True, slots=True)
class _Pending:
    profile: str
    card: int  # where it comes from; -1: the request
    start: int


class _SearchEndedError(Exception):
    """The search looked at as many positions as it may."""


def fewest_moves_among(cards: Sequence[CutCard], request: str, most_moves: int = _MOST_MOVES) -> Room | None:
    """Return how one more instance of `request` fits with the fewest moves; None where no plan is known.

    Only a card's `movable` instances move. None means that no plan of at most `most_moves` exists, or (on many cards
    that are nearly full) that none was found in the time allowed.

    Raises:
        ValueError: a card's layout cannot exist, or its board's placements are unknown.
    """
    for card in cards:
        check(card)
        if not Counter(card.movable) <= Counter(card.instances):
            raise ValueError(f"expected movable instances that are on {card.name}, got {card.movable}")
    spots = [_spots(card) for card in cards]
    visits = [0]
    exact = True
    for budget in range(min(most_moves, sum(len(s.movable) for s in spots)) + 1):
        if budget == 1 and not possible(cards, request):
            return None
        try:
            found = _search(spots, [_Pending(request, -1, 0)], budget, visits)
        except _SearchEndedError:
            exact = False
            visits[0] = 0
            continue
        if found is not None:
            first, *moves = found
            return Room(first.to_card, first.to_start, tuple(moves), exact)
    return None


def possible(cards: Sequence[CutCard], request: str) -> bool:
    """Say whether the request fits if every movable instance may go anywhere."""
    bare = [CutCard(card.name, card.board, _fixed(card)) for card in cards]
    wanted = Counter(i.profile for card in cards for i in card.movable)
    wanted[request] += 1
    return best_layout(bare, wanted).value >= wanted.total() - 0.5


def _fixed(card: CutCard) -> tuple[Instance, ...]:
    return tuple((Counter(card.instances) - Counter(card.movable)).elements())


def _spots(card: CutCard) -> _Spots:
    spots = _Spots(card.board, sorted(card.movable), 0, 0, Counter())
    for instance in card.instances:
        spots.take(instance, 1)
    return spots


def _search(spots: list[_Spots], pending: list[_Pending], budget: int, visits: list[int]) -> list[Move] | None:
    """Place all that waits, with at most `budget` instances pushed out; return the moves, that of the first first."""
    if not pending:
        return []
    visits[0] += 1
    if visits[0] > _VISITS:
        raise _SearchEndedError
    item, rest = pending[0], pending[1:]
    tried = set()
    for number, card in enumerate(spots):
        alike = (card.board.name, card.mask, tuple(card.movable), frozenset(card.counts.items()), number == item.card)
        profile = card.board.profiles.get(item.profile)
        if profile is None or alike in tried:
            continue
        tried.add(alike)
        for start in profile.starts:
            if number == item.card and start == item.start:
                continue  # back in its place is no move
            for pushed in _pushes(card, profile, start, budget):
                after = card.copy()
                for instance in pushed:
                    after.movable.remove(instance)
                    after.take(instance, -1)
                after.take(Instance(profile.name, start), 1)
                waits = [*rest, *(_Pending(i.profile, number, i.start) for i in pushed)]
                board = after.board
                waits.sort(key=lambda p: -board.profiles[p.profile].size if p.profile in board.profiles else 0)
                found = _search([*spots[:number], after, *spots[number + 1 :]], waits, budget - len(pushed), visits)
                if found is not None:
                    return [Move(item.profile, item.card, item.start, number, start), *found]
    return None


def _pushes(card: _Spots, profile: Profile, start: int, budget: int) -> Iterator[tuple[Instance, ...]]:
    """Yield the smallest sets of movable instances that must leave for `profile` to lie at `start`."""
    bits = ((1 << profile.size) - 1) << start
    lying = tuple(i for i in card.movable if card.bits(i) & bits)
    free = card.mask
    for instance in lying:
        free &= ~card.bits(instance)
    if free & bits or len(lying) > budget:
        return  # somebody who stays lies there, or too many would have to leave
    others = [i for i in card.movable if not card.bits(i) & bits]

    def enough(leaving: Sequence[Instance]) -> bool:
        compute = card.compute - sum(card.board.profiles[i.profile].compute for i in leaving)
        count = card.counts[profile.name] - sum(i.profile == profile.name for i in leaving)
        return compute + profile.compute <= card.board.compute_slices and count < profile.most

    found: list[frozenset[int]] = []
    for size in range(budget - len(lying) + 1):
        for more in combinations(range(len(others)), size):
            chosen = frozenset(more)
            if any(smaller <= chosen for smaller in found):
                continue
            leaving = (*lying, *(others[i] for i in more))
            if enough(leaving):
                found.append(chosen)
                yield leaving
