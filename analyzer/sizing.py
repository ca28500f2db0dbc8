"""TT311 and TT312: how much of a compute share and of a memory quota would do, always with lower, target and upper.

Quantiles, margin and confidence are those of the Vertical Pod Autoscaler's recommender: 50 %, 90 % and 95 % of use with
a margin of 15 %, widened where history is short: with N days the upper bound is multiplied by 1 + 1/N, the lower by
(1 + 0.001/N)^-2. Memory goes by the peak of each day, and never below the peak that was seen plus the margin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from analyzer.findings import Effect, Finding, Verdict, make_finding
from analyzer.holding_state import last_of, memory_used
from analyzer.mig import board_of
from analyzer.protocols import Context
from analyzer.settings import AnalyzeSettings
from analyzer.shares import Card, Vector

_FEWEST_SAMPLES = 60
_LOWER, _TARGET, _UPPER, _PEAK = 0.5, 0.9, 0.95, 0.99
MARGIN = 1.15
_LEAST = 0.01  # no share below this is recommended
_DAY_SECONDS = 86400.0


@dataclass(frozen=True, slots=True)
class Size:
    """What would do: lower, target, upper; widened where history is short."""

    lower: float
    target: float
    upper: float


def right_size(row: dict[str, Any], *, online: bool) -> Size:
    """Return the bounds of a compute share; an online service's target is its 99 % quantile."""
    days = max(row["history_days"], 1e-6)
    target = row["p99"] if online else row["p90"]
    lower = row["p50"] * MARGIN * (1 + 0.001 / days) ** -2
    upper = max(row["p95"], target) * MARGIN * (1 + 1 / days)
    return Size(lower, max(target * MARGIN, _LEAST), max(upper, _LEAST))


def right_memory(daily_peaks: Vector, history_days: float) -> Size:
    """Return the bounds of a memory quota, bytes.

    Args:
        daily_peaks: the highest use of each day.
        history_days: how long was looked at.
    """
    days = max(history_days, 1e-6)
    peak = float(daily_peaks.max()) * MARGIN
    lower = float(np.quantile(daily_peaks, _LOWER, method="inverted_cdf")) * MARGIN * (1 + 0.001 / days) ** -2
    return Size(min(lower, peak), peak, peak * (1 + 1 / days))


def smallest_profile(model: str, present: str, target: float, memory_bytes: float = 0.0) -> str | None:
    """Return the smallest MIG profile with at least `target` of the card's SMs and that much memory.

    None: there is none below the present one.
    """
    board = board_of(model, [present])
    if board is None or present not in board.profiles:
        return None
    size = board.profiles[present].size
    enough = [
        (board.sm_share(p.name)[0], p.size, p.name)
        for p in board.profiles.values()
        if p.plain
        and board.sm_share(p.name)[0] >= target
        and p.compute < board.profiles[present].compute
        and _gigabytes(p.name) * 1e9 >= memory_bytes
    ]
    return min(enough)[2] if enough and min(enough)[1] <= size else None


def _gigabytes(profile: str) -> float:
    """Memory that a profile's name promises (`1g.10gb`); none told: all of it."""
    digits = profile.partition(".")[2].partition("gb")[0]
    return float(digits) if digits.isdecimal() else math.inf


def compute_use(card: Card, j: int, settings: AnalyzeSettings) -> dict[str, Any]:
    """Measure what a holding uses of its compute share, for TT311."""
    holding = card.holdings[j]
    alive = card.alive[:, j]
    busy = card.of_slices("busy_ratio")[:, j]
    # A vGPU layer throttles by the time share of the slice's processes: that is what its quota must hold.
    spent = busy if holding.kind == "vgpu" and not card.measured[j] else card.used[:, j]
    samples = spent[card.sampled[:, j] & ~np.isnan(spent)]
    quota = float(card.quota[last_of(alive), j])
    coverage = len(samples) / int(alive.sum())
    use: dict[str, Any] = {"quota": quota, "coverage": coverage, "samples": len(samples), "withheld": ""}
    if holding.kind == "timeslice":
        return {**use, "withheld": "time slicing grants no share", "applicable": False}
    if math.isnan(quota) or quota <= 0 or card.quota_estimated[j]:
        return {**use, "withheld": "its quota is not known (sm_quota_ratio)"}
    if reason := _too_little(len(samples), coverage, settings):
        return {**use, "withheld": reason}
    ranks = np.quantile(samples, [_LOWER, _TARGET, _UPPER, _PEAK], method="inverted_cdf")
    use |= dict(zip(("p50", "p90", "p95", "p99"), (float(r) for r in ranks), strict=True))
    use["busy_p99"] = float(np.quantile(busy[~np.isnan(busy)], _PEAK)) if (~np.isnan(busy)).any() else math.nan
    memory = memory_used(card, j)
    use["memory_peak_bytes"] = float(np.nanmax(memory)) if (~np.isnan(memory)).any() else 0.0
    use["history_days"] = len(samples) * card.interval_seconds / _DAY_SECONDS
    return use


