"""Placing tasks by the gradient of the fragmentation measure: where one more task costs least (Weng et al., ATC'23).

`Placing` is a fleet that changes: tasks are placed and removed one by one, and the fragment of each node is kept up to
date, so that what one more task would cost anywhere is a matter of the nodes that changed since it was last asked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analyzer.fgd import EPSILON, Task
from analyzer.fleet import Bools, Fleet, Floats, Ints, Mix, fragments, serving


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a task goes: row of the fleet, cards of the node, and by how many cards the fragment grows."""

    row: int
    cards: tuple[int, ...]
    growth: float


@dataclass(slots=True)
class _Asked:
    """What was answered about one kind of task: valid at a row while the row has not changed since."""

    seen: Ints  # (N,) the row's version then
    growth: Floats  # (N,) inf where it does not fit
    cards: Ints  # (N, cards) the cards it would take


class Placing:
    """A fleet under change, and the mix that it is measured against.

    `fleet` is copied; the copy in `.fleet` changes in place. Its `fragment` (N,) is always that of the present state.
    """

    def __init__(self, fleet: Fleet, tasks: Sequence[Task]) -> None:
        self.fleet = fleet.at(np.arange(len(fleet.names)))
        self.mix = Mix.of(tasks, fleet.types)
        self.fragment = fragments(self.fleet, self.mix)
        self._version = np.zeros(len(fleet.names), dtype=np.int64)
        self._asked: dict[Task, _Asked] = {}
        cores = self.fleet.cpu_cores_left[np.isfinite(self.fleet.cpu_cores_left)]
        self._most_idle = max(float(np.maximum(self.fleet.left, 0.0).sum(axis=1).max(initial=0.0)), EPSILON)
        self._most_cpu = max(float(cores.max(initial=0.0)), EPSILON)

    @property
    def fragmented(self) -> float:
        """Fragmented share of all nodes, in cards."""
        return float(self.fragment.sum())

    @property
    def idle(self) -> float:
        """Idle share of all nodes, in cards."""
        return float(self.fleet.amounts.sum())

    def growths(self, task: Task) -> Floats:
        """Return by how much the fragment of each node would grow with one more `task`, (N,); inf: it does not fit."""
        return self._ask(task).growth

    def best(self, task: Task, among: Bools | None = None) -> Spot | None:
        """Return the spot that the reference scheduler's score likes best; None where the task fits nowhere.

        The score (`analyzer.fgd.score`) takes growths within some 4 % of a card for equal. That matters: following the
        last digit of the growth spreads tasks over nodes and costs a percent of all cards when the fleet is full. Of
        equal spots the fullest node is taken (best fit over share and CPU), of these the first.
        """
        asked = self._ask(task)
        growth = asked.growth if among is None else np.where(among, asked.growth, math.inf)
        rows = np.flatnonzero(np.isfinite(growth))
        if not rows.size:
            return None
        points = np.floor(np.round(100.0 / (1.0 + np.exp(growth[rows])), 9))
        rows = rows[points == points.max()]
        row = int(rows[np.argmin(np.round(self._room(rows), 9))])
        return Spot(row, tuple(asked.cards[row].tolist()), float(growth[row]))

    def _room(self, rows: Ints) -> Floats:
        """Return how empty nodes are: idle share and CPU, each against the most that a node had at first."""
        idle = np.maximum(self.fleet.left[rows], 0.0).sum(axis=1)
        cpu = self.fleet.cpu_cores_left[rows]
        return np.asarray(idle / self._most_idle + np.where(np.isfinite(cpu), cpu, 0.0) / self._most_cpu)

    def place(self, task: Task, row: int, cards: Sequence[int]) -> None:
        """Take what `task` asks for from these cards of a node."""
        self._change(task, row, cards, -1.0)

    def remove(self, task: Task, row: int, cards: Sequence[int]) -> None:
        """Give back what `task` held on these cards of a node."""
        self._change(task, row, cards, 1.0)

    def _change(self, task: Task, row: int, cards: Sequence[int], sign: float) -> None:
        chosen = list(cards)
        self.fleet.left[row, chosen] = _shares(self.fleet.left[row, chosen] + sign * min(task.share, 1.0))
        self.fleet.memory_left_bytes[row, chosen] += sign * task.memory_bytes
        self.fleet.cpu_cores_left[row] += sign * task.cpu_cores
        self._version[row] += 1
        self.fragment[row] = fragments(self.fleet.at(np.array([row])), self.mix)[0]

    def _ask(self, task: Task) -> _Asked:
        asked = self._asked.get(task)
        if asked is None:
            count = len(self.fleet.names)
            asked = _Asked(
                np.full(count, -1, dtype=np.int64),
                np.full(count, math.inf),
                np.full((count, max(task.cards, 0)), -1, dtype=np.int64),
            )
            self._asked[task] = asked
        stale = np.flatnonzero(asked.seen != self._version)
        if stale.size:
            part = self.fleet.at(stale)
            growth, cards = cheapest(part, self.mix, task, self.fragment[stale])
            asked.growth[stale], asked.cards[stale] = growth, cards
            asked.seen[stale] = self._version[stale]
        return asked


