"""What a shipper gets: everything once, in the order of its commits, however the store reorganises its rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collector.batch import Batch, Event, Fact, Reject, Severity, Subject
from collector.clock import VirtualClock
from collector.conformance import DAY, HOUR, MINUTE, START, at, slice_rows, window
from collector.errors import UnreachableError
from collector.settings import StoreSettings
from collector.store import EmbeddedStore, FrameStore, catalogue, outbox, spans
from collector.store.outbox import Outbox, Shipment
from collector.window import Window

CARD = Subject("gpu", "lab", "node-a", "GPU-1")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    opened = EmbeddedStore(StoreSettings(path=tmp_path / "store"), clock=VirtualClock(START))
    yield opened
    opened.close()


@pytest.fixture
def box(store: EmbeddedStore, tmp_path: Path) -> Iterator[Outbox]:
    opened = Outbox(StoreSettings(path=tmp_path / "store"), "other side")
    yield opened
    opened.close()


def shipments(box: Outbox, limit: int) -> list[Shipment]:
    """Take out all there is, as a shipper would."""
    found = []
    while (shipment := box.rows_after(box.cursor, limit)) is not None:
        assert box.cursor <= shipment.after < shipment.through
        found.append(shipment)
        box.advance(shipment.through)
    return found


def slice_frame(found: list[Shipment]) -> pd.DataFrame:
    """Lay the slice rows of shipments under one another."""
    return pd.concat([s.rows["slice"].to_pandas() for s in found if "slice" in s.rows], ignore_index=True)


@pytest.mark.parametrize("limit", [1, 3, 1000])
@pytest.mark.parametrize("how", ["unsealed", "sealed", "half"])
def test_rows_come_once_in_the_order_of_their_commits(store: EmbeddedStore, box: Outbox, how: str, limit: int) -> None:
    for minute in range(3):
        batch = slice_rows([minute, minute], ["b", "a"], busy_ratio=[0.1 * minute, np.nan], steps_count=[minute, 7])
        store.write(batch)
        if how == "sealed" or (how == "half" and minute == 1):
            store.seal()
    found = shipments(box, limit)
    assert all(s.count <= limit for s in found)
    rows = slice_frame(found)
    assert rows["seq"].tolist() == [1, 2, 3, 4, 5, 6]
    assert rows["slice"].tolist() == ["b", "a"] * 3
    assert rows["time"].tolist() == [at(0), at(0), at(1), at(1), at(2), at(2)]
    np.testing.assert_array_equal(rows["busy_ratio"], [0.0, np.nan, 0.1, np.nan, 0.2, np.nan])
    assert rows["steps_count"].tolist() == [0, 7, 1, 7, 2, 7]
    assert sum(shipment.rows["slice"]["busy_ratio"].null_count for shipment in found) == 3  # absent is null
    assert box.rows_after(box.cursor, limit) is None
    assert (box.pending, box.oldest_unshipped) == (0, None)


def test_columns_are_those_of_the_schema(store: EmbeddedStore, box: Outbox) -> None:
    store.write(slice_rows([0], ["a"], busy_ratio=[0.5]))
    unsealed = box.rows_after(0, 10)
    store.seal()
    sealed = box.rows_after(0, 10)
    assert unsealed is not None
    assert sealed is not None
    assert sealed.rows["slice"].schema == unsealed.rows["slice"].schema
    assert sealed.rows["slice"].schema.field("time").type == pa.timestamp("ms", tz="UTC")
    assert sealed.rows["slice"].schema.field("flops_per_second").type == pa.float64()
    assert sealed.rows["slice"].equals(unsealed.rows["slice"])


def test_facts_events_and_rejects_are_numbered_with_the_rows(store: EmbeddedStore, box: Outbox) -> None:
    batch = slice_rows([0], ["a"], busy_ratio=[0.5])
    batch.facts = [Fact(CARD, "model", "A", at(0)), Fact(CARD, "mig", "on", at(0))]
    batch.events = [Event(CARD, "xid", Severity.ERROR, "XID 79", at(0))]
    batch.rejects = [Reject(CARD, "power_watts", "negative", at(0), 2)]
    store.write(batch)
    store.write(batch)  # the same again changes only the row
    (first,) = shipments(box, 100)
    assert first.rows["slice"]["seq"].to_pylist() == [1, 6]
    assert first.facts[["name", "value"]].to_numpy().tolist() == [["model", "A"], ["mig", "on"]]
    assert first.events["message"].tolist() == ["XID 79"]
    assert first.rejects["count"].tolist() == [2]
    store.write(
        Batch(facts=[Fact(CARD, "model", "B", at(5))], rejects=[Reject(CARD, "power_watts", "negative", at(0), 3)])
    )
    (second,) = shipments(box, 100)
    assert second.rows == {}
    assert second.facts[["value", "from"]].to_numpy().tolist() == [["A", at(0)], ["B", at(5)]]
    assert second.facts["to"].tolist()[0] == at(5)
    assert second.rejects["count"].tolist() == [3]


minutes = st.integers(0, 6)
observations = st.lists(st.lists(st.tuples(minutes, st.sampled_from(["A", "B", None])), max_size=4), max_size=5)


@settings(max_examples=60, deadline=None)
@given(steps=observations)
def test_shipped_facts_replayed_are_the_facts(steps: list[list[tuple[int, str | None]]]) -> None:
    """The other side keeps one point a subject, name and start, and drops points that end where they start."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    catalogue.create(db)
    writer = spans.FactWriter(db)
    points: dict[object, tuple[object, str]] = {}
    shipped = 0
    for step in steps:
        writer.apply([Fact(CARD, "model", value, at(minute)) for minute, value in step])
        for record in spans.changed_texts(db, shipped + 1, 2**40)["fact"].to_dict("records"):
            points[record["from"]] = (record["to"], record["value"])
        (shipped,) = db.execute("SELECT value - 1 FROM meta WHERE name = 'next_seq'").fetchone()
    kept = {start: (end, value) for start, (end, value) in points.items() if end != start}
    facts = spans.read_facts(db, None, None)
    assert sorted(kept) == facts["from"].tolist()
    assert [kept[start][1] for start in sorted(kept)] == facts["value"].tolist()
    assert [pd.isna(kept[start][0]) for start in sorted(kept)] == facts["to"].isna().tolist()
    db.close()


