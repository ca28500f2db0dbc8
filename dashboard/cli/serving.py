"""`trimtab dashboard`: the web application."""

from __future__ import annotations

from typing import Annotated

import typer

from dashboard.cli.context import context_of
from dashboard.serve import serve


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    app.command(rich_help_panel="Look")(dashboard)


def dashboard(
    ctx: typer.Context,
    port: Annotated[
        int | None,
        typer.Option("--port", metavar="N", min=0, max=65535, help="Port to listen on; 0 picks a free one."),
    ] = None,
    host: Annotated[str | None, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")] = None,
) -> None:
    """Serve the web application until stopped."""
    loaded = context_of(ctx).loaded
    changed = {key: value for key, value in (("port", port), ("host", host)) if value is not None}
    shown = loaded.settings.dashboard.model_copy(update=changed)
    serve(loaded.settings.model_copy(update={"dashboard": shown}), loaded.path)
