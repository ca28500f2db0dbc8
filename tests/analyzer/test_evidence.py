"""The evidence gate: absent fields by name, and series of unlike windows."""

from __future__ import annotations

import math

import pytest

from analyzer.evidence import SampleWindows, absent_fields, alike, sample_windows
from tests.analyzer.conftest import MakeNode


def test_absent_fields_are_named() -> None:
    needs = {"gpu": ("a|b", "c"), "node": ("d",)}
    assert absent_fields(needs, lambda _, name: name in {"b", "c", "d"}) == ""
    assert absent_fields(needs, lambda measurement, _: measurement == "node") == "no a or b, c"


def test_windows_are_read_as_they_are_told(make_node: MakeNode) -> None:
    node = make_node()
    node.fact("gpu", "sample_window", "0; 1: power_watts; 300: dram_active_ratio, sm_active_ratio", gpu="GPU-1")
    found = sample_windows(node.facts())["c", "node-a", "GPU-1", ""]
    assert found.seconds("busy_ratio", 60) == 60  # a point stands for its interval
    assert found.seconds("power_watts", 60) == 60
    assert found.seconds("sm_active_ratio", 60) == 300
    assert math.isnan(SampleWindows.parse("unknown").seconds("busy_ratio", 60))
    assert SampleWindows.parse("cycle").seconds("busy_ratio", 15) == 15


@pytest.mark.parametrize(
    ("one", "other", "same"), [(60, 60, True), (60, 120, True), (60, 300, False), (math.nan, 300, True)]
)
def test_alike(one: float, other: float, same: bool) -> None:
    assert alike(one, other) is same
    assert alike(other, one) is same
