"""`trimtab explain`: what a finding code claims, how it is computed, how it can be wrong."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markdown import Markdown

from analyzer.codes import Code, codes, page
from collector.errors import ConfigurationError
from dashboard.cli.context import Json
from dashboard.cli.output import print_json, print_table, stdout
from dashboard.config_errors import nearest


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    app.command(rich_help_panel="Look")(explain)


def explain(
    code: Annotated[str | None, typer.Argument(metavar="[CODE]", help="Such as TT101; without one, all.")] = None,
    json: Json = False,
) -> None:
    """Say what a finding code claims, how it is computed, how it can be wrong and what to do."""
    if code is None:
        _list_all(json=json)
        return
    name = code.strip().upper()
    if name not in codes():
        family = [known for known in codes() if known[:3] == name[:3]]
        raise ConfigurationError(
            f"expected a finding code such as TT101, got {code!r}{nearest(name, family or codes())}"
        )
    if json:
        print_json({"schema_version": 1, **_document(codes()[name])})
    elif stdout().is_terminal:
        stdout().print(Markdown(page(codes()[name])))
    else:
        typer.echo(page(codes()[name]), nl=False)


def _list_all(*, json: bool) -> None:
    if json:
        print_json({"schema_version": 1, "codes": [_document(code) for code in codes().values()]})
        return
    rows = [(code.code, code.title, "yes" if code.implemented else "not yet") for code in codes().values()]
    print_table(["code", "claim", "there"], rows)


def _document(code: Code) -> dict[str, object]:
    return {
        "code": code.code,
        "title": code.title,
        "scope": code.scope.value,
        "claim": code.claim,
        "computed": code.computed,
        "risk": code.risk,
        "action": code.action,
        "implemented": code.implemented,
    }
