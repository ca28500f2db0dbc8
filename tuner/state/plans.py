"""Plans, groups and drops. Writing goes through `tuner.journal`, which holds the lock."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, and_, delete, func, insert, or_, select, update

from tuner.model import Group
from tuner.record import FAILED_STATES, OPEN_STATES, WAITING_STATES, ChangeState, Drop, GroupRecord
from tuner.state.codec import canonical, digest, group_from_json, group_to_json, parse
from tuner.state.database import State
from tuner.state.seals import seal
from tuner.state.tables import ApprovalRow, DropRow, GroupRow, PlanRow

_HEAD = tuple(c for c in GroupRow.__table__.c if c.name != "document")
_ID_CHUNK = 500  # below the limit of bound values of every database


def signature(group: Group) -> str:
    """Return what a group asks for, whatever its id: the same targets, knobs and values give the same text."""
    return digest(sorted([str(c.target), c.knob, c.after] for c in group.changes))[:16]


def insert_plan(
    connection: Connection,
    *,
    plan_id: str,
    made_at: datetime,
    as_of: datetime,
    simulated: bool,
    notes: Sequence[str],
    groups: Sequence[GroupRecord],
    drops: Sequence[Drop],
) -> str:
    """Write a plan with its groups and drops; return the digest of all that it says."""
    rows = [
        {
            "id": r.id,
            "plan_id": plan_id,
            "position": position,
            "kind": r.group.kind,
            "state": r.state.value,
            "decision": r.decision,
            "reason": r.reason,
            "simulated": simulated,
            "made_at": made_at,
            "updated_at": made_at,
            "until": r.until,
            "restarts": r.restarts,
            "evictions": r.evictions,
            "signature": signature(r.group),
            "evidence": "{}",
            "document": canonical(group_to_json(r.group)),
        }
        for position, r in enumerate(groups)
    ]
    said = [[d.group_id, d.guard, d.action, d.reason] for d in drops]
    plan_digest = seal(as_of=as_of, simulated=simulated, notes=notes, groups=rows, drops=said)
    connection.execute(
        insert(PlanRow).values(
            id=plan_id,
            made_at=made_at,
            as_of=as_of,
            simulated=simulated,
            notes=canonical(list(notes)),
            digest=plan_digest,
        )
    )
    if rows:
        connection.execute(insert(GroupRow), rows)
    if drops:
        connection.execute(
            insert(DropRow),
            [
                {"plan_id": plan_id, "group_id": d.group_id, "guard": d.guard, "action": d.action, "reason": d.reason}
                for d in drops
            ],
        )
    return plan_digest


def update_group(connection: Connection, group_id: str, values: Mapping[str, Any]) -> None:
    """Set columns of a group's row."""
    connection.execute(update(GroupRow).where(GroupRow.id == group_id).values(dict(values)))


def group_state(connection: Connection, group_id: str) -> ChangeState | None:
    """Return the state of a group, or None when there is no such group."""
    found = connection.scalar(select(GroupRow.state).where(GroupRow.id == group_id))
    return None if found is None else ChangeState(found)


def waiting_signatures(connection: Connection) -> dict[str, str]:
    """Return signature -> id of the groups that wait for an answer."""
    rows = connection.execute(
        select(GroupRow.signature, GroupRow.id).where(
            GroupRow.decision == "ask", GroupRow.state.in_([s.value for s in WAITING_STATES])
        )
    )
    return {row.signature: row.id for row in rows}


def waiting_groups(state: State) -> list[GroupRecord]:
    """Return the groups that wait for an answer, or for their turn after one, oldest first."""
    query = (
        select(*_HEAD)
        .where(GroupRow.decision == "ask", GroupRow.state.in_([s.value for s in WAITING_STATES]))
        .order_by(GroupRow.made_at, GroupRow.position)
    )
    return _records(state, query)


def ready_ids(state: State, *, made_before: datetime) -> list[str]:
    """Return ids of groups that were to be carried out at once, were not, and are older than `made_before`."""
    query = select(GroupRow.id).where(
        GroupRow.state == ChangeState.PLANNED.value, GroupRow.decision == "go", GroupRow.made_at < made_before
    )
    with state.reading() as connection:
        return list(connection.scalars(query.order_by(GroupRow.made_at, GroupRow.position)))


def get_group(state: State, group_id: str) -> GroupRecord | None:
    """Return one group, or None."""
    found = _records(state, select(*_HEAD).where(GroupRow.id == group_id))
    return found[0] if found else None


def open_groups(state: State) -> list[GroupRecord]:
    """Return the groups under way, oldest intent first."""
    query = select(*_HEAD).where(GroupRow.state.in_([s.value for s in OPEN_STATES]))
    return _records(state, query.order_by(GroupRow.intent_at, GroupRow.position))


def past_groups(state: State, *, since: datetime, failed_since: datetime) -> list[GroupRecord]:
    """Return what the guards must remember, oldest intent first.

    Args:
        state: the state database.
        since: all groups whose intent is as young as this.
        failed_since: those that failed (rolled back, refused, foreign, ...) from here on.
    """
    kept = [s.value for s in FAILED_STATES]
    query = select(*_HEAD).where(
        GroupRow.intent_at >= min(since, failed_since),
        or_(GroupRow.intent_at >= since, and_(GroupRow.intent_at >= failed_since, GroupRow.state.in_(kept))),
    )
    found = {r.id: r for r in [*open_groups(state), *_records(state, query)]}
    return sorted(found.values(), key=lambda r: (r.intent_at or r.made_at, r.id))


