"""What one request costs: the calm quantile of many looks, and nothing before enough was seen."""

from __future__ import annotations

import math

import pytest

from tests.tuner.service_rows import at
from tuner.service.demand import UnitCosts


def test_a_rate_costs_the_calm_quantile_of_what_was_seen() -> None:
    costs = UnitCosts()
    for look, used in enumerate((0.10, 0.12, 0.11, 0.30, 0.13)):
        costs.add("a", at(5 * look), used, 10.0)
    assert math.isnan(costs.used("a", 10.0))  # five looks prove nothing
    costs.add("a", at(25), 0.40, 10.0)
    assert costs.used("a", 20.0) == pytest.approx(20 * (0.11 + 0.25 * 0.01) / 10)
    assert math.isnan(costs.used("a", math.nan))
    assert math.isnan(costs.used("b", 10.0))


def test_idle_and_unknown_minutes_say_nothing() -> None:
    costs = UnitCosts()
    for look in range(10):
        costs.add("a", at(5 * look), 0.2, 0.0)
        costs.add("a", at(5 * look), math.nan, 5.0)
        costs.add("a", at(5 * look), 0.2, math.nan)
    assert math.isnan(costs.used("a", 10.0))


def test_the_same_minutes_count_once_however_often_they_are_looked_at() -> None:
    costs = UnitCosts()
    for minute in range(60):  # a fast path that looks at every minute: from the second on at a disturbed one
        costs.add("a", at(minute), 0.1 if minute % 5 == 0 else 0.9, 10.0)
    assert costs.used("a", 10.0) == pytest.approx(0.1)


def test_slices_seen_at_the_same_instant_count_each() -> None:
    costs = UnitCosts()
    for used in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6):
        costs.add("a", at(0), used, 1.0)
    assert costs.used("a", 1.0) == pytest.approx(0.225)


def test_a_day_of_looks_is_remembered() -> None:
    costs = UnitCosts()
    for look in range(2 * 288):
        costs.add("a", at(5 * look), 0.1 if look < 288 else 0.4, 1.0)
    assert costs.used("a", 1.0) == pytest.approx(0.4)
