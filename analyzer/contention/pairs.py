"""Measure every directed pair of a card: statistic, p, effect, and what each veto saw."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from analyzer.contention.channel import PIPE_CHANNELS, Walls, name_channel, partial_r2
from analyzer.contention.controls import ewma
from analyzer.contention.design import Design, twins_of
from analyzer.contention.direction import TWO_STATES, direction, shifted, two_states
from analyzer.contention.meeting import THIN, Meeting
from analyzer.contention.record import THROTTLE, PairMeasure
from analyzer.contention.series import (
    MIN_SAMPLES,
    Bools,
    Card,
    Floats,
    Indices,
    Lane,
    Signal,
    correlation,
    fill,
    swing_of,
)
from analyzer.contention.shift import MAX_LAG, SHIFT_SAMPLES, ShiftTest, shift_test, short_test
from analyzer.contention.vetoes import Rival, dominant_rival, episodes, influence
from analyzer.contention.whiten import MANY_GAPS, ORDER, fit_ar, rank_normal, whiten, whiten_gaps

_IDLE = 0.1  # of its usual peak: below it a victim without a sample was simply not working
_MIN_FREEDOM = 10
_KEPT_SWING = 0.5  # of the required swing must be left after the controls
_OWN_EPISODES = 6
_HOUR_SECONDS = 3_600.0
_HOURS_TO_LEARN = 6  # shorter windows have no columns for the minute of the hour
_BY_THE_CLOCK = 0.6  # correlation of a series with itself an hour before
_FEW = 200  # samples, below which the noise model is AR(1) and ranks cost more than they bring
_FEW_TO_FOLLOW = 100  # samples, below which a late effect is not looked for
_SPANS = (1, 3, 8)  # of the suspect's shapes, in samples


@dataclass(frozen=True, slots=True)
class Across:
    """Where a suspect on another card stands: its card, and the channels that are full."""

    card: Card
    channels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """What all pairs of a node share: where it is, how its samples lie, and from where on a pair is tested."""

    cluster: str
    node: str
    interval_seconds: float
    coverage_floor: float
    close: float
    elsewhere: tuple[Card, ...]
    across: Mapping[str, Across] = field(default_factory=dict)  # suspects on other cards, by lane


def measure_card(
    card: Card,
    *,
    cluster: str,
    node: str,
    interval_seconds: float,
    coverage_floor: float,
    close: float,
    elsewhere: tuple[Card, ...] = (),
) -> list[PairMeasure]:
    """Measure all directed pairs of a card, in the order of its lanes.

    Args:
        card: the card.
        cluster: its cluster.
        node: its node.
        interval_seconds: distance of the samples.
        coverage_floor: share of samples below which nothing holds, and below half of which nothing is tested.
        close: p up to which a pair is looked at closely.
        elsewhere: the node's other cards: replicas there tell what slows a workload without the suspect.
    """
    place = Place(cluster, node, interval_seconds, coverage_floor, close, elsewhere)
    result = []
    for victim in card.lanes:
        suspects = [lane for lane in card.lanes if lane is not victim and met(victim, lane)]
        if suspects:
            result += measure_victim(card, victim, suspects, place)
    return result


def met(left: Lane, right: Lane) -> bool:
    """Say whether two lanes were ever on the card at the same time; if not, they are no pair."""
    return any(a[0] <= b[1] and b[0] <= a[1] for a in left.lives for b in right.lives)


def first_met(left: Lane, right: Lane) -> int:
    """Return the first sample in which both lanes were on their cards; they met."""
    return min(max(a[0], b[0]) for a in left.lives for b in right.lives if a[0] <= b[1] and b[0] <= a[1])


def measure_victim(
    card: Card, victim: Lane, suspects: list[Lane], place: Place, beside: Sequence[Lane] = ()
) -> list[PairMeasure]:
    """Measure one victim against its suspects; what the lanes `beside` do is taken out, and they are not suspected."""
    if victim.cost is None:
        reason = "nothing tells how long the victim takes for its work"
        needs = "step time, latency, request counts or pipe activity of the victim"
        return [PairMeasure(**_names(card, victim, s, place), untested=reason, needs=needs) for s in suspects]
    coverage = _coverage(victim, victim.cost)
    if coverage < THIN * place.coverage_floor:
        reason = f"only {coverage:.0%} of the samples of the victim are there"
        return [
            PairMeasure(
                **_names(card, victim, s, place), untested=reason, needs="a source without gaps", coverage=coverage
            )
            for s in suspects
        ]
    lanes = [*suspects, *beside]
    design = Design.of(
        card, victim, victim.cost, lanes, elsewhere=place.elsewhere, interval_seconds=place.interval_seconds
    )
    return [_measure_pair(card, design, suspect, place, coverage) for suspect in suspects]


@dataclass(frozen=True, slots=True)
class _Regression:
    """Residuals of one pair after all controls, and the same filtered by the victim's noise model."""

    rows: Bools
    outcome: Floats
    shapes: tuple[Floats, ...]
    phi: Floats
    gaps: bool
    noise: Floats
    ranked: Floats
    filtered: tuple[Floats, ...]
    regress: Callable[[Floats], Floats]
    pick: Indices

    @classmethod
    def of(cls, design: Design, suspect: Lane, twins: list[Lane], meeting: Meeting) -> _Regression:
        pick, rows = design.others(suspect, twins)
        everywhere = np.ones(rows.size, dtype=bool)

        def regress(values: Floats) -> Floats:
            known = np.isfinite(values)
            whole = values if known.all() else fill(values)
            return np.where(known, design.projection.residual(whole, everywhere, pick), np.nan)

        left = design.projection.pair(design.outcome, rows, design.at(suspect.slices[-1]), pick)
        left[0, ~rows] = np.nan
        if not meeting.known.all():
            left[1:, ~meeting.known] = np.nan
        outcome = left[0]
        count = int(np.count_nonzero(rows))
        missing = 1.0 - count / rows.size
        phi = fit_ar(outcome, 1 if count < _FEW or missing > MANY_GAPS else ORDER)
        gaps = missing > MANY_GAPS
        noise = whiten_gaps(outcome, float(phi[0])) if gaps else whiten(outcome, phi)
        return cls(
            rows=rows,
            outcome=outcome,
            shapes=tuple(left[1:]),
            phi=phi,
            gaps=gaps,
            noise=noise,
            ranked=rank_normal(noise),
            filtered=tuple(whiten(left[1:], phi)),
            regress=regress,
            pick=pick,
        )

    def test(self, design: Design) -> ShiftTest | None:
        """Test the pair; None where the controls leave too few degrees of freedom."""
        count = int(np.count_nonzero(self.rows))
        if count >= SHIFT_SAMPLES:
            return shift_test(self.ranked, self.filtered)
        used = design.projection.rank(self.rows, self.pick) + self.phi.size
        left = np.count_nonzero(np.isfinite(self.noise) & np.isfinite(self.filtered[0])) - used
        if left < _MIN_FREEDOM:
            return None
        outcome = self.noise if count < _FEW else self.ranked
        return short_test(outcome, self.filtered, used, MAX_LAG if count >= _FEW_TO_FOLLOW else 0)


