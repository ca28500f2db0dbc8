"""Measure every directed pair of a card: statistic, p, effect, and what each veto saw."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

import numpy as np

from analyzer.contention.channel import PIPE_CHANNELS, name_channel, partial_r2
from analyzer.contention.controls import Controls, Projection, ewma, neighbour_columns, victim_controls
from analyzer.contention.direction import direction, shifted
from analyzer.contention.series import MIN_SAMPLES, Bools, Card, Floats, Lane, Signal, fill
from analyzer.contention.shift import SHIFT_SAMPLES, ShiftTest, shift_test, short_test
from analyzer.contention.vetoes import Rival, dominant_rival, episodes, influence
from analyzer.contention.whiten import ar_order, fit_ar, rank_normal, whiten
from collector.schema import UNKNOWN

_LOOK_CLOSER = 0.1  # p above which nobody asks for direction, influence, rival and channel
_IDLE = 0.1  # of its usual peak: below it a victim without a sample was simply not working
_MIN_SWING = 0.02
_MIN_RELATIVE_SWING = 0.1
_LONG_STAY = 0.25  # of the stretch: a co-runner that stayed so long gets columns of its own
_TWIN = 0.98  # correlation above which two suspects are one to a passive test
_KEPT_SWING = 0.5  # of the required swing must be left after the controls
_SPANS = (1, 3, 8)  # of the suspect's shapes, in samples


@dataclass(frozen=True, slots=True)
class PairMeasure:
    """One directed pair. Numbers are NaN where they were not computed; `untested` says why p is.

    `needs` is what would decide an untested pair. Effects are ratios at the suspect's full (2 to 98 %) swing.
    """

    cluster: str
    node: str
    gpu: str
    victim: str
    suspect: str
    victim_tenant: str = ""
    victim_workload: str = ""
    suspect_tenant: str = ""
    suspect_workload: str = ""
    victim_kind: str = ""
    suspect_kind: str = ""
    suspect_serves: str = ""
    untested: str = ""
    needs: str = ""
    cost: str = ""
    cost_trust: float = math.nan
    activity: str = ""
    activity_trust: float = math.nan
    samples: float = math.nan
    coverage: float = math.nan
    controls: str = ""
    swing: float = math.nan
    episodes: float = math.nan
    p: float = math.nan
    z: float = math.nan
    correlation: float = math.nan
    lag_seconds: float = math.nan
    effect: float = math.nan
    effect_lower: float = math.nan
    effect_upper: float = math.nan
    influence_z: float = math.nan
    lead_z: float = math.nan
    lag_z: float = math.nan
    same_z: float = math.nan
    states: float = math.nan
    state_z: float = math.nan
    state_share: float = math.nan
    shape_z: float = math.nan
    own_z: float = math.nan
    foresight_z: float = math.nan
    dose_z: float = math.nan
    rival: str = ""
    channel: str = ""
    channel_basis: str = ""
    twins: str = ""
    channel_shares: str = ""


@dataclass(frozen=True, slots=True)
class _Place:
    cluster: str
    node: str
    interval_seconds: float
    coverage_floor: float
    elsewhere: tuple[Card, ...] = ()


def measure_card(
    card: Card,
    *,
    cluster: str,
    node: str,
    interval_seconds: float,
    coverage_floor: float,
    elsewhere: tuple[Card, ...] = (),
) -> list[PairMeasure]:
    """Measure all directed pairs of a card, in the order of its lanes.

    Args:
        card: the card.
        cluster: its cluster.
        node: its node.
        interval_seconds: distance of the samples.
        coverage_floor: share of samples below which a pair is not tested.
        elsewhere: the node's other cards: replicas there tell what slows a workload without the suspect.
    """
    place = _Place(cluster, node, interval_seconds, coverage_floor, elsewhere)
    result = []
    for victim in card.lanes:
        suspects = [lane for lane in card.lanes if lane is not victim and _met(victim, lane)]
        if suspects:
            result += _measure_victim(card, victim, suspects, place)
    return result


def _met(left: Lane, right: Lane) -> bool:
    """Say whether two lanes were ever on the card at the same time; if not, they are no pair."""
    return any(a[0] <= b[1] and b[0] <= a[1] for a in left.lives for b in right.lives)


def _measure_victim(card: Card, victim: Lane, suspects: list[Lane], place: _Place) -> list[PairMeasure]:
    if victim.cost is None:
        reason = "the victim tells no time per unit of work"
        needs = "step time, latency or request counts of the victim"
        return [_row(card, victim, suspect, place, untested=reason, needs=needs) for suspect in suspects]
    coverage = _coverage(victim, victim.cost)
    if coverage < place.coverage_floor:
        reason = f"only {coverage:.0%} of the victim's samples are there"
        return [
            _row(card, victim, s, place, untested=reason, needs="a source without gaps", coverage=coverage)
            for s in suspects
        ]
    bench = _Bench.of(card, victim, victim.cost, suspects, place)
    return [_measure_pair(card, bench, suspect, place, coverage) for suspect in suspects]


@dataclass(slots=True)
class _Bench:
    """All that a victim's pairs share: its series cut to the time it worked, the controls projected out once."""

    victim: Lane
    suspects: list[Lane]
    cost: Signal
    cut: slice
    outcome: Floats
    rows: Bools
    controls: Controls
    base: Projection
    neighbours: dict[str, Floats]  # those that stayed long, by lane
    brief: Floats  # all others together
    replicas: list[tuple[frozenset[str], Floats]]  # names on a replica's card, and its cost

    @classmethod
    def of(cls, card: Card, victim: Lane, cost: Signal, suspects: list[Lane], place: _Place) -> _Bench:
        known = np.flatnonzero(np.isfinite(cost.values))
        cut = slice(int(known[0]), int(known[-1]) + 1)
        outcome = cost.values[cut]
        whole = victim_controls(victim, card, cut, place.interval_seconds)
        neighbours: dict[str, Floats] = {}
        brief = np.zeros((outcome.size, 3))
        for lane in suspects:
            if lane.activity is None:
                continue
            columns = neighbour_columns(lane)[cut]
            if _stay(lane, cut) >= _LONG_STAY * outcome.size:
                neighbours[lane.slices[-1]] = columns
            else:
                brief += columns
        return cls(
            victim=victim,
            suspects=suspects,
            cost=cost,
            cut=cut,
            outcome=outcome,
            rows=np.isfinite(outcome),
            controls=whole,
            base=Projection(whole.columns),
            neighbours=neighbours,
            brief=brief,
            replicas=_replicas(victim, cost, place.elsewhere, cut),
        )

    def others(self, suspect: Lane, twins: list[Lane]) -> tuple[Floats, Bools]:
        """Columns of the co-runners other than `suspect` (and its twins) and of replicas where it is not near.

        With them come the rows on which all of it is known: where the replicas are silent they control nothing.
        """
        own = {lane.slices[-1] for lane in (suspect, *twins)}
        columns = [values for name, values in self.neighbours.items() if name not in own]
        brief = self.brief
        for lane in (suspect, *twins):
            if lane.slices[-1] not in self.neighbours and lane.activity is not None:
                brief = brief - neighbour_columns(lane)[self.cut]
        columns.append(brief)
        apart = [cost for names, cost in self.replicas if not names & {suspect.workload, *(t.workload for t in twins)}]
        rows = self.rows
        for cost in apart:
            both = rows & np.isfinite(cost)
            if both.sum() > 0.5 * self.rows.sum():
                rows = both
                columns.append(fill(cost)[:, None])
        return np.column_stack(columns), rows


