"""Dividing a card's activity among its slices: worked values and laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.attribution import attribute, busy_weight, first_known, learn_use

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


def _loads(count: int, slices: int) -> np.ndarray:
    return np.random.default_rng(4).uniform(0.0, 10.0, (count, slices))


def test_costs_are_learnt_from_how_the_cards_activity_moves_with_the_loads() -> None:
    load = _loads(200, 3)
    cost = np.array([0.01, 0.04, 0.002])
    learnt = learn_use(load @ cost, load, np.repeat((load @ cost)[:, None] / 3, 3, axis=1))
    assert learnt is not None
    assert learnt.used == pytest.approx(load * cost, rel=0.02, abs=1e-3)
    assert learnt.error < 1e-3


def test_loads_that_move_together_stay_divided_as_guessed() -> None:
    rhythm = np.random.default_rng(5).uniform(0.2, 1.0, 100)
    load = np.column_stack([rhythm * 100, rhythm * 5])
    guess = np.column_stack([rhythm * 0.1, rhythm * 0.3])
    learnt = learn_use(rhythm * 0.5, load, guess)
    assert learnt is not None
    assert learnt.used.sum(axis=1) == pytest.approx(rhythm * 0.5, rel=0.01)
    # The nearest costs to the guesses (1 each) that explain it: 1.1 and 1.3, for 0.1 x 1.1 + 0.3 x 1.3 = 0.5.
    assert learnt.used[:, 0] / rhythm == pytest.approx(np.full(100, 0.11), rel=0.02)


def test_constant_loads_keep_the_first_guess() -> None:
    learnt = learn_use(np.full(60, 0.6), np.full((60, 2), 3.0), np.tile([0.4, 0.2], (60, 1)))
    assert learnt is not None
    assert learnt.used == pytest.approx(np.tile([0.4, 0.2], (60, 1)))


@pytest.mark.parametrize(("count", "slices"), [(29, 1), (35, 12)])
def test_nothing_is_learnt_from_too_few_samples(count: int, slices: int) -> None:
    load = _loads(count, slices)
    assert learn_use(load.sum(axis=1) / 200, load, load / 200) is None


def test_nothing_is_learnt_where_nobody_did_anything() -> None:
    assert learn_use(np.full(60, 0.3), np.zeros((60, 2)), np.full((60, 2), 0.1)) is None


@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_learnt_use_is_never_negative_and_unknown_loads_stay_unknown(seed: int, slices: int) -> None:
    random = np.random.default_rng(seed)
    load = random.uniform(0.0, 1.0, (80, slices))
    load[random.random((80, slices)) < 0.05] = np.nan
    guess = np.nan_to_num(load) * random.uniform(0.01, 0.2, slices)
    activity = np.where(random.random(80) < 0.1, np.nan, random.uniform(0.0, 1.0, 80))
    learnt = learn_use(activity, load, guess)
    assert learnt is not None
    assert (np.isnan(learnt.used) == np.isnan(load)).all()
    assert (np.nan_to_num(learnt.used) >= 0).all()
