"""The planner's fleet out of rows and facts: who lies where, what may move, what it costs, what is left out and why."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pandas as pd
import pytest

from analyzer.defragment.model import UNLIMITED, Cost, Kind
from analyzer.defragment.observed import Observed, measure_placement, observe
from analyzer.defragment.planner import place_demand
from analyzer.defragment.room import make_room
from analyzer.findings import Role, SubjectRef, Verdict, make_finding
from collector.declarations import Owner, ResolvedWorkload, WorkloadDeclaration
from tests.analyzer.conftest import MakeNode, Node

GIB = float(1 << 30)


def promised(name: str, **said: Any) -> tuple[Owner, ResolvedWorkload]:
    declaration = WorkloadDeclaration.model_validate({"service_class": "offline", **said})
    return ("c", "team", name), ResolvedWorkload(
        tenant="team", workload=name, declaration=declaration, declared=True, origin={}
    )


def seen(*nodes: Node, promises: dict[Owner, ResolvedWorkload], **rest: Any) -> Observed:
    placement = pd.concat([measure_placement(node.partition()) for node in nodes], ignore_index=True)
    facts = pd.concat([node.facts() for node in nodes], ignore_index=True)
    return observe(placement, facts, nodes[0].window, promises, **rest)


def shared(make_node: MakeNode, holders: list[tuple[str, str, float]], name: str = "node-a") -> Node:
    """Two vGPU cards of 80 GiB; holders are (card, workload, share)."""
    node = make_node(hours=1, name=name)
    for gpu in ("GPU-1", "GPU-2"):
        node.card(gpu, memory_used_bytes=20 * GIB, memory_free_bytes=60 * GIB)
        node.fact("gpu", "model", "NVIDIA A100-SXM4-80GB", gpu=gpu)
    for gpu, workload, share in holders:
        fields: dict[str, Any] = {"sm_quota_ratio": share, "memory_quota_bytes": 30 * GIB}
        fields["memory_used_bytes"] = 10 * GIB
        node.slice(f"ns/{workload}/main/0", gpu=gpu, kind="vgpu", workload=workload, pod=f"ns/{workload}", **fields)
        early = node.window.start - timedelta(hours=2)
        node.request(f"ns/{workload}", cards=1, share=share, tenant="team", workload=workload, start=early)
    return node


def test_a_request_that_waits_gets_room(make_node: MakeNode) -> None:
    node = shared(make_node, [("GPU-1", "a", 0.3), ("GPU-2", "b", 0.6)])
    node.request("ns/big", waiting=True, cards=1, share=1.0, tenant="team", workload="big")
    promises = dict([promised("a", checkpoint_seconds=600), promised("b")])
    found = seen(node, promises=promises)
    assert found.waiting
    assert [(request.count, request.name) for request in found.demand] == [(1, "a whole card")]
    assert found.gpus == ("GPU-1", "GPU-2")
    a, b = sorted(found.fleet.pods, key=lambda pod: pod.name)
    assert (a.shape.share, a.shape.memory, a.fixed, a.name) == (300, 30 * 1024, False, "ns/a")
    assert a.cost == Cost(10.0, 1, 5.0, 300.0)  # half of its ten minutes
    assert b.cost.lost_seconds == 3600.0  # it never saves: all since it started
    assert found.fleet.nodes[0].cpu_free == UNLIMITED
    plan = place_demand(found.fleet, found.demand, 3)
    assert [(move.kind, found.fleet.pods[move.pod].name) for move in plan.moves] == [(Kind.MIGRATE, "ns/a")]
    assert (plan.before, plan.placed) == (0.0, 1.0)


def test_those_of_whom_nobody_promised_anything_stay(make_node: MakeNode) -> None:
    node = shared(make_node, [("GPU-1", "a", 0.3), ("GPU-2", "b", 0.6)])
    node.request("ns/big", waiting=True, cards=1, share=1.0, tenant="team", workload="big")
    found = seen(node, promises=dict([promised("b", protected=True)]))
    assert found.protected == 2
    assert place_demand(found.fleet, found.demand, 3).moves == ()


def test_an_online_service_loses_no_work(make_node: MakeNode) -> None:
    node = shared(make_node, [("GPU-1", "a", 0.3)])
    found = seen(node, promises=dict([promised("a", service_class="online")]), move_minutes=2.0)
    assert found.fleet.pods[0].cost == Cost(10.0, 1, 2.0, 0.0)


def test_without_anybody_waiting_the_mix_is_the_demand(make_node: MakeNode) -> None:
    node = shared(make_node, [("GPU-1", "a", 0.25), ("GPU-2", "b", 0.25)])
    found = seen(node, promises={})
    assert not found.waiting
    assert [(request.count, request.name) for request in found.demand] == [(6, "25% of a card")]  # fills 1.5 cards


def test_findings_bind_the_plan(make_node: MakeNode) -> None:
    node = shared(make_node, [("GPU-1", "a", 0.3), ("GPU-2", "b", 0.6)])
    node.request("ns/big", waiting=True, cards=1, share=1.0, tenant="team", workload="big")
    promises = dict([promised("a"), promised("b")])

    def told(code: str, *subjects: SubjectRef, **evidence: float) -> Any:
        return make_finding(
            code, Verdict.HOLDS, subjects, node.window, claim="", risk="", confidence=1, coverage=1, evidence=evidence
        )

    pair = told(
        "TT101",
        SubjectRef(Role.VICTIM, "c", workload="a", tenant="team"),
        SubjectRef(Role.SUSPECT, "c", workload="b", tenant="team"),
    )
    apart = seen(node, promises=promises, findings=[pair])
    assert place_demand(apart.fleet, apart.demand, 3).moves == ()
    sick = told("TT604", SubjectRef(Role.SUBJECT, "c", "node-a", "GPU-1"))
    closed = seen(node, promises=promises, findings=[sick])
    plan = place_demand(closed.fleet, closed.demand, 3)
    assert plan.moves == ()  # b must not go to GPU-1, and GPU-1 takes no new work
    much = told("TT311", SubjectRef(Role.SUBJECT, "c", "node-a", "GPU-2", "ns/b/main/0"), target_ratio=0.2)
    smaller = seen(node, promises=promises, findings=[much])
    assert {pod.name: pod.smaller_share for pod in smaller.fleet.pods} == {"ns/a": 0, "ns/b": 200}
    room = make_room(smaller.fleet, smaller.demand[0].shape)
    assert room is not None
    assert len(room.moves) == 1


def test_what_is_left_out_is_counted(make_node: MakeNode) -> None:
    node = make_node(hours=1)
    for gpu in ("GPU-1", "GPU-2", "GPU-3"):
        node.card(gpu, memory_used_bytes=GIB, memory_free_bytes=79 * GIB)
        node.fact("gpu", "model", "NVIDIA A100-SXM4-80GB", gpu=gpu)
    node.slice("ns/a/main/0", gpu="GPU-1", kind="mps", workload="a")  # no quota told: an equal part
    node.slice("gi1", gpu="GPU-2", kind="mig", profile="3g.40gb", workload="b")
    node.slice("gi1", gpu="GPU-3", kind="mig", profile="9g.1gb", workload="c")
    found = seen(node, promises={})
    assert found.left_out == {
        "a holder's share is not known": 1,
        "no placement table for its model": 1,
        "where its instances begin is not told": 1,
    }
    assert found.fleet.cards == ()
    assert found.demand == ()


def test_cut_cards_have_their_instances_where_they_lie(make_node: MakeNode) -> None:
    node = make_node(hours=1)
    node.card("GPU-1")
    node.fact("gpu", "model", "NVIDIA A100-SXM4-80GB", gpu="GPU-1")
    for n, start in ((1, 1), (2, 5)):
        node.slice(f"gi{n}", kind="mig", profile="1g.10gb", workload=f"w{n}", pod=f"ns/w{n}")
        node.fact("slice", "placement", str(start), gpu="GPU-1", part=f"gi{n}")
    node.request("ns/big", waiting=True, cards=1, profile="4g.40gb", tenant="team", workload="big")
    found = seen(node, promises=dict([promised("w1"), promised("w2")]))
    plan = place_demand(found.fleet, found.demand, 2)
    assert [(move.kind, found.fleet.pods[move.pod].name) for move in plan.moves] == [(Kind.RECUT, "ns/w1")]


def test_kinds_of_cards_stay_apart_and_share_their_nodes_cpu(make_node: MakeNode) -> None:
    node = shared(make_node, [("GPU-1", "a", 0.3)])
    node.card("GPU-3")
    node.fact("gpu", "model", "NVIDIA L4", gpu="GPU-3")
    node.slice("whole", gpu="GPU-3", kind="whole", workload="w", pod="ns/w")
    node.fact("node", "allocatable_cpu", "64")
    node.fact("node", "requested_cpu", "4")
    found = seen(node, promises=dict([promised("a"), promised("w")]))
    types = {n.type: n.cpu_free for n in found.fleet.nodes}
    assert types == {"NVIDIA A100-SXM4-80GB/vgpu": 40_000, "NVIDIA L4/whole": 20_000}
    whole = next(pod for pod in found.fleet.pods if pod.name == "ns/w")
    assert (whole.shape.share, whole.shape.memory) == (1000, 0)


def test_a_pod_on_several_cards_is_one(make_node: MakeNode) -> None:
    node = make_node(hours=1)
    for gpu in ("GPU-1", "GPU-2"):
        node.card(gpu)
        node.slice("whole", gpu=gpu, kind="whole", workload="w", pod="ns/w", memory_used_bytes=4 * GIB)
    found = seen(node, promises=dict([promised("w")]))
    (pod,) = found.fleet.pods
    assert (pod.cards, pod.shape.cards, pod.cost.moved_gib) == ((0, 1), 2, 8.0)
    assert math.isnan(pod.cost.lost_seconds)  # when it began nobody tells


@pytest.mark.parametrize("gone", [True, False])
def test_a_card_that_fell_silent_is_left_out(make_node: MakeNode, gone: bool) -> None:
    node = make_node(hours=1)
    early = pd.Series(range(node.count)).to_numpy() < (10 if gone else node.count)
    node.card("GPU-1", keep=early, busy_ratio=0.0)
    node.card("GPU-2", busy_ratio=0.0)
    assert seen(node, promises={}).left_out == ({"it is not there now": 1} if gone else {})
