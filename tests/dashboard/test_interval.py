"""Imported logs beside a collector's rows: neither changes the length of the other's cycle."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from collector.batch import Batch, Fact, Subject, make_rows
from collector.importing import ImportOptions, import_files
from collector.settings import StoreSettings
from collector.store import EmbeddedStore
from collector.window import Window
from dashboard.cli.context import interval_of

NOON = datetime(2026, 4, 1, 12, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    opened = EmbeddedStore(StoreSettings(path=tmp_path / "store"))
    yield opened
    opened.close()


def collect(store: EmbeddedStore) -> None:
    count = 30
    times = int(NOON.timestamp() * 1000) + np.arange(count) * 60_000
    tags = {"cluster": ["default"] * count, "node": ["n"] * count, "gpu": ["GPU-9"] * count}
    fields = {"busy_ratio": np.full(count, 0.5), "source_age_seconds": np.zeros(count)}
    facts = [Fact(Subject("cluster", "default"), "interval_seconds", "60", NOON)]
    store.write(Batch({"gpu": make_rows("gpu", times, tags, fields)}, facts))


def import_log(store: EmbeddedStore, folder: Path, begin: datetime, step: int) -> None:
    lines = [f"{begin + timedelta(seconds=step * i):%Y/%m/%d %H:%M:%S}, GPU-1, 5 %" for i in range(100)]
    path = folder / "box.csv"
    path.write_text("timestamp, uuid, utilization.gpu [%]\n" + "\n".join(lines))
    (report,) = import_files([path], store, ImportOptions(zone=UTC)).files
    assert report.accepted == 100


@pytest.mark.parametrize("late", [timedelta(minutes=-5), timedelta(minutes=10), timedelta(days=1)])
def test_an_import_leaves_the_cycle_of_collected_rows(store: EmbeddedStore, tmp_path: Path, late: timedelta) -> None:
    collect(store)
    import_log(store, tmp_path, NOON + late, 1)
    assert interval_of(store, 30.0) == 60.0
    assert interval_of(store, 30.0, Window(NOON, NOON + timedelta(minutes=30))) == 60.0


def test_a_window_of_logs_alone_has_the_step_of_its_rows(store: EmbeddedStore, tmp_path: Path) -> None:
    collect(store)
    later = NOON + timedelta(days=1)
    import_log(store, tmp_path, later, 5)
    assert interval_of(store, 30.0, Window(later, later + timedelta(hours=1))) == 5.0
    assert interval_of(store, 30.0, Window(later, later + timedelta(days=9))) == 5.0
    assert interval_of(store, 30.0, Window(later + timedelta(days=1), later + timedelta(days=2))) == 30.0


def test_steps_longer_than_an_hour_are_seen(store: EmbeddedStore, tmp_path: Path) -> None:
    import_log(store, tmp_path, NOON, 7200)
    assert interval_of(store, 30.0) == 7200.0
