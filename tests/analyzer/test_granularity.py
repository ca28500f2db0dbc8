"""TT321: which cut of a card fits a workload."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from analyzer.bottleneck import BottleneckDetector
from analyzer.findings import Finding, Verdict
from analyzer.granularity import fitting_cuts
from tests.analyzer.conftest import MakeNode, Node

H100 = "NVIDIA H100 80GB HBM3"


def use(**changed: float) -> dict[str, float]:
    return {"compute": 0.2, "memory": 0.1, "bandwidth": 0.1, "active": 0.9} | changed


def names(online: bool, model: str = H100, **changed: float) -> list[str]:
    return [cut.profile or cut.kind for cut in fitting_cuts(use(**changed), model, online=online)]


def test_an_online_service_gets_an_instance_first() -> None:
    assert names(online=True) == ["2g.20gb", "mps", "whole"]  # 23 % of the SMs: 1g has 12 %, 2g has 24 %


def test_bursty_batch_work_gets_turns() -> None:
    assert names(online=False, active=0.1)[0] == "timeslice"
    assert names(online=False)[0] == "mps"


def test_memory_and_bandwidth_choose_memory_slices() -> None:
    assert names(online=True, compute=0.05, memory=0.4)[0] == "3g.40gb"
    assert names(online=True, compute=0.05, bandwidth=0.3)[0] == "3g.40gb"  # 0.3 / 0.8 with its margin is 43 %


@pytest.mark.parametrize("need", [{"compute": 0.7}, {"memory": 0.8}, {"bandwidth": 0.7}])
def test_great_needs_want_a_whole_card(need: dict[str, float]) -> None:
    assert names(online=False, **need) == ["whole"]


def test_a_board_without_instances_offers_none() -> None:
    assert names(online=True, model="Tesla T4") == ["mps", "whole"]


def test_what_must_be_private_is_offered_no_neighbours() -> None:
    assert [cut.kind for cut in fitting_cuts(use(bandwidth=math.nan), H100, online=False, private=True)] == [
        "mig",
        "whole",
    ]


def judge(node: Node) -> list[Finding]:
    detector = BottleneckDetector()
    found = detector.conclude(detector.measure(node.partition()), node.context()).findings
    return [f for f in found if f.code == "TT321"]


def whole(make_node: MakeNode, hours: float = 30, **fields: Any) -> Node:
    node = make_node(hours=hours)
    gib = 2.0**30
    values = {"sm_active_ratio": 0.1, "memory_used_bytes": 8 * gib, "memory_free_bytes": 72 * gib} | fields
    node.card(sm_count=132, dram_active_ratio=0.05, **values)
    node.fact("gpu", "model", H100, gpu="GPU-1")
    node.slice("whole", kind="whole")
    return node


def test_a_whole_card_for_a_tenth_of_it(make_node: MakeNode) -> None:
    finding = judge(whole(make_node))[0]
    assert finding.verdict is Verdict.HOLDS
    assert finding.evidence["fits"] == {"kind": "mig", "profile": "1g.10gb", "share": pytest.approx(16 / 132)}
    assert finding.effect is not None
    assert finding.effect.value == pytest.approx(1 - 16 / 132)
    assert "a MIG 1g.10gb fits it" in finding.claim
    json.dumps(finding.to_json(), allow_nan=False)


def test_a_short_past_is_only_a_suspicion(make_node: MakeNode) -> None:
    assert [f.verdict for f in judge(whole(make_node, hours=4))] == [Verdict.SUSPECTED]


def test_a_peak_is_not_cut_off(make_node: MakeNode) -> None:
    peaks = np.where(np.arange(1800) % 10 == 0, 0.9, 0.1)  # a tenth of the time it uses all
    assert judge(whole(make_node, sm_active_ratio=peaks)) == []


def test_an_idle_holder_is_not_told_to_share(make_node: MakeNode) -> None:
    assert judge(whole(make_node, sm_active_ratio=0.0)) == []


def test_without_a_quota_nothing_is_told(make_node: MakeNode) -> None:
    node = make_node(hours=30)
    node.card(sm_active_ratio=0.9, memory_used_bytes=40e9, memory_free_bytes=40e9)
    node.slice("a", kind="vgpu", busy_ratio=0.9, memory_used_bytes=30e9)
    detector = BottleneckDetector()
    found = detector.conclude(detector.measure(node.partition()), node.context())
    assert [f for f in found.findings if f.code == "TT321"] == []
    assert [w.reason for w in found.withheld if w.code == "TT321"] == ["its quota is not known (sm_quota_ratio)"]


def test_a_share_that_wants_a_card(make_node: MakeNode) -> None:
    node = make_node(hours=30)
    node.card(sm_active_ratio=0.9, memory_used_bytes=40e9, memory_free_bytes=40e9)
    node.slice("a", sm_quota_ratio=0.5, busy_ratio=0.9, memory_used_bytes=30e9)
    node.slice("b", sm_quota_ratio=0.5, busy_ratio=0.01, memory_used_bytes=10e9)
    finding = judge(node)[0]
    assert "a whole card fits it" in finding.claim
    assert finding.verdict is Verdict.SUSPECTED  # its use is divided out of the card's
    assert finding.effect is not None
    assert finding.effect.value == pytest.approx(-0.5)
