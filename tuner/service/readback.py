"""What the backend holds, as rows: quotas that no exporter tells of (MPS shares, queue quotas)."""

from __future__ import annotations

from datetime import datetime

import numpy as np

from collector.batch import Batch, make_rows
from collector.clock import grid_floor, to_ms
from tuner.model import BackendState
from tuner.planner.views import QUEUE_KNOB, SHARE_KNOB


def quota_rows(state: BackendState, now: datetime, interval_seconds: float) -> Batch:
    """Return slice rows with the share that running work has under MPS, and queue rows with the quota.

    vGPU shares come from their own exporter, and a field of a subject has one source.
    """
    at = to_ms(grid_floor(now, interval_seconds))
    batch = Batch()
    slices = [
        (t, s)
        for t, s in sorted(state.targets.items())
        if t.kind == "slice" and s.facts.get("kind") == "mps" and SHARE_KNOB in s.effective
    ]
    if slices:
        tags = {
            "cluster": [t.cluster for t, _ in slices],
            "node": [t.node for t, _ in slices],
            "gpu": [t.gpu for t, _ in slices],
            "slice": [t.slice for t, _ in slices],
            "tenant": [s.facts.get("tenant", "unknown") for _, s in slices],
            "workload": [s.facts.get("workload", "unknown") for _, s in slices],
        }
        shares = np.array([s.effective[SHARE_KNOB] for _, s in slices])
        batch.rows["slice"] = make_rows("slice", [at] * len(slices), tags, {SHARE_KNOB: shares})
    queues = [(t, s) for t, s in sorted(state.targets.items()) if t.kind == "queue" and QUEUE_KNOB in s.values]
    if queues:
        names = [t.name.partition("/") for t, _ in queues]
        tags = {
            "cluster": [t.cluster for t, _ in queues],
            "pool": [pool for pool, _, _ in names],
            "tenant": [tenant for _, _, tenant in names],
        }
        quotas = np.array([s.values[QUEUE_KNOB] for _, s in queues])
        batch.rows["queue"] = make_rows("queue", [at] * len(queues), tags, {QUEUE_KNOB: quotas})
    return batch
