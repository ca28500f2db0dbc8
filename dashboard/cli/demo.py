"""`trimtab demo`: two simulated days, tuned; then the dashboard over them."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from collector.errors import ConfigurationError
from dashboard.cli.context import flag
from dashboard.cli.output import note, say, stderr

if TYPE_CHECKING:
    from dashboard.demo import DemoResult

_SAID_EVERY = 360  # simulated minutes, where there is no terminal to draw a bar on


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    app.command(rich_help_panel="Start")(demo)


def demo(
    headless: Annotated[
        bool, flag("--headless", help="End after the tables instead of serving the dashboard.")
    ] = False,
    folder: Annotated[
        Path, typer.Option("--folder", metavar="DIR", help="Where everything goes; a former demo is replaced.")
    ] = Path("demo-out"),
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the simulated cluster.")] = 1,
    hours: Annotated[float, typer.Option("--hours", metavar="H", min=0.1, max=48, help="Simulated time.")] = 48.0,
) -> None:
    """Run two simulated days of a shared fleet, before and after tuning, and show them.

    Sixteen cards under MIG, MPS, vGPU, time-slicing and whole, with online services, training, waiting jobs, slices
    that fight and a card that fails. Needs no GPU and no network.
    """
    from dashboard.demo import print_board, run_demo  # noqa: PLC0415  loads everything; --help must not

    note(f"simulating {hours:g} h twice, as its owners set it up and tuned; 48 h take about two minutes")
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[clock]}"), TimeElapsedColumn())
    with Progress(*columns, console=stderr(), transient=True) as bar:
        task = bar.add_task("tuned run", total=hours * 60, clock="")

        def moved(done: int, total: int) -> None:
            at = f"day {done // 1440 + 1} {done // 60 % 24:02d}:{done % 60:02d}"
            bar.update(task, completed=done, total=total, clock=at)
            if not bar.console.is_terminal and done % _SAID_EVERY == 0:
                note(f"simulated until {at}")

        try:
            result = run_demo(folder, seed=seed, hours=hours, progress=moved)
        except FileExistsError as error:
            raise ConfigurationError(str(error)) from None
    print_board(result)
    _report_and_serve(result, headless=headless)


def _report_and_serve(result: DemoResult, *, headless: bool) -> None:
    from dashboard.config import load_settings  # noqa: PLC0415
    from dashboard.report import write_weekly  # noqa: PLC0415
    from dashboard.serve import serve  # noqa: PLC0415

    config = result.config
    settings = load_settings(config).settings
    say(f"report     {write_weekly(settings, analysis=result.analysis)}")
    command = shutil.which("trimtab") or sys.argv[0]
    say(f"look on    {command} --config {config} dashboard")
    say("           in place of dashboard also: analyze, changes, doctor, forecast, workloads, explain TT101")
    if not headless:
        serve(settings, config)
