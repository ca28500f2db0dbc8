"""TT401 and TT402."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from analyzer.bottleneck import BottleneckDetector, hold, limit_scores
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
    got = judge(node)
    assert {w.reason for w in got.withheld} == {"share of memory slices of 2g.99gb is not known"}


def test_shared_cards_speak_for_the_card(make_node: MakeNode) -> None:
    node = make_node(hours=4)
    node.card(sm_active_ratio=0.5, engine_active_ratio=0.9, dram_active_ratio=0.7, tensor_active_ratio=0.1)
    node.slice("a", sm_quota_ratio=0.5, busy_ratio=0.5)
    node.slice("b", sm_quota_ratio=0.5, busy_ratio=0.5)
    got = judge(node)
    finding = only(got)
    assert (finding.subject(Role.SUBJECT).slice, finding.subject(Role.SUBJECT).gpu) == ("", "GPU-1")
    assert finding.claim.startswith("what shares GPU-1")
    assert {(w.code, w.slice) for w in got.withheld} == {(c, s) for c in ("TT401", "TT402") for s in "ab"}


def test_a_slice_that_works_alone_on_a_shared_card_has_the_cards_counters(make_node: MakeNode) -> None:
    node = make_node(hours=4)
    node.card(sm_active_ratio=0.5, engine_active_ratio=0.9, dram_active_ratio=0.7, tensor_active_ratio=0.1)
    node.slice("a", sm_quota_ratio=0.5, busy_ratio=0.9)
    node.slice("b", sm_quota_ratio=0.5, busy_ratio=0.01)
    assert {f.subject(Role.SUBJECT).slice for f in judge(node).findings} == {"", "a"}


@pytest.mark.parametrize(
    ("fields", "reason", "applicable"),
    [
        ({"tensor_active_ratio": 0.5}, "no dram_active_ratio", True),
        ({"dram_active_ratio": 0.5}, "no any pipe (tensor, fp16, fp32, fp64)", True),
        (
            {"sm_active_ratio": 0.01, "engine_active_ratio": 0.01, "dram_active_ratio": 0.0, "fp16_active_ratio": 0.0},
            "hardly worked in the window",
            False,
        ),
        (
            {"dram_active_ratio": np.where(np.arange(240) < 60, 0.5, np.nan), "fp16_active_ratio": 0.5},
            "samples cover less than 50% of its life in the window",
            True,
        ),
    ],
)
def test_missing_evidence_is_named(make_node: MakeNode, fields: dict[str, Any], reason: str, applicable: bool) -> None:
    got = judge(whole(make_node, **fields))
    assert got.findings == []
    assert {(w.reason, w.applicable) for w in got.withheld} == {(reason, applicable)}


def test_a_short_life_is_withheld(make_node: MakeNode) -> None:
    node = make_node(hours=4)
    node.card(sm_active_ratio=0.9, dram_active_ratio=0.5, fp16_active_ratio=0.7)
    node.slice("whole", kind="whole", keep=np.arange(240) < 25)
    assert {w.reason for w in judge(node).withheld} == {"lived for less than 30 min of the window"}


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