def _measure_pair(card: Card, design: Design, suspect: Lane, place: Place, victim_coverage: float) -> PairMeasure:
    found = _names(card, design.victim, suspect, place)
    found |= {"cost": design.cost.name, "cost_trust": design.cost.trust}
    if suspect.activity is None:
        reason = "nothing tells how busy the suspect is"
        return PairMeasure(**found, untested=reason, needs="a counter of its slice")
    meeting = Meeting.of(design, suspect, suspect.activity.values, victim_coverage)
    found |= {
        "activity": suspect.activity.name,
        "activity_trust": suspect.activity.trust,
        "coverage": meeting.coverage,
        "swing": meeting.swing,
        "episodes": float(meeting.episodes),
        "first_met": float(first_met(design.victim, suspect)),
    }
    objection = meeting.objection(place.coverage_floor)
    if objection is not None:
        return PairMeasure(**found, untested=objection[0], needs=objection[1])
    twins = twins_of(suspect, design.suspects, meeting.activity, design.cut)
    regression = _Regression.of(design, suspect, twins, meeting)
    objection = _no_trial(meeting, regression, place.interval_seconds)
    if objection is not None:
        return PairMeasure(**found, untested=objection[0], needs=objection[1])
    test = regression.test(design)
    if test is None:
        return PairMeasure(
            **found, untested="too few samples for all that must be taken out first", needs="a longer window"
        )
    effect, lower, upper = _effect(regression.outcome, regression.shapes[test.shape], test.lag, meeting.swing)
    found |= {
        "samples": float(regression.rows.sum()),
        "controls": ", ".join((*design.controls.names, "other co-runners")),
        "p": test.p,
        "z": test.z,
        "correlation": test.correlation,
        "lag_seconds": test.lag * place.interval_seconds,
        "effect": effect,
        "effect_lower": lower,
        "effect_upper": upper,
        "twins": ", ".join(lane.name for lane in twins),
    }
    if test.p <= place.close:  # q is never below p: nobody asks for direction, influence, rival and channel else
        found |= _look_closer(
            card, design, [suspect, *twins], meeting, regression=regression, test=test, across=place.across
        )
    return PairMeasure(**found)


