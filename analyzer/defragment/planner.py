"""Plans that place most of a demand with few moves: exact where small, near a printed bound at the size of a fleet.

Small is what an integer program settles at once. A fleet's plan is rounded from a mixture of node patterns (see
`bound`, `rounding`). Room for one request alone: see `room`.
"""

from __future__ import annotations

from collections.abc import Sequence

from analyzer.defragment.bound import relax
from analyzer.defragment.exact import best_demand
from analyzer.defragment.model import Cost, Fleet, Plan, Request, cost_of
from analyzer.defragment.order import in_order
from analyzer.defragment.rounding import fill, round_mixture

_EXACT_PLACES = 4000  # places of all things together, up to which the integer program is quick


def place_demand(fleet: Fleet, demand: Sequence[Request], moves: int) -> Plan:
    """Return a plan of at most so many moves that places as much of a demand as it finds, beside the bound.

    At the size of a fleet cards that are cut, and requests for MIG profiles, are left aside.

    Args:
        fleet: where things lie now.
        demand: what is asked for.
        moves: pods that may be moved (or resized) at most.
    """
    if places(fleet, demand) <= _EXACT_PLACES:
        return _exact_plan(fleet, demand, moves)
    asked = [request for request in demand if not request.shape.profile and request.shape.cards]
    before = fill(fleet, asked, ())
    if before.placed >= sum(request.count * request.shape.amount for request in asked) - 1e-9:
        all_ = before.placed
        return Plan((), before.placements, before=all_, placed=all_, bound=all_, exact=True, cost=Cost())
    still = relax(fleet, asked, 0)
    before = max(before, round_mixture(fleet, asked, still, 0), key=lambda o: o.placed)
    relaxed = relax(fleet, asked, moves) if moves else still
    best = max(before, round_mixture(fleet, asked, relaxed, moves), key=lambda o: o.placed)
    return Plan(
        moves=best.moves,
        placements=best.placements,
        before=before.placed,
        placed=best.placed,
        bound=max(relaxed.bound, best.placed),
        exact=False,
        cost=cost_of(fleet, best.moves),
    )


def _exact_plan(fleet: Fleet, demand: Sequence[Request], moves: int) -> Plan:
    before = best_demand(fleet, demand, 0)
    best = best_demand(fleet, demand, moves) if moves else before
    ordered, together = in_order(fleet, best.moves)
    return Plan(
        moves=ordered,
        placements=best.placements,
        before=before.placed,
        placed=best.placed,
        bound=best.placed,
        exact=True,
        cost=cost_of(fleet, ordered),
        together=together,
    )


def places(fleet: Fleet, demand: Sequence[Request]) -> int:
    """Return how many places all things may have together: the size of the exact question."""
    things = len(fleet.pods) + sum(request.count for request in demand)
    return things * max(len(fleet.cards), 1)
