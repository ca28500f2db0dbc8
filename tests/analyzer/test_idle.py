"""TT301, TT302, TT311 to TT314."""

from __future__ import annotations

import json
import shlex
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from analyzer.findings import Finding, Role, Verdict
from analyzer.idle import IdleDetector, how_to_check
from analyzer.protocols import Conclusion
from analyzer.sizing import right_size, smallest_profile
from collector.declarations import Objective, Owner, ResolvedWorkload, WorkloadDeclaration
from tests.analyzer.conftest import START, MakeNode, Node

GIB = 2.0**30


def judge(node: Node, settings: dict[str, object] | None = None, **context: Any) -> Conclusion:
    detector = IdleDetector()
    return detector.conclude(detector.measure(node.partition(**settings or {})), node.context(**context))


def only(conclusion: Conclusion, code: str) -> Finding:
    found = [f for f in conclusion.findings if f.code == code]
    assert len(found) == 1, conclusion
    return found[0]


def declared(service_class: str = "online", **rest: Any) -> dict[Owner, ResolvedWorkload]:
    if service_class == "online":
        rest = {"objective": Objective(bound_seconds=1.0), **rest}
    declaration = WorkloadDeclaration(service_class=service_class, **rest)  # type: ignore[arg-type]  # literal
    promise = ResolvedWorkload(tenant="team", workload="app", declaration=declaration, declared=True, origin={})
    return {("c", "team", "app"): promise}


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
    assert {w.code for w in got.withheld if w.applicable} == set(IdleDetector.codes)
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


@pytest.mark.parametrize("kind", ["whole", "mig", "mps"])
def test_names_are_no_shell_in_a_check(kind: str) -> None:
    words = shlex.split(how_to_check(kind, "GPU-1; reboot", "gi3"))
    assert [word for word in words if "reboot" in word] == ["GPU-1; reboot" + ("/3" if kind == "mig" else "")]


def test_a_smaller_profile_must_hold_the_memory_too(make_node: MakeNode) -> None:
    node = make_node(hours=48)
    node.card(sm_count=132)
    node.fact("gpu", "model", "NVIDIA H100 80GB HBM3", gpu="GPU-1")
    fields = {"sm_quota_ratio": 60 / 132, "sm_active_ratio": 0.1, "memory_quota_bytes": 40 * GIB}
    node.slice("gi1", kind="mig", profile="3g.40gb", memory_used_bytes=12 * GIB, **fields)
    assert only(judge(node), "TT311").evidence["target_profile"] == "1g.20gb"
    assert reasons(judge(node), "TT312") == [("an instance is sized as one, by TT311", False)]


# --- TT302 ------------------------------------------------------------------------------------------------------------


def test_idle_for_a_day_is_abandoned(make_node: MakeNode) -> None:
    node = make_node(hours=30)
    node.card(sm_active_ratio=0.3)
    node.slice("a", sm_quota_ratio=0.25, busy_ratio=np.where(np.arange(node.count) < 180, 0.5, 0.0))
    finding = only(judge(node), "TT302")
    assert finding.verdict is Verdict.HOLDS
    assert finding.evidence["state"] == "abandoned"
    assert finding.evidence["owner"] == "team"
    assert finding.effect is not None
    assert finding.effect.value == pytest.approx(27 * 0.25)
    assert [f for f in judge(node).findings if f.code == "TT301"] == []  # one claim a slice
    later = judge(node, {"abandoned_hours": 48.0})
    assert only(later, "TT301").evidence["state"] == "idle-held"


def test_memory_of_a_pod_that_ended_is_a_zombie(make_node: MakeNode) -> None:
    node = make_node(hours=6)
    node.card(sm_active_ratio=0.3)
    busy = np.where(np.arange(node.count) < 120, 0.5, 0.0)
    node.slice("a", sm_quota_ratio=0.25, busy_ratio=busy, memory_used_bytes=3 * GIB, pod="ns/a")
    node.slice("b", sm_quota_ratio=0.25, busy_ratio=busy, memory_used_bytes=3 * GIB, pod="ns/b", workload="other")
    ended = START + timedelta(hours=2)
    node.fact("pod", "request", '{"cards": 1}', thing="ns/a", end=ended)
    node.fact("pod", "request", '{"cards": 1}', thing="ns/b")
    finding = only(judge(node), "TT302")
    assert finding.subject(Role.SUBJECT).slice == "a"
    assert finding.verdict is Verdict.HOLDS
    assert finding.evidence["pod_ended"] == ended
    assert "its pod ended at 2026-01-05 02:00 and 3.0 GiB stay" in finding.claim
    assert only(judge(node), "TT301").subject(Role.SUBJECT).slice == "b"


