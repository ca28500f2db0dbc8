"""Pair prediction before co-locating: how much would these two slow each other, and may they share a card?

From solo profiles (what a workload uses of a card that it has to itself) and from the directed pairs already measured,
on this kind of card or another. The prediction is `analyzer.colocation_model`; here stand the profiles, the intervals,
what each prediction rests on, and the verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from scipy.sparse import csr_array

from analyzer.colocation_model import Effects, Floats, Ints, Prior, Wanted, complete
from analyzer.findings import Verdict

SM, DRAM, MEMORY, TENSOR = "sm", "dram", "memory", "tensor"  # features that the model knows the meaning of

_REACHABLE_DRAM = 0.8  # a memory interface reaches about 0.8 of its peak
_LEVEL = (0.025, 0.975)
# Weights before any pair was seen: a slow-down of 1.3 whatever the two are, and as much more as they ask for together.
_PRIOR = Prior(np.array([math.log(1.3), 1.0]), np.array([0.5, 0.5]))
_LIKELY = 0.8
_SLOWER = 1.005  # less rounds to no slow-down at all
_TOO_WIDE = 4.0  # upper over lower bound from which a prediction says nothing


class Basis(StrEnum):
    """What a prediction rests on, best first."""

    MEASURED = "this pair was measured"
    OTHER_CARD = "this pair was measured on another kind of card"
    BOTH = "both were measured with others"
    ONE = "one was measured with others, the other is known by its profile or its family"
    PROFILES = "their solo profiles or families alone"
    NOTHING = "nothing: neither a measured pair, nor a solo profile, nor a relative of one of them"


@dataclass(frozen=True, slots=True)
class Solo:
    """A workload by itself on one kind of card.

    Attributes:
        workload: its name.
        card: kind of card, and of sharing where that differs.
        family: name that relatives share (one program, other sizes); empty: none known.
        features: `sm`, `dram`, `tensor`, `memory` as ratios of the card, and any other number that tells workloads
            apart (such as the logarithm of its solo rate); absent or NaN: not known.
    """

    workload: str
    card: str
    family: str = ""
    features: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MeasuredPair:
    """A directed pair that shared a card: slow-down of the victim (1: none), standard error of its logarithm."""

    victim: str
    suspect: str
    card: str
    slowdown: float
    error: float = 0.0


@dataclass(frozen=True, slots=True)
class PairForecast:
    """Predicted slow-down of the victim, its 95 % interval, chance of more than the limit; NaN if nothing is known."""

    victim: str
    suspect: str
    card: str
    slowdown: float
    lower: float
    upper: float
    beyond: float
    basis: Basis
    memory: float  # of both together, as a ratio of the card; NaN: not known

    @property
    def fits(self) -> bool:
        """False where the card has not memory enough for both."""
        return not self.memory > 1.0


@dataclass(frozen=True, slots=True)
class Sharing:
    """May two workloads share a card? `worse` is the direction that decides, `reason` says why, `needs` what would."""

    worse: PairForecast
    other: PairForecast
    verdict: Verdict
    reason: str
    needs: tuple[str, ...] = ()


def predict(
    solos: Sequence[Solo],
    measured: Sequence[MeasuredPair],
    wanted: Sequence[tuple[str, str, str]],
    *,
    limit: float,
    sweeps: int = 400,
    seed: int = 0,
) -> list[PairForecast]:
    """Predict directed pairs.

    Args:
        solos: solo profiles; one of a workload and kind of card.
        measured: pairs that were measured, of any kind of card; one may be there several times.
        wanted: (victim, suspect, card) of the pairs asked about.
        limit: slow-down that `beyond` is the chance of passing.
        sweeps: of the sampler; three eighths are burnt in.
        seed: of the sampler.
    """
    profiles = {(s.workload, s.card): s for s in solos}
    usable = [m for m in measured if m.slowdown > 0 and math.isfinite(m.slowdown) and m.error < math.inf]
    keys = {(name, pair.card) for pair in usable for name in (pair.victim, pair.suspect)} | set(profiles)
    keys |= {(name, card) for victim, suspect, card in wanted for name in (victim, suspect)}
    items = {key: number for number, key in enumerate(sorted(keys))}
    known = [profiles.get(key, Solo(*key)) for key in items]
    seen = Effects(
        victim=_numbers(items, [(m.victim, m.card) for m in usable]),
        suspect=_numbers(items, [(m.suspect, m.card) for m in usable]),
        value=np.log(np.array([m.slowdown for m in usable], dtype=np.float64)),
        error=np.array([m.error for m in usable], dtype=np.float64),
        covariates=_covariates(profiles, [(m.victim, m.suspect, m.card) for m in usable]),
    )
    asked = Wanted(
        victim=_numbers(items, [(victim, card) for victim, _, card in wanted]),
        suspect=_numbers(items, [(suspect, card) for _, suspect, card in wanted]),
        covariates=_covariates(profiles, wanted),
        measured=_links(usable, wanted),
    )
    if not wanted:
        return []
    draws = complete(seen, asked, _side(known), _PRIOR, sweeps=sweeps, burn_in=sweeps * 3 // 8, seed=seed)
    middle = np.exp(draws.mean(axis=0))
    lower, upper = np.exp(np.quantile(draws, _LEVEL, axis=0))
    beyond = (draws > math.log(limit)).mean(axis=0)
    bases = _bases(profiles, usable, wanted)
    result = []
    for number, (victim, suspect, card) in enumerate(wanted):
        told = bases[number] is not Basis.NOTHING
        value, low, high, chance = (
            float(part[number]) if told else math.nan for part in (middle, lower, upper, beyond)
        )
        memory = sum(_feature(profiles, name, card, MEMORY) for name in (victim, suspect))
        result.append(PairForecast(victim, suspect, card, value, low, high, chance, bases[number], memory))
    return result


def share(one: PairForecast, other: PairForecast, limit: float) -> Sharing:
    """Judge two workloads by both directions: they share well only if neither suffers more than the limit."""
    worse, better = (one, other) if not other.slowdown > one.slowdown else (other, one)
    known = one.basis is not Basis.NOTHING and other.basis is not Basis.NOTHING
    if not worse.fits:
        text = f"together they hold {worse.memory:.0%} of the card's memory"
        return Sharing(worse, better, Verdict.HOLDS, text)
    if not known:
        return Sharing(worse, better, Verdict.CANNOT_TELL, f"rests on {Basis.NOTHING.value}", _NEEDS_ANYTHING)
    told = slower(worse)
    if worse.lower > limit:
        return Sharing(worse, better, Verdict.HOLDS, told)
    if max(one.upper, other.upper) <= limit:
        return Sharing(worse, better, Verdict.NO_EFFECT, told)
    if worse.beyond >= _LIKELY and not _tells_nothing(worse):
        return Sharing(worse, better, Verdict.SUSPECTED, told, _NEEDS_MORE)
    open_ = max(one, other, key=lambda f: f.upper)
    told = slower(open_) + (": too wide to tell anything" if _tells_nothing(open_) else "")
    return Sharing(open_, one if open_ is other else other, Verdict.CANNOT_TELL, told, _NEEDS_MORE)


def _tells_nothing(forecast: PairForecast) -> bool:
    return forecast.upper >= _TOO_WIDE * forecast.lower


def slower(forecast: PairForecast) -> str:
    """Return the size of a slow-down, its interval and what it rests on, in words."""
    size, low, high = (f"{value - 1.0:z.0%}" for value in (forecast.slowdown, forecast.lower, forecast.upper))
    told = f"{size} slower" if forecast.slowdown >= _SLOWER else "not slower"
    return f"{told} ({low} to {high}); {forecast.basis.value}"


_NEEDS_ANYTHING = ("a solo profile of both (an hour alone on a card)", "a trial of the two on one card")
_NEEDS_MORE = ("a trial of the two on one card", "more pairs measured with either of them")


def rank(forecasts: Sequence[PairForecast], limit: float) -> list[Sharing]:
    """Return every pair of which both directions were predicted, best partners first, unknown ones last.

    Args:
        forecasts: of `predict`; a workload with itself counts as both directions.
        limit: slow-down that nobody must suffer.
    """
    by_key = {(f.card, f.victim, f.suspect): f for f in forecasts}
    found = []
    for (card, victim, suspect), forecast in by_key.items():
        back = by_key.get((card, suspect, victim))
        if victim <= suspect and back is not None:
            found.append(share(forecast, back, limit))
    return sorted(found, key=_best_first)


def _best_first(sharing: Sharing) -> tuple[bool, bool, float, str, list[str]]:
    worse = sharing.worse
    unknown = math.isnan(worse.slowdown)
    names = sorted((worse.victim, worse.suspect))
    return unknown, not worse.fits, 0.0 if unknown else worse.slowdown, worse.card, names


def _numbers(items: Mapping[tuple[str, str], int], keys: Sequence[tuple[str, str]]) -> Ints:
    return np.array([items[key] for key in keys], dtype=np.int64)


def _links(measured: Sequence[MeasuredPair], wanted: Sequence[tuple[str, str, str]]) -> csr_array:
    """Return (wanted, measured): a row shares 1 out among the measurements of that very pair."""
    at: dict[tuple[str, str, str], list[int]] = {}
    for number, pair in enumerate(measured):
        at.setdefault((pair.victim, pair.suspect, pair.card), []).append(number)
    cells = [(row, column, 1.0 / len(at[key])) for row, key in enumerate(wanted) for column in at.get(key, ())]
    rows, columns, weights = zip(*cells, strict=True) if cells else ((), (), ())
    places = (np.array(rows, dtype=np.int64), np.array(columns, dtype=np.int64))
    return csr_array((np.array(weights, dtype=np.float64), places), shape=(len(wanted), len(measured)))


def _feature(profiles: Mapping[tuple[str, str], Solo], workload: str, card: str, name: str) -> float:
    solo = profiles.get((workload, card))
    return math.nan if solo is None else float(solo.features.get(name, math.nan))


def _covariates(profiles: Mapping[tuple[str, str], Solo], pairs: Sequence[tuple[str, str, str]]) -> Floats:
    """Return (pairs, 2): a constant, and the logarithm of how far the two together ask for more than the card."""
    rows = np.ones((len(pairs), 2))
    for number, (victim, suspect, card) in enumerate(pairs):
        asked = [
            sum(_feature(profiles, name, card, feature) for name in (victim, suspect)) / reach
            for feature, reach in ((SM, 1.0), (DRAM, _REACHABLE_DRAM))
        ]
        rows[number, 1] = math.log(max(1.0, *(a for a in asked if math.isfinite(a)), 1.0))
    return rows


def _side(known: Sequence[Solo]) -> list[Floats]:
    """Return groups of side information: kind of card, the workload itself across kinds, family, features."""
    cards = sorted({s.card for s in known})
    groups = [_indicators([s.card for s in known])] if len(cards) > 1 else []
    groups += [_indicators([s.workload for s in known]), _indicators([s.family for s in known])]
    names = sorted({name for s in known for name in s.features})
    columns = []
    for name in names:
        values = np.array([s.features.get(name, math.nan) for s in known], dtype=np.float64)
        there = np.isfinite(values)
        if there.sum() < 2 or np.ptp(values[there]) == 0:
            continue
        columns.append(np.where(there, (values - values[there].mean()) / values[there].std(), 0.0))
    groups.append(np.column_stack(columns) if columns else np.zeros((len(known), 0)))
    return groups


def _indicators(labels: Sequence[str]) -> Floats:
    """Return one 0/1 column a label that at least two items share; an empty label is none."""
    names = np.array(labels, dtype=str)
    shared, counts = np.unique(names, return_counts=True)
    return np.asarray(names[:, None] == shared[(counts > 1) & (shared != "")], dtype=np.float64)


def _bases(
    profiles: Mapping[tuple[str, str], Solo],
    measured: Sequence[MeasuredPair],
    wanted: Sequence[tuple[str, str, str]],
) -> list[Basis]:
    direct = {(m.victim, m.suspect, m.card) for m in measured}
    elsewhere = {(m.victim, m.suspect) for m in measured}
    met = {name for m in measured for name in (m.victim, m.suspect)}
    families = {s.family for s in profiles.values() if s.family and s.workload in met}

    def hinted(name: str, card: str) -> bool:
        solo = profiles.get((name, card))
        if solo is None:
            return False
        by_profile = any(math.isfinite(solo.features.get(feature, math.nan)) for feature in (SM, DRAM))
        return by_profile or solo.family in families

    def basis(victim: str, suspect: str, card: str) -> Basis:
        if (victim, suspect, card) in direct:
            return Basis.MEASURED
        if (victim, suspect) in elsewhere:
            return Basis.OTHER_CARD
        names = (victim, suspect)
        if all(name in met for name in names):
            return Basis.BOTH
        if not all(name in met or hinted(name, card) for name in names):
            return Basis.NOTHING
        return Basis.ONE if any(name in met for name in names) else Basis.PROFILES

    return [basis(*pair) for pair in wanted]
