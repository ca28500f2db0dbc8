"""TT301 and TT311."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from analyzer.findings import Finding, Role, Verdict
from analyzer.idle import IdleDetector, how_to_check, right_size, smallest_profile
from analyzer.protocols import Conclusion
from collector.declarations import Objective, ResolvedWorkload, WorkloadDeclaration
from tests.analyzer.conftest import MakeNode, Node


def judge(node: Node, settings: dict[str, object] | None = None, **context: Any) -> Conclusion:
    detector = IdleDetector()
    return detector.conclude(detector.measure(node.partition(**settings or {})), node.context(**context))


def only(conclusion: Conclusion, code: str) -> Finding:
    found = [f for f in conclusion.findings if f.code == code]
    assert len(found) == 1, conclusion
    return found[0]


def declared(service_class: str = "online", **rest: Any) -> dict[tuple[str, str], ResolvedWorkload]:
    if service_class == "online":
        rest = {"objective": Objective(bound_seconds=1.0), **rest}
    declaration = WorkloadDeclaration(service_class=service_class, **rest)  # type: ignore[arg-type]  # literal
    promise = ResolvedWorkload(tenant="team", workload="app", declaration=declaration, declared=True, origin={})
    return {("team", "app"): promise}


def reasons(conclusion: Conclusion, code: str) -> list[tuple[str, bool]]:
    return [(w.reason, w.applicable) for w in conclusion.withheld if w.code == code]


def test_idle_and_held_says_who_since_when_and_how_to_check(make_node: MakeNode) -> None:
    node = make_node(hours=6)
    minute = np.arange(node.count)
    node.card(sm_active_ratio=0.3)
    node.slice("a", sm_quota_ratio=0.25, busy_ratio=np.where(minute < 120, 0.7, 0.0), memory_used_bytes=4e9, pod="ns/a")
    finding = only(judge(node), "TT301")
    assert finding.verdict is Verdict.HOLDS
    subject = finding.subject(Role.SUBJECT)
    assert (subject.gpu, subject.slice, subject.tenant, subject.workload) == ("GPU-1", "a", "team", "app")
    assert finding.evidence["since"].isoformat() == "2026-01-05T02:00:00+00:00"
    assert finding.evidence["until"].isoformat() == "2026-01-05T06:00:00+00:00"
    assert finding.evidence["still"] is True
    assert finding.evidence["memory_used_bytes"] == 4e9
    assert finding.evidence["check"] == "nvidia-smi pmon -i GPU-1 -c 30"
    assert finding.effect is not None
    assert finding.effect.value == pytest.approx(0.25 * 4)
    assert finding.effect.unit == "gpu_hours"
    assert "since 2026-01-05 02:00 UTC (4.0 h)" in finding.claim
    json.dumps(finding.to_json())


def test_whoever_holds_a_whole_card_holds_the_memory_of_its_card(make_node: MakeNode) -> None:
    node = make_node(hours=3)
    node.card(busy_ratio=0.0, memory_used_bytes=9e9)
    node.slice("whole", kind="whole")
    finding = only(judge(node), "TT301")
    assert finding.evidence["memory_used_bytes"] == 9e9
    assert finding.coverage == 1.0


@pytest.mark.parametrize("minutes", [59, 61])
def test_the_limit_is_the_setting(make_node: MakeNode, minutes: int) -> None:
    node = make_node(hours=4)
    minute = np.arange(node.count)
    node.card(sm_active_ratio=0.3)
    node.slice("a", sm_quota_ratio=0.25, busy_ratio=np.where(minute < node.count - minutes, 0.7, 0.0))
    found = [f.code for f in judge(node).findings]
    assert found == (["TT301"] if minutes == 61 else [])
    assert judge(node, {"idle_minutes": 90.0}).findings == []


def test_absent_is_not_idle(make_node: MakeNode) -> None:
    node = make_node(hours=6)
    minute = np.arange(node.count)
    node.card(sm_active_ratio=0.3)
    gap = np.where(minute < 60, 0.0, np.nan)
    node.slice("a", sm_quota_ratio=0.25, busy_ratio=gap, memory_used_bytes=1e9)
    got = judge(node)
    assert [f.code for f in got.findings] == []
    assert reasons(got, "TT301") == [("samples cover less than 50% of the idle stretch", True)]


def test_without_any_activity_field_nothing_is_said(make_node: MakeNode) -> None:
    node = make_node(hours=6)
    node.card()
    node.slice("a", sm_quota_ratio=0.25, memory_used_bytes=1e9)
    got = judge(node)
    assert got.findings == []
    assert {w.code for w in got.withheld if w.applicable} == {"TT301", "TT311"}
    assert "busy_ratio" in reasons(got, "TT301")[0][0]


def test_seen_too_shortly_is_withheld(make_node: MakeNode) -> None:
    node = make_node(hours=6)
    minute = np.arange(node.count)
    node.card(sm_active_ratio=0.0)
    node.slice("a", sm_quota_ratio=0.25, busy_ratio=0.0, keep=minute >= node.count - 30)
    assert reasons(judge(node), "TT301") == [("idle since it was first seen, but seen for less than 60 min", True)]


def test_a_stretch_that_ended_and_a_slice_that_is_gone_are_not_claimed(make_node: MakeNode) -> None:
    node = make_node(hours=6)
    minute = np.arange(node.count)
    node.card(sm_active_ratio=0.1)
    node.slice("worked-again", sm_quota_ratio=0.25, busy_ratio=np.where(minute < 340, 0.0, 0.5), workload="w1")
    node.slice("gone", sm_quota_ratio=0.25, busy_ratio=0.0, keep=minute < 200, workload="w2")
    assert [f.code for f in judge(node).findings if f.code == "TT301"] == []


def test_a_request_served_is_activity(make_node: MakeNode) -> None:
    node = make_node(hours=6)
    node.card(sm_active_ratio=0.1)
    node.slice("a", sm_quota_ratio=0.25, busy_ratio=0.0, requests_per_second=0.1)
    assert only(judge(node), "TT311").evidence["target_ratio"] == 0.01  # never down to nothing


def test_idle_since_before_the_window(make_node: MakeNode) -> None:
    node = make_node(hours=6)
    node.card(sm_active_ratio=0.1)
    node.slice("a", sm_quota_ratio=0.5, busy_ratio=0.0, idle_seconds=np.arange(node.count) * 60 + 7200.0)
    finding = only(judge(node), "TT301")
    assert finding.evidence["since"].isoformat() == "2026-01-04T22:01:00+00:00"
    assert "or earlier" in finding.claim


def test_mig_is_judged_by_its_own_share(make_node: MakeNode) -> None:
    node = make_node(hours=6)
    node.card(sm_count=132)
    share = 16 / 132
    # 8 % of its own SMs is 1 % of the card: not idle.
    node.slice("gi7", kind="mig", profile="1g.10gb", sm_quota_ratio=share, sm_active_ratio=0.08 * share, workload="a")
    node.slice("gi8", kind="mig", profile="1g.10gb", sm_quota_ratio=share, sm_active_ratio=0.001 * share, workload="b")
    found = [f for f in judge(node).findings if f.code == "TT301"]
    assert [f.subject(Role.SUBJECT).slice for f in found] == ["gi8"]
    assert found[0].evidence["check"] == "dcgmi dmon -e 1001,1002 -i GPU-1/8 -c 30"


def test_reserve_is_told_apart_from_waste(make_node: MakeNode) -> None:
    node = make_node(hours=6)
    node.card(sm_active_ratio=0.1)
    node.slice("a", sm_quota_ratio=0.5, busy_ratio=0.0)
    finding = only(judge(node, declarations=declared(floor=0.2)), "TT301")
    assert finding.effect is not None
    assert finding.effect.value == pytest.approx(0.3 * 6)
    assert "20% of the card is its reserve" in finding.claim
    got = judge(node, declarations=declared(floor=0.5))
    assert reasons(got, "TT301") == [("idle, and all of it is declared or forecast reserve", False)]


def test_what_nobody_holds_is_nobodys_waste(make_node: MakeNode) -> None:
    node = make_node(hours=6)
    node.card(sm_active_ratio=0.0)
    node.slice("gi1", kind="mig", tenant="none", workload="none", sm_quota_ratio=0.3, sm_active_ratio=0.0)
    got = judge(node)
    assert got.findings == []
    assert reasons(got, "TT301") == reasons(got, "TT311") == [("nobody holds it", False)]


def test_an_unknown_quota_leaves_the_size_open(make_node: MakeNode) -> None:
    node = make_node(hours=6)
    node.card(sm_active_ratio=0.1)
    node.slice("a", kind="vgpu", busy_ratio=0.0)
    finding = only(judge(node), "TT301")
    assert finding.effect is None
    assert "a share of unknown size" in finding.claim


def test_an_equal_part_is_said_to_be_estimated(make_node: MakeNode) -> None:
    node = make_node(hours=6)
    node.card(sm_active_ratio=0.1)
    node.slice("a", busy_ratio=0.0)
    node.slice("b", busy_ratio=0.5, workload="other")
    finding = only(judge(node), "TT301")
    assert "holds about 50% (an equal part) of GPU-1" in finding.claim
    assert finding.evidence["quota_provenance"] == "estimated"


# --- TT311 ------------------------------------------------------------------------------------------------------------


def steady(make_node: MakeNode, use: float, quota: float, hours: float = 48, **slice_: Any) -> Node:
    node = make_node(hours=hours)
    node.card(sm_active_ratio=use)
    node.slice("a", sm_quota_ratio=quota, busy_ratio=0.9, **slice_)
    return node


def test_over_provisioned_names_a_target_with_bounds(make_node: MakeNode) -> None:
    finding = only(judge(steady(make_node, 0.1, 0.6)), "TT311")
    assert finding.verdict is Verdict.HOLDS
    assert finding.evidence["peak_ratio"] == pytest.approx(0.1)
    assert finding.evidence["target_ratio"] == pytest.approx(0.115)
    assert finding.evidence["upper_ratio"] == pytest.approx(0.1 * 1.15 * 1.5)  # two days of history
    assert finding.effect is not None
    assert finding.effect.value == pytest.approx(0.6 - 0.115)
    assert finding.effect.lower <= finding.effect.value <= finding.effect.upper
    assert finding.evidence["provenance"] == "estimated"


def test_short_history_widens_the_bounds_and_weakens_the_verdict(make_node: MakeNode) -> None:
    finding = only(judge(steady(make_node, 0.1, 0.3, hours=6)), "TT311")
    assert finding.verdict is Verdict.SUSPECTED
    assert finding.evidence["upper_ratio"] == pytest.approx(0.1 * 1.15 * 5)


def test_near_its_quota_nothing_is_claimed(make_node: MakeNode) -> None:
    assert judge(steady(make_node, 0.4, 0.6)).findings == []


def test_a_target_is_never_below_the_reserve(make_node: MakeNode) -> None:
    finding = only(judge(steady(make_node, 0.1, 0.6), declarations=declared(floor=0.3)), "TT311")
    assert finding.evidence["target_ratio"] == pytest.approx(0.3)
    assert judge(steady(make_node, 0.1, 0.6), declarations=declared(floor=0.6)).findings == []


def test_offline_work_is_sized_by_its_ninetieth(make_node: MakeNode) -> None:
    rows = {"p50": 0.1, "p90": 0.2, "p95": 0.3, "p99": 0.4, "history_days": 2.0}
    assert right_size(rows, online=False).target == pytest.approx(0.23)
    assert right_size(rows, online=True).target == pytest.approx(0.46)
    assert right_size(rows, online=True).upper == pytest.approx(0.4 * 1.15 * 1.5)
    node = make_node(hours=48)
    burst = np.arange(node.count) % 25 == 0
    node.card(sm_active_ratio=np.where(burst, 0.25, 0.1))
    node.slice("a", sm_quota_ratio=0.6, busy_ratio=0.9)
    assert only(judge(node), "TT311").evidence["target_ratio"] == pytest.approx(0.25 * 1.15)
    batch = judge(node, declarations=declared("offline"))
    assert only(batch, "TT311").evidence["target_ratio"] == pytest.approx(0.1 * 1.15)


def test_a_vgpu_quota_must_hold_the_time_share_that_it_throttles_by(make_node: MakeNode) -> None:
    node = make_node(hours=48)
    node.card(sm_active_ratio=0.05)
    node.slice("a", kind="vgpu", sm_quota_ratio=0.8, busy_ratio=0.7)
    assert judge(node).findings == []


def test_mig_is_offered_a_smaller_profile(make_node: MakeNode) -> None:
    node = make_node(hours=48)
    node.card(sm_count=132)
    node.fact("gpu", "model", "NVIDIA H100 80GB HBM3", gpu="GPU-1")
    node.slice("gi1", kind="mig", profile="3g.40gb", sm_quota_ratio=60 / 132, sm_active_ratio=0.1)
    finding = only(judge(node), "TT311")
    assert finding.evidence["target_profile"] == "1g.10gb"
    assert "profile 1g.10gb would do" in finding.claim
    small = make_node(hours=48)
    small.card(sm_count=132)
    small.fact("gpu", "model", "NVIDIA H100 80GB HBM3", gpu="GPU-1")
    small.slice("gi1", kind="mig", profile="1g.10gb", sm_quota_ratio=16 / 132, sm_active_ratio=0.01)
    assert judge(small).findings == []


def test_smallest_profile() -> None:
    assert smallest_profile("NVIDIA H100 80GB HBM3", "7g.80gb", 0.3) == "3g.40gb"
    assert smallest_profile("NVIDIA H100 80GB HBM3", "2g.20gb", 0.21) is None
    assert smallest_profile("Tesla T4", "2g.99gb", 0.1) is None


@pytest.mark.parametrize(
    ("slice_", "reason", "applicable"),
    [
        ({"kind": "timeslice", "sm_quota_ratio": 0.5, "busy_ratio": 0.2}, "time slicing grants no share", False),
        ({"busy_ratio": 0.2}, "its quota is not known (sm_quota_ratio)", True),
        ({"sm_quota_ratio": 0.5, "busy_ratio": 0.0}, "idle throughout: TT301 speaks of it", False),
    ],
)
def test_what_is_not_said_is_said_why(
    make_node: MakeNode, slice_: dict[str, Any], reason: str, applicable: bool
) -> None:
    node = make_node(hours=6)
    node.card(sm_active_ratio=0.2)
    node.slice("a", **slice_)
    assert reasons(judge(node), "TT311") == [(reason, applicable)]


def test_too_few_samples(make_node: MakeNode) -> None:
    node = make_node(hours=6)
    minute = np.arange(node.count)
    node.card(sm_active_ratio=0.2)
    node.slice("a", sm_quota_ratio=0.5, busy_ratio=0.5, keep=minute >= node.count - 50, workload="young")
    node.slice("b", sm_quota_ratio=0.2, busy_ratio=np.where(minute % 3 == 0, 0.5, np.nan), workload="thin")
    found = reasons(judge(node), "TT311")
    assert ("fewer than 60 samples", True) in found
    assert ("samples cover less than 50% of its life in the window", True) in found


def test_order_of_rows_does_not_matter(make_node: MakeNode) -> None:
    node = steady(make_node, 0.1, 0.6)
    detector = IdleDetector()
    measures = detector.measure(node.partition())
    turned = measures[::-1].reset_index(drop=True)
    assert detector.conclude(measures, node.context()) == detector.conclude(turned, node.context())


def test_how_to_check_a_whole_card() -> None:
    assert how_to_check("whole", "GPU-1", "whole").startswith("nvidia-smi -i GPU-1")
