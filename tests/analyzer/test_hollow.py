"""The hollow-busy map."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from analyzer.hollow import HollowBusy, conclude_hollow, fleet_hollow, measure_hollow
from collector.declarations import Owner, ResolvedWorkload, WorkloadDeclaration, resolve_workload
from tests.analyzer.conftest import MakeNode, Node


def offline(tenant: str, workload: str) -> dict[Owner, ResolvedWorkload]:
    declared = WorkloadDeclaration(match=workload, tenant=tenant, service_class="offline")
    return {("c", tenant, workload): resolve_workload(tenant, workload, (declared,), None)}


def hollow(*nodes: Node, declarations: Any = None) -> tuple[HollowBusy, ...]:
    found = conclude_hollow([measure_hollow(node.partition()) for node in nodes], declarations or {})
    json.dumps([one.to_json() for one in found], allow_nan=False)
    return found


def test_busy_with_few_sms_is_hollow(make_node: MakeNode) -> None:
    node = make_node(hours=4)
    first_half = np.arange(240) < 120
    node.card(busy_ratio=1.0, sm_active_ratio=np.where(first_half, 0.1, 0.9), tensor_active_ratio=0.05)
    node.slice("whole", kind="whole")
    one = hollow(node)[0]
    assert (one.tenant, one.service_class, one.kind, one.workloads) == ("team", "unknown", "whole", 1)
    assert one.busy_card_seconds == pytest.approx(4 * 3600)
    assert one.hollow["sm"] == pytest.approx(0.5)
    assert one.hollow["tensor"] == pytest.approx(1.0)
    assert math.isnan(one.hollow["occupancy"])  # absent is not hollow
    assert (one.known["sm"], one.known["occupancy"]) == (1.0, 0.0)
    assert one.overstated == pytest.approx(2.0)


def test_idle_time_is_not_busy(make_node: MakeNode) -> None:
    node = make_node(hours=4)
    node.card(busy_ratio=0.0, sm_active_ratio=0.0)
    node.slice("whole", kind="whole")
    assert hollow(node) == ()


def test_what_runs_a_third_of_the_time_may_be_dense(make_node: MakeNode) -> None:
    node = make_node(hours=4)
    node.card(busy_ratio=0.3, sm_active_ratio=0.25)
    node.slice("whole", kind="whole")
    assert hollow(node)[0].hollow["sm"] == 0.0  # 83 % of the SMs while it runs


def test_a_shared_card_is_divided_by_use(make_node: MakeNode) -> None:
    node = make_node(hours=4)
    node.card(busy_ratio=0.8, sm_active_ratio=0.3)
    node.slice("a", kind="timeslice", tenant="x", busy_ratio=0.6)
    node.slice("b", kind="timeslice", tenant="y", workload="batch", busy_ratio=0.2)
    found = {one.tenant: one for one in hollow(node, declarations=offline("y", "batch"))}
    assert sum(one.busy_card_seconds for one in found.values()) == pytest.approx(0.8 * 4 * 3600)
    assert found["x"].busy_card_seconds == pytest.approx(3 * found["y"].busy_card_seconds, rel=1e-6)
    assert found["y"].service_class == "offline"
    assert found["x"].hollow["sm"] == 1.0


def test_an_instance_is_measured_by_its_own_share(make_node: MakeNode) -> None:
    node = make_node(hours=4)
    node.card(sm_count=132)
    node.slice(
        "gi1", kind="mig", sm_quota_ratio=0.25, engine_active_ratio=0.2, sm_active_ratio=0.2, sm_occupancy_ratio=0.02
    )
    one = hollow(node)[0]
    assert one.busy_card_seconds == pytest.approx(0.8 * 0.25 * 4 * 3600)  # engine 80 % of a quarter of the card
    assert one.hollow == {"sm": 0.0, "occupancy": 1.0, "tensor": pytest.approx(math.nan, nan_ok=True)}


def test_the_fleet_is_the_sum(make_node: MakeNode) -> None:
    nodes = [make_node(hours=4, name=name) for name in ("n1", "n2")]
    for node, active, tenant in zip(nodes, (0.1, 0.8), ("x", "y"), strict=True):
        node.card(busy_ratio=1.0, sm_active_ratio=active)
        node.slice("whole", kind="whole", tenant=tenant)
    found = hollow(*nodes)
    assert [one.tenant for one in found] == ["x", "y"]  # most hollow time first
    whole = fleet_hollow(found)
    assert whole is not None
    assert whole.busy_card_seconds == pytest.approx(8 * 3600)
    assert whole.hollow["sm"] == pytest.approx(0.5)
    assert whole.overstated == pytest.approx(2 / 0.9)
    assert fleet_hollow(()) is None
