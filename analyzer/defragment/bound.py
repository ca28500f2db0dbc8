"""What no plan of so many moves can exceed, and the mixture of node patterns that comes near to it.

Column generation: a linear program mixes the patterns found so far and prices shapes and moves; at these prices every
node names its best pattern; the patterns are added, and so on. At any prices the nodes' best values give a valid bound
(see `pricing`); the smallest is kept. Prices are taken half way between those of the program and those of the best
bound, which keeps them from swinging.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from analyzer.defragment.model import Fleet, Request, Shape
from analyzer.defragment.pricing import Floats, Pattern, Pricing

_CLOSE = 0.002  # of the bound: the mixture is good enough
_ROUNDS = 60
_STEP = 0.5
_NEVER = 1e3  # a price of a move at which nothing moves
_FIRST_MOVE_PRICE = 0.5
_LEAST_PRICE = 1e-4  # of a move, in cards: none is made for nothing


@dataclass(frozen=True)
class Relaxed:
    """The bound in cards' worth, the mixture's own value, and its patterns with their weights (at most 1 a node).

    `prices` and `move_price` are those of the bound.
    """

    bound: float
    value: float
    patterns: tuple[Pattern, ...]
    weights: Floats
    shapes: tuple[Shape, ...]  # that the patterns number
    prices: Floats
    move_price: float


def relax(fleet: Fleet, demand: Sequence[Request], moves: int, *, rounds: int = _ROUNDS) -> Relaxed:
    """Bound what can be placed of a demand after at most so many moves.

    Args:
        fleet: where things lie.
        demand: what is asked for.
        moves: pods that may be moved at most.
        rounds: of column generation; the bound is valid after each.
    """
    search = _Search(Pricing(fleet, demand), moves)
    search.run(rounds, stay=True)
    if moves:
        search.run(rounds, stay=False)
    return search.result()


class _Search:
    """Column generation: first with everything where it is (few patterns, good prices of shapes), then with moves."""

    def __init__(self, pricing: Pricing, moves: int) -> None:
        self.pricing = pricing
        self.moves = moves
        self.patterns: list[Pattern] = []
        self.seen: set[Pattern] = set()
        self.best, self.prices, self.move_price = np.inf, pricing.worth.copy(), _NEVER
        self.value, self.weights = 0.0, np.zeros(0)

    def run(self, rounds: int, *, stay: bool) -> None:
        """Add patterns until the mixture is close to the bound; `stay`: nothing leaves its place."""
        best, best_prices = np.inf, self.prices
        best_move = _NEVER if stay else _FIRST_MOVE_PRICE
        prices, move_price = best_prices, best_move
        for _ in range(rounds):
            values, found = self.pricing.best(prices, move_price)
            bound = self.pricing.bound(prices, move_price, 0 if stay else self.moves, values)
            if bound < best:
                best, best_prices, best_move = bound, prices, move_price
            fresh = [p for p in found if p is not None and p not in self.seen]
            self.seen.update(fresh)
            self.patterns += fresh
            self.value, self.weights, dual, dual_move = _mix(self.pricing, self.patterns, self.moves)
            if best - self.value <= _CLOSE * best or (not fresh and np.array_equal(prices, dual)):
                break
            # Half way; where that finds nothing new, the program's own prices.
            part = _STEP if fresh else 1.0
            prices = (1 - part) * best_prices + part * dual
            move_price = _NEVER if stay else (1 - part) * best_move + part * dual_move
        self.best, self.prices, self.move_price = best, best_prices, best_move

    def result(self) -> Relaxed:
        """Return what was found; demand itself is a bound too."""
        total = float((self.pricing.worth * self.pricing.wanted).sum())
        patterns = tuple(self.patterns)
        return Relaxed(
            min(self.best, total), self.value, patterns, self.weights, self.pricing.shapes, self.prices, self.move_price
        )


def _mix(pricing: Pricing, patterns: Sequence[Pattern], moves: int) -> tuple[float, Floats, Floats, float]:
    """Return value and weights of the best mixture, and its prices of shapes and of a move."""
    shapes = len(pricing.shapes)
    nodes = {node: row for row, node in enumerate(dict.fromkeys(p.node for p in patterns))}
    rows: list[int] = []
    columns: list[int] = []
    entries: list[float] = []

    def put(row: int, column: int, entry: float) -> None:
        rows.append(row)
        columns.append(column)
        entries.append(entry)

    for kind in range(shapes):
        put(kind, len(patterns) + kind, 1.0)
    for column, pattern in enumerate(patterns):
        for kind, pieces in pattern.net:
            put(kind, column, -pieces)
        if pattern.moves:
            put(shapes, column, pattern.moves)
        put(shapes + 1 + nodes[pattern.node], column, 1.0)
    count = shapes + 1 + len(nodes)
    matrix = coo_array((entries, (rows, columns)), shape=(count, len(patterns) + shapes)).tocsr()
    limits = np.concatenate([np.zeros(shapes), [float(moves)], np.ones(len(nodes))])
    gain = np.concatenate([[-_LEAST_PRICE * p.moves for p in patterns], pricing.worth])
    highest = np.concatenate([np.full(len(patterns), np.inf), pricing.wanted])
    found = linprog(
        -gain, A_ub=matrix, b_ub=limits, bounds=np.stack([np.zeros(len(highest)), highest], axis=1), method="highs-ds"
    )
    if found.status != 0:
        raise ArithmeticError(f"expected a solvable program of {len(patterns)} patterns, got: {found.message}")
    dual = -np.asarray(found.ineqlin.marginals)
    weights = np.asarray(found.x[: len(patterns)])
    return float(-found.fun), weights, np.clip(dual[:shapes], 0.0, None), float(max(dual[shapes], 0.0))
