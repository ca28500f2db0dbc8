"""The kill switch: a file, so that it works when the database, the store and the tuner do not.

    no file                   nothing is frozen
    first line `freeze_new`   no new changes; rollbacks go on
    first line `freeze_all`   no write at all
    anything else             as `freeze_all`: empty, unreadable, not understood, or behind a link to nothing

`touch PAUSED` therefore stops everything. The lines below the first say who, why and since when.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from collector.errors import RefusedError, UnreachableError
from tuner.model import Freeze


@dataclass(frozen=True, slots=True)
class Pause:
    """What the kill switch says now."""

    level: Freeze
    who: str = ""
    why: str = ""
    since: str = ""

    def __str__(self) -> str:
        """Return one line for people."""
        if self.level is Freeze.NONE:
            return "not paused"
        parts = [f"paused ({self.level.value})"]
        parts += [f"by {self.who}"] if self.who else []
        parts += [f"since {self.since}"] if self.since else []
        return " ".join(parts) + (f": {self.why}" if self.why else "")

    @property
    def allows_new(self) -> bool:
        """Whether new changes may be written."""
        return self.level is Freeze.NONE

    @property
    def allows_rollback(self) -> bool:
        """Whether rollbacks may be written."""
        return self.level is not Freeze.ALL


def read(path: Path) -> Pause:
    """Read the kill switch; never raises: what cannot be read counts as `freeze_all`."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        dangling = _dangling(path)
        if dangling is None:
            return Pause(Freeze.NONE)
        return Pause(Freeze.ALL, why=f"{dangling} is a link to nothing, which counts as {Freeze.ALL.value}; mend it")
    except (OSError, UnicodeDecodeError) as error:
        return Pause(Freeze.ALL, why=f"{path} cannot be read ({error}); remove it to resume")
    first = lines[0].strip() if lines else ""
    notes = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
    if first not in {Freeze.NEW.value, Freeze.ALL.value}:
        said = f"{first!r}" if first else "nothing"
        return Pause(Freeze.ALL, notes.get("who", ""), f"{path} says {said}, which counts as {Freeze.ALL.value}")
    return Pause(Freeze(first), notes.get("who", ""), notes.get("why", ""), notes.get("since", ""))


def pause(path: Path, level: Freeze, *, who: str, why: str, at: datetime) -> Pause:
    """Write the kill switch, atomically and to the disk before returning.

    Raises:
        RefusedError: `level` is none (use `resume`), or who or why is empty.
        UnreachableError: the file cannot be written.
    """
    if level is Freeze.NONE:
        raise RefusedError("expected freeze_new or freeze_all, got none; to go on, resume instead")
    if not who.strip() or not why.strip():
        raise RefusedError("a pause needs who and why: expected both, got an empty text; say why")
    since = at.isoformat().replace("+00:00", "Z")
    content = "\n".join([level.value, f"who: {_line(who)}", f"why: {_line(why)}", f"since: {since}", ""])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except OSError as error:
        raise UnreachableError(f"expected to write {path}, got {error}; create the file by hand to pause") from error
    return read(path)


def resume(path: Path) -> bool:
    """Remove the kill switch; return whether there was one.

    Raises:
        UnreachableError: the file cannot be removed, so that everything stays paused.
    """
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise UnreachableError(f"expected to remove {path}, got {error}; remove it by hand to resume") from error
    return True


def _dangling(path: Path) -> Path | None:
    """Return the part of a path that is a link to nothing: behind it may lie a switch that was thrown."""
    return next((p for p in (path, *path.parents) if p.is_symlink() and not os.path.exists(p)), None)  # noqa: PTH110 - never raises


def _line(text: str) -> str:
    return " ".join(text.split())
