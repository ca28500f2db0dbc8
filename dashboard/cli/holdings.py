"""`trimtab audit export`: who held which slice, with which quota and use."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TextIO

import typer

from collector.atomic import replacing
from collector.errors import ConfigurationError, UnreachableError
from collector.window import Window, parse_instant
from dashboard.cli.context import Rows, context_of, interval_of, opened_rows, whole_span
from dashboard.cli.output import note


class SpanFormat(StrEnum):
    """Formats of the list."""

    CSV = "csv"
    JSON = "json"


def register(group: typer.Typer) -> None:
    """Add the command to `trimtab audit`."""
    group.command()(export)


def export(
    ctx: typer.Context,
    *,
    start: Annotated[
        str | None, typer.Option("--from", metavar="INSTANT", help="Such as 2026-01-05; else the oldest row.")
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", metavar="INSTANT", help="Such as 2026-02-05; else the newest row.")
    ] = None,
    file_format: Annotated[
        SpanFormat, typer.Option("--format", metavar="csv|json", help="Format of the list.")
    ] = SpanFormat.CSV,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Where to write it; else standard output.")
    ] = None,
    rows: Rows = None,
) -> None:
    """List who held which slice with which quota and use, span by span.

    A span ends where its holder, pod, quota or profile changes, a re-cut ends the slice. Spans are cut to the window.
    """
    from dashboard.holding_export import held_spans, write_csv, write_json  # noqa: PLC0415  pandas loads slowly

    context = context_of(ctx)
    with opened_rows(context, rows) as store:
        span = whole_span(store)
        first = parse_instant(start) if start is not None else span.start
        last = parse_instant(end) if end is not None else span.end
        if first >= last:
            raise ConfigurationError(f"expected --from before --to, got {first.isoformat()} and {last.isoformat()}")
        window = Window(first, last)
        interval = interval_of(store, context.settings.cluster.interval_seconds, window)
        spans = held_spans(store, window, interval)
        with _opened(output) as out:
            count = write_csv(spans, out) if file_format is SpanFormat.CSV else write_json(spans, window, out)
    note(f"{count} spans, {window.start:%Y-%m-%d %H:%M} to {window.end:%Y-%m-%d %H:%M} UTC")


@contextmanager
def _opened(path: Path | None) -> Iterator[TextIO]:
    if path is None:
        yield sys.stdout
        return
    try:
        with replacing(path) as beside, beside.open("w", encoding="utf-8", newline="") as out:
            yield out
    except OSError as error:
        raise UnreachableError(f"expected to write {path}, got {error.strerror or type(error).__name__}") from error
