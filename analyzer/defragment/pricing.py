"""Prices of room: for given prices of shapes and moves, the best that each node can be filled with, exactly.

The relaxation behind the bound. Take away the rule that what is put down must have been taken away or asked for, and
give each shape t a price p_t, each move a price m. Then every node stands alone: it takes pods away (each pays its
shape's price and m, since it must be put down elsewhere) and puts shapes down (each earns its price), within its cards
and its CPU. The sum of the nodes' best, plus what demand earns above the prices, plus m times the moves allowed, is at
least what any plan can place, at any prices (weak duality). A pod on k cards counts as k pieces, which loosens the
bound and never breaks it; so does rounding CPU down to whole units, and leaving memory out.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analyzer.defragment.model import UNLIMITED, WHOLE, Fleet, Request, Shape, State

_MOST_SUBSETS = 7  # pods of a card whose subsets are all looked at; beyond, how many go is all that counts
_CPU_UNITS = 1000  # of the node with most free CPU
_CPU_STEP = 200  # thousandths of a core
_NOTHING = -1e18

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pattern:
    """One way to use a node: pods that leave, and shapes that each card gets; `net` is pieces put down less taken."""

    node: int
    leaves: tuple[int, ...]
    gets: tuple[tuple[int, int], ...]  # (card, shape)
    moves: float  # pods that leave; a part of one that leaves in part
    net: tuple[tuple[int, float], ...]  # (shape, pieces)


@dataclass(frozen=True)
class _Table:
    """The best filling of so many free units of a card within so much CPU.

    `last`: which shape is put down last, (units + 1, CPU units + 1). `steps`: for each number of units, the CPU at
    which more becomes possible, and what the filling is worth there.
    """

    last: npt.NDArray[np.int16]
    steps: list[list[tuple[int, float]]]


def _steps(row: Floats) -> list[tuple[int, float]]:
    where = np.flatnonzero(np.diff(row, prepend=-1.0) > 1e-12)
    return list(zip(where.tolist(), row[where].tolist(), strict=True))


@dataclass(frozen=True)
class _Option:
    """Pods that leave one card together."""

    pods: tuple[int, ...]
    share: int  # units that the card gets back
    cpu: int  # units that the node gets back
    moves: float
    shapes: tuple[tuple[int, float], ...]


class Pricing:
    """The nodes of a fleet, ready to be filled at any prices."""

    def __init__(self, fleet: Fleet, demand: Sequence[Request]) -> None:
        self.fleet = fleet
        state = State(fleet)
        kinds: dict[Shape, int] = {}
        for request in demand:
            kinds.setdefault(piece_of(request.shape), len(kinds))
        for pod in fleet.pods:
            if pod.cards and not pod.fixed:
                kinds.setdefault(piece_of(pod.shape), len(kinds))
        self.shapes = tuple(kinds)
        self.kind_of = kinds
        self.wanted: Floats = np.zeros(len(kinds))  # pieces
        for request in demand:
            self.wanted[kinds[piece_of(request.shape)]] += request.count * max(request.shape.cards, 1)
        self.worth: Floats = np.array([shape.share / WHOLE for shape in self.shapes])
        usable = [place for place, card in enumerate(fleet.cards) if not card.board and not card.closed]
        free = [max(state.share[place], 0) for place in usable]
        step = int(np.gcd.reduce(np.array([WHOLE, *(s.share for s in self.shapes), *free])))
        self._share_unit = max(step, WHOLE // 200)
        busiest = max((n.cpu_free for n in fleet.nodes if n.cpu_free < UNLIMITED), default=0)
        self._cpu_unit = max(_CPU_STEP, -(-busiest // _CPU_UNITS))
        self._cells = WHOLE // self._share_unit
        self._sizes = np.array([max(s.share // self._share_unit, 1) for s in self.shapes])
        self._cpus = np.array([s.cpu // self._cpu_unit for s in self.shapes])
        self._lay_out(state, usable)

    def _lay_out(self, state: State, usable: Sequence[int]) -> None:
        fleet = self.fleet
        on_card: dict[int, list[int]] = {place: [] for place in usable}
        alone: list[list[int]] = [[] for _ in fleet.nodes]
        for number, pod in enumerate(fleet.pods):
            if pod.fixed:
                continue
            if not pod.cards and pod.shape.cpu:
                alone[pod.node].append(number)
            for card in pod.cards:
                if card in on_card:
                    on_card[card].append(number)
        self._room = [0 if n.cpu_free >= UNLIMITED else max(n.cpu_free, 0) // self._cpu_unit for n in fleet.nodes]
        self._blind = [n.cpu_free >= UNLIMITED for n in fleet.nodes]
        slots: list[list[tuple[int, int, list[_Option]]]] = [[] for _ in fleet.nodes]
        for place in usable:
            options = self._options(on_card[place])
            slots[fleet.cards[place].node].append((place, max(state.share[place], 0) // self._share_unit, options))
        for node, pods in enumerate(alone):
            if self._blind[node]:
                continue
            for number in pods:
                back = -(-fleet.pods[number].shape.cpu // self._cpu_unit)
                slots[node].append((-1, 0, [_Option((), 0, 0, 0.0, ()), _Option((number,), 0, back, 1.0, ())]))
        self._slots = slots
        self._back = [sum(max(o.cpu for o in options) for _, _, options in node) for node in slots]
        self._width = 1 + max((r + b for r, b in zip(self._room, self._back, strict=True)), default=0)
        self._types = [node.type for node in fleet.nodes]
        self._typed = any(shape.types for shape in self.shapes)

    def _options(self, pods: Sequence[int]) -> list[_Option]:
        fleet = self.fleet
        choices: list[tuple[int, ...]] = [()]
        if len(pods) <= _MOST_SUBSETS:
            for size in range(1, len(pods) + 1):
                choices += itertools.combinations(pods, size)
            return [self._option(chosen) for chosen in choices]
        # The j pods that give most, at the price of none of them: at least as good as any j pods.
        shares = sorted((fleet.pods[p].shape.share for p in pods), reverse=True)
        cpus = sorted((piece_of(fleet.pods[p].shape).cpu for p in pods), reverse=True)
        found = [self._option(())]
        for size in range(1, len(pods) + 1):
            cpu = sum(-(-c // self._cpu_unit) for c in cpus[:size])
            fewest = sum(sorted(1.0 / len(fleet.pods[p].cards) for p in pods)[:size])
            found.append(_Option(tuple(pods[:size]), sum(shares[:size]) // self._share_unit, cpu, fewest, ()))
        return found

    def _option(self, pods: tuple[int, ...]) -> _Option:
        own = [self.fleet.pods[p] for p in pods]
        kinds = tuple((self.kind_of[piece_of(p.shape)], 1.0) for p in own)
        return _Option(
            pods=pods,
            share=-(-sum(p.shape.share for p in own) // self._share_unit),
            cpu=sum(-(-piece_of(p.shape).cpu // self._cpu_unit) for p in own),
            moves=sum(1.0 / len(p.cards) for p in own),
            shapes=kinds,
        )

    # --- one evaluation -----------------------------------------------------------------------------------------------

    def best(self, prices: Floats, move_price: float) -> tuple[Floats, list[Pattern | None]]:
        """Return each node's best value at these prices, and the pattern that reaches it (None: nothing pays)."""
        values = np.zeros(len(self._slots))
        patterns: list[Pattern | None] = [None] * len(self._slots)
        tables: dict[tuple[str, bool], _Table] = {}
        for node, slots in enumerate(self._slots):
            key = (self._types[node] if self._typed else "", self._blind[node])
            if key not in tables:
                tables[key] = self._card_table(prices, *key)
            values[node], patterns[node] = self._fill(node, slots, prices, move_price, tables[key])
        return values, patterns

    def bound(self, prices: Floats, move_price: float, moves: int, values: Floats) -> float:
        """Return what no plan with so many moves can exceed, in cards' worth of demand."""
        surplus = float((np.clip(self.worth - prices, 0.0, None) * self.wanted).sum())
        return surplus + move_price * moves + float(values.sum())

    def _card_table(self, prices: Floats, type_: str, blind: bool) -> _Table:
        width = 1 if blind else self._width
        cpus = np.zeros_like(self._cpus) if blind else self._cpus
        best = np.zeros((self._cells + 1, width))
        last = np.full((self._cells + 1, width), -1, dtype=np.int16)
        useful = self._undominated(prices, cpus, type_)
        for units in range(1, self._cells + 1):
            row, chosen = best[units], last[units]
            row[:] = best[units - 1]
            for kind in useful:
                size, cpu = self._sizes[kind], cpus[kind]
                if size > units or cpu >= width:
                    continue
                offered = best[units - size, : width - cpu] + prices[kind]
                better = offered > row[cpu:] + 1e-12
                row[cpu:][better] = offered[better]
                chosen[cpu:][better] = kind
        return _Table(last, [_steps(row) for row in best])

    def _undominated(self, prices: Floats, cpus: Ints, type_: str) -> list[int]:
        kept: list[int] = []
        order = sorted(range(len(self.shapes)), key=lambda k: (-prices[k], self._sizes[k], cpus[k]))
        for kind in order:
            if prices[kind] <= 1e-9 or not self.shapes[kind].allows(type_):
                continue
            if any(self._sizes[o] <= self._sizes[kind] and cpus[o] <= cpus[kind] for o in kept):
                continue
            kept.append(kind)
        return kept

    def _fill(
        self,
        node: int,
        slots: Sequence[tuple[int, int, list[_Option]]],
        prices: Floats,
        move_price: float,
        table: _Table,
    ) -> tuple[float, Pattern | None]:
        """Choose what each card of a node gets, within the node's CPU."""
        room = self._room[node]
        limit = -1 if self._blind[node] else room + self._back[node]
        paid = {id(o): o.moves * move_price + sum(prices[k] * n for k, n in o.shapes) for _, _, os in slots for o in os}
        points = [
            self._points([(o, paid[id(o)], table.steps[min(free + o.share, self._cells)]) for o in options], limit)
            for _, free, options in slots
        ]
        # A card of which nothing may be taken and to which nothing may be given has one choice: to stay as it is.
        gainful = [i for i, found in enumerate(points) if found[-1][1] > 1e-12 or found[0][0] < 0]
        if not gainful:
            return 0.0, None
        below = sum(max(-int(min(p[0] for p in points[i])), 0) for i in gainful)
        # value[z]: the best with at most z - below units of CPU used on balance; what is used may pass the node's room
        # on the way, as far as a later card gives it back.
        value = np.where(np.arange(below + room + below + 1) >= below, 0.0, _NOTHING)
        choices = []
        for i in gainful:
            stacked = np.full((len(points[i]), len(value)), _NOTHING)
            for row, (cpu, worth, _, _) in zip(stacked, points[i], strict=True):
                if cpu >= len(value):
                    continue
                if cpu > 0:
                    row[cpu:] = value[: len(value) - cpu] + worth
                elif cpu < 0:
                    row[: len(value) + cpu] = value[-cpu:] + worth
                    row[len(value) + cpu :] = value[-1] + worth
                else:
                    row[:] = value + worth
            choice = stacked.argmax(axis=0)
            choices.append(choice)
            value = stacked[choice, np.arange(len(value))]
        at = below + room
        total = float(value[at])
        if total <= 1e-9:
            return 0.0, None
        leaves: list[tuple[int, _Option]] = []
        gets: list[tuple[int, int]] = []
        for i, choice in zip(reversed(gainful), reversed(choices), strict=True):
            cpu, _, option, used = points[i][choice[at]]
            at = min(at - cpu, len(value) - 1)
            card, free, _ = slots[i]
            leaves.append((card, option))
            if card >= 0:
                gets += [(card, kind) for kind in self._unfold(table, min(free + option.share, self._cells), used)]
        return total, self._pattern(node, leaves, gets)

    @staticmethod
    def _points(
        options: Sequence[tuple[_Option, float, list[tuple[int, float]]]], limit: int
    ) -> list[tuple[int, float, _Option, int]]:
        """Return (net CPU, value, what leaves, CPU of what comes) of the choices of one card that nothing beats.

        Args:
            options: what may leave, what that costs, and the fillings of the room that there then is.
            limit: CPU units that may come; -1: CPU is not known, and taken as enough.
        """
        found: list[tuple[int, float, _Option, int]] = []
        for option, paid, steps in options:
            if limit < 0:
                found.append((0, steps[-1][1] - paid, option, steps[-1][0]))
            else:
                found += [(used - option.cpu, worth - paid, option, used) for used, worth in steps if used <= limit]
        found.sort(key=lambda p: (p[0], -p[1]))
        kept: list[tuple[int, float, _Option, int]] = []
        for point in found:
            if not kept or point[1] > kept[-1][1] + 1e-12:
                kept.append(point)
        return kept

    def _unfold(self, table: _Table, units: int, cpu: int) -> list[int]:
        last, blind = table.last, table.last.shape[1] == 1
        found = []
        while units > 0:
            kind = int(last[units, cpu])
            if kind < 0:
                units -= 1
                continue
            found.append(kind)
            units -= int(self._sizes[kind])
            cpu -= 0 if blind else int(self._cpus[kind])
        return found

    def _pattern(
        self, node: int, leaves: Sequence[tuple[int, _Option]], gets: Sequence[tuple[int, int]]
    ) -> Pattern | None:
        net: dict[int, float] = {}
        for _, option in leaves:
            for kind, part in option.shapes:
                net[kind] = net.get(kind, 0.0) - part
        for _, kind in gets:
            net[kind] = net.get(kind, 0.0) + 1.0
        gone = tuple(sorted({pod for _, option in leaves for pod in option.pods}))
        return Pattern(node, gone, tuple(gets), sum(o.moves for _, o in leaves), tuple(sorted(net.items())))


def piece_of(shape: Shape) -> Shape:
    """Return what a shape takes of one card."""
    if shape.cards <= 1:
        return Shape(1, shape.share, 0, shape.cpu, shape.types)
    return Shape(1, shape.share, 0, shape.cpu // shape.cards, shape.types)
