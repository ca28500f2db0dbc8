"""A source that reads exporters directly: many at once, each on time, and none waits for another."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from datetime import datetime

from collector.assemble import Assembler, Scrape
from collector.batch import Severity
from collector.burst import Burst, Heard
from collector.clock import to_ms
from collector.discovery import Discovery
from collector.errors import ConfigurationError, UnreachableError
from collector.exposition import ExpositionParser
from collector.fetch import HttpFetch
from collector.gathering import GatheringSource
from collector.masking import mask_address
from collector.plugins import SourceContext
from collector.protocols import SourceDescription
from collector.schedule import Turn, is_due, offset_share, plan_next
from collector.settings import SourceSettings, TargetSettings
from collector.shapes import Text
from collector.wire import Limits
from collector.workers import Workers

_LOG = logging.getLogger(__name__)

Fetch = Callable[[TargetSettings], str]
Discover = Callable[[], Sequence[TargetSettings]]

# Threads are made only as answers are waited for: a rack that hangs must not take the last one.
_WORKERS = 1024
_PATIENCE_SHARE = 0.25  # of the interval that a cycle waits for targets that answered in time before
_GRACE_SECONDS = 1.0  # for targets that did not, where there are no others
# Requests go out by so many at once: a processor that rests between two of them has forgotten how to read the second.
_HANDFUL = 16
_LOOK_SECONDS = 0.25  # between two looks whether the source is closed


@dataclass(slots=True)
class Tally:
    """What a source did since it began; `durations` only since somebody took them.

    targets, skew_seconds: how many there are now, and the largest skew of their clocks in the last cycle.
    """

    answered: int = 0
    failed: int = 0
    late: int = 0
    samples: int = 0
    targets: int = 0
    skew_seconds: float = 0.0
    durations: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _Told:
    """What a target said, and the seconds until it was there."""

    scrape: Scrape
    seconds: float = math.nan


@dataclass(slots=True)
class _Running:
    """A question that is under way since the cycle of `asked_ms`."""

    future: Future[_Told]
    asked_ms: int


class ScrapeSource(GatheringSource):
    """Scrapes exporters.

    Args:
        settings: the `[[source]]` table: targets and how they are found, time-out, credentials, interval.
        context: cluster, interval, declarations, the shard of this collector.
        fetch: how a target's text is got, one after the other; over HTTP by default, all at once.
        discover: which targets there are now; as the settings say by default.

    Attributes:
        spread_seconds: over how long the requests of a cycle are spread.

    Raises:
        ConfigurationError: nothing says what the targets are, an address is not HTTP, a file cannot be read, or the
            source's interval is no whole number of cycles.
    """

    def __init__(
        self,
        settings: SourceSettings,
        context: SourceContext,
        *,
        fetch: Fetch | None = None,
        discover: Discover | None = None,
    ) -> None:
        _check(settings, over_http=fetch is None, found_otherwise=discover is not None)
        self._settings = settings
        self._context = context
        self._interval_ms = _interval_ms(settings, context)
        self._fetch: Fetch | HttpFetch = HttpFetch(settings) if fetch is None else fetch
        self._discover: Discover | Discovery = Discovery(settings) if discover is None else discover
        self._pool = Workers(_WORKERS, "scrape") if fetch is None else None
        self._parsers: dict[str, ExpositionParser] = {}
        self._parsing = threading.Lock()  # of bodies of megabytes only one is in pieces at a time
        self._burst = Burst(self._fetch) if isinstance(self._fetch, HttpFetch) else None
        self._turns: dict[str, Turn] = {}
        self._running: dict[str, _Running] = {}
        self._slow: set[str] = set()  # failed, or came too late, when they were asked last
        self._mine: dict[str, bool] = {}
        self._closing = threading.Event()
        self.spread_seconds = 0.0
        self.tally = Tally()
        self.assembler = Assembler(context)

    def gather(self, now: datetime) -> list[Scrape]:
        """Scrape the targets whose turn it is.

        The cycle waits for targets that answered in time before, and not for others: what a slow one says counts in
        the next cycle, with its age. A target in whose answer nothing is due, or that is still asked, rests.
        """
        targets = self._targets()
        self.tally.targets = len(targets)
        if self._pool is None:
            return [self._count(self._ask(target)) for target in targets.values()]
        now_ms = to_ms(now)
        late = {url: self._finish(url, now_ms) for url in list(self._running) if self._running[url].future.done()}
        due = [url for url in targets if url not in self._running and self._is_due(url, now_ms)]
        self._launch([targets[url] for url in due], now_ms)
        self._wait([url for url in due if url not in self._slow] or due)
        scrapes = []
        for url, target in targets.items():
            running = self._running.get(url)
            if running is not None and running.future.done():
                scrapes.append(self._finish(url, now_ms))
            elif (scrape := late.get(url)) is not None:
                scrapes.append(scrape)
            elif running is not None:
                self._slow.add(url)
                self.tally.late += 1
                scrapes.append(Scrape(target, None, resting=True))
            elif not self._turns[url].failures:
                scrapes.append(Scrape(target, None, resting=True))
        skews = [one.skew_seconds for one in scrapes if not math.isnan(one.skew_seconds)]
        self.tally.skew_seconds = max(skews, key=abs, default=0.0)
        return scrapes

    def notices(self) -> list[tuple[str, Severity, str]]:
        """Return what discovery has to say since the last call: (code, severity, message)."""
        return self._discover.notices() if isinstance(self._discover, Discovery) else []

    def describe(self) -> SourceDescription:
        """Say what this source is."""
        return SourceDescription(
            kind="scrape",
            name=self._settings.name or self._settings.kind,
            targets=tuple(mask_address(url) for url in self._targets()),
            interval_seconds=self._interval_ms / 1000.0,
        )

    def close(self) -> None:
        """Release threads and connections; a question under way is left."""
        self._closing.set()
        if self._pool is not None:
            self._pool.close()
        if isinstance(self._discover, Discovery):
            self._discover.close()
        if isinstance(self._fetch, HttpFetch):
            self._fetch.close()

    def _targets(self) -> dict[str, TargetSettings]:
        """Return the targets of this collector by address; forget what is known of others."""
        found = {target.url: target for target in self._discover()}
        for url in self._mine.keys() - found:
            self._mine.pop(url, None)
        targets = {url: target for url, target in found.items() if self._is_mine(target)}
        # One that is still asked is forgotten when its answer is there.
        for url in (self._parsers.keys() | self._turns.keys()).difference(targets, self._running):
            self._parsers.pop(url, None)
            self._turns.pop(url, None)
            if isinstance(self._fetch, HttpFetch):
                self._fetch.forget(url)
        self._slow &= targets.keys()
        return targets

    def _is_mine(self, target: TargetSettings) -> bool:
        shard = self._context.shard
        if shard is None or not self._settings.sharded:
            return True
        mine = self._mine.get(target.url)
        if mine is None:
            mine = self._mine[target.url] = shard.has(target)
        return mine

    def _is_due(self, url: str, now_ms: int) -> bool:
        turn = self._turns.get(url)
        if turn is None:
            turn = self._turns[url] = Turn()
        return is_due(turn, now_ms, self._interval_ms)

    def _launch(self, targets: Sequence[TargetSettings], now_ms: int) -> None:
        """Ask, each target at its own place within the spread, some together; read what comes meanwhile."""
        start = time.monotonic()
        steps = -(-len(self._turns) // _HANDFUL)
        places = sorted((int(offset_share(target.url) * steps), n) for n, target in enumerate(targets))
        for place, n in places:
            if not self._hear_until(start + place / steps * self.spread_seconds):
                return
            self._begin(targets[n], now_ms)

    def _begin(self, target: TargetSettings, now_ms: int) -> None:
        """Ask a target: in this thread, where it is prompt and its connection is there."""
        self._running[target.url] = running = _Running(Future(), now_ms)
        prompt = self._burst is not None and target.url not in self._slow
        if self._burst is None or not prompt or not self._burst.ask(target, self._timeout_seconds(target)):
            running.future = self._submit(self._ask, target)

    def _hear_until(self, instant: float) -> bool:
        """Read answers until an instant; say whether the source is still open."""
        while (left := instant - time.monotonic()) > 0:
            if self._burst is not None and len(self._burst):
                self._hear(min(left, _LOOK_SECONDS))
            else:
                self._closing.wait(left)
            if self._closing.is_set():
                break
        return not self._closing.is_set()

    def _hear(self, seconds: float) -> None:
        for heard in self._burst.hear(seconds) if self._burst is not None else ():
            self._take(heard)

    def _take(self, heard: Heard) -> None:
        """Read a body; one that is not of the known shape may take long, and holds up nobody."""
        target, running = heard.target, self._running[heard.target.url]
        if heard.body is None:
            running.future = self._submit(self._ask, target, heard.start)
            return
        scrape = Scrape(target, None, skew_seconds=heard.skew_seconds, interval_seconds=self._interval_ms / 1000.0)
        told, parser = _Told(scrape, time.monotonic() - heard.start), self._parsers.get(target.url)
        scrape.body = None if parser is None else parser.read_known(heard.body)
        if scrape.body is None:
            running.future = self._submit(self._parse, told, heard.body)
        else:
            running.future.set_result(told)

    def _wait(self, urls: Sequence[str]) -> None:
        prompt = [url for url in urls if url not in self._slow]
        patience = self._context.interval_seconds * _PATIENCE_SHARE
        longest = self._settings.timeout_seconds + _GRACE_SECONDS if prompt else _GRACE_SECONDS
        limit = min(patience, longest)
        end = time.monotonic() + limit
        self._hear(limit)
        for heard in self._burst.leave() if self._burst is not None else ():
            self._take(heard)
        limit = max(0.0, end - time.monotonic())
        wait([self._running[url].future for url in urls if url in self._running], timeout=limit)

    def _finish(self, url: str, now_ms: int) -> Scrape:
        """Take an answer; it is as old as the cycle in which it was asked for."""
        running = self._running.pop(url)
        scrape = self._count(running.future.result())
        failed = bool(scrape.error)
        if url in self._turns:
            plan_next(self._turns[url], running.asked_ms, self._interval_ms, failed=failed)
        age_ms = now_ms - running.asked_ms
        if failed or age_ms:
            self._slow.add(url)
        else:
            self._slow.discard(url)
        return replace(scrape, age_seconds=age_ms / 1000.0) if age_ms else scrape

    def _count(self, told: _Told) -> Scrape:
        """Count an answer: here, by one thread."""
        body = told.scrape.body
        self.tally.failed += bool(told.scrape.error)
        if body is not None:
            self.tally.answered += 1
            self.tally.samples += len(body.series)
            self.tally.durations.append(told.seconds)
        return told.scrape

    def _ask(self, target: TargetSettings, begun: float | None = None) -> _Told:
        """Ask a target, or go on with what was asked at `begun` (of `time.monotonic`)."""
        start = time.monotonic() if begun is None else begun
        scrape = Scrape(target, None, interval_seconds=self._interval_ms / 1000.0)
        with Limits(start + self._timeout_seconds(target) - time.monotonic(), self._parsing) as limits:
            try:
                text, scrape.skew_seconds = self._text(target, limits, begun=begun is not None)
            except UnreachableError as error:
                scrape.error = str(error)
                return _Told(scrape)
            except Exception as error:  # noqa: BLE001  whatever one target does, the others are read
                place = mask_address(target.url)
                # Its text may repeat the address, and with it what is secret in it.
                _LOG.warning("%s: unexpected %s", place, type(error).__name__)
                scrape.error = f"{place}: expected an answer, got an unexpected {type(error).__name__}"
                return _Told(scrape)
            told = _Told(scrape, time.monotonic() - start)
            limits.lock()
            return self._parse_alone(told, text)

    def _parse(self, told: _Told, text: Text) -> _Told:
        with self._parsing:
            return self._parse_alone(told, text)

    def _parse_alone(self, told: _Told, text: Text) -> _Told:
        """Read a body of whatever shape."""
        parser = self._parsers.setdefault(told.scrape.target.url, ExpositionParser())
        told.scrape.body = parser.parse(text)
        return told

    def _timeout_seconds(self, target: TargetSettings) -> float:
        return target.timeout_seconds or self._settings.timeout_seconds

    def _submit(self, call: Callable[..., _Told], *args: object) -> Future[_Told]:
        if self._pool is None:
            raise AssertionError("only with threads")
        return self._pool.submit(call, *args)

    def _text(self, target: TargetSettings, limits: Limits, *, begun: bool) -> tuple[Text, float]:
        """Return what a target says, and how far its clock is ahead."""
        if isinstance(self._fetch, HttpFetch):
            return self._fetch.ask(target, limits, begun=begun)
        return self._fetch(target), math.nan


def _check(settings: SourceSettings, *, over_http: bool, found_otherwise: bool) -> None:
    named = settings.targets or settings.targets_file or settings.dns or settings.kubernetes
    if not named and not found_otherwise:
        raise ConfigurationError(
            'source "scrape": expected targets such as ["http://node1:9400/metrics"], targets_file, dns or '
            "kubernetes, got none"
        )
    wrong = [target.url for target in settings.targets if not target.url.startswith(("http://", "https://"))]
    if wrong and over_http:
        raise ConfigurationError(
            f'source "scrape": expected http:// or https:// addresses, got {mask_address(wrong[0])!r}'
        )


def _interval_ms(settings: SourceSettings, context: SourceContext) -> int:
    own = settings.interval_seconds or context.interval_seconds
    cycles = own / context.interval_seconds
    if abs(cycles - round(cycles)) > 1e-9 or cycles < 1:
        raise ConfigurationError(
            f'source "{settings.name or settings.kind}": expected an interval_seconds of whole cycles of '
            f"{context.interval_seconds:g} s, got {own:g}"
        )
    return round(own * 1000)
