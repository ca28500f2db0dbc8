from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collector.clock import VirtualClock
from collector.errors import RefusedError, UnreachableError
from tests.tuner.fakes import (
    KNOBS,
    START,
    CrashError,
    FakeBackend,
    backend_with,
    change,
    group,
    held,
    plan,
    slice_target,
)
from tuner import killswitch
from tuner import writer as writer_module
from tuner.audit import verify_chain
from tuner.backends import DryRunBackend
from tuner.drift import frozen_targets
from tuner.execute import execute
from tuner.journal import LeaseLostError, StateMovedError, entries, record_plan, step
from tuner.lease import Lease
from tuner.model import BackendState, Freeze, Group
from tuner.place import Place, inverse, locate, unreadable
from tuner.record import ChangeState, Decision, GroupRecord
from tuner.settings import StateSettings
from tuner.settle import recover
from tuner.state import State, get_group, open_groups, open_state
from tuner.undo import roll_back
from tuner.writer import Writer

A, B = slice_target("a"), slice_target("b")
MOVE = group(change(A, 0.2, 0.5), change(B, 0.6, 0.3))


class Bench:
    """State, backend, clock and writer of one imagined process; `restart` is a new process on the same disk."""

    def __init__(self, state: State, backend: FakeBackend, clock: VirtualClock, folder: Path) -> None:
        self.state, self.backend, self.clock = state, backend, clock
        self.kill_switch = folder / "PAUSED"
        self.runs = itertools.count()
        self.restart()

    def restart(self) -> None:
        self.clock.advance(20)
        self.lease = Lease(self.state, f"tuner-{next(self.runs)}", self.clock)
        assert self.lease.acquire()
        self.writer = Writer(self.state, self.backend, self.clock, self.lease, self.kill_switch, patience_seconds=3)

    def planned(self, *groups: Group, decision: Decision = "go", name: str = "p1", simulated: bool = False) -> None:
        now = self.clock.now()
        records = [GroupRecord(g, name, ChangeState.PLANNED, decision, "test", now, now, simulated) for g in groups]
        record_plan(
            self.state, plan(*groups, now=now, name=name, simulated=simulated), records, [], actor="test", now=now
        )

    def state_of(self, name: str = "g1") -> ChangeState:
        record = get_group(self.state, name)
        assert record is not None
        return record.state

    def events(self, name: str = "g1") -> list[str]:
        return [e.event for e in entries(self.state, group_id=name)]

    @property
    def values(self) -> tuple[float, float]:
        return self.backend.value(A), self.backend.value(B)


@pytest.fixture
def bench(state: State, clock: VirtualClock, tmp_path: Path) -> Iterator[Bench]:
    states = [held(A, {"sm_quota_ratio": 0.2}), held(B, {"sm_quota_ratio": 0.6})]
    yield Bench(state, backend_with(clock, *states), clock, tmp_path)
    audit = verify_chain(state)
    assert audit.ok, audit


def test_a_change_goes_through_every_state_decreases_first(bench: Bench) -> None:
    bench.planned(MOVE)
    step = execute(bench.writer, "g1")
    assert step.state is ChangeState.VERIFYING
    assert bench.values == (0.5, 0.3)
    assert bench.backend.writes == [(B, "sm_quota_ratio", 0.3), (A, "sm_quota_ratio", 0.5)]
    assert bench.events() == ["intent", "applied", "read_back", "verifying"]
    intent = entries(bench.state, group_id="g1")[0]
    assert intent.fence == 1
    assert intent.body["changes"][0] == {
        "target": {"kind": "slice", "cluster": "c", "node": "n0", "gpu": "GPU-0", "slice": "b"},
        "knob": "sm_quota_ratio",
        "before": 0.6,
        "after": 0.3,
        "generation": "1",
        "reason": "test",
    }


