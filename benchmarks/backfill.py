"""Backfill from real Prometheus servers: samples a CPU second against prometheus-api-client, and each sample once."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import get_args

import numpy as np
import requests
from prometheus_api_client import MetricRangeDataFrame, PrometheusConnect

from benchmarks.figures import Figure, figure
from collector.prometheus_answer import RangeAnswer
from collector.prometheus_api import PrometheusApi
from collector.settings import SourceSettings
from tests import servers

METRIC = "DCGM_FI_DEV_POWER_USAGE"
SERIES, SAMPLES, STEP_SECONDS = 100, 2_880, 15  # half a day
_ROUNDS = 3
_CHUNK = timedelta(hours=1)


def run() -> list[Figure]:
    """Fill a Prometheus of each version with half a day of samples, and read them in both ways."""
    figures: list[Figure] = []
    for version in get_args(servers.PrometheusVersion):
        with tempfile.TemporaryDirectory() as folder, filled(Path(folder), version) as (server, start):
            figures += _measure(server, start)
    return figures


def history(start: datetime) -> str:
    """Return a metrics page that carries all samples with their stamps; every border of a chunk has one."""
    rng = np.random.default_rng(0)
    first_ms = int(start.timestamp() * 1000)
    times = [first_ms + 1000 * STEP_SECONDS * n for n in range(SAMPLES)]
    lines = [f"# TYPE {METRIC} gauge"]
    for card in range(SERIES):
        labels = (
            f'gpu="{card % 8}",UUID="GPU-{card:032d}",Hostname="node-{card // 8}",modelName="NVIDIA H100 80GB HBM3"'
        )
        watts = rng.normal(400.0, 80.0, SAMPLES).round(3 if card % 2 else 0)
        lines += [f"{METRIC}{{{labels}}} {watt} {at}" for watt, at in zip(watts.tolist(), times, strict=True)]
    return "\n".join(lines) + "\n"


@contextmanager
def filled(folder: Path, version: servers.PrometheusVersion) -> Iterator[tuple[servers.PrometheusServer, datetime]]:
    """Run a Prometheus that holds the history; yields it, and the instant of the first sample."""
    length = timedelta(seconds=SAMPLES * STEP_SECONDS)
    start = datetime.fromtimestamp((time.time() - length.total_seconds()) // 3600 * 3600 - 3600, UTC)
    bodies = iter([history(start)])
    with (
        servers.pages({"/metrics": lambda: next(bodies, "")}) as url,
        servers.prometheus(folder, version, [f"{url}/metrics"], 10.0) as server,
    ):
        query = {"query": f"count_over_time({METRIC}[2d])"}

        def complete() -> bool:
            found = requests.get(f"{server.url}/api/v1/query", params=query, timeout=30).json()["data"]["result"]
            return sum(int(one["value"][1]) for one in found) == SERIES * SAMPLES

        servers.await_true(complete, f"{SERIES * SAMPLES} samples in Prometheus {version}")
        yield server, start


def _measure(server: servers.PrometheusServer, start: datetime) -> list[Figure]:
    api = PrometheusApi(SourceSettings(kind="prometheus", url=server.url, timeout_seconds=60))
    session = requests.Session()
    session.headers["Accept-Encoding"] = "identity"  # as ours does on loopback: the same answer, byte for byte
    peer = PrometheusConnect(url=server.url, timeout=60, session=session)
    end = start + timedelta(seconds=SAMPLES * STEP_SECONDS)
    ours_seconds, peer_seconds = [], []
    for _ in range(_ROUNDS):  # in turn, so that both see the same machine
        before = time.process_time()
        (answer,) = api.samples([METRIC], start, end)
        ours_seconds.append(time.process_time() - before)
        before = time.process_time()
        frame = MetricRangeDataFrame(peer.get_metric_range_data(METRIC, start_time=start, end_time=end))
        peer_seconds.append(time.process_time() - before)
    ours, theirs = len(answer.values) / min(ours_seconds), len(frame) / min(peer_seconds)
    parts = [part for at in _hours(start, end) for part in api.samples([METRIC], at, min(at + _CHUNK, end))]
    chunked = peer.get_metric_range_data(METRIC, start_time=start, end_time=end, chunk_size=_CHUNK)
    api.close()
    peer.close()
    wanted = SERIES * SAMPLES
    name = f"Prometheus {server.version}"
    return [
        figure(
            f"{name}: samples a CPU second over the peer's",
            ours / theirs,
            "ratio",
            at_least=4.0,
        ),
        figure(f"{name}: samples a CPU second", ours, "1/s", peer=theirs, peer_name="MetricRangeDataFrame"),
        figure(
            f"{name}: samples lost or doubled, chunks of an hour with a sample on each border",
            abs(sum(len(part.values) for part in parts) - wanted) + wanted - _distinct(parts),
            "count",
            peer=abs(sum(len(one["values"]) for one in chunked) - wanted),
            peer_name="get_metric_range_data",
            at_most=0,
        ),
    ]


def _hours(start: datetime, end: datetime) -> Iterator[datetime]:
    while start < end:
        yield start
        start += _CHUNK


def _distinct(parts: list[RangeAnswer]) -> int:
    return len(
        {
            (metric["UUID"], at)
            for part in parts
            for metric, times in zip(part.metrics, np.split(part.times_ms, np.cumsum(part.counts)[:-1]), strict=True)
            for at in times.tolist()
        }
    )
