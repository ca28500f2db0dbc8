"""Exact plans up to a node or so: an integer program over where every pod and every request may lie.

On cards that are cut, an instance may begin at any start of its profile; instances that nobody holds are destroyed and
made as needed. A pod that changes its card, its node or its start has moved; one that gets a smaller share in its place
was resized, which counts as a move too. Of plans with equally many moves the cheaper one is taken.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from analyzer.defragment.model import (
    UNLIMITED,
    WHOLE,
    Fleet,
    Kind,
    Move,
    Placed,
    Request,
    Shape,
)
from analyzer.mig import Board, boards

_TIE = 1e-4  # against a move or a thousandth of a card


@dataclass(frozen=True, slots=True)
class Spot:
    """One place where a thing may lie: a node, a card (-1: CPU alone), a MIG start (-1: not cut)."""

    node: int
    card: int
    start: int


@dataclass(frozen=True)
class Exact:
    """The best plan: its moves (unordered), where requests go, and the cards' worth that is placed."""

    moves: tuple[Move, ...]
    placements: tuple[Placed, ...]
    placed: float


def best_demand(fleet: Fleet, demand: Sequence[Request], moves: int) -> Exact:
    """Return the plan of at most so many moves that places most of a demand; of equals that with fewest moves.

    Raises:
        ArithmeticError: the program could not be solved to the end.
    """
    found = _Program(fleet, demand).solve(most_moves=moves)
    if found is None:
        raise ArithmeticError("expected a plan of no moves at least, found none")
    return found


def fewest_moves(fleet: Fleet, demand: Sequence[Request]) -> Exact | None:
    """Return the plan of fewest moves that places all of a demand; None: no plan does."""
    return _Program(fleet, demand).solve(most_moves=None)


