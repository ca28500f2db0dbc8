"""What was changed behind the journal's back is not carried out."""

from __future__ import annotations

import sqlite3
from datetime import timedelta
from pathlib import Path

import pytest

from collector.clock import VirtualClock
from tests.tuner.fakes import START, backend_with, change, group, held, plan, slice_target
from tuner.audit import verify_chain
from tuner.consent import approve
from tuner.execute import execute
from tuner.journal import record_plan
from tuner.lease import Lease
from tuner.record import ChangeState, GroupRecord
from tuner.state import State
from tuner.writer import Writer

A, B = slice_target("a"), slice_target("b")
ASKED, FALLEN = group(change(A, 0.2, 0.5)), group(change(B, 0.6, 0.3), name="g2")


def wait_for_an_answer(state: State) -> None:
    until = START + timedelta(days=1)
    record = GroupRecord(ASKED, "p1", ChangeState.PLANNED, "ask", "test", START, START, until=until)
    record_plan(state, plan(ASKED, FALLEN), [record], [], actor="test", now=START)


@pytest.mark.parametrize(
    ("statement", "name", "words"),
    [
        ("UPDATE groups SET decision = 'go' WHERE id = 'g1'", "g1", "its plan says ask"),
        ("UPDATE groups SET decision = 'go', state = 'planned' WHERE id = 'g2'", "g2", "its plan dropped it"),
        ("UPDATE groups SET state = 'approved' WHERE id = 'g1'", "g1", "its journal says planned"),
        ("UPDATE groups SET state = 'approved', plan_id = 'p9' WHERE id = 'g1'", "g1", "p9 is not in the journal"),
    ],
)
def test_a_change_that_was_tampered_with_is_refused(
    state: State, tmp_path: Path, statement: str, name: str, words: str
) -> None:
    wait_for_an_answer(state)
    tamper(tmp_path, statement)
    assert not verify_chain(state).ok
    assert carry_out(state, tmp_path, name, words) == []


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("UPDATE groups SET document = replace(document, '0.5', '0.9') WHERE id = 'g1'", "p1 was changed after"),
        ("UPDATE groups SET until = '2030-01-01T00:00:00.000000Z' WHERE id = 'g1'", "g1 waits until 2030"),
        ("UPDATE journal SET body = '{}' WHERE seq = 2", "its journal entries were changed"),
        ("UPDATE journal SET at = 'noon' WHERE seq = 2", "cannot be read"),
    ],
)
def test_an_approval_holds_for_what_was_shown(state: State, tmp_path: Path, statement: str, words: str) -> None:
    wait_for_an_answer(state)
    approve(state, "g1", who="ann", why="ok", role="operator", now=START)
    tamper(tmp_path, statement)
    assert carry_out(state, tmp_path, "g1", words) == []


def carry_out(state: State, folder: Path, name: str, words: str) -> list[object]:
    clock = VirtualClock(START)
    backend = backend_with(clock, held(A, {"sm_quota_ratio": 0.2}), held(B, {"sm_quota_ratio": 0.6}))
    lease = Lease(state, "tuner", clock)
    assert lease.acquire()
    step = execute(Writer(state, backend, clock, lease, folder / "PAUSED"), name)
    assert step.state is ChangeState.REFUSED
    assert words in step.reason
    return list(backend.writes)


def tamper(folder: Path, statement: str) -> None:
    raw = sqlite3.connect(folder / "state.db")
    raw.execute(statement)
    raw.commit()
    raw.close()