def test_a_pod_that_came_back_under_its_name_is_no_zombie(make_node: MakeNode) -> None:
    node = make_node(hours=6)
    node.card(sm_active_ratio=0.3)
    node.slice("a", sm_quota_ratio=0.25, busy_ratio=0.0, memory_used_bytes=3 * GIB, pod="ns/a")
    node.fact("pod", "request", '{"cards": 1}', thing="ns/a", end=START + timedelta(hours=1))
    node.fact("pod", "request", '{"cards": 1}', thing="ns/a", start=START + timedelta(hours=1))
    assert only(judge(node), "TT301")


def test_a_server_that_nobody_asks_is_suspected(make_node: MakeNode) -> None:
    node = make_node(hours=6)
    node.card(sm_active_ratio=0.3)
    fields = {"sm_quota_ratio": 0.25, "busy_ratio": 0.0, "memory_used_bytes": 3 * GIB}
    node.slice("a", requests_per_second=0.0, queue_depth_count=0.0, **fields)
    node.slice("b", workload="stuck", requests_per_second=0.0, queue_depth_count=2.0, **fields)
    finding = only(judge(node), "TT302")
    assert finding.verdict is Verdict.SUSPECTED
    assert finding.evidence["clientless"] is True
    assert only(judge(node), "TT301").subject(Role.SUBJECT).workload == "stuck"  # requests wait: no lack of clients


@pytest.mark.parametrize("field", ["pcie_rx_bytes_per_second", "decoder_ratio"])
def test_moving_data_or_coding_video_alone_on_a_card_is_activity(make_node: MakeNode, field: str) -> None:
    node = make_node(hours=6)
    node.card(busy_ratio=0.0, **{field: 5e6 if "pcie" in field else 0.4})
    node.slice("whole", kind="whole")
    assert [f for f in judge(node).findings if f.code == "TT301"] == []
    quiet = make_node(hours=6)
    quiet.card(busy_ratio=0.0, **{field: 5e3 if "pcie" in field else 0.0})
    quiet.slice("whole", kind="whole")
    assert only(judge(quiet), "TT301")


# --- TT312 ------------------------------------------------------------------------------------------------------------


def test_memory_over_provisioned_goes_by_the_peak(make_node: MakeNode) -> None:
    node = make_node(hours=48)
    node.card(sm_active_ratio=0.3)
    used = np.where(np.arange(node.count) == 100, 8 * GIB, 5 * GIB)
    node.slice("a", kind="vgpu", busy_ratio=0.3, memory_used_bytes=used, memory_quota_bytes=40 * GIB)
    finding = only(judge(node), "TT312")
    assert finding.verdict is Verdict.HOLDS
    assert finding.evidence["peak_bytes"] == 8 * GIB
    assert finding.evidence["target_bytes"] == pytest.approx(8 * 1.15 * GIB)
    assert finding.evidence["lower_bytes"] == pytest.approx(5 * 1.15 * GIB, rel=2e-3)  # the median of two daily peaks
    assert finding.evidence["upper_bytes"] == pytest.approx(8 * 1.15 * 1.5 * GIB)
    assert finding.effect is not None
    assert finding.effect.lower <= finding.effect.value <= finding.effect.upper


def test_memory_near_its_quota_or_without_one(make_node: MakeNode) -> None:
    node = make_node(hours=48)
    node.card(sm_active_ratio=0.3)
    node.slice("a", kind="vgpu", busy_ratio=0.3, memory_used_bytes=30 * GIB, memory_quota_bytes=40 * GIB)
    node.slice("b", kind="mps", workload="b", busy_ratio=0.3, memory_used_bytes=3 * GIB)
    got = judge(node)
    assert [f for f in got.findings if f.code == "TT312"] == []
    assert reasons(got, "TT312") == [("its memory quota is not known (memory_quota_bytes)", True)]


# --- TT313, TT314 -----------------------------------------------------------------------------------------------------


def server(node: Node, name: str, got: Any, missed: Any, **fields: Any) -> None:
    """A server of 100 requests a second; where it misses, half of them are late."""
    rates = {"requests_per_second": 100.0, "within_objective_per_second": np.where(missed, 50.0, 100.0)}
    node.slice(name, workload=name, sm_active_ratio=got, busy_ratio=0.9, **{**rates, **fields})


