"""Sources over real sockets, and the loop that writes what they give."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import SecretStr

from collector.batch import Batch
from collector.clock import VirtualClock
from collector.collect import Collector
from collector.errors import ConfigurationError, UnreachableError
from collector.plugins import SourceContext
from collector.protocols import SourceDescription
from collector.scrape import ScrapeSource
from collector.settings import SourceSettings, StoreSettings, TargetSettings
from collector.store import EmbeddedStore

START = datetime(2026, 1, 5, 0, 0, 13, tzinfo=UTC)
TEXT = 'DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-0"} 100\nDCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0",UUID="GPU-0"} '


class Exporters:
    """Loopback exporters: path -> (status, body); remembers the headers that came."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, str]] = {}
        self.headers: list[str] = []
        self.stall = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.headers.append(self.headers.get("Authorization", ""))
                if self.path == "/slow":
                    outer.stall.wait(5)
                status, body = outer.answers.get(self.path, (404, "not found"))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.stall.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def exporters() -> Iterator[Exporters]:
    server = Exporters()
    yield server
    server.close()


def source_of(exporters: Exporters, *paths: str, **settings: Any) -> ScrapeSource:
    urls = tuple(exporters.url + path for path in paths)
    return ScrapeSource(SourceSettings(targets=urls, **settings), SourceContext(cluster="test"))


def test_exporters_are_read_over_http_and_rows_stand_on_the_grid(exporters: Exporters) -> None:
    exporters.answers["/metrics"] = (200, TEXT + "1000000\n")
    source = source_of(exporters, "/metrics", bearer_token=SecretStr("s3cret"), name="lab")
    batch = source.poll(START)
    row = batch.rows["gpu"].to_pylist()[0]
    assert (row["power_watts"], row["node"], row["time"]) == (100.0, "127.0.0.1", START.replace(second=0))
    assert exporters.headers == ["Bearer s3cret"]
    described = source.describe()
    assert (described.kind, described.name, described.targets) == ("scrape", "lab", (exporters.url + "/metrics",))
    assert "s3cret" not in repr(described)
    assert list(source.backfill(START, START + timedelta(hours=1))) == []
    source.close()


def test_targets_that_fail_stand_apart(exporters: Exporters) -> None:
    exporters.answers["/metrics"] = (200, TEXT + "1\n")
    exporters.answers["/broken"] = (500, "internal server error")
    source = source_of(exporters, "/broken", "/metrics", "/slow", timeout_seconds=0.3)
    batch = source.poll(START)
    assert batch.rows["gpu"].num_rows == 1
    messages = sorted(event.message for event in batch.events if event.code == "target_down")
    assert len(messages) == 2
    assert "expected HTTP 200, got 500" in messages[0]
    assert "no answer in time" in messages[1]
    assert [message.count(exporters.url) for message in messages] == [1, 1]
    source.close()


def test_nobody_listening_is_an_event_and_not_an_exception() -> None:
    settings = SourceSettings(targets=("http://127.0.0.1:9/metrics",), timeout_seconds=0.5)
    source = ScrapeSource(settings, SourceContext())
    batch = source.poll(START)
    assert [event.code for event in batch.events] == ["target_down"]
    assert batch.events[0].message.endswith("got none: nothing listens there (connection refused)")
    assert batch.row_count == 0
    source.close()


