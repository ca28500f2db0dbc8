"""Contention: who slows whom, on seeded worlds, beside four common rules.

Every figure is measured on seeds that were not looked at while the detector was made: it was developed on seeds 1 to 7
(and 55). Each scenario has its cards, each card its own physics; every directed pair of a card counts. A claim is
`holds` or `suspected`: on a decoy both are false. `cannot tell` on a true pair is a miss. Left out, because watching
cannot decide them: the reaction within the same sample (which must be `suspected` and never hold), and suspects that
never vary or came once and stayed (which must be `cannot tell`). `holds` alone is told beside it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from analyzer.contention import ContentionDetector
from analyzer.findings import Role
from analyzer.protocols import Context, Partition
from benchmarks.contention_peers import RULES, Claims, Pair, claims_of
from benchmarks.contention_scenarios import SCENARIOS, make_world
from benchmarks.contention_worlds import DAY, START, World, rows
from benchmarks.figures import Figure, calibration_seconds, figure
from collector.window import Window

REPORTED_SEEDS = (101, 102, 103)
CARDS = 4  # a scenario and seed
RATE = 0.05  # of the peers
WINDOWS = {"2 days": 2 * DAY, "12 hours": DAY // 2, "4 hours": DAY // 6}
F1_BARS = {"2 days": 0.985, "12 hours": 0.88, "4 hours": 0.62}
FALSE_BAR = 0.05
MILLISECONDS_BAR = 3.0
SAME_SAMPLE = "null_reverse_sync"  # decoy that watching cannot clear
HELD, NAMED = "ours: holds", "ours: holds or suspected"
_CLAIM = frozenset({"holds", "suspected"})
_OPEN = frozenset({"cannot tell", "withheld"})
_CALIBRATED_SECONDS = 0.1


@dataclass
class Count:
    """True claims, false claims and misses."""

    true: int = 0
    false: int = 0
    missed: int = 0

    @property
    def precision(self) -> float:
        return self.true / max(self.true + self.false, 1)

    @property
    def recall(self) -> float:
        return self.true / max(self.true + self.missed, 1)

    @property
    def f1(self) -> float:
        return 2 * self.true / max(2 * self.true + self.false + self.missed, 1)

    def add(self, worlds: list[World], claimed: Claims) -> None:
        true, free = truth(worlds)
        self.true += len(claimed & true)
        self.false += len(claimed - true - free)
        self.missed += len(true - claimed)


@dataclass
class Tally:
    """What one window length gave over all seeds."""

    counts: dict[str, Count] = field(default_factory=dict)
    decoys: Counter[str] = field(default_factory=Counter)
    claimed_decoys: Counter[str] = field(default_factory=Counter)
    innocents: int = 0
    claimed_innocents: int = 0
    same_sample: Counter[str] = field(default_factory=Counter)
    undecidable: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    peer_seconds: Counter[str] = field(default_factory=Counter)
    pairs: int = 0


def partition(scenario: str, worlds: list[World]) -> Partition:
    """Put the cards of one scenario on one node."""
    tables = [rows(world) for world in worlds]
    end = START + pd.Timedelta(seconds=worlds[0].n * worlds[0].step_seconds)
    none = pd.DataFrame()
    return Partition(
        cluster="bench",
        node=scenario,
        window=Window(START.to_pydatetime(), end.to_pydatetime()),
        interval_seconds=worlds[0].step_seconds,
        gpu=pd.concat([gpu for gpu, _ in tables], ignore_index=True),
        slice=pd.concat([slices for _, slices in tables], ignore_index=True),
        node_rows=none,
        facts=none,
        events=none,
        rejects=none,
    )


def fleet(seed: int, n: int, cards: int = CARDS) -> tuple[list[World], list[Partition]]:
    """Make the worlds of a seed and their rows, one node a scenario."""
    by_scenario = {s: [make_world(s, seed, number, n) for number in range(cards)] for s in SCENARIOS}
    return [w for mine in by_scenario.values() for w in mine], [partition(s, mine) for s, mine in by_scenario.items()]


def ours(partitions: Iterable[Partition]) -> tuple[dict[Pair, str], pd.DataFrame, float]:
    """Run the detector over a fleet; return verdicts (withheld ones are absent), its measures, and CPU seconds."""
    detector = ContentionDetector()
    start = time.process_time()
    measures = pd.concat([detector.measure(part) for part in partitions], ignore_index=True)
    window = Window(START.to_pydatetime(), (START + pd.Timedelta(days=2)).to_pydatetime())
    none = pd.DataFrame()
    conclusion = detector.conclude(measures, Context(window, 60.0, none, none, none, {}))
    seconds = time.process_time() - start
    verdicts: dict[Pair, str] = {}
    for finding in conclusion.findings:
        victim, suspect = finding.subject(Role.VICTIM), finding.subject(Role.SUSPECT)
        number = int(victim.gpu.rsplit("-", 1)[1])
        verdicts[(victim.node, number, victim.workload, suspect.workload)] = finding.verdict.value
    return verdicts, measures, seconds


def truth(worlds: list[World]) -> tuple[Claims, Claims]:
    """Pairs that are truly there and decidable; pairs that no passive method can decide."""
    true, free = set(), set()
    for world in worlds:
        for victim, suspect in world.true:
            pair = (world.scenario, world.number, victim, suspect)
            (free if (victim, suspect) in world.undecidable else true).add(pair)
        if world.scenario == SAME_SAMPLE:
            free.add((world.scenario, world.number, "v", "a"))
    return true, free


def tally(seeds: Iterable[int], n: int, *, peers: bool, cards: int = CARDS) -> Tally:
    """Run the detector, and the peers where asked, on fresh fleets of one window length."""
    result = Tally()
    for seed in seeds:
        worlds, parts = fleet(seed, n, cards)
        verdicts, measures, seconds = ours(parts)
        result.seconds += seconds
        result.pairs += len(measures)
        claims = {HELD: {k for k, v in verdicts.items() if v == "holds"}}
        claims[NAMED] = {k for k, v in verdicts.items() if v in _CLAIM}
        if peers:
            tables = {part.node: part.slice for part in parts}
            for name, rule in RULES.items():
                start = time.process_time()
                claims[name] = claims_of(rule, worlds, tables, RATE, seed)
                result.peer_seconds[name] += time.process_time() - start
        for name, claimed in claims.items():
            result.counts.setdefault(name, Count()).add(worlds, claimed)
        _count_decoys(result, worlds, verdicts, claims[NAMED])
    return result


def _count_decoys(result: Tally, worlds: list[World], verdicts: dict[Pair, str], claimed: Claims) -> None:
    true, free = truth(worlds)
    result.innocents += 12 * len(worlds) - len(true) - len(free)
    result.claimed_innocents += len(claimed - true - free)
    for world in worlds:
        designed = (world.scenario, world.number, "v", "a")
        said = verdicts.get(designed, "withheld")
        if world.scenario == SAME_SAMPLE:
            result.same_sample[said] += 1
        elif designed in free:
            result.undecidable["open" if said in _OPEN else said] += 1
        elif designed not in true:
            result.decoys[world.scenario] += 1
            result.claimed_decoys[world.scenario] += designed in claimed


def run() -> list[Figure]:
    """Measure on the reported seeds."""
    figures = []
    for label, n in WINDOWS.items():
        result = tally(REPORTED_SEEDS, n, peers=label == "2 days")
        mine = result.counts[NAMED]
        figures += [
            figure(f"{label}: F1", mine.f1, "ratio", at_least=F1_BARS[label]),
            figure(f"{label}: precision", mine.precision, "ratio"),
            figure(f"{label}: recall", mine.recall, "ratio"),
            figure(f"{label}: F1 of what holds", result.counts[HELD].f1, "ratio"),
            figure(f"{label}: precision of what holds", result.counts[HELD].precision, "ratio"),
            figure(f"{label}: innocents claimed", result.claimed_innocents / result.innocents, "ratio"),
        ]
        if label == "2 days":
            figures += _two_days(result)
    return figures


def _two_days(result: Tally) -> list[Figure]:
    mine = result.counts[NAMED]
    figures = [
        figure(f"2 days: false claims, {kind}", result.claimed_decoys[kind] / count, "ratio", at_most=FALSE_BAR)
        for kind, count in sorted(result.decoys.items())
    ]
    same, undecided = result.same_sample, result.undecidable
    figures += [
        figure("2 days: same-sample reaction that is suspected", same["suspected"] / same.total(), "ratio"),
        figure("2 days: same-sample reaction that holds", same["holds"] / same.total(), "ratio", at_most=FALSE_BAR),
        figure("2 days: never varied or came once, left open", undecided["open"] / undecided.total(), "ratio"),
    ]
    for name in RULES:
        peer = result.counts[name]
        figures += [
            figure(f"2 days: {measure}, beside {name}", getattr(mine, measure), "ratio", peer=value, peer_name=name)
            for measure, value in (("precision", peer.precision), ("recall", peer.recall), ("f1", peer.f1))
        ]
    scale = min(calibration_seconds() for _ in range(3)) / _CALIBRATED_SECONDS
    slowest = max(result.peer_seconds, key=lambda name: result.peer_seconds[name])
    figures.append(
        figure(
            "CPU a pair (2,880 samples)",
            _milliseconds(),
            "ms",
            peer=1000 * result.peer_seconds[slowest] / result.pairs,
            peer_name=slowest,
            at_most=round(MILLISECONDS_BAR * scale, 2),
        )
    )
    return figures


def _milliseconds() -> float:
    """CPU of the whole detector a pair, best of three runs over pairs that all have 2,880 samples."""
    parts = [
        partition(s, [make_world(s, REPORTED_SEEDS[0], number) for number in range(CARDS)])
        for s in SCENARIOS
        if "few" not in s
    ]
    runs = [ours(parts) for _ in range(3)]
    return float(np.min([1000 * seconds / len(measures) for _, measures, seconds in runs]))
