"""A snapshot out of Kubernetes objects: nodes with their cards, pods with what they ask for and hold."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from analyzer.demand import Wish
from analyzer.snapshot import CutInstance, Snapshot, SnapshotNode, SnapshotPod
from collector.kube import KubeState, Pod, mig_profile
from collector.queues import gpu_request
from collector.schedulers.objects import Json, items, table, text
from collector.schedulers.pods import add_node, read_pod
from collector.whole import whole, whole_of

_MIB = 2.0**20
_MOST_CARDS = 1024  # of a node: more is a mistake
_TOO_MANY = _MOST_CARDS + 1
_PRODUCT, _MEMORY, _REPLICAS = (
    "label_nvidia_com_gpu_product",
    "label_nvidia_com_gpu_memory",
    "label_nvidia_com_gpu_replicas",
)
_PRODUCT_KEY = "nvidia.com/gpu.product"
# HAMi writes where a pod's shares lie: `UUID,type,memory in MiB,cores in percent:` a device, `;` between containers.
_HAMI = ("hami.io/vgpu-devices-allocated", "hami.io/vgpu-devices-to-allocate")
_HAMI_NODE = "hami.io/node-nvidia-register"
_HAMI_TYPE = "nvidia.com/use-gputype"
_HAMI_DEVICE = re.compile(r"(GPU-[^,:;]+),[^,:;]*,(\d+),(\d+)")


def read_kubernetes(objects: Sequence[Any], name: str) -> Snapshot:
    """Read objects as `kubectl get nodes,pods -A -o json` lists them; kinds other than Node and Pod are left aside."""
    snapshot, state = Snapshot(), KubeState()
    devices: dict[str, tuple[str, ...]] = {}
    pods: list[tuple[Json, Pod]] = []
    for number, item in enumerate(objects):
        kind = item.get("kind") if isinstance(item, Mapping) else None
        if kind == "Node":
            add_node(state, item)
            said = text(table(item.get("metadata")).get("name"))
            if table(item.get("spec")).get("unschedulable") is True:
                snapshot.left_out["node is cordoned"] += 1
                state.allocatable.pop(said, None)
            devices[said] = _hami_devices(item)
        elif kind == "Pod":
            pod = read_pod(item)
            if pod is None:
                snapshot.rejected.append(f"{name}: items[{number}]: expected a pod with a name")
            elif not pod.ended:
                pods.append((item, pod))
    for node in state.allocatable:
        mine = [pod for _, pod in pods if pod.node == node]
        found = _node(state, node, mine, len(devices.get(node, ())))
        if isinstance(found, str):
            snapshot.left_out[found] += 1
        else:
            snapshot.nodes[node] = found
    for item, pod in pods:
        memory_bytes = snapshot.nodes[pod.node].memory_bytes if pod.node in snapshot.nodes else math.nan
        request = _pod(item, pod, state, devices.get(pod.node, ()), memory_bytes)
        if request is not None and (not pod.node or pod.node in snapshot.nodes):
            snapshot.pods.append(request)
    return snapshot


def _node(state: KubeState, name: str, pods: Sequence[Pod], devices: int) -> SnapshotNode | str:
    labels, resources = state.node_labels.get(name, {}), state.allocatable[name]
    profiles = _instances(resources)
    counted = float(devices) if devices else state.cards_of(name)
    count = labels.get("label_nvidia_com_gpu_count", "")
    cards = whole(count, _TOO_MANY) if count.isdecimal() else whole_of(counted)
    if profiles and not cards:
        cards = 1 if sum(profiles.values()) <= 7 else 0
    if cards < 1:
        return "no card is counted on the node"
    if max(cards, profiles.total()) > _MOST_CARDS:
        return f"more than {_MOST_CARDS} cards or instances are counted on the node"
    model = re.sub(r"-(SHARED|MIG-.*)$", "", labels.get(_PRODUCT, "")).replace("-", " ")
    memory = labels.get(_MEMORY, "")
    held: Counter[str] = Counter()
    for pod in pods:
        held.update(_instances(pod.requests))
    unshared = int(resources.get("nvidia_com_gpu", 0.0) / _replicas(labels)) if profiles else cards
    return SnapshotNode(
        name=name,
        cards=cards,
        model=model,
        pool=state.pool_of(name) or "default",
        cpu_cores=resources.get("cpu", math.inf),
        memory_bytes=float(memory) * _MIB if memory.isdecimal() else math.nan,
        cut=_cut(profiles, held, max(cards - unshared, 1)) if profiles else (),
    )


def _cut(profiles: Counter[str], held: Counter[str], cards: int) -> tuple[tuple[CutInstance, ...] | None, ...]:
    """Spread the instances of a node over its cards, where all cards can only be cut alike."""
    if any(count % cards for count in profiles.values()):
        return (None,) * cards
    left = Counter(held)
    found = []
    for _ in range(cards):
        own = []
        for profile, count in sorted(profiles.items()):
            for _ in range(count // cards):
                taken = left[profile] > 0
                left[profile] -= taken
                own.append(CutInstance(profile, None, "pod" if taken else ""))
        found.append(tuple(own))
    return tuple(found)


def _pod(item: Json, pod: Pod, state: KubeState, devices: Sequence[str], memory_bytes: float) -> SnapshotPod | None:
    """Return a pod; None for one that waits and asks for no card.

    HAMi leaves the share open where only memory is asked for: then the share of the card's memory stands in.
    """
    cpu = pod.requests.get("cpu", 0.0)
    if not pod.wants_gpu:
        return SnapshotPod(pod.key, Wish(0, 0.0, 0.0, cpu, "", ""), pod.node) if pod.node and cpu else None
    request = gpu_request(pod)
    replicas = _replicas(state.node_labels.get(pod.node, {}))
    share = request.share if request.share is not None else 1.0
    by_unit = request.share is None or (share == 1.0 and not request.profile)
    wish = Wish(
        cards=max(int(request.cards), 1),
        share=1.0 if request.profile else (1.0 / replicas if by_unit and replicas > 1 else share),
        memory_bytes=request.memory_bytes or 0.0,
        cpu_cores=cpu,
        profile=request.profile,
        gpu_type=_types(item),
    )
    places = _hami_places(item, devices)
    if places and not request.profile:
        cards, shares, memory = zip(*places, strict=True)
        of_memory = max(memory) / memory_bytes if memory_bytes > 0 else wish.share
        wish = replace(wish, cards=len(cards), share=min(max(shares) or of_memory, 1.0), memory_bytes=max(memory))
        return SnapshotPod(pod.key, wish, pod.node, cards)
    return SnapshotPod(pod.key, wish, pod.node)


def _instances(resources: Mapping[str, float]) -> Counter[str]:
    """Return how many instances of each MIG profile are offered or asked for."""
    return Counter({mig_profile(r): whole_of(n, _TOO_MANY) for r, n in resources.items() if mig_profile(r) and n > 0})


def _replicas(labels: Mapping[str, str]) -> int:
    said = labels.get(_REPLICAS, "")
    return max(whole(said), 1)


def _types(item: Json) -> str:
    """Return the card models that a pod allows, as `A|B`; empty: any."""
    spec = table(item.get("spec"))
    said = text(table(spec.get("nodeSelector")).get(_PRODUCT_KEY))
    names = [said] if said else []
    required = table(
        table(table(spec.get("affinity")).get("nodeAffinity")).get("requiredDuringSchedulingIgnoredDuringExecution")
    )
    for term in items(required.get("nodeSelectorTerms")):
        for rule in items(term.get("matchExpressions")):
            values = rule.get("values")
            if rule.get("key") == _PRODUCT_KEY and rule.get("operator") == "In" and isinstance(values, list):
                names += [text(value) for value in values]
    annotated = text(table(table(item.get("metadata")).get("annotations")).get(_HAMI_TYPE))
    names += [part.strip() for part in annotated.split(",")]
    return "|".join(dict.fromkeys(re.sub(r"-SHARED$", "", one).replace("-", " ") for one in names if one))


def _hami_devices(item: Json) -> tuple[str, ...]:
    """Return the UUIDs of a node's cards in HAMi's order, out of `UUID,10,40960,100,...:` or JSON."""
    said = text(table(table(item.get("metadata")).get("annotations")).get(_HAMI_NODE))
    return tuple(dict.fromkeys(re.findall(r"GPU-[0-9a-fA-F-]+", said)))


def _hami_places(item: Json, devices: Sequence[str]) -> list[tuple[int, float, float]]:
    """Return (card number, share, memory in bytes) of each device that HAMi gave a pod; a share of 0 is no limit."""
    annotations = table(table(item.get("metadata")).get("annotations"))
    said = next((text(annotations[name]) for name in _HAMI if text(annotations.get(name))), "")
    return [
        (devices.index(uuid), int(cores) / 100, int(memory) * _MIB)
        for uuid, memory, cores in _HAMI_DEVICE.findall(said)
        if uuid in devices
    ]
