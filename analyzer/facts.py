"""Dated facts, read as of a time: what a slice is, who holds it, how big a card is, what pods ask for.

A facts frame has columns kind, cluster, node, gpu, slice, object, name, value, from, to (NaT: still so), provenance.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pandas as pd

Key = tuple[str, str, str, str]  # cluster, node, gpu, slice
FACT_COLUMNS = ("kind", "cluster", "node", "gpu", "slice", "object", "name", "value", "from", "to", "provenance")


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows as mappings of column to value."""
    names = [str(name) for name in frame.columns]
    return [dict(zip(names, row, strict=True)) for row in frame.itertuples(index=False, name=None)]


def hardware_facts(facts: pd.DataFrame, kind: str, name: str) -> dict[Key, str]:
    """Return the newest known value of fact `name` of each subject of `kind`."""
    found = facts[(facts["kind"] == kind) & (facts["name"] == name)].sort_values("from", kind="stable")
    keys = zip(found["cluster"], found["node"], found["gpu"], found["slice"], strict=True)
    return dict(zip(keys, found["value"], strict=True))


def hardware_spans(facts: pd.DataFrame, kind: str, name: str) -> dict[Key, list[tuple[int, str]]]:
    """Return (from, value) of fact `name` of each subject of `kind`, in order; `from` in ms since the epoch."""
    found = facts[(facts["kind"] == kind) & (facts["name"] == name)].sort_values("from", kind="stable")
    starts = found["from"].to_numpy("datetime64[ms]").astype("int64").tolist()
    keys = zip(found["cluster"], found["node"], found["gpu"], found["slice"], strict=True)
    spans: dict[Key, list[tuple[int, str]]] = {}
    for key, start, value in zip(keys, starts, found["value"], strict=True):
        spans.setdefault(key, []).append((start, value))
    return spans


def value_at(spans: list[tuple[int, str]] | None, at_ms: int, default: str = "") -> str:
    """Return the value as of an instant; before the first one told, that one; without any, `default`."""
    if not spans:
        return default
    return next((value for start, value in reversed(spans) if start <= at_ms), spans[0][1])


def says_simulated(facts: pd.DataFrame) -> bool:
    """Return whether facts say of a cluster that its rows come from a simulation."""
    named = (facts["kind"] == "cluster") & (facts["name"] == "simulated")
    return bool((named & (facts["value"] == "true")).any())


def to_float(text: str | None) -> float:
    """Return a fact's number; NaN where it is absent or no number."""
    try:
        return float(text) if text is not None else math.nan
    except ValueError:
        return math.nan


@dataclass(frozen=True, slots=True)
class Request:
    """What one pod asked for: cards, share of each (1.0: whole), memory, CPU, MIG profile, card type, and when.

    `ended` is None while it still asks or runs; `started` is None while it waits. `pods` is how many such pods it has;
    `to_pods`: once granted, they ask in its place; `queued_as`: the request that waited in this pod's place.
    """

    cluster: str
    pod: str
    tenant: str
    workload: str
    cards: int
    share: float
    memory_bytes: float
    cpu_cores: float
    profile: str
    gpu_type: str
    service_class: str
    created: datetime
    ended: datetime | None
    started: datetime | None
    pool: str = "default"
    pods: int = 1
    to_pods: bool = False
    queued_as: str = ""


def requests(facts: pd.DataFrame) -> list[Request]:
    """Return the pods' requests that the facts tell of, by creation; a request that is no JSON object is left out.

    Under MPS and time slicing pods ask for one of so many units of a card: what looks like a whole card is a share of
    unknown size (NaN).
    """
    pods = facts[facts["kind"] == "pod"]
    by_unit = _asks_by_unit(facts)
    began = pods[pods["name"] == "started"]
    started = {
        (row[0], row[1]): row[2].to_pydatetime() for row in began[["cluster", "object", "from"]].itertuples(index=False)
    }
    found = []
    asked = pods[pods["name"] == "request"]
    for cluster, pod, value, created, ended in asked[["cluster", "object", "value", "from", "to"]].itertuples(
        index=False
    ):
        wish = _object(value)
        if wish is None:
            continue
        tenant, workload = str(wish.get("tenant") or ""), str(wish.get("workload") or "")
        share = _number(wish, "share", math.nan)
        found.append(
            Request(
                cluster=cluster,
                pod=pod,
                tenant=tenant,
                workload=workload,
                cards=int(_number(wish, "cards", 1)),
                share=math.nan if share >= 1 and by_unit(pod, tenant, workload) else share,
                memory_bytes=_number(wish, "memory_bytes", math.nan),
                cpu_cores=_number(wish, "cpu", math.nan),
                profile=str(wish.get("profile") or "").removeprefix("mig-"),
                gpu_type=str(wish.get("type") or ""),
                service_class=str(wish.get("class") or ""),
                created=created.to_pydatetime(),
                ended=None if pd.isna(ended) else ended.to_pydatetime(),
                started=started.get((cluster, pod)),
                pool=str(wish.get("pool") or "default"),
                pods=max(int(_number(wish, "pods", 1)), 1),
                to_pods=wish.get("to_pods") is True,
                queued_as=str(wish.get("queued_as") or ""),
            )
        )
    return sorted(found, key=lambda r: (r.created, r.cluster, r.pod))


def _asks_by_unit(facts: pd.DataFrame) -> Callable[[str, str, str], bool]:
    """Return a test: does a pod (or, while it holds nothing, its workload) run under MPS or time slicing?"""
    kinds = hardware_facts(facts, "slice", "kind")
    of_pod: dict[str, bool] = {}
    of_workload: dict[tuple[str, str], bool] = {}
    tenants, workloads = hardware_facts(facts, "slice", "tenant"), hardware_facts(facts, "slice", "workload")
    for key, pod in hardware_facts(facts, "slice", "pod").items():
        unit = kinds.get(key) in {"mps", "timeslice"}
        of_pod[pod] = of_pod.get(pod, True) and unit
        if key in tenants and key in workloads:
            holder = (tenants[key], workloads[key])
            of_workload[holder] = of_workload.get(holder, True) and unit
    return lambda pod, tenant, workload: of_pod.get(pod, of_workload.get((tenant, workload), False))


def _object(text: str) -> Mapping[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _number(wish: Mapping[str, Any], name: str, default: float) -> float:
    value = wish.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default
