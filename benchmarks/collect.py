"""Scraping: CPU and memory of the whole collector, scrape to stored, beside Prometheus on the same endpoints."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import requests

from benchmarks.collect_endpoints import METRICS
from benchmarks.figures import Figure, figure
from collector.settings import StoreSettings
from collector.store import EmbeddedStore
from tests.servers import Process, ServerMissing, await_true, free_port, prometheus, running

_ROOT = Path(__file__).parents[1]
_VERSIONS = ("2.42", "3.16")
_WARM_UP_SCRAPES = 4


@dataclass(frozen=True)
class _Case:
    """So many targets of so many lines, scraped so often (seconds), and how the bars read."""

    targets: int
    lines: int
    interval: float
    seconds: float
    at_most: float
    peak_bytes: float | None = None


_CASES = (
    _Case(50, 200, 1.0, 20.0, 1.0),
    _Case(10, 2_000, 2.0, 30.0, 0.4),
    _Case(8, 20_000, 5.0, 60.0, 0.5, 350e6),
)


@dataclass(frozen=True)
class _Cost:
    """CPU seconds per million samples over the measured time, and the peak of memory since the start."""

    cpu_seconds: float
    peak_bytes: float


def run() -> list[Figure]:
    """Measure all sizes of bodies; Prometheus first, then the collector, each alone on the same endpoints."""
    figures: list[Figure] = []
    for case in _CASES:
        with tempfile.TemporaryDirectory() as folder, _endpoints(case, Path(folder)) as urls:
            figures += _case(case, urls, Path(folder))
    return figures


def _case(case: _Case, urls: list[str], folder: Path) -> list[Figure]:
    peers: dict[str, _Cost] = {}
    for version in _VERSIONS:
        try:
            with prometheus(folder, version, urls, case.interval) as server:
                peers[version] = _measure(case, server.process, urls)
        except ServerMissing as missing:
            print(f"Prometheus {version} is left out: {missing}", file=sys.stderr)
    with _collector(case, urls, folder) as process:
        ours = _measure(case, process, urls)
    best = min(peers, key=lambda version: peers[version].cpu_seconds)
    about = f"{case.targets} x {case.lines} lines every {case.interval:g} s"
    store = EmbeddedStore(StoreSettings(path=folder / "store"), read_only=True)
    span = store.span("gpu")
    counted = store.read("gpu", span, fields=["power_watts"], by=["cluster"], aggregate="count") if span else None
    rows = 0 if counted is None else int(counted["power_watts"].iloc[0])
    store.close()
    gpus = case.lines // len(METRICS)
    peer = peers[best]
    return [
        figure(
            f"{about}: CPU per million samples, of the thriftier Prometheus'",
            ours.cpu_seconds / peer.cpu_seconds,
            "ratio",
            at_most=case.at_most,
        ),
        figure(f"{about}: CPU per million samples", ours.cpu_seconds, "s", peer=peer.cpu_seconds, peer_name=best),
        figure(
            f"{about}: peak memory",
            ours.peak_bytes / 1e6,
            "MB",
            peer=peer.peak_bytes / 1e6,
            peer_name=best,
            at_most=None if case.peak_bytes is None else case.peak_bytes / 1e6,
        ),
        figure(f"{about}: rows stored", rows, "count", at_least=case.seconds / case.interval * case.targets * gpus),
    ]


def _measure(case: _Case, process: Process, urls: list[str]) -> _Cost:
    """Wait until nothing is new any more, the first answers of slow targets included, then measure."""
    for _ in range(_WARM_UP_SCRAPES):
        start = _count(urls)
        await_true(lambda known=start: _count(urls) >= known + case.targets, "a scrape of each target")
    time.sleep(case.interval / 2)
    answers, cpu = _count(urls), process.cpu_seconds()
    time.sleep(case.seconds)
    answers, cpu = _count(urls) - answers, process.cpu_seconds() - cpu
    return _Cost(cpu / (answers * case.lines) * 1e6, process.peak_bytes())


def _count(urls: list[str]) -> int:
    return int(requests.get(f"{urls[0].rpartition('/')[0]}/count", timeout=30).text)


@contextmanager
def _endpoints(case: _Case, folder: Path) -> Iterator[list[str]]:
    port = free_port()
    urls = [f"http://127.0.0.1:{port}/{n}" for n in range(case.targets)]
    command = [sys.executable, "-m", "benchmarks.collect_endpoints", str(port), str(case.targets), str(case.lines)]
    with running(command, folder / "endpoints.log", lambda: _count(urls) == 0, environment=_environment()):
        yield urls


@contextmanager
def _collector(case: _Case, urls: list[str], folder: Path) -> Iterator[Process]:
    """Run `trimtab collect` as a user does."""
    config = folder / "trimtab.toml"
    targets = ", ".join(f'"{url}"' for url in urls)
    config.write_text(
        f"[cluster]\ninterval_seconds = {case.interval}\n[store]\npath = '{folder / 'store'}'\n"
        f'[[source]]\nkind = "scrape"\ntargets = [{targets}]\n'
    )
    command = [sys.executable, "-c", "from dashboard.cli import main; main()", "--config", config, "collect"]
    with running(command, folder / "collect.log", lambda: True, environment=_environment()) as process:
        yield process


def _environment() -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")]), "OPENBLAS_NUM_THREADS": "1"}