steps_of_a_shipper = st.lists(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from("ab"), st.none() | st.integers(0, 9)), min_size=1, max_size=5)
    | st.sampled_from(["seal", "merge", "ship", "ship little"]),
    min_size=1,
    max_size=10,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps_of_a_shipper)
def test_the_other_side_has_what_the_store_has(tmp_path_factory: pytest.TempPathFactory, steps: list[object]) -> None:
    """Rows merged field by field over there, whatever was sealed or merged here between shipments."""
    kept = StoreSettings(path=tmp_path_factory.mktemp("store"))
    store, box = EmbeddedStore(kept), Outbox(kept, "other side")
    there: dict[tuple[str, object], float] = {}

    def ship(limit: int, most: int) -> None:
        for _ in range(most):
            shipment = box.rows_after(box.cursor, limit)
            if shipment is None:
                return
            for row in slice_frame([shipment]).to_dict("records"):
                key = (row["slice"], row["time"])
                there[key] = there.get(key, np.nan) if np.isnan(row["steps_count"]) else row["steps_count"]
            box.advance(shipment.through)

    for step in steps:
        if isinstance(step, list):
            minute, name, value = zip(*step, strict=True)
            store.write(slice_rows(minute, name, steps_count=[np.nan if v is None else v for v in value]))
        elif step == "seal":
            store.seal()
        elif step == "merge":
            store.merge()
        else:
            ship(*((100, 100) if step == "ship" else (2, 1)))
    ship(100, 100)
    frame = store.read("slice", window(0, 9), fields=["steps_count"])
    here = {(row["slice"], row["time"]): row["steps_count"] for row in frame.to_dict("records")}
    assert here.keys() == there.keys()
    np.testing.assert_array_equal(list(here.values()), [there[key] for key in here])
    box.close()
    store.close()


