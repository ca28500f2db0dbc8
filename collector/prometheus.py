"""A source that asks a Prometheus server, through prometheus-api-client's connection.

Raw samples with their true stamps come from instant queries with a range selector; no evaluation step repeats or
invents any. Prometheus 2 includes both borders of a range and 3 leaves the first one out: a chunk is asked for a little
wider than needed and cut to [start, end) here, so that no sample is doubled or lost at a border on either.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import orjson
import requests
from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException
from urllib3.util.retry import Retry

from collector.assemble import Assembler, Scrape
from collector.batch import Batch
from collector.clock import grid_floor
from collector.errors import ConfigurationError, UnreachableError
from collector.exposition import Exposition, Series
from collector.plugins import SourceContext
from collector.protocols import SourceDescription
from collector.settings import SourceSettings, TargetSettings

_NAMES_A_QUERY = 40
_CHUNK = timedelta(hours=1)
_BORDER_SECONDS = 1
_REDISCOVER_POLLS = 15
_HEAD = ("__name__", "__replica__")


@dataclass(slots=True)
class _Sampled:
    """One series of an answer with its samples in time order."""

    series: Series
    target: TargetSettings
    times: list[float]
    values: list[str]


@dataclass(slots=True)
class _Interned:
    """Series and targets by their label sets, so that the same label set is always the same object."""

    series: dict[bytes, tuple[Series, TargetSettings]] = field(default_factory=dict)

    def get(self, metric: Mapping[str, str]) -> tuple[Series, TargetSettings]:
        key = orjson.dumps(metric)
        known = self.series.get(key)
        if known is None:
            labels = {name: value for name, value in metric.items() if name not in _HEAD}
            known = self.series[key] = (Series(metric.get("__name__", ""), labels), _target_of(labels))
        return known


class PrometheusSource:
    """Reads from Prometheus what the mapping tables know of.

    Args:
        settings: the `[[source]]` table: url, time-out, bearer token.
        context: cluster, interval, declarations, mappings.

    Raises:
        ConfigurationError: no address is given, or it is not HTTP.
    """

    def __init__(self, settings: SourceSettings, context: SourceContext) -> None:
        if not settings.url.startswith(("http://", "https://")):
            raise ConfigurationError(
                f'source "prometheus": expected an address such as http://prometheus:9090, got {settings.url!r}'
            )
        self._settings = settings
        self._context = context
        self._url = settings.url.rstrip("/")
        self._session = requests.Session()
        headers = {}
        if settings.bearer_token is not None:
            headers["Authorization"] = f"Bearer {settings.bearer_token.get_secret_value()}"
        self._session.headers.update(headers)
        retry = Retry(total=2, backoff_factor=0.2, status_forcelist=(429, 502, 503, 504), allowed_methods=None)
        self._connection = PrometheusConnect(
            url=self._url,
            headers=headers,
            session=self._session,
            retry=retry,
            timeout=math.ceil(settings.timeout_seconds),
        )
        self.assembler = Assembler(context)
        self._interned = _Interned()
        self._names: tuple[str, ...] | None = None
        self._polls = 0

    def poll(self, now: datetime) -> Batch:
        """Make rows of the newest sample of each series, as `gather` reads them.

        Raises:
            UnreachableError: the server does not answer, or answers with an error.
        """
        return self.assembler.assemble(grid_floor(now, self._context.interval_seconds), self.gather(now))

    def gather(self, now: datetime) -> list[Scrape]:
        """Read the newest sample of each series; one older than two intervals is stale and counts as absent.

        Raises:
            UnreachableError: the server does not answer, or answers with an error.
        """
        if self._names is None or self._polls % _REDISCOVER_POLLS == 0:
            self._names = self.discover()
        self._polls += 1
        oldest = now - timedelta(seconds=2 * self._context.interval_seconds)
        found = self._samples(oldest, now + timedelta(milliseconds=1), (*self._names, "up"))
        return _newest(found, now)

    def backfill(self, start: datetime, end: datetime) -> Iterator[Batch]:
        """Yield a batch for each instant of the grid in [start, end), oldest first, an hour of samples in memory.

        Counters begin anew: the first increment is unknown.
        """
        names = self.discover()
        assembler = Assembler(self._context)
        step = timedelta(seconds=self._context.interval_seconds)
        chunk_start = grid_floor(start, self._context.interval_seconds)
        chunk_length = max(_CHUNK // step, 1) * step
        while chunk_start < end:
            chunk_end = min(chunk_start + chunk_length, end)
            found = self._samples(chunk_start, chunk_end, (*names, "up"))
            cursor = [0] * len(found)
            instant = chunk_start
            while instant < chunk_end:
                scrapes = _within(found, cursor, instant, min(instant + step, chunk_end))
                if scrapes:
                    yield assembler.assemble(instant, scrapes)
                instant += step
            chunk_start = chunk_end

    def describe(self) -> SourceDescription:
        """Say what this source is."""
        return SourceDescription(
            kind="prometheus",
            name=self._settings.name or self._settings.kind,
            targets=(self._url,),
            interval_seconds=self._context.interval_seconds,
        )

    def discover(self) -> tuple[str, ...]:
        """Return the metric names that the server has and the mapping tables know, sorted.

        Raises:
            UnreachableError: the server does not answer, or answers with an error.
        """
        try:
            there = self._connection.all_metrics()
        except (requests.RequestException, PrometheusApiClientException) as error:
            raise UnreachableError(f"{self._url}: expected metric names, got {_text(error)}") from error
        known = set(self.assembler.metric_names)
        return tuple(sorted(name for name in there if name in known))

    def export_state(self) -> dict[str, Any]:
        """Return what a later start needs to go on."""
        return self.assembler.export_state()

    def import_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `export_state` returned."""
        self.assembler.import_state(state)

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def _samples(self, start: datetime, end: datetime, names: Sequence[str]) -> list[_Sampled]:
        """Return all samples of the metrics in [start, end)."""
        seconds = math.ceil((end - start).total_seconds()) + _BORDER_SECONDS
        found: list[_Sampled] = []
        for first in range(0, len(names), _NAMES_A_QUERY):
            group = "|".join(names[first : first + _NAMES_A_QUERY])
            query = f'{{__name__=~"{group}"}}[{seconds}s]'
            found += self._cut(self._query(query, end), start.timestamp(), end.timestamp())
        return found

    def _cut(self, result: Sequence[Mapping[str, Any]], start: float, end: float) -> list[_Sampled]:
        found = []
        for one in result:
            pairs = [pair for pair in one["values"] if start <= pair[0] < end]
            if pairs:
                series, target = self._interned.get(one["metric"])
                found.append(_Sampled(series, target, [pair[0] for pair in pairs], [pair[1] for pair in pairs]))
        return found

    def _query(self, query: str, at: datetime) -> list[dict[str, Any]]:
        """Ask for a range of raw samples that ends at `at`."""
        try:
            answer = self._session.post(
                f"{self._url}/api/v1/query",
                data={"query": query, "time": f"{at.timestamp():.3f}"},
                timeout=self._settings.timeout_seconds,
            )
        except requests.RequestException as error:
            raise UnreachableError(f"{self._url}: expected an answer, got {_text(error)}") from error
        try:
            document = orjson.loads(answer.content)
        except orjson.JSONDecodeError:
            raise UnreachableError(f"{self._url}: expected JSON, got HTTP {answer.status_code}") from None
        if answer.status_code != 200 or document.get("status") != "success":
            reason = document.get("error", f"HTTP {answer.status_code}")
            raise UnreachableError(f"{self._url}: expected samples, got {reason}")
        result: list[dict[str, Any]] = document["data"]["result"]
        return result


