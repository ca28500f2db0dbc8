"""Importing into a store: all or nothing under --strict, twice is once, and a broken import is taken up again."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import collector.importing.log
from collector.batch import Batch
from collector.errors import UnreachableError
from collector.importing import ImportOptions, import_files
from collector.settings import StoreSettings
from collector.store import EmbeddedStore
from collector.window import Window

ALL = Window(datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC))
START = datetime(2026, 5, 1, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    opened = EmbeddedStore(StoreSettings(path=tmp_path / "store"))
    yield opened
    opened.close()


def unstamped(rows: int) -> str:
    return "uuid, power.draw [W]\n" + "".join(f"GPU-1, {n % 500} W\n" for n in range(rows))


def test_an_unstamped_log_keeps_the_times_that_it_got(tmp_path: Path, store: EmbeddedStore) -> None:
    path = tmp_path / "n1.csv"
    path.write_text(unstamped(3))
    os.utime(path, (START.timestamp(), START.timestamp()))
    (report,) = import_files([path], store, ImportOptions()).files
    assert report.status == "imported"
    before = store.read("gpu", ALL)
    assert before["time"].iloc[0] == START
    os.utime(path, (START.timestamp() + 99, START.timestamp() + 99))
    again = import_files([path], store, ImportOptions(step_seconds=7.0, start=START + timedelta(days=1)))
    assert again.files[0].status == "imported before"
    assert store.read("gpu", ALL).equals(before)


def test_strict_refuses_guessed_times_and_writes_nothing(tmp_path: Path, store: EmbeddedStore) -> None:
    path = tmp_path / "n1.csv"
    path.write_text(unstamped(3))
    (report,) = import_files([path], store, ImportOptions(strict=True)).files
    assert report.reason.startswith("--strict: its rows carry no time")
    assert store.span("gpu") is None
    assert store.facts().empty
    (report,) = import_files([path], store, ImportOptions(strict=True, start=START, step_seconds=2.0)).files
    assert (report.status, report.accepted) == ("imported", 3)
    path.write_text(unstamped(2) + "GPU-1, ERR!\n")
    (report,) = import_files([path], store, ImportOptions(strict=True, start=START, step_seconds=2.0)).files
    assert report.status == "rejected"
    assert len(store.read("gpu", ALL)) == 3


def test_strict_takes_what_names_its_cards_by_number_as_nothing_is_guessed(
    tmp_path: Path, store: EmbeddedStore
) -> None:
    (tmp_path / "n1.txt").write_text("#Date Time gpu sm\n 20260401 10:00:00 0 80\n")
    (report,) = import_files([tmp_path / "n1.txt"], store, ImportOptions(strict=True, zone=UTC)).files
    assert (report.status, report.warnings) == (
        "imported",
        ["cards are named by node and index: the log has no UUID"],
    )
    rows = "2026/04/01 10:00:00, 5 W\n2026/04/01 10:00:01, 5 W\n"
    (tmp_path / "n2.csv").write_text("timestamp, power.draw [W]\n" + rows)
    (report,) = import_files([tmp_path / "n2.csv"], store, ImportOptions(strict=True, zone=UTC)).files
    assert report.reason == "--strict: the log names no card: all rows are taken for one card, index 0"
    (report,) = import_files([tmp_path / "n2.csv"], store, ImportOptions(strict=True, zone=UTC, gpus=1)).files
    assert report.status == "imported"


def test_an_import_that_broke_off_is_taken_up_with_the_same_times(
    tmp_path: Path, store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collector.importing.cards.CHUNK_ROWS", 10)
    path = tmp_path / "n1.csv"
    path.write_text(unstamped(35))
    os.utime(path, (START.timestamp(), START.timestamp()))
    write, written = store.write, []

    def fails_at_the_third(batch: Batch) -> Any:
        written.append(batch)
        if len(written) == 3:
            raise UnreachableError("the disk is full")
        return write(batch)

    monkeypatch.setattr(store, "write", fails_at_the_third)
    with pytest.raises(UnreachableError):
        import_files([path], store, ImportOptions())
    assert len(store.read("gpu", ALL)) == 20
    monkeypatch.setattr(store, "write", write)
    os.utime(path, (START.timestamp() + 99, START.timestamp() + 99))  # touched, or copied, meanwhile
    (report,) = import_files([path], store, ImportOptions()).files
    assert (report.status, report.accepted) == ("imported", 35)
    rows = store.read("gpu", ALL)
    assert rows["time"].tolist() == [START + timedelta(seconds=n) for n in range(35)]
    assert rows["power_watts"].tolist() == list(range(35))
    assert import_files([path], store, ImportOptions()).files[0].status == "imported before"


def test_a_fault_in_the_middle_keeps_what_was_read(
    tmp_path: Path, store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collector.importing.cards.CHUNK_ROWS", 10)
    path = tmp_path / "n1.csv"
    path.write_text(unstamped(35))
    take, calls = collector.importing.cards.CardRows.take, []

    def broken(self: Any) -> Batch:
        calls.append(1)
        if len(calls) == 3:
            raise ArithmeticError("unforeseen")
        return take(self)

    monkeypatch.setattr(collector.importing.cards.CardRows, "take", broken)
    (report,) = import_files([path], store, ImportOptions(start=START, step_seconds=1.0)).files
    assert report.status == "imported"
    assert any("unforeseen" in reason for reason in report.rejected)
    assert len(store.read("gpu", ALL)) == 20


def test_a_big_log_is_read_in_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collector.importing.cards.CHUNK_ROWS", 200)
    monkeypatch.setattr("collector.importing.tables.SURVEYED_ROWS", 200)
    monkeypatch.setattr("collector.importing.text._PIECE", 4096)
    monkeypatch.setattr("collector.importing.text._HEAD", 4096)
    peaks = []
    for rows in (2_000, 8_000):
        path = tmp_path / f"{rows}.csv"
        path.write_text(unstamped(rows))
        store = EmbeddedStore(StoreSettings(path=tmp_path / f"store{rows}"))
        monkeypatch.setattr(store, "write", lambda batch: None)
        tracemalloc.start()
        (report,) = import_files([path], store, ImportOptions(start=START, step_seconds=1.0)).files
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        store.close()
        assert report.accepted == rows
    assert peaks[1] < 1.2 * peaks[0]
