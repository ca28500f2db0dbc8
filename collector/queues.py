"""Requests of pods as dated facts, and the queues they wait in as rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np
import orjson
import pyarrow as pa

from collector.batch import Event, Fact, Reject, Severity, Subject, make_rows
from collector.clock import to_ms
from collector.demand import Ask, GpuRequest, QueueState, SchedulerState
from collector.facts import declared
from collector.join import owner_of, tenant_of
from collector.kube import KubeState, Pod, is_gpu_resource, mig_profile
from collector.plugins import SourceContext
from collector.schema import NOBODY, QUEUE

_MIB = 2**20


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
    pending: float = 0.0
    pending_gpus: float = 0.0
    told: bool = False  # the queue itself said what it holds
    oldest: float = math.inf  # creation of the pod that waits longest, seconds since the epoch
    waits: list[float] = field(default_factory=list)


_Queues = dict[tuple[str, str], _Queue]  # by pool and tenant


@dataclass(slots=True)
class QueueBook:
    """What is remembered of pods between cycles: facts already told, who waited, since when."""

    told: dict[str, str] = field(default_factory=dict)
    known: dict[str, _KnownPod] = field(default_factory=dict)
    waiting: dict[str, float] = field(default_factory=dict)  # pod or ask -> since when, seconds
    asked: set[str] = field(default_factory=set)  # asks of the poll before
    seen: set[str] = field(default_factory=set)
    out_of_memory: dict[str, set[str]] = field(default_factory=dict)
    last_seconds: float = math.nan
    users: dict[str, set[str]] = field(default_factory=dict)  # pool -> tenants that were ever seen to ask it
    read: tuple[KubeState | None, SchedulerState | None, _Queues] = (None, None, {})  # of the poll before


def gpu_request(pod: Pod) -> GpuRequest:
    """Return what a pod asks for; a share is known from HAMi's cores or from a MIG profile's compute slices."""
    if pod.fraction_cards:
        return GpuRequest(pod.fraction_cards, pod.fraction, pod.fraction_memory_bytes, pod.requests.get("cpu", 0.0), "")
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
    kube: KubeState | None, demand: SchedulerState | None, book: QueueBook, context: SourceContext, now: datetime
) -> tuple[pa.Table | None, list[Fact], list[Event], list[Reject]]:
    """Return one `queue` row a pool and tenant, facts of what is asked for, out-of-memory events, and rejects.

    A pod waits from its creation until it is bound to a node, an ask from its submission until it is granted; the wait
    counts in the interval in which that happens. What a queue says of itself goes before what is counted from its pods.
    """
    if book.read[0] is kube and book.read[1] is demand:  # nobody came, went or was bound: only time went by
        book.last_seconds = now.timestamp()
        for queue in book.read[2].values():
            queue.waits = []
        table, rejects = _rows(book.read[2], context, now)
        return table, [], [], rejects
    reading = _Reading(kube or KubeState(), demand or SchedulerState(), book, context, now)
    for namespace, quota in reading.kube.gpu_quota.items():
        queue = reading.queue("default", tenant_of(namespace, context))
        queue.quota = quota if math.isnan(queue.quota) else queue.quota + quota
    reading.asks()
    present: set[str] = set()
    for key, pod in reading.kube.pods.items():
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
        if key not in reading.kube.pods:
            reading.end(key, None)
            book.out_of_memory.pop(key, None)
    book.seen = present
    reading.queue_states()
    book.last_seconds = now.timestamp()
    book.read = kube, demand, reading.queues
    table, rejects = _rows(reading.queues, context, now)
    return table, reading.facts, reading.events, rejects


@dataclass(slots=True)
class _Reading:
    """One cycle's look at all pods and asks."""

    kube: KubeState
    demand: SchedulerState
    book: QueueBook
    context: SourceContext
    now: datetime
    queues: _Queues = field(default_factory=dict)
    facts: list[Fact] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def queue(self, pool: str, tenant: str) -> _Queue:
        """Return the queue of a tenant in a pool."""
        return self.queues.setdefault((pool, tenant), _Queue())

    def asks(self) -> None:
        """Tell of requests that queues keep themselves, and count them."""
        for key, ask in self.demand.asks.items():
            tenant = tenant_of(ask.namespace, self.context)
            self._tell_ask(ask, tenant)
            self.book.users.setdefault(ask.pool, set()).add(tenant)
            queue = self.queue(ask.pool, tenant)
            if ask.granted is None:
                self.book.waiting[key] = ask.since
                _count_waiting(queue, ask.card_equivalents, ask.since)
                continue
            waited = self.book.waiting.pop(key, None) is not None
            if waited or (key not in self.book.asked and ask.granted > self.book.last_seconds):
                queue.waits.append(max(ask.granted - ask.since, 0.0))
            if not ask.to_pods:
                queue.allocated += ask.card_equivalents
        for key in self.book.asked - self.demand.asks.keys():
            self.book.waiting.pop(key, None)
            self._end(key, self.now)
        self.book.asked = set(self.demand.asks)

    def _tell_ask(self, ask: Ask, tenant: str) -> None:
        if ask.granted is not None and ask.to_pods and ask.key not in self.book.told:
            return  # its pods ask by now, and it was never seen to wait
        promised = declared(tenant, ask.workload, self.context, ask.annotations).declaration.service_class
        document = _document(
            ask.request,
            tenant=tenant,
            workload=ask.workload,
            pool=ask.pool,
            service_class=promised,
            gpu_type=ask.gpu_type,
        )
        document |= {"pods": ask.pods, "to_pods": ask.to_pods}
        text = orjson.dumps(document, option=orjson.OPT_SORT_KEYS).decode()
        self._tell_request(ask.key, text, ask.since, ask.granted)
        if ask.granted is not None and ask.to_pods:
            # A moment later, so that it is seen to have started.
            self._end(ask.key, datetime.fromtimestamp(ask.granted, UTC) + timedelta(milliseconds=1))

    def pod(self, key: str, pod: Pod) -> None:
        """Tell a living pod's facts and count it in its queue."""
        known = self.book.known.get(key)
        pool = self.demand.pools.get(f"{pod.namespace}/{pod.pool}", pod.pool)
        if known is None or known.pod is not pod:
            tenant, workload, _ = owner_of(pod.namespace, pod.name, self.kube, self.context)
            known = self.book.known[key] = _KnownPod(pod, gpu_request(pod), tenant)
            self._tell(key, pod, known.request, tenant, workload)
        self.book.users.setdefault(pool, set()).add(known.tenant)
        created = self.now.timestamp() if pod.created is None else pod.created
        queue = self.queue(pool, known.tenant)
        if pod.bound:
            queue.allocated += known.request.card_equivalents
            self._admit(key, pod, created, queue)
        else:
            self.book.waiting[key] = created
            _count_waiting(queue, known.request.card_equivalents, created)

    def _queued_as(self, pod: Pod) -> str:
        """Return the ask that waited in a pod's place; empty where the pod waits itself."""
        return self.demand.owners.get((pod.namespace, pod.owner_kind, pod.owner_name), "")

    def _admit(self, key: str, pod: Pod, created: float, queue: _Queue) -> None:
        since = self.book.waiting.pop(key, None)
        # A pod that came and was bound between two polls was admitted in this interval too.
        unseen = key not in self.book.seen and created > self.book.last_seconds
        if (since is not None or unseen) and not self._queued_as(pod):
            bound_at = pod.scheduled_at or pod.started or self.now.timestamp()
            queue.waits.append(max(bound_at - created, 0.0))

    def _tell(self, key: str, pod: Pod, request: GpuRequest, tenant: str, workload: str) -> None:
        promised = declared(tenant, workload, self.context, pod.annotations).declaration.service_class
        pool = self.demand.pools.get(f"{pod.namespace}/{pod.pool}", pod.pool)
        document = _document(
            request,
            tenant=tenant,
            workload=workload,
            pool=pool,
            service_class=promised,
            gpu_type=pod.annotations.get("gpu_type", ""),
        )
        queued_as = self._queued_as(pod)
        if queued_as:
            document["queued_as"] = queued_as
        text = orjson.dumps(document, option=orjson.OPT_SORT_KEYS).decode()
        started = (pod.started or pod.scheduled_at or self.now.timestamp()) if pod.bound else None
        self._tell_request(key, text, pod.created, started)

    def _tell_request(self, key: str, text: str, since: float | None, started: float | None) -> None:
        subject = Subject("pod", self.context.cluster, object=key)
        told = self.book.told.get(key)
        if told != text:
            at = self.now if told is not None or since is None else datetime.fromtimestamp(since, UTC)
            self.facts.append(Fact(subject, "request", text, at))
            self.book.told[key] = text
        started_key = f"{key} started"
        if started is not None and started_key not in self.book.told:
            at = datetime.fromtimestamp(started, UTC)
            self.facts.append(Fact(subject, "started", at.isoformat(), at))
            self.book.told[started_key] = at.isoformat()

    def end(self, key: str, pod: Pod | None) -> None:
        """End a pod's facts: when it was completed, else now."""
        self.book.known.pop(key, None)
        completed = pod.completed if pod is not None else None
        self._end(key, self.now if completed is None else datetime.fromtimestamp(completed, UTC))

    def _end(self, key: str, at: datetime) -> None:
        subject = Subject("pod", self.context.cluster, object=key)
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

    def queue_states(self) -> None:
        """Let what queues say of themselves go before what was counted from pods."""
        counted = {key for key, queue in self.queues.items() if queue.pending}
        known = {said.pool for said in self.demand.queues}
        by_metrics = [
            QueueState(
                pool,
                quota=told.get("quota", math.nan),
                allocated=told.get("reserved", math.nan),
                pending=told.get("pending", math.nan),
            )
            for pool, told in self.kube.kueue.items()
            if pool not in known and "quota" in told
        ]
        for said in self.demand.queues:
            if said.namespace:
                self.book.users.setdefault(said.pool, set()).add(tenant_of(said.namespace, self.context))
        for said in [*self.demand.queues, *by_metrics]:
            queue = self.queue(said.pool, self._tenant(said))
            if not math.isnan(said.quota):
                queue.quota = said.quota if math.isnan(queue.quota) else queue.quota + said.quota
            if not math.isnan(said.allocated):
                # Several namespaces of one tenant add up; what pods say is left behind.
                queue.allocated = said.allocated + (queue.allocated if queue.told else 0.0)
                queue.told = True
            if any(pool == said.pool for pool, _ in counted):
                continue  # those that wait are known one by one
            if said.pending > 0 or said.pending_cards > 0:
                queue.pending += 0.0 if math.isnan(said.pending) else said.pending
                queue.pending_gpus += said.pending_cards  # NaN: how much those that wait ask for is not told
                queue.oldest = math.nan

    def _tenant(self, said: QueueState) -> str:
        """Return whose queue it is: its namespace's, else its only user's; `none` where several share it.

        A queue that nobody was seen to use is taken to bear its user's name.
        """
        if said.namespace:
            return tenant_of(said.namespace, self.context)
        users = self.book.users.get(said.pool, set())
        if not users:
            return tenant_of(said.pool, self.context)
        return next(iter(users)) if len(users) == 1 else NOBODY


