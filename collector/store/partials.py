"""Aggregates of a window as a coarser tier keeps them, made anew from whatever is left of its rows."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pyarrow as pa

from collector.schema import Measurement
from collector.store import catalogue, query
from collector.store.engine import Engine
from collector.store.hot import decode, gather
from collector.store.request import HOUR, MINUTE, RAW, STEP_MS, Pieces, Range, Segment
from collector.store.segments import read_segments

_Tier = tuple[Measurement, list[str], str, Range]


def ranges(db: sqlite3.Connection, measurement: str, start: int, end: int) -> list[Range]:
    """Return the half-open ranges of unsealed rows near [start, end) ms; twice where one holds a key twice."""
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
    db: sqlite3.Connection, folder: Path, engine: Engine, spec: Measurement, window: Range
) -> dict[str, pa.Table]:
    """Return the rows of each tier in [start, end) ms: `t`, tags, and a field's mean, `__min`, `__max`, `__count`.

    Made of raw rows; of the tiers' own files and what is not sealed where raw rows are gone. `__min` and `__max` are
    null where they equal the mean, `__count` is null for 0. Fields that no row has are left out.

    Args:
        db: the catalogue.
        folder: the store's folder.
        engine: runs the statements.
        spec: which measurement.
        window: whole hours.
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
    tables = [decode(payload) for _, payload in payloads]
    present = {name for table in tables for name in table.column_names}.union(*(s.exponents for s in segments))
    fields = [name for name in spec.field_names if name in present]
    hot = gather(spec, fields, tables, [seq for seq, _ in payloads])
    gone = start < floor
    pieces = Pieces([s for s in segments if s.tier != RAW or not gone], unsealed, {})
    rows = query.merged_rows(spec, fields, pieces.of(RAW), span=window, where={}, clashes=pieces.clashes)
    raw = engine.run(query.select_sorted(spec, fields, rows), hot=hot)
    made: dict[str, pa.Table] = {}
    finer = raw
    for tier in (MINUTE, HOUR):
        statement = query.downsample(spec, fields, STEP_MS[tier], of_partials=tier != MINUTE)
        finer = engine.run(statement, hot=finer).rename_columns({"bucket": "t"})
        made[tier] = _with_files(engine, (spec, fields, tier, window), finer, pieces.of(tier)) if gone else finer
    return made


def _with_files(engine: Engine, request: _Tier, unsealed: pa.Table, segments: list[Segment]) -> pa.Table:
    """Add the rows of a tier's files to those made of what is not sealed."""
    if not segments:
        return unsealed
    spec, fields, tier, window = request
    columns = [f"{name}{part}" for name in fields for part in ("", "__min", "__max", "__count")]
    selects = query.scan(segments, spec, columns, window, {}, with_seq=False)
    # A tier whose every step is one row is those rows as they are, without counts.
    counted = ", ".join(
        f'CASE WHEN "{name}" IS NOT NULL THEN coalesce("{name}__count", 1) END AS "{name}__count"' for name in fields
    )
    wrapped = [f"SELECT * REPLACE ({counted}) FROM ({select})" if fields else select for select in selects]  # noqa: S608
    empty = gather(spec, fields, (), ())
    parts = [unsealed, *(engine.run(select, hot=empty).select(unsealed.column_names) for select in wrapped)]
    statement = query.downsample(spec, fields, STEP_MS[tier], of_partials=True)
    return engine.run(statement, hot=pa.concat_tables(parts)).rename_columns({"bucket": "t"})
