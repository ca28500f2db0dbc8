"""Quota use, energy, cost, and what the busy counter overstates: worked cases, own examples, laws."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.bottleneck_scores import overstated_by
from analyzer.cards import cards
from analyzer.energy import attribute_energy, attribute_power, idle_watts
from analyzer.quota_use import cost_of, quota_use
from tests.analyzer.conftest import MakeNode


def near(value: Any) -> Any:
    return pytest.approx(value, rel=1e-9, abs=6e-7)  # the cases are printed with six decimals


def kernels(case: dict[str, Any]) -> tuple[float, float]:
    """Busy share and SM activity of a timeline, as the counters would see it."""
    ticks = int(case["window_ms"])
    sms = np.zeros(ticks)
    for kernel in case["kernels"]:
        sms[kernel["start_ms"] : kernel["end_ms"]] += kernel["sms"]
    return float((sms > 0).mean()), float(np.minimum(sms / case["gpu_sms"], 1.0).mean())


def check(given_: dict[str, Any], expect: dict[str, Any]) -> str:
    if "kernels" in given_:
        busy, active = kernels(given_)
        assert (busy, active) == (near(expect["gpu_util"]), near(expect["sm_active"]))
        overstated = overstated_by(busy, active)
        assert overstated is None if expect["overstated_by"] is None else overstated == near(expect["overstated_by"])
        return "kernels"
    if "idle_watts" in given_:
        activity, quota = np.array([given_["activity"]]), np.array([given_["quota"]])
        watts, pool = attribute_power(given_["idle_watts"], np.array([float(given_["total_watts"])]), activity, quota)
        assert watts[0].tolist() == near(expect["watts"])
        assert pool[0] == near(expect["unattributed_watts"])
        assert (watts[0] * given_["seconds"]).tolist() == pytest.approx(expect["joules"], rel=1e-6)
        assert (watts[0] * given_["seconds"] / 3600).tolist() == near(expect["wh"])
        return "energy"
    if "gpu_price_per_hour" in given_:
        cost = cost_of(
            given_["gpu_price_per_hour"], given_["hours"], given_["quota_share"], given_["useful_util_of_quota"]
        )
        assert cost.allocated_gpu_hours == near(expect["allocated_gpu_hours"])
        assert cost.useful_gpu_hours == near(expect["useful_gpu_hours"])
        assert cost.cost == near(expect["cost"])
        assert cost.waste_cost == near(expect["waste_cost"])
        price = expect["cost_per_useful_gpu_hour"]
        assert cost.cost_per_useful_gpu_hour is None if price is None else cost.cost_per_useful_gpu_hour == near(price)
        return "cost"
    if given_["mode"] == "mig":
        share = given_["profile_sms"] / given_["gpu_sms"]
        use = quota_use(share, share * given_["instance_sm_active"], given_["seconds"])
        assert share == near(expect["quota_share"])
        assert use.of_quota == near(expect["util_of_quota"])
        assert use.of_card == near(expect["util_of_gpu"])
        assert use.wasted_gpu_seconds == near(expect["wasted_gpu_seconds"])
        assert use.wasted_gpu_seconds / share == near(expect["wasted_quota_seconds"])
        return "mig"
    use = quota_use(given_["quota_share"], given_["gpu_share_used"], given_["seconds"])
    assert use.of_quota == near(expect["util_of_quota"])
    assert use.of_quota_capped == near(expect["util_of_quota_capped"])
    assert use.borrowed_gpu_seconds == near(expect["borrowed_gpu_seconds"])
    assert use.wasted_gpu_seconds == near(expect["wasted_gpu_seconds"])
    return "quota"


def test_worked_cases(cases_dir: Path) -> None:
    cases = json.loads((cases_dir / "utilisation.json").read_text())["cases"]
    assert {check(case["input"], case["expect"]) for case in cases} == {"kernels", "energy", "cost", "mig", "quota"}


def test_borrowing_is_not_waste() -> None:
    use = quota_use(0.25, 0.4, 100.0)
    assert (use.of_quota, use.of_quota_capped) == (pytest.approx(1.6), 1.0)
    assert (use.borrowed_gpu_seconds, use.wasted_gpu_seconds) == (pytest.approx(15.0), 0.0)
    assert quota_use(0.0, 0.1, 10.0).of_quota is None


def test_nothing_useful_has_no_price_per_useful_hour() -> None:
    cost = cost_of(4.0, 10.0, 0.5, 0.0)
    assert (cost.cost, cost.waste_cost, cost.cost_per_useful_gpu_hour) == (20.0, 20.0, None)


def test_one_block_on_one_sm_is_fully_busy() -> None:
    assert overstated_by(1.0, 1 / 108) == pytest.approx(108.0)
    assert overstated_by(math.nan, 0.5) is None
    assert overstated_by(0.0, 0.0) is None


ratio = st.floats(0.0, 1.0)


@given(
    st.floats(10.0, 200.0),
    st.floats(0.0, 700.0),
    st.lists(st.tuples(ratio, ratio), min_size=0, max_size=6),
)
def test_attributed_power_sums_to_the_meter(idle: float, total: float, slices: list[tuple[float, float]]) -> None:
    activity = np.array([[a for a, _ in slices]]).reshape(1, -1)
    quota = np.array([[q for _, q in slices]]).reshape(1, -1)
    watts, pool = attribute_power(idle, np.array([total]), activity, quota)
    assert watts.sum() + pool.sum() == pytest.approx(total)
    assert (watts >= -1e-9).all()
    assert pool[0] >= -1e-6


def test_energy_of_a_card_sums_to_its_meter(make_node: MakeNode) -> None:
    node = make_node(hours=2)
    quiet = np.arange(node.count) < 60
    meter = np.where(quiet, 80.0, 300.0) * 60
    meter[5] = np.nan  # the exporter missed one: its power stands in
    node.card(power_watts=np.where(quiet, 80.0, 300.0), energy_joules=meter, sm_active_ratio=np.where(quiet, 0.0, 0.6))
    node.slice("a", sm_quota_ratio=0.5, busy_ratio=np.where(quiet, 0.0, 0.8))
    node.slice("b", tenant="other", sm_quota_ratio=0.25, busy_ratio=np.where(quiet, 0.0, 0.4))
    partition = node.partition()
    assert idle_watts(cards(partition)[0]) == pytest.approx(80.0)
    table = attribute_energy(partition).set_index("slice")["joules"]
    assert table.sum() == pytest.approx((80.0 + 300.0) * 3600)
    # Under MPS the weights are busy x quota: 0.4 and 0.1 of 220 W above idle.
    assert table["a"] == pytest.approx(80 * 0.5 * 7200 + 220 * 0.8 * 3600)
    assert table["b"] == pytest.approx(80 * 0.25 * 7200 + 220 * 0.2 * 3600)
    assert table[""] == pytest.approx(80 * 0.25 * 7200)


def test_a_card_without_a_meter_is_left_out(make_node: MakeNode) -> None:
    node = make_node(hours=1)
    node.card(sm_active_ratio=0.5)
    node.slice("a", sm_quota_ratio=0.5, busy_ratio=0.5)
    assert attribute_energy(node.partition()).empty


def test_idle_power_of_a_card_that_never_rests_is_its_lowest(make_node: MakeNode) -> None:
    node = make_node(hours=1)
    node.card(power_watts=np.linspace(200, 300, node.count), sm_active_ratio=0.9)
    assert idle_watts(cards(node.partition())[0]) == pytest.approx(200.0)
