"""Dated facts of a simulated cluster, told each time they change."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt

from collector.batch import Fact, Provenance, Subject
from collector.declarations import promises_in
from collector.demand import GpuRequest
from collector.gpu_models import gpu_model
from collector.kube import Pod
from collector.queues import gpu_request
from collector.schema import NOBODY, UNKNOWN
from collector.support import architecture_of
from sample_data.cluster.exporters.dcgm import driver_version, generation_of
from sample_data.cluster.pods import PodView, card_replicas, listed_pods, sharing_strategy
from sample_data.cluster.readings import REMAP_WARNING_MINUTES
from sample_data.cluster.simulation import World
from sample_data.cluster.spec import STEP_SECONDS

_Entry = tuple[tuple[Subject, str], tuple[str, Provenance]]


class FactTeller:
    """Remembers what was told of a world; `changes` returns what is new."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._told: dict[tuple[Subject, str], tuple[str, Provenance]] = {}
        self._pods: dict[PodView, str] = {}
        self._version: tuple[object, ...] = ()
        self._quotas: npt.NDArray[np.float64] = np.empty((0, 2))
        self.serving: dict[str, float] = {}  # tenant -> cards that pods hold which no queue admitted

    def changes(self, quotas: npt.NDArray[np.float64]) -> list[Fact]:
        """Return the facts that began, changed or ended in the last minute.

        Args:
            quotas: slices x (compute share, memory in bytes) that are granted; NaN where nothing says it.
        """
        world = self._world
        if len(self._quotas) == len(quotas) and self._version[:1] == (world.pods_version,):
            quotas = np.where(np.isnan(quotas), self._quotas, quotas)  # a sample that is left out is no change
        version = (world.pods_version, self._remapping(), quotas.tobytes())
        if version == self._version:
            return []
        self._version = version
        self._quotas = quotas
        current = dict(self._all())
        now = world.now
        facts = [
            Fact(key[0], key[1], value, now, provenance)
            for key, (value, provenance) in current.items()
            if key not in self._told or self._told[key][0] != value
        ]
        facts += [Fact(key[0], key[1], None, now) for key in self._told if key not in current]
        self._told = current
        return facts + self._pod_facts(now)

    def _remapping(self) -> tuple[bool, ...]:
        """Whether a card has rows that wait for their remap, by card."""
        fails = [card.fails_at_minute for card in self._world.spec.cards]
        return tuple(at is not None and at - self._world.minute <= REMAP_WARNING_MINUTES for at in fails)

    def _all(self) -> Iterator[_Entry]:
        world, spec = self._world, self._world.spec

        whole = Subject("cluster", spec.name)
        yield from _tell(whole, interval_seconds=f"{STEP_SECONDS:g}", simulated="true")
        yield (whole, "provenance:flops_per_second"), ("estimated", "estimated")
        for c, card in enumerate(spec.cards):
            subject = Subject("gpu", spec.name, card.node, card.uuid)
            model = gpu_model(card.hardware.name)
            if model is not None:
                sheet = (
                    ("max_sm_clock_hertz", model.max_sm_clock_hertz),
                    ("pcie_generation_max", float(model.pcie_generation)),
                    ("nvlink_peak_bytes_per_second", model.nvlink_bytes_per_second),
                )
                for name, value in sheet:
                    if value:
                        yield (subject, name), (f"{value:.15g}", "estimated")
            generation = generation_of(next(k.sharing for k in spec.cards if k.node == card.node))
            yield from _tell(
                subject,
                model=card.hardware.name,
                ordinal=str(card.index),
                sm_count=str(card.hardware.sm_count),
                architecture=architecture_of(card.hardware.name),
                mig="enabled" if card.sharing == "mig" else "disabled",
                driver_version=driver_version(generation),
                memory_total_bytes=str(card.hardware.memory_bytes),
                row_remap_pending=str(int(self._remapping()[c])),
            )
            if card.sharing == "vgpu" and world.card_alive[c]:
                yield from _tell(subject, schedulable_memory_bytes=str(card.hardware.memory_bytes))
            if generation != "3.3":
                yield from _tell(subject, pci_bus_id=card.pci_bus_id)
        for node in sorted({c.node for c in spec.cards}):
            cards = sum(c.node == node and bool(world.card_alive[n]) for n, c in enumerate(spec.cards))
            subject = Subject("node", spec.name, node)
            yield from _tell(
                subject,
                allocatable_cpu=str(spec.node_cpu_cores),
                allocatable_memory_bytes=str(spec.node_memory_bytes),
                allocatable_cards=str(cards),
            )
            if sharing_strategy(spec, node):
                yield from _tell(subject, sharing_strategy=sharing_strategy(spec, node))
            if card_replicas(spec, node):
                yield from _tell(subject, card_replicas=str(card_replicas(spec, node)))
        yield from self._slices()
        yield from self._workloads()

    def _slices(self) -> Iterator[_Entry]:
        world, spec = self._world, self._world.spec
        for i, s in enumerate(spec.slices):
            holder, card = world.holders[i], spec.cards[s.card]
            if not world.card_alive[s.card] or (holder is None and s.kind != "mig"):
                continue
            subject = Subject("slice", spec.name, card.node, card.uuid, world.slice_id(i))
            yield from _tell(subject, "estimated" if s.kind == "timeslice" else "measured", kind=s.kind)
            if s.profile:
                yield from _tell(subject, profile=s.profile)
            share, memory = self._quotas[i].tolist()
            if not math.isnan(share):
                yield from _tell(subject, sm_quota_ratio=f"{share:.9g}")
            if not math.isnan(memory):
                yield from _tell(subject, memory_quota_bytes=f"{memory:.0f}")
            if holder is None:
                yield from _tell(subject, tenant=NOBODY, workload=NOBODY)
                continue
            yield from _tell(subject, pod=f"{holder.namespace}/{holder.pod}", container=holder.container)
            yield from _tell(subject, tenant=holder.namespace, workload=holder.workload)
            declared: Provenance = "unknown" if s.role == "held" else "declared"
            offline = s.role in ("trainer", "seat")
            yield from _tell(subject, declared, service_class="offline" if offline else "online")
            if s.app == "triton":  # its first response stands for the whole request
                yield from _tell(subject, "estimated", latency_quantity="ttft")
                yield (subject, "provenance:latency_p99_seconds"), ("estimated", "estimated")
            elif s.app == "vllm":
                yield from _tell(subject, latency_quantity="e2e")
            if s.role in ("trainer", "held"):
                yield from _tell(subject, ordinal=str(s.ordinal))

    def _workloads(self) -> Iterator[_Entry]:
        spec = self._world.spec
        seen: set[str] = set()
        for pod in listed_pods(self._world):
            name = f"{pod.namespace}/{pod.workload}"
            if name in seen or pod.phase == "Succeeded":
                continue
            seen.add(name)
            subject = Subject("workload", spec.name, object=name)
            if not pod.annotations:
                yield from _tell(subject, "unknown", service_class=UNKNOWN)
                continue
            yield from _tell(subject, "declared", **promises_in(dict(pod.annotations)))

    def _pod_facts(self, now: datetime) -> list[Fact]:
        world = self._world
        facts: list[Fact] = []
        live = {pod: "" for pod in listed_pods(world) if pod.phase != "Succeeded"}
        keys = {(p.namespace, p.name): p for p in self._pods}
        self.serving = {}
        for pod in live:
            request = _request(pod)
            if pod.pool != world.spec.pool:
                self.serving[pod.namespace] = self.serving.get(pod.namespace, 0.0) + request.card_equivalents
            before = keys.pop((pod.namespace, pod.name), None)
            subject = Subject("pod", world.spec.name, object=f"{pod.namespace}/{pod.name}")
            if before is None:
                facts.append(
                    Fact(subject, "request", _document(pod, request), datetime.fromtimestamp(pod.created, UTC))
                )
            if pod.started is not None and (before is None or before.started is None):
                at = datetime.fromtimestamp(pod.started, UTC)
                facts.append(Fact(subject, "started", at.isoformat(), at))
        for gone in keys.values():
            subject = Subject("pod", world.spec.name, object=f"{gone.namespace}/{gone.name}")
            facts.append(Fact(subject, "request", None, now))
            if gone.started is not None:
                facts.append(Fact(subject, "started", None, now))
        self._pods = live
        return facts


def _tell(subject: Subject, provenance: Provenance = "measured", **values: str) -> Iterator[_Entry]:
    for name, value in values.items():
        yield (subject, name), (value, provenance)


def _request(pod: PodView) -> GpuRequest:
    return gpu_request(Pod(pod.namespace, pod.name, requests={name: amount for name, _, amount in pod.requests}))


def _document(pod: PodView, request: GpuRequest) -> str:
    document = {
        "cards": request.cards,
        "share": request.share,
        "memory_bytes": request.memory_bytes,
        "cpu": request.cpu,
        "profile": request.profile or None,
        "type": None,
        "class": "offline" if ("service_class", "offline") in pod.annotations else "online",
        "tenant": pod.namespace,
        "pool": pod.pool,
        "workload": pod.workload,
    }
    return json.dumps(document, sort_keys=True, separators=(",", ":"))