def _count_waiting(queue: _Queue, cards: float, since: float) -> None:
    queue.pending += 1
    queue.pending_gpus += cards
    queue.oldest = min(queue.oldest, since)


def _document(
    request: GpuRequest, *, tenant: str, workload: str, pool: str, service_class: str, gpu_type: str
) -> dict[str, object]:
    return {
        "cards": request.cards,
        "share": request.share,
        "memory_bytes": request.memory_bytes,
        "cpu": request.cpu,
        "profile": request.profile or None,
        "type": gpu_type or None,
        "class": service_class,
        "tenant": tenant,
        "pool": pool,
        "workload": workload,
    }


def _rows(queues: _Queues, context: SourceContext, now: datetime) -> tuple[pa.Table | None, list[Reject]]:
    """Return rows, and what a scheduler says that cannot be: quotas of `1e18` cards pass every webhook."""
    if not queues:
        return None, []
    keys = sorted(queues)
    items = [queues[key] for key in keys]
    fields = {
        "quota_gpu_count": [q.quota for q in items],
        "allocated_gpu_count": [q.allocated for q in items],
        "pending_count": [q.pending for q in items],
        "pending_gpu_count": [q.pending_gpus for q in items],
        "oldest_wait_seconds": [_age(q, now) for q in items],
        "wait_p50_seconds": [_rank(q.waits, 0.5) for q in items],
        "wait_p95_seconds": [_rank(q.waits, 0.95) for q in items],
        "admitted_count": [float(len(q.waits)) for q in items],
    }
    columns, rejects = {}, []
    for name, values in fields.items():
        spec, column = QUEUE.field(name), np.array(values, dtype=np.float64)
        wrong = (column < spec.low) | (column > spec.high)
        for n in np.flatnonzero(wrong).tolist():
            subject = Subject("queue", context.cluster, object="/".join(keys[n]))
            rejects.append(Reject(subject, name, "out_of_range", now))
        columns[name] = np.where(wrong, np.nan, column)
    table = make_rows(
        "queue",
        np.full(len(keys), to_ms(now)),
        {"cluster": [context.cluster] * len(keys), "pool": [k[0] for k in keys], "tenant": [k[1] for k in keys]},
        columns,
    )
    return table, rejects


def _age(queue: _Queue, now: datetime) -> float:
    """Return how long the oldest one waits; 0 where nobody does, NaN where that is not told."""
    if not queue.pending and not queue.pending_gpus:
        return 0.0
    return math.nan if math.isnan(queue.oldest) else max(now.timestamp() - queue.oldest, 0.0)


def _rank(values: list[float], quantile: float) -> float:
    """Return the nearest-rank percentile, NaN of nothing."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(math.ceil(quantile * len(ordered)) - 1, 0)]
