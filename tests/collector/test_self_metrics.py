"""What the collector says of itself: its metrics, the dashboard that shows them, and that it is blind."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from collector.assemble import Assembler, Scrape
from collector.batch import Batch, Fact, Subject
from collector.clock import VirtualClock
from collector.collect import Collector
from collector.errors import ConfigurationError, UnreachableError
from collector.exposition import ExpositionParser
from collector.gathering import GatheringSource
from collector.plugins import SourceContext
from collector.protocols import SourceDescription
from collector.scrape import ScrapeSource
from collector.self_metrics import CollectorMetrics, parse_listen, served
from collector.settings import SourceSettings, StoreSettings, TargetSettings
from collector.store import EmbeddedStore
from collector.store.outbox import Outbox

START = datetime(2026, 1, 5, tzinfo=UTC)
DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "collector.json"
GOOD = (
    'DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-0"} 100\nDCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-0"} 5000\nmore 1\nbad\n'
)


class Store:
    """Keeps batches."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def write(self, batch: Batch) -> None:
        self.batches.append(batch)

    def codes(self) -> list[str]:
        return [event.code for batch in self.batches for event in batch.events]


class Plugin:
    """A third party's source: does what it is told."""

    def __init__(self, name: str, poll: Any) -> None:
        self.name, self.do = name, poll

    def poll(self, now: datetime) -> Batch:
        result = self.do()
        assert isinstance(result, Batch)
        return result

    def backfill(self, start: datetime, end: datetime) -> Iterator[Batch]:
        yield from ()

    def describe(self) -> SourceDescription:
        return SourceDescription("plugin", self.name, (), 60.0)


def raising(error: BaseException) -> Any:
    def do() -> Batch:
        raise error

    return do


def collector(sources: list[Any], store: Any, metrics: CollectorMetrics | None = None) -> Collector:
    return Collector(sources, store, VirtualClock(START), 60.0, metrics=metrics)


def scrape(answers: dict[str, str], *, name: str = "cards", cluster: str = "c") -> ScrapeSource:
    def fetch(target: TargetSettings) -> str:
        if target.url not in answers:
            raise UnreachableError(f"{target.url}: expected an answer, got none")
        return answers[target.url]

    settings = SourceSettings(name=name, targets=tuple(TargetSettings(url=url) for url in ("sim://a", "sim://b")))
    return ScrapeSource(settings, SourceContext(cluster=cluster), fetch=fetch)


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Return (name, label values...) -> value."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_are_served_on_loopback_and_count_what_was_done() -> None:
    metrics, store = CollectorMetrics(), Store()
    loop = collector([scrape({"sim://a": GOOD}), Plugin("bad", raising(ValueError("x")))], store, metrics)
    loop.run_once(START)
    loop.run_once(START + timedelta(minutes=1))
    with served(metrics, "0") as address:
        assert address.startswith("http://127.0.0.1:")
        got = samples(requests.get(address, timeout=10).text)
    assert got["trimtab_cycles_total", "stored"] == 2
    assert got["trimtab_rows_total",] == 2
    assert got["trimtab_rejects_total", "out_of_range"] == 2
    assert got["trimtab_rejects_total", "no metric name"] == 2
    assert got["trimtab_events_total", "target_down"] == 1
    assert got["trimtab_scrapes_total", "answered", "cards"] == 2
    assert got["trimtab_scrapes_total", "failed", "cards"] == 2
    assert got["trimtab_scrape_samples_total", "cards"] == 6
    assert got["trimtab_scrape_duration_seconds_count", "cards"] == 2
    assert got["trimtab_source_failures_total", "bad"] == 2
    assert got["trimtab_targets", "cards"] == 2
    assert got["trimtab_blind", "c"] == 0
    assert got["trimtab_last_cycle_timestamp_seconds",] == (START + timedelta(minutes=1)).timestamp()


def test_a_cycle_that_could_not_be_stored_counts_as_failed() -> None:
    class Full(Store):
        def write(self, batch: Batch) -> None:
            raise UnreachableError("the disk is full")

    metrics = CollectorMetrics()
    with pytest.raises(UnreachableError, match="disk is full"):
        collector([scrape({"sim://a": GOOD})], Full(), metrics).run_once(START)
    with served(metrics, "127.0.0.1:0") as address:
        got = samples(requests.get(address, timeout=10).text)
    assert got["trimtab_cycles_total", "failed"] == 1
    assert got["trimtab_rows_total",] == 0


