"""Is everything that the catalogue promises there, and right? Nothing is changed."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from collector.schema import MEASUREMENTS
from collector.settings import StoreSettings
from collector.store import catalogue
from collector.store.hot import decode
from collector.store.request import RAW, Segment
from collector.store.segments import read_segments


def verify_store(settings: StoreSettings) -> Iterator[str]:
    """Yield what is wrong with the store in `settings.path`, one line each; every file is read whole.

    Checked: SQLite's own structure; that unsealed rows decode; of each sealed file that it is there, that its rows,
    span, numbers and encoding are those of the catalogue, that no key and time stands twice, and that it has its tiers;
    that no shipper is ahead of the last commit.

    Raises:
        UnreachableError: there is no store.
    """
    folder = settings.path.resolve()
    with (
        closing(catalogue.connect(folder, read_only=True)) as db,
        catalogue.failures(folder, "read"),
        catalogue.snapshot(db),
    ):
        for (line,) in db.execute("PRAGMA quick_check").fetchall():
            if line != "ok":
                yield f"{folder / 'store.db'}: {line}; restore it from a backup"
        yield from _hot(db)
        yield from _cursors(db)
        for name in MEASUREMENTS:
            segments = read_segments(db, folder, name)
            sources = {segment.source for segment in segments}
            for segment in segments:
                yield from _file(segment, name)
                if segment.tier == RAW and segment.id not in sources:
                    yield f"{segment.path.name}: no minutes or hours were made of it; run `trimtab store compact`"


def _hot(db: sqlite3.Connection) -> Iterator[str]:
    for seq, measurement, rows, payload in db.execute("SELECT seq_min, measurement, rows, payload FROM hot"):
        try:
            found = decode(payload).num_rows
        except (pa.ArrowException, OSError, ValueError):
            found = 0
        if found != rows:
            yield f"unsealed {measurement} rows from number {seq}: expected {rows}, can read {found}"


def _cursors(db: sqlite3.Connection) -> Iterator[str]:
    (following,) = db.execute("SELECT value FROM meta WHERE name = 'next_seq'").fetchone()
    for name, seq in db.execute("SELECT name, seq FROM cursor WHERE seq >= ?", (following,)):
        yield (
            f"shipper {name}: its cursor {seq} is beyond the last commit {following - 1}, as after restoring an older "
            "backup; run `trimtab store forget` and ship anew"
        )


def _file(segment: Segment, measurement: str) -> Iterator[str]:
    name, advice = segment.path.name, "restore it from a backup"
    if not segment.path.exists():
        yield f"{name}: missing; {advice}"
        return
    try:
        table = pq.ParquetFile(segment.path).read()
        written = json.loads((table.schema.metadata or {}).get(b"trimtab.exponents", b"null"))
    except (pa.ArrowException, OSError, ValueError) as error:
        yield f"{name}: cannot be read ({str(error).splitlines()[0]}); {advice}"
        return
    if table.num_rows != segment.rows:
        yield f"{name}: expected {segment.rows} rows, found {table.num_rows}; {advice}"
        return
    if written != segment.exponents:
        yield f"{name}: its encoding is not the catalogue's; {advice}"
    times = table.column("time").cast(pa.int64())
    span = pc.min_max(times)
    if span["min"].as_py() != segment.t_min or span["max"].as_py() > segment.t_max:
        yield f"{name}: its rows lie outside the span that the catalogue says; {advice}"
    if segment.tier == RAW:
        numbers = pc.min_max(table.column("seq"))
        if (numbers["min"].as_py(), numbers["max"].as_py()) != (segment.seq_min, segment.seq_max):
            yield f"{name}: its row numbers are not the catalogue's; {advice}"
        if _twice(table, measurement):
            yield f"{name}: a key and time stands twice; {advice}"


def _twice(table: pa.Table, measurement: str) -> bool:
    """Return whether neighbours of a file, which is sorted by key and time, are the same."""
    same = np.ones(max(table.num_rows - 1, 0), dtype=bool)
    for column in ("time", *MEASUREMENTS[measurement].key):
        codes = pc.dictionary_encode(table.column(column).combine_chunks())
        values = (codes.combine_chunks() if isinstance(codes, pa.ChunkedArray) else codes).indices.to_numpy()
        same &= values[1:] == values[:-1]
    return bool(same.any())