def memory_use(card: Card, j: int, settings: AnalyzeSettings) -> dict[str, Any]:
    """Measure what a holding uses of its memory quota, for TT312."""
    alive = card.alive[:, j]
    used = memory_used(card, j)
    known = np.flatnonzero(~np.isnan(used))
    told = card.of_slices("memory_quota_bytes")[:, j]
    told = told[~np.isnan(told)]
    coverage = len(known) / int(alive.sum())
    use: dict[str, Any] = {"coverage": coverage, "samples": len(known), "withheld": ""}
    if card.holdings[j].kind == "whole":
        return {**use, "withheld": "a whole card has all of its memory", "applicable": False}
    if card.holdings[j].kind == "mig":
        return {**use, "withheld": "an instance is sized as one, by TT311", "applicable": False}
    if not len(told) or not told[-1] > 0:
        return {**use, "withheld": "its memory quota is not known (memory_quota_bytes)"}
    if not len(known):
        return {**use, "withheld": "its memory is not known (memory_used_bytes)"}
    if reason := _too_little(len(known), coverage, settings):
        return {**use, "withheld": reason}
    days = (known * card.interval_seconds // _DAY_SECONDS).astype(np.intp)
    history = len(known) * card.interval_seconds / _DAY_SECONDS
    size = right_memory(np.array([used[known][days == day].max() for day in np.unique(days)]), history)
    cache = card.of_slices("kv_cache_used_ratio")[:, j]
    return {
        **use,
        "quota_bytes": float(told[-1]),
        "peak_bytes": float(used[known].max()),
        "lower": size.lower,
        "target": size.target,
        "upper": size.upper,
        "kv_cache_peak": float(np.nanmax(cache)) if (~np.isnan(cache)).any() else math.nan,
        "history_days": history,
    }


def _too_little(samples: int, coverage: float, settings: AnalyzeSettings) -> str:
    if samples < _FEWEST_SAMPLES:
        return f"fewer than {_FEWEST_SAMPLES} samples"
    if coverage < settings.coverage_floor:
        return f"samples cover less than {settings.coverage_floor:.0%} of its life in the window"
    return ""


def judge_compute(row: dict[str, Any], reserve: float, context: Context, about: dict[str, Any]) -> Finding | None:
    """Return TT311 where the peak use is far below the share.

    Args:
        row: of `compute_use`, with whom it is about.
        reserve: share of the card that the workload keeps on purpose.
        context: declarations and window.
        about: subjects, coverage and confidence of the finding.
    """
    quota, peak = row["quota"], row["p99"]
    if peak >= row["limit"] * quota:
        return None
    promise = context.declarations.get((row["cluster"], row["tenant"], row["workload"]))
    offline = promise is not None and promise.declared and promise.declaration.service_class == "offline"
    size = right_size(row, online=not offline)
    target, upper = max(size.target, reserve), max(size.upper, reserve)
    profile = None
    if row["kind"] == "mig":
        profile = smallest_profile(row["model"], row["profile"], target, row["memory_peak_bytes"] * MARGIN)
        if profile is None:
            return None
    if target >= quota:
        return None
    to = f"profile {profile}" if profile else f"{target:.0%}"
    return make_finding(
        "TT311",
        Verdict.HOLDS if upper <= quota else Verdict.SUSPECTED,
        **about,
        claim=(
            f"{row['tenant']}/{row['workload']} is granted {quota:.0%} of {row['gpu']} on {row['node']} and its "
            f"peak (99 %) use is {peak:.1%}: {to} would do (between {size.lower:.0%} and {upper:.0%})"
        ),
        risk="a rhythm longer than the window, such as a month's end, is not in it; a smaller share may queue more",
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


def judge_memory(row: dict[str, Any], context: Context, about: dict[str, Any]) -> Finding | None:
    """Return TT312 where the peak of memory is far below the memory quota; arguments as of `judge_compute`."""
    quota, peak = row["quota_bytes"], row["peak_bytes"]
    if peak >= row["limit"] * quota:
        return None
    gib = {name: row[name] / 2**30 for name in ("lower", "target", "upper")}
    risk = "a bigger input, model or batch than any in the window needs more, and dies of it"
    if not math.isnan(row["kv_cache_peak"]):
        risk += "; a server that takes its cache up front shows no more than it was given"
    return make_finding(
        "TT312",
        Verdict.HOLDS if row["upper"] <= quota else Verdict.SUSPECTED,
        **about,
        claim=(
            f"{row['tenant']}/{row['workload']} is granted {quota / 2**30:.1f} GiB of {row['gpu']} on {row['node']} "
            f"and never used more than {peak / 2**30:.1f} GiB: {gib['target']:.1f} GiB would do "
            f"(between {gib['lower']:.1f} and {gib['upper']:.1f} GiB)"
        ),
        risk=risk,
        effect=Effect(
            quota - row["target"], "bytes", max(quota - row["upper"], 0.0), quota - min(row["lower"], row["target"])
        ),
        evidence={
            "memory_quota_bytes": quota,
            "peak_bytes": peak,
            "peak_of_quota": peak / quota,
            "lower_bytes": row["lower"],
            "target_bytes": row["target"],
            "upper_bytes": row["upper"],
            "kv_cache_peak_ratio": row["kv_cache_peak"],
            "history_days": row["history_days"],
            "samples": row["samples"],
            "provenance": "measured",
            "kind": row["kind"],
        },
        simulated=context.simulated,
    )
