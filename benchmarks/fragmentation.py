"""Fragmentation: worked cases, recorded states and published curves, exact searches, and what the measure costs.

Needs the reference data: `data/cluster_snapshot` and `cases` under `TRIMTAB_SHARED` (default: `../shared` beside the
checkout); `TRIMTAB_CASES` names another folder of worked cases. Figures whose data is absent are left out, and said.
"""

from __future__ import annotations

import csv
import itertools
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from analyzer.fgd import NodeIdle, Task, fragmentation
from analyzer.fleet import Fleet, measure_fleet, typical
from analyzer.mig import Board, Instance, boards, layout_faults
from analyzer.mig_layout import CutCard, best_layout
from analyzer.mig_moves import fewest_moves_among
from benchmarks.arrivals import arrive, published, read_nodes, read_pods, read_state
from benchmarks.defragment_figures import defragment
from benchmarks.figures import Figure, calibration_seconds, figure
from benchmarks.memory_cases import recorded_snapshots
from benchmarks.worked_cases import COMPUTE, check_boards, check_file, check_xids, differences

_CALIBRATED_SECONDS = 0.1
_SEEDS = (42, 43, 44)  # of ten that the published curves are means of
_RULES = {"random": ("01-Random", 0.5), "best fit": ("05-BestFit", 0.5), "gradient": ("06-FGD", 1.0)}
_INSTANCES = 200  # of the search for moves


def run() -> list[Figure]:
    """Measure everything whose data is there."""
    scale = max(calibration_seconds() / _CALIBRATED_SECONDS, 1.0)
    shared = Path(os.environ.get("TRIMTAB_SHARED", Path(__file__).resolve().parents[2] / "shared"))
    figures = worked(Path(os.environ.get("TRIMTAB_CASES", shared / "cases")))
    figures += recorded_memory(shared / "data" / "memory_snapshots")
    snapshot = shared / "data" / "cluster_snapshot"
    if snapshot.is_dir():
        figures += states(snapshot / "states")
        for workload in ("default",):
            figures += curves(snapshot, workload, _SEEDS)
        figures += speed(snapshot, scale)
    else:
        print(f"states, curves and speed skipped: no {snapshot} (set TRIMTAB_SHARED)", file=sys.stderr)
    return [*figures, *layouts(scale), moves(), *defragment(snapshot / "states", scale)]


def worked(folder: Path) -> list[Figure]:
    """Check every worked case of the folder, a figure a kind."""
    if not folder.is_dir():
        print(f"worked cases skipped: no {folder} (set TRIMTAB_CASES)", file=sys.stderr)
        return []
    figures = []
    checks = [(folder / f"{kind}.json", check_file) for kind in COMPUTE]
    checks += [(folder / "mig_boards.json", check_boards), (folder / "xid_table.json", check_xids)]
    for path, check in checks:
        if not path.exists():
            print(f"no {path.name} in {folder}", file=sys.stderr)
            continue
        count, wrong = check(path)
        for text in wrong[:10]:
            print(f"{path.name}: {text}", file=sys.stderr)
        figures.append(figure(f"worked cases: {path.stem}, {count}, differences", len(wrong), "values", at_most=0))
    return figures


def recorded_memory(folder: Path) -> list[Figure]:
    """Reproduce the reference numbers of recorded allocator snapshots."""
    if not folder.is_dir():
        print(f"recorded allocator snapshots skipped: no {folder} (set TRIMTAB_SHARED)", file=sys.stderr)
        return []
    found = recorded_snapshots(folder)
    wrong = [text for name, ours, expect in found for text in differences(ours, expect, name)]
    for text in wrong[:10]:
        print(text, file=sys.stderr)
    return [figure(f"allocator snapshots: {len(found)}, differences", len(wrong), "values", at_most=0)]


def states(folder: Path) -> list[Figure]:
    """Reproduce the reference numbers of recorded states."""
    figures = []
    with (folder / "reference.csv").open() as file:
        for row in csv.DictReader(file):
            mix = folder / f"typical_{row['workload'].removeprefix('openb_pod_list_')}.csv"
            got = measure_fleet(Fleet.of((s := read_state(folder / f"{row['state']}_nodes.csv.gz", mix))[0]), s[1])
            idle, wanted = float(row["idle_milli"]) / 1000, float(row["frag_milli"]) / 1000
            error = 100 * max(abs(got.idle / idle - 1), abs(got.fragmented / wanted - 1))
            name = f"state {row['state']}: error of idle and fragmented"
            figures.append(figure(name, error, "percent", at_most=0.1))
    return figures


def curves(folder: Path, workload: str, seeds: Sequence[int]) -> list[Figure]:
    """Place the arriving pods by three rules, and compare with the published curves (largest distance, in points)."""
    nodes, pods = read_nodes(folder / "nodes_gpu.csv"), read_pods(folder / f"pods_{workload}.csv.gz")
    figures = []
    for rule, (policy, bound) in _RULES.items():
        reference = published(folder / "published_fgd_results.csv.gz", workload, policy)
        ours = np.mean([arrive(nodes, pods, rule, seed) for seed in seeds], axis=0)
        away = np.abs(ours - reference).max(axis=0)
        full = 100  # percent arrived
        figures += [
            figure(
                f"{workload}, {rule}: fragmented, farthest from the published curve", away[1], "points", at_most=bound
            ),
            figure(
                f"{workload}, {rule}: allocated, farthest from the published curve",
                away[0],
                "points",
                at_most=bound,
            ),
            figure(
                f"{workload}, {rule}: allocated at 100 % arrived",
                ours[full, 0],
                "percent",
                peer=reference[full, 0],
                peer_name="published",
            ),
        ]
    return figures


