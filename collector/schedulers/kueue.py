"""Kueue: workloads that wait for admission, and what cluster queues grant (v1beta1 and v1beta2 objects)."""

from __future__ import annotations

import math
from collections.abc import Iterable

from collector.demand import Ask, QueueState, SchedulerState
from collector.kube import Pod, without_hashes
from collector.queues import gpu_request
from collector.schedulers.objects import (
    Json,
    condition,
    gpu_total,
    instant,
    items,
    quantity,
    requests_of,
    sanitized,
    table,
    text,
)
from collector.whole import whole_of


def read_kueue(
    cluster_queues: Iterable[Json], local_queues: Iterable[Json], workloads: Iterable[Json]
) -> SchedulerState:
    """Return what Kueue's objects say.

    Its admission is the grant: from there on pods ask for themselves. What a cluster queue holds is its
    `flavorsReservation` (what is reserved counts against the quota, running or not); its local queues tell which
    namespace holds how much of it.
    """
    state = SchedulerState()
    for item in local_queues:
        meta, spec = table(item.get("metadata")), table(item.get("spec"))
        namespace, name, pool = text(meta.get("namespace")), text(meta.get("name")), text(spec.get("clusterQueue"))
        if not name or not pool:
            continue
        state.pools[f"{namespace}/{name}"] = pool
        status = table(item.get("status"))
        pending = quantity(status.get("pendingWorkloads"))
        state.queues.append(QueueState(pool, namespace, allocated=_reserved(status), pending=pending))
    told_apart = set(state.pools.values())  # what they hold is told by namespace
    for item in cluster_queues:
        name = text(table(item.get("metadata")).get("name"))
        quota = _quota(table(item.get("spec")))
        if not name or math.isnan(quota):
            continue  # it grants no cards
        status = table(item.get("status"))
        held, pending = _reserved(status), quantity(status.get("pendingWorkloads"))
        if name in told_apart:
            held = pending = math.nan
        state.queues.append(QueueState(name, quota=quota, allocated=held, pending=pending))
    for item in workloads:
        _add_workload(state, item)
    return state


def _quota(spec: Json) -> float:
    """Return the cards that a cluster queue grants over all its flavors; NaN where it speaks of none."""
    found = [
        gpu_total({text(resource.get("name")): resource.get("nominalQuota")})
        for group in items(spec.get("resourceGroups"))
        for flavor in items(group.get("flavors"))
        for resource in items(flavor.get("resources"))
    ]
    found = [value for value in found if not math.isnan(value)]
    return sum(found) if found else math.nan


def _reserved(status: Json) -> float:
    found = [
        gpu_total({text(resource.get("name")): resource.get("total")})
        for flavor in items(status.get("flavorsReservation"))
        for resource in items(flavor.get("resources"))
    ]
    found = [value for value in found if not math.isnan(value)]
    return sum(found) if found else math.nan


def _add_workload(state: SchedulerState, item: Json) -> None:
    meta, spec, status = table(item.get("metadata")), table(item.get("spec")), table(item.get("status"))
    namespace, name, created = (
        text(meta.get("namespace")),
        text(meta.get("name")),
        instant(meta.get("creationTimestamp")),
    )
    finished, _ = condition(status, "Finished")
    if not name or created is None or finished or spec.get("active") is False:
        return
    owners = items(meta.get("ownerReferences"))
    if any(one.get("kind") == "Pod" for one in owners):
        return  # the pod itself waits, gated, and asks for itself
    granted, granted_since = condition(status, "QuotaReserved")
    evicted, evicted_since = condition(status, "Evicted")
    # Once evicted it waits anew: what it had waited before was over with its admission.
    since = max(created, evicted_since or 0.0) if evicted or not granted else created
    local = f"{namespace}/{text(spec.get('queueName'))}"
    pool = text(table(status.get("admission")).get("clusterQueue")) or state.pools.get(local) or local.partition("/")[2]
    key = f"{namespace}/{name}"
    for one in owners:
        state.owners[namespace, text(one.get("kind")), text(one.get("name"))] = key
    owner = text(owners[0].get("name")) if owners else name
    sets = [(pod_set, _pod_of(pod_set, namespace)) for pod_set in items(spec.get("podSets"))]
    wanting = [(pod_set, pod) for pod_set, pod in sets if pod.wants_gpu]
    for number, (pod_set, pod) in enumerate(wanting):
        own = key if number == 0 else f"{key}.{text(pod_set.get('name')) or number}"
        count = quantity(pod_set.get("count"))
        state.asks[own] = Ask(
            key=own,
            namespace=namespace,
            workload=text(table(meta.get("labels")).get("app.kubernetes.io/name")) or without_hashes(owner),
            pool=pool or "default",
            request=gpu_request(pod),
            since=since,
            pods=max(whole_of(count), 1),
            granted=granted_since if granted else None,
            gpu_type=pod.annotations.get("gpu_type", ""),
            annotations=pod.annotations,
        )


def _pod_of(pod_set: Json, namespace: str) -> Pod:
    template = table(pod_set.get("template"))
    notes = table(table(template.get("metadata")).get("annotations"))
    return Pod(
        namespace,
        text(pod_set.get("name")),
        requests=requests_of(table(template.get("spec"))),
        annotations={
            sanitized(key.removeprefix("trimtab/")): value
            for key, value in notes.items()
            if key.startswith("trimtab/") and isinstance(value, str) and value
        },
    )
