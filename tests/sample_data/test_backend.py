from __future__ import annotations

import dataclasses

import pytest

from sample_data.cluster import ClusterSpec, SimulatedCluster
from sample_data.cluster.backend import SimulatorBackend
from sample_data.cluster.spec import GIB
from tests.sample_data.helpers import change, find, group, run, target_of
from tuner.backends.conformance import BackendConformance
from tuner.model import ApplyStatus, Backend, Change, KnobEffect, Target


@pytest.fixture
def cluster(spec: ClusterSpec) -> SimulatedCluster:
    return run(SimulatedCluster(spec), 30)


class TestSimulator(BackendConformance):
    @pytest.fixture
    def backend(self, cluster: SimulatedCluster) -> Backend:
        return SimulatorBackend(cluster)


class TestSlowSimulator(BackendConformance):
    @pytest.fixture
    def backend(self, cluster: SimulatedCluster) -> Backend:
        self.cluster = cluster
        return SimulatorBackend(cluster, read_back_seconds=5.0)

    def settle(self, backend: Backend) -> None:
        self.cluster.step()

    def _assert_others_unchanged(self, *_: object) -> None:
        """Jobs come and go while a minute passes."""

    def test_predict_changes_nothing(self, backend: Backend) -> None:
        super().test_predict_changes_nothing(backend)

    def test_a_change_is_unreadable_until_its_delay_has_passed(self, backend: Backend) -> None:
        wanted = self.one(backend)
        state = backend.read()
        result = backend.apply(group(wanted), {wanted.target: state.targets[wanted.target].generation})
        assert (result.status, result.settles_in_seconds) == (ApplyStatus.ACCEPTED, 5.0)
        assert backend.read().targets[wanted.target].values[wanted.knob] == wanted.before
        self.settle(backend)
        assert backend.read().targets[wanted.target].values[wanted.knob] == wanted.after


def useful(cluster: SimulatedCluster, name: str) -> float:
    return float(cluster.truth.minutes[-1].useful[find(cluster.spec, name)])


def test_knobs_say_what_a_change_costs(cluster: SimulatedCluster) -> None:
    knobs = {(k.name, k.sharing): k for k in SimulatorBackend(cluster).knobs()}
    assert knobs["sm_quota_ratio", "mps"].effect is KnobEffect.NEW_WORK_ONLY
    assert knobs["sm_quota_ratio", "vgpu"].effect is KnobEffect.NEEDS_RESTART
    assert knobs["sm_quota_ratio", "vgpu"].restart_seconds == 180.0
    assert knobs["memory_quota_bytes", "vgpu"].effect is KnobEffect.LIVE
    assert knobs["mig_layout", "mig"].effect is KnobEffect.NEEDS_DRAIN
    assert knobs["quota_gpu_count", None].can_evict


def test_a_vgpu_share_costs_a_restart_of_three_minutes(cluster: SimulatedCluster) -> None:
    backend, target = SimulatorBackend(cluster), target_of(cluster, "rl-train")
    before = max(float(m.useful[find(cluster.spec, "rl-train")]) for m in cluster.truth.minutes)
    assert change(backend, target, "sm_quota_ratio", 0.6)
    assert backend.read([target]).targets[target].effective["sm_quota_ratio"] == 0.16
    lost = [useful(run(cluster, 1), "rl-train") for _ in range(3)]
    assert lost == [0.0, 0.0, 0.0]
    run(cluster, 1)
    assert backend.read([target]).targets[target].effective["sm_quota_ratio"] == 0.6
    assert max(useful(run(cluster, 1), "rl-train") for _ in range(30)) == pytest.approx(before * 0.6 / 0.16, rel=0.02)


def test_an_mps_share_waits_for_the_next_job(cluster: SimulatedCluster) -> None:
    backend, target = SimulatorBackend(cluster), target_of(cluster, "gnn-train")
    index = find(cluster.spec, "gnn-train")
    assert change(backend, target, "sm_quota_ratio", 0.5)
    waited = 0
    while backend.read([target]).targets[target].effective["sm_quota_ratio"] < 0.5:
        day, column = cluster.world.arrivals.at(cluster.world.minute)
        turns = bool(day.turnover[index, column])
        run(cluster, 1)
        waited += 1
        assert turns == (cluster.world.quota[index] == 0.5)
        assert waited <= 120
    assert waited > 1


def test_an_online_server_keeps_its_mps_share(cluster: SimulatedCluster) -> None:
    backend, target = SimulatorBackend(cluster), target_of(cluster, "search")
    assert change(backend, target, "sm_quota_ratio", 0.1)
    run(cluster, 240)
    state = backend.read([target]).targets[target]
    assert (state.values["sm_quota_ratio"], state.effective["sm_quota_ratio"]) == (0.1, 0.24)


