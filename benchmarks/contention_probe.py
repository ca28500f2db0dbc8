"""Contention, with the probe: the pairs that watching leaves open are tried out, in worlds that nobody has watched.

The scenarios, seeds and rules of the benchmark of contention. A claim is `holds` or `suspected`; here every true pair
counts, also what watching cannot decide (a suspect that never varies, or came once), and every decoy, also the reaction
within the same sample. A trial has at most MOST_PAIRS pairs of blocks and LONGEST minutes.

Each trial runs in a world of its own, drawn anew from the same scenario, so that it knows nothing of the noise on which
the pair was suspected. It sees no future: a pair of blocks begins when victim and suspect were at work for two minutes,
and what they do then is their own affair.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

import numpy as np
import pandas as pd

from analyzer.contention import ContentionDetector
from analyzer.contention.experiment import Experiment, experiment_fact, holder_name
from analyzer.contention.probe import (
    BUSY,
    BlockPair,
    Ground,
    ProbeResult,
    Prospect,
    analyse_probe,
    coins,
    nothing,
    pairs_to_run,
)
from analyzer.facts import FACT_COLUMNS
from analyzer.findings import Finding, Role, Verdict
from analyzer.protocols import Context
from benchmarks.contention import CARDS, REPORTED_SEEDS, partition
from benchmarks.contention_scenarios import SCENARIO_NUMBER, SCENARIOS, make_world
from benchmarks.contention_worlds import DAY, START, World, base
from benchmarks.figures import Figure, figure
from collector.batch import Subject
from collector.window import Window

OTHER_WORLD = 10_000  # added to the seed: the trial's world is not the one that was watched
DEPTH = 0.75  # of the suspect's share is taken away
BLOCK = 4  # minutes
REST = 4  # minutes between pairs: five throttles an hour, one less than a card's budget of changes
MOST_PAIRS = 40
LONGEST = 720  # minutes of one trial
WATCHED = 240  # minutes before it that its analysis may use
_BUSY_FOR = 2
_WORKS = 0.05  # activity below which a batch task makes no steps
WINDOWS = {"2 days": 2 * DAY, "12 hours": DAY // 2, "4 hours": DAY // 6}
F1_BARS = {"2 days": 0.97, "4 hours": 0.80}
LEFT_OUT = "true_saturation"  # its undecidable pairs are: who adds to a threshold that others reach as well
_CLAIM = frozenset({Verdict.HOLDS, Verdict.SUSPECTED})
_NONE = pd.DataFrame()
Pair = tuple[str, int, str, str]
OPEN = frozenset({Verdict.SUSPECTED, Verdict.CANNOT_TELL})


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial: what it showed and what it cost."""

    result: ProbeResult
    throttled_minutes: int
    minutes: int


def fresh_world(scenario: str, seed: int, number: int) -> World:
    """Make the world of a trial."""
    world = base(scenario, SCENARIO_NUMBER[scenario], seed + OTHER_WORLD, number, WATCHED + LONGEST)
    SCENARIOS[scenario](world)
    return world


def run_trial(scenario: str, seed: int, number: int, names: tuple[str, str], pairs: int) -> Trial:
    """Run one trial of a pair (victim, suspect) and analyse it."""
    victim, suspect = names
    world = fresh_world(scenario, seed, number)
    activity = world.activity[suspect]
    peak = float(np.quantile(activity[:WATCHED], 0.98))
    works = world.activity[victim] >= _WORKS if victim not in world.load else np.ones(world.n, dtype=bool)
    when = np.zeros(world.n, dtype=bool)
    blocks: list[BlockPair] = []
    minute = WATCHED
    for first in coins(seed * 1_000_003 + number, pairs):
        while minute < world.n - 2 * BLOCK and not (
            works[minute - _BUSY_FOR : minute].all() and _busy(activity[minute - _BUSY_FOR : minute], peak)
        ):
            peak = max(peak, float(np.quantile(activity[:minute], 0.98)))
            minute += 1
        if minute >= world.n - 2 * BLOCK:
            break
        throttled = minute if first else minute + BLOCK
        when[throttled : throttled + BLOCK] = True
        start, middle, end = (START.to_pydatetime() + timedelta(minutes=minute + m) for m in (0, BLOCK, 2 * BLOCK))
        blocks.append(BlockPair(start, middle, end, throttled_first=first))
        minute += 2 * BLOCK + REST
    tried = world.throttled(suspect, when, 1.0 - DEPTH)
    gpu = f"GPU-{scenario}-{number}"
    ground = Ground.of(partition(scenario, [tried]), gpu, f"ns/{victim}-0/main/0", f"ns/{suspect}-0/main/0")
    result = nothing(0, ground) if isinstance(ground, str) else analyse_probe(ground, blocks)
    return Trial(result, int(when.sum()), minute - WATCHED)


