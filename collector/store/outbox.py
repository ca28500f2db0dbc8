"""What a shipper takes out of a store: everything in the order of its commits, from the shipper's cursor on.

A shipper has a name and a cursor: the number up to which the other side holds everything. Sealed files keep their row
numbers; merging and retention stop at the slowest cursor, so nothing that is still to be shipped goes, unless the disk
is full (`disk_max_bytes`). Shipping is at least once: after a crash the rows since the last `advance` come again, with
the same keys, times and tags.

    outbox = Outbox(settings.store, "influx")
    while (shipment := outbox.rows_after(outbox.cursor, 10_000)) is not None:
        send(shipment)
        outbox.advance(shipment.through)

Aggregates are shipped apart. Each hour that got rows is dirty until its shipper has called `clean` for it; a late row
makes its hour dirty again. What to send of it is read by `EmbeddedStore.read(..., every=...)`.

    for hour in outbox.dirty_hours(before=now - timedelta(minutes=10)):
        send(store.read(hour.measurement, hour.window, every=timedelta(minutes=1), aggregate="max"))
        outbox.clean(hour)
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from collector.clock import from_ms, to_ms
from collector.columns import numbers_of
from collector.errors import UnreachableError
from collector.schema import MEASUREMENTS, Measurement
from collector.settings import StoreSettings
from collector.store import catalogue, query, spans
from collector.store.engine import Engine
from collector.store.hot import decode, gather
from collector.store.partials import clashes, read_partials
from collector.store.request import HOUR, RAW, STEP_MS, Segment
from collector.store.segments import read_segments
from collector.window import Window

if TYPE_CHECKING:
    import pandas as pd

_AT_ONCE_ROWS = 200_000  # of one sealed file held in memory; read whole, it would be scanned once for each shipment
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Shipment:
    """Everything numbered in (after, through]; there may be numbers that nothing has.

    rows: measurement -> `time` (ms, UTC), tags, `seq` (int64), fields (float64, null for absent), sorted by `seq`.
    facts, events, rejects: as `StoreReader` gives them, in the order of their numbers. A fact whose `to` equals its
        `from` is withdrawn; any other replaces what was shipped for the same subject, name and `from`.
    """

    after: int
    through: int
    rows: Mapping[str, pa.Table]
    facts: pd.DataFrame
    events: pd.DataFrame
    rejects: pd.DataFrame

    @property
    def count(self) -> int:
        """Rows, facts, events and rejects together."""
        rows = sum(int(table.num_rows) for table in self.rows.values())
        return rows + len(self.facts) + len(self.events) + len(self.rejects)


@dataclass(frozen=True, slots=True)
class DirtyHour:
    """An hour whose aggregates have to be shipped (again); `seq` is the number of the last row that touched it."""

    measurement: str
    window: Window
    seq: int


class Outbox:
    """One shipper's view of the store in `settings.path`; any process of the host may hold it.

    Args:
        settings: table `[store]`.
        name: of the shipper. A new one starts before the oldest row that is kept.

    Raises:
        ConfigurationError: network file system, or a store of a newer format.
        UnreachableError: the store cannot be opened. So do all methods where it cannot be read or written.
    """

    def __init__(self, settings: StoreSettings, name: str) -> None:
        self._folder = settings.path.resolve()
        self._name = name
        self._db = catalogue.connect(self._folder, synchronous=settings.synchronous)
        self._engine = Engine()
        self._loaded: dict[int, tuple[int, int, pa.Table]] = {}  # file id -> first and last number, its rows of those
        with catalogue.failures(self._folder, "write to"), catalogue.transaction(self._db):
            if self._db.execute("SELECT 1 FROM cursor WHERE name = ?", (name,)).fetchone() is None:
                self._db.execute("INSERT INTO cursor VALUES (?, 0)", (name,))
                _mark_everything(self._db, name)

    def close(self) -> None:
        """Release the connection; the cursor stays."""
        self._engine.close()
        self._db.close()

    def forget(self) -> None:
        """Drop the cursor and the dirty hours: nothing is kept for this shipper any more."""
        with catalogue.failures(self._folder, "write to"), catalogue.transaction(self._db):
            self._db.execute("DELETE FROM cursor WHERE name = ?", (self._name,))
            self._db.execute("DELETE FROM dirty WHERE name = ?", (self._name,))
            self._db.execute("DELETE FROM meta WHERE name = ?", (self._owed_name,))

    @property
    def cursor(self) -> int:
        """The number up to which everything is shipped."""
        with self._reading():
            row = self._db.execute("SELECT seq FROM cursor WHERE name = ?", (self._name,)).fetchone()
        return 0 if row is None else int(row[0])

    def advance(self, seq: int) -> None:
        """Note that everything up to `seq` is on the other side; a cursor never goes back."""
        with catalogue.failures(self._folder, "write to"):
            self._db.execute("UPDATE cursor SET seq = max(seq, ?) WHERE name = ?", (seq, self._name))

    @property
    def pending(self) -> int:
        """How many numbers are still to be shipped: an upper bound of rows, facts, events and rejects."""
        with self._reading():
            (head,) = self._db.execute("SELECT value FROM meta WHERE name = 'next_seq'").fetchone()
        return max(int(head) - 1 - self.cursor, 0)

    @property
    def oldest_unshipped(self) -> datetime | None:
        """Time of the oldest row that may still have to be shipped; None where all are."""
        seq = self.cursor
        with self._reading():
            (first,) = self._db.execute(
                "SELECT min(t_min) FROM (SELECT t_min FROM hot WHERE seq_max > ?1"
                " UNION ALL SELECT t_min FROM seg WHERE seq_max > ?1 AND tier = ?2 AND state = 'live')",
                (seq, RAW),
            ).fetchone()
        return None if first is None else from_ms(first)

    # Facts, events and rejects that the cursor passed without them ---------------------------------------------------

    @property
    def _owed_name(self) -> str:
        return f"texts owed to {self._name}"

    @property
    def owed_after(self) -> int | None:
        """The number behind which facts, events and rejects are still to be shipped; None: they go with the rows."""
        with self._reading():
            row = self._db.execute("SELECT value FROM meta WHERE name = ?", (self._owed_name,)).fetchone()
        return None if row is None else int(row[0])

    def owe_texts(self, seq: int) -> None:
        """Note that facts, events and rejects behind number `seq` wait while rows go on; an earlier debt stays."""
        with catalogue.failures(self._folder, "write to"):
            self._db.execute("INSERT OR IGNORE INTO meta VALUES (?, ?)", (self._owed_name, seq))

    def pay_texts(self, through: int) -> None:
        """Note that those up to `through` are on the other side; a debt that ends at the cursor is gone."""
        with catalogue.failures(self._folder, "write to"), catalogue.transaction(self._db):
            self._db.execute("UPDATE meta SET value = ? WHERE name = ?", (through, self._owed_name))
            self._db.execute(
                "DELETE FROM meta WHERE name = ?1 AND value >= (SELECT seq FROM cursor WHERE name = ?2)",
                (self._owed_name, self._name),
            )

    def texts_after(self, seq: int, limit: int) -> Shipment | None:
        """Return the next facts, events and rejects after number `seq` up to the cursor; None where there are none.

        Raises:
            UnreachableError: the store cannot be read.
        """
        with self._reading(), catalogue.snapshot(self._db):
            found = self._db.execute(
                "SELECT seq FROM ("
                "SELECT seq FROM fact UNION ALL SELECT seq FROM event UNION ALL SELECT seq FROM reject)"
                " WHERE seq > ? AND seq <= (SELECT seq FROM cursor WHERE name = ?) ORDER BY seq LIMIT ?",
                (seq, self._name, limit),
            ).fetchall()
            if not found:
                return None
            through = int(found[-1][0])
            texts = spans.changed_texts(self._db, seq + 1, through)
        return Shipment(seq, through, {}, texts["fact"], texts["event"], texts["reject"])

    # Rows ----------------------------------------------------------------------------------------------------------

    def rows_after(self, seq: int, limit: int) -> Shipment | None:
        """Return what was kept next after number `seq`, at most `limit` rows; None where there is nothing.

        In memory are `limit` rows and at most 200,000 of each sealed file that holds some of them (one or two a
        measurement). Calls with ascending `seq` read each sealed file once for each 200,000 numbers.

        Raises:
            UnreachableError: the store or one of its files cannot be read.
        """
        while True:
            first = self._next(seq)
            if first is None:
                return None
            shipment = self._shipment(seq, first, first + limit - 1)
            if shipment.count:
                return shipment
            seq = shipment.through  # merged duplicates and deleted rows leave holes

    def _next(self, seq: int) -> int | None:
        with self._reading():
            (first,) = self._db.execute(
                "SELECT min(first) FROM ("
                " SELECT max(seq_min, ?1 + 1) AS first FROM hot WHERE seq_max > ?1"
                " UNION ALL SELECT max(seq_min, ?1 + 1) FROM seg WHERE seq_max > ?1 AND tier = ?2 AND state = 'live'"
                " UNION ALL SELECT min(seq) FROM fact WHERE seq > ?1"
                " UNION ALL SELECT min(seq) FROM event WHERE seq > ?1"
                " UNION ALL SELECT min(seq) FROM reject WHERE seq > ?1)",
                (seq, RAW),
            ).fetchone()
        return None if first is None else int(first)

    def _shipment(self, after: int, first: int, last: int) -> Shipment:
        for attempt in range(_ATTEMPTS):
            with self._reading(), catalogue.snapshot(self._db):
                (head,) = self._db.execute("SELECT value FROM meta WHERE name = 'next_seq'").fetchone()
                through = min(last, int(head) - 1)
                parts = {name: self._unsealed(spec, first, through) for name, spec in MEASUREMENTS.items()}
                segments = {
                    name: [
                        s
                        for s in read_segments(self._db, self._folder, name)
                        if s.tier == RAW and s.seq_min <= through and s.seq_max >= first
                    ]
                    for name in MEASUREMENTS
                }
                texts = spans.changed_texts(self._db, first, through)
            try:
                with catalogue.failures(self._folder, "read"):
                    for name, found in segments.items():
                        parts[name] += [self._sealed(MEASUREMENTS[name], s, first, through) for s in found]
                break
            except UnreachableError:  # a file that was replaced while this process slept: look again
                if attempt == _ATTEMPTS - 1:
                    raise
        rows = {name: _in_order(tables) for name, tables in parts.items() if any(t.num_rows for t in tables)}
        return Shipment(after, through, rows, texts["fact"], texts["event"], texts["reject"])

    def _unsealed(self, spec: Measurement, first: int, through: int) -> list[pa.Table]:
        found = self._db.execute(
            "SELECT seq_min, payload FROM hot WHERE measurement = ? AND seq_min <= ? AND seq_max >= ? ORDER BY seq_min",
            (spec.name, through, first),
        ).fetchall()
        tables = []
        for seq_min, payload in found:
            table = decode(payload)
            skipped = max(first - seq_min, 0)
            chosen = table.slice(skipped, through - seq_min - skipped + 1)
            tables.append(_shown(spec, gather(spec, spec.field_names, [chosen], [seq_min + skipped])))
        return tables

    def _sealed(self, spec: Measurement, segment: Segment, first: int, through: int) -> pa.Table:
        known = self._loaded.get(segment.id)
        if known is None or first < known[0] or through > known[1]:
            self._loaded = {i: part for i, part in self._loaded.items() if part[1] >= first and i != segment.id}
            last = max(through, first + _AT_ONCE_ROWS - 1)
            whole = (segment.t_min, segment.t_max + 1)
            (select,) = query.scan([segment], spec, spec.field_names, whole, {})
            empty = gather(spec, spec.field_names, (), ())
            statement = f"SELECT * FROM ({select}) WHERE seq BETWEEN {first} AND {last} ORDER BY seq"  # noqa: S608
            known = (first, last, _shown(spec, self._engine.run(statement, hot=empty)))
            self._loaded[segment.id] = known
        numbers = numbers_of(known[2].column("seq"))
        start, end = np.searchsorted(numbers, [first, through + 1])
        return known[2].slice(start, end - start)

    # Aggregates ----------------------------------------------------------------------------------------------------

    def dirty_hours(self, before: datetime, limit: int = 1000, offset: int = 0) -> list[DirtyHour]:
        """Return hours that ended by `before` and whose aggregates have to be shipped, oldest first."""
        with self._reading():
            found = self._db.execute(
                "SELECT measurement, hour, seq FROM dirty WHERE name = ? AND hour <= ? ORDER BY hour, measurement"
                " LIMIT ? OFFSET ?",
                (self._name, to_ms(before) - STEP_MS[HOUR], limit, offset),
            ).fetchall()
        return [DirtyHour(name, Window(from_ms(hour), from_ms(hour + STEP_MS[HOUR])), seq) for name, hour, seq in found]

    def clean(self, hour: DirtyHour) -> None:
        """Note that an hour's aggregates were shipped; it stays dirty where rows came meanwhile."""
        with catalogue.failures(self._folder, "write to"):
            self._db.execute(
                "DELETE FROM dirty WHERE name = ? AND measurement = ? AND hour = ? AND seq = ?",
                (self._name, hour.measurement, to_ms(hour.window.start), hour.seq),
            )

    def soil(self, measurement: str, window: Window) -> None:
        """Mark the hours that `window` touches dirty, after rows of it were deleted."""
        step = STEP_MS[HOUR]
        hours = range(to_ms(window.start) // step * step, to_ms(window.end), step)
        with catalogue.failures(self._folder, "write to"), catalogue.transaction(self._db):
            _mark(self._db, [(self._name, measurement, hour, catalogue.take_seq(self._db, 1)) for hour in hours])

    def partials(self, hour: DirtyHour) -> dict[str, pa.Table]:
        """Return the rows of each tier in an hour; see `partials.read_partials`.

        Raises:
            UnreachableError: the store or one of its files cannot be read.
        """
        span = (to_ms(hour.window.start), to_ms(hour.window.end))
        with self._reading():
            return read_partials(self._db, self._folder, self._engine, MEASUREMENTS[hour.measurement], span)

    def may_clash(self, measurement: str, first_ms: int, last_ms: int) -> bool:
        """Whether a key and time may stand twice among the raw rows from `first_ms` to `last_ms`, shipped or not."""
        with self._reading():
            return clashes(self._db, self._folder, measurement, first_ms, last_ms + 1)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with catalogue.failures(self._folder, "read"):
            yield


def mark_dirty(db: sqlite3.Connection, measurement: str, rows: pa.Table, seq: int) -> None:
    """Inside the transaction that writes `rows`, the last of which is numbered `seq`: note their hours for shippers."""
    names = [row[0] for row in db.execute("SELECT name FROM cursor")]
    if names:
        times = numbers_of(rows.column("time"))
        hours = np.unique(times // STEP_MS[HOUR]) * STEP_MS[HOUR]
        _mark(db, [(name, measurement, hour, seq) for name in names for hour in hours.tolist()])


def _mark(db: sqlite3.Connection, marks: list[tuple[str, str, int, int]]) -> None:
    db.executemany("REPLACE INTO dirty VALUES (?, ?, ?, ?)", marks)


def _mark_everything(db: sqlite3.Connection, name: str) -> None:
    step = STEP_MS[HOUR]
    for measurement, first, last, seq in db.execute(
        "SELECT measurement, t_min, t_max, seq_max FROM hot"
        " UNION ALL SELECT measurement, t_min, t_max, seq_max FROM seg WHERE state = 'live'"
    ).fetchall():
        _mark(db, [(name, measurement, hour, seq) for hour in range(first // step * step, last + 1, step)])


def _shown(spec: Measurement, rows: pa.Table) -> pa.Table:
    time = rows.column("t").cast(pa.timestamp("ms", tz="UTC"))
    columns = {name: rows.column(name) for name in (*spec.tags, "seq", *spec.field_names)}
    return pa.table({"time": time, **columns})


def _in_order(tables: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables).sort_by("seq")
