"""PrometheusSource against a loopback server that answers as the documented API does, with either version's borders."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import orjson
import pytest
from pydantic import SecretStr

from collector import prometheus
from collector.conformance import SourceConformance
from collector.errors import ConfigurationError, UnreachableError
from collector.plugins import SourceContext
from collector.prometheus import PrometheusSource
from collector.settings import SourceSettings
from collector.window import Window

START = datetime(2026, 1, 5, tzinfo=UTC)
CARD = {"UUID": "GPU-0", "gpu": "0", "instance": "10.0.0.7:9400", "job": "dcgm", "node": "node-a"}


class Prometheus:
    """Holds samples; `version` 2 closes both borders of a range, 3 leaves the first one open."""

    def __init__(self) -> None:
        self.samples: dict[str, tuple[dict[str, str], list[tuple[float, str]]]] = {}
        self.version = 3
        self.broken = ""
        self.queries: list[str] = []
        self.authorization = ""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.authorization = self.headers.get("Authorization", "")
                names = sorted({labels["__name__"] for labels, _ in outer.samples.values()})
                self._answer({"status": "success", "data": names})

            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                if self.path.endswith("/series"):
                    window = (float(form[name][0]) for name in ("start", "end"))
                    self._answer(outer.series(form["match[]"][0], *window))
                    return
                self._answer(outer.query(form["query"][0], float(form["time"][0])))

            def _answer(self, document: object) -> None:
                status = 200
                body = orjson.dumps(document)
                if outer.broken == "error":
                    status, body = (
                        422,
                        orjson.dumps({"status": "error", "error": "query processing would load too many"}),
                    )
                elif outer.broken == "html":
                    status, body = 502, b"<html>bad gateway</html>"
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def add(self, name: str, labels: dict[str, str], times: list[float], values: list[float]) -> None:
        key = f"{name}{sorted(labels.items())}"
        known = self.samples.setdefault(key, ({"__name__": name, **labels}, []))
        known[1].extend(zip(times, map(str, values), strict=True))

    def query(self, query: str, at: float) -> object:
        self.queries.append(query)
        match = re.fullmatch(r'\{__name__=~"([^"]*)"\}\[(\d+)s\]', query)
        assert match, query
        start = at - int(match.group(2))
        result = []
        for labels, samples in self.samples.values():
            inside = [
                [time, value]
                for time, value in samples
                if (start <= time if self.version == 2 else start < time) and time <= at
            ]
            if inside and re.fullmatch(match.group(1), labels["__name__"]):
                result.append({"metric": labels, "values": inside})
        return {"status": "success", "data": {"resultType": "matrix", "result": result}}

    def series(self, selector: str, start: float, end: float) -> object:
        """Return the labels of the series that match."""
        self.queries.append(f"series {selector}")
        wanted = re.findall(r'(\w+)=~"([^"]*)"', selector)
        found = [
            labels
            for labels, samples in self.samples.values()
            if all(
                re.fullmatch(
                    re.sub(r"\\\\x\{(\w+)\}", lambda m: re.escape(chr(int(m[1], 16))), pattern), labels.get(name, "")
                )
                for name, pattern in wanted
            )
            and any(start <= time <= end for time, _ in samples)
        ]
        return {"status": "success", "data": found}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(params=[2, 3])
def server(request: pytest.FixtureRequest) -> Iterator[Prometheus]:
    prometheus = Prometheus()
    prometheus.version = request.param
    yield prometheus
    prometheus.close()


def source_of(server: Prometheus, **settings: object) -> PrometheusSource:
    return PrometheusSource(
        SourceSettings.model_validate(
            {"kind": "prometheus", "url": server.url + "/", "timeout_seconds": 2, **settings}
        ),
        SourceContext(cluster="test"),
        pause=lambda _: None,
    )


def fill(server: Prometheus, minutes: int, start: datetime = START, step: int = 30) -> None:
    times = [start.timestamp() + second for second in range(0, 60 * minutes, step)]
    server.add("DCGM_FI_DEV_POWER_USAGE", CARD, times, [100.0 + n for n in range(len(times))])
    server.add("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", CARD, times, [1e6 + 3e6 * n for n in range(len(times))])
    server.add("go_goroutines", CARD, times, [1.0] * len(times))
    server.add("up", {"instance": CARD["instance"], "job": "dcgm"}, times, [1.0] * len(times))


def test_a_poll_takes_the_newest_sample_of_each_series_and_its_age(server: Prometheus) -> None:
    fill(server, 3)
    source = source_of(server, bearer_token=SecretStr("t"), name="main")
    row = source.poll(START + timedelta(seconds=100)).rows["gpu"].to_pylist()[0]
    assert (row["time"], row["node"], row["power_watts"]) == (START + timedelta(minutes=1), "node-a", 103.0)
    assert row["source_age_seconds"] == pytest.approx(10.0)
    row = source.poll(START + timedelta(seconds=160)).rows["gpu"].to_pylist()[0]
    assert row["energy_joules"] == pytest.approx(6000.0)
    assert server.authorization == "Bearer t"
    assert source.discover() == ("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION")
    described = source.describe()
    assert (described.name, described.targets) == ("main", (server.url,))
    source.assembler.import_state(source.assembler.export_state())
    source.close()


def test_samples_older_than_two_intervals_are_absent(server: Prometheus) -> None:
    fill(server, 1)
    batch = source_of(server).poll(START + timedelta(seconds=200))
    assert batch.row_count == 0


def test_a_target_that_prometheus_cannot_scrape_is_down(server: Prometheus) -> None:
    fill(server, 1)
    server.add("up", {"instance": CARD["instance"], "job": "dcgm"}, [START.timestamp() + 60], [0.0])
    batch = source_of(server).poll(START + timedelta(seconds=70))
    assert [event.code for event in batch.events] == ["target_down"]
    assert batch.row_count == 0


def test_backfill_has_each_sample_once_whatever_the_servers_borders(server: Prometheus) -> None:
    fill(server, 180)
    source = source_of(server)
    batches = list(source.backfill(START, START + timedelta(hours=3)))
    assert len(batches) == 180
    rows = [batch.rows["gpu"].to_pylist()[0] for batch in batches]
    assert [row["time"] for row in rows] == [START + timedelta(minutes=n) for n in range(180)]
    assert [row["power_watts"] for row in rows] == [101.0 + 2 * n for n in range(180)]
    assert [row.get("energy_joules") for row in rows] == [None] + [6000.0] * 179
    lengths = [int(re.findall(r"\[(\d+)s", query)[0]) - 1 for query in server.queries]
    assert lengths == [600, 1200, 2400, 4800, 1800]  # little at first, more where a chunk held little


def test_backfill_leaves_out_what_is_not_there_and_stops_before_its_end(server: Prometheus) -> None:
    fill(server, 10)
    batches = list(source_of(server).backfill(START + timedelta(minutes=8), START + timedelta(hours=2)))
    assert [batch.rows["gpu"].to_pylist()[0]["time"].minute for batch in batches] == [8, 9]
    fill(server, 1, START + timedelta(hours=1))
    again = list(source_of(server).backfill(START + timedelta(minutes=9), START + timedelta(hours=1)))
    assert len(again) == 1


def test_many_names_are_asked_for_in_parts(server: Prometheus) -> None:
    names = [f"nvidia_smi_{n}" for n in ("power_draw_watts", "temperature_gpu")] + ["DCGM_FI_DEV_POWER_USAGE"]
    for name in names:
        server.add(name, {**CARD, "uuid": "x"}, [START.timestamp() + 1], [50.0])
    source = source_of(server)
    source.poll(START + timedelta(seconds=5))
    asked = set(re.findall(r"[A-Za-z_]+", " ".join(server.queries))) & set(names)
    assert asked == set(names)


@pytest.mark.parametrize(
    ("broken", "message"), [("error", "query processing would load too many"), ("html", "HTTP 502|too many 502")]
)
def test_a_server_that_answers_with_an_error_is_unreachable(server: Prometheus, broken: str, message: str) -> None:
    fill(server, 1)
    source = source_of(server)
    source.poll(START + timedelta(seconds=30))
    server.broken = broken
    with pytest.raises(UnreachableError, match=message):
        source.poll(START + timedelta(seconds=60))
    with pytest.raises(UnreachableError, match="expected metric names"):
        source.discover()


def test_nobody_listening_is_unreachable() -> None:
    settings = SourceSettings(kind="prometheus", url="http://127.0.0.1:9", timeout_seconds=0.2)
    source = PrometheusSource(settings, SourceContext(), pause=lambda _: None)
    with pytest.raises(UnreachableError, match="expected metric names"):
        source.poll(START)
    source._names = ("up",)
    source._polls = 1
    with pytest.raises(UnreachableError, match="expected an answer"):
        source.poll(START)


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="expected an address such as"):
        PrometheusSource(SourceSettings(kind="prometheus", url="prometheus:9090"), SourceContext())


def test_a_series_that_the_newest_scrape_lacks_has_ended(server: Prometheus) -> None:
    times = [START.timestamp() + second for second in (0, 15, 30, 45)]
    server.add("up", {"instance": CARD["instance"], "job": "dcgm"}, times, [1.0] * 4)
    old, new = ({**CARD, "exported_pod": pod, "exported_namespace": "team"} for pod in ("old", "new"))
    server.add("DCGM_FI_DEV_GPU_UTIL", old, times[:2], [50.0, 51.0])
    server.add("DCGM_FI_DEV_GPU_UTIL", new, times[2:], [60.0, 61.0])
    server.add("DCGM_FI_DEV_POWER_USAGE", CARD, [times[3] - 2.5], [100.0])  # stamped by the exporter itself: kept
    (batch,) = source_of(server).backfill(START, START + timedelta(minutes=1))
    (row,) = batch.rows["gpu"].to_pylist()
    assert (row["busy_ratio"], row["power_watts"]) == (0.61, 100.0)
    assert [one["workload"] for one in batch.rows["slice"].to_pylist()] == ["new"]
    (polled,) = source_of(server).poll(START + timedelta(seconds=50)).rows["gpu"].to_pylist()
    assert (polled["busy_ratio"], polled["power_watts"]) == (0.61, 100.0)


def test_two_servers_that_scrape_the_same_targets_are_one_picture(server: Prometheus) -> None:
    for replica, shift in (("a", 0.0), ("b", 7.0)):
        times = [START.timestamp() + shift + second for second in (0, 30)]
        labels = {**CARD, "__replica__": replica}
        server.add("DCGM_FI_DEV_POWER_USAGE", labels, times, [100.0 + shift, 101.0 + shift])
    (batch,) = source_of(server).backfill(START, START + timedelta(minutes=1))
    (row,) = batch.rows["gpu"].to_pylist()
    assert row["power_watts"] == 108.0
    assert batch.rejects == []


def test_a_window_off_the_grid_begins_with_the_first_whole_cycle(server: Prometheus) -> None:
    fill(server, 3)
    batches = list(source_of(server).backfill(START + timedelta(seconds=1), START + timedelta(seconds=150)))
    rows = [batch.rows["gpu"].to_pylist()[0] for batch in batches]
    assert [(row["time"].minute, row["power_watts"]) for row in rows] == [(1, 103.0), (2, 104.0)]


def test_flapping_names_of_a_shared_card_are_one_card(server: Prometheus) -> None:
    own = {**CARD, "pod": "nvidia-dcgm-exporter-abcde", "namespace": "gpu-operator", "container": "exporter"}
    for minute, pod in enumerate(("a", "b", "a", "b")):
        labels = {**own, "exported_pod": pod, "exported_namespace": "team", "exported_container": "main"}
        server.add("DCGM_FI_DEV_GPU_UTIL", labels, [START.timestamp() + 60 * minute + 1], [50.0 + minute])
    batches = list(source_of(server).backfill(START, START + timedelta(minutes=4)))
    assert [batch.rows["gpu"].num_rows for batch in batches] == [1, 1, 1, 1]
    owners = [batch.rows["slice"].to_pylist()[0]["workload"] for batch in batches]
    assert owners == ["a", "b", "unknown", "unknown"]


def test_a_simulation_behind_a_prometheus_says_so(server: Prometheus) -> None:
    fill(server, 2)
    batch = source_of(server).poll(START + timedelta(minutes=1))
    assert [fact for fact in batch.facts if fact.name == "simulated"] == []
    times = [START.timestamp() + second for second in (0, 30, 60, 90)]
    server.add("trimtab_simulated", {"cluster": "demo", "instance": CARD["instance"], "job": "dcgm"}, times, [1.0] * 4)
    source = source_of(server)
    (fact,) = [f for f in source.poll(START + timedelta(minutes=1)).facts if f.name == "simulated"]
    assert (fact.subject.kind, fact.value) == ("cluster", "true")
    assert [f for f in source.poll(START + timedelta(minutes=2)).facts if f.name == "simulated"] == []  # said once


class TestPrometheusSource(SourceConformance):
    """The laws of a source."""

    @pytest.fixture
    def source(self, server: Prometheus) -> Iterator[PrometheusSource]:
        fill(server, 10)
        made = source_of(server, bearer_token=SecretStr("t0ken"))
        yield made
        made.close()

    @pytest.fixture
    def now(self) -> datetime:
        return START + timedelta(seconds=100)

    @pytest.fixture
    def past(self) -> Window:
        return Window(START, START + timedelta(minutes=10))

    @pytest.fixture
    def secrets(self) -> tuple[str, ...]:
        return ("t0ken",)


def test_a_chunk_that_holds_too_much_is_asked_for_in_halves(
    server: Prometheus, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(server, 60, step=15)  # 4 x 3 samples a minute
    monkeypatch.setattr("collector.prometheus._MOST_SAMPLES", 24)
    batches = list(source_of(server).backfill(START, START + timedelta(hours=1)))
    rows = [batch.rows["gpu"].to_pylist()[0] for batch in batches]
    assert [row["power_watts"] for row in rows] == [103.0 + 4 * n for n in range(60)]
    lengths = [int(re.findall(r"\[(\d+)s", query)[0]) - 1 for query in server.queries]
    assert lengths[:3] == [600, 300, 120]
    assert max(lengths[2:]) <= 240  # never again more than twice what it may hold


def test_memory_of_a_backfill_does_not_grow_with_its_length(
    server: Prometheus, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(server, 600)
    monkeypatch.setattr("collector.prometheus._MOST_SAMPLES", 200)
    held: list[int] = []
    gathered = prometheus.gather_samples

    def noting(*arguments: Any, **more: Any) -> Any:
        samples = gathered(*arguments, **more)
        held.append(len(samples))
        return samples

    monkeypatch.setattr(prometheus, "gather_samples", noting)
    assert len(list(source_of(server).backfill(START, START + timedelta(hours=10)))) == 600
    assert sum(held) == 600 * 2 * 3
    assert max(held) <= 400
