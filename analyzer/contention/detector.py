"""TT101 and TT102: one slice hurts another, on the same card or across the cards of a node."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any

import pandas as pd
from threadpoolctl import threadpool_limits

from analyzer.contention.across import NO_PRESSURE, measure_across
from analyzer.contention.experiment import (
    PROBE_FDR,
    RISK,
    Experiment,
    PairKey,
    describe_experiment,
    evidence_of,
    experiments,
    holder_name,
    judge_experiment,
    with_experiment,
)
from analyzer.contention.pairs import Place, measure_card
from analyzer.contention.record import THROTTLE, PairMeasure
from analyzer.contention.series import cards
from analyzer.contention.verdict import Judgement, benjamini_hochberg, judge, risk
from analyzer.contention.words import describe
from analyzer.evidence import SampleWindows, alike, sample_windows
from analyzer.facts import Key
from analyzer.findings import Effect, Finding, Role, SubjectRef, Verdict, make_finding, plain
from analyzer.protocols import Conclusion, Context, Needs, Partition, Withheld
from analyzer.settings import AnalyzeSettings

CODE = "TT101"
ACROSS = "TT102"
_COLUMNS = [field.name for field in fields(PairMeasure)]
_VALUES = attrgetter(*_COLUMNS)
_TEXT = [field.name for field in fields(PairMeasure) if field.type == "str"]
_EVIDENCE = (
    "cost",
    "activity",
    "samples",
    "swing",
    "episodes",
    "controls",
    "correlation",
    "z",
    "influence_z",
    "lead_z",
    "lag_z",
    "same_z",
    "states",
    "state_z",
    "state_share",
    "gap",
    "shape_z",
    "own_z",
    "rhythm_z",
    "memory",
    "foresight_z",
    "dose_z",
    "channel_shares",
    "channel_basis",
    "twins",
    "pressure",
)
_ORDER = {Verdict.HOLDS: 0, Verdict.SUSPECTED: 1, Verdict.CANNOT_TELL: 2, Verdict.NO_EFFECT: 3}


class ContentionDetector:
    """Finds who slows whom on a card, from service times and activity alone."""

    def __init__(self, settings: AnalyzeSettings | None = None) -> None:
        self._settings = settings if settings is not None else AnalyzeSettings()

    @property
    def codes(self) -> tuple[str, ...]:
        """Finding codes that it can give."""
        return CODE, ACROSS

    @property
    def needs(self) -> Needs:
        """Nothing is needed in every case: each field has a stand-in, and a pair without any is counted by name."""
        return {CODE: {"slice": ()}, ACROSS: {"slice": ()}}

    def measure(self, partition: Partition) -> pd.DataFrame:
        """Measure every directed pair of holders that share a card of this node: one row a pair (`PairMeasure`)."""
        rows: list[PairMeasure] = []
        node_cards = cards(partition)
        windows = sample_windows(partition.facts)
        # The matrices are small: threads of the linear algebra would only wait for one another.
        with threadpool_limits(limits=1, user_api="blas"):
            for card in node_cards:
                rows += measure_card(
                    card,
                    cluster=partition.cluster,
                    node=partition.node,
                    interval_seconds=partition.interval_seconds,
                    coverage_floor=self._settings.coverage_floor,
                    close=self._settings.fdr,
                    elsewhere=tuple(other for other in node_cards if other is not card),
                )
            place = Place(
                partition.cluster,
                partition.node,
                partition.interval_seconds,
                self._settings.coverage_floor,
                self._settings.fdr,
                (),
            )
            rows += measure_across(node_cards, place)
        rows = [
            row if row.untested or _alike(row, windows, partition.interval_seconds) else _unlike(row) for row in rows
        ]
        return pd.DataFrame([_VALUES(row) for row in rows], columns=_COLUMNS)

    def conclude(self, measures: pd.DataFrame, context: Context) -> Conclusion:
        """Control false discoveries over the fleet and give every pair its verdict.

        Each pair is exactly one finding, or (where nothing could test it) one entry of `withheld`. A pair that was
        tried out by a probe lately is judged by that.
        """
        if measures.empty:  # no node had rows: there is not even a column
            return Conclusion([], [])
        columns = [measures[name].tolist() for name in _COLUMNS]
        pairs = [_pair(dict(zip(_COLUMNS, row, strict=True))) for row in zip(*columns, strict=True)]
        pairs.sort(key=lambda pair: (pair.cluster, pair.node, pair.gpu, pair.victim, pair.suspect_gpu, pair.suspect))
        quality = benjamini_hochberg([pair.p for pair in pairs])
        tried = experiments(context.facts, context.window.end)
        floor = self._settings.contention_effect_floor
        findings: list[Finding] = []
        withheld: list[Withheld] = []
        for pair, q in zip(pairs, quality, strict=True):
            if pair.untested == NO_PRESSURE:
                withheld.append(
                    Withheld(ACROSS, pair.cluster, pair.node, pair.gpu, pair.victim, NO_PRESSURE, applicable=False)
                )
                continue
            experiment = None if pair.suspect_gpu else tried.get(_key(pair))
            shown = None
            if experiment is not None:
                shown = judge_experiment(experiment, fdr=PROBE_FDR, effect_floor=floor, watched=pair.effect)
            if experiment is not None and shown is not None:
                findings.append(_by_experiment(pair, experiment, shown, context))
                continue
            if pair.untested and THROTTLE not in pair.needs:
                reason = f"{pair.suspect} against it: {pair.untested}; needs {pair.needs}"
                withheld.append(Withheld(_code(pair), pair.cluster, pair.node, pair.gpu, pair.victim, reason))
                continue
            judgement = judge(
                pair,
                float(q),
                fdr=self._settings.fdr,
                effect_floor=floor,
                coverage_floor=self._settings.coverage_floor,
            )
            finding = _finding(pair, float(q), judgement, context)
            findings.append(finding if experiment is None else _with_probe(finding, experiment))
        findings.sort(key=lambda f: (_ORDER[f.verdict], -(f.effect.value if f.effect else 0.0), f.id))
        return Conclusion(findings, withheld)


def _alike(pair: PairMeasure, windows: Mapping[Key, SampleWindows], interval_seconds: float) -> bool:
    """Say whether cost and activity are told over like windows; a holder of a whole card has the card's."""

    def seconds(gpu: str, part: str, kind: str, field: str) -> float:
        told = windows.get((pair.cluster, pair.node, gpu, "" if kind == "whole" else part))
        return math.nan if told is None else told.seconds(field, interval_seconds)

    cost = pair.cost.split(" ")[0]  # `sm_active_ratio per requests` is as long a mean as its activity
    one = seconds(pair.gpu, pair.victim, pair.victim_kind, cost)
    return alike(one, seconds(pair.suspect_gpu or pair.gpu, pair.suspect, pair.suspect_kind, pair.activity))


