"""TT502: the memory of a slice will exceed its quota, or what the card has left, within the horizon.

The detector forecasts by itself, from the memory in its measures: `Context.forecasts` speaks of load by workload, while
this limit belongs to one slice. So it works the same from rows alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.facts import hardware_facts, records, to_float
from analyzer.findings import Effect, Finding, Role, SubjectRef, Verdict, make_finding
from analyzer.forecast import LoadForecaster, backtest
from analyzer.forecast.features import FloatArray
from analyzer.forecast.forecaster import SHORT
from analyzer.protocols import Conclusion, Context, Needs, Partition, Withheld
from analyzer.runs import run_starts
from analyzer.settings import AnalyzeSettings
from collector.schema import NOBODY

CODE = "TT502"

_KEY = ["cluster", "node", "gpu", "slice"]
_COLUMNS = [
    *_KEY,
    "tenant",
    "workload",
    "time",
    "used_bytes",
    "limit_bytes",
    "limit",
    "coverage",
    "withheld",
    "applicable",
]
_ABOUT = [*_KEY, "tenant", "workload", "coverage", "withheld", "applicable", "limit_bytes", "limit"]  # once a slice
Instants = npt.NDArray[np.int64]  # ms since the epoch
_NEVER = np.datetime64("NaT", "ms").astype(np.int64)
_STEP_SECONDS = 300.0
_FEWEST_STEPS = 12  # an hour of 5-minute steps
_SILENT = timedelta(hours=1)  # a slice without rows for so long is gone
_HOURS = (1, 2, 3, 4, 6, 9, 12, 18, 24)
LEVELS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.975, 0.99, 0.995)
_HOLDS, _SUSPECTED = 0.9, 0.5  # probability from which the verdict is given
_RISK = (
    "a cache that stops at its own limit, memory that a restart frees, or a quota raised in the meantime "
    "looks the same until then"
)


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a forecast says of a series against its limit; times in seconds, infinite beyond the horizon."""

    probability: float  # the largest over the horizons, that memory lies above the limit
    middle: float  # until the median passes the limit
    earliest: float  # until the 90 % quantile does
    latest: float  # until the 10 % quantile does


@dataclass(frozen=True, slots=True)
class _Told:
    times_ms: Instants  # of the steps
    used_bytes: FloatArray
    coverage: float
    withheld: str = ""
    applicable: bool = True


def _withhold(reason: str, coverage: float = 0.0, *, applicable: bool = True) -> _Told:
    return _Told(np.array([_NEVER]), np.array([math.nan]), coverage, reason, applicable)


