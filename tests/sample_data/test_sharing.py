from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sample_data.cluster.presets import mixed
from sample_data.cluster.sharing import OVERCOMMIT_SLOWING, Divider, Pairs, pressing, water_fill
from sample_data.cluster.spec import ClusterSpec

SPEC = mixed(1)
N = len(SPEC.slices)
CAPS = np.array([s.sm_quota for s in SPEC.slices])
ONLINE = np.array([s.online for s in SPEC.slices])
CARD = np.array([s.card for s in SPEC.slices])
WIDTH = np.array([s.width for s in SPEC.slices])
KIND = np.array([s.kind for s in SPEC.slices])


def index(name: str, ordinal: int = 0) -> int:
    return next(i for i, s in enumerate(SPEC.slices) if (s.name, s.ordinal) == (name, ordinal))


@given(st.lists(st.floats(0.0, 2.0), min_size=1, max_size=8), st.floats(0.1, 1.0))
def test_water_filling_grants_wishes_or_everything(wishes: list[float], capacity: float) -> None:
    granted = water_fill(np.array(wishes), capacity)
    assert (granted <= np.array(wishes) + 1e-12).all()
    assert granted.sum() == pytest.approx(min(sum(wishes), capacity))


@given(st.lists(st.floats(0.0, 2.0), min_size=2, max_size=8))
def test_water_filling_is_fair(wishes: list[float]) -> None:
    granted = water_fill(np.array(wishes))
    short = granted < np.array(wishes) - 1e-9
    if short.any():  # whoever wants more has the largest share
        assert granted[short].min() >= granted.max() - 1e-9


@given(st.integers(0, 2**32), st.floats(0.0, 1.0))
def test_no_card_gives_more_than_it_has(seed: int, scale: float) -> None:
    caps, demand, wave = np.random.default_rng(seed).random((3, N)) * scale
    cap = np.where(np.isin(KIND, ("mig", "whole")), CAPS, caps)
    grant = Divider(SPEC).divide(cap, demand * ONLINE, np.where(ONLINE, 0.0, wave))
    assert (np.bincount(CARD, weights=grant.granted) <= 1.0 + 1e-9).all()
    assert (grant.granted <= cap + 1e-9)[KIND != "timeslice"].all()
    assert (grant.available >= -1e-12).all()


def test_without_quota_nothing_runs() -> None:
    grant = Divider(SPEC).divide(np.zeros(N), np.full(N, 0.1) * ONLINE, np.where(ONLINE, 0.0, 1.0))
    assert not grant.granted.any()
    assert not grant.available.any()


def test_an_idle_card_gives_each_its_cap() -> None:
    grant = Divider(SPEC).divide(CAPS, np.zeros(N), np.zeros(N))
    fixed = KIND != "timeslice"
    assert np.allclose(grant.available[fixed], CAPS[fixed])
    assert np.allclose(grant.stretch, 1.0)


def test_rotation_stretches_a_request_by_the_number_of_active_processes() -> None:
    wave = np.zeros(N)
    wave[index("pose-train")] = 1.0
    grant = Divider(SPEC).divide(CAPS, np.zeros(N), wave)
    assert grant.stretch[index("faces")] == pytest.approx(2.0, abs=0.05)
    assert grant.granted[index("pose-train")] == pytest.approx(WIDTH[index("pose-train")])


def test_rotation_conserves_work() -> None:
    wave, demand = np.zeros(N), np.zeros(N)
    wave[index("pose-train")] = 1.0
    demand[index("faces")] = 0.1
    grant = Divider(SPEC).divide(CAPS, demand, wave)
    server, trainer = index("faces"), index("pose-train")
    time = grant.granted[trainer] / WIDTH[trainer] + demand[server] / WIDTH[server]
    assert time == pytest.approx(1.0)


def test_an_overcommitted_card_slows_everyone_on_it() -> None:
    cap, wave, demand = CAPS.copy(), np.zeros(N), np.zeros(N)
    trainer, server = index("rl-train"), index("vision-gate")
    cap[trainer], wave[trainer] = 0.85, 1.0
    cap[server], demand[server] = 0.34, 0.3
    grant = Divider(SPEC).divide(cap, demand, wave)
    assert grant.stretch[server] == pytest.approx(1.0 + OVERCOMMIT_SLOWING * 0.15)
    assert grant.granted[server] == pytest.approx(0.3)  # the smaller wish is met in full
    assert grant.granted[trainer] == pytest.approx(0.7)


def test_enough_room_leaves_a_server_alone_and_little_room_does_not() -> None:
    trainer, server = index("rl-train"), index("vision-gate")
    wave, demand = np.zeros(N), np.zeros(N)
    wave[trainer], demand[server] = 1.0, 0.2
    available = []
    for quota in (0.2, 0.6, 0.78):
        cap = CAPS.copy()
        cap[trainer] = quota
        available.append(Divider(SPEC).divide(cap, demand, wave).available[server])
    assert available[0] == available[1] == pytest.approx(0.34)
    assert available[2] == pytest.approx(0.22)


def test_nobody_is_slowed_by_idle_neighbours() -> None:
    assert np.allclose(Pairs.of(SPEC).slowing(np.zeros(N)), 1.0)


def test_a_planted_suspect_slows_its_victim_and_hardly_anyone_else() -> None:
    activity = np.zeros(N)
    activity[index("lm-train")] = 1.0
    slowing = Pairs.of(SPEC).slowing(activity)
    assert slowing[index("chat")] > 1.15
    others = np.delete(slowing, index("chat"))
    assert others.max() < 1.02


def test_instances_shield_from_memory_but_not_from_pcie() -> None:
    pairs = Pairs.of(SPEC)
    mig = np.isin(pairs.victim, np.flatnonzero(KIND == "mig"))
    assert not pairs.strength[mig][:, :3].any()
    assert pairs.strength[mig][:, 3].any()


def test_pressure_needs_only_a_part_of_the_card() -> None:
    assert pressing(np.array([0.0, 0.05, 0.1, 0.6])).tolist() == pytest.approx([0.0, 0.5, 1.0, 1.0])


def test_whole_cards_have_no_neighbours(spec: ClusterSpec) -> None:
    cards = [s.card for s in spec.slices if s.kind == "whole"]
    assert len(cards) == len(set(cards)) == 2
