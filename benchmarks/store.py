"""Store: commit, size at rest, a week's query, and what readers and crashes see, beside a DuckDB file.

A fleet of 1,000 cards and 3,000 slices (benchmarks/store_data.py). The DuckDB peer is one file with a table a
measurement that gets the same Arrow tables in one transaction a cycle. CPU seconds are those of the process, of all
threads together. Nothing is sealed while commits are timed; what sealing costs stands beside it.

The week is written by the hour, as an import or a collector with a long cycle would, under a virtual clock: half a
percent of its rows come an hour late, another half are sent a second time with the next hour's. It is maintained as the
store's own thread would, and read as that leaves it. Its answers are checked against numpy over all rows in memory.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.figures import Figure, calibration_seconds, figure
from benchmarks.store_data import CARDS, GPU_FIELDS, SLICE_FIELDS, START_MS, Fleet
from benchmarks.store_kill import kills_elsewhere
from benchmarks.store_readers import odd_reads
from collector.batch import Batch
from collector.clock import VirtualClock, from_ms
from collector.settings import StoreSettings
from collector.store import EmbeddedStore
from collector.window import Window

CYCLES = 240  # an hour of 15-s cycles, 70,000 values each
WEEK_HOURS = 168
KILLS = 1000
ASKED = ("busy_ratio", "sm_active_ratio", "power_watts")
HOUR = timedelta(hours=1)
_CALIBRATED_SECONDS = 0.1


def run() -> list[Figure]:
    """Return the figures; the week takes a few minutes, and so do the kills."""
    with _folder() as folder:
        figures = commits(folder)
    with _folder() as folder:
        figures += week(folder)
    figures.append(figure("rows lost, doubled or torn beside a sealing writer", odd_reads(), "reads", at_most=0))
    lost, acknowledged = kills_elsewhere(KILLS)
    figures.append(figure(f"acknowledged batches lost by {KILLS} kill -9", lost, "batches", at_most=0))
    figures.append(figure("batches acknowledged in between", acknowledged, "batches"))
    return figures


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="trimtab-store-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _cpu(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


# Commits and sizes -------------------------------------------------------------------------------------------------


def commits(folder: Path) -> list[Figure]:
    """Commit the same cycles to the store and to a DuckDB file; then seal, and look at the files."""
    fleet = Fleet(seed=1, interval_seconds=15)
    cycles = [fleet.cycle() for _ in range(CYCLES)]
    # Sealed by hand below, so that its thread does not count into a commit.
    store = EmbeddedStore(StoreSettings(path=folder / "store", seal_rows=10**9, seal_seconds=10**7))
    ours = [_cpu(lambda c=cycle: store.write(Batch(rows=dict(c)))) for cycle in cycles]
    seal = _cpu(store.seal) + _cpu(store.merge)
    store.close()
    peer = duckdb.connect(str(folder / "peer.duckdb"))
    for name, table in cycles[0].items():
        peer.register("rows", table)
        peer.execute(f"CREATE TABLE {name} AS SELECT * FROM rows LIMIT 0")  # noqa: S608 - our own name
        peer.unregister("rows")

    def commit(cycle: dict[str, pa.Table]) -> None:
        peer.execute("BEGIN")
        for name, table in cycle.items():
            peer.register("rows", table)
            peer.execute(f"INSERT INTO {name} SELECT * FROM rows")  # noqa: S608 - our own name
            peer.unregister("rows")
        peer.execute("COMMIT")

    theirs = [_cpu(lambda c=cycle: commit(c)) for cycle in cycles]
    checkpoint = _cpu(lambda: peer.execute("CHECKPOINT"))
    peer.close()
    median = figure(
        "commit of 70,000 values, median",
        1000 * float(np.median(ours)),
        "CPU ms",
        peer=1000 * float(np.median(theirs)),
        peer_name="DuckDB file",
    )
    return [
        median,
        figure("commit, ours / DuckDB file", median.ratio, "ratio", at_most=0.5),
        figure(
            "commit and seal (DuckDB: checkpoint), mean",
            1000 * (sum(ours) + seal) / CYCLES,
            "CPU ms",
            peer=1000 * (sum(theirs) + checkpoint) / CYCLES,
            peer_name="DuckDB file",
        ),
        *sizes(folder, cycles),
    ]


def sizes(folder: Path, cycles: list[dict[str, pa.Table]]) -> list[Figure]:
    """Bytes a value of the sealed raw files, beside the same rows as float64; and whether they are the same bits."""
    found = []
    for name, fields, bound in (("gpu", GPU_FIELDS, 1.1), ("slice", SLICE_FIELDS, 1.3)):
        files = sorted((folder / "store" / "sealed").glob(f"{name}-raw-*.parquet"))
        values = sum(pq.ParquetFile(file).metadata.num_rows for file in files) * len(fields)
        rows = pa.concat_tables([cycle[name] for cycle in cycles])
        order = [(tag, "ascending") for tag in ("cluster", "node", "gpu", "slice") if tag in rows.column_names]
        plain = rows.sort_by([*order, ("time", "ascending")])
        tags = [f.name for f in plain.schema if f.type == pa.string()]
        beside = folder / f"{name}-float64.parquet"
        pq.write_table(
            plain,
            beside,
            compression="zstd",
            compression_level=3,
            use_dictionary=tags,
            column_encoding=dict.fromkeys(fields, "BYTE_STREAM_SPLIT"),
        )
        found.append(
            figure(
                f"sealed {name} rows",
                sum(file.stat().st_size for file in files) / values,
                "bytes a value",
                peer=beside.stat().st_size / values,
                peer_name="float64, byte stream split, zstd-3",
                at_most=bound,
            )
        )
        found.append(figure(f"sealed {name} values that changed", _changed(folder, name, plain), "values", at_most=0))
    return found


def _changed(folder: Path, name: str, written: pa.Table) -> int:
    store = EmbeddedStore(StoreSettings(path=folder / "store"), read_only=True)
    window = Window(from_ms(START_MS), from_ms(START_MS) + timedelta(days=1))
    fields = GPU_FIELDS if name == "gpu" else SLICE_FIELDS
    frame = store.read(name, window, fields=fields)
    store.close()
    changed = abs(len(frame) - written.num_rows)
    for field in fields:
        here = frame[field].to_numpy()
        there = written.column(field).to_numpy()
        same = (here.view(np.int64) == there.view(np.int64)) | (np.isnan(here) & np.isnan(there))
        changed += int((~same).sum())
    return changed


# A week ------------------------------------------------------------------------------------------------------------


def week(folder: Path) -> list[Figure]:
    """Hourly mean and p95 of 1,000 cards over 7 days of 1-min rows, 1 % of them late or sent twice."""
    store, truth, seconds = load_week(folder)
    window = Window(from_ms(START_MS), from_ms(START_MS) + WEEK_HOURS * HOUR)
    slower = max(calibration_seconds() / _CALIBRATED_SECONDS, 1.0)
    answers: dict[str, pd.DataFrame] = {}

    def ask() -> None:
        for aggregate in ("mean", "p95"):
            answers[aggregate] = store.read("gpu", window, fields=ASKED, every=HOUR, aggregate=aggregate)

    asked = min(_cpu(ask) for _ in range(3))
    wrong = sum(_wrong(answers[aggregate], truth, aggregate) for aggregate in answers)
    used = sum({f.stat().st_ino: f.stat().st_size for f in (folder / "sealed").iterdir()}.values())
    store.close()
    return [
        figure("hourly mean and p95, 1,000 cards x 7 days, 3 fields", asked / slower, "CPU s", at_most=1.6),
        figure("hours that are wrong", wrong, "values", at_most=0),
        figure("writing and maintaining that week", seconds / slower, "CPU s"),
        figure(
            "that week at rest, with its tiers", used / (WEEK_HOURS * 60 * CARDS * len(GPU_FIELDS)), "bytes a value"
        ),
    ]


def load_week(folder: Path) -> tuple[EmbeddedStore, dict[str, np.ndarray], float]:
    """Return the loaded store, field -> values as (minute, card), and CPU seconds of writing and maintaining."""
    fleet, rng = Fleet(seed=1, interval_seconds=60), np.random.default_rng(5)
    clock = VirtualClock(from_ms(START_MS))
    store = EmbeddedStore(StoreSettings(path=folder), clock=clock)
    truth: dict[str, list[np.ndarray]] = {field: [] for field in ASKED}
    again: list[pa.Table] = []
    seconds = 0.0
    for _ in range(WEEK_HOURS):
        rows = pa.concat_tables([fleet.cycle()["gpu"] for _ in range(60)])
        for field in ASKED:
            truth[field].append(rows.column(field).to_numpy())
        late = rng.random(rows.num_rows) < 0.005
        twice = ~late & (rng.random(rows.num_rows) < 0.005)
        batch = Batch(rows={"gpu": pa.concat_tables([rows.filter(pa.array(~late)), *again]).combine_chunks()})
        again = [rows.filter(pa.array(late)), rows.filter(pa.array(twice))]
        clock.advance(3600)
        seconds += _cpu(lambda b=batch: store.write(b)) + _cpu(store.maintain)
    store.write(Batch(rows={"gpu": pa.concat_tables(again).combine_chunks()}))
    return store, {f: np.concatenate(v).reshape(-1, CARDS) for f, v in truth.items()}, seconds


def _wrong(frame: pd.DataFrame, truth: dict[str, np.ndarray], aggregate: str) -> int:
    """Count values that are not what numpy says: means to 12 digits, percentiles (nearest rank) exactly."""
    cards = frame["gpu"].drop_duplicates().tolist()
    order = np.argsort([int(gpu.rsplit("-", 1)[1]) for gpu in cards])
    wrong = abs(len(frame) - WEEK_HOURS * CARDS)
    for field in ASKED:
        hours = truth[field].reshape(WEEK_HOURS, 60, CARDS)
        expected = hours.mean(axis=1) if aggregate == "mean" else np.sort(hours, axis=1)[:, 56, :]  # ceil(0.95 x 60)
        found = frame[field].to_numpy().reshape(CARDS, WEEK_HOURS)[order].T
        close = np.isclose(found, expected, rtol=1e-12, atol=0) if aggregate == "mean" else found == expected
        wrong += int((~close).sum())
    return wrong