def speed(folder: Path, scale: float) -> list[Figure]:
    """CPU seconds of the measure over the recorded fleet and one eight times as large, against every kind of pod."""
    mix = typical(Counter(read_pods(folder / "pods_default.csv.gz")), 1.0)
    nodes, _ = read_state(
        folder / "states" / "default_random_80_s42_nodes.csv.gz", folder / "states" / "typical_default.csv"
    )
    figures = []
    for count, bound in ((len(nodes), 1.0), (10_000, 10.0)):
        many = [nodes[i % len(nodes)] for i in range(count)]
        start = time.process_time()
        measure_fleet(Fleet.of(many), mix)
        spent = time.process_time() - start
        peer = _slow_seconds(nodes[:20], mix) * count / 20
        figures.append(
            figure(
                f"measure of {count:,} nodes, {len(mix)} kinds of request",
                spent,
                "CPU s",
                peer=peer,
                peer_name="one node at a time (from 20)",
                at_most=round(bound * scale, 2),
            )
        )
    return figures


def _slow_seconds(nodes: Sequence[NodeIdle], mix: Sequence[Task]) -> float:
    start = time.process_time()
    fragmentation(nodes, mix)
    return time.process_time() - start


def layouts(scale: float) -> list[Figure]:
    """Best layouts for 8 cards and 10 requests: against a greedy peer, and CPU seconds of the slowest of 20."""
    rng = np.random.default_rng(7)
    board = boards()["A100-80GB"]
    names = sorted(name for name, p in board.profiles.items() if p.plain)
    slowest, ours, greedy = 0.0, 0.0, 0.0
    for _ in range(20):
        cards = [CutCard(f"c{i}", board, _random_layout(board, rng)) for i in range(8)]
        requests = Counter(rng.choice(names, 10).tolist())
        start = time.process_time()
        found = best_layout(cards, requests)
        slowest = max(slowest, time.process_time() - start)
        ours += found.value
        greedy += _first_fit(cards, sorted(requests.elements(), key=lambda n: -board.profiles[n].size))
    return [
        figure("layout: 8 cards, 10 requests, the slowest of 20", slowest, "CPU s", at_most=round(scale, 2)),
        figure("layout: requests served of 200", ours, "requests", peer=greedy, peer_name="first fit, largest first"),
    ]


def _random_layout(board: Board, rng: np.random.Generator, most: int = 6) -> tuple[Instance, ...]:
    names = sorted(name for name, p in board.profiles.items() if p.plain)
    found: list[Instance] = []
    for _ in range(int(rng.integers(1, most))):
        profile = board.profiles[str(rng.choice(names))]
        wanted = [*found, Instance(profile.name, int(rng.choice(profile.starts)))]
        if not layout_faults(board, wanted):
            found = wanted
    return tuple(found)


def _first_fit(cards: Sequence[CutCard], queue: Sequence[str]) -> int:
    now = [list(card.instances) for card in cards]
    served = 0
    for name in queue:
        spots = (
            (i, start)
            for i, card in enumerate(cards)
            for start in card.board.profiles[name].starts
            if not layout_faults(card.board, [*now[i], Instance(name, start)])
        )
        spot = next(spots, None)
        if spot is not None:
            now[spot[0]].append(Instance(name, spot[1]))
            served += 1
    return served


def moves() -> Figure:
    """Share of small instances (2 or 3 cards) on which the moves are as few as exhaustive search finds."""
    rng = np.random.default_rng(11)
    board = boards()["A100-40GB"]
    names = sorted(name for name, p in board.profiles.items() if p.plain)
    right = 0
    for _ in range(_INSTANCES):
        cards = []
        for i in range(int(rng.integers(2, 4))):
            instances = _random_layout(board, rng, 5)
            cards.append(CutCard(f"c{i}", board, instances, tuple(i for i in instances if rng.random() < 0.8)))
        request = str(rng.choice(names))
        room = fewest_moves_among(cards, request, most_moves=3)
        wanted = _exhaustive(cards, request, 3)
        right += (None if room is None else len(room.moves)) == wanted
    return figure(
        f"moves: as few as exhaustive search finds, of {_INSTANCES}", right / _INSTANCES, "ratio", at_least=0.95
    )


def _exhaustive(cards: Sequence[CutCard], request: str, most: int) -> int | None:
    """Take out ever larger sets of movable instances, and try every way to put them back with the request."""
    movable = [(i, instance) for i, card in enumerate(cards) for instance in card.movable]
    for count in range(min(most, len(movable)) + 1):
        for chosen in itertools.combinations(movable, count):
            left = [Counter(card.instances) for card in cards]
            for i, instance in chosen:
                left[i][instance] -= 1
            bare = [(card.board, tuple(rest.elements())) for card, rest in zip(cards, left, strict=True)]
            queue = [request, *(instance.profile for _, instance in chosen)]
            if next(_packings(bare, queue), None) is not None:
                return count
    return None


def _packings(cards: Sequence[tuple[Board, tuple[Instance, ...]]], queue: Sequence[str]) -> Iterator[bool]:
    if not queue:
        yield True
        return
    for i, (board, there) in enumerate(cards):
        for start in board.profiles[queue[0]].starts:
            more = (*there, Instance(queue[0], start))
            if not layout_faults(board, more):
                yield from _packings([*cards[:i], (board, more), *cards[i + 1 :]], queue[1:])
