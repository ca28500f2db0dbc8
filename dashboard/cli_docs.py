"""docs/cli.md, generated from the commands themselves.

`python -m dashboard.cli_docs > docs/cli.md` renews the page; a test keeps it in step.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperArgument, TyperGroup, TyperOption

from dashboard.cli import app
from dashboard.cli.index import LazyGroup

_HEAD = """# The `trimtab` command

<!-- Generated: python -m dashboard.cli_docs > docs/cli.md -->

Results go to stdout and everything else to stderr; `--json` prints one JSON document. `--config FILE` and `--debug`
may stand anywhere. Tables are plain text when piped, and `NO_COLOR` is respected.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | done, and a problem was found (`doctor`, `audit verify`, `config check`, `analyze --fail-on`) |
| 2 | usage or configuration is wrong |
| 3 | input was rejected |
| 4 | a source, the store or a backend is unreachable |
| 5 | the action was refused by a guard, missing consent or the kill switch |
| 130 | interrupted |
"""


def markdown() -> str:
    """Return docs/cli.md."""
    root = typer.main.get_command(app)
    parts = [_HEAD, *(_section(path, command) for path, command in commands(root))]
    return "\n".join(parts)


def commands(command: Any, path: str = "trimtab") -> Iterator[tuple[str, Any]]:
    """Yield (path, command) of a command and of everything below it."""
    if isinstance(command, LazyGroup):
        command.load_all()
    yield path, command
    if isinstance(command, TyperGroup):
        for name, inner in command.commands.items():
            yield from commands(inner, f"{path} {name}")


def parameters(command: Any) -> list[TyperArgument | TyperOption]:
    """Return a command's arguments and options, without --help."""
    return [parameter for parameter in command.params if parameter.name != "help"]


def _section(path: str, command: Any) -> str:
    lines = [f"## `{path}`", "", " ".join((command.help or "").split()), ""]
    if isinstance(command, TyperGroup):
        lines += [f"- `{path} {name}`: {_first_sentence(inner.help)}" for name, inner in command.commands.items()]
        lines.append("")
    rows = [f"| {_names(parameter)} | {_about(parameter)} |" for parameter in parameters(command)]
    if rows:
        lines += ["| argument or option | meaning |", "|---|---|", *rows, ""]
    return "\n".join(lines)


def _first_sentence(text: str | None) -> str:
    return " ".join((text or "").split()).split(". ")[0].rstrip(".")


def _names(parameter: TyperArgument | TyperOption) -> str:
    value = f" {parameter.metavar}" if parameter.metavar else ""
    if isinstance(parameter, TyperArgument):
        return f"`{parameter.metavar or str(parameter.name).upper()}`"
    return ", ".join(f"`{name}{value}`" for name in (*parameter.opts, *parameter.secondary_opts))


def _about(parameter: TyperArgument | TyperOption) -> str:
    text = (parameter.help or "").replace("|", "\\|")
    default = parameter.default
    shown = "" if default is None or default is False or default in ([], (), "") else f" Default: `{default}`."
    return text + shown


if __name__ == "__main__":
    sys.stdout.write(markdown())
