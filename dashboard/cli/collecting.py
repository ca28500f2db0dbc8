"""Rows in: collect and import; rows out: export; the store itself."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer

from collector.errors import ConfigurationError
from collector.plugins import SourceContext, load_plugin
from collector.protocols import Source
from collector.settings import SourceSettings
from dashboard.cli.context import Now, Once, context_of, instant, opened_store
from dashboard.cli.logs import start_logging
from dashboard.cli.output import note
from dashboard.config import Settings

PANEL = "Collect"


def register(app: typer.Typer) -> None:
    """Add the commands to the root."""
    app.command(rich_help_panel=PANEL)(collect)


def collect(
    ctx: typer.Context,
    *,
    target: Annotated[
        list[str] | None,
        typer.Option("--target", metavar="URL", help="An exporter to scrape; may be given several times."),
    ] = None,
    prometheus: Annotated[
        str | None, typer.Option("--prometheus", metavar="URL", help="A Prometheus server to ask instead.")
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option("--interval", metavar="SECONDS", min=1, help="Length of a cycle; else that of [cluster]."),
    ] = None,
    once: Once = False,
    now: Now = None,
) -> None:
    """Read the sources into the store, again and again until stopped; Ctrl-C loses nothing.

    Without --target or --prometheus the [[source]] tables are read.
    """
    from collector.collect import Collector  # noqa: PLC0415  HTTP and Prometheus clients load slowly

    context = context_of(ctx)
    if now is not None and not once:
        raise ConfigurationError("--now speaks of one cycle; expected --once beside it, found none; add --once")
    start_logging(context.settings.log)
    seconds = interval if interval is not None else context.settings.cluster.interval_seconds
    sources = make_sources(chosen_sources(context.settings, target or [], prometheus), context.settings, seconds)
    with opened_store(context, read_only=False) as store:
        collector = Collector(sources, store, context.clock, seconds)
        if once:
            collector.run_once(instant(now))
            return
        for source in sources:
            about = source.describe()
            note(f"{about.kind} {about.name}: {', '.join(about.targets) or 'no targets'}, every {seconds:g} s")
        with stopped_by_signals() as stop:
            collector.run(stop)
        note("stopped; every row that was read is in the store")
        if stop.by_interrupt:
            raise typer.Exit(130)


def chosen_sources(settings: Settings, targets: Sequence[str], prometheus: str | None) -> tuple[SourceSettings, ...]:
    """Return what the options name, else the configured tables.

    Raises:
        ConfigurationError: neither names anything, or an address is none.
    """
    for address in (*targets, *([prometheus] if prometheus else [])):
        if not address.startswith(("http://", "https://")):
            raise ConfigurationError(f"expected an address such as http://node1:9400/metrics, got {address!r}")
    chosen = []
    if targets:
        chosen.append(SourceSettings(kind="scrape", name="targets", targets=tuple(targets)))
    if prometheus:
        chosen.append(SourceSettings(kind="prometheus", name="prometheus", url=prometheus))
    chosen = chosen or list(settings.source)
    if not chosen:
        raise ConfigurationError("nothing to collect from: expected --target, --prometheus or a [[source]] table")
    return tuple(chosen)


def make_sources(chosen: Sequence[SourceSettings], settings: Settings, interval_seconds: float) -> list[Source]:
    """Build the plug-ins of the source tables."""
    about = SourceContext(
        cluster=settings.cluster.name,
        interval_seconds=interval_seconds,
        declarations=settings.workload,
        tenants=settings.tenant,
        mappings=settings.mapping,
    )
    return [load_plugin("trimtab.sources", source.kind)(source, about) for source in chosen]


class Stop(threading.Event):
    """Set by a signal; `by_interrupt` says whether that was Ctrl-C."""

    by_interrupt = False


@contextmanager
def stopped_by_signals() -> Iterator[Stop]:
    """Give an event that SIGINT and SIGTERM set; a second Ctrl-C interrupts at once."""
    stop = Stop()

    def on_signal(number: int, _frame: object) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.by_interrupt = number == signal.SIGINT
        stop.set()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
