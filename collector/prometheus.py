"""A source that asks a Prometheus server for what the mapping tables know of."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from urllib.parse import urlsplit

from collector.assemble import Assembler, Scrape
from collector.batch import Batch
from collector.clock import from_ms, grid_floor, to_ms
from collector.errors import ConfigurationError, UnreachableError
from collector.gathering import GatheringSource
from collector.mappings import mapping_table
from collector.masking import mask_address
from collector.plugins import SourceContext
from collector.prometheus_api import Address, PrometheusApi, TooMuchError
from collector.prometheus_cycles import cycles, gather_samples, renewed, strangers_down
from collector.prometheus_roster import Roster, SharedAddress
from collector.protocols import SourceDescription
from collector.settings import SourceSettings

_LOG = logging.getLogger(__name__)

_REDISCOVER_POLLS = 15
_RECENT = timedelta(hours=1)
_PAST = timedelta(days=1)
_UP = "up"
# A chunk of a backfill: few cycles at first, then as long as it holds about so many samples (some 50 bytes each).
_FIRST_CYCLES = 10
_MOST_SAMPLES = 1_000_000
_LONGEST_CHUNK = timedelta(hours=6)


class PrometheusSource(GatheringSource):
    """Reads from Prometheus what the mapping tables know of.

    Args:
        settings: the `[[source]]` table: address, time-out, log-in, `match`.
        context: cluster, interval, declarations, mappings.
        pause: waits so many seconds before a question is asked again.

    Raises:
        ConfigurationError: no address is given, it is not HTTP, or a file that the table names cannot be read.
    """

    def __init__(
        self, settings: SourceSettings, context: SourceContext, pause: Callable[[float], None] = time.sleep
    ) -> None:
        if not _is_address(settings.url):
            raise ConfigurationError(
                'source "prometheus": expected an address such as http://prometheus:9090, got '
                f"{mask_address(settings.url)!r}"
            )
        self._settings = settings
        self._context = context
        self._api = PrometheusApi(settings, pause)
        self.assembler = Assembler(context)
        self._roster = Roster(mapping_table(context.mappings))
        self._names: tuple[str, ...] | None = None
        self._polls = 0
        self._asked: set[Address] = set()

    def gather(self, now: datetime) -> list[Scrape]:
        """Read the newest sample of each series; one older than two intervals is stale and counts as absent.

        Raises:
            UnreachableError: the server does not answer, or answers with an error.
        """
        if self._names is None or self._polls % _REDISCOVER_POLLS == 0:
            self._names = self.discover(now - _RECENT, now)
        self._polls += 1
        # `up` is asked for first: a scrape that ends between two questions must not show in it alone.
        past = timedelta(seconds=2 * self._context.interval_seconds)
        start, end = now - past, now + timedelta(milliseconds=1)
        samples = gather_samples(self._api.samples((_UP, *self._names), start, end), self._roster)
        self._learn_of_the_past(strangers_down(samples, self._roster), now)
        now_ms = to_ms(now)
        scrapes = []
        for _, said, newest in cycles(samples, self._roster, to_ms(start), to_ms(end) - to_ms(start)):
            for scrape, newest_ms in zip(said, newest.tolist(), strict=True):
                scrape.age_seconds = max(now_ms - newest_ms, 0) / 1000.0
                scrapes.append(scrape)
        roster = renewed(self._roster, samples)
        if roster is not self._roster:
            self._roster, self._asked = roster, set()
        return sorted(scrapes, key=_address)

    def _learn_of_the_past(self, down: Sequence[Address], now: datetime) -> None:
        """Ask, once of each, whether targets that are down and were not seen yet ever told something of use."""
        asked = [address for address in down if address not in self._asked]
        if not asked:
            return
        self._asked.update(asked)
        past = now - _PAST
        try:
            self._roster.know(self._api.told(self.discover(past, now), asked, past, now))
        except UnreachableError as error:
            _LOG.warning("which of %d targets that are down ever told anything is not known: %s", len(asked), error)

    def backfill(self, start: datetime, end: datetime) -> Iterator[Batch]:
        """Yield a batch for each instant of the grid in [start, end), oldest first.

        However long the window and large the fleet, one chunk's samples are in memory: it is as long as the one before
        leads to expect, and asked for again in halves where it holds more. Counters begin anew: the first increment is
        unknown.

        Raises:
            UnreachableError: the server does not answer, or answers with an error.
        """
        names = (_UP, *self.discover(start, end))
        assembler, roster = Assembler(self._context), Roster(self._roster.table)
        step = timedelta(seconds=self._context.interval_seconds)
        longest = max(_LONGEST_CHUNK // step, 1)
        length = min(_FIRST_CYCLES, longest)
        at = grid_floor(start, self._context.interval_seconds)
        at = at if at >= start else at + step
        while at < end:
            stop = min(at + length * step, end)
            most = {} if length == 1 else {"most": 2 * _MOST_SAMPLES}
            try:
                samples = gather_samples(self._api.samples(names, at, stop), roster, **most)
            except TooMuchError:
                if length == 1:
                    raise
                length //= 2
                continue
            for cycle_ms, scrapes, _ in cycles(samples, roster, to_ms(at), to_ms(at + step) - to_ms(at)):
                yield assembler.assemble(from_ms(cycle_ms), sorted(scrapes, key=_address))
            at = stop
            roster = renewed(roster, samples)
            if 2 * len(samples) < _MOST_SAMPLES:
                length = min(2 * length, longest)

    def describe(self) -> SourceDescription:
        """Say what this source is."""
        return SourceDescription(
            kind="prometheus",
            name=self._settings.name or self._settings.kind,
            targets=(self._api.place,),
            interval_seconds=self._context.interval_seconds,
        )

    def discover(self, start: datetime | None = None, end: datetime | None = None) -> tuple[str, ...]:
        """Return the metric names that the server has in a window (None: ever) and the mapping tables know, sorted.

        Raises:
            UnreachableError: the server does not answer, or answers with an error.
        """
        known = set(self.assembler.metric_names)
        return tuple(name for name in self._api.names(start, end) if name in known)

    def shared_addresses(self) -> list[SharedAddress]:
        """Return, as the last poll showed, where several machines share one job and instance."""
        return self._roster.shared_addresses()

    def strangers_down(self) -> list[str]:
        """Return, as the last poll showed, which targets are down of which nothing is known: hardly any of ours."""
        return sorted(self._roster.strangers_down)

    def close(self) -> None:
        """Close the connection."""
        self._api.close()


def _address(scrape: Scrape) -> str:
    return scrape.target.url


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets without an end, a port that is none
        return False
