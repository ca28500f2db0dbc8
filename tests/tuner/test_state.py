from __future__ import annotations

import math
import sqlite3
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import text

from analyzer.findings import Finding, Role, SubjectRef, Verdict, make_finding
from collector.errors import ConfigurationError, RefusedError, UnreachableError
from collector.window import Window
from tests.tuner.fakes import START, change, group, plan, queue_target, slice_target
from tuner.journal import prune_plans, record_plan, step
from tuner.record import ChangeState, Decision, Drop, GroupRecord
from tuner.settings import StateSettings
from tuner.state import (
    State,
    add_suppression,
    count_states,
    get_group,
    latest_plan_id,
    list_drops,
    list_findings,
    list_groups,
    list_suppressions,
    open_groups,
    open_state,
    past_groups,
    record_findings,
    remove_suppression,
    unsuppressed,
)
from tuner.state.codec import canonical, group_from_json, group_to_json, parse
from tuner.state.tables import Base, Instant

A = slice_target("a")
HOUR = timedelta(hours=1)


def finding(code: str = "TT101", gpu: str = "G", **rest: object) -> Finding:
    subjects = (
        SubjectRef(Role.VICTIM, "c", "n0", gpu, "a", "api", "red"),
        SubjectRef(Role.SUSPECT, "c", "n0", gpu, "b"),
    )
    values: dict[str, object] = {"claim": "it hurts", "risk": "none", "confidence": 0.9, "coverage": 1.0, **rest}
    return make_finding(code, Verdict.HOLDS, subjects, Window(START, START + HOUR), **values)


def save(state: State, *names: str, plan_id: str = "p1", at: datetime = START, decision: Decision = "go") -> None:
    groups = [group(change(A, 0.2, 0.3 + i / 100), name=name) for i, name in enumerate(names)]
    records = [GroupRecord(g, plan_id, ChangeState.PLANNED, decision, "", at, at) for g in groups]
    record_plan(state, plan(*groups, now=at, name=plan_id), records, [], actor="test", now=at)


def test_the_file_is_durable_and_versioned(state: State, tmp_path: Path) -> None:
    with state.reading() as connection:
        assert connection.scalar(text("PRAGMA journal_mode")) == "wal"
        assert connection.scalar(text("PRAGMA synchronous")) == 2  # FULL
        assert connection.scalar(text("PRAGMA foreign_keys")) == 1
        assert MigrationContext.configure(connection).get_current_revision() == "0001"


def test_migrations_make_what_the_tables_say(tmp_path: Path) -> None:
    opened = open_state(StateSettings(path=tmp_path / "deep" / "state.db"))
    with opened.reading() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
    opened.close()
    again = open_state(StateSettings(path=tmp_path / "deep" / "state.db"))
    assert latest_plan_id(again) is None
    again.close()


def test_a_database_of_a_newer_version_is_refused(state: State, tmp_path: Path) -> None:
    raw = sqlite3.connect(tmp_path / "state.db")
    raw.execute("UPDATE alembic_version SET version_num = '9999'")
    raw.commit()
    raw.close()
    with pytest.raises(ConfigurationError, match="has revision 9999, this version knows up to 0001"):
        open_state(StateSettings(path=tmp_path / "state.db"))


