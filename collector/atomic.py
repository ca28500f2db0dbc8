"""Files that are there as a whole or not at all: written beside their place, forced to the disk, then put into it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path, *, mode: int = 0o666) -> Iterator[Path]:
    """Give a file to write to, in the folder of `path`; at the end of the block it takes the place of `path`.

    If the block raises, or the process dies in it, what stood at `path` stays as it was. A link is followed. What is no
    file (a pipe, a terminal) cannot be replaced and is given itself.

    Args:
        path: where the file shall be in the end.
        mode: rights of a new file, less the umask; one that was there keeps its own, where `mode` is not narrower.

    Raises:
        OSError: the folder cannot be written to, or the disk is full.
    """
    place = path.resolve()
    if place.exists() and not place.is_file():
        yield place
        return
    beside = place.with_name(f".{place.name}.{secrets.token_hex(4)}.partial")
    os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
    try:
        if place.exists():
            beside.chmod(place.stat().st_mode & mode)
        yield beside
        force_to_disk(beside)
        beside.replace(place)
    finally:
        beside.unlink(missing_ok=True)
    force_to_disk(place.parent)


def make_private(path: Path) -> None:
    """Make an empty file for what is nobody else's business, unless it is there: only its owner may read and write it.

    Raises:
        OSError: the folder cannot be written to.
    """
    if not path.exists():
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))


def force_to_disk(path: Path) -> None:
    """Return when what was written to a file, or which files a folder has, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
