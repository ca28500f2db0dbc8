"""TT313 and TT314: who has too small a share, and who does not get the share it has; borrowed and starved seconds.

- Got: the share of the SMs that a slice used; under time slicing, which hands out time, its processes' share of the
  time. A limit is compared with what it limits: that of a vGPU layer with the share of the time as well.
- Borrowed: what was got beyond the share. Starved: what the share says and a slice did not get, while it asked for more
  and the card was full.
- It asks for more while requests wait in its queue, while it misses its objective, or, as training does, while it
  always has a kernel on the card.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analyzer.findings import Effect, Finding, Verdict, make_finding
from analyzer.holding_state import memory_used
from analyzer.known import known_sum
from analyzer.protocols import Context
from analyzer.settings import AnalyzeSettings
from analyzer.shares import Card, Mask, Matrix, Vector
from analyzer.sizing import MARGIN

_MISSED = 0.99  # share of an interval's requests within the objective, below which the interval is missed
_ALWAYS_BUSY = 0.9
_FULL = 0.9  # of a card in use: nothing is left to take
_SHORT = 0.8  # of its share, below which a slice that asks for more is starved
_AT_LIMIT = 0.9  # of its share, from which a slice works at it
_OFTEN, _MOSTLY = 0.5, 0.75  # of the missed intervals at the limit: suspected, holds
_FEWEST = 30  # intervals of any claim
_RARE = 0.01  # share of the judged intervals that may be missed without a claim
_STARVED_OFTEN = 0.05  # of the intervals in which it asked
_KEEPS = (0.5, 0.9)  # bounds of the load of its share up to which a service is taken to keep its objective
_MEMORY_FULL = 0.95
SHARED = {"mps", "timeslice", "vgpu"}  # neighbours can take of the share


@dataclass(frozen=True, slots=True)
class Taking:
    """What each holding of a card got, asked for, borrowed and lacked, (T, S); shares are of the whole card."""

    got: Matrix  # share, NaN: not known
    asks: Mask
    told: Mask  # something says whether it asks
    missed: Mask
    judged: Mask  # requests came and their latency is known
    borrowed: Matrix  # share
    starved: Matrix  # share


def takings(card: Card) -> Taking:
    """Return who got, borrowed and lacked how much of a card."""
    busy = np.clip(card.of_slices("busy_ratio"), 0.0, 1.0)
    by_time = np.array([h.kind == "timeslice" for h in card.holdings], dtype=bool) & ~card.measured
    got = np.where(by_time, busy, card.used)
    got[~card.alive] = np.nan
    rates, within = card.of_slices("requests_per_second"), card.of_slices("within_objective_per_second")
    waiting, steps = card.of_slices("queue_depth_count"), card.of_slices("steps_count")
    judged = (rates > 0) & ~np.isnan(within)
    missed = judged & (within < _MISSED * rates)
    trains = ~np.isnan(steps) & np.isnan(rates) & ~np.isnan(busy)
    asks = (waiting >= 1) | missed | (trains & (busy >= _ALWAYS_BUSY))
    told = ~np.isnan(waiting) | judged | trains
    full = np.nansum(got, axis=1) >= _FULL
    shared = np.array([h.kind in SHARED for h in card.holdings], dtype=bool)
    quota = np.where(card.held, card.quota, np.nan)
    short = shared & asks & full[:, None] & (got < _SHORT * quota)
    return Taking(
        got=got,
        asks=asks & card.held,
        told=told & card.held,
        missed=missed,
        judged=judged,
        borrowed=np.nan_to_num(np.clip(got - quota, 0.0, None)) * shared,
        starved=np.where(short, quota - got, 0.0),
    )


def starved_use(card: Card, taking: Taking, j: int) -> dict[str, Any]:
    """Measure whether a holding got its share, for TT314."""
    holding, alive = card.holdings[j], card.alive[:, j]
    asked, starved = taking.asks[:, j], taking.starved[:, j] > 0
    coverage = float((taking.told[:, j] & ~np.isnan(taking.got[:, j]))[alive].mean())
    quota = card.quota[:, j]
    use: dict[str, Any] = {"coverage": coverage, "samples": int(taking.told[:, j].sum()), "withheld": ""}
    if holding.kind not in SHARED:
        return {**use, "withheld": "nobody can take of its share", "applicable": False}
    if len([h for k, h in enumerate(card.holdings) if k != j and h.held]) == 0:
        return {**use, "withheld": "nobody shares its card", "applicable": False}
    if np.isnan(quota[alive]).all():
        return {**use, "withheld": "its quota is not known (sm_quota_ratio)"}
    if not taking.told[:, j].any():
        return {**use, "withheld": "nothing tells whether it asks for more (queue_depth_count, steps_count)"}
    seconds = card.interval_seconds
    lent = taking.borrowed[starved].sum(axis=0) * seconds
    lent[j] = 0.0
    takers = [
        {"tenant": card.holdings[k].tenant, "workload": card.holdings[k].workload, "gpu_seconds": float(lent[k])}
        for k in np.argsort(-lent, kind="stable")[:3]
        if lent[k] > 0
    ]
    return {
        **use,
        "quota": float(np.nanmedian(quota[starved])) if starved.any() else math.nan,
        "asked": int(asked.sum()),
        "short": int(starved.sum()),
        "got": float(taking.got[starved, j].mean()) if starved.any() else math.nan,
        "starved_gpu_seconds": float(taking.starved[:, j].sum() * seconds),
        "seconds": seconds,
        "takers": json.dumps(takers),
    }


def limit_use(card: Card, taking: Taking, j: int, events: pd.DataFrame, settings: AnalyzeSettings) -> dict[str, Any]:
    """Measure whether a holding's share and memory are too small for it, for TT313.

    Args:
        card: the card.
        taking: what `takings` returned for it.
        j: number of the holding.
        events: of the node; out-of-memory events of the holding's pod speak of its memory.
        settings: floor of coverage.
    """
    holding, alive = card.holdings[j], card.alive[:, j]
    quota = np.where(card.held[:, j], card.quota[:, j], np.nan)
    spent = taking.got[:, j]
    if holding.kind == "vgpu" and not card.measured[j]:
        spent = card.of_slices("busy_ratio")[:, j]
    judged = taking.judged[:, j] & ~np.isnan(spent)
    coverage = float(card.sampled[alive, j].mean())
    use: dict[str, Any] = {"coverage": coverage, "samples": int(judged.sum()), "withheld": ""}
    memory = _memory_limit(card, j, events)
    if holding.kind == "whole":
        return {**use, "withheld": "a whole card has no quota", "applicable": False}
    if memory["memory_full"] > 0:
        use |= memory
    elif np.isnan(quota[alive]).all() or card.quota_estimated[j]:
        return {**use, "withheld": "its quota is not known (sm_quota_ratio)"}
    elif not taking.judged[:, j].any():
        reason = "nothing tells whether it keeps its objective (within_objective_per_second)"
        return {**use, "withheld": reason, "applicable": False}
    elif coverage < settings.coverage_floor:
        return {**use, "withheld": f"samples cover less than {settings.coverage_floor:.0%} of its life in the window"}
    missed = taking.missed[:, j] & judged
    return use | _compute_limit(card, j, spent, judged, missed)


def _compute_limit(card: Card, j: int, got: Vector, judged: Mask, missed: Mask) -> dict[str, Any]:
    quota = card.quota[:, j]
    at_limit = judged & (got >= _AT_LIMIT * quota)
    found: dict[str, Any] = {"missed": int(missed.sum()), "judged": int(judged.sum()), "p_limit": math.nan}
    if not missed.any() or card.quota_estimated[j]:
        return found
    kept = judged & ~missed
    rates, waiting = (card.of_slices(n)[:, j] for n in ("requests_per_second", "queue_depth_count"))
    cost = got[judged].sum() / rates[judged].sum()  # share of the card for a request a second
    grown = np.clip(np.diff(waiting, prepend=np.nan), 0.0, None) / card.interval_seconds
    need = (rates + np.nan_to_num(grown))[judged] * cost
    keeps = float(np.quantile((got / quota)[kept], 0.9)) if kept.sum() >= _FEWEST else _KEEPS[1]
    keeps = min(max(keeps, _KEEPS[0]), _KEEPS[1])
    days = max(judged.sum() * card.interval_seconds / 86400.0, 1e-6)
    share = float(np.median(quota[judged]))
    target = max(float(np.quantile(need, 0.99)) / keeps, share * MARGIN)
    lower = min(max(float(np.quantile(need, 0.9)) / _KEEPS[1] * (1 + 0.001 / days) ** -2, share), target)
    return found | {
        "p_limit": float(at_limit[missed].mean()),
        "missed_at_limit": float(missed[at_limit].mean()) if at_limit.any() else math.nan,
        "missed_below": float(missed[judged & ~at_limit].mean()) if (judged & ~at_limit).any() else math.nan,
        "quota": share,
        "lower": lower,
        "target": target,
        "upper": target * (1 + 1 / days),
        "keeps": keeps,
        "history_days": days,
    }


def _memory_limit(card: Card, j: int, events: pd.DataFrame) -> dict[str, Any]:
    """How many intervals memory was full in, where a preemption or an out-of-memory event says that it hurts."""
    used, quota = memory_used(card, j), card.of_slices("memory_quota_bytes")[:, j]
    full = used >= _MEMORY_FULL * quota
    preempted = known_sum(card.of_slices("preemption_count")[:, j])
    pod = card.holdings[j].pod
    died = int(((events["code"] == "oom") & (events["object"] == pod)).sum()) if pod and len(events) else 0
    hurts = full.any() and (preempted > 0 or died > 0)
    return {
        "memory_full": int(full.sum()) if hurts else 0,
        "memory_quota": float(quota[full][-1]) if hurts else math.nan,
        "preempted": preempted,
        "died": died,
    }


def judge_limit(row: dict[str, Any], context: Context, about: dict[str, Any]) -> Finding | None:
    """Return TT313 where a workload misses its objective at its share, or its memory is full and it hurts."""
    who = f"{row['tenant']}/{row['workload']}"
    where = f"{row['gpu']} on {row['node']}"
    memory = row["memory_full"] > 0 and {
        "memory_quota_bytes": row["memory_quota"],
        "memory_full_intervals": row["memory_full"],
        "preemptions": row["preempted"],
        "out_of_memory_events": row["died"],
        "target_bytes": row["memory_quota"] * MARGIN,
    }
    compute = (
        row["missed"] >= max(_FEWEST, _RARE * row["judged"])
        and row["p_limit"] >= _OFTEN
        and row["missed_at_limit"] > 2 * np.nan_to_num(row["missed_below"])
    )
    if not compute and not memory:
        return None
    said, evidence, effect, surely = [], {}, None, bool(memory)
    if compute:
        surely = row["p_limit"] >= _MOSTLY
        said.append(
            f"{row['p_limit']:.0%} of the intervals in which it missed its objective were at its share of "
            f"{row['quota']:.0%}: {row['target']:.0%} would do (between {row['lower']:.0%} and {row['upper']:.0%})"
        )
        effect = Effect(row["target"] - row["quota"], "ratio", row["lower"] - row["quota"], row["upper"] - row["quota"])
        evidence = {
            "quota_ratio": row["quota"],
            "missed_intervals": row["missed"],
            "judged_intervals": row["judged"],
            "missed_at_limit": row["p_limit"],
            "missed_of_limit": row["missed_at_limit"],
            "missed_below_limit": row["missed_below"],
            "keeps_up_to": row["keeps"],
            "lower_ratio": row["lower"],
            "target_ratio": row["target"],
            "upper_ratio": row["upper"],
            "history_days": row["history_days"],
            "provenance": "estimated" if row["divided"] else "measured",
        }
    if memory:
        said.append(
            f"its memory of {row['memory_quota'] / 2**30:.1f} GiB was full in {row['memory_full']:.0f} intervals, with "
            f"{row['preempted']:.0f} preemptions and {row['died']:.0f} out-of-memory events"
        )
        evidence |= memory
    return make_finding(
        "TT313",
        Verdict.HOLDS if surely else Verdict.SUSPECTED,
        **about,
        claim=f"{who} has too little of {where}: {'; '.join(said)}",
        risk="a neighbour that slows it, or heavier requests, make it miss its objective at any share",
        effect=effect,
        evidence={**evidence, "kind": row["kind"]},
        simulated=context.simulated,
    )


def judge_starved(row: dict[str, Any], context: Context, about: dict[str, Any]) -> Finding | None:
    """Return TT314 where a workload often did not get its share while it asked for more."""
    if row["short"] < max(_FEWEST, _STARVED_OFTEN * row["asked"]):
        return None
    takers = json.loads(row["takers"])
    by = f"; {takers[0]['tenant']}/{takers[0]['workload']} took most of it" if takers else ""
    hours = row["starved_gpu_seconds"] / 3600
    return make_finding(
        "TT314",
        Verdict.SUSPECTED if row["estimated"] or row["divided"] else Verdict.HOLDS,
        **about,
        claim=(
            f"{row['tenant']}/{row['workload']} is entitled to {row['quota']:.0%} of {row['gpu']} on {row['node']} and "
            f"got {row['got']:.0%} in {row['short']:.0f} of the {row['asked']:.0f} intervals in which it asked for "
            f"more, while the card was full{by}"
        ),
        risk="work that waits for its host or for a lock asks for more and could not use it",
        effect=Effect(hours, "gpu_hours", hours * row["coverage"], hours),
        evidence={
            "quota_ratio": row["quota"],
            "quota_provenance": "estimated" if row["estimated"] else "measured",
            "got_ratio": row["got"],
            "asked_seconds": row["asked"] * row["seconds"],
            "starved_seconds": row["short"] * row["seconds"],
            "starved_gpu_seconds": row["starved_gpu_seconds"],
            "taken_by": takers,
            "provenance": "estimated" if row["divided"] else "measured",
            "kind": row["kind"],
        },
        simulated=context.simulated,
    )
