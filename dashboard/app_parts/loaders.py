"""Cached ways from configuration, store and state to what the pages show.

Frames are bounded in age and number; an open store or state stays open until another takes its place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from analyzer.ledger import Ledger
from collector.clock import SystemClock
from collector.errors import UnreachableError
from collector.influx.store import open_store
from collector.protocols import StoreReader
from collector.window import Window
from dashboard.cli.context import interval_of, whole_span
from dashboard.config import Settings, find_file, load_settings
from dashboard.views.findings import Claims, stored_claims, worst_first
from dashboard.views.fleet import NOW
from dashboard.views.forecast import Ahead, read_ahead
from dashboard.views.holders import read_holders
from dashboard.views.reading import Look, look
from tuner import killswitch
from tuner.killswitch import Pause
from tuner.record import ChangeState, Drop, GroupRecord
from tuner.service.analyse import Analysis, load_detectors, run_analysis
from tuner.service.defragment import plan_moves, present_fleet
from tuner.service.moves_plan import MovesPlan, Objective
from tuner.state import State, list_drops, list_groups, open_state
from tuner.state.plans import latest_plan_id, newest_notes, waiting_groups

LIVE = timedelta(seconds=30)
HEAVY = timedelta(minutes=5)
LONGEST_ANALYSIS = timedelta(days=1)  # a longer one takes more than a person waits for


@dataclass(frozen=True, slots=True)
class Opened:
    """A store, and which files it was opened on: a store that was made anew is opened anew."""

    store: StoreReader
    mark: tuple[str, int]


def settings() -> Settings:
    """Return the configuration; a changed file is read again."""
    path = find_file(None)
    return _settings(str(path or ""), path.stat().st_mtime_ns if path is not None else 0)


@st.cache_resource(max_entries=2, ttl=timedelta(minutes=1))
def _settings(path: str, _changed: int) -> Settings:
    return load_settings(Path(path) if path else None).settings


def store() -> StoreReader | None:
    """Return the configured store, open for reading; None where there is none yet."""
    path = settings().store.path
    # Without one on this host, InfluxDB alone is read where it is configured.
    mark = _mark(path) or ((settings().influx.url, 0) if settings().influx.url else None)
    if mark is None:
        return None
    try:
        return _opened(mark).store
    except UnreachableError:
        return None


def _mark(path: Path) -> tuple[str, int] | None:
    try:
        return str(path.resolve()), path.stat().st_ino
    except OSError:
        return None


@st.cache_resource(max_entries=2, on_release=lambda opened: opened.store.close())
def _opened(mark: tuple[str, int]) -> Opened:
    return Opened(open_store(settings().influx, settings().store, read_only=True), mark)


def state() -> State | None:
    """Return the configured state database; None where nothing was ever written to one."""
    found = settings().state
    if found.url:
        return _state(found.url, 0)
    try:
        return _state(str(found.path.resolve()), found.path.stat().st_ino)
    except OSError:
        return None


@st.cache_resource(max_entries=2, on_release=lambda opened: opened.close())
def _state(_address: str, _inode: int) -> State:
    return open_state(settings().state)


def present() -> datetime | None:
    """Return the present where rows are expected to keep coming; None where nothing is configured to bring them."""
    return SystemClock().now() if settings().source else None


def pause() -> Pause:
    """Return what the kill switch says; never cached."""
    return killswitch.read(settings().state.kill_switch)


def look_at(span: timedelta) -> Look | None:
    """Return the last `span` of the store; None without a store or without rows."""
    opened = store()
    return None if opened is None else _look(_key(), span)


def _key() -> tuple[str, int]:
    mark = _mark(settings().store.path)
    assert mark is not None, "asked for only while a store is open"  # noqa: S101
    return mark


@st.cache_data(ttl=timedelta(seconds=5), max_entries=16, show_spinner=False)
def _look(key: tuple[str, int], span: timedelta) -> Look | None:
    opened = _opened(key).store
    return look(opened, span, interval_of(opened, settings().cluster.interval_seconds))


def holders(window: Window, interval_seconds: float) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return holdings and cards of a window; see `read_holders`."""
    return _holders(_key(), window, interval_seconds)


@st.cache_data(ttl=HEAVY, max_entries=12, show_spinner="Reading who holds what")
def _holders(key: tuple[str, int], window: Window, interval_seconds: float) -> tuple[pd.DataFrame, pd.DataFrame]:
    return read_holders(_opened(key).store, window, interval_seconds, settings().workload)


def read(function: Callable[..., Any], *arguments: object) -> Any:
    """Return `function(store, *arguments)`, cached for a short while by the function's name and its arguments."""
    return _read(_key(), f"{function.__module__}.{function.__qualname__}", function, arguments)


@st.cache_data(ttl=LIVE, max_entries=64, show_spinner="Reading rows")
def _read(
    key: tuple[str, int],
    name: str,  # noqa: ARG001  it stands for the function, which has no hash of its own
    _function: Callable[..., Any],
    arguments: tuple[object, ...],
) -> Any:
    return _function(_opened(key).store, *arguments)


