"""Useful work from telemetry alone: solo SM-seconds of the work that was finished.

What a unit of work (a request, a training step) costs when nothing disturbs it is learnt per workload and card model
from the workload's own least disturbed intervals: those where its service time per unit is lowest; without a service
time, those where it spent the fewest SM-seconds a unit. Useful is that cost times the requests within their objective
or the steps finished. SM activity itself is not useful: it rises when slices fight.

A slow clock stretches SM-seconds as much as it stretches time, so costs are counted at the full clock.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analyzer.runs import run_starts
from analyzer.shares import Card, Vector

# A card whose SM count nobody tells is counted as one with so many, and listed as assumed.
ASSUMED_SM_COUNT = 100.0
HOUR_MS = 3_600_000

# The least disturbed intervals: this share of those with enough work, but not fewer than the count (else all).
_CALM_SHARE = 0.2
_CALM_FEWEST = 12
# Who is disturbed nearly always is calm for less than that: where the paces fall into two groups that stand so many
# standard deviations and so large a ratio apart, only the faster half of the faster group is calm.
_APART, _APART_RATIO = 5.0, 1.05
# An interval with less than this share of the workload's median work is too thin: background use would weigh too much.
_THIN_WORK = 0.3
# Of several slices of one workload the calm ones are believed: this quantile of their costs, weighed by samples.
_SLICE_QUANTILE = 0.25

WORK_COLUMNS = (
    "cluster",
    "node",
    "gpu",
    "slice",
    "tenant",
    "workload",
    "hour",
    "model",
    "sm_count",
    "unit",
    "used",
    "work",
    "finished",
    "contended_work",
    "throttled_work",
    "barren",
    "solo_cost",
    "solo_step_seconds",
    "solo_samples",
)
_WORKLOAD = ["tenant", "workload", "model", "unit"]


def sm_count_of(card: Card) -> float:
    """Return the card's SM count, or the assumed one."""
    return ASSUMED_SM_COUNT if np.isnan(card.sm_count) else card.sm_count


def hour_bins(card: Card) -> tuple[np.ndarray, np.ndarray]:
    """Return the index of each hour's first interval, and the hours' starts in milliseconds since the epoch."""
    hours = card.times_ms() // HOUR_MS
    first = run_starts(hours)
    return first, hours[first] * HOUR_MS


