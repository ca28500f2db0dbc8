"""TT606, and whom a program's fault is charged to."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from analyzer.findings import Role, Verdict
from analyzer.health import HealthDetector
from analyzer.isolation import IsolationDetector, backend_of
from analyzer.protocols import Conclusion
from tests.analyzer.conftest import MakeNode, Node

GIB = 2.0**30
MINUTE = np.arange(240)


def judge(node: Node) -> Conclusion:
    detector = IsolationDetector()
    got = detector.conclude(detector.measure(node.partition()), node.context())
    json.dumps([f.to_json() for f in got.findings], allow_nan=False)
    return got


def shared(make_node: MakeNode, kind: str = "mps", **ends: int) -> Node:
    """Three tenants on one card; `ends` says at which minute whose process dies (its memory is given back)."""
    node = make_node(hours=4)
    node.card(sm_active_ratio=0.5)
    for name in ("a", "b", "c"):
        memory = np.where(ends.get(name, 240) > MINUTE, 10 * GIB, 0.0)
        node.slice(
            name, kind=kind, tenant=f"team-{name}", workload=f"app-{name}", pod=f"team-{name}/pod",
            memory_used_bytes=memory, busy_ratio=0.2,
        )  # fmt: skip
    return node


def test_a_fault_that_takes_its_neighbours_down(make_node: MakeNode) -> None:
    node = shared(make_node, a=60, b=60, c=61)
    node.event("xid", "XID 31: MMU fault", 60, part="a")
    finding = judge(node).findings[0]
    assert finding.code == "TT606"
    assert finding.subject(Role.SUSPECT).workload == "app-a"
    assert [s.workload for s in finding.subjects if s.role is Role.VICTIM] == ["app-b", "app-c"]
    assert "mps sharing, enforced by MPS, did not keep them apart" in finding.claim
    assert finding.effect is not None
    assert finding.effect.value == 2
    assert finding.channel == "fault"


def test_a_fault_that_reaches_nobody_else_is_no_finding(make_node: MakeNode) -> None:
    node = shared(make_node, a=60)
    node.event("xid", "XID 13: graphics engine exception", 60)
    assert judge(node).findings == []


def test_deaths_long_after_a_fault_are_not_its_doing(make_node: MakeNode) -> None:
    node = shared(make_node, a=60, b=70)
    node.event("xid", "XID 31: MMU fault", 60, part="a")
    assert judge(node).findings == []


def test_a_fault_of_the_card_is_nobody_s(make_node: MakeNode) -> None:
    node = shared(make_node, a=60, b=60, c=60)
    node.event("xid", "XID 79: fell off the bus", 60)
    assert judge(node).findings == []


def test_when_nobody_can_be_charged_it_is_suspected(make_node: MakeNode) -> None:
    node = shared(make_node, a=60, b=60)
    node.event("xid", "XID 31: MMU fault", 60)
    finding = judge(node).findings[0]
    assert finding.verdict is Verdict.SUSPECTED
    assert {s.role for s in finding.subjects} == {Role.VICTIM}


def test_a_kill_for_memory_is_charged_to_its_pod(make_node: MakeNode) -> None:
    node = shared(make_node, a=60, b=60)
    node.event("oom", "container main was killed: out of memory", 60, kind="pod", thing="team-b/pod")
    finding = judge(node).findings[0]
    assert finding.subject(Role.SUSPECT).workload == "app-b"
    assert finding.subject(Role.VICTIM).workload == "app-a"


def test_rows_that_end_are_deaths(make_node: MakeNode) -> None:
    node = make_node(hours=4)
    node.card(sm_active_ratio=0.5)
    node.slice("gi1", kind="mig", workload="one", keep=MINUTE < 60, sm_active_ratio=0.1)
    node.slice("gi2", kind="mig", workload="two", sm_active_ratio=0.1)
    node.event("xid", "XID 31: MMU fault", 60, part="gi2")
    finding = judge(node).findings[0]
    assert (finding.subject(Role.SUSPECT).slice, finding.subject(Role.VICTIM).slice) == ("gi2", "gi1")
    assert "MIG, in hardware" in finding.claim


@pytest.mark.parametrize(("part", "ends", "charged"), [("a", {}, "team-a/app-a"), ("", {"b": 60}, "team-b/app-b")])
def test_an_xid_is_charged_to_its_slice(make_node: MakeNode, part: str, ends: dict[str, int], charged: str) -> None:
    node = shared(make_node, **ends)
    node.event("xid", "XID 31: MMU fault", 60, part=part)
    detector = HealthDetector()
    finding = detector.conclude(detector.measure(node.partition()), node.context()).findings[0]
    assert finding.evidence["charged_to"] == {charged: 1}
    assert f"by {charged}" in finding.claim
    assert finding.evidence["take_out"] is False


def test_an_xid_that_nobody_can_be_charged_with(make_node: MakeNode) -> None:
    node = shared(make_node)
    node.event("xid", "XID 31: MMU fault", 60)
    detector = HealthDetector()
    finding = detector.conclude(detector.measure(node.partition()), node.context()).findings[0]
    assert finding.evidence["charged_to"] == {}


def test_memory_beyond_its_quota(make_node: MakeNode) -> None:
    node = make_node(hours=4)
    node.card(sm_active_ratio=0.5)
    used = np.where(MINUTE < 10, 14 * GIB, 8 * GIB)
    node.slice("a", kind="vgpu", memory_used_bytes=used, memory_quota_bytes=10 * GIB)
    node.fact("slice", "source", "dcgm-exporter,hami-monitor", gpu="GPU-1", part="a")
    finding = judge(node).findings[0]
    assert finding.effect is not None
    assert finding.effect.value == pytest.approx(4 * GIB)
    assert "14.0 GiB" in finding.claim
    assert "10 min" in finding.claim
    assert "vgpu sharing, enforced by HAMi" in finding.claim


def test_a_blink_beyond_the_quota_is_none(make_node: MakeNode) -> None:
    node = make_node(hours=4)
    node.card(sm_active_ratio=0.5)
    used = np.where(MINUTE == 10, 14 * GIB, 8 * GIB)
    node.slice("a", kind="vgpu", memory_used_bytes=used, memory_quota_bytes=10 * GIB)
    assert judge(node).findings == []


@pytest.mark.parametrize(
    ("kind", "fields", "told"),
    [
        ("vgpu", {"busy_ratio": 0.5}, True),
        ("vgpu", {"busy_ratio": 0.33}, False),  # within a limiter's dead band
        ("mps", {"sm_active_ratio": 0.5}, True),
        ("mps", {"busy_ratio": 0.9}, False),  # a time share says nothing of a share of the SMs
        ("timeslice", {"busy_ratio": 0.9}, False),  # turns are not capped
    ],
)
def test_compute_beyond_a_hard_cap(make_node: MakeNode, kind: str, fields: dict[str, Any], told: bool) -> None:
    node = make_node(hours=4)
    node.card(sm_active_ratio=0.6)
    node.slice("a", kind=kind, sm_quota_ratio=0.3, memory_used_bytes=GIB, **fields)
    found = judge(node).findings
    assert [f.channel for f in found] == (["SM"] if told else [])
    if told:
        assert found[0].effect is not None
        assert found[0].effect.value == pytest.approx(0.2)


def test_what_tells_neither_memory_nor_use_is_withheld(make_node: MakeNode) -> None:
    node = make_node(hours=4)
    node.card(sm_active_ratio=0.6)
    node.slice("a", kind="mps", sm_quota_ratio=0.3, requests_per_second=1.0)
    got = judge(node)
    assert [(w.code, w.slice) for w in got.withheld] == [("TT606", "a")]


def test_backends() -> None:
    assert backend_of("vgpu", "hami-monitor") == "HAMi"
    assert backend_of("vgpu", "volcano-vgpu") == "Volcano vGPU"
    assert backend_of("vgpu", "") == "a vGPU layer"
    assert backend_of("timeslice", "hami-monitor") == "time slicing"
    assert backend_of("unknown", "") == "a layer that is not known"