class _Program:
    """Rows and columns of the integer program."""

    def __init__(self, fleet: Fleet, demand: Sequence[Request]) -> None:
        self.fleet = fleet
        self.demand = demand
        self.cost: list[float] = []
        self.whole: list[int] = []
        self.rows: list[tuple[dict[int, float], float, float]] = []
        self.card_share: dict[int, dict[int, float]] = defaultdict(dict)
        self.card_memory: dict[int, dict[int, float]] = defaultdict(dict)
        self.slices: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
        self.compute: dict[int, dict[int, float]] = defaultdict(dict)
        self.copies: dict[tuple[int, str], dict[int, float]] = defaultdict(dict)
        self.cpu: dict[int, dict[int, float]] = defaultdict(dict)
        self.pod_spots: dict[int, dict[Spot, int]] = {}
        self.moved: dict[int, int] = {}
        self.resized: dict[int, int] = {}
        self.request_spots: list[tuple[int, dict[Spot, int], int]] = []
        for number in range(len(fleet.pods)):
            self._pod(number)
        for number, request in enumerate(demand):
            for _ in range(request.count):
                self._request(number, request.shape)
        self._capacity()

    def _column(self, *, whole: bool = True) -> int:
        self.cost.append(0.0)
        self.whole.append(int(whole))
        return len(self.cost) - 1

    def _row(self, entries: dict[int, float], low: float, high: float) -> None:
        self.rows.append((entries, low, high))

    def _spots(self, shape: Shape) -> list[Spot]:
        fleet = self.fleet
        allowed = {n for n, node in enumerate(fleet.nodes) if shape.allows(node.type)}
        if not shape.cards:
            return [Spot(node, -1, -1) for node in sorted(allowed)]
        found = []
        for place, card in enumerate(fleet.cards):
            if card.closed or card.node not in allowed or bool(card.board) != bool(shape.profile):
                continue
            if not shape.profile:
                found.append(Spot(card.node, place, -1))
            elif shape.profile in boards()[card.board].profiles:
                starts = boards()[card.board].profiles[shape.profile].starts
                found += [Spot(card.node, place, start) for start in starts]
        return found

    def _lay(self, shape: Shape, spots: dict[Spot, int]) -> dict[int, dict[int, float]]:
        """Enter what a thing takes at each spot; returns node -> columns that put it there."""
        by_node: dict[int, dict[int, float]] = defaultdict(dict)
        for spot, column in spots.items():
            by_node[spot.node][column] = 1.0
            self.cpu[spot.node][column] = shape.cpu / max(shape.cards, 1)
            if spot.card < 0:
                continue
            if not shape.profile:
                self.card_share[spot.card][column] = shape.share
                self.card_memory[spot.card][column] = shape.memory
                continue
            profile = self._board(spot.card).profiles[shape.profile]
            for place in range(spot.start, spot.start + profile.size):
                self.slices[spot.card, place][column] = 1.0
            self.compute[spot.card][column] = profile.compute
            self.copies[spot.card, profile.name][column] = 1.0
        return by_node

    def _board(self, card: int) -> Board:
        return boards()[self.fleet.cards[card].board]

    def _thing(self, shape: Shape, spots: Sequence[Spot], at_least: float) -> dict[Spot, int]:
        """Enter something that lies at one spot, or on `cards` cards of one node."""
        columns = {spot: self._column() for spot in spots}
        by_node = self._lay(shape, columns)
        if shape.cards <= 1:
            self._row(dict.fromkeys(columns.values(), 1.0), at_least, 1.0)
            return columns
        chosen = {node: self._column() for node in by_node}
        for node, entries in by_node.items():
            self._row({**entries, chosen[node]: -float(shape.cards)}, 0.0, 0.0)
        self._row(dict.fromkeys(chosen.values(), 1.0), at_least, 1.0)
        return columns

    def _pod(self, number: int) -> None:
        pod = self.fleet.pods[number]
        here = [Spot(pod.node, card, pod.start) for card in pod.cards] or [Spot(pod.node, -1, -1)]
        spots = here if pod.fixed else list(dict.fromkeys([*here, *self._spots(pod.shape)]))
        columns = self._thing(pod.shape, spots, 1.0)
        self.pod_spots[number] = columns
        if pod.fixed:
            return
        moved = self._column(whole=False)
        self.moved[number] = moved
        for spot in here:
            self._row({moved: 1.0, columns[spot]: 1.0}, 1.0, np.inf)
        self.cost[moved] = 1.0 + _TIE * min(pod.cost.weight, 100.0)
        if 0 < pod.smaller_share < pod.shape.share and len(pod.cards) == 1 and not pod.shape.profile:
            smaller = self._column()
            self.resized[number] = smaller
            self.cost[smaller] = 1.0
            self._row({smaller: 1.0, columns[here[0]]: -1.0}, -np.inf, 0.0)
            self.card_share[pod.cards[0]][smaller] = -float(pod.shape.share - pod.smaller_share)

    def _request(self, number: int, shape: Shape) -> None:
        columns = self._thing(shape, self._spots(shape), 0.0)
        taken = self._column()
        parts = dict.fromkeys(columns.values(), 1.0 / max(shape.cards, 1))
        self._row({taken: 1.0, **{c: -v for c, v in parts.items()}}, 0.0, 0.0)
        self.request_spots.append((number, columns, taken))

    def _capacity(self) -> None:
        fleet = self.fleet
        if fleet.apart:
            for one, other in itertools.combinations(range(len(fleet.pods)), 2):
                if not fleet.may_meet(one, other):
                    for spot in self.pod_spots[one].keys() & self.pod_spots[other].keys():
                        if spot.card >= 0 and not fleet.cards[spot.card].board and not self._meet_now(one, other):
                            pair = {self.pod_spots[one][spot]: 1.0, self.pod_spots[other][spot]: 1.0}
                            self._row(pair, -np.inf, 1.0)
        for place, entries in sorted(self.card_share.items()):
            own = [number for number, pod in enumerate(fleet.pods) if place in pod.cards]
            self._within(entries, WHOLE, place, own)
            if fleet.cards[place].memory < UNLIMITED:
                self._within(self.card_memory[place], fleet.cards[place].memory, place, own)
        for _, entries in sorted(self.slices.items()):
            self._row(entries, -np.inf, 1.0)
        for place, entries in sorted(self.compute.items()):
            self._row(entries, -np.inf, self._board(place).compute_slices)
        for (place, profile), entries in sorted(self.copies.items()):
            self._row(entries, -np.inf, self._board(place).profiles[profile].most)
        for node, entries in sorted(self.cpu.items()):
            free = fleet.nodes[node].cpu_free
            if free < UNLIMITED:
                taken = sum(pod.shape.cpu for pod in fleet.pods if pod.node == node)
                self._row(entries, -np.inf, free + taken)

    def _within(self, entries: dict[int, float], most: int, place: int, own: Sequence[int]) -> None:
        """Keep a card within its capacity. What is over it already may stay so, and then nobody comes."""
        stays = {self.pod_spots[n][spot] for n in own for spot in self.pod_spots[n] if spot.card == place}
        now = sum(entries[column] for column in stays)
        self._row(entries, -np.inf, max(most, now))
        if now > most:
            for column in entries.keys() - stays - set(self.resized.values()):
                self._row({**entries, column: entries[column] + now - most}, -np.inf, now)

    def _meet_now(self, one: int, other: int) -> bool:
        """Say whether two pods share a card already: that they do is no fault of a plan."""
        return bool(set(self.fleet.pods[one].cards) & set(self.fleet.pods[other].cards))

    def solve(self, *, most_moves: int | None) -> Exact | None:
        """Place as much as possible with so many moves; None: place all with as few moves as possible."""
        counted = dict.fromkeys([*self.moved.values(), *self.resized.values()], 1.0)
        rows = list(self.rows)
        cost = np.array(self.cost)
        amounts = {taken: self.demand[number].shape.amount for number, _, taken in self.request_spots}
        if most_moves is None:
            rows += [({taken: 1.0}, 1.0, 1.0) for taken in amounts]
        else:
            rows.append((counted, 0.0, float(most_moves)))
            cost *= _TIE
            for taken, amount in amounts.items():
                cost[taken] = -(amount or _TIE)
        entries = [(r, c, v) for r, (row, _, _) in enumerate(rows) for c, v in row.items()]
        matrix = coo_array(
            ([v for _, _, v in entries], ([r for r, _, _ in entries], [c for _, c, _ in entries])),
            shape=(len(rows), len(cost)),
        )
        found = milp(
            cost,
            constraints=LinearConstraint(matrix.tocsr(), [low for _, low, _ in rows], [high for _, _, high in rows]),
            integrality=np.array(self.whole),
            bounds=Bounds(0.0, 1.0),
            options={"mip_rel_gap": 0.0},
        )
        if found.status == 2:
            return None
        if found.status != 0:
            raise ArithmeticError(f"expected a solved program, got: {found.message}")
        return self._read(np.asarray(found.x))

    def _read(self, x: np.ndarray) -> Exact:
        fleet = self.fleet
        moves = []
        for number, columns in self.pod_spots.items():
            pod = fleet.pods[number]
            spots = [spot for spot, column in columns.items() if x[column] > 0.5]
            cards = tuple(spot.card for spot in spots if spot.card >= 0)
            node, start = spots[0].node, spots[0].start
            if set(cards) != set(pod.cards) or node != pod.node:
                moves.append(Move(Kind.MIGRATE, number, node, cards, start))
            elif start != pod.start:
                moves.append(Move(Kind.RECUT, number, node, cards, start))
            elif number in self.resized and x[self.resized[number]] > 0.5:
                moves.append(Move(Kind.RESIZE, number, node, cards, start, pod.smaller_share))
        placements = []
        for number, columns, taken in self.request_spots:
            if x[taken] > 0.5:
                spots = [spot for spot, column in columns.items() if x[column] > 0.5]
                cards = tuple(spot.card for spot in spots if spot.card >= 0)
                placements.append(Placed(number, spots[0].node, cards, spots[0].start))
        placed = sum(self.demand[p.request].shape.amount for p in placements)
        return Exact(tuple(moves), tuple(placements), placed)
