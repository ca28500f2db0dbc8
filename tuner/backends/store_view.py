"""What the store knows of quotas, as a backend's state: for the dry run, where no backend can be asked."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from datetime import datetime, timedelta

import pandas as pd

from collector.protocols import StoreReader
from collector.window import Window
from tuner.model import BackendState, Knob, KnobEffect, Target, TargetState
from tuner.state.codec import digest

_SLICE_FIELDS = ("sm_quota_ratio", "memory_quota_bytes", "priority")
_FACTS = ("kind", "profile", "pod", "service_class", "ordinal")
_MIB = float(2**20)
_CARD_BYTES = float(2**40)  # no card holds more


def common_knobs() -> tuple[Knob, ...]:
    """Return what each sharing kind lets one set, and at which cost, whatever layer enforces it.

    MPS: a share of threads for clients that start later. HAMi-like layers: memory and cores at a restart of the pod.
    Queues: live, and the scheduler may evict.
    """
    share = ("ratio", 0.01, 0.01, 1.0)
    memory = ("bytes", _MIB, _MIB, _CARD_BYTES)
    return (
        Knob("sm_quota_ratio", "slice", "mps", *share, KnobEffect.NEW_WORK_ONLY, compare_and_set=False),
        Knob("memory_quota_bytes", "slice", "mps", *memory, KnobEffect.NEW_WORK_ONLY, compare_and_set=False),
        Knob("sm_quota_ratio", "slice", "vgpu", *share, KnobEffect.NEEDS_RESTART, restart_seconds=180.0),
        Knob("memory_quota_bytes", "slice", "vgpu", *memory, KnobEffect.NEEDS_RESTART, restart_seconds=180.0),
        Knob(
            "quota_gpu_count",
            "queue",
            None,
            "cards",
            1.0,
            0.0,
            1e6,
            KnobEffect.LIVE,
            can_evict=True,
            special={-1.0: "unlimited"},
        ),
    )


def read_store(store: StoreReader, *, at: datetime, lookback: timedelta) -> BackendState:
    """Return slices and queues with the quotas of their newest rows.

    `read_at` is the time of the oldest row used, so that a store that lags holds the tuner; without rows it is
    `at - lookback`.

    Args:
        store: where rows are.
        at: the instant of the reading.
        lookback: how old a row may be to count.
    """
    states: dict[Target, TargetState] = {}
    slices = store.latest("slice", at=at, lookback=lookback, fields=list(_SLICE_FIELDS))
    queues = store.latest("queue", at=at, lookback=lookback, fields=["quota_gpu_count"])
    known = _facts(store, at)
    for row in slices.to_dict("records"):
        target = Target("slice", row["cluster"], row["node"], row["gpu"], row["slice"])
        facts = {**known.get(target, {}), "tenant": row["tenant"], "workload": row["workload"]}
        states[target] = _state(target, row, _SLICE_FIELDS, facts)
    for row in queues.to_dict("records"):
        target = Target("queue", row["cluster"], name=f"{row['pool']}/{row['tenant']}")
        states[target] = _state(target, row, ("quota_gpu_count",), {"tenant": row["tenant"], "pool": row["pool"]})
    times = [frame["time"].min().to_pydatetime() for frame in (slices, queues) if not frame.empty]
    return BackendState(min(times, default=at - lookback), states)


def _state(
    target: Target, row: Mapping[Hashable, float], fields: Sequence[str], facts: Mapping[str, str]
) -> TargetState:
    values = {name: float(row[name]) for name in fields if not math.isnan(row[name])}
    return TargetState(target, values, values, digest([values, facts])[:12], facts)


def _facts(store: StoreReader, at: datetime) -> dict[Target, dict[str, str]]:
    moment = timedelta(milliseconds=1)
    frame: pd.DataFrame = store.facts(Window(at - moment, at + moment), names=list(_FACTS))
    found: dict[Target, dict[str, str]] = defaultdict(dict)
    for row in frame[frame["kind"] == "slice"].sort_values("from").to_dict("records"):
        target = Target("slice", row["cluster"], row["node"], row["gpu"], row["slice"])
        found[target][row["name"]] = row["value"]
    return found
