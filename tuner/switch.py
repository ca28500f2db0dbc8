"""The blocks of a running probe: its change is made and taken back again, each time told before and after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from collector.errors import UnreachableError
from tuner.journal import Entry, StateMovedError, entries
from tuner.model import ApplyResult, BackendState
from tuner.place import Place, inverse
from tuner.record import ChangeState, GroupRecord
from tuner.writer import POLL_SECONDS, WROTE_NOTHING, Recheck, Writer, settle_by

# What the journal says of a probe's blocks; after the first two a throttle may still be on its way.
_THROTTLE, _THROTTLE_OPEN, _THROTTLE_NOT = "throttle", "throttle_unsettled", "not_throttled"
_SWITCHES = frozenset({_THROTTLE, _THROTTLE_OPEN, _THROTTLE_NOT, "throttled", "release", "released"})


def switch(
    writer: Writer, record: GroupRecord, *, on: bool, block: Mapping[str, Any], still_ok: Recheck | None = None
) -> str | None:
    """Make the change of a running probe again, or take it back, and read back.

    What is about to be written stands in the journal before the write, what was found after it. A change that is
    taken back needs no guard: only the kill switch holds it, as it holds a rollback.

    Args:
        writer: the hand on the backend.
        record: a probe that is being watched.
        on: whether the change is to be in force.
        block: which block this begins, for the journal.
        still_ok: the guards once more, on a fresh read, where the change is made.

    Returns:
        None when it is there; else why not, and `settle` or `roll_back` sorts out what is there instead.

    Raises:
        LeaseLostError: another tuner acts; nothing was written by this one afterwards.
        StateMovedError: it is not being watched.
    """
    wanted = Place.AFTER if on else Place.BEFORE
    word = _THROTTLE if on else "release"
    throttled = (last := _last_switch(writer, record)) is not None and last.event == "throttled"
    _tell(writer, record, word, block)
    against, fresh = _before(writer, record, wanted, still_ok=still_ok if on else None)
    if against is not None or fresh is None:
        if on:
            _tell(writer, record, _THROTTLE_NOT, block)
        return against
    there = writer.locate(record.group, fresh) is wanted
    if there and throttled and not on:
        return "somebody else has set it back: no further block undoes that"
    if not there:
        result = writer.apply(record.group if on else inverse(record.group), fresh)
        waited = 0.0
        while not writer.holds(record.group, wanted):
            if result.status in WROTE_NOTHING or waited >= writer.patience_seconds:
                if on:
                    _tell_open(writer, record, block, result)
                return f"{word}: {result.status.value} {result.detail}".strip()
            writer.clock.wait(POLL_SECONDS)
            waited += POLL_SECONDS
    _tell(writer, record, f"{word}d", block)
    return None


def may_still_arrive(writer: Writer, record: GroupRecord) -> bool:
    """Say whether a throttle of a probe is under way whose answer was lost, with the process or without it."""
    if record.group.trial is None:
        return False
    last = _last_switch(writer, record)
    if last is None or last.event not in {_THROTTLE, _THROTTLE_OPEN}:
        return False
    return writer.clock.now() < settle_by(last.body, last.at + writer.delay(record.group))


def _before(
    writer: Writer, record: GroupRecord, wanted: Place, *, still_ok: Recheck | None
) -> tuple[str | None, BackendState | None]:
    pause = writer.pause()
    if not (pause.allows_new if wanted is Place.AFTER else pause.allows_rollback):
        return str(pause), None
    try:
        fresh = writer.read(record.group)
    except UnreachableError as error:
        return str(error), None
    place = writer.locate(record.group, fresh)
    if place not in {Place.BEFORE, Place.AFTER}:
        return f"the world moved (values are {place.value})", None
    against = still_ok(record.group, fresh) if still_ok is not None and place is not wanted else None
    return against, fresh


def _tell_open(writer: Writer, record: GroupRecord, block: Mapping[str, Any], result: ApplyResult) -> None:
    if result.status in WROTE_NOTHING:
        _tell(writer, record, _THROTTLE_NOT, block)
        return
    due = writer.due(record.group, result.settles_in_seconds)
    _tell(writer, record, _THROTTLE_OPEN, {**block, "settle_by": due.isoformat()})


def _last_switch(writer: Writer, record: GroupRecord) -> Entry | None:
    told = entries(writer.state, group_id=record.id)
    return next((entry for entry in reversed(told) if entry.event in _SWITCHES), None)


def _tell(writer: Writer, record: GroupRecord, event: str, block: Mapping[str, Any]) -> None:
    state = writer.get(record.id).state
    if state is not ChangeState.VERIFYING:
        raise StateMovedError(f"probe {record.id} is {state.value}: it is not being watched any more")
    writer.remark(record, event, f"block of {record.id}", block)
