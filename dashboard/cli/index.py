"""Which module holds which command, so that `trimtab pause` loads its own module and no other.

Most modules load pandas, DuckDB or scikit-learn. So the root knows each command's name, panel and first sentence from
the table below, and loads a module when one of its commands is called. A test keeps the table in step with the modules.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True, slots=True)
class Entry:
    """A command of the root: its module in this package, its panel in the help, its first sentence."""

    module: str
    panel: str
    help: str


ENTRIES = {
    "demo": Entry("demo", "Start", "Run two simulated days of a shared fleet, before and after tuning, and show them."),
    "dashboard": Entry("serving", "Look", "Serve the web application until stopped."),
    "analyze": Entry("analysis", "Look", "Find who wastes, who fights, what is stranded and what is about to break."),
    "explain": Entry(
        "explain",
        "Look",
        "Say what a code or a finding claims, how it is computed, how it can be wrong and what to do.",
    ),
    "suppress": Entry(
        "suppress",
        "Look",
        "Hide findings of a code on a subject, with a reason and an expiry; they go on being counted.",
    ),
    "forecast": Entry(
        "forecasting",
        "Look",
        "Forecast the load of each workload and of the fleet, with intervals and the forecaster's own error.",
    ),
    "workloads": Entry(
        "views", "Look", "List every workload with what was promised about it, and where each value came from."
    ),
    "doctor": Entry(
        "views",
        "Start",
        "Check configuration, sources, store, state and backend; say whether empty means idle or broken.",
    ),
    "collect": Entry(
        "collecting", "Collect", "Read the sources into the store, again and again until stopped; Ctrl-C loses nothing."
    ),
    "import": Entry(
        "importing",
        "Collect",
        "Read captures of exporters, logs of nvidia-smi and dcgmi, and memory snapshots; importing again changes"
        " nothing.",
    ),
    "export": Entry(
        "rows", "Collect", "Write the rows of the store as files, one a measurement, which `--rows` takes elsewhere."
    ),
    "tune": Entry(
        "tune", "Tune", "Plan changes of quotas; write them down, ask for them, or carry them out and watch them."
    ),
    "pause": Entry("tuning", "Tune", "Stop the tuner at once, by a file that works without the database."),
    "resume": Entry("tuning", "Tune", "Let the tuner go on."),
    "run": Entry(
        "running", "Start", "Run collector, tuner and web application until stopped; one that falls is started again."
    ),
    "backup": Entry("backups", "Start", "Copy store and state into a folder while they are in use."),
    "restore": Entry(
        "backups", "Start", "Check a backup and put it in the place of store and state; stop the loops before."
    ),
    "config": Entry("config", "Start", "Show, check and explain the configuration."),
    "report": Entry("reporting", "Look", "Write reports for those who pay and those who decide."),
    "store": Entry("rows", "Collect", "Look after the embedded store."),
    "changes": Entry("changes", "Tune", "List what the tuner planned and did; approve, reject and roll back."),
    "audit": Entry("tuning", "Tune", "The record: what was changed, and who held what."),
}


def load_module(name: str) -> dict[str, Any]:
    """Return the commands that module `dashboard.cli.<name>` registers, by name."""
    holder = typer.Typer(rich_markup_mode="markdown")
    holder.callback()(lambda: None)  # else a lone command would become the holder itself
    importlib.import_module(f"dashboard.cli.{name}").register(holder)
    group = typer.main.get_command(holder)
    assert isinstance(group, TyperGroup)  # noqa: S101 - it has a callback
    return dict(group.commands)


class LazyGroup(TyperGroup):
    """A group whose commands are stand-ins, with name, panel and first sentence, until one of them is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {
            name: TyperCommand(name, help=entry.help, rich_help_panel=entry.panel, rich_markup_mode="markdown")
            for name, entry in ENTRIES.items()
        }

    def load(self, name: str) -> None:
        """Put a command in the place of its stand-in."""
        self.commands[name] = load_module(ENTRIES[name].module)[name]

    def load_all(self) -> None:
        """Load every command, for a page about all of them."""
        for name in ENTRIES:
            self.load(name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Load the command that is called."""
        if args and args[0] in ENTRIES:
            self.load(args[0])
        return super().resolve_command(ctx, args)
