"""From the measures of one pair and its q to a verdict, with the reasons in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analyzer.contention.direction import TWO_STATES
from analyzer.contention.record import PairMeasure
from analyzer.contention.series import Floats
from analyzer.findings import Verdict

_LEAD_Z = 4.0  # prewhitened: four standard errors, as the suspect has four chances to follow
_TIME_Z = 5.0
_SHAPE_Z = 2.0
_STATE_Z = 3.5
_STATE_SHARE = 0.6
_FORESIGHT_Z = 3.0
_DOSE_Z = 3.0
_MEMORY = 0.4
_RHYTHM_Z = 3.0
_INFLUENCE_Z = 2.0
_BLIND = 0.15  # an interval that still holds this slow-down has excluded nothing


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with its reason, what would decide it (where open), and how surely it stands (0..1)."""

    verdict: Verdict
    reason: str
    needs: tuple[str, ...]
    confidence: float


def benjamini_hochberg(p: Sequence[float] | Floats) -> Floats:
    """Return q-values: the smallest false-discovery rate at which each test would be accepted (NaN stays NaN)."""
    values = np.asarray(p, dtype=np.float64)
    result = np.full(values.shape, np.nan)
    tested = np.flatnonzero(np.isfinite(values))
    if tested.size == 0:
        return result
    order = tested[np.argsort(values[tested], kind="stable")]
    scaled = values[order] * order.size / np.arange(1, order.size + 1)
    result[order] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1.0)
    return result


def judge(pair: PairMeasure, q: float, *, fdr: float, effect_floor: float, coverage_floor: float) -> Judgement:
    """Decide one pair.

    Args:
        pair: its measures.
        q: its false-discovery rate among all tested pairs of the fleet; NaN if untested.
        fdr: rate that is accepted.
        effect_floor: smallest slow-down worth a word, as a ratio.
        coverage_floor: share of samples below which nothing holds.
    """
    if pair.untested:
        return Judgement(Verdict.CANNOT_TELL, pair.untested, (pair.needs,), 0.0)
    if not q <= fdr or math.isnan(pair.influence_z):
        return _nothing_seen(pair)
    refuted = _refutation(pair, effect_floor)
    if refuted:
        return _no(refuted, pair)
    if pair.influence_z < _INFLUENCE_Z:
        needs = ("a second start or stop of the suspect", "a short throttle of the suspect")
        return Judgement(
            Verdict.CANNOT_TELL, "nearly all of it comes from one stretch of time, which may be chance", needs, 0.0
        )
    doubt, reason = _doubt(pair, effect_floor, coverage_floor)
    if doubt:
        return Judgement(Verdict.SUSPECTED, doubt, (reason, "a short throttle of the suspect"), 0.5 * _trust(pair))
    return Judgement(Verdict.HOLDS, reason, (), (1.0 - q) * _trust(pair))


def _refutation(pair: PairMeasure, effect_floor: float) -> str:
    """Say what else explains a significant pair, or nothing."""
    if pair.effect < effect_floor:
        return f"at most {max(pair.effect, 0.0):.1%} slower while the suspect is busiest, too little to matter"
    if pair.lead_z > max(_LEAD_Z, pair.lag_z, pair.same_z):
        return "the suspect becomes busy after the victim was slow, not the other way round"
    if pair.rival:
        return f"{pair.rival} is busy at the same times and explains it better"
    return ""


def _doubt(pair: PairMeasure, effect_floor: float, coverage_floor: float) -> tuple[str, str]:
    """Return what keeps a pair from holding and what would help, or an empty doubt and why it holds."""
    if pair.coverage < coverage_floor:
        return f"only {pair.coverage:.0%} of the samples are there", "a source without gaps"
    if not pair.channel:
        walls = (
            f"nothing that they share and that is full ({pair.pressure})"
            if pair.pressure
            else "nothing that MIG leaves shared"
        )
        return f"{walls} explains it", "PCIe, NVLink and host counters of both"
    if pair.twins:
        return (
            f"{pair.twins} always runs at the same times: it may be either of them",
            "a run of one without the other",
        )
    forward, reason = _direction(pair)
    if not forward:
        return reason, "a scheduled start or stop of the suspect"
    if pair.effect_lower < effect_floor:
        return "it may be too small to matter", "a longer window"
    return "", reason


