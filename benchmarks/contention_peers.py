"""Four ways to name who slows whom that others use, on the same series: what the detector is measured against.

Each gets the victim's ln(time per unit of work) and the suspect's activity, and whatever else its rule uses. All that
give a p share Benjamini and Hochberg's rate with the detector; CPI2's rule has a threshold instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import f as fisher
from scipy.stats import norm, t

from analyzer.contention.verdict import benjamini_hochberg
from benchmarks.contention_worlds import DAY, TASKS, Floats, World

Pair = tuple[str, int, str, str]  # scenario, number, victim, suspect
Claims = set[Pair]
_BLOCK = 60
_PERMUTATIONS = 99
_GRANGER_LAGS = 5
_OUTLIER, _OUTLIERS, _RECENT, _ANTAGONIST = 2.0, 3, 5, 0.35  # CPI2 (Zhang et al., EuroSys 2013)
_INCIDENT = 10  # minutes that an antagonist is looked for in


@dataclass(frozen=True)
class Series:
    """What a peer sees of one card."""

    cost: Mapping[str, Floats]
    activity: Mapping[str, Floats]
    load: Mapping[str, Floats]

    @classmethod
    def of(cls, world: World, rows: pd.DataFrame) -> Series:
        frame = rows[rows["gpu"] == f"GPU-{world.scenario}-{world.number}"]
        cost, activity, load = {}, {}, {}
        for task, part in frame.groupby("workload"):
            shown = part["latency_p50_seconds"].fillna(part["step_seconds"])
            cost[str(task)] = np.log(shown.to_numpy(np.float64))
            activity[str(task)] = part["sm_active_ratio"].to_numpy(np.float64)
            if part["requests_per_second"].notna().any():
                load[str(task)] = part["requests_per_second"].to_numpy(np.float64)
        return cls(cost, activity, load)


Rule = Callable[[Series, str, str, np.random.Generator], float]


def pearson(series: Series, victim: str, suspect: str, _rng: np.random.Generator) -> float:
    """p of a positive correlation."""
    good = np.isfinite(series.cost[victim])
    r = correlation(series.cost[victim][good], series.activity[suspect][good])
    free = max(int(good.sum()) - 2, 1)
    return float(t.sf(r * math.sqrt(free / max(1 - r * r, 1e-12)), free))


def partial(series: Series, victim: str, suspect: str, rng: np.random.Generator) -> float:
    """p of a positive partial correlation given own load and hour of day; hour-long blocks are permuted."""
    cost = series.cost[victim]
    n = cost.size
    hour = 2 * np.pi * np.arange(n) / DAY
    own = series.load.get(victim, np.zeros(n))
    columns = [np.ones(n), own, own**2]
    columns += [wave(k * hour) for k in (1, 2) for wave in (np.sin, np.cos)] if n >= DAY else []
    good = np.isfinite(cost)
    z = np.column_stack(columns)[good]
    y, a = _left(cost[good], z), _left(series.activity[suspect][good], z)
    null = [correlation(y, _blocks(a, rng)) for _ in range(_PERMUTATIONS)]
    return float(norm.sf((correlation(y, a) - np.mean(null)) / max(float(np.std(null)), 1e-12)))


def granger(series: Series, victim: str, suspect: str, _rng: np.random.Generator) -> float:
    """p of an F test: do the suspect's last five samples add to the victim's own last five?"""
    y, a = series.cost[victim], series.activity[suspect]
    n = y.size
    past = [s[_GRANGER_LAGS - i : n - i] for s in (y, a) for i in range(1, _GRANGER_LAGS + 1)]
    table = np.column_stack([y[_GRANGER_LAGS:], np.ones(n - _GRANGER_LAGS), *past])
    table = table[np.isfinite(table).all(axis=1)]
    free = table.shape[0] - 2 * _GRANGER_LAGS - 1
    if free < 1:
        return math.nan
    whole = float(np.sum(_left(table[:, 0], table[:, 1:]) ** 2))
    alone = float(np.sum(_left(table[:, 0], table[:, 1 : 2 + _GRANGER_LAGS]) ** 2))
    return float(fisher.sf((alone - whole) / _GRANGER_LAGS / max(whole / free, 1e-300), _GRANGER_LAGS, free))


def cpi2(series: Series, victim: str, suspect: str, _rng: np.random.Generator) -> float:
    """0 where the suspect is the strongest antagonist of an incident and reaches CPI2's 0.35, else 1."""
    cost = np.exp(series.cost[victim])
    known = cost[np.isfinite(cost)]
    if known.size < 2 * _INCIDENT:
        return 1.0
    line = float(known.mean() + _OUTLIER * known.std())
    outlier = np.nan_to_num(cost, nan=0.0) > line
    recent = np.convolve(outlier, np.ones(_RECENT), mode="full")[: cost.size] >= _OUTLIERS
    starts = np.flatnonzero(recent & ~np.concatenate([[False], recent[:-1]]))
    for at in starts:
        inside = slice(max(0, at + 1 - _INCIDENT), at + 1)
        scores = {s: _antagonism(cost[inside], series.activity[s][inside], line) for s in TASKS if s != victim}
        if scores[suspect] >= _ANTAGONIST and max(scores, key=lambda s: scores[s]) == suspect:
            return 0.0
    return 1.0


RULES: Mapping[str, Rule] = {
    "CPI2's rule": cpi2,
    "Pearson": pearson,
    "partial correlation, block permutation": partial,
    "Granger": granger,
}


def claims_of(rule: Rule, worlds: list[World], rows: Mapping[str, pd.DataFrame], rate: float, seed: int) -> Claims:
    """Return the pairs that a rule claims at a rate of false discoveries over all of them."""
    rng = np.random.default_rng(seed)
    p: dict[Pair, float] = {}
    for world in worlds:
        series = Series.of(world, rows[world.scenario])
        for victim in TASKS:
            for suspect in TASKS:
                if victim != suspect:
                    p[world.scenario, world.number, victim, suspect] = rule(series, victim, suspect, rng)
    q = benjamini_hochberg(list(p.values()))
    return {pair for pair, value in zip(p, q, strict=True) if value <= rate}


def correlation(left: Floats, right: Floats) -> float:
    if left.size == 0:
        return 0.0
    u, v = left - left.mean(), right - right.mean()
    scale = math.sqrt(float(u @ u) * float(v @ v))
    return float(u @ v) / scale if scale > 0 else 0.0


def _antagonism(cost: Floats, activity: Floats, line: float) -> float:
    """CPI2's correlation: what the suspect used while the victim was slow, less what it used while it was not."""
    total = float(activity.sum())
    if total <= 0:
        return 0.0
    use = activity / total
    good = np.isfinite(cost)
    c, u = cost[good], use[good]
    return float(np.sum(np.where(c > line, u * (1 - line / c), u * (c / line - 1))))


def _left(values: Floats, columns: Floats) -> Floats:
    solution, *_ = np.linalg.lstsq(columns, values, rcond=None)
    return np.asarray(values - columns @ solution)


def _blocks(values: Floats, rng: np.random.Generator) -> Floats:
    pieces = np.array_split(values, max(values.size // _BLOCK, 2))
    return np.concatenate([pieces[i] for i in rng.permutation(len(pieces))])
