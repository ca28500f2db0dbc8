"""Aggregates of a window as a coarser tier keeps them, made anew from whatever is left of its rows."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pyarrow as pa

from collector.schema import Measurement
from collector.store import catalogue, query
from collector.store.engine import Engine
from collector.store.hot import decode, gather
from collector.store.request import RAW, STEP_MS, Pieces, Range
from collector.store.segments import read_segments


def ranges(db: sqlite3.Connection, measurement: str, start: int, end: int) -> list[Range]:
    """Return the half-open ranges of unsealed rows that may lie in [start, end) ms; twice where one holds a key twice."""
    return [
        (first, last + 1)
        for first, last, rows, distinct in db.execute(
            "SELECT t_min, t_max, rows, distinct_rows FROM hot WHERE measurement = ? AND t_max >= ? AND t_min < ?",
            (measurement, start, end),
        )
        for _ in range(1 if rows == distinct else 2)
    ]


def clashes(db: sqlite3.Connection, folder: Path, measurement: str, start: int, end: int) -> bool:
    """Whether a key and time may stand twice among the raw rows of [start, end) ms."""
    pieces = Pieces(read_segments(db, folder, measurement, start, end), ranges(db, measurement, start, end), {})
    return any(first < end and last > start for first, last in pieces.clashes)


def read_partials(
    db: sqlite3.Connection, folder: Path, engine: Engine, spec: Measurement, window: Range, tier: str
) -> pa.Table:
    """Return rows of `tier` in [start, end) ms: `t`, tags, and a field's mean, `__min`, `__max`, `__count`.

    Made of raw rows; of the tier's own files and what is not sealed where raw rows are gone. `__min` and `__max` are
    null where they equal the mean, `__count` is null for 0.
    """
    start, end = window
    with catalogue.snapshot(db):
        payloads = db.execute(
            "SELECT seq_min, payload FROM hot WHERE measurement = ? AND t_max >= ? AND t_min < ? ORDER BY seq_min",
            (spec.name, start, end),
        ).fetchall()
        unsealed = ranges(db, spec.name, start, end)
        segments = read_segments(db, folder, spec.name, start, end)
        floor = catalogue.floors(db, spec.name).get(RAW, start)
    hot = gather(spec, spec.field_names, [decode(payload) for _, payload in payloads], [seq for seq, _ in payloads])
    gone = start < floor
    pieces = Pieces([s for s in segments if s.tier == (tier if gone else RAW)], unsealed, {})
    rows = query.merged_rows(
        spec, spec.field_names, pieces.of(RAW), span=(start, end), where={}, clashes=pieces.clashes
    )
    raw = engine.run(query.select_sorted(spec, spec.field_names, rows), hot=hot)
    made = engine.run(query.downsample(spec, spec.field_names, STEP_MS[tier], of_partials=False), hot=raw)
    made = made.rename_columns({"bucket": "t"})
    if not gone:
        return made
    columns = [f"{name}{part}" for name in spec.field_names for part in ("", "__min", "__max", "__count")]
    kept = query.scan(pieces.of(tier), spec, columns, (start, end), {}, with_seq=False)
    of_files = [engine.run(select, hot=gather(spec, spec.field_names, (), ())) for select in kept]
    together = pa.concat_tables([made, *(t.select(made.column_names) for t in of_files)])
    again = query.downsample(spec, spec.field_names, STEP_MS[tier], of_partials=True)
    return engine.run(again, hot=together).rename_columns({"bucket": "t"})
