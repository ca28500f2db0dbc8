"""Rows in: collect and import; rows out: export; the store itself."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collector.clock import Clock
from collector.errors import ConfigurationError, TrimtabError, UnreachableError
from collector.masking import mask_address
from collector.memory import one_heap_for_all_threads
from collector.plugins import load_plugin
from collector.protocols import Source
from collector.settings import SourceSettings, TargetSettings
from collector.sharding import Shard
from collector.window import LONGEST_SECONDS, Window
from collector.words import plural
from dashboard.cli.context import Now, Once, context_of, instant, opened_store
from dashboard.cli.logs import start_logging
from dashboard.cli.output import clean, note, progress_bars
from dashboard.cli.shipping import ship_once, shipping
from dashboard.config import Settings, source_context
from dashboard.doctor.check import some
from dashboard.stopping import stopped_by_signals

if TYPE_CHECKING:
    from rich.progress import TaskID

    from collector.protocols import SourceDescription, Store
    from collector.self_metrics import CollectorMetrics

PANEL = "Collect"
RETENTION_SECONDS = 3600.0
_LOG = logging.getLogger(__name__)


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
    nvml: Annotated[bool, typer.Option("--nvml", help="Read this host's cards through the NVIDIA driver.")] = False,
    interval: Annotated[
        float | None,
        typer.Option(
            "--interval",
            metavar="SECONDS",
            min=1,
            max=LONGEST_SECONDS,
            help="Length of a cycle; else that of [cluster].",
        ),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(
            "--shard", metavar="N/M", help="Read only the N-th of M parts of the targets, each by one collector: 2/5."
        ),
    ] = None,
    once: Once = False,
    backfill: Annotated[
        float | None,
        typer.Option(
            "--backfill",
            metavar="DAYS",
            min=0.001,
            max=LONGEST_SECONDS / 86400.0,
            help="Fill in what the store lacks of the past days, from a Prometheus, and end.",
        ),
    ] = None,
    now: Now = None,
) -> None:
    """Read the sources into the store, again and again until stopped; Ctrl-C loses nothing.

    Without --target, --prometheus or --nvml the [[source]] tables are read.
    """
    from collector.collect import Collector  # noqa: PLC0415  HTTP and Prometheus clients load slowly
    from collector.influx.progress import CURSOR  # noqa: PLC0415  likewise
    from collector.self_metrics import CollectorMetrics  # noqa: PLC0415  likewise

    one_heap_for_all_threads()
    context = context_of(ctx)
    if once and backfill is not None:
        raise ConfigurationError("expected --once or --backfill, got both; keep one")
    if now is not None and not once and backfill is None:
        raise ConfigurationError("--now speaks of one cycle; expected --once beside it, found none; add --once")
    start_logging(context.settings.log)
    seconds = interval if interval is not None else context.settings.cluster.interval_seconds
    chosen = chosen_sources(context.settings, target or [], prometheus, nvml=nvml)
    part = Shard.parse(shard) if shard is not None else None
    sources = make_sources(chosen, context.settings, seconds, part)
    metrics = CollectorMetrics()
    with ExitStack() as stack:
        store = stack.enter_context(opened_store(context, read_only=False))
        stack.enter_context(closed_afterwards(sources))
        if backfill is not None:
            # What was scraped in the last cycle may not be there whole yet, and what is filled in stays.
            end = instant(now) if now is not None else context.clock.now() - timedelta(seconds=seconds)
            filled_in(sources, store, Window.last(end, timedelta(days=backfill)))
            return
        state = state_path(context.settings.store.path, part)
        stack.enter_context(only_collector(state))
        collector = Collector(sources, store, context.clock, seconds, state_path=state, metrics=metrics)
        if once:
            report = collector.run_once(instant(now))
            note(f"{plural(report.rows, 'row')}, {plural(report.rejects, 'reject')}, {plural(report.events, 'event')}")
            ship_once(store)
            if not report.rows:
                raise UnreachableError("no source gave a row; `trimtab doctor` says why")
            return
        for source in sources:
            note(source_text(source.describe(), seconds))
        metrics.watch_store(context.settings.store, CURSOR if context.settings.influx.url else "", context.clock)
        with (
            serving(metrics, context.settings.cluster.metrics_listen),
            stopped_by_signals() as stop,
            retention(store, context.clock, stop),
            shipping(store),
        ):
            collector.run(stop)
        if collector.unwritten:
            note(f"stopped; the store did not take the rows of {collector.unwritten} cycles: they are lost")
        else:
            note("stopped; every row that was read is in the store")
        if stop.by_interrupt:
            raise typer.Exit(130)


def source_text(about: SourceDescription, seconds: float) -> str:
    """Return one line on what is read; of thousands of targets the first few."""
    name = about.kind if about.name == about.kind else f"{about.kind} {about.name}"
    of = f" {plural(len(about.targets), 'target')}:" if len(about.targets) > 1 else ""
    return f"{name}:{of} {some(list(about.targets)) or 'no targets'}, every {seconds:g} s"


def state_path(folder: Path, part: Shard | None) -> Path:
    """Return the file of what a collector remembers.

    Counters of targets that another part read meanwhile would tell again what that one told: each part has its own.
    """
    return folder / ("collector.json" if part is None else f"collector.{part.number}-of-{part.count}.json")


@contextmanager
def only_collector(state: Path) -> Iterator[None]:
    """Keep a second collector from the same state for the block: both would tell each growth, and each write over it.

    The system gives the lock back when the process ends, however it ends.

    Raises:
        ConfigurationError: another process collects with it.
    """
    with state.with_suffix(".lock").open("a+", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise ConfigurationError(
                f"expected no other collector of {state}, found process {holder}; stop it, or give each its part by "
                "--shard and a store of its own"
            ) from None
        except OSError as error:  # a file system without locks
            _LOG.warning("%s cannot be locked (%s): see to it that one collector runs", state, error.strerror)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def filled_in(sources: Sequence[Source], store: Store, window: Window) -> None:
    """Write what the sources know of a past window and the store does not, with a bar for each source.

    Raises:
        UnreachableError: no source has rows of it.
    """
    from collector.backfill import FillReport, fill  # noqa: PLC0415

    seen = False
    with stopped_by_signals() as stop, progress_bars() as bars:
        for source in sources:
            task = bars.add_task(clean(source.describe().name), total=window.seconds, rows=0)

            def show(report: FillReport, task: TaskID = task) -> None:
                if report.until is not None:
                    bars.update(task, completed=(report.until - window.start).total_seconds(), rows=report.rows)

            report = fill(source, store, window, stop, show)
            seen = seen or report.until is not None
            if stop.is_set():
                break
            bars.update(task, completed=window.seconds)
    ship_once(store)
    if stop.is_set():
        note("stopped; what was read is in the store, and the same command goes on from there")
        raise typer.Exit(130 if stop.by_interrupt else 0)
    if not seen:
        raise UnreachableError(
            f"no source has rows since {window.start:%Y-%m-%d %H:%M} UTC; expected a prometheus that scraped then"
        )


@contextmanager
def serving(metrics: CollectorMetrics, listen: str) -> Iterator[None]:
    """Serve the collector's own metrics, where that is configured."""
    if not listen:
        yield
        return
    from collector.self_metrics import served  # noqa: PLC0415  loads a web server

    with served(metrics, listen) as address:
        note(f"metrics of the collector itself: {address}")
        yield


