from __future__ import annotations

import multiprocessing
import sqlite3
from datetime import timedelta
from itertools import pairwise
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
from sqlalchemy import update

from tests.tuner.fakes import START, change, group, plan, slice_target
from tuner.audit import Audit, verify_chain
from tuner.consent import approve
from tuner.journal import (
    Fence,
    LeaseLostError,
    StateMovedError,
    entries,
    expire_waiting,
    head,
    note,
    prune_plans,
    record_plan,
    remark,
    step,
)
from tuner.model import Group
from tuner.record import NEXT_STATES, OPEN_STATES, WAITING_STATES, ChangeState, Decision, Drop, GroupRecord
from tuner.settings import StateSettings
from tuner.state import State, get_group, list_drops, open_state, waiting_groups
from tuner.state.tables import GroupRow

A = slice_target("a")
HOUR = timedelta(hours=1)


def wanted(name: str, after: float = 0.3, slice_name: str = "a") -> Group:
    return group(change(slice_target(slice_name), 0.2, after), name=name)


def record(of: Group, plan_id: str, decision: Decision = "ask", **rest: object) -> GroupRecord:
    return GroupRecord(of, plan_id, ChangeState.PLANNED, decision, "test", START, START, **rest)  # type: ignore[arg-type]


def save(state: State, *groups: Group, plan_id: str = "p1", decision: Decision = "ask", **rest: object) -> list[str]:
    records = [record(g, plan_id, decision, **rest) for g in groups]
    written = record_plan(state, plan(*groups, name=plan_id), records, [], actor="tuner", now=START)
    return [r.id for r in written]


def tamper(tmp_path: Path, statement: str) -> None:
    raw = sqlite3.connect(tmp_path / "state.db")
    raw.execute(statement)
    raw.commit()
    raw.close()


@pytest.fixture
def filled(state: State) -> State:
    save(state, wanted("g1"), wanted("g2", slice_name="b"), decision="go")
    for to in (ChangeState.INTENT, ChangeState.APPLIED, ChangeState.READ_BACK):
        step(state, "g1", to, at=START, actor="tuner", reason="r", body={"n": 1.5})
    note(state, "paused", at=START, actor="ann", body={"why": "drill"})
    remark(state, "g1", "unknown", at=START, actor="tuner", reason="time-out")
    return state


def test_a_whole_chain_is_whole(filled: State) -> None:
    assert verify_chain(filled) == Audit(6)
    assert [e.event for e in entries(filled)] == ["planned", "intent", "applied", "read_back", "paused", "unknown"]
    links = entries(filled)
    assert links[0].previous == "0" * 64
    assert all(b.previous == a.hash for a, b in pairwise(links))
    assert head(filled) == (6, links[-1].hash)
    assert [e.seq for e in entries(filled, group_id="g1", after=2)] == [3, 4, 6]
    assert [e.seq for e in entries(filled, limit=2)] == [1, 2]
    assert entries(filled, group_id="g1")[0].body == {"n": 1.5, "reason": "r"}


def test_an_empty_chain_is_whole(state: State) -> None:
    assert verify_chain(state) == Audit(0)
    assert head(state) == (0, "0" * 64)


