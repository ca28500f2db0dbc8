"""TT601 and TT604."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analyzer.findings import Finding, Role
from analyzer.health import HealthDetector
from analyzer.protocols import Conclusion
from analyzer.xids import xid, xid_number, xids
from tests.analyzer.conftest import MakeNode, Node


def judge(node: Node) -> Conclusion:
    detector = HealthDetector()
    return detector.conclude(detector.measure(node.partition()), node.context())


def of(conclusion: Conclusion, code: str) -> list[Finding]:
    return [f for f in conclusion.findings if f.code == code]


def two_cards(make_node: MakeNode, hours: float = 2.0, keep: Any = None) -> Node:
    node = make_node(hours=hours)
    node.card("GPU-1", sm_active_ratio=0.5)
    node.card("GPU-2", sm_active_ratio=0.5, keep=keep)
    return node


def test_xids_are_grouped_and_say_what_to_do(make_node: MakeNode) -> None:
    node = two_cards(make_node)
    for minute in (5, 30, 50):
        node.event("xid", "XID 31: MMU fault", minute)
    node.event("xid", "XID 79: GPU has fallen off the bus", 60, gpu="GPU-2")
    node.event("xid", "no number here", 61)
    found = of(judge(node), "TT601")
    assert [(f.evidence["xid"], f.evidence["count"], f.evidence["severity"]) for f in found] == [
        (31, 3, "warning"),
        (79, 1, "critical"),
    ]
    app, bus = found
    assert app.evidence["recurring"] is True
    assert app.evidence["what_to_do"] == xid(31).recurring
    assert bus.evidence["what_to_do"] == xid(79).text
    assert "once on GPU-2 on node-a, last 2026-01-05 01:00 UTC" in bus.claim
    assert len({f.id for f in found}) == 2
    json.dumps([f.to_json() for f in found])


def test_a_companion_is_told_with_the_one_it_follows(make_node: MakeNode) -> None:
    node = two_cards(make_node)
    node.event("xid", "XID 48: double bit error", 10)
    node.event("xid", "XID 45: clean-up", 10.5)
    node.event("xid", "XID 95: uncontained", 10.7)
    found = {f.evidence["xid"]: f for f in of(judge(node), "TT601")}
    assert set(found) == {48, 95}
    assert found[95].evidence["after_xid"] == [45, 48]


def test_a_companion_alone_is_told(make_node: MakeNode) -> None:
    node = two_cards(make_node)
    node.event("xid", "XID 45", 10)
    assert [f.evidence["xid"] for f in of(judge(node), "TT601")] == [45]


@pytest.mark.parametrize(
    ("number", "action", "severity"),
    [
        (13, "restart_app", "warning"),
        (43, "none", "info"),
        (45, "follow_companion", "info"),
        (48, "memory_error", "critical"),
        (54, "check_power", "critical"),
        (63, "none", "info"),
        (64, "reset_gpu", "critical"),
        (74, "nvlink", "error"),
        (79, "reboot_node", "critical"),
        (94, "restart_app", "warning"),
        (95, "reset_gpu", "critical"),
        (109, "reset_gpu", "critical"),  # one common tool ignores it; the vendor says reset
        (119, "reset_gpu", "critical"),
        (145, "nvlink", "error"),
        (169, "unclassified", "warning"),
        (999, "unclassified", "warning"),
    ],
)
def test_the_table(number: int, action: str, severity: str) -> None:
    known = xid(number)
    assert (known.number, known.action, known.severity) == (number, action, severity)
    assert known.text
    assert known.recurring


def test_the_table_agrees_with_the_reference(shared_dir: Path) -> None:
    reference = json.loads((shared_dir / "cases" / "xid_table.json").read_text())["codes"]
    same = {"RESTART_APP": "restart_app", "RESET_GPU": "reset_gpu", "RESTART_BM": "reboot_node", "IGNORE": "none"}
    assert {int(n) for n in reference} == set(xids())
    for number, entry in reference.items():
        if entry["immediate"] in same:
            assert xid(int(number)).action == same[entry["immediate"]], number


def test_numbers_in_messages() -> None:
    assert xid_number("XID 79: GPU has fallen off the bus") == 79
    assert xid_number("NVRM: Xid (PCI:0000:1B:00): 31, pid=7") == 31  # not the bus address
    assert xid_number("xid=13") == 13
    assert xid_number("nothing") is None


def test_a_card_told_lost(make_node: MakeNode) -> None:
    node = two_cards(make_node, keep=np.arange(120) < 60)
    node.event("xid", "XID 79: fell off", 59, gpu="GPU-2")
    node.event("card_lost", "no longer listed", 60, gpu="GPU-2")
    finding = of(judge(node), "TT604")[0]
    assert finding.subject(Role.SUBJECT).gpu == "GPU-2"
    assert finding.evidence["how"] == "event"
    assert finding.evidence["xids_before"] == [79]
    assert finding.effect is not None
    assert finding.effect.value == pytest.approx(1.0)
    assert "gone since 2026-01-05 01:00 UTC (1.0 h)" in finding.claim
    assert finding.confidence == 0.95


def test_a_card_that_falls_silent_while_others_report(make_node: MakeNode) -> None:
    node = two_cards(make_node, keep=np.arange(120) < 90)
    finding = of(judge(node), "TT604")[0]
    assert finding.evidence["how"] == "silence"
    assert finding.evidence["since"].isoformat() == "2026-01-05T01:30:00+00:00"
    assert finding.confidence == 0.8


def test_a_few_missed_samples_are_no_loss(make_node: MakeNode) -> None:
    assert of(judge(two_cards(make_node, keep=np.arange(120) < 118)), "TT604") == []


def test_a_known_card_without_any_row(make_node: MakeNode) -> None:
    node = two_cards(make_node)
    node.fact("gpu", "model", "NVIDIA A100-SXM4-40GB", gpu="GPU-3")
    finding = of(judge(node), "TT604")[0]
    assert finding.subject(Role.SUBJECT).gpu == "GPU-3"
    assert "was not seen in the window" in finding.claim


def test_a_card_that_came_back_is_not_lost(make_node: MakeNode) -> None:
    minute = np.arange(120)
    node = two_cards(make_node, keep=(minute < 60) | (minute >= 80))
    node.event("card_lost", "gone", 60, gpu="GPU-2")
    node.event("card_returned", "back", 80, gpu="GPU-2")
    assert of(judge(node), "TT604") == []


def test_a_card_that_was_replaced_or_taken_out_is_not_lost(make_node: MakeNode) -> None:
    for code in ("card_replaced", "card_forgotten"):
        node = two_cards(make_node, keep=np.arange(120) < 60)
        node.event("card_lost", "gone", 60, gpu="GPU-2")
        node.event(code, "another one is in its place", 80, gpu="GPU-2")
        assert of(judge(node), "TT604") == []


def test_rows_after_the_event_speak_against_it(make_node: MakeNode) -> None:
    node = two_cards(make_node)
    node.event("card_lost", "gone", 60, gpu="GPU-2")
    assert of(judge(node), "TT604") == []


def test_a_silent_node_is_no_lost_card(make_node: MakeNode) -> None:
    node = make_node(hours=2)
    node.card("GPU-1", sm_active_ratio=0.5, keep=np.arange(120) < 60)
    got = judge(node)
    assert of(got, "TT604") == []
    assert [w.code for w in got.withheld] == ["TT604"]


def test_node_rows_tell_that_the_node_lives(make_node: MakeNode) -> None:
    node = make_node(hours=2)
    node.card("GPU-1", sm_active_ratio=0.5, keep=np.arange(120) < 60)
    node.rows("node", {}, {"cpu_busy_ratio": 0.1})
    assert [f.evidence["how"] for f in of(judge(node), "TT604")] == ["silence"]
