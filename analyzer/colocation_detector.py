"""TT111: these two must not share a card, told before they do (`analyzer.colocation`).

Rests on solo profiles (intervals in which a workload had a card to itself and worked) and on the pairs that TT101
measured, in this window. Workloads that share a card are all judged; of those that never met only what is decided is
told, the surest first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from analyzer.attribution import first_known
from analyzer.cards import cards
from analyzer.colocation import DRAM, MEMORY, SM, TENSOR, Basis, MeasuredPair, Sharing, Solo, predict, rank, slower
from analyzer.facts import records
from analyzer.findings import Effect, Finding, Role, SubjectRef, Verdict, make_finding
from analyzer.known import known_mean
from analyzer.protocols import Conclusion, Context, Needs, Partition, Withheld
from analyzer.settings import AnalyzeSettings
from analyzer.shares import Card
from collector.schema import ACTIVITY, NOBODY, UNKNOWN

CODE = "TT111"
_PLACE = ["cluster", "node", "gpu", "slice"]
_KEY = [*_PLACE, "tenant", "workload"]
_PROFILE = {SM: "sm_active_ratio", DRAM: "dram_active_ratio", TENSOR: "tensor_active_ratio"}
_COLUMNS = [*_KEY, "model", "kind", "first", "last", "samples", "coverage", SM, DRAM, TENSOR, MEMORY]
_WORKS = 0.05  # activity from which a workload works, and below which a neighbour does not
_FEWEST = 10  # intervals alone and at work that make a profile
_SWEEPS = 160
_MOST_WORKLOADS = 40  # of one model of card, whose pairs are predicted; those that met always are
_MOST_UNMET = 40  # findings about pairs that never met
_WIDE = 2.0 * 1.959964
_DOUBT = 2.0  # how much wider an effect is taken whose verdict is only `suspected`
_TRUST = {Basis.MEASURED: 0.95, Basis.OTHER_CARD: 0.85, Basis.BOTH: 0.8, Basis.ONE: 0.6, Basis.PROFILES: 0.5}

Who = tuple[str, str, str]  # cluster, tenant, workload


class ColocationDetector:
    """Says which workloads must not share a card and which may."""

    codes = (CODE,)
    needs: ClassVar[Needs] = {CODE: {"slice": ("|".join(ACTIVITY),)}}
    reads = ("TT101",)

    def __init__(self, settings: AnalyzeSettings | None = None) -> None:
        self._settings = settings if settings is not None else AnalyzeSettings()

    def measure(self, partition: Partition) -> pd.DataFrame:
        """Return a row a slice and holder: how long it was there, and what it uses when it has the card to itself."""
        expected = max(partition.window.seconds / partition.interval_seconds, 1.0)
        rows = [row for card in cards(partition) for row in _stays(card, expected)]
        return pd.DataFrame(rows, columns=_COLUMNS)

    def conclude(self, measures: pd.DataFrame, context: Context) -> Conclusion:
        """Predict and judge the pairs of each cluster and model of card."""
        if measures.empty:
            return Conclusion([], [])
        rows = [_Stay(**row) for row in records(measures.sort_values([*_KEY, "first"], kind="stable"))]
        shared = [row for row in rows if not row.untold]
        pairs = _measured(context.findings, {(r.cluster, r.node, r.gpu, r.slice): r for r in rows})
        judged = _judge(shared, pairs, 1.0 + self._settings.sharing_slowdown_limit)
        told = {(row.who, row.model) for row in shared if math.isfinite(row.sm)}
        told |= {(_who(name), pair.card) for pair in pairs for name in (pair.victim, pair.suspect)}
        withheld = [
            Withheld(CODE, r.cluster, r.node, r.gpu, r.slice, r.untold or _UNTOLD, applicable=r.kind != "mig")
            for r in rows
            if r.untold or (r.who, r.model) not in told
        ]
        findings = [_finding(sharing, stays, together, context) for sharing, stays, together in judged]
        return Conclusion(findings, withheld)


_UNTOLD = "it never worked alone on its card, and no pair of it was measured: no verdict rests on it"


@dataclass(frozen=True, slots=True)
class _Stay:
    """One row of the measures: a holder's stay on a slice."""

    cluster: str
    node: str
    gpu: str
    slice: str
    tenant: str
    workload: str
    model: str
    kind: str
    first: int
    last: int
    samples: int
    coverage: float
    sm: float
    dram: float
    tensor: float
    memory: float

    @property
    def who(self) -> Who:
        return self.cluster, self.tenant, self.workload

    @property
    def untold(self) -> str:
        """Why nothing can be said of it; empty: something may."""
        if self.kind == "mig":
            return "a MIG instance shares neither SMs nor memory with its neighbours"
        if self.tenant == NOBODY or self.workload in {"", UNKNOWN, NOBODY}:
            return "which workload it is, is not known"
        return ""


