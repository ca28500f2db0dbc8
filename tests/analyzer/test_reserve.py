"""What is kept on purpose: history out of the ledger's rows, and the reserve that is forecast from it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from analyzer.ledger import measure_ledger
from analyzer.reserve import QUANTILE, forecast_reserve, reserved_shares, use_history
from collector.declarations import Owner, ResolvedWorkload, WorkloadDeclaration
from tests.analyzer.conftest import MakeNode, Node

APP = ("c", "team", "app")
MINUTES = 5.0


def online(*names: str, service_class: str = "online", declared: bool = True) -> dict[Owner, ResolvedWorkload]:
    return {
        ("c", "team", name): ResolvedWorkload(
            tenant="team",
            workload=name,
            declaration=WorkloadDeclaration(service_class=service_class),  # type: ignore[arg-type]  # one of the two
            declared=declared,
            origin={},
        )
        for name in names
    }


def serving(make_node: MakeNode, hours: float) -> Node:
    """A service in an instance of half a card, with a daily rhythm between 0.05 and 0.35."""
    node = make_node(hours, 60 * MINUTES)
    use = 0.2 + 0.15 * np.sin(np.arange(node.count) * MINUTES / 60 / 24 * 2 * math.pi)
    node.card(sm_active_ratio=use)
    node.slice("gi1", kind="mig", sm_quota_ratio=0.5, sm_active_ratio=use)
    return node


def test_history_is_the_mean_use_of_a_slice_in_cards(make_node: MakeNode) -> None:
    node = make_node(3.0)
    first = np.arange(node.count) < 60
    use = np.where(first, 0.1, 0.3)
    node.card(sm_active_ratio=use)
    node.slice("gi1", kind="mig", sm_quota_ratio=0.5, sm_active_ratio=use)
    node.card("GPU-2", sm_active_ratio=0.2, sm_count=50)
    node.slice("gi1", gpu="GPU-2", kind="mig", sm_quota_ratio=0.5, sm_active_ratio=0.2, keep=first)
    node.slice("gi2", gpu="GPU-2", kind="mig", workload="other", sm_quota_ratio=0.5, sm_active_ratio=0.0)
    history = use_history([measure_ledger(node.partition())], {APP})
    assert history["series"].tolist() == ["c/team/app#each"] * 3
    assert history["value"].tolist() == pytest.approx([0.15, 0.3, 0.3])  # two slices, then one


def test_hours_that_were_not_seen_are_absent(make_node: MakeNode) -> None:
    node = make_node(4.0)
    hour = np.arange(node.count) // 60
    # Hour 0: gone for 20 minutes; hour 1: for 40; hour 3: its own use is told by nobody, the card's is.
    seen = ~((hour == 0) & (np.arange(node.count) % 60 < 20) | (hour == 1) & (np.arange(node.count) % 60 < 40))
    use = np.where(hour == 3, np.nan, 0.2)
    node.card(sm_active_ratio=0.2, keep=seen)
    node.slice("gi1", kind="mig", sm_quota_ratio=0.5, sm_active_ratio=use, keep=seen)
    history = use_history([measure_ledger(node.partition())], {APP})
    assert history["value"].tolist() == pytest.approx([0.2, math.nan, 0.2, math.nan], nan_ok=True)


def test_the_reserve_covers_the_daily_peak_and_not_much_more(make_node: MakeNode) -> None:
    told = forecast_reserve([measure_ledger(serving(make_node, 5 * 24).partition())], online("app"))
    assert set(told["series"]) == {"c/team/app#each"}
    assert set(told["quantile"]) == {QUANTILE}
    assert len(told) == 24  # an hour each
    assert 0.34 < told["value"].max() < 0.42


def test_with_little_history_the_busiest_hour_is_kept(make_node: MakeNode) -> None:
    node = serving(make_node, 12)
    told = forecast_reserve([measure_ledger(node.partition())], online("app"))
    assert told["value"].tolist() == pytest.approx([0.35], abs=0.005)
    assert reserved_shares(node.context(declarations=online("app"), forecasts=told)) == {APP: told["value"].iloc[0]}


def test_only_declared_services_have_one(make_node: MakeNode) -> None:
    rows = [measure_ledger(serving(make_node, 12).partition())]
    for promises in ({}, online("app", declared=False), online("app", service_class="offline"), online("elsewhere")):
        assert forecast_reserve(rows, promises).empty
    assert forecast_reserve([], online("app")).empty


def test_the_order_of_nodes_changes_nothing(make_node: MakeNode) -> None:
    rows = []
    for name, share in (("node-a", 0.1), ("node-b", 0.3), ("node-c", 0.7)):
        node = make_node(40.0, 60 * MINUTES, name)
        use = share * np.random.default_rng(len(rows)).random(node.count)
        node.card(sm_active_ratio=use)
        node.slice("gi1", kind="mig", sm_quota_ratio=0.9, sm_active_ratio=use)
        rows.append(measure_ledger(node.partition()))
    there, back = (forecast_reserve(order, online("app")) for order in (rows, rows[::-1]))
    assert there.equals(back)
