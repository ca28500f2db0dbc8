"""The probe: a randomised trial that holds a suspect back now and then, and asks whether its victim runs faster.

Pairs of neighbouring blocks, one with the suspect throttled and one as usual, in coin-flip order. If the suspect does
not touch the victim, swapping the two blocks of any pair changes nothing, so that the trial's own coins give the null
distribution: no model of load, hour, third parties or reverse causality is needed (sign-flip test; Fisher, 1935).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
from scipy.stats import norm
from scipy.stats import t as student

from analyzer.contention.design import Design
from analyzer.contention.series import MIN_SAMPLES, Bools, Card, Floats, Lane, cards, fill
from analyzer.contention.whiten import fit_ar, rank_normal, whiten
from analyzer.protocols import Partition

FLIPS = 4000
ALPHA = 0.003  # one-sided, of a single probe: small enough to be found among the probes of a fleet
POWER = 0.95
MIN_PAIRS = 8  # with fewer not even the clearest outcome is below 1 in 250
FEWEST_PAIRS = 16  # of a trial that is planned: some see nothing
WORTH_FINDING = 0.05  # slow-down at full swing that a trial should not miss
MAX_LAG = 6  # samples by which the victim may follow
BUSY = 0.5  # of its peak: below it throttling would take nothing from the suspect
_LONG = 200  # samples from which the noise model is of that order
_Z_ALPHA, _Z_POWER = float(norm.isf(ALPHA)), float(norm.ppf(POWER))
_ORDER = 6  # of the noise model
_EXACT = 12  # up to so many pairs all flips are counted
_HELD = 0.15  # of the suspect's level must be taken away, else the throttle did not bite
_SEED = 20260302


@dataclass(frozen=True, slots=True)
class BlockPair:
    """Two neighbouring blocks of a trial, by the times at which the suspect's share was really switched."""

    start: datetime
    middle: datetime
    end: datetime
    throttled_first: bool


@dataclass(frozen=True, slots=True)
class Ground:
    """Victim and suspect on one grid, ready for a trial: n samples, NaN absent.

    Attributes:
        noise: the victim's ln(cost) without what its load, the hour, the clock and other co-runners explain, whitened.
        ranked: the same as normal quantiles of its ranks, so that a few wild samples weigh like any others.
        activity: the suspect's share of the card in use.
        held: the suspect's activity, free of the same controls and whitened in the same way.
        memory: coefficients of the noise model.
        start: time of the first sample, in seconds since the epoch.
        interval_seconds: distance of the samples.
    """

    noise: Floats
    ranked: Floats
    activity: Floats
    held: Floats
    memory: Floats
    start: float
    interval_seconds: float

    @classmethod
    def of(cls, partition: Partition, gpu: str, victim: str, suspect: str) -> Ground | str:
        """Lay a pair out for a trial, or say why it cannot be.

        Args:
            partition: rows of the node, history and trial together.
            gpu: the card.
            victim: a slice of the victim.
            suspect: a slice of the suspect.
        """
        card = next((card for card in cards(partition) if card.gpu == gpu), None)
        one, other = (None, None) if card is None else (_lane(card, victim), _lane(card, suspect))
        if card is None or one is None or other is None:
            return "the two are not on the card together"
        if one.cost is None or np.isfinite(one.cost.values).sum() < MIN_SAMPLES:
            return "the victim tells no time per unit of work"
        if other.activity is None:
            return "nothing tells the suspect's activity"
        lanes = [lane for lane in card.lanes if lane is not one]
        # What nobody accounts for is what the slices leave of the card: the throttle itself moves it.
        nobody = np.full_like(card.unattributed, np.nan)
        card = replace(card, unattributed=nobody, hidden=np.zeros(nobody.size, dtype=bool))
        design = Design.of(card, one, one.cost, lanes, elsewhere=(), interval_seconds=partition.interval_seconds)
        pick, rows = design.others(other, [])
        activity = other.activity.values[design.cut]
        if (rows & np.isfinite(activity)).sum() < MIN_SAMPLES:
            return "too few samples of both"
        outcome = design.projection.residual(np.where(rows, design.outcome, np.nan), rows, pick)
        memory = fit_ar(outcome, _ORDER if rows.sum() >= _LONG else 1)
        # A gap would cost `order` samples after it too: what is remembered across it is read off a straight line.
        noise = np.where(rows, whiten(fill(outcome), memory), np.nan)
        both = rows & np.isfinite(activity)
        level = np.full_like(activity, np.nan)
        moved = design.projection.residual(np.where(rows, fill(activity), np.nan), rows, pick)
        level[both] = moved[both]
        return cls(
            noise=noise,
            ranked=rank_normal(noise),
            activity=activity,
            held=np.where(np.isfinite(noise), whiten(fill(level), memory), np.nan),
            memory=memory,
            start=partition.window.start.timestamp() + design.cut.start * partition.interval_seconds,
            interval_seconds=partition.interval_seconds,
        )

    @property
    def peak(self) -> float:
        """98 % quantile of the suspect's activity."""
        return float(np.nanquantile(self.activity, 0.98))

    def swing(self, among: Bools) -> float:
        """Return the suspect's full swing: 2 to 98 %, or from idle where it hardly ever rests.

        Args:
            among: the samples that count, (n,): those in which it was held back are not its own doing.
        """
        known = self.activity[among & np.isfinite(self.activity)]
        known = known if known.size >= MIN_SAMPLES else self.activity
        low, high = np.nanquantile(known, [0.02, 0.98])
        return float(high - low if low < BUSY * high else high)

    @property
    def busy(self) -> Bools:
        """Where the suspect is at work."""
        return np.isfinite(self.activity) & (self.activity >= BUSY * self.peak) & (self.activity > 0)

    def sides(self, pairs: Sequence[BlockPair]) -> Floats:
        """Return (pairs, n): -1 for the part of a sample in the first block, +1 for that in the second."""
        edges = np.asarray(self.start + np.arange(self.noise.size + 1.0) * self.interval_seconds)
        result = np.zeros((len(pairs), self.noise.size))
        for number, pair in enumerate(pairs):
            first, middle, end = pair.start.timestamp(), pair.middle.timestamp(), pair.end.timestamp()
            result[number] = _overlap(edges, middle, end) - _overlap(edges, first, middle)
        return result / self.interval_seconds


