"""TT504: pools that fill up, are full, stay open; what is not known is said."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analyzer.exhaustion import ExhaustionDetector
from analyzer.findings import Verdict
from analyzer.protocols import Conclusion
from tests.analyzer.conftest import START, MakeNode, Node


def judge(*nodes: Node, **context: Any) -> Conclusion:
    detector = ExhaustionDetector()
    measures = pd.concat([detector.measure(node.partition()) for node in nodes], ignore_index=True)
    return detector.conclude(measures, nodes[0].context(**context))


def filling(make_node: MakeNode, hours: float, begins: list[float]) -> Node:
    """A node of ten cards; card i is taken from hour begins[i] on."""
    node = make_node(hours=hours, interval_seconds=300.0)
    for i in range(10):
        gpu = f"GPU-{i}"
        node.card(gpu, sm_active_ratio=0.1)
        start = begins[i] if i < len(begins) else np.inf
        keep = np.arange(node.count) * 300 >= start * 3600
        if keep.any():
            node.slice(f"s{i}", gpu=gpu, keep=keep, sm_quota_ratio=1.0, busy_ratio=0.5)
    return node


def queue(pool: str, hours: float, *, quota: float, allocated: float, pending: float) -> pd.DataFrame:
    times = pd.date_range(START, periods=int(hours * 4), freq="900s").as_unit("ms")
    values = {"quota_gpu_count": quota, "allocated_gpu_count": allocated, "pending_gpu_count": pending}
    return pd.DataFrame({"time": times, "cluster": "c", "pool": pool, "tenant": "t", **values})


def test_cards_taken_are_counted_by_quota(make_node: MakeNode) -> None:
    node = make_node(hours=1)
    node.card("GPU-1", sm_active_ratio=0.1)
    node.card("GPU-2", sm_active_ratio=0.1)
    node.card("GPU-3", sm_active_ratio=0.1)
    node.slice("a", gpu="GPU-1", sm_quota_ratio=0.25, busy_ratio=0.5)
    node.slice("b", gpu="GPU-2", busy_ratio=0.5)  # of unknown size: the card counts as taken
    table = ExhaustionDetector().measure(node.partition())
    assert len(table) == 4
    assert table["taken_cards"].tolist() == pytest.approx([1.25] * 4)
    assert set(table["cards"]) == {3.0}


def test_a_pool_that_is_full_now(make_node: MakeNode) -> None:
    node = filling(make_node, 24, [0.0] * 10)
    [finding] = judge(node, queues=queue("default", 24, quota=10, allocated=10, pending=2)).findings
    assert finding.verdict is Verdict.HOLDS
    assert finding.claim == "pool default of c (10 cards) is full now, 2.0 cards' worth waits"
    assert finding.effect is not None
    assert finding.effect.value == 0.0
    json.dumps(finding.to_json(), allow_nan=False)


def test_a_pool_that_stays_open(make_node: MakeNode) -> None:
    [finding] = judge(filling(make_node, 24, [0.0] * 3)).findings
    assert finding.verdict is Verdict.NO_EFFECT
    assert finding.effect is None
    assert "will not be full within 1.5 days; now 3.0 cards are taken or waited for" in finding.claim
    assert finding.evidence["capacity_cards"] == 10.0


def test_steady_growth_has_a_date(make_node: MakeNode) -> None:
    node = filling(make_node, 72, [8.0 * i for i in range(9)])  # nine cards in three days, the tenth in eight hours
    [finding] = judge(node).findings
    assert finding.verdict in {Verdict.HOLDS, Verdict.SUSPECTED}
    assert finding.effect is not None
    assert 0 < finding.effect.value <= 72 * 3600
    assert finding.effect.lower <= finding.effect.value <= finding.effect.upper
    assert "will be full around 2026-01-" in finding.claim


def test_several_pools_are_told_by_their_queues(make_node: MakeNode) -> None:
    node = filling(make_node, 24, [])
    queues = pd.concat(
        [
            queue("a", 24, quota=4, allocated=4, pending=0),
            queue("b", 24, quota=8, allocated=1, pending=0),
            queue("c", 24, quota=-1, allocated=1, pending=0),
            queue("d", 3, quota=8, allocated=1, pending=0),
        ]
    )
    got = judge(node, queues=queues)
    assert [(f.evidence["pool"], f.verdict) for f in got.findings] == [("a", Verdict.HOLDS), ("b", Verdict.NO_EFFECT)]
    assert len({f.id for f in got.findings}) == 2
    assert [w.reason for w in got.withheld] == [
        "pool c: how many cards the pool has is not known (fact or row of its quota)",
        "pool d: less than 12 h of history",
    ]


def test_a_node_that_was_not_seen_is_no_free_node(make_node: MakeNode) -> None:
    one = filling(make_node, 24, [0.0] * 10)
    other = make_node(hours=24, interval_seconds=300.0, name="node-b")
    other.card("X", sm_active_ratio=0.1, keep=np.arange(other.count) < 100)
    got = judge(one, other)
    assert got.findings == []
    assert [w.reason for w in got.withheld] == ["pool default: less than 12 h of history"]


def test_no_cards_no_claim(make_node: MakeNode) -> None:
    assert judge(make_node(hours=1)) == Conclusion([], [])
