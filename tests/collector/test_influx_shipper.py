"""From the embedded store into InfluxDB: nothing lost, nothing twice, whatever InfluxDB does."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import SecretStr

from collector.batch import Batch, Event, Fact, Reject, Severity, Subject
from collector.clock import VirtualClock
from collector.conformance import HOUR, START, at, slice_rows, window
from collector.errors import ConfigurationError, UnreachableError
from collector.influx.client import Flavour, InfluxClient, TryLaterError, is_loopback
from collector.influx.progress import CURSOR, progress_of
from collector.influx.shipper import Shipped, Shipper
from collector.influx.store import InfluxStore, open_store
from collector.settings import InfluxSettings, StoreSettings
from collector.store import EmbeddedStore
from collector.store.outbox import Outbox
from tests.collector import influx_double
from tests.collector.influx_double import Fault, InfluxDouble, Point, Tags

NAMES = [f"s{i}" for i in range(10)]


class Lab:
    """A double, a store whose time is a virtual hour after the suite's start, and its shipper."""

    def __init__(self, folder: Path, double: InfluxDouble, **changes: object) -> None:
        self.double = double
        self.settings = InfluxSettings.model_validate({"url": double.url, "batch_rows": 50, **changes})
        self.store_settings = StoreSettings(path=folder)
        self.clock = VirtualClock(START + HOUR)
        self.store = InfluxStore(self.settings, self.store_settings, clock=self.clock)

    def write(self, first_minute: int, minutes: int) -> None:
        for minute in range(first_minute, first_minute + minutes):
            self.store.write(slice_rows([minute] * 10, NAMES, steps_count=[10 * minute + i for i in range(10)]))

    def steps(self, bucket: str = "trimtab") -> list[float]:
        return sorted(float(fields["steps_count"]) for _, _, fields in self.double.rows(bucket, "slice"))

    def writes(self) -> Counter[str]:
        return Counter(query["bucket"] for path, _, query in self.double.requests if path == "/api/v2/write")

    def shipper(self) -> Shipper:
        client = InfluxClient(self.settings)
        outbox = Outbox(self.store_settings, CURSOR)
        return Shipper(client, self.settings, outbox, self.store.local, self.clock)

    @property
    def pending(self) -> int:
        return progress_of(self.store_settings, CURSOR).pending


@pytest.fixture
def double() -> Iterator[InfluxDouble]:
    with influx_double.running("2.8.0") as running:
        yield running


@pytest.fixture
def lab(tmp_path: Path, double: InfluxDouble) -> Iterator[Lab]:
    made = Lab(tmp_path / "store", double)
    yield made
    made.store.close()


def test_rows_arrive_once_in_requests_of_the_size_that_is_set(lab: Lab) -> None:
    lab.write(0, 20)
    lab.store.ship()
    assert lab.steps() == list(range(200))
    assert lab.pending == 0
    assert lab.writes() == {"trimtab": 4, "trimtab_minute": 4, "trimtab_hour": 1}
    assert {query["precision"] for _, _, query in lab.double.requests} == {"ms"}
    lab.store.ship()
    assert lab.writes() == {"trimtab": 4, "trimtab_minute": 4, "trimtab_hour": 1}


@pytest.mark.parametrize(
    "fault",
    [Fault(503), Fault(429, {"Retry-After": "7"}), Fault(500), Fault(drop=True), Fault(503, keep=True)],
    ids=["503", "429", "500", "dropped", "kept but not answered"],
)
def test_a_failure_in_the_middle_loses_and_repeats_nothing(lab: Lab, fault: Fault) -> None:
    lab.write(0, 10)
    lab.store.ship()
    lab.write(10, 20)
    lab.double.faults = [Fault(204, keep=True), fault]
    with pytest.raises(TryLaterError) as failure:
        lab.store.ship()
    if fault.status == 429:
        assert failure.value.retry_after_seconds == 7
    assert 0 < lab.pending <= 150
    lab.store.local.seal()  # what waits is sealed meanwhile
    lab.store.ship()
    assert lab.steps() == list(range(300))
    assert lab.pending == 0


def test_rows_outlive_the_process_and_an_outage(lab: Lab, tmp_path: Path) -> None:
    lab.write(0, 5)
    lab.double.faults = [Fault(503)] * 100
    with pytest.raises(TryLaterError):
        lab.store.ship()
    lab.store.close()
    lab.double.faults = []
    again = Lab(tmp_path / "store", lab.double)
    again.write(5, 5)
    again.store.local.seal()
    again.store.ship()
    assert again.steps() == list(range(100))
    again.store.close()


