"""What happens to rows after they are written: sealing, tiers, merging, deleting, retention.

Files are written first, then one transaction swaps them for what they replace; replaced files go after a grace. Every
step holds the lock row `maintenance`, so that one process does it at a time while others write and read.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

from collector.clock import Clock, from_ms, to_ms
from collector.errors import UnreachableError
from collector.schema import MEASUREMENTS, Measurement
from collector.settings import StoreSettings
from collector.store import catalogue, query
from collector.store.engine import Engine
from collector.store.hot import Blob, decode, gather
from collector.store.request import HOUR, MINUTE, RAW, STEP_MS, Pieces, Range, Segment
from collector.store.sealed import link_or_copy, write_sealed
from collector.store.segments import read_segments
from collector.window import Window

DAY_MS = 86_400_000
GRACE_MS = 600_000
# One blob a commit: so many make reads slow however few rows they hold.
SEAL_BLOBS = 720
# A day that still grows is merged at so many files; one that is over as soon as it has two.
MERGE_FILES = 12
_SEAL_AT_ONCE_ROWS = 1_000_000
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
class _Written:
    """A group of files of the same rows: raw first, then its tiers."""

    measurement: str
    seqs: tuple[int, int]
    files: list[_File] = field(default_factory=list)


class Maintainer:
    """Seals, merges and drops rows of one store folder over a connection of its own."""

    def __init__(self, folder: Path, settings: StoreSettings, clock: Clock) -> None:
        self._folder = folder
        self._settings = settings
        self._clock = clock
        self._db = catalogue.connect(folder, synchronous=settings.synchronous)
        self._engine = Engine()
        self._mutex = threading.RLock()

    def close(self) -> None:
        """Release the connection, after what is under way."""
        with self._mutex:
            self._engine.close()
            self._db.close()

    @contextmanager
    def _holding(self, patience_seconds: float = 0.0) -> Iterator[str | None]:
        """Hold the lock row; yields its token, or None where another process holds it longer than `patience`."""
        with self._mutex:
            give_up = time.monotonic() + patience_seconds
            owner = catalogue.take_lock(self._db, _LOCK, self._now())
            while owner is None and time.monotonic() < give_up:
                time.sleep(0.05)
                owner = catalogue.take_lock(self._db, _LOCK, self._now())
            try:
                yield owner
            finally:
                if owner is not None:
                    catalogue.drop_lock(self._db, _LOCK, owner)

    @contextmanager
    def _insisting(self) -> Iterator[str]:
        with self._holding(_LOCK_PATIENCE_SECONDS) as owner:
            if owner is None:
                raise UnreachableError(
                    f"the store in {self._folder} is being maintained by another process; try again in a minute"
                )
            yield owner

    def _now(self) -> int:
        return to_ms(self._clock.now())

    def start(self) -> None:
        """Remove files that a crash left behind: written, but in no catalogue row."""
        with self._holding() as owner:
            if owner is not None:
                known = {row[0] for row in self._db.execute("SELECT path FROM seg")}
                for file in (self._folder / "sealed").iterdir():
                    if f"sealed/{file.name}" not in known:
                        file.unlink()

    def work(self) -> None:
        """Seal what is due, merge, and remove files whose grace is over; nothing where another process does it."""
        with self._holding() as owner:
            if owner is None:
                return
            now = self._now()
            oldest_allowed = now - self._settings.seal_seconds * 1000
            due = self._db.execute(
                "SELECT measurement, min(written_at) FROM hot GROUP BY measurement"
                " HAVING sum(rows) >= ? OR count(*) >= ? OR min(written_at) <= ?",
                (self._settings.seal_rows, SEAL_BLOBS, oldest_allowed),
            ).fetchall()
            for measurement, written_at in due:
                self._seal(MEASUREMENTS[measurement], owner)
                by_age = written_at <= oldest_allowed
                self._merge(MEASUREMENTS[measurement], owner, past_files=2 if by_age else MERGE_FILES)
            self._purge(now)

    def seal(self) -> None:
        """Seal all that is unsealed now, whether due or not."""
        with self._insisting() as owner:
            for spec in MEASUREMENTS.values():
                self._seal(spec, owner)

    def merge(self) -> None:
        """Merge the sealed files of each day into one a tier."""
        with self._insisting() as owner:
            for spec in MEASUREMENTS.values():
                self._merge(spec, owner, past_files=2, growing_files=2)

    # Sealing -------------------------------------------------------------------------------------------------------

    def _seal(self, spec: Measurement, owner: str) -> None:
        # Only what is there now: what a writer adds meanwhile would make a chain of tiny files.
        (last,) = self._db.execute("SELECT max(seq_min) FROM hot WHERE measurement = ?", (spec.name,)).fetchone()
        while last is not None:
            blobs, tables = self._oldest_blobs(spec, last)
            if not blobs:
                return
            (sealed_to,) = self._db.execute(
                "SELECT max(t_max) FROM seg WHERE measurement = ? AND tier = ? AND state = 'live'", (spec.name, RAW)
            ).fetchone()
            hot = gather(spec, spec.field_names, tables, [b.seq_min for b in blobs])
            clashes = Pieces((), [r for b in blobs for r in b.ranges], {}).clashes
            written: list[_Written] = []
            for part in _parted(hot, sealed_to):
                written += self._seal_rows(spec, part, clashes)
            self._swap(written, owner, sealed=[b.seq_min for b in blobs])

    def _oldest_blobs(self, spec: Measurement, last: int) -> tuple[list[Blob], list[pa.Table]]:
        blobs: list[Blob] = []
        tables: list[pa.Table] = []
        total = 0
        with catalogue.snapshot(self._db):
            for *described, payload in self._db.execute(
                "SELECT seq_min, seq_max, t_min, t_max, rows, distinct_rows, payload FROM hot"
                " WHERE measurement = ? AND seq_min <= ? ORDER BY seq_min",
                (spec.name, last),
            ):
                blobs.append(Blob(*described))
                tables.append(decode(payload))
                total += blobs[-1].rows
                if total >= _SEAL_AT_ONCE_ROWS:
                    break
        return blobs, tables

    def _seal_rows(self, spec: Measurement, hot: pa.Table, clashes: Sequence[Range]) -> list[_Written]:
        written = []
        # Only days that have rows: one row of long ago must not cost a query for each day since.
        for day in np.unique(hot.column("t").to_numpy() // DAY_MS).tolist():
            span = (day * DAY_MS, (day + 1) * DAY_MS)
            rows = query.merged_rows(spec, spec.field_names, (), span=span, where={}, clashes=clashes)
            table = self._engine.run(query.select_sorted(spec, spec.field_names, rows), hot=hot)
            written.append(self._write(spec, table))
        return written

    def _write(self, spec: Measurement, table: pa.Table) -> _Written:
        """Write sorted raw rows of one day and the tiers made of them."""
        group = _Written(spec.name, _bounds(table, "seq"))
        raw = self._add_file(group, spec, RAW, table)
        fields = [n for n in spec.field_names if table.column(n).null_count < table.num_rows]
        times = table.column("t").to_numpy()
        steps = times // STEP_MS[MINUTE]
        lone = bool((steps[1:] != steps[:-1]).all())  # the usual cycle is a minute: there is nothing to aggregate then
        if lone and (steps * STEP_MS[MINUTE] == times).all():
            self._add_link(group, spec, MINUTE, raw)
            finer = table
        else:
            if lone:
                finer = table.drop_columns(["seq"]).set_column(0, "t", pa.array(steps * STEP_MS[MINUTE]))
            else:
                finer = self._downsampled(spec, fields, table, MINUTE, of_partials=False)
            self._add_file(group, spec, MINUTE, finer)
        self._add_file(group, spec, HOUR, self._downsampled(spec, fields, finer, HOUR, of_partials=not lone))
        return group

    def _downsampled(
        self, spec: Measurement, fields: Sequence[str], rows: pa.Table, tier: str, *, of_partials: bool
    ) -> pa.Table:
        statement = query.downsample(spec, fields, STEP_MS[tier], of_partials=of_partials)
        return self._engine.run(statement, hot=rows).rename_columns({"bucket": "t"})

    def _new_path(self, spec: Measurement, tier: str, first_ms: int) -> Path:
        day = from_ms(first_ms).strftime("%Y%m%d")
        return self._folder / "sealed" / f"{spec.name}-{tier}-{day}-{uuid.uuid4().hex[:12]}.parquet"

    def _add_file(self, group: _Written, spec: Measurement, tier: str, table: pa.Table) -> _File:
        path = self._new_path(spec, tier, int(table.column("t")[0].as_py()))
        exponents = write_sealed(path, table, spec.tags)
        group.files.append(_File(tier, path, table.num_rows, exponents, _bounds(table, "t")))
        return group.files[-1]

    def _add_link(self, group: _Written, spec: Measurement, tier: str, of: _File) -> None:
        """Give a file a second name in another tier: it outlives the first, and takes no room beside it."""
        path = self._new_path(spec, tier, of.bounds[0])
        link_or_copy(of.path, path)
        group.files.append(replace(of, tier=tier, path=path))

    def _swap(
        self,
        written: Sequence[_Written],
        owner: str,
        *,
        sealed: Sequence[int] = (),
        replaced: Sequence[int] = (),
    ) -> None:
        """In one transaction: new files in, hot rows and replaced files out. Where it fails the new files go."""
        try:
            with catalogue.transaction(self._db):
                catalogue.require_lock(self._db, _LOCK, owner)
                for group in written:
                    self._insert(group)
                self._db.executemany("DELETE FROM hot WHERE seq_min = ?", [(seq,) for seq in sealed])
                self._mark_deleted(replaced)
        except BaseException:
            for group in written:
                for file in group.files:
                    file.path.unlink(missing_ok=True)
            raise

    def _insert(self, group: _Written) -> None:
        source: int | None = None
        last = group.files[0].bounds[1]
        for file in group.files:
            row = self._db.execute(
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

    def _mark_deleted(self, ids: Sequence[int]) -> None:
        now = self._now()
        self._db.executemany(
            "UPDATE seg SET state = 'deleted', deleted_at = ? WHERE id = ?", [(now, seg_id) for seg_id in ids]
        )

    def _purge(self, now: int) -> None:
        gone = self._db.execute(
            "SELECT id, path FROM seg WHERE state = 'deleted' AND deleted_at <= ?", (now - GRACE_MS,)
        ).fetchall()
        for seg_id, path in gone:
            (self._folder / path).unlink(missing_ok=True)
            self._db.execute("DELETE FROM seg WHERE id = ?", (seg_id,))

    # Merging -------------------------------------------------------------------------------------------------------

    def _merge(
        self,
        spec: Measurement,
        owner: str,
        *,
        past_files: int,
        growing_files: int = MERGE_FILES,
        days: range | None = None,
    ) -> None:
        limit = catalogue.slowest_cursor(self._db)
        segments = read_segments(self._db, self._folder, spec.name)
        raw = [s for s in segments if s.tier == RAW and (limit is None or s.seq_max <= limit)]
        newest = max((s.t_max for s in raw), default=0) // DAY_MS
        by_day: dict[int, list[Segment]] = defaultdict(list)
        for segment in raw:
            by_day[segment.t_min // DAY_MS].append(segment)
        for day, parts in sorted(by_day.items()):
            enough = len(parts) >= (growing_files if day == newest else past_files)
            if enough and (days is None or day in days):
                table = self._engine.run(self._sorted_rows(spec, parts), hot=gather(spec, spec.field_names, (), ()))
                self._swap([self._write(spec, table)], owner, replaced=_with_tiers(parts, segments))

    def _sorted_rows(self, spec: Measurement, parts: Sequence[Segment]) -> str:
        span = (min(s.t_min for s in parts), max(s.t_max for s in parts) + 1)
        clashes = Pieces(parts, (), {}).clashes
        rows = query.merged_rows(spec, spec.field_names, parts, span=span, where={}, clashes=clashes)
        return query.select_sorted(spec, spec.field_names, rows)

    # Deleting ------------------------------------------------------------------------------------------------------

    def delete(self, spec: Measurement, window: Window, where: Mapping[str, tuple[str, ...]]) -> int:
        """Delete rows of `window` that match `where`, and the tier rows that start in it; return how many raw rows.

        Where raw rows are gone already, the rows of the finest tier that is left are counted.
        """
        with self._insisting() as owner:
            self._seal(spec, owner)
            start, end = to_ms(window.start), to_ms(window.end)
            days = range(start // DAY_MS, (end - 1) // DAY_MS + 1)
            self._merge(spec, owner, past_files=2, growing_files=2, days=days)
            segments = read_segments(self._db, self._folder, spec.name, start, end)
            live_raw = {s.id for s in segments if s.tier == RAW}
            written: list[_Written] = []
            replaced: list[int] = []
            count = 0
            for segment in segments:
                if segment.tier == RAW:
                    kept = self._engine.run(
                        query.select_kept(self._sorted_rows(spec, [segment]), spec, (start, end), where),
                        hot=gather(spec, spec.field_names, (), ()),
                    )
                    if kept.num_rows < segment.rows:
                        count += segment.rows - kept.num_rows
                        replaced += _with_tiers([segment], segments)
                        written += [self._write(spec, kept)] if kept.num_rows else []
                elif segment.source not in live_raw:
                    gone, group = self._delete_from_tier(spec, segment, (start, end), where)
                    if gone:
                        count += gone if segment.tier == MINUTE else 0
                        replaced.append(segment.id)
                        written += group
            self._swap(written, owner, replaced=replaced)
            return count

    def _delete_from_tier(
        self, spec: Measurement, segment: Segment, span: tuple[int, int], where: Mapping[str, tuple[str, ...]]
    ) -> tuple[int, list[_Written]]:
        columns = list(segment.exponents)
        everything = (segment.t_min, segment.t_max + 1)
        (rows,) = query.scan([segment], spec, columns, everything, {}, with_seq=False)
        empty = gather(spec, spec.field_names, (), ())
        kept = self._engine.run(query.select_kept(rows, spec, span, where), hot=empty)
        group = _Written(spec.name, (segment.seq_min, segment.seq_max))
        if kept.num_rows:
            self._add_file(group, spec, segment.tier, kept)
        return segment.rows - kept.num_rows, [group] if kept.num_rows else []

    # Retention -----------------------------------------------------------------------------------------------------

    def retain(self, now: datetime) -> int:
        """Drop files whose rows are all older than their tier's retention, and old facts, events and rejects."""
        keep_days = {
            RAW: self._settings.raw_days,
            MINUTE: self._settings.minute_days,
            HOUR: self._settings.hour_days,
        }
        cutoffs = {tier: to_ms(now) - round(days * DAY_MS) for tier, days in keep_days.items()}
        dropped = 0
        with self._insisting() as owner:
            for spec in MEASUREMENTS.values():
                (oldest,) = self._db.execute(
                    "SELECT min(t_min) FROM hot WHERE measurement = ?", (spec.name,)
                ).fetchone()
                if oldest is not None and oldest < cutoffs[RAW]:
                    self._seal(spec, owner)
                for tier, cutoff in cutoffs.items():
                    dropped += self._drop_older(spec, tier, cutoff)
            with catalogue.transaction(self._db):
                limit = catalogue.slowest_cursor(self._db)
                shipped = 2**62 if limit is None else limit
                self._db.execute(
                    "DELETE FROM fact WHERE (t_to < ? OR t_to = t_from) AND seq <= ?", (cutoffs[HOUR], shipped)
                )
                self._db.execute("DELETE FROM event WHERE time < ? AND seq <= ?", (cutoffs[HOUR], shipped))
                self._db.execute("DELETE FROM reject WHERE time < ? AND seq <= ?", (cutoffs[MINUTE], shipped))
            self._purge(self._now())
        return dropped

    def _drop_older(self, spec: Measurement, tier: str, cutoff: int) -> int:
        with catalogue.transaction(self._db):
            limit = catalogue.slowest_cursor(self._db)
            old = [
                s
                for s in read_segments(self._db, self._folder, spec.name)
                if s.tier == tier and s.t_max < cutoff and (limit is None or s.seq_max <= limit)
            ]
            if old:
                self._mark_deleted([s.id for s in old])
                floor = max(s.t_max for s in old) + 1
                known = catalogue.floors(self._db, spec.name).get(tier, floor)
                self._db.execute("REPLACE INTO meta VALUES (?, ?)", (f"floor/{spec.name}/{tier}", max(floor, known)))
        return sum(s.rows for s in old)


def _parted(rows: pa.Table, sealed_to: int | None) -> list[pa.Table]:
    """Part rows at what is sealed already, so that a few late ones do not make a whole day contested."""
    times = rows.column("t").to_numpy()
    late = times <= (-(2**63) if sealed_to is None else sealed_to)
    if late.all() or not late.any():
        return [rows]
    return [rows.filter(pa.array(late)), rows.filter(pa.array(~late))]


def _with_tiers(raw: Sequence[Segment], segments: Sequence[Segment]) -> list[int]:
    ids = {s.id for s in raw}
    return [s.id for s in segments if s.id in ids or s.source in ids]


def _bounds(table: pa.Table, column: str) -> tuple[int, int]:
    values = table.column(column).to_numpy()
    return int(values.min()), int(values.max())
