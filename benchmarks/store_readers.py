"""A reader beside a writer that commits and seals as fast as it can: what it sees is whole, or counted."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from datetime import timedelta
from multiprocessing.synchronize import Event as Flag
from pathlib import Path

import numpy as np

from collector.batch import Batch, make_rows
from collector.clock import from_ms
from collector.settings import StoreSettings
from collector.store import EmbeddedStore
from collector.window import Window

START_MS = 1_767_571_200_000
CARDS, SLICES = 100, 300
SECONDS = 20.0
MINUTE = timedelta(minutes=1)


def batch_of(step: int) -> Batch:
    """Rows of two measurements whose every value is the number of their cycle."""
    rows = {}
    for name, count, field in (("gpu", CARDS, "power_watts"), ("slice", SLICES, "queue_depth_count")):
        tags = {"cluster": ["bench"] * count, "node": ["n"] * count, "gpu": [f"g{i:03d}" for i in range(count)]}
        if name == "slice":
            tags |= {"slice": tags["gpu"], "tenant": ["t"] * count, "workload": ["w"] * count}
        times = np.full(count, START_MS + step * 60_000)
        rows[name] = make_rows(name, times, tags, {field: np.full(count, float(step % 1000))})
    return Batch(rows=rows)


def _write(folder: Path, stop: Flag) -> None:
    store = EmbeddedStore(StoreSettings(path=folder, seal_rows=1000))
    step = 0
    while not stop.is_set():
        store.write(batch_of(step))
        step += 1
        if step % 40 == 0:
            store.seal()
        if step % 160 == 0:
            store.merge()
    store.close()


def odd_reads(seconds: float = SECONDS) -> int:
    """Return how many reads, of those made in so many seconds, missed a row, saw one twice or saw half a commit."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="trimtab-readers-") as name:
        folder = Path(name)
        settings = StoreSettings(path=folder)
        EmbeddedStore(settings).close()
        stop = context.Event()
        writer = context.Process(target=_write, args=(folder, stop))
        writer.start()
        reader = EmbeddedStore(settings, read_only=True)
        odd, seen, reads = 0, 0, 0
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end or reads < 20:
                steps = {}
                for measurement, count, field in (
                    ("slice", SLICES, "queue_depth_count"),
                    ("gpu", CARDS, "power_watts"),
                ):
                    window = Window(from_ms(START_MS), from_ms(START_MS) + timedelta(days=60))
                    frame = reader.read(measurement, window, fields=[field])
                    found = (frame["time"].astype("int64").to_numpy() - START_MS) // 60_000
                    amounts = np.bincount(found) if len(found) else np.array([], dtype=int)
                    odd += int((amounts != count).any() or (frame[field].to_numpy() != found % 1000).any())
                    steps[measurement] = len(amounts)
                # The slices were read first: the cards of the same commits are all there.
                odd += int(steps["gpu"] < steps["slice"] or steps["slice"] < seen)
                seen = steps["slice"]
                reads += 1
        finally:
            stop.set()
            writer.join()
            reader.close()
        if writer.exitcode != 0 or seen < 100:
            raise RuntimeError(f"the writer ended with {writer.exitcode} after {seen} commits")
    return odd
