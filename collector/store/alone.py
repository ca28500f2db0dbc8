"""A SQLite file that nobody else has open, and files and folders that change places in one step."""

from __future__ import annotations

import ctypes
import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from collector.errors import ConfigurationError

_HERE = -100  # AT_FDCWD of Linux: paths are relative to the working folder
_EXCHANGE = 2  # RENAME_EXCHANGE
_NOT_OFFERED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM)
_WORDS = 4  # of a command line that are told


@contextmanager
def held_alone(file: Path) -> Iterator[None]:
    """Keep everybody else from opening a database for the block; what its log holds is in the file then.

    A process that has it open holds a lock as long as it does, also while it does nothing. What is no database, or is
    damaged, holds up nobody.

    Raises:
        ConfigurationError: another process has it open.
    """
    if not file.is_file():
        yield
        return
    uri = f"{file.resolve().as_uri()}?mode=rw"
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None, timeout=0.0)) as db:
        try:
            db.execute("PRAGMA locking_mode=EXCLUSIVE")
            db.execute("PRAGMA journal_mode=DELETE")  # refused while others have it open
            db.execute("PRAGMA journal_mode=MEMORY")  # nothing beside the file is removed at the end
            db.execute("BEGIN EXCLUSIVE")
            db.execute("COMMIT")  # in this locking mode the lock stays
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
                raise ConfigurationError(
                    f"expected nobody to use {file}, found {', '.join(_holders(file)) or 'another process'}; stop it"
                ) from None
        except sqlite3.DatabaseError:
            pass
        yield


def _holders(file: Path, locks: Path = Path("/proc/locks")) -> list[str]:
    """Return who holds locks on a database or the files beside it, where the system tells."""
    inodes = {str(path.stat().st_ino) for end in ("", "-wal", "-shm") if (path := Path(f"{file}{end}")).exists()}
    try:
        lines = [line.split() for line in locks.read_text(encoding="ascii").splitlines()]
    except OSError:
        return []
    held = {int(line[4]) for line in lines if len(line) > 5 and line[5].rpartition(":")[2] in inodes}
    return [_named(pid) for pid in sorted(held) if pid > 0]


def _named(pid: int) -> str:
    """Return a process by number and the first words of its command line: options may hold what is secret."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", errors="replace").split("\0")
    except OSError:
        words = []
    plain = [
        word.rpartition("/")[2] for word in words[:_WORDS] if word.isascii() and "=" not in word and ":" not in word
    ]
    return f"process {pid} ({' '.join(plain).strip()})" if plain else f"process {pid}"


def exchange(one: Path, other: Path) -> bool:
    """Let two paths change places in one step; False where the system or the file system offers none.

    Raises:
        OSError: one of them is absent, or may not be moved.
    """
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    if rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NOT_OFFERED:
        return False
    raise OSError(code, os.strerror(code), str(one))
