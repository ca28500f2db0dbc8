"""The journal: append-only, hash-chained, one writer at a time.

Every entry's hash covers the previous hash and the whole entry, so that a changed, removed or inserted line shows.
Approvals come from the dashboard's process while the tuner writes: both take the database's one write lock before they
look at the last entry, else the chain would fork. A step of a group and its journal entry are one transaction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, insert, select

from collector.errors import TrimtabError
from tuner.model import Plan
from tuner.record import NEXT_STATES, OPEN_STATES, WAITING_STATES, ChangeState, Drop, GroupRecord
from tuner.state.codec import JsonObject, canonical, parse
from tuner.state.database import State
from tuner.state.plans import (
    delete_plans,
    group_state,
    insert_plan,
    ready_ids,
    signature,
    update_group,
    waiting_groups,
    waiting_signatures,
)
from tuner.state.tables import GroupRow, JournalRow, LeaseRow

GENESIS = "0" * 64
READY_FOR = timedelta(minutes=10)  # what mode auto planned and did not carry out by then is planned anew
PRUNED = "pruned"
STATES = frozenset(s.value for s in ChangeState)
UNREADABLE = (ValueError, TypeError, KeyError, AttributeError)  # what rows of another hand give when decoded


class StateMovedError(TrimtabError):
    """A group is not in a state from which the asked step is possible: somebody else was faster."""


class LeaseLostError(TrimtabError):
    """Another tuner holds the lease: this one must not write."""


@dataclass(frozen=True, slots=True)
class Fence:
    """The right to write: a lease's name, its holder and its fencing number."""

    name: str
    holder: str
    number: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the journal."""

    seq: int
    at: datetime
    event: str
    group_id: str
    plan_id: str
    actor: str
    fence: int | None
    body: JsonObject
    previous: str
    hash: str


def append(
    connection: Connection,
    *,
    at: datetime,
    event: str,
    actor: str,
    group_id: str = "",
    plan_id: str = "",
    fence: int | None = None,
    body: Mapping[str, Any] | None = None,
) -> Entry:
    """Append one entry inside `State.writing()`, which holds the lock."""
    last = connection.execute(
        select(JournalRow.seq, JournalRow.hash).order_by(JournalRow.seq.desc()).limit(1)
    ).one_or_none()
    seq, previous = (1, GENESIS) if last is None else (last.seq + 1, last.hash)
    text = canonical(dict(body or {}))
    entry = Entry(seq, at, event, group_id, plan_id, actor, fence, parse(text), previous, "")
    entry = replace(entry, hash=link_hash(entry, text))
    columns = {f.name: getattr(entry, f.name) for f in fields(entry)}
    connection.execute(insert(JournalRow).values({**columns, "body": text}))
    return entry


def note(state: State, event: str, *, at: datetime, actor: str, body: Mapping[str, Any] | None = None) -> Entry:
    """Append an entry that belongs to no group: paused, resumed, lease taken, re-armed."""
    with state.writing() as connection:
        return append(connection, at=at, event=event, actor=actor, body=body)


def step(
    state: State,
    group_id: str,
    to: ChangeState,
    *,
    at: datetime,
    actor: str,
    reason: str,
    body: Mapping[str, Any] | None = None,
    fence: Fence | None = None,
) -> None:
    """Move a group to its next state and say so in the journal, in one transaction that is on disk on return.

    Raises:
        StateMovedError: the group is not in a state that `to` may follow.
        LeaseLostError: `fence` is given and no longer holds.
    """
    with state.writing() as connection:
        step_in(connection, group_id, to, at=at, actor=actor, reason=reason, body=body, fence=fence)


def walk(
    state: State,
    group_id: str,
    way: Sequence[tuple[ChangeState, str, Mapping[str, Any] | None]],
    *,
    at: datetime,
    actor: str,
    fence: Fence,
) -> None:
    """Do several steps, each (state, reason, body) with its own entry, in one transaction: one wait for the disk.

    Raises:
        StateMovedError: a step is not possible; none of them is done.
        LeaseLostError: `fence` no longer holds.
    """
    with state.writing() as connection:
        for to, reason, body in way:
            step_in(connection, group_id, to, at=at, actor=actor, reason=reason, body=body, fence=fence)


def step_in(
    connection: Connection,
    group_id: str,
    to: ChangeState,
    *,
    at: datetime,
    actor: str,
    reason: str,
    body: Mapping[str, Any] | None = None,
    fence: Fence | None = None,
    until: datetime | None = None,
) -> None:
    """Do `step` inside a transaction that is already open; `until` dates an approval."""
    if fence is not None:
        check_fence(connection, fence)
    now = group_state(connection, group_id)
    if now is None:
        raise StateMovedError(f"expected a change {group_id!r}, found none; `trimtab changes` lists them")
    if to not in NEXT_STATES[now]:
        raise StateMovedError(f"change {group_id} is {now.value}: it cannot become {to.value}; look at it again")
    evidence = {**(body or {}), "reason": reason}
    values: dict[str, Any] = {
        "state": to.value,
        "reason": reason,
        "updated_at": at,
        "evidence": canonical(evidence),
    }
    if to is ChangeState.INTENT:
        values["intent_at"] = at
    if to is ChangeState.APPLIED:
        values["applied_at"] = at
    if to is ChangeState.APPROVED:
        values["until"] = until
    if to not in OPEN_STATES | WAITING_STATES:
        values["settled_at"] = at
    update_group(connection, group_id, values)
    append(
        connection,
        at=at,
        event=to.value,
        actor=actor,
        group_id=group_id,
        fence=None if fence is None else fence.number,
        body=evidence,
    )


def remark(
    state: State,
    group_id: str,
    event: str,
    *,
    at: datetime,
    actor: str,
    reason: str,
    body: Mapping[str, Any] | None = None,
    fence: Fence | None = None,
) -> None:
    """Append an entry about a group that does not move it, such as an answer that was lost, or a block of a probe.

    Raises:
        LeaseLostError: `fence` is given and no longer holds.
    """
    number = None if fence is None else fence.number
    with state.writing() as connection:
        if fence is not None:
            check_fence(connection, fence)
        said = {**(body or {}), "reason": reason}
        append(connection, at=at, event=event, actor=actor, group_id=group_id, fence=number, body=said)


def check_fence(connection: Connection, fence: Fence) -> None:
    """Make sure, under the lock, that nobody took the lease.

    Raises:
        LeaseLostError: somebody did.
    """
    row = connection.execute(select(LeaseRow.holder, LeaseRow.fence).where(LeaseRow.name == fence.name)).one_or_none()
    if row is None or row.holder != fence.holder or row.fence != fence.number:
        held = "nobody" if row is None else f"{row.holder} (number {row.fence})"
        raise LeaseLostError(
            f"expected the lease {fence.name!r} with {fence.holder} (number {fence.number}), it is with {held}; "
            "this tuner stops writing"
        )


def record_plan(
    state: State,
    plan: Plan,
    kept: Sequence[GroupRecord],
    drops: Sequence[Drop],
    *,
    actor: str,
    now: datetime,
    fence: Fence | None = None,
) -> list[GroupRecord]:
    """Write a guarded plan in one transaction: groups, drops, and one journal entry that seals them by digest.

    Groups of `plan` that are not in `kept` are written as dropped. A kept group that asks for what already waits for
    an answer is dropped in favour of the waiting one; a waiting group whose targets a new ask touches otherwise
    expires.

    Returns:
        The kept groups as written (the doubles are gone).

    Raises:
        ValueError: a group id was used before.
        LeaseLostError: `fence` no longer holds.
    """
    kept_ids = {r.id for r in kept}
    fallen = [
        GroupRecord(g, plan.id, ChangeState.DROPPED, "write_down", "", now, now, plan.simulated)
        for g in plan.groups
        if g.id not in kept_ids
    ]
    why = {d.group_id: f"{d.guard}: {d.reason}" for d in drops if d.action == "dropped"}
    fallen = [replace(r, reason=why.get(r.id, "")) for r in fallen]
    waiting = {r.id: r for r in waiting_groups(state)} if any(r.decision == "ask" for r in kept) else {}
    written: list[GroupRecord] = []
    extra: list[Drop] = []
    with state.writing() as connection:
        if fence is not None:
            check_fence(connection, fence)
        _refuse_known_ids(connection, [g.id for g in plan.groups])
        signatures = waiting_signatures(connection) if waiting else {}
        replaced: dict[str, str] = {}
        for record in kept:
            double = signatures.get(signature(record.group)) if record.decision == "ask" else None
            if double is None:
                written.append(record)
                if record.decision == "ask":
                    replaced.update(dict.fromkeys(_touching(record, waiting.values()), record.id))
            else:
                reason = f"{double} asks for the same and waits for an answer"
                extra.append(Drop(record.id, "waiting", "dropped", reason))
                fallen.append(replace(record, state=ChangeState.DROPPED, reason=f"waiting: {reason}"))
        all_drops = [*drops, *extra]
        seal = insert_plan(
            connection,
            plan_id=plan.id,
            made_at=plan.made_at,
            as_of=plan.as_of,
            simulated=plan.simulated,
            notes=plan.notes,
            groups=[*written, *fallen],
            drops=all_drops,
        )
        append(
            connection,
            at=now,
            event=ChangeState.PLANNED.value,
            actor=actor,
            plan_id=plan.id,
            fence=None if fence is None else fence.number,
            body={
                "digest": seal,
                "groups": {r.id: r.decision for r in written},
                "until": {r.id: r.until.isoformat() for r in [*written, *fallen] if r.until is not None},
                "dropped": len(fallen),
                "drops": len(all_drops),
                "simulated": plan.simulated,
            },
        )
        for old, new in sorted(replaced.items()):
            if group_state(connection, old) in WAITING_STATES:
                step_in(connection, old, ChangeState.EXPIRED, at=now, actor=actor, reason=f"{new} asks instead")
    for record in written:
        state.cache_group(record.group)
    return written


def expire_waiting(state: State, *, now: datetime, actor: str) -> list[str]:
    """Let asks and approvals whose time is over expire, and what was to be done and was not; return their ids."""
    late = {r.id: "its time was over" for r in waiting_groups(state) if r.until is not None and r.until <= now}
    late |= dict.fromkeys(ready_ids(state, made_before=now - READY_FOR), "it was not carried out in its cycle")
    for group_id, reason in late.items():
        step(state, group_id, ChangeState.EXPIRED, at=now, actor=actor, reason=reason)
    return list(late)


def prune_plans(state: State, before: datetime, *, at: datetime, actor: str) -> int:
    """Delete plans made before `before` of which nothing was ever written to a backend; the journal stays whole.

    Returns how many plans went; the journal names them.
    """
    with state.writing() as connection:
        ids = delete_plans(connection, before)
        if ids:
            append(connection, at=at, event=PRUNED, actor=actor, body={"plans": ids})
    return len(ids)


def entries(state: State, *, group_id: str | None = None, after: int = 0, limit: int | None = None) -> list[Entry]:
    """Return journal entries in order, those with seq > `after`."""
    query = select(JournalRow.__table__).where(JournalRow.seq > after).order_by(JournalRow.seq)
    if group_id is not None:
        query = query.where(JournalRow.group_id == group_id)
    if limit is not None:
        query = query.limit(limit)
    with state.reading() as connection:
        return [_entry(row) for row in connection.execute(query)]


def head(state: State) -> tuple[int, str]:
    """Return seq and hash of the last entry; kept elsewhere, they prove that the end was not cut off."""
    with state.reading() as connection:
        row = connection.execute(
            select(JournalRow.seq, JournalRow.hash).order_by(JournalRow.seq.desc()).limit(1)
        ).one_or_none()
    return (0, GENESIS) if row is None else (row.seq, row.hash)


def link_hash(entry: Entry | Row[Any], body: str) -> str:
    """Return the hash of an entry: SHA-256 of the previous hash and the canonical text of all its parts."""
    at = int(entry.at.timestamp() * 1_000_000)
    parts = [entry.previous, entry.seq, at, entry.event, entry.group_id, entry.plan_id, entry.actor, entry.fence, body]
    return hashlib.sha256(canonical(parts).encode()).hexdigest()


def _entry(row: Row[Any]) -> Entry:
    return Entry(**{**dict(zip(row._fields, row, strict=True)), "body": parse(row.body)})


def _touching(record: GroupRecord, waiting: Iterable[GroupRecord]) -> list[str]:
    mine = {(c.target, c.knob) for c in record.group.changes}
    alike = [
        r for r in waiting if (r.group.trial is None) is (record.group.trial is None)
    ]  # a probe replaces no change
    return [r.id for r in alike if any((c.target, c.knob) in mine for c in r.group.changes)]


def _refuse_known_ids(connection: Connection, ids: Sequence[str]) -> None:
    if len(set(ids)) != len(ids):
        raise ValueError(f"group ids must differ within a plan, got {sorted(ids)}")
    known = connection.scalars(select(GroupRow.id).where(GroupRow.id.in_(ids))).all()
    if known:
        raise ValueError(f"group ids must never be used twice, got {sorted(known)} again; put the plan's id into them")
