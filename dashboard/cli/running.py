"""`trimtab run`: collector, tuner and web application, kept running as processes of one group."""

from __future__ import annotations

import sys

import typer

from collector.clock import SystemClock
from dashboard.cli.context import context_of
from dashboard.cli.logs import start_logging
from dashboard.stopping import stopped_by_signals
from dashboard.supervisor import supervise

LOOPS = ("collect", "tune", "dashboard")


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    app.command(rich_help_panel="Start")(run)


def run(ctx: typer.Context) -> None:
    """Run collector, tuner and web application until stopped; one that falls is started again.

    The same as `trimtab collect`, `trimtab tune` and `trimtab dashboard` side by side, each as a process of its own.
    Ctrl-C or SIGTERM ends all of them after what they are at.
    """
    context = context_of(ctx)
    start_logging(context.settings.log)
    path = context.loaded.path  # read once, so that a wrong file is told before anything starts
    chosen = [] if path is None else ["--config", str(path.resolve())]
    loops = {name: (sys.executable, "-m", "dashboard.cli", *chosen, name) for name in LOOPS}
    with stopped_by_signals() as stop:
        code = supervise(loops, stop, SystemClock())
    if code:
        raise typer.Exit(code)