@pytest.mark.parametrize(
    ("statement", "seq", "words"),
    [
        ("UPDATE journal SET body = '{\"n\":2.5}' WHERE seq = 2", 2, "its content was changed"),
        ("UPDATE journal SET actor = 'bob' WHERE seq = 5", 5, "its content was changed"),
        ("UPDATE journal SET at = '2026-03-03T00:00:00.000000Z' WHERE seq = 3", 3, "its content was changed"),
        ("UPDATE journal SET fence = 7 WHERE seq = 3", 3, "its content was changed"),
        ("DELETE FROM journal WHERE seq = 3", 4, "entry 3 is missing"),
        ("DELETE FROM journal WHERE seq = 1", 2, "entry 1 is missing"),
        ("UPDATE journal SET previous = hash WHERE seq = 4", 4, "it does not follow the entry before it"),
        ("UPDATE groups SET document = replace(document, '0.3', '0.4') WHERE id = 'g2'", 1, "plan p1 was changed"),
        ("UPDATE plans SET notes = '[\"x\"]'", 1, "plan p1 was changed"),
        ("UPDATE plans SET simulated = 1", 1, "plan p1 was changed"),
        ("UPDATE groups SET decision = 'ask' WHERE id = 'g2'", 1, "decision of change g2 is ask, its plan says go"),
        ("UPDATE groups SET simulated = 1 WHERE id = 'g2'", 1, "g2 says simulated True, its plan says False"),
        ("UPDATE groups SET until = '2027-01-01T00:00:00.000000Z' WHERE id = 'g2'", 1, "g2 waits until 2027-01-01"),
        ("UPDATE groups SET until = 'soon' WHERE id = 'g2'", 1, "plan p1 cannot be read"),
        ("UPDATE groups SET state = 'dropped' WHERE id = 'g2'", 1, "change g2 is dropped, its plan kept it"),
        ("UPDATE groups SET restarts = 7 WHERE id = 'g2'", 1, "plan p1 was changed"),
        ("DELETE FROM groups WHERE id = 'g2'", 1, "change g2 of plan p1 is missing"),
        ("UPDATE groups SET plan_id = 'p0' WHERE id = 'g2'", 1, "change g2 of plan p1 is missing"),
        ("UPDATE journal SET at = 'noon' WHERE seq = 3", 3, "it cannot be read"),
        ("UPDATE journal SET body = x'ff00' WHERE seq = 3", 3, "its content cannot be read"),
        ("UPDATE journal SET body = CAST(x'ff00' AS TEXT) WHERE seq = 3", 3, "it cannot be read"),
        ("UPDATE groups SET state = 'confirmed' WHERE id = 'g1'", None, "g1 is confirmed, its journal says read_back"),
        ("UPDATE groups SET state = 'intent' WHERE id = 'g2'", None, "g2 is intent, its journal says planned"),
    ],
)
def test_what_was_changed_by_hand_is_found(
    filled: State, tmp_path: Path, statement: str, seq: int | None, words: str
) -> None:
    tamper(tmp_path, statement)
    audit = verify_chain(filled)
    assert not audit.ok
    assert audit.broken_seq == seq
    assert words in audit.problem


def test_what_the_guards_dropped_stays_dropped(state: State, tmp_path: Path) -> None:
    drops = [Drop("g1", "capacity", "dropped", "full")]
    record_plan(state, plan(wanted("g1")), [], drops, actor="tuner", now=START)
    assert verify_chain(state) == Audit(1)
    tamper(tmp_path, "UPDATE groups SET state = 'planned', decision = 'go'")
    assert verify_chain(state) == Audit(1, 1, "change g1 is planned, its plan dropped it")


def test_an_approval_that_was_made_longer_is_found(state: State, tmp_path: Path) -> None:
    save(state, wanted("g1"), until=START + HOUR)
    approve(state, "g1", who="ann", why="ok", role="operator", now=START, until=START + HOUR / 2)
    assert verify_chain(state) == Audit(2)
    tamper(tmp_path, "UPDATE groups SET until = '2027-01-01T00:00:00.000000Z'")
    assert "g1 waits until 2027-01-01" in verify_chain(state).problem


def test_a_plan_that_is_gone_was_pruned_or_is_missed(state: State, tmp_path: Path) -> None:
    save(state, wanted("g1"))
    save(state, wanted("g2", slice_name="b"), plan_id="p2")
    tamper(tmp_path, "UPDATE plans SET made_at = '2027-01-01T00:00:00.000000Z' WHERE id = 'p2'")
    assert prune_plans(state, START + HOUR, at=START, actor="tuner") == 1
    assert entries(state)[-1].body == {"plans": ["p1"]}
    assert verify_chain(state) == Audit(3)
    tamper(tmp_path, "DELETE FROM groups")
    tamper(tmp_path, "DELETE FROM plans")
    assert verify_chain(state) == Audit(3, 2, "plan p2 is missing")


def test_a_change_of_no_plan_in_the_journal_is_found(state: State, tmp_path: Path) -> None:
    save(state, wanted("g1"))
    tamper(tmp_path, "DELETE FROM journal")
    assert "belongs to plan p1, which is not in the journal" in verify_chain(state).problem


def test_an_end_that_was_cut_off_is_found_by_a_noted_head(filled: State, tmp_path: Path) -> None:
    noted = head(filled)
    tamper(tmp_path, "DELETE FROM journal WHERE seq = 6")
    assert verify_chain(filled).ok
    assert verify_chain(filled, expected_head=noted).problem == "entries after 5 are missing: 6 were noted"
    note(filled, "resumed", at=START, actor="ann")
    assert verify_chain(filled).ok
    assert verify_chain(filled, expected_head=noted) == Audit(
        5, 6, "it is not the entry that was noted with this number"
    )
    assert verify_chain(filled, expected_head=head(filled)).ok


