"""What leaves the store, in which order, and what never does."""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from collector.batch import Batch, Fact, Subject
from collector.clock import VirtualClock
from collector.conformance import DAY, HOUR, START, slice_rows
from collector.settings import StoreSettings
from collector.store import EmbeddedStore
from collector.store.info import describe_store
from collector.store.outbox import Outbox
from collector.window import Window

SLICE = Subject("slice", "lab", "node-a", "GPU-1", "a")


class Full:
    """A store of three sealed days, 96 rows each, whose limit can be set after the fact."""

    def __init__(self, folder: Path, every_minutes: float = 15) -> None:
        self.folder = folder
        self.clock = VirtualClock(START)
        rng = np.random.default_rng(3)
        store = EmbeddedStore(StoreSettings(path=folder), clock=self.clock)
        self.a_day = round(1440 / every_minutes)
        for day in range(3):
            minutes = (day * 1440 + np.arange(self.a_day) * every_minutes).tolist()
            batch = slice_rows(minutes, ["a"] * self.a_day, flops_per_second=rng.random(self.a_day) * 1e12)
            batch.facts = [Fact(Subject("cluster", "lab"), "interval_seconds", "900", START)]
            store.write(batch)
            store.seal()
        store.close()

    def sizes(self) -> dict[str, list[int]]:
        """Bytes of live files by tier, oldest first."""
        found: dict[str, list[int]] = {"raw": [], "minute": [], "hour": []}
        for tier, path in self.query("SELECT tier, path FROM seg WHERE state = 'live' ORDER BY t_min"):
            found[str(tier)].append((self.folder / str(path)).stat().st_size)
        return found

    def used(self) -> int:
        """Bytes that count: used pages of the catalogue, and each live file once."""
        ((pages,), (free,), (page,)) = (
            self.query(f"PRAGMA {n}")[0] for n in ("page_count", "freelist_count", "page_size")
        )
        paths = [self.folder / str(p) for (p,) in self.query("SELECT path FROM seg WHERE state = 'live'")]
        files = {path.stat().st_ino: path.stat().st_size for path in paths}
        return (int(str(pages)) - int(str(free))) * int(str(page)) + sum(files.values())

    def query(self, statement: str) -> list[tuple[object, ...]]:
        with sqlite3.connect(self.folder / "store.db") as db:
            rows = db.execute(statement).fetchall()
        db.close()
        return rows

    def shrink(self, allowed: int) -> dict[str, int]:
        """Maintain the store under a limit; return how many files a tier has then."""
        store = EmbeddedStore(StoreSettings(path=self.folder, disk_max_bytes=allowed), clock=self.clock)
        store.maintain()
        store.close()
        return {tier: len(sizes) for tier, sizes in self.sizes().items()}


@pytest.fixture
def full(tmp_path: Path) -> Full:
    """Rows on the minute: the minute tier is the raw files under a second name."""
    return Full(tmp_path / "store")


@pytest.fixture
def fine(tmp_path: Path) -> Full:
    """Two rows a minute: each tier has files of its own."""
    return Full(tmp_path / "store", every_minutes=0.5)


def test_within_the_limit_nothing_goes(full: Full) -> None:
    assert full.shrink(full.used()) == {"raw": 3, "minute": 3, "hour": 3}
    assert full.shrink(0) == {"raw": 3, "minute": 3, "hour": 3}


def test_raw_rows_go_first_then_minutes_then_hours_oldest_first(fine: Full) -> None:
    raw, minute, hour = fine.sizes().values()
    assert fine.shrink(fine.used() - raw[0]) == {"raw": 2, "minute": 3, "hour": 3}
    assert fine.shrink(fine.used() - raw[1] - raw[2] - minute[0] + 1) == {"raw": 0, "minute": 2, "hour": 3}
    store = EmbeddedStore(StoreSettings(path=fine.folder), clock=fine.clock)
    whole = Window(START, START + 3 * DAY)
    counts = store.read("slice", whole, every=HOUR, fields=["flops_per_second"], aggregate="count")
    assert counts["flops_per_second"].tolist() == [120.0] * 72
    assert store.read("slice", whole).empty
    store.close()
    assert fine.shrink(fine.used() - minute[1] - minute[2] - hour[0]) == {"raw": 0, "minute": 0, "hour": 2}


def test_files_that_share_their_room_go_together(full: Full) -> None:
    raw, minute, _ = full.sizes().values()
    assert raw == minute
    assert full.shrink(full.used() - 1) == {"raw": 2, "minute": 2, "hour": 3}
    assert describe_store(StoreSettings(path=full.folder)).lost_rows == 0


def test_rows_that_were_not_shipped_go_last_counted_and_alarmed(fine: Full, caplog: pytest.LogCaptureFixture) -> None:
    settings = StoreSettings(path=fine.folder)
    box = Outbox(settings, "other side")
    box.advance(fine.a_day + 1)  # the first day and the fact
    raw = fine.sizes()["raw"]
    assert fine.shrink(fine.used() - raw[0]) == {"raw": 2, "minute": 3, "hour": 3}
    tiers = sum(sum(sizes) for tier, sizes in fine.sizes().items() if tier != "raw")
    assert fine.shrink(fine.used() - tiers) == {"raw": 2, "minute": 0, "hour": 0}
    assert "not shipped" not in caplog.text
    with caplog.at_level(logging.ERROR):
        assert fine.shrink(fine.used() - 1) == {"raw": 1, "minute": 0, "hour": 0}
    assert f"{fine.a_day} rows that were not shipped yet are dropped" in caplog.text
    assert describe_store(settings).lost_rows == fine.a_day
    store = EmbeddedStore(settings, read_only=True)
    events = store.events(Window(START, START + DAY))
    assert events[["kind", "cluster", "code", "severity"]].to_numpy().tolist() == [
        ["cluster", "lab", "store_full", "critical"]
    ]
    store.close()
    rest = [s.rows["slice"].num_rows for s in iter(lambda: _next(box), None) if "slice" in s.rows]
    assert sum(rest) == fine.a_day  # the third day is still shipped
    box.close()


def _next(box: Outbox) -> object:
    shipment = box.rows_after(box.cursor, 1000)
    if shipment is not None:
        box.advance(shipment.through)
    return shipment


def test_facts_that_explain_no_row_any_more_go(tmp_path: Path) -> None:
    settings = StoreSettings(path=tmp_path / "store", raw_days=1, minute_days=2, hour_days=4)
    store = EmbeddedStore(settings, clock=VirtualClock(START))
    names = ("tenant", "pod", "provenance:sm_active_ratio")
    for end, value in ((1, "old"), (3, "new")):
        who = Subject("slice", "lab", "node-a", "GPU-1", value)
        store.write(Batch(facts=[Fact(who, name, value, START) for name in names]))
        store.write(Batch(facts=[Fact(who, name, None, START + end * DAY) for name in names]))
    store.write(Batch(facts=[Fact(SLICE, "pod", "ns/p", START)]))

    def kept(day: float) -> list[list[str]]:
        store.retain(START + day * DAY)
        facts = store.facts()
        return [list(pair) for pair in zip(facts["slice"], facts["name"], strict=True)]

    assert len(kept(3)) == 7
    assert kept(3.1) == [
        ["a", "pod"], ["new", "pod"], ["new", "provenance:sm_active_ratio"], ["new", "tenant"], ["old", "tenant"],
    ]  # fmt: skip
    assert kept(5.1) == [["a", "pod"], ["new", "tenant"]]
    assert kept(7.1) == [["a", "pod"]]
    store.close()
