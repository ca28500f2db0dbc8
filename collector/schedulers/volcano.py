"""Volcano: queues with what they deserve and hold, and pod groups whose pods are not made yet."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from collector.demand import Ask, QueueState, SchedulerState
from collector.kube import Pod, without_hashes
from collector.queues import gpu_request
from collector.schedulers.objects import Json, gpu_total, instant, items, quantity, sanitized, table, text
from collector.whole import whole_of

_ROOT = "root"


def read_volcano(queues: Iterable[Json], pod_groups: Iterable[Json], grouped: Collection[str]) -> SchedulerState:
    """Return what Volcano's objects say.

    Args:
        queues: `scheduling.volcano.sh` Queue objects; a queue with children grants through them and is left out.
        pod_groups: PodGroup objects.
        grouped: `namespace/group` of pods that are there: they ask for themselves.
    """
    state = SchedulerState()
    found = list(queues)
    parents = {text(table(item.get("spec")).get("parent")) for item in found} | {_ROOT}
    for item in found:
        name = text(table(item.get("metadata")).get("name"))
        spec, status = table(item.get("spec")), table(item.get("status"))
        if not name or name in parents:
            continue
        granted = [gpu_total(table(spec.get(said))) for said in ("deserved", "capability")]
        quota = next((value for value in granted if not math.isnan(value)), math.nan)
        allocated = gpu_total(table(status.get("allocated")))
        if math.isnan(quota) and math.isnan(allocated):
            continue  # no word of cards
        state.queues.append(QueueState(name, quota=quota, allocated=allocated))
    for item in pod_groups:
        _add_group(state, item, grouped)
    return state


def _add_group(state: SchedulerState, item: Json, grouped: Collection[str]) -> None:
    meta, spec, status = table(item.get("metadata")), table(item.get("spec")), table(item.get("status"))
    namespace, name, created = (
        text(meta.get("namespace")),
        text(meta.get("name")),
        instant(meta.get("creationTimestamp")),
    )
    key = f"{namespace}/{name}"
    waits = text(status.get("phase")) in ("", "Pending", "Inqueue")
    if not name or created is None or not waits or key in grouped:
        return
    members = quantity(spec.get("minMember"))
    pods = max(whole_of(members), 1)
    whole = {sanitized(one): quantity(value) / pods for one, value in table(spec.get("minResources")).items()}
    pod = Pod(namespace, name, requests={one: value for one, value in whole.items() if not math.isnan(value)})
    if not pod.wants_gpu:
        return
    owner = next((text(one.get("name")) for one in items(meta.get("ownerReferences"))), name)
    state.asks[key] = Ask(
        key=key,
        namespace=namespace,
        workload=without_hashes(owner),
        pool=text(spec.get("queue")) or "default",
        request=gpu_request(pod),
        since=created,
        pods=pods,
    )
