"""Facts as spans: observations in, `value from .. to` out; and the text tables beside them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from collector.batch import Event, Fact, Reject, Subject
from collector.clock import to_ms
from collector.errors import ConfigurationError
from collector.store.catalogue import take_seq
from collector.window import Window

if TYPE_CHECKING:
    import pandas as pd

SUBJECT_COLUMNS = ("kind", "cluster", "node", "gpu", "slice", "object")
FACT_COLUMNS = (*SUBJECT_COLUMNS, "name", "value", "from", "to", "provenance")
EVENT_COLUMNS = ("time", *SUBJECT_COLUMNS, "code", "severity", "message")
REJECT_COLUMNS = ("time", *SUBJECT_COLUMNS, "field", "reason", "count")

_AT_ONCE = 4096  # a fleet's first cycle tells a hundred thousand facts

_SELECT_FACTS = "SELECT kind, cluster, node, gpu, slice, object, name, value, t_from, t_to, provenance FROM fact"
_SELECT_EVENTS = "SELECT time, kind, cluster, node, gpu, slice, object, code, severity, message FROM event"
_SELECT_REJECTS = "SELECT time, kind, cluster, node, gpu, slice, object, field, reason, count FROM reject"
_SPANS = (
    "SELECT id, t_from, t_to, value, provenance FROM fact"
    " WHERE kind=? AND cluster=? AND node=? AND gpu=? AND slice=? AND object=? AND name=?"
)
_NEWEST = f"{_SPANS} AND (t_to IS NULL OR t_to > t_from) ORDER BY t_from DESC LIMIT 1"
_COVERING = f"{_SPANS} AND t_from <= ? AND (t_to IS NULL OR t_to > ?) ORDER BY t_from DESC LIMIT 1"
_FOLLOWING = f"{_SPANS} AND t_from > ? AND (t_to IS NULL OR t_to > t_from) ORDER BY t_from LIMIT 1"


def _parts(subject: Subject) -> tuple[str, ...]:
    return (subject.kind, subject.cluster, subject.node, subject.gpu, subject.slice, subject.object)


class FactWriter:
    """Applies observations inside the caller's transaction, and keeps nothing in memory after it.

    Nearly all observations are the newest of their subject and name: those cost one look-up, and are written many at
    once. Late ones, and a second one of the same name in a batch, go one by one.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._ends: list[tuple[int, int]] = []  # id of a span and its end (ms), to be written with the next flush
        self._adds: list[tuple[object, ...]] = []

    def apply(self, facts: Iterable[Fact]) -> None:
        """Keep the observations; late ones split or extend the spans they fall into."""
        self._ends, self._adds = [], []  # what a rolled back transaction left
        waiting: set[tuple[str, ...]] = set()
        for fact in facts:
            who = (*_parts(fact.subject), fact.name)
            if who in waiting or len(waiting) >= _AT_ONCE:
                self._flush()
                waiting.clear()
            waiting.add(who)
            self._observe(fact, who)
        self._flush()

    def _observe(self, fact: Fact, who: tuple[str, ...]) -> None:
        at = to_ms(fact.at)
        newest = self._db.execute(_NEWEST, who).fetchone()
        if newest is None or newest[1] <= at:
            covering = newest if newest is not None and (newest[2] is None or newest[2] > at) else None
            following = None
        else:
            covering = self._db.execute(_COVERING, (*who, at, at)).fetchone()
            following = self._db.execute(_FOLLOWING, (*who, at)).fetchone() if covering is None else None
        if covering is not None:
            if (covering[3], covering[4]) != (fact.value, fact.provenance):
                # Where both are the same instant the span is withdrawn, unless the new value takes its place.
                self._ends.append((covering[0], at))
                self._add(fact, who, at, covering[2])
        elif fact.value is None or following is None:
            self._add(fact, who, at, None)
        elif (following[3], following[4]) == (fact.value, fact.provenance):
            self._ends.append((following[0], following[1]))  # its start is part of its name: withdrawn, and told anew
            self._add(fact, who, at, following[2])
        else:
            self._add(fact, who, at, following[1])

    def _add(self, fact: Fact, who: tuple[str, ...], t_from: int, t_to: int | None) -> None:
        if fact.value is not None:
            self._adds.append((*who, fact.value, t_from, t_to, fact.provenance))

    def _flush(self) -> None:
        """Write what waits: ends first, since a span of the same start replaces the one that is withdrawn."""
        count = len(self._ends) + len(self._adds)
        if not count:
            return
        first = take_seq(self._db, count)
        ends = [(t_to, seq, span_id) for seq, (span_id, t_to) in enumerate(self._ends, first)]
        self._db.executemany("UPDATE fact SET t_to = ?, seq = ? WHERE id = ?", ends)
        self._db.executemany(
            "REPLACE INTO fact (kind, cluster, node, gpu, slice, object, name, value, t_from, t_to, provenance, seq)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            ((*row, seq) for seq, row in enumerate(self._adds, first + len(ends))),
        )
        self._ends, self._adds = [], []


