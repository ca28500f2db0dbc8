"""TT605, TT607 and TT608."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analyzer.findings import Finding, Verdict
from analyzer.health_metrics import MetricsDetector
from analyzer.protocols import Conclusion
from tests.analyzer.conftest import MakeNode, Node

_RNG = np.random.default_rng(5)
WAVE = _RNG.normal(0, 1, 240)


def judge(*nodes: Node) -> Conclusion:
    detector = MetricsDetector()
    measures = pd.concat([detector.measure(node.partition()) for node in nodes], ignore_index=True)
    got = detector.conclude(measures, nodes[0].context())
    json.dumps([f.to_json() for f in got.findings], allow_nan=False)
    return got


def of(conclusion: Conclusion, code: str) -> list[Finding]:
    return [f for f in conclusion.findings if f.code == code]


def alive(**fields: Any) -> dict[str, Any]:
    values = {
        "sm_active_ratio": 0.5,
        "power_watts": 300 + WAVE,
        "temperature_celsius": 60 + WAVE,
        "sm_clock_hertz": 1.7e9 * (1 + 0.001 * WAVE),
        "energy_joules": 60 * (300 + WAVE),
    }
    return values | fields


def fleet(make_node: MakeNode, cards: int, odd: dict[str, Any], step: float = 0.1) -> Node:
    node = make_node(hours=4)
    for n in range(cards):
        own = {name: np.asarray(value) * (1 + 0.001 * n) for name, value in alive().items()}
        node.card(f"GPU-{n}", **own | (odd if n == 0 else {}))
        slow = step if n == 0 else 0.1
        node.slice("whole", gpu=f"GPU-{n}", kind="whole", workload="app", step_seconds=slow * (1 + 0.001 * n))
    return node


@pytest.mark.parametrize(
    ("odd", "step", "trait"),
    [
        ({"sm_clock_hertz": 1.4e9 + WAVE}, 0.1, "sm_clock_hertz"),
        ({"temperature_celsius": 80 + WAVE}, 0.1, "temperature_celsius"),
        ({"power_watts": 400 + WAVE, "energy_joules": 24_000 + WAVE}, 0.1, "power_watts"),
        ({}, 0.13, "step_seconds"),
    ],
)
def test_one_card_stands_apart(make_node: MakeNode, odd: dict[str, Any], step: float, trait: str) -> None:
    got = judge(fleet(make_node, 10, odd, step))
    assert [(f.evidence["trait"], f.subjects[0].gpu) for f in of(got, "TT605")] == [(trait, "GPU-0")]
    assert of(got, "TT605")[0].verdict is Verdict.HOLDS
    assert got.withheld == []


def test_a_difference_that_does_not_matter_is_none(make_node: MakeNode) -> None:
    assert of(judge(fleet(make_node, 10, {"sm_clock_hertz": 1.66e9 + WAVE})), "TT605") == []


def test_few_equals_are_no_evidence(make_node: MakeNode) -> None:
    got = judge(fleet(make_node, 4, {"sm_clock_hertz": 1.0e9 + WAVE}))
    assert of(got, "TT605") == []
    assert {(w.reason, w.applicable) for w in got.withheld} == {("fewer than 5 equals under the same work", False)}


def test_equals_are_found_over_nodes_and_a_node_is_named(make_node: MakeNode) -> None:
    nodes = [make_node(hours=4, name=f"node-{n}") for n in range(5)]
    for n, node in enumerate(nodes):
        for place in range(2):
            clock = 1.2e9 if n == 0 else 1.7e9
            node.card(f"GPU-{n}-{place}", **alive(sm_clock_hertz=clock * (1 + 0.001 * WAVE)))
            node.slice("whole", gpu=f"GPU-{n}-{place}", kind="whole", workload="app")
    found = of(judge(*nodes), "TT605")
    assert [f.subjects[0].node for f in found] == ["node-0", "node-0"]
    assert all("look at the node first" in f.claim for f in found)


def test_without_any_trait_it_is_withheld(make_node: MakeNode) -> None:
    node = make_node(hours=4)
    node.card(sm_active_ratio=0.5)
    reasons = [(w.code, w.reason, w.applicable) for w in judge(node).withheld]
    assert reasons == [("TT605", "no power_watts, temperature_celsius, sm_clock_hertz", True)]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"power_watts": 300.0, "temperature_celsius": 60.0, "sm_clock_hertz": 1.7e9}, "all stood still for 4.0 h"),
        ({"energy_joules": 0.0}, "the energy meter stood still for 4.0 h"),
        ({"energy_joules": 18.0}, "the energy meter says 0.00 times what power adds up to"),
        ({"engine_active_ratio": 0.0, "busy_ratio": 0.9}, "profiling counters said 0 for 4.0 h"),
        ({"power_watts": 1200 + WAVE, "energy_joules": 72_000 + WAVE}, "where the model has 700 W"),
    ],
)
def test_what_cannot_be(make_node: MakeNode, fields: dict[str, Any], words: str) -> None:
    node = make_node(hours=4)
    node.card(**alive(**fields))
    node.fact("gpu", "model", "NVIDIA H100 80GB HBM3", gpu="GPU-1")
    found = of(judge(node), "TT607")
    assert len(found) == 1
    assert words in found[0].claim


def test_slices_that_sum_to_more_than_their_card(make_node: MakeNode) -> None:
    node = make_node(hours=4)
    node.card(**alive())
    node.fact("gpu", "memory_total_bytes", str(80 * 2**30), gpu="GPU-1")
    for name in "ab":
        node.slice(name, sm_active_ratio=0.6, memory_used_bytes=50 * 2.0**30)
    claim = of(judge(node), "TT607")[0].claim
    assert "SM activity sums to 120% of the card" in claim
    assert "use 125% of its memory" in claim


def test_a_sound_card_is_quiet(make_node: MakeNode) -> None:
    node = make_node(hours=4)
    node.card(**alive())
    got = judge(node)
    assert of(got, "TT607") == of(got, "TT608") == []


def test_an_idle_card_may_stand_still(make_node: MakeNode) -> None:
    node = make_node(hours=4)
    node.card(sm_active_ratio=0.0, power_watts=70.0, temperature_celsius=35.0, sm_clock_hertz=2.1e8, energy_joules=4200)
    assert of(judge(node), "TT607") == []


def test_rejected_samples_are_told_where_they_are_many(make_node: MakeNode) -> None:
    node = make_node(hours=4)
    node.card(**alive())
    common = {"time": node.window.start, "kind": "gpu", "cluster": "c", "node": "node-a", "slice": "", "object": ""}
    rejects = pd.DataFrame(
        [
            {**common, "gpu": "GPU-1", "field": "busy_ratio", "reason": "out_of_range", "count": 9.0},
            {**common, "gpu": "GPU-1", "field": "power_watts", "reason": "blank", "count": 1.0},
            {**common, "gpu": "GPU-1", "field": "busy_ratio", "reason": "above_1_capped", "count": 99.0},
        ]
    )
    detector = MetricsDetector()
    partition = replace(node.partition(), rejects=rejects)
    found = detector.conclude(detector.measure(partition), node.context()).findings
    assert found[0].evidence["faults"] == ["9 samples of busy_ratio were no value (out of range)"]


def test_a_card_that_tells_no_activity_is_blind(make_node: MakeNode) -> None:
    node = make_node(hours=4)
    node.card(power_watts=300 + WAVE)
    found = of(judge(node), "TT608")
    assert len(found) == 1
    assert found[0].effect is not None
    assert found[0].effect.value == pytest.approx(4.0)
    assert "said nothing of its activity" in found[0].claim


def test_slices_that_tell_their_activity_speak_for_the_card(make_node: MakeNode) -> None:
    node = make_node(hours=4)
    node.card(power_watts=300 + WAVE)
    node.slice("gi1", kind="mig", sm_active_ratio=0.1)
    assert of(judge(node), "TT608") == []
