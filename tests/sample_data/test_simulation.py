from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from sample_data.cluster import ClusterSpec, SimulatedCluster
from sample_data.cluster.backend import SimulatorBackend
from sample_data.cluster.simulation import World
from sample_data.cluster.spec import GIB
from tests.sample_data.helpers import change, find, run, target_of


def test_one_seed_gives_one_run(spec: ClusterSpec) -> None:
    one, two = run(World(spec), 60), run(World(spec), 60)
    for a, b in zip(one.truth.minutes, two.truth.minutes, strict=True):
        assert np.array_equal(a.useful, b.useful)
        assert np.array_equal(a.requests, b.requests)
        assert a.waits_seconds == b.waits_seconds


def test_another_seed_gives_another_run(spec: ClusterSpec) -> None:
    other = dataclasses.replace(spec, seed=2)
    assert not np.array_equal(run(World(spec), 30).truth.requests(), run(World(other), 30).truth.requests())


def test_what_is_changed_moves_neither_arrivals_nor_noise(spec: ClusterSpec) -> None:
    static, tuned = SimulatedCluster(spec), SimulatedCluster(spec)
    run(static, 120)
    run(tuned, 60)
    backend = SimulatorBackend(tuned)
    assert change(backend, target_of(tuned, "rl-train"), "sm_quota_ratio", 0.6)
    assert change(
        backend, next(t for t in backend.read().targets if t.name == "default/vision"), "quota_gpu_count", 4.0
    )
    run(tuned, 60)
    assert np.array_equal(static.truth.requests(), tuned.truth.requests())
    assert static.truth.useful_sm_seconds()[-1] != tuned.truth.useful_sm_seconds()[-1]
    untouched = find(spec, "thumbs")
    assert static.truth.minutes[-1].useful[untouched] == tuned.truth.minutes[-1].useful[untouched]


def test_it_starts_on_a_monday_at_midnight(spec: ClusterSpec) -> None:
    assert SimulatedCluster(spec).now.isoformat() == "2026-01-05T00:00:00+00:00"
    assert SimulatedCluster(spec).now.weekday() == 0


def test_useful_work_never_exceeds_what_ran(morning: SimulatedCluster) -> None:
    for minute in morning.truth.minutes:
        assert (minute.useful <= minute.used + 1e-6).all()
        assert minute.used.sum() <= morning.truth.capacity_sm_seconds


def test_requests_within_never_exceed_requests(morning: SimulatedCluster) -> None:
    within, requests = morning.truth.within(), morning.truth.requests()
    assert (within.sum(axis=0) <= requests.sum(axis=0)).all()
    assert within.sum() > 0.9 * requests.sum()


def test_the_preset_is_what_it_promises(spec: ClusterSpec) -> None:
    assert len(spec.cards) == 16
    assert len({c.node for c in spec.cards}) == 4
    assert {s.kind for s in spec.slices} == {"mig", "mps", "vgpu", "timeslice", "whole"}
    assert len(spec.slices) >= 55
    assert sum(s.online for s in spec.slices) >= 25
    kinds = {f"{s.name}#{s.ordinal}": s.kind for s in spec.slices}
    planted = [kinds[victim] for victim, _ in spec.planted]
    assert planted == [kinds[suspect] for _, suspect in spec.planted]
    assert {k: planted.count(k) for k in set(planted)} == {"mig": 2, "mps": 2, "vgpu": 2, "timeslice": 2}
    assert {d.name for d in spec.decoys} == {
        "shared daily cycle",
        "own load",
        "lagged reverse causality",
        "synchronous reverse causality",
        "third party",
        "throttling",
    }


def test_memory_fits_every_card(spec: ClusterSpec) -> None:
    for c, card in enumerate(spec.cards):
        held = sum(s.memory_used_bytes for s in spec.slices if s.card == c)
        assert held < card.hardware.memory_bytes, card
        if card.sharing == "vgpu":
            assert sum(s.memory_quota_bytes for s in spec.slices if s.card == c) <= card.hardware.memory_bytes
        if card.sharing in ("mps", "vgpu"):
            assert sum(s.sm_quota for s in spec.slices if s.card == c) <= 1.0 + 1e-9


