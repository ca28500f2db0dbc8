"""The way back: values of a group are set back by compare-and-set from our value to what was there before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from collector.errors import UnreachableError
from tuner.model import ApplyStatus, BackendState, Group
from tuner.place import Place, inverse
from tuner.record import ChangeState, GroupRecord
from tuner.switch import may_still_arrive
from tuner.writer import Leg, Step, Writer, settled_by

UNDO_SECONDS = 600.0  # how long a rollback is tried before a person is asked
OUT_OF_PLACE = "it was planned on simulated rows: it only goes to the simulator or a dry run"
_CONFLICT_RETRIES = 3
_S = ChangeState
_LEFT_AS = {_S.INTENT: _S.REFUSED, _S.APPLIED: _S.NOT_APPLIED, _S.VERIFYING: _S.ROLLBACK_BLOCKED}


def roll_back(writer: Writer, record: GroupRecord, reason: str, body: Mapping[str, Any] | None = None) -> Step:
    """Set a group's values back.

    Budgets and cooldowns do not hold a rollback; the kill switch at `freeze_all` does. Values that somebody else
    changed meanwhile are left alone: `rollback_blocked`.

    Raises:
        LeaseLostError: another tuner acts; nothing was written by this one afterwards.
    """
    if writer.is_out_of_place(record):
        return leave(writer, record)
    pause = writer.pause()
    if not pause.allows_rollback:
        return Step(record.id, record.state, str(pause))
    if record.state is not _S.ROLLING_BACK:
        deadline = writer.clock.now() + timedelta(seconds=UNDO_SECONDS)
        writer.step(record, _S.ROLLING_BACK, reason, {**(body or {}), "settle_by": deadline.isoformat()})
        record = writer.get(record.id)
    return undo(writer, record)


def leave(writer: Writer, record: GroupRecord) -> Step:
    """Close what was planned on simulated rows and met a real backend: not even its values are read."""
    if record.state in _LEFT_AS:
        return writer.step(record, _LEFT_AS[record.state], OUT_OF_PLACE)
    way: list[Leg] = [(_S.ROLLING_BACK, OUT_OF_PLACE, None), (_S.ROLLBACK_BLOCKED, OUT_OF_PLACE, None)]
    writer.walk(record, way[1:] if record.state is _S.ROLLING_BACK else way)
    return Step(record.id, _S.ROLLBACK_BLOCKED, OUT_OF_PLACE)


def undo(writer: Writer, record: GroupRecord) -> Step:  # noqa: PLR0911 - one return for each way it can end
    """Move a group that is rolling back on, by what the backend holds now; raises as `roll_back`."""
    for _ in range(_CONFLICT_RETRIES):
        pause = writer.pause()
        if not pause.allows_rollback:
            return Step(record.id, record.state, str(pause))
        try:
            fresh = writer.read(record.group)
        except UnreachableError as error:
            return _blocked_if_late(writer, record, str(error))
        place = writer.locate(record.group, fresh)
        if place is Place.BEFORE and may_still_arrive(writer, record):
            return Step(record.id, record.state, "what was asked for last may still arrive")
        if place is Place.BEFORE:
            return writer.step(record, _S.ROLLED_BACK, str(record.evidence.get("reason", record.reason)))
        if place is Place.FOREIGN:
            return writer.step(record, _S.ROLLBACK_BLOCKED, "somebody else set another value: theirs stays")
        if place is Place.MISSING:
            return _gone(writer, record)
        back = _remaining(writer, inverse(record.group), fresh)
        against = None if writer.may_undo is None else writer.may_undo(back, fresh)
        if against is not None:
            return writer.step(record, _S.ROLLBACK_BLOCKED, against)
        result = writer.apply(back, fresh)
        if result.status is ApplyStatus.REFUSED and not writer.holds(record.group, Place.BEFORE):
            return writer.step(record, _S.ROLLBACK_BLOCKED, f"the backend refused: {result.detail}")
        if result.status in {ApplyStatus.ACCEPTED, ApplyStatus.RETRY_LATER, ApplyStatus.UNKNOWN}:
            return _blocked_if_late(writer, record, f"{result.status.value} {result.detail}".strip())
    return _blocked_if_late(writer, record, "it conflicts again and again")


def _gone(writer: Writer, record: GroupRecord) -> Step:
    if writer.clock.now() >= settled_by(record):
        return writer.step(record, _S.ROLLED_BACK, "its targets are gone: nothing is left to undo")
    return Step(record.id, record.state, "its values cannot be read")


def _remaining(writer: Writer, back: Group, fresh: BackendState) -> Group:
    """Return only the changes of a way back that are still to be made."""
    left = [c for c in back.changes if writer.locate(replace(back, changes=(c,)), fresh) is Place.BEFORE]
    return replace(back, changes=tuple(left))


def _blocked_if_late(writer: Writer, record: GroupRecord, reason: str) -> Step:
    if writer.clock.now() >= settled_by(record):
        return writer.step(record, _S.ROLLBACK_BLOCKED, f"not undone in time: {reason}")
    return Step(record.id, record.state, reason)