def test_the_write_waits_for_a_second_look_unless_fast(bench: Bench) -> None:
    bench.planned(MOVE)
    began = bench.clock.now()
    execute(bench.writer, "g1")
    assert bench.backend.applied_at == [began + timedelta(seconds=15)]
    fast = group(change(A, 0.5, 0.6), name="g2", fast=True)
    bench.planned(fast, name="p2")
    began = bench.clock.now()
    execute(bench.writer, "g2")
    assert bench.backend.applied_at[-1] == began


def test_without_consent_nothing_is_written(bench: Bench) -> None:
    bench.planned(MOVE, decision="ask")
    with pytest.raises(RefusedError, match="has no consent"):
        execute(bench.writer, "g1")
    assert bench.backend.writes == []


def test_a_group_is_carried_out_once(bench: Bench) -> None:
    bench.planned(MOVE)
    execute(bench.writer, "g1")
    with pytest.raises(StateMovedError, match="g1 is verifying"):
        execute(bench.writer, "g1")
    with pytest.raises(StateMovedError, match="found none"):
        execute(bench.writer, "g2")
    assert len(bench.backend.writes) == 2


@pytest.mark.parametrize("level", [Freeze.NEW, Freeze.ALL])
def test_kill_switch_stops_before_the_intent(bench: Bench, level: Freeze) -> None:
    bench.planned(MOVE)
    killswitch.pause(bench.kill_switch, level, who="ann", why="drill", at=START)
    step = execute(bench.writer, "g1")
    assert step.state is ChangeState.PLANNED
    assert "by ann" in step.reason
    assert bench.backend.writes == []
    assert bench.events() == []


def test_kill_switch_thrown_after_the_intent_stops_the_write(bench: Bench) -> None:
    bench.planned(MOVE)

    looks = itertools.count()

    def throw(_group: Group, _state: BackendState) -> None:
        if next(looks) == 0:
            return
        killswitch.pause(bench.kill_switch, Freeze.NEW, who="ann", why="drill", at=START)

    step = execute(bench.writer, "g1", still_ok=throw)
    assert step.state is ChangeState.NOT_APPLIED
    assert bench.backend.writes == []


def test_guards_are_asked_again_on_a_fresh_read(bench: Bench) -> None:
    bench.planned(MOVE)
    seen: list[BackendState] = []

    def against(_group: Group, fresh: BackendState) -> str | None:
        seen.append(fresh)
        return "capacity: full" if len(seen) in {1, 3} else None

    step = execute(bench.writer, "g1", still_ok=against)
    assert (step.state, step.reason) == (ChangeState.PLANNED, "capacity: full")  # may be tried again
    step = execute(bench.writer, "g1", still_ok=against)
    assert (step.state, step.reason) == (ChangeState.NOT_APPLIED, "capacity: full")
    assert [(s.read_at - START).total_seconds() for s in seen] == [20, 20, 35]  # after the wait
    assert bench.backend.writes == []


def test_a_world_that_moved_before_the_intent_expires_the_group(bench: Bench) -> None:
    bench.planned(MOVE)
    bench.backend.foreign(MOVE.changes[0], 0.25)
    step = execute(bench.writer, "g1")
    assert step.state is ChangeState.EXPIRED
    assert "foreign" in step.reason
    assert bench.values == (0.25, 0.6)


def test_a_world_that_moves_during_the_wait_is_left_alone(bench: Bench) -> None:
    bench.planned(MOVE)
    wait = bench.clock.wait

    def meanwhile(seconds: float, stop: object = None) -> bool:
        bench.backend.foreign(MOVE.changes[0], 0.25)
        return wait(seconds)

    bench.clock.wait = meanwhile  # type: ignore[method-assign]
    step = execute(bench.writer, "g1")
    assert step.state is ChangeState.NOT_APPLIED
    assert bench.values == (0.25, 0.6)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("refused", ChangeState.REFUSED),
        ("conflict", ChangeState.NOT_APPLIED),
        ("retry_later", ChangeState.NOT_APPLIED),
        ("foreign", ChangeState.INTENT),  # a conflict, and values that are not what they were: settled by reading
        ("unknown", ChangeState.INTENT),
        ("lost_before", ChangeState.INTENT),
        ("lost_after", ChangeState.INTENT),
        ("half", ChangeState.INTENT),
        ("forget", ChangeState.APPLIED),
        ("late", ChangeState.APPLIED),
    ],
)
def test_typed_results(bench: Bench, fault: str, expected: ChangeState) -> None:
    bench.planned(MOVE)
    bench.backend.faults = [fault]
    assert execute(bench.writer, "g1").state is expected
    assert bench.state_of() is expected
    assert bench.backend.faults == []  # the old value is never tried again


