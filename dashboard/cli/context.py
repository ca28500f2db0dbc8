"""What every command starts from: the configuration, the store, the instant that it speaks of."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from collector.clock import Clock, SystemClock
from collector.errors import InputRejectedError, TrimtabError, UnreachableError
from collector.plugins import load_plugin
from collector.schema import MEASUREMENTS
from collector.window import Window, parse_instant
from dashboard.cli.output import note
from dashboard.config import Loaded, Settings, load_settings
from dashboard.origin import is_simulated

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from collector.protocols import Store, StoreReader
    from tuner.state import State


def flag(*names: str, help: str) -> Any:  # noqa: A002  typer's word
    """Return a switch; the help lists it without a type."""
    return typer.Option(*names, help=help, metavar="")


Json = Annotated[bool, flag("--json", help="Print one JSON document on stdout.")]
Now = Annotated[
    str | None,
    typer.Option("--now", metavar="T", help="Act as if it were this instant (ISO 8601; UTC where it names no zone)."),
]
Rows = Annotated[
    list[Path] | None,
    typer.Option("--rows", metavar="PATH", help="Files of rows, or a folder that `export` wrote."),
]
Once = Annotated[bool, flag("--once", help="Run one cycle and end.")]


@dataclass
class Context:
    """Options that stand before every command, and what is made of them on first use."""

    config: Path | None = None
    debug: bool = False
    clock: Clock = field(default_factory=SystemClock)

    @cached_property
    def loaded(self) -> Loaded:
        """Settings with their origins."""
        return load_settings(self.config)

    @property
    def settings(self) -> Settings:
        """The settings."""
        return self.loaded.settings

    @property
    def has_state(self) -> bool:
        """Whether a state database was ever made (one behind an address is taken to exist)."""
        return bool(self.settings.state.url) or self.settings.state.path.exists()


def instant(now: str | None) -> datetime:
    """Return the instant that was asked for, else the present."""
    return SystemClock().now() if now is None else parse_instant(now)


def newest_instant(store: StoreReader, now: str | None, interval_seconds: float) -> datetime:
    """Return the instant that was asked for, else the end of the cycle of the store's newest row.

    Rows of a simulation or of an import end in the past: what is looked at then ends there as well.

    Raises:
        InputRejectedError: nothing was asked for and the store has no rows.
    """
    if now is not None:
        return parse_instant(now)
    newest = whole_span(store).end - timedelta(milliseconds=1)
    return newest + timedelta(seconds=interval_seconds)


def whole_span(store: StoreReader) -> Window:
    """Return the window from the oldest row to just after the newest.

    Raises:
        InputRejectedError: the store has no rows.
    """
    spans = [span for name in MEASUREMENTS if (span := store.span(name)) is not None]
    if not spans:
        raise InputRejectedError("expected rows in the store, found none; run `trimtab collect` or `trimtab import`")
    return Window(min(span.start for span in spans), max(span.end for span in spans))


def interval_of(store: StoreReader, configured: float, window: Window | None = None) -> float:
    """Return the length of a cycle: as the collector noted it, else as the rows of a window show it, else as given.

    Facts of cards tell the steps of imported logs; beside rows of a collector its cycle stays the cluster's.
    """
    noted = store.facts(window, names=["interval_seconds"])
    cycles = noted[noted["kind"] == "cluster"]
    if len(cycles) and (len(cycles) == len(noted) or _collected(store, window)):
        return float(cycles.sort_values("from")["value"].iloc[-1])
    name = "gpu" if store.span("gpu") else "slice"
    span = store.span(name)
    if span is None:
        return configured
    start, end = (span.start, span.end) if window is None else (window.start, min(span.end, window.end))
    for since in (max(start, end - timedelta(hours=1)), start):
        if since >= end:
            continue
        rows = store.read(name, Window(since, end), fields=[])
        key = [tag for tag in ("cluster", "node", "gpu", "slice") if tag in rows]
        steps = rows.groupby(key)["time"].diff().dropna().dt.total_seconds()
        if len(steps):
            return float(steps.median())
    return configured


def _collected(store: StoreReader, window: Window | None) -> bool:
    """Whether rows of a collector are in a window: unlike a log's they tell how old their source was."""
    field = "source_age_seconds"
    seen = store.read("gpu", window or whole_span(store), fields=[field], by=["cluster"], aggregate="count")
    return bool(seen[field].sum() > 0)


def answer_instant(context: Context) -> datetime:
    """Return the instant that an answer to the tuner is given at: the present, of simulated rows their end."""
    if context.settings.store.path.exists():
        try:
            with opened_store(context) as store:
                if is_simulated(store):
                    return newest_instant(store, None, interval_of(store, context.settings.cluster.interval_seconds))
        except TrimtabError as error:  # whoever says no or asks for a rollback needs no store
            note(f"answered at the present, for the store cannot be read: {error}")
    return context.clock.now()


def context_of(ctx: typer.Context) -> Context:
    """Return the root's Context."""
    found = ctx.find_object(Context)
    assert found is not None, "the root callback makes it"  # noqa: S101
    return found


@contextmanager
def opened_store(context: Context, *, read_only: bool = True) -> Iterator[Store]:
    """Open the configured store, with InfluxDB behind it where that is configured, and close it again."""
    settings = context.settings
    if settings.influx.url:
        store: Store = load_plugin("trimtab.stores", "influx")(settings.influx, settings.store, read_only=read_only)
    else:
        store = load_plugin("trimtab.stores", "embedded")(settings.store, read_only=read_only)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def opened_rows(context: Context, paths: Sequence[Path] | None) -> Iterator[StoreReader]:
    """Give the rows of files where some are named, else those of the configured store."""
    if paths:
        from collector.store import load_rows  # noqa: PLC0415

        yield load_rows(paths)
        return
    with opened_store(context) as store:
        yield store


@contextmanager
def opened_state(context: Context, *, make: bool = False) -> Iterator[State]:
    """Open the configured state database and close it again; unless it may be made, it must be there.

    Raises:
        UnreachableError: there is none yet.
    """
    if not make and not context.has_state:
        path = context.settings.state.path
        raise UnreachableError(f"expected a state database at {path}, found none; run `trimtab tune` first")
    from tuner.state import open_state  # noqa: PLC0415  SQLAlchemy and Alembic load slowly; --help must not

    state = open_state(context.settings.state)
    try:
        yield state
    finally:
        state.close()
