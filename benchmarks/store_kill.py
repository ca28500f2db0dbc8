"""kill -9 at random points: a writer is forked from a warm parent, killed, and everything acknowledged is looked for.

`python -m benchmarks.store_kill 20` prints how many acknowledged batches were lost, how many were acknowledged, and how
many kills hit each phase. The parent never opens a store: neither DuckDB nor SQLite may be carried over a fork.
"""

from __future__ import annotations

import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import numpy as np

from benchmarks.store_readers import CARDS, SLICES, START_MS, batch_of
from collector.batch import Event, Severity, Subject
from collector.clock import from_ms
from collector.settings import StoreSettings
from collector.store import EmbeddedStore
from collector.store.outbox import Outbox
from collector.window import Window

A_STORE = 25  # kills; then a new one, so that looking it through stays cheap
PHASES = ("open", "look", "write", "seal")


def kills(count: int, seed: int = 11, phases: Counter[str] | None = None) -> tuple[int, int]:
    """Kill a writer `count` times; return acknowledged batches that were lost, and how many were acknowledged."""
    rng = random.Random(seed)
    lost = acknowledged = 0
    for first in range(0, count, A_STORE):
        folder = Path(tempfile.mkdtemp(prefix="trimtab-kill-"))
        try:
            kept = 0
            for _ in range(min(A_STORE, count - first)):
                # One in eight while the store opens and is looked through, the others while it writes and seals.
                since = "p0" if rng.random() < 0.125 else "p2"
                last, missing, phase = _run_and_kill(folder, kept, since, rng.uniform(0.0, 0.3))
                lost += missing
                acknowledged += max(last - kept, 0)
                kept = max(last, kept)
                if phases is not None:
                    phases[phase] += 1
            lost += _look_through(folder, kept)
        finally:
            shutil.rmtree(folder)
    return lost, acknowledged


def kills_elsewhere(count: int) -> tuple[int, int]:
    """Do the same in a process of its own, for a caller that has used DuckDB already."""
    command = [sys.executable, "-m", "benchmarks.store_kill", str(count)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own module
    found = re.match(r"\d+ kills, (\d+) batches acknowledged, (\d+) lost", ran.stdout)
    if found is None:
        raise RuntimeError(ran.stderr)
    return int(found[2]), int(found[1])


def _run_and_kill(folder: Path, kept: int, since: str, delay: float) -> tuple[int, int, str]:
    """Fork a writer, kill it `delay` seconds after it said `since`.

    Returns the last acknowledged batch, how many the writer missed, and what it was doing.
    """
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        _write(folder, kept, write_end)
    os.close(write_end)
    text = b""
    end = None
    while end is None or time.monotonic() < end:
        timeout = 60.0 if end is None else max(end - time.monotonic(), 0.0)
        ready, _, _ = select.select([read_end], [], [], timeout)
        if ready:
            got = os.read(read_end, 65536)
            if not got:
                break
            text += got
        if end is None and since.encode() in text:
            end = time.monotonic() + delay
    os.kill(child, signal.SIGKILL)
    while got := os.read(read_end, 65536):
        text += got
    os.close(read_end)
    _, status = os.waitpid(child, 0)
    lines = text.decode().split("\n")[:-1]  # the last one may be half there
    if os.WIFEXITED(status):
        raise RuntimeError(f"the writer ended by itself: {lines[-1:]}")
    batches = [int(line[1:]) for line in lines if line[0] == "b"]
    missing = sum(int(line[1:]) for line in lines if line[0] == "m")
    phase = next(PHASES[int(line[1:])] for line in reversed(lines) if line[0] == "p")
    return max(batches, default=0), missing, phase


def _write(folder: Path, kept: int, out: int) -> None:
    """In the child: look the store through, go on writing until killed. Never returns."""

    def say(line: str) -> None:
        os.write(out, f"{line}\n".encode())

    try:
        say("p0")
        settings = StoreSettings(path=folder, seal_rows=1000)
        store = EmbeddedStore(settings)
        say("p1")
        missing, present = _missing(store, kept)
        say(f"m{missing}")
        say("p2")
        for number in range(max(kept, present) + 1, 10**9):
            batch = batch_of(number)
            batch.events = [
                Event(Subject("node", "bench", "n"), "tick", Severity.INFO, str(number), from_ms(START_MS + number))
            ]
            store.write(batch)
            say(f"b{number}")
            if number % 12 == 0:
                say("p3")
                store.seal()
                if number % 36 == 0:
                    store.merge()
                say("p2")
    except BaseException as error:  # noqa: BLE001 - the parent reads it and raises
        say(f"x{type(error).__name__}: {error}")
    finally:
        os._exit(1)


def _missing(store: EmbeddedStore, kept: int) -> tuple[int, int]:
    """Return how many of the batches 1..kept are not there whole, and the number of the last one that is."""
    window = Window(from_ms(START_MS), from_ms(START_MS) + timedelta(days=3650))
    whole = []
    for measurement, rows, field in (("slice", SLICES, "queue_depth_count"), ("gpu", CARDS, "power_watts")):
        frame = store.read(measurement, window, fields=[field])
        found = (frame["time"].astype("int64").to_numpy() - START_MS) // 60_000
        right = frame[field].to_numpy() == found % 1000
        counts = np.bincount(found[right], minlength=kept + 1)
        if (counts[counts > 0] != rows).any() or not right.all():
            return kept + 1, int(found.max())  # torn or doubled: worse than a lost one
        whole.append({int(n) for n in np.flatnonzero(counts)})
    told = {int(message) for message in store.events(window)["message"]}
    there = whole[0] & whole[1] & told
    torn = (whole[0] | whole[1] | told) - there
    return len(set(range(1, kept + 1)) - there) + len(torn), max(there, default=0)


def _look_through(folder: Path, kept: int) -> int:
    """In a child of its own: return how many acknowledged batches are missing, here or for a shipper."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        code = 1
        try:
            store = EmbeddedStore(StoreSettings(path=folder))
            missing, present = _missing(store, kept)
            store.close()
            box = Outbox(StoreSettings(path=folder), "look")
            shipped, seq = 0, 0
            while (shipment := box.rows_after(seq, 5000)) is not None:
                shipped += sum(table.num_rows for table in shipment.rows.values())
                seq = shipment.through
            box.close()
            os.write(write_end, f"{missing + int(shipped != present * (CARDS + SLICES))}".encode())
            code = 0
        finally:
            os._exit(code)
    os.close(write_end)
    text = b""
    while got := os.read(read_end, 65536):
        text += got
    os.close(read_end)
    os.waitpid(child, 0)
    return int(text) if text else kept + 1


def main() -> None:
    """Kill as often as the command line says."""
    phases: Counter[str] = Counter()
    count = int(sys.argv[1])
    lost, acknowledged = kills(count, phases=phases)
    print(f"{count} kills, {acknowledged} batches acknowledged, {lost} lost; hit: {dict(phases)}")
    sys.exit(1 if lost or not acknowledged else 0)


if __name__ == "__main__":
    main()
