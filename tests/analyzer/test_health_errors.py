"""TT602 and TT603."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from analyzer.findings import Finding, Verdict
from analyzer.health_errors import HardwareDetector
from analyzer.protocols import Conclusion
from tests.analyzer.conftest import MakeNode, Node


def judge(node: Node) -> Conclusion:
    detector = HardwareDetector()
    return detector.conclude(detector.measure(node.partition()), node.context())


def only(node: Node, code: str) -> Finding:
    found = [f for f in judge(node).findings if f.code == code]
    assert len(found) == 1, found
    json.dumps(found[0].to_json(), allow_nan=False)
    return found[0]


def sound(**fields: Any) -> dict[str, Any]:
    quiet = {"ecc_corrected_count": 0, "ecc_uncorrected_count": 0, "throttle_thermal_ratio": 0.0}
    return {"sm_active_ratio": 0.5} | quiet | fields


def test_a_sound_card_is_quiet(make_node: MakeNode) -> None:
    node = make_node()
    node.card(**sound())
    got = judge(node)
    assert got.findings == []
    assert got.withheld == []


@pytest.mark.parametrize(
    ("fields", "fact", "verdict", "take_out", "words"),
    [
        ({"ecc_uncorrected_count": np.arange(240) == 7}, "", Verdict.HOLDS, True, "1 uncorrectable memory errors"),
        ({}, "row_remap_pending", Verdict.HOLDS, True, "a row waits to be remapped"),
        ({}, "row_remap_failure", Verdict.HOLDS, True, "a row could not be remapped"),
        ({"ecc_corrected_count": 1.0}, "", Verdict.SUSPECTED, False, "240 corrected memory errors (60.0 an hour)"),
    ],
)
def test_memory_errors(fields: dict[str, Any], fact: str, verdict: Verdict, take_out: bool, words: str) -> None:
    node = Node()
    node.card(**sound(**fields))
    if fact:
        node.fact("gpu", fact, "1", gpu="GPU-1")
    finding = only(node, "TT602")
    assert (finding.verdict, finding.evidence["take_out"]) == (verdict, take_out)
    assert words in finding.claim
    assert finding.evidence["what_to_do"] in finding.claim


def test_a_few_corrected_errors_are_normal(make_node: MakeNode) -> None:
    node = make_node()
    node.card(**sound(ecc_corrected_count=np.where(np.arange(240) == 3, 5.0, 0.0)))
    node.fact("gpu", "row_remap_pending", "0", gpu="GPU-1")
    assert judge(node).findings == []


def test_absent_counters_withhold_only_their_verdict(make_node: MakeNode) -> None:
    node = make_node()
    node.card(sm_active_ratio=0.5, throttle_thermal_ratio=0.3)
    got = judge(node)
    assert [f.code for f in got.findings] == ["TT603"]
    assert [w.code for w in got.withheld] == ["TT602"]
    assert got.withheld[0].reason.startswith("no ecc_corrected_count or ecc_uncorrected_count or rows_remapped")


def test_facts_alone_tell_a_failed_remap(make_node: MakeNode) -> None:
    node = make_node()
    node.card(sm_active_ratio=0.5)
    node.fact("gpu", "row_remap_failure", "1", gpu="GPU-1")
    assert [f.code for f in judge(node).findings] == ["TT602"]


def test_one_hot_card_and_a_hot_node(make_node: MakeNode) -> None:
    node = make_node()
    node.card("GPU-1", **sound(throttle_thermal_ratio=0.3, temperature_celsius=91.0))
    node.card("GPU-2", **sound())
    finding = only(node, "TT603")
    assert "while its node's other cards stay cool" in finding.claim
    assert "up to 91 °C" in finding.claim
    assert finding.evidence["take_out"] is True
    node.card("GPU-3", **sound(throttle_thermal_ratio=0.1))
    node.card("GPU-4", **sound(throttle_thermal_ratio=0.1))
    hot = [f for f in judge(node).findings if f.code == "TT603"]
    assert len(hot) == 3
    assert all("as those of 2 of the 3 other cards" in f.claim for f in hot)
    assert [f.evidence["take_out"] for f in hot] == [True, False, False]


def test_a_power_brake(make_node: MakeNode) -> None:
    node = make_node()
    node.card(**sound(throttle_brake_ratio=0.06))
    finding = only(node, "TT603")
    assert "by a hardware power brake in 6% of the time" in finding.claim


def test_a_power_cap_is_no_fault(make_node: MakeNode) -> None:
    node = make_node()
    node.card(**sound(throttle_power_ratio=0.9))
    assert judge(node).findings == []
