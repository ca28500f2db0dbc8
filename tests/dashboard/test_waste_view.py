"""The Waste page's tables: from findings, accounts and ledger."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analyzer.findings import Finding
from analyzer.idle import IdleDetector
from analyzer.ledger import LEVEL_1, conclude_ledger, measure_ledger
from analyzer.quota_moves import QuotaMove
from analyzer.slice_account import FreeNow, measure_account
from analyzer.waiting import Waiting
from dashboard.views import slices, waste
from tests.analyzer.test_conformance import wasteful_node


def by(table: pd.DataFrame, *keys: str) -> dict[Any, dict[Any, Any]]:
    """Return the rows by one or two columns."""
    return {(row[keys[0]] if len(keys) == 1 else tuple(row[k] for k in keys)): row for row in table.to_dict("records")}


NAMES = {"GPU-1": "node-a GPU 0", "GPU-2": "node-a GPU 1"}


@pytest.fixture(scope="module")
def findings() -> list[Finding]:
    detector = IdleDetector()
    node = wasteful_node()
    return detector.conclude(detector.measure(node.partition()), node.context()).findings


def test_an_action_card_says_who_since_when_still_so_how_to_check_and_whom_to_ask(findings: list[Finding]) -> None:
    cards = waste.action_cards(findings, NAMES)
    assert [c.who for c in cards] == ["team/gone", "team/idle"]  # most wasted first
    gone = cards[0]
    assert (gone.state, gone.owner, gone.check) == ("abandoned", "team", "nvidia-smi pmon -i GPU-1 -c 30")
    facts = dict(gone.facts)
    assert facts["since"] == "Mon 5 Jan 00:00 UTC"
    assert facts["still so"] == "at Tue 6 Jan 06:00 UTC"
    assert facts["where"] == "node-a GPU 0"
    assert facts["wasted"] == "6 card-hours"


def test_wrong_sizes_have_lower_target_and_upper(findings: list[Finding]) -> None:
    table = by(waste.sized_table(findings, NAMES), "workload", "what")
    assert {what for _, what in table} == {
        "compute, too much",
        "memory, too much",
        "too little",
        "starved",
    }
    assert table["wide", "memory, too much"]["granted"] == "18.6 GiB"
    assert table["wide", "memory, too much"]["target"] == "2.1 GiB"
    assert table["tight", "too little"]["granted"] == "40 %"
    bounds = [
        row[name] for (_, what), row in table.items() if what != "starved" for name in ("lower", "target", "upper")
    ]
    assert "no data" not in bounds
    assert "took most of it" in table["starved", "starved"]["why"]


def test_tenants_and_cards_add_up() -> None:
    node = wasteful_node()
    ledger = conclude_ledger([measure_ledger(node.partition())], node.context())
    accounts = measure_account(node.partition())
    cards = waste.card_table(ledger, NAMES)
    assert cards["card"].tolist() == ["node-a GPU 0", "node-a GPU 1"]
    assert cards[list(LEVEL_1)].sum(axis=1).tolist() == pytest.approx([100.0, 100.0])
    tenants = by(waste.tenant_table(ledger, accounts), "tenant")
    assert tenants["team"]["wasted"] == pytest.approx(100 * ledger.fleet["wasted"] / ledger.fleet["capacity"])
    assert tenants["team"]["starved"] > 0
    slices = by(waste.slice_table(accounts, NAMES), "workload")
    assert slices["wide"]["used from"] == "estimated"
    assert slices["tight"]["used from"] == "measured"
    assert np.isnan(slices["wide"]["energy"])  # no card reports power
    shares = waste.idle_shares(accounts)
    assert shares["abandoned"] == pytest.approx(0.2)
    assert shares["idle-held"] == pytest.approx(0.2)


def test_free_pieces_and_moves_are_named() -> None:
    at = datetime(2026, 1, 5, tzinfo=UTC)
    free = (
        FreeNow("c", "n", "GPU-1", "", "", "A100", 1.0, 2.0**35, at),
        FreeNow("c", "n", "GPU-9", "gi2", "3g.20gb", "A100", 0.4, float("nan"), at + timedelta(hours=1)),
    )
    table = waste.free_table(free, NAMES)
    assert table["card"].tolist() == ["node-a GPU 0", "n GPU-9"]
    assert table["piece"].tolist() == ["whole card", "3g.20gb"]
    moves = (
        QuotaMove("c", "GPU-1", "a", "wide", "b", "tight", "ratio", 0.05, 0.1, 0.2, "why"),
        QuotaMove("c", "pool", "a", "", "b\u202e", "", "cards", 1.0, 2.0, 3.0, "why"),
    )
    told = waste.moves_table(moves, NAMES)
    assert told["where"].tolist() == ["node-a GPU 0", "pool"]
    assert told["target"].tolist() == ["10 %", "2 cards"]
    assert "\u202e" not in told["to"][1]


def test_a_slice_s_numbers_say_where_they_come_from() -> None:
    accounts = measure_account(wasteful_node().partition())
    key = slices.SliceKey("c", "node-a", "GPU-2", "taker", "team", "taker")
    taker = slices.account_of(accounts, key)
    assert taker is not None
    words = slices.provenance_words(taker)
    assert words.startswith("share held: measured · share used: measured · energy: unknown")
    assert f"borrowed {0.2 * 15:.1g} card-hours" in words
    assert slices.account_of(accounts, slices.SliceKey("c", "node-a", "GPU-2", "other", "team", "taker")) is None


def test_who_waits_comes_with_unmet_card_hours() -> None:
    waiting = (
        Waiting("c", "p", "team\u202e", 3, 60.0, 600.0, 2.0, 900.0, 7.5, "requests"),
        Waiting("c", "p", "served", 3, 60.0, 600.0, 0.0, math.nan, 0.0, "requests"),
        Waiting("c", "q", "untold", 0, math.nan, math.nan, 1.0, 60.0, math.nan, "rows"),
    )
    table = waste.waiting_table(waiting)
    assert table["tenant"].tolist()[1:] == ["untold"]
    assert "\u202e" not in table["tenant"][0]
    assert table["unmet"].tolist() == pytest.approx([7.5, math.nan], nan_ok=True)
    assert table["median wait"].tolist() == ["60 s", "no data"]


def test_nothing_is_an_empty_table() -> None:
    empty = pd.DataFrame(columns=waste.free_table((), {}).columns)
    assert len(empty.columns) == 6
    assert waste.sized_table([], {}).empty
    assert waste.moves_table((), {}).empty