def test_one_card_is_cut_so_that_three_slices_fit_nowhere(spec: ClusterSpec) -> None:
    taken = {s.start + k for s in spec.slices if s.card == 1 for k in range(2 if s.profile.startswith("2g") else 1)}
    free = set(range(8)) - taken
    assert len(free) == 4
    assert not any(set(range(start, start + 4)) <= free for start in (0, 4))


def test_a_lost_card_kills_its_slices_and_the_service_lives_elsewhere(spec: ClusterSpec) -> None:
    card = dataclasses.replace(spec.cards[11], fails_at_minute=30)
    cluster = SimulatedCluster(spec.replace(cards=(*spec.cards[:11], card, *spec.cards[12:])))
    run(cluster, 60)
    world = cluster.world
    gone = [i for i, s in enumerate(spec.slices) if s.card == 11]
    assert not any(cluster.truth.minutes[-1].useful[gone])
    assert cluster.truth.minutes[-1].energy_joules[11] == 0.0
    services = list(cluster.truth.services)
    for name in ("chat", "intent"):
        assert cluster.truth.within()[-1, services.index(name)] > 0
    assert "video-train" in {j.workload for w in world.pool.waiting.values() for j in w}
    served = [i for i in range(len(spec.slices)) if spec.slices[i].name == "chat" and spec.slices[i].card != 11]
    before, after = cluster.truth.minutes[29].demand[served], cluster.truth.minutes[40].demand[served]
    assert after.sum() > 1.5 * before.sum()


def test_a_service_without_any_replica_loses_its_requests(spec: ClusterSpec) -> None:
    world = World(spec)
    run(world, 10)
    server = find(spec, "ocr")
    world.restart(server)
    run(world, 3)
    k = world.truth.services.index("ocr")
    for minute in world.truth.minutes[-3:]:
        assert minute.requests[k] > 0
        assert minute.within[k] == 0
    world.step()
    assert world.truth.minutes[-1].within[k] > 0


def test_growing_memory_ends_in_a_kill_and_a_fresh_start(spec: ClusterSpec) -> None:
    slices = tuple(
        dataclasses.replace(s, memory_growth_bytes_per_hour=20 * GIB) if s.name == "kvstore" else s for s in spec.slices
    )
    world = World(spec.replace(slices=slices))
    server = find(spec, "kvstore")
    seen = []
    for _ in range(20):
        world.step()
        assert world.observation is not None
        seen.append(world.observation.memory[server])
    assert server in world.killed
    assert max(seen) <= world.memory_quota[server]
    assert 0.0 in seen
    assert seen[-1] < max(seen)


def test_every_decoy_is_innocent_and_every_planted_pair_is_not(morning: SimulatedCluster) -> None:
    pairs = morning.truth.pairs
    planted = [p for p in pairs if p.planted]
    assert len(planted) == 8
    assert min(p.effect for p in planted) >= 0.15
    assert len([p for p in pairs if p.decoy]) == 7
    assert max(p.effect for p in pairs if p.decoy) < 0.02
    assert max(p.effect for p in pairs if p.kind != "timeslice" and not p.planted) < 0.02
    assert {p.channel for p in planted if p.kind == "mig"} == {"pcie"}
    assert {p.channel for p in planted if p.kind == "timeslice"} == {"rotation"}


def test_counterfactual_agrees_with_the_run(spec: ClusterSpec) -> None:
    """The suspect taken away, the victim is as fast as the pair's effect says."""
    victim, suspect = find(spec, "chat"), find(spec, "lm-train")
    with_it = run(World(spec), 200)
    quiet = dataclasses.replace(spec.slices[suspect], pressure=(0.0,) * 4)
    without = run(World(spec.replace(slices=(*spec.slices[:suspect], quiet, *spec.slices[suspect + 1 :]))), 200)
    assert with_it.observation is not None
    pair = next(p for p in with_it.truth.pairs if (p.victim, p.suspect) == ("chat#0", "lm-train#0"))
    slowest = max(m.activity[suspect] for m in with_it.truth.minutes)
    assert slowest == pytest.approx(1.0)
    busy = next(k for k in range(199, 0, -1) if with_it.truth.minutes[k].activity[suspect] > 0.99)
    one, two = run(World(spec), busy + 1), run(World(without.spec), busy + 1)
    assert one.observation is not None
    assert two.observation is not None
    ratio = one.observation.service_seconds[victim] / two.observation.service_seconds[victim]
    assert ratio - 1 == pytest.approx(pair.effect, rel=0.03)
