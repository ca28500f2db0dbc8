"""What `verify` finds, and that a copy made in mid-use is whole."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from collector.batch import Batch, Fact, Subject
from collector.clock import VirtualClock
from collector.conformance import DAY, START, at, slice_rows, window
from collector.errors import ConfigurationError, UnreachableError
from collector.settings import StoreSettings
from collector.store import EmbeddedStore
from collector.store.backup import backup_store
from collector.store.outbox import Outbox
from collector.store.verify import verify_store


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[StoreSettings]:
    """A store of sealed files of two days, unsealed rows, facts and a shipper."""
    settings = StoreSettings(path=tmp_path / "store")
    with closing(EmbeddedStore(settings, clock=VirtualClock(START))) as store:
        for day in (0, 1440):
            minutes = [day + m for m in range(60)]
            store.write(slice_rows(minutes, ["a"] * 60, busy_ratio=np.round(np.arange(60) / 60, 3).tolist()))
            store.seal()
        batch = slice_rows([1500, 1501], ["a", "b"], busy_ratio=[0.5, np.nan])
        batch.facts = [Fact(Subject("cluster", "lab"), "interval_seconds", "60", START)]
        store.write(batch)
        box = Outbox(settings, "other side")
        box.advance(100)
        box.close()
        yield settings


def execute(settings: StoreSettings, statement: str) -> None:
    with closing(sqlite3.connect(settings.path / "store.db")) as db:
        db.execute(statement)
        db.commit()


def raw_file(settings: StoreSettings) -> Path:
    return min(settings.path.glob("sealed/slice-raw-*"))


def test_a_whole_store_has_no_problem(kept: StoreSettings) -> None:
    assert list(verify_store(kept)) == []
    with closing(EmbeddedStore(kept)) as store:
        store.compact()
    assert list(verify_store(kept)) == []


def test_a_store_that_is_absent_is_said(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="expected a store"):
        list(verify_store(StoreSettings(path=tmp_path / "nothing")))


def test_damaged_and_foreign_files_are_named(kept: StoreSettings) -> None:
    first, second = sorted(kept.path.glob("sealed/slice-hour-*"))
    first.write_bytes(b"PAR1 nothing")
    second.unlink()
    problems = list(verify_store(kept))
    assert [p.split(";")[0].split(" (")[0] for p in problems] == [
        f"{first.name}: cannot be read",
        f"{second.name}: missing",
    ]
    assert all("\n" not in problem and "restore it from a backup" in problem for problem in problems)


def test_rows_that_are_not_the_catalogues_are_found(kept: StoreSettings) -> None:
    file = raw_file(kept)
    whole = pq.read_table(file)
    file.unlink()  # its second name, in the minute tier, stays as it is
    pq.write_table(whole.slice(1), file)
    assert list(verify_store(kept)) == [f"{file.name}: expected 60 rows, found 59; restore it from a backup"]
    doubled = whole.slice(0, 59)
    pq.write_table(pa.concat_tables([doubled, whole.slice(58, 1)]), file)
    assert f"{file.name}: a key and time stands twice; restore it from a backup" in list(verify_store(kept))
    pq.write_table(whole.replace_schema_metadata({}), file)
    assert list(verify_store(kept)) == [f"{file.name}: its encoding is not the catalogue's; restore it from a backup"]


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE seg SET t_min = t_min + 1 WHERE tier = 'raw' AND id = 1", "outside the span"),
        ("UPDATE seg SET seq_max = seq_max + 1 WHERE tier = 'raw' AND id = 1", "row numbers are not"),
        ("DELETE FROM seg WHERE source = 1", "no minutes or hours"),
        ("UPDATE hot SET payload = x'00'", "expected 2, can read 0"),
        ("UPDATE cursor SET seq = 10000", "beyond the last commit"),
    ],
)
def test_a_catalogue_that_promises_something_else_is_found(kept: StoreSettings, statement: str, problem: str) -> None:
    execute(kept, statement)
    (found,) = list(verify_store(kept))
    assert problem in found


def test_a_copy_made_while_the_store_is_written_is_whole(kept: StoreSettings, tmp_path: Path) -> None:
    stop = threading.Event()
    store = EmbeddedStore(kept)

    def write() -> None:
        minute = 2000
        while not stop.is_set():
            store.write(slice_rows([minute, minute], ["a", "b"], busy_ratio=[0.1, 0.2]))
            minute += 1
            if minute % 5 == 0:
                store.seal()
            if minute % 20 == 0:
                store.merge()

    thread = threading.Thread(target=write)
    thread.start()
    copies = [StoreSettings(path=tmp_path / f"copy-{i}") for i in range(3)]
    for copy in copies:
        assert backup_store(kept, copy.path) > 0
    stop.set()
    thread.join()
    everything = store.read("slice", window(0, 10**6))
    store.close()
    for copy in copies:
        assert list(verify_store(copy)) == []
        with closing(EmbeddedStore(copy)) as restored:
            rows = restored.read("slice", window(0, 10**6))
            last = rows["time"].max()
            assert (rows[rows["time"] >= at(2000)].groupby("time").size() == 2).all()
            pd.testing.assert_frame_equal(rows, everything[everything["time"] <= last].reset_index(drop=True))
            assert len(restored.facts()) == 1
            restored.write(Batch(facts=[Fact(Subject("cluster", "lab"), "interval_seconds", "30", START + DAY)]))
        box = Outbox(copy, "other side")
        assert box.cursor == 100
        shipment = box.rows_after(box.cursor, 1000)
        assert shipment is not None
        assert shipment.rows["slice"]["seq"].to_pylist()[:22] == list(range(101, 123))
        box.close()


def test_a_folder_with_files_is_left_alone(kept: StoreSettings, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "mine").write_text("mine")
    with pytest.raises(ConfigurationError, match="expected an empty folder"):
        backup_store(kept, tmp_path / "copy")
    with pytest.raises(UnreachableError, match="expected a store"):
        backup_store(StoreSettings(path=tmp_path / "nothing"), tmp_path / "other")
    assert not (tmp_path / "nothing").exists()


def test_compacting_gives_room_back(tmp_path: Path) -> None:
    settings = StoreSettings(path=tmp_path / "store")
    with closing(EmbeddedStore(settings)) as store:
        noise = np.random.default_rng(1).random(20_000)
        store.write(slice_rows(np.arange(20_000) / 60, ["a"] * 20_000, busy_ratio=noise.tolist()))
        before = (settings.path / "store.db").stat().st_size + (settings.path / "store.db-wal").stat().st_size
        store.compact()
        after = (settings.path / "store.db").stat().st_size + (settings.path / "store.db-wal").stat().st_size
        assert after < before - 100_000
        assert len(store.read("slice", window(0, 400))) == 20_000
