"""The state database on PostgreSQL: set TRIMTAB_TEST_DATABASE to an empty database's address, such as
postgresql+psycopg://user@127.0.0.1:5432/trimtab_test (its tables are dropped)."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing.synchronize import Barrier

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine, text

from analyzer.findings import Role, SubjectRef, Verdict, make_finding
from collector.clock import VirtualClock
from collector.errors import UnreachableError
from collector.window import Window
from tests.tuner.fakes import START, change, group, plan, slice_target
from tuner.audit import Audit, verify_chain
from tuner.consent import approve
from tuner.journal import entries, note, prune_plans, record_plan, step
from tuner.lease import Lease
from tuner.outcome import list_outcomes, proven_kinds, record_outcome
from tuner.record import ChangeState, GroupRecord
from tuner.settings import StateSettings
from tuner.state import (
    State,
    add_suppression,
    list_findings,
    list_groups,
    open_state,
    past_groups,
    record_findings,
    unsuppressed,
)
from tuner.state.tables import Base

URL = os.environ.get("TRIMTAB_TEST_DATABASE", "")
pytestmark = pytest.mark.skipif(not URL, reason="needs a PostgreSQL database (set TRIMTAB_TEST_DATABASE)")
_TURN = 4021  # of the advisory lock: each test empties the one database, tests of other processes wait


@pytest.fixture
def postgres() -> Iterator[State]:
    engine = create_engine(URL)
    with engine.connect() as turn:
        turn.execute(text(f"SELECT pg_advisory_lock({_TURN})"))
        with engine.begin() as connection:
            connection.execute(text("DROP SCHEMA public CASCADE"))
            connection.execute(text("CREATE SCHEMA public"))
        opened = open_state(StateSettings(url=URL))
        yield opened
        opened.close()
    engine.dispose()


def save(state: State, count: int) -> list[str]:
    groups = [group(change(slice_target(f"s{i}"), 0.2, 0.3), name=f"g{i}") for i in range(count)]
    records = [GroupRecord(g, "p1", ChangeState.PLANNED, "ask", "", START, START) for g in groups]
    return [r.id for r in record_plan(state, plan(*groups), records, [], actor="t", now=START)]


def test_migrations_make_what_the_tables_say(postgres: State) -> None:
    with postgres.reading() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
    open_state(StateSettings(url=URL)).close()


def test_plans_steps_and_queries(postgres: State) -> None:
    save(postgres, 3)
    step(postgres, "g0", ChangeState.INTENT, at=START, actor="t", reason="r", body={"n": 0.1})
    step(postgres, "g0", ChangeState.REFUSED, at=START, actor="t", reason="no")
    assert verify_chain(postgres) == Audit(3)
    assert [r.id for r in past_groups(postgres, since=START, failed_since=START)] == ["g0"]
    assert {r.id for r in list_groups(postgres, states=[ChangeState.PLANNED])} == {"g1", "g2"}
    assert prune_plans(postgres, START.replace(year=2027), at=START, actor="t") == 0  # g0 was on its way
    with postgres.writing() as connection:
        connection.execute(text("UPDATE journal SET actor = 'bob' WHERE seq = 2"))
    assert verify_chain(postgres).broken_seq == 2


def test_findings_suppressions_and_outcomes(postgres: State) -> None:
    subject = (SubjectRef(Role.SUBJECT, "c", "n0", "G", "a", "api", "red"),)
    window = Window(START, START.replace(hour=1))
    values = {"claim": "idle", "risk": "", "confidence": 0.9, "coverage": 1.0}
    finding = make_finding("TT301", Verdict.HOLDS, subject, window, **values)
    record_findings(postgres, [finding], START)
    record_findings(postgres, [finding], START)
    assert [f.code for f in list_findings(postgres, code="TT3")] == ["TT301"]
    add_suppression(postgres, code="TT3", subject="red/*", who="ann", why="x", now=START, until=None)
    assert unsuppressed(postgres, [finding], START) == []
    record_outcome(postgres, group(change(slice_target("a"), 0.2, 0.3)), "pass", 0.1, START)
    assert len(list_outcomes(postgres)) == 1
    assert proven_kinds(postgres, since=START) == {"give": 1}


def approve_many(names: list[str], together: Barrier) -> None:
    state = open_state(StateSettings(url=URL))
    together.wait(60)
    for name in names:
        approve(state, name, who="ann", why="ok", role="operator", now=START)
    state.close()


def test_two_processes_write_one_chain(postgres: State) -> None:
    names = save(postgres, 25)
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(2)
    dashboard = context.Process(target=approve_many, args=(names, together))
    dashboard.start()
    together.wait(60)
    for n in range(25):
        note(postgres, "tick", at=START, actor="tuner", body={"n": n})
    dashboard.join()
    assert dashboard.exitcode == 0
    assert verify_chain(postgres) == Audit(51)
    assert len({e.hash for e in entries(postgres)}) == 51


def test_lease(postgres: State) -> None:
    clock = VirtualClock(START)
    one, two = Lease(postgres, "one", clock), Lease(postgres, "two", clock)
    assert one.acquire()
    assert not two.acquire()
    clock.advance(16)
    assert two.acquire()
    assert two.check().number == 2


def test_a_server_that_is_not_there_is_unreachable() -> None:
    address = "postgresql+psycopg://nobody@127.0.0.1:1/none"
    with pytest.raises(UnreachableError, match="does not answer") as caught:
        open_state(StateSettings(url=address))
    assert "\n" not in str(caught.value)
