"""Requests of pods as dated facts, and the queues they wait in as rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
import orjson
import pyarrow as pa

from collector.batch import Event, Fact, Severity, Subject, make_rows
from collector.clock import to_ms
from collector.facts import declared
from collector.join import owner_of, tenant_of
from collector.kube import KubeState, Pod, is_gpu_resource, mig_profile
from collector.plugins import SourceContext

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """What a pod asks for: cards, share of each (None: unknown), memory of each (bytes), CPU cores, MIG profile.

    A unit of a shared card is some share of it: how much, only the device plugin's configuration knows.
    """

    cards: float
    share: float | None
    memory_bytes: float | None
    cpu: float
    profile: str

    @property
    def card_equivalents(self) -> float:
        """Cards times share: what the request takes of a pool of cards; a unit of unknown share counts as one."""
        return self.cards if self.share is None else self.cards * self.share


@dataclass(slots=True)
class _KnownPod:
    """What was worked out of a pod as it was last read."""

    pod: Pod
    request: GpuRequest
    tenant: str


@dataclass(slots=True)
class _Queue:
    quota: float = math.nan
    allocated: float = 0.0
    pending: int = 0
    pending_gpus: float = 0.0
    oldest: float = math.inf  # creation of the pod that waits longest, seconds since the epoch
    waits: list[float] = field(default_factory=list)


@dataclass(slots=True)
class QueueBook:
    """What is remembered of pods between cycles: facts already told, who waited, since when."""

    told: dict[str, str] = field(default_factory=dict)
    known: dict[str, _KnownPod] = field(default_factory=dict)
    waiting: dict[str, float] = field(default_factory=dict)  # pod -> created, seconds
    seen: set[str] = field(default_factory=set)
    out_of_memory: dict[str, set[str]] = field(default_factory=dict)
    last_seconds: float = math.nan
    read: tuple[KubeState | None, dict[tuple[str, str], _Queue]] = (None, {})  # of the poll before


def gpu_request(pod: Pod) -> GpuRequest:
    """Return what a pod asks for; a share is known from HAMi's cores or from a MIG profile's compute slices."""
    cards, profile = 0.0, ""
    share: float | None = 1.0
    for resource, value in pod.requests.items():
        if is_gpu_resource(resource):
            cards += value
            profile = mig_profile(resource) or profile
    if profile:
        share = min(int(profile.split("g.")[0]) / 7, 1.0)
    elif pod.requests.get("nvidia_com_gpu_shared"):
        share = None
    cores = pod.requests.get("nvidia_com_gpucores", pod.requests.get("volcano_sh_vgpu_cores"))
    memory = pod.requests.get("nvidia_com_gpumem", pod.requests.get("volcano_sh_vgpu_memory"))
    if cores:
        share = min(cores / 100 / max(cards, 1.0), 1.0)
    memory_bytes = memory * _MIB / max(cards, 1.0) if memory else None
    return GpuRequest(cards, share, memory_bytes, pod.requests.get("cpu", 0.0), profile)


def read_queues(
    kube: KubeState, book: QueueBook, context: SourceContext, now: datetime
) -> tuple[pa.Table | None, list[Fact], list[Event]]:
    """Return one `queue` row a pool and tenant, facts of pods, and out-of-memory events.

    A pod waits from its creation until it is bound to a node; its wait counts in the interval in which that happens.
    """
    if book.read[0] is kube:  # nobody came, went or was bound: only time went by
        book.last_seconds = now.timestamp()
        for queue in book.read[1].values():
            queue.waits = []
        return _rows(book.read[1], context, now), [], []
    reading = _Reading(kube, book, context, now)
    for namespace, quota in kube.gpu_quota.items():
        queue = reading.queue("default", tenant_of(namespace, context))
        queue.quota = quota if math.isnan(queue.quota) else queue.quota + quota
    present: set[str] = set()
    for key, pod in kube.pods.items():
        if not pod.wants_gpu:
            continue
        reading.out_of_memory(key, pod)
        if pod.ended:
            reading.end(key, pod)
        else:
            present.add(key)
            reading.pod(key, pod)
    for key in book.seen - present:
        book.waiting.pop(key, None)
        if key not in kube.pods:
            reading.end(key, None)
            book.out_of_memory.pop(key, None)
    book.seen = present
    book.last_seconds = now.timestamp()
    book.read = kube, reading.queues
    return _rows(reading.queues, context, now), reading.facts, reading.events


@dataclass(slots=True)
class _Reading:
    """One cycle's look at all pods."""

    kube: KubeState
    book: QueueBook
    context: SourceContext
    now: datetime
    queues: dict[tuple[str, str], _Queue] = field(default_factory=dict)
    facts: list[Fact] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def queue(self, pool: str, tenant: str) -> _Queue:
        """Return the queue of a tenant in a pool."""
        return self.queues.setdefault((pool, tenant), _Queue())

    def pod(self, key: str, pod: Pod) -> None:
        """Tell a living pod's facts and count it in its queue."""
        known = self.book.known.get(key)
        if known is None or known.pod is not pod:
            tenant, workload, _ = owner_of(pod.namespace, pod.name, self.kube, self.context)
            known = self.book.known[key] = _KnownPod(pod, gpu_request(pod), tenant)
            self._tell(key, pod, known.request, tenant, workload)
        request = known.request
        created = self.now.timestamp() if pod.created is None else pod.created
        queue = self.queue(pod.pool, known.tenant)
        if pod.bound:
            queue.allocated += request.card_equivalents
            self._admit(key, pod, created, queue)
        else:
            self.book.waiting[key] = created
            queue.pending += 1
            queue.pending_gpus += request.card_equivalents
            queue.oldest = min(queue.oldest, created)

    def _admit(self, key: str, pod: Pod, created: float, queue: _Queue) -> None:
        since = self.book.waiting.pop(key, None)
        # A pod that came and was bound between two polls was admitted in this interval too.
        unseen = key not in self.book.seen and created > self.book.last_seconds
        if since is not None or unseen:
            bound_at = pod.scheduled_at or pod.started or self.now.timestamp()
            queue.waits.append(max(bound_at - created, 0.0))

    def _tell(self, key: str, pod: Pod, request: GpuRequest, tenant: str, workload: str) -> None:
        subject = Subject("pod", self.context.cluster, object=key)
        document = {
            "cards": request.cards,
            "share": request.share,
            "memory_bytes": request.memory_bytes,
            "cpu": request.cpu,
            "profile": request.profile or None,
            "type": pod.annotations.get("gpu_type"),
            "class": declared(tenant, workload, self.context, pod.annotations).declaration.service_class,
            "tenant": tenant,
            "pool": pod.pool,
            "workload": workload,
        }
        text = orjson.dumps(document, option=orjson.OPT_SORT_KEYS).decode()
        told = self.book.told.get(key)
        if told != text:
            at = self.now if told is not None or pod.created is None else datetime.fromtimestamp(pod.created, UTC)
            self.facts.append(Fact(subject, "request", text, at))
            self.book.told[key] = text
        started_key = f"{key} started"
        if pod.bound and started_key not in self.book.told:
            started = pod.started or pod.scheduled_at
            at = self.now if started is None else datetime.fromtimestamp(started, UTC)
            self.facts.append(Fact(subject, "started", at.isoformat(), at))
            self.book.told[started_key] = at.isoformat()

    def end(self, key: str, pod: Pod | None) -> None:
        """End a pod's facts: when it was completed, else now."""
        self.book.known.pop(key, None)
        subject = Subject("pod", self.context.cluster, object=key)
        completed = pod.completed if pod is not None else None
        at = self.now if completed is None else datetime.fromtimestamp(completed, UTC)
        for told, name in ((key, "request"), (f"{key} started", "started")):
            if self.book.told.pop(told, None) is not None:
                self.facts.append(Fact(subject, name, None, at))

    def out_of_memory(self, key: str, pod: Pod) -> None:
        """Tell of containers that were killed for want of memory, each time once."""
        known = self.book.out_of_memory.get(key, set())
        subject = Subject("pod", self.context.cluster, node=pod.node, object=key)
        for container in sorted(pod.out_of_memory - known):
            message = f"container {container} was killed: out of memory"
            self.events.append(Event(subject, "oom", Severity.ERROR, message, self.now))
        self.book.out_of_memory[key] = set(pod.out_of_memory)