def list_groups(
    state: State,
    *,
    states: Collection[ChangeState] | None = None,
    since: datetime | None = None,
    plan_id: str | None = None,
    limit: int = 200,
) -> list[GroupRecord]:
    """Return groups, newest first."""
    query = select(*_HEAD)
    if states is not None:
        query = query.where(GroupRow.state.in_([s.value for s in states]))
    if since is not None:
        query = query.where(GroupRow.updated_at >= since)
    if plan_id is not None:
        query = query.where(GroupRow.plan_id == plan_id)
    return _records(state, query.order_by(GroupRow.updated_at.desc(), GroupRow.position).limit(limit))


def list_drops(
    state: State,
    *,
    plan_id: str | None = None,
    group_id: str | None = None,
    since: datetime | None = None,
    limit: int = 1000,
) -> list[Drop]:
    """Return what guards decided against (in plans made at or after `since`), newest first."""
    query = select(DropRow.group_id, DropRow.guard, DropRow.action, DropRow.reason)
    if since is not None:
        query = query.join(PlanRow, PlanRow.id == DropRow.plan_id).where(PlanRow.made_at >= since)
    if plan_id is not None:
        query = query.where(DropRow.plan_id == plan_id)
    if group_id is not None:
        query = query.where(DropRow.group_id == group_id)
    with state.reading() as connection:
        rows = connection.execute(query.order_by(DropRow.id.desc()).limit(limit)).all()
    return [Drop(r.group_id, r.guard, r.action, r.reason) for r in rows]


def plan_exists(state: State, plan_id: str) -> bool:
    """Say whether a plan was written under that id."""
    with state.reading() as connection:
        return connection.scalar(select(PlanRow.id).where(PlanRow.id == plan_id)) is not None


def latest_plan_id(state: State) -> str | None:
    """Return the id of the newest plan, or None."""
    with state.reading() as connection:
        return connection.scalar(select(PlanRow.id).order_by(PlanRow.made_at.desc(), PlanRow.id.desc()).limit(1))


def newest_notes(state: State) -> tuple[str, ...]:
    """Return what the newest plan of a full cycle says about what it did not plan; the fast path says nothing."""
    newest = select(PlanRow.notes).where(PlanRow.id.not_like("fast-%"))
    with state.reading() as connection:
        found = connection.scalar(newest.order_by(PlanRow.made_at.desc(), PlanRow.id.desc()).limit(1))
    notes: Any = [] if found is None else parse(found)
    return tuple(str(note) for note in notes)


def count_states(state: State, since: datetime | None = None) -> dict[ChangeState, int]:
    """Return how many groups are in each state (updated at or after `since`)."""
    query = select(GroupRow.state, func.count()).group_by(GroupRow.state)
    if since is not None:
        query = query.where(GroupRow.updated_at >= since)
    with state.reading() as connection:
        return {ChangeState(name): count for name, count in connection.execute(query)}


def delete_plans(connection: Connection, before: datetime) -> list[str]:
    """Delete plans made before `before` of which nothing was ever written to a backend; return their ids."""
    kept = select(GroupRow.plan_id).where(
        or_(GroupRow.intent_at.is_not(None), GroupRow.state == ChangeState.APPROVED.value)
    )
    asked = select(GroupRow.plan_id).join(ApprovalRow, ApprovalRow.group_id == GroupRow.id)
    old = select(PlanRow.id).where(PlanRow.made_at < before, PlanRow.id.not_in(kept), PlanRow.id.not_in(asked))
    ids = list(connection.scalars(old))
    for start in range(0, len(ids), _ID_CHUNK):
        chunk = ids[start : start + _ID_CHUNK]
        connection.execute(delete(DropRow).where(DropRow.plan_id.in_(chunk)))
        connection.execute(delete(GroupRow).where(GroupRow.plan_id.in_(chunk)))
        connection.execute(delete(PlanRow).where(PlanRow.id.in_(chunk)))
    return ids


def _records(state: State, query: Select[Any]) -> list[GroupRecord]:
    with state.reading() as connection:
        rows = connection.execute(query).all()
        _load_documents(state, connection, (row.id for row in rows))
        return [_record(state, connection, row) for row in rows]


def _load_documents(state: State, connection: Connection, ids: Iterable[str]) -> None:
    missing = [i for i in ids if state.cached_group(i) is None]
    for start in range(0, len(missing), _ID_CHUNK):
        chunk = missing[start : start + _ID_CHUNK]
        for document in connection.scalars(select(GroupRow.document).where(GroupRow.id.in_(chunk))):
            state.cache_group(group_from_json(parse(document)))


def _record(state: State, connection: Connection, row: Row[Any]) -> GroupRecord:
    group = state.cached_group(row.id)
    if group is None:  # more rows than the cache holds
        document = connection.scalar(select(GroupRow.document).where(GroupRow.id == row.id))
        group = group_from_json(parse(str(document)))
    return GroupRecord(
        group=group,
        plan_id=row.plan_id,
        state=ChangeState(row.state),
        decision=row.decision,
        reason=row.reason,
        made_at=row.made_at,
        updated_at=row.updated_at,
        simulated=row.simulated,
        intent_at=row.intent_at,
        applied_at=row.applied_at,
        settled_at=row.settled_at,
        until=row.until,
        restarts=row.restarts,
        evictions=row.evictions,
        evidence=parse(row.evidence),
    )
