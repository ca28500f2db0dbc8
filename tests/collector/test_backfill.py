"""A backfill writes what the store lacks, changes nothing that is there, and may be repeated or stopped."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from collector.backfill import FillReport, absent_only, fill
from collector.batch import Batch, make_rows
from collector.clock import to_ms
from collector.errors import UnreachableError
from collector.protocols import SourceDescription
from collector.schema import MEASUREMENTS
from collector.settings import StoreSettings
from collector.store import EmbeddedStore
from collector.window import Window

START = datetime(2026, 1, 5, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
NAN = float("nan")


def row(minute: int, tenant: str = "team", **fields: float) -> Batch:
    tags = {"cluster": ["c"], "node": ["n"], "gpu": ["g"], "slice": ["s"], "tenant": [tenant], "workload": ["w"]}
    values = {name: np.array([value]) for name, value in fields.items()}
    return Batch(rows={"slice": make_rows("slice", [to_ms(START + minute * MINUTE)], tags, values)})


class Past:
    """A source with a past: some batches, perhaps an error after them."""

    def __init__(self, batches: list[Batch], error: Exception | None = None) -> None:
        self._batches, self._error = batches, error

    def poll(self, now: datetime) -> Batch:
        raise AssertionError(f"nobody asks for {now}")

    def backfill(self, start: datetime, end: datetime) -> Iterator[Batch]:
        yield from self._batches
        if self._error is not None:
            raise self._error

    def describe(self) -> SourceDescription:
        return SourceDescription("past", "past", (), 60.0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    opened = EmbeddedStore(StoreSettings(path=tmp_path / "store"))
    yield opened
    opened.close()


WINDOW = Window(START, START + 60 * MINUTE)


def filled(store: EmbeddedStore, batches: list[Batch], stop: threading.Event | None = None) -> FillReport:
    return fill(Past(batches), store, WINDOW, stop or threading.Event())


def read(store: EmbeddedStore) -> list[tuple[object, ...]]:
    frame = store.read("slice", WINDOW, fields=["busy_ratio", "memory_used_bytes"])
    frame["minute"] = (frame["time"] - START) // MINUTE
    return [tuple(one) for one in frame[["minute", "tenant", "busy_ratio", "memory_used_bytes"]].to_numpy()]


def test_what_is_absent_is_filled_and_what_is_there_stays(store: EmbeddedStore) -> None:
    store.write(row(1, "owner", busy_ratio=0.5))
    report = filled(
        store,
        [
            row(0, busy_ratio=0.1, memory_used_bytes=10.0),
            row(1, "other", busy_ratio=0.9, memory_used_bytes=11.0),
            row(2, busy_ratio=0.2),
        ],
    )
    assert (report.rows, report.until) == (3, START + 2 * MINUTE)
    rows = read(store)
    assert rows[:2] == [(0, "team", 0.1, 10.0), (1, "owner", 0.5, 11.0)]
    assert rows[2][:3] == (2, "team", 0.2)


def test_a_repeated_backfill_writes_nothing_new(store: EmbeddedStore) -> None:
    batches = [row(n, busy_ratio=n / 100) for n in range(5)]
    assert filled(store, batches).rows == 5
    before = read(store)
    again = filled(store, batches)
    assert (again.rows, again.until) == (0, START + 4 * MINUTE)
    assert [one[:3] for one in read(store)] == [one[:3] for one in before]


def test_it_stops_between_cycles_and_keeps_what_was_read(store: EmbeddedStore) -> None:
    stop = threading.Event()
    stop.set()
    assert filled(store, [row(0, busy_ratio=0.1), row(1, busy_ratio=0.1)], stop).rows == 1
    broken = Past([row(1, busy_ratio=0.2)], UnreachableError("gone"))
    with pytest.raises(UnreachableError, match="gone"):
        fill(broken, store, WINDOW, threading.Event())
    assert [one[0] for one in read(store)] == [0, 1]


def test_a_source_without_a_past_says_so(store: EmbeddedStore) -> None:
    told: list[FillReport] = []
    report = fill(Past([]), store, WINDOW, threading.Event(), told.append)
    assert (report.rows, report.until) == (0, None)
    assert told == [report]


def test_progress_is_told_after_each_write(store: EmbeddedStore) -> None:
    until: list[datetime | None] = []
    batches = [row(n % 60, busy_ratio=0.1) for n in range(60)] + [row(59, memory_used_bytes=1.0)]
    fill(Past(batches), store, WINDOW, threading.Event(), lambda report: until.append(report.until))
    assert until == [START + 59 * MINUTE] * 2


def test_fields_that_some_rows_lack_are_absent_there(store: EmbeddedStore) -> None:
    filled(store, [row(0, busy_ratio=0.1), row(1, memory_used_bytes=5.0)])
    first, second = read(store)
    assert first[2] == 0.1
    assert np.isnan(first[3])
    assert np.isnan(second[2])
    assert second[3] == 5.0


def test_a_row_with_nothing_new_is_left_out(store: EmbeddedStore) -> None:
    store.write(row(0, busy_ratio=0.5))
    known = store.read("slice", WINDOW)
    new: pa.Table = row(0, busy_ratio=0.7, memory_used_bytes=NAN).rows["slice"]
    assert absent_only(new, known, MEASUREMENTS["slice"]).num_rows == 0
