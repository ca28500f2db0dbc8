"""TT301 idle and held, TT311 compute over-provisioned: what is granted and not used, and by whom.

Absent is not idle: a stretch counts only as far as samples show it. Reserve is kept on purpose and is not waste.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from analyzer.facts import records
from analyzer.findings import Effect, Finding, Role, SubjectRef, Verdict, make_finding
from analyzer.ledger import reserved_shares
from analyzer.mig import board_of
from analyzer.protocols import Conclusion, Context, Needs, Partition, Withheld
from analyzer.settings import AnalyzeSettings
from analyzer.shares import Card, Mask, cards

# How far the basis of a slice's activity can be trusted.
BASIS_CONFIDENCE = {"sm_active_ratio": 0.95, "engine_active_ratio": 0.9, "busy_ratio": 0.85}
_DIVIDED_CONFIDENCE = 0.7  # the card's measured activity, divided among its slices

# Rows of a slice may lag so many intervals behind its node's newest and still be the present state.
_CURRENT_INTERVALS = 3
_FEWEST_SAMPLES = 60

# The Vertical Pod Autoscaler's quantiles, margin and confidence (its recommender's defaults).
_LOWER, _TARGET, _UPPER, _ONLINE_TARGET, _PEAK = 0.5, 0.9, 0.95, 0.99, 0.99
_MARGIN = 1.15
_LEAST = 0.01  # no share below this is recommended

_KEY = ["cluster", "node", "gpu", "slice", "tenant", "workload"]
_COLUMNS = [
    *_KEY,
    "code",
    "withheld",
    "applicable",
    "limit",
    "below",
    "kind",
    "profile",
    "model",
    "pod",
    "basis",
    "divided",
    "estimated",
    "quota",
    "coverage",
    "since_ms",
    "until_ms",
    "from_start",
    "memory_used_bytes",
    "samples",
    "history_days",
    "p50",
    "p90",
    "p95",
    "p99",
    "busy_p99",
]


class IdleDetector:
    """Finds slices that are held and not used, and quotas far above their peak use."""

    codes = ("TT301", "TT311")
    needs: ClassVar[Needs] = {  # alternatives are joined by `|`
        "TT301": {"slice": ("sm_active_ratio|engine_active_ratio|busy_ratio",)},
        "TT311": {"slice": ("sm_active_ratio|engine_active_ratio|busy_ratio", "sm_quota_ratio")},
    }

    def measure(self, partition: Partition) -> pd.DataFrame:
        """Return two rows a slice and holder that is there now: one for TT301, one for TT311."""
        settings = AnalyzeSettings.model_validate(partition.settings)
        found = cards(partition)
        newest = max((card.newest for card in found), default=-1)
        rows: list[dict[str, Any]] = []
        for card in found:
            for j in range(len(card.holdings)):
                if _last(card.alive[:, j]) >= newest - _CURRENT_INTERVALS:
                    rows += _measure_holding(card, j, settings)
        return pd.DataFrame(rows, columns=_COLUMNS)

    def conclude(self, measures: pd.DataFrame, context: Context) -> Conclusion:
        """Judge each slice."""
        if measures.empty:
            return Conclusion([], [])
        reserves = reserved_shares(context)
        findings, withheld = [], []
        for row in records(measures.sort_values([*_KEY, "code"], kind="stable")):
            reserve = reserves.get((row["tenant"], row["workload"]), 0.0)
            judged: Finding | Withheld | None
            if row["withheld"]:
                judged = _withheld(row, row["withheld"], applicable=row["applicable"])
            elif row["code"] == "TT301":
                judged = _judge_idle(row, reserve, context)
            else:
                judged = _judge_size(row, reserve, context)
            if isinstance(judged, Finding):
                findings.append(judged)
            elif judged is not None:
                withheld.append(judged)
        return Conclusion(findings, withheld)


def _measure_holding(card: Card, j: int, settings: AnalyzeSettings) -> list[dict[str, Any]]:
    holding = card.holdings[j]
    common: dict[str, Any] = {
        "cluster": card.cluster,
        "node": card.node,
        "gpu": card.gpu,
        "slice": holding.slice,
        "tenant": holding.tenant,
        "workload": holding.workload,
        "kind": holding.kind,
        "profile": holding.profile,
        "model": card.model,
        "pod": holding.pod,
        "basis": card.basis[j],
        "divided": not card.measured[j],
        "estimated": bool(card.quota_estimated[j]),
        "withheld": "",
        "applicable": True,
    }
    if not holding.held:
        free = {**common, "withheld": "nobody holds it", "applicable": False}
        return [{**free, "code": code} for code in IdleDetector.codes]
    if not card.basis[j]:
        blind = {**common, "withheld": "no activity field (sm_active_ratio, engine_active_ratio or busy_ratio)"}
        return [{**blind, "code": code} for code in IdleDetector.codes]
    stretch = _idle_stretch(card, j, settings.idle_activity)
    always = stretch["from_start"] and stretch["until_ms"] > stretch["since_ms"]
    over = _use(card, j, settings)
    if not over["withheld"] and always:
        over = {**over, "withheld": "idle throughout: TT301 speaks of it", "applicable": False}
    return [
        {
            **common,
            "code": "TT301",
            "limit": settings.idle_minutes,
            "below": settings.idle_activity,
            **stretch,
            **_doubt(stretch, settings),
        },
        {**common, "code": "TT311", "limit": settings.over_provisioned_share, **over},
    ]


def _doubt(stretch: dict[str, Any], settings: AnalyzeSettings) -> dict[str, Any]:
    minutes = (stretch["until_ms"] - stretch["since_ms"]) / 60_000
    if minutes >= settings.idle_minutes and stretch["coverage"] < settings.coverage_floor:
        return {"withheld": f"samples cover less than {settings.coverage_floor:.0%} of the idle stretch"}
    if stretch["from_start"] and 0 < minutes < settings.idle_minutes:
        return {"withheld": f"idle since it was first seen, but seen for less than {settings.idle_minutes:g} min"}
    return {}


def _judge_idle(row: dict[str, Any], reserve: float, context: Context) -> Finding | Withheld | None:
    hours = (row["until_ms"] - row["since_ms"]) / 3_600_000
    if hours * 60 < row["limit"]:
        return None
    quota = row["quota"]
    kept = min(reserve, quota) if not math.isnan(quota) else reserve
    wasted = (quota - kept) * hours
    if wasted <= 0:
        return _withheld(row, "idle, and all of it is declared or forecast reserve", applicable=False)
    since, until = _instant(row["since_ms"]), _instant(row["until_ms"])
    share = "a share of unknown size" if math.isnan(quota) else f"{quota:.0%}"
    if row["estimated"]:
        share = f"about {share} (an equal part)"
    claim = (
        f"{row['tenant']}/{row['workload']} holds {share} of {row['gpu']} on {row['node']} and has used none of it "
        f"since {since:%Y-%m-%d %H:%M} UTC{' or earlier' if row['from_start'] else ''} ({hours:.1f} h), still so"
    )
    if kept > 0:
        claim += f"; {kept:.0%} of the card is its reserve and not counted as waste"
    effect = None if math.isnan(wasted) else Effect(wasted, "gpu_hours", wasted * row["coverage"], wasted)
    return make_finding(
        "TT301",
        Verdict.HOLDS,
        _subjects(row),
        context.window,
        claim=claim,
        risk="work that comes less often than this stretch is long looks idle; so does work between two samples",
        confidence=_confidence(row),
        coverage=row["coverage"],
        effect=effect,
        evidence={
            "since": since,
            "until": until,
            "still": True,
            "idle_hours": hours,
            "activity_below": row["below"],
            "activity_field": row["basis"],
            "quota_ratio": quota,
            "quota_provenance": "estimated" if row["estimated"] else "measured",
            "reserve_ratio": kept,
            "memory_used_bytes": row["memory_used_bytes"],
            "kind": row["kind"],
            "pod": row["pod"],
            "check": how_to_check(row["kind"], row["gpu"], row["slice"]),
        },
        simulated=context.simulated,
    )


def _judge_size(row: dict[str, Any], reserve: float, context: Context) -> Finding | None:
    quota, peak = row["quota"], row["p99"]
    if peak >= row["limit"] * quota:
        return None
    promise = context.declarations.get((row["tenant"], row["workload"]))
    offline = promise is not None and promise.declared and promise.declaration.service_class == "offline"
    size = right_size(row, online=not offline)
    target, upper = max(size.target, reserve), max(size.upper, reserve)
    profile = None
    if row["kind"] == "mig":
        profile = smallest_profile(row["model"], row["profile"], target)
        if profile is None:
            return None
    if target >= quota:
        return None
    verdict = Verdict.HOLDS if upper <= quota else Verdict.SUSPECTED
    to = f"profile {profile}" if profile else f"{target:.0%}"
    return make_finding(
        "TT311",
        verdict,
        _subjects(row),
        context.window,
        claim=(
            f"{row['tenant']}/{row['workload']} is granted {quota:.0%} of {row['gpu']} on {row['node']} and its "
            f"peak (99 %) use is {peak:.1%}: {to} would do (between {size.lower:.0%} and {upper:.0%})"
        ),
        risk="a rhythm longer than the window, such as a month's end, is not in it; a smaller share may queue more",
        confidence=_confidence(row) * min(1.0, 0.5 + row["history_days"] / 2),
        coverage=row["coverage"],
        effect=Effect(quota - target, "ratio", max(quota - upper, 0.0), quota - min(size.lower, target)),
        evidence={
            "quota_ratio": quota,
            "peak_ratio": peak,
            "peak_of_quota": peak / quota,
            "lower_ratio": size.lower,
            "target_ratio": target,
            "upper_ratio": upper,
            "target_profile": profile,
            "reserve_ratio": reserve,
            "history_days": row["history_days"],
            "samples": row["samples"],
            "activity_field": row["basis"],
            "provenance": "estimated" if row["divided"] else "measured",
            "busy_p99_ratio": row["busy_p99"],
            "kind": row["kind"],
            "online": not offline,
        },
        simulated=context.simulated,
    )


@dataclass(frozen=True, slots=True)
class Size:
    """Shares of the card that would do: lower, target, upper; widened where history is short."""

    lower: float
    target: float
    upper: float


def right_size(row: dict[str, Any], *, online: bool) -> Size:
    """Return the Vertical Pod Autoscaler's bounds for a compute share.

    Quantiles of use (50 %, 90 %, 95 %; an online service's target is its 99 %) with a margin of 15 %; with N days of
    history the lower bound is multiplied by (1 + 0.001 / N)^-2 and the upper by (1 + 1 / N).
    """
    days = max(row["history_days"], 1e-6)
    target = row["p99"] if online else row["p90"]
    lower = row["p50"] * _MARGIN * (1 + 0.001 / days) ** -2
    upper = max(row["p95"], target) * _MARGIN * (1 + 1 / days)
    return Size(lower, max(target * _MARGIN, _LEAST), max(upper, _LEAST))


def smallest_profile(model: str, present: str, target: float) -> str | None:
    """Return the smallest MIG profile with at least `target` of the card's SMs; None: none below the present one."""
    board = board_of(model, [present])
    if board is None or present not in board.profiles:
        return None
    size = board.profiles[present].size
    enough = [
        (board.sm_share(p.name)[0], p.size, p.name)
        for p in board.profiles.values()
        if p.plain and board.sm_share(p.name)[0] >= target and p.compute < board.profiles[present].compute
    ]
    return min(enough)[2] if enough and min(enough)[1] <= size else None


def how_to_check(kind: str, gpu: str, slice_id: str) -> str:
    """Return a command that shows whether anything runs there."""
    if kind == "mig":
        return f"dcgmi dmon -e 1001,1002 -i {gpu}/{slice_id.removeprefix('gi')} -c 30"
    if kind == "whole":
        return f"nvidia-smi -i {gpu} --query-gpu=utilization.gpu,memory.used --format=csv -l 2"
    return f"nvidia-smi pmon -i {gpu} -c 30"


def _idle_stretch(card: Card, j: int, below: float) -> dict[str, Any]:
    """Return the stretch without activity that reaches to the newest sample (empty: since = until)."""
    sampled = card.sampled[:, j]
    serving = np.nan_to_num(card.of_slices("requests_per_second")[:, j]) > 0
    active = np.logical_or(np.logical_and(sampled, ~(_own_activity(card, j) < below)), serving)
    alive = card.alive[:, j]
    last = _last(alive)
    first = int(np.argmax(alive))
    since = max(_last(active) + 1, first)
    step = int(card.interval_seconds * 1000)
    length = last + 1 - since
    quota = card.quota[since : last + 1, j] if length else card.quota[last : last + 1, j]
    since_ms = card.start_ms + since * step
    told = card.of_slices("idle_seconds")[last, j]
    if not active.any() and told * 1000 > card.start_ms + (last + 1) * step - since_ms:
        since_ms = int(card.start_ms + (last + 1) * step - told * 1000)
    memory = card.of_slices("memory_used_bytes")[:, j]
    if card.holdings[j].kind == "whole":  # the card's own memory is not written to its slice
        memory = np.where(np.isnan(memory) & card.alive[:, j], card.of_card("memory_used_bytes"), memory)
    held_memory = memory[~np.isnan(memory)]
    return {
        "since_ms": since_ms,
        "until_ms": card.start_ms + (last + 1) * step,
        "from_start": not active.any(),
        "coverage": float(sampled[since : last + 1].mean()) if length else 1.0,
        "quota": float(np.median(quota)),
        "memory_used_bytes": float(held_memory[-1]) if len(held_memory) else math.nan,
    }


def _own_activity(card: Card, j: int) -> np.ndarray:
    """Activity of a slice by its own measure: of its own share where its use is measured, else its busy time."""
    if not card.measured[j]:
        return card.of_slices("busy_ratio")[:, j]
    quota = card.quota[:, j]
    return np.asarray(card.used[:, j] / np.where((quota > 0) & (quota <= 1), quota, 1.0))


def _use(card: Card, j: int, settings: AnalyzeSettings) -> dict[str, Any]:
    holding = card.holdings[j]
    alive = card.alive[:, j]
    busy = card.of_slices("busy_ratio")[:, j]
    # A vGPU layer throttles by the time share of the slice's processes: that is what its quota must hold.
    spent = busy if holding.kind == "vgpu" and not card.measured[j] else card.used[:, j]
    samples = spent[card.sampled[:, j] & ~np.isnan(spent)]
    quota = float(card.quota[_last(alive), j])
    coverage = len(samples) / int(alive.sum())
    use: dict[str, Any] = {"quota": quota, "coverage": coverage, "samples": len(samples), "withheld": ""}
    if holding.kind == "timeslice":
        return {**use, "withheld": "time slicing grants no share", "applicable": False}
    if math.isnan(quota) or quota <= 0 or card.quota_estimated[j]:
        return {**use, "withheld": "its quota is not known (sm_quota_ratio)"}
    if len(samples) < _FEWEST_SAMPLES:
        return {**use, "withheld": f"fewer than {_FEWEST_SAMPLES} samples"}
    if coverage < settings.coverage_floor:
        return {**use, "withheld": f"samples cover less than {settings.coverage_floor:.0%} of its life in the window"}
    ranks = np.quantile(samples, [_LOWER, _TARGET, _UPPER, _PEAK], method="inverted_cdf")
    use |= dict(zip(("p50", "p90", "p95", "p99"), (float(r) for r in ranks), strict=True))
    use["busy_p99"] = float(np.quantile(busy[~np.isnan(busy)], _PEAK)) if (~np.isnan(busy)).any() else math.nan
    use["history_days"] = len(samples) * card.interval_seconds / 86400
    return use


def _last(mask: Mask) -> int:
    where = np.flatnonzero(mask)
    return int(where[-1]) if len(where) else -1


def _instant(ms: float) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


def _subjects(row: dict[str, Any]) -> tuple[SubjectRef, ...]:
    return (
        SubjectRef(Role.SUBJECT, *(row[name] for name in ("cluster", "node", "gpu", "slice", "workload", "tenant"))),
    )


def _confidence(row: dict[str, Any]) -> float:
    basis = BASIS_CONFIDENCE[row["basis"]]
    if row["code"] == "TT311" and row["divided"]:
        basis = min(basis, _DIVIDED_CONFIDENCE)
    return float(basis * min(row["coverage"], 1.0))


def _withheld(row: dict[str, Any], reason: str, *, applicable: bool = True) -> Withheld:
    return Withheld(row["code"], row["cluster"], row["node"], row["gpu"], row["slice"], reason, applicable)