def test_a_cursor_never_goes_back_and_outlives_its_process(store: EmbeddedStore, box: Outbox, tmp_path: Path) -> None:
    store.write(slice_rows([0, 1], ["a", "a"], busy_ratio=[0.1, 0.2]))
    assert (box.cursor, box.pending, box.oldest_unshipped) == (0, 2, at(0))
    box.advance(2)
    box.advance(1)
    again = Outbox(StoreSettings(path=tmp_path / "store"), "other side")
    assert (again.cursor, again.pending) == (2, 0)
    again.close()


def test_two_shippers_are_apart_and_the_slower_one_holds_rows(
    store: EmbeddedStore, box: Outbox, tmp_path: Path
) -> None:
    other = Outbox(StoreSettings(path=tmp_path / "store"), "slow")
    store.write(slice_rows([0], ["a"], busy_ratio=[0.1]))
    store.seal()
    assert slice_frame(shipments(box, 10))["seq"].tolist() == [1]
    assert store.retain(START + 30 * DAY) == 0
    other.forget()
    other.close()
    assert store.retain(START + 30 * DAY) == 1


def test_facts_and_events_wait_for_the_slowest_cursor(store: EmbeddedStore, box: Outbox) -> None:
    facts = [Fact(CARD, "model", "A", START), Fact(CARD, "model", "B", START + DAY)]
    events = [Event(CARD, "xid", Severity.ERROR, "XID 79", START)]
    store.write(Batch(facts=facts, events=events, rejects=[Reject(CARD, "power_watts", "negative", START)]))
    far = START + 3650 * DAY
    whole = Window(START, far)
    store.retain(far)
    assert (len(store.facts()), len(store.events(whole)), len(store.rejects(whole))) == (2, 1, 1)
    shipments(box, 10)
    store.retain(far)
    assert (len(store.facts()), len(store.events(whole)), len(store.rejects(whole))) == (1, 0, 0)