@pytest.mark.parametrize(
    ("fault", "final", "values"),
    [
        ("unknown", ChangeState.NOT_APPLIED, (0.2, 0.6)),
        ("lost_before", ChangeState.NOT_APPLIED, (0.2, 0.6)),
        ("lost_after", ChangeState.VERIFYING, (0.5, 0.3)),
        ("half", ChangeState.ROLLED_BACK, (0.2, 0.6)),
        ("forget", ChangeState.NOT_APPLIED, (0.2, 0.6)),
        ("late", ChangeState.VERIFYING, (0.5, 0.3)),
    ],
)
def test_lost_and_late_answers_are_settled_by_reading(
    bench: Bench, fault: str, final: ChangeState, values: tuple[float, float]
) -> None:
    bench.planned(MOVE)
    bench.backend.faults = [fault]
    execute(bench.writer, "g1")
    bench.clock.advance(200)
    assert recover(bench.writer)[0].state is final
    assert bench.values == values


def test_a_lost_write_may_still_arrive_until_its_time_is_over(bench: Bench) -> None:
    bench.planned(MOVE)
    bench.backend.faults = ["lost_before"]
    execute(bench.writer, "g1")
    bench.clock.advance(30)
    assert recover(bench.writer)[0].state is ChangeState.INTENT
    bench.clock.advance(40)
    assert recover(bench.writer)[0].state is ChangeState.NOT_APPLIED


def test_a_backend_that_does_not_answer_leaves_everything_as_it_is(bench: Bench) -> None:
    bench.planned(MOVE)
    bench.backend.unreadable = 1
    assert execute(bench.writer, "g1").state is ChangeState.PLANNED
    execute(bench.writer, "g1")
    bench.backend.unreadable = 1
    assert recover(bench.writer)[0].reason.startswith("not settled")
    assert bench.state_of() is ChangeState.VERIFYING


def test_unreadable_at_the_last_look_means_not_applied(bench: Bench) -> None:
    bench.planned(MOVE)
    read = bench.backend.read
    calls = itertools.count()

    def flaky(targets: object = None) -> BackendState:
        if next(calls) == 1:
            raise UnreachableError("gone")
        return read(targets)  # type: ignore[arg-type]

    bench.backend.read = flaky  # type: ignore[method-assign, assignment]
    assert execute(bench.writer, "g1").state is ChangeState.NOT_APPLIED
    assert bench.backend.writes == []


CRASHES = ("crash_before", "crash_half", "crash_after")


@pytest.mark.parametrize("fault", CRASHES)
def test_a_crash_in_the_write_has_one_outcome(bench: Bench, fault: str) -> None:
    bench.planned(MOVE)
    bench.backend.faults = [fault]
    with pytest.raises(CrashError):
        execute(bench.writer, "g1")
    bench.restart()
    bench.clock.advance(100)
    final = {
        "crash_before": (ChangeState.NOT_APPLIED, (0.2, 0.6)),
        "crash_half": (ChangeState.ROLLED_BACK, (0.2, 0.6)),
        "crash_after": (ChangeState.VERIFYING, (0.5, 0.3)),
    }[fault]
    assert recover(bench.writer)[0].state is final[0]
    assert bench.values == final[1]


