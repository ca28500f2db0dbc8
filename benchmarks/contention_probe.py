"""Probes on the seeded worlds: the pairs that watching leaves open are tried out, on worlds nobody has looked at.

Each trial runs in a world of its own, drawn anew from the same scenario, so that it knows nothing of the noise on which
the pair was suspected. It sees no future: a pair of blocks begins when victim and suspect were at work for two minutes,
and what they do then is their own affair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
from analyzer.protocols import Context, Partition
from benchmarks.contention import partition
from benchmarks.contention_worlds import SCENARIOS, START, World, base
from collector.batch import Subject

OTHER_WORLD = 10_000  # added to the seed: the trial's world is not the one that was watched
DEPTH = 0.75  # of the suspect's share is taken away
BLOCK = 4  # minutes
REST = 4  # minutes between pairs: five throttles an hour, one less than a card's budget of changes
MOST_PAIRS = 40
LONGEST = 720  # minutes of one trial
WATCHED = 240  # minutes before it that its analysis may use
_BUSY_FOR = 2
_WORKS = 0.05  # activity below which a batch task makes no steps
OPEN = frozenset({Verdict.SUSPECTED, Verdict.CANNOT_TELL})


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial: what it showed and what it cost."""

    result: ProbeResult
    throttled_minutes: int
    minutes: int


def fresh_world(scenario: str, seed: int, number: int) -> World:
    """Make the world of a trial."""
    world = base(scenario, seed + OTHER_WORLD, number, WATCHED + LONGEST)
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
        times = (START.to_pydatetime() + timedelta(minutes=minute + shift) for shift in (0, BLOCK, 2 * BLOCK))
        blocks.append(BlockPair(*times, throttled_first=first))
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


def with_probes(parts: Sequence[Partition], measures: pd.DataFrame, context: Context, seed: int) -> Probed:
    """Conclude, try out what is open, and conclude again with what the trials showed."""
    detector = ContentionDetector()
    nodes = {part.node: part for part in parts}
    facts, trials, undecidable = [], [], 0
    for finding in detector.conclude(measures, context).findings:
        if finding.verdict not in OPEN:
            continue
        victim, suspect = finding.subject(Role.VICTIM), finding.subject(Role.SUSPECT)
        pairs = _pairs(nodes[victim.node], finding)
        if not pairs:
            undecidable += 1
            continue
        number = int(victim.gpu.rsplit("-", 1)[1])
        trial = run_trial(victim.node, seed, number, (victim.workload, suspect.workload), pairs)
        trials.append(trial)
        card = Subject("gpu", victim.cluster, victim.node, victim.gpu)
        names = (holder_name(s.tenant, s.workload, s.slice) for s in (victim, suspect))
        fact = experiment_fact(card, *names, Experiment(trial.result, "", context.window.end))
        facts.append(("gpu", card.cluster, card.node, card.gpu, "", "", fact.name, fact.value, fact.at, None, ""))
    told = pd.DataFrame(facts, columns=list(FACT_COLUMNS))
    told["from"] = pd.to_datetime(told["from"], utc=True)
    found = detector.conclude(measures, replace(context, facts=told)).findings
    return Probed(found, len(measures), trials, undecidable)


def _pairs(part: Partition, finding: Finding) -> int:
    victim, suspect = finding.subject(Role.VICTIM), finding.subject(Role.SUSPECT)
    ground = Ground.of(part, victim.gpu, victim.slice, suspect.slice)
    if isinstance(ground, str):
        return 0
    effect = float("nan") if finding.effect is None else finding.effect.value
    return pairs_to_run(Prospect.of(ground, BLOCK), effect, DEPTH, MOST_PAIRS)
