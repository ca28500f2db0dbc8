"""What kube-state-metrics says: pods, their requests, owners, times; nodes, their labels and allocatable resources."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from collector.exposition import Series
from collector.whole import whole

# Kubernetes makes names from an alphabet without vowels; a random ending without a digit could be a word.
_SAFE = "[bcdfghjklmnpqrstvwxz2456789]"
_DEPLOYMENT_POD = re.compile(rf"^(.+)-(?:{_SAFE}{{8,10}}|[a-f0-9]{{8,10}})-{_SAFE}{{5}}$")
_REPLICA_SET = re.compile(rf"^(.+)-(?=\S*\d)(?:{_SAFE}{{8,10}}|[a-f0-9]{{8,10}})$")
_RANDOM = re.compile(rf"^(.+)-(?=[a-z]*\d){_SAFE}{{5}}$")
_ORDINAL = re.compile(r"^(.+)-(\d+)$")
_MIG_RESOURCE = re.compile(r"^nvidia_com_mig_(\d{1,6})g_(\d{1,6})gb(?:_.*)?$")
_CARD_RESOURCES = frozenset(("nvidia_com_gpu", "nvidia_com_gpu_shared", "amd_com_gpu", "volcano_sh_vgpu_number"))
_WHOLE_RESOURCES = ("nvidia_com_gpu", "nvidia_com_gpu_shared", "amd_com_gpu")
_WORKLOAD_LABELS = ("label_app_kubernetes_io_name", "label_app", "label_trimtab_workload")
_POOL_LABELS = (
    "label_kai_scheduler_queue",
    "label_runai_queue",
    "label_kueue_x_k8s_io_queue_name",
    "label_volcano_sh_queue_name",
    "label_trimtab_pool",
    "label_pool",
)
_NODE_POOL_LABELS = (
    "label_trimtab_pool",
    "label_cloud_google_com_gke_nodepool",
    "label_eks_amazonaws_com_nodegroup",
    "label_kubernetes_azure_com_agentpool",
    "label_karpenter_sh_nodepool",
    "label_node_pool",
    "label_pool",
)
_REPLICAS = "label_nvidia_com_gpu_replicas"
_COUNT = "label_nvidia_com_gpu_count"


@dataclass(slots=True)
class Pod:
    """One pod. Times are seconds since the epoch (None: not said); requests are summed over its containers.

    fraction_cards, fraction, fraction_memory_bytes: what annotations ask for instead: parts of so many cards.
    """

    namespace: str
    name: str
    node: str = ""
    phase: str = ""
    created: float | None = None
    started: float | None = None
    scheduled_at: float | None = None
    scheduled: bool | None = None
    completed: float | None = None
    owner_kind: str = ""
    owner_name: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    requests: dict[str, float] = field(default_factory=dict)
    gpu_containers: list[str] = field(default_factory=list)
    out_of_memory: set[str] = field(default_factory=set)
    fraction_cards: float = 0.0
    fraction: float | None = None
    fraction_memory_bytes: float | None = None

    @property
    def key(self) -> str:
        """Return `namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def ended(self) -> bool:
        """Say whether it is over, although it is still listed."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def bound(self) -> bool:
        """Say whether it was granted a node."""
        return bool(self.node) or self.scheduled is True or self.phase == "Running"

    @property
    def wants_gpu(self) -> bool:
        """Say whether it asks for any card or part of one."""
        return self.fraction_cards > 0 or any(is_gpu_resource(name) and n > 0 for name, n in self.requests.items())

    @property
    def pool(self) -> str:
        """Return the queue it waits in, by the label of the usual schedulers; `default` without one."""
        return next((self.labels[name] for name in _POOL_LABELS if self.labels.get(name)), "default")


@dataclass(slots=True)
class KubeState:
    """Everything that Kubernetes said of pods and nodes, through kube-state-metrics or its own API."""

    pods: dict[str, Pod] = field(default_factory=dict)
    replicaset_owner: dict[tuple[str, str], str] = field(default_factory=dict)
    allocatable: dict[str, dict[str, float]] = field(default_factory=dict)
    capacity: dict[str, dict[str, float]] = field(default_factory=dict)
    node_labels: dict[str, dict[str, str]] = field(default_factory=dict)
    gpu_quota: dict[str, float] = field(default_factory=dict)  # namespace -> cards
    kueue: dict[str, dict[str, float]] = field(default_factory=dict)  # cluster queue -> pending, quota, reserved

    def sharing_strategy(self, node: str) -> str:
        """Return what the node's label says of sharing: `mps`, `time-slicing`, or an empty text."""
        return self.node_labels.get(node, {}).get("label_nvidia_com_gpu_sharing_strategy", "")

    def replicas_of(self, node: str) -> int:
        """Return of how many units the device plug-in makes each card under MPS or time slicing; 0: not told."""
        told = self.node_labels.get(node, {}).get(_REPLICAS, "")
        return whole(told)

    def pool_of(self, node: str) -> str:
        """Return the pool that a node is in, by the label of the usual clouds; an empty text without one."""
        labels = self.node_labels.get(node, {})
        return next((labels[name] for name in _NODE_POOL_LABELS if labels.get(name)), "")

    def cards_of(self, node: str, *, shared: bool = False) -> float:
        """Return how many physical cards the scheduler counts on a node; NaN where it does not tell.

        The label of GPU feature discovery counts them; else capacity does, of which time slicing makes so many units
        of each card. Allocatable alone would shrink with each card that is sick.

        Args:
            node: its name.
            shared: a layer of its own shares the cards out (a vGPU scheduler): capacity counts its units.
        """
        labels = self.node_labels.get(node, {})
        count = labels.get(_COUNT, "")
        if count.isdecimal():
            return float(count)
        resources = self.capacity.get(node) or self.allocatable.get(node, {})
        if any(mig_profile(name) for name, value in resources.items() if value > 0):
            return math.nan  # instances, of how many cards is not said
        units = [resources[name] for name in _WHOLE_RESOURCES if name in resources]
        replicas = self.replicas_of(node)
        if not replicas and (shared or self.sharing_strategy(node) or "nvidia_com_gpu_shared" in resources):
            return math.nan
        return sum(units) / max(replicas, 1) if units else math.nan

    def workload(self, namespace: str, name: str) -> str:
        """Return the workload of a pod: a label first, then its owner, then its name without hashes."""
        pod = self.pods.get(f"{namespace}/{name}")
        if pod is not None:
            labelled = next((pod.labels[label] for label in _WORKLOAD_LABELS if pod.labels.get(label)), "")
            if labelled:
                return labelled
            if pod.owner_kind == "ReplicaSet":
                known = self.replicaset_owner.get((namespace, pod.owner_name))
                return known or without_hashes(pod.owner_name)
            if pod.owner_kind and pod.owner_kind != "Node":
                return without_hashes(pod.owner_name)
        return without_hashes(name)


def is_gpu_resource(resource: str) -> bool:
    """Say whether a (sanitised) resource name is a card or a part of one."""
    return resource in _CARD_RESOURCES or _MIG_RESOURCE.match(resource) is not None


def mig_profile(resource: str) -> str:
    """Return the profile of a MIG resource: `nvidia_com_mig_1g_5gb` is `1g.5gb`; else an empty text."""
    match = _MIG_RESOURCE.match(resource)
    return f"{match.group(1)}g.{match.group(2)}gb" if match else ""


def without_hashes(name: str) -> str:
    """Return a pod's or replica set's name without generated endings: `web-6d4b75cb6d-x8k2p` is `web`."""
    for ending in (_DEPLOYMENT_POD, _REPLICA_SET, _RANDOM, _ORDINAL):
        match = ending.match(name)
        if match:
            name = match.group(1)
    return name


def replica_ordinal(pod: Pod | None, name: str) -> str:
    """Return the number of a stateful replica, or an empty text where replicas have none."""
    if pod is not None and pod.owner_kind != "StatefulSet":
        return ""
    match = _ORDINAL.match(name)
    return match.group(2) if match else ""


def read_kube_state(samples: Iterable[tuple[str, Series, float]]) -> KubeState:
    """Read samples of kube-state-metrics.

    Args:
        samples: (field of the mapping table, series, value), values as written.
    """
    state = KubeState()
    for name, series, value in samples:
        labels = series.labels
        if name.startswith("pod_"):
            _read_pod(state, name, labels, value)
        elif name == "replicaset_owner":
            state.replicaset_owner[labels.get("namespace", ""), labels.get("replicaset", "")] = labels.get(
                "owner_name", ""
            )
        elif name == "node_allocatable":
            node = state.allocatable.setdefault(_node(labels), {})
            node[labels.get("resource", "")] = value
        elif name == "node_capacity":
            node = state.capacity.setdefault(_node(labels), {})
            node[labels.get("resource", "")] = value
        elif name == "node_labels":
            state.node_labels[_node(labels)] = dict(labels)
        elif name.startswith("kueue_"):
            _read_kueue(state, name.removeprefix("kueue_"), labels, value)
        elif name == "quota" and labels.get("type") == "hard" and labels.get("resource") == "requests.nvidia.com/gpu":
            state.gpu_quota[labels.get("namespace", "")] = value
    return state


def _read_kueue(state: KubeState, what: str, labels: Mapping[str, str], value: float) -> None:
    """Add up a cluster queue's numbers over its flavors, of cards alone; those that wait over both their states."""
    if what != "pending" and not is_gpu_resource(labels.get("resource", "").replace(".", "_").replace("/", "_")):
        return
    queue = state.kueue.setdefault(labels.get("cluster_queue", ""), {})
    queue[what] = queue.get(what, 0.0) + value


def _node(labels: Mapping[str, str]) -> str:
    return labels.get("exported_node") or labels.get("node", "")


def _read_pod(state: KubeState, name: str, labels: Mapping[str, str], value: float) -> None:
    said = dict(labels)
    namespace = said.get("exported_namespace") or said.get("namespace", "")
    pod_name = said.get("exported_pod") or said.get("pod", "")
    if not pod_name:
        return
    pod = state.pods.setdefault(f"{namespace}/{pod_name}", Pod(namespace, pod_name))
    pod.node = said.get("exported_node") or said.get("node") or pod.node
    _POD_READERS[name](pod, said, value)


def _read_phase(pod: Pod, labels: dict[str, str], value: float) -> None:
    if value == 1:
        pod.phase = labels.get("phase", "")


def _read_request(pod: Pod, labels: dict[str, str], value: float) -> None:
    resource = labels.get("resource", "")
    pod.requests[resource] = pod.requests.get(resource, 0.0) + value
    container = labels.get("exported_container") or labels.get("container", "")
    if is_gpu_resource(resource) and container not in pod.gpu_containers:
        pod.gpu_containers.append(container)


def _read_owner(pod: Pod, labels: dict[str, str], _value: float) -> None:
    pod.owner_kind, pod.owner_name = labels.get("owner_kind", ""), labels.get("owner_name", "")


def _read_created(pod: Pod, _labels: dict[str, str], value: float) -> None:
    pod.created = value


def _read_started(pod: Pod, _labels: dict[str, str], value: float) -> None:
    pod.started = value


def _read_scheduled_time(pod: Pod, _labels: dict[str, str], value: float) -> None:
    pod.scheduled_at = value


def _read_completed(pod: Pod, _labels: dict[str, str], value: float) -> None:
    pod.completed = value


def _read_scheduled(pod: Pod, labels: dict[str, str], value: float) -> None:
    if labels.get("condition") == "true":
        pod.scheduled = value == 1


def _read_labels(pod: Pod, labels: dict[str, str], _value: float) -> None:
    pod.labels = {name: text for name, text in labels.items() if name.startswith("label_")}


def _read_annotations(pod: Pod, labels: dict[str, str], _value: float) -> None:
    prefix = "annotation_trimtab_"
    pod.annotations = {name[len(prefix) :]: text for name, text in labels.items() if name.startswith(prefix) and text}
    try:
        share = float(labels.get("annotation_gpu_fraction", ""))
    except ValueError:
        return
    if 0 < share <= 1:
        pod.fraction_cards, pod.fraction = 1.0, share


def _read_terminated(pod: Pod, labels: dict[str, str], value: float) -> None:
    if labels.get("reason") == "OOMKilled" and value == 1:
        pod.out_of_memory.add(labels.get("exported_container") or labels.get("container", ""))


_POD_READERS = {
    "pod_phase": _read_phase,
    "pod_request": _read_request,
    "pod_owner": _read_owner,
    "pod_created": _read_created,
    "pod_started": _read_started,
    "pod_scheduled": _read_scheduled,
    "pod_scheduled_time": _read_scheduled_time,
    "pod_completed": _read_completed,
    "pod_labels": _read_labels,
    "pod_annotations": _read_annotations,
    "pod_terminated_reason": _read_terminated,
}
