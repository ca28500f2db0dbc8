"""The kill switch and the journal: pause, resume, audit."""

from __future__ import annotations

import getpass
import re
from datetime import datetime
from enum import StrEnum
from typing import Annotated

import typer

from collector.clock import SystemClock
from collector.errors import TrimtabError
from dashboard.cli.context import Context, Json, context_of, opened_state
from dashboard.cli.holdings import register as register_holdings
from dashboard.cli.output import note, print_json, say
from tuner import killswitch
from tuner.model import Freeze

PANEL = "Tune"

audit_group = typer.Typer(no_args_is_help=True, help="The record: what was changed, and who held what.")


class Level(StrEnum):
    """What a pause stops."""

    ALL = "all"
    NEW = "new"


Who = Annotated[str | None, typer.Option("--as", metavar="NAME", help="Who asks; else the login name.")]
Head = Annotated[
    str | None,
    typer.Option("--head", metavar="SEQ:HASH", help="The head that an earlier check printed; finds an end cut off."),
]


def register(app: typer.Typer) -> None:
    """Add the commands to the root."""
    app.command(rich_help_panel=PANEL)(pause)
    app.command(rich_help_panel=PANEL)(resume)
    register_holdings(audit_group)
    app.add_typer(audit_group, name="audit", rich_help_panel=PANEL)


def pause(
    ctx: typer.Context,
    why: Annotated[
        str, typer.Argument(metavar="[WHY]", help="The reason, for those who find it paused.")
    ] = "no reason",
    level: Annotated[
        Level,
        typer.Option("--level", metavar="all|new", help="all: no write at all. new: rollbacks still go on."),
    ] = Level.ALL,
    as_: Who = None,
    json: Json = False,
) -> None:
    """Stop the tuner at once, by a file that works without the database."""
    context = context_of(ctx)
    path = context.settings.state.kill_switch
    freeze = Freeze.ALL if level is Level.ALL else Freeze.NEW
    at = SystemClock().now()
    paused = killswitch.pause(path, freeze, who=login(as_), why=why, at=at)
    if json:
        print_json({"schema_version": 1, "level": paused.level.value, "file": str(path)})
    else:
        say(f"{paused}; the file is {path}; `trimtab resume` ends it")
    _journal(context, "paused", at, login(as_), {"level": freeze.value, "why": why})


def resume(ctx: typer.Context, as_: Who = None, json: Json = False) -> None:
    """Let the tuner go on."""
    context = context_of(ctx)
    path = context.settings.state.kill_switch
    before = killswitch.read(path)
    was_paused = killswitch.resume(path)
    if json:
        print_json({"schema_version": 1, "level": Freeze.NONE.value, "was": before.level.value, "file": str(path)})
    else:
        say(f"resumed; it was {before}" if was_paused else "it was not paused")
    if was_paused:
        _journal(context, "resumed", SystemClock().now(), login(as_), {"was": before.level.value})


@audit_group.command()
def verify(ctx: typer.Context, head_: Head = None, json: Json = False) -> None:
    """Check that no entry of the journal was changed, removed or inserted; exit 1 if one was.

    A journal whose end was cut off is whole in itself: only a head that was noted elsewhere (--head) finds it.
    """
    from tuner.audit import verify_chain  # noqa: PLC0415  SQLAlchemy loads slowly
    from tuner.journal import head  # noqa: PLC0415  SQLAlchemy loads slowly

    noted = None if head_ is None else _noted(head_)
    with opened_state(context_of(ctx)) as state:
        audit = verify_chain(state, expected_head=noted)
        seq, link = head(state)
    if json:
        document = {"ok": audit.ok, "entries": audit.entries, "broken_seq": audit.broken_seq, "problem": audit.problem}
        print_json({"schema_version": 1, **document, "head": {"seq": seq, "hash": link}})
    elif audit.ok:
        say(f"the journal is whole: {audit.entries} entries, head {seq}:{link}")
    elif audit.broken_seq is None:
        say(f"the journal is not what was noted or carried out: {audit.problem}")
    else:
        say(f"the journal is broken at entry {audit.broken_seq}: {audit.problem}; the entries before it are whole")
    raise typer.Exit(0 if audit.ok else 1)


def _noted(text: str) -> tuple[int, str]:
    seq, _, link = text.strip().partition(":")
    if not seq.isdecimal() or not re.fullmatch("[0-9a-f]{64}", link):
        raise typer.BadParameter(f"expected SEQ:HASH as `trimtab audit verify` prints it, got {text!r}")
    return int(seq), link


def login(given: str | None) -> str:
    """Return who acts: the name given, else that of the login."""
    if given:
        return given
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"


def _journal(context: Context, event: str, at: datetime, who: str, body: dict[str, str]) -> None:
    """Write it down where there is a journal; the switch itself must work without one."""
    from tuner import journal  # noqa: PLC0415

    if not context.has_state:
        return
    try:
        with opened_state(context) as state:
            journal.note(state, event, at=at, actor=who, body=body)
    except TrimtabError as error:
        note(f"not written to the journal: {error}")
