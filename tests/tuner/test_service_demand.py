"""What one request costs: the calm quantile of many looks, and nothing before enough was seen."""

from __future__ import annotations

import math

import pytest

from tuner.service.demand import UnitCosts


def test_a_rate_costs_the_calm_quantile_of_what_was_seen() -> None:
    costs = UnitCosts()
    for used in (0.10, 0.12, 0.11, 0.30, 0.13):
        costs.add("a", used, 10.0)
    assert math.isnan(costs.used("a", 10.0))  # five looks prove nothing
    costs.add("a", 0.40, 10.0)
    assert costs.used("a", 20.0) == pytest.approx(20 * (0.11 + 0.25 * 0.01) / 10)
    assert math.isnan(costs.used("a", math.nan))
    assert math.isnan(costs.used("b", 10.0))


def test_idle_and_unknown_minutes_say_nothing() -> None:
    costs = UnitCosts()
    for _ in range(10):
        costs.add("a", 0.2, 0.0)
        costs.add("a", math.nan, 5.0)
        costs.add("a", 0.2, math.nan)
    assert math.isnan(costs.used("a", 10.0))