class ForecastRiskDetector:
    """Finds slices whose memory is forecast to pass its limit within 24 hours."""

    codes = (CODE,)
    needs: ClassVar[Needs] = {CODE: {"slice": ("memory_used_bytes",)}}

    def __init__(self, settings: AnalyzeSettings | None = None) -> None:
        self._settings = settings or AnalyzeSettings()

    def measure(self, partition: Partition) -> pd.DataFrame:
        """Return the memory of each held slice at 5-minute steps (the largest of a step), with its limit.

        The limit is the smaller of memory_quota_bytes and the card's memory; without a quota it is the card's memory
        less what the other slices on it use now. A slice that cannot be judged has one row that says why.
        """
        rows = partition.slice.sort_values([*_KEY, "time"], kind="stable")
        if rows.empty:
            return pd.DataFrame(columns=_COLUMNS)
        limits = _limits(partition, rows[rows["time"] >= partition.window.end - _SILENT])
        times = rows["time"].to_numpy("datetime64[ms]").astype(np.int64)
        memory = rows["memory_used_bytes"].to_numpy(np.float64)
        tenants, workloads = (rows[name].to_numpy(dtype=object) for name in ("tenant", "workload"))
        told: list[_Told] = []
        about: list[tuple[object, ...]] = []
        keys = rows[_KEY].to_numpy(dtype=object)
        starts = run_starts(*keys.T)
        for first, end in zip(starts, [*starts[1:], len(rows)], strict=True):
            own = slice(first, end)
            cluster, node, gpu, slice_id = (str(part) for part in keys[first])
            key = (cluster, node, gpu, slice_id)
            tenant, workload = tenants[own][-1], workloads[own][-1]
            limit, kind = limits.get(key, (math.nan, ""))
            if key not in limits:
                one = _withhold("no rows in the last hour: it is gone", applicable=False)
            elif workload == NOBODY:
                one = _withhold("nobody holds it", applicable=False)
            else:
                one = self._steps(times[own], memory[own], limit, partition.interval_seconds)
            told.append(one)
            about.append((*key, tenant, workload, one.coverage, one.withheld, one.applicable, limit, kind))
        sizes = [len(one.times_ms) for one in told]
        columns = {name: list(values) for name, values in zip(_ABOUT, zip(*about, strict=True), strict=True)}
        frame = pd.DataFrame(columns).loc[np.repeat(np.arange(len(told)), sizes)].reset_index(drop=True)
        instants = np.concatenate([one.times_ms for one in told]).astype("datetime64[ms]")
        frame["time"] = pd.DatetimeIndex(instants).tz_localize("UTC")
        frame["used_bytes"] = np.concatenate([one.used_bytes for one in told])
        return frame[_COLUMNS]

    def _steps(self, times_ms: Instants, memory_bytes: FloatArray, limit: float, interval_seconds: float) -> _Told:
        step_seconds = max(_STEP_SECONDS, interval_seconds)
        floor = self._settings.coverage_floor
        known = ~np.isnan(memory_bytes)
        if not known.any():
            return _withhold("no valid memory_used_bytes in the window")
        span = (times_ms[-1] - times_ms[0]) / 1000 + interval_seconds
        coverage = min(1.0, float(known.sum()) * interval_seconds / span)
        if not math.isfinite(limit):
            return _withhold("no limit known: neither memory_quota_bytes nor the memory of the card", coverage)
        if span < _FEWEST_STEPS * step_seconds:
            return _withhold(f"less than {_FEWEST_STEPS * step_seconds / 3600:g} h of memory samples", coverage)
        if coverage < floor:
            return _withhold(f"coverage {coverage:.0%} is below the floor {floor:.0%}", coverage)
        step_ms = round(step_seconds * 1000)
        steps = times_ms[known] // step_ms
        first = run_starts(steps)
        return _Told(steps[first] * step_ms, np.maximum.reduceat(memory_bytes[known], first), coverage)

    def conclude(self, measures: pd.DataFrame, context: Context) -> Conclusion:
        """Forecast every slice at once, and claim what passes its limit with a probability of one half or more."""
        if measures.empty:
            return Conclusion([], [])
        withheld = [
            Withheld(
                CODE, row["cluster"], row["node"], row["gpu"], row["slice"], row["withheld"], bool(row["applicable"])
            )
            for row in records(measures[measures["withheld"] != ""])
        ]
        usable = measures[measures["withheld"] == ""].sort_values([*_KEY, "time"], kind="stable", ignore_index=True)
        if usable.empty:
            return Conclusion([], withheld)
        series = usable.groupby(_KEY, sort=True).ngroup().map("{:08d}".format)
        history = pd.DataFrame({"series": series, "time": usable["time"], "value": usable["used_bytes"]})
        forecaster = LoadForecaster(step=timedelta(seconds=max(_STEP_SECONDS, context.interval_seconds)))
        horizons = [timedelta(hours=hours) for hours in _HOURS]
        said = forecaster.fit(history).forecast(history, context.window.end, horizons, LEVELS)
        newest = usable.assign(series=series).drop_duplicates("series", keep="last")
        slices = {str(row["series"]): row for row in records(newest)}
        found: dict[str, tuple[Outlook, pd.DataFrame]] = {}
        for name, rows in said.groupby("series", sort=True):
            outlook = outlook_of(rows, float(slices[str(name)]["limit_bytes"]))
            if outlook.probability >= _SUSPECTED and math.isfinite(outlook.middle):
                found[str(name)] = outlook, rows
        judged = _judge(history[history["series"].isin(list(found))])
        findings = [
            _finding(slices[name], outlook, rows, judged.get(name), context) for name, (outlook, rows) in found.items()
        ]
        return Conclusion(findings, withheld)


def probability_above(values: FloatArray, limit: float) -> float:
    """Return the share of a forecast distribution above `limit`.

    Linear between the quantiles `values` (sorted); what lies exactly at the limit is not above it.
    """
    at = int(np.searchsorted(values, limit, side="right"))
    if at == 0:
        return 1.0
    if at == len(values):
        return 0.0
    share = float((limit - values[at - 1]) / (values[at] - values[at - 1]))
    return 1.0 - (LEVELS[at - 1] + share * (LEVELS[at] - LEVELS[at - 1]))


