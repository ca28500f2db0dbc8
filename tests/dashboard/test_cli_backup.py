"""`trimtab backup` and `restore`: whole or not at all, and nothing that exists is lost."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from collector.conformance import slice_rows, window
from collector.settings import StoreSettings
from collector.store import EmbeddedStore
from dashboard import backup
from dashboard.config import load_settings
from tests.dashboard.conftest import Ran
from tuner.settings import StateSettings
from tuner.state import open_state

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)


def write(*values: float) -> None:
    with closing(EmbeddedStore(StoreSettings())) as store:
        for minute, value in enumerate(values):
            store.write(slice_rows([minute], ["a"], busy_ratio=[value]))
        store.seal()
        store.write(slice_rows([30], ["b"], busy_ratio=[0.5]))


def values() -> list[float]:
    with closing(EmbeddedStore(StoreSettings(), read_only=True)) as store:
        return sorted(store.read("slice", window(0, 60))["busy_ratio"].tolist())


def note_in_state(text: str) -> None:
    open_state(StateSettings()).close()
    with closing(sqlite3.connect("var/state.db")) as db:
        db.execute("CREATE TABLE IF NOT EXISTS note (said TEXT)")
        db.execute("DELETE FROM note")
        db.execute("INSERT INTO note VALUES (?)", (text,))
        db.commit()


def state_note() -> str:
    with closing(sqlite3.connect("var/state.db")) as db:
        return str(db.execute("SELECT said FROM note").fetchone()[0])


@pytest.fixture
def world(elsewhere: Path) -> Path:
    write(0.1, 0.2)
    note_in_state("then")
    return elsewhere


def test_what_was_backed_up_comes_back_and_what_was_there_is_kept(trimtab: Callable[..., Ran], world: Path) -> None:
    ran = trimtab("backup", "copy")
    assert (ran.code, ran.out.startswith("copied to copy: ")) == (0, True)
    shutil.rmtree("var")
    write(0.9)
    note_in_state("later")
    refused = trimtab("restore", "copy")
    assert refused.code == 2
    assert "--replace" in refused.err
    assert (values(), state_note()) == ([0.5, 0.9], "later")
    document = json.loads(trimtab("restore", "copy", "--replace", "--json").out)
    assert document["places"] == [str(Path("var/store").resolve()), str(Path("var/state.db").resolve())]
    assert (values(), state_note()) == ([0.1, 0.2, 0.5], "then")
    (aside,) = Path("var").glob("store.before-*")
    (old_state,) = (path for path in Path("var").glob("state.db.before-*") if path.suffix not in ("-wal", "-shm"))
    assert aside.is_dir()
    assert old_state.is_file()
    assert trimtab("store", "verify").code == 0
    assert [path.name for path in Path("var").iterdir() if "restoring" in path.name] == []


def test_it_is_restored_on_a_bare_host(trimtab: Callable[..., Ran], world: Path) -> None:
    assert trimtab("backup", "copy").code == 0
    shutil.rmtree("var")
    assert trimtab("restore", "copy").code == 0
    assert (values(), state_note()) == ([0.1, 0.2, 0.5], "then")


def test_a_store_in_use_is_copied_as_of_one_instant(trimtab: Callable[..., Ran], world: Path) -> None:
    with closing(EmbeddedStore(StoreSettings())) as store:
        store.write(slice_rows([31], ["b"], busy_ratio=[0.6]))
        assert trimtab("backup", "copy").code == 0
        store.write(slice_rows([32], ["b"], busy_ratio=[0.7]))
    assert trimtab("restore", "copy", "--replace").code == 0
    assert values() == [0.1, 0.2, 0.5, 0.6]


def test_without_a_state_the_store_alone_is_kept(trimtab: Callable[..., Ran], elsewhere: Path) -> None:
    write(0.1)
    assert trimtab("backup", "copy").code == 0
    shutil.rmtree("var")
    assert trimtab("restore", "copy").code == 0
    assert not Path("var/state.db").exists()


def test_a_backup_that_was_broken_off_is_none(
    trimtab: Callable[..., Ran], world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(backup, "_copy_database", killed)
    assert trimtab("backup", "copy").code == 130
    ran = trimtab("restore", "copy", "--replace")
    assert ran.code == 3
    assert "no backup.json: it is none, or was broken off" in ran.err
    again = trimtab("backup", "copy")
    assert (again.code, "a backup that was broken off" in again.err) == (2, True)
    assert values() == [0.1, 0.2, 0.5]


@pytest.mark.parametrize("step", ["_prepare", "_look_through", "_put"])
def test_a_restore_that_was_broken_off_is_taken_up(
    trimtab: Callable[..., Ran], world: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    assert trimtab("backup", "copy").code == 0
    shutil.rmtree("var/store")
    write(0.9)
    whole = getattr(backup, step)
    calls: list[int] = []

    def broken(*arguments: object, **more: object) -> None:
        calls.append(1)
        whole(*arguments, **more)
        raise KeyboardInterrupt  # behind the first of its kind

    with monkeypatch.context() as patched:
        patched.setattr(backup, step, broken)
        assert trimtab("restore", "copy", "--replace").code == 130
    assert calls == [1]
    assert values() == ([0.1, 0.2, 0.5] if step == "_put" else [0.5, 0.9])  # the old one whole, or the new one
    assert backup.restore_backup(load_settings().settings, Path("copy"), NOW + timedelta(hours=1), replace=True)
    assert (values(), state_note()) == ([0.1, 0.2, 0.5], "then")


def test_the_log_of_an_earlier_try_is_not_played_into_the_copy(trimtab: Callable[..., Ran], world: Path) -> None:
    assert trimtab("backup", "copy").code == 0
    shutil.copyfile("copy/state.db", "earlier.db")
    with closing(sqlite3.connect("earlier.db")) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("UPDATE note SET said = 'stale'")
        db.commit()
        shutil.copyfile("earlier.db-wal", "var/.state.db.restoring-wal")
    assert trimtab("restore", "copy", "--replace").code == 0
    assert state_note() == "then"


@pytest.mark.parametrize(
    ("damage", "said", "code"),
    [
        (lambda: next(Path("copy/store/sealed").iterdir()).write_bytes(b"x"), "missing or damaged", 3),
        (lambda: os.truncate("copy/state.db", 100), "missing or damaged", 3),
        (lambda: Path("copy/store/store.db").unlink(), "missing or damaged", 3),
        (lambda: Path("copy/backup.json").write_text("{}"), "expected a list of files", 3),
        (lambda: Path("copy/backup.json").write_text("no json"), "expected a list of files", 3),
        (lambda: Path("copy/backup.json").write_text('{"schema_version": 9}'), "update Trimtab", 2),
        (
            lambda: Path("copy/backup.json").write_text(
                Path("copy/backup.json").read_text().replace('"state.db"', '"../../etc/passwd"')
            ),
            "expected files of a store and a state",
            3,
        ),
    ],
)
def test_a_damaged_backup_touches_nothing(
    trimtab: Callable[..., Ran], world: Path, damage: Callable[[], object], said: str, code: int
) -> None:
    assert trimtab("backup", "copy").code == 0
    damage()
    ran = trimtab("restore", "copy", "--replace")
    assert (ran.code, said in ran.err) == (code, True), ran.err
    assert (values(), state_note()) == ([0.1, 0.2, 0.5], "then")


@pytest.mark.parametrize(
    ("file", "statement", "said"),
    [
        ("store/store.db", "PRAGMA user_version = 99", "has format 99"),
        ("state.db", "UPDATE alembic_version SET version_num = 'ffff'", "has revision ffff"),
    ],
)
def test_a_backup_of_a_newer_version_is_refused(
    trimtab: Callable[..., Ran], world: Path, file: str, statement: str, said: str
) -> None:
    assert trimtab("backup", "copy").code == 0
    with closing(sqlite3.connect(f"copy/{file}")) as db:
        db.execute(statement)
        db.commit()
    manifest = json.loads(Path("copy/backup.json").read_text())
    path = Path("copy") / file
    manifest["files"][file] = {"size": path.stat().st_size, "sha256": backup._hash(path)}
    Path("copy/backup.json").write_text(json.dumps(manifest))
    ran = trimtab("restore", "copy", "--replace")
    assert (ran.code, said in ran.err) == (2, True), ran.err
    assert (values(), state_note()) == ([0.1, 0.2, 0.5], "then")


def test_a_wrong_folder_is_no_backup(trimtab: Callable[..., Ran], world: Path) -> None:
    assert trimtab("restore", "nowhere").code == 3
    Path("copy").write_text("a file")
    assert trimtab("restore", "copy").code == 3
