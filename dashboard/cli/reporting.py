"""`trimtab report`: the weekly report as a file that can be mailed."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from collector.window import parse_instant
from dashboard.cli.context import Json, Now, context_of
from dashboard.cli.output import print_json, say

group = typer.Typer(no_args_is_help=True, help="Write reports for those who pay and those who decide.")


class ReportFormat(StrEnum):
    """Formats of a report."""

    HTML = "html"
    MD = "md"
    JSON = "json"


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    app.add_typer(group, name="report", rich_help_panel="Look")


@group.command()
def weekly(
    ctx: typer.Context,
    file_format: Annotated[
        ReportFormat, typer.Option("--format", metavar="html|md|json", help="Format of the file.")
    ] = ReportFormat.HTML,
    now: Now = None,
    json: Json = False,
) -> None:
    """Write the report of the last week, up to the newest row or --now, and print where it lies.

    With --json the report itself is printed and no file is written.
    """
    from dashboard.report import weekly_report, write_weekly  # noqa: PLC0415  templates and charts load slowly

    settings = context_of(ctx).settings
    at = None if now is None else parse_instant(now)
    if json:
        print_json(weekly_report(settings, now=at).to_json())
    else:
        say(str(write_weekly(settings, now=at, fmt=file_format.value)))