def _replicas(
    victim: Lane, cost: Signal, elsewhere: tuple[Card, ...], cut: slice
) -> list[tuple[frozenset[str], Floats]]:
    """Find the victim's replicas on other cards that tell the same signal for most of the stretch."""
    result = []
    for card in elsewhere:
        names = frozenset(lane.workload for lane in card.lanes)
        for lane in card.lanes:
            same = (lane.tenant, lane.workload) == (victim.tenant, victim.workload)
            if same and victim.workload not in ("", UNKNOWN) and lane.cost is not None and lane.cost.name == cost.name:
                result.append((names, lane.cost.values[cut]))
    return result


def _measure_pair(card: Card, bench: _Bench, suspect: Lane, place: _Place, victim_coverage: float) -> PairMeasure:
    victim = bench.victim

    def untested(reason: str, needs: str, **rest: float) -> PairMeasure:
        return _row(card, victim, suspect, place, untested=reason, needs=needs, cost=bench.cost.name, **rest)

    if suspect.activity is None:
        return untested("nothing tells the suspect's activity", "activity of the suspect's slice")
    activity = suspect.activity.values[bench.cut]
    known = np.isfinite(activity)
    together = known & bench.rows & (activity > 0)
    alive = np.zeros(bench.outcome.size, dtype=bool)
    for first, last in suspect.lives:
        alive[max(first - bench.cut.start, 0) : max(last + 1 - bench.cut.start, 0)] = True
    suspect_coverage = float(known[alive].mean()) if alive.any() else 0.0
    coverage = min(victim_coverage, suspect_coverage)
    overlap = int((alive & bench.rows).sum())
    if overlap < MIN_SAMPLES:
        return untested(f"the two shared the card for {overlap} samples", "a longer time together", coverage=coverage)
    if suspect_coverage < place.coverage_floor:
        return untested(
            f"only {suspect_coverage:.0%} of the suspect's samples are there",
            "a source without gaps",
            coverage=coverage,
        )
    low, high = np.quantile(activity[known & bench.rows], [0.02, 0.98]) if (known & bench.rows).any() else (0.0, 0.0)
    swing = float(high - low)
    needed = max(_MIN_SWING, _MIN_RELATIVE_SWING * float(high))
    if swing < needed or not together.any():
        reason = f"the suspect hardly varies (between {low:.0%} and {high:.0%} of the card)"
        return untested(reason, "a time in which the suspect stops, or a short throttle of it", coverage=coverage)

    starts = episodes(activity[known & bench.rows])
    if starts < 2:
        needs = "a second start of the suspect, or a short throttle of it"
        return untested("the suspect rose only once: it would rest on a single event", needs, coverage=coverage)

    twins = _twins(suspect, bench.suspects, activity, bench.cut)
    others, rows = bench.others(suspect, twins)
    others_residual = bench.base.residual(others, rows)
    second = Projection(others_residual)
    outcome = second.residual(bench.base.residual(bench.outcome, rows), rows)
    regress = _Residualiser(bench.base, others)
    smooth = fill(activity)
    shapes = [regress(np.where(known, smooth if span == 1 else ewma(smooth, span), np.nan)) for span in _SPANS]
    kept = float(np.subtract(*np.quantile(shapes[0][known], [0.98, 0.02])))
    if kept < _KEPT_SWING * needed:
        reason = "the suspect's activity is all explained by load, hour, clock and other co-runners"
        return untested(reason, "a change of the suspect at another hour, or a short throttle of it", coverage=coverage)

    short = int(rows.sum()) < SHIFT_SAMPLES
    missing = 1.0 - float(rows.mean())
    phi = fit_ar(outcome, min(1, ar_order(missing)) if short else ar_order(missing))
    noise = whiten(outcome, phi)
    filtered = tuple(whiten(shape, phi) for shape in shapes)
    ranked = rank_normal(noise)
    if short:
        used = bench.base.rank(rows) + second.rank(rows) + phi.size
        if int((np.isfinite(noise) & np.isfinite(filtered[0])).sum()) < used + 10:
            return untested("too few samples beside the controls", "a longer window", coverage=coverage)
        test = short_test(noise, filtered, used)
    else:
        test = shift_test(ranked, filtered)
    effect, lower, upper = _effect(outcome, shapes[test.shape], test.lag, swing)
    row = _row(
        card,
        victim,
        suspect,
        place,
        cost=bench.cost.name,
        cost_trust=bench.cost.trust,
        activity=suspect.activity.name,
        activity_trust=suspect.activity.trust,
        samples=float(rows.sum()),
        coverage=coverage,
        controls=", ".join((*bench.controls.names, *(["other co-runners"] if others.shape[1] else []))),
        swing=swing,
        episodes=float(starts),
        p=test.p,
        z=test.z,
        correlation=test.correlation,
        lag_seconds=test.lag * place.interval_seconds,
        effect=effect,
        effect_lower=lower,
        effect_upper=upper,
    )
    if not test.p < _LOOK_CLOSER:
        return row
    winner = shifted(filtered[test.shape], test.lag)
    shares = partial_r2(ranked, _uses(card, bench, suspect, regress, phi, test))
    mig = victim.kind == "mig" and suspect.kind == "mig"
    # Three standard errors of a correlation, squared: a smaller share is noise.
    channel, basis = name_channel(shares, mig=mig, floor=9.0 / float(rows.sum()))
    seen = direction(outcome, shapes[0], np.where(known, activity, np.nan), regress, test.lag)
    return replace(
        row,
        influence_z=influence(ranked, winner),
        **asdict(seen),
        rival=dominant_rival(ranked, winner, _rivals(card, bench, [suspect, *twins], phi, test)),
        channel=channel,
        channel_basis=basis,
        twins=", ".join(lane.name for lane in twins),
        channel_shares=", ".join(f"{name} {share:.3f}" for name, share in sorted(shares.items())),
    )