def _busy(activity: np.ndarray, peak: float) -> bool:
    return peak > 0 and bool((activity >= BUSY * peak).all())


@dataclass(frozen=True, slots=True)
class Probed:
    """Findings after the probes, and what the probes cost."""

    findings: list[Finding]
    pairs: int  # directed pairs in all
    trials: list[Trial]
    undecidable: int  # pairs that were open, and that no bounded trial would decide


def with_probes(measures: pd.DataFrame, context: Context, seed: int) -> Probed:
    """Conclude, try out what is open, and conclude again with what the trials showed."""
    detector = ContentionDetector()
    facts, trials, undecidable = [], [], 0
    for finding in detector.conclude(measures, context).findings:
        if finding.verdict not in OPEN:
            continue
        victim, suspect = finding.subject(Role.VICTIM), finding.subject(Role.SUSPECT)
        number = int(victim.gpu.rsplit("-", 1)[1])
        pairs = _pairs(fresh_world(victim.node, seed, number), finding)
        if not pairs:
            undecidable += 1
            continue
        trial = run_trial(victim.node, seed, number, (victim.workload, suspect.workload), pairs)
        trials.append(trial)
        card = Subject("gpu", victim.cluster, victim.node, victim.gpu)
        hurt, doer = (holder_name(s.tenant, s.workload, s.slice) for s in (victim, suspect))
        fact = experiment_fact(card, hurt, doer, Experiment(trial.result, "", context.window.end))
        facts.append(("gpu", card.cluster, card.node, card.gpu, "", "", fact.name, fact.value, fact.at, None, ""))
    told = pd.DataFrame(facts, columns=list(FACT_COLUMNS))
    told["from"] = pd.to_datetime(told["from"], utc=True)
    found = detector.conclude(measures, replace(context, facts=told)).findings
    return Probed(found, len(measures), trials, undecidable)


def _pairs(world: World, finding: Finding) -> int:
    """Size a trial by the last hours before it, as the tuner does."""
    victim, suspect = finding.subject(Role.VICTIM), finding.subject(Role.SUSPECT)
    whole = partition(world.scenario, [world])
    before = START + pd.Timedelta(minutes=WATCHED)
    part = replace(
        whole,
        window=Window(whole.window.start, before.to_pydatetime()),
        slice=whole.slice[whole.slice["time"] < before],
        gpu=whole.gpu[whole.gpu["time"] < before],
    )
    ground = Ground.of(part, victim.gpu, victim.slice, suspect.slice)
    if isinstance(ground, str):
        return MOST_PAIRS
    effect = float("nan") if finding.effect is None else finding.effect.value
    return pairs_to_run(Prospect.of(ground, BLOCK), effect, DEPTH, MOST_PAIRS)


@dataclass
class Tally:
    """What one window length gave over all seeds; sets of (seed, scenario, card, victim, suspect)."""

    true: set[tuple[int, Pair]] = field(default_factory=set)
    free: set[tuple[int, Pair]] = field(default_factory=set)
    designed: set[tuple[int, Pair]] = field(default_factory=set)
    claims: dict[str, set[tuple[int, Pair]]] = field(
        default_factory=lambda: {"watched": set(), "claimed": set(), "held": set()}
    )
    trials: list[Trial] = field(default_factory=list)
    pairs: int = 0
    seconds: float = 0.0

    def f1(self, of: str = "claimed") -> float:
        claimed = self.claims[of] - self.free
        return 2 * len(claimed & self.true) / max(len(claimed) + len(self.true), 1)

    def precision(self, of: str = "claimed") -> float:
        claimed = self.claims[of] - self.free
        return len(claimed & self.true) / max(len(claimed), 1)

    def recall(self, of: str = "claimed", scenario: str = "") -> float:
        wanted = {one for one in self.true if scenario in {"", one[1][0]}}
        return len(self.claims[of] & wanted) / max(len(wanted), 1)

    def false_share(self, scenario: str) -> float:
        """Share of the designed decoys of a scenario that are claimed."""
        decoys = {one for one in self.designed - self.true if one[1][0] == scenario}
        return len(self.claims["claimed"] & decoys) / max(len(decoys), 1)


