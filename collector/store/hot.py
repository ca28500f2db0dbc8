"""Unsealed rows: one Arrow IPC blob (LZ4) a commit and measurement, and a cache of decoded ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from collector.clock import EARLIEST, LATEST, to_ms
from collector.columns import number_column, numbers_of, text_column
from collector.errors import InputRejectedError
from collector.schema import MEASUREMENTS, Measurement

CACHE_BYTES = 64 * 2**20
_EARLIEST_MS, _LATEST_MS = (to_ms(instant) for instant in (EARLIEST, LATEST))
_DECLARED = {name: {f.name: f for f in spec.arrow_schema()} for name, spec in MEASUREMENTS.items()}
# Threads cost ten times the work itself on blobs of this size.
_WRITE = pa.ipc.IpcWriteOptions(use_threads=False)
_BETWEEN = text_column(["\x1f"])[0]
_READ = pa.ipc.IpcReadOptions(use_threads=False)
_LZ4 = pa.Codec("lz4")


@dataclass(frozen=True, slots=True)
class Blob:
    """What the catalogue knows of one hot row. Times in ms, inclusive; `distinct` is the number of distinct rows."""

    seq_min: int
    seq_max: int
    t_min: int
    t_max: int
    rows: int
    distinct: int

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """Its half-open range; twice where it holds a key and time twice."""
        return [(self.t_min, self.t_max + 1)] * (1 if self.distinct == self.rows else 2)


def measurement_of(name: str) -> Measurement:
    """Return the declared measurement.

    Raises:
        KeyError: there is none of that name.
    """
    if name not in MEASUREMENTS:
        raise KeyError(f"expected a measurement out of {', '.join(MEASUREMENTS)}, got {name!r}")
    return MEASUREMENTS[name]


@dataclass(frozen=True, slots=True)
class Arrival:
    """Rows in the schema, their first and last time in ms, how many distinct keys and times, whose they are."""

    table: pa.Table
    t_min: int
    t_max: int
    distinct: int
    clusters: frozenset[str]


class Arrivals:
    """Describes tables before they are kept; knows again what the table before had in common with this one.

    A collector's rows have the same columns and the same keys in nearly every cycle.
    """

    def __init__(self) -> None:
        self._schemas: dict[str, pa.Schema] = {}
        self._keys: dict[str, tuple[list[pa.ChunkedArray], int, frozenset[str]]] = {}

    def describe(self, measurement: str, table: pa.Table) -> Arrival:
        """Check rows against the schema, give each column its declared type, and describe them.

        Raises:
            KeyError: unknown measurement.
            InputRejectedError: a time is out of reason.
            ValueError: a column is unknown, a tag or the time is missing or null.
        """
        spec = measurement_of(measurement)
        known = self._schemas.get(measurement)
        if known is None or not known.equals(table.schema):
            table = cast(spec, table)
            self._schemas[measurement] = table.schema
        refuse_nulls(spec, table)
        first, last = check_times(measurement, table)
        keys = [table.column(tag) for tag in spec.key]
        columns, distinct, clusters = self._keys.get(measurement, ([], 0, frozenset()))
        if first != last or len(columns) != len(keys) or not all(map(pa.ChunkedArray.equals, keys, columns)):
            distinct = count_distinct(spec, table)
            clusters = frozenset(pc.unique(table.column("cluster")).to_pylist())
            if first == last:
                self._keys[measurement] = keys, distinct, clusters
        return Arrival(table, first, last, distinct, clusters)


def cast(spec: Measurement, table: pa.Table) -> pa.Table:
    """Give each column its declared type.

    Raises:
        ValueError: a column is unknown, a tag or the time is missing.
    """
    declared = _DECLARED[spec.name]
    present, known = table.column_names, declared.keys()
    unknown = [name for name in present if name not in known]
    missing = [name for name in ("time", *spec.tags) if name not in present]
    if unknown or missing:
        raise ValueError(f"{spec.name} rows: columns {missing} are missing, {unknown} are unknown to the schema")
    if table.schema.types != [declared[name].type for name in present]:
        table = table.cast(pa.schema([declared[name] for name in present]))
    return table


def refuse_nulls(spec: Measurement, table: pa.Table) -> None:
    """Check that each row has a time and all tags.

    Raises:
        ValueError: one has none.
    """
    for name in ("time", *spec.tags):
        if table.column(name).null_count:
            raise ValueError(f"{spec.name} rows: expected a value of {name!r} in every row, got null")


def check_times(measurement: str, table: pa.Table) -> tuple[int, int]:
    """Check that rows lie in [`EARLIEST`, `LATEST`); return the first and the last time in ms (0 without rows).

    Raises:
        InputRejectedError: some do not.
    """
    bounds = pc.min_max(table.column("time").cast(pa.int64()))
    first, last = bounds["min"].as_py(), bounds["max"].as_py()
    if first is not None and (first < _EARLIEST_MS or last >= _LATEST_MS):
        wrong = first if first < _EARLIEST_MS else last
        raise InputRejectedError(
            f"{measurement} rows: expected times from {EARLIEST:%Y} to {LATEST:%Y}, got {np.datetime64(wrong, 'ms')}; "
            "correct them, or the clock that stamped them"
        )
    return first or 0, last or 0


def count_distinct(spec: Measurement, table: pa.Table) -> int:
    """Count distinct (key, time)."""
    columns = [table.column(tag) for tag in spec.key]
    times = table.column("time").cast(pa.int64())
    bounds = pc.min_max(times)
    if bounds["min"] != bounds["max"]:
        columns.append(times.cast(pa.string()))
    joined = columns[0] if len(columns) == 1 else pc.binary_join_element_wise(*columns, _BETWEEN)
    return int(pc.count_distinct(joined).as_py())


def encode(table: pa.Table) -> bytes:
    """Return the rows as an Arrow IPC stream in one LZ4 frame (the schema is most of a small blob)."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_WRITE) as writer:
        writer.write_table(table)
    payload: bytes = _LZ4.compress(sink.getvalue(), asbytes=True)
    return payload