@pytest.mark.parametrize("kill_before", [True, False])
@pytest.mark.parametrize("at", ["intent", "applied", "read_back", "verifying", "rolling_back", "rolled_back"])
def test_a_crash_at_every_journal_entry_has_one_outcome(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, at: str, kill_before: bool
) -> None:
    real = writer_module.walk

    def dying(state: State, group_id: str, way: Sequence[tuple[ChangeState, str, object]], **rest: object) -> None:
        names = [to.value for to, *_ in way]
        if at in names and kill_before:
            raise CrashError
        real(state, group_id, way, **rest)  # type: ignore[arg-type]
        if at in names:
            raise CrashError

    bench.planned(MOVE)
    monkeypatch.setattr(writer_module, "walk", dying)
    with pytest.raises(CrashError):
        apply_and_roll_back(bench)
    monkeypatch.setattr(writer_module, "walk", real)
    for _ in range(3):  # a second restart changes nothing
        bench.restart()
        bench.clock.advance(100)
        recover(bench.writer)
    written_before = len(bench.backend.writes)
    recover(bench.writer)
    assert len(bench.backend.writes) == written_before
    expected = {
        (ChangeState.PLANNED, (0.2, 0.6)),  # died before the intent was on disk
        (ChangeState.NOT_APPLIED, (0.2, 0.6)),
        (ChangeState.VERIFYING, (0.5, 0.3)),  # goes on being watched
        (ChangeState.ROLLED_BACK, (0.2, 0.6)),
    }
    assert (bench.state_of(), bench.values) in expected
    endings = [e for e in bench.events() if e in {"not_applied", "rolled_back", "confirmed"}]
    assert len(endings) <= 1
    allowed = {A: {0.2, 0.5}, B: {0.6, 0.3}}
    assert all(value in allowed[target] for target, _, value in bench.backend.writes)


def apply_and_roll_back(bench: Bench) -> None:
    execute(bench.writer, "g1")
    record = get_group(bench.state, "g1")
    assert record is not None
    roll_back(bench.writer, record, "verdict fail")


def verifying(bench: Bench) -> GroupRecord:
    bench.planned(MOVE)
    execute(bench.writer, "g1")
    record = get_group(bench.state, "g1")
    assert record is not None
    assert record.state is ChangeState.VERIFYING
    return record


@pytest.mark.parametrize("stopped", [ChangeState.APPLIED, ChangeState.READ_BACK])
def test_a_group_found_half_way_through_its_journal_goes_on(bench: Bench, stopped: ChangeState) -> None:
    bench.planned(MOVE)
    for to in (ChangeState.INTENT, ChangeState.APPLIED, ChangeState.READ_BACK):
        step(bench.state, "g1", to, at=bench.clock.now(), actor="t", reason="r")
        if to is stopped:
            break
    for c in MOVE.changes:
        bench.backend.foreign(c, c.after)
    assert recover(bench.writer)[0].state is ChangeState.VERIFYING
    assert bench.events() == ["intent", "applied", "read_back", "verifying"]


def test_a_read_back_that_fails_is_tried_again(bench: Bench) -> None:
    bench.planned(MOVE)
    apply = bench.backend.apply

    def then_gone(group: Group, expected: object) -> object:
        result = apply(group, expected)  # type: ignore[arg-type]
        bench.backend.unreadable = 2
        return result

    bench.backend.apply = then_gone  # type: ignore[method-assign, assignment]
    assert execute(bench.writer, "g1").state is ChangeState.VERIFYING
    assert bench.events() == ["intent", "applied", "read_back", "verifying"]


def test_roll_back_sets_the_pre_image(bench: Bench) -> None:
    record = verifying(bench)
    step = roll_back(bench.writer, record, "kept fell", {"numbers": {"kept": 0.9}})
    assert (step.state, step.reason) == (ChangeState.ROLLED_BACK, "kept fell")
    assert bench.values == (0.2, 0.6)
    assert bench.backend.writes[2:] == [(A, "sm_quota_ratio", 0.2), (B, "sm_quota_ratio", 0.6)]
    assert entries(bench.state, group_id="g1")[-2].body["numbers"] == {"kept": 0.9}