def test_under_provisioned_names_what_would_do(make_node: MakeNode) -> None:
    node = make_node(hours=48)
    busy_hour = np.arange(node.count) % 360 < 60
    node.card(sm_active_ratio=0.5)
    server(node, "a", np.where(busy_hour, 0.2, 0.1), busy_hour, sm_quota_ratio=0.2)
    finding = only(judge(node), "TT313")
    assert finding.verdict is Verdict.HOLDS
    evidence = finding.evidence
    assert evidence["missed_at_limit"] == 1.0
    assert evidence["missed_intervals"] == 480
    assert evidence["keeps_up_to"] == pytest.approx(0.5)  # it kept its objective at half its share
    assert 0.2 <= evidence["lower_ratio"] <= evidence["target_ratio"] <= evidence["upper_ratio"]
    assert evidence["upper_ratio"] == pytest.approx(1.5 * evidence["target_ratio"])


def test_missing_an_objective_below_the_limit_is_no_lack_of_share(make_node: MakeNode) -> None:
    node = make_node(hours=48)
    node.card(sm_active_ratio=0.5)
    server(node, "a", 0.1, np.arange(node.count) % 360 < 60, sm_quota_ratio=0.3)
    assert [f for f in judge(node).findings if f.code == "TT313"] == []


def test_at_the_limit_with_the_objective_kept_is_a_good_fit(make_node: MakeNode) -> None:
    node = make_node(hours=48)
    node.card(sm_active_ratio=0.5)
    server(node, "a", 0.2, False, sm_quota_ratio=0.2)
    assert [f for f in judge(node).findings if f.code.startswith("TT31")] == []


def test_full_memory_that_preempts_is_under_provisioned(make_node: MakeNode) -> None:
    node = make_node(hours=12)
    node.card(sm_active_ratio=0.5)
    preempted = np.where(np.arange(node.count) % 60 == 0, 1.0, 0.0)
    fields = {"memory_used_bytes": 9.8 * GIB, "memory_quota_bytes": 10 * GIB, "sm_quota_ratio": 0.4}
    server(node, "a", 0.1, False, preemption_count=preempted, **fields)
    server(node, "b", 0.1, False, **fields)  # full, and nothing says that it hurts
    finding = only(judge(node), "TT313")
    assert finding.subject(Role.SUBJECT).workload == "a"
    assert finding.evidence["preemptions"] == 12
    assert "its memory of 10.0 GiB was full in 720 intervals" in finding.claim


def test_starved_names_who_took_the_share(make_node: MakeNode) -> None:
    node = make_node(hours=12)
    hungry = np.arange(node.count) < 120
    node.card(sm_active_ratio=1.0)
    server(node, "a", np.where(hungry, 0.2, 0.5), False, sm_quota_ratio=0.5, queue_depth_count=np.where(hungry, 9, 0))
    node.slice("b", tenant="rival", workload="b", sm_quota_ratio=0.5, sm_active_ratio=np.where(hungry, 0.8, 0.5))
    finding = only(judge(node), "TT314")
    assert finding.verdict is Verdict.HOLDS
    assert finding.subject(Role.SUBJECT).workload == "a"
    assert finding.evidence["starved_gpu_seconds"] == pytest.approx(120 * 60 * 0.3)
    assert finding.evidence["taken_by"] == [
        {"tenant": "rival", "workload": "b", "gpu_seconds": pytest.approx(120 * 60 * 0.3)}
    ]
    assert "rival/b took most of it" in finding.claim


def test_who_asks_for_nothing_or_has_room_is_not_starved(make_node: MakeNode) -> None:
    node = make_node(hours=12)
    node.card(sm_active_ratio=1.0)
    server(node, "a", 0.2, False, sm_quota_ratio=0.5, queue_depth_count=0.0)
    node.slice("b", workload="b", sm_quota_ratio=0.5, sm_active_ratio=0.8)
    assert [f for f in judge(node).findings if f.code == "TT314"] == []
    roomy = make_node(hours=12)
    roomy.card(sm_active_ratio=0.3)
    server(roomy, "a", 0.2, False, sm_quota_ratio=0.5, queue_depth_count=3.0)
    roomy.slice("b", workload="b", sm_quota_ratio=0.5, sm_active_ratio=0.1)
    assert [f for f in judge(roomy).findings if f.code == "TT314"] == []


def test_an_instance_cannot_be_starved(make_node: MakeNode) -> None:
    node = make_node(hours=12)
    node.card(sm_active_ratio=1.0)
    node.slice("gi1", kind="mig", profile="3g.40gb", sm_quota_ratio=0.4, sm_active_ratio=0.2, queue_depth_count=5.0)
    assert reasons(judge(node), "TT314") == [("nobody can take of its share", False)]
