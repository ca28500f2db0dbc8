"""What a store holds, told from its catalogue alone: no row is read."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from collector.clock import from_ms
from collector.schema import MEASUREMENTS
from collector.settings import StoreSettings
from collector.store import catalogue


@dataclass(frozen=True, slots=True)
class Holding:
    """Rows of one measurement in one tier (`raw`, or a coarser one).

    rows: sealed and unsealed; a row that was sent twice counts twice until it is sealed or merged.
    unsealed: those of `rows` that are still in the log.
    """

    measurement: str
    tier: str
    rows: int
    unsealed: int
    files: int
    oldest: datetime
    newest: datetime


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """Rows by measurement and tier, facts, events, rejects, bytes on disk (log and files), and shippers.

    unshipped: shipper -> how many rows, facts, events and rejects it has still to send, at most.
    lost_rows: rows that had to go, for want of disk, before they were shipped.
    """

    holdings: tuple[Holding, ...]
    facts: int
    events: int
    rejects: int
    disk_bytes: int
    unshipped: Mapping[str, int]
    lost_rows: int


def describe_store(settings: StoreSettings) -> StoreInfo:
    """Describe the store in `settings.path`.

    Raises:
        UnreachableError: there is no store, or it cannot be read.
    """
    folder = settings.path.resolve()
    with (
        closing(catalogue.connect(folder, read_only=True)) as db,
        catalogue.failures(folder, "read"),
        catalogue.snapshot(db),
    ):
        found = db.execute(
            "SELECT measurement, tier, sum(rows), sum(unsealed), sum(file), min(t_min), max(t_max) FROM ("
            " SELECT measurement, tier, rows, 0 AS unsealed, 1 AS file, t_min, t_max FROM seg WHERE state = 'live'"
            " UNION ALL SELECT measurement, 'raw', rows, rows, 0, t_min, t_max FROM hot"
            ") GROUP BY measurement, tier"
        ).fetchall()
        counts = [
            int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])  # noqa: S608 - our own tables
            for table in ("fact WHERE t_to IS NULL OR t_to > t_from", "event", "reject")
        ]
        meta = dict(db.execute("SELECT name, value FROM meta WHERE name IN ('next_seq', 'lost_rows')"))
        unshipped = {name: int(meta["next_seq"]) - 1 - int(seq) for name, seq in db.execute("SELECT * FROM cursor")}
    holdings = [
        Holding(name, tier, int(rows), int(unsealed), int(files), from_ms(first), from_ms(last))
        for name, tier, rows, unsealed, files, first, last in found
    ]
    order = list(MEASUREMENTS)
    holdings.sort(key=lambda holding: (order.index(holding.measurement), holding.tier != "raw", holding.tier))
    size = _bytes(folder)
    return StoreInfo(tuple(holdings), counts[0], counts[1], counts[2], size, unshipped, int(meta.get("lost_rows", 0)))


def store_size(settings: StoreSettings) -> tuple[int, int]:
    """Return the bytes that a store takes on disk, and how many rows had to go before they were shipped.

    Raises:
        UnreachableError: there is no store, or it cannot be read.
    """
    folder = settings.path.resolve()
    with closing(catalogue.connect(folder, read_only=True)) as db, catalogue.failures(folder, "read"):
        lost = db.execute("SELECT value FROM meta WHERE name = 'lost_rows'").fetchone()
    return _bytes(folder), int(lost[0]) if lost else 0


def _bytes(folder: Path) -> int:
    """Return the size of all files under a folder; one that goes meanwhile counts as none."""
    sizes: dict[tuple[int, int], int] = {}  # one file may have two names
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            found = path.stat()
            if stat.S_ISREG(found.st_mode):
                sizes[found.st_dev, found.st_ino] = found.st_size
    return sum(sizes.values())