def test_an_address_that_is_taken_or_none_is_refused() -> None:
    with served(CollectorMetrics(), "0") as address:
        port = address.split(":")[2].partition("/")[0]
        with (
            pytest.raises(ConfigurationError, match="expected an address that is free"),
            served(CollectorMetrics(), port),
        ):
            pass
    for text in ("x", "localhost:", "1:70000", "9464x"):
        with pytest.raises(ConfigurationError, match="expected a port or address:port"):
            parse_listen(text)
    assert parse_listen("9464") == ("127.0.0.1", 9464)
    assert parse_listen("[::]:9464") == ("::", 9464)


def test_every_query_of_the_dashboard_names_metrics_and_labels_that_exist(tmp_path: Path) -> None:
    metrics = CollectorMetrics()
    loop = collector([scrape({"sim://a": GOOD}), Plugin("bad", raising(ValueError("x")))], Store(), metrics)
    loop.run_once(START)
    settings = StoreSettings(path=tmp_path / "store")
    with closing(EmbeddedStore(settings)):
        metrics.watch_store(settings, "influx", VirtualClock(START))
        check_dashboard(metrics)


def check_dashboard(metrics: CollectorMetrics) -> None:
    known: dict[str, set[str]] = {}
    for family in metrics.registry.collect():
        for sample in family.samples:
            known.setdefault(sample.name, set()).update(sample.labels)
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [variable["query"]["query"] for variable in dashboard["templating"]["list"] if variable["name"] == "job"]
    assert len(queries) > 12
    for query in queries:
        named = re.findall(r"\b(?:trimtab|process)_\w+", query)
        assert named, query
        assert [name for name in named if name not in known] == [], query
        labels = {label for name in named for label in known[name]} | {"job", "instance"}
        grouped = re.findall(r"by \(([^)]*)\)", query) + re.findall(r"[{,]\s*(\w+)=", query)
        assert {label.strip() for group in grouped for label in group.split(",")} <= labels, query
    shown = {name.rpartition("_bucket")[0] or name for query in queries for name in re.findall(r"trimtab_\w+", query)}
    every = {family.name for family in metrics.registry.collect() if family.name.startswith("trimtab_")}
    assert every <= {re.sub("_(total|sum|count)$", "", name) for name in shown}
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)


class Roundabout(GatheringSource):
    """Asks somebody else, as a Prometheus source does, and does not count by itself."""

    def __init__(self) -> None:
        self.assembler = Assembler(SourceContext(cluster="c"))

    def gather(self, now: datetime) -> list[Scrape]:
        return [
            Scrape(TargetSettings(url="sim://a"), ExpositionParser().parse(GOOD)),
            Scrape(TargetSettings(url="sim://b"), None, "Prometheus says that it is down"),
            Scrape(TargetSettings(url="sim://c"), None, resting=True),
        ]

    def describe(self) -> SourceDescription:
        return SourceDescription("prometheus", "roundabout", (), 60.0)


def test_targets_behind_a_prometheus_are_counted_too() -> None:
    metrics = CollectorMetrics()
    loop = collector([Roundabout()], Store(), metrics)
    loop.run_once(START)
    loop.run_once(START + timedelta(minutes=1))
    with served(metrics, "0") as address:
        got = samples(requests.get(address, timeout=10).text)
    assert got["trimtab_targets", "roundabout"] == 3
    assert got["trimtab_scrapes_total", "answered", "roundabout"] == 2
    assert got["trimtab_scrapes_total", "failed", "roundabout"] == 2
    assert got["trimtab_scrape_samples_total", "roundabout"] == 6


def test_the_store_and_what_waits_for_influxdb_are_told(tmp_path: Path) -> None:
    settings = StoreSettings(path=tmp_path / "store")
    metrics = CollectorMetrics()
    clock = VirtualClock(START + timedelta(minutes=5))
    metrics.watch_store(settings, "influx", clock)
    with served(metrics, "0") as address:
        assert "trimtab_store_bytes" not in requests.get(address, timeout=10).text  # there is no store yet
        with closing(EmbeddedStore(settings)) as store, closing(Outbox(settings, "influx")) as outbox:
            collector([scrape({"sim://a": GOOD})], store).run_once(START)
            behind = samples(requests.get(address, timeout=10).text)
            while (shipment := outbox.rows_after(outbox.cursor, 100)) is not None:
                outbox.advance(shipment.through)
            shipped = samples(requests.get(address, timeout=10).text)
    assert behind["trimtab_influx_behind_seconds",] == 300.0
    assert behind["trimtab_influx_waiting",] >= 1
    assert behind["trimtab_store_bytes",] > 1000
    assert behind["trimtab_store_lost_rows_total",] == 0
    assert (shipped["trimtab_influx_behind_seconds",], shipped["trimtab_influx_waiting",]) == (0.0, 0.0)


