"""`trimtab suppress`: findings that somebody does not want to see, with a reason and an expiry; they still count."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import typer

from analyzer.codes import codes
from analyzer.findings import plain
from collector.clock import SystemClock
from collector.errors import ConfigurationError, RefusedError
from collector.window import parse_duration, parse_instant
from collector.words import plural
from dashboard.cli.context import Json, context_of, opened_state
from dashboard.cli.output import note, print_json, print_table, say
from dashboard.cli.tuning import Who, login
from dashboard.config_errors import nearest
from dashboard.views.findings import finding_of
from dashboard.views.text import stamp
from tuner import journal
from tuner.state import State, Suppression, add_suppression, list_suppressions, remove_suppression
from tuner.state.findings import list_findings


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    app.command(rich_help_panel="Look")(suppress)


def suppress(
    ctx: typer.Context,
    code: Annotated[
        str | None, typer.Argument(metavar="[CODE]", help="A finding code or beginning of codes (TT3); none: list all.")
    ] = None,
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="[SUBJECT]",
            help="Glob on tenant/workload, cluster/node/gpu/slice, node, card, tenant, or the id of a finding.",
        ),
    ] = None,
    *,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why nobody needs to see it.")] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="T", help="When it ends: an instant, or a length such as 2w.")
    ] = None,
    remove: Annotated[int | None, typer.Option("--remove", metavar="N", help="Forget this one.")] = None,
    as_: Who = None,
    json: Json = False,
) -> None:
    """Hide findings of a code on a subject, with a reason and an expiry; they go on being counted."""
    context = context_of(ctx)
    now = SystemClock().now()
    if remove is not None:
        with opened_state(context) as state:
            _remove(state, remove, login(as_), now)
        return
    if code is None:
        found: list[Suppression] = []
        if context.has_state:
            with opened_state(context) as state:
                found = list_suppressions(state)
        _list(found, now, json=json)
        return
    name = _code(code)
    if not subject or not reason or not reason.strip() or until is None:
        lacking = [
            flag for flag, given in (("SUBJECT", subject), ("--reason", reason), ("--until", until)) if not given
        ]
        raise ConfigurationError(
            f"expected a subject, a reason and an expiry, got no {', '.join(lacking) or '--reason'}; "
            "such as: trimtab suppress TT301 team/notebook --reason 'back on Monday' --until 5d"
        )
    end_at = _until(until, now)
    with opened_state(context, make=True) as state:
        made = add_suppression(state, code=name, subject=subject, who=login(as_), why=reason, now=now, until=end_at)
        body = {"code": name, "subject": subject, "why": reason, "until": made.until.isoformat() if made.until else ""}
        journal.note(state, "suppressed", at=now, actor=made.who, body=body)
        covered = sum(made.covers(finding_of(stored), now) for stored in list_findings(state, code=name))
    if json:
        print_json({"schema_version": 1, "suppression": _document(made, now), "covers": covered})
        return
    end = f"{made.until:%Y-%m-%d %H:%M}" if made.until else "ever"
    say(f"suppression {made.id}: {name} on {subject} until {end} UTC; covers {plural(covered, 'finding')} recorded")
    if not covered:
        note("nothing that the tuner has recorded is covered; `trimtab analyze --json` says how subjects are named")


def _remove(state: State, number: int, who: str, now: datetime) -> None:
    if not remove_suppression(state, number):
        raise RefusedError(f"expected the number of a suppression, got {number}; `trimtab suppress` lists them")
    journal.note(state, "suppression_removed", at=now, actor=who, body={"number": str(number)})
    say(f"suppression {number} is forgotten")


def _code(text: str) -> str:
    name = text.strip().upper()
    if not name.startswith("TT") or not any(known.startswith(name) for known in codes()):
        raise ConfigurationError(f"expected a finding code or its beginning, got {text!r}{nearest(name, codes())}")
    return name


def _until(text: str, now: datetime) -> datetime:
    """Read an instant, or a length of time from now."""
    try:
        return parse_instant(text)
    except ConfigurationError:
        try:
            return now + parse_duration(text)
        except ConfigurationError:
            expected = "expected an instant such as 2026-02-01 or a length such as 2w"
            raise ConfigurationError(f"{expected}, got {text!r}") from None


def standing(one: Suppression, now: datetime) -> str:
    """Return whether a suppression holds, has expired, or never hid anything."""
    if one.until is not None and now >= one.until:
        return "expired"
    return "holds" if one.last_used is not None else "has hidden nothing yet"


def _end(one: Suppression) -> str:
    return "never" if one.until is None else f"{one.until:%Y-%m-%d %H:%M}"


def _list(found: list[Suppression], now: datetime, *, json: bool) -> None:
    if json:
        print_json({"schema_version": 1, "suppressions": [_document(one, now) for one in found]})
        return
    print_table(
        [">number", "code", "subject", "until (UTC)", "standing", "last used (UTC)", "by", "why"],
        [(str(s.id), s.code, s.subject, _end(s), standing(s, now), stamp(s.last_used), s.who, s.why) for s in found],
        empty="nothing is suppressed",
    )


def _document(one: Suppression, now: datetime) -> dict[str, Any]:
    document: dict[str, Any] = plain({**asdict(one), "standing": standing(one, now)})
    return document
