"""`trimtab backup` and `trimtab restore`: store and state, copied in use and put back after a look through."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from collector.clock import SystemClock
from dashboard.cli.context import Json, context_of
from dashboard.cli.output import note, print_json, say

PANEL = "Start"


def register(app: typer.Typer) -> None:
    """Add the commands to the root."""
    app.command(rich_help_panel=PANEL)(backup)
    app.command(rich_help_panel=PANEL)(restore)


def backup(
    ctx: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Empty folder to copy to; made where it is absent.")],
    json: Json = False,
) -> None:
    """Copy store and state into a folder while they are in use."""
    from dashboard.backup import make_backup  # noqa: PLC0415  DuckDB and SQLAlchemy load slowly

    made = make_backup(context_of(ctx).settings, folder, SystemClock().now())
    if json:
        print_json({"schema_version": 1, "path": str(folder), "files": made.files, "bytes": made.size_bytes})
    else:
        say(f"copied to {folder}: {made.files} files, {made.size_bytes / 2**20:.1f} MiB")
    for text in made.notes:
        note(text)


def restore(
    ctx: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What `trimtab backup` made.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Put aside what is there now; it is kept beside the restored one.")
    ] = False,
    json: Json = False,
) -> None:
    """Check a backup and put it in the place of store and state; stop the loops before.

    Nothing is moved before every file was read and looked through. Without --replace nothing that exists is touched.
    """
    from dashboard.backup import restore_backup  # noqa: PLC0415

    done = restore_backup(context_of(ctx).settings, folder, SystemClock().now(), replace=replace)
    if json:
        print_json({"schema_version": 1, "places": done.places, "files": done.files, "bytes": done.size_bytes})
    else:
        say(f"restored {', '.join(done.places)}: {done.files} files, {done.size_bytes / 2**20:.1f} MiB")
    for text in done.notes:
        note(text)
