"""`trimtab pause`, `resume`, `changes`, `audit`."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from collector.batch import Batch, Fact, Subject
from collector.settings import StoreSettings
from collector.store import EmbeddedStore
from dashboard.cli.changes import value_text
from tests.dashboard.conftest import Ran
from tuner.journal import entries, record_plan, step
from tuner.model import Change, Group, Plan, Target
from tuner.record import ChangeState, Decision, Drop, GroupRecord
from tuner.settings import StateSettings
from tuner.state import open_state

KILL = Path("var/PAUSED")


def made(group_id: str, decision: Decision, now: datetime, workload: str = "ranker") -> GroupRecord:
    target = Target("slice", "c", "n", "GPU-1", f"{workload}-slice")
    change = Change(target, "sm_quota_ratio", 0.5, 0.6, "p97.5 of demand is 0.58", "search", workload)
    group = Group(group_id, (change,), f"raise {workload}", "reserve", 100.0, 0.9, 0.95, risk="demand may fall")
    until = now + timedelta(days=1) if decision == "ask" else None
    return GroupRecord(group, "plan-1", ChangeState.PLANNED, decision, f"mode {decision}", now, now, until=until)


@pytest.fixture
def planned(elsewhere: Path) -> datetime:
    """A plan: one group waits for an answer, one is in force, one was dropped by a guard."""
    now = datetime.now(UTC)
    records = [made("g-ask", "ask", now), made("g-go", "go", now, "trainer"), made("g-drop", "ask", now, "batch")]
    notes = ("2 open pairs of TT101 cannot be tried out: no share acts at once",)
    plan = Plan("plan-1", now, now, tuple(record.group for record in records), notes=notes)
    with_state = open_state(StateSettings())
    record_plan(
        with_state, plan, records[:2], [Drop("g-drop", "cooldown", "dropped", "changed 5 min ago")], actor="t", now=now
    )
    for state in (ChangeState.INTENT, ChangeState.APPLIED, ChangeState.READ_BACK, ChangeState.VERIFYING):
        step(with_state, "g-go", state, at=now, actor="t", reason="as planned")
    with_state.close()
    return now


def states() -> dict[str, str]:
    opened = open_state(StateSettings())
    found = {entry.group_id: entry.event for entry in entries(opened) if entry.group_id}
    opened.close()
    return found


def test_pause_works_without_a_database_and_makes_none(trimtab: Callable[..., Ran]) -> None:
    ran = trimtab("pause", "odd rollbacks", "--as", "ann")
    assert ran.code == 0
    assert KILL.read_text().splitlines()[0] == "freeze_all"
    assert "paused (freeze_all) by ann" in ran.out
    assert not Path("var/state.db").exists()
    assert json.loads(trimtab("resume", "--json").out)["was"] == "freeze_all"
    assert not KILL.exists()
    assert trimtab("resume").out == "it was not paused\n"


def test_pause_of_new_changes_only(trimtab: Callable[..., Ran]) -> None:
    document = json.loads(trimtab("pause", "--level", "new", "--json").out)
    assert document == {"schema_version": 1, "level": "freeze_new", "file": "var/PAUSED"}
    assert KILL.read_text().splitlines()[0] == "freeze_new"
    assert "freeze_new" in trimtab("resume").out


def test_an_unwritable_switch_is_said(trimtab: Callable[..., Ran]) -> None:
    Path("var").write_text("a file where a folder is needed")
    ran = trimtab("pause")
    assert ran.code == 4
    assert "create the file by hand" in ran.err


@pytest.mark.usefixtures("planned")
def test_pause_and_resume_are_journalled_where_there_is_a_journal(trimtab: Callable[..., Ran]) -> None:
    trimtab("pause", "why not", "--as", "ann")
    trimtab("resume", "--as", "bob")
    opened = open_state(StateSettings())
    last = entries(opened)[-2:]
    opened.close()
    assert [(entry.event, entry.actor) for entry in last] == [("paused", "ann"), ("resumed", "bob")]
    assert last[0].body == {"level": "freeze_all", "why": "why not"}


def test_pause_holds_when_the_journal_is_broken(trimtab: Callable[..., Ran], elsewhere: Path) -> None:
    Path("var").mkdir()
    Path("var/state.db").write_text("no database")
    ran = trimtab("pause")
    assert ran.code == 0
    assert KILL.exists()
    assert "not written to the journal" in ran.err


def test_no_changes_yet_is_no_error_and_makes_no_database(trimtab: Callable[..., Ran]) -> None:
    assert trimtab("changes").out == "no changes yet\n"
    assert json.loads(trimtab("changes", "--json").out)["changes"] == []
    assert not Path("var").exists()
    ran = trimtab("changes", "approve", "g", "--why", "x")
    assert ran.code == 4


@pytest.mark.usefixtures("planned")
def test_changes_are_listed_newest_first_without_the_dropped(trimtab: Callable[..., Ran]) -> None:
    ran = trimtab("changes")
    lines = ran.out.splitlines()
    assert len(lines) == 3
    by_id = {line.split()[0]: line for line in lines[1:]}
    assert "waits for an answer" in by_id["g-ask"]
    assert "ranker sm_quota_ratio 50.0% -> 60.0%" in by_id["g-ask"]
    assert "verifying" in by_id["g-go"]
    assert "1 waits for an answer" in ran.err
    assert "2 open pairs of TT101 cannot be tried out" in ran.err
    document = json.loads(trimtab("changes", "--all", "--json").out)
    assert document["notes"] == ["2 open pairs of TT101 cannot be tried out: no share acts at once"]
    assert {change["id"]: change["state"] for change in document["changes"]} == {
        "g-ask": "planned",
        "g-go": "verifying",
        "g-drop": "dropped",
    }
    only = json.loads(trimtab("changes", "--state", "verifying", "--json").out)
    assert [change["id"] for change in only["changes"]] == ["g-go"]
    wrong = trimtab("changes", "--state", "verifed")
    assert wrong.code == 2
    assert "the nearest known one is `verifying`" in wrong.err


@pytest.mark.usefixtures("planned")
def test_one_change_is_shown_with_guards_and_journal(trimtab: Callable[..., Ran]) -> None:
    text = trimtab("changes", "show", "g-go").out
    assert text.splitlines()[0] == "g-go: raise trainer"
    assert "risk: demand may fall" in text
    assert "intent by t: as planned" in text
    dropped = trimtab("changes", "show", "g-drop")
    assert "guard cooldown dropped it: changed 5 min ago" in dropped.out
    document = json.loads(trimtab("changes", "show", "g-go", "--json").out)
    assert [entry["event"] for entry in document["journal"]] == ["intent", "applied", "read_back", "verifying"]
    assert trimtab("changes", "show", "nobody").code == 2


@pytest.mark.usefixtures("planned")
def test_cards_have_the_names_that_the_store_knows(trimtab: Callable[..., Ran]) -> None:
    opened = open_state(StateSettings())
    now = datetime.now(UTC)
    base = made("g-card", "go", now)
    record = replace(base, group=replace(base.group, why="online work on GPU-1 may need the card back", risk="GPU-1"))
    plan = Plan("plan-2", now, now, (record.group,), notes=("GPU-1 is left alone",))
    record_plan(opened, plan, [record], [], actor="t", now=now)
    opened.close()
    unnamed = trimtab("changes")
    assert "online work on GPU-1 may" in unnamed.out
    ordinal = Fact(Subject("gpu", "c", "n", "GPU-1"), "ordinal", "3", now - timedelta(days=1))
    with closing(EmbeddedStore(StoreSettings())) as store:
        store.write(Batch(facts=[ordinal]))
    ran = trimtab("changes")
    assert "online work on n GPU 3 may need the card back" in ran.out
    assert "n GPU 3 is left alone" in ran.err
    shown = trimtab("changes", "show", "g-card").out
    assert shown.startswith("g-card: online work on n GPU 3 may need the card back\n")
    assert "risk: n GPU 3\n" in shown
    assert json.loads(trimtab("changes", "--json").out)["notes"] == ["GPU-1 is left alone"]


@pytest.mark.usefixtures("planned")
def test_approve_reject_and_rollback(trimtab: Callable[..., Ran]) -> None:
    assert trimtab("changes", "approve", "g-ask", "--why", "right", "--as", "ann").out == "g-ask is now approved\n"
    assert trimtab("changes", "reject", "g-ask", "--why", "second thought").out == "g-ask is now refused\n"
    assert trimtab("changes", "rollback", "g-go", "--why", "tail went up").out == "g-go is now rolling_back\n"
    assert states() == {"g-ask": "refused", "g-go": "rolling_back"}


@pytest.mark.usefixtures("planned")
def test_a_refused_answer_is_code_5_and_keeps_nobody_else_waiting(trimtab: Callable[..., Ran]) -> None:
    ran = trimtab("changes", "approve", "g-go", "g-ask", "--why", "looks right", "--json")
    assert ran.code == 5
    document = json.loads(ran.out)
    assert [change["id"] for change in document["changes"]] == ["g-ask"]
    assert len(document["refused"]) == 1
    assert "it does not wait for an answer" in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.usefixtures("planned")
def test_an_answer_needs_a_reason(trimtab: Callable[..., Ran]) -> None:
    ran = trimtab("changes", "approve", "g-ask")
    assert ran.code == 2
    assert "Missing option '--why'" in ran.err


@pytest.mark.usefixtures("planned")
def test_audit_verifies_and_finds_what_was_changed(trimtab: Callable[..., Ran]) -> None:
    ran = trimtab("audit", "verify")
    assert ran.code == 0
    assert "the journal is whole: 5 entries" in ran.out
    assert json.loads(trimtab("audit", "verify", "--json").out)["ok"] is True
    with sqlite3.connect("var/state.db") as db:
        db.execute("UPDATE journal SET actor = 'somebody else' WHERE seq = 3")
    db.close()
    ran = trimtab("audit", "verify")
    assert ran.code == 1
    assert "broken at entry 3: its content was changed" in ran.out
    assert json.loads(trimtab("audit", "verify", "--json").out)["broken_seq"] == 3


@pytest.mark.usefixtures("planned")
def test_audit_finds_an_end_that_was_cut_off_by_a_noted_head(trimtab: Callable[..., Ran]) -> None:
    head = "{seq}:{hash}".format(**json.loads(trimtab("audit", "verify", "--json").out)["head"])
    assert "".join(trimtab("audit", "verify", "--head", head).out.split()).endswith(f"head{head}")
    with sqlite3.connect("var/state.db") as db:
        db.execute("DELETE FROM journal WHERE seq = 5")
        db.execute("UPDATE groups SET state = 'read_back' WHERE id = 'g-go'")
    db.close()
    assert trimtab("audit", "verify").code == 0
    ran = trimtab("audit", "verify", "--head", head)
    assert ran.code == 1
    assert "entries after 4 are missing: 5 were noted" in " ".join(ran.out.split())


@pytest.mark.parametrize("head", ["5", "x:" + "0" * 64, "5:" + "0" * 63])
@pytest.mark.usefixtures("planned")
def test_a_head_that_cannot_be_one_is_refused(trimtab: Callable[..., Ran], head: str) -> None:
    ran = trimtab("audit", "verify", "--head", head)
    assert ran.code == 2
    assert "SEQ:HASH" in ran.err


@pytest.mark.usefixtures("planned")
def test_audit_finds_a_change_that_bypassed_the_journal(trimtab: Callable[..., Ran]) -> None:
    with sqlite3.connect("var/state.db") as db:
        (table,) = db.execute("SELECT name FROM sqlite_master WHERE name LIKE '%group%' AND type = 'table'").fetchone()
        db.execute(f"UPDATE {table} SET state = 'confirmed' WHERE id = 'g-go'")  # noqa: S608  a table's name
    db.close()
    ran = trimtab("audit", "verify")
    assert ran.code == 1
    assert "change g-go is confirmed, its journal says verifying" in ran.out


@pytest.mark.parametrize(
    ("knob", "value", "expected"),
    [
        ("sm_quota_ratio", 0.125, "12.5%"),
        ("memory_quota_bytes", 3 * 2**30, "3.00 GiB"),
        ("priority", 2.0, "2"),
        ("priority", float("nan"), "unknown"),
    ],
)
def test_values_read_as_people_write_them(knob: str, value: float, expected: str) -> None:
    assert value_text(knob, value) == expected
