"""The pages Recommendations and Changes: groups, drops, journal and verification numbers as tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from collector.words import plural
from dashboard.cli.changes import value_text
from dashboard.cli.output import clean as printable
from dashboard.views.names import CardNames, named
from dashboard.views.text import NO_DATA, number, percent, seconds
from tuner.journal import Entry
from tuner.model import Change
from tuner.record import ChangeState, Drop, GroupRecord

KIND_WORDS = {
    "reserve": "keep headroom",
    "give": "give what is idle",
    "queue": "move queue quota",
    "right_size": "right-size memory",
    "fast": "rescue an objective",
    "probe": "try out a pair",
    "rollback": "undo",
}
STATE_WORDS = {
    ChangeState.PLANNED: "recommended",
    ChangeState.APPROVED: "approved, not yet done",
    ChangeState.INTENT: "being written",
    ChangeState.APPLIED: "written",
    ChangeState.READ_BACK: "read back",
    ChangeState.VERIFYING: "being watched",
    ChangeState.CONFIRMED: "kept",
    ChangeState.SUPERSEDED: "overtaken by a later one",
    ChangeState.ROLLING_BACK: "being undone",
    ChangeState.ROLLED_BACK: "undone",
    ChangeState.ROLLBACK_BLOCKED: "could not be undone",
    ChangeState.EXPIRED: "expired",
    ChangeState.FOREIGN_CHANGE: "overruled by somebody else",
    ChangeState.NOT_APPLIED: "not applied",
    ChangeState.REFUSED: "refused",
    ChangeState.DROPPED: "dropped by a guard",
}
IN_FORCE = frozenset({ChangeState.VERIFYING, ChangeState.CONFIRMED})


@dataclass(frozen=True, slots=True)
class Waiting:
    """What the tuner would do: groups that wait for an answer, and those that are only written down."""

    asked: tuple[GroupRecord, ...]
    written_down: tuple[GroupRecord, ...]


def waiting(records: Sequence[GroupRecord], plan_id: str | None) -> Waiting:
    """Return the groups that wait for an answer, oldest first, and those that the newest plan only writes down."""
    planned = sorted((r for r in records if r.state is ChangeState.PLANNED), key=lambda r: (r.made_at, r.id))
    return Waiting(
        tuple(r for r in planned if r.decision == "ask"),
        tuple(r for r in planned if r.decision == "write_down" and r.plan_id == plan_id),
    )


def counted(records: Sequence[GroupRecord]) -> dict[str, int]:
    """Return how many groups are in each state, in words, in the order in which a group passes them."""
    order = {state: place for place, state in enumerate(ChangeState)}
    found: dict[str, int] = {}
    for record in sorted(records, key=lambda r: order[r.state]):
        found[state_words(record)] = found.get(state_words(record), 0) + 1
    return found


def state_words(record: GroupRecord) -> str:
    """Return the state of a group in words."""
    if record.state is ChangeState.PLANNED and record.decision == "ask":
        return "waits for an answer"
    return "trial over, set back" if record.is_over_trial else STATE_WORDS[record.state]


def target_name(change: Change, names: CardNames) -> str:
    """Return who is changed, and where: `research/echo-train on node-c GPU 0`, or the queue's name."""
    if change.target.kind == "queue":
        return printable(f"queue {change.target.name}")
    where = names.get(change.target.gpu) or f"{change.target.node} {change.target.gpu[:12]}"
    who = f"{change.tenant}/{change.workload}" if change.workload else change.target.slice
    return printable(f"{who} on {where}" if who else f"{change.target.kind} {where}")


def change_table(record: GroupRecord, names: CardNames) -> pd.DataFrame:
    """Return the exact changes of a group: `what`, `knob`, `before`, `after`, `why`."""
    rows = [
        (
            target_name(c, names),
            c.knob,
            value_text(c.knob, c.before),
            value_text(c.knob, c.after),
            printable(named(c.reason, names)),
        )
        for c in record.group.changes
    ]
    return pd.DataFrame(rows, columns=["what", "knob", "before", "after", "why"])


def change_words(record: GroupRecord, names: CardNames) -> str:
    """Return the changes of a group on one line."""
    return "; ".join(
        f"{target_name(c, names)}: {value_text(c.knob, c.before)} → {value_text(c.knob, c.after)}"
        for c in record.group.changes
    )


