"""The Slices page: every holding as a row, and one of them over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analyzer.cards import cards
from analyzer.facts import records
from analyzer.settings import AnalyzeSettings
from collector.protocols import StoreReader
from collector.schema import NOBODY
from dashboard.cli.output import clean as printable
from dashboard.views.fleet import card_name
from dashboard.views.reading import Look, bucket
from dashboard.views.text import number
from tuner.service.analyse import partitions

SHOWN = (
    "tenant",
    "workload",
    "card",
    "kind",
    "quota",
    "used",
    "memory_used_gib",
    "memory_quota_gib",
    "kept",
    "service_class",
    "last_seen",
    "slice",
)
_FIELDS = (
    "memory_used_bytes",
    "memory_quota_bytes",
    "requests_per_second",
    "within_objective_per_second",
    "latency_p50_seconds",
    "latency_p99_seconds",
    "latency_p999_seconds",
    "step_seconds",
    "queue_depth_count",
)
_WORST = ("latency_p50_seconds", "latency_p99_seconds", "latency_p999_seconds")  # percentiles are never averaged


@dataclass(frozen=True, slots=True)
class SliceKey:
    """One holding: which slice, and in whose hands."""

    cluster: str
    node: str
    gpu: str
    slice: str
    tenant: str
    workload: str

    @classmethod
    def of(cls, row: Mapping[Any, Any]) -> SliceKey:
        """Return the key of a row that has its parts."""
        return cls(*(str(row[name]) for name in ("cluster", "node", "gpu", "slice", "tenant", "workload")))


def table(holdings: pd.DataFrame) -> pd.DataFrame:
    """Return holdings as they are listed: those that live first, by tenant and workload; shares in percent."""
    rows = holdings.reset_index(drop=True)
    names = [printable(card_name(row)) for row in rows.to_dict("records")]
    kind = rows["kind"].where(rows["profile"] == "", rows["kind"] + " " + rows["profile"])
    shown = pd.DataFrame(
        {
            "tenant": rows["tenant"].map(printable),
            "workload": rows["workload"].map(printable),
            "card": names,
            "kind": kind,
            "quota": 100 * rows["quota"],
            "used": 100 * rows["used"],
            "memory_used_gib": rows["memory_used_bytes"] / 2**30,
            "memory_quota_gib": rows["memory_quota_bytes"] / 2**30,
            "kept": 100 * rows["kept"],
            "service_class": rows["service_class"],
            "last_seen": rows["last_seen"],
            "slice": rows["slice"].map(printable),
        },
        columns=list(SHOWN),
    )
    order = rows.assign(free=rows["tenant"] == NOBODY, ended=-rows["last_seen"].astype("int64")).sort_values(
        ["ended", "free", "tenant", "workload"], kind="stable"
    )
    return shown.loc[order.index]


def account_of(accounts: pd.DataFrame, key: SliceKey) -> dict[str, Any] | None:
    """Return the account of a holding (a row of `analyzer.slice_account`); None: it has none in this range."""
    mine = np.ones(len(accounts), dtype=bool)
    for name in ("cluster", "node", "gpu", "slice", "tenant", "workload"):
        mine &= (accounts[name] == getattr(key, name)).to_numpy(bool)
    found = records(accounts[mine])
    return found[0] if found else None


def provenance_words(account: Mapping[str, Any]) -> str:
    """Say where a holding's numbers come from, how far busy time overstates its use, and what it borrowed or lacked."""
    words = [f"share held: {account['quota_provenance']}", f"share used: {account['used_provenance']}"]
    words.append(f"energy: {account['joules_provenance'] if account['joules'] == account['joules'] else 'unknown'}")
    if account["overstated_by"] > 1:
        words.append(f"busy time overstates its use {account['overstated_by']:.1f} times")
    taken = {name: account[f"{name}_gpu_seconds"] / 3600 for name in ("borrowed", "starved")}
    words += [f"{name} {number(hours, 'card-hours')}" for name, hours in taken.items() if hours > 0]
    return " · ".join(words)


def over_time(store: StoreReader, look: Look, key: SliceKey) -> pd.DataFrame:
    """Return one holding over the range: `time`, `used` and `quota` (shares of the card), and the fields it has.

    Buckets are means, latencies the largest of their percentiles; a bucket without a sample is NaN.
    """
    empty = pd.DataFrame(columns=["time", "used", "quota", *_FIELDS])
    for partition in partitions(store, look.window, look.interval_seconds, AnalyzeSettings()):
        if (partition.cluster, partition.node) != (key.cluster, key.node):
            continue
        for card in cards(partition):
            if card.gpu != key.gpu:
                continue
            own = [(h.slice, h.tenant, h.workload) for h in card.holdings]
            if (key.slice, key.tenant, key.workload) not in own:
                return empty
            j = own.index((key.slice, key.tenant, key.workload))
            alive = card.alive[:, j]
            raw = pd.DataFrame({"used": card.used[:, j], "quota": card.quota[:, j]})
            raw[~alive] = np.nan
            for name in _FIELDS:
                raw[name] = card.of_slices(name)[:, j]
            times = pd.to_datetime(card.times_ms(), unit="ms", utc=True)
            return _bucketed(raw, pd.DatetimeIndex(times), look)
    return empty


def _bucketed(raw: pd.DataFrame, times: pd.DatetimeIndex, look: Look) -> pd.DataFrame:
    every = bucket(look.window, look.interval_seconds)
    groups = raw.groupby(times.floor(every))
    means = groups.mean()
    for name in _WORST:
        means[name] = groups[name].max()
    means.index.name = "time"
    return means.reset_index()
