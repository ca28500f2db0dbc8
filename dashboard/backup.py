"""A copy of store and state that is whole or is none: made while they are in use, checked before it takes their place.

backup/
  store/        the embedded store: catalogue and sealed files
  state.db      findings, plans, approvals, journal (SQLite; a PostgreSQL is copied by its own tools)
  backup.json   what belongs to it, with sizes and hashes; written last
"""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from collector.atomic import force_to_disk, make_private, replacing
from collector.errors import ConfigurationError, InputRejectedError, UnreachableError
from collector.settings import StoreSettings
from collector.store.alone import exchange, held_alone
from collector.store.backup import backup_store
from collector.store.catalogue import restoring
from collector.store.sealed import link_or_copy
from collector.store.verify import verify_store
from dashboard.config import Settings
from tuner.settings import StateSettings
from tuner.state import open_state

MANIFEST = "backup.json"
_SCHEMA = 1
_STORE, _STATE = "store", "state.db"
_PIECE = 1 << 20
_SQLITE_ENDINGS = ("-wal", "-shm")  # of files beside a database that is in use


class _Kept(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    size: int
    sha256: str


class _Manifest(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    schema_version: int
    made_at: datetime
    files: dict[str, _Kept]


@dataclass(frozen=True, slots=True)
class Copied:
    """What was copied or put back: the folder or the places, files, bytes, and what was left out."""

    places: tuple[str, ...]
    files: int
    size_bytes: int
    notes: tuple[str, ...] = ()


def make_backup(settings: Settings, folder: Path, now: datetime) -> Copied:
    """Copy store and state into `folder` while both are in use. Broken off, it has no `backup.json` and is no backup.

    Raises:
        ConfigurationError: there is something in `folder`.
        UnreachableError: there is no store, or something cannot be read or written.
    """
    if folder.exists() and any(folder.iterdir()):
        what = "files in it" if (folder / MANIFEST).exists() else "a backup that was broken off"
        raise ConfigurationError(f"expected an empty folder or none at {folder}, found {what}; name another")
    notes = []
    try:
        backup_store(settings.store, folder / _STORE)
        source = _state_file(settings.state)
        if source is None:
            notes.append("the state database is no SQLite file: copy it by its own tools, such as pg_dump")
        elif source.exists():
            _copy_database(source, folder / _STATE)
        files = {}
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            force_to_disk(path)
            files[path.relative_to(folder).as_posix()] = _Kept(size=path.stat().st_size, sha256=_hash(path))
        manifest = _Manifest(schema_version=_SCHEMA, made_at=now, files=files)
        with replacing(folder / MANIFEST) as beside:
            beside.write_bytes(orjson.dumps(manifest.model_dump(mode="json"), option=orjson.OPT_INDENT_2))
    except (OSError, sqlite3.Error) as error:
        raise UnreachableError(f"expected to write a backup to {folder}, got {error}") from error
    return Copied((str(folder),), len(files), sum(kept.size for kept in files.values()), tuple(notes))


def restore_backup(settings: Settings, folder: Path, now: datetime, *, replace: bool) -> Copied:
    """Check a backup, and put it in the place of store and state.

    Everything is copied beside its place and looked through before anything is moved. What stood there is kept beside
    it (`.before-<time>`), never deleted. Broken off in the middle, store and state are each the old one whole or the
    new one whole, and it may be called again.

    Args:
        settings: where store and state shall be.
        folder: what `make_backup` made.
        now: names what is put aside.
        replace: put aside what is there.

    Raises:
        InputRejectedError: it is no backup, or is damaged or incomplete.
        ConfigurationError: something is there already and `replace` is not said; or another process has it open; or a
            newer version made the backup.
        UnreachableError: something cannot be read or written.
    """
    manifest = _checked(folder)
    store = settings.store.path.resolve()
    places = {_STORE: store}
    notes = []
    if _STATE in manifest.files:
        state = _state_file(settings.state)
        if state is None:
            notes.append("the state database is no SQLite file: that of the backup was left out")
        else:
            places[_STATE] = state.resolve()
    there = [path for path in places.values() if path.is_file() or (path.is_dir() and any(path.iterdir()))]
    if there and not replace:
        raise ConfigurationError(
            f"expected nothing at {', '.join(map(str, there))}, found files; stop the loops, then say --replace: "
            "what is there is kept beside it"
        )
    try:
        with ExitStack() as alone:
            for name, place in places.items():
                alone.enter_context(held_alone(place / "store.db" if name == _STORE else place))
            for name, place in places.items():
                _prepare(folder / name, restoring(place))
            _look_through(settings, places)
            stamp = f"{now:%Y%m%dT%H%M%SZ}"
            for place in places.values():
                _put(place, stamp)
    except (OSError, sqlite3.Error) as error:
        raise UnreachableError(f"expected to write {', '.join(map(str, places.values()))}, got {error}") from error
    size = sum(kept.size for name, kept in manifest.files.items() if name.partition("/")[0] in places)
    return Copied(tuple(map(str, places.values())), len(manifest.files), size, tuple(notes))


def _checked(folder: Path) -> _Manifest:
    """Return what a backup holds, after each of its files was read."""
    path = folder / MANIFEST
    if not path.is_file():
        raise InputRejectedError(f"expected a backup in {folder}, found no {MANIFEST}: it is none, or was broken off")
    try:
        said: Any = orjson.loads(path.read_bytes())
        version = said.get("schema_version") if isinstance(said, dict) else None
        if isinstance(version, int) and version > _SCHEMA:
            raise ConfigurationError(
                f"{path}: a backup of schema {version}, this version reads up to {_SCHEMA}; update Trimtab"
            )
        manifest = _Manifest.model_validate(said)
    except (orjson.JSONDecodeError, ValidationError, OSError) as error:
        raise InputRejectedError(f"{path}: expected a list of files, got {type(error).__name__}") from error
    for name, kept in manifest.files.items():
        parts = name.split("/")
        if name.startswith("/") or ".." in parts or parts[0] not in (_STORE, _STATE):
            raise InputRejectedError(f"{path}: expected files of a store and a state, got {name!r}")
        file = folder / name
        if not file.is_file() or file.stat().st_size != kept.size or _hash(file) != kept.sha256:
            raise InputRejectedError(f"{file}: missing or damaged; take another backup")
    if f"{_STORE}/store.db" not in manifest.files:
        raise InputRejectedError(f"{path}: expected a store in it, found none")
    return manifest


def _prepare(source: Path, beside: Path) -> None:
    """Copy a file or a folder to the disk, in the place of what an earlier try left."""
    if beside.is_dir():
        shutil.rmtree(beside)
    for ending in ("", *_SQLITE_ENDINGS):  # a log of an earlier try would be played into the new copy
        beside.with_name(beside.name + ending).unlink(missing_ok=True)
    beside.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, beside)
    else:
        make_private(beside)
        shutil.copyfile(source, beside)
    for path in (*(p for p in beside.rglob("*") if p.is_file()), beside):
        force_to_disk(path)


def _look_through(settings: Settings, places: dict[str, Path]) -> None:
    """Read the copies as this version would: a newer format, or anything wrong, ends it here."""
    store = settings.store.model_copy(update={"path": restoring(places[_STORE])})
    problems = list(verify_store(StoreSettings.model_validate(store.model_dump())))
    if problems:
        raise InputRejectedError(f"the store of the backup is damaged: {problems[0]}")
    if _STATE in places:
        open_state(StateSettings(path=restoring(places[_STATE]))).close()
        for ending in _SQLITE_ENDINGS:
            restoring(places[_STATE]).with_name(restoring(places[_STATE]).name + ending).unlink(missing_ok=True)


def _put(place: Path, stamp: str) -> None:
    """Put the copy in its place and what stands there aside, in one step where the file system offers it.

    Where it does not, a folder is absent for a moment. Dies the process then, nobody makes a new store there.
    """
    copy, aside = restoring(place), _free(place.with_name(f"{place.name}.before-{stamp}"))
    for ending in _SQLITE_ENDINGS:  # only a database that is damaged still has them
        old = place.with_name(place.name + ending)
        if old.exists():
            old.rename(aside.with_name(aside.name + ending))
    if place.exists() and copy.is_dir():
        copy.rename(aside)
        if not exchange(aside, place):
            aside.rename(copy)
            place.rename(aside)
            copy.rename(place)
    else:
        if place.exists():
            link_or_copy(place, aside)
        copy.replace(place)
    force_to_disk(place.parent)


def _free(path: Path) -> Path:
    """Return a path at which nothing is: this one, or with a number behind it."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free


def _state_file(settings: StateSettings) -> Path | None:
    """Return the file of the state database; None where it is none."""
    if not settings.url:
        return settings.path
    scheme, _, rest = settings.url.partition(":///")
    return Path(rest) if scheme.partition("+")[0] == "sqlite" and rest else None


def _copy_database(source: Path, target: Path) -> None:
    make_private(target)
    with (
        closing(sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro", uri=True)) as live,
        closing(sqlite3.connect(target)) as copy,
    ):
        live.backup(copy)
        copy.execute("PRAGMA journal_mode=DELETE")


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()
