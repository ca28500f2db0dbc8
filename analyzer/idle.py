"""TT301 idle and held, TT302 zombie or abandoned, TT311 to TT314 wrong-sized: what is granted, by whom, and for what.

Absent is not idle: a stretch counts only as far as samples show it. Reserve is kept on purpose and is not waste.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from shlex import quote
from typing import Any, ClassVar

import pandas as pd

from analyzer.cards import cards
from analyzer.facts import records, requests
from analyzer.findings import Effect, Finding, Role, SubjectRef, Verdict, make_finding
from analyzer.holding_state import State, Stretch, client_gone, ended_pods, idle_stretch, instant, last_of, state_of
from analyzer.protocols import Conclusion, Context, Needs, Partition, Withheld
from analyzer.reserve import reserved_shares
from analyzer.settings import AnalyzeSettings
from analyzer.shares import Card
from analyzer.sizing import compute_use, judge_compute, judge_memory, memory_use
from analyzer.starvation import Taking, judge_limit, judge_starved, limit_use, starved_use, takings
from collector.schema import UNKNOWN

# How far the basis of a slice's activity can be trusted.
BASIS_CONFIDENCE = {"sm_active_ratio": 0.95, "engine_active_ratio": 0.9, "busy_ratio": 0.85}
_DIVIDED_CONFIDENCE = 0.7  # the card's measured activity, divided among its slices
_DIVIDED = {"TT311", "TT313", "TT314"}
_MEASURED_CONFIDENCE = 0.95  # of memory

# Rows of a slice may lag so many intervals behind its node's newest and still be the present state.
_CURRENT_INTERVALS = 3

_KEY = ["cluster", "node", "gpu", "slice", "tenant", "workload"]
_WHO = (*_KEY, "code", "kind", "profile", "model", "pod", "basis", "divided", "estimated", "withheld", "applicable")
_ACTIVITY = "sm_active_ratio|engine_active_ratio|busy_ratio"


class IdleDetector:
    """Finds slices that are held and not used, and quotas that are far above or below what the work needs."""

    codes = ("TT301", "TT302", "TT311", "TT312", "TT313", "TT314")
    needs: ClassVar[Needs] = {  # alternatives are joined by `|`
        "TT301": {"slice": (_ACTIVITY,)},
        "TT302": {"slice": (_ACTIVITY,)},
        "TT311": {"slice": (_ACTIVITY, "sm_quota_ratio")},
        "TT312": {"slice": ("memory_used_bytes", "memory_quota_bytes")},
        "TT313": {"slice": (_ACTIVITY, "sm_quota_ratio", "requests_per_second", "within_objective_per_second")},
        "TT314": {"slice": (_ACTIVITY, "queue_depth_count|steps_count|within_objective_per_second")},
    }

    def measure(self, partition: Partition) -> pd.DataFrame:
        """Return a row a code for each slice and holder that is there now."""
        settings = AnalyzeSettings.model_validate(partition.settings)
        found = cards(partition)
        newest = max((card.newest for card in found), default=-1)
        gone = ended_pods(requests(partition.facts))
        rows: list[dict[str, Any]] = []
        for card in found:
            now = [j for j in range(len(card.holdings)) if last_of(card.alive[:, j]) >= newest - _CURRENT_INTERVALS]
            taking = takings(card) if now else None
            for j in now:
                assert taking is not None  # noqa: S101 - there is a holding
                rows += _measure_holding(card, j, taking, settings, gone=gone, events=partition.events)
        return pd.DataFrame(rows, columns=list(_WHO) if not rows else None)

    def conclude(self, measures: pd.DataFrame, context: Context) -> Conclusion:
        """Judge each slice."""
        if measures.empty:
            return Conclusion([], [])
        reserves = reserved_shares(context)
        findings, withheld = [], []
        for row in records(measures.sort_values([*_KEY, "code"], kind="stable")):
            judged = _judge(row, reserves.get((row["cluster"], row["tenant"], row["workload"]), 0.0), context)
            if isinstance(judged, Finding):
                findings.append(judged)
            elif judged is not None:
                withheld.append(judged)
        return Conclusion(findings, withheld)


def _measure_holding(
    card: Card, j: int, taking: Taking, settings: AnalyzeSettings, *, gone: Mapping[str, datetime], events: pd.DataFrame
) -> list[dict[str, Any]]:
    holding = card.holdings[j]
    common: dict[str, Any] = {
        **card.holder(holding),
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
    memory = {**common, "code": "TT312", "limit": settings.over_provisioned_share, **memory_use(card, j, settings)}
    if not card.basis[j]:
        blind = {**common, "withheld": "no activity field (sm_active_ratio, engine_active_ratio or busy_ratio)"}
        return [memory] + [{**blind, "code": code} for code in IdleDetector.codes if code != "TT312"]
    stretch = idle_stretch(card, j, settings.idle_activity)
    compute = compute_use(card, j, settings)
    if not compute["withheld"] and stretch.from_start and stretch.until_ms > stretch.since_ms:
        compute |= {"withheld": "idle throughout: TT301 speaks of it", "applicable": False}
    state = state_of(card, j, stretch, settings, gone)
    idle = {
        **common,
        "limit": settings.idle_minutes,
        "below": settings.idle_activity,
        **_told(stretch, state, settings),
    }
    idle["pod_ended_ms"] = gone[holding.pod].timestamp() * 1000 if client_gone(card, j, stretch, gone) else math.nan
    return [
        {**idle, "code": "TT301"},
        {**idle, "code": "TT302"},
        {**common, "code": "TT311", "limit": settings.over_provisioned_share, **compute},
        memory,
        {**common, "code": "TT313", "memory_full": 0, **limit_use(card, taking, j, events, settings)},
        {**common, "code": "TT314", **starved_use(card, taking, j)},
    ]


def _told(stretch: Stretch, state: State, settings: AnalyzeSettings) -> dict[str, Any]:
    told = {
        "state": state.value,
        "since_ms": stretch.since_ms,
        "until_ms": stretch.until_ms,
        "from_start": stretch.from_start,
        "clientless": stretch.clientless,
        "coverage": stretch.coverage,
        "quota": stretch.quota,
        "memory_used_bytes": stretch.memory_bytes,
    }
    if stretch.minutes >= settings.idle_minutes and stretch.coverage < settings.coverage_floor:
        told["withheld"] = f"samples cover less than {settings.coverage_floor:.0%} of the idle stretch"
    elif stretch.from_start and 0 < stretch.minutes < settings.idle_minutes:
        told["withheld"] = f"idle since it was first seen, but seen for less than {settings.idle_minutes:g} min"
    return told


def _judge(row: dict[str, Any], reserve: float, context: Context) -> Finding | Withheld | None:
    code = row["code"]
    if row["withheld"]:
        return _withheld(row, row["withheld"], applicable=bool(row["applicable"]))
    if code in {"TT301", "TT302"}:
        return _judge_idle(row, reserve, context)
    about = {
        "subjects": _subjects(row),
        "window": context.window,
        "confidence": _confidence(row),
        "coverage": row["coverage"],
    }
    if code in {"TT311", "TT312"}:
        about["confidence"] *= min(1.0, 0.5 + row["history_days"] / 2)
    if code == "TT311":
        return judge_compute(row, reserve, context, about)
    if code == "TT312":
        return judge_memory(row, context, about)
    return judge_limit(row, context, about) if code == "TT313" else judge_starved(row, context, about)


def _judge_idle(row: dict[str, Any], reserve: float, context: Context) -> Finding | Withheld | None:
    hours = (row["until_ms"] - row["since_ms"]) / 3_600_000
    lost = row["state"] in {State.ZOMBIE, State.ABANDONED}
    if hours * 60 < row["limit"] or lost != (row["code"] == "TT302"):
        return None
    quota = row["quota"]
    kept = min(reserve, quota) if not math.isnan(quota) else reserve
    wasted = (quota - kept) * hours
    if wasted <= 0:
        return _withheld(row, "idle, and all of it is declared or forecast reserve", applicable=False)
    since, until = instant(row["since_ms"]), instant(row["until_ms"])
    share = "a share of unknown size" if math.isnan(quota) else f"{quota:.0%}"
    if row["estimated"]:
        share = f"about {share} (an equal part)"
    claim = (
        f"{row['tenant']}/{row['workload']} holds {share} of {row['gpu']} on {row['node']} and has used none of it "
        f"since {since:%Y-%m-%d %H:%M} UTC{' or earlier' if row['from_start'] else ''} ({hours:.1f} h), still so"
    )
    if kept > 0:
        claim += f"; {kept:.0%} of the card is its reserve and not counted as waste"
    verdict, why = _lost(row) if lost else (Verdict.HOLDS, "")
    effect = None if math.isnan(wasted) else Effect(wasted, "gpu_hours", wasted * row["coverage"], wasted)
    return make_finding(
        row["code"],
        verdict,
        _subjects(row),
        context.window,
        claim=claim + why,
        risk="work that comes less often than this stretch is long looks idle; so does work between two samples",
        confidence=_confidence(row),
        coverage=row["coverage"],
        effect=effect,
        evidence={
            "state": row["state"],
            "owner": row["tenant"] or UNKNOWN,
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
            "pod_ended": None if math.isnan(row["pod_ended_ms"]) else instant(row["pod_ended_ms"]),
            "clientless": bool(row["clientless"]),
            "check": how_to_check(row["kind"], row["gpu"], row["slice"]),
        },
        simulated=context.simulated,
    )


def _lost(row: dict[str, Any]) -> tuple[Verdict, str]:
    """Return how sure it is that nobody comes back for a slice, and why it is said."""
    memory = f"{row['memory_used_bytes'] / 2**30:.1f} GiB"
    if not math.isnan(row["pod_ended_ms"]):
        return Verdict.HOLDS, f": its pod ended at {instant(row['pod_ended_ms']):%Y-%m-%d %H:%M} and {memory} stay"
    if row["state"] == State.ZOMBIE:
        return Verdict.SUSPECTED, f": its server is up with {memory} and no request came"
    return Verdict.HOLDS, ": abandoned"


def how_to_check(kind: str, gpu: str, slice_id: str) -> str:
    """Return a command that shows whether anything runs there; names are quoted, since people paste it into a shell."""
    card = quote(gpu)
    if kind == "mig":
        instance = quote(f"{gpu}/{slice_id.removeprefix('gi')}")
        return f"dcgmi dmon -e 1001,1002 -i {instance} -c 30"
    if kind == "whole":
        return f"nvidia-smi -i {card} --query-gpu=utilization.gpu,memory.used --format=csv -l 2"
    return f"nvidia-smi pmon -i {card} -c 30"


def _subjects(row: dict[str, Any]) -> tuple[SubjectRef, ...]:
    return (
        SubjectRef(Role.SUBJECT, *(row[name] for name in ("cluster", "node", "gpu", "slice", "workload", "tenant"))),
    )


def _confidence(row: dict[str, Any]) -> float:
    if row["code"] == "TT312":
        return float(_MEASURED_CONFIDENCE * min(row["coverage"], 1.0))
    basis = BASIS_CONFIDENCE[row["basis"]]
    if row["code"] in _DIVIDED and row["divided"]:
        basis = min(basis, _DIVIDED_CONFIDENCE)
    return float(basis * min(row["coverage"], 1.0))


def _withheld(row: dict[str, Any], reason: str, *, applicable: bool = True) -> Withheld:
    return Withheld(row["code"], row["cluster"], row["node"], row["gpu"], row["slice"], reason, applicable)
