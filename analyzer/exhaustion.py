"""TT504: when a pool's cards will all be taken, from the forecast of what is held and what waits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from analyzer.cards import cards
from analyzer.facts import records
from analyzer.findings import Effect, Finding, Role, SubjectRef, Verdict, finding_id, make_finding
from analyzer.forecast import LoadForecaster
from analyzer.forecast.forecaster import SHORT
from analyzer.protocols import Conclusion, Context, Needs, Partition, Withheld
from analyzer.risk import LEVELS, outlook_of
from analyzer.shares import Card

CODE = "TT504"

_STEP_SECONDS = 900.0
_FEWEST_STEPS = 48  # half a day
_HOURS = (1, 3, 6, 12, 24, 36, 48, 72, 96, 120, 144, 168)
_AHEAD = 2.0  # times the length of the history: further nothing is said
_HOLDS, _SUSPECTED = 0.9, 0.5  # probability from which the verdict is given
_FULL = 0.995  # part of the cards that must be taken for a pool to be full now
_COLUMNS = ["cluster", "node", "time", "taken_cards", "cards"]
_RISK = (
    "demand that nobody has asked for yet is in no forecast; a pool that is kept full on purpose by work that may wait "
    "looks the same"
)


@dataclass(frozen=True, slots=True)
class _Pool:
    cluster: str
    name: str
    capacity: float  # cards; NaN: not known
    history: pd.DataFrame  # time, value: cards taken and waited for

    @property
    def series(self) -> str:
        return f"{self.cluster}/{self.name}"


class ExhaustionDetector:
    """Forecasts, for each pool, the cards that are taken and waited for, and says when they pass what there is."""

    codes = (CODE,)
    needs: ClassVar[Needs] = {CODE: {}}

    def measure(self, partition: Partition) -> pd.DataFrame:
        """Return a row a quarter of an hour: how many cards the node has, and how many of them are taken.

        A card is taken by the share that its holders' quotas cover; whole, where a holder's quota is not known.
        """
        found = cards(partition)
        if not found:
            return pd.DataFrame(columns=_COLUMNS)
        steps = found[0].times_ms() // round(max(_STEP_SECONDS, partition.interval_seconds) * 1000)
        distinct, first = np.unique(steps, return_index=True)
        taken = np.add.reduceat(np.sum([_taken(card) for card in found], axis=0), first)
        seen = np.add.reduceat(
            np.any([card.present.any(axis=1) | card.observed for card in found], axis=0) * 1.0, first
        )
        counts = np.diff([*first.tolist(), len(steps)])
        table = pd.DataFrame({"cluster": partition.cluster, "node": partition.node}, index=range(len(distinct)))
        times = (distinct * round(max(_STEP_SECONDS, partition.interval_seconds) * 1000)).astype("datetime64[ms]")
        table["time"] = pd.DatetimeIndex(times).tz_localize("UTC")
        table["taken_cards"] = np.where(seen > 0, taken / counts, math.nan)
        table["cards"] = float(len(found))
        return table[_COLUMNS]

    def conclude(self, measures: pd.DataFrame, context: Context) -> Conclusion:
        """Say of each pool when it is full: now, at a time within the horizon, or not within it."""
        findings: list[Finding] = []
        withheld: list[Withheld] = []
        usable: list[_Pool] = []
        for pool in _pools(measures, context):
            if not math.isfinite(pool.capacity):
                withheld.append(_without(pool, "how many cards the pool has is not known (fact or row of its quota)"))
            elif int(pool.history["value"].notna().sum()) < _FEWEST_STEPS:
                withheld.append(_without(pool, f"less than {_FEWEST_STEPS * _STEP_SECONDS / 3600:g} h of history"))
            else:
                usable.append(pool)
        if not usable:
            return Conclusion(findings, withheld)
        history = pd.concat([p.history.assign(series=p.series) for p in usable], ignore_index=True)
        history = history[["series", "time", "value"]]
        horizons = _horizons(history)
        forecaster = LoadForecaster(step=timedelta(seconds=max(_STEP_SECONDS, context.interval_seconds)))
        said = forecaster.fit(history).forecast(history, context.window.end, horizons, LEVELS)
        by_series = {str(name): rows for name, rows in said.groupby("series", sort=True)}
        for pool in usable:
            rows = by_series[pool.series]
            if rows["value"].isna().any():
                withheld.append(_without(pool, str(rows["reason"].iloc[0])))
            else:
                findings.append(_finding(pool, rows, horizons[-1], context))
        return Conclusion(findings, withheld)


def _taken(card: Card) -> np.ndarray:
    """Return how much of a card its holders' quotas cover, (T,); 1 where one of them is not known."""
    held = card.held
    quota = np.where(held, card.quota, 0.0)
    return np.asarray(np.where(np.isnan(quota).any(axis=1), 1.0, np.minimum(np.nansum(quota, axis=1), 1.0)))


def _pools(measures: pd.DataFrame, context: Context) -> list[_Pool]:
    """Return the pools of each cluster.

    A cluster with one queue pool (or none) is that pool, with all its cards; of several, each has the sum of its quotas
    and what its queue says to be allocated and waiting.
    """
    queues = _queues(context)
    found = []
    for cluster in sorted(set(measures["cluster"]) if len(measures) else set()):
        own = measures[measures["cluster"] == cluster]
        mine = {name: rows for (of, name), rows in queues.items() if of == cluster}
        if len(mine) > 1:
            for name, rows in mine.items():
                quota = float(rows["quota"].iloc[-1])
                total = _with_pending(rows["allocated"], rows["pending"]).to_numpy(np.float64)
                found.append(_Pool(str(cluster), name, quota, pd.DataFrame({"time": rows["time"], "value": total})))
            continue
        nodes = own.drop_duplicates("node")
        per_step = own.groupby("time", sort=True)["taken_cards"].sum(min_count=1)
        seen = own.groupby("time", sort=True)["taken_cards"].count()
        value = per_step.where(seen == len(nodes))  # a node that was not seen is no free node
        for rows in mine.values():
            value = _with_pending(value, rows.set_index("time")["pending"].reindex(value.index).ffill())
        history = pd.DataFrame({"time": value.index, "value": value.to_numpy(np.float64)})
        found.append(_Pool(str(cluster), next(iter(mine), "default"), float(nodes["cards"].sum()), history))
    return found


