"""The kill switch as the application turns it: role checked, file first, then the journal where there is one."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from collector.errors import RefusedError
from tuner import journal, killswitch
from tuner.consent import ACTING_ROLES, Role
from tuner.killswitch import Pause
from tuner.model import Freeze
from tuner.state import State


def pause(file: Path, state: State | None, level: Freeze, *, who: str, why: str, role: Role, now: datetime) -> Pause:
    """Stop new changes, or all writes.

    Raises:
        RefusedError: the role may not, or who or why is missing.
        UnreachableError: the file cannot be written.
    """
    _may(role)
    found = killswitch.pause(file, level, who=who, why=why, at=now)
    if state is not None:
        journal.note(state, "paused", at=now, actor=who, body={"level": level.value, "why": why})
    return found


def resume(file: Path, state: State | None, *, who: str, why: str, role: Role, now: datetime) -> bool:
    """Let the tuner go on; return whether it was paused.

    Raises:
        RefusedError: the role may not, or who or why is missing.
        UnreachableError: the file cannot be removed.
    """
    _may(role)
    if not who.strip() or not why.strip():
        raise RefusedError("to resume needs who and why: expected both, got an empty text; say why")
    was = killswitch.read(file)
    paused = killswitch.resume(file)
    if paused and state is not None:
        journal.note(state, "resumed", at=now, actor=who, body={"was": was.level.value, "why": why})
    return paused


def _may(role: Role) -> None:
    if role not in ACTING_ROLES:
        raise RefusedError(f"expected the role operator or admin, got {role!r}; ask somebody who may")
