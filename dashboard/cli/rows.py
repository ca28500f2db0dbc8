"""Rows out of the store, and the store itself: export, store."""

from __future__ import annotations

from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from collector.errors import ConfigurationError
from collector.store.info import Holding, describe_store
from collector.window import Window, parse_duration
from collector.words import plural
from dashboard.cli.context import Json, Now, context_of, newest_instant, opened_store, whole_span
from dashboard.cli.output import print_json, print_table, say
from dashboard.cli.shipping import register as register_shipping

PANEL = "Collect"
store_group = typer.Typer(no_args_is_help=True, help="Look after the embedded store.")


class FileFormat(StrEnum):
    """Formats of exported files."""

    PARQUET = "parquet"
    CSV = "csv"


def register(app: typer.Typer) -> None:
    """Add the commands to the root."""
    app.command(rich_help_panel=PANEL)(export)
    register_shipping(store_group)
    app.add_typer(store_group, name="store", rich_help_panel=PANEL)


def export(
    ctx: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write to; made where it does not exist.")],
    *,
    window: Annotated[
        str | None, typer.Option("--window", metavar="LENGTH", help="Only the last 6h, 2d, ...; else all there is.")
    ] = None,
    file_format: Annotated[
        FileFormat, typer.Option("--format", metavar="parquet|csv", help="Format of the files.")
    ] = FileFormat.PARQUET,
    measurement: Annotated[
        list[str] | None,
        typer.Option(
            "--measurement", metavar="NAME", help="Only gpu, slice, node, queue, event, reject; facts always."
        ),
    ] = None,
    now: Now = None,
    json: Json = False,
) -> None:
    """Write the rows of the store as files, one a measurement, which `--rows` takes elsewhere."""
    from collector.store import export_rows  # noqa: PLC0415  DuckDB loads slowly

    context = context_of(ctx)
    with opened_store(context) as store:
        length = None if window is None else parse_duration(window)
        span = (
            whole_span(store)
            if length is None
            else Window.last(newest_instant(store, now, context.settings.cluster.interval_seconds), length)
        )
        try:
            written = export_rows(store, folder, span, fmt=file_format.value, measurements=measurement)
        except KeyError as error:
            raise ConfigurationError(str(error.args[0])) from None
    if json:
        print_json({"schema_version": 1, "files": [str(path) for path in written]})
        return
    for path in written:
        say(str(path))


@store_group.command()
def info(ctx: typer.Context, json: Json = False) -> None:
    """Say what the store holds: rows, files, spans, size."""
    settings = context_of(ctx).settings.store
    found = describe_store(settings)
    if json:
        print_json({"schema_version": 1, "path": str(settings.path), "store": found})
        return
    print_table(
        ["measurement", "tier", ">rows", ">unsealed", ">files", "oldest (UTC)", "newest (UTC)"],
        [
            (held.measurement, held.tier, f"{held.rows:,}", f"{held.unsealed:,}", held.files, *_span(held))
            for held in found.holdings
        ],
        empty="no rows",
    )
    events, rejects = plural(found.events, "event"), plural(found.rejects, "reject")
    say(f"{plural(found.facts, 'fact')}, {events}, {rejects}; {found.disk_bytes / 2**20:.1f} MiB")
    if found.lost_rows:
        say(f"{plural(found.lost_rows, 'row')} had to go before being shipped, for want of disk (store.disk_max_bytes)")


def _span(held: Holding) -> tuple[str, str]:
    return f"{held.oldest:%Y-%m-%d %H:%M:%S}", f"{held.newest:%Y-%m-%d %H:%M:%S}"


@store_group.command()
def compact(ctx: typer.Context, json: Json = False) -> None:
    """Write all unsealed rows to Parquet files now, merge the files of each day, give free room back to the disk."""
    settings = context_of(ctx).settings.store
    before = describe_store(settings)  # says so where there is no store, instead of making one
    from collector.store import EmbeddedStore  # noqa: PLC0415  DuckDB loads slowly

    with closing(EmbeddedStore(settings)) as store:
        store.compact()
    after = describe_store(settings)
    files = sum(held.files for held in after.holdings)
    if json:
        print_json({"schema_version": 1, "files": files, "disk_bytes": after.disk_bytes})
    else:
        say(f"compacted; {files} files, {before.disk_bytes / 2**20:.1f} MiB are now {after.disk_bytes / 2**20:.1f} MiB")


@store_group.command()
def verify(ctx: typer.Context, json: Json = False) -> None:
    """Read everything that the store holds and say what is missing or damaged; exit 1 where something is."""
    from collector.store.verify import verify_store  # noqa: PLC0415

    problems = list(verify_store(context_of(ctx).settings.store))
    if json:
        print_json({"schema_version": 1, "ok": not problems, "problems": problems})
    else:
        for problem in problems:
            say(problem)
        say("all is there and readable" if not problems else plural(len(problems), "problem"))
    if problems:
        raise typer.Exit(1)


@store_group.command()
def backup(
    ctx: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Empty folder to copy to; made where it is absent.")],
    json: Json = False,
) -> None:
    """Copy the store while it is in use. To restore, stop the loops and put the copy in the place of store.path."""
    from collector.store.backup import backup_store  # noqa: PLC0415

    size = backup_store(context_of(ctx).settings.store, folder)
    if json:
        print_json({"schema_version": 1, "path": str(folder), "bytes": size})
    else:
        say(f"copied to {folder}: {size / 2**20:.1f} MiB")
