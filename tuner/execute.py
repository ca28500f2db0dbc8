"""Carry out a group: intent on disk, one more look, write, read back.

Nothing here waits for a lost answer: a group stays in its state, its targets belong to it, and `tuner.settle` looks
again in the next cycle. What decides is always what the backend holds, never what a call returned.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from collector.errors import RefusedError, UnreachableError
from tuner.audit import why_unsealed
from tuner.guards.world import in_order
from tuner.journal import StateMovedError, remark
from tuner.model import ApplyResult, ApplyStatus, BackendState, Change, Group
from tuner.place import Place, unreadable
from tuner.record import PRETENDED, ChangeState, GroupRecord
from tuner.settle import ARRIVED, settle, supersede
from tuner.state.codec import target_to_json
from tuner.undo import OUT_OF_PLACE
from tuner.writer import POLL_SECONDS, WROTE_NOTHING, Leg, Recheck, Step, Writer

PRETENDED_REASON = "pretended: the dry run changes nothing"
_S = ChangeState


def execute(  # noqa: PLR0911 - one return for each way it can end
    writer: Writer, group_id: str, *, still_ok: Recheck | None = None
) -> Step:
    """Carry out a planned (mode auto) or approved group.

    Args:
        writer: the hand on the backend.
        group_id: a group in the state database.
        still_ok: the guards once more, on a fresh read, before the intent and just before the write; returns the
            reason against it.

    Returns:
        Where the group is now. It stays as it was (an approved one may be tried again) when the kill switch is
        on, the backend cannot be read, or `still_ok` is against it before the intent. It is refused when it was
        planned on simulated rows and the backend is a real one, and when its rows are not what the journal sealed.

    Raises:
        LeaseLostError: another tuner acts; nothing was written by this one afterwards.
        RefusedError: the group has no consent.
        StateMovedError: it is not waiting.
    """
    record = _waiting(writer, group_id)
    if writer.is_out_of_place(record):
        return writer.step(record, _S.REFUSED, OUT_OF_PLACE)
    unsealed = why_unsealed(writer.state, record)
    if unsealed:
        return writer.step(record, _S.REFUSED, f"it is not what was planned and answered: {unsealed}")
    pause = writer.pause()
    if not pause.allows_new:
        return Step(group_id, record.state, str(pause))
    if record.until is not None and record.until <= writer.clock.now():
        return writer.step(record, _S.EXPIRED, "its time was over")
    group = replace(record.group, changes=in_order(record.group.changes))
    try:
        before = writer.read(group)
    except UnreachableError as error:
        return Step(group_id, record.state, str(error))
    moved = _moved(writer, group, before)
    if moved is not None:
        return writer.step(record, _S.EXPIRED, moved)
    against = None if still_ok is None else still_ok(group, before)
    if against is not None:
        return Step(group_id, record.state, against)
    writer.step(record, _S.INTENT, "on its way", _intent_body(writer, record, before))
    if writer.revalidate_seconds > 0 and not group.fast:
        writer.clock.wait(writer.revalidate_seconds)
    return _write(writer, record, group, still_ok)


def _waiting(writer: Writer, group_id: str) -> GroupRecord:
    record = writer.get(group_id)
    if record.state not in {_S.PLANNED, _S.APPROVED}:
        raise StateMovedError(f"change {group_id} is {record.state.value}: only a waiting one can be carried out")
    if record.state is _S.PLANNED and record.decision != "go":
        raise RefusedError(f"change {group_id} has no consent (it is to {record.decision}); approve it first")
    return record


def _write(writer: Writer, record: GroupRecord, group: Group, still_ok: Recheck | None) -> Step:
    reason, fresh = _last_look(writer, group, still_ok)
    if reason is not None or fresh is None:
        return writer.step(record, _S.NOT_APPLIED, reason or "it could not be read again")
    result = writer.apply(group, fresh)
    if result.status in WROTE_NOTHING and not writer.holds(group, Place.BEFORE):
        said = f"it said {result.status.value}, yet its values are not what they were {result.detail}".strip()
        result = ApplyResult(ApplyStatus.UNKNOWN, said)
    match result.status:
        case ApplyStatus.APPLIED | ApplyStatus.ACCEPTED:
            due = writer.due(group, result.settles_in_seconds)
            body = {"status": result.status.value, "detail": result.detail, "settle_by": due.isoformat()}
            return _await(writer, record, (_S.APPLIED, result.detail or result.status.value, body))
        case ApplyStatus.UNKNOWN:
            # told whoever has the lease now: it was this one that wrote
            remark(writer.state, record.id, "unknown", at=writer.clock.now(), actor=writer.actor, reason=result.detail)
            return Step(record.id, _S.INTENT, f"no answer to go by: {result.detail}")
        case ApplyStatus.REFUSED:
            return writer.step(record, _S.REFUSED, result.detail or "the backend refused it")
        case ApplyStatus.CONFLICT:
            return writer.step(record, _S.NOT_APPLIED, f"the world moved: plan again ({result.detail})")
        case ApplyStatus.RETRY_LATER:
            return writer.step(record, _S.NOT_APPLIED, f"the backend asks to come back later ({result.detail})")


def _last_look(writer: Writer, group: Group, still_ok: Recheck | None) -> tuple[str | None, BackendState | None]:
    """Look once more, just before the write: values, guards, kill switch; the write itself shows the lease."""
    try:
        fresh = writer.read(group)
    except UnreachableError as error:
        return str(error), None
    moved = _moved(writer, group, fresh)
    if moved is not None:
        return moved, None
    against = None if still_ok is None else still_ok(group, fresh)
    if against is not None:
        return against, None
    pause = writer.pause()
    return (None, fresh) if pause.allows_new else (str(pause), None)


def _moved(writer: Writer, group: Group, state: BackendState) -> str | None:
    gone = unreadable(group, state)
    if gone:
        return f"{gone[0].knob} of {gone[0].target} cannot be read any more: plan again"
    place = writer.locate(group, state)
    return None if place is Place.BEFORE else f"the world moved (values are {place.value}): plan again"


def _await(writer: Writer, record: GroupRecord, applied: Leg) -> Step:
    """Read back until the values are there, as long as patience lasts.

    What a dry run took ends here: its values live as long as the process, so that nothing can be watched later.
    """
    if writer.backend.changes_nothing:
        writer.walk(record, [applied, (_S.CONFIRMED, PRETENDED_REASON, {PRETENDED: True})])
        return Step(record.id, _S.CONFIRMED, PRETENDED_REASON)
    try:
        arrived = writer.locate(record.group, writer.read(record.group)) is Place.AFTER
    except UnreachableError:
        arrived = False
    writer.walk(record, [applied, *ARRIVED] if arrived else [applied])
    supersede(writer, record)
    now = Step(record.id, _S.VERIFYING if arrived else _S.APPLIED, ARRIVED[-1][1] if arrived else applied[1])
    waited = 0.0
    while now.state is _S.APPLIED and waited < writer.patience_seconds:
        writer.clock.wait(POLL_SECONDS)
        waited += POLL_SECONDS
        now = settle(writer, writer.get(record.id))
    return now


def _intent_body(writer: Writer, record: GroupRecord, before: BackendState) -> dict[str, Any]:
    return {
        "backend": writer.backend.name,
        "simulated": record.simulated,
        "changes": [_change_body(c, before) for c in in_order(record.group.changes)],
        "settle_by": writer.due(record.group).isoformat(),
    }


def _change_body(change: Change, before: BackendState) -> dict[str, Any]:
    held = before.targets[change.target]
    return {
        "target": target_to_json(change.target),
        "knob": change.knob,
        "before": change.before,
        "after": change.after,
        "generation": held.generation,
        "reason": change.reason,
    }
