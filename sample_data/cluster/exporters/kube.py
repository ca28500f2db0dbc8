"""kube-state-metrics: pods with their requests, labels, promises and times; nodes; queue quotas."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sample_data.cluster.exporters.text import head
from sample_data.cluster.scheduler import Job
from sample_data.cluster.simulation import World
from sample_data.cluster.spec import MIB, SliceSpec
from sample_data.cluster.streams import hex_name

SERVING_POOL = "serving"  # pods that no queue admitted
_STRATEGIES = {"mps": "mps"}  # a node that mixes rotating and whole cards has no label
_PHASES = ("Pending", "Running", "Succeeded")


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
    created: int
    started: int | None
    completed: int | None
    out_of_memory: bool = False


@dataclass(slots=True)
class KubeExporter:
    """Writes the page; the text of a pod is kept until the pod changes."""

    world: World
    _blocks: dict[PodView, dict[str, list[str]]] = field(default_factory=dict)
    _page: tuple[object, str] = ((), "")

    def text(self) -> str:
        """Return the body of one scrape."""
        pods = tuple(self.pods())
        quota = tuple(sorted(self.world.pool.quota.items()))
        key = (pods, quota, tuple(self.world.card_alive.tolist()))
        if key != self._page[0]:
            self._page = (key, self._write(pods))
        return self._page[1]

    def pods(self) -> Iterable[PodView]:
        """Return all pods that are listed: running, waiting, and those that ended within the hour."""
        world, spec = self.world, self.world.spec
        jobs = {job.seat: job for job in world.pool.running.values()}
        for i, s in enumerate(spec.slices):
            holder = world.holders[i]
            if holder is not None and s.role != "seat":
                yield self._permanent(i, s)
            elif holder is not None and i in jobs:
                yield self._job(jobs[i], "Running", spec.cards[s.card].node)
        for waiting in world.pool.waiting.values():
            for job in waiting:
                yield self._job(job, "Pending", "")
        for minute, node, job in world.finished_jobs:
            yield self._job(job, "Succeeded", node, minute)

    def _permanent(self, index: int, s: SliceSpec) -> PodView:
        world = self.world
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
            world.spec.cards[s.card].node, "Running", _requests(s), tuple(promises), holder.created_minute,
            holder.started_minute, None, index in world.killed,
        )  # fmt: skip

    def _job(self, job: Job, phase: str, node: str, completed: int | None = None) -> PodView:
        job_class = self.world.pool.classes[job.arrival.job_class]
        started = job.started + 1 if phase != "Pending" else None
        resource = {"mig": "nvidia_com_mig_1g_10gb", "mps": "nvidia_com_gpu_shared"}.get(job_class.name, "nvidia_com_gpu")
        requests = [(resource, "integer", 1.0), ("cpu", "core", 4.0)]
        if job_class.name == "vgpu":
            requests += [("nvidia_com_gpucores", "integer", 16.0), ("nvidia_com_gpumem", "integer", job_class.memory_bytes / MIB)]
        return PodView(
            job.arrival.tenant, job.pod, job.workload, "main", "Job", job.name, self.world.spec.pool, node, phase,
            tuple(requests), (("service_class", "offline"),), job.waiting_since, started, completed,
        )  # fmt: skip

    def _write(self, pods: tuple[PodView, ...]) -> str:
        families: dict[str, list[str]] = {name: [] for name, _, _ in _FAMILIES}
        known = self._blocks
        self._blocks = {pod: known.get(pod) or self._block(pod) for pod in pods}
        for block in self._blocks.values():
            for name, lines in block.items():
                families[name] += lines
        self._nodes(families)
        for tenant, quota in self.world.pool.quota.items():
            families["kube_resourcequota"].append(
                f'kube_resourcequota{{namespace="{tenant}",resourcequota="gpu",resource="requests.nvidia.com/gpu",type="hard"}} {quota:g}'
            )
        page = []
        for name, kind, text in _FAMILIES:
            page += [head(name, kind, text), *families[name]]
        return "\n".join([*page, ""])

    def _nodes(self, families: dict[str, list[str]]) -> None:
        spec = self.world.spec
        for node in sorted({c.node for c in spec.cards}):
            cards = [c for n, c in enumerate(spec.cards) if c.node == node and self.world.card_alive[n]]
            resources = [("cpu", "core", spec.node_cpu_cores), ("memory", "byte", spec.node_memory_bytes)]
            resources.append(("nvidia_com_gpu", "integer", len(cards)))
            families["kube_node_status_allocatable"] += [
                f'kube_node_status_allocatable{{node="{node}",resource="{r}",unit="{u}"}} {v}' for r, u, v in resources
            ]
            product = next(c.hardware.name for c in spec.cards if c.node == node).replace(" ", "-")
            labels = f'node="{node}",label_nvidia_com_gpu_product="{product}"'
            strategy = _STRATEGIES.get(next(c.sharing for c in spec.cards if c.node == node))
            if strategy:
                labels += f',label_nvidia_com_gpu_sharing_strategy="{strategy}"'
            families["kube_node_labels"].append(f"kube_node_labels{{{labels}}} 1")

    def _block(self, pod: PodView) -> dict[str, list[str]]:
        uid = hex_name(12, "uid", pod.namespace, pod.name)
        base = f'namespace="{pod.namespace}",pod="{pod.name}",uid="{uid}"'
        start = self.world.spec.start.timestamp()
        bound = pod.phase != "Pending"
        block: dict[str, list[str]] = {
            "kube_pod_status_phase": [
                f'kube_pod_status_phase{{{base},phase="{p}"}} {int(p == pod.phase)}' for p in _PHASES
            ],
            "kube_pod_container_resource_requests": [
                f'kube_pod_container_resource_requests{{{base},container="{pod.container}",node="{pod.node}",'
                f'resource="{r}",unit="{u}"}} {v:.15g}'
                for r, u, v in pod.requests
            ],
            "kube_pod_labels": [
                f'kube_pod_labels{{{base},label_app_kubernetes_io_name="{pod.workload}",label_trimtab_pool="{pod.pool}"}} 1'
            ],
            "kube_pod_owner": [
                f'kube_pod_owner{{{base},owner_kind="{pod.owner_kind}",owner_name="{pod.owner_name}",owner_is_controller="true"}} 1'
            ],
            "kube_pod_created": [f"kube_pod_created{{{base}}} {start + pod.created * 60:.0f}"],
            "kube_pod_status_scheduled": [f'kube_pod_status_scheduled{{{base},condition="true"}} {int(bound)}'],
        }
        if pod.annotations:
            notes = ",".join(f'annotation_trimtab_{name}="{value}"' for name, value in pod.annotations)
            block["kube_pod_annotations"] = [f"kube_pod_annotations{{{base},{notes}}} 1"]
        if pod.started is not None:
            at = f"{start + pod.started * 60:.0f}"
            block["kube_pod_start_time"] = [f"kube_pod_start_time{{{base}}} {at}"]
            block["kube_pod_status_scheduled_time"] = [f"kube_pod_status_scheduled_time{{{base}}} {at}"]
        if pod.completed is not None:
            at = f"{start + (pod.completed + 1) * 60:.0f}"
            block["kube_pod_completion_time"] = [f"kube_pod_completion_time{{{base}}} {at}"]
        if pod.out_of_memory:
            block["kube_pod_container_status_last_terminated_reason"] = [
                f'kube_pod_container_status_last_terminated_reason{{{base},container="{pod.container}",reason="OOMKilled"}} 1'
            ]
        return block


_FAMILIES = (
    ("kube_node_status_allocatable", "gauge", "The allocatable for different resources of a node."),
    ("kube_node_labels", "gauge", "Kubernetes labels converted to Prometheus labels."),
    ("kube_resourcequota", "gauge", "Information about resource quota."),
    ("kube_pod_status_phase", "gauge", "The pods current phase."),
    ("kube_pod_container_resource_requests", "gauge", "The number of requested request resource by a container."),
    ("kube_pod_labels", "gauge", "Kubernetes labels converted to Prometheus labels."),
    ("kube_pod_annotations", "gauge", "Kubernetes annotations converted to Prometheus labels."),
    ("kube_pod_owner", "gauge", "Information about the Pod's owner."),
    ("kube_pod_created", "gauge", "Unix creation timestamp"),
    ("kube_pod_start_time", "gauge", "Start time in unix timestamp for a pod."),
    ("kube_pod_status_scheduled", "gauge", "Describes the status of the scheduling process for the pod."),
    ("kube_pod_status_scheduled_time", "gauge", "Unix timestamp when pod moved into scheduled status"),
    ("kube_pod_completion_time", "gauge", "Completion time in unix timestamp for a pod."),
    ("kube_pod_container_status_last_terminated_reason", "gauge", "The last reason the container was in terminated state."),
)


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
