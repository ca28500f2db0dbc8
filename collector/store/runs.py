"""Percentiles by key and bucket out of sealed files, four times as fast as a hash aggregate.

Sealed files are sorted by key, then time: the rows of a key's bucket lie next to each other. Where a bucket has all its
rows in one file, its percentiles are those of a run of values, which numpy partitions in place: no hash table, no text,
and integers until the end. Buckets that several files or unsealed rows touch are left to DuckDB, which merges them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from collector.store import query
from collector.store.engine import Engine
from collector.store.request import PERCENTILE, RAW, Pieces, Range, Request, Segment, contested

WORTH_ROWS = 200_000  # below, reading the tags costs more than it saves
_MOST_ROWS = 6_000_000  # of one file in memory

Ints = NDArray[np.int64]


def fits(request: Request, pieces: Pieces) -> bool:
    """Return whether runs answer the request, and there are enough rows for it to be worth it."""
    return (
        request.by == request.spec.key
        and request.every is not None
        and not request.where
        and bool(request.fields)
        and all(PERCENTILE.match(aggregate) for aggregate in request.aggregates.values())
        and sum(s.rows for s in pieces.of(RAW) if s.rows <= _MOST_ROWS) >= WORTH_ROWS
    )


def percentiles(engine: Engine, request: Request, pieces: Pieces, hot: pa.Table) -> pa.Table:
    """Return the answer as `query.select_aggregate` would give it: `b`, key, fields, sorted by key then `b`.

    Raises:
        OSError, pyarrow.ArrowException, EngineError: a sealed file cannot be read.
    """
    segments = [s for s in pieces.of(RAW) if s.t_max >= request.start and s.t_min < request.end]
    alone = [s for s in segments if s.rows <= _MOST_ROWS]
    shared = _shared_buckets(request, segments, alone, pieces.hot)
    parts = [_runs(request, segment, shared) for segment in alone]
    if shared:
        parts.append(engine.run(query.aggregate_within(request, pieces, shared), hot=hot))
    columns = ", ".join(f'"{name}"' for name in ("b", *request.spec.key, *request.fields))
    order = ", ".join(f'"{name}"' for name in (*request.spec.key, "b"))
    wanted = parts[0].schema
    together = pa.concat_tables([part.select(wanted.names).cast(wanted) for part in parts])
    return engine.run(f"SELECT {columns} FROM parts ORDER BY {order}", parts=together)  # noqa: S608 - schema's names


def _shared_buckets(
    request: Request, segments: Sequence[Segment], alone: Iterable[Segment], hot: Sequence[Range]
) -> list[Range]:
    """Return the buckets that more than one piece touches, and all of those that are not `alone`; merged, in order."""
    every = request.every or 1

    def buckets(start: int, end: int) -> Range:
        return start // every * every, -(-end // every) * every

    chosen = {segment.id for segment in alone}
    once = [(s.t_min, s.t_max + 1) for s in segments]
    again = [(s.t_min, s.t_max + 1) for s in segments if s.id not in chosen]  # twice, hence shared as a whole
    found = contested(buckets(start, end) for start, end in (*once, *again, *hot, *hot))
    return [(a, b) for a, b in found if a < request.end and b > request.start]


def _runs(request: Request, segment: Segment, shared: Sequence[Range]) -> pa.Table:
    """Return the percentiles of a file's buckets that are not `shared`."""
    import pyarrow.parquet as pq  # noqa: PLC0415  who only writes rows does without it

    spec, every = request.spec, request.every or 1
    present = [name for name in request.fields if name in segment.exponents]
    file = pq.ParquetFile(segment.path, read_dictionary=list(spec.key))
    rows = file.read(columns=["time", *spec.key, *present], use_threads=False)
    times = rows.column("time").cast(pa.int64()).to_numpy()
    wanted = (times >= request.start) & (times < request.end)
    for start, end in shared:
        wanted &= (times < start) | (times >= end)
    if not wanted.all():
        rows, times = rows.filter(pa.array(wanted)), times[wanted]
    bucket = times // every
    first = np.ones(len(times), dtype=bool)
    first[1:] = bucket[1:] != bucket[:-1]
    tags: dict[str, pa.Array] = {}
    for tag in spec.key:
        coded = rows.column(tag).unify_dictionaries().combine_chunks()
        tags[tag] = coded.chunk(0) if isinstance(coded, pa.ChunkedArray) else coded
        codes = tags[tag].indices.to_numpy()
        first[1:] |= codes[1:] != codes[:-1]
    starts = np.flatnonzero(first)
    columns: dict[str, pa.Array] = {"b": pa.array(bucket[starts] * every)}
    columns |= {tag: values.take(pa.array(starts)).cast(pa.string()) for tag, values in tags.items()}
    for name in request.fields:
        found = np.full(len(starts), np.nan)
        if name in present:
            column = rows.column(name).combine_chunks()
            lengths = np.diff(np.append(starts, len(times)))
            if column.null_count:
                run = np.repeat(np.arange(len(starts)), lengths)
                lengths = np.bincount(run[column.is_valid().to_numpy(zero_copy_only=False)], minlength=len(starts))
                column = column.drop_null()
            ranked = _nearest_rank(column.to_numpy(), lengths, _share(request.aggregates[name]), found)
            exponent = segment.exponents[name]
            found = ranked / 10.0**exponent if exponent else ranked
        columns[name] = pa.array(found, from_pandas=True)
    return pa.table(columns)


def _nearest_rank(
    values: NDArray[np.generic], lengths: Ints, share: Fraction, out: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Fill `out` with the value of rank ceil(share x n) of each run of `values`; runs without any stay NaN."""
    starts = np.cumsum(lengths) - lengths
    for length in np.unique(lengths[lengths > 0]).tolist():
        rank = max(-(-length * share.numerator // share.denominator), 1) - 1
        runs = np.flatnonzero(lengths == length)
        if len(runs) == len(lengths):
            block = values.reshape(-1, length)
        else:
            block = values[starts[runs][:, None] + np.arange(length)]
        out[runs] = np.partition(block, rank, axis=1)[:, rank]
    return out


def _share(percentile: str) -> Fraction:
    return Fraction(percentile.removeprefix("p")) / 100
