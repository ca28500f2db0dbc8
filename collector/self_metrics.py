"""Metrics of the collector itself, for a Prometheus: served only where that is configured, on loopback by default."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from collector.clock import Clock
from collector.errors import ConfigurationError, UnreachableError
from collector.influx.progress import progress_of
from collector.settings import StoreSettings
from collector.store.info import store_size

if TYPE_CHECKING:
    from collector.collect import CycleReport
    from collector.scrape import Tally

_LOG = logging.getLogger(__name__)
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class CollectorMetrics:
    """What a collector does, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = all_of_it = CollectorRegistry()
        ProcessCollector(registry=all_of_it)
        self._cycles = Counter("trimtab_cycles", "Cycles that ended.", ["outcome"], registry=all_of_it)
        self._duration = Histogram(
            "trimtab_cycle_duration_seconds",
            "From the beginning of a cycle to its rows in the store.",
            buckets=_SECONDS,
            registry=all_of_it,
        )
        self._last = Gauge("trimtab_last_cycle_timestamp_seconds", "Last cycle that was stored.", registry=all_of_it)
        self._rows = Counter("trimtab_rows", "Rows stored.", registry=all_of_it)
        self._events = Counter("trimtab_events", "Events stored.", ["code"], registry=all_of_it)
        self._rejects = Counter("trimtab_rejects", "Samples rejected.", ["reason"], registry=all_of_it)
        self._failures = Counter("trimtab_source_failures", "Failed polls of sources.", ["source"], registry=all_of_it)
        text = "1 while nothing at all is seen of a cluster."
        self._blind = Gauge("trimtab_blind", text, ["cluster"], registry=all_of_it)
        by_outcome = ["source", "outcome"]
        self._scrapes = Counter("trimtab_scrapes", "Requests to exporters.", by_outcome, registry=all_of_it)
        self._samples = Counter("trimtab_scrape_samples", "Samples read.", ["source"], registry=all_of_it)
        self._scrape = Histogram(
            "trimtab_scrape_duration_seconds",
            "From a request to its parsed answer.",
            ["source"],
            buckets=_SECONDS,
            registry=all_of_it,
        )
        self._skew = Gauge("trimtab_clock_skew_seconds", "Largest skew of a clock.", ["source"], registry=all_of_it)
        self._targets = Gauge("trimtab_targets", "Targets of a source.", ["source"], registry=all_of_it)
        self._seen: dict[str, tuple[int, int, int, int]] = {}

    def cycle(self, report: CycleReport | None, duration_seconds: float) -> None:
        """Count a cycle; `report` is None where nothing could be read or stored."""
        self._cycles.labels("failed" if report is None else "stored").inc()
        self._duration.observe(duration_seconds)
        if report is None:
            return
        self._last.set(report.at.timestamp())
        self._rows.inc(report.rows)
        for code, count in report.event_codes.items():
            self._events.labels(code).inc(count)
        for reason, count in report.reject_reasons.items():
            self._rejects.labels(reason).inc(count)

    def failed(self, failures: Mapping[str, str]) -> None:
        """Count sources that failed."""
        for source in failures:
            self._failures.labels(source).inc()

    def blind(self, clusters: Mapping[str, bool]) -> None:
        """Say of each cluster whether nothing at all is seen of it."""
        for cluster, blind in clusters.items():
            self._blind.labels(cluster).set(blind)

    def watch_store(self, settings: StoreSettings, shipper: str, clock: Clock) -> None:
        """Serve what the store holds, and how far behind the shipper of this name is (empty: none)."""
        self.registry.register(_StoreMetrics(settings, shipper, clock))

    def source(self, name: str, tally: Tally) -> None:
        """Add what a source did since the last call."""
        now = (tally.answered, tally.failed, tally.late, tally.samples)
        before = self._seen.get(name, (0, 0, 0, 0))
        self._seen[name] = now
        for outcome, count, known in zip(("answered", "failed", "late"), now, before, strict=False):
            self._scrapes.labels(name, outcome).inc(count - known)
        self._samples.labels(name).inc(now[3] - before[3])
        durations, tally.durations = tally.durations, []
        observed = self._scrape.labels(name)
        for seconds in durations:
            observed.observe(seconds)
        self._skew.labels(name).set(tally.skew_seconds)
        self._targets.labels(name).set(tally.targets)


class _StoreMetrics(Collector):
    """The store's size and what waits to be shipped, read when they are asked for."""

    def __init__(self, settings: StoreSettings, shipper: str, clock: Clock) -> None:
        self._settings = settings
        self._shipper = shipper
        self._clock = clock

    def describe(self) -> Iterable[Metric]:
        """Return nothing: what is served is known without asking the store."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield what can be read; a store that cannot be read tells nothing."""
        try:
            size, lost = store_size(self._settings)
            progress = progress_of(self._settings, self._shipper) if self._shipper else None
        except UnreachableError as error:
            _LOG.warning("metrics of the store: %s", error)
            return
        yield GaugeMetricFamily("trimtab_store_bytes", "Embedded store on disk: log and files.", size)
        text = "Rows dropped for want of disk before they were shipped."
        yield CounterMetricFamily("trimtab_store_lost_rows", text, lost)
        if progress is None:
            return
        behind = progress.behind(self._clock.now()).total_seconds()
        text = "Age of the oldest row that InfluxDB lacks; 0 where it lacks none."
        yield GaugeMetricFamily("trimtab_influx_behind_seconds", text, behind)
        text = "Rows, facts, events and rejects that InfluxDB lacks, at most."
        yield GaugeMetricFamily("trimtab_influx_waiting", text, progress.pending)


@contextmanager
def served(metrics: CollectorMetrics, listen: str) -> Iterator[str]:
    """Serve metrics while the block runs; gives the address.

    Args:
        metrics: what is served.
        listen: a port, then on 127.0.0.1, or address:port.

    Raises:
        ConfigurationError: it is no address, or it is taken.
    """
    host, port = parse_listen(listen)
    try:
        server, thread = start_http_server(port, addr=host, registry=metrics.registry)
    except OSError as error:
        raise ConfigurationError(
            f"cluster.metrics_listen: expected an address that is free, got {listen!r} ({error.strerror})"
        ) from error
    try:
        yield f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def parse_listen(text: str) -> tuple[str, int]:
    """Return address and port of a text such as `9464` or `0.0.0.0:9464`.

    Raises:
        ConfigurationError: it is none.
    """
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigurationError(f"cluster.metrics_listen: expected a port or address:port, got {text!r}")
    return host.strip("[]") or "127.0.0.1", int(port)
