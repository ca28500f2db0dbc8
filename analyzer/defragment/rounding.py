"""From a mixture of node patterns to a plan that can be carried out: whole patterns, places for what leaves, an order.

The mixture is nearly whole already (a vertex of the program has few fractional nodes). Each node takes its weightiest
pattern; what leaves goes to a place that a pattern kept for its shape, else where it fits most tightly; a move that has
no room when its turn comes waits, and one that never gets room is not made. Then demand goes to its places, and what is
left of it wherever it fits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from analyzer.defragment.bound import Relaxed
from analyzer.defragment.model import UNLIMITED, WHOLE, Fleet, Kind, Move, Placed, Request, Shape, State
from analyzer.defragment.pricing import Floats, Pattern, piece_of

_WHOLE = 1e-6
_TIE = 1e-6  # of equal plans the one with fewer patterns
_MILP_NODES = 2000


@dataclass(frozen=True)
class Outcome:
    """Moves in order, what was placed, and how many cards' worth that is."""

    moves: tuple[Move, ...]
    placements: tuple[Placed, ...]
    placed: float


def chosen_patterns(relaxed: Relaxed, demand: Floats, worth: Floats, moves: int) -> list[Pattern]:
    """Return at most one pattern a node: whole ones of the mixture as they are, the others by an integer program.

    Args:
        relaxed: the mixture.
        demand: pieces of each shape that are asked for.
        worth: cards' worth of a piece of each shape.
        moves: the most pods that may move.
    """
    whole = [p for p, weight in zip(relaxed.patterns, relaxed.weights, strict=True) if weight > 1 - _WHOLE]
    settled = {pattern.node for pattern in whole}
    open_nodes = {
        p.node for p, weight in zip(relaxed.patterns, relaxed.weights, strict=True) if weight > _WHOLE
    } - settled
    choices = [pattern for pattern in relaxed.patterns if pattern.node in open_nodes]
    if not choices:
        return whole
    nodes = {node: row for row, node in enumerate(sorted(open_nodes))}
    shapes, columns = len(worth), len(choices)
    matrix = np.zeros((shapes + 1 + len(nodes), columns + shapes))
    for column, pattern in enumerate(choices):
        for kind, pieces in pattern.net:
            matrix[kind, column] -= pieces
        matrix[shapes, column] = pattern.moves
        matrix[shapes + 1 + nodes[pattern.node], column] = 1.0
    matrix[np.arange(shapes), columns + np.arange(shapes)] = 1.0
    supplied = np.zeros(shapes)
    for pattern in whole:
        for kind, pieces in pattern.net:
            supplied[kind] += pieces
    limits = np.concatenate([supplied, [moves - sum(p.moves for p in whole)], np.ones(len(nodes))])
    found = milp(
        -np.concatenate([np.full(columns, -_TIE), worth]),
        constraints=LinearConstraint(matrix, ub=limits + 1e-7),
        integrality=np.concatenate([np.ones(columns), np.zeros(shapes)]),
        bounds=Bounds(0.0, np.concatenate([np.ones(columns), demand])),
        options={"node_limit": _MILP_NODES, "mip_rel_gap": 1e-4},
    )
    if found.x is None:
        return whole
    return whole + [pattern for pattern, taken in zip(choices, found.x[:columns], strict=True) if taken > 0.5]


