"""A collector that is killed while it writes and ships; an answer that is longer than memory should be."""

from __future__ import annotations

import io
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from collector.conformance import slice_rows, window
from collector.influx.answers import read_answer
from collector.influx.store import InfluxStore
from collector.settings import InfluxSettings, StoreSettings
from tests.collector import influx_double

WRITER = """
import sys
from pathlib import Path
from tests.collector.test_influx_crash import batch_of, open_store

with open_store(sys.argv[1], Path(sys.argv[2])) as store:
    for minute in range(int(sys.argv[3]), 10**6):
        store.write(batch_of(minute))
        print(minute, flush=True)
        if minute % 3 == 0:
            store.ship()
"""
ROWS = 10


def batch_of(minute: int) -> object:
    names = [f"s{i}" for i in range(ROWS)]
    return slice_rows([minute] * ROWS, names, steps_count=[float(minute * ROWS + i) for i in range(ROWS)])


def open_store(url: str, folder: Path) -> closing[InfluxStore]:
    settings = InfluxSettings(url=url, batch_rows=7, raw_days=3000, minute_days=3000)  # the suite's rows are old
    return closing(InfluxStore(settings, StoreSettings(path=folder, seal_rows=1000)))


def run_and_kill(url: str, folder: Path, first: int, acknowledged: int) -> int:
    """Run a writer until it has acknowledged so many batches, kill it in mid-write, return the last acknowledged."""
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(  # noqa: S603 - our own interpreter and script
        [sys.executable, "-c", WRITER, url, str(folder), str(first)],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(root), "PATH": ""},
    ) as process:
        assert process.stdout is not None
        last = first - 1
        for line in process.stdout:
            last = int(line)
            if last - first >= acknowledged:
                break
        process.kill()
        for line in process.stdout:
            last = int(line) if line.endswith("\n") else last
    return last


def test_kill_while_shipping_loses_and_repeats_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    first = 0
    with influx_double.running("2.8.0") as double:
        for acknowledged in (20, 33):
            last = run_and_kill(double.url, folder, first, acknowledged)
            assert last >= first + acknowledged
            with open_store(double.url, folder) as store:
                kept = store.local.read("slice", window(0, last + 10), fields=["steps_count"])
            first = len(kept) // ROWS
            assert first >= last + 1
        assert len(double.rows("trimtab", "slice")) < len(kept)  # it was killed with rows on their way
        with open_store(double.url, folder) as store:
            store.ship()
        there = [fields["steps_count"] for _, _, fields in double.rows("trimtab", "slice")]
        assert sorted(there) == [float(n) for n in range(first * ROWS)]
        hours = double.rows("trimtab_hour", "slice")
        assert sum(float(fields["rows_count"]) for _, _, fields in hours) == first * ROWS


def test_a_long_answer_is_read_as_it_comes() -> None:
    class Endless(io.RawIOBase):
        """An answer of 64 MB that nobody holds."""

        def __init__(self) -> None:
            self.given = 0
            self._rest = b"name,tags,time,steps_count\n"

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: object) -> int:
            view = memoryview(buffer)  # type: ignore[arg-type]
            if self.given < 64 * 2**20:
                self._rest += b'slice,"node=a%2Cb,gpu=GPU-1",1767571200000,12.5\n' * (len(view) // 48 + 1)
            text, self._rest = self._rest[: len(view)], self._rest[len(view) :]
            view[: len(text)] = text
            self.given += len(text)
            return len(text)

    source = Endless()
    tables = read_answer(io.BufferedReader(source, 1 << 18), ("node", "gpu"), ("steps_count",))
    first = next(tables)
    assert first.slice(0, 1).to_pylist() == [{"t": 1767571200000, "node": "a,b", "gpu": "GPU-1", "steps_count": 12.5}]
    assert source.given < 16 * 2**20  # the reader is a few blocks ahead
    assert sum(table.num_rows for table in tables) > 1_000_000