def _limits(partition: Partition, present: pd.DataFrame) -> dict[tuple[str, str, str, str], tuple[float, str]]:
    totals = _card_memory(partition)
    fields = ["memory_used_bytes", *([q] if (q := "memory_quota_bytes") in present.columns else [])]
    newest = records(present.groupby(_KEY, observed=True, sort=True)[fields].last().reset_index())
    on_card: dict[str, float] = {}
    for row in newest:
        on_card[row["gpu"]] = on_card.get(row["gpu"], 0.0) + row["memory_used_bytes"]
    limits = {}
    for row in newest:
        total, quota = totals.get(row["gpu"], math.nan), float(row.get("memory_quota_bytes", math.nan))
        if math.isfinite(quota):
            limit = float(np.fmin(quota, total)), "quota"
        else:
            others = on_card[row["gpu"]] - row["memory_used_bytes"]
            limit = float(total - others), "card"
        limits[str(row["cluster"]), str(row["node"]), str(row["gpu"]), str(row["slice"])] = limit
    return limits


def _card_memory(partition: Partition) -> dict[str, float]:
    # From the rows, used + free; a fact, where there is one, knows better.
    sizes: dict[str, float] = {}
    if {"memory_used_bytes", "memory_free_bytes"} <= set(partition.gpu.columns):
        both = partition.gpu["memory_used_bytes"] + partition.gpu["memory_free_bytes"]
        sizes = {str(gpu): float(size) for gpu, size in both.groupby(partition.gpu["gpu"], observed=True).max().items()}
    facts = hardware_facts(partition.facts, "gpu", "memory_total_bytes") if len(partition.facts) else {}
    return sizes | {key[2]: to_float(value) for key, value in facts.items()}


def outlook_of(rows: pd.DataFrame, limit: float) -> Outlook:
    """Return what the forecast of one series, at `LEVELS`, says of passing `limit`."""
    table = rows.pivot(index="horizon_seconds", columns="quantile", values="value").sort_index()
    values, seconds = table.to_numpy(np.float64), table.index.to_numpy(np.float64)

    def until(level: float) -> float:
        above = values[:, LEVELS.index(level)] > limit
        return float(seconds[above.argmax()]) if above.any() else math.inf

    return Outlook(max(probability_above(path, limit) for path in values), until(0.5), until(0.9), until(0.1))


def _judge(history: pd.DataFrame) -> dict[str, dict[str, Any]]:
    if history.empty:
        return {}
    table = backtest(history, [timedelta(hours=6)], origins=12)
    return {str(row["series"]): row for row in records(table)}


def _finding(
    row: Mapping[str, Any],
    outlook: Outlook,
    rows: pd.DataFrame,
    judged: Mapping[str, Any] | None,
    context: Context,
) -> Finding:
    note = str(rows["reason"].iloc[0])
    sure = outlook.probability >= _HOLDS and SHORT not in note
    holder = {name: str(row[name]) for name in (*_KEY, "tenant", "workload")}
    when = context.window.end + timedelta(seconds=outlook.middle)
    limit, used = float(row["limit_bytes"]), float(row["used_bytes"])
    what = "its quota" if row["limit"] == "quota" else "what the card has left"
    farthest = rows[rows["horizon_seconds"] == rows["horizon_seconds"].max()]
    evidence: dict[str, Any] = {
        "used_bytes": used,
        "limit_bytes": limit,
        "limit": str(row["limit"]),
        "probability": outlook.probability,
        "when": when,
        "horizon_seconds": float(farthest["horizon_seconds"].iloc[0]),
        "forecast_bytes": dict(zip(map("{:g}".format, farthest["quantile"]), farthest["value"], strict=True)),
        "note": note,
    }
    if judged is not None:
        evidence["backtest"] = {n: judged[n] for n in ("horizon_seconds", "count", "mae", "mae_last", "coverage_80")}
    return make_finding(
        CODE,
        Verdict.HOLDS if sure else Verdict.SUSPECTED,
        (SubjectRef(Role.SUBJECT, **holder),),
        context.window,
        claim=(
            f"{row['tenant']}/{row['workload']} will use more memory than {what} ({_gib(limit)}) around "
            f"{_minute(when)}, probability {outlook.probability:.0%}; now it uses {_gib(used)}"
        ),
        risk=_RISK,
        confidence=outlook.probability,
        coverage=float(row["coverage"]),
        effect=Effect(outlook.middle, "seconds", outlook.earliest, outlook.latest),
        evidence=evidence,
        simulated=context.simulated,
    )


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"


def _minute(instant: datetime) -> str:
    return f"{instant:%Y-%m-%d %H:%M} UTC"