def test_a_long_chain_is_read_in_pieces(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.audit._BATCH", 3)
    for n in range(10):
        note(state, "tick", at=START, actor="t", body={"n": n})
    assert verify_chain(state) == Audit(10)


def approve_many(path: Path, names: list[str], together: Barrier) -> None:
    state = open_state(StateSettings(path=path))
    together.wait(60)
    for name in names:
        approve(state, name, who="ann", why="ok", role="operator", now=START)
    state.close()


def test_two_processes_write_one_chain(state: State, tmp_path: Path) -> None:
    names = [f"g{i}" for i in range(25)]
    save(state, *[wanted(name, slice_name=name) for name in names])
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(2)
    dashboard = context.Process(target=approve_many, args=(tmp_path / "state.db", names, together))
    dashboard.start()
    together.wait(60)
    for n in range(25):
        note(state, "tick", at=START, actor="tuner", body={"n": n})
    dashboard.join()
    assert dashboard.exitcode == 0
    assert verify_chain(state) == Audit(1 + 25 + 25)
    assert [e.event for e in entries(state)].count("approved") == 25
    assert {r.state for r in waiting_groups(state)} == {ChangeState.APPROVED}


@pytest.mark.parametrize("start", list(ChangeState))
def test_only_the_steps_that_are_allowed(state: State, start: ChangeState) -> None:
    save(state, wanted("g1"))
    for to in ChangeState:
        with state.writing() as connection:
            connection.execute(update(GroupRow).values(state=start.value))
        if to in NEXT_STATES[start]:
            step(state, "g1", to, at=START + HOUR, actor="t", reason="r")
            found = get_group(state, "g1")
            assert found is not None
            assert found.state is to
            assert (found.settled_at is not None) or to in OPEN_STATES | WAITING_STATES
        else:
            with pytest.raises(StateMovedError, match=f"is {start.value}: it cannot become {to.value}"):
                step(state, "g1", to, at=START, actor="t", reason="r")


def test_a_step_without_the_lease_is_refused_and_leaves_no_trace(state: State) -> None:
    save(state, wanted("g1"), decision="go")
    with pytest.raises(LeaseLostError, match="it is with nobody"):
        step(state, "g1", ChangeState.INTENT, at=START, actor="t", reason="r", fence=Fence("tuner", "me", 1))
    assert len(entries(state)) == 1


def test_a_plan_is_sealed_with_its_drops(state: State) -> None:
    kept, gone = wanted("g1"), wanted("g2", slice_name="b")
    drops = [Drop("g2", "capacity", "dropped", "full"), Drop("g1", "step limit", "lessened", "too far")]
    record_plan(state, plan(kept, gone), [record(kept, "p1", "write_down")], drops, actor="tuner", now=START)
    sealed = entries(state)[0]
    assert sealed.plan_id == "p1"
    assert sealed.body["groups"] == {"g1": "write_down"}
    assert (sealed.body["dropped"], sealed.body["drops"], sealed.body["simulated"]) == (1, 2, False)
    fallen = get_group(state, "g2")
    assert fallen is not None
    assert (fallen.state, fallen.reason) == (ChangeState.DROPPED, "capacity: full")


def test_ids_are_used_once(state: State) -> None:
    save(state, wanted("g1"))
    with pytest.raises(ValueError, match="never be used twice"):
        save(state, wanted("g1", 0.4), plan_id="p2")
    with pytest.raises(ValueError, match="differ within a plan"):
        save(state, wanted("g2"), wanted("g2", slice_name="b"), plan_id="p3")
    assert len(entries(state)) == 1


def test_what_already_waits_is_not_asked_twice(state: State) -> None:
    assert save(state, wanted("g1")) == ["g1"]
    assert save(state, wanted("g2"), plan_id="p2") == []
    assert list_drops(state, group_id="g2") == [
        Drop("g2", "waiting", "dropped", "g1 asks for the same and waits for an answer")
    ]
    assert [r.id for r in waiting_groups(state)] == ["g1"]


def test_a_new_ask_for_the_same_target_replaces_the_old(state: State) -> None:
    save(state, wanted("g1"), wanted("g2", slice_name="b"))
    assert save(state, wanted("g3", 0.5), plan_id="p2") == ["g3"]
    assert {r.id for r in waiting_groups(state)} == {"g2", "g3"}
    old = get_group(state, "g1")
    assert old is not None
    assert (old.state, old.reason) == (ChangeState.EXPIRED, "g3 asks instead")
    assert verify_chain(state).ok


def test_asks_expire(state: State) -> None:
    save(state, wanted("g1"), until=START + HOUR)
    assert expire_waiting(state, now=START + HOUR / 2, actor="t") == []
    assert expire_waiting(state, now=START + HOUR, actor="t") == ["g1"]
    assert waiting_groups(state) == []


def test_what_auto_left_undone_expires(state: State) -> None:
    save(state, wanted("g1"), decision="go")
    save(state, wanted("g2", slice_name="b"), plan_id="p2", decision="write_down")
    assert expire_waiting(state, now=START + timedelta(minutes=10), actor="t") == []
    assert expire_waiting(state, now=START + timedelta(minutes=11), actor="t") == ["g1"]
