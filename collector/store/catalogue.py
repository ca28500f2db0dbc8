"""The store's SQLite file: log of unsealed rows (`hot`), catalogue of sealed files (`seg`), facts, events, rejects.

Times are int64 milliseconds since the epoch, both bounds of a range inclusive. `seq` numbers rows, facts, events and
rejects in the order of their commits, over all of them together; a shipper's cursor is such a number. A fact whose end
is its start is withdrawn: a shipper that sent it has to know.
"""

from __future__ import annotations

import os
import socket
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa

from collector.errors import ConfigurationError, UnreachableError
from collector.store.engine import EngineError

FORMAT = 2
BUSY_TIMEOUT_MS = 30_000
LOCK_LEASE_MS = 600_000
_LOOK = "SELECT 1 FROM sqlite_master LIMIT 1"

_SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE hot (
  seq_min INTEGER PRIMARY KEY, seq_max INTEGER NOT NULL, measurement TEXT NOT NULL,
  t_min INTEGER NOT NULL, t_max INTEGER NOT NULL, rows INTEGER NOT NULL, distinct_rows INTEGER NOT NULL,
  written_at INTEGER NOT NULL, payload BLOB NOT NULL);
CREATE INDEX hot_by_time ON hot (measurement, t_max, t_min, seq_min, seq_max, rows, distinct_rows, written_at);
CREATE TABLE seg (
  id INTEGER PRIMARY KEY, measurement TEXT NOT NULL, tier TEXT NOT NULL, path TEXT NOT NULL UNIQUE,
  t_min INTEGER NOT NULL, t_max INTEGER NOT NULL, rows INTEGER NOT NULL,
  seq_min INTEGER NOT NULL, seq_max INTEGER NOT NULL, exponents TEXT NOT NULL, source INTEGER,
  state TEXT NOT NULL DEFAULT 'live', deleted_at INTEGER);