def risk(pair: PairMeasure) -> str:
    """Say how the claim could be wrong."""
    parts = ["something unmeasured that runs whenever the suspect runs would look the same"]
    if pair.cost.startswith("latency"):
        parts.append("latency holds queueing, which the measured load may not fully explain")
    elif pair.cost.endswith("_active_ratio"):
        parts.append("no application told its work: SM time per pipe activity also moves with the kind of kernels")
    elif " per " in pair.cost:
        parts.append("GPU cost per unit of work also moves with the mix of requests")
    if pair.activity and pair.activity != "sm_active_ratio":
        parts.append(f"the suspect's activity is known only as {pair.activity}")
    return "; ".join(parts)


def _nothing_seen(pair: PairMeasure) -> Judgement:
    if pair.effect_upper > _BLIND:
        hidden = f"{pair.effect_upper:.0%} slower" if pair.effect_upper < 1.0 else "twice as slow"
        reason = f"the victim varies too much by itself: {hidden} would not show"
        return Judgement(Verdict.CANNOT_TELL, reason, ("a longer window", "a finer latency signal"), 0.0)
    return _no(f"at most {max(pair.effect_upper, 0.0):.0%} slower while the suspect is busiest", pair)


def _no(reason: str, pair: PairMeasure) -> Judgement:
    return Judgement(Verdict.NO_EFFECT, reason, (), _trust(pair))


def _direction(pair: PairMeasure) -> tuple[bool, str]:
    """Say whether the suspect moves the victim, and by which evidence (or what speaks against it)."""
    late = pair.lag_z > max(_TIME_Z, pair.lead_z) and pair.lag_z > 1.5 * abs(pair.same_z)
    own = _own_rhythm(pair)
    looks = (
        (late and pair.lag_seconds > 0, True, "the victim becomes slow after the suspect became busy"),
        (
            pair.foresight_z > _FORESIGHT_Z,
            False,
            "the victim was slow shortly before already: the suspect may be busy because of it",
        ),
        (
            bool(pair.suspect_serves) and pair.dose_z < _DOSE_Z,
            False,
            "the suspect serves requests, and more of them may come because the victim is slow (retries)",
        ),
        (
            bool(own) and _apart(pair),
            True,
            own,
        ),
        (
            pair.rhythm_z < -_RHYTHM_Z,
            False,
            "the suspect comes and goes just as the slow spells of the victim do: it may be busy because of them",
        ),
        (
            pair.rhythm_z > _RHYTHM_Z,
            True,
            "the victim takes on the rhythm of the suspect, not the other way round",
        ),
        (bool(own), True, own),
        (
            pair.shape_z < -_SHAPE_Z,
            False,
            "both begin within the same sample, and the suspect may be busy because the victim is slow",
        ),
    )
    undecided = (False, "both begin within the same sample, and which of them comes first cannot be told")
    return next(((forward, reason) for seen, forward, reason in looks if seen), undecided)


def _apart(pair: PairMeasure) -> bool:
    """Say whether the victim, too, lies in two states: at least so far apart, with two standard errors to spare."""
    return pair.state_z > _INFLUENCE_Z and pair.gap * (1.0 - 2.0 / pair.state_z) > TWO_STATES


def _own_rhythm(pair: PairMeasure) -> str:
    """Say how the suspect shows a rhythm of its own, or nothing."""
    if not pair.memory > _MEMORY:
        return ""
    shares = _STATE_SHARE <= pair.state_share <= 1.0 / _STATE_SHARE
    if pair.states > TWO_STATES and pair.state_z > _STATE_Z and shares:
        return "the victim slows and recovers as the suspect starts and stops"
    if min(pair.shape_z, pair.own_z) > _SHAPE_Z:
        return "the suspect has a rhythm of its own, which the slow spells of the victim do not explain"
    return ""


def _trust(pair: PairMeasure) -> float:
    """How far the signals carry: the victim's, the suspect's, and how much of them was there."""
    by_exclusion = 0.8 if pair.channel_basis == "excluded" else 1.0
    apart = 0.8 if pair.suspect_gpu else 1.0
    return pair.cost_trust * pair.activity_trust * min(1.0, 0.5 + 0.5 * pair.coverage) * by_exclusion * apart
