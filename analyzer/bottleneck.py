"""TT401 to TT410: what limits a slice or a card while it works, with the runners-up; TT321: which cut would fit it.

Ten-minute windows in which the subject works are scored for every class of limit (1.0: its threshold is reached); the
best score names the window, holds for two windows, and gives way only to one that is 5 points better. Where a counter
is absent only the classes that need it are withheld.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from analyzer.bottleneck_scores import (
    FIELDS,
    HYSTERESIS,
    LIMITS,
    SERIES,
    Limit,
    Series,
    hold,
    limit_scores,
    overstated_by,
)
from analyzer.bottleneck_subjects import PIPES, Subject, subjects
from analyzer.facts import records
from analyzer.findings import Effect, Finding, Role, SubjectRef, Verdict, make_finding
from analyzer.granularity import CODE as GRANULARITY
from analyzer.granularity import judge_granularity, measure_use
from analyzer.known import known_mean
from analyzer.protocols import Conclusion, Context, Needs, Partition, Withheld
from analyzer.settings import AnalyzeSettings

_WINDOW_SECONDS = 600.0
_WINDOW_COVERAGE = 0.8
_WORKS = 0.05  # activity of its own share from which a subject works
_LIMITED = 0.5  # part of the working windows that a limit must name
_FEWEST_WINDOWS = 3

_KEY = ["cluster", "node", "gpu", "slice", "tenant", "workload"]
_COLUMNS = [
    *_KEY,
    "kind",
    "profile",
    "model",
    "counters",
    "pipes",
    "working",
    "means",
    "scores",
    "judged",
    "withheld",
    "use",
]
_PIPE = "|".join(PIPES)
_LINKS = "|".join(f"{link}_{way}_bytes_per_second" for link in ("pcie", "nvlink") for way in ("rx", "tx"))
# Figures that a claim names, where they are known.
_SAID = (
    ("sm", "SMs {:.0%} active"), ("pipe", "busiest pipe {:.0%}"), ("dram", "memory interface {:.0%}"),
    ("engine", "engine {:.0%}"),
)  # fmt: skip
_SAID_OF: dict[str, tuple[tuple[str, str], ...]] = {
    "memory_capacity": (("memory", "memory {:.0%} of its limit"), ("cache", "key-value cache {:.0%}")),
    "transfer": (("transfer", "link {:.0%} of its peak"),),
    "power": (("power_cap", "power cap in force {:.0%} of the time"), ("clock", "clock at {:.0%} of its maximum")),
    "heat": (("heat", "lowered for heat or a power brake {:.0%} of the time"), ("clock", "clock at {:.0%}")),
    "host": (("host", "host CPU {:.0%} busy"), ("iowait", "{:.0%} waiting for storage")),
    "quota": (("of_quota", "use {:.0%} of its quota"),),
}
_RISKS = {
    "memory_capacity": "a pod can be killed for its host memory, which says nothing of the card's",
    "transfer": "the link's peak is that of a data sheet where no exporter tells it; headers count as traffic",
    "power": "a power cap in force is normal under dense arithmetic; it costs only the clock that is lost",
    "heat": "what the counters call thermal may be a sensor of the memory or of the supply",
    "latency": "waiting for other cards (a collective) looks the same as waiting for data",
    "small_grid": "kernels may be small because requests are: batching then costs latency",
    "host": "a busy host need not be busy for this work; one core that is the limit does not show in the mean of all",
    "quota": "use is divided out of the card's under MPS; a neighbour that leaves no room looks like a quota",
}
_RISK = "busy units are not needed work: a spin-wait keeps them busy too; a pipe that no counter shows is missed"


class BottleneckDetector:
    """Names what limits a slice while it works, and the cut of a card that would fit it."""

    codes = (*(limit.code for limit in LIMITS.values()), GRANULARITY)
    needs: ClassVar[Needs] = {  # of the card, or of an instance that has counters of its own
        "TT401": {"gpu": ("sm_active_ratio", _PIPE)},
        "TT402": {"gpu": ("dram_active_ratio", _PIPE)},
        "TT403": {"slice": ("memory_used_bytes|kv_cache_used_ratio",)},
        "TT404": {"gpu": ("sm_active_ratio", _LINKS)},
        "TT405": {"gpu": ("throttle_power_ratio", "sm_clock_hertz")},
        "TT406": {"gpu": ("throttle_thermal_ratio|throttle_brake_ratio",)},
        "TT407": {"gpu": ("sm_active_ratio", "dram_active_ratio", _PIPE)},
        "TT408": {"gpu": ("sm_active_ratio", "engine_active_ratio")},
        "TT409": {"gpu": ("engine_active_ratio",), "node": ("cpu_busy_ratio|cpu_iowait_ratio",)},
        "TT410": {"slice": ("sm_quota_ratio", "busy_ratio|sm_active_ratio|engine_active_ratio")},
        GRANULARITY: {"slice": ("sm_active_ratio|engine_active_ratio|busy_ratio", "memory_used_bytes")},
    }  # fmt: skip

    def measure(self, partition: Partition) -> pd.DataFrame:
        """Return a row a subject: cards, and slices."""
        floor = AnalyzeSettings.model_validate(partition.settings).coverage_floor
        rows = [_measure(subject, floor) for subject in subjects(partition)]
        return pd.DataFrame(rows, columns=_COLUMNS)

    def conclude(self, measures: pd.DataFrame, context: Context) -> Conclusion:
        """Judge each subject."""
        if measures.empty:
            return Conclusion([], [])
        findings: list[Finding] = []
        withheld: list[Withheld] = []
        for row in records(measures.sort_values(_KEY, kind="stable")):
            place = (row["cluster"], row["node"], row["gpu"], row["slice"])
            for name, (reason, applicable) in row["withheld"].items():
                withheld.append(Withheld(LIMITS[name].code, *place, reason, applicable))
            findings += [
                _finding(row, name, context) for name, found in row["judged"].items() if found["share"] >= _LIMITED
            ]
            if row["slice"]:
                judged = judge_granularity(row, context)
                if isinstance(judged, Finding):
                    findings.append(judged)
                elif judged:
                    withheld.append(Withheld(GRANULARITY, *place, judged))
        return Conclusion(findings, withheld)


def _measure(subject: Subject, floor: float) -> dict[str, Any]:
    card, holding = subject.card, subject.holding
    row: dict[str, Any] = {
        **card.holder(holding),
        "kind": holding.kind if holding else "card",
        "profile": holding.profile if holding else "",
        "model": card.model,
        "counters": subject.counters,
        "pipes": subject.pipes,
        "working": 0,
        "means": {},
        "scores": {},
        "judged": {},
        "withheld": {},
        "use": measure_use(card, card.holdings.index(holding)) if holding else {},
    }
    step = max(round(_WINDOW_SECONDS / card.interval_seconds), 1)
    names = [name for name in SERIES if name in subject.series]
    table = _windows(np.stack([*(subject.series[name] for name in names), subject.work]), step)
    at = dict(zip(names, table, strict=False))
    lived = _windows(np.where(subject.alive, 1.0, np.nan)[None], step)[0] == 1.0
    row["withheld"] = _unjudged(subject, at, lived, floor)
    judged = [name for name in subject.limits if name not in row["withheld"]]
    working = lived & (table[-1] >= _WORKS)
    row["working"] = int(working.sum())
    if row["working"] < _FEWEST_WINDOWS:
        row["withheld"] |= dict.fromkeys(judged, ("hardly worked in the window", False))
        return row
    there = {name: values[working] for name, values in at.items()}
    scores = limit_scores(there)
    labels = hold(scores)
    row["means"] = {name: known_mean(values) for name, values in there.items()}
    row["scores"] = {name: known_mean(values) for name, values in scores.items()}
    for name in judged:
        told = ~np.isnan(scores[name])
        if told.sum() < _FEWEST_WINDOWS:
            row["withheld"][name] = ("hardly worked in the window", False)
            continue
        # A lowered clock limits beside whatever else limits.
        named = scores[name] >= 1 if name in {"power", "heat"} else labels == name
        row["judged"][name] = {
            "share": float(named[told].mean()),
            "lower": float((scores[name][told] >= 1 + HYSTERESIS).mean()),
            "upper": float((scores[name][told] >= 1 - HYSTERESIS).mean()),
            "windows": int(told.sum()),
            "coverage": _coverage(LIMITS[name], at, lived),
        }
    return row


def _unjudged(subject: Subject, at: dict[str, Series], lived: np.ndarray, floor: float) -> dict[str, tuple[str, bool]]:
    """Return limit -> why it is not judged, and whether it could be of such a subject: the evidence gate."""
    found: dict[str, tuple[str, bool]] = {}
    for name in subject.limits:
        limit = LIMITS[name]
        missing = [
            FIELDS[need]
            for need in limit.needs
            if all(np.isnan(subject.series.get(one, np.empty(0))).all() for one in need.split("|"))
        ]
        if name in subject.foreign:
            found[name] = ("no quota limits such a slice", False)
        elif name in subject.told_elsewhere:
            found[name] = (subject.told_elsewhere[name], True)
        elif missing:
            found[name] = (f"no {', '.join(missing)}", True)
        elif lived.sum() < _FEWEST_WINDOWS:
            found[name] = (f"lived for less than {_FEWEST_WINDOWS * _WINDOW_SECONDS / 60:g} min of the window", True)
        elif subject.counters != "alone" and _coverage(limit, at, lived) < floor:
            found[name] = (f"samples cover less than {floor:.0%} of its life in the window", True)
    return found


def _coverage(limit: Limit, at: dict[str, Series], lived: np.ndarray) -> float:
    """Return the part of its life in which all that a rule needs is there."""
    absent = np.full(len(lived), np.nan)
    there = np.logical_and.reduce(
        [np.logical_or.reduce([~np.isnan(at.get(one, absent)) for one in need.split("|")]) for need in limit.needs]
    )
    return float(there[lived].mean()) if lived.any() else 0.0


def _windows(table: Series, step: int) -> Series:
    """Return means over `step` samples, (K, T) to (K, T / step); NaN where fewer than 80 % of them are there."""
    whole = table.shape[1] // step * step
    parts = table[:, :whole].reshape(len(table), -1, step)
    known = ~np.isnan(parts)
    count = known.sum(axis=2)
    sums = np.where(known, parts, 0.0).sum(axis=2)
    return np.asarray(np.where(count >= _WINDOW_COVERAGE * step, sums / np.maximum(count, 1), np.nan))


def _finding(row: dict[str, Any], name: str, context: Context) -> Finding:
    limit, found, means = LIMITS[name], row["judged"][name], row["means"]
    overstated = overstated_by(means.get("busy", math.nan), means.get("sm", math.nan))
    rivals = sorted(
        ((other, score) for other, score in row["scores"].items() if other != name and not math.isnan(score)),
        key=lambda item: -item[1],
    )[:2]
    who = f"{row['tenant']}/{row['workload']} on {row['gpu']}" if row["slice"] else f"what shares {row['gpu']}"
    if name in {"power", "heat"}:
        who = row["gpu"]
    said = [
        text.format(means[field])
        for field, text in (*_SAID_OF.get(name, ()), *_SAID)
        if not math.isnan(means.get(field, math.nan))
    ]
    alone = " while alone on it" if row["counters"] == "alone" and name not in {"quota", "memory_capacity"} else ""
    claim = (
        f"{who} ({row['node']}) works{alone} against {limit.text} in {found['share']:.0%} of the time: "
        f"{', '.join(said)}"
    )
    if overstated is not None and overstated >= 1.5:
        claim += f"; the busy counter says {means['busy']:.0%} and overstates the SMs {overstated:.1f} times"
    if rivals:
        claim += f"; next would be {LIMITS[rivals[0][0]].text} ({rivals[0][1]:.0%} of its threshold)"
    low, high = sorted((found["lower"], found["upper"]))
    pipes = 0.8 if "pipe" in limit.needs and row["pipes"] < 2 else 1.0  # a pipe that no counter shows may be busier
    return make_finding(
        limit.code,
        Verdict.HOLDS,
        (SubjectRef(Role.SUBJECT, *(row[key] for key in ("cluster", "node", "gpu", "slice", "workload", "tenant"))),),
        context.window,
        claim=claim,
        risk=_RISKS.get(name, _RISK),
        confidence=0.9 * found["coverage"] * pipes if row["counters"] != "alone" else 0.7 * pipes,
        coverage=found["coverage"],
        effect=Effect(found["share"], "ratio", min(low, found["share"]), max(high, found["share"])),
        evidence={
            "limit": name,
            "working_windows": row["working"],
            "judged_windows": found["windows"],
            "score": row["scores"][name],
            "runners_up": [{"limit": other, "score": score} for other, score in rivals],
            "sm_active": means.get("sm"),
            "busiest_pipe": means.get("pipe"),
            "dram_active": means.get("dram"),
            "engine_active": means.get("engine"),
            "busy": means.get("busy"),
            "means": means,
            "busy_overstates_sm_times": overstated,
            "counters": row["counters"],
            "pipes_known": int(row["pipes"]),
            "kind": row["kind"],
        },
        simulated=context.simulated,
    )
