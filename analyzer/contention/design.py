"""All that the pairs of one victim share: its series cut to the time it worked, and what must be taken out of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analyzer.contention.controls import Controls, Projection, shapes_of, victim_controls
from analyzer.contention.series import MIN_SAMPLES, Bools, Card, Floats, Indices, Lane, Signal, correlation, fill
from collector.schema import UNKNOWN

_LONG_STAY = 0.25  # of the stretch: a co-runner that stayed so long gets columns of its own
_TWIN = 0.98  # correlation above which two suspects are one to a passive test


@dataclass(frozen=True, slots=True)
class Design:
    """All that a victim's pairs share: its series cut to the time it worked, and all series to take out, laid once.

    Attributes:
        projection: over the controls, then three shapes of each lane of `long` and of `brief`, then three of all of
            `brief` together and three of all but each, then each replica's cost.
        long: names of the lanes that stayed long, each with shapes of its own in every pair.
        brief: names of all others; a pair sees them only as their sum.
        replicas: names on a replica's card, and where its cost is known.
    """

    victim: Lane
    suspects: list[Lane]
    cost: Signal
    cut: slice
    outcome: Floats
    rows: Bools
    controls: Controls
    projection: Projection
    first_replica: int
    long: tuple[str, ...]
    brief: tuple[str, ...]
    replicas: tuple[tuple[frozenset[str], Bools], ...]

    @classmethod
    def of(
        cls,
        card: Card,
        victim: Lane,
        cost: Signal,
        suspects: list[Lane],
        *,
        elsewhere: tuple[Card, ...],
        interval_seconds: float,
    ) -> Design:
        """Cut the victim's series to the time it worked and build its controls."""
        known = np.flatnonzero(np.isfinite(cost.values))
        cut = slice(int(known[0]), int(known[-1]) + 1)
        outcome = cost.values[cut]
        whole = victim_controls(victim, card, cut, interval_seconds)
        rows = np.isfinite(outcome)
        clear = rows & ~card.hidden[cut]
        if clear.sum() > 0.25 * rows.sum():
            rows = clear
        measured = [lane for lane in suspects if lane.activity is not None]
        stayed = {lane.slices[-1]: stay(lane, cut) >= _LONG_STAY * outcome.size for lane in measured}
        ordered = sorted(measured, key=lambda lane: not stayed[lane.slices[-1]])
        shapes = [shapes_of(lane, cut) for lane in ordered]
        brief = shapes[sum(stayed.values()) :]
        together = sum(brief, np.zeros((3, outcome.size)))
        blocks = [whole.table, *shapes, *([together] if brief else []), *(together - own for own in brief)]
        replicas = []
        for names, values in _replicas(victim, cost, elsewhere, cut):
            replicas.append((names, np.isfinite(values)))
            blocks.append(fill(values)[None])
        table = np.concatenate(blocks)
        return cls(
            victim=victim,
            suspects=suspects,
            cost=cost,
            cut=cut,
            outcome=np.where(rows, outcome, np.nan),
            rows=rows,
            controls=whole,
            projection=Projection(table),
            first_replica=table.shape[0] - len(replicas),
            long=tuple(lane.slices[-1] for lane in ordered if stayed[lane.slices[-1]]),
            brief=tuple(lane.slices[-1] for lane in ordered if not stayed[lane.slices[-1]]),
            replicas=tuple(replicas),
        )

    @property
    def base(self) -> Indices:
        """Which series the controls are."""
        return np.arange(self.controls.table.shape[0])

    def shapes(self, name: str) -> Floats:
        """Series (3, n) of a lane: its activity, raw and smoothed."""
        return self.projection.series(self.at(name))

    def others(self, suspect: Lane, twins: list[Lane]) -> tuple[Indices, Bools]:
        """Choose controls, co-runners other than `suspect` (and its twins), and replicas where it is not near.

        Returns:
            Which series those are, and the rows on which all of it is known: where the replicas are silent they
            control nothing.
        """
        own = {lane.slices[-1] for lane in (suspect, *twins)}
        chosen = [self.base, *(_span(self.at(name)) for name in self.long if name not in own)]
        if self.brief:
            # Twins stay long: at most one of the brief ones is the suspect.
            lanes = len(self.long) + len(self.brief)
            alone = [number for number, name in enumerate(self.brief, start=1) if name in own]
            start = self.base.size + 3 * (lanes + (alone[0] if alone else 0))
            chosen.append(np.arange(start, start + 3))
        near = {suspect.workload, *(twin.workload for twin in twins)}
        rows = self.rows
        for at, (names, known) in enumerate(self.replicas, start=self.first_replica):
            both = rows & known
            if not names & near and both.sum() > 0.5 * self.rows.sum():
                rows = both
                chosen.append(np.array([at]))
        return np.concatenate(chosen), rows

    def at(self, name: str) -> slice:
        """Say which series are a lane's."""
        start = self.base.size + 3 * (*self.long, *self.brief).index(name)
        return slice(start, start + 3)


def _span(at: slice) -> Indices:
    return np.arange(at.start, at.stop)


def _replicas(
    victim: Lane, cost: Signal, elsewhere: tuple[Card, ...], cut: slice
) -> list[tuple[frozenset[str], Floats]]:
    """Find the victim's replicas on other cards that tell the same signal for most of the stretch."""
    result = []
    for card in elsewhere:
        names = frozenset(lane.workload for lane in card.lanes)
        for lane in card.lanes:
            same = (lane.tenant, lane.workload) == (victim.tenant, victim.workload)
            if not same or victim.workload in ("", UNKNOWN) or lane.cost is None or lane.cost.name != cost.name:
                continue
            # Another card of the same replica repeats the victim's own figures: it would control the effect away.
            if not np.array_equal(lane.cost.values, cost.values, equal_nan=True):
                result.append((names, lane.cost.values[cut]))
    return result


def twins_of(suspect: Lane, lanes: list[Lane], activity: Floats, cut: slice) -> list[Lane]:
    """Co-runners that move so exactly as the suspect does that nobody can tell their effects apart."""
    result = []
    for lane in lanes:
        if lane is suspect or lane.activity is None or stay(lane, cut) < _LONG_STAY * activity.size:
            continue
        if correlation(activity, lane.activity.values[cut], MIN_SAMPLES) > _TWIN:
            result.append(lane)
    return result


def stay(lane: Lane, cut: slice) -> int:
    """Samples of a stretch in which a lane was there."""
    return sum(max(0, min(last + 1, cut.stop) - max(first, cut.start)) for first, last in lane.lives)
