"""The embedded store: SQLite as log and catalogue, sealed Parquet, DuckDB to read."""

from __future__ import annotations

import atexit
import logging
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from collector.batch import Batch
from collector.clock import Clock, SystemClock, from_ms, to_ms
from collector.errors import ConfigurationError, TrimtabError, UnreachableError
from collector.protocols import Where
from collector.schema import MEASUREMENTS, Measurement
from collector.settings import StoreSettings
from collector.store import catalogue, dropping, sealing, spans
from collector.store.engine import Engine, EngineError
from collector.store.hot import Arrival, Arrivals, Blob, DecodedCache, decode, encode, gather, measurement_of
from collector.store.outbox import mark_dirty
from collector.store.reading import RowReader
from collector.store.request import Pieces, Request, make_request
from collector.store.segments import read_segments
from collector.store.workshop import Workshop
from collector.window import Window

if TYPE_CHECKING:
    import pandas as pd

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 15.0
_ATTEMPTS = 3  # a file can go between the snapshot and the scan only if a reader sleeps for the whole grace


@dataclass(frozen=True, slots=True)
class _Snapshot:
    blobs: list[Blob]
    tables: list[pa.Table]
    pieces: Pieces


class EmbeddedStore(RowReader):
    """The store of one host. One process writes by design; others may append, and any number may read.

    Args:
        settings: table `[store]`.
        clock: real time, for the age of unsealed rows and the grace before a file goes; virtual only in tests.
        read_only: open what is there, for reading.

    Raises:
        ConfigurationError: the folder is on a network file system, or was written by a newer version.
        UnreachableError: there is nothing to read, or the folder cannot be written.
    """

    def __init__(self, settings: StoreSettings, *, clock: Clock | None = None, read_only: bool = False) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._read_only = read_only
        self._folder = settings.path.resolve()
        self._writer = None if read_only else self._connect()
        self._reader = self._connect()
        self._opened = catalogue.identity(self._folder)
        self._facts = None if self._writer is None else spans.FactWriter(self._writer)
        self._workshop = None if read_only else Workshop(self._folder, settings, self._clock)
        self._write_lock = threading.Lock()
        self._read_lock = threading.Lock()
        self._arrivals = Arrivals()
        self._cache = DecodedCache()
        self._is_read = False  # rows are kept decoded only for somebody who reads here: a collector does not
        self._engine = Engine()
        self._unsealed: dict[str, tuple[int, int]] = {}  # rows and blobs since the thread was last woken
        self._wake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        if self._workshop is not None:
            with catalogue.failures(self._folder, "open"):
                self._workshop.remove_strays()

    def _connect(self) -> sqlite3.Connection:
        return catalogue.connect(self._folder, read_only=self._read_only, synchronous=self._settings.synchronous)

    def write(self, batch: Batch) -> None:
        """Keep a batch, all or nothing, before returning.

        Raises:
            ConfigurationError: simulated rows in a store of real ones or the reverse, or the store is read only.
            InputRejectedError: rows of a time before 2000 or after 2099.
            KeyError: unknown measurement.
            UnreachableError: the disk is full, or the store was removed or replaced; nothing of the batch is kept.
            ValueError: rows that the schema does not allow.
        """
        if self._writer is None or self._facts is None:
            raise _opened_for_reading(self._folder)
        tables = {name: self._arrivals.describe(name, table) for name, table in batch.rows.items() if table.num_rows}
        encoded = {name: encode(one.table) for name, one in tables.items()}
        clusters = {cluster for one in tables.values() for cluster in one.clusters}
        now = to_ms(self._clock.now())
        starts: dict[str, int] = {}
        with self._write_lock:
            self._require_same_file()
            with catalogue.failures(self._folder, "write to"), catalogue.transaction(self._writer):
                spans.check_simulated(self._writer, clusters, batch.facts)
                for name, one in tables.items():
                    rows = one.table.num_rows
                    starts[name] = first = catalogue.take_seq(self._writer, rows)
                    self._writer.execute(
                        "INSERT INTO hot VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                        (first, first + rows - 1, name, one.t_min, one.t_max, rows, one.distinct, now, encoded[name]),
                    )
                    mark_dirty(self._writer, name, one.table, first + rows - 1)
                self._facts.apply(batch.facts)
                spans.write_events(self._writer, batch.events)
                spans.write_rejects(self._writer, batch.rejects)
            self._count_unsealed(tables)
        if self._is_read:
            with self._read_lock:
                for name, first in starts.items():
                    self._cache.put(first, tables[name].table)

    def _require_same_file(self) -> None:
        # An unlinked file still takes writes, and nobody would ever read them.
        found = catalogue.identity(self._folder)
        if found != self._opened:
            raise UnreachableError(
                f"expected {self._folder / 'store.db'} as it was opened, "
                f"{'found it removed' if found is None else 'got another file in its place'}; "
                "put it back, or start again to write to a new one"
            )

    def _count_unsealed(self, tables: Mapping[str, Arrival]) -> None:
        for name, one in tables.items():
            rows, blobs = self._unsealed.get(name, (0, 0))
            self._unsealed[name] = (rows + one.table.num_rows, blobs + 1)
            if self._unsealed[name][0] >= self._settings.seal_rows or self._unsealed[name][1] >= sealing.SEAL_BLOBS:
                self._unsealed[name] = (0, 0)
                self._wake.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._maintain, name="store-maintenance", daemon=True)
            self._thread.start()
            # A process that ends without closing must not end inside the thread's native code.
            atexit.register(self.close)

    def _maintain(self) -> None:
        # The age of unsealed rows is judged by the clock; this only says how often it is looked at.
        while True:
            self._wake.wait(_LOOK_SECONDS)
            self._wake.clear()
            if self._stopping:
                return
            try:
                self.maintain()
            except (sqlite3.Error, EngineError, pa.ArrowException, OSError, TrimtabError) as error:
                _log.error("sealing the store in %s failed and is tried again: %s", self._folder, error)

    def delete(self, measurement: str, window: Window, where: Where | None = None) -> int:
        """Delete rows; return how many went. Of tiers whose raw rows are gone, the steps that start in `window` go.

        Raises:
            KeyError: unknown measurement or tag.
            UnreachableError: another process has the store's maintenance for too long.
        """
        request = make_request(measurement, window, fields=(), where=where, by=None, every=None, aggregate="mean")
        with catalogue.failures(self._folder, "delete from"):
            shop = self._open_workshop()
            with shop.insisting() as owner:
                return dropping.delete_rows(shop, request.spec, window, request.where, owner)

    def retain(self, now: datetime) -> int:
        """Drop what is older than the settings keep, or too much for the disk, by whole files; return how many rows."""
        with catalogue.failures(self._folder, "drop old rows of"):
            shop = self._open_workshop()
            with shop.insisting() as owner:
                dropped = dropping.drop_old_rows(shop, now, owner)
                dropping.drop_old_texts(shop, now)
                dropping.keep_within_limit(shop)
                shop.purge()
            return dropped

    def seal(self) -> None:
        """Seal all rows now; otherwise a thread does it when they are many or old enough."""
        with catalogue.failures(self._folder, "seal"):
            shop = self._open_workshop()
            with shop.insisting() as owner:
                for spec in MEASUREMENTS.values():
                    sealing.seal(shop, spec, owner)

    def merge(self) -> None:
        """Merge the sealed files of each day into one a tier now; otherwise a thread does it as they grow."""
        with catalogue.failures(self._folder, "merge"):
            shop = self._open_workshop()
            with shop.insisting() as owner:
                for spec in MEASUREMENTS.values():
                    sealing.merge(shop, spec, owner)

    def compact(self) -> None:
        """Seal and merge all rows, remove files after their grace, give the catalogue's free room back to the disk."""
        self.seal()
        self.merge()
        with catalogue.failures(self._folder, "compact"):
            shop = self._open_workshop()
            with shop.insisting():
                shop.purge()
                shop.db.execute("VACUUM")
                shop.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def maintain(self) -> None:
        """Do now what the thread does from time to time: seal and merge what is due, remove files after their grace.

        Nothing where another process is at it.
        """
        with catalogue.failures(self._folder, "maintain"):
            shop = self._open_workshop()
            with shop.holding() as owner:
                if owner is not None:
                    sealing.seal_and_merge_due(shop, owner)
                    dropping.keep_within_limit(shop)
                    shop.purge()

    def _open_workshop(self) -> Workshop:
        if self._workshop is None:
            raise _opened_for_reading(self._folder)
        self._require_same_file()
        return self._workshop

    def facts(self, window: Window | None = None, *, names: Sequence[str] | None = None) -> pd.DataFrame:
        """Return facts valid at some time in `window`; see `Store.facts`."""
        with self._reading():
            return spans.read_facts(self._reader, window, names)

    def events(self, window: Window) -> pd.DataFrame:
        """Return events in `window`; see `Store.events`."""
        with self._reading():
            return spans.read_events(self._reader, window)

    def rejects(self, window: Window) -> pd.DataFrame:
        """Return rejects in `window`; see `Store.rejects`."""
        with self._reading():
            return spans.read_rejects(self._reader, window)

    def span(self, measurement: str) -> Window | None:
        """Return [oldest row, newest row + 1 ms), or None when there is no row."""
        name = measurement_of(measurement).name
        with self._reading():
            first, last = self._reader.execute(
                "WITH live AS (SELECT * FROM seg WHERE measurement = ?1 AND state = 'live')"
                " SELECT min(t_min), max(t_max) FROM (SELECT t_min, t_max FROM hot WHERE measurement = ?1"
                # A tier is made of raw rows and starts at a step before them: it counts once they are gone.
                " UNION ALL SELECT t_min, t_max FROM live"
                " WHERE tier = 'raw' OR source IS NULL OR source NOT IN (SELECT id FROM live))",
                (name,),
            ).fetchone()
        return None if first is None else Window(from_ms(first), from_ms(last + 1))

    def written_until(self) -> datetime | None:
        """Return the time of the newest row; None without one."""
        spans = [self.span(name) for name in MEASUREMENTS]
        return max((from_ms(to_ms(span.end) - 1) for span in spans if span is not None), default=None)

    def answer(self, request: Request) -> pd.DataFrame:
        """Return the frame that a request asks for.

        Raises:
            UnreachableError: a sealed file cannot be read.
        """
        for _ in range(_ATTEMPTS):
            snapshot = self._snapshot(request.spec, request.start, request.end)
            hot = gather(request.spec, request.fields, snapshot.tables, [b.seq_min for b in snapshot.blobs])
            try:
                return self.run(self._engine, request, snapshot.pieces, hot)
            except (EngineError, pa.ArrowException, OSError) as error:
                failure: Exception = error
        files = [segment.path for segment in snapshot.pieces.segments]
        raise UnreachableError(
            f"cannot read the sealed file {next(filter(_damaged, files), self._folder)}: "
            f"{str(failure).splitlines()[0]!r}; restore it from a backup, or set store.path to another folder"
        ) from failure

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with catalogue.failures(self._folder, "read"), self._read_lock:
            yield

    def _snapshot(self, spec: Measurement, start: int, end: int) -> _Snapshot:
        with self._reading(), catalogue.snapshot(self._reader):
            blobs = [
                Blob(*row)
                for row in self._reader.execute(
                    "SELECT seq_min, seq_max, t_min, t_max, rows, distinct_rows FROM hot"
                    " WHERE measurement = ? AND t_max >= ? AND t_min < ? ORDER BY seq_min",
                    (spec.name, start, end),
                )
            ]
            tables = [self._decoded(blob.seq_min) for blob in blobs]
            segments = read_segments(self._reader, self._folder, spec.name, start, end)
            floors = catalogue.floors(self._reader, spec.name)
        return _Snapshot(blobs, tables, Pieces(segments, [r for b in blobs for r in b.ranges], floors))

    def _decoded(self, seq: int) -> pa.Table:
        self._is_read = True
        table = self._cache.get(seq)
        if table is None:
            (payload,) = self._reader.execute("SELECT payload FROM hot WHERE seq_min = ?", (seq,)).fetchone()
            table = decode(payload)
            self._cache.put(seq, table)
        return table

    def close(self) -> None:
        """Release files and threads; nothing that was written is lost."""
        atexit.unregister(self.close)
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        if self._workshop is not None:
            self._workshop.close()
        self._engine.close()
        with self._read_lock:
            self._reader.close()
        if self._writer is not None:
            with self._write_lock:
                self._writer.close()


def _damaged(file: Path) -> bool:
    import pyarrow.parquet as pq  # noqa: PLC0415  who only writes rows does without it

    try:
        pq.read_table(file)
    except (pa.ArrowException, OSError):
        return True
    return False


def _opened_for_reading(folder: Path) -> ConfigurationError:
    return ConfigurationError(f"the store in {folder} was opened for reading; open it without read_only to change it")
