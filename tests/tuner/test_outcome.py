from __future__ import annotations

import math
from datetime import timedelta

import pytest

from tests.tuner.fakes import START, change, group, slice_target
from tuner.outcome import HALF_LIFE, Outcome, came_true, list_outcomes, proven_kinds, record_outcome, track_record
from tuner.state import State

DAY = timedelta(days=1)


def outcome(verdict: str = "pass", realised: float = 0.1, predicted: float = 10.0, days: float = 0.0) -> Outcome:
    return Outcome("g", "give", verdict, predicted, realised, START - days * DAY)


def test_outcomes_are_kept_once_a_group(state: State) -> None:
    one = group(change(slice_target("a"), 0.2, 0.3))
    other = group(change(slice_target("a"), 0.2, 0.3), name="g2", kind="queue", predicted_gain=math.nan)
    record_outcome(state, one, "inconclusive", math.nan, START)
    record_outcome(state, one, "pass", 0.2, START + DAY)
    record_outcome(state, other, "fail", -0.3, START)
    assert [(o.group_id, o.verdict, o.realised) for o in list_outcomes(state)] == [
        ("g2", "fail", -0.3),
        ("g1", "pass", 0.2),
    ]
    assert math.isnan(list_outcomes(state)[0].predicted)
    assert [o.group_id for o in list_outcomes(state, since=START + DAY)] == ["g1"]
    assert proven_kinds(state, since=START) == {"give": 1}
    assert proven_kinds(state, since=START + 2 * DAY) == {}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (outcome(), 1.0),
        (outcome("fail"), 0.0),
        (outcome("inconclusive"), 0.0),
        (outcome(realised=-0.1), 0.5),  # harmless, but it promised gain
        (outcome(realised=-0.1, predicted=0.0), 1.0),  # it promised none
        (outcome(realised=math.nan), 1.0),
        (outcome(predicted=math.nan, realised=-0.1), 1.0),
    ],
)
def test_how_far_advice_came_true(kind: Outcome, expected: float) -> None:
    assert came_true(kind) == expected


def test_advice_that_does_not_come_true_is_believed_less() -> None:
    assert track_record([], START) == {}
    assert track_record([outcome()] * 10, START) == {"give": 1.0}
    assert track_record([outcome("fail")] * 4, START) == {"give": pytest.approx(0.5)}
    assert track_record([outcome("fail")] * 12, START) == {"give": pytest.approx(0.25)}
    old = [outcome("fail", days=HALF_LIFE.days)] * 4  # each counts half
    assert track_record(old, START) == {"give": pytest.approx(4 / 6)}
    mixed = [outcome(), outcome("fail")]
    assert track_record(mixed, START) == {"give": pytest.approx(5 / 6)}
