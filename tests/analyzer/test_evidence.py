"""The evidence gate: absent fields by name, and series of unlike windows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analyzer.contention import ContentionDetector
from analyzer.evidence import SampleWindows, absent_fields, alike, sample_windows
from analyzer.facts import records
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


def of_pair(measures: pd.DataFrame) -> dict[str, Any]:
    return next(row for row in records(measures) if (row["victim"], row["suspect"]) == ("v", "s"))


def test_a_pair_of_unlike_windows_is_not_tested(make_node: MakeNode) -> None:
    node = make_node(hours=12)
    rng = np.random.default_rng(1)
    bursts = np.repeat(rng.random(node.count // 20) < 0.4, 20) * 0.4
    node.card(sm_active_ratio=0.3 + bursts)
    slow = 0.1 * np.exp(0.5 * bursts + rng.normal(0, 0.02, node.count))
    node.slice("v", sm_active_ratio=0.3 + rng.normal(0, 0.01, node.count), step_seconds=slow, workload="victim")
    node.slice("s", sm_active_ratio=bursts, step_seconds=0.1, workload="suspect")
    detector = ContentionDetector()
    assert of_pair(detector.measure(node.partition()))["untested"] == ""
    node.fact("slice", "sample_window", "cycle", part="v", gpu="GPU-1")
    node.fact("slice", "sample_window", "0; 600: sm_active_ratio", part="s", gpu="GPU-1")
    measures = detector.measure(node.partition())
    unlike = of_pair(measures)
    assert unlike["untested"] == "step_seconds and sm_active_ratio are means over unlike windows"
    assert np.isnan(unlike["p"])
    got = detector.conclude(measures, node.context())
    assert any("unlike windows" in w.reason for w in got.withheld)
