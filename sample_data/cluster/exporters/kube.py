"""kube-state-metrics: pods with their requests, labels, promises and times; nodes; queue quotas."""

from __future__ import annotations

from dataclasses import dataclass, field

from sample_data.cluster.exporters.text import head
from sample_data.cluster.pods import PodView, card_replicas, listed_pods, sharing_strategy
from sample_data.cluster.simulation import World
from sample_data.cluster.streams import hex_name

_PHASES = ("Pending", "Running", "Succeeded")


@dataclass(slots=True)
class KubeExporter:
    """Writes the page; the text of a pod is kept until the pod changes."""

    world: World
    _blocks: dict[PodView, dict[str, list[str]]] = field(default_factory=dict)
    _page: tuple[object, str] = ((), "")

    def text(self) -> str:
        """Return the body of one scrape."""
        quota = tuple(sorted(self.world.pool.quota.items()))
        key = (self.world.pods_version, quota, tuple(self.world.card_alive.tolist()))
        if key != self._page[0]:
            self._page = (key, self._write(tuple(listed_pods(self.world))))
        return self._page[1]

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
                f'kube_resourcequota{{namespace="{tenant}",resourcequota="gpu",'
                f'resource="requests.nvidia.com/gpu",type="hard"}} {quota:.15g}'
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
            replicas = card_replicas(spec, node)
            shared = ("nvidia_com_gpu_shared", "integer", len(cards) * replicas)
            resources.append(shared if replicas else ("nvidia_com_gpu", "integer", len(cards)))
            families["kube_node_status_allocatable"] += [
                f'kube_node_status_allocatable{{node="{node}",resource="{r}",unit="{u}"}} {v}' for r, u, v in resources
            ]
            product = next(c.hardware.name for c in spec.cards if c.node == node).replace(" ", "-")
            labels = f'node="{node}",label_nvidia_com_gpu_product="{product}"'
            strategy = sharing_strategy(spec, node)
            if strategy:
                labels += f',label_nvidia_com_gpu_sharing_strategy="{strategy}"'
            if replicas:
                labels += f',label_nvidia_com_gpu_replicas="{replicas}"'
            families["kube_node_labels"].append(f"kube_node_labels{{{labels}}} 1")

    def _block(self, pod: PodView) -> dict[str, list[str]]:
        uid = hex_name(12, "uid", pod.namespace, pod.name)
        base = f'namespace="{pod.namespace}",pod="{pod.name}",uid="{uid}"'
        bound = pod.phase != "Pending"
        labels = f'label_app_kubernetes_io_name="{pod.workload}",label_trimtab_pool="{pod.pool}"'
        owner = f'owner_kind="{pod.owner_kind}",owner_name="{pod.owner_name}",owner_is_controller="true"'
        block: dict[str, list[str]] = {
            "kube_pod_status_phase": [
                f'kube_pod_status_phase{{{base},phase="{p}"}} {int(p == pod.phase)}' for p in _PHASES
            ],
            "kube_pod_container_resource_requests": [
                f'kube_pod_container_resource_requests{{{base},container="{pod.container}",node="{pod.node}",'
                f'resource="{r}",unit="{u}"}} {v:.15g}'
                for r, u, v in pod.requests
            ],
            "kube_pod_labels": [f"kube_pod_labels{{{base},{labels}}} 1"],
            "kube_pod_owner": [f"kube_pod_owner{{{base},{owner}}} 1"],
            "kube_pod_created": [f"kube_pod_created{{{base}}} {pod.created:.0f}"],
            "kube_pod_status_scheduled": [f'kube_pod_status_scheduled{{{base},condition="true"}} {int(bound)}'],
        }
        if pod.annotations:
            notes = ",".join(f'annotation_trimtab_{name}="{value}"' for name, value in pod.annotations)
            block["kube_pod_annotations"] = [f"kube_pod_annotations{{{base},{notes}}} 1"]
        if pod.started is not None:
            at = f"{pod.started:.0f}"
            block["kube_pod_start_time"] = [f"kube_pod_start_time{{{base}}} {at}"]
            block["kube_pod_status_scheduled_time"] = [f"kube_pod_status_scheduled_time{{{base}}} {at}"]
        if pod.completed is not None:
            at = f"{pod.completed:.0f}"
            block["kube_pod_completion_time"] = [f"kube_pod_completion_time{{{base}}} {at}"]
        if pod.out_of_memory:
            name = "kube_pod_container_status_last_terminated_reason"
            block[name] = [f'{name}{{{base},container="{pod.container}",reason="OOMKilled"}} 1']
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
    (
        "kube_pod_container_status_last_terminated_reason",
        "gauge",
        "The last reason the container was in terminated state.",
    ),
)