def test_roll_back_goes_on_under_freeze_new_and_stops_under_freeze_all(bench: Bench) -> None:
    record = verifying(bench)
    killswitch.pause(bench.kill_switch, Freeze.ALL, who="ann", why="drill", at=START)
    assert roll_back(bench.writer, record, "bad").state is ChangeState.VERIFYING
    assert bench.values == (0.5, 0.3)
    killswitch.pause(bench.kill_switch, Freeze.NEW, who="ann", why="drill", at=START)
    assert roll_back(bench.writer, record, "bad").state is ChangeState.ROLLED_BACK
    assert bench.values == (0.2, 0.6)


def test_a_value_that_somebody_changed_is_never_rolled_back(bench: Bench) -> None:
    record = verifying(bench)
    bench.backend.foreign(MOVE.changes[0], 0.45)
    step = roll_back(bench.writer, record, "bad")
    assert step.state is ChangeState.ROLLBACK_BLOCKED
    assert bench.values == (0.45, 0.3)
    assert set(frozen_targets([get_group(bench.state, "g1")], bench.clock.now())) == {A, B}  # type: ignore[list-item]
    later = bench.clock.now() + timedelta(hours=1)
    assert frozen_targets([get_group(bench.state, "g1")], later) == {}  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("faults", "final"),
    [
        (["refused"], ChangeState.ROLLBACK_BLOCKED),
        (["conflict"], ChangeState.ROLLED_BACK),
        (["conflict", "conflict", "conflict"], ChangeState.ROLLING_BACK),
        (["lost_after"], ChangeState.ROLLING_BACK),
        (["retry_later"], ChangeState.ROLLING_BACK),
        (["half"], ChangeState.ROLLING_BACK),
    ],
)
def test_roll_back_meets_faults(bench: Bench, faults: list[str], final: ChangeState) -> None:
    record = verifying(bench)
    bench.backend.faults = faults
    assert roll_back(bench.writer, record, "bad").state is final
    if final is ChangeState.ROLLING_BACK:
        bench.clock.advance(60)
        assert recover(bench.writer)[0].state is ChangeState.ROLLED_BACK
        assert bench.values == (0.2, 0.6)


def test_a_roll_back_that_never_works_asks_a_person(bench: Bench) -> None:
    record = verifying(bench)
    bench.backend.faults = ["retry_later"] * 3
    roll_back(bench.writer, record, "bad")
    bench.clock.advance(599)
    assert recover(bench.writer)[0].state is ChangeState.ROLLING_BACK
    bench.clock.advance(2)
    assert recover(bench.writer)[0].state is ChangeState.ROLLBACK_BLOCKED
    bench.backend.unreadable = 1


def test_roll_back_waits_while_the_backend_is_unreadable_or_paused(bench: Bench) -> None:
    record = verifying(bench)
    bench.backend.unreadable = 1
    assert roll_back(bench.writer, record, "bad").state is ChangeState.ROLLING_BACK
    killswitch.pause(bench.kill_switch, Freeze.ALL, who="ann", why="drill", at=START)
    assert recover(bench.writer)[0].state is ChangeState.ROLLING_BACK
    killswitch.resume(bench.kill_switch)
    lost = dict(bench.backend.held)
    bench.backend.held.clear()
    assert recover(bench.writer)[0].reason == "its values cannot be read"
    bench.backend.held.update(lost)
    assert recover(bench.writer)[0].state is ChangeState.ROLLED_BACK


def test_what_is_left_is_rolled_back_when_a_target_is_gone(bench: Bench) -> None:
    record = verifying(bench)
    del bench.backend.held[A]
    assert recover(bench.writer)[0].reason == "being watched"
    assert roll_back(bench.writer, record, "bad").state is ChangeState.ROLLED_BACK
    assert bench.backend.value(B) == 0.6


