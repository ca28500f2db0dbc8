"""Feeds InfluxDB from the embedded store: in the order of commits, from a cursor, at least once.

The same row sent again is the same point again, so a crash between a write and the cursor's step repeats nothing
visible. What waits lies on disk, whatever InfluxDB does: nothing queues in memory.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from collector.batch import Batch, Reject, Subject
from collector.clock import Clock, from_ms, to_ms
from collector.errors import ConfigurationError, TrimtabError
from collector.influx import texts
from collector.influx.answers import parse_tags
from collector.influx.client import Flavour, InfluxClient, TryLaterError, WriteRefusedError
from collector.influx.influxql import ROWS
from collector.influx.lines import LineEncoder
from collector.influx.places import keep_days, places
from collector.protocols import Store
from collector.schema import MEASUREMENTS, Measurement
from collector.settings import InfluxSettings
from collector.store.outbox import DirtyHour, Outbox, Shipment
from collector.store.request import HOUR, RAW, STEP_MS
from collector.window import Window

# Rows of an hour may come late by so much before its aggregates are made for the first time.
HOUR_GRACE = timedelta(minutes=10)
LOOK_SECONDS = 5.0
_LONGEST_WAIT_SECONDS = 60.0
_LONGEST_ASKED_SECONDS = 600.0
_LAST_PASS_SECONDS = 10.0
# Refused rows are found by halving the request; beyond so many of one request the server's own count has to do.
_NAMED_MOST = 20

_TOO_OLD = re.compile(r"(?:beyond|outside) retention policy")

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class Shipped:
    """What one pass sent: lines, and lines refused with the reason."""

    lines: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    hours: int = 0


class Shipper:
    """Sends what an outbox holds.

    Args:
        client: the connection.
        settings: table `[influx]`.
        outbox: what is to be sent, and the cursor.
        store: the embedded store behind it: tells the tags that a row was first written with, keeps refused rows as
            rejects.
        clock: time.
    """

    def __init__(
        self, client: InfluxClient, settings: InfluxSettings, outbox: Outbox, store: Store, clock: Clock
    ) -> None:
        self._client = client
        self._settings = settings
        self._outbox = outbox
        self._store = store
        self._clock = clock
        self._encoders: dict[str, LineEncoder] = {}
        self._last_complaint = ""
        self.waiting: dict[str, str] = {}  # tier -> why InfluxDB takes none of it, while it takes raw rows
        self._told_waiting: dict[str, str] = {}
        self._ahead: set[tuple[DirtyHour, str]] = set()  # tiers that were sent of hours of which another one waits

    def run(self, stop: threading.Event) -> None:
        """Ship again and again until `stop` is set, then once more, briefly; failures wait and are tried again."""
        wait = 0.0
        while not self._clock.wait(wait, stop):
            wait = self._try(wait)
        limit = self._clock.monotonic() + _LAST_PASS_SECONDS
        if not self._last_complaint:
            self._try(0.0, until=limit)

    def _try(self, waited: float, *, until: float | None = None) -> float:
        """Ship once; return for how long to wait."""
        try:
            self.ship(until=until)
            if until is None:
                self.ship_hours(self._clock.now() - HOUR_GRACE)
            self._tell_waiting()
            if self._last_complaint:
                _LOG.info("InfluxDB takes rows again; %d still to be sent", self._outbox.pending)
        except Exception as error:  # noqa: BLE001  whatever one pass ends with, the next one comes
            said = str(error)
            if not isinstance(error, TrimtabError):
                said = f"shipping to InfluxDB: unexpected {type(error).__name__}"
                _LOG.debug("shipping", exc_info=error)
            if said != self._last_complaint:
                _LOG.warning("%s; rows wait in the embedded store", said)
            self._last_complaint = said
            asked = error.retry_after_seconds if isinstance(error, TryLaterError) else None
            if asked is not None:
                return min(max(asked, 1.0), _LONGEST_ASKED_SECONDS)
            return min(max(2 * waited, 1.0), _LONGEST_WAIT_SECONDS)
        self._last_complaint = ""
        return LOOK_SECONDS

    def _tell_waiting(self) -> None:
        """Log, once, which tiers wait, and that they do no longer."""
        for tier, why in self.waiting.items():
            if self._told_waiting.get(tier) != why:
                what = "aggregates, facts, events and rejects" if tier == HOUR else "aggregates"
                _LOG.warning("%s; raw rows go on, %s of the tier %s wait", why, what, tier)
        for tier in self._told_waiting.keys() - self.waiting.keys():
            _LOG.info("InfluxDB takes rows of the tier %s again", tier)
        self._told_waiting = dict(self.waiting)

    def ship(self, *, until: float | None = None) -> Shipped:
        """Send all that is unsent (until the clock's `monotonic` instant given); the cursor moves after each request.

        Where the place of facts, events and rejects takes nothing (it is missing, or the token may not), they wait in
        the store, `waiting` says why, and raw rows go on.

        Raises:
            TryLaterError: InfluxDB cannot be reached or asks to wait; what was sent so far is noted.
            ConfigurationError: token or bucket is wrong.
            UnreachableError: the embedded store cannot be read.
        """
        done = Shipped()
        self.waiting.pop(HOUR, None)
        while (shipment := self._outbox.rows_after(self._outbox.cursor, self._settings.batch_rows)) is not None:
            self._send(shipment, done)
            self._outbox.advance(shipment.through)
            if until is not None and self._clock.monotonic() >= until:
                return done
        self._pay(done)
        return done

    def _pay(self, done: Shipped) -> None:
        """Send facts, events and rejects that had to wait while rows went on."""
        while HOUR not in self.waiting and (owed := self._outbox.owed_after) is not None:
            texts_waiting = self._outbox.texts_after(owed, self._settings.batch_rows)
            if texts_waiting is None:
                self._outbox.pay_texts(self._outbox.cursor)
            elif self._send_texts(texts_waiting, done):
                self._outbox.pay_texts(texts_waiting.through)

    def ship_hours(self, before: datetime) -> Shipped:
        """Send the aggregates of hours that ended by `before` and got rows since they were last sent.

        A tier whose place takes nothing waits alone: its hours stay to be sent, and `waiting` says why.

        Raises:
            TryLaterError, ConfigurationError, UnreachableError: as `ship`.
        """
        done = Shipped()
        self.waiting = {tier: why for tier, why in self.waiting.items() if tier == HOUR}  # as `ship` has just seen
        left = 0
        while hours := self._outbox.dirty_hours(before, offset=left):
            for hour in hours:
                if self._send_hour(hour, done):
                    self._outbox.clean(hour)
                    done.hours += 1
                else:
                    left += 1
        if not left:
            self._ahead.clear()
        return done

    def send(self, spec: Measurement, rows: pa.Table) -> None:
        """Send raw rows, `time`, tags and fields, that are no longer in the outbox."""
        self._write(self._encode(spec, rows), places(self._settings, self._client.flavour())[RAW].bucket, Shipped())

    def _send(self, shipment: Shipment, done: Shipped) -> None:
        where = places(self._settings, self._client.flavour())
        body = b"".join(self._encode(MEASUREMENTS[name], rows) for name, rows in shipment.rows.items())
        if body:
            self._write(body, where[RAW].bucket, done)
        if self._outbox.owed_after is None and not self._send_texts(shipment, done):
            self._outbox.owe_texts(shipment.after)

    def _send_texts(self, shipment: Shipment, done: Shipped) -> bool:
        """Send facts, events and rejects; say whether their place takes them."""
        fixed = self._client.flavour() is Flavour.V3
        told = [
            *texts.encode_facts(shipment.facts, fixed_tags=fixed),
            *texts.encode_events(shipment.events, fixed_tags=fixed),
            *texts.encode_rejects(shipment.rejects, fixed_tags=fixed),
        ]
        if not told:
            return True
        lines = [f"{line}\n".encode() for line in told]
        bucket = places(self._settings, self._client.flavour())[HOUR].bucket
        try:
            self._write(b"".join(lines), bucket, done, precision="ns", lines=lines)
        except ConfigurationError as error:
            self.waiting[HOUR] = str(error)
            return False
        return True

    def _encode(self, spec: Measurement, rows: pa.Table) -> bytes:
        rows = self._young_enough(rows, RAW)
        if not rows.num_rows:
            return b""
        if spec.extra_tags:
            rows = self._with_first_tags(spec, rows)
        fields = {ROWS: np.ones(rows.num_rows)}
        for name in spec.field_names:
            column = rows.column(name)
            if column.null_count < rows.num_rows:
                fields[name] = column.to_numpy()  # null is NaN
        return self._encoder(spec).encode(rows, fields)

    def _encoder(self, spec: Measurement) -> LineEncoder:
        if spec.name not in self._encoders:
            fixed = self._client.flavour() is Flavour.V3
            self._encoders[spec.name] = LineEncoder(spec.name, spec.tags, fixed_tags=fixed)
        return self._encoders[spec.name]

    def _young_enough(self, rows: pa.Table, tier: str) -> pa.Table:
        """Leave out rows that InfluxDB would drop at once."""
        oldest = to_ms(self._clock.now()) - round(keep_days(self._settings)[tier] * 86_400_000)
        times = rows.column("time").cast(pa.int64())
        return rows if pc.min(times).as_py() >= oldest else rows.filter(pc.greater_equal(times, oldest))

    def _with_first_tags(self, spec: Measurement, rows: pa.Table) -> pa.Table:
        """Give rows that came twice the holder that they were first written with: in InfluxDB it is part of the key."""
        bounds = pc.min_max(rows.column("time").cast(pa.int64()))
        first, last = bounds["min"].as_py(), bounds["max"].as_py()
        if not self._outbox.may_clash(spec.name, first, last):
            return rows
        known = self._store.read(spec.name, Window(from_ms(first), from_ms(last + 1)), fields=())
        key = ["time", *spec.key]
        frame = rows.select(key).to_pandas().merge(known, on=key, how="left")
        for tag in spec.extra_tags:
            own = rows.column(tag)
            firsts = pa.array(frame[tag], pa.string(), from_pandas=True)
            rows = rows.set_column(rows.column_names.index(tag), tag, pc.coalesce(firsts, own))
        return rows

    def _send_hour(self, hour: DirtyHour, done: Shipped) -> bool:
        """Send each tier of an hour whose place takes it; say whether all are there."""
        where = places(self._settings, self._client.flavour())
        if all(tier in self.waiting or (hour, tier) in self._ahead for tier in STEP_MS):
            return False
        for tier, made in self._outbox.partials(hour).items():
            if tier in self.waiting or (hour, tier) in self._ahead:
                continue
            try:
                self._send_partials(hour, made, tier, where[tier].bucket, done)
            except ConfigurationError as error:
                self.waiting[tier] = str(error)
            else:
                self._ahead.add((hour, tier))
        return not self.waiting

    def _send_partials(self, hour: DirtyHour, made: pa.Table, tier: str, bucket: str, done: Shipped) -> None:
        spec = MEASUREMENTS[hour.measurement]
        rows = made.append_column("time", made.column("t").cast(pa.timestamp("ms", tz="UTC")))
        if rows.num_rows:
            rows = self._young_enough(rows, tier)
        for start in range(0, rows.num_rows, self._settings.batch_rows):
            part = rows.slice(start, self._settings.batch_rows)
            self._write(self._encoder(spec).encode(part, _partial_fields(spec, part)), bucket, done)

    def _write(
        self,
        body: bytes,
        bucket: str,
        done: Shipped,
        *,
        precision: str = "ms",
        lines: Sequence[bytes] | None = None,
    ) -> None:
        """Write lines; those that InfluxDB refuses are named, counted and left behind.

        Args:
            body: all lines.
            bucket: where to.
            done: counts what was sent.
            precision: of their times.
            lines: the same one by one; None: each newline of `body` ends one.
        """
        if not body:
            return
        try:
            self._client.write(body, bucket, precision=precision)
        except WriteRefusedError as error:
            part = list(lines) if lines is not None else body.splitlines(keepends=True)
            self._halve(part, error, bucket, precision, done)
        else:
            done.lines += body.count(b"\n") if lines is None else len(lines)

    def _halve(self, part: list[bytes], error: WriteRefusedError, bucket: str, precision: str, done: Shipped) -> None:
        """Find the refused lines of `part` by sending halves; what is not refused is there already, or is now."""
        pending = [(part, error)]
        named = 0
        while pending:
            part, error = pending.pop()
            if _TOO_OLD.search(str(error)) or (named >= _NAMED_MOST and not error.too_large):
                # The server has kept what it could, and counts the others.
                done.refused[str(error)] += 1
                _LOG.warning("%s", error)
                continue
            if len(part) == 1:
                named += 1
                self._refuse(part[0].decode().rstrip("\n"), str(error), done)
                continue
            middle = len(part) // 2
            for half in (part[middle:], part[:middle]):
                try:
                    self._client.write(b"".join(half), bucket, precision=precision)
                except WriteRefusedError as again:
                    pending.append((half, again))
                else:
                    done.lines += len(half)

    def _refuse(self, line: str, reason: str, done: Shipped) -> None:
        done.refused[reason] += 1
        series, time_text = _cut(line)
        _LOG.warning("refused: %s at %s: %s", series, time_text, reason)
        subject = _subject(series)
        if subject is not None:
            text = f"InfluxDB refused the row: {reason.partition(': ')[2] or reason}"
            self._store.write(Batch(rejects=[Reject(subject, "", text, from_ms(int(time_text)))]))


def _cut(line: str) -> tuple[str, str]:
    """Return the series (before the first space that is not escaped) and the time of a line."""
    index = line.find(" ")
    while index > 0 and line[index - 1] == "\\":
        index = line.find(" ", index + 1)
    return line[:index], line.rpartition(" ")[2]


def _subject(series: str) -> Subject | None:
    """Return what a row is about; None for facts, events and rejects."""
    measurement, _, tags = series.partition(",")
    if measurement not in MEASUREMENTS:
        return None
    known = parse_tags(tags)
    parts = {name: known.get(name, "") for name in ("cluster", "node", "gpu", "slice")}
    queue = f"{known.get('pool', '')}/{known.get('tenant', '')}" if measurement == "queue" else ""
    return Subject(measurement, object=queue, **parts)  # type: ignore[arg-type]  # one of MEASUREMENTS


def _partial_fields(spec: Measurement, rows: pa.Table) -> dict[str, np.ndarray]:
    """Return the fields of tier rows: mean, and what does not follow from it; a count of 1 is left out."""
    fields: dict[str, np.ndarray] = {}
    most = np.ones(rows.num_rows)
    for name in spec.field_names:
        if name not in rows.column_names or rows.column(name).null_count == rows.num_rows:
            continue
        mean = rows.column(name)
        count = pc.fill_null(rows.column(f"{name}__count"), 0.0).to_numpy()
        several = count > 1
        most = np.maximum(most, count)
        fields[name] = mean.to_numpy()
        if several.any():
            # Said also where equal to the mean: what was sent before must not stay beside it.
            for part in ("__min", "__max"):
                values = pc.coalesce(rows.column(f"{name}{part}"), mean).to_numpy()
                fields[f"{name}{part}"] = np.where(several, values, np.nan)
            fields[f"{name}__count"] = np.where(several, count, np.nan)
    return {ROWS: most, **fields}
