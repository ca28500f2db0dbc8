"""All that the pairs of one victim share: its series cut to the time it worked, and what must be taken out of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analyzer.contention.controls import Controls, Projection, neighbour_columns, victim_controls
from analyzer.contention.series import MIN_SAMPLES, Bools, Card, Floats, Lane, Signal, fill
from collector.schema import UNKNOWN

_LONG_STAY = 0.25  # of the stretch: a co-runner that stayed so long gets columns of its own
_TWIN = 0.98  # correlation above which two suspects are one to a passive test


@dataclass(slots=True)
class Design:
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
        neighbours: dict[str, Floats] = {}
        brief = np.zeros((outcome.size, 3))
        for lane in suspects:
            if lane.activity is None:
                continue
            columns = neighbour_columns(lane)[cut]
            if stay(lane, cut) >= _LONG_STAY * outcome.size:
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
            replicas=_replicas(victim, cost, elsewhere, cut),
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
            if not same or victim.workload in ("", UNKNOWN) or lane.cost is None or lane.cost.name != cost.name:
                continue
            # Another card of the same replica repeats the victim's own figures: it would control the effect away.
            if not np.array_equal(lane.cost.values, cost.values, equal_nan=True):
                result.append((names, lane.cost.values[cut]))
    return result


class Residualiser:
    """Takes the controls and the other co-runners out of series that have their own gaps."""

    def __init__(self, base: Projection, others: Floats) -> None:
        self._base, self._others = base, others
        self._second: dict[bytes, Projection] = {}

    def __call__(self, values: Floats) -> Floats:
        """Return the residual of `values`, NaN where they are NaN."""
        rows = np.isfinite(values)
        key = rows.tobytes()
        if key not in self._second:
            self._second[key] = Projection(self._base.residual(self._others, rows))
        return self._second[key].residual(self._base.residual(values, rows), rows)


def twins_of(suspect: Lane, lanes: list[Lane], activity: Floats, cut: slice) -> list[Lane]:
    """Co-runners that move so exactly as the suspect does that nobody can tell their effects apart."""
    result = []
    for lane in lanes:
        if lane is suspect or lane.activity is None or stay(lane, cut) < _LONG_STAY * activity.size:
            continue
        other = lane.activity.values[cut]
        both = np.isfinite(activity) & np.isfinite(other)
        u, v = activity[both], other[both]
        if u.size > MIN_SAMPLES and u.std() > 0 and v.std() > 0 and np.corrcoef(u, v)[0, 1] > _TWIN:
            result.append(lane)
    return result


def stay(lane: Lane, cut: slice) -> int:
    """Samples of a stretch in which a lane was there."""
    return sum(max(0, min(last + 1, cut.stop) - max(first, cut.start)) for first, last in lane.lives)
