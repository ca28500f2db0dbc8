"""The one hand on a backend: state, knobs, clock and lease together, and the journal of every step.

Nothing here waits for a lost answer, and what decides is always what the backend holds, never what a call returned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from collector.clock import Clock
from collector.errors import UnreachableError
from tuner import killswitch
from tuner.edge import apply_to, read_backend
from tuner.journal import StateMovedError, remark, walk
from tuner.lease import Lease
from tuner.model import ApplyResult, ApplyStatus, Backend, BackendState, Group, Knob
from tuner.place import Place, locate, unreadable
from tuner.record import ChangeState, GroupRecord
from tuner.state.database import State
from tuner.state.plans import get_group

REVALIDATE_SECONDS = 15.0  # between decision and write, so that what was a moment's reading has passed
GRACE_SECONDS = 60.0  # beyond the knob's own delay, before a write counts as not arrived
AWAY_REST = timedelta(hours=1)
PATIENCE_SECONDS = 10.0  # for a read-back; what takes longer is settled in a later cycle
POLL_SECONDS = 1.0
WROTE_NOTHING = frozenset({ApplyStatus.REFUSED, ApplyStatus.CONFLICT, ApplyStatus.RETRY_LATER})

Recheck = Callable[[Group, BackendState], str | None]
Leg = tuple[ChangeState, str, Mapping[str, Any] | None]


@dataclass(frozen=True, slots=True)
class Step:
    """Where a group is after a call, and why."""

    group_id: str
    state: ChangeState
    reason: str


class Writer:
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
        patience_seconds: float = PATIENCE_SECONDS,
        may_undo: Recheck | None = None,
    ) -> None:
        self.state = state
        self.backend = backend
        self.clock = clock
        self.lease = lease
        self.actor = actor
        self.revalidate_seconds = revalidate_seconds
        self.patience_seconds = patience_seconds
        self.may_undo = may_undo
        self._kill_switch = kill_switch
        # for comparing and waiting, the finest quantum and the longest delay among sharing kinds are safe for all
        self._knobs: dict[tuple[str, str], Knob] = {}
        for knob in backend.knobs():
            known = self._knobs.get((knob.name, knob.target_kind), knob)
            self._knobs[knob.name, knob.target_kind] = replace(
                knob,
                quantum=min(knob.quantum, known.quantum),
                read_back_seconds=max(knob.read_back_seconds, known.read_back_seconds),
            )

    def pause(self) -> killswitch.Pause:
        """Return what the kill switch says now."""
        return killswitch.read(self._kill_switch)

    def is_out_of_place(self, record: GroupRecord) -> bool:
        """Whether it was planned on simulated rows and the backend is a real one."""
        return record.simulated and not (self.backend.simulated or self.backend.changes_nothing)

    def read(self, group: Group) -> BackendState:
        """Read the targets of a group.

        Raises:
            UnreachableError: the backend does not answer.
        """
        return read_backend(self.backend, sorted({c.target for c in group.changes}))

    def locate(self, group: Group, state: BackendState) -> Place:
        """Say where the values of a group are."""
        return locate(group, state, self._knobs)

    def holds(self, group: Group, place: Place) -> bool:
        """Say whether a read finds all values there; what cannot be read is not there."""
        try:
            fresh = self.read(group)
        except UnreachableError:
            return False
        return not unreadable(group, fresh) and self.locate(group, fresh) is place

    def apply(self, group: Group, fresh: BackendState) -> ApplyResult:
        """Ask the backend for a group, by the generations of a read.

        Raises:
            LeaseLostError: another tuner acts; nothing was asked.
        """
        self.lease.check()
        expected = {c.target: fresh.targets[c.target].generation for c in group.changes}
        return apply_to(self.backend, group, expected)

    def delay(self, group: Group) -> timedelta:
        """Return how long after it was asked for a write may still arrive."""
        delays = [self._knobs[c.knob, c.target.kind].read_back_seconds for c in group.changes]
        return timedelta(seconds=max(delays, default=0.0) + GRACE_SECONDS)

    def due(self, group: Group, settles_in_seconds: float = 0.0) -> datetime:
        """Return until when a write that was asked for now may arrive."""
        return self.clock.now() + self.delay(group) + timedelta(seconds=settles_in_seconds)

    def get(self, group_id: str) -> GroupRecord:
        """Return a group as the state database knows it.

        Raises:
            StateMovedError: there is none.
        """
        record = get_group(self.state, group_id)
        if record is None:
            raise StateMovedError(f"expected a change {group_id!r}, found none; `trimtab changes` lists them")
        return record

    def step(self, record: GroupRecord, to: ChangeState, reason: str, body: Mapping[str, Any] | None = None) -> Step:
        """Move a group on by one state, in the journal and on disk on return.

        Raises:
            LeaseLostError: another tuner acts.
            StateMovedError: the group is elsewhere.
        """
        self.walk(record, [(to, reason, body)])
        return Step(record.id, to, reason)

    def walk(self, record: GroupRecord, way: Sequence[Leg]) -> None:
        """Move a group on by several states at once; raises as `step`."""
        walk(self.state, record.id, way, at=self.clock.now(), actor=self.actor, fence=self.lease.fence)

    def remark(self, record: GroupRecord, event: str, reason: str, body: Mapping[str, Any] | None = None) -> None:
        """Write something about a group into the journal that does not move it.

        Raises:
            LeaseLostError: another tuner acts.
        """
        remark(
            self.state,
            record.id,
            event,
            at=self.clock.now(),
            actor=self.actor,
            reason=reason,
            body=body,
            fence=self.lease.fence,
        )


def settle_by(said: Mapping[str, object], otherwise: datetime) -> datetime:
    """Return until when a write may arrive, by the body of its journal entry; else `otherwise`."""
    told = said.get("settle_by")
    return datetime.fromisoformat(told) if isinstance(told, str) else otherwise


def settled_by(record: GroupRecord) -> datetime:
    """Return until when a group that is under way is waited for."""
    # a pod that is watched may be away for a restart
    rest = AWAY_REST if record.state is ChangeState.VERIFYING else timedelta(seconds=GRACE_SECONDS)
    return settle_by(record.evidence, record.updated_at + rest)
