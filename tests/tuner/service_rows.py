"""Rows, facts and small fleets for the tests of the service."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np

from collector.batch import Batch, Fact, Subject, make_rows
from collector.declarations import Objective, WorkloadDeclaration
from tests.tuner.fakes import START, held
from tuner.model import Target, TargetState

GIB = 2.0**30
MINUTE = timedelta(minutes=1)
PROMISES = (
    WorkloadDeclaration(
        match="chat*", service_class="online", objective=Objective(quantity="e2e", share=0.9, bound_seconds=0.1)
    ),
    WorkloadDeclaration(match="train*", service_class="offline", floor=0.05, weight=2.0),
)


def at(minutes: float) -> datetime:
    """The instant so many minutes after the start."""
    return START + minutes * MINUTE


def slice_rows(
    target: Target, minutes: Iterable[float], *, tenant: str = "t", workload: str = "w", **fields: object
) -> Batch:
    """One row a minute; a field is one value for all rows or one a row."""
    times = [round(at(m).timestamp() * 1000) for m in minutes]
    tags = {
        "cluster": [target.cluster] * len(times),
        "node": [target.node] * len(times),
        "gpu": [target.gpu] * len(times),
        "slice": [target.slice] * len(times),
        "tenant": [tenant] * len(times),
        "workload": [workload] * len(times),
    }
    values = {name: np.broadcast_to(np.asarray(v, dtype=np.float64), len(times)) for name, v in fields.items()}
    return Batch(rows={"slice": make_rows("slice", times, tags, values)})


def card_rows(gpu: str, minutes: Iterable[float], *, node: str = "n0", **fields: object) -> Batch:
    times = [round(at(m).timestamp() * 1000) for m in minutes]
    tags = {"cluster": ["c"] * len(times), "node": [node] * len(times), "gpu": [gpu] * len(times)}
    values = {name: np.broadcast_to(np.asarray(v, dtype=np.float64), len(times)) for name, v in fields.items()}
    return Batch(rows={"gpu": make_rows("gpu", times, tags, values)})


def promise(name: str, value: str | None, minutes: float = 0.0, *, workload: str = "t/w", said: bool = True) -> Fact:
    """An annotation as the collector tells it; value None: it ends."""
    subject = Subject("workload", "c", object=workload)
    return Fact(subject, name, value, at(minutes), "declared" if said else "unknown")


def slot(
    target: Target, quota: float, *, kind: str = "vgpu", tenant: str = "t", workload: str = "w", memory_gib: float = 8.0
) -> TargetState:
    """A slice on a card of 48 GiB as a backend holds it."""
    values = {"sm_quota_ratio": quota, "memory_quota_bytes": memory_gib * GIB}
    state = held(target, values, kind=kind, tenant=tenant, workload=workload)
    return replace(state, facts={**state.facts, "card_memory_bytes": f"{48 * GIB:.0f}"})