def per_hour(values: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Sum over the intervals of each hour; NaN counts as nothing."""
    return np.asarray(np.add.reduceat(np.nan_to_num(values, nan=0.0), first, axis=0))


def no_work() -> pd.DataFrame:
    """Return an empty frame of `WORK_COLUMNS`."""
    text = {*WORK_COLUMNS[:6], "model", "unit"}
    kinds = {name: "str" if name in text else "int64" if name == "hour" else "float64" for name in WORK_COLUMNS}
    return pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in kinds.items()})


def clock_ratio(card: Card) -> Vector:
    """Return the SM clock over the highest that the card kept (its 99 % in the window), (T,); NaN: absent."""
    clock = card.of_card("sm_clock_hertz")
    known = clock[~np.isnan(clock)]
    if not len(known):
        return clock
    return np.minimum(clock / np.quantile(known, 0.99), 1.0)


def throttled(card: Card) -> np.ndarray:
    """Return where the card says that its clocks were lowered for power or heat, (T,)."""
    reasons = [card.of_card(f"throttle_{why}_ratio") for why in ("power", "thermal", "brake")]
    return np.asarray(np.nansum(reasons, axis=0) > 0)


def measure_card_work(card: Card) -> pd.DataFrame:
    """Return work and cost of each holding and hour of a card: columns `WORK_COLUMNS`; SM-seconds, units of work."""
    seconds = card.interval_seconds
    rates = card.of_slices("requests_per_second")
    within = card.of_slices("within_objective_per_second")
    steps = card.of_slices("steps_count")
    pace = card.of_slices("step_seconds")
    sm_seconds = card.used * sm_count_of(card) * seconds
    # A clock counts as lowered only where the card says why: idle cards clock down by themselves.
    clock = np.where(throttled(card), np.nan_to_num(clock_ratio(card), nan=1.0), 1.0)
    first, hours = hour_bins(card)
    frames = []
    for j, holding in enumerate(card.holdings):
        if not holding.held:
            continue
        serves = not np.isnan(rates[:, j]).all()
        works = serves or not np.isnan(steps[:, j]).all()
        work = rates[:, j] * seconds if serves else steps[:, j]
        # Without an objective every finished request counts: nobody said what late is.
        judged = np.where(np.isnan(within[:, j]), rates[:, j], within[:, j]) * seconds if serves else steps[:, j]
        own_use = np.where(card.sampled[:, j], sm_seconds[:, j], np.nan)
        solo = _solo(own_use, work, pace[:, j], clock)
        none_done = np.nan_to_num(work, nan=0.0) <= 0
        frames.append(
            pd.DataFrame(
                {
                    **card.holder(holding),
                    "hour": hours,
                    "model": card.model,
                    "sm_count": sm_count_of(card),
                    "unit": ("request" if serves else "step") if works else "",
                    "used": per_hour(sm_seconds[:, j], first),
                    "work": per_hour(work, first),
                    "finished": per_hour(judged, first),
                    "contended_work": per_hour(_contended(own_use, work, pace[:, j], clock, solo), first),
                    "throttled_work": per_hour(work * (1 / clock - 1), first),
                    "barren": per_hour(np.where(none_done, sm_seconds[:, j], 0.0), first),
                    "solo_cost": solo.cost,
                    "solo_step_seconds": solo.step_seconds,
                    "solo_samples": float(solo.samples),
                }
            )
        )
    return pd.concat(frames, ignore_index=True) if frames else no_work()


@dataclass(frozen=True, slots=True)
class Solo:
    """SM-seconds a unit and seconds a unit in the least disturbed intervals, and how many there were."""

    cost: float
    step_seconds: float
    samples: int


def _solo(sm_seconds: Vector, work: Vector, pace: Vector, clock: Vector) -> Solo:
    good = ~np.isnan(sm_seconds) & (np.nan_to_num(work, nan=0.0) > 0)
    if not good.any():
        return Solo(np.nan, np.nan, 0)
    good &= work >= _THIN_WORK * np.median(work[good])
    spent, done = sm_seconds[good] * clock[good], work[good]
    seconds = pace[good] * clock[good]
    rank = spent / done if np.isnan(seconds).mean() > 0.5 else seconds
    known = np.flatnonzero(~np.isnan(rank))
    order = known[np.argsort(rank[known], kind="stable")]
    count = min(max(min(round(_CALM_SHARE * len(known)), faster_group(rank[order]) // 2), _CALM_FEWEST), len(known))
    calm = order[:count]
    step = float(np.median(seconds[calm])) if not np.isnan(seconds[calm]).any() else np.nan
    return Solo(float(spent[calm].sum() / done[calm].sum()), step, count)


def faster_group(ranks: Vector) -> int:
    """Return how many of the lowest values stand apart from the rest; all where there are no two groups.

    The cut is the one with the least variance within both groups (Otsu, 1979), of logarithms.

    Args:
        ranks: sorted. With one of zero (use too small to be measured) there is no ratio to tell groups by.
    """
    count = len(ranks)
    if count < 2 * _CALM_FEWEST or ranks[0] <= 0:
        return count
    logs = np.log(ranks) - np.log(ranks[0])
    sums, squares, sizes = np.cumsum(logs), np.cumsum(logs**2), np.arange(1, count)
    low, high = sums[:-1] / sizes, (sums[-1] - sums[:-1]) / (count - sizes)
    low_variance = np.maximum(squares[:-1] / sizes - low**2, 0.0)
    high_variance = np.maximum((squares[-1] - squares[:-1]) / (count - sizes) - high**2, 0.0)
    cut = int(np.argmin(sizes * low_variance + (count - sizes) * high_variance))
    spread = np.sqrt((low_variance[cut] + high_variance[cut]) / 2)
    gap = high[cut] - low[cut]
    apart = gap > max(_APART * spread, np.log(_APART_RATIO)) and sizes[cut] >= _CALM_FEWEST
    return int(sizes[cut]) if apart else count


def _contended(sm_seconds: Vector, work: Vector, pace: Vector, clock: Vector, solo: Solo) -> Vector:
    """Return how many units' worth of SM-seconds contention added, (T,).

    A unit that takes longer without using more of the card (a queue, a bigger batch, its turn among processes) costs
    nobody anything, and one that uses more without taking longer is heavier: both must rise, and the smaller counts.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        slower = pace * clock / solo.step_seconds
        dearer = sm_seconds * clock / work / solo.cost
        excess = np.minimum(slower, dearer) - 1
        return np.asarray(np.where(work > 0, work * np.clip(excess, 0.0, None), 0.0))


def solo_costs(measures: pd.DataFrame) -> pd.DataFrame:
    """Return what a unit of work costs undisturbed: one row a workload, card model and unit.

    Args:
        measures: rows of `measure_card_work` of all cards.

    Returns:
        Columns tenant, workload, model, unit, cost (SM-seconds a unit), step_seconds (the calmest slice's; NaN: not
        known), samples.
    """
    slices = measures[measures["solo_cost"].notna()].drop_duplicates(
        ["cluster", "node", "gpu", "slice", "tenant", "workload"]
    )
    rows = [
        (
            *key,
            _believed(group["solo_cost"].to_numpy(), group["solo_samples"].to_numpy()),
            group["solo_step_seconds"].min(),
            group["solo_samples"].sum(),
        )
        for key, group in slices.groupby(_WORKLOAD, sort=True)
    ]
    return pd.DataFrame(rows, columns=[*_WORKLOAD, "cost", "step_seconds", "samples"])


def _believed(costs: Vector, samples: Vector) -> float:
    order = np.argsort(costs, kind="stable")
    weight = np.cumsum(samples[order])
    chosen = order[np.searchsorted(weight, _SLICE_QUANTILE * weight[-1])]
    return float(costs[chosen])


def estimate_useful(measures: pd.DataFrame) -> pd.DataFrame:
    """Estimate useful SM-seconds per slice and hour.

    Args:
        measures: rows of `measure_card_work` of all cards.

    Returns:
        The rows, sorted, with `cost` (solo SM-seconds a unit), `step_seconds` (solo) and `useful` (SM-seconds; NaN
        where work has no unit).
    """
    rows = measures.sort_values(list(WORK_COLUMNS[:7]), kind="stable", ignore_index=True)
    rows = rows.merge(solo_costs(rows).drop(columns="samples"), on=_WORKLOAD, how="left", sort=False)
    rows["useful"] = rows["finished"] * rows["cost"]
    return rows