def test_lowering_memory_frees_nothing(cluster: SimulatedCluster) -> None:
    backend, target = SimulatorBackend(cluster), target_of(cluster, "rl-train")
    index = find(cluster.spec, "rl-train")
    assert cluster.world.observation is not None
    used = cluster.world.observation.memory[index]
    assert change(backend, target, "memory_quota_bytes", float(2 * GIB))
    run(cluster, 2)
    assert cluster.world.observation.memory[index] == used > 2 * GIB


def test_memory_beyond_the_card_is_refused(cluster: SimulatedCluster) -> None:
    backend, target = SimulatorBackend(cluster), target_of(cluster, "rl-train")
    state = backend.read([target]).targets[target]
    wanted = Change(target, "memory_quota_bytes", state.values["memory_quota_bytes"], float(40 * GIB), "test")
    result = backend.apply(group(wanted), {target: state.generation})
    assert result.status is ApplyStatus.REFUSED
    assert "more than the card has" in result.detail


def test_a_re_cut_needs_an_empty_card(cluster: SimulatedCluster) -> None:
    backend = SimulatorBackend(cluster)
    state = next(s for s in backend.read().targets.values() if "mig_layout" in s.values)
    wanted = Change(state.target, "mig_layout", state.values["mig_layout"], 3.0, "test")
    result = backend.apply(group(wanted), {state.target: state.generation})
    assert result.status is ApplyStatus.REFUSED
    assert "drain" in result.detail


def test_shares_in_rotation_and_of_queue_jobs_cannot_be_set(cluster: SimulatedCluster) -> None:
    for state in SimulatorBackend(cluster).read().targets.values():
        if state.facts.get("kind") in ("timeslice", "whole", "mig") and state.target.kind == "slice":
            assert not state.values
        if state.facts.get("workload") == "mps-job":
            assert not state.values
            assert state.effective["sm_quota_ratio"] == 0.15


def test_a_pod_that_is_gone_is_a_conflict(cluster: SimulatedCluster) -> None:
    ghost = Target("slice", "demo", "node-b", cluster.spec.cards[4].uuid, "vision/gone-1/main/0")
    wanted = group(Change(ghost, "sm_quota_ratio", 0.2, 0.3, "test"))
    assert SimulatorBackend(cluster).apply(wanted, {ghost: "1"}).status is ApplyStatus.CONFLICT


def test_a_queues_quota_lets_waiting_work_in(spec: ClusterSpec) -> None:
    cluster = run(SimulatedCluster(spec), 240)
    backend = SimulatorBackend(cluster)
    waiting = len(cluster.truth.open_waits_seconds)
    assert waiting > 3
    for target, state in backend.read().targets.items():
        if target.kind == "queue":
            assert change(backend, target, "quota_gpu_count", 6.0), state
    run(cluster, 2)
    assert len(cluster.truth.open_waits_seconds) < waiting - 2


def test_predictions_name_who_the_scheduler_then_evicts(spec: ClusterSpec) -> None:
    crowded = tuple(dataclasses.replace(c, per_hour=6 * c.per_hour) for c in spec.job_classes)
    cluster = run(SimulatedCluster(spec.replace(scheduler="volcano", job_classes=crowded)), 120)
    backend = SimulatorBackend(cluster)
    state = backend.read()
    quotas = {t: s.values["quota_gpu_count"] for t, s in state.targets.items() if t.kind == "queue"}
    wanted = group(
        *(Change(t, "quota_gpu_count", v, 6.0 if t.name.endswith("vision") else 0.0, "test") for t, v in quotas.items())
    )
    predicted = {e.workload.partition("/")[2] for e in backend.predict(wanted)}
    backend.apply(wanted, {t: state.targets[t].generation for t in quotas})
    assert predicted
    runs = {j.name: j.runs for j in cluster.world.pool.running.values()}
    run(cluster, 1)
    evicted = {j.name for w in cluster.world.pool.waiting.values() for j in w if j.runs > runs.get(j.name, j.runs)}
    ended = {j.name for _, _, j in cluster.world.finished_jobs}
    assert evicted <= predicted <= evicted | ended


def test_backend_says_what_it_is(cluster: SimulatedCluster) -> None:
    backend = SimulatorBackend(cluster)
    assert backend.simulated
    assert backend.name == "simulator"
    facts = backend.read([target_of(cluster, "chat")]).targets[target_of(cluster, "chat")].facts
    assert (facts["kind"], facts["tenant"], facts["workload"], facts["service_class"]) == (
        "mps",
        "language",
        "chat",
        "online",
    )
    assert facts["card_memory_bytes"] == str(80 * GIB)
