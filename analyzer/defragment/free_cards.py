"""The fewest cards that hold today's work: whole cards are freed, pods that must not meet do not, promises are kept.

A pod keeps its share (or what was measured to be enough for it) and its memory; of pods that are not to share a card no
two end on one. Cards are emptied one by one, those with least on them first, onto cards that stay in use and fit most
tightly; a card that cannot be emptied whole is left as it is. Below stands a bound: no packing uses fewer cards.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

from analyzer.defragment.model import UNLIMITED, WHOLE, Cost, Fleet, Kind, Move, State, cost_of


@dataclass(frozen=True, slots=True)
class FreedCards:
    """Which cards a plan frees, by what moves, and the fewest cards that any plan must keep in use."""

    moves: tuple[Move, ...]
    freed: tuple[int, ...]
    used_before: int
    used_after: int
    at_least: int
    cost: Cost

    @property
    def gap(self) -> float:
        """Cards in use above the bound, as a part of those in use."""
        return (self.used_after - self.at_least) / self.used_after if self.used_after else 0.0


def free_cards(fleet: Fleet, *, moves: int | None = None) -> FreedCards:
    """Return a plan that empties as many cards as it finds.

    Args:
        fleet: where things lie now.
        moves: the most pods that may move; None: as many as it takes.
    """
    planner = _Emptying(fleet)
    planner.run(math.inf if moves is None else moves)
    used_before = sum(bool(pods) for pods in planner.before.values())
    freed = tuple(sorted(card for card, pods in planner.before.items() if pods and not planner.on_card[card]))
    made = tuple(planner.moves)
    return FreedCards(
        moves=made,
        freed=freed,
        used_before=used_before,
        used_after=used_before - len(freed),
        at_least=min(_fewest_cards(fleet), used_before - len(freed)),
        cost=cost_of(fleet, made),
    )


class _Emptying:
    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.state = State(fleet)
        self.on_card: dict[int, list[int]] = {place: [] for place in range(len(fleet.cards))}
        for number, pod in enumerate(fleet.pods):
            for card in pod.cards:
                self.on_card[card].append(number)
        self.before = {card: tuple(pods) for card, pods in self.on_card.items()}
        self.moves: list[Move] = []
        self.moved: set[int] = set()

    def run(self, most: float) -> None:
        """Empty cards, those with fewest pods and least share first, until none can be."""
        order = sorted(
            (card for card, pods in self.before.items() if pods and self._loose(card)),
            key=lambda card: (len(self.before[card]), WHOLE - self.state.share[card], card),
        )
        for card in order:
            pods = self.on_card[card]
            # A card that others were moved onto is wanted; a pod moves at most once.
            if not pods or self.moved.intersection(pods) or len(self.moves) + len(pods) > most:
                continue
            self._try_to_empty(card)

    def _loose(self, card: int) -> bool:
        pods = [self.fleet.pods[p] for p in self.before[card]]
        cut = bool(self.fleet.cards[card].board)
        return not cut and all(len(pod.cards) == 1 and not pod.fixed for pod in pods)

    def _try_to_empty(self, card: int) -> None:
        made: list[tuple[int, int]] = []
        for number in sorted(self.on_card[card], key=lambda p: -self.fleet.pods[p].shape.share):
            target = self._target(number, card)
            if target is None:
                for done, where in reversed(made):
                    self._shift(done, where, card)
                return
            self._shift(number, card, target)
            made.append((number, target))
        for number, target in made:
            self.moved.add(number)
            self.moves.append(Move(Kind.MIGRATE, number, self.fleet.cards[target].node, (target,)))

    def _target(self, number: int, source: int) -> int | None:
        pod = self.fleet.pods[number]
        shape, fleet, state = pod.shape, self.fleet, self.state
        best: tuple[int, int] | None = None
        for card, pods in self.on_card.items():
            node = fleet.cards[card].node
            if card == source or not pods or fleet.cards[card].board or fleet.cards[card].closed:
                continue
            if not shape.allows(fleet.nodes[node].type):
                continue
            if state.share[card] < shape.share or state.memory[card] < shape.memory:
                continue
            if node != fleet.cards[source].node and state.cpu[node] < shape.cpu:
                continue
            if not all(fleet.may_meet(number, other) for other in pods):
                continue
            left = (state.share[card] - shape.share, card)
            if best is None or left < best:
                best = left
        return None if best is None else best[1]

    def _shift(self, number: int, source: int, target: int) -> None:
        shape, cards = self.fleet.pods[number].shape, self.fleet.cards
        self.state.add(shape, cards[source].node, (source,), -1)
        self.state.add(shape, cards[target].node, (target,))
        self.on_card[source].remove(number)
        self.on_card[target].append(number)


def _fewest_cards(fleet: Fleet) -> int:
    """Return a number of cards below which no packing goes: cut cards and those of pods that stay, and the rest's need.

    The rest's need, for each kind of card it may be on, is Martello and Toth's bound on the shares, or the memory.
    """
    cut = {c for pod in fleet.pods for c in pod.cards if fleet.cards[c].board}
    kept = {c for pod in fleet.pods if pod.fixed for c in pod.cards if not fleet.cards[c].board}
    shares: list[int] = []
    memory = 0
    room: dict[int, int] = defaultdict(lambda: WHOLE)
    for pod in fleet.pods:
        for card in pod.cards:
            if card in cut:
                continue
            shares.append(pod.shape.share)
            memory += pod.shape.memory
            room[card] -= pod.shape.share
    sizes = [card.memory for place, card in enumerate(fleet.cards) if place not in cut]
    biggest = max(sizes, default=UNLIMITED)
    by_memory = -(-memory // biggest) if biggest < UNLIMITED else 0
    return len(cut) + max(_martello_toth(shares), by_memory, len(kept))


def _martello_toth(shares: list[int]) -> int:
    """Return the lower bound L2 of bins of one card (Martello and Toth, 1990)."""
    best = -(-sum(shares) // WHOLE)
    for limit in sorted({s for s in shares if s <= WHOLE // 2} | {0}):
        large = [s for s in shares if s > WHOLE - limit]
        middle = [s for s in shares if WHOLE // 2 < s <= WHOLE - limit]
        small = sum(s for s in shares if limit <= s <= WHOLE // 2)
        rest = small - (len(middle) * WHOLE - sum(middle))
        best = max(best, len(large) + len(middle) + max(0, -(-rest // WHOLE)))
    return best
