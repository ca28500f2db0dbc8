"""Waiting for cards, per pool and tenant."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from dashboard.report.capacity import QueueLine
from dashboard.report.gathered import Gathered
from dashboard.report.view import MOST_ROWS, Note, Section, Table, more, numbers, text
from dashboard.views.text import number, seconds

_FIELDS = ["quota_gpu_count", "allocated_gpu_count", "pending_count"]
_KEY = ["cluster", "pool", "tenant"]
_Key = tuple[str, str, str]


def build_queues(gathered: Gathered) -> tuple[QueueLine, ...]:
    """Join what queues report with what their requests waited; most unmet card-hours first."""
    waiting = {(w.cluster, w.pool, w.tenant): w for w in gathered.analysis.waiting}
    rows = gathered.queues.sort_values("time", kind="stable")
    means, latest = _by_key(rows.groupby(_KEY)[_FIELDS].mean()), _by_key(rows.groupby(_KEY)[_FIELDS].last())
    none = dict.fromkeys(_FIELDS, math.nan)
    lines = []
    for key in sorted({*waiting, *means}):
        found, held = waiting.get(key), means.get(key, none)
        lines.append(
            QueueLine(
                *key,
                started=found.admitted if found else 0,
                wait_p50_seconds=found.wait_p50_seconds if found else math.nan,
                wait_p95_seconds=found.wait_p95_seconds if found else math.nan,
                waiting_now=found.waiting_now if found else latest.get(key, none)["pending_count"],
                longest_now_seconds=found.longest_now_seconds if found else math.nan,
                unmet_card_hours=found.unmet_card_hours if found else 0.0,
                pending_mean=held["pending_count"],
                quota_cards=latest.get(key, none)["quota_gpu_count"],
                allocated_mean_cards=held["allocated_gpu_count"],
            )
        )
    return tuple(sorted(lines, key=lambda q: (-_or_zero(q.unmet_card_hours), q.cluster, q.pool, q.tenant)))


def _by_key(frame: pd.DataFrame) -> dict[_Key, dict[str, float]]:
    rows = frame.reset_index()
    return {
        (str(cluster), str(pool), str(tenant)): dict(zip(_FIELDS, map(float, values), strict=True))
        for cluster, pool, tenant, *values in rows[[*_KEY, *_FIELDS]].itertuples(index=False)
    }


def _or_zero(value: float) -> float:
    return 0.0 if math.isnan(value) else value


def queues_section(queues: Sequence[QueueLine]) -> Section:
    """Show who waited how long."""
    if not queues:
        return Section("queues", "Waiting for cards", (Note("No queue and no request was observed."),))
    clusters, pools = len({q.cluster for q in queues}) > 1, len({q.pool for q in queues}) > 1
    table = Table(
        (
            *text("tenant"),
            *numbers("started", "median wait", "95 % within", "waiting now", "longest of them", "waiting, mean"),
            *numbers("unmet card-hours", "cards held, mean"),
        ),
        tuple(
            (
                _name(q, clusters=clusters, pools=pools),
                number(q.started),
                seconds(q.wait_p50_seconds),
                seconds(q.wait_p95_seconds),
                number(q.waiting_now),
                seconds(q.longest_now_seconds),
                number(q.pending_mean),
                number(q.unmet_card_hours),
                number(q.allocated_mean_cards),
            )
            for q in queues[:MOST_ROWS]
        ),
        "Waits are of the requests that started in this time; unmet: cards asked for and not granted, times how long",
        more(len(queues), "tenant"),
    )
    return Section("queues", "Waiting for cards", (table,))


def _name(line: QueueLine, *, clusters: bool, pools: bool) -> str:
    """Return a tenant's name, with its pool and cluster where there are several."""
    who = f"{line.tenant} in {line.pool}" if pools else line.tenant
    return f"{line.cluster}: {who}" if clusters else who
