"""`trimtab changes`: list, show, approve, reject, roll back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated

import typer
from rich.text import Text

from collector.errors import ConfigurationError, RefusedError, TrimtabError
from collector.words import plural
from dashboard.cli.context import Context, Json, answer_instant, context_of, flag, opened_state, opened_store
from dashboard.cli.output import note, print_json, print_table, say, say_origin
from dashboard.cli.tuning import PANEL, Who, login
from dashboard.config_errors import nearest
from tuner import consent, journal
from tuner.model import Change
from tuner.record import ChangeState, GroupRecord
from tuner.state import State, get_group, list_drops, list_groups, newest_notes
from tuner.state.codec import group_to_json

group = typer.Typer(help="List what the tuner planned and did; approve, reject and roll back.")

STYLES = {
    ChangeState.CONFIRMED: "green",
    ChangeState.ROLLED_BACK: "yellow",
    ChangeState.ROLLBACK_BLOCKED: "bold red",
    ChangeState.REFUSED: "yellow",
    ChangeState.FOREIGN_CHANGE: "yellow",
    ChangeState.DROPPED: "dim",
    ChangeState.EXPIRED: "dim",
}

Ids = Annotated[list[str], typer.Argument(metavar="ID...", help="Ids as `trimtab changes` lists them.")]
Why = Annotated[str, typer.Option("--why", metavar="TEXT", help="The reason, for the journal.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the root."""
    app.add_typer(group, name="changes", rich_help_panel=PANEL)


@group.callback(invoke_without_command=True)
def changes(
    ctx: typer.Context,
    *,
    state: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help="Only those in this state, such as planned or confirmed."),
    ] = None,
    every: Annotated[bool, flag("--all", help="Also those that a guard dropped.")] = False,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="At most so many, newest first.")] = 50,
    json: Json = False,
) -> None:
    """List what the tuner planned and did; approve, reject and roll back."""
    if ctx.invoked_subcommand is not None:
        return
    context = context_of(ctx)
    states = _states(state, every=every)
    records: list[GroupRecord] = []
    notes: tuple[str, ...] = ()
    if context.has_state:
        with opened_state(context) as opened:
            records = list_groups(opened, states=states, limit=limit)
            notes = newest_notes(opened)
    if json:
        print_json({"schema_version": 1, "changes": [document(record) for record in records], "notes": list(notes)})
        return
    say_origin(simulated=any(record.simulated for record in records))
    named = _naming(context) if records or notes else str
    print_table(
        ["id", "state", "since (UTC)", "kind", "what", "why"],
        [_row(record, named) for record in records],
        empty="no changes yet",
    )
    waiting = sum(record.state is ChangeState.PLANNED and record.decision == "ask" for record in records)
    if waiting:
        verb = "waits" if waiting == 1 else "wait"
        note(f"{waiting} {verb} for an answer: trimtab changes approve ID --why TEXT, or reject")
    for line in notes:
        note(named(line))


@group.command()
def show(
    ctx: typer.Context,
    change_id: Annotated[str, typer.Argument(metavar="ID", help="Id as `trimtab changes` lists it.")],
    json: Json = False,
) -> None:
    """Show one change with everything that the guards and the journal say about it."""
    context = context_of(ctx)
    with opened_state(context) as state:
        record = get_group(state, change_id)
        if record is None:
            raise ConfigurationError(f"expected the id of a change, got {change_id!r}; see `trimtab changes --all`")
        drops = list_drops(state, group_id=change_id)
        entries = journal.entries(state, group_id=change_id)
    if json:
        print_json({"schema_version": 1, **document(record), "drops": drops, "journal": entries})
        return
    say_origin(simulated=record.simulated)
    named = _naming(context)
    say(f"{record.id}: {named(record.group.why)}")
    say(f"{record.state.value}: {record.reason}" if record.reason else record.state.value)
    if record.group.risk:
        say(f"risk: {named(record.group.risk)}")
    say(
        f"confidence {record.group.confidence:.0%}, coverage {record.group.coverage:.0%}, "
        f"restarts {record.restarts}, evictions {record.evictions}"
    )
    print_table(
        ["target", "knob", ">before", ">after", "reason"],
        [(c.target, c.knob, value_text(c.knob, c.before), value_text(c.knob, c.after), named(c.reason))
         for c in record.group.changes],
    )  # fmt: skip
    for line in trial_words(record):
        say(line)
    for drop in drops:
        say(f"guard {drop.guard} {drop.action} it: {drop.reason}")
    for entry in entries:
        say(f"{entry.at:%Y-%m-%d %H:%M:%S} {entry.event} by {entry.actor}: {entry.body.get('reason', '')}")


@group.command()
def approve(ctx: typer.Context, ids: Ids, why: Why, as_: Who = None, json: Json = False) -> None:
    """Say yes to changes that wait; the tuner looks again before it carries them out."""

    def answer(state: State, change_id: str, now: datetime) -> GroupRecord:
        return consent.approve(state, change_id, who=login(as_), why=why, role="operator", now=now)

    _answer_all(ctx, ids, answer, json=json)


@group.command()
def reject(ctx: typer.Context, ids: Ids, why: Why, as_: Who = None, json: Json = False) -> None:
    """Say no to changes that wait, or take an approval back."""

    def answer(state: State, change_id: str, now: datetime) -> GroupRecord:
        return consent.reject(state, change_id, who=login(as_), why=why, role="operator", now=now)

    _answer_all(ctx, ids, answer, json=json)


