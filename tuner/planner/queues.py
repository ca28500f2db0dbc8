"""Queue quotas: where cards stand free while work waits, a queue is raised or given the idle quota of another."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from tuner.model import Change, Knob
from tuner.planner.views import QUEUE_KNOB, QueueView, knob_for


def propose_queue_moves(queues: Sequence[QueueView], knobs: tuple[Knob, ...]) -> list[tuple[Change, ...]]:
    """Return one group of changes for each queue whose waiting work fits what is free but not its quota.

    Each pool of each cluster is looked at by itself: the cards and quotas of one are no room in another. Within a pool
    the room comes first from what the quotas leave over, then from queues that neither use nor wait for theirs: their
    decreases stand in the same group. What is free is handed out by weight, so that two queues are never promised the
    same card.
    """
    knob = knob_for(knobs, QUEUE_KNOB, "queue", None)
    if knob is None:
        return []
    pools: dict[tuple[str, str], list[QueueView]] = defaultdict(list)
    for queue in queues:
        pools[queue.target.cluster, queue.target.name.partition("/")[0]].append(queue)
    return [group for _, pool in sorted(pools.items()) for group in _moves_within(pool, knob)]


def _moves_within(queues: Sequence[QueueView], knob: Knob) -> list[tuple[Change, ...]]:
    known = [q for q in queues if q.quota >= 0 and not math.isnan(q.allocated + q.pending + q.free)]
    quotas = {q: q.quota for q in known}
    spare = min((q.capacity for q in known if not math.isnan(q.capacity)), default=math.inf)
    spare -= sum(q.quota for q in known)
    groups: list[tuple[Change, ...]] = []
    promised = 0.0
    for queue in sorted(known, key=lambda q: (-q.weight, -q.pending, q.target)):
        usable = min(queue.pending, max(queue.free - promised, 0.0))
        promised += usable
        lacking = _down(queue.allocated + usable - quotas[queue], knob)
        if usable <= 0 or lacking < knob.quantum:
            continue
        from_spare = min(lacking, max(_down(spare, knob), 0.0))
        # What a donor waits for counts only where something is left that it could take.
        idle = {
            q: max(quotas[q] - q.allocated - min(q.pending, max(q.free - promised, 0.0)), 0.0)
            for q in known
            if q is not queue and quotas[q] == q.quota
        }
        donors = _donors(queue, idle, lacking - from_spare, knob)
        raised = from_spare + sum(d.before - d.after for d in donors)
        if raised < knob.quantum:
            continue
        spare -= from_spare
        quotas |= {q: c.after for c in donors for q in known if q.target == c.target}
        quotas[queue] += raised
        reason = f"{queue.pending:.1f} cards wait while {queue.free:.1f} stand free"
        raise_ = Change(queue.target, QUEUE_KNOB, queue.quota, queue.quota + raised, reason, queue.tenant, "")
        groups.append((*donors, raise_))
    return groups


def _donors(receiver: QueueView, idle: dict[QueueView, float], wanted: float, knob: Knob) -> list[Change]:
    """Take `wanted` from the queues with the most idle quota."""
    changes: list[Change] = []
    for queue in sorted(idle, key=lambda q: (-idle[q], q.target)):
        take = _down(min(idle[queue], wanted), knob)
        if take < knob.quantum:
            continue
        wanted -= take
        reason = f"neither used nor waited for; {receiver.target.name} can use it"
        changes.append(Change(queue.target, QUEUE_KNOB, queue.quota, queue.quota - take, reason, queue.tenant, ""))
    return changes


def _down(value: float, knob: Knob) -> float:
    return math.floor(value / knob.quantum + 1e-9) * knob.quantum if math.isfinite(value) else value
