"""What a lost answer, a slow write or a crash left open, moved on by what the backend holds now."""

from __future__ import annotations

from collector.errors import UnreachableError
from tuner.guards.world import domain_of
from tuner.model import Target
from tuner.place import Place
from tuner.record import ChangeState, GroupRecord
from tuner.state.plans import open_groups
from tuner.undo import leave, roll_back, undo
from tuner.writer import Leg, Step, Writer, settled_by

_S = ChangeState
ARRIVED: tuple[Leg, ...] = (
    (_S.READ_BACK, "the backend holds what was asked for", None),
    (_S.VERIFYING, "its effect is being watched", None),
)


def recover(writer: Writer) -> list[Step]:
    """Settle everything that is open; called at the start before any new plan, and each cycle.

    The newest first: a later group of ours on the same card explains values that would look foreign to an earlier
    one, and while the later one is not settled the earlier one is left alone.
    """
    steps: list[Step] = []
    unsettled: set[Target] = set()
    for record in reversed(open_groups(writer.state)):
        domains = {domain_of(c.target) for c in record.group.changes}
        if domains & unsettled:
            steps.append(Step(record.id, record.state, "waits for a later change of the same card"))
            continue
        current = writer.get(record.id)
        steps.append(settle(writer, current) if current.is_open else Step(current.id, current.state, current.reason))
        if steps[-1].state in {_S.INTENT, _S.APPLIED}:
            unsettled |= domains
    return steps


def settle(writer: Writer, record: GroupRecord) -> Step:
    """Look at a group that is under way and move it on, by what the backend holds now.

    Used after a lost answer, for writes that take long, and after a crash (`recover`). A verifying group only
    moves here when somebody else changed its values.
    """
    if writer.is_out_of_place(record):
        return leave(writer, record)
    if record.state is _S.ROLLING_BACK:
        return undo(writer, record)
    try:
        place = writer.locate(record.group, writer.read(record.group))
    except UnreachableError as error:
        return Step(record.id, record.state, f"not settled: {error}")
    watched = record.state is _S.VERIFYING
    between = record.group.trial is not None and place is Place.BEFORE  # two blocks of a probe
    if place is Place.FOREIGN or (watched and place in {Place.BEFORE, Place.MIXED} and not between):
        return writer.step(record, _S.FOREIGN_CHANGE, "somebody else set another value: theirs stays")
    if place is Place.AFTER or (watched and between):
        return Step(record.id, record.state, "being watched") if watched else _arrived(writer, record)
    return _absent(writer, record, place)


def supersede(writer: Writer, later: GroupRecord) -> None:
    """Close groups that are being watched where a later one of ours changed the same card."""
    domains = {domain_of(c.target) for c in later.group.changes}
    for record in open_groups(writer.state):
        mine = {domain_of(c.target) for c in record.group.changes}
        if record.group.trial is not None:
            continue  # it sets back what it holds first; nobody takes its place
        if record.id != later.id and record.state is _S.VERIFYING and mine & domains:
            writer.step(record, _S.SUPERSEDED, f"{later.id} changed the same card before the verdict")


def _absent(writer: Writer, record: GroupRecord, place: Place) -> Step:
    """Decide about values that are not there yet: wait, undo a half, or give up."""
    if writer.clock.now() < settled_by(record):
        return Step(record.id, record.state, f"not settled: values are {place.value}")
    if place is Place.MISSING:
        final = _S.SUPERSEDED if record.state is _S.VERIFYING else _S.NOT_APPLIED
        return writer.step(record, final, "its targets are gone")
    if place is Place.MIXED:
        return roll_back(writer, record, "only half of it arrived")
    return writer.step(record, _S.NOT_APPLIED, "the write never arrived")


def _arrived(writer: Writer, record: GroupRecord) -> Step:
    passed = {_S.INTENT: 0, _S.APPLIED: 1, _S.READ_BACK: 2}[record.state]
    way: list[Leg] = [(_S.APPLIED, "found in force", None), *ARRIVED]
    writer.walk(record, way[passed:])
    if record.state is _S.INTENT:
        supersede(writer, record)
    return Step(record.id, _S.VERIFYING, way[-1][1])