def test_a_collector_that_sees_nothing_says_so_once_and_says_when_it_sees_again() -> None:
    answers: dict[str, str] = {}
    store, metrics = Store(), CollectorMetrics()
    loop = collector([scrape(answers)], store, metrics)
    loop.run_once(START)
    loop.run_once(START + timedelta(minutes=1))
    assert store.codes() == ["target_down", "target_down", "blind"]
    blind = store.batches[0].events[-1]
    assert (blind.subject, blind.severity) == (Subject("cluster", "c"), "critical")
    assert blind.message == "the collector sees nothing of c: of 2 targets none answered"
    with served(metrics, "0") as address:
        assert samples(requests.get(address, timeout=10).text)["trimtab_blind", "c"] == 1
    answers["sim://a"] = GOOD
    loop.run_once(START + timedelta(minutes=2))
    assert store.codes()[3:] == ["target_up", "sees_again"]


def test_targets_that_answer_without_a_card_are_blindness_too() -> None:
    store = Store()
    collector([scrape({"sim://a": "up 1\n", "sim://b": "up 1\n"})], store).run_once(START)
    assert [event.message for event in store.batches[0].events] == [
        "the collector sees nothing of c: of 2 targets 2 answered, and none of a card, a node or a queue"
    ]


def test_one_cluster_may_be_dark_beside_another() -> None:
    store = Store()
    sources = [scrape({"sim://a": GOOD}), scrape({}, name="dark", cluster="d")]
    report = collector(sources, store).run_once(START)
    assert report.blind == {"d"}
    assert store.codes().count("blind") == 1


@pytest.mark.parametrize(
    "error", [RuntimeError("boom\nsecond line"), KeyError("k"), ZeroDivisionError(), MemoryError()]
)
def test_whatever_a_plugin_raises_the_others_are_stored(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    store = Store()
    report = collector([Plugin("bad", raising(error)), scrape({"sim://a": GOOD})], store).run_once(START)
    assert report.rows == 1
    assert report.failures["bad"].startswith(f"unexpected {type(error).__name__}: ")
    assert "\n" not in report.failures["bad"]
    assert "Traceback" not in caplog.text


def test_rows_that_the_schema_does_not_allow_are_their_sources_failure(tmp_path: Path) -> None:
    import pyarrow as pa  # noqa: PLC0415  for one table

    wrong = Batch(rows={"gpu": pa.table({"time": [START], "cluster": ["c"]})})
    unknown = Batch(rows={"nothing": pa.table({"time": [START]})})
    store = EmbeddedStore(StoreSettings(path=tmp_path))
    sources = [Plugin("wrong", lambda: wrong), Plugin("unknown", lambda: unknown), scrape({"sim://a": GOOD})]
    report = collector(sources, store).run_once(START)
    assert set(report.failures) == {"wrong", "unknown"}
    assert report.rows == 1
    store.close()


def test_a_slow_source_holds_up_nobody_and_counts_later() -> None:
    store, release = Store(), threading.Event()
    subject = Subject("cluster", "slow")

    def slow() -> Batch:
        release.wait(20)
        return Batch(facts=[Fact(subject, "simulated", "false", START)])

    loop = Collector(
        [Plugin("slow", slow), scrape({"sim://a": GOOD})],  # type: ignore[list-item]  # plug-ins by shape
        store,  # type: ignore[arg-type]  # writes are all it needs
        VirtualClock(START),
        0.2,
    )
    assert loop.run_once(START).rows == 1
    release.set()
    loop.run_once(START + timedelta(minutes=1))
    assert [fact.subject for batch in store.batches for fact in batch.facts if fact.subject == subject] == [subject]


def test_a_gathering_source_that_hangs_keeps_its_slices(caplog: pytest.LogCaptureFixture) -> None:
    store, release = Store(), threading.Event()
    release.set()
    answers = {"sim://a": GOOD.replace('"GPU-0"', '"GPU-0",pod="p",namespace="n"')}
    hanging = scrape(answers, name="hanging")
    inner = hanging._fetch

    def fetch(target: TargetSettings) -> str:
        release.wait(20)
        return inner(target)  # type: ignore[operator]  # a function here

    hanging._fetch = fetch
    loop = Collector([hanging, Plugin("other", Batch)], store, VirtualClock(START), 0.2)  # type: ignore[list-item, arg-type]  # as above
    loop.run_once(START)
    release.clear()
    loop.run_once(START + timedelta(minutes=1))
    assert [fact for batch in store.batches[1:] for fact in batch.facts if fact.value is None] == []
    assert "blind" not in store.codes()
    release.set()