def test_a_request_that_is_too_long_is_cut(lab: Lab) -> None:
    lab.double.longest_body = 1000
    lab.write(0, 10)
    lab.store.ship()
    assert lab.steps() == list(range(100))


@pytest.mark.parametrize("version", ["1.8.10", "2.8.0"])
def test_refused_rows_are_named_and_the_rest_is_kept(lab: Lab, version: str, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(measurement: str, tags: Tags, fields: Point, stamp: int) -> str | None:
        wrong = fields.get("steps_count") in (7.0, 33.0)
        return (
            'field type conflict: input field "steps_count" is type float, already exists as integer' if wrong else None
        )

    lab.double.version = version
    lab.double.refuse = refuse
    lab.write(0, 10)
    shipper = lab.shipper()
    done = shipper.ship()
    assert lab.steps() == [n for n in range(100) if n not in (7, 33)]
    assert done.refused.total() == 2
    assert done.lines == 98 + 2  # and the rejects that tell of it
    assert lab.pending == 0
    named = [r.message for r in caplog.records if r.message.startswith("refused")]
    assert len(named) == 2
    assert "slice=s7" in named[0]
    assert "field type conflict" in named[0]
    rejects = lab.store.local.rejects(window(0, 60))
    assert rejects["slice"].tolist() == ["s7", "s3"]
    assert rejects["time"].tolist() == [at(0), at(3)]
    assert rejects["reason"].str.startswith("InfluxDB refused the row").all()


def test_a_bucket_that_refuses_everything_is_not_searched_for_ever(lab: Lab) -> None:
    lab.double.refuse = lambda *_: "field type conflict"
    lab.write(0, 10)
    done = lab.shipper().ship()
    assert done.lines == 0
    assert len(lab.store.local.rejects(window(0, 60))) == 40  # 20 named a request of 50
    assert len(lab.double.requests) < 2 * 100


def test_a_wrong_token_is_one_clear_line_without_it(lab: Lab, tmp_path: Path) -> None:
    lab.double.token = "right-token"  # noqa: S105 - of a double
    wrong = Lab(tmp_path / "other", lab.double, token="wrong-token")  # noqa: S106
    wrong.write(0, 1)
    with pytest.raises(ConfigurationError, match=r"answered 401.*check the token") as failure:
        wrong.store.ship()
    assert "wrong-token" not in str(failure.value)
    wrong.store.close()
    (tmp_path / "token").write_text("right-token\n")
    right = Lab(tmp_path / "other", lab.double, token_file=tmp_path / "token")
    right.store.ship()
    assert len(right.steps()) == 10
    right.store.close()


def test_the_loop_waits_as_it_is_asked_and_ends_cleanly(lab: Lab) -> None:
    waits: list[float] = []
    stop = threading.Event()

    class Watching(VirtualClock):
        def wait(self, seconds: float, stop: threading.Event | None = None) -> bool:
            waits.append(seconds)
            if len(waits) == 6 and stop is not None:
                lab.write(3, 1)
                stop.set()
            return super().wait(seconds, stop)

    lab.clock = Watching(START + HOUR)
    lab.write(0, 3)
    lab.double.faults = [Fault(429, {"Retry-After": "30"}), Fault(503), Fault(503)]
    lab.shipper().run(stop)
    assert waits[:2] == [0.0, 30.0]
    assert waits[2] == 60.0
    assert waits[3] == 60.0
    assert waits[4] == waits[5] == 5.0
    assert lab.steps() == list(range(40))  # the last pass took what came before the stop
    assert lab.pending == 0


def test_whatever_one_pass_ends_with_the_next_one_comes(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stop = threading.Event()
    waits: list[float] = []

    class Watching(VirtualClock):
        def wait(self, seconds: float, stop: threading.Event | None = None) -> bool:
            waits.append(seconds)
            if len(waits) == 3 and stop is not None:
                stop.set()
            return super().wait(seconds, stop)

    lab.clock = Watching(START + HOUR)
    lab.write(0, 3)
    shipper = lab.shipper()
    ship, failures = shipper.ship, [ZeroDivisionError("told to nobody")]

    def once(*, until: float | None = None) -> Shipped:
        if failures:
            raise failures.pop()
        return ship(until=until)

    monkeypatch.setattr(shipper, "ship", once)
    shipper.run(stop)
    assert waits == [0.0, 1.0, 5.0]
    assert "unexpected ZeroDivisionError; rows wait" in caplog.text
    assert lab.pending == 0


def test_aggregates_of_an_hour_are_sent_when_it_is_over_and_again_when_a_row_is_late(lab: Lab) -> None:
    lab.write(0, 3)
    lab.store.ship(before=at(59))
    assert lab.steps("trimtab_minute") == []
    lab.store.ship(before=at(60))
    minutes = lab.double.rows("trimtab_minute", "slice")
    assert len(minutes) == 30
    hours = {tags["slice"]: fields for tags, _, fields in lab.double.rows("trimtab_hour", "slice")}
    assert hours["s1"] == {
        "rows_count": 3.0,
        "steps_count": 11.0,
        "steps_count__min": 1.0,
        "steps_count__max": 21.0,
        "steps_count__count": 3.0,
    }
    lab.store.write(slice_rows([3], ["s1"], steps_count=[101]))
    lab.store.ship(before=at(60))
    hours = {tags["slice"]: fields for tags, _, fields in lab.double.rows("trimtab_hour", "slice")}
    assert hours["s1"]["steps_count"] == 33.5
    assert hours["s1"]["steps_count__max"] == 101.0
    assert len(lab.double.rows("trimtab_hour", "slice")) == 10


def test_facts_events_and_rejects_go_along(lab: Lab) -> None:
    who = Subject("slice", "lab", "node-a", "GPU-1", "s1")
    batch = slice_rows([0], ["s1"], steps_count=[1])
    batch.facts = [Fact(who, "kind", "mps", at(0)), Fact(who, "pod", "ns/p", at(0))]
    batch.events = [
        Event(who, "xid", Severity.ERROR, "XID 79", at(1)),
        Event(who, "xid", Severity.ERROR, 'XID "48"\nsecond line', at(1)),
    ]
    batch.rejects = [Reject(who, "busy_ratio", "above 1", at(1), 3)]
    lab.store.write(batch)
    lab.store.ship()
    lab.store.write(Batch(facts=[Fact(who, "kind", "mig", at(2)), Fact(who, "pod", None, at(0))]))
    lab.store.ship()
    remote = InfluxStore(lab.settings, StoreSettings(path=lab.store_settings.path / "none"), read_only=True)
    for name in ("facts", "events", "rejects"):
        here, there = (getattr(store, name)(window(0, 60)) for store in (lab.store, remote))
        assert there.to_dict("list") == here.to_dict("list"), name
    assert remote.facts()["value"].tolist() == ["mps", "mig"]
    assert remote.facts(names=["pod"]).empty
    assert remote.facts(window(2, 3), names=["kind"])["value"].tolist() == ["mig"]
    with pytest.raises(UnreachableError, match="none on this host"):
        remote.write(batch)
    remote.close()


def test_a_row_that_came_twice_keeps_its_first_holder_there(lab: Lab) -> None:
    lab.store.write(slice_rows([0], ["a"], tenant="first", steps_count=[1]))
    lab.store.ship()
    lab.store.write(slice_rows([0, 1], ["a", "a"], tenant="later", busy_ratio=[0.5, 0.6]))
    lab.store.ship()
    rows = [(tags["tenant"], fields) for tags, _, fields in lab.double.rows("trimtab", "slice")]
    assert rows == [
        ("first", {"rows_count": 1.0, "steps_count": 1.0, "busy_ratio": 0.5}),
        ("later", {"rows_count": 1.0, "busy_ratio": 0.6}),
    ]


def test_rows_older_than_their_retention_are_not_sent_but_their_hours_are(lab: Lab) -> None:
    lab.write(0, 2)
    lab.clock.advance(8 * 86400)
    lab.store.ship()
    assert lab.steps() == []
    assert len(lab.double.rows("trimtab_minute", "slice")) == 20
    assert len(lab.double.rows("trimtab_hour", "slice")) == 10


def test_a_store_of_long_before_is_sent_whole(tmp_path: Path, double: InfluxDouble) -> None:
    settings = StoreSettings(path=tmp_path / "store")
    with closing(EmbeddedStore(settings)) as store:
        store.write(slice_rows(list(range(5)), ["a"] * 5, steps_count=list(range(5))))
        store.seal()
        store.write(slice_rows([5], ["a"], steps_count=[5]))
    lab = Lab(tmp_path / "store", double)
    assert lab.store.read("slice", window(0, 9))["steps_count"].tolist() == [0, 1, 2, 3, 4, 5]
    lab.store.ship()
    assert lab.steps() == [0, 1, 2, 3, 4, 5]
    lab.store.close()


# Reading both


def test_the_boundary_between_the_stores(lab: Lab) -> None:
    lab.write(0, 240)
    lab.clock.advance(3 * 3600)  # minute 240
    lab.store.ship()
    everything = lab.store.read("slice", window(0, 240), fields=["steps_count"])
    assert len(everything) == 2400
    assert everything.attrs["stores"] == [("influx", at(0), at(120)), ("embedded", at(120), at(240))]
    assert everything.attrs["behind_seconds"] == 0
    lab.double.points["trimtab"].clear()  # what is then still seen came from the local store
    assert len(lab.store.read("slice", window(0, 240))) == 1200
    hourly = lab.store.read("slice", window(0, 240), fields=["steps_count"], every=HOUR, by=[], aggregate="count")
    assert hourly["time"].tolist() == [at(120), at(180)]
    # A boundary within a bucket moves back to its start.
    wide = lab.store.read("slice", window(0, 240), fields=["steps_count"], every=1.5 * HOUR, by=[], aggregate="count")
    assert wide.attrs["stores"] == [("influx", at(0), at(90)), ("embedded", at(90), at(240))]
    assert wide["steps_count"].tolist() == [900, 600]
    whole = lab.store.read("slice", window(0, 240), fields=["steps_count"], by=[], aggregate="count")
    assert whole["steps_count"].tolist() == [2400]
    assert whole.attrs["stores"] == [("embedded", at(0), at(240))]


def test_what_is_not_shipped_comes_from_the_local_store(lab: Lab) -> None:
    lab.write(0, 10)
    lab.store.ship()
    lab.clock.advance(86400)
    lab.write(70, 10)
    frame = lab.store.read("slice", window(0, 120), fields=["steps_count"])
    # The hour's aggregates are not there either.
    assert frame.attrs["stores"] == [("influx", at(0), at(60)), ("embedded", at(60), at(120))]
    assert len(frame) == 200
    assert frame.attrs["behind_seconds"] == (lab.clock.now() - at(70)).total_seconds()
    lab.store.ship()
    frame = lab.store.read("slice", window(0, 120), fields=["steps_count"])
    assert frame.attrs["stores"] == [("influx", at(0), at(120))]
    assert frame.attrs["behind_seconds"] == 0
    assert len(frame) == 200


def test_an_hour_whose_aggregates_are_dirty_comes_from_the_local_store(lab: Lab) -> None:
    lab.write(0, 10)
    lab.store.ship()
    lab.clock.advance(86400)
    lab.store.write(slice_rows([5], ["late"], steps_count=[1]))
    with closing(Outbox(lab.store_settings, CURSOR)) as outbox:
        outbox.advance(10**6)
    frame = lab.store.read("slice", window(0, 60), fields=["steps_count"], every=HOUR, aggregate="sum")
    assert frame.attrs["stores"] == [("embedded", at(0), at(60))]
    assert "late" in frame["slice"].tolist()


def test_an_outage_is_bridged_by_the_local_store(lab: Lab) -> None:
    lab.write(0, 10)
    lab.store.ship()
    lab.clock.advance(86400)
    lab.double.faults = [Fault(503)] * 50
    frame = lab.store.read("slice", window(0, 60), fields=["steps_count"])
    assert len(frame) == 100
    assert frame.attrs["stores"] == [("embedded", at(0), at(60))]
    assert len(lab.store.latest("slice", at=at(60), lookback=HOUR)) == 10
    assert lab.store.span("slice") is not None
    assert lab.store.retain(lab.clock.now()) == 0


def test_a_new_local_store_asks_influxdb_for_what_was_before(lab: Lab, tmp_path: Path) -> None:
    who = Subject("slice", "lab", "node-a", "GPU-1", "s1")
    lab.write(0, 10)
    lab.store.write(
        Batch(facts=[Fact(who, "kind", "mps", at(0))], events=[Event(who, "xid", Severity.ERROR, "XID 79", at(1))])
    )
    lab.store.ship()
    lab.clock.advance(2 * 86400)
    new = InfluxStore(lab.settings, StoreSettings(path=tmp_path / "new"), clock=lab.clock)
    day = 2 * 1440 + 55
    new.write(slice_rows([day], ["s1"], steps_count=[1]))
    new.write(Batch(facts=[Fact(who, "kind", "mig", at(day))]))
    new.ship()
    span = new.span("slice")
    assert span is not None
    assert (span.start, span.end) == (at(0), at(day) + timedelta(milliseconds=1))
    frame = new.read("slice", window(0, day + 1), fields=["steps_count"])
    assert len(frame) == 101
    assert new.facts(window(0, day + 1))["value"].tolist() == ["mps", "mig"]
    assert new.facts(window(0, day + 1))["to"].tolist()[0] == at(day)
    assert new.events(window(0, day + 1))["message"].tolist() == ["XID 79"]
    assert new.partitions(window(0, day + 1)) == [("lab", "node-a")]
    # One bucket over both: InfluxDB alone holds all of it.
    total = new.read("slice", window(0, day + 1), fields=["steps_count"], by=[], aggregate="count")
    assert total.attrs["stores"][0][0] == "influx"
    new.close()


def test_latest_takes_the_newest_of_both(lab: Lab) -> None:
    lab.write(0, 2)
    lab.store.ship()
    lab.clock.advance(4 * 3600)
    lab.store.write(slice_rows([290, 290], ["s1", "new"], steps_count=[7, 8]))
    frame = lab.store.latest("slice", at=at(300), lookback=5 * HOUR, fields=["steps_count"])
    newest = dict(zip(frame["slice"], frame["steps_count"], strict=True))
    assert newest == {**{f"s{i}": 10.0 + i for i in range(10)}, "s1": 7.0, "new": 8.0}


def test_without_an_address_the_embedded_store_is_alone(tmp_path: Path) -> None:
    with closing(open_store(InfluxSettings(), StoreSettings(path=tmp_path / "store"))) as store:
        assert isinstance(store, EmbeddedStore)


# The connection


@pytest.mark.parametrize(
    ("url", "loopback"),
    [
        ("http://127.0.0.1:8086", True),
        ("http://localhost", True),
        ("http://[::1]:1", True),
        ("http://influx:8086", False),
    ],
)
def test_compression_is_off_on_loopback(url: str, loopback: bool) -> None:
    assert is_loopback(url) is loopback
    assert InfluxClient(InfluxSettings(url=url))._compress is not loopback
    assert InfluxClient(InfluxSettings(url=url, gzip="on"))._compress
    assert not InfluxClient(InfluxSettings(url=url, gzip="off"))._compress


def test_compressed_requests_arrive_whole(tmp_path: Path, double: InfluxDouble) -> None:
    lab = Lab(tmp_path / "store", double, gzip="on")
    lab.write(0, 10)
    lab.store.ship()
    assert lab.steps() == list(range(100))
    lab.store.close()


@pytest.mark.parametrize(
    ("version", "flavour"), [("1.8.10", Flavour.V1), ("v2.8.0", Flavour.V2), ("3.4.1", Flavour.V3)]
)
def test_versions_are_told_apart(version: str, flavour: Flavour) -> None:
    with influx_double.running(version) as double, closing(InfluxClient(InfluxSettings(url=double.url))) as client:
        assert client.flavour() is flavour


def test_an_address_with_a_password_is_named_without_it(tmp_path: Path) -> None:
    settings = InfluxSettings(url="http://user:hush@127.0.0.1:1", token=SecretStr("t0k3n"), timeout_seconds=1)
    with closing(InfluxClient(settings)) as client, pytest.raises(TryLaterError) as failure:
        client.flavour()
    assert "hush" not in str(failure.value)
    assert "t0k3n" not in str(failure.value)
    with pytest.raises(ConfigurationError, match="token_file"):
        InfluxClient(InfluxSettings(url="http://x", token_file=tmp_path / "absent"))
    with pytest.raises(ConfigurationError, match="expected an address"):
        InfluxClient(InfluxSettings(url="influx:8086"))


def told(lab: Lab) -> Batch:
    """A batch of a row, a fact, an event and a reject, a minute after those of `write`."""
    subject = Subject("gpu", "c", "n", "g")
    batch = slice_rows([30], ["s0"], steps_count=[1000])
    batch.facts.append(Fact(subject, "model", "H100", at(30)))
    batch.events.append(Event(subject, "xid", Severity.ERROR, "XID 79", at(30)))
    batch.rejects.append(Reject(subject, "busy_ratio", "out_of_range", at(30)))
    return batch


@pytest.mark.parametrize("tier", ["minute", "hour"])
def test_a_tier_without_its_bucket_waits_alone(lab: Lab, caplog: pytest.LogCaptureFixture, tier: str) -> None:
    lab.double.missing = {f"trimtab_{tier}"}
    lab.clock = VirtualClock(START + 2 * HOUR)
    lab.store.write(told(lab))
    lab.write(0, 20)
    shipper = lab.shipper()
    for _ in range(3):
        assert shipper._try(0.0) > 0
    assert lab.steps() == sorted([*range(200), 1000])
    assert lab.pending == 0
    other = "trimtab_minute" if tier == "hour" else "trimtab_hour"
    assert lab.double.rows(f"trimtab_{tier}", "slice") == []
    assert len(lab.double.rows(other, "slice")) > 0
    sent = lab.writes()
    shipper._try(0.0)
    assert lab.writes() - sent == {f"trimtab_{tier}": 1}  # one look whether it is there; nothing is sent again
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert f'bucket "trimtab_{tier}" not found' in warnings[0]
    assert "raw rows go on" in warnings[0]
    with pytest.raises(ConfigurationError, match=f"trimtab_{tier}.*trimtab store prepare"):
        lab.store.ship()
    lab.double.missing = set()
    lab.store.write(slice_rows([31], ["s0"], steps_count=[1001]))
    shipper._try(0.0)
    assert lab.steps()[-2:] == [1000, 1001]
    for bucket, kind in (
        ("trimtab_minute", "slice"),
        ("trimtab_hour", "slice"),
        *(("trimtab_hour", k) for k in ("fact", "event", "reject")),
    ):
        assert len(lab.double.rows(bucket, kind)) > 0, (bucket, kind)
    assert len(lab.double.rows("trimtab_hour", "event")) == 1
    sent = lab.writes()
    shipper._try(0.0)
    assert lab.writes() == sent


def test_what_waits_for_its_bucket_outlives_the_process(lab: Lab, tmp_path: Path) -> None:
    lab.double.missing = {"trimtab_hour"}
    lab.store.write(told(lab))
    with pytest.raises(ConfigurationError, match="trimtab_hour"):
        lab.store.ship()
    lab.store.close()
    lab.double.missing = set()
    again = Lab(tmp_path / "store", lab.double)
    again.store.ship()
    assert [len(lab.double.rows("trimtab_hour", kind)) for kind in ("fact", "event", "reject")] == [1, 1, 1]
    again.store.ship()
    again.store.close()


def test_a_rotated_token_is_taken_up(lab: Lab, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    lab.double.token = "first"  # noqa: S105 - of a double
    rotating = Lab(tmp_path / "other", lab.double, token_file=file)
    rotating.write(0, 1)
    rotating.store.ship()
    lab.double.token = "second"  # noqa: S105
    rotating.write(1, 1)
    with pytest.raises(
        ConfigurationError, match=r"answered 401.*check the token_file .*/token of \[influx\]"
    ) as failure:
        rotating.store.ship()
    assert "first" not in str(failure.value)
    file.write_text("second\n")
    rotating.store.ship()
    assert len(rotating.steps()) == 20
    file.unlink()  # between the old file and the new one
    rotating.write(2, 1)
    rotating.store.ship()
    assert len(rotating.steps()) == 30
    assert "cannot be read: FileNotFoundError" in caplog.text
    assert "second" not in caplog.text
    rotating.store.close()


def test_without_a_token_the_setting_is_named(lab: Lab) -> None:
    lab.double.token = "wanted"  # noqa: S105 - of a double
    lab.write(0, 1)
    with pytest.raises(ConfigurationError) as failure:
        lab.store.ship()
    assert f"InfluxDB at {lab.double.url} answered 401" in str(failure.value)
    assert "no token is set: [influx] token_file, or TRIMTAB_INFLUX__TOKEN in the environment" in str(failure.value)
