"""`trimtab config`: show, check, example."""

from __future__ import annotations

import typer
from rich.text import Text

from dashboard.cli.context import Json, context_of
from dashboard.cli.output import print_json, print_table, say
from dashboard.config import Settings, leaves, read_settings, shown
from dashboard.config_check import check_settings
from dashboard.config_docs import example

group = typer.Typer(no_args_is_help=True, help="Show, check and explain the configuration.")


def register(app: typer.Typer) -> None:
    """Add the commands to the root."""
    app.add_typer(group, name="config", rich_help_panel="Start")


@group.command()
def show(ctx: typer.Context, json: Json = False) -> None:
    """List every value and where it came from; secrets are masked."""
    loaded = context_of(ctx).loaded
    rows = [(key, shown(value, key[-1]), loaded.origin(key)) for key, value in leaves(loaded.settings)]
    if json:
        print_json(
            {
                "schema_version": 1,
                "file": None if loaded.path is None else str(loaded.path),
                "values": {dotted(key): {"value": value, "origin": origin} for key, value, origin in rows},
            }
        )
        return
    say(f"file: {loaded.path}" if loaded.path else "file: none found, so defaults and environment hold")
    styles = {"file": "bold", "environment": "bold cyan", "default": "dim"}
    print_table(
        ["key", "value", "from"],
        [(dotted(key), value_text(value), Text(origin, style=styles[origin])) for key, value, origin in rows],
    )


@group.command()
def check(ctx: typer.Context, json: Json = False) -> None:
    """Report every problem of the configuration, one a line; exit 1 if there is one."""
    found = read_settings(context_of(ctx).config)
    problems = found if isinstance(found, list) else check_settings(found)
    if json:
        print_json(
            {
                "schema_version": 1,
                "ok": not problems,
                "problems": [{"place": problem.place, "text": problem.text} for problem in problems],
            }
        )
    else:
        for problem in problems:
            say(str(problem))
        if not problems:
            say("the configuration is in order")
    raise typer.Exit(1 if problems else 0)


@group.command("example")
def print_example() -> None:
    """Print a commented configuration that holds every key with its default."""
    typer.echo(example(Settings), nl=False)


def dotted(key: tuple[str | int, ...]) -> str:
    """Return `source.0.url`: indices count from 0, as variables write them."""
    return ".".join(str(part) for part in key)


def value_text(value: object) -> str:
    """Return a value as a short text."""
    if value is None or value in ("", {}):
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ", ".join(str(item) for item in value) or "-"
    return str(value)
