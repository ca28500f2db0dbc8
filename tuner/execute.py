"""Carry out a group: intent on disk, one more look, write, read back; and settle whatever a crash left open.

Nothing here waits for a lost answer: a group stays in its state, its targets belong to it, and `settle` looks again in
the next cycle. What decides is always what the backend holds, never what a call returned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from collector.clock import Clock
from collector.errors import RefusedError, UnreachableError
from tuner import killswitch
from tuner.edge import apply_to, read_backend
from tuner.guards.world import domain_of, in_order
from tuner.journal import Entry, StateMovedError, entries, remark, walk, why_unsealed
from tuner.lease import Lease
from tuner.model import ApplyResult, ApplyStatus, Backend, BackendState, Change, Group, Knob, Target
from tuner.place import Place, inverse, locate, unreadable
from tuner.record import PRETENDED, ChangeState, GroupRecord
from tuner.state.codec import target_to_json
from tuner.state.database import State
from tuner.state.plans import get_group, open_groups

REVALIDATE_SECONDS = 15.0  # between decision and write, so that what was a moment's reading has passed
GRACE_SECONDS = 60.0  # beyond the knob's own delay, before a write counts as not arrived
AWAY_REST = timedelta(hours=1)
FOREIGN_REST = timedelta(hours=1)
UNDO_SECONDS = 600.0  # how long a rollback is tried before a person is asked
_POLL_SECONDS = 1.0
_CONFLICT_RETRIES = 3

_WROTE_NOTHING = frozenset({ApplyStatus.REFUSED, ApplyStatus.CONFLICT, ApplyStatus.RETRY_LATER})
# What the journal says of a probe's blocks; after the first two a throttle may still be on its way.
_THROTTLE, _THROTTLE_OPEN, _THROTTLE_NOT = "throttle", "throttle_unsettled", "not_throttled"
_SWITCHES = frozenset({_THROTTLE, _THROTTLE_OPEN, _THROTTLE_NOT, "throttled", "release", "released"})

Recheck = Callable[[Group, BackendState], str | None]
_Leg = tuple[ChangeState, str, Mapping[str, Any] | None]
_S = ChangeState
_ARRIVED: tuple[_Leg, ...] = (
    (_S.READ_BACK, "the backend holds what was asked for", None),
    (_S.VERIFYING, "its effect is being watched", None),
)

_OUT_OF_PLACE = "it was planned on simulated rows: it only goes to the simulator or a dry run"
PRETENDED_REASON = "pretended: the dry run changes nothing"
_LEFT_AS = {_S.INTENT: _S.REFUSED, _S.APPLIED: _S.NOT_APPLIED, _S.VERIFYING: _S.ROLLBACK_BLOCKED}


@dataclass(frozen=True, slots=True)
class Step:
    """Where a group is after a call, and why."""

    group_id: str
    state: ChangeState
    reason: str


class Executor:
    """The only part that writes to a backend.

    Args:
        state: the state database.
        backend: what carries changes out.
        clock: time.
        lease: shown at each step, so that only one tuner writes.
        kill_switch: the file, read before every write.
        actor: name in the journal.
        revalidate_seconds: wait between intent and write; 0 for simulated time.
        patience_seconds: how long one call waits for the read-back; what takes longer is settled in a later cycle.
        may_undo: a last check of a rollback (such as capacity) against a fresh read; returns the reason against it.
    """

    def __init__(
        self,
        state: State,
        backend: Backend,
        clock: Clock,
        lease: Lease,
        kill_switch: Path,
        *,
        actor: str = "tuner",
        revalidate_seconds: float = REVALIDATE_SECONDS,
        patience_seconds: float = 10.0,
        may_undo: Recheck | None = None,
    ) -> None:
        self._state = state
        self._backend = backend
        self._clock = clock
        self._lease = lease
        self._kill_switch = kill_switch
        self._actor = actor
        self._revalidate_seconds = revalidate_seconds
        self._patience_seconds = patience_seconds
        self._may_undo = may_undo
        # for comparing and waiting, the finest quantum and the longest delay among sharing kinds are safe for all
        self._knobs: dict[tuple[str, str], Knob] = {}
        for knob in backend.knobs():
            known = self._knobs.get((knob.name, knob.target_kind), knob)
            self._knobs[knob.name, knob.target_kind] = replace(
                knob,
                quantum=min(knob.quantum, known.quantum),
                read_back_seconds=max(knob.read_back_seconds, known.read_back_seconds),
            )

    def execute(  # noqa: PLR0911 - one return for each way it can end
        self, group_id: str, *, still_ok: Recheck | None = None
    ) -> Step:
        """Carry out a planned (mode auto) or approved group.

        Args:
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
        record = self._waiting(group_id)
        if self._is_out_of_place(record):
            return self._step(record, _S.REFUSED, _OUT_OF_PLACE)
        unsealed = why_unsealed(self._state, record)
        if unsealed:
            return self._step(record, _S.REFUSED, f"it is not what was planned and answered: {unsealed}")
        pause = killswitch.read(self._kill_switch)
        if not pause.allows_new:
            return Step(group_id, record.state, str(pause))
        if record.until is not None and record.until <= self._clock.now():
            return self._step(record, _S.EXPIRED, "its time was over")
        group = replace(record.group, changes=in_order(record.group.changes))
        try:
            before = self._read(group)
        except UnreachableError as error:
            return Step(group_id, record.state, str(error))
        moved = self._moved(group, before)
        if moved is not None:
            return self._step(record, _S.EXPIRED, moved)
        against = None if still_ok is None else still_ok(group, before)
        if against is not None:
            return Step(group_id, record.state, against)
        delay = self._delay_seconds(group)
        self._step(record, _S.INTENT, "on its way", self._intent_body(record, before, delay))
        if self._revalidate_seconds > 0 and not group.fast:
            self._clock.wait(self._revalidate_seconds)
        return self._write(record, group, delay, still_ok)

    def _waiting(self, group_id: str) -> GroupRecord:
        record = self._get(group_id)
        if record.state not in {_S.PLANNED, _S.APPROVED}:
            raise StateMovedError(f"change {group_id} is {record.state.value}: only a waiting one can be carried out")
        if record.state is _S.PLANNED and record.decision != "go":
            raise RefusedError(f"change {group_id} has no consent (it is to {record.decision}); approve it first")
        return record

    def settle(self, record: GroupRecord) -> Step:
        """Look at a group that is under way and move it on, by what the backend holds now.

        Used after a lost answer, for writes that take long, and after a crash (`recover`). A verifying group only
        moves here when somebody else changed its values.
        """
        if self._is_out_of_place(record):
            return self._leave(record)
        if record.state is _S.ROLLING_BACK:
            return self._undo(record)
        try:
            place = locate(record.group, self._read(record.group), self._knobs)
        except UnreachableError as error:
            return Step(record.id, record.state, f"not settled: {error}")
        watched = record.state is _S.VERIFYING
        between = record.group.trial is not None and place is Place.BEFORE  # two blocks of a probe
        if place is Place.FOREIGN or (watched and place in {Place.BEFORE, Place.MIXED} and not between):
            return self._step(record, _S.FOREIGN_CHANGE, "somebody else set another value: theirs stays")
        if place is Place.AFTER or (watched and between):
            return Step(record.id, record.state, "being watched") if watched else self._arrived(record)
        return self._absent(record, place)

    def _is_out_of_place(self, record: GroupRecord) -> bool:
        return record.simulated and not (self._backend.simulated or self._backend.changes_nothing)

    def _leave(self, record: GroupRecord) -> Step:
        """Close what was planned on simulated rows and met a real backend: not even its values are read."""
        if record.state in _LEFT_AS:
            return self._step(record, _LEFT_AS[record.state], _OUT_OF_PLACE)
        way: list[_Leg] = [(_S.ROLLING_BACK, _OUT_OF_PLACE, None), (_S.ROLLBACK_BLOCKED, _OUT_OF_PLACE, None)]
        self._walk(record, way[1:] if record.state is _S.ROLLING_BACK else way)
        return Step(record.id, _S.ROLLBACK_BLOCKED, _OUT_OF_PLACE)

    def _absent(self, record: GroupRecord, place: Place) -> Step:
        """Decide about values that are not there yet: wait, undo a half, or give up."""
        if self._clock.now() < self._settle_by(record):
            return Step(record.id, record.state, f"not settled: values are {place.value}")
        if place is Place.MISSING:
            final = _S.SUPERSEDED if record.state is _S.VERIFYING else _S.NOT_APPLIED
            return self._step(record, final, "its targets are gone")
        if place is Place.MIXED:
            return self.roll_back(record, "only half of it arrived")
        return self._step(record, _S.NOT_APPLIED, "the write never arrived")

    def recover(self) -> list[Step]:
        """Settle everything that is open; called at the start before any new plan, and each cycle.

        The newest first: a later group of ours on the same card explains values that would look foreign to an earlier
        one, and while the later one is not settled the earlier one is left alone.
        """
        steps: list[Step] = []
        unsettled: set[Target] = set()
        for record in reversed(open_groups(self._state)):
            domains = {domain_of(c.target) for c in record.group.changes}
            if domains & unsettled:
                steps.append(Step(record.id, record.state, "waits for a later change of the same card"))
                continue
            current = self._get(record.id)
            steps.append(self.settle(current) if current.is_open else Step(current.id, current.state, current.reason))
            if steps[-1].state in {_S.INTENT, _S.APPLIED}:
                unsettled |= domains
        return steps

    def _supersede(self, later: GroupRecord) -> None:
        """Close groups that are being watched where a later one of ours changed the same card."""
        domains = {domain_of(c.target) for c in later.group.changes}
        for record in open_groups(self._state):
            mine = {domain_of(c.target) for c in record.group.changes}
            if record.group.trial is not None:
                continue  # it sets back what it holds first; nobody takes its place
            if record.id != later.id and record.state is _S.VERIFYING and mine & domains:
                self._step(record, _S.SUPERSEDED, f"{later.id} changed the same card before the verdict")

    def roll_back(self, record: GroupRecord, reason: str, body: Mapping[str, Any] | None = None) -> Step:
        """Set a group's values back, by compare-and-set from our value to the pre-image.

        Budgets and cooldowns do not hold a rollback; the kill switch at `freeze_all` does. Values that somebody else
        changed meanwhile are left alone: `rollback_blocked`.
        """
        if self._is_out_of_place(record):
            return self._leave(record)
        pause = killswitch.read(self._kill_switch)
        if not pause.allows_rollback:
            return Step(record.id, record.state, str(pause))
        if record.state is not _S.ROLLING_BACK:
            deadline = self._clock.now() + timedelta(seconds=UNDO_SECONDS)
            self._step(record, _S.ROLLING_BACK, reason, {**(body or {}), "settle_by": deadline.isoformat()})
            record = self._get(record.id)
        return self._undo(record)

    def switch(
        self, record: GroupRecord, *, on: bool, block: Mapping[str, Any], still_ok: Recheck | None = None
    ) -> str | None:
        """Make the change of a running probe again, or take it back, and read back.

        What is about to be written stands in the journal before the write, what was found after it. A change that is
        taken back needs no guard: only the kill switch holds it, as it holds a rollback.

        Args:
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
        throttled = (last := self._last_switch(record)) is not None and last.event == "throttled"
        self._remark(record, word, block)
        against, fresh = self._before_switch(record, wanted, still_ok=still_ok if on else None)
        if against is not None or fresh is None:
            if on:
                self._remark(record, _THROTTLE_NOT, block)
            return against
        there = locate(record.group, fresh, self._knobs) is wanted
        if there and throttled and not on:
            return "somebody else has set it back: no further block undoes that"
        if not there:
            self._lease.check()
            result = self._apply(record.group if on else inverse(record.group), fresh)
            waited = 0.0
            while not self._holds(record.group, wanted):
                if result.status in _WROTE_NOTHING or waited >= self._patience_seconds:
                    if on:
                        self._remark_open(record, block, result)
                    return f"{word}: {result.status.value} {result.detail}".strip()
                self._clock.wait(_POLL_SECONDS)
                waited += _POLL_SECONDS
        self._remark(record, f"{word}d", block)
        return None

    def _before_switch(
        self, record: GroupRecord, wanted: Place, *, still_ok: Recheck | None
    ) -> tuple[str | None, BackendState | None]:
        pause = killswitch.read(self._kill_switch)
        if not (pause.allows_new if wanted is Place.AFTER else pause.allows_rollback):
            return str(pause), None
        try:
            fresh = self._read(record.group)
        except UnreachableError as error:
            return str(error), None
        place = locate(record.group, fresh, self._knobs)
        if place not in {Place.BEFORE, Place.AFTER}:
            return f"the world moved (values are {place.value})", None
        against = still_ok(record.group, fresh) if still_ok is not None and place is not wanted else None
        return against, fresh

    def _remark_open(self, record: GroupRecord, block: Mapping[str, Any], result: ApplyResult) -> None:
        if result.status in _WROTE_NOTHING:
            self._remark(record, _THROTTLE_NOT, block)
            return
        seconds = self._delay_seconds(record.group) + result.settles_in_seconds
        due = self._clock.now() + timedelta(seconds=seconds)
        self._remark(record, _THROTTLE_OPEN, {**block, "settle_by": due.isoformat()})

    def _last_switch(self, record: GroupRecord) -> Entry | None:
        told = entries(self._state, group_id=record.id)
        return next((entry for entry in reversed(told) if entry.event in _SWITCHES), None)

    def _may_still_arrive(self, record: GroupRecord) -> bool:
        """Say whether a throttle of a probe is under way whose answer was lost, with the process or without it."""
        if record.group.trial is None:
            return False
        last = self._last_switch(record)
        if last is None or last.event not in {_THROTTLE, _THROTTLE_OPEN}:
            return False
        said = last.body.get("settle_by")
        if isinstance(said, str):
            return self._clock.now() < datetime.fromisoformat(said)
        return self._clock.now() < last.at + timedelta(seconds=self._delay_seconds(record.group))

    def _remark(self, record: GroupRecord, event: str, block: Mapping[str, Any]) -> None:
        if self._get(record.id).state is not _S.VERIFYING:
            raise StateMovedError(f"probe {record.id} is {record.state.value}: it is not being watched any more")
        remark(
            self._state,
            record.id,
            event,
            at=self._clock.now(),
            actor=self._actor,
            reason=f"block of {record.id}",
            body=block,
            fence=self._lease.fence,
        )

    def close(self, record: GroupRecord, to: ChangeState, reason: str, body: Mapping[str, Any] | None = None) -> Step:
        """Write down the end of a watch: confirmed, or left to a person."""
        return self._step(record, to, reason, body)

    def _write(self, record: GroupRecord, group: Group, delay: float, still_ok: Recheck | None) -> Step:
        reason, fresh = self._last_look(group, still_ok)
        if reason is not None or fresh is None:
            return self._step(record, _S.NOT_APPLIED, reason or "it could not be read again")
        result = self._apply(group, fresh)
        if result.status in _WROTE_NOTHING and not self._holds(group, Place.BEFORE):
            said = f"it said {result.status.value}, yet its values are not what they were {result.detail}".strip()
            result = ApplyResult(ApplyStatus.UNKNOWN, said)
        match result.status:
            case ApplyStatus.APPLIED | ApplyStatus.ACCEPTED:
                due = self._clock.now() + timedelta(seconds=delay + result.settles_in_seconds)
                body = {"status": result.status.value, "detail": result.detail, "settle_by": due.isoformat()}
                return self._await(record, (_S.APPLIED, result.detail or result.status.value, body))
            case ApplyStatus.UNKNOWN:
                remark(self._state, record.id, "unknown", at=self._clock.now(), actor=self._actor, reason=result.detail)
                return Step(record.id, _S.INTENT, f"no answer to go by: {result.detail}")
            case ApplyStatus.REFUSED:
                return self._step(record, _S.REFUSED, result.detail or "the backend refused it")
            case ApplyStatus.CONFLICT:
                return self._step(record, _S.NOT_APPLIED, f"the world moved: plan again ({result.detail})")
            case ApplyStatus.RETRY_LATER:
                return self._step(record, _S.NOT_APPLIED, f"the backend asks to come back later ({result.detail})")

    def _holds(self, group: Group, place: Place) -> bool:
        """Say whether a read finds all values there; what cannot be read is not there."""
        try:
            fresh = self._read(group)
        except UnreachableError:
            return False
        return not unreadable(group, fresh) and locate(group, fresh, self._knobs) is place

    def _last_look(self, group: Group, still_ok: Recheck | None) -> tuple[str | None, BackendState | None]:
        """Look once more, just before the write: kill switch, lease, values, guards."""
        try:
            fresh = self._read(group)
        except UnreachableError as error:
            return str(error), None
        moved = self._moved(group, fresh)
        if moved is not None:
            return moved, None
        against = None if still_ok is None else still_ok(group, fresh)
        if against is not None:
            return against, None
        pause = killswitch.read(self._kill_switch)
        if not pause.allows_new:
            return str(pause), None
        self._lease.check()
        return None, fresh

    def _moved(self, group: Group, state: BackendState) -> str | None:
        gone = unreadable(group, state)
        if gone:
            return f"{gone[0].knob} of {gone[0].target} cannot be read any more: plan again"
        place = locate(group, state, self._knobs)
        return None if place is Place.BEFORE else f"the world moved (values are {place.value}): plan again"

    def _await(self, record: GroupRecord, applied: _Leg) -> Step:
        """Read back until the values are there, as long as patience lasts.

        What a dry run took ends here: its values live as long as the process, so that nothing can be watched later.
        """
        if self._backend.changes_nothing:
            self._walk(record, [applied, (_S.CONFIRMED, PRETENDED_REASON, {PRETENDED: True})])
            return Step(record.id, _S.CONFIRMED, PRETENDED_REASON)
        try:
            arrived = locate(record.group, self._read(record.group), self._knobs) is Place.AFTER
        except UnreachableError:
            arrived = False
        self._walk(record, [applied, *_ARRIVED] if arrived else [applied])
        self._supersede(record)
        now = Step(record.id, _S.VERIFYING if arrived else _S.APPLIED, _ARRIVED[-1][1] if arrived else applied[1])
        waited = 0.0
        while now.state is _S.APPLIED and waited < self._patience_seconds:
            self._clock.wait(_POLL_SECONDS)
            waited += _POLL_SECONDS
            now = self.settle(self._get(record.id))
        return now

    def _arrived(self, record: GroupRecord) -> Step:
        passed = {_S.INTENT: 0, _S.APPLIED: 1, _S.READ_BACK: 2}[record.state]
        way: list[_Leg] = [(_S.APPLIED, "found in force", None), *_ARRIVED]
        self._walk(record, way[passed:])
        if record.state is _S.INTENT:
            self._supersede(record)
        return Step(record.id, _S.VERIFYING, way[-1][1])

    def _undo(self, record: GroupRecord) -> Step:  # noqa: PLR0911 - one return for each way it can end
        for _ in range(_CONFLICT_RETRIES):
            if not killswitch.read(self._kill_switch).allows_rollback:
                return Step(record.id, record.state, str(killswitch.read(self._kill_switch)))
            try:
                fresh = self._read(record.group)
            except UnreachableError as error:
                return self._blocked_if_late(record, str(error))
            place = locate(record.group, fresh, self._knobs)
            if place is Place.BEFORE and self._may_still_arrive(record):
                return Step(record.id, record.state, "what was asked for last may still arrive")
            if place is Place.BEFORE:
                return self._step(record, _S.ROLLED_BACK, str(record.evidence.get("reason", record.reason)))
            if place is Place.FOREIGN:
                return self._step(record, _S.ROLLBACK_BLOCKED, "somebody else set another value: theirs stays")
            if place is Place.MISSING:
                return self._gone(record)
            undo = self._remaining(inverse(record.group), fresh)
            against = None if self._may_undo is None else self._may_undo(undo, fresh)
            if against is not None:
                return self._step(record, _S.ROLLBACK_BLOCKED, against)
            self._lease.check()
            result = self._apply(undo, fresh)
            if result.status is ApplyStatus.REFUSED and not self._holds(record.group, Place.BEFORE):
                return self._step(record, _S.ROLLBACK_BLOCKED, f"the backend refused: {result.detail}")
            if result.status in {ApplyStatus.ACCEPTED, ApplyStatus.RETRY_LATER, ApplyStatus.UNKNOWN}:
                return self._blocked_if_late(record, f"{result.status.value} {result.detail}".strip())
        return self._blocked_if_late(record, "it conflicts again and again")

    def _gone(self, record: GroupRecord) -> Step:
        if self._clock.now() >= self._settle_by(record):
            return self._step(record, _S.ROLLED_BACK, "its targets are gone: nothing is left to undo")
        return Step(record.id, record.state, "its values cannot be read")

    def _remaining(self, undo: Group, fresh: BackendState) -> Group:
        """Return only the changes of a way back that are still to be made."""
        left = [c for c in undo.changes if locate(replace(undo, changes=(c,)), fresh, self._knobs) is Place.BEFORE]
        return replace(undo, changes=tuple(left))

    def _blocked_if_late(self, record: GroupRecord, reason: str) -> Step:
        if self._clock.now() >= self._settle_by(record):
            return self._step(record, _S.ROLLBACK_BLOCKED, f"not undone in time: {reason}")
        return Step(record.id, record.state, reason)

    def _apply(self, group: Group, fresh: BackendState) -> ApplyResult:
        expected = {c.target: fresh.targets[c.target].generation for c in group.changes}
        return apply_to(self._backend, group, expected)

    def _read(self, group: Group) -> BackendState:
        return read_backend(self._backend, sorted({c.target for c in group.changes}))

    def _delay_seconds(self, group: Group) -> float:
        delays = [self._knobs[c.knob, c.target.kind].read_back_seconds for c in group.changes]
        return max(delays, default=0.0) + GRACE_SECONDS

    def _settle_by(self, record: GroupRecord) -> datetime:
        said = record.evidence.get("settle_by")
        if isinstance(said, str):
            return datetime.fromisoformat(said)
        if record.state is _S.VERIFYING:  # a pod may be away for a restart
            return record.updated_at + AWAY_REST
        return record.updated_at + timedelta(seconds=GRACE_SECONDS)

    def _intent_body(self, record: GroupRecord, before: BackendState, delay: float) -> dict[str, Any]:
        return {
            "backend": self._backend.name,
            "simulated": record.simulated,
            "changes": [_change_body(c, before) for c in in_order(record.group.changes)],
            "settle_by": (self._clock.now() + timedelta(seconds=delay)).isoformat(),
        }

    def _step(self, record: GroupRecord, to: ChangeState, reason: str, body: Mapping[str, Any] | None = None) -> Step:
        self._walk(record, [(to, reason, body)])
        return Step(record.id, to, reason)

    def _walk(self, record: GroupRecord, way: Sequence[_Leg]) -> None:
        walk(self._state, record.id, way, at=self._clock.now(), actor=self._actor, fence=self._lease.fence)

    def _get(self, group_id: str) -> GroupRecord:
        record = get_group(self._state, group_id)
        if record is None:
            raise StateMovedError(f"expected a change {group_id!r}, found none; `trimtab changes` lists them")
        return record


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


def frozen_targets(past: Sequence[GroupRecord], now: datetime) -> dict[Target, str]:
    """Return the targets that rest for an hour because somebody else set them under our hands: theirs stays."""
    frozen: dict[Target, str] = {}
    for record in past:
        ended = record.settled_at or record.updated_at
        if record.state in {_S.FOREIGN_CHANGE, _S.ROLLBACK_BLOCKED} and now - ended < FOREIGN_REST:
            reason = f"{record.reason} ({ended.isoformat(timespec='minutes')})"
            frozen.update((c.target, reason) for c in record.group.changes)
    return frozen
