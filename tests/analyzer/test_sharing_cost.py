"""TT112: what sharing costs a workload."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.findings import Finding, Verdict
from analyzer.protocols import Conclusion
from analyzer.settings import AnalyzeSettings
from analyzer.sharing_cost import SharingCostDetector
from analyzer.sharing_record import Record, block_moments, compare
from tests.analyzer.conftest import MakeNode, Node

H100 = "NVIDIA H100 80GB HBM3"
RNG = np.random.default_rng(3)
COUNT = 24 * 60
NOISE = np.exp(RNG.normal(0, 0.02, COUNT))
DAY = 10 * (1.5 + np.sin(np.arange(COUNT) * 2 * np.pi / 480))  # requests a second


def judge(*nodes: Node, **settings: Any) -> Conclusion:
    detector = SharingCostDetector(AnalyzeSettings(**settings))
    measures = pd.concat([detector.measure(node.partition()) for node in nodes], ignore_index=True)
    got = detector.conclude(measures, nodes[0].context())
    json.dumps([f.to_json() for f in got.findings], allow_nan=False)
    return got


def only(conclusion: Conclusion) -> Finding:
    assert len(conclusion.findings) == 1, conclusion
    return conclusion.findings[0]


def whole(make_node: MakeNode, **fields: Any) -> Node:
    node = make_node(hours=24, name="node-w")
    node.card("GPU-W", sm_count=132, sm_active_ratio=0.9)
    node.fact("gpu", "model", H100, gpu="GPU-W")
    node.slice("whole", gpu="GPU-W", kind="whole", **{"step_seconds": 0.1 * NOISE} | fields)
    return node


def shared(make_node: MakeNode, kind: str, step: Any, quota: float = 0.5, beside: Any = 0.4, **fields: Any) -> Node:
    node = make_node(hours=24, name="node-s")
    node.card("GPU-S", sm_count=132, sm_active_ratio=0.9)
    node.fact("gpu", "model", H100, gpu="GPU-S")
    node.slice("a", gpu="GPU-S", kind=kind, sm_quota_ratio=quota, busy_ratio=0.5, step_seconds=step, **fields)
    node.slice("b", gpu="GPU-S", kind=kind, sm_quota_ratio=0.5, busy_ratio=beside, tenant="x", workload="other")
    return node


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(1.0, Verdict.NO_EFFECT), (1.4, Verdict.HOLDS), (1.19, Verdict.SUSPECTED)],
)
def test_a_hard_half_of_a_card(make_node: MakeNode, factor: float, verdict: Verdict) -> None:
    # Half of the SMs take twice as long: nothing is lost. What comes on top is the cost of sharing.
    node = shared(make_node, "vgpu", 0.2 * factor * NOISE[::-1])
    finding = only(judge(whole(make_node), node))
    assert finding.verdict is verdict
    assert finding.effect is not None
    assert finding.effect.value == pytest.approx(1 - 1 / factor, abs=0.01)
    assert finding.effect.lower < finding.effect.value < finding.effect.upper
    assert (finding.evidence["mode"], finding.evidence["limit"]) == ("vgpu", 0.15)


def test_the_verdict_names_the_cut_that_fits(make_node: MakeNode) -> None:
    finding = only(judge(whole(make_node), shared(make_node, "vgpu", 0.3 * NOISE)))
    assert "do not share it; a " in finding.claim
    assert finding.evidence["fits"]["kind"] in {"mig", "whole"}


def test_the_limit_can_be_set(make_node: MakeNode) -> None:
    nodes = (whole(make_node), shared(make_node, "vgpu", 0.28 * NOISE))
    assert only(judge(*nodes, sharing_compute_cost_limit=0.4)).verdict is Verdict.NO_EFFECT


def test_idle_neighbours_lend_their_turns(make_node: MakeNode) -> None:
    # In rotation it has what the other leaves: at 40 % beside it, 60 % of the card.
    node = shared(make_node, "timeslice", 0.1 / 0.55 * NOISE, beside=0.5)
    finding = only(judge(whole(make_node), node))
    assert finding.verdict is Verdict.NO_EFFECT


def test_its_own_hours_alone_are_its_record(make_node: MakeNode) -> None:
    beside = np.where(np.arange(COUNT) % 240 < 120, 0.5, 0.0)
    step = np.where(beside > 0, 0.5, 0.2) * NOISE
    finding = only(judge(shared(make_node, "vgpu", step, beside=beside)))
    assert finding.effect is not None
    assert finding.effect.value == pytest.approx(0.6, abs=0.02)
    assert finding.evidence["blocks_alone"] > 50


def test_a_mig_instance_is_measured_by_its_own_sms(make_node: MakeNode) -> None:
    node = make_node(hours=24, name="node-m")
    node.card("GPU-M", sm_count=132)
    node.fact("gpu", "model", H100, gpu="GPU-M")
    share = 60 / 132
    node.slice("gi1", gpu="GPU-M", kind="mig", profile="3g.40gb", sm_active_ratio=0.4, step_seconds=0.1 / share * NOISE)
    finding = only(judge(whole(make_node), node))
    assert finding.verdict is Verdict.NO_EFFECT
    assert finding.effect is not None
    assert finding.effect.value == pytest.approx(0.0, abs=0.01)


def test_what_bandwidth_limits_is_measured_by_memory_slices(make_node: MakeNode) -> None:
    node = make_node(hours=24, name="node-m")
    node.card("GPU-M", sm_count=132)
    node.fact("gpu", "model", H100, gpu="GPU-M")
    node.slice(
        "gi1", gpu="GPU-M", kind="mig", profile="3g.40gb", sm_active_ratio=0.4, step_seconds=0.2 * NOISE,
        dram_active_ratio=0.35, fp16_active_ratio=0.1,
    )  # fmt: skip
    finding = only(judge(whole(make_node), node))
    # Four of eight memory slices, twice the time: all of what was granted.
    assert finding.evidence["resource"] == "bandwidth"
    assert finding.evidence["limit"] == 0.20
    assert finding.effect is not None
    assert finding.effect.value == pytest.approx(0.0, abs=0.01)


def test_cost_that_grows_with_the_request_rate(make_node: MakeNode) -> None:
    load: dict[str, Any] = {"requests_per_second": DAY}
    grows = 0.2 * (DAY / 15) ** 0.4 * NOISE  # at 15 requests a second it costs nothing, at 25 a fifth
    finding = only(judge(whole(make_node, **load), shared(make_node, "vgpu", grows, **load)))
    assert finding.verdict is Verdict.HOLDS
    assert finding.evidence["grows_with_request_rate"] is True
    assert finding.evidence["growth_per_doubling"] == pytest.approx(0.4 * math.log(2), abs=0.03)
    assert "the more requests, the more" in finding.claim


def test_records_are_compared_at_the_same_rate(make_node: MakeNode) -> None:
    # Cost rises with load alone and shared alike; it was alone at night and shared by day.
    cost = 0.1 * (DAY / 15) ** 0.5
    night = np.where(DAY < 18, DAY, np.nan)
    alone = whole(make_node, requests_per_second=night, step_seconds=np.where(DAY < 18, cost, np.nan) * NOISE)
    by_day = np.where(DAY > 8, DAY, np.nan)
    node = shared(make_node, "vgpu", np.where(DAY > 8, 2 * cost, np.nan) * NOISE[::-1], requests_per_second=by_day)
    finding = only(judge(alone, node))
    assert finding.evidence["same_load"] is True
    assert finding.effect is not None
    assert finding.effect.value == pytest.approx(0.0, abs=0.02)


def test_unlike_windows_are_not_set_against_each_other(make_node: MakeNode) -> None:
    load: dict[str, Any] = {"requests_per_second": DAY}
    alone = whole(make_node, **load)
    node = shared(make_node, "vgpu", 0.2 * (DAY / 15) ** 0.4 * NOISE, **load)
    node.fact("slice", "sample_window", "0; 300: requests_per_second", gpu="GPU-S", part="a")
    finding = only(judge(alone, node))
    assert finding.evidence["growth_per_doubling"] is None or math.isnan(finding.evidence["growth_per_doubling"])
    assert finding.evidence["grows_with_request_rate"] is False


@pytest.mark.parametrize(
    ("make", "reason", "applicable"),
    [
        (lambda n: shared(n, "vgpu", np.nan), "no step_seconds, steps_count or latency_p50_seconds", True),
        (
            lambda n: shared(n, "vgpu", 0.2 * NOISE),
            "it was never seen alone for an hour, nor on a whole card; its neighbours rest too little",
            True,
        ),
        (whole, "nobody worked beside it", False),
    ],
)
def test_what_cannot_be_compared_is_withheld(make_node: MakeNode, make: Any, reason: str, applicable: bool) -> None:
    got = judge(make(make_node))
    assert got.findings == []
    assert (reason, applicable) in {(w.reason, w.applicable) for w in got.withheld if w.slice in {"a", "whole"}}


def record(costs: np.ndarray) -> Record:
    y = np.repeat(np.log(costs), 10)
    nothing = np.full(len(y), np.nan)
    zeros = np.zeros(len(y))
    moments = block_moments(y, nothing, zeros, zeros, interval_seconds=60.0)
    return Record.pooled([{**moments, "bound": "", "alike": True}])


RESTS = np.where(np.arange(COUNT) % 10 < 3, 0.12, 0.6)  # three minutes in ten its neighbour hardly runs


@pytest.mark.parametrize(
    ("harm", "verdict"),
    [(0.0, Verdict.NO_EFFECT), (0.2, Verdict.NO_EFFECT), (0.42, Verdict.SUSPECTED), (1.0, Verdict.HOLDS)],
)
def test_who_is_never_alone_is_judged_by_the_time_in_which_its_neighbours_rest(
    make_node: MakeNode, harm: float, verdict: Verdict
) -> None:
    cost = 1 + harm * RESTS  # a unit takes so much longer
    finding = only(judge(shared(make_node, "vgpu", 0.2 * cost * NOISE, beside=RESTS)))
    assert finding.verdict is verdict
    assert finding.effect is not None
    truth = 1 - 1 / math.exp(float(np.log(cost).mean()))
    assert finding.effect.value == pytest.approx(truth, abs=0.02)
    assert finding.effect.lower - 1e-9 <= truth <= finding.effect.upper + 1e-9
    assert finding.evidence["provenance"] == "estimated"
    assert "estimated from the time in which its neighbours rest" in finding.claim
    assert finding.confidence == pytest.approx(0.63)


def test_a_record_alone_goes_before_an_estimate(make_node: MakeNode) -> None:
    node = shared(make_node, "vgpu", 0.2 * (1 + RESTS) * NOISE, beside=RESTS)
    finding = only(judge(whole(make_node), node))
    assert finding.evidence["provenance"] == "measured"
    assert "estimated" not in finding.claim


@given(st.floats(-2, 2), st.floats(1, 2.5))
def test_an_estimate_reaches_from_what_was_seen_to_what_neighbours_at_rest_may_add(log: float, stretch: float) -> None:
    costs = np.exp(np.random.default_rng(1).normal(0, 0.05, 60))
    seen = compare(record(costs), record(costs * math.exp(log)), 0.15, bandwidth=False)
    found = compare(record(costs), record(costs * math.exp(log)), 0.15, bandwidth=False, stretch=stretch)
    assert found.lower <= min(seen.lower, found.cost)
    assert found.upper >= max(seen.upper, found.cost)
    assert found.cost == pytest.approx(1 - math.exp(-log * stretch), abs=1e-6)


@given(st.floats(0.2, 5), st.integers(0, 1000))
def test_the_cost_is_a_ratio_of_means(factor: float, seed: int) -> None:
    costs = np.exp(np.random.default_rng(seed).normal(0, 0.1, 60))
    found = compare(record(costs), record(costs * factor), 0.15, bandwidth=False)
    assert found.cost == pytest.approx(1 - 1 / factor, abs=1e-6)
    assert found.lower <= found.cost <= found.upper
