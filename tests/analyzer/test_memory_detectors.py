"""TT231-TT233 and TT241-TT243: memory that is promised twice, kept without need, held by nobody, stuck, or cached."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from analyzer.allocator_detector import AllocatorDetector
from analyzer.findings import Finding, Verdict
from analyzer.protocols import Conclusion
from analyzer.sharing_memory import SharingMemoryDetector
from tests.analyzer.conftest import MakeNode, Node

GIB = float(1 << 30)


def conclude(node: Node) -> Conclusion:
    found, withheld = [], []
    for detector in (SharingMemoryDetector(), AllocatorDetector()):
        said = detector.conclude(detector.measure(node.partition()), node.context())
        found += said.findings
        withheld += said.withheld
    return Conclusion(found, withheld)


def only(node: Node, code: str) -> Finding:
    found = [f for f in conclude(node).findings if f.code == code]
    assert len(found) == 1, found
    return found[0]


def reason(node: Node, code: str) -> tuple[str, bool]:
    said = conclude(node)
    assert not [f for f in said.findings if f.code == code]
    (one,) = [w for w in said.withheld if w.code == code]
    return one.reason, one.applicable


def shared(node: Node, used: list[Any], quota: list[float], total: float = 80 * GIB, **card: Any) -> Node:
    on_card = sum(np.broadcast_to(np.asarray(u, float), (node.count,)) for u in used)
    card = {"memory_used_bytes": on_card, "memory_free_bytes": total - on_card} | card
    node.card(**card)
    for n, (u, q) in enumerate(zip(used, quota, strict=True)):
        node.slice(f"ns/pod-{n}/main/0", workload=f"app-{n}", memory_used_bytes=u, memory_quota_bytes=q)
    return node


def waves(node: Node, peak: float, phase: float) -> np.ndarray:
    return peak / 2 * (1 + np.sin(np.arange(node.count) / 20 + phase))


def test_memory_that_is_promised_twice_and_used(make_node: MakeNode) -> None:
    node = make_node()
    shared(node, [waves(node, 60 * GIB, 0), waves(node, 50 * GIB, np.pi)], [60 * GIB, 60 * GIB])
    finding = only(node, "TT231")
    assert finding.verdict is Verdict.HOLDS
    assert finding.evidence["granted_bytes"] == 120 * GIB
    assert finding.evidence["sum_of_peaks_bytes"] == pytest.approx(110 * GIB, rel=0.01)
    assert finding.evidence["peak_together_bytes"] < 61 * GIB  # their peaks do not meet
    assert finding.effect is not None
    assert finding.effect.value == pytest.approx(110 / 80, rel=0.01)
    assert [h["reserved_bytes"] for h in finding.evidence["holders"]] == [60 * GIB, 60 * GIB]
    assert "80.0 GiB for 2 holders, who are granted 120.0 GiB" in finding.claim


@pytest.mark.parametrize(
    ("used", "quota", "verdict"),
    [
        ([40 * GIB, 30 * GIB], [60 * GIB, 60 * GIB], Verdict.SUSPECTED),
        ([10 * GIB, 10 * GIB], [60 * GIB, 60 * GIB], Verdict.NO_EFFECT),
        ([50 * GIB, 31 * GIB], [np.nan, 40 * GIB], Verdict.HOLDS),
    ],
)
def test_how_near_they_come(make_node: MakeNode, used: list[float], quota: list[float], verdict: Verdict) -> None:
    assert only(shared(make_node(), used, quota), "TT231").verdict is verdict


def test_what_is_not_oversubscribed(make_node: MakeNode) -> None:
    assert not conclude(shared(make_node(), [30 * GIB, 10 * GIB], [40 * GIB, 40 * GIB])).findings
    assert not conclude(shared(make_node(), [30 * GIB, 10 * GIB], [np.nan, 40 * GIB])).findings
    whole = make_node()
    whole.card(memory_used_bytes=GIB, memory_free_bytes=GIB)
    whole.slice("whole", kind="whole", memory_used_bytes=GIB)
    assert reason(whole, "TT231") == ("no slice of it shares memory", False)
    blind = shared(
        make_node(), [30 * GIB, np.nan], [40 * GIB, 40 * GIB], memory_used_bytes=30 * GIB, memory_free_bytes=50 * GIB
    )
    assert reason(blind, "TT231") == ("the memory in use of a slice is not known", True)
    assert reason(blind, "TT233") == ("the memory in use of a slice is not known", True)
    small = shared(make_node(), [1.0], [2.0], memory_used_bytes=np.nan, memory_free_bytes=np.nan)
    assert reason(small, "TT231") == ("the card's memory is not known", True)


def test_a_framework_that_keeps_far_more_than_it_uses(make_node: MakeNode) -> None:
    node = make_node()
    node.card(memory_used_bytes=40 * GIB, memory_free_bytes=40 * GIB)
    node.slice("whole", kind="whole", memory_used_bytes=40 * GIB, allocator_allocated_bytes=waves(node, 20 * GIB, 0))
    finding = only(node, "TT232")
    assert finding.verdict is Verdict.HOLDS
    would_do = 1.15 * 20 + 0.6
    assert finding.evidence["would_do_bytes"] == pytest.approx(would_do * GIB, rel=0.001)
    assert finding.effect is not None
    assert finding.effect.value == pytest.approx((40 - would_do) * GIB, rel=0.001)
    tight = make_node()
    tight.card()
    tight.slice("whole", kind="whole", memory_used_bytes=24 * GIB, allocator_allocated_bytes=20 * GIB)
    assert not [f for f in conclude(tight).findings if f.code == "TT232"]
    rare = make_node()
    rare.card()
    once = np.where(np.arange(rare.count) == 5, GIB, np.nan)
    rare.slice("whole", kind="whole", memory_used_bytes=24 * GIB, allocator_allocated_bytes=once)
    assert reason(rare, "TT232") == ("coverage 0% is below the floor 50%", True)


def test_memory_of_nobody(make_node: MakeNode) -> None:
    node = make_node()
    early = np.arange(node.count) < 60
    node.card(memory_used_bytes=np.where(early, 30 * GIB, 20 * GIB), memory_free_bytes=60 * GIB)
    node.slice("ns/pod/main/0", memory_used_bytes=29 * GIB, keep=early)
    finding = only(node, "TT233")
    assert finding.verdict is Verdict.HOLDS
    assert finding.evidence["ghost_bytes"] == pytest.approx(19.4 * GIB)
    assert finding.evidence["minutes"] == node.count - 60
    assert finding.evidence["living_slices"] == 0
    beside = shared(make_node(), [10 * GIB], [20 * GIB], memory_used_bytes=15 * GIB)
    assert only(beside, "TT233").verdict is Verdict.SUSPECTED


def test_what_is_no_ghost(make_node: MakeNode) -> None:
    context = shared(make_node(), [10 * GIB, 10 * GIB], [20 * GIB, 20 * GIB], memory_used_bytes=21.2 * GIB)
    assert not [f for f in conclude(context).findings if f.code == "TT233"]
    brief = make_node()
    last = np.arange(brief.count) >= brief.count - 5  # five minutes: it may still be about to begin
    brief.card(memory_used_bytes=np.where(last, 20 * GIB, GIB), memory_free_bytes=60 * GIB)
    brief.slice("ns/pod/main/0", memory_used_bytes=GIB)
    assert not [f for f in conclude(brief).findings if f.code == "TT233"]
    bare = make_node()
    bare.card(memory_used_bytes=20 * GIB)
    assert reason(bare, "TT233") == ("nothing lists the processes of the card", True)
    silent = make_node()
    silent.card(busy_ratio=0.5)
    assert reason(silent, "TT233") == ("the card's memory in use is not known", True)


def allocator(node: Node, reserved: Any, allocated: Any, stuck: Any, **more: Any) -> Node:
    node.card()
    gauges = {
        "allocator_reserved_bytes": reserved,
        "allocator_allocated_bytes": allocated,
        "allocator_inactive_split_bytes": stuck,
    }
    node.slice("whole", kind="whole", **gauges, **more)
    return node


def test_an_allocator_that_fragments(make_node: MakeNode) -> None:
    finding = only(allocator(make_node(), 40 * GIB, 25 * GIB, 12 * GIB), "TT241")
    assert finding.verdict is Verdict.HOLDS
    assert finding.effect is not None
    assert (finding.effect.value, finding.effect.unit) == (12 * GIB, "bytes")
    assert "expandable_segments" in finding.evidence["what_to_do"]
    node = make_node()
    at_times = np.where(np.arange(node.count) % 4 == 0, 12 * GIB, 1 * GIB)
    assert only(allocator(node, 40 * GIB, 25 * GIB, at_times), "TT241").verdict is Verdict.SUSPECTED
    assert not [f for f in conclude(allocator(make_node(), 40 * GIB, 36 * GIB, 3 * GIB)).findings if f.code == "TT241"]


def test_memory_that_was_asked_for_in_vain(make_node: MakeNode) -> None:
    node = allocator(make_node(), 40 * GIB, 36 * GIB, 3 * GIB)
    node.event("oom", f"out of memory: asked for {int(2 * GIB)} bytes", 30)
    assert not [f for f in conclude(node).findings if f.code == "TT241"]  # the event speaks of the card alone
    node._events[-1]["slice"] = "whole"
    finding = only(node, "TT241")
    assert finding.verdict is Verdict.HOLDS
    assert "2.0 GiB were asked for in vain" in finding.claim


def test_memory_that_could_be_given_back(make_node: MakeNode) -> None:
    finding = only(allocator(make_node(), 40 * GIB, 20 * GIB, 1 * GIB), "TT242")
    assert finding.verdict is Verdict.HOLDS
    assert finding.effect is not None
    assert finding.effect.value == 19 * GIB
    node = make_node()
    node_free = allocator(node, 40 * GIB, np.where(np.arange(node.count) % 3 == 0, 40 * GIB, 20 * GIB), 0.0)
    assert only(node_free, "TT242").verdict is Verdict.SUSPECTED
    assert not conclude(allocator(make_node(), 40 * GIB, 39 * GIB, 0.5 * GIB)).findings


@pytest.mark.parametrize(
    ("cache", "more", "verdict", "kind"),
    [
        (0.97, {"preemption_count": 1.0}, Verdict.HOLDS, "full"),
        (0.97, {"queue_depth_count": 3.0}, Verdict.HOLDS, "full"),
        (0.97, {"queue_depth_count": 0.0}, Verdict.SUSPECTED, "full"),
        (0.3, {}, Verdict.HOLDS, "mostly empty"),
    ],
)
def test_the_cache(make_node: MakeNode, cache: float, more: dict[str, float], verdict: Verdict, kind: str) -> None:
    node = make_node()
    node.card()
    node.slice("whole", kind="whole", kv_cache_used_ratio=cache, **more)
    finding = only(node, "TT243")
    assert (finding.verdict, finding.evidence["kind"]) == (verdict, kind)


def test_what_is_withheld(make_node: MakeNode) -> None:
    node = make_node()
    node.card()
    node.slice("whole", kind="whole", kv_cache_used_ratio=0.7)
    assert not conclude(node).findings
    assert reason(node, "TT241") == ("no gauges of a framework's allocator", False)
    few = make_node()
    few.card()
    few.slice("whole", kind="whole", kv_cache_used_ratio=0.2, keep=np.arange(few.count) < 10)
    assert reason(few, "TT243") == ("fewer than 30 samples", True)
    rare = make_node()
    rare.card()
    rare.slice("whole", kind="whole", kv_cache_used_ratio=np.where(np.arange(rare.count) % 6 == 0, 0.2, np.nan))
    assert reason(rare, "TT243")[0].startswith("coverage 17% is below the floor")
    nobody = make_node()
    nobody.card()
    nobody.slice("gi1", kind="mig", tenant="none", workload="none", kv_cache_used_ratio=0.2)
    assert reason(nobody, "TT243") == ("nobody holds it", False)
    assert AllocatorDetector().measure(make_node().partition()).empty
    assert SharingMemoryDetector().measure(make_node().partition()).empty
