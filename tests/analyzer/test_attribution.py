"""Dividing a card's activity among its slices: worked values and laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.attribution import attribute

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


def test_unknown_stays_unknown() -> None:
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
