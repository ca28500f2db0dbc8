"""What the journal knows of a group: its state, and the record that readers get."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal

from tuner.model import Group

Decision = Literal["write_down", "ask", "go"]


class ChangeState(StrEnum):
    """States of a group, in the order it passes them."""

    PLANNED = "planned"
    DROPPED = "dropped"  # a guard said no; it never reaches the backend
    APPROVED = "approved"
    INTENT = "intent"  # on disk before the write
    APPLIED = "applied"  # the backend said applied or accepted
    READ_BACK = "read_back"  # the backend holds what was asked for
    VERIFYING = "verifying"
    CONFIRMED = "confirmed"
    SUPERSEDED = "superseded"  # a later group of ours changed the same card before the verdict
    ROLLING_BACK = "rolling_back"
    ROLLED_BACK = "rolled_back"
    ROLLBACK_BLOCKED = "rollback_blocked"  # left as it is; a person is asked
    EXPIRED = "expired"
    FOREIGN_CHANGE = "foreign_change"  # somebody else set another value: theirs stays
    NOT_APPLIED = "not_applied"
    REFUSED = "refused"  # by the backend or by a person


_S = ChangeState

NEXT_STATES: Mapping[ChangeState, frozenset[ChangeState]] = {
    _S.PLANNED: frozenset({_S.APPROVED, _S.INTENT, _S.EXPIRED, _S.REFUSED}),
    _S.DROPPED: frozenset(),
    _S.APPROVED: frozenset({_S.INTENT, _S.EXPIRED, _S.REFUSED}),
    _S.INTENT: frozenset({_S.APPLIED, _S.NOT_APPLIED, _S.REFUSED, _S.FOREIGN_CHANGE, _S.ROLLING_BACK}),
    # confirmed at once: it was pretended, by a backend that changes nothing
    _S.APPLIED: frozenset({_S.READ_BACK, _S.CONFIRMED, _S.NOT_APPLIED, _S.FOREIGN_CHANGE, _S.ROLLING_BACK}),
    _S.READ_BACK: frozenset({_S.VERIFYING, _S.FOREIGN_CHANGE, _S.ROLLING_BACK}),
    _S.VERIFYING: frozenset({_S.CONFIRMED, _S.SUPERSEDED, _S.ROLLING_BACK, _S.ROLLBACK_BLOCKED, _S.FOREIGN_CHANGE}),
    _S.CONFIRMED: frozenset({_S.ROLLING_BACK}),
    _S.SUPERSEDED: frozenset(),
    _S.ROLLING_BACK: frozenset({_S.ROLLED_BACK, _S.ROLLBACK_BLOCKED}),
    _S.ROLLED_BACK: frozenset(),
    _S.ROLLBACK_BLOCKED: frozenset(),
    _S.EXPIRED: frozenset(),
    _S.FOREIGN_CHANGE: frozenset(),
    _S.NOT_APPLIED: frozenset(),
    _S.REFUSED: frozenset(),
}

# Under way: the group's targets belong to it until it is settled.
OPEN_STATES = frozenset({_S.INTENT, _S.APPLIED, _S.READ_BACK, _S.VERIFYING, _S.ROLLING_BACK})
# Waiting for consent or for its turn.
WAITING_STATES = frozenset({_S.PLANNED, _S.APPROVED})
# The backend held the new value at some time.
WRITTEN_STATES = frozenset(
    {_S.APPLIED, _S.READ_BACK, _S.VERIFYING, _S.CONFIRMED, _S.SUPERSEDED, _S.ROLLING_BACK, _S.ROLLED_BACK}
    | {_S.ROLLBACK_BLOCKED}
)
FAILED_STATES = frozenset({_S.ROLLED_BACK, _S.ROLLBACK_BLOCKED, _S.NOT_APPLIED, _S.REFUSED, _S.FOREIGN_CHANGE})

PRETENDED = "pretended"  # key in the body of the last journal entry


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A group as the state database knows it."""

    group: Group
    plan_id: str
    state: ChangeState
    decision: Decision
    reason: str  # of the decision, or of the last step
    made_at: datetime
    updated_at: datetime
    simulated: bool = False
    intent_at: datetime | None = None
    applied_at: datetime | None = None
    settled_at: datetime | None = None
    until: datetime | None = None  # an ask or an approval ends here
    restarts: int = 0
    evictions: int = 0
    evidence: Mapping[str, object] = field(default_factory=dict)  # body of the last journal entry

    @property
    def id(self) -> str:
        """Id of the group."""
        return self.group.id

    @property
    def is_pretended(self) -> bool:
        """Whether it ended on a backend that changes nothing: nobody holds its values."""
        return self.evidence.get(PRETENDED) is True

    @property
    def is_over_trial(self) -> bool:
        """Whether it was a probe and has set everything back, as it was meant to."""
        return self.group.trial is not None and self.state is ChangeState.ROLLED_BACK

    @property
    def is_open(self) -> bool:
        """Whether the group is under way."""
        return self.state in OPEN_STATES


@dataclass(frozen=True, slots=True)
class Drop:
    """One thing that a guard decided against, in words."""

    group_id: str
    guard: str
    action: Literal["dropped", "lessened"]
    reason: str
