"""Who moves whom, on series whose direction is known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.signal import lfilter

from analyzer.contention.direction import TWO_STATES, Direction, direction
from analyzer.contention.series import Floats

N = 2880


def _noise(rng: np.random.Generator, memory: float) -> Floats:
    return np.asarray(lfilter([1.0], [1.0, -memory], rng.normal(size=N))) * np.sqrt(1.0 - memory**2)


def _weigh(victim: Floats, suspect: Floats) -> Direction:
    centred = suspect - suspect.mean()
    return direction(victim - victim.mean(), centred, suspect, lambda values: values - np.nanmean(values), 0)


@pytest.mark.parametrize("seed", range(4))
def test_a_victim_in_two_states_that_stand_apart_did_not_cause_them(seed: int) -> None:
    """A job that stops and starts, on a card that rotates: in its turns the victim is slower, and less even."""
    rng = np.random.default_rng(seed)
    runs = (np.cumsum(rng.random(N) < 0.25) % 2).astype(np.float64)
    found = _weigh(0.64 * runs + 0.05 * (1.0 + runs) * _noise(rng, 0.6), runs + 0.02 * rng.normal(size=N))
    assert found.gap > 1.5 * TWO_STATES
    assert found.state_z > 20


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("memory", [0.0, 0.6, 0.9])
def test_a_reaction_splits_the_noise_and_leaves_no_gap(seed: int, memory: float) -> None:
    rng = np.random.default_rng(seed)
    slow = _noise(rng, memory)
    found = _weigh(slow, (slow > 0.3).astype(np.float64) + 0.02 * rng.normal(size=N))
    assert found.state_z > 20
    assert found.gap < 3.0