def _target_of(labels: Mapping[str, str]) -> TargetSettings:
    """Return the target that a series was scraped from; its own labels stay with the series."""
    instance = labels.get("instance", "")
    job = labels.get("job", "")
    return TargetSettings(url=f"{job}/{instance}")


def _newest(found: Sequence[_Sampled], now: datetime) -> list[Scrape]:
    """Return one scrape a target, of the newest sample of each series."""
    return _scrapes(((one, len(one.times) - 1) for one in found), now)


def _within(found: Sequence[_Sampled], cursor: list[int], start: datetime, end: datetime) -> list[Scrape]:
    """Return one scrape a target, of the newest sample of each series in [start, end); cursors move on."""
    low, high = start.timestamp(), end.timestamp()
    chosen = []
    for n, one in enumerate(found):
        position = cursor[n]
        while position < len(one.times) and one.times[position] < high:
            position += 1
        cursor[n] = position
        if position and one.times[position - 1] >= low:
            chosen.append((one, position - 1))
    return _scrapes(chosen, start)


def _scrapes(chosen: Iterable[tuple[_Sampled, int]], at: datetime) -> list[Scrape]:
    bodies: dict[str, tuple[TargetSettings, list[Series], list[float], list[float]]] = {}
    down: dict[str, TargetSettings] = {}
    for one, position in chosen:
        value = float(one.values[position])
        key = one.target.url
        if one.series.name == "up":
            if value == 0:
                down[key] = one.target
            continue
        entry = bodies.get(key)
        if entry is None:
            entry = bodies[key] = (one.target, [], [], [])
        entry[1].append(one.series)
        entry[2].append(value)
        entry[3].append(one.times[position])
    scrapes = []
    for key, (target, series, values, times) in bodies.items():
        if key in down:
            continue
        age = max(at.timestamp() - max(times), 0.0)
        scrapes.append(Scrape(target, Exposition(series, values, metadata=True), age_seconds=age))
    scrapes += [Scrape(target, None, "Prometheus says that it is down") for target in down.values()]
    return sorted(scrapes, key=lambda scrape: scrape.target.url)


def _text(error: Exception) -> str:
    return str(error).partition("\n")[0][:200] or type(error).__name__