def _unlike(pair: PairMeasure) -> PairMeasure:
    untested = f"{pair.cost} and {pair.activity} are means over unlike windows"
    return replace(pair, p=math.nan, untested=untested, needs="both sampled over windows of like length")


def _pair(values: dict[str, Any]) -> PairMeasure:
    for name in _TEXT:
        values[name] = values[name] if isinstance(values[name], str) else ""
    return PairMeasure(**values)


def _code(pair: PairMeasure) -> str:
    return ACROSS if pair.suspect_gpu else CODE


def _key(pair: PairMeasure) -> PairKey:
    victim = holder_name(pair.victim_tenant, pair.victim_workload, pair.victim)
    suspect = holder_name(pair.suspect_tenant, pair.suspect_workload, pair.suspect)
    return pair.cluster, pair.node, pair.gpu, victim, suspect


def _by_experiment(pair: PairMeasure, experiment: Experiment, judgement: Judgement, context: Context) -> Finding:
    tried = with_experiment(pair, experiment)
    watched = {"p": pair.p, "effect": pair.effect, "lower": pair.effect_lower, "upper": pair.effect_upper}
    finding = _with_probe(_finding(tried, experiment.q, judgement, context), experiment)
    return replace(
        finding,
        claim=describe_experiment(tried, judgement),
        risk=RISK,
        evidence={**finding.evidence, "watched": plain(watched)},
    )


def _with_probe(finding: Finding, experiment: Experiment) -> Finding:
    return replace(finding, evidence={**finding.evidence, "probe": evidence_of(experiment)})


def _finding(pair: PairMeasure, q: float, judgement: Judgement, context: Context) -> Finding:
    subjects = (
        SubjectRef(
            Role.VICTIM, pair.cluster, pair.node, pair.gpu, pair.victim, pair.victim_workload, pair.victim_tenant
        ),
        SubjectRef(
            Role.SUSPECT,
            pair.cluster,
            pair.node,
            pair.suspect_gpu or pair.gpu,
            pair.suspect,
            pair.suspect_workload,
            pair.suspect_tenant,
        ),
    )
    evidence = {name: getattr(pair, name) for name in _EVIDENCE} | {"reason": judgement.reason}
    measured = math.isfinite(pair.effect)
    return make_finding(
        _code(pair),
        judgement.verdict,
        subjects,
        context.window,
        claim=describe(pair, judgement, context.window.start, context.interval_seconds),
        risk=risk(pair),
        confidence=judgement.confidence,
        coverage=pair.coverage,
        effect=Effect(pair.effect, "ratio", pair.effect_lower, pair.effect_upper) if measured else None,
        lag_seconds=pair.lag_seconds,
        channel=pair.channel or None,
        p=pair.p,
        q=q,
        evidence=evidence,
        needs=judgement.needs,
        simulated=context.simulated,
    )
