"""Demand that waits: how long requests waited for cards, and how many card-hours were not met, per pool and tenant."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd

from analyzer.facts import Request
from analyzer.findings import plain
from analyzer.known import known_sum
from collector.window import Window

_Key = tuple[str, str, str]  # cluster, pool, tenant


@dataclass(frozen=True, slots=True)
class Waiting:
    """One tenant in one pool over a window.

    admitted: how many requests were granted in the window, NaN: not told; the waits are theirs (nearest rank, in
        seconds; NaN of none).
    waiting_now, longest_now_seconds: at the end of the window.
    unmet_card_hours: cards asked for and not granted, times how long, within the window; NaN where what waits does not
        tell how many cards it asks for.
    basis: `requests` where each one is known, `rows` where only the queue's own counts are.
    """

    cluster: str
    pool: str
    tenant: str
    admitted: float
    wait_p50_seconds: float
    wait_p95_seconds: float
    waiting_now: float
    longest_now_seconds: float
    unmet_card_hours: float
    basis: str

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; NaN is null."""
        return {name: plain(getattr(self, name)) for name in self.__slots__}


@dataclass(slots=True)
class _Tally:
    waits: list[float] = field(default_factory=list)
    open: list[float] = field(default_factory=list)
    card_hours: float = 0.0


def measure_waiting(
    asked: Iterable[Request], queues: pd.DataFrame, window: Window, interval_seconds: float
) -> tuple[Waiting, ...]:
    """Return who waited for cards in a window, those with the most unmet card-hours first.

    A request waits from its creation until it is granted (or withdrawn). One that pods take over counts by its own
    wait, theirs is no second one. A unit of unknown share counts as a card.

    Args:
        asked: the requests that the facts of the window tell of.
        queues: raw rows of measurement `queue`; they stand in for a queue that tells no single request.
        window: what is looked at.
        interval_seconds: grid of the rows.
    """
    tallies: dict[_Key, _Tally] = {}
    for request in asked:
        _count(tallies.setdefault((request.cluster, request.pool, request.tenant), _Tally()), request, window)
    found = [_of_requests(key, tally) for key, tally in tallies.items()]
    found += _of_rows(queues, tallies.keys(), interval_seconds)
    seen = [w for w in found if w.admitted > 0 or w.waiting_now > 0 or not w.unmet_card_hours <= 0]
    return tuple(sorted(seen, key=lambda w: (-_known(w.unmet_card_hours), w.cluster, w.pool, w.tenant)))


def _count(tally: _Tally, request: Request, window: Window) -> None:
    began = request.started is not None and window.start <= request.started < window.end
    if request.started is not None and began and not request.queued_as:
        tally.waits.append((request.started - request.created).total_seconds())
    until = min(at for at in (request.started, request.ended, window.end) if at is not None)
    seconds = (until - max(request.created, window.start)).total_seconds()
    share = 1.0 if math.isnan(request.share) else request.share
    if seconds > 0:
        tally.card_hours += request.cards * share * request.pods * seconds / 3600
    if request.started is None and (request.ended is None or request.ended > window.end):
        _wait_on(tally, request.created, window.end)


def _wait_on(tally: _Tally, created: datetime, now: datetime) -> None:
    if created < now:
        tally.open.append((now - created).total_seconds())


def _of_requests(key: _Key, tally: _Tally) -> Waiting:
    return Waiting(
        *key,
        admitted=float(len(tally.waits)),
        wait_p50_seconds=nearest_rank(tally.waits, 0.5),
        wait_p95_seconds=nearest_rank(tally.waits, 0.95),
        waiting_now=float(len(tally.open)),
        longest_now_seconds=max(tally.open, default=math.nan),
        unmet_card_hours=tally.card_hours,
        basis="requests",
    )


def _of_rows(queues: pd.DataFrame, told: Iterable[_Key], interval_seconds: float) -> list[Waiting]:
    """Return queues that only count what waits: rows whose waits cannot be joined over time have none."""
    if queues.empty:
        return []
    known, found = set(told), []
    for key, rows in queues.sort_values("time", kind="stable").groupby(["cluster", "pool", "tenant"], sort=True):
        name = (str(key[0]), str(key[1]), str(key[2]))
        if name in known:
            continue
        pending, cards = rows["pending_count"], rows["pending_gpu_count"]
        untold = bool(((pending > 0) & cards.isna()).any())
        unmet = known_sum(cards.to_numpy(np.float64)) * interval_seconds / 3600
        last = rows.iloc[-1]
        found.append(
            Waiting(
                *name,
                admitted=known_sum(rows["admitted_count"].to_numpy(np.float64)),
                wait_p50_seconds=math.nan,
                wait_p95_seconds=math.nan,
                waiting_now=float(last["pending_count"]),
                longest_now_seconds=float(last["oldest_wait_seconds"]) if last["pending_count"] > 0 else math.nan,
                unmet_card_hours=math.nan if untold else unmet,
                basis="rows",
            )
        )
    return found


def _known(value: float) -> float:
    return math.inf if math.isnan(value) else value


def nearest_rank(values: Sequence[float], quantile: float) -> float:
    """Return the nearest-rank percentile, NaN of nothing."""
    ordered = sorted(values)
    return ordered[max(math.ceil(quantile * len(ordered)), 1) - 1] if ordered else math.nan
