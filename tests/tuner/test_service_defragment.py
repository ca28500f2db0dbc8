"""Plans of moves in words: requests that are read, steps and costs, cards before and after, what is left alone."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from analyzer.defragment.model import WHOLE, Card, Cost, Fleet, Node, Pod, Request, Shape
from analyzer.defragment.observed import Observed
from analyzer.demand import Wish
from collector.errors import ConfigurationError
from tuner.service.defragment import parse_request, plan_moves
from tuner.service.moves_plan import Objective, Role

GIB = 2.0**30


def observed(*, waiting: bool = True, demand: tuple[Request, ...] | None = None) -> Observed:
    """Two cards, 0.3 and 0.6 of them taken; a whole card is asked for."""
    types = frozenset({"A100/vgpu"})
    pods = (
        Pod("ns/a", 0, (0,), Shape(1, 300, types=types), cost=Cost(10.0, 1, 5.0, 60.0), tenant="t", workload="a"),
        Pod("ns/b", 0, (1,), Shape(1, 600, types=types), fixed=True, tenant="t", workload="b"),
    )
    fleet = Fleet((Node("n", type="A100/vgpu"),), (Card(0, "GPU-1"), Card(0, "GPU-2")), pods)
    whole = (Request(Shape(1, WHOLE, types=types), 1, "a whole card"),)
    return Observed(
        fleet=fleet,
        demand=whole if demand is None else demand,
        waiting=waiting,
        gpus=("GPU-1", "GPU-2"),
        models=("A100", "A100"),
        idle_watts=(50.0, 50.0),
        left_out={"a holder's share is not known": 1},
        protected=1,
    )


@pytest.mark.parametrize(
    ("text", "wish"),
    [
        ("0.5", Wish(1, 0.5, 0.0, 0.0, "", "")),
        ("2", Wish(2, 1.0, 0.0, 0.0, "", "")),
        ("1", Wish(1, 1.0, 0.0, 0.0, "", "")),
        ("2x0.5,memory=20,cpu=8,type=A100", Wish(2, 0.5, 20 * GIB, 8.0, "", "A100")),
        ("3g.40gb", Wish(1, 1.0, 0.0, 0.0, "3g.40gb", "")),
        ("1g.10gb+me, type=H100", Wish(1, 1.0, 0.0, 0.0, "1g.10gb+me", "H100")),
    ],
)
def test_requests_are_read(text: str, wish: Wish) -> None:
    assert parse_request(text) == wish


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "1.5", "0", "0x1", "0.5,colour=red", "0.5,memory", "0.5,cpu=many", "-1"),
        *("0.5,memory=nan", "0.5,memory=-3", "0.5,cpu=inf", "0x1g.10gb", "1g.10gb,memory=40"),
    ],
)
def test_what_is_no_request_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="expected"):
        parse_request(text)


@pytest.mark.parametrize("objective", [Objective.ROOM, Objective.DEMAND])
def test_a_plan_says_who_goes_where_and_what_it_costs(objective: Objective) -> None:
    plan = plan_moves(observed(), objective)
    (step,) = plan.steps
    assert (step.kind, step.pod, step.from_gpus, step.to_gpus) == ("migrate", "ns/a", ("GPU-1",), ("GPU-2",))
    assert plan.cost == Cost(10.0, 1, 5.0, 60.0)
    assert (plan.before, plan.placed, plan.exact, plan.none) == (0.0, 1.0, True, "")
    assert plan.fits == (("a whole card", 1),)
    first, second = plan.changes
    assert [(s.label, s.share, s.role) for s in first.before] == [("a", 0.3, Role.LEAVES), ("", 0.7, Role.FREE)]
    assert [(s.label, s.share, s.role) for s in first.after] == [("a whole card", 1.0, Role.REQUEST)]
    roles = [(s.label, s.role) for s in second.after]
    assert roles == [("a", Role.COMES), ("b", Role.PROTECTED), ("", Role.FREE)]
    assert json.loads(json.dumps(plan.to_json()))["left_out"] == {"a holder's share is not known": 1}


def test_the_fewest_cards() -> None:
    plan = plan_moves(observed(), Objective.FREE_CARDS)
    assert (plan.before, plan.placed, plan.bound, plan.exact) == (2.0, 1.0, 1.0, True)
    assert (plan.freed, plan.freed_models, plan.idle_watts) == (("GPU-1",), ("A100",), 50.0)
    unmetered = plan_moves(replace(observed(), idle_watts=(math.nan, math.nan)), Objective.FREE_CARDS)
    assert math.isnan(unmetered.idle_watts)
    assert unmetered.to_json()["idle_watts"] is None
    assert plan_moves(observed(), Objective.FREE_CARDS, moves=0).none == "no card can be emptied onto the others"


def test_why_there_is_no_plan() -> None:
    assert plan_moves(observed(demand=()), Objective.DEMAND).none == "nobody's requests are known"
    assert plan_moves(observed(waiting=False), Objective.ROOM).none == "no request was named, and none waits"
    much = plan_moves(observed(), Objective.ROOM, request=parse_request("2"))
    assert much.none == "no moves of those that may move make room for it"
    assert math.isnan(much.bound)
    alien = plan_moves(observed(), Objective.ROOM, request=parse_request("1g.10gb"))
    assert alien.none == "no card is of a kind that it may use"
    now = plan_moves(observed(), Objective.ROOM, request=parse_request("0.5"))
    assert (now.steps, now.before, now.placed) == ((), 0.5, 0.5)


def test_a_cut_card_is_drawn_by_its_slices() -> None:
    pods = (
        Pod("ns/a", 0, (0,), Shape(1, 0, profile="1g.5gb"), start=1, tenant="t", workload="a"),
        Pod("ns/b", 0, (0,), Shape(1, 0, profile="1g.5gb"), start=5, tenant="t", workload="b"),
    )
    card = Card(0, "GPU-1", board="A100-40GB")
    world = replace(
        observed(),
        fleet=Fleet((Node("n", type="A100/mig"),), (card,), pods),
        demand=(Request(Shape(1, 0, types=frozenset({"A100/mig"}), profile="4g.20gb"), 1, "4g.20gb"),),
    )
    plan = plan_moves(world, Objective.ROOM)
    assert [step.kind for step in plan.steps] == ["re-cut"]
    assert plan.steps[0].to_start is not None
    (change,) = plan.changes
    assert sum(part.share for part in change.before) == pytest.approx(1.0)
    assert sum(part.share for part in change.after) == pytest.approx(1.0)
    assert change.after[0].role is Role.REQUEST
    assert change.after[0].share == 0.5