@contextmanager
def closed_afterwards(sources: Sequence[Source]) -> Iterator[None]:
    """Close what sources keep open: connections, threads, the driver's library."""
    with ExitStack() as stack:
        for source in sources:
            if hasattr(source, "close"):
                stack.callback(source.close)
        yield


@contextmanager
def retention(store: Store, clock: Clock, stop: threading.Event) -> Iterator[None]:
    """Drop what is older than the store's settings allow, now and each hour, beside the loop."""

    def work() -> None:
        while True:
            try:
                store.retain(clock.now())
            except TrimtabError as error:
                _LOG.warning("retention: %s", error)
            except Exception as error:  # noqa: BLE001  whatever one pass ends with, the next one comes
                _LOG.warning("retention: unexpected %s", type(error).__name__)
                _LOG.debug("retention", exc_info=error)
            if stop.wait(RETENTION_SECONDS):
                return

    thread = threading.Thread(target=work, name="retention")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def chosen_sources(
    settings: Settings, targets: Sequence[str], prometheus: str | None, *, nvml: bool = False
) -> tuple[SourceSettings, ...]:
    """Return what the options name, else the configured tables.

    Raises:
        ConfigurationError: neither names anything, or an address is none.
    """
    for address in (*targets, *([prometheus] if prometheus else [])):
        if not address.startswith(("http://", "https://")):
            raise ConfigurationError(
                f"expected an address such as http://node1:9400/metrics, got {mask_address(address)!r}"
            )
    chosen = []
    if targets:
        chosen.append(
            SourceSettings(kind="scrape", name="targets", targets=tuple(TargetSettings(url=url) for url in targets))
        )
    if prometheus:
        chosen.append(SourceSettings(kind="prometheus", name="prometheus", url=prometheus))
    if nvml:
        chosen.append(SourceSettings(kind="nvml", name="nvml"))
    chosen = chosen or list(settings.source)
    if not chosen:
        raise ConfigurationError(
            "nothing to collect from: expected --target, --prometheus, --nvml or a [[source]] table"
        )
    return tuple(chosen)


def make_sources(
    chosen: Sequence[SourceSettings], settings: Settings, interval_seconds: float, shard: Shard | None = None
) -> list[Source]:
    """Build the plug-ins of the source tables, each for its own cluster: those of one cluster are read together."""
    return [
        load_plugin("trimtab.sources", source.kind)(
            source, replace(source_context(source, settings, interval_seconds), shard=shard)
        )
        for source in chosen
    ]
