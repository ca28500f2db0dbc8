"""Pods, nodes and resource quotas of the Kubernetes API, as the state that kube-state-metrics would tell of them."""

from __future__ import annotations

import math
from collections.abc import Iterable

from collector.kube import KubeState, Pod, is_gpu_resource
from collector.schedulers.objects import Json, condition, instant, items, quantity, requests_of, sanitized, table, text

_MIB = 2**20
_QUOTA = "requests.nvidia.com/gpu"
_OUT_OF_MEMORY = "OOMKilled"
# Sharing schedulers give a part of a card by these annotations, without a resource of their own.
_FRACTION, _FRACTION_MEMORY, _FRACTION_DEVICES = "gpu-fraction", "gpu-memory", "gpu-fraction-num-devices"


def add_pod(state: KubeState, item: Json) -> None:
    """Add a pod that asks for cards; any other one is none of our business."""
    pod = read_pod(item)
    if pod is not None and pod.wants_gpu:
        state.pods[pod.key] = pod


def read_pod(item: Json) -> Pod | None:
    """Return a pod; None where it has no name."""
    meta, spec, status = table(item.get("metadata")), table(item.get("spec")), table(item.get("status"))
    name = text(meta.get("name"))
    if not name:
        return None
    annotations = {key: text(value) for key, value in table(meta.get("annotations")).items()}
    owner = next((one for one in items(meta.get("ownerReferences")) if one.get("controller")), {})
    scheduled, since = condition(status, "PodScheduled")
    containers = items(status.get("containerStatuses"))
    pod = Pod(
        namespace=text(meta.get("namespace")),
        name=name,
        node=text(spec.get("nodeName")),
        phase=text(status.get("phase")),
        created=instant(meta.get("creationTimestamp")),
        started=instant(status.get("startTime")),
        scheduled_at=since if scheduled else None,
        scheduled=scheduled,
        owner_kind=text(owner.get("kind")),
        owner_name=text(owner.get("name")),
        labels={f"label_{sanitized(key)}": text(value) for key, value in table(meta.get("labels")).items()},
        annotations={
            sanitized(key.removeprefix("trimtab/")): value
            for key, value in annotations.items()
            if key.startswith("trimtab/") and value
        },
        requests=requests_of(spec),
    )
    _read_fraction(pod, annotations)
    pod.gpu_containers = _gpu_containers(spec)
    if pod.ended:
        pod.completed = max((end for one in containers if (end := _finished(one)) is not None), default=None)
    pod.out_of_memory = {text(one.get("name")) for one in containers if _killed(one)}
    return pod


def _read_fraction(pod: Pod, annotations: Json) -> None:
    share, memory = quantity(annotations.get(_FRACTION)), quantity(annotations.get(_FRACTION_MEMORY))
    if 0 < share <= 1 or memory > 0:
        devices = quantity(annotations.get(_FRACTION_DEVICES))
        pod.fraction_cards = devices if devices >= 1 else 1.0
        pod.fraction = share if 0 < share <= 1 else None
        pod.fraction_memory_bytes = memory * _MIB if memory > 0 else None


def _gpu_containers(spec: Json) -> list[str]:
    names = []
    for container in items(spec.get("containers")):
        resources = table(container.get("resources"))
        asked = {**table(resources.get("limits")), **table(resources.get("requests"))}
        if any(is_gpu_resource(sanitized(name)) for name in asked):
            names.append(text(container.get("name")))
    return names


def _terminated(status: Json, when: str) -> Json:
    return table(table(status.get(when)).get("terminated"))


def _finished(status: Json) -> float | None:
    return instant(_terminated(status, "state").get("finishedAt"))


def _killed(status: Json) -> bool:
    return any(_terminated(status, when).get("reason") == _OUT_OF_MEMORY for when in ("state", "lastState"))


def add_node(state: KubeState, item: Json) -> None:
    """Add what a node can give, has altogether, and is labelled with."""
    meta, status = table(item.get("metadata")), table(item.get("status"))
    name = text(meta.get("name"))
    if not name:
        return
    for where, said in ((state.allocatable, "allocatable"), (state.capacity, "capacity")):
        numbers = {sanitized(key): quantity(value) for key, value in table(status.get(said)).items()}
        where[name] = {key: value for key, value in numbers.items() if not math.isnan(value)}
    labels = table(meta.get("labels"))
    state.node_labels[name] = {f"label_{sanitized(key)}": text(value) for key, value in labels.items()}


def add_quota(state: KubeState, item: Json) -> None:
    """Add a namespace's quota of cards; of several quotas in one namespace the tightest holds."""
    namespace = text(table(item.get("metadata")).get("namespace"))
    hard = quantity(table(table(item.get("status")).get("hard")).get(_QUOTA))
    if not math.isnan(hard):
        state.gpu_quota[namespace] = min(hard, state.gpu_quota.get(namespace, math.inf))


def merged_kube(parts: Iterable[KubeState]) -> KubeState | None:
    """Return what several tell of one cluster, None of nothing; who comes later knows a pod or node better."""
    found = list(parts)
    if not found:
        return None
    whole = KubeState()
    for part in found:
        whole.pods |= part.pods
        whole.replicaset_owner |= part.replicaset_owner
        whole.allocatable |= part.allocatable
        whole.capacity |= part.capacity
        whole.node_labels |= part.node_labels
        whole.gpu_quota |= part.gpu_quota
        whole.kueue |= part.kueue
    return whole