@dataclass(frozen=True, slots=True)
class Prospect:
    """What a trial of a pair could tell.

    Attributes:
        spread: standard deviation of the contrast of one pair of blocks, in ln(cost), where nothing is throttled.
        level: the suspect's mean activity while it is at work.
        swing: its full swing.
        busy_share: share of the time in which both are at work.
    """

    spread: float
    level: float
    swing: float
    busy_share: float

    @classmethod
    def of(cls, ground: Ground, block_samples: int) -> Prospect:
        """Learn from the past: contrasts of blocks as the trial would make them, all over the window."""
        n = ground.noise.size
        starts = np.arange(0, n - 2 * block_samples, max(block_samples, 1))
        sides = np.zeros((starts.size, n))
        for row, first in zip(sides, starts, strict=True):
            row[first : first + block_samples], row[first + block_samples : first + 2 * block_samples] = -1.0, 1.0
        scores, power = _scores(ground.noise, sides, ground.memory, 0)[0], _power(ground, sides)
        seen = power > 0.5 * max(float(power.max(initial=0.0)), 1e-12)
        contrasts = 2.0 * scores[seen] / power[seen]
        busy = ground.busy
        return cls(
            spread=_spread(contrasts),
            level=float(ground.activity[busy].mean()) if busy.any() else math.nan,
            swing=ground.swing(np.ones(n, dtype=bool)),
            busy_share=float((busy & np.isfinite(ground.noise)).mean()),
        )

    def contrast(self, effect: float, taken: float) -> float:
        """Return the contrast of a pair in ln(cost) where the slow-down at full swing is `effect`.

        Args:
            effect: as a ratio.
            taken: share of the suspect's activity that the throttle takes away.
        """
        return math.log1p(effect) * taken * self.level / self.swing if self.swing > 0 else 0.0

    def pairs_needed(self, effect: float, taken: float) -> float:
        """Return how many pairs of blocks find `effect` with `POWER` at `ALPHA`: ((z_a + z_b) spread / contrast)^2."""
        contrast = self.contrast(effect, taken)
        if not contrast > 0 or not math.isfinite(self.spread):
            return math.inf
        return float(max(math.ceil(((_Z_ALPHA + _Z_POWER) * self.spread / contrast) ** 2), FEWEST_PAIRS))

    def smallest(self, pairs: int, taken: float) -> float:
        """Return the slow-down at full swing that so many pairs of blocks find with `POWER` at `ALPHA`."""
        contrast = (_Z_ALPHA + _Z_POWER) * self.spread / math.sqrt(pairs)
        reach = taken * self.level / self.swing if self.swing > 0 else 0.0
        return math.expm1(min(contrast / reach, 50.0)) if reach > 0 else math.inf


