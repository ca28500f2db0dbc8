"""TT401 to TT410."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from analyzer.bottleneck import BottleneckDetector
from analyzer.bottleneck_scores import hold, limit_scores
from analyzer.findings import Finding, Role
from analyzer.protocols import Conclusion
from tests.analyzer.conftest import MakeNode, Node


def judge(node: Node) -> Conclusion:
    detector = BottleneckDetector()
    return detector.conclude(detector.measure(node.partition()), node.context())


def only(conclusion: Conclusion) -> Finding:
    assert len(conclusion.findings) == 1, conclusion
    return conclusion.findings[0]


def whole(make_node: MakeNode, hours: float = 4, **fields: Any) -> Node:
    node = make_node(hours=hours)
    values = {"sm_active_ratio": 0.9, "engine_active_ratio": 0.98, "busy_ratio": 0.99} | fields
    node.card(**values)
    node.slice("whole", kind="whole")
    return node


def test_memory_bandwidth(make_node: MakeNode) -> None:
    node = whole(make_node, sm_active_ratio=0.45, dram_active_ratio=0.7, tensor_active_ratio=0.2, fp16_active_ratio=0.1)
    finding = only(judge(node))
    assert finding.code == "TT402"
    assert finding.subject(Role.SUBJECT).slice == "whole"
    assert finding.evidence["busy_overstates_sm_times"] == pytest.approx(2.2)
    assert "overstates the SMs 2.2 times" in finding.claim
    assert len(finding.evidence["runners_up"]) == 2
    assert finding.evidence["score"] == pytest.approx(0.7 / 0.8 / 0.75)
    assert finding.effect is not None
    assert finding.effect.value > 0.9
    json.dumps(finding.to_json(), allow_nan=False)


def test_compute(make_node: MakeNode) -> None:
    node = whole(make_node, dram_active_ratio=0.5, tensor_active_ratio=0.7)
    finding = only(judge(node))
    assert finding.code == "TT401"
    assert "overstates" not in finding.claim
    assert finding.confidence == pytest.approx(0.9 * 0.8)  # one pipe alone is known


def test_busy_pipes_beside_a_busy_interface_are_compute(make_node: MakeNode) -> None:
    # The interface is at 0.81 of what it reaches, but not ten points above the pipe that it feeds.
    assert only(judge(whole(make_node, dram_active_ratio=0.65, tensor_active_ratio=0.75))).code == "TT401"


def test_neither(make_node: MakeNode) -> None:
    assert judge(whole(make_node, dram_active_ratio=0.3, tensor_active_ratio=0.3)).findings == []


def test_only_working_time_counts(make_node: MakeNode) -> None:
    works = np.arange(240) < 60
    node = whole(
        make_node,
        sm_active_ratio=np.where(works, 0.9, 0.0),
        engine_active_ratio=np.where(works, 0.98, 0.0),
        dram_active_ratio=np.where(works, 0.3, 0.0),
        fp32_active_ratio=np.where(works, 0.7, 0.0),
    )
    finding = only(judge(node))
    assert finding.evidence["working_windows"] == 6
    assert finding.evidence["sm_active"] == pytest.approx(0.9)


def test_a_mig_instance_is_measured_against_its_own_share(make_node: MakeNode) -> None:
    node = make_node(hours=4)
    node.card(sm_count=132)
    node.fact("gpu", "model", "NVIDIA H100 80GB HBM3", gpu="GPU-1")
    sms = 32 / 132
    node.slice(
        "gi3",
        kind="mig",
        profile="2g.20gb",
        sm_quota_ratio=sms,
        sm_active_ratio=0.5 * sms,
        engine_active_ratio=0.9 * sms,
        tensor_active_ratio=0.1 * sms,
        dram_active_ratio=0.72 * 0.25,  # of the two memory slices of eight
    )
    finding = only(judge(node))
    assert finding.code == "TT402"
    assert finding.evidence["dram_active"] == pytest.approx(0.72)
    assert finding.evidence["sm_active"] == pytest.approx(0.5)
    assert finding.evidence["counters"] == "own"
    assert finding.evidence["busy_overstates_sm_times"] is None


def test_a_profile_of_unknown_share_is_withheld(make_node: MakeNode) -> None:
    node = make_node(hours=4)
    node.card()
    node.slice("gi3", kind="mig", profile="2g.99gb", sm_quota_ratio=0.2, sm_active_ratio=0.1, dram_active_ratio=0.1)
    reasons = {w.code: w.reason for w in judge(node).withheld if w.slice}
    assert reasons["TT402"] == "share of memory slices of 2g.99gb is not known"
    assert reasons["TT401"] == "no any pipe (tensor, fp16, fp32, fp64)"  # it needs no memory slices
    assert reasons["TT404"] == "PCIe and NVLink are counted of the card, not of its instances"


def test_shared_cards_speak_for_the_card(make_node: MakeNode) -> None:
    node = make_node(hours=4)
    node.card(sm_active_ratio=0.5, engine_active_ratio=0.9, dram_active_ratio=0.7, tensor_active_ratio=0.1)
    node.slice("a", sm_quota_ratio=0.5, busy_ratio=0.5)
    node.slice("b", sm_quota_ratio=0.5, busy_ratio=0.5)
    got = judge(node)
    finding = only(got)
    assert (finding.subject(Role.SUBJECT).slice, finding.subject(Role.SUBJECT).gpu) == ("", "GPU-1")
    assert finding.claim.startswith("what shares GPU-1")
    about = {w.slice for w in got.withheld if w.code == "TT402" and "see what is said of the card" in w.reason}
    assert about == {"a", "b"}


def test_a_slice_is_judged_while_it_has_the_card_to_itself(make_node: MakeNode) -> None:
    node = make_node(hours=6)
    mine = np.arange(360) < 180
    node.card(sm_active_ratio=0.5, engine_active_ratio=0.9, dram_active_ratio=0.7, tensor_active_ratio=0.1)
    node.slice("a", sm_quota_ratio=0.5, busy_ratio=np.where(mine, 0.9, 0.0))
    node.slice("b", sm_quota_ratio=0.5, busy_ratio=np.where(mine, 0.0, 0.9))
    found = {f.subject(Role.SUBJECT).slice: f for f in judge(node).findings if f.code == "TT402"}
    assert set(found) == {"", "a", "b"}
    assert "while alone on it" in found["a"].claim
    assert found["a"].evidence["counters"] == "alone"
    assert found["a"].evidence["working_windows"] == 18


def test_a_slice_that_works_alone_on_a_shared_card_has_the_cards_counters(make_node: MakeNode) -> None:
    node = make_node(hours=4)
    node.card(sm_active_ratio=0.5, engine_active_ratio=0.9, dram_active_ratio=0.7, tensor_active_ratio=0.1)
    node.slice("a", sm_quota_ratio=0.5, busy_ratio=0.9)
    node.slice("b", sm_quota_ratio=0.5, busy_ratio=0.01)
    assert {f.subject(Role.SUBJECT).slice for f in judge(node).findings} == {"", "a"}


ALL = {
    "sm_active_ratio": 0.3,
    "engine_active_ratio": 0.3,
    "busy_ratio": 0.4,
    "dram_active_ratio": 0.2,
    "fp16_active_ratio": 0.2,
    "pcie_rx_bytes_per_second": 1e9,
    "throttle_power_ratio": 0.0,
    "throttle_thermal_ratio": 0.0,
    "sm_clock_hertz": 1.7e9,
    "memory_used_bytes": 40 * 2**30,
    "memory_free_bytes": 40 * 2**30,
}


def complete(make_node: MakeNode, *, without: str = "", **fields: Any) -> Node:
    node = make_node(hours=4)
    node.card(**{name: value for name, value in (ALL | fields).items() if name != without})
    node.fact("gpu", "model", "NVIDIA H100 80GB HBM3", gpu="GPU-1")
    node.slice("whole", kind="whole")
    if without != "cpu_busy_ratio":
        node.rows("node", {}, {"cpu_busy_ratio": 0.3})
    return node


def test_with_all_evidence_nothing_is_withheld(make_node: MakeNode) -> None:
    got = judge(complete(make_node))
    assert [(w.code, w.applicable) for w in got.withheld] == [("TT410", False)]
    assert {f.code for f in got.findings} <= {"TT321"}


@pytest.mark.parametrize(
    ("absent", "codes"),
    [
        ("sm_active_ratio", {"TT401", "TT404", "TT407", "TT408"}),
        ("engine_active_ratio", {"TT408", "TT409"}),
        ("dram_active_ratio", {"TT402", "TT407"}),
        ("fp16_active_ratio", {"TT401", "TT402", "TT407"}),
        ("pcie_rx_bytes_per_second", {"TT404"}),
        ("throttle_power_ratio", {"TT405"}),
        ("sm_clock_hertz", {"TT405"}),
        ("throttle_thermal_ratio", {"TT406"}),
        ("memory_used_bytes", {"TT403", "TT321"}),
        ("cpu_busy_ratio", {"TT409"}),
    ],
)
def test_only_the_verdicts_that_need_a_field_are_withheld(make_node: MakeNode, absent: str, codes: set[str]) -> None:
    got = judge(complete(make_node, without=absent))
    assert {w.code for w in got.withheld if w.applicable} == codes
    assert all(w.reason.startswith("no ") for w in got.withheld)
    declared = {code for code, need in BottleneckDetector.needs.items() if absent in str(need)}
    assert codes <= declared | {"TT321"}


def test_work_that_hardly_works_is_not_meant(make_node: MakeNode) -> None:
    got = judge(complete(make_node, sm_active_ratio=0.01, engine_active_ratio=0.01, busy_ratio=0.01))
    assert {(w.reason, w.applicable) for w in got.withheld if w.code != "TT410"} == {
        ("hardly worked in the window", False)
    }


def test_thin_samples_are_withheld(make_node: MakeNode) -> None:
    some = np.where(np.arange(240) < 60, 0.5, np.nan)
    got = judge(complete(make_node, dram_active_ratio=some))
    thin = "samples cover less than 50% of its life in the window"
    assert {w.code for w in got.withheld if w.reason == thin} == {"TT402", "TT407"}


def test_a_short_life_is_withheld(make_node: MakeNode) -> None:
    node = make_node(hours=4)
    node.card(sm_active_ratio=0.9, dram_active_ratio=0.5, fp16_active_ratio=0.7)
    node.slice("whole", kind="whole", keep=np.arange(240) < 25)
    reasons = {w.code: w.reason for w in judge(node).withheld}
    assert reasons["TT401"] == reasons["TT402"] == "lived for less than 30 min of the window"


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"pcie_rx_bytes_per_second": 50e9}, "TT404", "PCIe or NVLink"),
        ({"throttle_power_ratio": 0.6, "sm_clock_hertz": 1.4e9}, "TT405", "its power cap"),
        ({"throttle_thermal_ratio": 0.3}, "TT406", "heat"),
        ({"sm_active_ratio": 0.9, "fp16_active_ratio": 0.1}, "TT407", "latency"),
        ({"engine_active_ratio": 0.95, "sm_active_ratio": 0.1, "busy_ratio": 1.0}, "TT408", "overstates the SMs 10.0"),
    ],
)
def test_each_class_is_told(make_node: MakeNode, fields: dict[str, float], code: str, words: str) -> None:
    found = {f.code: f for f in judge(complete(make_node, **fields)).findings if f.code != "TT321"}
    assert code in found
    assert words in found[code].claim
    assert len(found[code].evidence["runners_up"]) == 2
    assert found[code].subject(Role.SUBJECT).slice == ("" if code in {"TT405", "TT406"} else "whole")
    json.dumps(found[code].to_json(), allow_nan=False)


def test_a_power_cap_that_costs_no_clock_is_no_limit(make_node: MakeNode) -> None:
    got = judge(complete(make_node, throttle_power_ratio=0.9, sm_clock_hertz=1.9e9))
    assert not [f for f in got.findings if f.code == "TT405"]


def test_a_busy_host_starves_the_card(make_node: MakeNode) -> None:
    node = make_node(hours=4)
    node.card(**ALL)
    node.slice("whole", kind="whole")
    node.rows("node", {}, {"cpu_busy_ratio": 0.97})
    assert [f.code for f in judge(node).findings if f.code != "TT321"] == ["TT409"]


def test_full_memory_is_a_limit_only_where_work_is_turned_away(make_node: MakeNode) -> None:
    for preempted, told in ((0.0, []), (2.0, ["TT403"])):
        node = make_node(hours=4)
        node.card(**ALL)
        node.slice("whole", kind="whole", kv_cache_used_ratio=0.99, preemption_count=preempted)
        assert [f.code for f in judge(node).findings if f.code == "TT403"] == told


def test_pods_killed_for_memory_count(make_node: MakeNode) -> None:
    node = make_node(hours=4)
    node.card(**ALL)
    node.fact("gpu", "memory_total_bytes", str(41 * 2**30), gpu="GPU-1")
    node.slice("whole", kind="whole", pod="team/app-0")
    for minute in range(0, 240, 10):
        node.event("oom", "container main was killed: out of memory", minute, kind="pod", thing="team/app-0")
    assert [f.code for f in judge(node).findings if f.code == "TT403"] == ["TT403"]


@pytest.mark.parametrize(("kind", "told"), [("vgpu", True), ("timeslice", False)])
def test_a_hard_quota(make_node: MakeNode, kind: str, told: bool) -> None:
    node = make_node(hours=4)
    node.card(sm_active_ratio=0.5, engine_active_ratio=0.6, busy_ratio=0.6)
    node.slice("a", kind=kind, sm_quota_ratio=0.3, busy_ratio=0.3)
    node.slice("b", kind=kind, sm_quota_ratio=0.7, busy_ratio=0.3)
    got = judge(node)
    assert [f.subject(Role.SUBJECT).slice for f in got.findings if f.code == "TT410"] == (["a"] if told else [])
    foreign = {w.slice for w in got.withheld if w.code == "TT410" and not w.applicable}
    assert foreign == (set() if told else {"a", "b"})


def test_a_layer_that_does_not_throttle_by_time_is_judged_by_use(make_node: MakeNode) -> None:
    node = make_node(hours=4)
    node.card(sm_active_ratio=0.5, busy_ratio=1.0)
    node.slice("a", kind="vgpu", sm_quota_ratio=0.3, busy_ratio=0.9)
    node.slice("b", kind="vgpu", sm_quota_ratio=0.7, busy_ratio=0.9)
    found = [f for f in judge(node).findings if f.code == "TT410"]
    assert found == []  # half of the card's 50 % each: 83 % of its quota


def test_nobody_holds_it(make_node: MakeNode) -> None:
    node = make_node(hours=4)
    node.card()
    node.slice("gi1", kind="mig", tenant="none", workload="none", sm_active_ratio=0.0)
    assert judge(node) == judge(node)
    assert judge(node).findings == []


def windows(**values: float) -> dict[str, np.ndarray]:
    base = {"sm": 0.5, "pipe": 0.2, "dram": 0.2, "engine": 0.9}
    return {name: np.array([value]) for name, value in (base | values).items()}


@pytest.mark.parametrize(
    ("values", "best"),
    [
        ({"sm": 0.9, "pipe": 0.7}, "compute"),
        ({"dram": 0.75, "sm": 0.6}, "memory_bandwidth"),
        ({"sm": 0.2}, "small_grid"),
        ({"sm": 0.95, "pipe": 0.1}, "latency"),
        ({"sm": 0.3, "engine": 0.4, "transfer": 0.9}, "transfer"),
        ({"sm": 0.2, "engine": 0.2, "host": 0.95}, "host"),
        ({"heat": 0.5}, "heat"),
    ],
)
def test_each_class_wins_on_its_own_ground(values: dict[str, float], best: str) -> None:
    scores = {name: float(score[0]) for name, score in limit_scores(windows(**values)).items()}
    known = {name: score for name, score in scores.items() if not np.isnan(score)}
    assert max(known, key=lambda name: known[name]) == best
    assert known[best] >= 1


def test_labels_hold_for_two_windows_and_give_way_by_five_points() -> None:
    one = np.array([1.1, 1.1, 1.1, 1.1, 1.1, 0.5, 0.5, 0.5])
    two = np.array([0.5, 0.5, 1.12, 1.3, 1.3, 0.5, 1.2, 0.5])
    labels = hold({"one": one, "two": two})
    # 1.12 is no five points better; 1.3 needs two windows; one window without a limit does not end it.
    assert labels.tolist() == ["", "one", "one", "one", "two", "two", "two", "two"]


def test_a_busy_host_is_a_rival(make_node: MakeNode) -> None:
    node = whole(make_node, sm_active_ratio=0.45, dram_active_ratio=0.7, fp16_active_ratio=0.1, engine_active_ratio=0.4)
    node.rows("node", {}, {"cpu_busy_ratio": 0.97})
    rivals = only(judge(node)).evidence["runners_up"]
    assert rivals[0] == {"limit": "host", "score": pytest.approx(0.97 / 0.9)}
