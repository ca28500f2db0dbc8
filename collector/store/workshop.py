"""Where sealed files are made and swapped: one process at a time, under the lock row `maintenance`.

Files are written first, then one transaction swaps them for what they replace; replaced files go after a grace, so that
a reader which has just looked them up still finds them.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from collector.clock import Clock, from_ms, to_ms
from collector.columns import number_column, numbers_of
from collector.errors import UnreachableError
from collector.schema import Measurement
from collector.settings import StoreSettings
from collector.store import catalogue, query
from collector.store.engine import Engine
from collector.store.request import HOUR, MINUTE, RAW, STEP_MS, Segment
from collector.store.sealed import link_or_copy, write_sealed
from collector.store.segments import read_segments

GRACE_MS = 600_000
_LOCK_PATIENCE_SECONDS = 30.0
_LOCK = "maintenance"


@dataclass(frozen=True, slots=True)
class _File:
    tier: str
    path: Path
    rows: int
    exponents: dict[str, int | None]
    bounds: tuple[int, int]


@dataclass(slots=True)
class FileGroup:
    """Files of the same rows: raw first, then its tiers; `seqs` are the least and greatest number of its rows."""

    measurement: str
    seqs: tuple[int, int]
    files: list[_File] = field(default_factory=list)


class Workshop:
    """A connection, an engine and the lock of one store folder."""

    def __init__(self, folder: Path, settings: StoreSettings, clock: Clock) -> None:
        self.folder = folder
        self.settings = settings
        self.db = catalogue.connect(folder, synchronous=settings.synchronous)
        self.engine = Engine()
        self._clock = clock
        self._mutex = threading.RLock()

    def close(self) -> None:
        """Release the connection, after what is under way."""
        with self._mutex:
            self.engine.close()
            self.db.close()

    def now(self) -> int:
        """Return the clock's milliseconds."""
        return to_ms(self._clock.now())

    @contextmanager
    def holding(self, patience_seconds: float = 0.0) -> Iterator[str | None]:
        """Hold the lock row; yields its token, or None where another process holds it longer than `patience`."""
        with self._mutex:
            give_up = time.monotonic() + patience_seconds
            owner = catalogue.take_lock(self.db, _LOCK, self.now())
            while owner is None and time.monotonic() < give_up:
                time.sleep(0.05)
                owner = catalogue.take_lock(self.db, _LOCK, self.now())
            try:
                yield owner
            finally:
                if owner is not None:
                    catalogue.drop_lock(self.db, _LOCK, owner)

    @contextmanager
    def insisting(self) -> Iterator[str]:
        """Hold the lock row.

        Raises:
            UnreachableError: another process holds it for half a minute.
        """
        with self.holding(_LOCK_PATIENCE_SECONDS) as owner:
            if owner is None:
                raise UnreachableError(
                    f"the store in {self.folder} is being maintained by another process; try again in a minute"
                )
            yield owner

    def segments(self, spec: Measurement, start: int | None = None, end: int | None = None) -> list[Segment]:
        """Return live sealed files; see `read_segments`."""
        return read_segments(self.db, self.folder, spec.name, start, end)

    # Making files --------------------------------------------------------------------------------------------------

    def write(self, spec: Measurement, table: pa.Table) -> FileGroup:
        """Write sorted raw rows of one day and the tiers made of them."""
        group = FileGroup(spec.name, _bounds(table, "seq"))
        raw = self.add_file(group, spec, RAW, table)
        fields = [n for n in spec.field_names if table.column(n).null_count < table.num_rows]
        times = numbers_of(table.column("t"))
        steps = times // STEP_MS[MINUTE]
        lone = bool((steps[1:] != steps[:-1]).all())  # the usual cycle is a minute: there is nothing to aggregate then
        if lone and (steps * STEP_MS[MINUTE] == times).all():
            self._add_link(group, spec, MINUTE, raw)
            finer = table
        else:
            if lone:
                finer = table.drop_columns(["seq"]).set_column(0, "t", number_column(steps * STEP_MS[MINUTE]))
            else:
                finer = self._downsampled(spec, fields, table, MINUTE, of_partials=False)
            self.add_file(group, spec, MINUTE, finer)
        self.add_file(group, spec, HOUR, self._downsampled(spec, fields, finer, HOUR, of_partials=not lone))
        return group

    def _downsampled(
        self, spec: Measurement, fields: Sequence[str], rows: pa.Table, tier: str, *, of_partials: bool
    ) -> pa.Table:
        statement = query.downsample(spec, fields, STEP_MS[tier], of_partials=of_partials)
        return self.engine.run(statement, hot=rows).rename_columns({"bucket": "t"})

    def _new_path(self, spec: Measurement, tier: str, first_ms: int) -> Path:
        day = from_ms(first_ms).strftime("%Y%m%d")
        return self.folder / "sealed" / f"{spec.name}-{tier}-{day}-{uuid.uuid4().hex[:12]}.parquet"

    def add_file(self, group: FileGroup, spec: Measurement, tier: str, table: pa.Table) -> _File:
        """Write one file of a group."""
        path = self._new_path(spec, tier, int(table.column("t")[0].as_py()))
        exponents = write_sealed(path, table, spec.tags)
        group.files.append(_File(tier, path, table.num_rows, exponents, _bounds(table, "t")))
        return group.files[-1]

    def _add_link(self, group: FileGroup, spec: Measurement, tier: str, of: _File) -> None:
        """Give a file a second name in another tier: it outlives the first, and takes no room beside it."""
        path = self._new_path(spec, tier, of.bounds[0])
        link_or_copy(of.path, path)
        group.files.append(replace(of, tier=tier, path=path))

    # Swapping them in ----------------------------------------------------------------------------------------------

    def swap(
        self,
        written: Sequence[FileGroup],
        owner: str,
        *,
        sealed: Sequence[int] = (),
        replaced: Sequence[int] = (),
    ) -> None:
        """In one transaction: new files in, hot rows and replaced files out. Where it fails the new files go."""
        try:
            with catalogue.transaction(self.db):
                catalogue.require_lock(self.db, _LOCK, owner)
                for group in written:
                    _insert(self.db, group)
                self.db.executemany("DELETE FROM hot WHERE seq_min = ?", [(seq,) for seq in sealed])
                self.mark_deleted(replaced)
        except BaseException:
            for group in written:
                for file in group.files:
                    file.path.unlink(missing_ok=True)
            raise

    def mark_deleted(self, ids: Sequence[int]) -> None:
        """Inside a transaction: take files out; they go after their grace."""
        now = self.now()
        self.db.executemany(
            "UPDATE seg SET state = 'deleted', deleted_at = ? WHERE id = ?", [(now, seg_id) for seg_id in ids]
        )

    def purge(self) -> None:
        """Remove files whose grace is over."""
        gone = self.db.execute(
            "SELECT id, path FROM seg WHERE state = 'deleted' AND deleted_at <= ?", (self.now() - GRACE_MS,)
        ).fetchall()
        for seg_id, path in gone:
            (self.folder / path).unlink(missing_ok=True)
            self.db.execute("DELETE FROM seg WHERE id = ?", (seg_id,))

    def remove_strays(self) -> None:
        """Remove files that a crash left behind: written, but in no catalogue row."""
        with self.holding() as owner:
            if owner is not None:
                known = {row[0] for row in self.db.execute("SELECT path FROM seg")}
                for file in (self.folder / "sealed").iterdir():
                    if f"sealed/{file.name}" not in known:
                        file.unlink()


def _insert(db: sqlite3.Connection, group: FileGroup) -> None:
    source: int | None = None
    last = group.files[0].bounds[1]
    for file in group.files:
        row = db.execute(
            "INSERT INTO seg (measurement, tier, path, t_min, t_max, rows, seq_min, seq_max, exponents, source)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id",
            (
                group.measurement,
                file.tier,
                f"sealed/{file.path.name}",
                file.bounds[0],
                max(file.bounds[1], last),
                file.rows,
                *group.seqs,
                json.dumps(file.exponents),
                source,
            ),
        ).fetchone()
        source = source or int(row[0])


def with_tiers(raw: Sequence[Segment], segments: Sequence[Segment]) -> list[int]:
    """Return the ids of raw files and of the tiers made of them."""
    ids = {s.id for s in raw}
    return [s.id for s in segments if s.id in ids or s.source in ids]


def _bounds(table: pa.Table, column: str) -> tuple[int, int]:
    values = numbers_of(table.column(column))
    return int(values.min()), int(values.max())
