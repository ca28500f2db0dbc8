from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from tests.tuner.fakes import KNOBS, START, change, group, held, slice_target
from tuner.drift import notice_drift
from tuner.journal import entries
from tuner.model import BackendState, Target
from tuner.record import ChangeState, GroupRecord
from tuner.state import State

A, B = slice_target("a"), slice_target("b")
HOUR = timedelta(hours=1)


def past(state: ChangeState, name: str = "g1", after: float = 0.5) -> GroupRecord:
    wanted = group(change(A, 0.2, after), change(B, 0.6, 0.3), name=name)
    return GroupRecord(wanted, "p", state, "go", "", START, START, intent_at=START, settled_at=START)


def present(a: float, b: float = 0.3) -> BackendState:
    return BackendState(START, {A: held(A, {"sm_quota_ratio": a}), B: held(B, {"sm_quota_ratio": b})})


def drift(state: State, a: float, *records: GroupRecord, hours: float = 0, b: float = 0.3) -> dict[Target, str]:
    return notice_drift(state, records, present(a, b), KNOBS, now=START + hours * HOUR)


def test_our_own_values_are_no_drift(state: State) -> None:
    assert drift(state, 0.5, past(ChangeState.CONFIRMED)) == {}
    assert drift(state, 0.504, past(ChangeState.SUPERSEDED)) == {}  # within half a quantum
    assert drift(state, 0.2, past(ChangeState.ROLLED_BACK), b=0.6) == {}
    assert entries(state) == []


def test_open_and_foreign_groups_are_settled_elsewhere(state: State) -> None:
    for last in (ChangeState.VERIFYING, ChangeState.FOREIGN_CHANGE, ChangeState.ROLLBACK_BLOCKED):
        assert drift(state, 0.9, past(ChangeState.CONFIRMED), past(last, "g2")) == {}


def test_a_pretended_change_is_nobodys_value(state: State) -> None:
    pretended = replace(past(ChangeState.CONFIRMED, "g2", 0.7), evidence={"pretended": True, "reason": "pretended"})
    assert drift(state, 0.2, pretended, b=0.6) == {}
    assert entries(state) == []
    ours = past(ChangeState.CONFIRMED)
    assert drift(state, 0.5, ours, pretended) == {}  # the last real one counts
    assert list(drift(state, 0.7, ours, pretended)) == [A]


def test_a_foreign_value_is_noted_once_and_rests_for_an_hour(state: State) -> None:
    ours = past(ChangeState.CONFIRMED)
    first = drift(state, 0.4, ours)
    assert first == {A: "somebody else set sm_quota_ratio to 0.4 (2026-03-02T00:00+00:00)"}
    assert drift(state, 0.4, ours, hours=0.5) == first
    assert drift(state, 0.4, ours, hours=1) == {}  # the new baseline
    assert [e.body["found"] for e in entries(state)] == [0.4]


def test_twice_within_a_day_is_a_fight(state: State) -> None:
    drift(state, 0.4, past(ChangeState.CONFIRMED))
    again = past(ChangeState.CONFIRMED, "g2", 0.55)
    said = drift(state, 0.45, again, hours=3)
    assert said[A].endswith(", 2 times within a day: something else steers it too")


def test_a_target_that_is_gone_does_not_drift(state: State) -> None:
    gone = BackendState(START, {})
    assert notice_drift(state, [past(ChangeState.CONFIRMED)], gone, KNOBS, now=START) == {}
