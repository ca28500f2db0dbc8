from __future__ import annotations

import numpy as np
import pytest

from sample_data.cluster.power import Thermals, power_clock
from sample_data.cluster.presets import mixed

SPEC = mixed(1)
CARDS = len(SPEC.cards)


def settled(activity: float, inlet_clock: float = 1.0) -> Thermals:
    thermals = Thermals(SPEC)
    for _ in range(60):
        thermals.move(np.full(CARDS, activity), np.full(CARDS, inlet_clock), np.ones(CARDS))
    return thermals


def test_an_idle_card_draws_idle_power() -> None:
    assert settled(0.0).power.tolist() == [c.hardware.idle_watts for c in SPEC.cards]


def test_power_follows_activity_and_never_passes_the_limit() -> None:
    half, full, over = settled(0.5).power, settled(1.0).power, settled(1.4).power
    tdp = np.array([c.hardware.tdp_watts for c in SPEC.cards])
    idle = np.array([c.hardware.idle_watts for c in SPEC.cards])
    assert np.allclose(half, (tdp + idle) / 2)
    assert np.allclose(full, tdp)
    assert np.allclose(over, tdp)


def test_a_power_cap_lowers_clocks_and_a_free_card_keeps_them() -> None:
    clock = power_clock(np.array([0.3, 1.0, 1.2]))
    assert clock[:2].tolist() == [1.0, 1.0]
    assert clock[2] ** 2.4 == pytest.approx(1 / 1.2)


def test_heat_follows_power() -> None:
    assert (settled(1.0).temperature > settled(0.2).temperature + 20).all()


def test_a_failing_inlet_heats_although_the_card_draws_less() -> None:
    hot, normal = settled(0.8, 0.78), settled(0.8)
    assert (hot.power < normal.power).all()
    assert (hot.temperature > normal.temperature).all()


def test_a_lost_card_draws_nothing() -> None:
    thermals = Thermals(SPEC)
    thermals.move(np.ones(CARDS), np.ones(CARDS), np.zeros(CARDS))
    assert not thermals.power.any()
