"""Quota moves: from a named donor that does not need it to a named receiver that lacks it, on one card or in one pool.

On a card a donor is a slice whose share is too large (TT311), a receiver one whose share is too small (TT313). In a
pool a donor is a tenant whose queue's quota lay idle with nothing waiting, a receiver one that waited at its quota.
Amounts are lower, target and upper; with N days of history the upper is multiplied by 1 + 1/N, the lower by
(1 + 0.001/N)^-2. Nothing is carried out here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from analyzer.findings import CLAIMS, Finding, Role, SubjectRef, plain
from analyzer.sizing import Size

_LEAST = {"ratio": 0.01, "cards": 0.01}
_OFTEN_WAITS = 0.05  # share of the rows with something pending, up to which a queue can give


@dataclass(frozen=True, slots=True)
class QuotaMove:
    """One move. `unit` is `ratio` (of the card named by `place`) or `cards` (of the pool)."""

    cluster: str
    place: str
    donor_tenant: str
    donor_workload: str  # empty in a pool
    receiver_tenant: str
    receiver_workload: str
    unit: str
    lower: float
    target: float
    upper: float
    why: str

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        document: dict[str, Any] = plain(asdict(self))
        return document


@dataclass(frozen=True, slots=True)
class _Side:
    cluster: str
    place: str
    tenant: str
    workload: str
    amount: Size
    why: str


def quota_moves(findings: Sequence[Finding], queues: pd.DataFrame, interval_seconds: float) -> tuple[QuotaMove, ...]:
    """Return the moves that findings and queues ask for, the largest first.

    Args:
        findings: TT311 and TT313 are read.
        queues: raw rows of measurement `queue` over the window.
        interval_seconds: grid of the rows.
    """
    moves = list(_match(_givers(findings), _takers(findings), "ratio"))
    givers, takers = _of_queues(queues, interval_seconds)
    moves += _match(givers, takers, "cards")
    return tuple(sorted(moves, key=lambda m: (m.unit, -m.target, m.cluster, m.place, m.donor_tenant)))


def _givers(findings: Sequence[Finding]) -> list[_Side]:
    sides = []
    for f in findings:
        told = f.evidence
        if f.code == "TT311" and f.verdict in CLAIMS and told["kind"] in {"mps", "vgpu"}:
            quota = told["quota_ratio"]
            spare = Size(
                max(quota - told["upper_ratio"], 0.0), quota - told["target_ratio"], quota - told["lower_ratio"]
            )
            sides.append(_side(f.subject(Role.SUBJECT), spare, f"its peak use is {told['peak_ratio']:.0%}"))
    return sides


def _takers(findings: Sequence[Finding]) -> list[_Side]:
    sides = []
    for f in findings:
        told = f.evidence
        if f.code == "TT313" and f.verdict in CLAIMS and "target_ratio" in told and told["kind"] in {"mps", "vgpu"}:
            quota = told["quota_ratio"]
            lack = Size(told["lower_ratio"] - quota, told["target_ratio"] - quota, told["upper_ratio"] - quota)
            why = f"it misses its objective at its limit in {told['missed_at_limit']:.0%} of the missed intervals"
            sides.append(_side(f.subject(Role.SUBJECT), lack, why))
    return sides


def _side(subject: SubjectRef, amount: Size, why: str) -> _Side:
    return _Side(subject.cluster, subject.gpu, subject.tenant, subject.workload, amount, why)


def _of_queues(queues: pd.DataFrame, interval_seconds: float) -> tuple[list[_Side], list[_Side]]:
    givers: list[_Side] = []
    takers: list[_Side] = []
    if queues.empty:
        return givers, takers
    for (cluster, pool, tenant), rows in queues.groupby(["cluster", "pool", "tenant"], sort=True):
        known = rows.dropna(subset=["quota_gpu_count", "allocated_gpu_count", "pending_gpu_count"])
        if known.empty:
            continue
        days = max(len(known) * interval_seconds / 86400.0, 1e-6)
        quota = float(known["quota_gpu_count"].iloc[-1])
        held = known["allocated_gpu_count"].to_numpy(np.float64)
        pending = known["pending_gpu_count"].to_numpy(np.float64)
        name = (str(cluster), str(pool), str(tenant), "")
        if quota > 0 and (pending > 0).mean() <= _OFTEN_WAITS:
            idle = quota - np.quantile(held, [1.0, 0.9, 0.5], method="inverted_cdf")
            size = _widened(Size(*(max(float(v), 0.0) for v in idle)), days)
            upper = min(size.upper, quota)
            givers.append(_Side(*name, replace(size, upper=upper), f"{idle[1]:.2g} of its {quota:.2g} cards lay idle"))
        lacks = np.where(held >= quota - _LEAST["cards"], pending, 0.0)
        if (lacks > 0).mean() > _OFTEN_WAITS:
            waits = np.quantile(lacks[lacks > 0], [0.5, 0.9, 1.0], method="inverted_cdf")
            why = f"work waited at its quota in {(lacks > 0).mean():.0%} of the time"
            takers.append(_Side(*name, _widened(Size(*(float(v) for v in waits)), days), why))
    return givers, takers


def _widened(size: Size, days: float) -> Size:
    return Size(size.lower * (1 + 0.001 / days) ** -2, size.target, size.upper * (1 + 1 / days))


def _match(givers: Iterable[_Side], takers: Iterable[_Side], unit: str) -> Iterator[QuotaMove]:
    """Give each receiver from the donors of its place, the largest first on both sides; nothing is given twice."""
    spare = sorted(givers, key=lambda s: (-s.amount.target, s.tenant, s.workload))
    for taker in sorted(takers, key=lambda s: (-s.amount.target, s.tenant, s.workload)):
        lack = taker.amount
        for k, giver in enumerate(spare):
            same = (giver.tenant, giver.workload) == (taker.tenant, taker.workload)
            if same or (giver.cluster, giver.place) != (taker.cluster, taker.place):
                continue
            part = Size(
                min(giver.amount.lower, lack.lower),
                min(giver.amount.target, lack.target),
                min(giver.amount.upper, lack.upper),
            )
            if part.target < _LEAST[unit]:
                continue
            yield QuotaMove(
                cluster=giver.cluster,
                place=giver.place,
                donor_tenant=giver.tenant,
                donor_workload=giver.workload,
                receiver_tenant=taker.tenant,
                receiver_workload=taker.workload,
                unit=unit,
                lower=part.lower,
                target=part.target,
                upper=part.upper,
                why=f"{giver.why}; {taker.why}",
            )
            spare[k] = replace(giver, amount=_less(giver.amount, part))
            lack = _less(lack, part)


def _less(whole: Size, part: Size) -> Size:
    """Return what is left; bounds of what is left lie about its target."""
    target = whole.target - part.target
    return Size(min(whole.lower - part.lower, target), target, max(whole.upper - part.upper, target))
