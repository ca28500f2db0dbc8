"""A plan out of a snapshot: what is taken in, what is left out and why."""

from __future__ import annotations

import math

from analyzer.defragment.model import Cost
from analyzer.defragment.of_snapshot import observe_snapshot
from analyzer.defragment.planner import place_demand
from analyzer.demand import Wish
from analyzer.snapshot import CutInstance, Snapshot, SnapshotNode, SnapshotPod

GIB = 2.0**30
SMALL, BIG = Wish(1, 0.3, 10 * GIB, 2.0, "", ""), Wish(1, 1.0, 0.0, 4.0, "", "A100")


def node(name: str, **rest: object) -> SnapshotNode:
    values: dict[str, object] = {"cards": 2, "model": "A100", "cpu_cores": 16.0, "memory_bytes": 80 * GIB, **rest}
    return SnapshotNode(name, **values)  # type: ignore[arg-type]  # a test's shorthand


def snapshot(*nodes: SnapshotNode, pods: list[SnapshotPod]) -> Snapshot:
    return Snapshot(nodes={n.name: n for n in nodes}, pods=pods)


def test_what_waits_gets_room() -> None:
    pods = [SnapshotPod("a", SMALL, "n", (0,)), SnapshotPod("b", SMALL, "n", (1,)), SnapshotPod("big", BIG)]
    found = observe_snapshot(snapshot(node("n"), pods=pods), move_minutes=3.0)
    assert found.waiting
    assert (found.gpus, found.models, found.left_out) == (("n/0", "n/1"), ("A100", "A100"), {})
    assert found.fleet.nodes[0].cpu_free == 12_000
    first = found.fleet.pods[0]
    assert (first.shape.share, first.shape.memory, first.fixed) == (300, 10 * 1024, False)
    assert (first.cost.moved_gib, first.cost.restarts, first.cost.drain_minutes) == (10.0, 1, 3.0)
    assert math.isnan(first.cost.lost_seconds)
    plan = place_demand(found.fleet, found.demand, 1)
    assert (plan.before, plan.placed, len(plan.moves)) == (0.0, 1.0, 1)
    assert plan.cost + Cost() != Cost()


def test_without_waiting_pods_the_mix_is_scaled_to_what_is_free() -> None:
    found = observe_snapshot(snapshot(node("n"), pods=[SnapshotPod("a", SMALL, "n", (0,))]))
    assert not found.waiting
    assert [(r.count, r.name) for r in found.demand] == [(6, "30% of a card with 10 GiB")]  # of 1.7 cards
    assert observe_snapshot(snapshot(node("n", model="L4"), pods=[SnapshotPod("big", BIG)])).demand == ()


def test_what_is_left_out() -> None:
    cut = (((CutInstance("3g.40gb", 4),)),)
    pods = [
        SnapshotPod("somewhere", SMALL, "untold"),
        SnapshotPod("a", SMALL, "wrong", (0,)),
        SnapshotPod("b", SMALL, "right", (0,)),
        SnapshotPod("m", Wish(1, 1.0, 0.0, 2.0, "3g.40gb", ""), "cut"),
    ]
    nodes = [
        node("untold"),
        node("wrong", free_shares=(1.0, 1.0)),
        node("right", free_shares=(0.7, 1.0), free_cpu_cores=5.0),
        node("cut", cut=cut),
    ]
    found = observe_snapshot(snapshot(*nodes, pods=pods))
    assert found.left_out == {
        "on which card a pod lies is not told": 2,
        "what is free is not what its pods leave": 2,
        "it is cut: see the MIG part of the analysis": 1,
    }
    assert [n.cpu_free for n in found.fleet.nodes] == [5_000, 14_000]
    assert [(pod.name, pod.cards, pod.fixed) for pod in found.fleet.pods] == [("b", (0,), False), ("m", (), True)]