@group.command()
def rollback(ctx: typer.Context, ids: Ids, why: Why, as_: Who = None, json: Json = False) -> None:
    """Ask for changes in force to be undone; the tuner does it in its next cycle."""

    def answer(state: State, change_id: str, now: datetime) -> GroupRecord:
        return consent.request_roll_back(state, change_id, who=login(as_), why=why, role="operator", now=now)

    _answer_all(ctx, ids, answer, json=json)


def _answer_all(
    ctx: typer.Context, ids: Sequence[str], answer: Callable[[State, str, datetime], GroupRecord], *, json: bool
) -> None:
    """Answer each; one that is refused does not keep the others from their answer.

    Raises:
        RefusedError: at least one was refused.
    """
    refused: list[str] = []
    done: list[GroupRecord] = []
    context = context_of(ctx)
    with opened_state(context) as state:
        now = answer_instant(context)
        for change_id in ids:
            try:
                done.append(answer(state, change_id, now))
            except RefusedError as error:
                refused.append(str(error))
    if json:
        print_json({"schema_version": 1, "changes": [document(record) for record in done], "refused": refused})
    else:
        for record in done:
            say(f"{record.id} is now {record.state.value}")
    if refused:
        raise RefusedError("; ".join(refused))


def _states(names: Sequence[str] | None, *, every: bool) -> list[ChangeState] | None:
    if not names:
        return None if every else [state for state in ChangeState if state is not ChangeState.DROPPED]
    known = [state.value for state in ChangeState]
    for name in names:
        if name not in known:
            raise ConfigurationError(f"expected a state out of {', '.join(known)}, got {name!r}{nearest(name, known)}")
    return [ChangeState(name) for name in names]


def _naming(context: Context) -> Callable[[str], str]:
    """Return what puts people's names of cards in the place of UUIDs, where the store knows them."""
    from dashboard.views.names import card_names, named  # noqa: PLC0415  pandas loads slowly; answers need none

    try:
        with opened_store(context) as store:
            names = card_names(store.facts(names=["ordinal"]))
    except TrimtabError as error:
        note(f"cards are told by their UUIDs: {error}")
        names = {}
    return lambda text: named(text, names)


def _row(record: GroupRecord, named: Callable[[str], str]) -> list[object]:
    state = "waits for an answer" if record.state is ChangeState.PLANNED and record.decision == "ask" else None
    return [
        record.id,
        Text(state or record.state.value, style=STYLES.get(record.state, "")),
        f"{record.updated_at:%Y-%m-%d %H:%M}",
        record.group.kind,
        named("; ".join(change_text(change) for change in record.group.changes)),
        named(record.group.why),
    ]


def change_text(change: Change) -> str:
    """Return one change in a few words: `ranker sm_quota_ratio 50 % -> 60 %`."""
    name = change.workload or change.target.name or change.target.slice or change.target.gpu
    return f"{name} {change.knob} {value_text(change.knob, change.before)} -> {value_text(change.knob, change.after)}"


def trial_words(record: GroupRecord) -> list[str]:
    """Return what a probe would do, when, at what cost, and what it would decide; nothing for other changes."""
    trial = record.group.trial
    if trial is None:
        return []
    (change,) = record.group.changes
    who, victim = change.workload or change.target.slice, trial.victim_workload or trial.victim.slice
    return [
        (
            f"trial: {plural(trial.pairs, 'pair')} of blocks of {trial.block_seconds / 60:.0f} min, one with {who} at "
            f"{value_text(change.knob, change.after)} of the card and one at {value_text(change.knob, change.before)}, "
            f"in coin-flip order, a pair every {trial.every_seconds / 60:.0f} min at most"
        ),
        (
            f"it takes about {trial.expected_seconds / 3600:.1f} h, at most {trial.longest_seconds / 3600:.0f} h; it "
            "ends at once, with the former share, when an objective is missed or the tuner is paused"
        ),
        f"it costs {who} about {trial.lost_sm_seconds:.0f} SM-seconds, {trial.lost_ratio:.0%} of its work meanwhile",
        (
            f"it decides whether {who} slows {victim}: by {trial.detects:.1%} or more at full swing would be found "
            f"({trial.finding})"
        ),
    ]


def value_text(knob: str, value: float) -> str:
    """Return a knob's value as people read it: percent, GiB, or the number."""
    if value != value:  # noqa: PLR0124  NaN: the backend did not tell
        return "unknown"
    if knob.endswith("_ratio"):
        return f"{value:.1%}"
    if knob.endswith("_bytes"):
        return f"{value / 2**30:.2f} GiB"
    return f"{value:g}"


def document(record: GroupRecord) -> dict[str, object]:
    """Return a change as JSON values."""
    return {
        **group_to_json(record.group),
        "plan_id": record.plan_id,
        "state": record.state.value,
        "decision": record.decision,
        "state_reason": record.reason,
        "made_at": record.made_at,
        "updated_at": record.updated_at,
        "until": record.until,
        "restarts": record.restarts,
        "evictions": record.evictions,
        "simulated": record.simulated,
        "evidence": dict(record.evidence),
    }
