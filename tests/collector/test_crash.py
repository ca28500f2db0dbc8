"""A collector that dies anywhere between reading and remembering: no growth of a counter is ever stored twice."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.batch import Batch
from collector.clock import VirtualClock
from collector.collect import Collector
from collector.errors import UnreachableError
from collector.plugins import SourceContext
from collector.scrape import ScrapeSource
from collector.settings import SourceSettings, StoreSettings, TargetSettings
from collector.sharding import Shard
from collector.store import EmbeddedStore
from collector.window import Window

START = datetime(2026, 1, 5, tzinfo=UTC)
LABELS = 'gpu="0",UUID="GPU-0",device="nvidia0",modelName="NVIDIA A100-SXM4-80GB"'
CLUSTERS = ("east", "west")
FIELDS = ("energy_joules", "ecc_uncorrected_count")


class KilledError(BaseException):
    """The process is gone."""


class Fleet:
    """Two clusters of one card each, whose counters grow from minute to minute."""

    def __init__(self) -> None:
        self.minute = -1
        self.counts = dict.fromkeys(CLUSTERS, 1000)

    @property
    def now(self) -> datetime:
        return START + timedelta(minutes=self.minute)

    def text(self, cluster: str) -> str:
        count = self.counts[cluster]
        return (
            f"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{LABELS}}} {count * 1000}\n"
            f"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{{{LABELS}}} {count}\n"
            f"DCGM_FI_DEV_GPU_UTIL{{{LABELS}}} 5\n"
        )

    def grow(self, *growth: int) -> None:
        self.minute += 1
        for cluster, by in zip(CLUSTERS, growth, strict=True):
            self.counts[cluster] += by

    def collector(self, store: Any, path: Path) -> Collector:
        sources = [
            ScrapeSource(
                SourceSettings(targets=(TargetSettings(url="http://cards/metrics", node="node-a"),)),
                SourceContext(cluster=cluster),
                fetch=lambda _, cluster=cluster: self.text(cluster),
            )
            for cluster in CLUSTERS
        ]
        return Collector(sources, store, VirtualClock(self.now), 60.0, state_path=path)


class Steps:
    """Kills the process at its n-th step: before and after each write to the store, and each file's replacement."""

    def __init__(self, until: int) -> None:
        self.left = until

    def step(self) -> None:
        if self.left == 0:
            raise KilledError
        self.left -= 1


@contextmanager
def killing(store: Any, until: int) -> Iterator[Steps]:
    """Kill in the block, at the n-th step if there are so many."""
    steps, write, replace = Steps(until), store.write, Path.replace

    def stepped_write(batch: Batch) -> None:
        steps.step()
        write(batch)
        steps.step()

    def stepped_replace(path: Path, target: Path) -> Path:
        steps.step()
        replaced = replace(path, target)
        steps.step()
        return replaced

    patched = patch.object(store, "write", stepped_write), patch.object(Path, "replace", stepped_replace)
    with patched[0], patched[1], suppress(KilledError):
        yield steps


def told(store: Any, fleet: Fleet) -> dict[str, list[tuple[int, float, float]]]:
    """Return minute, joules and errors of each row of each cluster."""
    frame = store.read("gpu", Window(START, fleet.now + timedelta(minutes=1)))
    result: dict[str, list[tuple[int, float, float]]] = {cluster: [] for cluster in CLUSTERS}
    for row in frame.itertuples():
        minute = int((row.time - START) / timedelta(minutes=1))
        result[row.cluster].append((minute, row.energy_joules, row.ecc_uncorrected_count))
    return result


def test_death_at_each_step_loses_at_most_what_no_row_tells(tmp_path: Path) -> None:
    """Of a cycle that was not committed the next one tells; one that was is not told again."""
    deaths, until = 0, 0
    while True:
        fleet, folder = Fleet(), tmp_path / str(until)
        store = EmbeddedStore(StoreSettings(path=folder), clock=VirtualClock(START))
        loop = fleet.collector(store, folder / "collector.json")
        for _ in range(3):
            fleet.grow(7, 11)
            loop.run_once(fleet.now)
        fleet.grow(7, 11)
        with killing(store, until) as steps:
            loop.run_once(fleet.now)
        committed = {cluster: rows[-1][0] == 3 for cluster, rows in told(store, fleet).items()}
        loop = fleet.collector(store, folder / "collector.json")
        fleet.grow(7, 11)
        loop.run_once(fleet.now)
        for cluster, rows in told(store, fleet).items():
            by = dict(zip(CLUSTERS, (7, 11), strict=True))[cluster]
            expected = [(0, math.nan), (1, by), (2, by)]
            if committed[cluster]:
                expected += [(3, by), (4, by)]
            elif not any(committed.values()):
                expected += [(4, 2 * by)]
            else:  # the other cluster's rows are newer than the counters from before: this one's growth is a gap
                expected += [(4, by)]
            joules_and_errors = [(minute, growth, growth) for minute, growth in expected]
            np.testing.assert_allclose(rows, joules_and_errors, err_msg=f"step {until}, {cluster}")
        store.close()
        if steps.left > 0:
            break
        deaths += 1
        until += 1
    assert deaths >= 8  # two renames and two commits, each before and after


