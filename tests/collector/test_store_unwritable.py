"""Who may read a store's folder and not write into it can still look."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from collector.conformance import slice_rows, window
from collector.settings import StoreSettings
from collector.store import EmbeddedStore
from collector.store.info import describe_store

NOBODY = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users can reach (not that of the test's user), and nobody may write to."""
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as name:
        path = Path(name)
        with closing(EmbeddedStore(StoreSettings(path=path / "store"))) as store:
            store.write(slice_rows([0, 1], ["a", "b"], busy_ratio=[0.1, 0.2]))
            store.seal()
            store.write(slice_rows([2], ["a"], busy_ratio=[0.3]))
        for one in (path, *path.rglob("*")):  # whatever the umask
            one.chmod(0o755 if one.is_dir() else 0o644)
        yield path / "store"
        for one in (path / "store", path / "store" / "sealed"):
            one.chmod(0o755)


@contextmanager
def somebody_else() -> Iterator[None]:
    """Be a user without rights for the block; who is no superuser has none in the folder anyway."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_info_and_reading_need_no_right_to_write(folder: Path) -> None:
    for one in (folder, folder / "sealed"):
        one.chmod(0o555)
    before = sorted(path.name for path in folder.rglob("*"))

    settings = StoreSettings(path=folder)
    with somebody_else():
        held = describe_store(settings).holdings
        with closing(EmbeddedStore(settings, read_only=True)) as store:
            values = store.read("slice", window(0, 60))["busy_ratio"].tolist()
    assert [(one.measurement, one.rows) for one in held if one.tier == "raw"] == [("slice", 3)]
    assert sorted(values) == [0.1, 0.2, 0.3]
    assert sorted(path.name for path in folder.rglob("*")) == before


def test_a_store_that_is_in_use_is_read_as_it_stands(folder: Path) -> None:
    with closing(EmbeddedStore(StoreSettings(path=folder))) as store:
        store.write(slice_rows([3], ["a"], busy_ratio=[0.4]))
        for one in folder.glob("store.db*"):
            one.chmod(0o644)
        folder.chmod(0o555)
        with somebody_else():
            told = [one.rows for one in describe_store(StoreSettings(path=folder)).holdings if one.tier == "raw"]
        folder.chmod(0o755)
    assert told == [4]