@pytest.mark.parametrize(
    ("targets", "message"),
    [((), "expected targets such as"), (("node1:9400",), "expected http:// or https:// addresses, got 'node1:9400'")],
)
def test_a_source_without_proper_targets_is_refused(targets: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ScrapeSource(SourceSettings(targets=targets), SourceContext())


def test_targets_may_be_discovered_anew_each_time() -> None:
    targets = [TargetSettings(url="sim://a", node="a")]

    def fetch(target: TargetSettings) -> str:
        if target.node == "gone":
            raise UnreachableError("gone")
        return TEXT.replace("GPU-0", f"GPU-{target.node}") + "1\n"

    source = ScrapeSource(SourceSettings(), SourceContext(), fetch=fetch, discover=lambda: targets)
    assert source.poll(START).rows["gpu"]["gpu"].to_pylist() == ["GPU-a"]
    targets.append(TargetSettings(url="sim://b", node="b"))
    assert source.poll(START + timedelta(minutes=1)).rows["gpu"]["gpu"].to_pylist() == ["GPU-a", "GPU-b"]
    targets[:] = [TargetSettings(url="sim://c", node="gone")]
    assert source.poll(START + timedelta(minutes=2)).row_count == 0
    source.close()


def test_an_unexpected_error_is_told_without_what_it_says(caplog: pytest.LogCaptureFixture) -> None:
    def fetch(target: TargetSettings) -> str:
        raise RuntimeError(f"cannot get {target.url}")

    url = "http://a/metrics?token=hidden"
    source = ScrapeSource(SourceSettings(targets=(TargetSettings(url=url),)), SourceContext(), fetch=fetch)
    batch = source.poll(START)
    assert "unexpected RuntimeError" in caplog.text
    assert source.tally.failed == 1
    assert "hidden" not in caplog.text + repr(batch.events)
    source.close()


class MemoryStore:
    """Keeps batches; fails while told to."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def write(self, batch: Batch) -> None:
        self.batches.append(batch)


class FixedSource:
    """Gives the same text each time, and sets `stop` at the n-th poll."""

    def __init__(self, name: str = "fixed", stop: threading.Event | None = None, last: int = 0) -> None:
        self.name, self.stop, self.last = name, stop, last
        self.polls: list[datetime] = []
        self.fails = False

    def poll(self, now: datetime) -> Batch:
        self.polls.append(now)
        if self.stop is not None and len(self.polls) == self.last:
            self.stop.set()
        if self.fails:
            raise UnreachableError(f"{self.name}: expected an answer, got none")
        return Batch()

    def backfill(self, start: datetime, end: datetime) -> Iterator[Batch]:
        yield from ()

    def describe(self) -> SourceDescription:
        return SourceDescription("fixed", self.name, (), 60.0)


def collector(sources: list[Any], store: MemoryStore, clock: VirtualClock, path: Path | None = None) -> Collector:
    return Collector(sources, store, clock, 60.0, state_path=path)  # type: ignore[arg-type]  # writes are all it needs


def test_cycles_begin_at_once_and_then_stand_on_the_grid_until_stopped() -> None:
    stop, store, clock = threading.Event(), MemoryStore(), VirtualClock(START)
    source = FixedSource(stop=stop, last=4)
    assert collector([source], store, clock).run(stop) == 4
    assert [poll.second for poll in source.polls] == [13, 0, 0, 0]
    assert [poll.minute for poll in source.polls] == [0, 1, 2, 3]
    assert len(store.batches) == 4  # the batch in hand at the stop is written


def test_cycles_that_the_store_refused_are_counted() -> None:
    class FullStore(MemoryStore):
        def write(self, batch: Batch) -> None:
            raise UnreachableError(f"the disk is full at batch {len(self.batches)}")

    stop, clock = threading.Event(), VirtualClock(START)
    refused = collector([FixedSource(stop=stop, last=3)], FullStore(), clock)
    assert refused.run(stop) == 3
    assert refused.unwritten == 3


def test_a_source_that_fails_does_not_hold_up_the_others(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    bad, good = FixedSource("bad"), FixedSource("good")
    bad.fails = True
    report = collector([bad, good], store, VirtualClock(START)).run_once(START)
    assert report.failures == {"bad": "bad: expected an answer, got none"}
    assert len(store.batches) == 1
    assert "bad" in caplog.text


def test_when_no_source_can_be_read_the_cycle_fails_and_the_loop_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    stop, store = threading.Event(), MemoryStore()
    source = FixedSource(stop=stop, last=3)
    source.fails = True
    with pytest.raises(UnreachableError, match="expected an answer"):
        collector([source], store, VirtualClock(START)).run_once(START)
    with caplog.at_level(logging.INFO):
        assert collector([source], store, VirtualClock(START)).run(stop) == 2
    assert store.batches == []


def test_a_restart_of_the_collector_goes_on_where_it_stopped(exporters: Exporters, tmp_path: Path) -> None:
    path = tmp_path / "state" / "collector.json"
    joules = []
    for minute, energy in enumerate((1_000_000, 1_600_000)):
        exporters.answers["/metrics"] = (200, f"{TEXT}{energy}\n")
        store = MemoryStore()
        now = START + timedelta(minutes=minute)
        collector([source_of(exporters, "/metrics")], store, VirtualClock(now), path).run_once(now)
        joules.append(store.batches[0].rows["gpu"].to_pylist()[0].get("energy_joules"))
    assert joules == [None, 600.0]


@pytest.mark.parametrize("content", ["{oops", "[1]", "5", '{"fixed": 5}'])
def test_a_damaged_state_file_is_told_and_left_behind(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    path = tmp_path / "collector.json"
    path.write_text(content)
    store = MemoryStore()
    collector([FixedSource()], store, VirtualClock(START), path).run_once(START)
    assert "counters begin anew" in caplog.text
    assert path.read_text() == "{}"


@pytest.mark.parametrize("state", [{"targets": 5}, {"cards": {"cards": {"GPU-0": ["a"]}}}, {"xids": {"GPU-0": "x"}}])
def test_a_state_of_another_shape_is_told_and_left_behind(
    exporters: Exporters, tmp_path: Path, caplog: pytest.LogCaptureFixture, state: dict[str, object]
) -> None:
    exporters.answers["/metrics"] = (200, f"{TEXT}1000\n")
    (tmp_path / "collector.json").write_bytes(orjson.dumps({"scrape": state}))
    source, store = source_of(exporters, "/metrics"), MemoryStore()
    collector([source], store, VirtualClock(START), tmp_path / "collector.json").run_once(START)
    assert "another shape; it begins anew" in caplog.text
    assert store.batches[0].row_count == 1
    source.close()


def test_counters_are_saved_each_cycle_and_all_else_when_it_changed(exporters: Exporters, tmp_path: Path) -> None:
    exporters.answers["/metrics"] = (200, f"{TEXT}1000\n")
    path, clock = tmp_path / "collector.json", VirtualClock(START)
    source = source_of(exporters, "/metrics")
    loop = collector([source], MemoryStore(), clock, path)
    loop.run_once(START)
    loop.run_once(START + timedelta(minutes=1))  # a card that is seen again is no news
    before = path.stat().st_ino
    exporters.answers["/metrics"] = (200, f"{TEXT}2000\n")
    loop.run_once(START + timedelta(minutes=2))
    assert path.stat().st_ino == before
    saved = orjson.loads(path.with_suffix(".counters.json").read_bytes())
    assert saved["at_ms"] == (START + timedelta(minutes=2)).timestamp() * 1000
    assert saved["sources"]["scrape"]["raw"] == [2000.0]
    saved = orjson.loads(path.with_suffix(".counters.before.json").read_bytes())
    assert saved["sources"]["scrape"]["raw"] == [1000.0]
    exporters.answers["/metrics"] = (500, "")
    loop.run_once(START + timedelta(minutes=3))
    assert path.stat().st_ino != before
    assert orjson.loads(path.read_bytes())["scrape"]["targets"] == {exporters.url + "/metrics": False}
    source.close()


@pytest.mark.parametrize(
    "content",
    [
        "{oops",
        "[1]",
        '{"scrape": {"names": ["a"]}}',
        '{"at_ms": "now", "sources": {}}',
        '{"at_ms": 99999999999999999, "sources": {}}',
        '{"at_ms": 1767571200000, "sources": {"scrape": {"names": ["a"]}}}',
        '{"at_ms": 1767571200000, "sources": {"scrape": {"names": 5}}}',
    ],
)
def test_a_damaged_file_of_counters_is_told_and_left_behind(
    exporters: Exporters, tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    exporters.answers["/metrics"] = (200, f"{TEXT}1000\n")
    (tmp_path / "collector.counters.json").write_text(content)
    source, store = source_of(exporters, "/metrics"), MemoryStore()
    collector([source], store, VirtualClock(START), tmp_path / "collector.json").run_once(START)
    assert "begin anew" in caplog.text
    assert store.batches[0].row_count == 1
    source.close()


def test_a_state_that_cannot_be_saved_is_told_and_its_folder_is_not_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, store = tmp_path / "state", MemoryStore()
    loop = collector([FixedSource()], store, VirtualClock(START), folder / "collector.json")
    folder.rmdir()
    loop.run_once(START)
    assert "cannot save" in caplog.text
    assert not folder.exists()
    assert len(store.batches) == 1


def test_a_removed_store_is_told_each_cycle_and_the_loop_goes_on(
    exporters: Exporters, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    exporters.answers["/metrics"] = (200, f"{TEXT}5\n")
    folder, clock = tmp_path / "store", VirtualClock(START)
    store = EmbeddedStore(StoreSettings(path=folder), clock=clock)
    source, stop = source_of(exporters, "/metrics"), threading.Event()
    last = FixedSource(stop=stop, last=2)
    loop = Collector([last, source], store, clock, 60.0, state_path=folder / "collector.json")
    shutil.rmtree(folder)
    assert loop.run(stop) == 2
    assert caplog.text.count("found it removed") == 2
    assert not folder.exists()
    store.close()
    source.close()


def test_a_clock_that_was_never_set_is_told_and_the_loop_goes_on(
    exporters: Exporters, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    exporters.answers["/metrics"] = (200, f"{TEXT}5\n")
    clock, stop = VirtualClock(datetime(1970, 1, 1, tzinfo=UTC)), threading.Event()
    store = EmbeddedStore(StoreSettings(path=tmp_path), clock=clock)
    source = source_of(exporters, "/metrics")
    # The source that stops comes first; rows wait one cycle for their holders.
    assert Collector([FixedSource(stop=stop, last=2), source], store, clock, 60.0).run(stop) == 2
    assert "expected times from 2000 to 2100" in caplog.text
    assert store.span("gpu") is None
    store.close()
    source.close()


def test_a_cycle_that_ends_as_nobody_expected_is_told_and_the_loop_goes_on(
    exporters: Exporters, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporters.answers["/metrics"] = (200, f"{TEXT}5\n")
    source, stop = source_of(exporters, "/metrics"), threading.Event()

    def surprised(*_: object) -> Batch:
        raise RuntimeError("nobody thought of it")

    monkeypatch.setattr(source.assembler, "assemble", surprised)
    loop = collector([FixedSource(stop=stop, last=2), source], MemoryStore(), VirtualClock(START))
    assert loop.run(stop) == 2
    assert loop.unwritten == 2
    assert caplog.text.count("unexpected RuntimeError; its rows are lost") == 2
    source.close()


def test_the_state_is_plain_json(exporters: Exporters) -> None:
    exporters.answers["/metrics"] = (200, TEXT + "5\n")
    source = source_of(exporters, "/metrics")
    source.poll(START)
    state: Mapping[str, Any] = source.assembler.export_state()
    assert state["targets"] == {exporters.url + "/metrics": True}
    assert list(state["counters"].values()) == [[5.0, START.replace(second=0).timestamp() * 1000]]
    source.close()