def costs(record: GroupRecord) -> list[str]:
    """Return what a group promises and costs, in words."""
    gain = record.group.predicted_gain
    words = []
    if gain > 0:
        words.append(f"{number(gain)} useful SM-seconds an hour more")
    elif gain < 0:
        words.append(f"{number(-gain)} useful SM-seconds an hour less, to keep promises")
    words.append(f"confidence {percent(record.group.confidence)}")
    words.append(f"coverage {percent(record.group.coverage)}")
    if record.restarts:
        words.append(f"restarts {plural(record.restarts, 'slice')}")
    if record.evictions:
        words.append(f"lets the scheduler evict {plural(record.evictions, 'pod')}")
    return words


def change_list(records: Sequence[GroupRecord], names: CardNames) -> pd.DataFrame:
    """Return a row a group: `when`, `state`, `kind`, `what`, `why`, `outcome`, `id`."""
    rows = [
        (
            r.updated_at,
            state_words(r),
            KIND_WORDS.get(r.group.kind, r.group.kind),
            change_words(r, names),
            printable(named(r.group.why, names)),
            printable(named(r.reason, names)),
            r.id,
        )
        for r in records
    ]
    table = pd.DataFrame(rows, columns=["when", "state", "kind", "what", "why", "outcome", "id"])
    return table.assign(when=pd.to_datetime(table["when"], utc=True))


def drop_list(drops: Sequence[Drop], groups: Mapping[str, GroupRecord], names: CardNames) -> pd.DataFrame:
    """Return a row a drop: `guard`, `what it did`, `reason`, `wanted`, `why`."""
    rows = []
    for drop in drops:
        record = groups.get(drop.group_id)
        rows.append(
            (
                drop.guard,
                drop.action,
                printable(named(drop.reason, names)),
                NO_DATA if record is None else change_words(record, names),
                NO_DATA if record is None else printable(named(record.group.why, names)),
            )
        )
    return pd.DataFrame(rows, columns=["guard", "action", "reason", "wanted", "why"])


def verification(record: GroupRecord, names: CardNames) -> pd.DataFrame:
    """Return what was measured before and after, a row a slice; empty where nothing was judged yet.

    Columns `slice`, `verdict`, `kept_before`, `kept_after` (percent), `latency_before`, `latency_after`,
    `throughput_before`, `throughput_after` (units of work a second), `why`.
    """
    numbers = record.evidence.get("numbers")
    rows = []
    for target, found in numbers.items() if isinstance(numbers, dict) else ():
        before, after = found["before"], found["after"]
        rows.append(
            (
                printable(_short_target(target, names)),
                found["says"],
                *(_percent(side["kept"]) for side in (before, after)),
                *(seconds(side["latency_seconds"]) for side in (before, after)),
                *(_value(side["throughput"]) for side in (before, after)),
                printable(found["why"]),
            )
        )
    names_of = ["kept", "latency", "throughput"]
    columns = ["slice", "verdict", *(f"{n}_{side}" for n in names_of for side in ("before", "after")), "why"]
    return pd.DataFrame(rows, columns=columns)


def _short_target(target: str, names: CardNames) -> str:
    _, _, path = target.partition(" ")
    parts = path.split("/")
    where = names.get(parts[2], parts[2]) if len(parts) > 2 else path
    return f"{'/'.join(parts[3:])} on {where}" if len(parts) > 3 else where


def _percent(value: Any) -> float:
    return math.nan if value is None else 100 * float(value)


def _value(value: Any) -> float:
    return math.nan if value is None else float(value)


def journal_table(entries: Sequence[Entry]) -> pd.DataFrame:
    """Return journal entries: `seq`, `when`, `event`, `by`, `reason`."""
    rows = [(e.seq, e.at, e.event, printable(e.actor), printable(_reason(e.body))) for e in entries]
    table = pd.DataFrame(rows, columns=["seq", "when", "event", "by", "reason"])
    return table.assign(when=pd.to_datetime(table["when"], utc=True))


def _reason(body: Mapping[str, Any]) -> str:
    return str(body.get("why") or body.get("reason") or "")