def check_simulated(db: sqlite3.Connection, clusters: Iterable[str], facts: Iterable[Fact]) -> None:
    """Refuse to mix simulated and real clusters in one store; to be called before the facts are applied.

    A cluster is simulated where its fact `simulated` is `true`, else real. The first write decides for the store.

    Raises:
        ConfigurationError: the batch is of the other nature.
    """
    said = {f.subject.cluster: f.value == "true" for f in facts if f.name == "simulated"}
    natures = dict(said)
    for cluster in clusters:
        if cluster not in natures:
            row = db.execute(
                "SELECT value FROM fact WHERE kind = 'cluster' AND cluster = ? AND name = 'simulated' AND t_to IS NULL",
                (cluster,),
            ).fetchone()
            natures[cluster] = row is not None and row[0] == "true"
    if not natures:
        return
    row = db.execute("SELECT value FROM meta WHERE name = 'simulated'").fetchone()
    kept = next(iter(natures.values())) if row is None else bool(row[0])
    for cluster, simulated in natures.items():
        if simulated != kept:
            words = ("real", "simulated")
            raise ConfigurationError(
                f"this store holds {words[kept]} rows and refuses {words[simulated]} ones (cluster {cluster!r}); "
                "set store.path to another folder for them"
            )
    if row is None:
        db.execute("INSERT INTO meta VALUES ('simulated', ?)", (int(kept),))


def write_events(db: sqlite3.Connection, events: Sequence[Event]) -> None:
    """Keep events; the same event again changes nothing."""
    first = take_seq(db, len(events)) if events else 0
    db.executemany(
        "INSERT INTO event VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE"
        " SET severity = excluded.severity, seq = excluded.seq WHERE severity <> excluded.severity",
        [
            (to_ms(e.at), *_parts(e.subject), e.code, e.message, str(e.severity), seq)
            for seq, e in enumerate(events, first)
        ],
    )


def write_rejects(db: sqlite3.Connection, rejects: Sequence[Reject]) -> None:
    """Keep rejects; the same one again replaces its count."""
    first = take_seq(db, len(rejects)) if rejects else 0
    db.executemany(
        "INSERT INTO reject VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE"
        " SET count = excluded.count, seq = excluded.seq WHERE count <> excluded.count",
        [(to_ms(r.at), *_parts(r.subject), r.field, r.reason, r.count, seq) for seq, r in enumerate(rejects, first)],
    )


def text_frame(rows: Sequence[tuple[object, ...]], columns: Sequence[str], times: Sequence[str]) -> pd.DataFrame:
    """Build a frame from SQLite rows: `times` from milliseconds (None is NaT), `count` as integer, the rest as text."""
    import pandas as pd  # noqa: PLC0415  who only writes does without it

    series: dict[str, pd.Series] = {}
    for index, name in enumerate(columns):
        values = [row[index] for row in rows]
        if name in times:
            stamps = pd.Series(pd.to_numeric(pd.Series(values, dtype="Int64")))
            series[name] = pd.to_datetime(stamps, unit="ms", utc=True).astype("datetime64[ms, UTC]")
        elif name == "count":
            series[name] = pd.Series(values, dtype="int64")
        else:
            series[name] = pd.Series(values, dtype="str")
    return pd.DataFrame(series, columns=list(columns))


def read_facts(db: sqlite3.Connection, window: Window | None, names: Sequence[str] | None) -> pd.DataFrame:
    """Return facts valid at some time in `window`, sorted by subject, name and start."""
    conditions = ["(t_to IS NULL OR t_to > t_from)"]  # the others were withdrawn
    values: list[object] = []
    if window is not None:
        conditions.append("t_from < ? AND (t_to IS NULL OR t_to > ?)")
        values += [to_ms(window.end), to_ms(window.start)]
    if names is not None:
        conditions.append(f"name IN ({', '.join('?' * len(names))})")
        values += names
    rows = db.execute(
        f"{_SELECT_FACTS} WHERE {' AND '.join(conditions)}"
        " ORDER BY kind, cluster, node, gpu, slice, object, name, t_from",
        values,
    ).fetchall()
    return text_frame(rows, FACT_COLUMNS, ("from", "to"))


def _bounds(window: Window | None) -> tuple[int, int]:
    return (-(2**63), 2**63 - 1) if window is None else (to_ms(window.start), to_ms(window.end))


def read_events(db: sqlite3.Connection, window: Window | None) -> pd.DataFrame:
    """Return events in `window` (None: all), by time."""
    rows = db.execute(
        f"{_SELECT_EVENTS} WHERE time >= ? AND time < ?"
        " ORDER BY time, kind, cluster, node, gpu, slice, object, code, message",
        _bounds(window),
    ).fetchall()
    return text_frame(rows, EVENT_COLUMNS, ("time",))


def read_rejects(db: sqlite3.Connection, window: Window | None) -> pd.DataFrame:
    """Return rejects in `window` (None: all), by time."""
    rows = db.execute(
        f"{_SELECT_REJECTS} WHERE time >= ? AND time < ?"
        " ORDER BY time, kind, cluster, node, gpu, slice, object, field, reason",
        _bounds(window),
    ).fetchall()
    return text_frame(rows, REJECT_COLUMNS, ("time",))


def changed_texts(db: sqlite3.Connection, first: int, through: int) -> dict[str, pd.DataFrame]:
    """Return facts, events and rejects whose number lies in [first, through], each in the order of their numbers.

    A fact whose `to` equals its `from` is withdrawn.
    """
    found: dict[str, pd.DataFrame] = {}
    for name, select, columns, times in (
        ("fact", _SELECT_FACTS, FACT_COLUMNS, ("from", "to")),
        ("event", _SELECT_EVENTS, EVENT_COLUMNS, ("time",)),
        ("reject", _SELECT_REJECTS, REJECT_COLUMNS, ("time",)),
    ):
        rows = db.execute(f"{select} WHERE seq BETWEEN ? AND ? ORDER BY seq", (first, through)).fetchall()
        found[name] = text_frame(rows, columns, times)
    return found