def tally(seeds: Sequence[int], n: int, cards: int = CARDS) -> Tally:
    """Watch fresh fleets for `n` minutes, try out what is open, and count."""
    result = Tally()
    for seed in seeds:
        by_scenario = {s: [make_world(s, seed, number, n) for number in range(cards)] for s in SCENARIOS}
        parts = [partition(scenario, worlds) for scenario, worlds in by_scenario.items()]
        detector = ContentionDetector()
        measures = pd.concat([detector.measure(part) for part in parts], ignore_index=True)
        window = Window(START.to_pydatetime(), (START + pd.Timedelta(days=2)).to_pydatetime())
        context = Context(window, 60.0, _NONE, _NONE, _NONE, {})
        start = time.process_time()
        probed = with_probes(measures, context, seed)
        result.seconds += time.process_time() - start
        result.trials += probed.trials
        result.pairs += probed.pairs
        for world in (w for worlds in by_scenario.values() for w in worlds):
            left_out = world.undecidable if world.scenario == LEFT_OUT else set()
            named = {(seed, (world.scenario, world.number, *pair)) for pair in world.true}
            unsure = {(seed, (world.scenario, world.number, *pair)) for pair in left_out}
            result.true |= named - unsure
            result.free |= unsure
            result.designed.add((seed, (world.scenario, world.number, "v", "a")))
        watched = detector.conclude(measures, context).findings
        for name, findings, kinds in (
            ("watched", watched, _CLAIM),
            ("claimed", probed.findings, _CLAIM),
            ("held", probed.findings, {Verdict.HOLDS}),
        ):
            result.claims[name] |= {(seed, _pair(f)) for f in findings if f.verdict in kinds}
    return result


def _pair(finding: Finding) -> Pair:
    victim, suspect = finding.subject(Role.VICTIM), finding.subject(Role.SUSPECT)
    return victim.node, int(victim.gpu.rsplit("-", 1)[1]), victim.workload, suspect.workload


def run() -> list[Figure]:
    """Measure on the reported seeds."""
    figures = []
    for label, n in WINDOWS.items():
        result = tally(REPORTED_SEEDS, n)
        name = f"{label}, with the probe"
        watched = "watching alone"
        for measure in ("f1", "precision", "recall"):
            of = getattr(result, measure)
            bound = F1_BARS.get(label) if measure == "f1" else None
            figures.append(
                figure(f"{name}: {measure}", of(), "ratio", peer=of("watched"), peer_name=watched, at_least=bound)
            )
        figures.append(figure(f"{name}: f1 of what holds", result.f1("held"), "ratio"))
        for scenario, word in (("true_weak", "weak (3-6 %) effects kept"), ("true_lag", "lagged effects kept")):
            kept, before = result.recall("claimed", scenario), result.recall("watched", scenario)
            figures.append(figure(f"{name}: {word}", kept, "ratio", peer=before, peer_name=watched, at_least=before))
        for scenario in ("always_on", "arrival_step"):
            kept, before = result.recall("claimed", scenario), result.recall("watched", scenario)
            figures.append(figure(f"{name}: {scenario} found", kept, "ratio", peer=before, peer_name=watched))
        figures.append(
            figure(f"{name}: reactions within the sample claimed", result.false_share("null_reverse_sync"), "ratio")
        )
        trials = result.trials
        minutes = [trial.throttled_minutes for trial in trials]
        figures += [
            figure(f"{name}: pairs tried out", len(trials) / max(result.pairs, 1), "ratio"),
            figure(f"{name}: throttled a trial", float(np.mean(minutes)) if minutes else 0.0, "min", at_most=160.0),
            figure(f"{name}: length of a trial", float(np.mean([t.minutes for t in trials])), "min", at_most=LONGEST),
            figure(f"{name}: CPU a trial, its world made", 1000 * result.seconds / max(len(trials), 1), "ms"),
        ]
    return figures
