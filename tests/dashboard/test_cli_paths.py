"""Paths that cannot be: a file where a folder is meant, nothing there, no right: one line, and nothing is touched."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from collector.conformance import slice_rows
from collector.settings import StoreSettings
from collector.store import EmbeddedStore
from dashboard import backup
from tests.dashboard.conftest import Ran


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("backup", "file"), "file"),
        (("backup", "file/below"), "file"),
        (("backup", "/proc/below"), "/proc/below"),
        (("store", "backup", "file"), "file"),
        (("restore", "file"), "file"),
        (("restore", "file/below"), "file"),
        (("export", "file"), "file"),
        (("export", "file/below"), "file"),
        (("export", "/proc/below"), "/proc/below"),
        (("audit", "export", "--output", "file/below"), "file"),
        (("audit", "export", "--output", "."), "."),
        (("audit", "export", "--output", "missing/below"), "missing"),
        (("import", "missing.csv"), "missing.csv"),
        (("import", "file/below"), "file"),
        (("analyze", "--rows", "file/below"), "file"),
        (("analyze", "--rows", "missing"), "missing"),
        (("analyze", "fragmentation", "--allocator", "."), "."),
        (("--config", ".", "config", "show"), "."),
        (("--config", "file/below", "config", "show"), "file"),
        (("--config", "missing.toml", "config", "show"), "missing.toml"),
        (("demo", "--folder", "file"), "file"),
        (("demo", "--folder", "/proc/below"), "/proc"),
        (("report", "weekly"), "file"),
    ],
)
def test_a_path_that_cannot_be_is_told_in_one_line(
    trimtab: Callable[..., Ran], elsewhere: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], told: str
) -> None:
    Path("file").write_text("no folder")
    monkeypatch.setenv("TRIMTAB_REPORT__FOLDER", "file/below")
    with closing(EmbeddedStore(StoreSettings())) as store:
        store.write(slice_rows([0], ["a"], busy_ratio=[0.5]))
    ran = trimtab(*command)
    assert ran.code in (2, 3, 4)
    assert told in ran.err
    assert "unexpected" not in ran.err
    assert "Traceback" not in ran.err + ran.out
    assert Path("file").read_text() == "no folder"


def test_a_disk_that_is_full_is_told_in_one_line(
    trimtab: Callable[..., Ran], elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(backup, "make_backup", full)
    ran = trimtab("backup", "copy")
    assert ran.code == 4
    assert "cannot use a file: No space left on device; check the path, its rights and its disk" in ran.err
