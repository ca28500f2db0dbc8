"""Queue quotas: where instances or cards stand free while work waits, the queue's quota is raised to let it in."""

from __future__ import annotations

from tuner.model import Change, Knob
from tuner.planner.views import QUEUE_KNOB, QueueView, knob_for


def propose_queue_raises(queues: tuple[QueueView, ...], knobs: tuple[Knob, ...]) -> list[tuple[Change, ...]]:
    """Return one group of changes for each queue whose waiting work fits what is free but not its quota.

    What is free is handed out in order of weight, so that two queues are never promised the same card.
    """
    knob = knob_for(knobs, QUEUE_KNOB, "queue", None)
    if knob is None:
        return []
    groups: list[tuple[Change, ...]] = []
    taken = 0.0
    for queue in sorted(queues, key=lambda q: (-q.weight, q.target)):
        free = queue.free - taken
        if queue.quota < 0 or queue.pending <= 0 or free <= 0:
            continue
        room_in_quota = max(queue.quota - queue.allocated, 0.0)
        wanted = queue.allocated + min(queue.pending, free)
        taken += min(queue.pending, free)
        after = knob.quantise(wanted)
        if wanted <= queue.quota or after <= queue.quota or room_in_quota >= queue.pending:
            continue
        reason = f"{queue.pending:g} cards wait while {free:g} stand free"
        groups.append((Change(queue.target, QUEUE_KNOB, queue.quota, after, reason, queue.tenant, ""),))
    return groups
