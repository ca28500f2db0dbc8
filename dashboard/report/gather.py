"""What the report is made of, read out of store and state; nothing here writes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import pandas as pd
from sqlalchemy.exc import DBAPIError

from analyzer.forecast import FLEET
from collector.clock import grid_floor
from collector.errors import TrimtabError
from collector.protocols import StoreReader
from collector.window import Window, parse_duration
from dashboard.config import Settings
from dashboard.outlook import USED, Outlook, alive_series, look_ahead, read_history
from dashboard.report.gathered import Gathered, TunerRecords
from dashboard.report.services import window_seconds
from tuner.outcome import list_outcomes
from tuner.record import WAITING_STATES, WRITTEN_STATES
from tuner.service.analyse import Analysis, load_detectors, run_analysis
from tuner.service.defragment import plan_moves, present_fleet
from tuner.service.moves_plan import Objective
from tuner.state import State, count_states, list_drops, list_groups, list_suppressions

WEEK = timedelta(days=7)
_MOST_GROUPS = 500
_MOST_DROPS = 100_000
_ENERGY = ("cluster", "node", "gpu", "slice", "tenant", "workload", "joules")
_CARD = ["cluster", "node", "gpu"]
# A card counts as seen in an interval in which any of these has a value.
_SEEN_BY = ("busy_ratio", "sm_active_ratio", "engine_active_ratio", "memory_used_bytes", "power_watts")


def gather(
    store: StoreReader,
    open_records: Callable[[], State | None],
    settings: Settings,
    window: Window,
    *,
    interval_seconds: float,
    analysis: Analysis | None = None,
) -> Gathered:
    """Read everything about a window.

    Args:
        store: where rows come from.
        open_records: opens the state database; None where there is none.
        settings: all tables.
        window: what the report is about.
        interval_seconds: grid of the rows.
        analysis: of that window, where there is one already.
    """
    outlook, past, no_outlook = _look_ahead(store, settings, window, interval_seconds)
    if analysis is None:
        analysis = run_analysis(
            store,
            window,
            interval_seconds=interval_seconds,
            settings=settings.analyze,
            detectors=load_detectors(settings.analyze),
            declarations=settings.workload,
        )
    fleet = present_fleet(
        store,
        window,
        analysis.declarations,
        interval_seconds=interval_seconds,
        settings=settings.analyze,
        findings=analysis.findings,
    )
    plans = [plan_moves(fleet, objective) for objective in (Objective.DEMAND, Objective.FREE_CARDS)]
    objectives = [p.declaration.objective for p in analysis.declarations.values()]
    lengths = sorted({window_seconds(o, interval_seconds) for o in objectives if o is not None})
    records, no_records = _records(open_records, window)
    return Gathered(
        analysis=analysis,
        interval_seconds=interval_seconds,
        facts=store.facts(window),
        served={length: read_served(store, window, length, interval_seconds) for length in lengths},
        queues=store.read("queue", window),
        samples=_samples(store, window),
        rejects=store.rejects(window),
        events=store.events(window),
        energy=analysis.accounts[list(_ENERGY)].dropna(subset=["joules"]).reset_index(drop=True),
        outlook=outlook,
        past=past,
        no_outlook=no_outlook,
        records=records,
        no_records=no_records,
        mode=settings.tuner.mode.value,
        plans=plans if fleet.fleet.cards or fleet.left_out else [],
    )


def read_served(store: StoreReader, window: Window, length_seconds: float, interval_seconds: float) -> pd.DataFrame:
    """Return how many requests each workload finished, and within the objective, per window of an objective.

    Returns:
        Columns time, cluster, tenant, workload, requests, within (NaN: not reported), p99 (the highest, in seconds).
    """
    rows = store.read(
        "slice",
        window,
        fields=["requests_per_second", "within_objective_per_second", "latency_p99_seconds"],
        by=["cluster", "tenant", "workload"],
        every=timedelta(seconds=length_seconds),
        aggregate={
            "requests_per_second": "sum",
            "within_objective_per_second": "sum",
            "latency_p99_seconds": "max",
        },
    )
    rates = rows[["requests_per_second", "within_objective_per_second"]] * interval_seconds
    return pd.DataFrame(
        {
            "time": rows["time"],
            "cluster": rows["cluster"],
            "tenant": rows["tenant"],
            "workload": rows["workload"],
            "requests": rates["requests_per_second"],
            "within": rates["within_objective_per_second"],
            "p99": rows["latency_p99_seconds"],
        }
    )


def report_window(store: StoreReader, now: datetime | None, interval_seconds: float) -> Window | None:
    """Return the week that ends at `now`, else with the newest row, cut to where rows begin; None: there are none."""
    spans = [span for name in ("gpu", "slice", "queue") if (span := store.span(name)) is not None]
    if not spans:
        return None
    newest = max(span.end for span in spans) - timedelta(milliseconds=1)
    end = now if now is not None else grid_floor(newest, interval_seconds) + timedelta(seconds=interval_seconds)
    start = max(end - WEEK, min(span.start for span in spans))
    return Window(start, end) if start < end else None


def _samples(store: StoreReader, window: Window) -> pd.DataFrame:
    counts = store.read("gpu", window, fields=list(_SEEN_BY), by=_CARD, aggregate="count")
    return counts[_CARD].assign(samples=counts[list(_SEEN_BY)].max(axis=1))


def _look_ahead(
    store: StoreReader, settings: Settings, window: Window, interval_seconds: float
) -> tuple[Outlook | None, pd.DataFrame, str]:
    """Forecast the fleet and every workload that is alive; say why where that cannot be."""
    history = read_history(store, window.end, USED, settings.forecast, interval_seconds)
    past = history[(history["series"] == FLEET) & (history["time"] >= window.start)][["time", "value"]]
    if not history["value"].notna().any():
        return None, past, "no slice told how much of its card it uses"
    wanted = {name for name in alive_series(history) if "#" not in name}
    horizons = [parse_duration(text) for text in settings.forecast.horizons]
    return look_ahead(history[history["series"].isin(wanted)], horizons, settings.forecast), past, ""


def _records(open_records: Callable[[], State | None], window: Window) -> tuple[TunerRecords | None, str]:
    try:
        state = open_records()
    except TrimtabError as error:
        return None, f"the state database could not be read: {error}"
    if state is None:
        return None, "the tuner has not run yet"
    try:
        return (
            TunerRecords(
                counts=count_states(state, since=window.start),
                # In recommend mode every cycle writes its advice down again: that must not crowd out what was done.
                groups=[
                    record
                    for states in (WRITTEN_STATES, WAITING_STATES)
                    for record in list_groups(state, states=states, since=window.start, limit=_MOST_GROUPS)
                ],
                drops=list_drops(state, since=window.start, limit=_MOST_DROPS),
                outcomes=list_outcomes(state, since=window.start),
                suppressions=list_suppressions(state),
            ),
            "",
        )
    except DBAPIError as error:
        return None, f"the state database could not be read: {error.orig}"
    finally:
        state.close()