def decode(payload: bytes) -> pa.Table:
    """Read what `encode` wrote."""
    with (
        pa.CompressedInputStream(pa.BufferReader(payload), "lz4") as frame,
        pa.ipc.open_stream(frame, options=_READ) as reader,
    ):
        return reader.read_all()


def _size(table: pa.Table) -> int:
    return int(table.num_rows) * int(table.num_columns) * 16  # `nbytes` takes longer than decoding


class DecodedCache:
    """The most recently used decoded blobs, by `seq_min`, up to `CACHE_BYTES`."""

    def __init__(self) -> None:
        self._tables: OrderedDict[int, pa.Table] = OrderedDict()
        self._bytes = 0

    def get(self, seq: int) -> pa.Table | None:
        """Return the blob's rows, if they are here."""
        table = self._tables.get(seq)
        if table is not None:
            self._tables.move_to_end(seq)
        return table

    def put(self, seq: int, table: pa.Table) -> None:
        """Remember the blob's rows; forget the ones unused for longest."""
        if seq in self._tables:
            return
        self._tables[seq] = table
        self._bytes += _size(table)
        while self._bytes > CACHE_BYTES and len(self._tables) > 1:
            _, gone = self._tables.popitem(last=False)
            self._bytes -= _size(gone)


def _pick(table: pa.Table, asked: Sequence[str]) -> pa.Table:
    present = set(table.column_names)
    return table.select([name for name in asked if name in present])


def gather(spec: Measurement, fields: Sequence[str], tables: Sequence[pa.Table], seqs: Sequence[int]) -> pa.Table:
    """Lay blobs under one another as columns `t` (int64 ms), tags, `seq` and `fields` (null for NaN and absent)."""
    asked = ("time", *spec.tags, *fields)
    parts = [_pick(table, asked) for table in tables]
    if parts:
        rows = pa.concat_tables(parts, promote_options="default").combine_chunks()
        numbers = np.concatenate(
            [np.arange(seq, seq + table.num_rows, dtype=np.int64) for seq, table in zip(seqs, tables, strict=True)]
        )
    else:
        rows = spec.arrow_schema().empty_table()
        numbers = np.empty(0, dtype=np.int64)
    columns: dict[str, pa.Array] = {"t": rows.column("time").cast(pa.int64())}
    columns |= {tag: rows.column(tag) for tag in spec.tags}
    columns["seq"] = number_column(numbers)
    present = set(rows.column_names)
    for name in fields:
        if name in present:
            values = numbers_of(rows.column(name))
            columns[name] = number_column(values, absent=np.isnan(values))
        else:
            columns[name] = pa.nulls(rows.num_rows, pa.float64())
    return pa.table(columns)