class _Residualiser:
    """Takes the controls and the other co-runners out of series that have their own gaps."""

    def __init__(self, base: Projection, others: Floats) -> None:
        self._base, self._others = base, others
        self._second: dict[bytes, Projection] = {}

    def __call__(self, values: Floats) -> Floats:
        rows = np.isfinite(values)
        key = rows.tobytes()
        if key not in self._second:
            self._second[key] = Projection(self._base.residual(self._others, rows))
        return self._second[key].residual(self._base.residual(values, rows), rows)


def _uses(
    card: Card, bench: _Bench, suspect: Lane, regress: _Residualiser, phi: Floats, test: ShiftTest
) -> dict[str, Floats]:
    """Return the suspect's use of each resource, filtered and lagged as the winning shape was."""
    uses: dict[str, Floats] = {"sm": suspect.activity.values} if suspect.activity is not None else {}
    uses |= {channel: suspect.pipes[name] for name, channel in PIPE_CHANNELS.items() if name in suspect.pipes}
    uses |= {"pcie": card.pcie, "nvlink": card.nvlink, "host": card.host, "clock": -card.clock}
    result = {}
    for channel, whole in uses.items():
        values = whole[bench.cut]
        good = np.isfinite(values)
        if good.sum() < MIN_SAMPLES or np.ptp(values[good]) == 0:
            continue
        span = _SPANS[test.shape]
        shaped = values if span == 1 else np.where(good, ewma(fill(values), span), np.nan)
        result[channel] = shifted(whiten(regress(shaped), phi), test.lag)
    return result


