"""Plans of moves as people see them: tables, drawings, the report's section, the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from dashboard.report.capacity import Freed, HourTerms, MigrationPart
from dashboard.report.migrations import _predicted, _realised, migrations_section
from dashboard.report.prices import read_prices
from dashboard.report.view import Note, Section, Table
from dashboard.views import svg
from dashboard.views.moves import left_alone, steps_table, strips
from tests.dashboard.report_model import MARKUP, SCRIPT, START, migrations, report
from tests.dashboard.test_app import on_loopback, open_page, said, tables, world
from tests.tuner.test_service_defragment import observed
from tuner.service.defragment import plan_moves
from tuner.service.moves_plan import Objective
from tuner.settings import PriceSettings

__all__ = ["on_loopback", "world"]  # fixtures


def test_steps_and_strips_of_a_plan() -> None:
    plan = plan_moves(observed(), Objective.DEMAND)
    table = steps_table(plan, {"GPU-1": "n GPU 0"})
    assert table.to_dict("records") == [
        {
            "move": "migrate",
            "who": "t/a",
            "from": "n GPU 0",
            "to": "GPU-2",
            "GiB": 10.0,
            "away (min)": 5.0,
            "work lost (min)": 1.0,
        }
    ]
    found = strips(plan, {"GPU-1": "n GPU 0"})
    assert [strip.title for strip in found] == ["n GPU 0", "GPU-2"]
    drawing = ET.fromstring(svg.strips(found, svg.LIGHT))  # noqa: S314  our own text
    texts = [node.text for node in drawing.iter() if node.tag.endswith("text")]
    first = ["n GPU 0", "now", "a", "then", "a whole card"]
    assert texts == [*first, "GPU-2", "now", "b", "then", "a", "b"]
    assert left_alone(plan).startswith("1 of 2 pods are protected and never move. Left out: 1 card (a holder's share")


def test_hostile_names_are_no_markup() -> None:
    plan = migrations().demand
    assert plan is not None
    text = svg.strips(strips(plan, {}), svg.DARK)
    assert "<script" not in text
    ET.fromstring(text)  # noqa: S314  our own text


def words(section: Section) -> str:
    return "\n".join(block.text for block in section.blocks if isinstance(block, Note))


def table_rows(section: Section, caption: str) -> Sequence[Sequence[object]]:
    return next(b.rows for b in section.blocks if isinstance(b, Table) and b.caption.startswith(caption))


def test_the_section_of_the_report() -> None:
    section = migrations_section(migrations())
    assert "1 move: 2.0 cards' worth of it fits, 1.0 without a move" in words(section)
    assert "Cost: 10.0 GiB moved" in words(section)
    assert MARKUP in words(section)
    assert table_rows(section, "In this order")[0][1] == "migrate"
    assert len(table_rows(section, "Cards that change")) == 1
    assert table_rows(section, "Freed") == (
        ("predicted, by this plan", "1.00", "500 EUR", "8.33 kWh"),
        ("realised, last day against first", "no data", "no data", "no data"),
    )


def test_without_a_plan_the_section_says_why() -> None:
    nothing = migrations_section(MigrationPart(None, None, None, None, "", {}))
    assert words(nothing) == "No plan was made: no card was seen."
    plan = migrations().demand
    assert plan is not None
    why = migrations_section(MigrationPart(replace(plan, none="nobody asks"), None, None, None, "", {}))
    assert words(why).startswith("Room for demand: no plan, nobody asks.")
    still = replace(plan, steps=(), placed=1.0)
    assert "no move that may be made brings more" in words(
        migrations_section(MigrationPart(still, None, None, None, "", {}))
    )
    many = replace(plan, steps=plan.steps * 20, changes=plan.changes * 20)
    table = next(
        b for b in migrations_section(MigrationPart(many, None, None, None, "", {})).blocks if isinstance(b, Table)
    )
    assert table.more == "and 5 more moves, in the JSON report"


def test_predicted_and_realised_stay_apart() -> None:
    freeing = migrations().freeing
    assert freeing is not None
    prices = read_prices([PriceSettings(model="A100*", per_gpu_hour=2.0, currency="EUR")])
    assert _predicted(freeing, prices) == Freed(1.0, 336.0, 50.0 * 168 * 3600)
    ledger = report().ledger
    assert _realised(ledger, freeing) is None  # one day
    base = ledger.by_hour[0].ratios
    days = [base | {"free": 0.1}, base | {"free": 0.2}, base | {"free": 0.3}]
    hours = tuple(
        HourTerms(START + timedelta(hours=24 * d + h), dict(r)) for d, r in enumerate(days) for h in range(24)
    )
    freed = _realised(replace(ledger, by_hour=hours, hours=72.0, price=1440.0), freeing)
    assert freed is not None
    assert freed.cards == pytest.approx(2.0)
    assert freed.cost_a_week == pytest.approx(2.0 * 2.0 * 168)
    assert freed.joules_a_week == pytest.approx(2.0 * 50.0 * 168 * 3600)
    unpriced = _realised(replace(ledger, by_hour=hours, hours=72.0, price=math.nan), None)
    assert unpriced is not None
    assert math.isnan(unpriced.cost_a_week)
    assert math.isnan(unpriced.joules_a_week)


def test_the_page_plans_when_it_is_asked_to(world: Path) -> None:
    app = open_page("fragmentation")
    assert "Plans are advice" not in said(app)
    before = len(tables(app))
    (choice,) = [control for control in app.get("button_group") if control.label == "Plan"]
    app = choice.set_value(Objective.FREE_CARDS).run()
    assert not app.exception
    assert "Plans are advice: nothing was moved." in said(app)
    assert len(tables(app)) >= before
    assert SCRIPT not in said(app)
