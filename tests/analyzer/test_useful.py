"""Useful work from telemetry alone."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.cards import cards
from analyzer.protocols import Partition
from analyzer.useful import estimate_useful, faster_group, measure_card_work, no_work, solo_costs
from tests.analyzer.conftest import MakeNode


def measure_useful(partition: Partition) -> pd.DataFrame:
    found = [rows for card in cards(partition) if len(rows := measure_card_work(card))]
    return pd.concat(found, ignore_index=True) if found else no_work()


def test_the_calm_intervals_teach_what_a_request_costs(make_node: MakeNode) -> None:
    node = make_node(hours=4)
    rng = np.random.default_rng(7)
    rate = 5 + 3 * np.sin(np.arange(node.count) / 40)
    factor = np.where(rng.random(node.count) < 0.6, rng.uniform(1.0, 1.8, node.count), 1.0)  # mostly disturbed
    node.card(sm_active_ratio=rate * 3.0 * factor / 100)
    node.slice(
        "whole",
        kind="whole",
        requests_per_second=rate,
        within_objective_per_second=rate * 0.8,
        step_seconds=0.05 * factor,
    )
    measures = measure_useful(node.partition())
    costs = solo_costs(measures)
    assert costs["cost"].tolist() == pytest.approx([3.0], rel=1e-6)
    assert costs["unit"].tolist() == ["request"]
    useful = estimate_useful(measures)
    assert useful["useful"].sum() == pytest.approx((rate * 0.8).sum() * 60 * 3.0)
    assert useful["useful"].sum() < useful["used"].sum()


def test_without_a_service_time_the_cheapest_intervals_teach(make_node: MakeNode) -> None:
    node = make_node(hours=4)
    disturbed = np.arange(node.count) % 2 == 1
    node.card(sm_active_ratio=np.where(disturbed, 0.3, 0.2))
    node.slice("whole", kind="whole", requests_per_second=10.0)
    measures = measure_useful(node.partition())
    assert solo_costs(measures)["cost"].tolist() == pytest.approx([2.0])
    # Nobody said what late is: all requests count.
    assert estimate_useful(measures)["useful"].sum() == pytest.approx(10 * 4 * 3600 * 2.0)


def test_thin_intervals_do_not_teach(make_node: MakeNode) -> None:
    node = make_node(hours=4)
    night = np.arange(node.count) < 100
    # At night a background thread dominates: 0.1 request/s look forty times dearer, or nearly free.
    node.card(sm_active_ratio=np.where(night, 0.0001, 0.2))
    node.slice("whole", kind="whole", requests_per_second=np.where(night, 0.1, 10.0))
    assert solo_costs(measure_useful(node.partition()))["cost"].tolist() == pytest.approx([2.0])


def test_a_lowered_clock_is_not_a_dearer_request(make_node: MakeNode) -> None:
    node = make_node(hours=2)
    slow = np.arange(node.count) >= 30
    node.card(
        sm_active_ratio=np.where(slow, 0.25, 0.2),
        sm_clock_hertz=np.where(slow, 1.12e9, 1.4e9),
        throttle_power_ratio=np.where(slow, 1.0, 0.0),
    )
    node.slice("whole", kind="whole", requests_per_second=10.0, step_seconds=np.where(slow, 0.125, 0.1))
    assert solo_costs(measure_useful(node.partition()))["cost"].tolist() == pytest.approx([2.0])


def test_cards_of_another_model_cost_otherwise(make_node: MakeNode) -> None:
    node = make_node(hours=1)
    for gpu, model, use in (("GPU-1", "A100", 0.2), ("GPU-2", "H100", 0.1)):
        node.card(gpu, sm_active_ratio=use)
        node.fact("gpu", "model", model, gpu=gpu)
        node.slice("whole", gpu=gpu, kind="whole", steps_count=60.0)
    costs = solo_costs(measure_useful(node.partition())).set_index("model")["cost"]
    assert costs.to_dict() == {"A100": pytest.approx(20.0), "H100": pytest.approx(10.0)}


def test_the_calmer_sisters_are_believed(make_node: MakeNode) -> None:
    node = make_node(hours=1)
    for i, use in enumerate((0.2, 0.2, 0.4, 0.5)):
        node.card(f"GPU-{i}", sm_active_ratio=use)
        node.slice("whole", gpu=f"GPU-{i}", kind="whole", steps_count=60.0)
    assert solo_costs(measure_useful(node.partition()))["cost"].tolist() == pytest.approx([20.0])


def test_work_without_a_unit_has_no_estimate(make_node: MakeNode) -> None:
    node = make_node(hours=1)
    node.card(sm_active_ratio=0.5)
    node.slice("whole", kind="whole")
    node.slice("gi", kind="mig", tenant="none", workload="none", sm_active_ratio=0.0)
    rows = estimate_useful(measure_useful(node.partition()))
    assert rows["slice"].tolist() == ["whole"]
    assert rows["useful"].isna().all()
    assert rows["unit"].tolist() == [""]


def test_a_node_without_work(make_node: MakeNode) -> None:
    assert measure_useful(make_node(hours=1).partition()).empty


def test_who_is_disturbed_nearly_always_is_known_by_its_few_calm_intervals(make_node: MakeNode) -> None:
    node = make_node(hours=8)
    rng = np.random.default_rng(11)
    calm = np.arange(node.count) % 20 < 2  # a tenth of the time
    factor = np.where(calm, 1.0, 1.3) * rng.normal(1.0, 0.015, node.count)
    node.card(sm_active_ratio=0.2 * factor)
    node.slice("whole", kind="whole", requests_per_second=10.0, step_seconds=0.05 * factor)
    assert solo_costs(measure_useful(node.partition()))["cost"].tolist() == pytest.approx([2.0], rel=0.02)


@given(st.integers(0, 1000), st.floats(0.05, 0.6), st.floats(1.15, 3.0))
def test_two_paces_are_told_apart(seed: int, share: float, ratio: float) -> None:
    rng = np.random.default_rng(seed)
    fast = np.arange(400) < 400 * share
    ranks = np.sort(np.where(fast, 1.0, ratio) * rng.normal(1.0, 0.01, 400))
    assert faster_group(ranks) == fast.sum()


@given(st.integers(0, 1000), st.sampled_from(["normal", "uniform", "lognormal"]))
def test_one_pace_is_not_cut(seed: int, shape: str) -> None:
    rng = np.random.default_rng(seed)
    drawn = {
        "normal": rng.normal(1, 0.05, 400),
        "uniform": rng.uniform(1, 2, 400),
        "lognormal": rng.lognormal(0, 0.3, 400),
    }
    assert faster_group(np.sort(drawn[shape])) == 400
    assert faster_group(np.ones(400)) == 400
    assert faster_group(np.ones(3)) == 3
    # Use too small to be measured: no ratio, and no warning.
    assert faster_group(np.repeat([0.0, 1.0, 2.0], 100)) == 300
