"""`trimtab analyze fragmentation --plan`: a plan over a store, for people and as one document; what does not fit."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dashboard.cli.moves import plan_options, print_plan
from dashboard.views.moves import costs, result
from tests.dashboard.conftest import Ran
from tests.tuner.test_service_defragment import observed
from tuner.service.defragment import plan_moves
from tuner.service.moves_plan import Objective


def test_a_plan_over_a_store(app_world: Path, trimtab: Callable[..., Ran]) -> None:
    config = ("--config", str(app_world))
    ran = trimtab(*config, "analyze", "fragmentation", "--plan", "free-cards", "--json")
    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    assert document["simulated"] is True
    plan = document["plan"]
    assert plan["objective"] == "free-cards"
    assert plan["bound"] <= plan["placed"] <= plan["before"] <= plan["cards"]
    assert plan["cards"] + sum(plan["left_out"].values()) == 16
    shown = trimtab(*config, "analyze", "fragmentation", "--plan", "demand")
    assert shown.code == 0
    assert "this is advice: nothing is moved" in shown.out or "no plan: " in shown.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("idle", "--plan", "demand"), "--plan speaks of fragmentation"),
        (("fragmentation", "--for", "2"), "expected --plan beside them"),
        (("fragmentation", "--plan", "demand", "--for", "2"), "expected it beside --plan room"),
        (("fragmentation", "--plan", "room", "--for", "nonsense"), "expected a request such as"),
    ],
)
def test_what_does_not_fit_together(trimtab: Callable[..., Ran], arguments: tuple[str, ...], said: str) -> None:
    ran = trimtab("analyze", *arguments)
    assert ran.code == 2
    assert said in ran.err


def test_a_plan_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    print_plan(plan_moves(observed(), Objective.DEMAND), {"GPU-1": "n GPU 0"}, simulated=False)
    out, err = capsys.readouterr()
    assert "2 cards, 2 pods, 1 of them protected" in out
    assert "1 move: 1.0 cards' worth of it fits, 0.0 without a move; no plan of so many moves places more" in out
    assert "cost: 10.0 GiB moved, 1 restart, 5 min away in all" in out
    assert "n GPU 0" in out
    assert "1 card left out: a holder's share is not known" in err


def test_words() -> None:
    plan = plan_moves(observed(), Objective.DEMAND)
    assert "places more than 2.0 (within 50.0 %)" in result(replace(plan, exact=False, bound=2.0, gap=0.5))
    assert "an unknown amount of work" in costs(replace(plan, cost=replace(plan.cost, lost_seconds=math.nan)))
    freed = plan_moves(observed(), Objective.FREE_CARDS)
    assert result(freed) == "1 move: 1 of 2 cards stay in use, 1 freed; fewer cannot hold it"
    assert "does with fewer than 1" in result(replace(freed, exact=False, gap=0.0))
    room = plan_moves(observed(), Objective.ROOM)
    assert result(room) == "1 move, and it fits; no plan needs fewer"
    assert result(replace(room, steps=())) == "it fits now, without a move"
    assert plan_options(None, None, None, fragmentation=False) is None


def test_a_plan_over_a_snapshot(tmp_path: Path, trimtab: Callable[..., Ran]) -> None:
    path = tmp_path / "cluster.json"
    pods = [{"name": name, "node": "n", "share": 0.3, "card_numbers": [card]} for card, name in enumerate("ab")]
    path.write_text(json.dumps({"nodes": [{"name": "n", "cards": 2}], "pods": [*pods, {"name": "big"}]}))
    ran = trimtab("analyze", "fragmentation", "--snapshot", str(path), "--plan", "demand", "--json")
    assert ran.code == 0, ran.err
    plan = json.loads(ran.out)["plan"]
    assert (plan["before"], plan["placed"], len(plan["steps"])) == (0.0, 1.0, 1)
    shown = trimtab("analyze", "fragmentation", "--snapshot", str(path), "--plan", "room", "--for", "0.6")
    assert "it fits now, without a move" in shown.out
