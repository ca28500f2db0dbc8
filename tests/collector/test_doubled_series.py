"""A series that one text says twice: equal values are one value, of unlike ones none is taken, and never their mean."""

from __future__ import annotations

import math

import pytest

from collector.plugins import SourceContext
from tests.collector.conftest import Cycles

LABELS = 'UUID="GPU-0",gpu="0"'
UNLIKE = "one series with unlike values"


def power(value: float, labels: str = LABELS) -> str:
    return f"DCGM_FI_DEV_POWER_USAGE{{{labels}}} {value}\n"


def energy(value: float) -> str:
    return f"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{LABELS}}} {value}\n"


def value(cycles: Cycles, name: str) -> float:
    return float(cycles.frame("gpu").loc["GPU-0"].get(name, math.nan))


@pytest.mark.parametrize("again", [LABELS, 'gpu="0",UUID="GPU-0"', 'gpu="0", UUID="GPU-0",'])
def test_unlike_values_are_invalid_and_equal_ones_are_one(cycles: Cycles, again: str) -> None:
    busy = f"DCGM_FI_DEV_GPU_UTIL{{{LABELS}}} 50\n"
    for _ in range(2):  # the list of series is known the second time
        cycles.poll(busy + power(100) + power(300, again))
        assert math.isnan(value(cycles, "power_watts"))
        assert value(cycles, "busy_ratio") == 0.5
        assert cycles.rejects() == {("power_watts", UNLIKE): 1}
    cycles.poll(busy + power(120) + power(120, again))
    assert (value(cycles, "power_watts"), cycles.rejects()) == (120, {})
    cycles.poll(busy + power(130))
    assert (value(cycles, "power_watts"), cycles.rejects()) == (130, {})


def test_three_of_which_one_differs_are_invalid(cycles: Cycles) -> None:
    cycles.poll(power(100) + power(100) + power(101))
    assert cycles.rejects() == {("power_watts", UNLIKE): 1}


def test_a_counter_with_unlike_values_does_not_grow(cycles: Cycles) -> None:
    cycles.poll(power(1) + energy(1_000_000))
    cycles.poll(power(1) + energy(2_000_000) + energy(9_000_000))
    assert math.isnan(value(cycles, "energy_joules"))
    assert cycles.rejects() == {("energy_joules", UNLIKE): 1}
    cycles.poll(power(1) + energy(3_000_000) + energy(3_000_000))
    assert value(cycles, "energy_joules") == 2000  # since the last value that could be believed


def test_nan_twice_is_one_value_that_is_none(cycles: Cycles) -> None:
    cycles.poll(f"DCGM_FI_DEV_GPU_UTIL{{{LABELS}}} 50\n" + 2 * power(math.nan))
    assert cycles.rejects() == {("power_watts", "not_a_number"): 1}


def test_copies_on_pods_are_other_series(cycles: Cycles) -> None:
    """Read at slightly different instants, they are copies of the card's value: one label differs."""
    cycles.poll(power(100, LABELS + ',pod="a",namespace="x"') + power(102, LABELS + ',pod="b",namespace="x"'))
    assert (value(cycles, "power_watts"), cycles.rejects()) == (101, {})


def test_a_fact_and_an_unread_series(cycles: Cycles) -> None:
    text = power(100) + f"DCGM_FI_DEV_FB_TOTAL{{{LABELS}}} 1000\n" + f"DCGM_FI_DEV_FB_TOTAL{{{LABELS}}} 2000\n"
    cycles.poll(text + "go_goroutines 1\ngo_goroutines 2\n")
    assert cycles.rejects() == {("", UNLIKE): 1}
    assert cycles.facts("memory_bytes") == {}


def test_a_series_beside_its_double_that_goes(cycles: Cycles) -> None:
    cycles = Cycles(SourceContext(cluster="test"))
    for double in (True, False, True):
        cycles.poll(power(100) + (power(200) if double else "") + energy(1_000_000))
        assert cycles.rejects() == ({("power_watts", UNLIKE): 1} if double else {})