class RowStore:
    """Keeps rows of cards in memory."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def write(self, batch: Batch) -> None:
        self.rows += batch.rows["gpu"].to_pylist()

    def written_until(self) -> datetime | None:
        return max((row["time"] for row in self.rows), default=None)


DAMAGE = st.sampled_from(["none"] * 4 + ["torn", "torn before", "state of before", "store of before", "store lost"])
MINUTE = st.tuples(
    st.integers(0, 50), st.integers(0, 50), st.one_of(st.none(), st.integers(0, 12)), st.booleans(), DAMAGE
)


def harm(how: str, folder: Path, store: RowStore, fleet: Fleet) -> None:
    """Do to the files or the store what disks and operators do."""
    counters, before = folder / "collector.counters.json", folder / "collector.counters.before.json"
    if how == "torn" and counters.exists():
        counters.write_bytes(counters.read_bytes()[:-3])
    elif how == "torn before" and before.exists():
        before.write_bytes(b"")
    elif how == "state of before" and (folder / "saved").exists():
        for file in (folder / "saved").iterdir():
            shutil.copy(file, folder / file.name)
    elif how == "store of before":
        store.rows = [row for row in store.rows if row["time"] < fleet.now - timedelta(minutes=3)]
    elif how == "store lost":
        store.rows = []


@settings(max_examples=25, deadline=None)
@given(minutes=st.lists(MINUTE, min_size=2, max_size=12))
def test_the_store_never_tells_more_growth_than_there_was(
    minutes: list[tuple[int, int, int | None, bool, str]],
) -> None:
    """The law: what all rows tell is the true growth, or less by rows that are missing or tell none."""
    with TemporaryDirectory() as name:
        folder, fleet, store = Path(name), Fleet(), RowStore()
        path = folder / "collector.json"
        loop = fleet.collector(store, path)
        ever: dict[str, dict[datetime, int]] = {cluster: {} for cluster in CLUSTERS}
        for east, west, until, restart, how in minutes:
            fleet.grow(east, west)
            for cluster, by in zip(CLUSTERS, (east, west), strict=True):
                ever[cluster][fleet.now] = by
            with killing(store, 99 if until is None else until) as steps:
                loop.run_once(fleet.now)
            if steps.left == 0 or restart or how != "none":
                harm(how, folder, store, fleet)
                loop = fleet.collector(store, path)
            elif not (folder / "saved").exists():
                (folder / "saved").mkdir()
                for file in folder.glob("*.json"):
                    shutil.copy(file, folder / "saved")
        for cluster in CLUSTERS:
            rows = {row["time"]: row for row in store.rows if row["cluster"] == cluster}
            for field in FIELDS:
                values = {at: row.get(field) for at, row in rows.items()}
                values = {at: None if value is None or math.isnan(value) else value for at, value in values.items()}
                telling = [at for at, value in values.items() if value is not None]
                total = sum(values[at] for at in telling)
                true = sum(ever[cluster].values())
                untold = sum(by for at, by in ever[cluster].items() if at not in telling)
                assert true - untold <= total <= true


def test_a_state_older_than_the_store_is_left_behind_with_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fleet, store, path = Fleet(), RowStore(), tmp_path / "collector.json"
    fleet.grow(0, 0)
    loop = fleet.collector(store, path)
    loop.run_once(fleet.now)
    store.rows.append({**store.rows[0], "time": fleet.now + timedelta(minutes=1)})
    fleet.collector(store, path)
    assert "the store has rows up to 2026-01-05T00:01:00+00:00; they begin anew, a gap shows" in caplog.text


def test_a_second_cycle_on_the_same_instant_leaves_its_growth_to_the_next(tmp_path: Path) -> None:
    fleet, store = Fleet(), RowStore()
    loop = fleet.collector(store, tmp_path / "collector.json")
    fleet.grow(0, 0)
    loop.run_once(fleet.now)
    fleet.counts["east"] += 30
    loop.run_once(fleet.now + timedelta(seconds=20))  # the same minute
    fleet.grow(12, 0)
    loop.run_once(fleet.now)
    joules = [row.get("energy_joules") for row in store.rows if row["cluster"] == "east"]
    assert joules == [None, None, pytest.approx(42.0)]


def test_parts_of_the_targets_remember_apart(tmp_path: Path) -> None:
    """A part that others read in between would tell again what those told."""
    from dashboard.cli.collecting import state_path  # noqa: PLC0415  the command line loads slowly

    assert state_path(tmp_path, None) == tmp_path / "collector.json"
    assert state_path(tmp_path, Shard.parse("2/5")) == tmp_path / "collector.2-of-5.json"


def test_a_store_that_refuses_loses_the_growth_of_its_cycle_and_no_more(tmp_path: Path) -> None:
    class Refusing(RowStore):
        full = False

        def write(self, batch: Batch) -> None:
            if self.full:
                raise UnreachableError("the disk is full")
            super().write(batch)

    fleet, store, path = Fleet(), Refusing(), tmp_path / "collector.json"
    loop = fleet.collector(store, path)
    for full in (False, True, False):
        store.full = full
        fleet.grow(5, 5)
        if full:
            with pytest.raises(UnreachableError):
                loop.run_once(fleet.now)
        else:
            loop.run_once(fleet.now)
    joules = [row.get("energy_joules") for row in store.rows if row["cluster"] == "east"]
    assert joules == [None, pytest.approx(5.0)]
