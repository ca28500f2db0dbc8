"""The ledger: each term by hand, and its laws."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.ledger import LEVEL_1, LEVEL_2, Ledger, conclude_ledger, measure_ledger
from analyzer.reserve import reserved_shares
from collector.declarations import Objective, Owner, ResolvedWorkload, WorkloadDeclaration
from tests.analyzer.conftest import START, MakeNode, Node

HOURS = 2.0
CARD = 100 * HOURS * 3600  # SM-seconds of a card with 100 SMs


def ledger(node: Node, **context: Any) -> Ledger:
    return conclude_ledger([measure_ledger(node.partition())], node.context(**context))


def shares(row: pd.Series) -> dict[str, float]:
    return {name: round(float(row[name] / row["capacity"]), 6) for name in (*LEVEL_1, *LEVEL_2)}


def promise(tenant: str, workload: str, **declaration: Any) -> dict[Owner, ResolvedWorkload]:
    resolved = ResolvedWorkload(
        tenant=tenant,
        workload=workload,
        declaration=WorkloadDeclaration(**declaration),
        declared=True,
        origin={},
    )
    return {("c", tenant, workload): resolved}


def test_used_wasted_and_free(make_node: MakeNode) -> None:
    node = make_node(HOURS)
    node.card(sm_active_ratio=0.4)
    node.slice("a", sm_quota_ratio=0.5, busy_ratio=0.6)
    node.slice("b", tenant="other", sm_quota_ratio=0.3, busy_ratio=0.0)
    got = ledger(node)
    terms = shares(got.fleet)
    assert got.fleet["capacity"] == pytest.approx(CARD)
    assert (terms["used"], terms["wasted"], terms["free"]) == (0.4, 0.4, 0.2)  # 0.1 of a, 0.3 of b, 0.2 of nobody
    assert terms["unrated"] == 0.4  # no unit of work is counted
    assert got.fleet["unaccounted_1"] == pytest.approx(0.0, abs=1e-6)
    by_tenant = got.tenants.set_index("tenant")
    assert by_tenant.loc["team", "used"] == pytest.approx(0.4 * CARD)
    assert by_tenant.loc["other", "wasted"] == pytest.approx(0.3 * CARD)
    assert by_tenant["unaccounted_1"].abs().max() == pytest.approx(0.0, abs=1e-6)


def test_of_a_card_that_is_made_of_units_each_holder_has_one(make_node: MakeNode) -> None:
    node = make_node(HOURS)
    node.card(sm_active_ratio=0.2)
    node.slice("a", busy_ratio=0.5)
    node.slice("b", tenant="other", busy_ratio=0.0)
    assert shares(ledger(node).fleet)["free"] == 0.0  # nobody tells how many units: equal parts of the card
    node.fact("node", "card_replicas", "4")
    got = ledger(node)
    terms = shares(got.fleet)
    assert (terms["used"], terms["wasted"], terms["free"]) == (0.2, 0.3, 0.5)
    assert len(got.estimated_quota) == 2


def test_borrowing_eats_what_others_do_not_use(make_node: MakeNode) -> None:
    node = make_node(HOURS)
    node.card(sm_active_ratio=0.9)
    node.slice("a", sm_quota_ratio=0.5, busy_ratio=0.9)
    node.slice("b", tenant="other", sm_quota_ratio=0.5, busy_ratio=0.0)
    terms = shares(ledger(node).fleet)
    assert (terms["used"], terms["wasted"], terms["free"]) == (0.9, 0.1, 0.0)


def test_what_nobody_holds_is_stranded_when_no_request_fits_into_it(make_node: MakeNode) -> None:
    node = make_node(HOURS)
    node.card(sm_active_ratio=0.5)
    node.slice("a", sm_quota_ratio=0.7, busy_ratio=0.5)
    node.request("ns/big", cards=1, share=0.5)
    assert shares(ledger(node).fleet)["stranded"] == 0.3
    node.request("ns/small", cards=1, share=0.25)
    terms = shares(ledger(node).fleet)
    assert (terms["stranded"], terms["free"]) == (0.0, 0.3)


def test_free_share_without_memory_or_of_another_type_is_stranded(make_node: MakeNode) -> None:
    gib = 2.0**30
    node = make_node(HOURS)
    node.card(sm_active_ratio=0.2, memory_used_bytes=30 * gib, memory_free_bytes=10 * gib)
    node.slice("a", sm_quota_ratio=0.3, busy_ratio=0.2, memory_quota_bytes=35 * gib)
    node.fact("gpu", "model", "NVIDIA A100-SXM4-40GB", gpu="GPU-1")
    node.request("ns/memory", cards=1, share=0.5, memory_bytes=8 * gib)
    node.request("ns/type", cards=1, share=0.5, type="H100|H200")
    assert shares(ledger(node).fleet)["stranded"] == 0.7
    node.request("ns/fits", cards=1, share=0.5, memory_bytes=5 * gib, type="H100|a100")
    assert shares(ledger(node).fleet)["free"] == 0.7


def test_a_cut_card_is_free_where_a_profile_fits_or_an_instance_waits(make_node: MakeNode) -> None:
    node = make_node(HOURS)
    node.card(sm_count=108)
    node.fact("gpu", "model", "NVIDIA A100-SXM4-40GB", gpu="GPU-1")
    node.slice("gi1", kind="mig", profile="3g.20gb", sm_quota_ratio=42 / 108, sm_active_ratio=0.2)
    node.slice("gi2", kind="mig", profile="3g.20gb", tenant="none", workload="none", sm_active_ratio=0.0)
    node.request("ns/four", profile="4g.20gb", cards=1)
    terms = shares(ledger(node).fleet)
    assert terms["used"] == 0.2
    assert terms["stranded"] == pytest.approx(1 - 42 / 108, abs=1e-6)
    node.request("ns/three", profile="3g.20gb", cards=1)
    assert shares(ledger(node).fleet)["free"] == pytest.approx(1 - 42 / 108, abs=1e-6)


def test_reserve_comes_first_and_use_counts_against_it(make_node: MakeNode) -> None:
    node = make_node(HOURS)
    node.card(sm_active_ratio=0.1)
    node.slice("a", sm_quota_ratio=0.8, busy_ratio=0.5)
    declared = promise("team", "app", floor=0.4, objective=Objective(bound_seconds=1.0))
    terms = shares(ledger(node, declarations=declared).fleet)
    assert (terms["used"], terms["reserved"], terms["wasted"]) == (0.1, 0.3, 0.4)
    forecast = pd.DataFrame(
        {
            "series": ["c/team/app#each", "c/team/app#each", "c/team/app#each", "d/team/app#each"],
            "quantile": [0.5, 0.9, 0.9, 0.9],
            "value": [0.9, 0.6, np.nan, 0.7],
        }
    )
    terms = shares(ledger(node, declarations=declared, forecasts=forecast).fleet)
    assert (terms["reserved"], terms["wasted"]) == (0.5, 0.2)
    batch = promise("team", "app", floor=0.4, service_class="offline")
    assert reserved_shares(node.context(declarations=batch, forecasts=forecast)) == {("c", "team", "app"): 0.4}
    assert reserved_shares(node.context(declarations={}, forecasts=forecast)) == {}


def test_what_no_sample_shows_is_unobserved(make_node: MakeNode) -> None:
    node = make_node(HOURS)
    seen = np.arange(node.count) < node.count // 4
    node.card(sm_active_ratio=0.5, keep=seen)
    node.slice("a", sm_quota_ratio=0.5, busy_ratio=0.5, keep=seen)
    terms = shares(ledger(node).fleet)
    assert (terms["unobserved"], terms["used"], terms["free"]) == (0.75, 0.125, 0.125)


def test_an_unseen_instance_is_unobserved_for_its_own_part(make_node: MakeNode) -> None:
    node = make_node(HOURS)
    half = np.arange(node.count) < node.count // 2
    node.card()
    node.slice("gi1", kind="mig", profile="1g.5gb", sm_quota_ratio=0.5, sm_active_ratio=0.25)
    node.slice(
        "gi2",
        kind="mig",
        profile="1g.5gb",
        tenant="other",
        sm_quota_ratio=0.25,
        sm_active_ratio=np.where(half, 0.2, np.nan),
        memory_used_bytes=1.0,
    )
    terms = shares(ledger(node).fleet)
    assert terms["unobserved"] == pytest.approx(0.125)
    assert terms["used"] == pytest.approx(0.25 + 0.1)


def test_with_an_unknown_quota_nobody_can_say_what_is_held(make_node: MakeNode) -> None:
    node = make_node(HOURS)
    node.card(sm_active_ratio=0.3)
    node.slice("a", kind="vgpu", busy_ratio=0.3)
    terms = shares(ledger(node).fleet)
    assert (terms["used"], terms["unobserved"]) == (0.3, 0.7)


def test_an_untold_mps_quota_is_an_equal_part_and_listed(make_node: MakeNode) -> None:
    node = make_node(HOURS)
    node.card(sm_active_ratio=0.3)
    node.slice("a", busy_ratio=0.3)
    node.slice("b", busy_ratio=0.0, tenant="other")
    got = ledger(node)
    assert (shares(got.fleet)["used"], shares(got.fleet)["wasted"]) == (0.3, 0.7)
    assert got.estimated_quota == ("c/node-a/GPU-1/a", "c/node-a/GPU-1/b")


def test_use_that_no_slice_accounts_for_still_counts(make_node: MakeNode) -> None:
    node = make_node(HOURS)
    node.card(sm_active_ratio=0.3)
    assert shares(ledger(node).fleet)["used"] == 0.3


def test_a_card_that_only_facts_know_is_all_unobserved(make_node: MakeNode) -> None:
    node = make_node(HOURS)
    node.fact("gpu", "model", "NVIDIA A100-SXM4-40GB", gpu="GPU-9")
    got = ledger(node)
    assert shares(got.fleet)["unobserved"] == 1.0
    assert got.fleet["capacity"] == pytest.approx(108 * HOURS * 3600)
    assert got.assumed_sm_count == ()


def test_an_unknown_sm_count_is_assumed_and_listed(make_node: MakeNode) -> None:
    node = make_node(HOURS)
    node.rows("gpu", {"gpu": "GPU-1"}, {"sm_active_ratio": 0.5})
    assert ledger(node).assumed_sm_count == ("c/node-a/GPU-1",)


def test_level_two_terms_by_hand(make_node: MakeNode) -> None:
    """Solo: 10 requests/s at 0.02 SM-seconds each is 0.2 SM... of 100: 2 SM-seconds a second, a share of 0.2."""
    node = make_node(HOURS)
    minute = np.arange(node.count)
    hurt = (minute >= 60) & (minute < 90)  # everything takes half as long again
    slow_clock = (minute >= 90) & (minute < 110)  # and here the clock is a fifth lower
    use = np.where(hurt, 0.3, np.where(slow_clock, 0.25, 0.2))
    node.card(
        sm_active_ratio=use,
        sm_clock_hertz=np.where(slow_clock, 1.12e9, 1.4e9),
        throttle_thermal_ratio=np.where(slow_clock, 1.0, 0.0),
    )
    node.slice(
        "whole",
        kind="whole",
        requests_per_second=10.0,
        within_objective_per_second=9.0,
        step_seconds=np.where(hurt, 0.15, np.where(slow_clock, 0.125, 0.1)),
    )
    got = ledger(node)
    cost = 2.0  # SM-seconds a request
    requests = 10.0 * HOURS * 3600
    assert got.fleet["useful"] == pytest.approx(0.9 * requests * cost)
    assert got.fleet["overhead"] == pytest.approx(0.1 * requests * cost)  # late
    assert got.fleet["contention"] == pytest.approx(0.5 * 10 * 30 * 60 * cost)
    assert got.fleet["throttling"] == pytest.approx(0.25 * 10 * 20 * 60 * cost)
    assert got.fleet["unrated"] == 0.0
    assert got.fleet["unaccounted_2"] == pytest.approx(0.0, abs=1e-6)


def test_use_in_minutes_without_work_is_overhead(make_node: MakeNode) -> None:
    node = make_node(HOURS)
    starting = np.arange(node.count) < 12
    node.card(sm_active_ratio=0.5)
    node.slice("whole", kind="whole", steps_count=np.where(starting, 0.0, 30.0), step_seconds=2.0)
    got = ledger(node)
    assert shares(got.fleet)["overhead"] == pytest.approx(0.5 * 0.1)
    assert shares(got.fleet)["useful"] == pytest.approx(0.5 * 0.9)


def test_documents_are_plain_json(make_node: MakeNode) -> None:
    node = make_node(HOURS)
    node.card(sm_active_ratio=0.4)
    node.slice("a", sm_quota_ratio=0.5, busy_ratio=0.6)
    document = json.loads(json.dumps(ledger(node).to_json(), allow_nan=False))
    assert set(document) == {"unit", "fleet", "gpus", "tenants", "hours", "assumed_sm_count", "estimated_quota"}
    assert set(document["fleet"]["level_1"]) == {*LEVEL_1, "unaccounted"}
    assert set(document["fleet"]["level_2"]) == {*LEVEL_2, "unaccounted"}
    assert document["gpus"][0]["gpu"] == "GPU-1"
    assert [hour["hour"] for hour in document["hours"]] == ["2026-01-05T00:00:00Z", "2026-01-05T01:00:00Z"]
    assert sum(hour["capacity"] for hour in document["hours"]) == pytest.approx(CARD)


def test_nothing_measured_is_an_empty_ledger(make_node: MakeNode) -> None:
    node = make_node(HOURS)
    got = ledger(node)
    assert got.fleet["capacity"] == 0.0
    assert got.to_json()["gpus"] == []


@st.composite
def fleets(draw: st.DrawFn) -> Node:
    node = Node(1.0, 600.0)
    ratio = st.integers(0, 20).map(lambda n: n / 20)
    for c in range(draw(st.integers(1, 2))):
        kind = draw(st.sampled_from(["mps", "vgpu", "timeslice", "mig", "whole"]))
        gpu = f"GPU-{c}"
        node.card(gpu, sm_active_ratio=np.array(draw(st.lists(ratio, min_size=6, max_size=6))))
        for s in range(1 if kind == "whole" else draw(st.integers(0, 3))):
            fields: dict[str, Any] = {"sm_quota_ratio": draw(ratio)}
            name = "sm_active_ratio" if kind in {"mig", "whole"} else "busy_ratio"
            fields[name] = np.array(draw(st.lists(ratio, min_size=6, max_size=6)))
            if draw(st.booleans()):
                fields |= {"requests_per_second": draw(st.integers(0, 5).map(float)), "step_seconds": 0.1}
            tenant = draw(st.sampled_from(["a", "b", "none"]))
            slice_id = "whole" if kind == "whole" else f"s{s}"
            node.slice(slice_id, gpu=gpu, kind=kind, tenant=tenant, workload=f"w{s}", **fields)
    if draw(st.booleans()):
        node.request("ns/p", cards=1, share=draw(st.sampled_from([0.25, 0.5, 1.0])))
    return node


@settings(max_examples=30, deadline=None)
@given(fleets())
def test_laws(node: Node) -> None:
    partition = node.partition()
    measured = measure_ledger(partition)
    got = conclude_ledger([measured], node.context())
    for table in (got.gpus, got.hours):
        # Complete data: level 1 closes on every card and in every hour.
        assert table["unaccounted_1"].abs().max() == pytest.approx(0.0, abs=1e-5)
    for name in (*LEVEL_1, *LEVEL_2):
        assert (got.gpus[name] >= -1e-6).all(), name
        assert got.fleet[name] == pytest.approx(float(got.tenants[name].sum()), abs=1e-5) or name in {
            "used", "free", "stranded", "unobserved", "unrated",
        }  # fmt: skip
    shuffled = partition.slice.sample(frac=1.0, random_state=1).reset_index(drop=True)
    turned = type(partition)(**{**_fields(partition), "slice": shuffled, "gpu": partition.gpu[::-1]})
    again = conclude_ledger([measure_ledger(turned)], node.context())
    pd.testing.assert_frame_equal(again.gpus, got.gpus)
    pd.testing.assert_series_equal(again.fleet, got.fleet)


def _fields(partition: Any) -> dict[str, Any]:
    return {name: getattr(partition, name) for name in partition.__dataclass_fields__}


def test_nodes_may_come_in_any_order(make_node: MakeNode) -> None:
    parts = []
    for name, use in (("node-a", 0.2), ("node-b", 0.7)):
        node = make_node(HOURS, name=name)
        node.card(f"GPU-{name}", sm_active_ratio=use)
        node.slice("whole", gpu=f"GPU-{name}", kind="whole", steps_count=10.0, step_seconds=1.0)
        parts.append(measure_ledger(node.partition()))
    one, other = conclude_ledger(parts, node.context()), conclude_ledger(parts[::-1], node.context())
    pd.testing.assert_frame_equal(one.gpus, other.gpus)
    assert one.to_json() == other.to_json()
    # One workload, two cards: the calmer slice teaches what a step costs, and the dearer one does not close.
    assert one.gpus["useful"].tolist() == pytest.approx([0.2 * CARD, 0.2 * CARD])
    assert one.gpus["unaccounted_2"].tolist() == pytest.approx([0.0, 0.5 * CARD], abs=1e-6)


def test_a_slice_that_is_never_left_alone_is_measured_by_its_sisters(make_node: MakeNode) -> None:
    parts = []
    for name, use, step in (("node-a", 0.2, 1.0), ("node-b", 0.3, 1.4)):
        node = make_node(HOURS, name=name)
        node.card(f"GPU-{name}", sm_active_ratio=use)
        node.slice("whole", gpu=f"GPU-{name}", kind="whole", steps_count=10.0, step_seconds=step)
        parts.append(measure_ledger(node.partition()))
    got = conclude_ledger(parts, node.context()).gpus
    # A step takes 40 % longer and costs 50 % more: the smaller is contention, the rest does not close.
    assert got["contention"].tolist() == pytest.approx([0.0, 0.08 * CARD])
    assert got["unaccounted_2"].tolist() == pytest.approx([0.0, 0.02 * CARD], abs=1e-6)


def test_a_window_off_the_hour(make_node: MakeNode) -> None:
    node = make_node(HOURS)
    node.window = type(node.window)(START + timedelta(minutes=30), START + timedelta(minutes=150))
    node.card(sm_active_ratio=0.5)
    got = ledger(node)
    assert got.hours["capacity"].tolist() == pytest.approx([CARD / 4, CARD / 2, CARD / 4])


def test_a_frozen_card_is_not_observed_although_it_has_rows(make_node: MakeNode) -> None:
    node = make_node(HOURS)
    half = np.arange(node.count) < node.count // 2
    node.card(sm_active_ratio=np.where(half, 0.4, np.nan), source_age_seconds=np.where(half, 0.0, 600.0))
    node.slice("a", keep=half, sm_quota_ratio=1.0, busy_ratio=0.6)
    terms = shares(ledger(node).fleet)
    assert (terms["used"], terms["wasted"], terms["unobserved"]) == (0.2, 0.3, 0.5)
    assert terms["free"] == 0.0  # nobody knows that it was


def test_cards_that_others_count_and_nobody_shows_are_capacity(make_node: MakeNode) -> None:
    node = make_node(HOURS)
    node.card(sm_active_ratio=0.4)
    node.slice("a", sm_quota_ratio=1.0, busy_ratio=0.6)
    node.fact("gpu", "model", "NVIDIA H100 80GB HBM3", gpu="GPU-1")
    node.fact("node", "unobserved_cards", "2")
    got = ledger(node)
    # The nameless ones are taken for what their neighbours are: 132 SMs each.
    assert got.fleet["capacity"] == pytest.approx(CARD * (1 + 2 * 1.32))
    assert got.fleet["unobserved"] == pytest.approx(CARD * 2 * 1.32)
    assert list(got.gpus["gpu"]) == ["GPU-1", "unobserved-1", "unobserved-2"]
    assert got.fleet["unaccounted_1"] == pytest.approx(0.0, abs=1e-6)


def test_cards_that_were_shown_by_the_end_are_counted_once(make_node: MakeNode) -> None:
    node = make_node(HOURS)
    node.card(sm_active_ratio=0.4)
    node.fact("node", "unobserved_cards", "2", end=START + timedelta(hours=1))
    assert ledger(node).fleet["capacity"] == pytest.approx(CARD)
