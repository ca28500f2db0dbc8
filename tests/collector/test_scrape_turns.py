"""Targets of one source apart from each other: slow ones, dead ones, ones asked seldom, clocks that are wrong."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import wait
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from collector.batch import Batch
from collector.fetch import HttpFetch
from collector.plugins import SourceContext
from collector.scrape import ScrapeSource
from collector.settings import SourceSettings, TargetSettings

START = datetime(2026, 1, 5, tzinfo=UTC)


class Node:
    """Loopback exporters of one card each; `/slow` waits until it is released, `/dead` answers 500."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.release = threading.Event()
        self.date = ""
        self.energy = 0
        self.extra = ""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.asked.append(self.path)
                if self.path == "/slow":
                    outer.release.wait(20)
                self.send_response(500 if self.path == "/dead" else 200)
                body = outer.text(self.path.strip("/")).encode()
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def date_time_string(self, timestamp: float | None = None) -> str:
                return outer.date or super().date_time_string(timestamp)

            def log_message(self, *_: object) -> None:
                return

        class Server(ThreadingHTTPServer):
            request_queue_size = 128  # all targets of a test at once

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def text(self, name: str) -> str:
        card = f'{{gpu="0",UUID="GPU-{name}",pod="p-{name}",namespace="n"}}'
        energy = f"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{card} {self.energy}\n"
        return f"DCGM_FI_DEV_POWER_USAGE{card} 100\n{energy}{self.extra}"

    def source(self, *paths: str, interval: float = 60.0, **settings: Any) -> ScrapeSource:
        urls = tuple(f"{self.url}/{path}" for path in paths)
        return ScrapeSource(
            SourceSettings(targets=urls, **settings), SourceContext(cluster="test", interval_seconds=interval)
        )

    def close(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def node() -> Iterator[Node]:
    server = Node()
    yield server
    server.close()


def cards(batch: Batch) -> dict[str, float]:
    """Return card -> age of its source in seconds."""
    rows = batch.rows["gpu"].to_pylist() if "gpu" in batch.rows else []
    return {row["gpu"].removeprefix("GPU-"): row["source_age_seconds"] for row in rows}


def codes(batch: Batch) -> list[str]:
    return [event.code for event in batch.events]


def test_a_slow_target_delays_nobody_and_what_it_says_counts_later_with_its_age(node: Node) -> None:
    source = node.source("slow", "a", "b", interval=1.0, timeout_seconds=20.0)
    first = source.poll(START)
    assert cards(first) == {"a": 0.0, "b": 0.0}
    assert codes(first) == []  # neither up nor down
    second = source.poll(START + timedelta(seconds=1))
    assert cards(second) == {"a": 0.0, "b": 0.0}
    assert node.asked.count("/slow") == 1  # it is not asked again while it is
    node.release.set()
    wait([running.future for running in source._running.values()])
    node.release.clear()  # asked again, it hangs again
    third = source.poll(START + timedelta(seconds=2))
    assert cards(third) == {"a": 0.0, "b": 0.0, "slow": 2.0}
    assert source.tally.late == 2
    source.close()


def test_only_slow_targets_are_waited_for_a_moment(node: Node) -> None:
    source = node.source("slow", interval=1.0, timeout_seconds=20.0)
    assert source.poll(START).row_count == 0
    assert source.poll(START + timedelta(seconds=1)).row_count == 0
    source.close()


def test_slices_of_a_target_that_is_late_stay_who_they_are(node: Node) -> None:
    node.release.set()
    source = node.source("slow", "a", interval=1.0, timeout_seconds=20.0)
    assert cards(source.poll(START)) == {"a": 0.0, "slow": 0.0}
    node.release.clear()
    late = source.poll(START + timedelta(seconds=1))
    assert cards(late) == {"a": 0.0}
    assert [fact for fact in late.facts if fact.value is None] == []  # nothing ends
    assert codes(late) == []
    source.close()


def test_a_dead_target_is_told_once_and_asked_less_often(node: Node) -> None:
    source = node.source("dead", "a")
    asked, told = [], []
    for minute in range(10):
        before = node.asked.count("/dead")
        batch = source.poll(START + timedelta(minutes=minute))
        told += codes(batch)
        assert cards(batch) == {"a": 0.0}
        wait([running.future for running in source._running.values()])  # it is slow to say no, where the machine is
        if node.asked.count("/dead") > before:
            asked.append(minute)
    assert asked == [0, 1, 2, 4, 8]
    assert told == ["target_down"]
    assert source.tally.failed == 5
    source.close()


def test_a_source_may_be_asked_seldom_and_its_counters_grow_over_its_own_interval(node: Node) -> None:
    source = node.source("a", interval_seconds=180.0)
    joules = []
    for minute in range(7):
        node.energy += 60_000_000
        batch = source.poll(START + timedelta(minutes=minute))
        joules += [row.get("energy_joules") for row in batch.rows["gpu"].to_pylist()] if batch.row_count else []
        assert "card_lost" not in codes(batch)
    assert len(node.asked) == 3
    assert joules[1:] == [180_000.0, 180_000.0]
    source.close()


@pytest.mark.parametrize(("seconds", "told"), [(-3600, ["clock_skew"]), (3600, ["clock_skew"]), (-30, [])])
def test_a_clock_that_is_wrong_by_the_answers_own_date_is_told_once(node: Node, seconds: int, told: list[str]) -> None:
    now = datetime.now(UTC) + timedelta(seconds=seconds)
    node.date = now.strftime("%a, %d %b %Y %H:%M:%S GMT")
    source = node.source("a")
    first, second = source.poll(START), source.poll(START + timedelta(minutes=1))
    assert codes(first) == told
    assert codes(second) == []
    assert source.tally.skew_seconds == pytest.approx(seconds, abs=30)
    source.close()


def test_requests_are_spread_and_a_source_that_is_closed_leaves_the_rest(node: Node) -> None:
    source = node.source(*(f"t{n}" for n in range(20)))
    source.spread_seconds = 0.05
    assert len(cards(source.poll(START))) == 20
    source.spread_seconds = 600.0
    source.close()  # a cycle that begins now ends at once
    assert source.poll(START + timedelta(minutes=1)).row_count == 0


@pytest.mark.parametrize("head_bytes", [0, 40, 2**16])
def test_answers_are_read_alike_whether_in_one_thread_or_left_to_others(
    node: Node, monkeypatch: pytest.MonkeyPatch, head_bytes: int
) -> None:
    monkeypatch.setattr("collector.wire._HEAD_BYTES", head_bytes)
    source = node.source(*(f"t{n}" for n in range(40)), interval=600.0, timeout_seconds=100.0)
    source.spread_seconds = 0.01
    joules = []
    for minute, extra in enumerate(("", "", "other 1\n", "other 1\n")):
        node.energy += 60_000_000
        node.extra = extra  # another shape
        batch = source.poll(START + timedelta(minutes=10 * minute))
        assert len(cards(batch)) == 40
        joules += [row.get("energy_joules") for row in batch.rows["gpu"].to_pylist()]
    assert joules[40:] == [60_000.0] * 120
    assert source.tally.answered == len(source.tally.durations) == 160
    assert source.tally.samples == 40 * (2 + 2 + 3 + 3)
    assert not source._burst
    source.close()


def test_what_is_kept_of_a_target_goes_with_it(node: Node) -> None:
    targets = [TargetSettings(url=f"{node.url}/{name}") for name in "ab"]
    fetch = HttpFetch(SourceSettings())
    source = ScrapeSource(SourceSettings(), SourceContext(cluster="test"), discover=lambda: targets)
    source._fetch = fetch
    assert cards(source.poll(START)) == {"a": 0.0, "b": 0.0}
    assert fetch._connections.keys() == source._turns.keys() == source._parsers.keys() == {one.url for one in targets}
    del targets[0]
    assert cards(source.poll(START + timedelta(minutes=1))) == {"b": 0.0}
    assert fetch._connections.keys() == source._turns.keys() == source._parsers.keys() == {f"{node.url}/b"}
    source.close()