@pytest.mark.parametrize(
    ("url", "error", "words"),
    [
        ("nonsense", ConfigurationError, "expected an SQLAlchemy address"),
        ("nosuchdb://host/x", ConfigurationError, "expected an SQLAlchemy address"),
        ("mysql+pymysql://host/x", ConfigurationError, "pip install pymysql"),
        ("sqlite:////proc/nope/state.db", UnreachableError, "expected a writable folder"),
        ("sqlite:///{tmp}", UnreachableError, "does not answer"),
    ],
)
def test_addresses_that_do_not_work_are_one_line(tmp_path: Path, url: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        open_state(StateSettings(url=url.format(tmp=tmp_path)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql://u:hunter2@h:port/db", "one that begins with postgresql://"),
        ("u:hunter2@h/db", "one without"),
        ("nosuchdb://u:hunter2@h/db", r"nosuchdb://u:\*{8}@h/db"),
        ("nosuchdb://h/db?password=hunter2", r"password=\*\*\*"),
    ],
)
def test_a_password_in_a_wrong_address_is_not_told(url: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        open_state(StateSettings(url=url))
    assert "hunter2" not in str(caught.value)


def test_a_locked_database_is_unreachable(state: State, tmp_path: Path) -> None:
    with state.writing() as connection:
        connection.execute(text("PRAGMA busy_timeout=1"))
    raw = sqlite3.connect(tmp_path / "state.db", isolation_level=None)
    raw.execute("BEGIN IMMEDIATE")
    with pytest.raises(UnreachableError, match="cannot be written"), state.writing():
        pass
    raw.execute("ROLLBACK")
    raw.close()


def test_a_failed_transaction_leaves_nothing(state: State) -> None:
    def half() -> None:
        with state.writing() as connection:
            connection.execute(text("INSERT INTO leases VALUES ('x', 'y', 1, '2026-01-01T00:00:00.000000Z')"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        half()
    with state.reading() as connection:
        assert connection.scalar(text("SELECT count(*) FROM leases")) == 0


def test_instants_are_aware_utc_text_that_sorts() -> None:
    kind = Instant()
    dialect = None  # not looked at
    summer = datetime.fromisoformat("2026-07-01T12:00:00+02:00")
    written = kind.process_bind_param(summer, dialect)  # type: ignore[arg-type]
    assert written == "2026-07-01T10:00:00.000000Z"
    assert kind.process_result_value(written, dialect) == summer  # type: ignore[arg-type]
    assert kind.process_bind_param(None, dialect) is None  # type: ignore[arg-type]
    assert kind.process_result_value(None, dialect) is None  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="aware"):
        kind.process_bind_param(datetime(2026, 1, 1), dialect)  # type: ignore[arg-type]  # noqa: DTZ001


def test_groups_survive_the_round_trip() -> None:
    original = group(
        change(A, 0.1 + 0.2, 0.5, tenant="t", workload="w"),
        change(queue_target("red"), 1, math.nan, "quota_gpu_count"),
        findings=("tt101-1",),
        fast=True,
        risk="r",
    )
    back = group_from_json(parse(canonical(group_to_json(original))))
    assert back.changes[0] == original.changes[0]
    assert math.isnan(back.changes[1].after)
    assert (back.findings, back.fast, back.risk, back.id) == (("tt101-1",), True, "r", "g1")


def test_findings_keep_their_first_day(state: State) -> None:
    record_findings(state, [], START)
    record_findings(state, [finding(), finding("TT301")], START)
    record_findings(state, [finding(claim="it hurts more")], START + HOUR)
    stored = {f.code: f for f in list_findings(state)}
    assert (stored["TT101"].first_seen, stored["TT101"].last_seen) == (START, START + HOUR)
    assert stored["TT101"].document["claim"] == "it hurts more"
    assert stored["TT101"].verdict == "holds"
    assert [f.code for f in list_findings(state, since=START + HOUR)] == ["TT101"]
    assert [f.code for f in list_findings(state, code="TT3")] == ["TT301"]


def test_suppressions_hide_until_they_expire(state: State) -> None:
    found = [finding(), finding("TT102"), finding("TT301")]
    kept = add_suppression(state, code="TT1", subject="red/*", who="ann", why="known", now=START, until=START + HOUR)
    assert [f.code for f in unsuppressed(state, found, START)] == ["TT301"]
    assert list_suppressions(state)[0].last_used == START
    assert unsuppressed(state, found, START + HOUR) == found
    assert list_suppressions(state, active_at=START + HOUR) == []
    by_path = add_suppression(state, code="TT301", subject="c/n0/*", who="ann", why="x", now=START, until=None)
    assert by_path.covers(finding("TT301"), START + 1000 * HOUR)
    assert not by_path.covers(finding("TT101"), START)
    by_id = add_suppression(state, code="TT101", subject=finding().id, who="ann", why="x", now=START, until=None)
    assert by_id.covers(finding(), START)
    assert not by_id.covers(finding(gpu="H"), START)
    assert remove_suppression(state, kept.id)
    assert not remove_suppression(state, kept.id)


@pytest.mark.parametrize(("who", "why", "hours"), [("", "x", 1), ("ann", "", 1), ("ann", "x", 0)])
def test_a_suppression_needs_who_why_and_a_future(state: State, who: str, why: str, hours: int) -> None:
    with pytest.raises(RefusedError, match="expected"):
        add_suppression(state, code="TT1", subject="*", who=who, why=why, now=START, until=START + hours * HOUR)


def test_groups_are_listed_by_state_time_and_plan(state: State) -> None:
    save(state, "g1", "g2")
    save(state, "g3", plan_id="p2", at=START + HOUR)
    step(state, "g1", ChangeState.INTENT, at=START + 2 * HOUR, actor="t", reason="r")
    assert latest_plan_id(state) == "p2"
    assert [r.id for r in list_groups(state)] == ["g1", "g3", "g2"]
    assert [r.id for r in list_groups(state, states=[ChangeState.PLANNED])] == ["g3", "g2"]
    assert [r.id for r in list_groups(state, since=START + HOUR)] == ["g1", "g3"]
    assert [r.id for r in list_groups(state, plan_id="p1", limit=1)] == ["g1"]
    assert [r.id for r in open_groups(state)] == ["g1"]
    assert count_states(state) == {ChangeState.PLANNED: 2, ChangeState.INTENT: 1}
    assert count_states(state, since=START + 2 * HOUR) == {ChangeState.INTENT: 1}
    found = get_group(state, "g1")
    assert found is not None
    assert (found.intent_at, found.reason, found.is_open) == (START + 2 * HOUR, "r", True)
    assert get_group(state, "nope") is None


def test_documents_are_read_again_after_the_cache_is_full(
    state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(state, *[f"g{i}" for i in range(6)])
    monkeypatch.setattr("tuner.state.database._CACHED_GROUPS", 2)
    other = open_state(StateSettings(path=tmp_path / "state.db"))
    afters = {r.id: r.group.changes[0].after for r in list_groups(other)}
    assert afters == {f"g{i}": pytest.approx(0.3 + i / 100) for i in range(6)}
    other.close()


def test_the_past_that_guards_need(state: State) -> None:
    save(state, "old_open", "old_failed", "old_fine", "young", "unwritten")
    late = START + 10 * HOUR
    for name, at in (("old_open", START), ("old_failed", START), ("old_fine", START), ("young", late)):
        step(state, name, ChangeState.INTENT, at=at, actor="t", reason="r")
    step(state, "old_failed", ChangeState.REFUSED, at=START, actor="t", reason="r")
    for to in (ChangeState.APPLIED, ChangeState.READ_BACK, ChangeState.VERIFYING, ChangeState.CONFIRMED):
        step(state, "old_fine", to, at=START, actor="t", reason="r")
    now = late + HOUR
    names = [r.id for r in past_groups(state, since=now - 4 * HOUR, failed_since=now - 24 * HOUR)]
    assert names == ["old_failed", "old_open", "young"]
    assert [r.id for r in past_groups(state, since=now, failed_since=now)] == ["old_open", "young"]


def test_pruning_keeps_what_was_written_and_the_journal(state: State) -> None:
    save(state, "g1")
    save(state, "g2", plan_id="p2")
    save(state, "g3", plan_id="p3", at=START + HOUR)
    record_plan(
        state,
        plan(group(change(A, 0.2, 0.9), name="g4"), name="p4"),
        [],
        [Drop("g4", "capacity", "dropped", "full")],
        actor="t",
        now=START,
    )
    assert list_drops(state, plan_id="p4") == list_drops(state, group_id="g4")
    assert list_drops(state)[0].reason == "full"
    step(state, "g2", ChangeState.INTENT, at=START, actor="t", reason="r")
    assert prune_plans(state, START + HOUR, at=START, actor="t") == 2
    assert {r.id for r in list_groups(state)} == {"g2", "g3"}
    assert list_drops(state) == []
    assert prune_plans(state, START + HOUR, at=START, actor="t") == 0
