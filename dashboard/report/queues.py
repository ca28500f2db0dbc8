"""Waiting for cards, per tenant."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from analyzer.facts import requests
from dashboard.report.gathered import Gathered
from dashboard.report.model import QueueLine
from dashboard.report.view import MOST_ROWS, Note, Section, Table, more, numbers, text
from dashboard.views.text import number, seconds

_FIELDS = ["quota_gpu_count", "allocated_gpu_count", "pending_count"]
_Key = tuple[str, str]  # cluster, tenant


def build_queues(gathered: Gathered) -> tuple[QueueLine, ...]:
    """Join what queues report with how long pods really waited, which their dated requests tell; longest wait first."""
    window = gathered.analysis.window
    waits: dict[_Key, list[float]] = {}
    waiting: dict[_Key, list[float]] = {}
    for request in requests(gathered.facts):
        key = (request.cluster, request.tenant)
        alive = request.ended is None or request.ended > window.end
        if request.started is not None and window.start <= request.started < window.end:
            waits.setdefault(key, []).append((request.started - request.created).total_seconds())
        elif request.started is None and alive and request.created < window.end:
            waiting.setdefault(key, []).append((window.end - request.created).total_seconds())
    sums = gathered.queues.groupby(["cluster", "tenant", "time"])[_FIELDS].sum(min_count=1)
    means = _by_key(sums.groupby(["cluster", "tenant"]).mean())
    latest = _by_key(sums.groupby(["cluster", "tenant"]).last())
    none = dict.fromkeys(_FIELDS, math.nan)
    lines = [
        QueueLine(
            cluster=key[0],
            tenant=key[1],
            started=len(waits.get(key, ())),
            wait_p50_seconds=_nearest_rank(waits.get(key, ()), 0.5),
            wait_p95_seconds=_nearest_rank(waits.get(key, ()), 0.95),
            waiting_now=float(len(waiting[key])) if key in waiting else latest.get(key, none)["pending_count"],
            longest_now_seconds=max(waiting.get(key, ()), default=math.nan),
            pending_mean=means.get(key, none)["pending_count"],
            quota_cards=latest.get(key, none)["quota_gpu_count"],
            allocated_mean_cards=means.get(key, none)["allocated_gpu_count"],
        )
        for key in sorted({*waits, *waiting, *means})
    ]
    return tuple(sorted(lines, key=lambda q: (-_or_zero(q.wait_p95_seconds), q.cluster, q.tenant)))


def _by_key(frame: pd.DataFrame) -> dict[_Key, dict[str, float]]:
    rows = frame.reset_index()
    return {
        (str(cluster), str(tenant)): dict(zip(_FIELDS, map(float, values), strict=True))
        for cluster, tenant, *values in rows[["cluster", "tenant", *_FIELDS]].itertuples(index=False)
    }


def _or_zero(value: float) -> float:
    return 0.0 if math.isnan(value) else value


def _nearest_rank(values: Sequence[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[max(math.ceil(q * len(ordered)), 1) - 1] if ordered else math.nan


def queues_section(queues: Sequence[QueueLine]) -> Section:
    """Show who waited how long."""
    if not queues:
        return Section("queues", "Waiting for cards", (Note("No queue and no request was observed."),))
    several = len({q.cluster for q in queues}) > 1
    table = Table(
        (
            *text("tenant"),
            *numbers("started", "median wait", "95 % within", "waiting now", "longest of them", "waiting, mean"),
            *numbers("cards held, mean"),
        ),
        tuple(
            (
                f"{q.cluster}: {q.tenant}" if several else q.tenant,
                number(q.started),
                seconds(q.wait_p50_seconds),
                seconds(q.wait_p95_seconds),
                number(q.waiting_now),
                seconds(q.longest_now_seconds),
                number(q.pending_mean),
                number(q.allocated_mean_cards),
            )
            for q in queues[:MOST_ROWS]
        ),
        "Waits are of the requests that started in this time",
        more(len(queues), "tenant"),
    )
    return Section("queues", "Waiting for cards", (table,))
