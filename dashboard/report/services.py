"""Promises to online services: how often each was kept."""

from __future__ import annotations

import math

import pandas as pd

from collector.declarations import OWNER, Objective, Owner
from dashboard import svg
from dashboard.report.gathered import Gathered
from dashboard.report.model import Service
from dashboard.report.view import (
    MOST_ROWS,
    Badge,
    Block,
    Cell,
    Drawing,
    Key,
    Note,
    Section,
    Table,
    Tone,
    drawn,
    more,
    numbers,
    text,
)
from dashboard.views.text import NO_DATA, number, percent, seconds

_TOLERANCE = 1e-9  # of the promised share: sums of rates do not end on round numbers
_LEGEND = (
    Key("good", "kept throughout the hour"),
    Key("fair", "95 % of it or more"),
    Key("poor", "less"),
    Key("absent", "no requests"),
)


def build_services(gathered: Gathered) -> tuple[Service, ...]:
    """Judge every workload with an objective, the worst first; those without figures come last."""
    found = []
    for owner, promise in sorted(gathered.analysis.declarations.items()):
        objective = promise.declaration.objective
        if objective is None:
            continue
        rows = gathered.served[window_seconds(objective, gathered.interval_seconds)]
        own = rows[(rows[OWNER] == list(owner)).all(axis=1)]
        found.append(_service(owner, objective, own, gathered))
    return tuple(sorted(found, key=lambda s: (math.isnan(s.kept_ratio), s.kept_ratio, s.cluster, s.tenant, s.workload)))


def window_seconds(objective: Objective, interval_seconds: float) -> float:
    """Return the length of one judged window: never shorter than a row."""
    return max(objective.window_seconds, interval_seconds)


def _service(owner: Owner, objective: Objective, rows: pd.DataFrame, gathered: Gathered) -> Service:
    asked = rows[rows["requests"] > 0]
    judged = asked[asked["within"].notna()]
    missing = ""
    if asked.empty:
        missing = "no requests were seen"
    elif len(judged) < len(asked) / 2:
        missing = "nobody told how many requests met the objective"
        judged = judged.iloc[:0]
    met = judged["within"] / judged["requests"] >= objective.share - _TOLERANCE
    hours = met.groupby(judged["time"].dt.floor("h")).mean().to_dict()
    window = gathered.analysis.window
    span = pd.date_range(pd.Timestamp(window.start).floor("h"), window.end, freq="h", inclusive="left")
    count = float(judged["requests"].sum())
    worst = float(rows["p99"].max())  # NaN where no row has one
    cluster, tenant, workload = owner
    several = len({cluster for cluster, _, _ in gathered.analysis.declarations}) > 1
    return Service(
        name="/".join(owner if several else owner[1:]),
        cluster=cluster,
        tenant=tenant,
        workload=workload,
        quantity=objective.quantity,
        share=objective.share,
        bound_seconds=objective.bound_seconds,
        window_seconds=window_seconds(objective, gathered.interval_seconds),
        requests=math.nan if missing else count,
        within_ratio=float(judged["within"].sum()) / count if count > 0 else math.nan,
        windows=len(judged),
        kept_ratio=float(met.mean()) if len(met) else math.nan,
        worst_p99_seconds=worst,
        by_hour=tuple((hour.to_pydatetime(), float(hours.get(hour, math.nan))) for hour in span),
        missing=missing,
    )


def kept_tone(ratio: float) -> Tone:
    """Return the colour of a kept ratio."""
    if math.isnan(ratio):
        return "plain"
    return "good" if ratio >= 0.999 else "fair" if ratio >= 0.95 else "poor"


def services_section(services: tuple[Service, ...], undeclared: tuple[str, ...]) -> Section:
    """Show each service with its promise, and how it was kept hour by hour."""
    blocks: list[Block] = []
    if services:
        lengths = sorted({s.window_seconds for s in services})
        window = seconds(lengths[0]) if len(lengths) == 1 else f"{seconds(lengths[0])} to {seconds(lengths[-1])}"
        blocks.append(
            Table(
                (
                    *text("service"),
                    *numbers("kept"),
                    *drawn("hour by hour"),
                    *text("promise"),
                    *numbers("requests", "in time", "worst p99"),
                ),
                tuple(_row(s) for s in services[: 2 * MOST_ROWS]),
                f"Kept: of the windows of {window} with requests, those in which the promised share met the bound",
                more(len(services), "service", 2 * MOST_ROWS),
                _LEGEND,
            )
        )
    else:
        blocks.append(Note("No workload has a declared promise: declare one with [[workload]] or an annotation."))
    if undeclared:
        names = ", ".join(undeclared[:5]) + (f" and {len(undeclared) - 5} more" if len(undeclared) > 5 else "")
        blocks.append(Note(f"Nobody promised anything about {names}: treated as online, and never lowered."))
    return Section("services", "Promises to online services", tuple(blocks))


def _row(s: Service) -> tuple[Cell, ...]:
    name = s.name
    promise = f"{percent(s.share, 1).replace('.0 ', ' ')} {s.quantity} within {seconds(s.bound_seconds)}"
    if s.missing:
        return (name, NO_DATA, s.missing, promise, NO_DATA, NO_DATA, NO_DATA)
    strip = svg.strip([ratio for _, ratio in s.by_hour], f"{name}: kept in {percent(s.kept_ratio, 1)} of its windows")
    return (
        name,
        Badge(percent(s.kept_ratio, 1), kept_tone(s.kept_ratio)),
        Drawing(strip),
        promise,
        number(s.requests),
        percent(s.within_ratio, 2),
        seconds(s.worst_p99_seconds),
    )
