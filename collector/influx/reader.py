"""Reading from InfluxDB as from any store: aggregation on the server where its answer is ours, else here from rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from collector.clock import Clock, SystemClock, from_ms, to_ms
from collector.influx import answers, flux, influxql, texts
from collector.influx.client import InfluxClient, QueryRefusedError
from collector.influx.influxql import ROWS
from collector.influx.places import Place, keep_days, places
from collector.protocols import Where
from collector.settings import InfluxSettings
from collector.store import query
from collector.store.engine import Engine
from collector.store.hot import measurement_of
from collector.store.reading import RowReader
from collector.store.request import HOUR, MINUTE, RAW, STEP_MS, Pieces, Request, choose_tier, make_request
from collector.window import Window

_DAY_MS = 86_400_000
# Of rows that are aggregated here, so much time is held at once where buckets are asked for.
_CHUNK_MS = {RAW: _DAY_MS // 4, MINUTE: _DAY_MS, HOUR: 30 * _DAY_MS}
_PARTIALS = ("", "__min", "__max", "__count")
_FIRST_MS, _LAST_MS = 0, 4_102_444_800_000  # 2100

_Asked = tuple[int, int, Mapping[str, tuple[str, ...]]]  # [start, end) ms, tag -> values
FactsOf = Callable[[Window, Sequence[str]], pd.DataFrame]


class InfluxReader(RowReader):
    """What InfluxDB holds, read as any store is.

    Args:
        client: the connection.
        settings: table `[influx]`.
        clock: tells which tiers are past their retention.
        facts_of: facts that resolve unknown holders; None: those in InfluxDB.
    """

    def __init__(
        self,
        client: InfluxClient,
        settings: InfluxSettings,
        clock: Clock | None = None,
        facts_of: FactsOf | None = None,
    ) -> None:
        self._client = client
        self._settings = settings
        self._clock = clock or SystemClock()
        self._facts_of = facts_of
        self._engine = Engine()
        self._by_flux = False

    def close(self) -> None:
        """Release the engine; the connection is the caller's."""
        self._engine.close()

    def place(self, tier: str) -> Place:
        """Return where a tier lies."""
        return places(self._settings, self._client.flavour())[tier]

    @property
    def floors(self) -> dict[str, int]:
        """Tier -> instant (ms) before which its rows are past their retention."""
        now = to_ms(self._clock.now())
        return {tier: now - round(days * _DAY_MS) for tier, days in keep_days(self._settings).items()}

    # Rows ----------------------------------------------------------------------------------------------------------

    def answer(self, request: Request) -> pd.DataFrame:
        """Return the frame that a request asks for.

        Raises:
            TryLaterError: InfluxDB cannot be reached or is busy.
            ConfigurationError: token or bucket is wrong.
        """
        if any(not values for values in request.where.values()):
            return self._of_rows(request, _joined((), request.spec.tags, request.fields))
        tier = choose_tier(request, self.floors)
        if tier != RAW and not self._holders_unresolved(request):
            return self._in_chunks(request, tier, self._of_partials)
        if request.by is None:
            rows = self._rows(request, (ROWS, *request.fields), RAW)
            order = [(name, "ascending") for name in (*request.spec.key, "t")]
            return query.to_frame(rows.sort_by(order).drop_columns([ROWS]), request, RAW)
        if influxql.can_push_down(request) and not self._by_flux and not self._holders_unresolved(request):
            try:
                return self._pushed_down(request)
            except QueryRefusedError:
                self._by_flux = True
        return self._in_chunks(request, RAW, self._of_raw)

    def _holders_unresolved(self, request: Request) -> bool:
        """Whether unknown holders must be looked up in facts, row by row; only raw rows know their time."""
        if not request.names_holders or request.start < self.floors[RAW]:
            return False
        if self._by_flux:
            return True
        try:
            return any(t.num_rows for t in self._select(influxql.select_unresolved(request), (), (ROWS,), RAW))
        except QueryRefusedError:
            self._by_flux = True
            return True

    def _pushed_down(self, request: Request) -> pd.DataFrame:
        by = request.by or ()
        lows = {name: f"{name}__min" for name in request.fields}
        columns = (ROWS, *request.fields, *lows.values())
        rows = _joined(self._select(influxql.select_aggregate(request), by, columns, RAW), by, columns)
        values = {}
        for name in request.fields:
            column = rows.column(name)
            if request.aggregates[name] == "count":
                column = pc.fill_null(column, 0.0)
            elif request.aggregates[name].startswith("p"):
                column = pc.coalesce(column, rows.column(lows[name]))
            values[name] = column
        times = rows.column("t") if request.every else pa.array([request.start] * rows.num_rows, pa.int64())
        table = pa.table({"b": times, **{tag: rows.column(tag) for tag in by}, **values})
        order = [(name, "ascending") for name in (*by, "b")]
        return query.to_frame(table.sort_by(order), request, RAW)

    def _in_chunks(self, request: Request, tier: str, answer: Callable[[Request, str], pd.DataFrame]) -> pd.DataFrame:
        """Answer a request by parts of whole buckets, so that few rows are in memory at once."""
        every = request.every
        if every is None:
            return answer(request, tier)
        length = max(_CHUNK_MS[tier] // every, 1) * every
        first = request.start // every * every
        starts = range(first, request.end, length)
        frames = [
            answer(replace(request, start=max(start, request.start), end=min(start + length, request.end)), tier)
            for start in starts
        ]
        if len(frames) == 1:
            return frames[0]
        filled = [frame for frame in frames if len(frame)] or frames[:1]
        whole: pd.DataFrame = pd.concat(filled, ignore_index=True).sort_values(
            [*(request.by or ()), "time"], ignore_index=True
        )
        whole.attrs["tier"] = tier
        return whole

    def _of_raw(self, request: Request, tier: str) -> pd.DataFrame:
        # Who holds a row may only be known once facts were looked up: those of other holders are left out after that.
        where = {tag: values for tag, values in request.where.items() if tag in request.spec.key}
        rows = self._rows(replace(request, where=where), (ROWS, *request.fields), tier)
        return self._of_rows(request, rows)

    def _of_rows(self, request: Request, rows: pa.Table) -> pd.DataFrame:
        hot = pa.table(
            {
                "t": rows.column("t"),
                **{tag: rows.column(tag) for tag in request.spec.tags},
                "seq": pa.array(range(rows.num_rows), pa.int64()),
                **{name: rows.column(name) for name in request.fields},
            }
        )
        ranges = [(request.start, request.end)] if rows.num_rows else []
        return self.run(self._engine, request, Pieces((), ranges, {}), hot)

    def _of_partials(self, request: Request, tier: str) -> pd.DataFrame:
        fields = request.fields
        rows = self._rows(request, (ROWS, *(f"{name}{part}" for name in fields for part in _PARTIALS)), tier)
        columns: dict[str, pa.Array] = {"t": rows.column("t")}
        columns |= {tag: rows.column(tag) for tag in request.spec.tags}
        for name in fields:
            mean = rows.column(name)
            ones = pc.if_else(pc.is_valid(mean), 1.0, None)
            columns[name] = mean
            columns[f"{name}__min"] = pc.coalesce(rows.column(f"{name}__min"), mean)
            columns[f"{name}__max"] = pc.coalesce(rows.column(f"{name}__max"), mean)
            columns[f"{name}__count"] = pc.coalesce(rows.column(f"{name}__count"), ones)
        statement = query.aggregate_partials(request, "SELECT * FROM hot")
        return query.to_frame(self._engine.run(statement, hot=pa.table(columns)), request, tier)

    def _rows(self, request: Request, columns: Sequence[str], tier: str) -> pa.Table:
        """Return rows as columns `t`, all tags and `columns`."""
        asked = (request.start, request.end, request.where)
        return _joined(
            self._fetch(request.spec.name, request.spec.tags, columns, asked, tier=tier), request.spec.tags, columns
        )

    def _fetch(
        self,
        measurement: str,
        tags: Sequence[str],
        fields: Sequence[str],
        asked: _Asked,
        *,
        tier: str,
        text_fields: Sequence[str] = (),
    ) -> Iterator[pa.Table]:
        start, end, where = asked
        if not self._by_flux:
            statement = (
                f"SELECT {influxql.names((*fields, *text_fields))} FROM {influxql.name(measurement)}"  # noqa: S608
                f" WHERE {influxql.condition(start, end, where)} GROUP BY {influxql.names(tags)}"
            )
            try:
                yield from self._select(statement, tags, fields, tier, text_fields)
            except QueryRefusedError:
                self._by_flux = True
            else:
                return
        script = flux.select_rows(self.place(tier).bucket, measurement, (*fields, *text_fields), (start, end), where)
        yield from flux.read_answer(self._client.flux(script), tags, fields, text_fields)

    def _select(
        self, statement: str, tags: Sequence[str], fields: Sequence[str], tier: str, text_fields: Sequence[str] = ()
    ) -> Iterator[pa.Table]:
        place = self.place(tier)
        return answers.read_answer(
            self._client.select(statement, place.database, place.policy), tags, fields, text_fields
        )

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
        tick = timedelta(milliseconds=1)
        window = Window(at - lookback + tick, at + tick)
        request = make_request(measurement, window, fields=fields, where=where, by=None, every=None, aggregate="mean")
        if self._by_flux or any(not values for values in request.where.values()):
            return super().latest(measurement, at=at, lookback=lookback, fields=fields, where=where)
        columns = (ROWS, *request.fields)
        try:
            parts = self._select(influxql.select_latest(request), request.spec.tags, columns, RAW)
            rows = _joined(parts, request.spec.tags, columns)
        except QueryRefusedError:
            self._by_flux = True
            return super().latest(measurement, at=at, lookback=lookback, fields=fields, where=where)
        order = [(name, "ascending") for name in (*request.spec.key, "t")]
        frame = query.to_frame(rows.sort_by(order).drop_columns([ROWS]), request, RAW)
        # A slice that changed hands is two series there.
        return frame.drop_duplicates(list(request.spec.key), keep="last", ignore_index=True)

    def span(self, measurement: str) -> Window | None:
        """Return [oldest row, newest row + 1 ms), or None when there is no row."""
        name = measurement_of(measurement).name
        ends = {tier: found for tier in (RAW, MINUTE, HOUR) if (found := self._ends(name, tier)) is not None}
        if not ends:
            return None
        first, last = next(iter(ends.values()))  # of the finest tier that has rows
        for tier in (MINUTE, HOUR):  # a step that ends before them is made of rows that are gone
            if tier in ends and ends[tier][0] + STEP_MS[tier] <= first:
                first = ends[tier][0]
        return Window(from_ms(first), from_ms(last + 1))

    def count_before(self, measurement: str, tier: str, end_ms: int) -> int:
        """Return how many rows of a tier are older than an instant."""
        statement = (
            f"SELECT count({influxql.name(ROWS)}) AS {influxql.name(ROWS)} FROM {influxql.name(measurement)}"  # noqa: S608
            f" WHERE time < {end_ms}ms"
        )
        return sum(int(pc.sum(t.column(ROWS)).as_py()) for t in self._select(statement, (), (ROWS,), tier))

    def _ends(self, measurement: str, tier: str) -> tuple[int, int] | None:
        ends = []
        for function in ("first", "last"):
            statement = (
                f"SELECT {function}({influxql.name(ROWS)}) AS {influxql.name(ROWS)} FROM {influxql.name(measurement)}"  # noqa: S608
            )
            rows = [t for t in self._select(statement, (), (ROWS,), tier) if t.num_rows]
            if not rows:
                return None
            ends.append(int(rows[0].column("t")[0].as_py()))
        return ends[0], ends[1]

    # Texts ---------------------------------------------------------------------------------------------------------

    def facts(self, window: Window | None = None, *, names: Sequence[str] | None = None) -> pd.DataFrame:
        """Return facts valid at some time in `window`; see `StoreReader.facts`."""
        if self._facts_of is not None and window is not None and names is not None:
            return self._facts_of(window, names)
        return self.own_facts(window, names)

    def own_facts(self, window: Window | None = None, names: Sequence[str] | None = None) -> pd.DataFrame:
        """Return the facts that InfluxDB holds."""
        until = _LAST_MS if window is None else to_ms(window.end)
        rows = self._texts("fact", (_FIRST_MS, until), {} if names is None else {"name": tuple(names)})
        return texts.decode_facts(rows, window)

    def events(self, window: Window) -> pd.DataFrame:
        """Return events in `window`; see `StoreReader.events`."""
        return texts.decode_events(self._texts("event", (to_ms(window.start), to_ms(window.end)), {}))

    def rejects(self, window: Window) -> pd.DataFrame:
        """Return rejects in `window`; see `StoreReader.rejects`."""
        return texts.decode_rejects(self._texts("reject", (to_ms(window.start), to_ms(window.end)), {}))

    def _texts(self, kind: str, span: tuple[int, int], where: Mapping[str, tuple[str, ...]]) -> pa.Table:
        tags, numbers, words = texts.TAGS[kind], texts.NUMBERS[kind], texts.TEXTS[kind]
        if any(not values for values in where.values()):
            return _joined((), tags, numbers, words)
        return _joined(
            self._fetch(kind, tags, numbers, (*span, where), tier=HOUR, text_fields=words), tags, numbers, words
        )


def _joined(
    parts: Iterable[pa.Table], tags: Sequence[str], fields: Sequence[str], texts_: Sequence[str] = ()
) -> pa.Table:
    kinds = [("t", pa.int64()), *((tag, pa.string()) for tag in tags)]
    kinds += [*((name, pa.float64()) for name in fields), *((name, pa.string()) for name in texts_)]
    return pa.concat_tables([pa.schema(kinds).empty_table(), *parts])