def _with_pending(taken: pd.Series, pending: pd.Series) -> pd.Series:
    """Add what waits; of a queue that never tells what waits the demand is what is taken, at the least."""
    return taken + pending if pending.notna().any() else taken


def _queues(context: Context) -> dict[tuple[str, str], pd.DataFrame]:
    """Return, a pool, `time`, `quota`, `allocated`, `pending` in cards at the steps of the history."""
    raw = context.queues
    wanted = ["quota_gpu_count", "allocated_gpu_count", "pending_gpu_count"]
    if raw.empty or not set(wanted) <= set(raw.columns):
        return {}
    rows = raw.assign(time=raw["time"].dt.floor(f"{round(max(_STEP_SECONDS, context.interval_seconds))}s"))
    mean = rows.groupby(["cluster", "pool", "tenant", "time"], sort=True, observed=True)[wanted].mean().reset_index()
    # A quota of -1 has no limit, and of a pool with such a tenant nobody says how big it is.
    mean.loc[mean["quota_gpu_count"] < 0, "quota_gpu_count"] = math.nan
    by_step = mean.groupby(["cluster", "pool", "time"], sort=True, observed=True)
    sums = by_step[wanted].sum(min_count=1)
    sums["quota_gpu_count"] = sums["quota_gpu_count"].where(by_step["quota_gpu_count"].count() == by_step.size())
    table = sums.reset_index().set_axis(["cluster", "pool", "time", "quota", "allocated", "pending"], axis=1)
    return {
        (str(cluster), str(pool)): rows.reset_index(drop=True)
        for (cluster, pool), rows in table.groupby(["cluster", "pool"], sort=True)
    }


def _horizons(history: pd.DataFrame) -> list[timedelta]:
    span = (history["time"].max() - history["time"].min()).total_seconds()
    return [timedelta(hours=h) for h in _HOURS if h <= 24 or h * 3600 <= _AHEAD * span]


def _finding(pool: _Pool, rows: pd.DataFrame, farthest: timedelta, context: Context) -> Finding:
    outlook = outlook_of(rows, pool.capacity * _FULL)
    known = pool.history["value"].dropna()
    now = float(known.iloc[-1])
    note = str(rows["reason"].iloc[0])
    full = now >= _FULL * pool.capacity
    probability = 1.0 if full else outlook.probability
    seconds = 0.0 if full else outlook.middle
    when = context.window.end + timedelta(seconds=seconds) if math.isfinite(seconds) else None
    name = f"pool {pool.name} of {pool.cluster} ({pool.capacity:g} cards)"
    if full:
        waits = f", {now - pool.capacity:.1f} cards' worth waits" if now > pool.capacity * (1 + 1 - _FULL) else ""
        claim, verdict = f"{name} is full now{waits}", Verdict.HOLDS
    elif when is not None and probability >= _SUSPECTED:
        sure = probability >= _HOLDS and SHORT not in note
        verdict = Verdict.HOLDS if sure else Verdict.SUSPECTED
        claim = (
            f"{name} will be full around {when:%Y-%m-%d %H:%M} UTC, probability {probability:.0%}; "
            f"now {now:.1f} cards are taken or waited for"
        )
    else:
        days = farthest.total_seconds() / 86400
        verdict, when = Verdict.NO_EFFECT, None
        claim = f"{name} will not be full within {days:g} days; now {now:.1f} cards are taken or waited for"
    subjects = (SubjectRef(Role.SUBJECT, pool.cluster),)
    found = make_finding(
        CODE,
        verdict,
        subjects,
        context.window,
        claim=claim,
        risk=_RISK,
        confidence=max(probability, 1.0 - probability),
        coverage=len(known) / len(pool.history),
        effect=None if when is None else _effect(seconds, (outlook.earliest, outlook.latest), farthest, full=full),
        evidence={
            "pool": pool.name,
            "capacity_cards": pool.capacity,
            "taken_or_waiting_cards": now,
            "probability": probability,
            "when": when,
            "horizon_seconds": farthest.total_seconds(),
            "forecast_cards": _quantiles(rows),
            "note": note,
        },
        simulated=context.simulated,
    )
    return replace(found, id=finding_id(CODE, subjects, pool.name))  # a cluster has several pools


def _effect(seconds: float, interval: Sequence[float], farthest: timedelta, *, full: bool) -> Effect:
    if full:
        return Effect(0.0, "seconds", 0.0, 0.0)
    earliest, latest = (min(bound, farthest.total_seconds()) for bound in interval)
    return Effect(seconds, "seconds", earliest, latest)


def _quantiles(rows: pd.DataFrame) -> Mapping[str, list[dict[str, Any]]]:
    kept = rows[rows["quantile"].isin((0.1, 0.5, 0.9))]
    return {
        f"{quantile:g}": [{"seconds": row["horizon_seconds"], "cards": row["value"]} for row in records(part)]
        for quantile, part in kept.groupby("quantile", sort=True)
    }


def _without(pool: _Pool, reason: str) -> Withheld:
    return Withheld(CODE, pool.cluster, "", "", "", f"pool {pool.name}: {reason}")
