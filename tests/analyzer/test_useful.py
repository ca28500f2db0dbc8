"""Useful work from telemetry alone."""

from __future__ import annotations

import numpy as np
import pytest

from analyzer.useful import estimate_useful, measure_useful, solo_costs, useful_by_hour
from tests.analyzer.conftest import MakeNode


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


def test_the_fleets_hours(make_node: MakeNode) -> None:
    busy = make_node(hours=2, name="node-a")
    busy.card("GPU-a", sm_active_ratio=np.where(np.arange(120) < 60, 0.4, 0.8))
    busy.slice("whole", gpu="GPU-a", kind="whole", steps_count=np.where(np.arange(120) < 60, 10.0, 20.0))
    idle = make_node(hours=2, name="node-b")
    idle.card("GPU-b", sm_active_ratio=0.0)
    table = useful_by_hour([busy.partition(), idle.partition()])
    assert table["ratio"].tolist() == pytest.approx([0.2, 0.4])
    assert table["capacity"].tolist() == pytest.approx([2 * 100 * 3600] * 2)
    assert useful_by_hour([idle.partition()])["useful"].tolist() == [0.0, 0.0]
    assert useful_by_hour([]).empty


def test_a_node_without_work(make_node: MakeNode) -> None:
    assert measure_useful(make_node(hours=1).partition()).empty