CREATE INDEX seg_by_time ON seg (measurement, tier, state, t_min);
CREATE TABLE cursor (name TEXT PRIMARY KEY, seq INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE dirty (
  name TEXT NOT NULL, measurement TEXT NOT NULL, hour INTEGER NOT NULL, seq INTEGER NOT NULL,
  PRIMARY KEY (name, measurement, hour)) WITHOUT ROWID;
CREATE TABLE lock (name TEXT PRIMARY KEY, owner TEXT NOT NULL, pid INTEGER NOT NULL, until INTEGER NOT NULL)
  WITHOUT ROWID;
CREATE TABLE fact (
  id INTEGER PRIMARY KEY, kind TEXT NOT NULL, cluster TEXT NOT NULL, node TEXT NOT NULL, gpu TEXT NOT NULL,
  slice TEXT NOT NULL, object TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL,
  t_from INTEGER NOT NULL, t_to INTEGER, provenance TEXT NOT NULL, seq INTEGER NOT NULL DEFAULT 0);
CREATE UNIQUE INDEX fact_by_subject ON fact (kind, cluster, node, gpu, slice, object, name, t_from);
CREATE INDEX fact_open ON fact (name, t_to);
CREATE TABLE event (
  time INTEGER NOT NULL, kind TEXT NOT NULL, cluster TEXT NOT NULL, node TEXT NOT NULL, gpu TEXT NOT NULL,
  slice TEXT NOT NULL, object TEXT NOT NULL, code TEXT NOT NULL, message TEXT NOT NULL, severity TEXT NOT NULL,
  seq INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (time, kind, cluster, node, gpu, slice, object, code, message)) WITHOUT ROWID;
CREATE TABLE reject (
  time INTEGER NOT NULL, kind TEXT NOT NULL, cluster TEXT NOT NULL, node TEXT NOT NULL, gpu TEXT NOT NULL,
  slice TEXT NOT NULL, object TEXT NOT NULL, field TEXT NOT NULL, reason TEXT NOT NULL, count INTEGER NOT NULL,
  seq INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (time, kind, cluster, node, gpu, slice, object, field, reason)) WITHOUT ROWID;
CREATE INDEX fact_by_seq ON fact (seq);
CREATE INDEX event_by_seq ON event (seq);
CREATE INDEX reject_by_seq ON reject (seq);
"""

# What turns a catalogue of one format into the next: index 0 makes format 2 of format 1.
_UPGRADES = (
    """
CREATE TABLE dirty (
  name TEXT NOT NULL, measurement TEXT NOT NULL, hour INTEGER NOT NULL, seq INTEGER NOT NULL,
  PRIMARY KEY (name, measurement, hour)) WITHOUT ROWID;
ALTER TABLE fact ADD COLUMN seq INTEGER NOT NULL DEFAULT 0;
ALTER TABLE event ADD COLUMN seq INTEGER NOT NULL DEFAULT 0;
ALTER TABLE reject ADD COLUMN seq INTEGER NOT NULL DEFAULT 0;
UPDATE fact SET seq = (SELECT value FROM meta WHERE name = 'next_seq');
UPDATE event SET seq = (SELECT value FROM meta WHERE name = 'next_seq');
UPDATE reject SET seq = (SELECT value FROM meta WHERE name = 'next_seq');
UPDATE meta SET value = value + 1 WHERE name = 'next_seq';
CREATE INDEX fact_by_seq ON fact (seq);
CREATE INDEX event_by_seq ON event (seq);
CREATE INDEX reject_by_seq ON reject (seq);
""",
)

# WAL keeps its index in memory shared by the processes of one host: on these it corrupts or blocks.
_NETWORK_FILE_SYSTEMS = frozenset({
    "nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "afs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs",
    "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.s3fs", "fuse.rclone",
})  # fmt: skip


def file_system(folder: Path, mounts: str) -> str:
    """Return the type of the file system that holds `folder`, by a table in the form of /proc/mounts ('' unknown)."""
    best, kind = "", ""
    for line in mounts.splitlines():
        parts = line.split()
        if len(parts) < 3:
            continue
        point = parts[1].replace("\\040", " ")
        if folder.is_relative_to(point) and len(point) >= len(best):
            best, kind = point, parts[2]
    return kind


def refuse_network_file_system(folder: Path, mounts_file: Path = Path("/proc/mounts")) -> None:
    """Check that the store's folder is on a disk of this host.

    Raises:
        ConfigurationError: it is on a network file system.
    """
    if not mounts_file.exists():
        return
    kind = file_system(folder.resolve(), mounts_file.read_text(encoding="utf-8", errors="replace"))
    if kind in _NETWORK_FILE_SYSTEMS:
        raise ConfigurationError(
            f"the embedded store needs a local disk, but {folder} is on {kind}; set store.path to a local folder"
        )


def restoring(place: Path) -> Path:
    """Return where a restore lays a copy ready before it takes its place."""
    return place.with_name(f".{place.name}.restoring")


def connect(folder: Path, *, read_only: bool = False, synchronous: str = "NORMAL") -> sqlite3.Connection:
    """Open (or, unless `read_only`, create) the catalogue in `folder`.

    Raises:
        ConfigurationError: network file system, a newer format, or a restore was broken off where nothing is.
        UnreachableError: there is no store to read, or it cannot be opened.
    """
    file = folder / "store.db"
    if not file.exists() and (restoring(folder) / "store.db").exists():
        raise ConfigurationError(
            f"a restore of the store in {folder} was broken off; run `trimtab restore` again, or remove "
            f"{restoring(folder)} to begin a new store"
        )
    if read_only and not file.exists():
        raise UnreachableError(
            f"expected a store in {folder}, found none; run `trimtab collect` or `trimtab import` first, "
            "or set store.path"
        )
    refuse_network_file_system(folder)
    try:
        if not read_only:
            (folder / "sealed").mkdir(parents=True, exist_ok=True)
        db = _open_reader(file) if read_only else _open(file, "mode=rwc")
        if not read_only:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute(f"PRAGMA synchronous={synchronous}")
            create(db)
        found = int(db.execute("PRAGMA user_version").fetchone()[0])
    except (OSError, sqlite3.Error) as error:
        raise UnreachableError(
            f"cannot open the store in {folder}: {error}; check the folder and its rights"
        ) from error
    if found > FORMAT:
        db.close()
        raise ConfigurationError(
            f"the store in {folder} has format {found}, this version reads up to {FORMAT}; update Trimtab"
        )
    return db


def _open(file: Path, how: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{file.resolve().as_uri()}?{how}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=BUSY_TIMEOUT_MS / 1000,
    )


def _open_reader(file: Path) -> sqlite3.Connection:
    """Open the catalogue for who may read it and nothing else.

    SQLite coordinates readers and writers by files beside the database. Where no writer has left them, and this user
    may not make them, nobody writes: the file is read as it stands. What a writer that was killed has left half done
    is taken back first, which only who may write can do.
    """
    db = _open(file, "mode=ro")
    try:
        db.execute(_LOOK).fetchone()
    except sqlite3.OperationalError as error:
        db.close()
        if error.sqlite_errorname == "SQLITE_READONLY_ROLLBACK":
            with closing(_open(file, "mode=rw")) as writer:
                writer.execute(_LOOK).fetchone()
            return _open(file, "mode=ro")
        beside = file.with_name(f"{file.name}-wal")
        if beside.exists() or error.sqlite_errorname not in {"SQLITE_READONLY_DIRECTORY", "SQLITE_CANTOPEN"}:
            raise
        db = _open(file, "mode=ro&immutable=1")
    return db


def identity(folder: Path) -> tuple[int, int] | None:
    """Return device and inode of the catalogue's file; None where there is none."""
    try:
        found = (folder / "store.db").stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


@contextmanager
def failures(folder: Path, action: str) -> Iterator[None]:
    """Say errors of the store's files in one line.

    Raises:
        UnreachableError: SQLite, DuckDB, Arrow or the file system could not do `action`.
    """
    try:
        yield
    except sqlite3.Error as error:
        raise UnreachableError(
            f"cannot {action} {folder / 'store.db'}: {_first_line(error)}; check its disk, "
            "or restore it from a backup, or set store.path to another folder"
        ) from error
    except (EngineError, pa.ArrowException, OSError) as error:
        raise UnreachableError(
            f"cannot {action} the files of the store in {folder}: {_first_line(error)}; check its disk, "
            "or restore them from a backup, or set store.path to another folder"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def create(db: sqlite3.Connection) -> None:
    """Lay out an empty catalogue, or bring an older format up to this one."""
    with transaction(db):
        found = int(db.execute("PRAGMA user_version").fetchone()[0])
        if found >= FORMAT:
            return
        for script in _UPGRADES[found - 1 :] if found else (_SCHEMA,):
            for statement in script.split(";"):
                db.execute(statement)
        if found == 0:
            db.execute("INSERT INTO meta VALUES ('next_seq', 1)")
        db.execute(f"PRAGMA user_version={FORMAT}")


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Hold the write lock for the block; commit at its end, roll back where it or the commit raises."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # SQLite itself rolls back after some errors, such as a full disk
            db.execute("ROLLBACK")
        raise


@contextmanager
def snapshot(db: sqlite3.Connection) -> Iterator[None]:
    """See one state of the store for the block; keep it short, since an open snapshot stops WAL checkpoints."""
    db.execute("BEGIN")
    try:
        yield
    finally:
        if db.in_transaction:
            db.execute("COMMIT")


def take_seq(db: sqlite3.Connection, count: int) -> int:
    """Reserve `count` row numbers inside a transaction; return the first."""
    (after,) = db.execute(
        "UPDATE meta SET value = value + ? WHERE name = 'next_seq' RETURNING value", (count,)
    ).fetchone()
    return int(after) - count


def slowest_cursor(db: sqlite3.Connection) -> int | None:
    """Return the row number up to which every shipper is done; None where nobody ships."""
    (seq,) = db.execute("SELECT min(seq) FROM cursor").fetchone()
    return None if seq is None else int(seq)


def floors(db: sqlite3.Connection, measurement: str) -> dict[str, int]:
    """Return tier -> instant (ms) before which retention has dropped its rows; tiers never dropped are left out."""
    prefix = f"floor/{measurement}/"
    rows = db.execute("SELECT name, value FROM meta WHERE name >= ? AND name < ?", (prefix, prefix + "~"))
    return {name.removeprefix(prefix): int(value) for name, value in rows}


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def take_lock(db: sqlite3.Connection, name: str, now_ms: int) -> str | None:
    """Take the lock row `name`; return the owner's token, or None where a live process holds it."""
    owner = f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:8]}"
    with transaction(db):
        held = db.execute("SELECT pid, until FROM lock WHERE name = ?", (name,)).fetchone()
        if held is not None and held[1] > now_ms and _alive(int(held[0])):
            return None
        db.execute("REPLACE INTO lock VALUES (?, ?, ?, ?)", (name, owner, os.getpid(), now_ms + LOCK_LEASE_MS))
    return owner


def require_lock(db: sqlite3.Connection, name: str, owner: str) -> None:
    """Check that `owner` still holds the lock row.

    Raises:
        UnreachableError: its lease ran out and another process took it.
    """
    if db.execute("SELECT 1 FROM lock WHERE name = ? AND owner = ?", (name, owner)).fetchone() is None:
        raise UnreachableError(f"the lock {name!r} of the store was lost to another process; the work is done again")


def drop_lock(db: sqlite3.Connection, name: str, owner: str) -> None:
    """Give the lock row back."""
    db.execute("DELETE FROM lock WHERE name = ? AND owner = ?", (name, owner))