def ledger(span: timedelta) -> Ledger:
    """Return the ledger of the last `span`; an old one is shown while a new one is made."""
    return survey(span).ledger


def survey(span: timedelta) -> Analysis:
    """Return ledger, accounts of slices, what is free and who waits: an analysis without findings is a quick one."""
    return _survey(_key(), span)


@st.cache_data(ttl=HEAVY, max_entries=6, refresh_mode="background", show_spinner="Adding up where the capacity went")
def _survey(key: tuple[str, int], span: timedelta) -> Analysis:
    return _analyse(key, span, with_detectors=False)


def analysis(span: timedelta) -> Analysis:
    """Return a full analysis of the last `span`; an old one is shown while a new one is made."""
    return _analysis(_key(), span)


@st.cache_data(ttl=HEAVY, max_entries=3, refresh_mode="background", show_spinner="Analysing: this takes a while")
def _analysis(key: tuple[str, int], span: timedelta) -> Analysis:
    return _analyse(key, span, with_detectors=True)


def _analyse(key: tuple[str, int], span: timedelta, *, with_detectors: bool) -> Analysis:
    found = settings()
    seen = _look(key, span)
    if seen is None:
        raise UnreachableError("expected rows in the store, found none; run `trimtab doctor`")
    return run_analysis(
        _opened(key).store,
        seen.window,
        interval_seconds=seen.interval_seconds,
        settings=found.analyze,
        detectors=load_detectors(found.analyze) if with_detectors else {},
        declarations=found.workload,
        map_nodes=map,  # a page is one of many threads here, and starts no processes
    )


def moves(span: timedelta, objective: Objective) -> MovesPlan:
    """Return a plan of moves for the fleet as it stands, bound by what the analysis says."""
    return _moves(_key(), span, objective)


@st.cache_data(ttl=HEAVY, max_entries=4, show_spinner="Planning moves: a large fleet takes a minute")
def _moves(key: tuple[str, int], span: timedelta, objective: Objective) -> MovesPlan:
    found = _analyse(key, span, with_detectors=False)
    seen = _look(key, span)
    fleet = present_fleet(
        _opened(key).store,
        found.window,
        found.declarations,
        interval_seconds=settings().cluster.interval_seconds if seen is None else seen.interval_seconds,
        settings=settings().analyze,
        findings=claims(span).findings,
    )
    return plan_moves(fleet, objective)


def stored(span: timedelta) -> Claims:
    """Return what the tuner's analyses found within the last `span`; empty where none ran."""
    opened, seen = state(), look_at(span)
    return Claims() if opened is None or seen is None else stored_claims(opened, seen.window.start)


def claims(span: timedelta) -> Claims:
    """Return what was found within the last `span`: by the tuner where it ran, else by one made for this page."""
    found = stored(span)
    if found.as_of is not None:
        return found
    made = analysis(min(span, LONGEST_ANALYSIS))
    return Claims(worst_first(made.findings), made.window.end)


def changes(limit: int = 200) -> list[GroupRecord]:
    """Return everything that waits, and the newest changes; dropped ones left out."""
    opened = state()
    if opened is None:
        return []
    newest = list_groups(opened, states=[s for s in ChangeState if s is not ChangeState.DROPPED], limit=limit)
    known = {record.id for record in newest}
    return newest + [record for record in waiting_groups(opened) if record.id not in known]


def facts(window: Window) -> pd.DataFrame:
    """Return the facts that were valid at some time in a window."""
    found: pd.DataFrame = read(_facts, window)
    return found


def _facts(store: StoreReader, window: Window) -> pd.DataFrame:
    return store.facts(window)


def queues(seen: Look) -> pd.DataFrame:
    """Return the newest row of each queue."""
    found: pd.DataFrame = read(_queues, seen)
    return found


def _queues(store: StoreReader, seen: Look) -> pd.DataFrame:
    return store.latest("queue", at=seen.newest, lookback=NOW)


@dataclass(frozen=True, slots=True)
class NewestPlan:
    """The newest plan: its id, what guards did to it, its groups by id, and what the newest full cycle did not plan."""

    id: str
    drops: tuple[Drop, ...]
    groups: dict[str, GroupRecord]
    notes: tuple[str, ...] = ()


def newest_plan() -> NewestPlan | None:
    """Return the newest plan; None where none was made."""
    opened = state()
    found = None if opened is None else latest_plan_id(opened)
    if opened is None or found is None:
        return None
    groups = {record.id: record for record in list_groups(opened, plan_id=found, limit=1000)}
    return NewestPlan(found, tuple(list_drops(opened, plan_id=found)), groups, newest_notes(opened))


def ahead(field: str) -> Ahead:
    """Return the forecasts of a field; old ones are shown while new ones are made."""
    return _ahead(_key(), field)


@st.cache_data(ttl=HEAVY, max_entries=4, refresh_mode="background", show_spinner="Learning from the past")
def _ahead(key: tuple[str, int], field: str) -> Ahead:
    opened = _opened(key).store
    interval = interval_of(opened, settings().cluster.interval_seconds)
    return read_ahead(opened, whole_span(opened).end, field, settings().forecast, interval)
