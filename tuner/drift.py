"""Values that somebody else changed after ours was confirmed: theirs is the new baseline, and the target rests."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import select

from tuner.journal import append
from tuner.model import BackendState, Knob, Target
from tuner.record import ChangeState, GroupRecord
from tuner.state.codec import parse, target_from_json, target_to_json
from tuner.state.database import State
from tuner.state.tables import JournalRow

REST = timedelta(hours=1)
FIGHT_WINDOW = timedelta(hours=24)
FIGHT_COUNT = 2


def frozen_targets(past: Sequence[GroupRecord], now: datetime) -> dict[Target, str]:
    """Return the targets that rest for an hour because somebody else set them under our hands: theirs stays."""
    frozen: dict[Target, str] = {}
    for record in past:
        ended = record.settled_at or record.updated_at
        if record.state in {ChangeState.FOREIGN_CHANGE, ChangeState.ROLLBACK_BLOCKED} and now - ended < REST:
            reason = f"{record.reason} ({ended.isoformat(timespec='minutes')})"
            frozen.update((c.target, reason) for c in record.group.changes)
    return frozen


def notice_drift(
    state: State,
    past: Sequence[GroupRecord],
    present: BackendState,
    knobs: Sequence[Knob],
    *,
    now: datetime,
    actor: str = "tuner",
) -> dict[Target, str]:
    """Compare the last value of ours with what is there now; return the targets that rest, and why.

    A foreign value is written into the journal once. Its target rests for an hour from then; after that it is planned
    for from the foreign value. Twice within a day is called a fight.

    Args:
        state: the state database.
        past: groups of the last hours (as for the guards).
        present: a fresh read of the backend.
        knobs: for the quantum within which values are equal.
        now: the instant.
        actor: name in the journal.
    """
    noticed = _noticed(state, now - FIGHT_WINDOW)
    known = {(t, k, v): at for at, t, k, v in noticed}
    new = []
    for (target, knob), expected in _last_values(past).items():
        held = present.targets.get(target)
        found = math.nan if held is None else held.values.get(knob, math.nan)
        slack = max((k.quantum / 2 for k in knobs if k.name == knob and k.target_kind == target.kind), default=1e-9)
        if math.isnan(found) or abs(found - expected) <= slack or (target, knob, found) in known:
            continue
        body = {"target": target_to_json(target), "knob": knob, "expected": expected, "found": found}
        new.append((target, knob, found, body))
    if new:
        with state.writing() as connection:
            for *_, body in new:
                append(connection, at=now, event="drift", actor=actor, body=body)
    every = [*noticed, *((now, t, k, v) for t, k, v, _ in new)]
    counts = Counter(target for _, target, _, _ in every)
    return {target: _reason(at, knob, value, counts[target]) for at, target, knob, value in every if now - at < REST}


def _last_values(past: Sequence[GroupRecord]) -> dict[tuple[Target, str], float]:
    """Return what each target should hold by our last finished change of it; open ones are settled elsewhere."""
    last: dict[tuple[Target, str], float] = {}
    for record in past:
        if record.is_pretended:
            continue  # nobody holds its values
        for change in record.group.changes:
            key = (change.target, change.knob)
            if record.is_open or record.state in {ChangeState.FOREIGN_CHANGE, ChangeState.ROLLBACK_BLOCKED}:
                last.pop(key, None)
            elif record.state in {ChangeState.CONFIRMED, ChangeState.SUPERSEDED}:
                last[key] = change.after
            elif record.state is ChangeState.ROLLED_BACK:
                last[key] = change.before
    return last


def _noticed(state: State, since: datetime) -> list[tuple[datetime, Target, str, float]]:
    query = select(JournalRow.at, JournalRow.body).where(JournalRow.event == "drift", JournalRow.at >= since)
    with state.reading() as connection:
        rows = connection.execute(query.order_by(JournalRow.seq)).all()
    bodies = [(row.at, parse(row.body)) for row in rows]
    return [(at, target_from_json(b["target"]), b["knob"], float(b["found"])) for at, b in bodies]


def _reason(at: datetime, knob: str, value: float, times: int) -> str:
    fight = f", {times} times within a day: something else steers it too" if times >= FIGHT_COUNT else ""
    return f"somebody else set {knob} to {value:g} ({at.isoformat(timespec='minutes')}){fight}"