def _stays(card: Card, expected: float) -> Iterator[dict[str, Any]]:
    """Yield one row a holding: its profile is the mean over the intervals in which it alone was at work."""
    activity = first_known([card.of_slices(name) for name in ACTIVITY])
    # A neighbour of unknown activity may be busy: then nobody was alone.
    busy = np.where(card.present, np.nan_to_num(activity, nan=1.0), 0.0)
    alone = (activity >= _WORKS) & (busy.sum(axis=1, keepdims=True) - busy < _WORKS)
    size = card.of_card("memory_used_bytes") + card.of_card("memory_free_bytes")
    total = float(np.nanmedian(size)) if np.isfinite(size).any() else math.nan
    used = card.of_slices("memory_used_bytes") / total
    features = {
        name: first_known([card.of_slices(field), np.repeat(card.of_card(field)[:, None], len(card.holdings), axis=1)])
        for name, field in _PROFILE.items()
    }
    times = card.times_ms()
    for j, holding in enumerate(card.holdings):
        there = np.flatnonzero(card.present[:, j])
        mine = alone[:, j]
        profiled = mine.sum() >= _FEWEST
        yield {
            **card.holder(holding),
            "model": card.model,
            "kind": holding.kind,
            "first": int(times[there[0]]),
            "last": int(times[there[-1]]),
            "samples": int(mine.sum()),
            "coverage": min(len(there) / expected, 1.0),
            **{name: known_mean(values[mine, j]) if profiled else math.nan for name, values in features.items()},
            MEMORY: float(np.nanmax(used[:, j])) if np.isfinite(used[:, j]).any() else math.nan,
        }


def _name(who: Who) -> str:
    return "\x1f".join(who)


def _who(name: str) -> Who:
    cluster, tenant, workload = name.split("\x1f")
    return cluster, tenant, workload


def _measured(findings: Iterable[Finding], stays: dict[tuple[str, str, str, str], _Stay]) -> list[MeasuredPair]:
    """Return the pairs that TT101 measured; what it found to be another's doing says nothing of the pair."""
    pairs = []
    for finding in findings:
        effect = finding.effect
        if effect is None or not effect.lower > -1.0 or finding.verdict is Verdict.CANNOT_TELL:
            continue
        explained_away = finding.verdict is Verdict.NO_EFFECT and effect.lower > 0
        victim, suspect = finding.subject(Role.VICTIM), finding.subject(Role.SUSPECT)
        stay = stays.get((victim.cluster, victim.node, victim.gpu, victim.slice))
        hurt, blamed = (_name((s.cluster, s.tenant, s.workload)) for s in (victim, suspect))
        known = all(s.workload not in {"", UNKNOWN} for s in (victim, suspect))
        if stay is None or stay.kind == "mig" or explained_away or not known:
            continue
        error = (math.log1p(effect.upper) - math.log1p(effect.lower)) / _WIDE
        error *= _DOUBT if finding.verdict is Verdict.SUSPECTED else 1.0
        pairs.append(MeasuredPair(hurt, blamed, stay.model, 1.0 + effect.value, error))
    return sorted(pairs, key=lambda p: (p.card, p.victim, p.suspect, p.slowdown))


def _judge(
    stays: Sequence[_Stay], pairs: Sequence[MeasuredPair], limit: float
) -> list[tuple[Sharing, list[_Stay], bool]]:
    """Return what is told: the verdict, the stays of both, and whether they met."""
    by_who: dict[tuple[str, str], list[_Stay]] = {}
    for stay in stays:
        by_who.setdefault((_name(stay.who), stay.model), []).append(stay)
    met = _met(stays)
    candidates: dict[tuple[str, str], list[str]] = {}
    for (name, model), mine in sorted(by_who.items(), key=lambda item: -sum(s.samples for s in item[1])):
        candidates.setdefault((mine[0].cluster, model), []).append(name)
    asked = set(met)
    for (_, model), names in candidates.items():
        asked |= {(min(two), max(two), model) for two in combinations(names[:_MOST_WORKLOADS], 2)}
    wanted = sorted({way for a, b, model in asked for way in ((a, b, model), (b, a, model))})
    solos = [_solo(name, model, mine) for (name, model), mine in sorted(by_who.items())]
    judged = rank(predict(solos, pairs, wanted, limit=limit, sweeps=_SWEEPS), limit)
    told, unmet = [], []
    for sharing in judged:
        worse = sharing.worse
        both = [*by_who[worse.victim, worse.card], *by_who[worse.suspect, worse.card]]
        if (min(worse.victim, worse.suspect), max(worse.victim, worse.suspect), worse.card) in met:
            told.append((sharing, both, True))
        elif sharing.verdict is not Verdict.CANNOT_TELL:
            unmet.append((sharing, both, False))
    unmet.sort(key=lambda item: -abs(item[0].worse.beyond - 0.5) if item[0].worse.fits else -1.0)
    return told + unmet[:_MOST_UNMET]


