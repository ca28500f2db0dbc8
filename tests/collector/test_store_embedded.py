# ruff: noqa: S608 - statements are constants of this file
"""The embedded store's own promises: sealing, tiers, merging, retention, late rows, locks, refusals."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collector.batch import Batch, Event, Fact, Reject, Severity, Subject, make_rows
from collector.clock import VirtualClock, to_ms
from collector.conformance import DAY, HOUR, MINUTE, START, at, slice_rows, window
from collector.errors import ConfigurationError, UnreachableError
from collector.settings import StoreSettings
from collector.store import EmbeddedStore, FrameStore, catalogue, export_rows, sealing, workshop
from collector.store.engine import Engine
from collector.store.info import describe_store
from collector.window import Window

NAMES = ["a", "b", "c"]


class Lab:
    """A store under a virtual clock, and a look into its catalogue."""

    def __init__(self, folder: Path, **changes: object) -> None:
        self.settings = StoreSettings.model_validate({"path": folder, **changes})
        self.clock = VirtualClock(START)
        self.store = EmbeddedStore(self.settings, clock=self.clock)

    def query(self, statement: str) -> list[tuple[object, ...]]:
        with sqlite3.connect(self.settings.path / "store.db") as db:
            rows = db.execute(statement).fetchall()
        db.close()
        return rows

    def execute(self, statement: str) -> None:
        with sqlite3.connect(self.settings.path / "store.db") as db:
            db.execute(statement)
        db.close()

    def files(self, tier: str = "raw", state: str = "live") -> list[str]:
        return [str(r[0]) for r in self.query(f"SELECT path FROM seg WHERE tier = '{tier}' AND state = '{state}'")]

    def hot_rows(self) -> int:
        return int(str(self.query("SELECT coalesce(sum(rows), 0) FROM hot")[0][0]))


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path / "store")
    yield made
    made.store.close()


def days_of_rows(first_day: int, days: int, *, every_minutes: int = 15, seed: int = 1) -> Batch:
    """Rows of three slices with gaps, for whole days."""
    rng = np.random.default_rng(seed)
    minutes = np.repeat(np.arange(first_day * 1440, (first_day + days) * 1440, every_minutes), len(NAMES))
    names = NAMES * (len(minutes) // len(NAMES))
    values = np.round(rng.random(len(minutes)), 4)
    values[rng.random(len(minutes)) < 0.05] = np.nan
    tenants = ["x" if name == "a" else "y" for name in names]
    return slice_rows(
        minutes.tolist(),
        names,
        tenant=tenants,
        busy_ratio=values.tolist(),
        steps_count=rng.integers(0, 99, len(minutes)),
    )


# Sealing


def test_rows_are_sealed_when_they_are_old_enough(lab: Lab) -> None:
    lab.store.write(slice_rows([0], ["a"], busy_ratio=[0.1]))
    lab.clock.advance(899)
    lab.store.maintain()
    assert (lab.hot_rows(), lab.files()) == (1, [])
    lab.clock.advance(1)
    lab.store.maintain()
    assert (lab.hot_rows(), len(lab.files())) == (0, 1)
    assert len(lab.files("minute")) == len(lab.files("hour")) == 1


def test_rows_are_sealed_by_a_thread_when_they_are_many(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "store", seal_rows=1000)
    lab.store.write(slice_rows(list(range(1000)), ["a"] * 1000, steps_count=np.ones(1000)))
    give_up = time.monotonic() + 60
    while lab.hot_rows() and time.monotonic() < give_up:
        time.sleep(0.01)
    assert lab.hot_rows() == 0
    assert len(lab.store.read("slice", window(0, 1000))) == 1000
    lab.store.close()


def test_rows_are_sealed_when_their_commits_are_many(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "SEAL_BLOBS", 3)
    for minute in range(3):
        lab.store.write(slice_rows([minute], ["a"], busy_ratio=[0.1]))
        lab.store.maintain()
    assert lab.hot_rows() == 0


def test_unsealed_rows_outlive_the_process(lab: Lab) -> None:
    lab.store.write(slice_rows([0, 1], ["a", "a"], busy_ratio=[0.1, 0.2]))
    lab.store.close()
    again = EmbeddedStore(lab.settings)
    assert again.read("slice", window(0, 9))["busy_ratio"].tolist() == [0.1, 0.2]
    again.close()


def test_sealed_rows_keep_their_numbers_in_the_order_of_writing(lab: Lab) -> None:
    lab.store.write(slice_rows([5, 5], ["b", "a"], busy_ratio=[0.1, 0.2]))
    lab.store.write(slice_rows([3], ["a"], busy_ratio=[0.3]))
    lab.store.seal()
    assert lab.query("SELECT seq_min, seq_max, rows FROM seg WHERE tier = 'raw'") == [(1, 3, 3)]
    frame = pd.read_parquet(lab.settings.path / lab.files()[0])
    assert frame[["slice", "seq"]].to_numpy().tolist() == [["a", 3], ["a", 2], ["b", 1]]


def test_a_seal_that_fails_leaves_rows_and_no_files(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.store.write(slice_rows([0], ["a"], busy_ratio=[0.1]))

    def lose(*_: object) -> None:
        raise UnreachableError("lost")

    monkeypatch.setattr(catalogue, "require_lock", lose)
    with pytest.raises(UnreachableError, match="lost"):
        lab.store.seal()
    assert lab.hot_rows() == 1
    assert list((lab.settings.path / "sealed").iterdir()) == []
    assert lab.store.read("slice", window(0, 9))["busy_ratio"].tolist() == [0.1]


def test_rows_of_several_days_are_sealed_by_the_day(lab: Lab) -> None:
    lab.store.write(days_of_rows(0, 3))
    lab.store.seal()
    assert len(lab.files()) == 3
    assert len(lab.store.read("slice", window(0, 3 * 1440))) == 3 * 96 * 3


# Tiers

AGGREGATES = ("mean", "min", "max", "sum", "count")


@pytest.mark.parametrize("aggregate", AGGREGATES)
@pytest.mark.parametrize("by", [None, ("tenant",), ()])
def test_unsealed_sealed_merged_and_tiers_answer_alike(
    tmp_path: Path, aggregate: str, by: tuple[str, ...] | None
) -> None:
    batches = [days_of_rows(0, 2), days_of_rows(2, 1, seed=2), slice_rows([100], ["a"], busy_ratio=[0.5])]
    whole = window(0, 3 * 1440)
    truth = FrameStore.of_batches(batches)
    lab = Lab(tmp_path / "store")
    for batch in batches[:2]:
        lab.store.write(batch)
    lab.store.seal()
    lab.store.write(batches[2])  # late, and unsealed
    answers = []
    for step in ("late", "sealed", "merged"):
        if step == "sealed":
            lab.store.seal()
        if step == "merged":
            lab.store.merge()
        hours = lab.store.read("slice", whole, by=by, every=HOUR, aggregate=aggregate)
        total = lab.store.read("slice", whole, by=by or (), aggregate=aggregate)
        assert hours.attrs["tier"] == "hour"
        answers.append((hours, total))
    expected = truth.read("slice", whole, by=by, every=HOUR, aggregate=aggregate, where={"gpu": "GPU-1"})
    for hours, _ in answers:
        pd.testing.assert_frame_equal(hours, expected, rtol=1e-12)
    short = [truth.read("slice", window(h * 60, h * 60 + 60), by=by or (), aggregate=aggregate) for h in (1, 50)]
    for part, hour in zip(short, (1, 50), strict=True):  # short windows are read from raw rows
        rows = answers[2][0]
        if by == ():
            pd.testing.assert_frame_equal(part, rows[rows["time"] == at(hour * 60)].reset_index(drop=True), rtol=1e-12)
    for _, total in answers[1:]:
        pd.testing.assert_frame_equal(total, answers[0][1], rtol=1e-12)
    truth.close()
    lab.store.close()


def test_raw_rows_answer_what_tiers_cannot(lab: Lab) -> None:
    lab.store.write(days_of_rows(0, 3))
    lab.store.seal()

    def tier(length_minutes: int, start: int = 0, **how: Any) -> str:
        return str(lab.store.read("slice", window(start, start + length_minutes), **how).attrs["tier"])

    assert tier(2880, every=HOUR) == "hour"
    assert tier(2880, every=3 * HOUR, aggregate="max") == "hour"
    assert tier(2880, every=5 * MINUTE) == "minute"
    assert tier(2880, every=HOUR, start=7) == "minute"
    assert tier(600, every=HOUR) == "minute"
    assert tier(60, every=HOUR) == "raw"
    assert tier(2880, every=timedelta(seconds=90)) == "raw"
    assert tier(2880, every=HOUR, aggregate="p99") == "raw"
    assert tier(2880, every=HOUR, aggregate="last") == "raw"
    assert tier(2880) == "raw"
    assert tier(2880, by=["tenant"]) == "hour"


def test_tiers_answer_after_raw_rows_are_gone(lab: Lab) -> None:
    lab.store.write(days_of_rows(0, 10))
    lab.store.seal()
    day = Window(START + DAY, START + 2 * DAY)
    before = lab.store.read("slice", day, every=HOUR)
    total = lab.store.read("slice", Window(START, START + 10 * DAY), by=[], aggregate="sum")
    dropped = lab.store.retain(START + 10 * DAY)
    assert dropped == 3 * 96 * 3
    assert lab.store.read("slice", day).empty
    assert lab.store.read("slice", day, every=HOUR, aggregate="p50").empty
    after = lab.store.read("slice", day, every=HOUR)
    assert after.attrs["tier"] == "hour"
    pd.testing.assert_frame_equal(after, before, rtol=1e-12)
    askew = lab.store.read("slice", Window(day.start + 5 * MINUTE, day.end), every=10 * MINUTE, aggregate="count")
    assert askew.attrs["tier"] == "minute"
    assert askew["steps_count"].sum() == 3 * 95
    pd.testing.assert_frame_equal(
        lab.store.read("slice", Window(START, START + 10 * DAY), by=[], aggregate="sum"), total, rtol=1e-12
    )
    assert lab.store.span("slice") == Window(START, START + 10 * DAY - 15 * MINUTE + timedelta(milliseconds=1))


def test_late_rows_of_a_day_without_raw_rows_are_added_to_its_tiers(lab: Lab) -> None:
    lab.store.write(days_of_rows(0, 9))
    lab.store.retain(START + 9 * DAY)
    day = Window(START, START + DAY)
    before = lab.store.read("slice", day, every=HOUR, fields=["steps_count"], aggregate="count")["steps_count"].sum()
    lab.store.write(slice_rows([7], ["a"], steps_count=[3]))
    for settle in (lambda: None, lab.store.seal, lambda: lab.store.retain(START + 9 * DAY)):
        settle()
        after = lab.store.read("slice", day, every=HOUR, fields=["steps_count"], aggregate="count")
        assert after["steps_count"].sum() == before + 1


def test_minute_tier_goes_before_the_hour_tier(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "store", raw_days=1, minute_days=2, hour_days=4)
    lab.store.write(days_of_rows(0, 6))
    lab.store.retain(START + 6 * DAY)
    counts = {tier: len(lab.files(tier)) for tier in ("raw", "minute", "hour")}
    assert counts == {"raw": 1, "minute": 2, "hour": 4}
    frame = lab.store.read("slice", Window(START + 2 * DAY, START + 3 * DAY), every=HOUR)
    assert len(frame) == 24 * 3
    askew = lab.store.read("slice", Window(START + 2 * DAY + 5 * MINUTE, START + 3 * DAY), every=HOUR)
    assert askew.attrs["tier"] == "hour"
    lab.store.close()


# Duplicates

row = st.tuples(
    st.integers(0, 3), st.sampled_from(["a", "b"]), st.none() | st.integers(0, 9), st.none() | st.integers(0, 9)
)
steps = st.lists(st.lists(row, min_size=1, max_size=5) | st.sampled_from(["seal", "merge"]), min_size=1, max_size=8)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps)
def test_duplicates_merge_whatever_happens_between(
    tmp_path_factory: pytest.TempPathFactory, steps: list[object]
) -> None:
    store = EmbeddedStore(StoreSettings(path=tmp_path_factory.mktemp("store")))
    model: dict[tuple[str, int], dict[str, float]] = {}
    for step in steps:
        if step == "seal":
            store.seal()
        elif step == "merge":
            store.merge()
        elif isinstance(step, list):
            for minute, name, busy, count in step:
                kept = model.setdefault((name, minute), {})
                kept.update({k: float(v) for k, v in (("priority", busy), ("steps_count", count)) if v is not None})
            columns = list(zip(*step, strict=True))
            values = {
                k: [np.nan if v is None else v for v in c]
                for k, c in zip(("priority", "steps_count"), columns[2:], strict=True)
            }
            store.write(slice_rows(columns[0], columns[1], **values))
    frame = store.read("slice", window(0, 9), fields=["priority", "steps_count"])
    found: dict[tuple[str, int], dict[str, float]] = {}
    for record in frame.to_dict("records"):
        present = {k: float(record[k]) for k in ("priority", "steps_count") if not np.isnan(record[k])}
        found[record["slice"], round((record["time"] - START) / MINUTE)] = present
    assert len(frame) == len(model)
    assert found == model
    total = store.read("slice", window(0, 60), fields=["steps_count"], every=HOUR, by=[], aggregate="sum")
    expected = [v["steps_count"] for v in model.values() if "steps_count" in v]
    assert np.nansum(total["steps_count"]) == sum(expected)
    store.close()


# Merging, grace, cursor, locks


def test_a_day_becomes_one_file_a_tier_and_old_files_go_after_a_grace(lab: Lab) -> None:
    for hour in range(4):
        lab.store.write(slice_rows([hour * 60], ["a"], busy_ratio=[0.1 * hour]))
        lab.store.seal()
    assert len(lab.files()) == 4
    lab.store.merge()
    assert [len(lab.files(t)) for t in ("raw", "minute", "hour")] == [1, 1, 1]
    assert len(list((lab.settings.path / "sealed").iterdir())) == 4 * 3 + 3
    lab.clock.advance(599)
    lab.store.maintain()
    assert len(list((lab.settings.path / "sealed").iterdir())) == 4 * 3 + 3
    lab.clock.advance(2)
    lab.store.maintain()
    assert len(list((lab.settings.path / "sealed").iterdir())) == 3
    assert lab.query("SELECT count(*) FROM seg") == [(3,)]
    assert len(lab.store.read("slice", window(0, 999))) == 4


def test_a_growing_day_is_merged_as_its_files_become_many(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "MERGE_FILES", 3)
    counts = []
    for step in range(6):
        lab.store.write(slice_rows([step], ["a"], busy_ratio=[0.1]))
        lab.clock.advance(900)
        lab.store.maintain()
        counts.append(len(lab.files()))
    assert counts == [1, 2, 1, 2, 1, 2]


def test_merge_and_retention_stop_at_the_slowest_cursor(lab: Lab) -> None:
    for minute in (0, 1, 2):
        lab.store.write(slice_rows([minute], ["a"], busy_ratio=[0.1]))
        lab.store.seal()
    lab.execute("INSERT INTO cursor VALUES ('fast', 3), ('slow', 1)")
    lab.store.merge()
    assert len(lab.files()) == 3
    assert lab.store.retain(START + 30 * DAY) == 1
    assert len(lab.store.read("slice", window(0, 9))) == 2
    lab.execute("DELETE FROM cursor")
    lab.store.merge()
    assert len(lab.files()) == 1


def test_the_lock_row_keeps_others_out_until_its_holder_is_gone(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.store.write(slice_rows([0], ["a"], busy_ratio=[0.1]))
    later = to_ms(START + DAY)
    lab.execute(f"INSERT INTO lock VALUES ('maintenance', 'other', {os.getppid()}, {later})")
    monkeypatch.setattr(workshop, "_LOCK_PATIENCE_SECONDS", 0.1)
    with pytest.raises(UnreachableError, match="another process"):
        lab.store.seal()
    lab.clock.advance(3600)
    lab.store.maintain()
    assert lab.hot_rows() == 1
    lab.execute("UPDATE lock SET pid = 2147483646")  # no such process
    lab.store.maintain()
    assert lab.hot_rows() == 0
    assert lab.query("SELECT count(*) FROM lock") == [(0,)]
    lab.execute(f"INSERT INTO lock VALUES ('maintenance', 'other', {os.getppid()}, 0)")  # its lease is over
    lab.store.seal()


def test_a_lost_lock_is_noticed(lab: Lab) -> None:
    db = catalogue.connect(lab.settings.path)
    owner = catalogue.take_lock(db, "maintenance", 0)
    assert owner is not None
    catalogue.require_lock(db, "maintenance", owner)
    with pytest.raises(UnreachableError, match="lost to another process"):
        catalogue.require_lock(db, "maintenance", "somebody else")
    db.close()


def test_files_that_a_crash_left_behind_are_removed_at_start(lab: Lab) -> None:
    lab.store.write(slice_rows([0], ["a"], busy_ratio=[0.1]))
    lab.store.seal()
    stray = lab.settings.path / "sealed" / "slice-raw-20260105-0123.parquet"
    stray.write_bytes(b"half a file")
    again = EmbeddedStore(lab.settings)
    assert not stray.exists()
    assert len(again.read("slice", window(0, 9))) == 1
    again.close()


def test_two_writers_share_a_store(lab: Lab) -> None:
    who = Subject("gpu", "lab", "node-a", "GPU-1")
    other = EmbeddedStore(lab.settings)
    for minute, store in enumerate((lab.store, other, lab.store)):
        batch = slice_rows([minute], ["a"], steps_count=[minute])
        batch.facts.append(Fact(who, "driver_version", f"5{minute}", at(minute)))
        store.write(batch)
    other.seal()
    assert lab.store.read("slice", window(0, 9))["steps_count"].tolist() == [0, 1, 2]
    assert other.facts()["value"].tolist() == ["50", "51", "52"]
    assert other.facts()["to"].isna().tolist() == [False, False, True]
    other.close()


# Refusals


def test_a_read_only_store_reads_and_refuses_to_change(lab: Lab, tmp_path: Path) -> None:
    lab.store.write(slice_rows([0], ["a"], busy_ratio=[0.1]))
    reader = EmbeddedStore(lab.settings, read_only=True)
    assert len(reader.read("slice", window(0, 9))) == 1
    with pytest.raises(ConfigurationError, match="opened for reading"):
        reader.write(slice_rows([1], ["a"], busy_ratio=[0.1]))
    with pytest.raises(ConfigurationError, match="opened for reading"):
        reader.retain(START)
    reader.close()
    with pytest.raises(UnreachableError, match="trimtab collect"):
        EmbeddedStore(StoreSettings(path=tmp_path / "nothing"), read_only=True)


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UnreachableError, match="cannot open the store"):
        EmbeddedStore(StoreSettings(path=tmp_path / "file" / "store"))


def test_a_newer_format_is_refused(lab: Lab) -> None:
    lab.execute(f"PRAGMA user_version = {catalogue.FORMAT + 1}")
    with pytest.raises(ConfigurationError, match="update Trimtab"):
        EmbeddedStore(lab.settings)


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/srv/data/store", "nfs4"),
        ("/srv/database", "ext4"),
        ("/home/with space/x", "fuse.sshfs"),
        ("/home", "ext4"),
    ],
)
def test_the_file_system_of_a_folder(folder: str, kind: str) -> None:
    mounts = (
        "/dev/sda / ext4 rw 0 0\nhost:/x /srv/data nfs4 rw 0 0\nbroken\nme@h: /home/with\\040space fuse.sshfs rw 0 0\n"
    )
    assert catalogue.file_system(Path(folder), mounts) == kind


def test_network_file_systems_are_refused(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"host:/x {tmp_path} nfs4 rw 0 0\n")
    with pytest.raises(ConfigurationError, match=r"local disk.*nfs4"):
        catalogue.refuse_network_file_system(tmp_path, mounts)
    mounts.write_text("/dev/sda / ext4 rw 0 0\n")
    catalogue.refuse_network_file_system(tmp_path, mounts)
    catalogue.refuse_network_file_system(tmp_path, tmp_path / "absent")


def test_one_row_of_long_ago_costs_a_day_and_not_all_days_since(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    ancient = -26 * 365 * 1440
    lab.store.write(slice_rows([ancient, 0, 1441], ["a", "a", "a"], busy_ratio=[0.1, 0.2, 0.3]))
    statements: list[str] = []
    run = Engine.run

    def counting(engine: Engine, statement: str, **tables: pa.Table) -> pa.Table:
        statements.append(statement)
        return run(engine, statement, **tables)

    monkeypatch.setattr(Engine, "run", counting)
    lab.store.seal()
    assert len(statements) == 3  # hours of three days; rows without a clash are sorted without the engine
    export_rows(lab.store, lab.settings.path / "out", window(ancient, 1442), measurements=["slice"])
    assert lab.store.delete("slice", window(ancient, 1441)) == 2
    assert len(statements) < 20
    assert lab.store.read("slice", window(ancient, 1442))["busy_ratio"].tolist() == [0.3]
    back = pd.read_parquet(lab.settings.path / "out" / "slice.parquet")
    assert back["busy_ratio"].tolist() == [0.1, 0.2, 0.3]


def test_a_store_that_was_removed_or_replaced_takes_no_more_writes(lab: Lab) -> None:
    lab.store.write(slice_rows([0], ["a"], busy_ratio=[0.1]))
    file = lab.settings.path / "store.db"
    file.rename(file.with_suffix(".away"))
    with pytest.raises(UnreachableError, match="found it removed"):
        lab.store.write(slice_rows([1], ["a"], busy_ratio=[0.2]))
    file.write_bytes(b"")
    with pytest.raises(UnreachableError, match="another file in its place"):
        lab.store.write(slice_rows([1], ["a"], busy_ratio=[0.2]))
    file.with_suffix(".away").replace(file)
    lab.store.write(slice_rows([2], ["a"], busy_ratio=[0.3]))
    assert lab.store.read("slice", window(0, 9))["busy_ratio"].tolist() == [0.1, 0.3]


def test_a_full_disk_refuses_the_batch_and_the_store_goes_on_when_there_is_room(lab: Lab) -> None:
    lab.store.write(slice_rows([0], ["a"], busy_ratio=[0.1]))
    writer = lab.store._writer
    assert writer is not None
    (pages,) = writer.execute("PRAGMA page_count").fetchone()
    writer.execute(f"PRAGMA max_page_count={pages}")
    many = slice_rows(list(range(1, 9001)), ["a"] * 9000, busy_ratio=np.random.default_rng(1).random(9000).tolist())
    with pytest.raises(UnreachableError, match=r"cannot write to .*store\.db: database or disk is full; check"):
        lab.store.write(many)
    assert not writer.in_transaction
    writer.execute(f"PRAGMA max_page_count={pages + 1000}")
    lab.store.write(many)
    assert len(lab.store.read("slice", window(0, 9001))) == 9001


def test_a_commit_that_fails_is_rolled_back() -> None:
    db = sqlite3.connect(":memory:", isolation_level=None)
    db.execute("PRAGMA foreign_keys=ON")
    db.execute("CREATE TABLE one (x PRIMARY KEY)")
    db.execute("CREATE TABLE two (x REFERENCES one DEFERRABLE INITIALLY DEFERRED)")
    with pytest.raises(sqlite3.IntegrityError), catalogue.transaction(db):
        db.execute("INSERT INTO two VALUES (1)")
    with catalogue.transaction(db):
        db.execute("INSERT INTO one VALUES (2)")
    assert db.execute("SELECT count(*) FROM two").fetchone() == (0,)
    db.close()


def test_damaged_files_are_one_clear_line(lab: Lab) -> None:
    lab.store.write(slice_rows([0], ["a"], busy_ratio=[0.1]))
    lab.store.seal()
    lab.store.write(slice_rows([1], ["a"], busy_ratio=[0.2]))
    (name,) = lab.files()
    (lab.settings.path / name).write_bytes(b"nothing that was sealed")
    with pytest.raises(UnreachableError, match=name) as sealed:
        lab.store.read("slice", window(0, 1))
    assert "\n" not in str(sealed.value)
    lab.execute("UPDATE hot SET payload = x'00'")
    reader = EmbeddedStore(lab.settings, read_only=True)
    with pytest.raises(UnreachableError, match="cannot read the files of the store in"):
        reader.read("slice", window(0, 9))
    lab.execute("DROP TABLE hot")
    lab.execute("DROP TABLE fact")
    for read in (reader.facts, lambda: reader.span("slice"), lambda: describe_store(lab.settings)):
        with pytest.raises(UnreachableError, match=r"cannot read .*store\.db: no such table"):
            read()
    with pytest.raises(UnreachableError, match=r"cannot seal .*store\.db: no such table"):
        lab.store.seal()
    reader.close()


def test_a_lost_file_is_one_clear_line(lab: Lab) -> None:
    lab.store.write(slice_rows([0], ["a"], busy_ratio=[0.1]))
    lab.store.seal()
    (lab.settings.path / lab.files()[0]).unlink()
    with pytest.raises(UnreachableError, match="backup"):
        lab.store.read("slice", window(0, 9))


@pytest.mark.parametrize(("synchronous", "level"), [("NORMAL", 1), ("FULL", 2)])
def test_synchronous_is_a_setting(tmp_path: Path, synchronous: str, level: int) -> None:
    db = catalogue.connect(tmp_path, synchronous=synchronous)
    assert db.execute("PRAGMA synchronous").fetchone() == (level,)
    assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert db.execute("PRAGMA busy_timeout").fetchone() == (30_000,)
    db.close()


def test_rows_that_the_schema_does_not_allow_are_refused(lab: Lab) -> None:
    batch = slice_rows([0], ["a"], busy_ratio=[0.1])
    table = batch.rows["slice"]
    with pytest.raises(ValueError, match="nonsense"):
        lab.store.write(Batch(rows={"slice": table.rename_columns([*table.column_names[:-1], "nonsense"])}))
    with pytest.raises(ValueError, match="tenant"):
        lab.store.write(Batch(rows={"slice": table.drop_columns(["tenant"])}))
    with pytest.raises(KeyError, match="nonsense"):
        lab.store.write(Batch(rows={"nonsense": table}))
    holes = table.set_column(table.column_names.index("slice"), "slice", [[None]])
    with pytest.raises(ValueError, match="'slice'"):
        lab.store.write(Batch(rows={"slice": holes.cast(table.schema)}))
    whole = table.set_column(table.column_names.index("busy_ratio"), "busy_ratio", [[1]])
    lab.store.write(Batch(rows={"slice": whole, "gpu": no_rows()}))
    assert lab.store.read("slice", window(0, 9))["busy_ratio"].tolist() == [1.0]


def no_rows() -> pa.Table:
    """A table without rows, which a source may hand over."""
    return make_rows("gpu", [], {"cluster": [], "node": [], "gpu": []}, {})


def test_every_must_be_a_length_of_time(lab: Lab) -> None:
    with pytest.raises(ValueError, match="every"):
        lab.store.read("slice", window(0, 9), every=timedelta(0))


def test_old_facts_events_and_rejects_go(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "store", raw_days=1, minute_days=2, hour_days=4)
    who = Subject("gpu", "lab", "node-a", "GPU-1")
    facts = [Fact(who, "model", "A", START), Fact(who, "model", "B", START + DAY), Fact(who, "mig", "on", START)]
    events = [
        Event(who, "xid", Severity.ERROR, "XID 79", START),
        Event(who, "xid", Severity.ERROR, "XID 79", START + 9 * DAY),
    ]
    rejects = [Reject(who, "power_watts", "negative", START), Reject(who, "power_watts", "negative", START + 9 * DAY)]
    lab.store.write(Batch(facts=facts, events=events, rejects=rejects))
    lab.store.retain(START + 9 * DAY)
    assert lab.store.facts()[["name", "value"]].to_numpy().tolist() == [["mig", "on"], ["model", "B"]]
    whole = Window(START, START + 20 * DAY)
    assert lab.store.events(whole)["time"].tolist() == [START + 9 * DAY]
    assert lab.store.rejects(whole)["time"].tolist() == [START + 9 * DAY]
    lab.store.close()


def test_deleting_reaches_tiers_whose_raw_rows_are_gone(lab: Lab) -> None:
    lab.store.write(days_of_rows(0, 9))
    lab.store.retain(START + 9 * DAY)
    assert lab.files() != []
    gone = lab.store.delete("slice", Window(START, START + 12 * HOUR), {"slice": "a"})
    assert gone == 48
    counts = lab.store.read("slice", Window(START, START + DAY), every=HOUR, aggregate="count")
    assert counts.groupby("slice")["steps_count"].sum().to_dict() == {"a": 48, "b": 96, "c": 96}
    assert lab.store.delete("slice", Window(START, START + DAY)) == 48 + 2 * 96
    assert lab.store.read("slice", Window(START, START + DAY), every=HOUR).empty


def test_sealed_exponents_stand_in_the_catalogue(lab: Lab) -> None:
    lab.store.write(slice_rows([0, 1], ["a", "a"], busy_ratio=[0.25, 0.5], step_seconds=[1 / 3, 2 / 3]))
    lab.store.seal()
    exponents = json.loads(str(lab.query("SELECT exponents FROM seg WHERE tier = 'raw'")[0][0]))
    assert exponents == {"busy_ratio": 2, "step_seconds": None}
    frame = lab.store.read("slice", window(0, 9), fields=["busy_ratio", "step_seconds"])
    assert frame[["busy_ratio", "step_seconds"]].to_numpy().tolist() == [[0.25, 1 / 3], [0.5, 2 / 3]]
