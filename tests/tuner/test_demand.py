"""Demand history and response curves: right grids, replaced steps, bounded memory."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from tuner.service.demand import DemandHistory, ResponseCurves

T0 = datetime(2026, 1, 5, tzinfo=UTC)
FIVE = timedelta(minutes=5)


def test_history_stands_on_its_grid_and_keeps_gaps() -> None:
    history = DemandHistory(FIVE, timedelta(days=1))
    history.add(T0, {"a": 0.1})
    history.add(T0 + 3 * FIVE, {"a": 0.4, "b": 0.2})
    frame = history.frame()
    a = frame[frame["series"] == "a"]["value"].tolist()
    b = frame[frame["series"] == "b"]["value"].tolist()
    assert a[0] == 0.1
    assert a[3] == 0.4
    assert math.isnan(a[1])
    assert math.isnan(a[2])
    assert all(math.isnan(v) for v in b[:3])
    assert b[3] == 0.2
    assert frame["time"].min() == T0
    assert history.watched_seconds("a") == 600
    assert history.watched_seconds("nobody") == 0


def test_a_step_seen_again_is_replaced_and_a_late_one_finds_its_place() -> None:
    history = DemandHistory(FIVE, timedelta(days=1))
    history.add(T0, {"a": 0.1})
    history.add(T0 + FIVE, {"a": 0.2})
    history.add(T0 + timedelta(minutes=4), {"a": 0.3})
    history.add(T0 - FIVE, {"a": 9.0})  # before all that is remembered: nothing to put it in
    assert history.frame()["value"].tolist() == [0.3, 0.2]


def test_memory_is_bounded() -> None:
    history = DemandHistory(FIVE, timedelta(minutes=15))
    for i in range(10):
        history.add(T0 + i * FIVE, {"a": float(i)})
    assert history.frame()["value"].tolist() == [7.0, 8.0, 9.0]


def test_no_history_is_an_empty_frame() -> None:
    frame = DemandHistory(FIVE, FIVE).frame()
    assert frame.empty
    assert str(frame["time"].dtype) == "datetime64[ms, UTC]"


def test_response_curve_counts_only_minutes_with_requests() -> None:
    curves = ResponseCurves()
    curves.add("a", np.array([0.1] * 10 + [0.5] * 10 + [np.nan]), np.array([1.0] * 10 + [0.0] * 9 + [np.nan, 1.0]))
    assert curves.limit("a") == pytest.approx(0.5)
    assert curves.limit("unseen") == pytest.approx(0.6)
