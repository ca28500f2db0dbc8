"""What a plan said when it was written, sealed in the journal, against what its rows say now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, select

from tuner.record import ChangeState
from tuner.state.codec import JsonObject, digest, parse
from tuner.state.tables import DropRow, GroupRow, PlanRow

_DROPPED = ChangeState.DROPPED.value
# what never changes after planning; `until` does, by an approval, and is in the journal's entry itself
_FIXED = ("id", "kind", "decision", "simulated", "restarts", "evictions", "signature", "document")
_COMPARED = tuple(c for c in GroupRow.__table__.c if c.name in {*_FIXED, "made_at", "state", "until"})


def seal(
    *,
    as_of: datetime,
    simulated: bool,
    notes: Sequence[str],
    groups: Iterable[Mapping[str, Any]],
    drops: Iterable[Sequence[str]],
) -> str:
    """Return the digest of all that a plan says; of each group also when, and whether, it was dropped at planning."""
    fixed = [
        [*(g[name] for name in _FIXED), g["made_at"].astimezone(UTC).isoformat(), g["state"] == _DROPPED]
        for g in groups
    ]
    return digest([as_of.astimezone(UTC).isoformat(), simulated, list(notes), fixed, [list(d) for d in drops]])


def difference(
    connection: Connection,
    plan_id: str,
    said: JsonObject,
    ends: Mapping[str, str | None],
    *,
    only: str | None = None,
) -> str:
    """Return how the rows of a plan differ from what its journal entry says; empty when they do not.

    Args:
        connection: an open connection.
        plan_id: the plan.
        said: body of its `planned` entry.
        ends: until when each approved group was approved, as its last approval says.
        only: compare the columns of this group alone; the seal of the whole plan is always compared.

    Raises:
        ValueError, TypeError, KeyError: something is not what this program writes.
    """
    plan = connection.execute(
        select(PlanRow.as_of, PlanRow.simulated, PlanRow.notes).where(PlanRow.id == plan_id)
    ).one_or_none()
    if plan is None:
        return f"plan {plan_id} is missing"
    rows = connection.execute(select(*_COMPARED).where(GroupRow.plan_id == plan_id).order_by(GroupRow.position)).all()
    for row in rows:
        problem = _row_difference(row, said, ends) if only in {None, row.id} else ""
        if problem:
            return problem
    gone = sorted(said["groups"].keys() - {row.id for row in rows})
    if gone:
        return f"change {gone[0]} of plan {plan_id} is missing"
    drops = connection.execute(
        select(DropRow.group_id, DropRow.guard, DropRow.action, DropRow.reason)
        .where(DropRow.plan_id == plan_id)
        .order_by(DropRow.id)
    ).all()
    notes: Any = parse(plan.notes)
    groups = [dict(zip(row._fields, row, strict=True)) for row in rows]
    now = seal(as_of=plan.as_of, simulated=plan.simulated, notes=notes, groups=groups, drops=drops)
    return "" if now == said["digest"] else f"plan {plan_id} was changed after it was written"


def _row_difference(row: Row[Any], said: JsonObject, ends: Mapping[str, str | None]) -> str:
    decision: str | None = said["groups"].get(row.id)
    if (decision is None) != (row.state == _DROPPED):
        did = "dropped" if decision is None else "kept"
        return f"change {row.id} is {row.state}, its plan {did} it"
    if decision not in {None, row.decision}:
        return f"the decision of change {row.id} is {row.decision}, its plan says {decision}"
    if row.simulated != said["simulated"]:
        return f"change {row.id} says simulated {row.simulated}, its plan says {said['simulated']}"
    end = ends[row.id] if row.id in ends else said["until"].get(row.id)
    if row.until != (None if end is None else datetime.fromisoformat(end)):
        return f"change {row.id} waits until {row.until}, its journal says {end}"
    return ""
