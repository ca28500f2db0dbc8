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
from collector.declarations import resolve_workload
from collector.join import owner_of
from collector.kube import KubeState, Pod, is_gpu_resource, mig_profile
from collector.plugins import SourceContext

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """What a pod asks for: cards, share of each, memory of each (bytes), CPU cores, MIG profile."""

    cards: float
    share: float
    memory_bytes: float | None
    cpu: float
    profile: str

    @property
    def card_equivalents(self) -> float:
        """Cards times share: what the request takes of a pool of cards."""
        return self.cards * self.share


@dataclass(slots=True)
class QueueBook:
    """What is remembered of pods between cycles: facts already told, who waited, since when."""

    told: dict[str, str] = field(default_factory=dict)
    waiting: dict[str, float] = field(default_factory=dict)  # pod -> created, seconds
    seen: set[str] = field(default_factory=set)
    out_of_memory: dict[str, set[str]] = field(default_factory=dict)
    last_seconds: float = math.nan


def gpu_request(pod: Pod) -> GpuRequest:
    """Return what a pod asks for; a share is known from HAMi's cores or from a MIG profile's compute slices."""
    cards, profile, share = 0.0, "", 1.0
    for resource, value in pod.requests.items():
        if is_gpu_resource(resource):
            cards += value
            profile = mig_profile(resource) or profile
    if profile:
        share = min(int(profile.split("g.")[0]) / 7, 1.0)
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
    seconds = now.timestamp()
    facts: list[Fact] = []
    events: list[Event] = []
    queues: dict[tuple[str, str], _Queue] = {}
    present: set[str] = set()
    for namespace, quota in kube.gpu_quota.items():
        tenant = owner_of(namespace, "", None, context)[0]
        queue = queues.setdefault(("default", tenant), _Queue())
        queue.quota = quota if math.isnan(queue.quota) else queue.quota + quota
    for key, pod in kube.pods.items():
        if not pod.wants_gpu:
            continue
        request = gpu_request(pod)
        tenant, workload, _ = owner_of(pod.namespace, pod.name, kube, context)
        queue = queues.setdefault((pod.pool, tenant), _Queue())
        created = seconds if pod.created is None else pod.created
        if pod.ended:
            _end(key, pod, book, context, now, facts)
        else:
            present.add(key)
            _tell(key, pod, request, (tenant, workload), book, context, now, facts)
            _count(key, pod, request, created, book, queue, seconds)
        for container in pod.out_of_memory - book.out_of_memory.get(key, set()):
            subject = Subject("pod", context.cluster, node=pod.node, object=key)
            events.append(
                Event(subject, "oom", Severity.ERROR, f"container {container} was killed: out of memory", now)
            )
        book.out_of_memory[key] = set(pod.out_of_memory)
    for key in book.seen - present:
        gone = kube.pods.get(key)
        if gone is None:
            _end(key, None, book, context, now, facts)
        book.waiting.pop(key, None)
        if gone is None:
            book.out_of_memory.pop(key, None)
    book.seen = present
    book.last_seconds = seconds
    return _rows(queues, context, now), facts, events


@dataclass(slots=True)
class _Queue:
    quota: float = math.nan
    allocated: float = 0.0
    pending: int = 0
    pending_gpus: float = 0.0
    oldest: float = 0.0
    waits: list[float] = field(default_factory=list)


def _count(
    key: str, pod: Pod, request: GpuRequest, created: float, book: QueueBook, queue: _Queue, seconds: float
) -> None:
    if not pod.bound:
        book.waiting[key] = created
        queue.pending += 1
        queue.pending_gpus += request.card_equivalents
        queue.oldest = max(queue.oldest, seconds - created)
        return
    queue.allocated += request.card_equivalents
    since = book.waiting.pop(key, None)
    # A pod that came and was bound between two polls was admitted in this interval too.
    admitted_unseen = key not in book.seen and created > book.last_seconds
    if since is not None or admitted_unseen:
        bound_at = pod.scheduled_at or pod.started or seconds
        queue.waits.append(max(bound_at - (created if since is None else since), 0.0))


def _tell(
    key: str,
    pod: Pod,
    request: GpuRequest,
    owner: tuple[str, str],
    book: QueueBook,
    context: SourceContext,
    now: datetime,
    facts: list[Fact],
) -> None:
    subject = Subject("pod", context.cluster, object=key)
    tenant, workload = owner
    resolved = resolve_workload(tenant, workload, context.declarations, pod.annotations)
    document = {
        "cards": request.cards,
        "share": request.share,
        "memory_bytes": request.memory_bytes,
        "cpu": request.cpu,
        "profile": request.profile or None,
        "type": pod.annotations.get("gpu_type"),
        "class": resolved.declaration.service_class,
        "tenant": tenant,
        "pool": pod.pool,
        "workload": workload,
    }
    text = orjson.dumps(document, option=orjson.OPT_SORT_KEYS).decode()
    created = now if pod.created is None else datetime.fromtimestamp(pod.created, UTC)
    if book.told.get(key) != text:
        at = created if key not in book.told else now
        facts.append(Fact(subject, "request", text, at))
        book.told[key] = text
    started = pod.started or pod.scheduled_at
    started_key = f"{key} started"
    if pod.bound and started_key not in book.told:
        at = now if started is None else datetime.fromtimestamp(started, UTC)
        facts.append(Fact(subject, "started", at.isoformat(), at))
        book.told[started_key] = at.isoformat()


def _end(key: str, pod: Pod | None, book: QueueBook, context: SourceContext, now: datetime, facts: list[Fact]) -> None:
    subject = Subject("pod", context.cluster, object=key)
    at = now
    if pod is not None and pod.completed is not None:
        at = datetime.fromtimestamp(pod.completed, UTC)
    for told, name in ((key, "request"), (f"{key} started", "started")):
        if book.told.pop(told, None) is not None:
            facts.append(Fact(subject, name, None, at))


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
        "oldest_wait_seconds": [q.oldest for q in items],
        "wait_p50_seconds": [_rank(q.waits, 0.5) for q in items],
        "wait_p95_seconds": [_rank(q.waits, 0.95) for q in items],
        "admitted_count": [float(len(q.waits)) for q in items],
    }
    return make_rows(
        "queue",
        np.full(len(keys), int(now.timestamp() * 1000)),
        {"cluster": [context.cluster] * len(keys), "pool": [k[0] for k in keys], "tenant": [k[1] for k in keys]},
        {name: np.array(values) for name, values in fields.items()},
    )


def _rank(values: list[float], quantile: float) -> float:
    """Return the nearest-rank percentile, NaN of nothing."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(math.ceil(quantile * len(ordered)) - 1, 0)]