@pytest.mark.parametrize(
    ("faults", "undo", "final"),
    [
        (["late"], False, ChangeState.NOT_APPLIED),
        ([], False, ChangeState.SUPERSEDED),
        (["applied", "retry_later"], True, ChangeState.ROLLED_BACK),
    ],
)
def test_a_group_whose_targets_are_all_gone_ends(
    bench: Bench, faults: list[str], undo: bool, final: ChangeState
) -> None:
    bench.planned(MOVE)
    bench.backend.faults = faults
    execute(bench.writer, "g1")
    if undo:
        record = get_group(bench.state, "g1")
        assert record is not None
        assert roll_back(bench.writer, record, "bad").state is ChangeState.ROLLING_BACK
    bench.backend.held.clear()
    bench.backend._late.clear()
    bench.clock.advance(30)
    assert recover(bench.writer)[0].state in {ChangeState.APPLIED, ChangeState.VERIFYING, ChangeState.ROLLING_BACK}
    bench.clock.advance(3600)
    assert recover(bench.writer)[0].state is final


def test_a_dry_run_ends_at_once_and_leaves_nothing_to_watch(bench: Bench) -> None:
    dry = DryRunBackend(bench.backend.read, KNOBS)
    bench.planned(MOVE)
    writer = Writer(bench.state, dry, bench.clock, bench.lease, bench.kill_switch, revalidate_seconds=0.0)
    step = execute(writer, "g1")
    assert (step.state, step.reason) == (ChangeState.CONFIRMED, "pretended: the dry run changes nothing")
    assert bench.events() == ["intent", "applied", "confirmed"]
    record = get_group(bench.state, "g1")
    assert record is not None
    assert record.is_pretended
    assert record.settled_at == bench.clock.now()
    again = DryRunBackend(bench.backend.read, KNOBS)  # the next process knows nothing of the pretence
    later = Writer(bench.state, again, bench.clock, bench.lease, bench.kill_switch)
    assert recover(later) == []
    assert bench.values == (0.2, 0.6)


def simulated_in(bench: Bench, faults: list[str]) -> None:
    """A change of simulated rows is under way on the simulator; then a tuner of a real fleet takes the same state."""
    bench.planned(MOVE, simulated=True)
    bench.backend.faults = faults
    execute(bench.writer, "g1")
    bench.backend.simulated = False
    bench.backend.writes.clear()


def test_a_simulated_change_is_refused_by_a_real_backend(bench: Bench) -> None:
    bench.backend.simulated = False
    bench.planned(MOVE, simulated=True)
    bench.backend.unreadable = 1  # a read would say so
    step = execute(bench.writer, "g1")
    assert (step.state, bench.events(), bench.backend.writes) == (ChangeState.REFUSED, ["refused"], [])
    assert step.reason == "it was planned on simulated rows: it only goes to the simulator or a dry run"
    bench.planned(group(*MOVE.changes, name="g2"), name="p2")
    bench.backend.unreadable = 0
    assert execute(bench.writer, "g2").state is ChangeState.VERIFYING


@pytest.mark.parametrize(
    ("faults", "under_way", "left_as"),
    [
        (["lost_before"], ChangeState.INTENT, ChangeState.REFUSED),
        (["half"], ChangeState.INTENT, ChangeState.REFUSED),
        (["late"], ChangeState.APPLIED, ChangeState.NOT_APPLIED),
        ([], ChangeState.VERIFYING, ChangeState.ROLLBACK_BLOCKED),
    ],
)
def test_a_simulated_change_is_neither_settled_nor_undone_on_a_real_backend(
    bench: Bench, faults: list[str], under_way: ChangeState, left_as: ChangeState
) -> None:
    simulated_in(bench, faults)
    bench.restart()
    bench.backend.unreadable = 1
    assert bench.state_of() is under_way
    (step,) = recover(bench.writer)
    assert (step.state, bench.backend.writes, bench.backend.unreadable) == (left_as, [], 1)
    assert step.reason.startswith("it was planned on simulated rows")
    assert bench.events()[-1] == left_as.value
    assert open_groups(bench.state) == []


