from __future__ import annotations

import numpy as np
import pytest

from sample_data.cluster import ClusterSpec, SimulatedCluster
from sample_data.cluster.backend import SimulatorBackend
from sample_data.cluster.bound import upper_bound
from sample_data.cluster.presets import mixed
from sample_data.cluster.score import Score, score
from tests.sample_data.helpers import change, run
from tuner.model import Target


def test_figures_come_from_the_truth(morning: SimulatedCluster, spec: ClusterSpec) -> None:
    result = score(morning.truth, spec)
    useful = sum(float(m.useful.sum()) - m.lost_sm_seconds for m in morning.truth.minutes)
    assert result.useful_ratio == pytest.approx(useful / (morning.truth.capacity_sm_seconds * 360))
    assert len(result.hourly_useful) == 6
    assert np.mean(result.hourly_useful) == pytest.approx(result.useful_ratio)
    assert result.energy_kwh * 3.6e6 / useful == pytest.approx(result.energy_per_useful_joules)
    assert set(result.kept) == {s.name for s in spec.services}
    assert all(0.0 <= kept <= 1.0 for kept in result.kept.values())
    assert result.wait_p50_seconds <= result.wait_p95_seconds
    assert 0.0 < result.waste_ratio < 1.0


def test_a_run_of_nothing_has_no_score(spec: ClusterSpec) -> None:
    with pytest.raises(ValueError, match="step the cluster first"):
        score(SimulatedCluster(spec).truth, spec)


def test_no_run_beats_the_bound(morning: SimulatedCluster, spec: ClusterSpec) -> None:
    bound = upper_bound(spec, 360)
    result = score(morning.truth, spec)
    assert bound.useful_ratio > 1.5 * result.useful_ratio
    assert all(b > r for b, r in zip(bound.hourly_useful, result.hourly_useful, strict=True))
    assert bound.useful_ratio < 1.0


# -- what a simple rule can reach: so that the preset is neither free nor hopeless -----------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_simple_rule_reaches_half_as_much_again(seed: int) -> None:
    spec = mixed(seed)
    static, tuned = _two_days(spec, steered=False), _two_days(spec, steered=True)
    bound = upper_bound(spec)
    assert 0.34 <= static.useful_ratio <= 0.38
    assert bound.useful_ratio >= 1.9 * static.useful_ratio
    assert tuned.useful_ratio >= 1.55 * static.useful_ratio
    lost = {n: tuned.kept_minutes[n] - static.kept_minutes[n] for n in static.kept_minutes}
    assert min(lost.values()) >= -2, lost
    victims = {v.partition("#")[0] for v, _ in spec.planted}
    assert min(kept for name, kept in static.kept.items() if name not in victims) > 0.97
    assert max(static.kept[name] for name in victims) < 0.999
    assert tuned.wait_p50_seconds < static.wait_p50_seconds


def _two_days(spec: ClusterSpec, *, steered: bool) -> Score:
    cluster = SimulatedCluster(spec)
    backend = SimulatorBackend(cluster)
    for _ in range(2880):
        if steered:
            _steer(cluster, backend)
        run(cluster, 1)
    return score(cluster.truth, spec)


def _steer(cluster: SimulatedCluster, backend: SimulatorBackend) -> None:
    """Trainers get what the owners' daily curve leaves free; queues get the seats that stand empty."""
    minute = cluster.world.minute
    if minute % 15 == 0:
        for target, held in backend.read().targets.items():
            wanted = float(held.facts.get("allocated_gpu_count", 0)) + float(held.facts.get("free_gpu_count", 0))
            if target.kind == "queue" and wanted > held.values["quota_gpu_count"]:
                change(backend, target, "quota_gpu_count", wanted)
    if minute % 60 != 30:
        return
    ahead = {"mps": 240, "vgpu": {30: 720, 450: 780, 1110: 180, 1290: 180}.get(minute % 1440, 0)}
    for c, card in enumerate(cluster.spec.cards):
        if card.sharing in ahead and ahead[card.sharing] and cluster.world.card_alive[c]:
            _share_out(cluster, backend, c, ahead[card.sharing])


def _share_out(cluster: SimulatedCluster, backend: SimulatorBackend, c: int, ahead: int) -> None:
    spec, world = cluster.spec, cluster.world
    mine = [i for i, s in enumerate(spec.slices) if s.card == c and (world.holders[i] or s.role == "seat")]
    reserve = sum(min(_need(cluster, i, ahead) * 1.25 / 0.6, spec.slices[i].sm_quota) for i in mine if world.online[i])
    reserve += sum(spec.slices[i].sm_quota for i in mine if spec.slices[i].role == "seat")
    trainers = [i for i in mine if spec.slices[i].role == "trainer"]
    for i in trainers:
        target = Target("slice", spec.name, spec.cards[c].node, spec.cards[c].uuid, world.slice_id(i))
        share = round(max(1 - reserve, 0.1) / len(trainers), 2)
        if abs(share - world.quota_next[i]) > 0.05:
            change(backend, target, "sm_quota_ratio", share)


def _need(cluster: SimulatedCluster, index: int, ahead: int) -> float:
    """Largest share that a server needs within `ahead` minutes by its daily curve, without bursts."""
    share = cluster.spec.slices[index]
    service = next(s for s in cluster.spec.services if s.name == share.name)
    replicas = sum(s.name == share.name for s in cluster.spec.slices)
    minutes = cluster.world.minute + np.arange(0, ahead, 10)
    angle = 2 * np.pi * (minutes / 60 - service.peak_hour) / 24
    level = service.night_share + (1 - service.night_share) * ((1 + np.cos(angle)) / 2) ** 1.3
    peak = 1.0 if service.downstream_of else float(level.max())
    return peak * service.peak_per_second / replicas * share.unit_sm_seconds / float(cluster.world.sms[index])
