"""What a probe left behind: a dated fact of the card, and how it changes the verdict on its pair."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta

import pandas as pd

from analyzer.contention.probe import ProbeResult
from analyzer.contention.record import PairMeasure
from analyzer.contention.verdict import Judgement, benjamini_hochberg
from analyzer.contention.words import names, slower, through
from analyzer.facts import to_float
from analyzer.findings import Verdict, plain
from collector.batch import Fact, Subject
from collector.words import plural

PROBE_FDR = 0.05  # false-discovery rate over all probes: a pair is probed for a reason, so more of them are true
VALID_FOR = timedelta(days=14)  # workloads change: an older experiment decides nothing any more
_PREFIX = "probe:"
_EXCLUDED = 0.1  # an interval below this slow-down is "no effect found"
_NUMBERS = ("p", "effect", "lower", "upper", "taken", "lag_seconds")
PairKey = tuple[str, str, str, str, str]  # cluster, node, gpu, victim, suspect


@dataclass(frozen=True, slots=True)
class Experiment:
    """A probe that ended at `at`: its numbers, the change that it was, and its q among all valid probes."""

    result: ProbeResult
    change: str
    at: datetime
    q: float = math.nan


def holder_name(tenant: str, workload: str, slice_id: str) -> str:
    """Return what a pair's history follows: the workload, or the slice where nobody knows its workload."""
    return f"{tenant}/{workload}" if workload not in ("", "unknown") else slice_id


def experiment_fact(card: Subject, victim: str, suspect: str, experiment: Experiment) -> Fact:
    """Return the fact that a probe of two holders (see `holder_name`) on a card leaves."""
    value = {**result_to_json(experiment.result), "change": experiment.change}
    return Fact(card, f"{_PREFIX}{victim}<{suspect}", json.dumps(value, sort_keys=True), experiment.at, "measured")


def result_to_json(result: ProbeResult) -> dict[str, object]:
    """Return plain JSON values, NaN as null."""
    return {name: plain(value) for name, value in asdict(result).items()}


def describe_result(result: ProbeResult) -> str:
    """Return what a trial showed in one sentence."""
    if result.problem:
        return f"it decided nothing, {result.problem}"
    return (
        f"{result.effect:.1%} slower at full swing (95 %: {result.lower:.1%} to {result.upper:.1%}), "
        f"p = {result.p:.2g} over {plural(result.pairs, 'pair')} of blocks"
    )


def experiments(facts: pd.DataFrame, until: datetime) -> dict[PairKey, Experiment]:
    """Return the newest probe of each pair that is still valid at `until`, with q-values over all of them.

    Facts that cannot be read as a probe are left out: they decide nothing.
    """
    if facts.empty:
        return {}
    told = facts[(facts["kind"] == "gpu") & facts["name"].str.startswith(_PREFIX)].sort_values("from", kind="stable")
    found: dict[PairKey, Experiment] = {}
    for cluster, node, gpu, name, value, at in told[["cluster", "node", "gpu", "name", "value", "from"]].to_numpy():
        victim, _, suspect = str(name).removeprefix(_PREFIX).partition("<")
        experiment = _experiment(str(value), at)
        if experiment is not None and until - VALID_FOR <= experiment.at <= until:
            found[str(cluster), str(node), str(gpu), victim, suspect] = experiment
    keys = sorted(found)
    quality = benjamini_hochberg([found[key].result.p for key in keys])
    return {
        key: Experiment(found[key].result, found[key].change, found[key].at, float(q))
        for key, q in zip(keys, quality, strict=True)
    }


def _experiment(value: str, at: datetime) -> Experiment | None:
    try:
        told = json.loads(value)
        numbers = {name: to_float(None if told[name] is None else str(told[name])) for name in _NUMBERS}
        result = ProbeResult(pairs=int(told["pairs"]), problem=str(told["problem"]), **numbers)
        return Experiment(result, str(told["change"]), pd.Timestamp(at).to_pydatetime())
    except (ValueError, TypeError, KeyError):
        return None


def judge_experiment(
    experiment: Experiment, *, fdr: float, effect_floor: float, watched: float = math.nan
) -> Judgement | None:
    """Return the verdict by experiment, or None where it decided nothing: what was seen passively then stands.

    Args:
        experiment: the probe.
        fdr: accepted rate of false discoveries among all probes.
        effect_floor: smallest slow-down worth a word, as a ratio.
        watched: slow-down that watching suggested (NaN: none): it is cleared too where not even half of it is left,
            unless the interval holds smaller slow-downs alone: then there is one.
    """
    result = experiment.result
    if result.problem:
        return None
    by = f"by experiment: {plural(result.pairs, 'pair')} of blocks, until {experiment.at:%Y-%m-%d %H:%M} UTC"
    if experiment.q <= fdr and result.effect >= effect_floor:
        return Judgement(Verdict.HOLDS, by, (), 1.0 - experiment.q)
    halved = result.lower < effect_floor and result.upper < 0.5 * watched
    if result.upper < _EXCLUDED or halved:
        return Judgement(
            Verdict.NO_EFFECT, f"at most {max(result.upper, 0.0):.0%} slower while it is busiest, {by}", (), 0.95
        )
    return None


def with_experiment(pair: PairMeasure, experiment: Experiment) -> PairMeasure:
    """Return a pair with the numbers of its probe in the place of those that were only watched."""
    result = experiment.result
    return replace(
        pair,
        untested="",
        needs="",
        p=result.p,
        effect=result.effect,
        effect_lower=result.lower,
        effect_upper=result.upper,
        lag_seconds=result.lag_seconds,
    )


def describe_experiment(pair: PairMeasure, judgement: Judgement) -> str:
    """Return the sentence that an operator reads of a pair that a probe decided."""
    if judgement.verdict is Verdict.NO_EFFECT:
        victim, suspect = names(pair)
        return f"{victim} on {pair.gpu} is not slowed by {suspect}: {judgement.reason}"
    return f"{slower(pair)}{through(pair)}; shown {judgement.reason}"


RISK = "it was shown for the load of those hours; what throttling does beside slowing the suspect would look the same"


def evidence_of(experiment: Experiment) -> Mapping[str, object]:
    """Return a probe as evidence of a finding."""
    numbers = result_to_json(experiment.result)
    return {**numbers, "q": plain(experiment.q), "change": experiment.change, "at": plain(experiment.at)}
