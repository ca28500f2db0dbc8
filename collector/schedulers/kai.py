"""KAI: queues with their quota and what they hold (`scheduling.run.ai` Queue objects)."""

from __future__ import annotations

import math
from collections.abc import Iterable

from collector.demand import QueueState, SchedulerState
from collector.schedulers.objects import Json, gpu_total, quantity, table, text


def read_kai(queues: Iterable[Json]) -> SchedulerState:
    """Return what KAI's queues say. A queue with children grants through them and is left out.

    Its pods wait as pods; `requested` beyond `allocated` is what waits, where no pods are read.
    """
    state = SchedulerState()
    found = list(queues)
    parents = {text(table(item.get("spec")).get("parentQueue")) for item in found}
    for item in found:
        name = text(table(item.get("metadata")).get("name"))
        spec, status = table(item.get("spec")), table(item.get("status"))
        if not name or name in parents:
            continue
        gpu = table(table(spec.get("resources")).get("gpu"))
        quota = quantity(gpu.get("quota")) if "quota" in gpu else 0.0  # unset means: nothing of its own
        allocated, requested = (gpu_total(table(status.get(said))) for said in ("allocated", "requested"))
        waits = max(requested - (0.0 if math.isnan(allocated) else allocated), 0.0)
        state.queues.append(
            QueueState(
                name,
                quota=quota,
                allocated=allocated,
                pending_cards=math.nan if math.isnan(requested) else waits,
            )
        )
    return state
