"""The read half of a store over frames in memory: for files of rows, and for tests."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
import pyarrow as pa

from collector.batch import Batch
from collector.clock import from_ms
from collector.errors import InputRejectedError
from collector.schema import UNKNOWN
from collector.store import catalogue, spans
from collector.store.engine import Engine
from collector.store.hot import Blob, check_times, count_distinct, gather, measurement_of
from collector.store.reading import RowReader
from collector.store.request import Pieces, Request
from collector.window import Window

_log = logging.getLogger(__name__)


class FrameStore(RowReader):
    """Rows, facts, events and rejects that somebody else holds in memory, read as a store is read.

    Args:
        frames: measurement -> rows with `time` (aware, ISO text, or whole ms since the epoch; naive is UTC), the tags
            of its key, and any of its other tags and fields. Later rows are later writes.
        facts: spans, in the columns of `StoreReader.facts`.
        events: in the columns of `StoreReader.events`.
        rejects: in the columns of `StoreReader.rejects`.

    Raises:
        InputRejectedError: a column that is needed is missing or cannot be read.
    """

    def __init__(
        self,
        frames: Mapping[str, pd.DataFrame],
        facts: pd.DataFrame | None = None,
        events: pd.DataFrame | None = None,
        rejects: pd.DataFrame | None = None,
    ) -> None:
        self._rows = {name: rows_of_frame(name, frame) for name, frame in frames.items()}
        self._blobs = {name: _describe(name, table) for name, table in self._rows.items() if table.num_rows}
        self._facts = _text_frame("fact", facts, spans.FACT_COLUMNS, ("from", "to"))
        self._events = _text_frame("event", events, spans.EVENT_COLUMNS, ("time",))
        self._rejects = _text_frame("reject", rejects, spans.REJECT_COLUMNS, ("time",))
        self._engine = Engine()

    @classmethod
    def of_batches(cls, batches: Iterable[Batch]) -> FrameStore:
        """Keep what sources handed over, in order; facts become spans as they do in any store."""
        tables: dict[str, list[pa.Table]] = {}
        db = sqlite3.connect(":memory:", isolation_level=None)
        catalogue.create(db)
        writer = spans.FactWriter(db)
        for batch in batches:
            for name, table in batch.rows.items():
                tables.setdefault(name, []).append(table)
            writer.apply(batch.facts)
            spans.write_events(db, batch.events)
            spans.write_rejects(db, batch.rejects)
        frames = {name: pa.concat_tables(t, promote_options="default").to_pandas() for name, t in tables.items()}
        store = cls(
            frames,
            spans.read_facts(db, None, None),
            spans.read_events(db, None),
            spans.read_rejects(db, None),
        )
        db.close()
        return store

    def answer(self, request: Request) -> pd.DataFrame:
        """Return the frame that a request asks for."""
        name = request.spec.name
        tables = [self._rows[name]] if name in self._blobs else []
        hot = gather(request.spec, request.fields, tables, [1] * len(tables))
        pieces = Pieces((), self._blobs[name].ranges if tables else (), {})
        return self.run(self._engine, request, pieces, hot)

    def facts(self, window: Window | None = None, *, names: Sequence[str] | None = None) -> pd.DataFrame:
        """Return facts valid at some time in `window`; see `StoreReader.facts`."""
        chosen = pd.Series(data=True, index=self._facts.index)
        if window is not None:
            still = self._facts["to"].isna() | (self._facts["to"] > window.start)
            chosen &= (self._facts["from"] < window.end) & still
        if names is not None:
            chosen &= self._facts["name"].isin(list(names))
        return self._facts[chosen].reset_index(drop=True)

    def events(self, window: Window) -> pd.DataFrame:
        """Return events in `window`; see `StoreReader.events`."""
        return _within(self._events, window)

    def rejects(self, window: Window) -> pd.DataFrame:
        """Return rejects in `window`; see `StoreReader.rejects`."""
        return _within(self._rejects, window)

    def span(self, measurement: str) -> Window | None:
        """Return [oldest row, newest row + 1 ms), or None when there is no row."""
        blob = self._blobs.get(measurement_of(measurement).name)
        return None if blob is None else Window(from_ms(blob.t_min), from_ms(blob.t_max + 1))

    def close(self) -> None:
        """Release the engine."""
        self._engine.close()


def rows_of_frame(measurement: str, frame: pd.DataFrame) -> pa.Table:
    """Return a frame's rows in the schema. Absent fields are absent, absent other tags are `unknown`.

    Raises:
        InputRejectedError: `time` or a tag of the key is missing or null, a time is out of reason, or a value cannot be
            read.
        KeyError: unknown measurement.
    """
    spec = measurement_of(measurement)
    missing = [name for name in ("time", *spec.key) if name not in frame.columns or frame[name].isna().any()]
    if missing:
        raise InputRejectedError(
            f"{measurement} rows: expected a value of {', '.join(missing)} in every row; add the column, or fill it"
        )
    unknown = [str(name) for name in frame.columns if name not in ("time", *spec.tags, *spec.field_names)]
    if unknown:
        _log.warning("%s rows: columns that the schema does not know are left out: %s", measurement, ", ".join(unknown))
    declared = spec.arrow_schema()
    columns: dict[str, pa.Array] = {
        "time": pa.array(_instants(measurement, frame["time"]), declared.field("time").type)
    }
    for tag in spec.tags:
        texts = frame[tag].fillna(UNKNOWN).astype("str") if tag in frame.columns else [UNKNOWN] * len(frame)
        columns[tag] = pa.array(texts, pa.string())
    for name in spec.field_names:
        if name in frame.columns:
            try:
                columns[name] = pa.array(frame[name].to_numpy(dtype=np.float64, na_value=np.nan))
            except (TypeError, ValueError) as error:
                raise InputRejectedError(f"{measurement} rows: column {name!r} is not a number: {error}") from None
    table = pa.table(columns)
    check_times(measurement, table)
    return table


def _instants(name: str, times: pd.Series) -> pd.Series:
    """Return aware UTC instants in ms; empty text is NaT."""
    if times.dtype.kind in "iuf":
        return pd.to_datetime(times, unit="ms", utc=True).astype("datetime64[ms, UTC]")
    try:
        if times.dtype.kind == "M":
            stamps = pd.to_datetime(times, utc=True)
        else:
            stamps = pd.to_datetime(times.replace("", None), utc=True, format="ISO8601")
    except (TypeError, ValueError) as error:
        raise InputRejectedError(
            f"{name} rows: column {times.name!r} is not ISO 8601: {str(error).splitlines()[0]}"
        ) from None
    return stamps.astype("datetime64[ms, UTC]")


def _describe(measurement: str, table: pa.Table) -> Blob:
    times = table.column("time").cast(pa.int64()).to_numpy()
    distinct = count_distinct(measurement_of(measurement), table)
    return Blob(1, table.num_rows, int(times.min()), int(times.max()), table.num_rows, distinct)


def _text_frame(name: str, frame: pd.DataFrame | None, columns: Sequence[str], times: Sequence[str]) -> pd.DataFrame:
    if frame is None:
        return spans.text_frame([], columns, times)
    missing = [column for column in columns if column not in frame.columns]
    if missing:
        raise InputRejectedError(
            f"{name} rows: expected the columns {', '.join(columns)}; {', '.join(missing)} missing"
        )
    kept = frame[list(columns)].copy()
    for column in columns:
        if column in times:
            kept[column] = _instants(name, kept[column])
        elif column == "count":
            kept[column] = kept[column].astype("int64")
        else:
            kept[column] = kept[column].fillna("").astype("str")
    order = [c for c in columns if c not in ("severity", "count", "value", "to", "provenance")]
    return kept.sort_values(order, kind="stable", ignore_index=True)


def _within(frame: pd.DataFrame, window: Window) -> pd.DataFrame:
    return frame[(frame["time"] >= window.start) & (frame["time"] < window.end)].reset_index(drop=True)
