"""The days ahead: what the fleet and its largest workloads will need, and how wrong such forecasts were."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

import pandas as pd

from analyzer.facts import records
from analyzer.forecast import FLEET
from dashboard import svg
from dashboard.report.claims import claims_table
from dashboard.report.gathered import Gathered
from dashboard.report.model import Claim, ForecastLine, ForecastPart
from dashboard.report.view import (
    MOST_ROWS,
    Block,
    Cell,
    Drawing,
    Figure,
    Key,
    Note,
    Section,
    Table,
    more,
    numbers,
    text,
)
from dashboard.views.text import NO_DATA, number, percent, stamp

_LOW, _MEDIAN, _HIGH = "0.1", "0.5", "0.9"
_MOST_TICKS = 6


def build_forecast(gathered: Gathered) -> ForecastPart:
    """Join forecasts with their back-test, the fleet first."""
    times, values = gathered.past["time"], gathered.past["value"]
    past = tuple((time.to_pydatetime(), float(value)) for time, value in zip(times, values, strict=True))
    outlook = gathered.outlook
    if outlook is None:
        return ForecastPart(None, (), past, gathered.no_outlook)
    lines = []
    for _, rows in outlook.forecasts.groupby(["series", "horizon_seconds"], dropna=False, sort=True):
        series, length = str(rows["series"].iloc[0]), float(rows["horizon_seconds"].iloc[0])
        known = [row for row in records(rows) if not math.isnan(row["value"])]
        error, relative, coverage = _errors(outlook.errors, series, length)
        lines.append(
            ForecastLine(
                series=series,
                horizon_seconds=length,
                target_time=None if math.isnan(length) else outlook.made_at + timedelta(seconds=length),
                quantiles={f"{row['quantile']:g}": float(row["value"]) for row in known},
                error=error,
                relative_to_last=relative,
                coverage_80=coverage,
                note="; ".join(dict.fromkeys(str(reason) for reason in rows["reason"] if reason)),
            )
        )
    lines.sort(key=lambda line: (line.series != FLEET, line.series, line.horizon_seconds))
    return ForecastPart(outlook.made_at, tuple(lines), past, "")


def _errors(errors: pd.DataFrame, series: str, length: float) -> tuple[float, float, float]:
    if errors.empty:
        return math.nan, math.nan, math.nan
    about = errors[(errors["series"] == series) & (errors["horizon_seconds"] == length)]
    if about.empty:
        return math.nan, math.nan, math.nan
    row = about.iloc[0]
    return float(row["mae"]), float(row["relative_to_last"]), float(row["coverage_80"])


def forecast_section(part: ForecastPart, risks: Sequence[Claim], cards: int) -> Section:
    """Show the fleet as a fan, a table of the largest series, and what is about to run out."""
    blocks: list[Block] = []
    if part.made_at is None:
        blocks.append(Note(f"There is no forecast: {part.missing}."))
    else:
        fleet = [line for line in part.lines if line.series == FLEET and {_LOW, _MEDIAN, _HIGH} <= set(line.quantiles)]
        if fleet:
            blocks.append(_fan(part.made_at, part.past, fleet, cards))
        if part.lines:
            blocks += [_table(part.lines), *_notes(part.lines)]
    if risks:
        blocks.append(claims_table(risks, "What is about to run out"))
    return Section("forecast", "The days ahead", tuple(blocks))


def _table(lines: Sequence[ForecastLine]) -> Table:
    horizons = sorted({line.horizon_seconds for line in lines if not math.isnan(line.horizon_seconds)})
    of_series: dict[str, dict[float, ForecastLine]] = {}
    for line in lines:
        of_series.setdefault(line.series, {})[line.horizon_seconds] = line
    names = sorted(of_series, key=lambda name: (name != FLEET, -_most(of_series[name].values()), name))
    rows: list[tuple[Cell, ...]] = []
    for name in names[:MOST_ROWS]:
        own = of_series[name]
        shown = [own[ahead] for ahead in horizons if ahead in own]
        tested = next((line for line in shown if not math.isnan(line.error)), None)
        rows.append(
            (
                name,
                *(_amount(own.get(ahead)) for ahead in horizons),
                NO_DATA if tested is None else f"{number(tested.error, digits=2)} at {_ahead(tested.horizon_seconds)}",
                NO_DATA if tested is None else _beside(tested.relative_to_last),
            )
        )
    return Table(
        (*text("series"), *numbers(*(f"in {_ahead(ahead)}" for ahead in horizons), "own error", "vs no change")),
        tuple(rows),
        "Cards that will be used: median, and the range of 80 % of the time. Beside it how far such forecasts were off "
        "in the past, and whether that is better than to assume that nothing changes",
        more(len(names), "workload"),
    )


def _ahead(length: float) -> str:
    return f"{length / 3600:g} h"


def _beside(relative: float) -> str:
    if math.isnan(relative):
        return NO_DATA
    return f"{percent(1 - relative)} better" if relative <= 1 else f"{percent(relative - 1)} worse"


def _most(lines: Iterable[ForecastLine]) -> float:
    values = [value for line in lines for value in line.quantiles.values()]
    return max(values, default=0.0)


def _amount(line: ForecastLine | None) -> str:
    if line is None or _MEDIAN not in line.quantiles:
        return NO_DATA
    band = [number(line.quantiles[q], digits=2) for q in (_LOW, _HIGH) if q in line.quantiles]
    return f"{number(line.quantiles[_MEDIAN], digits=2)} ({' to '.join(band)})"


def _notes(lines: Sequence[ForecastLine]) -> list[Note]:
    notes: dict[str, set[str]] = {}
    for line in lines:
        if line.note:
            notes.setdefault(line.note, set()).add(line.series)
    return [Note(f"{note[:1].upper()}{note[1:]} ({len(names)} series).") for note, names in sorted(notes.items())]


def _fan(
    made_at: datetime, past: Sequence[tuple[datetime, float]], fleet: Sequence[ForecastLine], cards: int
) -> Figure:
    begin = past[0][0] if past else made_at
    end = made_at + timedelta(seconds=max(line.horizon_seconds for line in fleet))
    span = (end - begin).total_seconds()
    known = [value for _, value in past if not math.isnan(value)]
    top = max(*known, *(line.quantiles[_HIGH] for line in fleet), float(cards), 0.1)

    def across(instant: datetime) -> float:
        return (instant - begin).total_seconds() / span

    steps = [svg.Step(across(made_at), *([known[-1] / top] * 3))] if known else []
    steps += [
        svg.Step(
            across(made_at + timedelta(seconds=line.horizon_seconds)),
            *(line.quantiles[q] / top for q in (_LOW, _MEDIAN, _HIGH)),
        )
        for line in fleet
    ]
    label = f"Cards used by the fleet until {stamp(made_at)}, and what may come after"
    chart = svg.fan(
        [(across(instant), value / top) for instant, value in past],
        steps,
        ticks=_ticks(begin, end),
        sides=[svg.Tick(cards / top, f"{cards} cards, all there are"), svg.Tick(cards / top / 2, number(cards / 2))],
        label=label,
    )
    legend = (Key("past", "used"), Key("median", "forecast, median"), Key("band", "80 % of the time"))
    return Figure(Drawing(chart), label, legend)


def _ticks(begin: datetime, end: datetime) -> list[svg.Tick]:
    hours = (end - begin).total_seconds() / 3600
    step = next((step for step in (3, 6, 12, 24, 48) if hours / step <= _MOST_TICKS), 48)
    day = begin.replace(hour=0, minute=0, second=0, microsecond=0)
    count = math.ceil((end - day).total_seconds() / 3600 / step) + 1
    places = [day + timedelta(hours=step * i) for i in range(count)]
    return [
        svg.Tick((t - begin) / (end - begin), f"{t:%a} {t.day}" if t.hour == 0 else f"{t:%H:%M}")
        for t in places
        if begin <= t <= end
    ]
