"""The way of the rows into InfluxDB: beside `trimtab collect`, and by hand under `trimtab store`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol, runtime_checkable

import typer

from collector.clock import SystemClock
from collector.errors import ConfigurationError, TrimtabError
from collector.settings import InfluxSettings
from dashboard.cli.context import Json, context_of
from dashboard.cli.output import note, print_json, print_table, say
from dashboard.doctor.check import span_text

if TYPE_CHECKING:
    from collector.protocols import Store

_LOG = logging.getLogger(__name__)


@runtime_checkable
class _Shipping(Protocol):
    """A store that feeds another one. Asked by its methods: the class of it would load pandas and DuckDB."""

    def keep_shipping(self, ended: threading.Event) -> None: ...

    def ship(self) -> None: ...


def register(group: typer.Typer) -> None:
    """Add the commands to `trimtab store`."""
    for command in (status, ship, prepare, forget):
        group.command()(command)


@contextmanager
def shipping(store: Store) -> Iterator[None]:
    """Feed InfluxDB beside the block, and what the block wrote last at its end, where InfluxDB is configured."""
    if not isinstance(store, _Shipping):
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=store.keep_shipping, args=(ended,), name="influx-shipper")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def ship_once(store: Store) -> None:
    """Send what one cycle gave, where InfluxDB is configured."""
    if isinstance(store, _Shipping):
        try:
            store.ship()
        except TrimtabError as error:
            note(f"{error}; the rows wait in the embedded store")


def _configured(settings: InfluxSettings) -> InfluxSettings:
    if not settings.url:
        raise ConfigurationError("expected `url` in [influx], found none; see docs/influxdb.md")
    return settings


def status(ctx: typer.Context, json: Json = False) -> None:
    """Say how far InfluxDB is behind: each shipper's cursor, what waits, what InfluxDB lacks."""
    from collector.influx.progress import cursors, progress_of  # noqa: PLC0415

    settings = context_of(ctx).settings
    now = SystemClock().now()
    found = {name: progress_of(settings.store, name) for name in cursors(settings.store)}
    wrong = _wrong(settings.influx) if settings.influx.url else []
    if json:
        shippers = [
            {
                "name": name,
                "cursor": progress.cursor,
                "pending": progress.pending,
                "oldest_unshipped": progress.oldest_unshipped,
                "oldest_dirty_hour": progress.oldest_dirty,
                "behind_seconds": progress.behind(now).total_seconds(),
            }
            for name, progress in found.items()
        ]
        print_json({"schema_version": 1, "shippers": shippers, "problems": wrong})
    else:
        print_table(
            ["shipper", ">cursor", ">waiting", "behind"],
            [
                (name, f"{progress.cursor:,}", f"{progress.pending:,}", span_text(progress.behind(now)))
                for name, progress in found.items()
            ],
            empty="nothing is shipped: no [influx] url, or `trimtab collect` has not run since",
        )
        for text in wrong:
            say(text)
    if wrong:
        raise typer.Exit(1)


def _wrong(settings: InfluxSettings) -> list[str]:
    from collector.influx.client import InfluxClient  # noqa: PLC0415
    from collector.influx.places import check  # noqa: PLC0415

    with closing(InfluxClient(settings)) as client:
        try:
            return check(client, settings)
        except TrimtabError as error:
            return [str(error)]


def ship(ctx: typer.Context, json: Json = False) -> None:
    """Send everything that waits to InfluxDB now, and the aggregates of all hours that are over."""
    from collector.influx.progress import CURSOR, progress_of  # noqa: PLC0415
    from collector.influx.store import InfluxStore  # noqa: PLC0415

    settings = context_of(ctx).settings
    with closing(InfluxStore(_configured(settings.influx), settings.store)) as store:
        store.ship()
    progress = progress_of(settings.store, CURSOR)
    if json:
        print_json({"schema_version": 1, "cursor": progress.cursor, "pending": progress.pending})
    else:
        say(f"shipped up to {progress.cursor:,}; {progress.pending:,} wait")


def prepare(
    ctx: typer.Context,
    make_token: Annotated[
        Path | None,
        typer.Option(
            "--make-token",
            metavar="FILE",
            help="Also write a token there that may read and write the buckets and nothing else (2.x).",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Make the buckets (1.8: the retention policies) of [influx] and set how long they keep rows.

    Needs a token that may make buckets; `trimtab collect` needs one that may read and write them.
    """
    from collector.influx.client import InfluxClient  # noqa: PLC0415
    from collector.influx.places import make_token as write_token  # noqa: PLC0415
    from collector.influx.places import prepare as make  # noqa: PLC0415

    settings = _configured(context_of(ctx).settings.influx)
    with closing(InfluxClient(settings)) as client:
        done = make(client, settings)
        if make_token is not None:
            done.append(write_token(client, settings, make_token))
    if json:
        print_json({"schema_version": 1, "done": done})
        return
    for text in done or ["nothing to do"]:
        say(text)


def forget(
    ctx: typer.Context, name: Annotated[str, typer.Argument(metavar="NAME", help="As `trimtab store status` lists it.")]
) -> None:
    """Drop a shipper's cursor: rows are no longer kept for it. For an InfluxDB that was given up."""
    from collector.influx.progress import cursors  # noqa: PLC0415
    from collector.store.outbox import Outbox  # noqa: PLC0415

    settings = context_of(ctx).settings
    known = cursors(settings.store)
    if name not in known:
        raise ConfigurationError(f"expected a shipper out of {', '.join(known) or 'none'}, got {name!r}")
    with closing(Outbox(settings.store, name)) as outbox:
        outbox.forget()
    say(f"{name} is forgotten; if it is still configured, everything is sent again from the oldest row on")