class _Builder:
    """The fleet while a plan is made for it: `state` as it is, `kept` how much CPU of a node patterns rely on."""

    def __init__(self, fleet: Fleet, demand: Sequence[Request], shapes: Sequence[Shape]) -> None:
        self.fleet = fleet
        self.demand = demand
        self.shapes = shapes
        self.state = State(fleet)
        self.left = [request.count for request in demand]
        self.moves: list[Move] = []
        self.placed: list[Placed] = []
        self.kept: dict[int, int] = defaultdict(int)
        self.slots: dict[int, list[int]] = defaultdict(list)  # shape -> cards

    def keep(self, patterns: Sequence[Pattern]) -> None:
        """Remember what the patterns put where."""
        for pattern in patterns:
            for card, kind in pattern.gets:
                self.slots[kind].append(card)
                self.kept[pattern.node] += self.shapes[kind].cpu

    def move_all(self, leaving: Sequence[int], kind_of: dict[Shape, int]) -> None:
        """Move pods to kept places of their shape, else to others, in an order in which each finds room."""
        waiting = list(leaving)
        while waiting:
            rest = [pod for pod in waiting if not self._to_slot(pod, kind_of)]
            if len(rest) == len(waiting):
                moved = next((pod for pod in rest if self._elsewhere(pod)), None)
                if moved is None:
                    return
                rest.remove(moved)
            waiting = rest

    def _to_slot(self, number: int, kind_of: dict[Shape, int]) -> bool:
        pod = self.fleet.pods[number]
        if not pod.cards:
            return self._elsewhere(number)
        if len(pod.cards) > 1:
            return False
        slots = self.slots[kind_of[piece_of(pod.shape)]] if piece_of(pod.shape) in kind_of else []
        for place, card in enumerate(slots):
            node = self.fleet.cards[card].node
            if card not in pod.cards and self._fits(pod.shape, node, card) and self.state.welcome(number, card):
                del slots[place]
                self.kept[node] -= pod.shape.cpu
                self.move(number, node, (card,))
                return True
        return False

    def _elsewhere(self, number: int) -> bool:
        """Move a pod to where nothing is kept and least is left over."""
        pod = self.fleet.pods[number]
        reserved = {card for cards in self.slots.values() for card in cards}
        best: tuple[tuple[int, int], int, tuple[int, ...]] | None = None
        for node in range(len(self.fleet.nodes)):
            if node == pod.node:
                continue
            spare = self.state.cpu[node] - self.kept[node] - pod.shape.cpu
            if spare < 0 and self.state.cpu[node] < UNLIMITED // 2:
                continue
            cards = self.state.fitting(pod.shape, node)
            if cards is None or (reserved.intersection(cards) and pod.cards):
                continue
            if not all(self.state.welcome(number, card) for card in cards):
                continue
            # CPU alone goes where no card is free: there it is of no other use.
            idle = sum(self.state.share[card] for card in self.state.by_node[node])
            over = idle if not pod.cards else sum(self.state.share[card] for card in cards)
            if best is None or (over, spare) < best[0]:
                best = ((over, spare), node, cards)
        if best is None:
            return False
        self.move(number, best[1], best[2])
        return True

    def _fits(self, shape: Shape, node: int, card: int) -> bool:
        enough = self.state.share[card] >= shape.share and self.state.memory[card] >= shape.memory
        return enough and self.state.cpu[node] >= shape.cpu and shape.allows(self.fleet.nodes[node].type)

    def move(self, number: int, node: int, cards: tuple[int, ...]) -> None:
        """Take a pod away and put it down elsewhere."""
        self.state.move(number, node, cards)
        self.moves.append(Move(Kind.MIGRATE, number, node, cards))

    def place_kept(self) -> None:
        """Put demand where patterns kept a place for it."""
        by_shape: dict[Shape, list[int]] = defaultdict(list)
        for number, request in enumerate(self.demand):
            by_shape[piece_of(request.shape)].append(number)
        for kind in sorted(self.slots):
            for card in self.slots[kind]:
                node = self.fleet.cards[card].node
                for number in by_shape[self.shapes[kind]]:
                    shape = self.demand[number].shape
                    if self.left[number] and shape.cards == 1 and self._fits(shape, node, card):
                        self._put(number, node, (card,))
                        break

    def place_rest(self) -> None:
        """Put what is left of the demand where it fits, the largest first, each where least is left over."""
        order = sorted(range(len(self.demand)), key=lambda n: (-self.demand[n].shape.amount, self.demand[n].shape.cpu))
        for number in order:
            shape = self.demand[number].shape
            while self.left[number]:
                best: tuple[int, int, tuple[int, ...]] | None = None
                for node in range(len(self.fleet.nodes)):
                    cards = self.state.fitting(shape, node)
                    if cards is None:
                        continue
                    over = sum(self.state.share[card] for card in cards)
                    if best is None or over < best[0]:
                        best = (over, node, cards)
                if best is None:
                    break
                self._put(number, best[1], best[2])

    def _put(self, number: int, node: int, cards: tuple[int, ...]) -> None:
        self.state.add(self.demand[number].shape, node, cards)
        self.left[number] -= 1
        self.placed.append(Placed(number, node, cards))

    def outcome(self) -> Outcome:
        """Return what was done."""
        amount = sum(self.demand[p.request].shape.amount for p in self.placed)
        return Outcome(tuple(self.moves), tuple(self.placed), amount)


def fill(fleet: Fleet, demand: Sequence[Request], moves: Sequence[Move]) -> Outcome:
    """Return what of a demand fits, each where least is left over, once these moves are done."""
    builder = _Builder(fleet, demand, ())
    for move in moves:
        builder.move(move.pod, move.node, move.cards)
    builder.place_rest()
    return builder.outcome()


def round_mixture(fleet: Fleet, demand: Sequence[Request], relaxed: Relaxed, moves: int) -> Outcome:
    """Make a plan of at most so many moves of a mixture of patterns.

    Args:
        fleet: where things lie.
        demand: what is asked for.
        relaxed: the mixture.
        moves: the most pods that may move.
    """
    shapes = relaxed.shapes
    builder = _Builder(fleet, demand, shapes)
    wanted = np.zeros(len(shapes))
    kinds = {shape: kind for kind, shape in enumerate(shapes)}
    for request in demand:
        wanted[kinds[piece_of(request.shape)]] += request.count * max(request.shape.cards, 1)
    worth = np.array([shape.share / WHOLE for shape in shapes])
    patterns = chosen_patterns(relaxed, wanted, worth, moves)
    builder.keep(patterns)
    leaving = list(dict.fromkeys(pod for pattern in patterns for pod in pattern.leaves))[:moves]
    builder.move_all(leaving, kinds)
    builder.place_kept()
    builder.place_rest()
    return builder.outcome()
