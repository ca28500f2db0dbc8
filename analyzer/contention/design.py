"""All that the pairs of one victim share: its series cut to the time it worked, and what must be taken out of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analyzer.contention.controls import Controls, Projection, neighbour_columns, victim_controls
from analyzer.contention.series import MIN_SAMPLES, Bools, Card, Floats, Lane, Signal, correlation, fill
from collector.schema import UNKNOWN

_LONG_STAY = 0.25  # of the stretch: a co-runner that stayed so long gets columns of its own
_TWIN = 0.98  # correlation above which two suspects are one to a passive test


@dataclass(frozen=True, slots=True)
class Design:
    """All that a victim's pairs share: its series cut to the time it worked, and all columns to take out, laid once.

    Attributes:
        columns: the controls, then three columns for each lane of `long` and of `brief`, then one for each replica.
        long: names of the lanes that stayed long, each with columns of its own in every pair.
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
    columns: Floats
    projection: Projection
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
        if clear.sum() > 0.5 * rows.sum():
            rows = clear
        measured = [lane for lane in suspects if lane.activity is not None]
        stayed = {lane.slices[-1]: stay(lane, cut) >= _LONG_STAY * outcome.size for lane in measured}
        ordered = sorted(measured, key=lambda lane: not stayed[lane.slices[-1]])
        blocks = [whole.columns, *(neighbour_columns(lane)[cut] for lane in ordered)]
        replicas = []
        for names, values in _replicas(victim, cost, elsewhere, cut):
            replicas.append((names, np.isfinite(values)))
            blocks.append(fill(values)[:, None])
        columns = np.column_stack(blocks)
        return cls(
            victim=victim,
            suspects=suspects,
            cost=cost,
            cut=cut,
            outcome=np.where(rows, outcome, np.nan),
            rows=rows,
            controls=whole,
            columns=columns,
            projection=Projection(columns),
            long=tuple(lane.slices[-1] for lane in ordered if stayed[lane.slices[-1]]),
            brief=tuple(lane.slices[-1] for lane in ordered if not stayed[lane.slices[-1]]),
            replicas=tuple(replicas),
        )

    @property
    def base(self) -> Floats:
        """Which columns the controls are: (p, q), see `Projection.residual`."""
        return np.eye(self.columns.shape[1])[:, : self.controls.columns.shape[1]]

    def shapes(self, name: str) -> Floats:
        """Columns (n, 3) of a lane: its activity, raw and smoothed."""
        return self.columns[:, self._at(name)]

    def others(self, suspect: Lane, twins: list[Lane]) -> tuple[Floats, Bools]:
        """Choose controls, co-runners other than `suspect` (and its twins), and replicas where it is not near.

        Returns:
            Which columns those are (p, q), and the rows on which all of it is known: where the replicas are silent
            they control nothing.
        """
        own = {lane.slices[-1] for lane in (suspect, *twins)}
        unit = np.eye(self.columns.shape[1])
        chosen = [self.base, *(unit[:, self._at(name)] for name in self.long if name not in own)]
        beside = [unit[:, self._at(name)] for name in self.brief if name not in own]
        if beside:
            # The columns are scaled to length 1 inside the projection: undo it, so that activities add up.
            lengths = np.linalg.norm(self.columns, axis=0)[:, None]
            chosen.append(np.sum(beside, axis=0) * lengths)
        near = {suspect.workload, *(twin.workload for twin in twins)}
        rows = self.rows
        first = self.columns.shape[1] - len(self.replicas)
        for at, (names, known) in enumerate(self.replicas, start=first):
            both = rows & known
            if not names & near and both.sum() > 0.5 * self.rows.sum():
                rows = both
                chosen.append(unit[:, [at]])
        return np.column_stack(chosen), rows

    def _at(self, name: str) -> slice:
        start = self.controls.columns.shape[1] + 3 * (*self.long, *self.brief).index(name)
        return slice(start, start + 3)


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
