"""Nothing that was acknowledged is lost, nothing is half there: kill -9, and readers beside a sealing writer."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from collector.batch import Batch, Event, Severity, Subject, make_rows
from collector.conformance import MINUTE, at, slice_rows, window
from collector.settings import StoreSettings
from collector.store import EmbeddedStore
from collector.store.verify import verify_store

WRITER = """
import sys
from pathlib import Path
from test_store_crash import batch_of
from collector.settings import StoreSettings
from collector.store import EmbeddedStore

store = EmbeddedStore(StoreSettings(path=Path(sys.argv[1]), seal_rows=1000))
for minute in range(int(sys.argv[2]), 10**6):
    store.write(batch_of(minute))
    print(minute, flush=True)
"""
ROWS = 40


def batch_of(minute: int) -> Batch:
    """Rows of two measurements and an event that belong together."""
    batch = slice_rows([minute] * ROWS, [f"s{i}" for i in range(ROWS)], busy_ratio=np.full(ROWS, minute / 1e6).tolist())
    times = [round(at(minute).timestamp() * 1000)] * ROWS
    tags = {"cluster": ["lab"] * ROWS, "node": ["node-a"] * ROWS, "gpu": [f"g{i}" for i in range(ROWS)]}
    batch.rows["gpu"] = make_rows("gpu", times, tags, {"power_watts": np.full(ROWS, float(minute))})
    batch.events.append(Event(Subject("node", "lab", "node-a"), "tick", Severity.INFO, str(minute), at(minute)))
    return batch


def run_and_kill(folder: Path, first: int, acknowledged: int) -> int:
    """Run a writer until it has acknowledged so many batches, kill it in mid-write, return the last acknowledged."""
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(  # noqa: S603 - our own interpreter and script
        [sys.executable, "-c", WRITER, str(folder), str(first)],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": f"{root}:{root / 'tests' / 'collector'}", "PATH": ""},
    ) as process:
        assert process.stdout is not None
        last = -1
        for line in process.stdout:
            last = int(line)
            if last - first >= acknowledged:
                break
        process.kill()
        for line in process.stdout:  # acknowledged before the kill arrived
            last = int(line) if line.endswith("\n") else last
    return last


def test_kill_in_mid_write_loses_nothing_acknowledged(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    first = 0
    for acknowledged in (70, 33):  # with a seal every 25 batches
        last = run_and_kill(folder, first, acknowledged)
        assert last >= first + acknowledged
        store = EmbeddedStore(StoreSettings(path=folder))
        whole = window(0, last + 10)
        counts = store.read("slice", whole, fields=["busy_ratio"], every=MINUTE, by=[], aggregate="count")
        power = store.read("gpu", whole, fields=["power_watts"], every=MINUTE, by=[], aggregate="count")
        assert (counts["busy_ratio"] == ROWS).all()
        assert (power["power_watts"] == ROWS).all()
        minutes = [(t - at(0)) / MINUTE for t in counts["time"]]
        assert minutes[: last + 1] == list(range(last + 1))
        assert len(minutes) <= last + 2  # at most the one that was under way
        assert power["time"].tolist() == counts["time"].tolist()
        assert store.events(whole)["message"].tolist() == [str(int(m)) for m in minutes]
        values = store.read("slice", whole, fields=["busy_ratio"], where={"slice": "s0"})["busy_ratio"]
        assert values.tolist() == [m / 1e6 for m in minutes]
        known = {row[0] for row in store._reader.execute("SELECT path FROM seg")}
        assert {f"sealed/{p.name}" for p in (folder / "sealed").iterdir()} == known
        store.close()
        first = len(minutes)


def test_twenty_kills_at_random_points_lose_nothing_acknowledged() -> None:
    """The same look as `python -m benchmarks store` takes at a thousand."""
    root = Path(__file__).resolve().parents[2]
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.store_kill", "20"],
        capture_output=True,
        text=True,
        cwd=root,
        env={"PYTHONPATH": str(root), "PATH": ""},
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.startswith("20 kills, ")
    assert ", 0 lost; " in ran.stdout


@pytest.mark.parametrize("other_process", [False, True])
def test_a_reader_beside_a_sealing_writer_sees_each_row_once(tmp_path: Path, other_process: bool) -> None:
    """`other_process`: the reader has a store of its own, as another process would."""
    settings = StoreSettings(path=tmp_path / "store")
    writer = EmbeddedStore(settings)
    writer.write(batch_of(0))
    reader = EmbeddedStore(settings, read_only=True) if other_process else writer
    written = threading.Event()
    failures: list[BaseException] = []

    def write() -> None:
        try:
            for minute in range(1, 60):
                writer.write(batch_of(minute))
                if minute % 6 == 0:
                    writer.seal()
                if minute % 20 == 0:
                    writer.merge()
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            failures.append(error)
        finally:
            written.set()

    thread = threading.Thread(target=write)
    thread.start()
    seen = 0
    try:
        while True:
            done = written.is_set()
            frame = reader.read("gpu", window(0, 90), fields=["power_watts"], every=MINUTE, by=[], aggregate="count")
            assert (frame["power_watts"] == ROWS).all()
            assert frame["time"].tolist() == [at(m) for m in range(len(frame))]
            assert len(frame) >= seen
            seen = len(frame)
            if done:
                break
    finally:
        thread.join()
    assert not failures
    assert seen == 60
    if other_process:
        reader.close()
    writer.close()


def test_a_reader_takes_back_what_a_killed_process_left_half_done(tmp_path: Path) -> None:
    """A restore switches the journal of what it replaces; killed in the middle, no reader would open it again."""
    with closing(EmbeddedStore(StoreSettings(path=tmp_path / "store"))) as store:
        store.write(slice_rows([1], ["a"], busy_ratio=[0.5]))
    with closing(sqlite3.connect(tmp_path / "store" / "store.db", isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode=DELETE")
        db.execute("PRAGMA cache_size=1")  # so that the file itself is written to before the commit
        db.execute("BEGIN IMMEDIATE")
        db.execute("CREATE TABLE half AS SELECT zeroblob(100000)")
        shutil.copytree(tmp_path / "store", tmp_path / "killed")
        db.execute("ROLLBACK")
    assert (tmp_path / "killed" / "store.db-journal").stat().st_size > 0
    with closing(EmbeddedStore(StoreSettings(path=tmp_path / "killed"), read_only=True)) as store:
        assert store.read("slice", window(0, 9))["busy_ratio"].tolist() == [0.5]
    assert list(verify_store(StoreSettings(path=tmp_path / "killed"))) == []