def _met(stays: Sequence[_Stay]) -> set[tuple[str, str, str]]:
    """Return the pairs that were on one card at one time."""
    on_card: dict[tuple[str, str, str], list[_Stay]] = {}
    for stay in stays:
        on_card.setdefault((stay.cluster, stay.node, stay.gpu), []).append(stay)
    met = set()
    for here in on_card.values():
        for one, other in combinations(here, 2):
            if one.slice != other.slice and one.first <= other.last and other.first <= one.last:
                a, b = sorted((_name(one.who), _name(other.who)))
                met.add((a, b, one.model))
    return met


def _solo(name: str, model: str, stays: Sequence[_Stay]) -> Solo:
    """Average the stays of a workload on one model of card, each by its samples; of memory take the most."""
    weights = np.array([s.samples for s in stays], dtype=np.float64)
    features = {}
    for feature in _PROFILE:
        values = np.array([getattr(s, feature) for s in stays], dtype=np.float64)
        good = np.isfinite(values)
        if good.any():
            features[feature] = float(np.average(values[good], weights=weights[good]))
    memory = [s.memory for s in stays if math.isfinite(s.memory)]
    return Solo(name, model, features=features | ({MEMORY: max(memory)} if memory else {}))


def _finding(sharing: Sharing, stays: Sequence[_Stay], together: bool, context: Context) -> Finding:
    worse, other = sharing.worse, sharing.other
    victim, suspect = _who(worse.victim), _who(worse.suspect)
    known = math.isfinite(worse.slowdown) and worse.fits  # two that do not fit together never slow each other
    return make_finding(
        CODE,
        sharing.verdict,
        tuple(
            SubjectRef(role, who[0], workload=who[2], tenant=who[1])
            for role, who in ((Role.VICTIM, victim), (Role.SUSPECT, suspect))
        ),
        context.window,
        claim=_claim(sharing, victim, suspect),
        risk=_risk(worse.basis),
        confidence=_confidence(sharing),
        coverage=float(np.mean([s.coverage for s in stays])),
        effect=Effect(worse.slowdown - 1.0, "ratio", worse.lower - 1.0, worse.upper - 1.0) if known else None,
        channel=None if worse.fits else "memory",
        evidence={
            "reason": sharing.reason,
            "rests_on": worse.basis.value,
            "card": worse.card,
            "met": together,
            "chance_beyond_limit": worse.beyond,
            "other_way": slower(other) if math.isfinite(other.slowdown) else other.basis.value,
            "memory_of_both": worse.memory,
        },
        needs=sharing.needs,
        simulated=context.simulated,
    )


def _claim(sharing: Sharing, victim: Who, suspect: Who) -> str:
    worse = sharing.worse
    card = f"one {worse.card}" if worse.card else "one card"
    a, b = f"{victim[1]}/{victim[2]}", f"{suspect[1]}/{suspect[2]}"
    if not worse.fits:
        return f"{a} and {b} must not share {card}: {sharing.reason}"
    if sharing.verdict is Verdict.CANNOT_TELL:
        known = math.isfinite(worse.slowdown)
        why = f"{a} would be {sharing.reason}" if known else f"it {sharing.reason}"
        return f"whether {a} and {b} may share {card} cannot be told: {why}"
    words = {Verdict.HOLDS: "must not", Verdict.SUSPECTED: "should probably not", Verdict.NO_EFFECT: "may"}
    most = "at worst " if sharing.verdict is Verdict.NO_EFFECT else ""
    return f"{a} and {b} {words[sharing.verdict]} share {card}: {most}{a} would be {sharing.reason}"


def _risk(basis: Basis) -> str:
    if basis is Basis.MEASURED:
        return "what was measured under one load need not hold under another"
    return "a prediction: the two were not seen together on such a card, and a workload may be unlike all others"


def _confidence(sharing: Sharing) -> float:
    worse = sharing.worse
    if not worse.fits:
        return 0.9
    chance = {Verdict.HOLDS: worse.beyond, Verdict.SUSPECTED: 0.7 * worse.beyond, Verdict.NO_EFFECT: 1 - worse.beyond}
    return chance.get(sharing.verdict, 0.0) * _TRUST.get(worse.basis, 0.0)