def test_a_new_shipper_gets_what_is_kept(store: EmbeddedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for minute in (0, 61, 62):
        store.write(slice_rows([minute], ["a"], busy_ratio=[0.1]))
    store.write(slice_rows([61], ["a"], busy_ratio=[0.4]))
    store.seal()
    store.merge()
    monkeypatch.setattr(outbox, "_AT_ONCE_ROWS", 2)
    box = Outbox(StoreSettings(path=tmp_path / "store"), "new")
    rows = slice_frame(shipments(box, 1))
    assert rows[["seq", "busy_ratio"]].to_numpy().tolist() == [[1, 0.1], [3, 0.1], [4, 0.4]]
    assert [h.window.start for h in box.dirty_hours(at(180))] == [at(0), at(60)]
    box.close()


def test_hours_with_new_rows_are_dirty_until_cleaned(store: EmbeddedStore, box: Outbox) -> None:
    store.write(slice_rows([0, 59, 60], ["a"] * 3, busy_ratio=[0.1, 0.2, 0.3]))
    assert box.dirty_hours(at(59.9)) == []
    (first,) = box.dirty_hours(at(60))
    assert (first.measurement, first.window) == ("slice", Window(at(0), at(60)))
    store.write(slice_rows([30], ["a"], busy_ratio=[0.4]))  # late, while the hour is shipped
    box.clean(first)
    (again,) = box.dirty_hours(at(60))
    assert again.seq > first.seq
    box.clean(again)
    assert box.dirty_hours(at(60)) == []
    assert [h.window.start for h in box.dirty_hours(at(120))] == [at(60)]
    assert len(box.dirty_hours(at(120), limit=0)) == 0
    frame = store.read("slice", again.window, every=HOUR, fields=["busy_ratio"], aggregate="count")
    assert frame["busy_ratio"].tolist() == [3]


def test_without_a_shipper_no_hour_is_noted(store: EmbeddedStore, tmp_path: Path) -> None:
    store.write(slice_rows([0], ["a"], busy_ratio=[0.1]))
    db = catalogue.connect(tmp_path / "store", read_only=True)
    assert db.execute("SELECT count(*) FROM dirty").fetchone() == (0,)
    db.close()


def test_a_lost_file_is_one_clear_line(store: EmbeddedStore, box: Outbox, tmp_path: Path) -> None:
    store.write(slice_rows([0], ["a"], busy_ratio=[0.1]))
    store.seal()
    for file in (tmp_path / "store" / "sealed").iterdir():
        file.unlink()
    with pytest.raises(UnreachableError, match="cannot read the files of the store"):
        box.rows_after(0, 10)


def test_an_older_catalogue_is_brought_up_to_date(tmp_path: Path) -> None:
    """Format 1 numbered rows alone."""
    kept = StoreSettings(path=tmp_path / "store")
    store = EmbeddedStore(kept)
    batch = slice_rows([0], ["a"], busy_ratio=[0.1])
    batch.facts = [Fact(CARD, "model", "A", at(0))]
    batch.events = [Event(CARD, "xid", Severity.ERROR, "XID 79", at(0))]
    store.write(batch)
    store.close()
    db = sqlite3.connect(kept.path / "store.db", isolation_level=None)
    for statement in (
        "DROP TABLE dirty",
        *(f"DROP INDEX {table}_by_seq" for table in ("fact", "event", "reject")),
        *(f"ALTER TABLE {table} DROP COLUMN seq" for table in ("fact", "event", "reject")),
        "PRAGMA user_version = 1",
    ):
        db.execute(statement)
    db.close()
    old = EmbeddedStore(kept, read_only=True)
    assert old.facts()["value"].tolist() == ["A"]
    old.close()
    box = Outbox(kept, "new")
    (shipment,) = shipments(box, 100)
    assert slice_frame([shipment])["seq"].tolist() == [1]
    assert shipment.facts["value"].tolist() == ["A"]
    assert shipment.events["message"].tolist() == ["XID 79"]
    box.close()
    again = EmbeddedStore(kept)
    again.write(Batch(facts=[Fact(CARD, "model", "B", at(1))]))
    assert again.facts()["value"].tolist() == ["A", "B"]
    again.close()


def test_frames_and_stores_withdraw_facts_alike(store: EmbeddedStore) -> None:
    batches = [
        Batch(facts=[Fact(CARD, "model", "A", at(5))]),
        Batch(facts=[Fact(CARD, "model", None, at(5))]),
        Batch(facts=[Fact(CARD, "model", "B", at(9)), Fact(CARD, "model", "B", at(7))]),
    ]
    for batch in batches:
        store.write(batch)
    assert store.facts()[["value", "from"]].to_numpy().tolist() == [["B", at(7)]]
    pd.testing.assert_frame_equal(store.facts(), FrameStore.of_batches(batches).facts())
    assert store.facts(Window(at(5), at(5) + MINUTE + timedelta(seconds=1))).empty


def test_aggregates_of_an_hour_whose_raw_rows_are_gone(tmp_path: Path) -> None:
    """A late row joins what the tiers still know; unsealed, and sealed."""
    settings = StoreSettings(path=tmp_path / "store", raw_days=1, minute_days=10, hour_days=20)
    clock = VirtualClock(START + 3 * DAY)
    store = EmbeddedStore(settings, clock=clock)
    outbox = Outbox(settings, "remote")
    store.write(slice_rows([0, 1, 2, 3], ["a"] * 4, steps_count=[0, 1, 2, 3]))
    store.write(slice_rows([3 * 1440], ["a"], steps_count=[9]))
    store.seal()
    outbox.advance(5)
    assert store.retain(START + 3 * DAY) == 4
    store.write(slice_rows([3.5, 10], ["a", "b"], steps_count=[9, 5]))
    for _ in range(2):
        (hour,) = outbox.dirty_hours(START + 2 * HOUR)
        made = outbox.partials(hour)
        hours = made["hour"].to_pandas().set_index("slice")
        assert hours["steps_count"].to_dict() == {"a": 3.0, "b": 5.0}
        assert hours["steps_count__count"].to_dict() == {"a": 5.0, "b": 1.0}
        assert hours.loc["a", "steps_count__max"] == 9.0
        minutes = made["minute"].to_pandas()
        assert minutes[minutes["slice"] == "a"]["steps_count"].tolist() == [0, 1, 2, 6]
        store.seal()
    outbox.close()
    store.close()
