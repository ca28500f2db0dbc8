"""Arrivals: pods of a recorded workload placed on recorded nodes by one of three rules, and what is fragmented then.

The setting of Weng et al. (ATC'23): pods in random order, more of the same drawn at random after the last, until they
ask for 130 % of all cards; after each percent the allocated and the fragmented share of all cards.
"""

from __future__ import annotations

import csv
import gzip
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from analyzer.fgd import EPSILON, NodeIdle, Task
from analyzer.fleet import Fleet, serving, typical
from analyzer.placing import Placing

Floats = npt.NDArray[np.float64]

MOST_PERCENT = 130
_MOST_CPU_CORES, _MOST_CARDS = 128.0, 8.0  # that the published best-fit score is relative to


def read_pods(path: Path) -> list[Task]:
    """Read what each pod asked for."""
    with gzip.open(path, "rt") as file:
        return [
            Task(
                cards=int(row["num_gpu"]),
                share=int(row["gpu_milli"]) / 1000 if int(row["num_gpu"]) else 0.0,
                cpu_cores=int(row["cpu_milli"]) / 1000,
                types=frozenset(filter(None, (row.get("gpu_spec") or "").split("|"))),
            )
            for row in csv.DictReader(file)
        ]


def read_nodes(path: Path) -> list[NodeIdle]:
    """Read empty nodes."""
    with path.open() as file:
        return [
            NodeIdle(row["sn"], (1.0,) * int(row["gpu"]), int(row["cpu_milli"]) / 1000, row["model"])
            for row in csv.DictReader(file)
        ]


def read_state(nodes: Path, mix: Path) -> tuple[list[NodeIdle], list[Task]]:
    """Read nodes with what they have left, and the mix that their fragmentation is measured against."""
    with gzip.open(nodes, "rt") as file:
        idle = [
            NodeIdle(
                row["node"],
                tuple(int(milli) / 1000 for milli in row["gpu_free_milli"].split(";")),
                int(row["cpu_free_milli"]) / 1000,
                row["model"],
            )
            for row in csv.DictReader(file)
        ]
    with mix.open() as file:
        counts = {
            Task(int(row["num_gpu"]), int(row["gpu_milli"]) / 1000, int(row["cpu_milli"]) / 1000): float(row["n"])
            for row in csv.DictReader(file)
        }
    return idle, typical(counts, 1.0)


def arrive(nodes: Sequence[NodeIdle], pods: Sequence[Task], rule: str, seed: int) -> Floats:
    """Return allocated and fragmented percent of all cards after each percent of arrived demand, (131, 2).

    Args:
        nodes: the empty fleet.
        pods: the workload.
        rule: `random`, `best fit` or `gradient`.
        seed: of the order of arrival and of the random rule.
    """
    rng = np.random.default_rng(seed)
    placing = Placing(Fleet.of(nodes), typical(Counter(pods)))
    total = placing.idle
    order = rng.permutation(len(pods)).tolist()
    asked = placed = 0.0
    curve: list[tuple[float, float]] = []
    while len(curve) <= MOST_PERCENT:
        pod = pods[order.pop()] if order else pods[int(rng.integers(len(pods)))]
        spot = _spot(placing, pod, rule, rng)
        asked += pod.cards * pod.share
        if spot is not None:
            placing.place(pod, *spot)
            placed += pod.cards * pod.share
        while len(curve) <= min(100 * asked / total, MOST_PERCENT):
            curve.append((100 * placed / total, 100 * placing.fragmented / total))
    return np.array(curve)


def _spot(placing: Placing, pod: Task, rule: str, rng: np.random.Generator) -> tuple[int, list[int]] | None:
    if rule == "gradient":
        best = placing.best(pod)
        return None if best is None else (best.row, list(best.cards))
    fleet = placing.fleet
    yes = serving(fleet, pod.share, pod.memory_bytes)
    fits = fleet.cpu_cores_left + EPSILON >= pod.cpu_cores
    if pod.cards:
        allowed = np.array([not pod.types or name in pod.types for name in fleet.types])
        fits &= (yes.sum(axis=1) >= pod.cards) & allowed[fleet.gpu_type]
    rows = np.flatnonzero(fits)
    if not rows.size:
        return None
    if rule == "best fit":
        idle = fleet.left[rows].clip(0.0).sum(axis=1) - pod.cards * pod.share
        cpu = fleet.cpu_cores_left[rows] - pod.cpu_cores
        points = np.floor(100 * (1 - 0.5 * cpu / _MOST_CPU_CORES - 0.5 * idle / _MOST_CARDS))
        rows = rows[points == points.max()]
    row = int(rng.choice(rows))
    cards = np.flatnonzero(yes[row]) if pod.cards else np.zeros(0, dtype=np.int64)
    if rule == "random":
        return row, rng.permutation(cards)[: pod.cards].tolist()
    return row, cards[np.argsort(fleet.left[row, cards], kind="stable")][: pod.cards].tolist()


def published(path: Path, workload: str, policy: str) -> Floats:
    """Return the published curve, means over ten seeds, as `arrive` returns ours."""
    with gzip.open(path, "rt") as file:
        rows = [
            (float(row["alloc_pct_mean"]), float(row["frag_of_total_pct_mean"]))
            for row in csv.DictReader(file)
            if row["workload"] == f"openb_pod_list_{workload}" and row["sc_policy"] == policy
        ]
    return np.array(rows)
