"""The outcome ledger: what was promised, what came of it, and how far such advice is to be believed from now on."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import delete, func, insert, select

from tuner.model import Group
from tuner.state.database import State
from tuner.state.tables import OutcomeRow

HALF_LIFE = timedelta(days=7)
PRIOR = 4.0  # new advice counts as if it had come true so many times


@dataclass(frozen=True, slots=True)
class Outcome:
    """One group's promise and what came of it.

    `predicted` is in SM-seconds an hour of useful work; `realised` is the relative gain that was measured (NaN: not
    known). The two have different units: what is compared is their sign and the verdict.
    """

    group_id: str
    kind: str
    verdict: str
    predicted: float
    realised: float
    at: datetime


def record_outcome(state: State, group: Group, verdict: str, realised: float, at: datetime) -> None:
    """Write what came of a group; a second outcome of the same group replaces the first."""
    with state.writing() as connection:
        connection.execute(delete(OutcomeRow).where(OutcomeRow.group_id == group.id))
        connection.execute(
            insert(OutcomeRow).values(
                group_id=group.id,
                kind=group.kind,
                verdict=verdict,
                predicted=_or_none(group.predicted_gain),
                realised=_or_none(realised),
                at=at,
            )
        )


def list_outcomes(state: State, *, since: datetime | None = None) -> list[Outcome]:
    """Return outcomes, oldest first."""
    query = select(OutcomeRow.__table__).order_by(OutcomeRow.at, OutcomeRow.group_id)
    if since is not None:
        query = query.where(OutcomeRow.at >= since)
    with state.reading() as connection:
        rows = connection.execute(query).all()
    return [Outcome(r.group_id, r.kind, r.verdict, _or_nan(r.predicted), _or_nan(r.realised), r.at) for r in rows]


def proven_kinds(state: State, *, since: datetime) -> dict[str, int]:
    """Return kind of group -> how many passed at or after `since`: what the waves go by."""
    query = select(OutcomeRow.kind, func.count()).where(OutcomeRow.verdict == "pass", OutcomeRow.at >= since)
    with state.reading() as connection:
        rows = connection.execute(query.group_by(OutcomeRow.kind)).all()
    return {row.kind: row[1] for row in rows}


def came_true(outcome: Outcome) -> float:
    """Return how far advice came true: 1, 0 for a rollback, a half for a pass that promised gain and brought none."""
    if outcome.verdict != "pass":
        return 0.0
    promised = not math.isnan(outcome.predicted) and outcome.predicted > 0
    if promised and not math.isnan(outcome.realised) and outcome.realised <= 0:
        return 0.5
    return 1.0


def track_record(outcomes: Sequence[Outcome], now: datetime) -> dict[str, float]:
    """Return kind of group -> factor (0..1) on the confidence of such advice.

    (PRIOR + sum w t) / (PRIOR + sum w), with t how far it came true and w = 2^(-age / HALF_LIFE): without a past 1,
    four failures in a row 0.5, and old failures are forgotten by half in a week.
    """
    weights: dict[str, float] = defaultdict(float)
    truths: dict[str, float] = defaultdict(float)
    for outcome in outcomes:
        age = max((now - outcome.at).total_seconds(), 0.0)
        weight = 2.0 ** (-age / HALF_LIFE.total_seconds())
        weights[outcome.kind] += weight
        truths[outcome.kind] += weight * came_true(outcome)
    return {kind: (PRIOR + truths[kind]) / (PRIOR + weight) for kind, weight in weights.items()}


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
