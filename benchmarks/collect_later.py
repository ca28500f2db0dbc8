"""What collecting leaves for later: sealing here, writing the head's block in Prometheus, each per million samples.

A measured minute reaches neither. Both are brought about once and counted in the proportion that service has: a seal is
of as many rows as the store seals at once, and a block of two hours at Prometheus' usual interval of 15 s.
"""

from __future__ import annotations

import itertools
import time
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import requests

from collector.batch import Batch
from collector.settings import StoreSettings
from collector.store import EmbeddedStore
from collector.store.outbox import Outbox
from tests.servers import PrometheusServer

_BLOCK_SAMPLES = 480  # of a series: two hours at 15 s
_ALL_ROWS = 10**7


def sealing_seconds(collected: Path, folder: Path, interval: float, lines_a_gpu: int) -> float:
    """Return CPU seconds of sealing per million samples.

    The cycles that were collected are kept again and again, as of later times, until there are as many rows as are
    sealed at once; the second time is measured.

    Args:
        collected: folder of the store that was collected into.
        folder: for another one.
        interval: seconds between cycles.
        lines_a_gpu: samples that become one row of a card, with its slice.
    """
    batches = _cycles(collected)
    settings = StoreSettings(path=folder)
    store = EmbeddedStore(settings)
    turns = itertools.count()
    seconds, kept = 0.0, 0
    for _ in range(2):
        kept = 0
        while kept + batches[0].rows["gpu"].num_rows < settings.seal_rows:
            turn = next(turns)
            batch = _at(batches[turn % len(batches)], timedelta(seconds=interval * turn))
            store.write(batch)
            kept += batch.rows["gpu"].num_rows
        seconds = time.process_time()
        store.seal()
        seconds = time.process_time() - seconds
    store.close()
    return seconds / (kept * lines_a_gpu) * 1e6


def _cycles(collected: Path) -> list[Batch]:
    """Return the rows of a store, a batch a cycle; the first one lacks what a rate is made of."""
    outbox = Outbox(StoreSettings(path=collected), "benchmark")
    shipment = outbox.rows_after(0, _ALL_ROWS)
    outbox.close()
    if shipment is None:
        raise AssertionError("nothing was collected")
    rows = {name: shipment.rows[name].drop_columns(["seq"]) for name in ("gpu", "slice")}
    times = sorted(set(rows["gpu"].column("time").to_pylist()))[1:]
    return [Batch(rows={name: _of(table, at) for name, table in rows.items()}) for at in times]


def _of(table: pa.Table, at: object) -> pa.Table:
    rows = table.filter(pc.equal(table.column("time"), pa.scalar(at, table.schema.field("time").type)))
    columns = {name: rows.column(name) for name in rows.column_names if rows.column(name).null_count < rows.num_rows}
    # As a collector writes them: absent is NaN.
    return pa.table(
        {n: pc.fill_null(c, float("nan")) if pa.types.is_floating(c.type) else c for n, c in columns.items()}
    ).combine_chunks()


def _at(batch: Batch, later: timedelta) -> Batch:
    """Return a batch as of a day before and so much later: no row meets another's time."""
    moved = {}
    for name, table in batch.rows.items():
        first = table.column("time")[0].as_py()
        start = first.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)
        times = pa.array([start + later] * table.num_rows, table.schema.field("time").type)
        moved[name] = table.set_column(0, "time", times)
    return Batch(rows=moved)


def block_seconds(server: PrometheusServer) -> float:
    """Return the CPU seconds of writing the head as a block, and of what else is done meanwhile."""
    before = server.process.cpu_seconds()
    requests.post(f"{server.url}/api/v1/admin/tsdb/snapshot", timeout=600).raise_for_status()
    return server.process.cpu_seconds() - before


def in_service(spent: tuple[float, float], samples: tuple[float, float], series: int) -> float:
    """Return CPU seconds per million samples of a block of two hours, from those of two smaller ones.

    A block costs so much a series and so much a sample.
    """
    a_sample = max(0.0, (spent[1] - spent[0]) / (samples[1] - samples[0]))
    a_series = max(0.0, spent[1] - a_sample * samples[1]) / series
    return (a_sample + a_series / _BLOCK_SAMPLES) * 1e6
