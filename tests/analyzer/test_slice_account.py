"""Accounts of slices: state, true use with its provenance, borrowed and starved seconds, energy; what is free now."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.cards import cards
from analyzer.energy import attribute_energy
from analyzer.findings import Finding, Role, SubjectRef, Verdict, make_finding
from analyzer.holding_state import State
from analyzer.quota_moves import quota_moves
from analyzer.slice_account import FreeNow, accounts_document, free_now, measure_account
from analyzer.starvation import takings
from tests.analyzer.conftest import START, MakeNode, Node
from tests.analyzer.test_conformance import wasteful_node

GIB = 2.0**30


def accounts(node: Node, **settings: object) -> pd.DataFrame:
    return measure_account(node.partition(**settings)).set_index("slice")


def free(node: Node) -> tuple[FreeNow, ...]:
    return free_now(measure_account(node.partition()))


@pytest.mark.parametrize(
    ("quiet_minutes", "state"),
    [
        (0, "active"),
        (9, "active"),
        (11, "idle"),
        (59, "idle"),
        (61, "idle-held"),
        (1439, "idle-held"),
        (1441, "abandoned"),
    ],
)
def test_states_by_how_long_nothing_ran(make_node: MakeNode, quiet_minutes: int, state: str) -> None:
    node = make_node(hours=30)
    node.card(sm_active_ratio=0.3)
    busy = np.where(np.arange(node.count) < node.count - quiet_minutes, 0.5, 0.0)
    node.slice("a", sm_quota_ratio=0.5, busy_ratio=busy)
    row = accounts(node).loc["a"]
    assert row["state"] == state
    if state != "active":
        since = pd.Timestamp(row["since_ms"], unit="ms", tz="UTC")
        assert since == node.window.end - timedelta(minutes=quiet_minutes)


def test_unknown_and_gone(make_node: MakeNode) -> None:
    node = make_node(hours=6)
    node.card(sm_active_ratio=0.3)
    node.slice("blind", sm_quota_ratio=0.2, memory_used_bytes=1e9)
    node.slice("gone", workload="gone", sm_quota_ratio=0.2, busy_ratio=0.4, keep=np.arange(node.count) < 100)
    found = accounts(node)
    assert found.loc["blind", "state"] == State.UNKNOWN
    assert found.loc["blind", "used_provenance"] == "unknown"
    assert np.isnan(found.loc["blind", "used_ratio"])
    assert found.loc["gone", "state"] == ""


def test_use_is_weighed_by_sms_and_says_where_it_comes_from(make_node: MakeNode) -> None:
    node = make_node(hours=2)
    node.card(sm_active_ratio=0.3, busy_ratio=1.0)
    node.slice("a", sm_quota_ratio=0.5, sm_active_ratio=0.2, busy_ratio=0.8)
    node.slice("b", workload="b", busy_ratio=0.4)
    found = accounts(node)
    a, b, card = found.loc["a"], found.loc["b"], found.loc[""]
    assert a["used_ratio"] == pytest.approx(0.2)
    assert (a["used_provenance"], a["quota_provenance"]) == ("measured", "measured")
    assert a["of_quota_ratio"] == pytest.approx(0.4)
    assert a["overstated_by"] == pytest.approx(4.0)
    assert a["used_sm_seconds"] == pytest.approx(0.2 * 100 * 7200)
    assert (b["used_provenance"], b["quota_provenance"]) == ("estimated", "estimated")
    assert b["used_ratio"] == pytest.approx(0.1)
    assert card["overstated_by"] == pytest.approx(1 / 0.3)


def test_borrowed_and_starved_are_the_two_sides_of_one_card(make_node: MakeNode) -> None:
    node = make_node(hours=2)
    node.card(sm_active_ratio=1.0)
    node.slice("a", sm_quota_ratio=0.5, sm_active_ratio=0.2, queue_depth_count=3.0)
    node.slice("b", workload="b", sm_quota_ratio=0.5, sm_active_ratio=0.8, queue_depth_count=0.0)
    found = accounts(node)
    assert found.loc["a", "starved_gpu_seconds"] == pytest.approx(0.3 * 7200)
    assert found.loc["b", "borrowed_gpu_seconds"] == pytest.approx(0.3 * 7200)
    assert found.loc["a", "borrowed_gpu_seconds"] == found.loc["b", "starved_gpu_seconds"] == 0.0


def test_in_a_rotation_time_is_what_is_got(make_node: MakeNode) -> None:
    node = make_node(hours=2)
    node.card(sm_active_ratio=0.4, busy_ratio=1.0)
    node.slice("a", kind="timeslice", busy_ratio=0.7, steps_count=10.0)
    node.slice("b", kind="timeslice", workload="b", busy_ratio=0.3, queue_depth_count=2.0)
    found = accounts(node)
    assert found.loc["a", "borrowed_gpu_seconds"] == pytest.approx(0.2 * 7200)
    assert found.loc["b", "starved_gpu_seconds"] == pytest.approx(0.2 * 7200)


def test_joules_sum_to_the_meter_and_are_marked_as_attributed(make_node: MakeNode) -> None:
    node = make_node(hours=2)
    minute = np.arange(node.count)
    node.card(sm_active_ratio=0.3, power_watts=200.0, energy_joules=np.where(minute % 7 == 0, np.nan, 13_000.0))
    node.card("GPU-2", sm_active_ratio=0.0, power_watts=50.0, energy_joules=3_000.0)
    node.card("GPU-3", sm_active_ratio=0.0)
    node.slice("a", sm_quota_ratio=0.5, busy_ratio=0.8)
    found = measure_account(node.partition()).set_index(["gpu", "slice"])
    of_card = found.groupby("gpu")["joules"].sum(min_count=1)
    assert of_card["GPU-1"] == pytest.approx(np.where(minute % 7 == 0, 12_000.0, 13_000.0).sum())
    assert of_card["GPU-2"] == pytest.approx(3_000.0 * node.count)
    assert np.isnan(of_card["GPU-3"])
    assert found.loc[("GPU-1", "a"), "joules_provenance"] == "estimated"
    assert found.loc[("GPU-1", ""), "joules_provenance"] == "estimated"  # some of it is power times time
    assert found.loc[("GPU-2", ""), "joules_provenance"] == "measured"
    told = attribute_energy(node.partition())
    assert told["joules"].sum() == pytest.approx(found["joules"].sum())


def test_free_now_names_cards_shares_and_instances(make_node: MakeNode) -> None:
    node = make_node(hours=4)
    half = np.arange(node.count) < 120
    node.card(sm_active_ratio=0.2, memory_used_bytes=10 * GIB, memory_free_bytes=30 * GIB)
    node.slice("a", sm_quota_ratio=0.5, busy_ratio=0.4, memory_quota_bytes=25 * GIB)
    node.slice("b", workload="b", sm_quota_ratio=0.3, busy_ratio=0.4, memory_quota_bytes=5 * GIB, keep=half)
    node.card("GPU-2", sm_active_ratio=0.0, memory_used_bytes=0.0, memory_free_bytes=40 * GIB)
    node.card("GPU-3", sm_active_ratio=0.3)
    node.slice("gi1", gpu="GPU-3", kind="mig", profile="3g.20gb", sm_quota_ratio=0.4, sm_active_ratio=0.3)
    node.slice("gi2", gpu="GPU-3", kind="mig", profile="3g.20gb", tenant="none", workload="none", sm_quota_ratio=0.4)
    node.card("GPU-4", sm_active_ratio=0.9)
    node.slice("whole", gpu="GPU-4", kind="whole")
    node.card("GPU-5", sm_active_ratio=0.0, keep=half)  # fell silent: nobody knows
    found = {(f.gpu, f.slice): f for f in free(node)}
    assert [f.gpu for f in free(node)] == ["GPU-2", "GPU-1", "GPU-3"]
    assert found["GPU-1", ""].share == pytest.approx(0.5)
    assert found["GPU-1", ""].memory_bytes == pytest.approx(15 * GIB)
    assert found["GPU-1", ""].since == START + timedelta(hours=2)
    assert found["GPU-2", ""].share == 1.0
    assert found["GPU-3", "gi2"].profile == "3g.20gb"
    json.dumps([f.to_json() for f in free(node)])


def test_where_a_holder_s_share_is_not_known_nothing_is_called_free(make_node: MakeNode) -> None:
    node = make_node(hours=2)
    node.card(sm_active_ratio=0.2)
    node.slice("a", kind="vgpu", busy_ratio=0.4)
    assert free(node) == ()


def test_the_document_is_plain(make_node: MakeNode) -> None:
    document = accounts_document(measure_account(wasteful_node().partition()))
    text = json.dumps(document, allow_nan=False)
    assert '"state": "abandoned"' in text
    assert {row["state"] for row in document} >= {"active", "idle-held", "abandoned"}


# --- quota moves ------------------------------------------------------------------------------------------------------


def claim(code: str, workload: str, evidence: dict[str, Any], gpu: str = "GPU-1", tenant: str = "") -> Finding:
    subject = SubjectRef(Role.SUBJECT, "c", "n", gpu, workload, workload, tenant or f"team-{workload}")
    window = Node(hours=48).window
    return make_finding(
        code,
        Verdict.HOLDS,
        (subject,),
        window,
        claim="",
        risk="",
        confidence=0.9,
        coverage=1.0,
        evidence={"kind": "mps", "missed_at_limit": 0.9, "peak_ratio": 0.1, **evidence},
    )


def bounds(quota: float, lower: float, target: float, upper: float) -> dict[str, float]:
    return {"quota_ratio": quota, "lower_ratio": lower, "target_ratio": target, "upper_ratio": upper}


def test_a_share_moves_from_donor_to_receiver_on_one_card() -> None:
    findings = [
        claim("TT311", "wide", bounds(0.6, 0.1, 0.2, 0.3)),
        claim("TT313", "tight", bounds(0.2, 0.25, 0.35, 0.5)),
        claim("TT313", "far", bounds(0.2, 0.25, 0.35, 0.5), gpu="GPU-2"),
    ]
    (move,) = quota_moves(findings, pd.DataFrame(), 60.0)
    assert (move.donor_tenant, move.receiver_tenant, move.place) == ("team-wide", "team-tight", "GPU-1")
    assert (move.lower, move.target, move.upper) == pytest.approx((0.05, 0.15, 0.3))


def test_nothing_is_given_twice() -> None:
    findings = [
        claim("TT311", "wide", bounds(0.6, 0.1, 0.4, 0.5)),
        claim("TT313", "one", bounds(0.2, 0.25, 0.35, 0.5)),
        claim("TT313", "two", bounds(0.2, 0.25, 0.4, 0.5)),
    ]
    moves = quota_moves(findings, pd.DataFrame(), 60.0)
    assert sum(m.target for m in moves) == pytest.approx(0.2)
    assert [m.receiver_workload for m in moves] == ["two"]  # who lacks most comes first


def queue(tenant: str, held: Any, pending: Any, quota: float = 4.0, pool: str = "p") -> pd.DataFrame:
    times = pd.date_range(START, periods=2880, freq="60s")
    frame = pd.DataFrame({"time": times, "cluster": "c", "pool": pool, "tenant": tenant})
    return frame.assign(quota_gpu_count=quota, allocated_gpu_count=held, pending_gpu_count=pending)


def test_quota_of_a_pool_moves_between_tenants() -> None:
    minutes = np.arange(2880)
    rows = pd.concat(
        [
            queue("quiet", np.where(minutes < 20, 2.0, 1.0), 0.0),
            queue("eager", 4.0, 3.0),
            queue("content", 4.0, 0.0),
            queue("elsewhere", 4.0, 9.0, pool="q"),
        ]
    )
    (move,) = quota_moves([], rows, 60.0)
    assert (move.donor_tenant, move.receiver_tenant, move.unit) == ("quiet", "eager", "cards")
    assert move.target == pytest.approx(3.0)
    assert move.lower == pytest.approx(2.0, rel=2e-3)  # its own peak held two
    assert move.upper == pytest.approx(4.0)  # never more than it has, however little is known
    short = quota_moves([], rows[rows["time"] < START + timedelta(hours=2)], 60.0)
    assert short[0].lower < move.lower


def test_who_waits_below_its_quota_lacks_no_quota() -> None:
    rows = pd.concat([queue("quiet", 1.0, 0.0), queue("blocked", 2.0, 3.0)])
    assert quota_moves([], rows, 60.0) == ()


amounts = st.lists(st.floats(0.0, 0.3), min_size=3, max_size=3).map(sorted)


@given(st.lists(amounts, min_size=1, max_size=4), st.lists(amounts, min_size=1, max_size=4))
def test_moves_are_ordered_and_no_donor_gives_more_than_it_has(
    spare: list[list[float]], lack: list[list[float]]
) -> None:
    findings = [
        claim("TT311", f"d{k}", bounds(0.9, 0.9 - upper, 0.9 - target, 0.9 - lower))
        for k, (lower, target, upper) in enumerate(spare)
    ]
    findings += [
        claim("TT313", f"r{k}", bounds(0.1, 0.1 + lower, 0.1 + target, 0.1 + upper))
        for k, (lower, target, upper) in enumerate(lack)
    ]
    given_, taken = dict.fromkeys(range(4), 0.0), dict.fromkeys(range(4), 0.0)
    for move in quota_moves(findings, pd.DataFrame(), 60.0):
        assert move.lower <= move.target + 1e-9
        assert move.target <= move.upper + 1e-9
        assert move.target >= 0.01
        given_[int(move.donor_workload[1:])] += move.target
        taken[int(move.receiver_workload[1:])] += move.target
    assert all(given_[k] <= target + 1e-9 for k, (_, target, _) in enumerate(spare))
    assert all(taken[k] <= target + 1e-9 for k, (_, target, _) in enumerate(lack))


@settings(max_examples=30)
@given(
    st.lists(st.floats(0, 1), min_size=3, max_size=3),
    st.lists(st.floats(0.05, 1), min_size=3, max_size=3),
    st.lists(st.floats(0, 5), min_size=3, max_size=3),
    st.sampled_from(["mps", "vgpu", "timeslice", "mig", "whole"]),
)
def test_who_borrows_does_not_starve_and_nothing_is_negative(
    used: list[float], quota: list[float], waiting: list[float], kind: str
) -> None:
    node = Node(hours=0.1)
    node.card(sm_active_ratio=min(sum(used), 1.0), busy_ratio=1.0)
    for k in range(3):
        fields = {"sm_active_ratio": used[k], "busy_ratio": used[k], "queue_depth_count": waiting[k]}
        node.slice(f"s{k}", kind=kind, workload=f"w{k}", sm_quota_ratio=quota[k], **fields)
    (card,) = cards(node.partition())
    found = takings(card)
    assert (found.borrowed >= 0).all()
    assert (found.starved >= 0).all()
    assert not ((found.borrowed > 1e-12) & (found.starved > 0)).any()
    assert (found.starved <= np.nan_to_num(card.quota) + 1e-12).all()
    if kind in {"mig", "whole"}:
        assert not found.borrowed.any()
        assert not found.starved.any()
