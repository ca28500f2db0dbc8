"""The audit of the record: is the chain whole, is each plan as it was sealed, each group where its journal says?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, select
from sqlalchemy.exc import DBAPIError

from tuner.journal import GENESIS, PRUNED, STATES, UNREADABLE, link_hash
from tuner.record import ChangeState, GroupRecord
from tuner.state.codec import JsonObject, parse
from tuner.state.database import State
from tuner.state.seals import difference
from tuner.state.tables import GroupRow, JournalRow

_BATCH = 1000


@dataclass(frozen=True, slots=True)
class Audit:
    """What `verify_chain` found; `broken_seq` is the first entry that does not fit."""

    entries: int
    broken_seq: int | None = None
    problem: str = ""

    @property
    def ok(self) -> bool:
        """Whether the chain is whole."""
        return self.broken_seq is None and not self.problem


def verify_chain(state: State, *, expected_head: tuple[int, str] | None = None) -> Audit:
    """Check every link, the seals of the plans that are still kept, and that each group is where its journal says.

    Args:
        state: the state database.
        expected_head: seq and hash noted earlier with `head`: finds a journal whose end was cut off.
    """
    previous, seen, size = GENESIS, 0, _BATCH
    story = _Story()
    with state.reading() as connection:
        while True:
            try:
                rows = connection.execute(
                    select(JournalRow.__table__).where(JournalRow.seq > seen).order_by(JournalRow.seq).limit(size)
                ).all()
            except (*UNREADABLE, DBAPIError) as error:
                if size == 1:
                    return Audit(seen, seen + 1, f"it cannot be read ({error})")
                size = 1  # to find the one
                continue
            if not rows:
                break
            for row in rows:
                problem = _problem(row, seen + 1, previous) or story.add(row)
                if expected_head is not None and row.seq == expected_head[0] and row.hash != expected_head[1]:
                    problem = problem or "it is not the entry that was noted with this number"
                if problem:
                    return Audit(seen, row.seq, problem)
                previous, seen = row.hash, seen + 1
        if expected_head is not None and seen < expected_head[0]:
            return Audit(seen, None, f"entries after {seen} are missing: {expected_head[0]} were noted")
        return _check_rows(connection, story, seen)


@dataclass(slots=True)
class _Story:
    """What the journal says, gathered entry by entry."""

    last_event: dict[str, str] = field(default_factory=dict)
    ends: dict[str, str | None] = field(default_factory=dict)  # of the last approval of each group
    plans: dict[str, tuple[int, JsonObject]] = field(default_factory=dict)
    pruned: set[str] = field(default_factory=set)

    def add(self, row: Row[Any]) -> str:
        """Take in an entry; return what is wrong with it."""
        try:
            if row.group_id and row.event in STATES:
                self.last_event[row.group_id] = row.event
                if row.event == ChangeState.APPROVED.value:
                    self.ends[row.group_id] = parse(row.body).get("until")
            elif row.plan_id and row.event == ChangeState.PLANNED.value:
                self.plans[row.plan_id] = (row.seq, parse(row.body))
            elif row.event == PRUNED:
                self.pruned.update(parse(row.body)["plans"])
        except UNREADABLE as error:
            return f"its content cannot be read ({error})"
        return ""


def _check_rows(connection: Connection, story: _Story, seen: int) -> Audit:
    for plan_id, (seq, said) in story.plans.items():
        if plan_id in story.pruned:
            continue
        try:
            problem = difference(connection, plan_id, said, story.ends)
        except (*UNREADABLE, DBAPIError) as error:
            problem = f"plan {plan_id} cannot be read ({error})"
        if problem:
            return Audit(seen, seq, problem)
    for row in connection.execute(select(GroupRow.id, GroupRow.state, GroupRow.plan_id)):
        if row.plan_id not in story.plans:
            return Audit(seen, None, f"change {row.id} belongs to plan {row.plan_id}, which is not in the journal")
        expected = story.last_event.get(row.id, ChangeState.PLANNED.value)
        if row.state not in {expected, ChangeState.DROPPED.value}:  # dropped ones were compared with their plan
            return Audit(seen, None, f"change {row.id} is {row.state}, its journal says {expected}")
    return Audit(seen)


def _problem(row: Row[Any], expected_seq: int, previous: str) -> str:
    if row.seq != expected_seq:
        return f"entry {expected_seq} is missing"
    if row.previous != previous:
        return "it does not follow the entry before it"
    try:
        return "" if link_hash(row, row.body) == row.hash else "its content was changed"
    except UNREADABLE as error:
        return f"its content cannot be read ({error})"


def why_unsealed(state: State, record: GroupRecord) -> str:
    """Return how a waiting group differs from what the journal says of it and of its plan; empty when it does not."""
    with state.reading() as connection:
        try:
            planned = connection.execute(
                select(JournalRow.__table__)
                .where(JournalRow.plan_id == record.plan_id, JournalRow.event == ChangeState.PLANNED.value)
                .order_by(JournalRow.seq.desc())
                .limit(1)
            ).one_or_none()
            if planned is None:
                return f"plan {record.plan_id} is not in the journal"
            own = connection.execute(
                select(JournalRow.__table__).where(JournalRow.group_id == record.id).order_by(JournalRow.seq)
            ).all()
            steps = [row for row in own if row.event in STATES]
            if any(link_hash(row, row.body) != row.hash for row in [planned, *steps]):
                return "its journal entries were changed"
            last = steps[-1].event if steps else ChangeState.PLANNED.value
            if last != record.state.value:
                return f"change {record.id} is {record.state.value}, its journal says {last}"
            ends = {r.group_id: parse(r.body).get("until") for r in steps if r.event == ChangeState.APPROVED.value}
            return difference(connection, record.plan_id, parse(planned.body), ends, only=record.id)
        except (*UNREADABLE, DBAPIError) as error:
            return f"what the journal says of it cannot be read ({error})"
