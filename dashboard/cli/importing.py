"""`trimtab import`: captures and logs into the store, with what was accepted, what was rejected and why."""

from __future__ import annotations

import difflib
import re
from datetime import timedelta, timezone, tzinfo
from pathlib import Path
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer
from rich.text import Text

from collector.errors import ConfigurationError, InputRejectedError
from collector.window import parse_instant
from dashboard.cli.context import Json, context_of, flag, opened_store
from dashboard.cli.output import note, print_json, print_table, say

_OFFSET = re.compile(r"^([+-])(\d{2}):?(\d{2})$")


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    app.command("import", rich_help_panel="Collect")(import_)


def import_(
    ctx: typer.Context,
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Captures and logs, plain or gzip, or folders of them.")
    ],
    *,
    tz: Annotated[
        str | None, typer.Option("--tz", metavar="ZONE", help="Zone of stamps that name none: Europe/Berlin or +02:00.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="NAME", help="Cluster of the rows; else that of [cluster].")
    ] = None,
    node: Annotated[
        str, typer.Option("--node", metavar="NAME", help="Node of files that name none; else the file's own name.")
    ] = "",
    start: Annotated[
        str | None,
        typer.Option(
            "--start",
            metavar="T",
            help="Instant of captures, and of the first row of logs without stamps; else the file's.",
        ),
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option(
            "--interval",
            metavar="S",
            help="Seconds from row to row of logs without stamps; else 1.",
            min=1e-3,
            max=86400.0,
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option("--columns", metavar="A,B,C", help="Columns of a log without a heading, as in its query."),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(
            "--gpus", metavar="N", help="How many cards print in turn where no column names them.", min=1, max=64
        ),
    ] = None,
    strict: Annotated[bool, flag("--strict", help="Reject a file where anything is guessed or a line is bad.")] = False,
    json: Json = False,
) -> None:
    """Read captures of exporters, logs of nvidia-smi and dcgmi, and memory snapshots; importing again changes nothing.

    The format is told by the content. One bad line never loses a file.
    """
    from collector.importing import ImportOptions, import_files  # noqa: PLC0415  the assembler loads slowly

    context = context_of(ctx)
    settings = context.settings
    options = ImportOptions(
        cluster=cluster or settings.cluster.name,
        node=node,
        zone=None if tz is None else parse_zone(tz),
        start=None if start is None else parse_instant(start),
        step_seconds=interval,
        columns=() if columns is None else parse_columns(columns),
        gpus=gpus,
        strict=strict,
        interval_seconds=settings.cluster.interval_seconds,
        declarations=settings.workload,
        tenants=settings.tenant,
        mappings=settings.mapping,
    )
    with opened_store(context, read_only=False) as store:
        report = import_files(files, store, options)
    if json:
        print_json(report.to_json())
    else:
        print_table(
            ["file", "format", "status", ">accepted", ">rejected", "rows"],
            [
                (
                    one.path,
                    one.format.value,
                    Text(one.status, style="red" if one.status == "rejected" else "green"),
                    one.accepted,
                    one.rejected_count,
                    ", ".join(f"{count} {name}" for name, count in one.rows.items()) or "-",
                )
                for one in report.files
            ],
            empty="no files",
        )
        for one in report.files:
            if one.reason:
                say(f"{one.path}: rejected: {one.reason}")
            for why, (count, line) in one.rejected.items():
                say(f"{one.path}: {count} rejected: {why} (first in line {line})")
            for warning in one.warnings:
                note(f"{one.path}: {warning}")
    if report.all_rejected:
        raise InputRejectedError(f"none of {len(report.files)} files could be used")
    if strict and report.any_rejected:
        raise InputRejectedError("something was rejected, and --strict allows nothing to be")


def parse_columns(text: str) -> tuple[str, ...]:
    """Read the names of columns, as a query names them; an empty name stands for a column that is left out.

    Raises:
        ConfigurationError: a name is nearly that of a column that is kept, or none is.
    """
    from collector.importing.columns import KNOWN_COLUMNS, column_name  # noqa: PLC0415  as above

    names = tuple(column_name(name) for name in text.split(","))
    for name in names:
        near = difflib.get_close_matches(name, KNOWN_COLUMNS, n=1, cutoff=0.93) if name not in KNOWN_COLUMNS else []
        if near and "." in name:
            raise ConfigurationError(f"--columns: {name!r} is not known; did you mean {near[0]!r}?")
    if not KNOWN_COLUMNS.intersection(names):
        raise ConfigurationError(
            f"--columns: expected names such as timestamp,utilization.gpu,memory.used, got {text!r}"
        )
    return names


def parse_zone(text: str) -> tzinfo:
    """Read an IANA name or an offset such as `+02:00`.

    Raises:
        ConfigurationError: it is neither.
    """
    if match := _OFFSET.match(text):
        length = timedelta(hours=int(match[2]), minutes=int(match[3]))
        if length < timedelta(hours=24):
            return timezone(-length if match[1] == "-" else length)
    try:
        return ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigurationError(f"expected a zone such as Europe/Berlin or +02:00, got {text!r}") from None