def _rows(queues: Mapping[tuple[str, str], _Queue], context: SourceContext, now: datetime) -> pa.Table | None:
    if not queues:
        return None
    keys = sorted(queues)
    items = [queues[key] for key in keys]
    fields = {
        "quota_gpu_count": [q.quota for q in items],
        "allocated_gpu_count": [q.allocated for q in items],
        "pending_count": [float(q.pending) for q in items],
        "pending_gpu_count": [q.pending_gpus for q in items],
        "oldest_wait_seconds": [max(now.timestamp() - q.oldest, 0.0) if q.pending else 0.0 for q in items],
        "wait_p50_seconds": [_rank(q.waits, 0.5) for q in items],
        "wait_p95_seconds": [_rank(q.waits, 0.95) for q in items],
        "admitted_count": [float(len(q.waits)) for q in items],
    }
    return make_rows(
        "queue",
        np.full(len(keys), to_ms(now)),
        {"cluster": [context.cluster] * len(keys), "pool": [k[0] for k in keys], "tenant": [k[1] for k in keys]},
        {name: np.array(values) for name, values in fields.items()},
    )


def _rank(values: list[float], quantile: float) -> float:
    """Return the nearest-rank percentile, NaN of nothing."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(math.ceil(quantile * len(ordered)) - 1, 0)]