def _no_trial(meeting: Meeting, regression: _Regression, interval_seconds: float) -> tuple[str, str] | None:
    """Say why what is left of the suspect's activity is no series of trials, and what would help, or None."""
    moves = regression.shapes[0][meeting.known]
    low, high = swing_of(moves)
    if high - low < _KEPT_SWING * meeting.needed_swing:
        reason = "load, hour, clock and other slices foretell all that the suspect does: nothing is left to compare"
        return reason, f"a start or stop of the suspect at another hour, or {THROTTLE}"
    if meeting.episodes < 2:
        # A smooth suspect may have one daily wave and yet many movements of its own beside it; a step has not.
        stepped = two_states(meeting.activity) > TWO_STATES
        if stepped or episodes(moves, low, high) < _OWN_EPISODES:
            reason = "the suspect became busy only once: a mere coincidence would look the same"
            return reason, f"a second start of the suspect, or {THROTTLE}"
    hour = round(_HOUR_SECONDS / interval_seconds)
    own = regression.shapes[0]
    if own.size * interval_seconds < _HOURS_TO_LEARN * _HOUR_SECONDS and 0 < hour < own.size:
        repeats = correlation(own[:-hour], own[hour:], MIN_SAMPLES)
        if repeats > _BY_THE_CLOCK:
            return (
                "the suspect runs by the clock, as other jobs may that nobody sees",
                f"a window of {_HOURS_TO_LEARN} hours or more",
            )
    return None


def _look_closer(
    card: Card,
    design: Design,
    apart: list[Lane],
    meeting: Meeting,
    *,
    regression: _Regression,
    test: ShiftTest,
    across: Mapping[str, Across],
) -> dict[str, Any]:
    """Measure direction, influence, rival and channel of a pair that may be significant."""
    winner = shifted(regression.filtered[test.shape], test.lag)
    suspect = apart[0]
    uses = _channels(card, suspect, across.get(suspect.slices[-1]))
    shares = partial_r2(regression.ranked, _uses(uses, design, regression, test))
    walls = Walls.of(design.victim.kind, suspect.kind, across=suspect.slices[-1] in across)
    # Three standard errors of a correlation, squared: a smaller share is noise.
    channel, basis = name_channel(shares, walls=walls, floor=9.0 / float(regression.rows.sum()))
    seen = direction(regression.outcome, regression.shapes[0], meeting.activity, regression.regress, test.lag)
    return {
        "influence_z": influence(regression.ranked, winner),
        **asdict(seen),
        "rival": dominant_rival(regression.ranked, winner, _rivals(card, design, apart, regression, test)),
        "channel": channel,
        "channel_basis": basis,
        "channel_shares": ", ".join(f"{name} {share:.3f}" for name, share in sorted(shares.items())),
    }


def _channels(card: Card, suspect: Lane, across: Across | None) -> dict[str, Floats]:
    """Return what the suspect uses of each resource: its own counters, and those of its card and node."""
    if across is not None:
        whole = {"pcie": across.card.pcie, "nvlink": across.card.nvlink, "host": across.card.host}
        return {channel: whole[channel] for channel in across.channels}
    uses: dict[str, Floats] = {"sm": suspect.activity.values} if suspect.activity is not None else {}
    uses |= {channel: suspect.pipes[name] for name, channel in PIPE_CHANNELS.items() if name in suspect.pipes}
    return uses | {"pcie": card.pcie, "nvlink": card.nvlink, "host": card.host, "clock": -card.clock}


