"""Fuzzing of all parsers, 3 CPU minutes each: no crash, no hang, no wrong value taken, no good one lost."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import repeat
from multiprocessing import get_context
from random import Random
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from benchmarks.figures import Figure, figure
from benchmarks.fuzzing import answers, documents, expositions, logs, tomls

TARGETS: dict[str, Callable[[Random], None]] = {
    "exposition": expositions.check,
    "nvidia-smi CSV": logs.check_csv,
    "nvidia-smi dmon": logs.check_dmon,
    "nvidia-smi pmon": logs.check_pmon,
    "nvidia-smi XML": documents.check_xml,
    "dcgmi dmon": logs.check_dcgmi,
    "memory snapshots": documents.check_snapshot,
    "mappings TOML": tomls.check_mapping,
    "Prometheus JSON": answers.check_prometheus,
    "Kubernetes and Slurm JSON": answers.check_kube,
    "configuration TOML": tomls.check_config,
}
MINUTES = 33.0
_BODIES = 300  # of one round
_HANG_SECONDS = 30.0  # of CPU time, for one body


class HangError(Exception):
    """A body took longer than any may."""


def run(minutes: float = MINUTES) -> list[Figure]:
    """Fuzz each target for its share of the CPU minutes; print what fails with the seed of its round."""
    share = 60.0 * minutes / len(TARGETS)
    figures: list[Figure] = []
    total = 0.0
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        for name, bodies, spent, failure in pool.map(_of_target, TARGETS, repeat(share), repeat(int(time.time()))):
            total += spent
            print(f"{name}: {bodies} bodies in {spent:.0f} CPU s {failure}", file=sys.stderr, flush=True)
            figures.append(figure(f"{name}: failures", float(bool(failure)), "count", at_most=0))
            figures.append(figure(f"{name}: bodies", float(bodies), "count", at_least=1))
            figures.append(figure(f"{name}: time", spent, "CPU s", at_least=min(share, 180.0)))
    figures.append(figure("all parsers", total / 60.0, "CPU min", at_least=min(minutes, 30.0)))
    return figures


def _of_target(name: str, seconds: float, first_seed: int) -> tuple[str, int, float, str]:
    warnings.simplefilter("error")  # a warning of a library is a value that nobody checked
    return name, *fuzz(TARGETS[name], seconds, first_seed=first_seed)


def fuzz(check: Callable[[Random], None], seconds: float, *, first_seed: int) -> tuple[int, float, str]:
    """Return how many bodies were read, the CPU seconds, and the first failure (empty: none)."""
    count = 0

    @settings(
        max_examples=_BODIES,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(random=st.randoms(use_true_random=True))
    def round_of_bodies(random: Random) -> None:
        nonlocal count
        count += 1
        with _alarm(_HANG_SECONDS):
            check(random)

    start, seed = time.process_time(), first_seed
    while time.process_time() - start < seconds:
        try:
            seeded(seed)(round_of_bodies)()
        except Exception:  # noqa: BLE001  whatever it is: it is what fuzzing looks for
            return count, time.process_time() - start, f"seed {seed}:\n{traceback.format_exc(limit=-6)}"
        seed += 1
    return count, time.process_time() - start, ""


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    def ring(*_: Any) -> None:
        raise HangError(f"one body took more than {seconds:g} CPU s")

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)
