"""The live view: a card's activity divided over its slices, and each slice in the hands of its last holder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import timedelta

import numpy as np
import pytest

from collector.batch import Batch
from collector.store import FrameStore
from collector.window import Window
from tests.tuner.fakes import slice_target
from tests.tuner.service_rows import at, card_rows, slice_rows
from tuner.model import Target
from tuner.service.live import Holding, holdings_of, read_live

A, B = slice_target("a"), slice_target("b")
WINDOW = Window(at(0), at(5))


def live(
    *batches: Batch, granted: Mapping[Target, float] | None = None, side_by_side: frozenset[Target] = frozenset()
) -> dict[Target, Holding]:
    rows, cards = read_live(FrameStore.of_batches(batches), WINDOW)
    return {h.target: h for h in holdings_of(rows, cards, granted=granted or {}, side_by_side=side_by_side)}


def test_nothing_seen_is_nothing_held() -> None:
    assert live(card_rows("GPU-0", range(3), sm_active_ratio=0.5)) == {}


def test_under_mps_a_card_is_divided_by_busy_time_and_share() -> None:
    found = live(
        slice_rows(A, [0], busy_ratio=1.0, sm_quota_ratio=0.9),
        slice_rows(B, [0], busy_ratio=0.5),
        card_rows("GPU-0", [0], sm_active_ratio=0.3, engine_active_ratio=0.9),
        granted={A: 0.5, B: 0.25},
        side_by_side=frozenset({A, B}),
    )
    assert found[A].used.tolist() == pytest.approx([0.24])  # 0.3 x 0.5 / (0.5 + 0.125)
    assert found[B].used.tolist() == pytest.approx([0.06])
    assert found[A].quota.tolist() == [0.5]  # the backend knows better than the row


def test_in_rotation_a_card_is_divided_by_busy_time_alone() -> None:
    found = live(
        slice_rows(A, [0], busy_ratio=0.6, sm_quota_ratio=0.1),
        slice_rows(B, [0], busy_ratio=0.2, sm_quota_ratio=0.8),
        card_rows("GPU-0", [0], engine_active_ratio=0.4),
    )
    assert found[A].used.tolist() == pytest.approx([0.3])
    assert found[B].used.tolist() == pytest.approx([0.1])
    assert (found[A].quota.tolist(), found[B].quota.tolist()) == ([0.1], [0.8])


def test_a_slice_with_counters_keeps_them_and_leaves_the_rest() -> None:
    found = live(
        slice_rows(A, [0], sm_active_ratio=0.25),
        slice_rows(B, [0], busy_ratio=0.5),
        card_rows("GPU-0", [0], busy_ratio=0.35),
    )
    assert found[A].used.tolist() == pytest.approx([0.25])
    assert found[B].used.tolist() == pytest.approx([0.10])


def test_without_the_cards_activity_the_weights_stand_and_without_any_it_is_unknown() -> None:
    found = live(
        slice_rows(A, [0, 1], busy_ratio=[0.4, np.nan], requests_per_second=1.0),
        card_rows("GPU-0", [1], sm_active_ratio=0.5),
        card_rows("GPU-other", [0], sm_active_ratio=0.1),
    )
    assert found[A].used.tolist() == pytest.approx([0.4, math.nan], nan_ok=True)
    assert found[A].mean_used == pytest.approx(0.4)


def test_a_slice_is_in_the_hands_of_its_last_holder() -> None:
    found = live(
        slice_rows(A, [0, 1], tenant="z", workload="old", busy_ratio=0.9, memory_used_bytes=9.0),
        slice_rows(A, [2, 3, 4], tenant="b", workload="new", busy_ratio=0.3, memory_used_bytes=[2.0, 5.0, 4.0]),
    )
    (holding,) = found.values()
    assert (holding.tenant, holding.workload) == ("b", "new")
    assert holding.used.tolist() == pytest.approx([0.3] * 3)
    assert holding.memory_bytes == 5.0
    assert holding.times_ms.tolist() == [at(m).timestamp() * 1000 for m in (2, 3, 4)]


def test_what_was_asked_and_kept_counts_requests_not_minutes() -> None:
    found = live(
        slice_rows(
            A,
            range(4),
            requests_per_second=[10.0, 30.0, 0.0, np.nan],
            within_objective_per_second=[10.0, 15.0, 0.0, np.nan],
        ),
        slice_rows(B, [0], requests_per_second=0.0, within_objective_per_second=0.0),
    )
    assert found[A].kept == pytest.approx(25 / 40)
    assert found[A].met.tolist() == pytest.approx([1.0, 0.5, math.nan, math.nan], nan_ok=True)
    assert found[A].requests_per_second == pytest.approx(40 / 3)
    assert math.isnan(found[B].kept)
    assert math.isnan(found[B].memory_bytes)


def test_age_and_coverage_count_whole_intervals() -> None:
    found = live(slice_rows(A, [0, 1, 3], busy_ratio=0.1), slice_rows(B, [3, 4], busy_ratio=0.1))
    last = at(4).timestamp() * 1000
    assert found[A].coverage(last, 60.0) == pytest.approx(3 / 5)
    assert found[B].coverage(last, 60.0) == 1.0
    assert found[A].age_seconds(at(5), 60.0) == 60.0
    assert found[B].age_seconds(at(5), 60.0) == 0.0
    assert found[B].age_seconds(at(4) + timedelta(seconds=30), 60.0) == 0.0


def test_an_interval_that_does_not_say_how_many_came_in_time_is_not_judged() -> None:
    found = live(
        slice_rows(
            A,
            range(3),
            busy_ratio=0.5,
            requests_per_second=[10.0, 10.0, 10.0],
            within_objective_per_second=[10.0, np.nan, 9.0],
        ),
        card_rows("GPU-0", range(3), sm_active_ratio=0.5),
    )
    assert found[A].kept == pytest.approx(0.95)
