"""How far the shipper is, read from the embedded store's catalogue by any process."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta

from collector.clock import from_ms
from collector.settings import StoreSettings
from collector.store import catalogue
from collector.store.request import RAW

CURSOR = "influx"  # the name of the shipper's cursor


@dataclass(frozen=True, slots=True)
class Progress:
    """A shipper's cursor.

    cursor: number up to which everything is in InfluxDB; None where nothing was ever shipped.
    pending: how many numbers are not shipped: an upper bound of rows, facts, events and rejects.
    oldest_unshipped: time of the oldest row that is not in InfluxDB yet.
    oldest_dirty: start of the oldest hour whose aggregates are not there as they should be; the present hour is one.
    """

    cursor: int | None
    pending: int
    oldest_unshipped: datetime | None
    oldest_dirty: datetime | None

    def behind(self, now: datetime) -> timedelta:
        """Return how far InfluxDB is behind: the age of the oldest row that it lacks."""
        return timedelta(0) if self.oldest_unshipped is None else max(now - self.oldest_unshipped, timedelta(0))

    def boundary(self, now: datetime, live: timedelta) -> datetime | None:
        """Return from when on the local store answers; None: from the beginning, since nothing was ever shipped."""
        if self.cursor is None:
            return None
        instants = [now - live, self.oldest_unshipped, self.oldest_dirty]
        return min(instant for instant in instants if instant is not None)


def read_progress(db: sqlite3.Connection, name: str) -> Progress:
    """Read a shipper's progress over a connection to the catalogue."""
    with catalogue.snapshot(db):
        (head,) = db.execute("SELECT value FROM meta WHERE name = 'next_seq'").fetchone()
        row = db.execute("SELECT seq FROM cursor WHERE name = ?", (name,)).fetchone()
        seq = 0 if row is None else int(row[0])
        (oldest,) = db.execute(
            "SELECT min(t_min) FROM (SELECT t_min FROM hot WHERE seq_max > ?1"
            " UNION ALL SELECT t_min FROM seg WHERE seq_max > ?1 AND tier = ?2 AND state = 'live')",
            (seq, RAW),
        ).fetchone()
        (dirty,) = db.execute("SELECT min(hour) FROM dirty WHERE name = ?", (name,)).fetchone()
    return Progress(
        None if row is None else seq,
        max(int(head) - 1 - seq, 0),
        None if oldest is None else from_ms(oldest),
        None if dirty is None else from_ms(dirty),
    )


def progress_of(settings: StoreSettings, name: str) -> Progress:
    """Read a shipper's progress from the store in `settings.path`.

    Raises:
        UnreachableError: there is no store, or it cannot be read.
    """
    folder = settings.path.resolve()
    with closing(catalogue.connect(folder, read_only=True)) as db, catalogue.failures(folder, "read"):
        return read_progress(db, name)


def cursors(settings: StoreSettings) -> dict[str, int]:
    """Return every shipper's name and cursor.

    Raises:
        UnreachableError: there is no store, or it cannot be read.
    """
    folder = settings.path.resolve()
    with closing(catalogue.connect(folder, read_only=True)) as db, catalogue.failures(folder, "read"):
        return {name: int(seq) for name, seq in db.execute("SELECT name, seq FROM cursor ORDER BY name")}
