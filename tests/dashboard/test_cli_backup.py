"""`trimtab backup` and `restore`: whole or not at all, and nothing that exists is lost."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from collector.conformance import slice_rows, window
from collector.errors import ConfigurationError, UnreachableError
from collector.settings import StoreSettings
from collector.store import EmbeddedStore
from collector.store.alone import held_alone
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


class Steps:
    """Breaks the restore off at its n-th move of a file or a folder, before or behind it."""

    def __init__(self, until: int) -> None:
        self.left = until

    def step(self) -> None:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1

    def around(self, move: Callable[..., Any]) -> Callable[..., Any]:
        def moved(*arguments: Any) -> Any:
            self.step()
            result = move(*arguments)
            self.step()
            return result

        return moved


@pytest.mark.parametrize("offered", [True, False])
def test_broken_off_at_any_step_the_old_or_the_new_one_is_there_whole(
    trimtab: Callable[..., Ran], world: Path, monkeypatch: pytest.MonkeyPatch, offered: bool
) -> None:
    assert trimtab("backup", "copy").code == 0
    shutil.rmtree("var")
    write(0.9)
    note_in_state("later")
    shutil.copytree("var", "first")
    broken, seen = True, set()
    until = 0
    while broken:
        shutil.rmtree("var")
        shutil.copytree("first", "var")
        steps = Steps(until)
        with monkeypatch.context() as patched:
            exchange = backup.exchange if offered else lambda *_: False
            patched.setattr(backup, "exchange", steps.around(exchange))
            patched.setattr(backup, "link_or_copy", steps.around(backup.link_or_copy))
            for name in ("rename", "replace"):
                patched.setattr(Path, name, steps.around(getattr(Path, name)))
            broken = trimtab("restore", "copy", "--replace").code == 130
        if Path("var/store").exists():
            store, state = values(), state_note()
            assert store in ([0.5, 0.9], [0.1, 0.2, 0.5])
            assert state in ("later", "then")
            seen.add((len(store), state))
        else:  # for a moment, where the file system has no exchange: nobody takes it for a new host
            assert not offered
            refused = trimtab("store", "info")
            assert (refused.code, "was broken off; run `trimtab restore` again" in refused.err) == (2, True)
            with pytest.raises(ConfigurationError, match="was broken off"):
                EmbeddedStore(StoreSettings())
        if broken:
            assert backup.restore_backup(load_settings().settings, Path("copy"), NOW, replace=True)
            assert (values(), state_note()) == ([0.1, 0.2, 0.5], "then")
            kept = [p for p in Path("var").iterdir() if p.name.startswith("store.before-")]
            assert any(sorted(_values_in(p)) == [0.5, 0.9] for p in kept)
        until += 1
    assert seen >= {(2, "later"), (3, "later"), (3, "then")}


def _values_in(folder: Path) -> list[float]:
    with closing(EmbeddedStore(StoreSettings(path=folder), read_only=True)) as store:
        return list(store.read("slice", window(0, 60))["busy_ratio"])


def test_a_store_that_somebody_uses_is_not_replaced(trimtab: Callable[..., Ran], world: Path) -> None:
    assert trimtab("backup", "copy").code == 0
    with closing(EmbeddedStore(StoreSettings())):
        ran = trimtab("restore", "copy", "--replace")
    assert ran.code == 2
    assert f"expected nobody to use {Path('var/store/store.db').resolve()}, found process {os.getpid()} (" in ran.err
    with closing(open_state(StateSettings())) as state, state.reading():
        ran = trimtab("restore", "copy", "--replace")
    assert ran.code == 2
    assert f"expected nobody to use {Path('var/state.db').resolve()}, found process {os.getpid()} (" in ran.err
    assert list(Path("var").glob("*.before-*")) == []
    assert trimtab("restore", "copy", "--replace").code == 0


def test_nobody_opens_a_store_that_is_held(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "a.db")) as db:
        db.execute("CREATE TABLE t (x)")
    with (
        held_alone(tmp_path / "a.db"),
        closing(sqlite3.connect(tmp_path / "a.db", timeout=0.0)) as other,
        pytest.raises(sqlite3.OperationalError, match="locked"),
    ):
        other.execute("SELECT * FROM t")
    assert [path.name for path in tmp_path.iterdir()] == ["a.db"]


def test_a_store_that_is_damaged_is_replaced(trimtab: Callable[..., Ran], world: Path) -> None:
    assert trimtab("backup", "copy").code == 0
    Path("var/store/store.db").write_bytes(b"no database " * 500)
    Path("var/state.db").write_bytes(b"no database " * 500)
    assert trimtab("restore", "copy", "--replace").code == 0
    assert (values(), state_note()) == ([0.1, 0.2, 0.5], "then")


def test_a_file_in_the_place_of_the_store_is_put_aside(trimtab: Callable[..., Ran], world: Path) -> None:
    assert trimtab("backup", "copy").code == 0
    shutil.rmtree("var/store")
    Path("var/store").write_text("a file")
    assert trimtab("restore", "copy", "--replace").code == 0
    assert values() == [0.1, 0.2, 0.5]
    (aside,) = Path("var").glob("store.before-*")
    assert aside.read_text() == "a file"


def test_the_state_is_its_owners_alone_wherever_it_is(trimtab: Callable[..., Ran], world: Path) -> None:
    umask = os.umask(0o022)
    try:
        assert trimtab("backup", "copy").code == 0
        shutil.rmtree("var")
        assert trimtab("restore", "copy").code == 0
        with closing(open_state(StateSettings(path=Path("new/state.db")))) as state, state.writing():
            files = [*Path("new").iterdir(), *Path().rglob("state.db*")]
            assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    finally:
        os.umask(umask)
    assert {path.name for path in files} == {"state.db", "state.db-wal", "state.db-shm"}


def test_a_store_that_was_replaced_is_not_maintained(tmp_path: Path) -> None:
    """Its old catalogue names files to remove, and the new store may have files of these names."""
    with closing(EmbeddedStore(StoreSettings(path=tmp_path / "a"))) as store:
        (tmp_path / "a").rename(tmp_path / "b")
        EmbeddedStore(StoreSettings(path=tmp_path / "a")).close()
        with pytest.raises(UnreachableError, match="got another file in its place"):
            store.maintain()
