"""The catalogue's rows of sealed files."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from collector.store.request import Segment


def read_segments(
    db: sqlite3.Connection, folder: Path, measurement: str, start: int | None = None, end: int | None = None
) -> list[Segment]:
    """Return live sealed files of all tiers, oldest first; with bounds, those that may hold rows of [start, end) ms."""
    rows = db.execute(
        "SELECT id, tier, path, t_min, t_max, rows, seq_min, seq_max, exponents, source FROM seg"
        " WHERE measurement = ?1 AND state = 'live' AND (?2 IS NULL OR t_max >= ?2) AND (?3 IS NULL OR t_min < ?3)"
        " ORDER BY t_min, id",
        (measurement, start, end),
    )
    return [
        Segment(
            id=row[0],
            tier=row[1],
            path=folder / row[2],
            t_min=row[3],
            t_max=row[4],
            rows=row[5],
            seq_min=row[6],
            seq_max=row[7],
            exponents=json.loads(row[8]),
            source=row[9],
        )
        for row in rows
    ]