def _rivals(card: Card, bench: _Bench, apart: list[Lane], phi: Floats, test: ShiftTest) -> list[Rival]:
    """Return co-runners and unattributed activity, free of the controls but not of one another."""
    own = {lane.slices[-1] for lane in apart}
    whole = {key: columns[:, test.shape] for key, columns in bench.neighbours.items() if key not in own}
    if np.isfinite(card.unattributed[bench.cut]).mean() > 0.5:
        whole["activity that no slice accounts for"] = fill(card.unattributed[bench.cut])
    everywhere = np.ones(bench.outcome.size, dtype=bool)
    return [
        Rival(key, shifted(whiten(bench.base.residual(values, everywhere), phi), test.lag))
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
    score = np.where(both, np.nan_to_num(a) * np.nan_to_num(outcome - slope * a), 0.0)
    width = min(60, score.size // 10)
    variance = float(score @ score)
    for lag_samples in range(1, width + 1):
        weight = 1.0 - lag_samples / (width + 1.0)
        variance += 2.0 * weight * float(score[lag_samples:] @ score[:-lag_samples])
    error = math.sqrt(max(variance, 0.0)) / power
    value, lower, upper = (
        math.expm1(min(s * swing, 50.0)) for s in (slope, slope - 1.96 * error, slope + 1.96 * error)
    )
    return value, lower, upper


def _twins(suspect: Lane, lanes: list[Lane], activity: Floats, cut: slice) -> list[Lane]:
    """Co-runners that move so exactly as the suspect does that nobody can tell their effects apart."""
    result = []
    for lane in lanes:
        if lane is suspect or lane.activity is None or _stay(lane, cut) < _LONG_STAY * activity.size:
            continue
        other = lane.activity.values[cut]
        both = np.isfinite(activity) & np.isfinite(other)
        u, v = activity[both], other[both]
        if u.size > MIN_SAMPLES and u.std() > 0 and v.std() > 0 and np.corrcoef(u, v)[0, 1] > _TWIN:
            result.append(lane)
    return result


def _stay(lane: Lane, cut: slice) -> int:
    """Samples of a stretch in which a lane was there."""
    return sum(max(0, min(last + 1, cut.stop) - max(first, cut.start)) for first, last in lane.lives)


def _coverage(victim: Lane, cost: Signal) -> float:
    """Share of the samples there among those in which the victim was on the card and worked."""
    expected = np.zeros(cost.values.size, dtype=bool)
    for first, last in victim.lives:
        expected[first : last + 1] = True
    present = np.isfinite(cost.values)
    for working in (victim.load, victim.activity.values if victim.activity is not None else None):
        if working is not None and np.isfinite(working).any():
            idle = working < _IDLE * float(np.nanquantile(working, 0.98))
            expected &= present | ~idle
    return float(present[expected].mean()) if expected.any() else 0.0


def _row(card: Card, victim: Lane, suspect: Lane, place: _Place, **rest: object) -> PairMeasure:
    base = PairMeasure(
        cluster=place.cluster,
        node=place.node,
        gpu=card.gpu,
        victim=victim.slices[-1],
        suspect=suspect.slices[-1],
        victim_tenant=victim.tenant,
        victim_workload=victim.workload,
        suspect_tenant=suspect.tenant,
        suspect_workload=suspect.workload,
        victim_kind=victim.kind,
        suspect_kind=suspect.kind,
        suspect_serves="requests" if suspect.load is not None else "",
    )
    return replace(base, **rest)  # type: ignore[arg-type]  # names are those of the dataclass, checked by its tests
