"""The store where InfluxDB is configured: written to the embedded one, read from both.

The local store answers from min(now - 2 h, oldest row not yet shipped, oldest hour whose aggregates are not yet
shipped) on, moved back to a boundary of `every`; what is older comes from InfluxDB. No bucket is made of two stores: a
window that is one bucket comes from the local store where that holds all of it, else from InfluxDB.

`frame.attrs` says which: `stores` is a list of (store, start, end), `behind_seconds` how far InfluxDB is behind.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np
import pandas as pd
import pyarrow as pa

from collector.batch import Batch
from collector.clock import Clock, SystemClock, from_ms, to_ms
from collector.errors import ConfigurationError, TrimtabError, UnreachableError
from collector.influx import places
from collector.influx.client import Flavour, InfluxClient, TryLaterError
from collector.influx.influxql import delete_predicates
from collector.influx.merging import facts_together, together, told
from collector.influx.progress import CURSOR, Progress, progress_of
from collector.influx.reader import InfluxReader
from collector.influx.shipper import Shipper
from collector.protocols import Store, Where
from collector.schema import MEASUREMENTS
from collector.settings import InfluxSettings, StoreSettings
from collector.store import EmbeddedStore
from collector.store.outbox import Outbox
from collector.store.reading import RowReader
from collector.store.request import HOUR, MINUTE, RAW, STEP_MS, Request, make_request
from collector.store.spans import EVENT_COLUMNS, REJECT_COLUMNS
from collector.window import Window

LIVE = timedelta(hours=2)
_DAY_MS = 86_400_000
_BEGINNING = from_ms(0)
_SPAN_SECONDS = 600.0
_LOG = logging.getLogger(__name__)


class InfluxStore(RowReader):
    """The embedded store with InfluxDB behind it.

    Args:
        settings: table `[influx]`.
        store_settings: table `[store]`. Where its folder holds no store, `read_only` reads from InfluxDB alone: so does
            a dashboard on another host.
        clock: time.
        read_only: open what is there, for reading.

    Raises:
        ConfigurationError: an address or a file of [influx] is wrong, or the embedded store is refused.
        UnreachableError: the embedded store cannot be opened.
    """

    def __init__(
        self,
        settings: InfluxSettings,
        store_settings: StoreSettings,
        *,
        clock: Clock | None = None,
        read_only: bool = False,
    ) -> None:
        self._settings = settings
        self._store_settings = store_settings
        self._clock = clock or SystemClock()
        self._client = InfluxClient(settings)
        there = (store_settings.path / "store.db").exists()
        self._local = None if read_only and not there else EmbeddedStore(store_settings, read_only=read_only)
        self._remote = InfluxReader(self._client, settings, self._clock, self._facts_between)
        self._shipping = threading.Lock()
        self._spans_there: dict[str, tuple[float, Window | None]] = {}

    def close(self) -> None:
        """Release files, threads and connections; nothing that was written is lost."""
        if self._local is not None:
            self._local.close()
        self._remote.close()
        self._client.close()

    @property
    def local(self) -> EmbeddedStore:
        """The embedded store.

        Raises:
            UnreachableError: there is none on this host.
        """
        if self._local is None:
            raise UnreachableError(f"expected a store in {self._store_settings.path}, found none on this host")
        return self._local

    def progress(self) -> Progress:
        """Return how far the shipper is."""
        return progress_of(self._store_settings, CURSOR)

    # Writing -------------------------------------------------------------------------------------------------------

    def write(self, batch: Batch) -> None:
        """Keep a batch, all or nothing, before returning; the shipper sends it on. See `EmbeddedStore.write`."""
        self.local.write(batch)

    def ship(self, before: datetime | None = None) -> None:
        """Send everything now, and the aggregates of hours that ended by `before` (None: now).

        Raises:
            TryLaterError: InfluxDB cannot be reached or is busy.
            ConfigurationError: token or bucket is wrong; if that of one tier alone, all else was sent.
        """
        with self._shipping, closing(Outbox(self._store_settings, CURSOR)) as outbox:
            shipper = Shipper(self._client, self._settings, outbox, self.local, self._clock)
            shipper.ship()
            shipper.ship_hours(before or self._clock.now())
        for why in shipper.waiting.values():
            raise ConfigurationError(why)

    def keep_shipping(self, stop: threading.Event) -> None:
        """Ship again and again until `stop` is set; for a thread beside a writer."""
        with self._shipping, closing(Outbox(self._store_settings, CURSOR)) as outbox:
            Shipper(self._client, self._settings, outbox, self.local, self._clock).run(stop)

    def delete(self, measurement: str, window: Window, where: Where | None = None) -> int:
        """Delete rows in both stores; return how many went. Aggregates of the hours touched are made and sent anew.

        Raises:
            KeyError: unknown measurement or tag.
            TryLaterError: InfluxDB cannot be reached; then nothing is deleted there, and may be here.
            ConfigurationError: 3.x cannot delete.
        """
        request = make_request(measurement, window, fields=(), where=where, by=None, every=None, aggregate="mean")
        flavour = self._client.flavour()
        if flavour is Flavour.V3:
            raise ConfigurationError("InfluxDB 3 cannot delete rows; they go when their retention ends")
        count = self.local.delete(measurement, window, where)
        if any(not values for values in request.where.values()):
            return count
        there = len(self._remote.read(measurement, window, fields=(), where=where))
        raw_since = to_ms(self._clock.now()) - round(self._store_settings.raw_days * _DAY_MS)
        remade = request.start >= raw_since  # from the raw rows that are left; elsewhere the steps that start within go
        if flavour is Flavour.V1:
            self._delete_v1(request, remade=remade)
        else:
            self._delete_v2(request, remade=remade)
        if remade:
            with closing(Outbox(self._store_settings, CURSOR)) as outbox:
                outbox.soil(measurement, window)
        return max(count, there)

    def _delete_v2(self, request: Request, *, remade: bool) -> None:
        found = places.places(self._settings, Flavour.V2)
        for tier in (RAW, MINUTE, HOUR):
            step = STEP_MS[tier] if remade and tier != RAW else 1
            span = (request.start // step * step, -(-request.end // step) * step)
            for predicate in delete_predicates(request):
                self._client.delete(found[tier].bucket, *span, predicate)

    def _delete_v1(self, request: Request, *, remade: bool) -> None:
        """Delete in all retention policies at once: 1.x knows no other way.

        The steps that hold the window's start stand before it, at an instant where raw rows may stand as well: these
        are sent again.
        """
        bucket = places.places(self._settings, Flavour.V1)[RAW].bucket
        starts = {request.start // step * step for step in STEP_MS.values()} if remade else set()
        for predicate in delete_predicates(request):
            self._client.delete(bucket, request.start, request.end, predicate)
            for instant in starts:
                self._client.delete(bucket, instant, instant + 1, predicate)
        for instant in starts - {request.start}:
            at = Window(from_ms(instant), from_ms(instant + 1))
            rows = pa.Table.from_pandas(self.local.read(request.spec.name, at), preserve_index=False)
            with closing(Outbox(self._store_settings, CURSOR)) as outbox:
                Shipper(self._client, self._settings, outbox, self.local, self._clock).send(request.spec, rows)

    def retain(self, now: datetime) -> int:
        """Drop what is older than the tiers' retention; return how many raw rows and steps went.

        InfluxDB drops by its own retention where that is set as configured (`trimtab store prepare` does).
        """
        dropped = 0 if self._local is None else self._local.retain(now)
        try:
            return max(dropped, self._retain_there(now))
        except TryLaterError as error:
            _LOG.warning("retention: %s", error)
            return dropped

    def _retain_there(self, now: datetime) -> int:
        flavour = self._client.flavour()
        if flavour is Flavour.V3 or not places.check(self._client, self._settings):
            return 0
        dropped = 0
        kept = places.keep_days(self._settings)
        if flavour is Flavour.V1:  # a delete there takes all tiers along
            kept = {HOUR: max(kept.values())}
        for tier, days in kept.items():
            cutoff = to_ms(now) - round(days * _DAY_MS)
            for name in MEASUREMENTS:
                dropped += self._remote.count_before(name, tier, cutoff)
                bucket = places.places(self._settings, flavour)[tier].bucket
                self._client.delete(bucket, 0, cutoff, f'_measurement="{name}"')
        return dropped

    # Reading -------------------------------------------------------------------------------------------------------

    def answer(self, request: Request) -> pd.DataFrame:
        """Return the frame that a request asks for.

        Raises:
            UnreachableError: InfluxDB cannot be reached, and the local store does not hold what is asked.
        """
        if self._local is None:
            frame = self._remote.answer(request)
            return told(frame, [("influx", request.start, request.end)], np.nan)
        progress = self.progress()
        behind = progress.behind(self._clock.now()).total_seconds()
        start = self._local_from(request, progress)
        if start <= request.start:
            return told(self._local.answer(request), [("embedded", request.start, request.end)], behind)
        try:
            older = self._remote.answer(replace(request, end=min(start, request.end)))
        except TryLaterError as error:
            if not self._holds(request):
                raise
            _LOG.warning("%s; the embedded store answers", error)
            return told(self._local.answer(request), [("embedded", request.start, request.end)], behind)
        if start >= request.end:
            return told(older, [("influx", request.start, request.end)], behind)
        newer = self._local.answer(replace(request, start=start))
        frame = together(request, older, newer)
        return told(frame, [("influx", request.start, start), ("embedded", start, request.end)], behind)

    def _local_from(self, request: Request, progress: Progress) -> int:
        """Return the instant (ms) from which on the local store answers."""
        boundary = progress.boundary(self._clock.now(), LIVE)
        if boundary is None:
            return request.start
        at = to_ms(boundary)
        if request.every is not None:
            return at // request.every * request.every
        if request.by is None or not request.start < at < request.end:
            return at
        # One bucket over all of the window.
        return request.start if self._holds(request) else request.end

    def _holds(self, request: Request) -> bool:
        """Whether the local store holds all that there is of a window, as far as can be told."""
        if self._local is None:
            return False
        here = self._local.span(request.spec.name)
        if here is None:
            return False
        if to_ms(here.start) <= request.start:
            return True
        try:
            there = self._span_there(request.spec.name)
        except TrimtabError:
            return True
        # A tier there may begin with the hour that our first row lies in.
        return there is None or to_ms(there.start) // STEP_MS[HOUR] >= to_ms(here.start) // STEP_MS[HOUR]

    def _span_there(self, measurement: str) -> Window | None:
        """Return the span of InfluxDB's rows as it was at most ten minutes ago: its beginning hardly moves."""
        now = self._clock.monotonic()
        known = self._spans_there.get(measurement)
        if known is None or now - known[0] > _SPAN_SECONDS:
            known = self._spans_there[measurement] = (now, self._remote.span(measurement))
        return known[1]

    def latest(
        self,
        measurement: str,
        *,
        at: datetime,
        lookback: timedelta,
        fields: Sequence[str] | None = None,
        where: Where | None = None,
    ) -> pd.DataFrame:
        """Return the newest row of each key in (at - lookback, at]; keys without one are absent."""
        if self._local is None:
            return self._remote.latest(measurement, at=at, lookback=lookback, fields=fields, where=where)
        progress = self.progress()
        boundary = progress.boundary(self._clock.now(), LIVE)
        first = at - lookback
        frames = []
        if boundary is not None and boundary > first:
            tick = timedelta(milliseconds=1)
            until = min(at, boundary - tick)
            try:
                older = self._remote.latest(measurement, at=until, lookback=until - first, fields=fields, where=where)
            except TryLaterError as error:
                _LOG.warning("%s; the embedded store answers", error)
                boundary = first
            else:
                frames.append(older)
        if boundary is None or boundary <= at:
            since = first if boundary is None else max(first, boundary - timedelta(milliseconds=1))
            frames.append(self._local.latest(measurement, at=at, lookback=at - since, fields=fields, where=where))
        key = list(MEASUREMENTS[measurement].key)
        frame = pd.concat([f for f in frames if len(f)] or frames[-1:], ignore_index=True)
        frame = frame.sort_values([*key, "time"]).drop_duplicates(key, keep="last", ignore_index=True)
        frame.attrs["behind_seconds"] = progress.behind(self._clock.now()).total_seconds()
        return frame

    def partitions(self, window: Window) -> list[tuple[str, str]]:
        """Return the (cluster, node) pairs that have rows in `window`, sorted."""
        boundary = None if self._local is None else self.progress().boundary(self._clock.now(), LIVE)
        if self._local is not None and (boundary is None or boundary <= window.start):
            return self._local.partitions(window)
        if self._local is None or boundary is None or boundary >= window.end:
            return self._remote.partitions(window)
        older = self._remote.partitions(Window(window.start, boundary))
        return sorted({*older, *self._local.partitions(Window(boundary, window.end))})

    def span(self, measurement: str) -> Window | None:
        """Return [oldest row, newest row + 1 ms), or None when there is no row."""
        here = None if self._local is None else self._local.span(measurement)
        try:
            there = self._remote.span(measurement)
        except TryLaterError:
            if here is None:
                raise
            return here
        if here is None or there is None:
            return here or there
        first = here.start if to_ms(there.start) // STEP_MS[HOUR] == to_ms(here.start) // STEP_MS[HOUR] else there.start
        return Window(min(first, here.start), max(here.end, there.end))

    def written_until(self) -> datetime | None:
        """Return the time of the newest row that this host wrote; None without one."""
        return None if self._local is None else self._local.written_until()

    # Texts ---------------------------------------------------------------------------------------------------------

    def _knows_since(self) -> datetime | None:
        """Return since when the local store knows facts, events and rejects; None without one."""
        if self._local is None:
            return None
        spans = [span.start for name in MEASUREMENTS if (span := self._local.span(name)) is not None]
        return min(spans, default=_BEGINNING)

    def facts(self, window: Window | None = None, *, names: Sequence[str] | None = None) -> pd.DataFrame:
        """Return facts valid at some time in `window`; see `StoreReader.facts`.

        Those of the local store, and for a window that begins before its rows those of InfluxDB until then.
        """
        if self._local is None:
            return self._remote.own_facts(window, names)
        here = self._local.facts(window, names=names)
        since = self._knows_since()
        if window is None or since is None or window.start >= since:
            return here
        try:
            there = self._remote.own_facts(window, names)
        except TryLaterError as error:
            _LOG.warning("%s; the embedded store answers", error)
            return here
        return facts_together(here, there)

    def _facts_between(self, window: Window, names: Sequence[str]) -> pd.DataFrame:
        return self.facts(window, names=names)

    def events(self, window: Window) -> pd.DataFrame:
        """Return events in `window`; see `StoreReader.events`."""
        return self._texts("events", window, [c for c in EVENT_COLUMNS if c != "severity"])

    def rejects(self, window: Window) -> pd.DataFrame:
        """Return rejects in `window`; see `StoreReader.rejects`."""
        return self._texts("rejects", window, [c for c in REJECT_COLUMNS if c != "count"])

    def _texts(self, kind: str, window: Window, key: list[str]) -> pd.DataFrame:
        since = self._knows_since()
        if self._local is None:
            there: pd.DataFrame = getattr(self._remote, kind)(window)
            return there
        here: pd.DataFrame = getattr(self._local, kind)(window)
        if since is None or window.start >= since:
            return here
        try:
            there = getattr(self._remote, kind)(window)
        except TryLaterError as error:
            _LOG.warning("%s; the embedded store answers", error)
            return here
        both = pd.concat([f for f in (there, here) if len(f)] or [here], ignore_index=True)
        return both.drop_duplicates(key, keep="last").sort_values(key, ignore_index=True)


def open_store(settings: InfluxSettings, store_settings: StoreSettings, *, read_only: bool = False) -> Store:
    """Open the store that is configured: the embedded one alone where `[influx]` has no `url`."""
    if not settings.url:
        return EmbeddedStore(store_settings, read_only=read_only)
    return InfluxStore(settings, store_settings, read_only=read_only)