def pairs_to_run(prospect: Prospect, effect: float, taken: float, most: int) -> int:
    """Return how many pairs of blocks a trial should have; 0: it would decide nothing within `most`.

    It is sized for half of the slow-down that was seen (a first look exaggerates), at least `WORTH_FINDING` and at
    most twice that; where even the whole of it would take more than `most`, it is left.

    Args:
        prospect: what the past says.
        effect: slow-down at full swing that is suspected, as a ratio; NaN: nobody knows.
        taken: share of the suspect's activity that the throttle takes away.
        most: pairs at most.
    """
    wanted = sought(effect)
    if prospect.pairs_needed(2 * wanted, taken) > most:
        return 0
    return int(min(prospect.pairs_needed(wanted, taken), most))


def sought(effect: float) -> float:
    """Return the slow-down that a trial is sized for where `effect` is suspected (NaN: nobody knows)."""
    return min(max(0.5 * effect, WORTH_FINDING), 2 * WORTH_FINDING) if math.isfinite(effect) else WORTH_FINDING


def coins(seed: int, pairs: int) -> tuple[bool, ...]:
    """Return for each pair of blocks whether the throttled one comes first: fair and independent coins."""
    return tuple(bool(side) for side in np.random.default_rng(seed).integers(0, 2, pairs))


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What a trial showed. Effects are ratios at the suspect's full swing, with a 95 % interval; NaN: not known.

    Attributes:
        p: one-sided p-value of a slow-down by the suspect, by the trial's own coins.
        pairs: pairs of blocks that were used.
        taken: share of the suspect's activity that the throttle took away.
        lag_seconds: by how much the victim follows.
        problem: why nothing can be said; empty: the numbers stand.
    """

    p: float
    effect: float
    lower: float
    upper: float
    pairs: int
    taken: float
    lag_seconds: float
    problem: str = ""


def nothing(pairs: int, problem: str) -> ProbeResult:
    """Return the result of a trial that can say nothing."""
    return ProbeResult(math.nan, math.nan, math.nan, math.nan, pairs, math.nan, math.nan, problem)


def analyse_probe(ground: Ground, pairs: Sequence[BlockPair], *, max_lag: int = MAX_LAG) -> ProbeResult:
    """Test a trial by flipping its coins, and estimate the effect with the coins as instrument.

    The statistic is the largest, over lags, of the sum of signed contrasts of the whitened, ranked noise; under the
    null every flip of signs was as likely. The effect is the ratio of the signed contrasts of ln(cost) to those of the
    suspect's activity (the Wald estimator), at full swing.

    Args:
        ground: victim and suspect, history and trial.
        pairs: the blocks, by the times at which the share was switched.
        max_lag: samples by which the victim may follow.
    """
    sides = ground.sides(pairs)
    signs = np.array([1.0 if pair.throttled_first else -1.0 for pair in pairs])  # +1: the suspect is free second
    ranked = _scores(ground.ranked, sides, ground.memory, max_lag)
    there = np.abs(ranked).sum(axis=0) > 0
    if there.sum() < MIN_PAIRS:
        return nothing(int(there.sum()), f"only {int(there.sum())} pairs of blocks were seen, {MIN_PAIRS} are needed")
    sides, signs, ranked = sides[there], signs[there], ranked[:, there]
    # The rows of an instant may tell of the minute before it: when the suspect's own activity moves shows by how much.
    moved = _scores(ground.held, sides, ground.memory, max_lag) * signs
    late = int(np.argmax(moved.sum(axis=1)))
    free = moved[late]
    level = _level(ground, np.roll(sides, late, axis=1), signs)
    taken = 1.0 - level[1] / level[0] if level[0] > 0 else math.nan
    if not taken >= _HELD or free.sum() <= 0:
        return nothing(int(there.sum()), "the throttle did not slow the suspect")
    p, lag = sign_flip(ranked, signs)
    cost = _scores(ground.noise, sides, ground.memory, max_lag)[lag] * signs
    slope = float(cost.sum() / free.sum())
    error = math.sqrt(float(np.sum((cost - slope * free) ** 2))) / float(free.sum())
    swing = ground.swing(~_held_back(sides, signs, late))
    reach = float(student.isf(0.025, signs.size - 1)) * error
    effect, lower, upper = (math.expm1(min(s * swing, 50.0)) for s in (slope, slope - reach, slope + reach))
    return ProbeResult(
        p=p,
        effect=effect,
        lower=lower,
        upper=upper,
        pairs=int(signs.size),
        taken=taken,
        lag_seconds=max(lag - late, 0) * ground.interval_seconds,
    )


def sign_flip(scores: Floats, signs: Floats) -> tuple[float, int]:
    """Return the one-sided p of a randomisation test over coin flips, and the lag that won.

    Args:
        scores: (lags, pairs): contrast of each pair, second block less first.
        signs: (pairs,): +1 where the suspect was free in the second block, -1 where in the first.

    Returns:
        p = (1 + flips that do as well) / (1 + flips), or the exact share where all flips are counted.
    """
    scale = np.sqrt(np.sum(scores**2, axis=1, keepdims=True))
    unit = np.divide(scores, scale, out=np.zeros_like(scores), where=scale > 0)
    seen = unit @ signs
    lag = int(np.argmax(seen))
    k = signs.size
    if k <= _EXACT:
        flips = 1.0 - 2.0 * ((np.arange(2**k)[:, None] >> np.arange(k)) & 1)
        added = 0
    else:
        flips = np.random.default_rng(_SEED).choice([-1.0, 1.0], (FLIPS, k))
        added = 1
    null = (flips @ unit.T).max(axis=1)
    exceeding = int(np.sum(null >= seen[lag] - 1e-12))
    return (added + exceeding) / (added + flips.shape[0]), lag


def _held_back(sides: Floats, signs: Floats, late: int) -> Bools:
    """Samples that a throttled block touches, with one more on either side; those between may hold all its peaks."""
    touched = np.flatnonzero((-sides * signs[:, None] > 0).any(axis=0))
    result = np.zeros(sides.shape[1], dtype=bool)
    for step in range(-1, late + 2):
        result[np.clip(touched + step, 0, result.size - 1)] = True
    return result


def _lane(card: Card, slice_id: str) -> Lane | None:
    return next((lane for lane in card.lanes if slice_id in lane.slices), None)


def _overlap(edges: Floats, first: float, last: float) -> Floats:
    """Seconds of each sample between two times."""
    return np.asarray(np.clip(np.minimum(edges[1:], last) - np.maximum(edges[:-1], first), 0.0, None))


def _adjoint(values: Floats, memory: Floats) -> Floats:
    """Return u with sum(whiten(g) * values) = sum(g * u) for every g; absent samples count nothing."""
    known = np.nan_to_num(values)
    result = known.copy()
    for i, phi in enumerate(memory, start=1):
        result[:-i] -= phi * known[i:]
    return result


def _scores(values: Floats, sides: Floats, memory: Floats, max_lag: int) -> Floats:
    """Return (lags, pairs): the whitened contrast of each pair, where the victim follows by 0..max_lag samples."""
    turned = _adjoint(values, memory)
    late = np.stack([np.concatenate([turned[lag:], np.zeros(lag)]) for lag in range(max_lag + 1)])
    return np.asarray(late @ sides.T)


def _power(ground: Ground, sides: Floats) -> Floats:
    """Return the sum of squares of each whitened pair of blocks over the samples that are there."""
    there = np.isfinite(ground.noise)
    filtered = sides.copy()
    for i, phi in enumerate(ground.memory, start=1):
        filtered[:, i:] -= phi * sides[:, :-i]
    return np.asarray((filtered**2) @ there.astype(np.float64))


def _level(ground: Ground, sides: Floats, signs: Floats) -> tuple[float, float]:
    """Mean activity of the suspect while free and while throttled."""
    free = np.clip(sides * signs[:, None], 0.0, None).sum(axis=0)
    slow = np.clip(-sides * signs[:, None], 0.0, None).sum(axis=0)
    known = np.isfinite(ground.activity)
    activity = np.nan_to_num(ground.activity)
    weights = [(w * known).sum() for w in (free, slow)]
    if min(weights) <= 0:
        return math.nan, math.nan
    return float(activity @ free / weights[0]), float(activity @ slow / weights[1])


def _spread(contrasts: Floats) -> float:
    """Standard deviation with the wildest 2 % on each side drawn in."""
    if contrasts.size < 4:
        return math.nan
    low, high = np.quantile(contrasts, [0.02, 0.98])
    return float(np.clip(contrasts, low, high).std(ddof=1))
