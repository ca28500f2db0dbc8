"""Dividing a card's activity among its slices: worked values and laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.attribution import attribute, busy_weight, first_known

NAN = np.nan


def test_rest_of_the_card_is_divided_by_weight() -> None:
    used = attribute(
        own=np.array([0.3, NAN, NAN]),
        weight=np.array([NAN, 0.2, 0.6]),
        moment=np.array([0, 0, 0]),
        card_activity=np.array([0.7]),
    )
    assert used == pytest.approx([0.3, 0.1, 0.3])


def test_without_the_cards_activity_weights_stand_and_sum_to_one_at_most() -> None:
    used = attribute(np.array([NAN, NAN, NAN]), np.array([0.9, 0.6, 0.2]), np.array([0, 0, 1]), np.array([NAN, NAN]))
    assert used == pytest.approx([0.6, 0.4, 0.2])


def test_counters_are_kept_and_only_estimates_are_scaled_into_what_is_left() -> None:
    used = attribute(np.array([0.7, NAN, NAN]), np.array([NAN, 0.6, 0.3]), np.array([0, 0, 0]), np.array([NAN]))
    assert used == pytest.approx([0.7, 0.2, 0.1])


def test_counters_that_alone_exceed_the_card_are_scaled_and_leave_nothing() -> None:
    used = attribute(np.array([0.9, 0.6, NAN]), np.array([NAN, NAN, 0.5]), np.array([0, 0, 0]), np.array([1.0]))
    assert used == pytest.approx([0.6, 0.4, 0.0])


def test_unknown_stays_unknown_and_leaves_the_rest_to_the_others() -> None:
    used = attribute(np.array([NAN, NAN]), np.array([NAN, 0.5]), np.array([0, 0]), np.array([0.4]))
    assert np.isnan(used[0])
    assert used[1] == pytest.approx(0.4)


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 1), st.booleans()), min_size=1, max_size=30))
def test_shares_of_a_moment_never_exceed_the_card(samples: list[tuple[int, float, bool]]) -> None:
    moment = np.array([m for m, _, _ in samples])
    own = np.array([v if has else NAN for _, v, has in samples])
    weight = np.array([NAN if has else v for _, v, has in samples])
    used = attribute(own, weight, moment, np.array([0.0, 0.5, 1.0, NAN]))
    assert (np.nan_to_num(used) >= 0).all()
    assert (np.bincount(moment, weights=np.nan_to_num(used), minlength=4) <= 1 + 1e-9).all()
    kept = np.bincount(moment, weights=np.nan_to_num(own), minlength=4)[moment] <= 1
    assert used[~np.isnan(own) & kept] == pytest.approx(own[~np.isnan(own) & kept])


def test_the_first_known_value_of_each_element_counts() -> None:
    first = np.array([[0.1, np.nan], [np.nan, np.nan]])
    second = np.array([[0.9, 0.2], [np.nan, 0.4]])
    found = first_known([first, second])
    np.testing.assert_array_equal(found, [[0.1, 0.2], [np.nan, 0.4]])
    assert np.isnan(first[0, 1])  # what was given stays as it was


def test_busy_time_weighs_by_the_share_only_where_slices_run_side_by_side() -> None:
    busy, quota = np.array([0.5, 0.5, 0.5, np.nan]), np.array([0.4, 0.4, np.nan, 0.4])
    weight = busy_weight(busy, quota, np.array([True, False, True, True]))
    np.testing.assert_allclose(weight, [0.2, 0.5, 0.5, np.nan])
