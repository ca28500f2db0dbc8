"""Rows of the past, from a source that has one, into a store: only what the store does not hold yet.

The collector's own rows count more than what another server remembers: a value that is there is never replaced, and a
row keeps the owner that it was first written with. So a backfill may be repeated, and goes on where it was stopped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from collector.batch import Batch
from collector.protocols import Source, Store
from collector.schema import MEASUREMENTS, Measurement
from collector.window import Window

_BATCHES_A_WRITE = 60
_ROWS_A_WRITE = 50_000
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(slots=True)
class FillReport:
    """What a backfill did: rows that had something new, and up to which instant (None: the source has no past)."""

    rows: int = 0
    until: datetime | None = None


def fill(
    source: Source,
    store: Store,
    window: Window,
    stop: threading.Event,
    progress: Callable[[FillReport], None] = lambda _: None,
) -> FillReport:
    """Write what the source knows of the window and the store does not; some cycles are in memory at a time.

    Args:
        source: where rows come from.
        store: where they go.
        window: which past.
        stop: ends it between two cycles; what was read is written.
        progress: told after each write.

    Raises:
        UnreachableError: the source or the store cannot be reached; what was read before is written.
    """
    report = FillReport()
    waiting: list[Batch] = []
    try:
        for batch in source.backfill(window.start, window.end):
            waiting.append(batch)
            if len(waiting) >= _BATCHES_A_WRITE or sum(one.row_count for one in waiting) >= _ROWS_A_WRITE:
                _write(store, waiting, report)
                progress(report)
            if stop.is_set():
                break
    finally:
        _write(store, waiting, report)
    progress(report)
    return report


def _write(store: Store, waiting: list[Batch], report: FillReport) -> None:
    """Write batches as one, and empty the list."""
    if not waiting:
        return
    batch = Batch(
        facts=[fact for one in waiting for fact in one.facts],
        events=[event for one in waiting for event in one.events],
        rejects=[reject for one in waiting for reject in one.rejects],
    )
    for name in MEASUREMENTS:
        tables = [one.rows[name] for one in waiting if name in one.rows and one.rows[name].num_rows]
        if not tables:
            continue
        table = _joined(tables)
        ends = pc.min_max(table.column("time")).as_py()
        report.until = max(ends["max"], report.until or ends["max"])
        known = store.read(name, Window(ends["min"], ends["max"] + _MILLISECOND))
        table = absent_only(table, known, MEASUREMENTS[name])
        if table.num_rows:
            batch.rows[name] = table
            report.rows += table.num_rows
    waiting.clear()
    store.write(batch)


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Put tables with different fields together; a field that one lacks is absent (NaN) in its rows."""
    table = pa.concat_tables(tables, promote_options="default")
    for place, column in enumerate(table.schema):
        if pa.types.is_floating(column.type) and table.column(place).null_count:
            filled = pc.fill_null(table.column(place), float("nan"))
            table = table.set_column(place, pa.field(column.name, column.type), filled)
    return table


def absent_only(table: pa.Table, known: pd.DataFrame, spec: Measurement) -> pa.Table:
    """Return the rows without the values that are known already; rows without any value left are left out.

    Args:
        table: new rows of a measurement.
        known: its rows in the store, each key and time once.
        spec: the measurement.
    """
    if known.empty:
        return table
    place = _index(known, spec).get_indexer(_index(table.to_pandas(), spec))
    there = place >= 0
    if not there.any():
        return table
    new = ~there
    columns = {}
    for name in table.column_names:
        values = table.column(name).to_numpy(zero_copy_only=False)
        if name in spec.field_names:
            values = values.astype(np.float64)
            if name in known:
                values[there & ~np.isnan(known[name].to_numpy(np.float64)[place])] = np.nan
            new |= ~np.isnan(values)
        elif name in spec.extra_tags:
            values = np.where(there, known[name].to_numpy(object)[place], values)
        columns[name] = pa.array(values, type=table.schema.field(name).type)
    return pa.table(columns, schema=table.schema).filter(pa.array(new))


def _index(rows: pd.DataFrame, spec: Measurement) -> pd.MultiIndex:
    times = rows["time"].astype("datetime64[ms, UTC]").astype("int64")
    return pd.MultiIndex.from_arrays([times, *(rows[tag].astype(str) for tag in spec.key)])