def _shares(left: Floats) -> Floats:
    """Clear the noise of sums, so that what was taken and given back is exactly there again."""
    return np.asarray(np.clip(np.round(left, 9), 0.0, 1.0))


def cheapest(fleet: Fleet, mix: Mix, task: Task, before: Floats) -> tuple[Floats, Ints]:
    """Return where on each node one more `task` makes the fragment grow least.

    A share of one card is tried on each card that serves it; of several cards, those with least left are taken (whole
    cards: all alike). `before` (N,) is the fragment now.

    Returns:
        growth (N,), inf where the task does not fit, and the cards it would take (N, `task.cards`), -1 there.
    """
    nodes = len(fleet.names)
    growth = np.full(nodes, math.inf)
    cards = np.full((nodes, task.cards), -1, dtype=np.int64)
    share = min(task.share, 1.0)
    yes = serving(fleet, share, task.memory_bytes)
    allowed = np.array([not task.types or name in task.types for name in fleet.types], dtype=bool)
    fits = fleet.cpu_cores_left + EPSILON >= task.cpu_cores
    if task.cards:
        fits &= (yes.sum(axis=1) >= task.cards) & allowed[fleet.gpu_type]
    rows = np.flatnonzero(fits)
    if not rows.size:
        return growth, cards
    if task.cards == 1 and share < 1.0:
        which, card = np.nonzero(yes[rows])
        which, card = _distinct(fleet, rows, which, card)
        tried = _after(fleet, rows[which], card[:, None], task)
        delta = fragments(tried, mix) - before[rows[which]]
        order = np.lexsort((card, np.round(delta, 9), which))
        first = order[np.unique(which[order], return_index=True)[1]]
        growth[rows], cards[rows, 0] = delta[first], card[first]
        return growth, cards
    taken = np.argsort(np.where(yes[rows], fleet.left[rows], math.inf), axis=1, kind="stable")[:, : task.cards]
    growth[rows] = fragments(_after(fleet, rows, taken, task), mix) - before[rows]
    cards[rows] = taken
    return growth, cards


def _distinct(fleet: Fleet, rows: Ints, which: Ints, card: Ints) -> tuple[Ints, Ints]:
    """Of cards of one node that are alike keep the first."""
    left, room = fleet.left[rows[which], card], fleet.memory_left_bytes[rows[which], card]
    keys = np.stack([which.astype(np.float64), left, np.nan_to_num(room, nan=-1.0)], axis=1)
    first = np.sort(np.unique(keys, axis=0, return_index=True)[1])
    return which[first], card[first]


def _after(fleet: Fleet, rows: Ints, cards: Ints, task: Task) -> Fleet:
    """Return the fleet of `rows` after each took `task` on its `cards` (K, n)."""
    after = fleet.at(rows)
    every = np.arange(len(rows))[:, None]
    after.left[every, cards] = _shares(after.left[every, cards] - min(task.share, 1.0))
    after.memory_left_bytes[every, cards] -= task.memory_bytes
    after.cpu_cores_left[:] -= task.cpu_cores
    return after