def _uses(uses: Mapping[str, Floats], design: Design, regression: _Regression, test: ShiftTest) -> dict[str, Floats]:
    """Filter and lag the suspect's use of each resource as the winning shape was."""
    result = {}
    for channel, whole in uses.items():
        values = whole[design.cut]
        good = np.isfinite(values)
        if good.sum() < MIN_SAMPLES or np.ptp(values[good]) == 0:
            continue
        span = _SPANS[test.shape]
        shaped = values if span == 1 else np.where(good, ewma(fill(values), span), np.nan)
        result[channel] = shifted(whiten(regression.regress(shaped), regression.phi), test.lag)
    return result


def _rivals(card: Card, design: Design, apart: list[Lane], regression: _Regression, test: ShiftTest) -> list[Rival]:
    """Return co-runners and unattributed activity, free of the controls but not of one another."""
    own = {lane.slices[-1] for lane in apart}
    whole = {key: design.shapes(key)[test.shape] for key in design.long if key not in own}
    if np.isfinite(card.unattributed[design.cut]).mean() > 0.5:
        whole["activity that no slice accounts for"] = fill(card.unattributed[design.cut])
    everywhere = np.ones(design.outcome.size, dtype=bool)
    return [
        Rival(
            key, shifted(whiten(design.projection.residual(values, everywhere, design.base), regression.phi), test.lag)
        )
        for key, values in whole.items()
    ]


def _effect(outcome: Floats, regressor: Floats, lag: int, swing: float) -> tuple[float, float, float]:
    """Slow-down at full swing and its 95 % interval, as ratios; errors robust to memory (Newey and West, 1987)."""
    a = shifted(regressor, lag)
    both = np.isfinite(outcome) & np.isfinite(a)
    power = float(a[both] @ a[both])
    if power <= 0:
        return math.nan, math.nan, math.nan
    slope = float(outcome[both] @ a[both]) / power
    score = np.where(both, a * (outcome - slope * a), 0.0)
    # Bartlett's weights are those of moving sums: the squares of all of them are the weighted covariances.
    width = min(60, score.size // 10) + 1
    sums = np.zeros(score.size + 2 * width)
    np.cumsum(score, out=sums[width : width + score.size])
    sums[width + score.size :] = sums[width + score.size - 1]
    moving = sums[width:] - sums[:-width]
    error = math.sqrt(float(moving @ moving) / width) / power
    value, lower, upper = (
        math.expm1(min(s * swing, 50.0)) for s in (slope, slope - 1.96 * error, slope + 1.96 * error)
    )
    return value, lower, upper


def _coverage(victim: Lane, cost: Signal) -> float:
    """Share of the samples there among those in which the victim was on the card and worked."""
    expected = np.zeros(cost.values.size, dtype=bool)
    for first, last in victim.lives:
        expected[first : last + 1] = True
    present = np.isfinite(cost.values)
    for working in (victim.load, victim.activity.values if victim.activity is not None else None):
        if working is not None and np.isfinite(working).any():
            known = working[np.isfinite(working)]
            idle = working < _IDLE * _quantile(known, 0.98)
            expected &= present | ~idle
    return float(present[expected].mean()) if expected.any() else 0.0


def _quantile(values: Floats, share: float) -> float:
    """Return the quantile of finite values, on the straight line between its two neighbours."""
    at = share * (values.size - 1)
    low, high = math.floor(at), math.ceil(at)
    ordered = np.partition(values, (low, high))
    return float(ordered[low] + (ordered[high] - ordered[low]) * (at - low))


def _names(card: Card, victim: Lane, suspect: Lane, place: Place) -> dict[str, Any]:
    return {
        "cluster": place.cluster,
        "node": place.node,
        "gpu": card.gpu,
        "victim": victim.slices[-1],
        "suspect": suspect.slices[-1],
        "victim_tenant": victim.tenant,
        "victim_workload": victim.workload,
        "suspect_tenant": suspect.tenant,
        "suspect_workload": suspect.workload,
        "victim_kind": victim.kind,
        "suspect_kind": suspect.kind,
        "pressure": ", ".join(place.across[suspect.slices[-1]].channels) if place.across else "",
        "suspect_serves": "requests" if suspect.load is not None else "",
    }
