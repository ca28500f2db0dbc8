"""Contention across the cards of a node (TT102): found where a shared channel is full, and only there.

Developed on seeds 1 to 3; every figure is measured on others. Pairs of one card are tested beside them, under one
control of false discoveries, and counted in `contention`. Left out of F1: pairs whose channel is never full (nothing
may be claimed of them), and suspects that never vary.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import pandas as pd

from analyzer.contention import ContentionDetector
from analyzer.contention.across import NO_PRESSURE
from analyzer.findings import Role, Verdict
from analyzer.protocols import Context
from benchmarks.contention import Count
from benchmarks.contention_nodes import CARDS, SCENARIOS, Node, Pair, card_of, make_node, partition
from benchmarks.contention_worlds import DAY, TASKS
from benchmarks.figures import Figure, figure

REPORTED_SEEDS = (101, 102, 103)
NODES = 3  # a scenario and seed
WINDOWS = {"2 days": 2 * DAY, "12 hours": DAY // 2}
F1_BARS = {"2 days": 0.95, "12 hours": 0.8}
FALSE_BAR = 0.05
CODE = "TT102"
_DESIGNED: Pair = (0, "v", 1, "a")
_CLAIM = frozenset({Verdict.HOLDS, Verdict.SUSPECTED})


@dataclass
class Tally:
    """What one window length gave over all seeds; scenarios count their designed pair."""

    count: Count = field(default_factory=Count)
    held: Count = field(default_factory=Count)
    innocents: int = 0
    nodes: Counter[str] = field(default_factory=Counter)
    claimed: Counter[str] = field(default_factory=Counter)
    channels: Counter[bool] = field(default_factory=Counter)
    tested: int = 0
    untested_lanes: int = 0
    milliseconds: float = 0.0
    wrong: list[str] = field(default_factory=list)


def tally(seeds: Iterable[int], n: int, nodes: int = NODES) -> Tally:
    """Run the detector over fresh fleets of one window length."""
    result, seconds, pairs = Tally(), 0.0, 0
    for seed in seeds:
        fleet = [make_node(scenario, seed, number, n) for scenario in SCENARIOS for number in range(nodes)]
        parts = [partition(node) for node in fleet]
        detector = ContentionDetector()
        start = time.process_time()
        measures = pd.concat([detector.measure(part) for part in parts], ignore_index=True)
        none = pd.DataFrame()
        conclusion = detector.conclude(measures, Context(parts[0].window, 60.0, none, none, none, {}))
        seconds += time.process_time() - start
        pairs += len(measures)
        result.untested_lanes += sum(withheld.reason == NO_PRESSURE for withheld in conclusion.withheld)
        said: dict[str, dict[Pair, tuple[Verdict, str | None]]] = {}
        for finding in conclusion.findings:
            if finding.code == CODE:
                victim, suspect = finding.subject(Role.VICTIM), finding.subject(Role.SUSPECT)
                pair = card_of(victim.gpu), victim.workload, card_of(suspect.gpu), suspect.workload
                said.setdefault(victim.node, {})[pair] = finding.verdict, finding.channel
        for node, part in zip(fleet, parts, strict=True):
            _count(result, node, said.get(part.node, {}), seed)
    result.milliseconds = 1000 * seconds / max(pairs, 1)
    return result


def _count(result: Tally, node: Node, said: dict[Pair, tuple[Verdict, str | None]], seed: int) -> None:
    true = set(node.true) - node.undecidable
    # Only pairs of different cards are this benchmark's.
    all_pairs = len(TASKS) ** 2 * CARDS * (CARDS - 1)
    named = {pair for pair, (verdict, _) in said.items() if verdict in _CLAIM}
    for count, claimed in (
        (result.count, named),
        (result.held, {pair for pair in named if said[pair][0] is Verdict.HOLDS}),
    ):
        count.true += len(claimed & true)
        count.false += len(claimed - true - node.undecidable)
        count.missed += len(true - claimed)
    result.innocents += all_pairs - len(node.true)
    result.tested += len(said)
    result.nodes[node.scenario] += 1
    result.claimed[node.scenario] += _DESIGNED in named
    channel = {"true_nvlink": "nvlink", "true_host": "host"}.get(node.scenario, "pcie")
    result.channels.update(said[pair][1] == channel for pair in named & true)
    result.wrong += [f"{seed} {node.scenario} {node.number} {pair} {said.get(pair)}" for pair in sorted(named ^ true)]


def run() -> list[Figure]:
    """Measure on the reported seeds."""
    figures = []
    for label, n in WINDOWS.items():
        result = tally(REPORTED_SEEDS, n)
        name = f"across cards, {label}"
        figures += [
            figure(f"{name}: F1", result.count.f1, "ratio", at_least=F1_BARS[label]),
            figure(f"{name}: precision", result.count.precision, "ratio"),
            figure(f"{name}: recall", result.count.recall, "ratio"),
            figure(f"{name}: F1 of what holds", result.held.f1, "ratio"),
            figure(f"{name}: channel named rightly", result.channels[True] / max(result.channels.total(), 1), "ratio"),
            figure(f"{name}: innocents claimed", result.count.false / result.innocents, "ratio"),
            figure(f"{name}: pairs tested, of all", result.tested / result.innocents, "ratio"),
        ]
        if label == "2 days":
            figures += [
                figure(f"{name}: false claims, {kind}", result.claimed[kind] / count, "ratio", at_most=FALSE_BAR)
                for kind, count in sorted(result.nodes.items())
                if not kind.startswith("true")
            ]
            figures.append(figure(f"{name}: CPU a pair", result.milliseconds, "ms"))
    return figures
