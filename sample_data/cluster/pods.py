"""Pods as the API server knows them: what runs, what waits, and what ended within the hour."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from sample_data.cluster.scheduler import Job
from sample_data.cluster.simulation import World
from sample_data.cluster.spec import MIB, ClusterSpec, SliceSpec

SERVING_POOL = "serving"  # pods that no queue admitted
_STRATEGIES = {"mps": "mps"}  # a node that mixes rotating and whole cards has no label


def sharing_strategy(spec: ClusterSpec, node: str) -> str:
    """Return the node's label for the sharing strategy; empty where there is none."""
    return _STRATEGIES.get(next(c.sharing for c in spec.cards if c.node == node), "")


def card_replicas(spec: ClusterSpec, node: str) -> int:
    """Return of how many units the device plug-in makes each card of a node that it shares by MPS; 0: it does not."""
    if sharing_strategy(spec, node) != "mps":
        return 0
    units = Counter(s.card for s in spec.slices if spec.cards[s.card].node == node)
    return max(units.values(), default=0)


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod as the API server knows it."""

    namespace: str
    name: str
    workload: str
    container: str
    owner_kind: str
    owner_name: str
    pool: str
    node: str  # empty while it waits
    phase: str
    requests: tuple[tuple[str, str, float], ...]  # resource, unit, amount
    annotations: tuple[tuple[str, str], ...]
    created: float  # seconds since the epoch, as the others
    started: float | None
    completed: float | None
    out_of_memory: bool = False


def listed_pods(world: World) -> Iterator[PodView]:
    """Return all pods that are listed: running, waiting, and those that ended within the hour."""
    spec = world.spec
    jobs = {job.seat: job for job in world.pool.running.values()}
    for i, s in enumerate(spec.slices):
        holder = world.holders[i]
        if holder is not None and s.role != "seat":
            yield _permanent(world, i, s)
        elif holder is not None and i in jobs:
            yield _job(world, jobs[i], "Running", spec.cards[s.card].node)
    for waiting in world.pool.waiting.values():
        for job in waiting:
            yield _job(world, job, "Pending", "")
    for minute, node, job in world.finished_jobs:
        yield _job(world, job, "Succeeded", node, minute)


def _permanent(world: World, index: int, s: SliceSpec) -> PodView:
    holder = world.holders[index]
    assert holder is not None  # noqa: S101 - the caller looked
    promises: list[tuple[str, str]] = []
    if s.online:
        objective = next(v for v in world.spec.services if v.name == s.name).objective
        promises = [
            ("service_class", "online"),
            ("objective_quantity", objective.quantity),
            ("objective_share", f"{objective.share:g}"),
            ("objective_bound_seconds", f"{objective.bound_seconds:.6g}"),
        ]
    elif s.role == "trainer":
        promises = [("service_class", "offline")]
    owner = ("ReplicaSet", holder.pod.rpartition("-")[0]) if s.online else ("StatefulSet", s.name)
    return PodView(
        holder.namespace, holder.pod, holder.workload, holder.container, *owner, SERVING_POOL,
        world.spec.cards[s.card].node, "Running", _requests(s), tuple(promises),
        _seconds(world, holder.created_minute), _seconds(world, holder.started_minute), None, index in world.killed,
    )  # fmt: skip


def _job(world: World, job: Job, phase: str, node: str, completed: int | None = None) -> PodView:
    job_class = world.pool.classes[job.arrival.job_class]
    started = _seconds(world, job.started + 1) if phase != "Pending" else None
    ended = None if completed is None else _seconds(world, completed + 1)
    resource = {"mig": "nvidia_com_mig_1g_10gb", "mps": "nvidia_com_gpu_shared"}.get(job_class.name, "nvidia_com_gpu")
    requests = [(resource, "integer", 1.0), ("cpu", "core", 4.0)]
    if job_class.name == "vgpu":
        memory = job_class.memory_bytes / MIB
        requests += [
            ("nvidia_com_gpucores", "integer", 100 * job_class.cards),
            ("nvidia_com_gpumem", "integer", memory),
        ]
    return PodView(
        job.arrival.tenant, job.pod, job.workload, "main", "Job", job.name, world.spec.pool, node, phase,
        tuple(requests), (("service_class", "offline"),), _seconds(world, job.waiting_since), started, ended,
    )  # fmt: skip


def _seconds(world: World, minute: float) -> float:
    return world.spec.start.timestamp() + minute * 60.0


def _requests(s: SliceSpec) -> tuple[tuple[str, str, float], ...]:
    cpu = ("cpu", "core", 8.0 if s.online else 6.0)
    if s.kind == "mig":
        return (("nvidia_com_mig_" + s.profile.replace(".", "_"), "integer", 1.0), cpu)
    if s.kind == "vgpu":
        cores, memory = round(s.sm_quota * 100), s.memory_quota_bytes / MIB
        return (
            ("nvidia_com_gpu", "integer", 1.0),
            ("nvidia_com_gpucores", "integer", float(cores)),
            ("nvidia_com_gpumem", "integer", memory),
            cpu,
        )
    return (("nvidia_com_gpu" if s.kind == "whole" else "nvidia_com_gpu_shared", "integer", 1.0), cpu)
