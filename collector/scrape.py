"""A source that reads exporters directly: concurrent GETs with a time-out, targets apart from each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

from collector.assemble import Assembler, Scrape
from collector.batch import Batch
from collector.clock import grid_floor
from collector.errors import ConfigurationError, UnreachableError
from collector.exposition import ExpositionParser
from collector.fetch import HttpFetch
from collector.masking import mask_address
from collector.plugins import SourceContext
from collector.protocols import SourceDescription
from collector.settings import SourceSettings, TargetSettings

Fetch = Callable[[TargetSettings], str]
Discover = Callable[[], Sequence[TargetSettings]]

_WORKERS = 16


class ScrapeSource:
    """Scrapes exporters.

    Args:
        settings: the `[[source]]` table: targets, time-out, token.
        context: cluster, interval, declarations.
        fetch: how a target's text is got; over HTTP by default, several targets at once.
        discover: which targets there are now; those of the settings by default.

    Raises:
        ConfigurationError: neither targets nor `discover` are given, or an address is not HTTP.
    """

    def __init__(
        self,
        settings: SourceSettings,
        context: SourceContext,
        *,
        fetch: Fetch | None = None,
        discover: Discover | None = None,
    ) -> None:
        if discover is None and not settings.targets:
            raise ConfigurationError(
                'source "scrape": expected targets such as ["http://node1:9400/metrics"], got none'
            )
        wrong = [target.url for target in settings.targets if not target.url.startswith(("http://", "https://"))]
        if wrong and fetch is None:
            raise ConfigurationError(
                f'source "scrape": expected http:// or https:// addresses, got {mask_address(wrong[0])!r}'
            )
        self._settings = settings
        self._context = context
        self._fetch: Fetch = HttpFetch(settings) if fetch is None else fetch
        self._pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="scrape") if fetch is None else None
        self._discover: Discover = (lambda: settings.targets) if discover is None else discover
        self._parsers: dict[str, ExpositionParser] = {}
        self.assembler = Assembler(context)

    def poll(self, now: datetime) -> Batch:
        """Scrape all targets; rows stand on the cycle's grid. A target that does not answer is an event."""
        return self.assembler.assemble(grid_floor(now, self._context.interval_seconds), self.gather(now))

    def gather(self, now: datetime) -> list[Scrape]:
        """Scrape all targets."""
        del now
        targets = list(self._discover())
        texts = list(self._pool.map(self._get, targets) if self._pool else map(self._get, targets))
        scrapes = []
        for target, (text, error) in zip(targets, texts, strict=True):
            body = None
            if not error:
                parser = self._parsers.get(target.url)
                if parser is None:
                    parser = self._parsers[target.url] = ExpositionParser()
                body = parser.parse(text)
            scrapes.append(Scrape(target, body, error))
        gone = self._parsers.keys() - {target.url for target in targets}
        for url in gone:
            del self._parsers[url]
        return scrapes

    def backfill(self, start: datetime, end: datetime) -> Iterator[Batch]:
        """Yield nothing: an exporter has no past."""
        del start, end
        yield from ()

    def describe(self) -> SourceDescription:
        """Say what this source is."""
        return SourceDescription(
            kind="scrape",
            name=self._settings.name or self._settings.kind,
            targets=tuple(target.url for target in self._discover()),
            interval_seconds=self._context.interval_seconds,
        )

    def export_state(self) -> dict[str, Any]:
        """Return what a later start needs to go on."""
        return self.assembler.export_state()

    def import_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `export_state` returned."""
        self.assembler.import_state(state)

    def close(self) -> None:
        """Release threads and connections."""
        if self._pool is not None:
            self._pool.shutdown()
        if isinstance(self._fetch, HttpFetch):
            self._fetch.close()

    def _get(self, target: TargetSettings) -> tuple[str, str]:
        try:
            return self._fetch(target), ""
        except UnreachableError as error:
            return "", str(error)
