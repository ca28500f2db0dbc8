"""What the tuner did, would do, decided against and took back; predicted against realised."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median

from collector.words import plural
from dashboard.cli.changes import trial_words
from dashboard.report.gathered import Gathered
from dashboard.report.model import ChangeLine, ChangesPart, DropCount, PromiseCheck
from dashboard.report.view import (
    Badge,
    Block,
    Note,
    Section,
    Table,
    Tone,
    more,
    numbers,
    prose,
    text,
)
from dashboard.report.words import state_text
from dashboard.views.text import gib, number, percent, stamp
from tuner.model import Change, Target
from tuner.outcome import Outcome
from tuner.record import WAITING_STATES, ChangeState, Drop, GroupRecord

_UNDONE = frozenset({ChangeState.ROLLED_BACK, ChangeState.ROLLBACK_BLOCKED, ChangeState.ROLLING_BACK})
_MADE = frozenset(
    {ChangeState.APPLIED, ChangeState.READ_BACK, ChangeState.VERIFYING, ChangeState.CONFIRMED, ChangeState.SUPERSEDED}
)
_TONES: dict[str, Tone] = {"confirmed": "good", "rolled_back": "fair", "rollback_blocked": "poor"}
_KNOBS = {
    "sm_quota_ratio": "compute share",
    "memory_quota_bytes": "memory",
    "quota_gpu_count": "granted cards",
    "priority": "priority",
}
_MOST = 10  # changes of each kind


def build_changes(gathered: Gathered) -> ChangesPart:
    """Sort the tuner's records, newest first."""
    records = gathered.records
    if records is None:
        return ChangesPart(gathered.mode, {}, (), (), (), (), (), gathered.no_records)
    return ChangesPart(
        mode=gathered.mode,
        counts={state.value: count for state, count in sorted(records.counts.items())},
        made=_lines(r for r in records.groups if r.state in _MADE),
        rolled_back=_lines(r for r in records.groups if r.state in _UNDONE),
        would=_once(r for r in records.groups if r.state in WAITING_STATES),
        drops=_drops(records.drops),
        promises=_promises(records.outcomes),
        missing="",
    )


def _lines(records: Iterable[GroupRecord]) -> tuple[ChangeLine, ...]:
    lines = (_line(record, 1) for record in records)
    return tuple(sorted(lines, key=lambda line: (-line.at.timestamp(), line.id)))


def _once(records: Iterable[GroupRecord]) -> tuple[ChangeLine, ...]:
    """Return advice about the same knobs once, as it was given last, the most repeated first."""
    alike: dict[tuple[tuple[Target, str], ...], list[GroupRecord]] = {}
    for record in records:
        alike.setdefault(tuple(sorted((c.target, c.knob) for c in record.group.changes)), []).append(record)
    lines = [_line(max(same, key=lambda r: (r.made_at, r.id)), len(same)) for same in alike.values()]
    return tuple(sorted(lines, key=lambda line: (-line.times, -line.at.timestamp(), line.id)))


def _line(record: GroupRecord, times: int) -> ChangeLine:
    return ChangeLine(
        id=record.id,
        at=record.applied_at or record.updated_at,
        state=record.state.value if record.decision != "write_down" else "recommended",
        kind=record.group.kind,
        what=(*(_change_text(change) for change in record.group.changes), *trial_words(record)),
        why=record.group.why,
        reason=record.reason,
        confidence=record.group.confidence,
        times=times,
    )


def _change_text(change: Change) -> str:
    who = f"{change.tenant}/{change.workload}" if change.workload else str(change.target)
    knob = _KNOBS.get(change.knob, change.knob)
    return f"{who}: {knob} {_knob_text(change.knob, change.before)} to {_knob_text(change.knob, change.after)}"


def _knob_text(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return gib(value)
    return percent(value) if name.endswith("_ratio") else number(value)


def _drops(drops: Iterable[Drop]) -> tuple[DropCount, ...]:
    reasons: dict[tuple[str, str], Counter[str]] = {}
    for drop in drops:
        reasons.setdefault((drop.guard, drop.action), Counter())[drop.reason] += 1
    counted = [
        DropCount(guard, action, told.total(), min(told, key=lambda reason: (-told[reason], reason)))
        for (guard, action), told in reasons.items()
    ]
    return tuple(sorted(counted, key=lambda d: (-d.count, d.guard, d.action)))


def _promises(outcomes: Iterable[Outcome]) -> tuple[PromiseCheck, ...]:
    by_kind: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_kind.setdefault(outcome.kind, []).append(outcome)
    return tuple(
        PromiseCheck(
            kind=kind,
            passed=sum(o.verdict == "pass" for o in found),
            other=sum(o.verdict != "pass" for o in found),
            predicted_sm_seconds_per_hour=_median(o.predicted for o in found),
            realised_ratio=_median(o.realised for o in found),
        )
        for kind, found in sorted(by_kind.items())
    )


def _median(values: Iterable[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return median(known) if known else math.nan


def changes_section(part: ChangesPart) -> Section:
    """Show the tuner's week."""
    title = "What the tuner did"
    if part.missing:
        return Section("changes", title, (Note(f"Nothing: {part.missing}."),))
    counts = ", ".join(f"{count} {state_text(state)}" for state, count in part.counts.items())
    blocks: list[Block] = [Note(f"Mode: {part.mode}. Groups of changes: {counts or 'none'}.")]
    if part.made:
        blocks.append(_table(part.made, "Made"))
    if part.rolled_back:
        blocks.append(_table(part.rolled_back, "Taken back"))
    if part.would:
        blocks.append(_table(part.would, "Would be made, or waits for an answer"))
    if part.promises:
        blocks.append(
            Table(
                (
                    *text("kind of change"),
                    *numbers("held", "did not", "predicted gain, SM-seconds an hour", "realised gain of what changed"),
                ),
                tuple(
                    (
                        p.kind.replace("_", " "),
                        str(p.passed),
                        str(p.other),
                        number(p.predicted_sm_seconds_per_hour),
                        percent(p.realised_ratio, 1),
                    )
                    for p in part.promises
                ),
                "Predicted against realised: medians of the changes that were verified",
            )
        )
    if part.drops:
        blocks.append(
            Table(
                (*text("guard", "what it did"), *numbers("times"), *prose("reason given most often")),
                tuple((d.guard, d.action, number(d.count), d.example) for d in part.drops),
                "What guards decided against",
            )
        )
    return Section("changes", title, tuple(blocks))


def _table(lines: Sequence[ChangeLine], caption: str) -> Table:
    return Table(
        (*text("when", "kind"), *prose("change", "why"), *text("outcome"), *prose("what was seen")),
        tuple(
            (
                stamp(line.at),
                line.kind.replace("_", " "),
                "; ".join(line.what),
                line.why,
                Badge(state_text(line.state), _TONES.get(line.state, "plain")),
                line.reason if line.times == 1 else f"{line.reason} ({line.times} times)",
            )
            for line in lines[:_MOST]
        ),
        f"{caption}: {plural(len(lines), 'group')}",
        more(len(lines), "group", _MOST),
    )
