"""Scraping: CPU and memory of the whole collector, scrape to stored, beside Prometheus on the same endpoints.

What either leaves for later (sealing; writing blocks) is measured apart and added, see `collect_later`.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import requests

from benchmarks.collect_endpoints import METRICS
from benchmarks.collect_later import block_seconds, in_service, sealing_seconds
from benchmarks.figures import Figure, figure
from collector.settings import StoreSettings
from collector.store import EmbeddedStore
from tests.servers import Process, PrometheusServer, ServerMissing, await_true, free_port, prometheus, running

_ROOT = Path(__file__).parents[1]
_VERSIONS = ("2.42", "3.16")
_WARM_UP_ANSWERS = 5  # of each target: two until its lines are known, and some that are as all later ones


_BLOCKS = 3  # written one after the other: what is collected of garbage meanwhile differs


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
    _Case(10, 2_000, 2.0, 40.0, 0.4),
    _Case(8, 20_000, 5.0, 50.0, 0.5, 350e6),
)


@dataclass(frozen=True)
class _Cost:
    """CPU seconds per million samples over the measured time and for what is left for later, and the peak of memory."""

    cpu_seconds: float
    peak_bytes: float
    later_seconds: float = 0.0

    @property
    def whole(self) -> float:
        return self.cpu_seconds + self.later_seconds


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
        begun = _count(urls)
        try:
            with prometheus(folder, version, urls, case.interval) as server:
                cost = _measure(case, server.process, urls)
                peers[version] = replace(cost, later_seconds=_blocks(case, server, urls, cost, begun))
        except ServerMissing as missing:
            print(f"Prometheus {version} is left out: {missing}", file=sys.stderr)
    with _collector(case, urls, folder) as process:
        ours = _measure(case, process, urls)
    store = EmbeddedStore(StoreSettings(path=folder / "store"), read_only=True)
    span = store.span("gpu")
    counted = store.read("gpu", span, fields=["power_watts"], by=["cluster"], aggregate="count") if span else None
    rows = 0 if counted is None else int(counted["power_watts"].iloc[0])
    store.close()
    later = sealing_seconds(folder / "store", folder / "later", case.interval, len(METRICS))
    ours = replace(ours, later_seconds=later)
    return _figures(case, ours, peers, rows)


def _figures(case: _Case, ours: _Cost, peers: dict[str, _Cost], rows: int) -> list[Figure]:
    about = f"{case.targets} x {case.lines} lines every {case.interval:g} s"
    thrifty = min(peers, key=lambda version: peers[version].cpu_seconds)
    thrifty_later = min(peers, key=lambda version: peers[version].whole)
    least = case.seconds / case.interval * case.targets * (case.lines // len(METRICS))
    peak = None if case.peak_bytes is None else case.peak_bytes / 1e6
    found = [
        figure(
            f"{about}: CPU per million samples, of the thriftier Prometheus'",
            ours.cpu_seconds / peers[thrifty].cpu_seconds,
            "ratio",
            at_most=case.at_most,
        ),
        figure(
            f"{about}: the same with sealing, and writing blocks there",
            ours.whole / peers[thrifty_later].whole,
            "ratio",
            at_most=case.at_most,
        ),
    ]
    for version, peer in peers.items():
        found += [
            figure(
                f"{about}: CPU per million samples", ours.cpu_seconds, "s", peer=peer.cpu_seconds, peer_name=version
            ),
            figure(f"{about}: of sealing", ours.later_seconds, "s", peer=peer.later_seconds, peer_name=version),
            figure(
                f"{about}: peak memory",
                ours.peak_bytes / 1e6,
                "MB",
                peer=peer.peak_bytes / 1e6,
                peer_name=version,
                at_most=peak,
            ),
        ]
    return [*found, figure(f"{about}: rows stored", rows, "count", at_least=least)]


def _measure(case: _Case, process: Process, urls: list[str]) -> _Cost:
    """Wait until nothing is new any more at any target, then measure whole cycles."""
    known = _least(urls)
    await_true(lambda: _least(urls) >= known + _WARM_UP_ANSWERS, "answers of each target")
    time.sleep(case.interval / 2)
    answers, cpu = _count(urls), process.cpu_seconds()
    time.sleep(case.seconds)
    answers, cpu = _count(urls) - answers, process.cpu_seconds() - cpu
    return _Cost(cpu / (answers * case.lines) * 1e6, process.peak_bytes())


def _blocks(case: _Case, server: PrometheusServer, urls: list[str], cost: _Cost, begun: int) -> float:
    """Return CPU seconds per million samples of writing blocks: some are written now, of fewer and of more samples.

    Args:
        case: what is scraped.
        server: who scrapes.
        urls: the endpoints.
        cost: of scraping, which goes on meanwhile.
        begun: answers that were given before the server began.
    """
    spent, samples = [], []
    for turn in range(2):
        if turn:
            time.sleep(case.seconds / 2)
        found = []
        for _ in range(_BLOCKS):
            before = _count(urls)
            seconds = block_seconds(server)
            after = _count(urls)
            found.append(seconds - (after - before) * case.lines * cost.cpu_seconds / 1e6)
        spent.append(median(found))
        samples.append(float((after - begun) * case.lines))
    return in_service((spent[0], spent[1]), (samples[0], samples[1]), case.targets * case.lines)


def _count(urls: list[str]) -> int:
    """Return how many answers were given."""
    return int(requests.get(f"{urls[0].rpartition('/')[0]}/count", timeout=30).text)


def _least(urls: list[str]) -> int:
    """Return how many were given by the target that gave fewest."""
    return int(requests.get(f"{urls[0].rpartition('/')[0]}/least", timeout=30).text)


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