@pytest.mark.parametrize("under_way", [True, False])
def test_a_roll_back_of_a_simulated_change_is_refused_on_a_real_backend(bench: Bench, under_way: bool) -> None:
    simulated_in(bench, ["applied", "retry_later"] if under_way else [])
    record = get_group(bench.state, "g1")
    assert record is not None
    if under_way:  # it began on the simulator
        bench.backend.simulated = True
        assert roll_back(bench.writer, record, "bad").state is ChangeState.ROLLING_BACK
        bench.backend.simulated = False
        assert recover(bench.writer)[0].state is ChangeState.ROLLBACK_BLOCKED
    else:
        bench.writer.step(record, ChangeState.CONFIRMED, "kept")
        record = get_group(bench.state, "g1")
        assert record is not None
        assert roll_back(bench.writer, record, "somebody asks").state is ChangeState.ROLLBACK_BLOCKED
    assert bench.backend.writes == []
    assert bench.events()[-2:] == ["rolling_back", "rollback_blocked"]


def test_the_last_check_of_a_roll_back_can_refuse_it(bench: Bench) -> None:
    record = verifying(bench)
    writer = Writer(
        bench.state,
        bench.backend,
        bench.clock,
        bench.lease,
        bench.kill_switch,
        may_undo=lambda undo, _state: f"no room for {len(undo.changes)}",
    )
    step = roll_back(writer, record, "bad")
    assert (step.state, step.reason) == (ChangeState.ROLLBACK_BLOCKED, "no room for 2")


@pytest.mark.parametrize("value", [0.45, 0.2])
def test_a_foreign_change_while_watching_wins(bench: Bench, value: float) -> None:
    verifying(bench)
    bench.backend.foreign(MOVE.changes[0], value)
    assert recover(bench.writer)[0].state is ChangeState.FOREIGN_CHANGE
    assert bench.values == (value, 0.3)
    assert open_groups(bench.state) == []


def test_a_stand_by_takes_over_and_the_old_tuner_cannot_write(bench: Bench) -> None:
    bench.planned(MOVE)
    old = bench.writer
    bench.restart()  # 20 s later: the lease of 15 s was over
    with pytest.raises(LeaseLostError):
        execute(old, "g1")
    assert bench.backend.writes == []
    assert execute(bench.writer, "g1").state is ChangeState.VERIFYING


def test_a_leader_that_slept_between_intent_and_write_does_not_write(bench: Bench) -> None:
    bench.planned(MOVE)
    old = bench.writer

    looks = itertools.count()

    def sleep(_group: Group, _state: BackendState) -> None:
        if next(looks) == 1:
            bench.restart()  # stopped for longer than the lease; a stand-by took over

    with pytest.raises(LeaseLostError):
        execute(old, "g1", still_ok=sleep)
    assert bench.backend.writes == []
    bench.clock.advance(100)
    assert recover(bench.writer)[0].state is ChangeState.NOT_APPLIED


def test_the_fast_path_supersedes_what_is_only_watched(bench: Bench) -> None:
    verifying(bench)
    fast = group(change(A, 0.5, 0.6), name="g2", kind="fast", fast=True)
    bench.planned(fast, name="p2")
    assert execute(bench.writer, "g2").state is ChangeState.VERIFYING
    assert bench.state_of("g1") is ChangeState.SUPERSEDED
    assert bench.values == (0.6, 0.3)


def test_after_a_crash_the_later_change_explains_the_values_of_the_earlier(bench: Bench) -> None:
    verifying(bench)
    fast = group(change(A, 0.5, 0.6), name="g2", kind="fast", fast=True)
    bench.planned(fast, name="p2")
    bench.backend.faults = ["crash_after"]
    with pytest.raises(CrashError):
        execute(bench.writer, "g2")
    bench.restart()
    recover(bench.writer)
    assert bench.state_of("g1") is ChangeState.SUPERSEDED
    assert bench.state_of("g2") is ChangeState.VERIFYING


