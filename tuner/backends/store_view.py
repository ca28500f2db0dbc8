"""What the store knows of quotas, as a backend's state: for the dry run, where no backend can be asked."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from datetime import datetime, timedelta

import pandas as pd

from collector.protocols import StoreReader
from collector.schema import NOBODY
from collector.window import Window
from tuner.model import BackendState, Knob, KnobEffect, Target, TargetState
from tuner.state.codec import digest

_SLICE_FIELDS = ("sm_quota_ratio", "memory_quota_bytes", "priority")
_FACTS = ("kind", "profile", "pod", "service_class", "ordinal")
_CARD_FACTS = ("memory_total_bytes", "mig")
_QUEUE_FIELDS = ("quota_gpu_count", "allocated_gpu_count", "pending_gpu_count")
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
    """Return slices and queues with the quotas of their newest rows, and the facts that plans rest on.

    Facts of a slice: what its `slice` facts say, its holder, and `card_memory_bytes`. Facts of a queue:
    `allocated_gpu_count`, `pending_gpu_count`, and where they are known `capacity_gpu_count` and `free_gpu_count`: the
    cards of the cluster, and those that nobody holds. No row says which pool a card belongs to: where more than one
    pool of a cluster has quotas, these two are absent. Generations rest on quotas and holders, not on counts.

    `read_at` is the time of the oldest row used, so that a store that lags holds the tuner; without rows it is
    `at - lookback`.

    Args:
        store: where rows are.
        at: the instant of the reading.
        lookback: how old a row may be to count.
    """
    states: dict[Target, TargetState] = {}
    slices = store.latest("slice", at=at, lookback=lookback, fields=list(_SLICE_FIELDS))
    queues = store.latest("queue", at=at, lookback=lookback, fields=list(_QUEUE_FIELDS))
    cards = store.latest("gpu", at=at, lookback=lookback, fields=[])
    known = _facts(store, at)
    for row in slices.to_dict("records"):
        target = Target("slice", row["cluster"], row["node"], row["gpu"], row["slice"])
        facts = {**known.get(target, {}), "tenant": row["tenant"], "workload": row["workload"]}
        size = known.get(_card(row), {}).get("memory_total_bytes")
        states[target] = _state(target, row, _SLICE_FIELDS, facts, {} if size is None else {"card_memory_bytes": size})
    counts = _card_counts(cards, slices, queues, known)
    for row in queues.to_dict("records"):
        target = Target("queue", row["cluster"], name=f"{row['pool']}/{row['tenant']}")
        told = {name: f"{row[name]:g}" for name in _QUEUE_FIELDS[1:] if not math.isnan(row[name])}
        facts = {"tenant": row["tenant"], "pool": row["pool"]}
        states[target] = _state(
            target, row, _QUEUE_FIELDS[:1], facts, told | counts.get((row["cluster"], row["pool"]), {})
        )
    times = [frame["time"].min().to_pydatetime() for frame in (slices, queues) if not frame.empty]
    return BackendState(min(times, default=at - lookback), states)


def _state(
    target: Target,
    row: Mapping[Hashable, float],
    fields: Sequence[str],
    facts: Mapping[str, str],
    passing: Mapping[str, str],
) -> TargetState:
    """Return a state; `passing` facts may change without making it another one."""
    values = {name: float(row[name]) for name in fields if not math.isnan(row[name])}
    return TargetState(target, values, values, digest([values, facts])[:12], {**facts, **passing})


def _card(row: Mapping[Hashable, str]) -> Target:
    return Target("card", row["cluster"], row["node"], row["gpu"])


def _card_counts(
    cards: pd.DataFrame, slices: pd.DataFrame, queues: pd.DataFrame, known: Mapping[Target, Mapping[str, str]]
) -> dict[tuple[str, str], dict[str, str]]:
    """Return capacity_gpu_count and free_gpu_count by (cluster, pool).

    Free is a card without a held slice, but never more cards than the queues' allocations leave: a card may be held by
    somebody whom no exporter names. A card in MIG mode has free instances, which are no free card.
    """
    held = {_card(row) for row in slices[slices["tenant"] != NOBODY].to_dict("records")}
    seen = [_card(row) for row in cards.to_dict("records")]
    idle = [card for card in seen if card not in held and known.get(card, {}).get("mig") != "enabled"]
    counts: dict[tuple[str, str], dict[str, str]] = {}
    for cluster, rows in queues.groupby("cluster"):
        pools = rows.loc[rows["quota_gpu_count"].notna(), "pool"].unique()
        capacity = sum(card.cluster == cluster for card in seen)
        if len(pools) != 1 or not capacity:
            continue
        told = counts[str(cluster), str(pools[0])] = {"capacity_gpu_count": f"{capacity:d}"}
        left = capacity - rows["allocated_gpu_count"].sum(skipna=False)
        if not math.isnan(left):
            free = min(sum(card.cluster == cluster for card in idle), max(math.floor(left), 0))
            told["free_gpu_count"] = f"{free:d}"
    return counts


def _facts(store: StoreReader, at: datetime) -> dict[Target, dict[str, str]]:
    moment = timedelta(milliseconds=1)
    frame: pd.DataFrame = store.facts(Window(at - moment, at + moment), names=[*_FACTS, *_CARD_FACTS])
    found: dict[Target, dict[str, str]] = defaultdict(dict)
    for row in frame[frame["kind"].isin(("slice", "gpu"))].sort_values("from").to_dict("records"):
        slice_target = Target("slice", row["cluster"], row["node"], row["gpu"], row["slice"])
        found[slice_target if row["kind"] == "slice" else _card(row)][row["name"]] = row["value"]
    return found