def test_an_earlier_change_waits_while_the_later_is_not_settled(bench: Bench) -> None:
    verifying(bench)
    fast = group(change(A, 0.5, 0.6), name="g2", kind="fast", fast=True)
    bench.planned(fast, name="p2")
    bench.backend.faults = ["lost_after"]
    execute(bench.writer, "g2")
    bench.backend.unreadable = 1
    steps = {s.group_id: s for s in recover(bench.writer)}
    assert steps["g1"].reason == "waits for a later change of the same card"
    assert steps["g2"].state is ChangeState.INTENT


def test_locate_and_inverse() -> None:
    knobs = {(k.name, k.target_kind): k for k in KNOBS if k.sharing is None}
    states = {A: held(A, {"sm_quota_ratio": 0.21}), B: held(B, {"sm_quota_ratio": 0.6})}

    def place() -> Place:
        return locate(MOVE, BackendState(START, states), knobs)

    assert place() is Place.FOREIGN
    states[A] = held(A, {"sm_quota_ratio": 0.204})  # within half a quantum
    assert place() is Place.BEFORE
    states[A] = held(A, {"sm_quota_ratio": 0.2})
    assert place() is Place.BEFORE
    states[A] = held(A, {"sm_quota_ratio": 0.5})
    assert place() is Place.MIXED
    states[B] = held(B, {"sm_quota_ratio": 0.3})
    assert place() is Place.AFTER
    states[B] = held(B, {"sm_quota_ratio": float("nan")})
    assert place() is Place.AFTER  # of what can be read
    assert unreadable(MOVE, BackendState(START, states)) == [MOVE.changes[1]]
    del states[A]
    assert place() is Place.MISSING
    undo = inverse(MOVE)
    assert [(c.before, c.after) for c in undo.changes] == [(0.5, 0.2), (0.3, 0.6)]
    assert undo.kind == "rollback"


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    level=st.sampled_from([Freeze.NEW, Freeze.ALL]),
    at_write=st.integers(0, 4),
    faults=st.lists(st.sampled_from(["applied", "lost_after", "lost_before", "half", "conflict"]), max_size=8),
)
def test_no_new_value_is_written_once_the_kill_switch_is_on(
    empty_database: Path, tmp_path_factory: pytest.TempPathFactory, level: Freeze, at_write: int, faults: list[str]
) -> None:
    """Thrown at the n-th look before a write; what goes on (recovery, rollbacks) writes only ways back."""
    folder = tmp_path_factory.mktemp("kill")
    (folder / "state.db").write_bytes(empty_database.read_bytes())
    state = open_state(StateSettings(path=folder / "state.db"))
    targets = [slice_target("s", f"GPU-{i}") for i in range(4)]
    clock = VirtualClock(START)
    backend = backend_with(clock, *[held(t, {"sm_quota_ratio": 0.2}) for t in targets], faults=list(faults))
    bench = Bench(state, backend, clock, folder)
    bench.planned(*[group(change(t, 0.2, 0.5), name=f"g{i}") for i, t in enumerate(targets)])
    looks = itertools.count()
    frozen_from: list[int] = []

    def throw(_group: Group, _state: BackendState) -> None:
        if next(looks) == at_write:
            killswitch.pause(bench.kill_switch, level, who="ann", why="drill", at=START)
            frozen_from.append(len(backend.writes))

    for i in range(4):
        execute(bench.writer, f"g{i}", still_ok=throw)
    clock.advance(300)
    recover(bench.writer)
    for record in open_groups(state):
        if record.state is ChangeState.VERIFYING:
            roll_back(bench.writer, record, "drill")
    if frozen_from:
        after = [value for _, _, value in backend.writes[frozen_from[0] :]]
        assert after == ([] if level is Freeze.ALL else [0.2] * len(after))
    assert verify_chain(state).ok
    state.close()
