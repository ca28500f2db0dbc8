"""One tuner on a small fleet in memory: what holds it, what it learns, the fast path, and the loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pandas as pd
import pytest

from analyzer.findings import Finding, Role, SubjectRef, Verdict, make_finding
from analyzer.protocols import Conclusion, Context, Needs, Partition
from collector.batch import Batch, Fact, Subject
from collector.clock import VirtualClock
from collector.errors import ConfigurationError, TrimtabError, UnreachableError
from collector.settings import StoreSettings
from collector.store import EmbeddedStore
from collector.window import Window
from tests.tuner.fakes import (
    CORES,
    QUEUE,
    SM,
    START,
    FakeBackend,
    backend_with,
    change,
    queue_target,
    slice_target,
)
from tests.tuner.service_rows import GIB, MINUTE, PROMISES, at, card_rows, slice_rows, slot
from tuner import killswitch
from tuner.audit import verify_chain
from tuner.backends import DryRunBackend
from tuner.journal import LeaseLostError, StateMovedError, entries
from tuner.lease import Lease
from tuner.model import Freeze, Knob, Mode, Target, TargetState
from tuner.record import ChangeState
from tuner.service.cycle import CycleResult, Tuner, TunerParts
from tuner.settings import StateSettings, TunerSettings
from tuner.state import State
from tuner.state.findings import add_suppression, list_findings
from tuner.state.plans import get_group, list_groups, plan_exists

CHAT, TRAIN = slice_target("chat"), slice_target("train")
SEARCH, BATCH = slice_target("search", "GPU-1"), slice_target("batch", "GPU-1")
AUTO = TunerSettings(mode=Mode.AUTO, auto_restart_offline=True)


class JumpingClock(VirtualClock):
    """A wall clock that somebody sets."""

    jumped = 0.0

    def jump(self, seconds: float) -> None:
        self.advance(seconds)
        self.jumped += seconds

    def monotonic(self) -> float:
        return super().monotonic() - self.jumped


@dataclass
class Rig:
    """A store, a state, a backend in memory and a clock, with a tuner made of them."""

    store: EmbeddedStore
    state: State
    backend: FakeBackend
    clock: VirtualClock
    folder: Path

    @property
    def switch(self) -> Path:
        return self.folder / "PAUSED"

    def tuner(self, settings: TunerSettings = AUTO, **rest: object) -> Tuner:
        values: dict[str, object] = {"declarations": PROMISES, "interval_seconds": 60.0, **rest}
        return Tuner(
            TunerParts(
                store=self.store,
                backend=self.backend,
                state=self.state,
                clock=self.clock,
                settings=settings,
                state_settings=StateSettings(path=self.folder / "state.db", kill_switch=self.switch),
                **values,  # type: ignore[arg-type]  # fields of TunerParts
            )
        )

    def fill(self, first: int, last: int, *, kept: float = 1.0, busy: float = 0.3) -> None:
        """Rows of both cards for minutes first..last: chat and train on a vGPU card, search and batch under MPS."""
        minutes = range(first, last + 1)
        for batch in (
            _serving(CHAT, minutes, kept=kept, busy=busy),
            _serving(SEARCH, minutes, kept=1.0, busy=0.3),
            slice_rows(TRAIN, minutes, workload="train", busy_ratio=0.2, steps_count=60.0, step_seconds=0.5),
            slice_rows(BATCH, minutes, workload="train-b", busy_ratio=1.0, steps_count=60.0, step_seconds=0.5),
            card_rows("GPU-0", minutes, sm_active_ratio=busy + 0.2),
            card_rows("GPU-1", minutes, sm_active_ratio=0.4),
        ):
            self.store.write(batch)

    def to(self, minute: int, *, kept: float = 1.0) -> datetime:
        """Let time pass until a minute, with rows for the minutes between."""
        passed = round((self.clock.now() - START) / MINUTE)
        if minute > passed:
            self.fill(passed + 1, minute, kept=kept)
            self.clock.advance(60.0 * (minute - passed))
        return self.clock.now()


def _serving(target: Target, minutes: range, *, kept: float, busy: float) -> Batch:
    return slice_rows(
        target,
        minutes,
        workload=f"chat-{target.slice}",
        busy_ratio=busy,
        requests_per_second=10.0,
        within_objective_per_second=10.0 * kept,
        memory_used_bytes=4 * GIB,
    )


FLEET = (
    slot(CHAT, 0.5, workload="chat-chat"),
    slot(TRAIN, 0.4, workload="train"),
    slot(SEARCH, 0.5, kind="mps", workload="chat-search"),
    slot(BATCH, 0.5, kind="mps", workload="train-b"),
)


@pytest.fixture
def make_rig(tmp_path: Path, state: State, clock: VirtualClock) -> Iterator[Callable[..., Rig]]:
    store = EmbeddedStore(StoreSettings(path=tmp_path / "store"))

    def make(*states: TargetState, knobs: tuple[Knob, ...] = (CORES,), simulated: bool = False) -> Rig:
        if simulated:
            store.write(Batch(facts=[Fact(Subject("cluster", "c"), "simulated", "true", at(-10))]))
        backend = backend_with(clock, *(states or FLEET), knob_list=knobs)
        rig = Rig(store, state, backend, clock, tmp_path)
        rig.fill(-10, 0)
        return rig

    yield make
    store.close()


def states_of(result: CycleResult) -> list[str]:
    return [s.state.value for s in result.steps]


def test_plans_that_led_to_nothing_go_after_a_while(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    tuner = rig.tuner(TunerSettings())  # recommend: nothing is carried out
    old = tuner.run_once(rig.to(0)).plan_id
    assert plan_exists(rig.state, old)
    rig.clock.advance(29 * 86400.0)
    tuner.run_once(rig.clock.now())
    assert plan_exists(rig.state, old)
    rig.clock.advance(2 * 86400.0)
    newest = tuner.run_once(rig.clock.now()).plan_id
    assert not plan_exists(rig.state, old)
    assert plan_exists(rig.state, newest)
    assert [e.body["plans"] for e in entries(rig.state) if e.event == "pruned"] == [[old]]
    assert verify_chain(rig.state).ok


# -- the fast path -----------------------------------------------------------------------------------------------------


def test_the_fast_path_lowers_offline_neighbours_of_a_service_that_misses(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    tuner = rig.tuner()
    assert tuner.fast_once(rig.to(0)) == CycleResult(START)  # all promises are kept
    assert rig.backend.writes == []
    now = rig.to(6, kept=0.2)
    result = tuner.fast_once(now)
    (record,) = result.kept
    assert not record.group.fast  # nobody is raised: it goes at the pace of any other change
    assert (record.group.kind, record.decision) == ("fast", "go")
    assert "chat-chat misses its objective" in record.group.why
    assert states_of(result) == ["verifying"]
    assert rig.backend.value(TRAIN) == pytest.approx(0.3)
    assert rig.backend.value(BATCH) == 0.5  # the other card keeps its promise
    assert [w[0] for w in rig.backend.writes] == [TRAIN]


def test_the_fast_path_asks_before_it_restarts_work_unless_it_may(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    tuner = rig.tuner(TunerSettings(mode=Mode.AUTO))
    tuner.fast_once(rig.to(0))
    (record,) = tuner.fast_once(rig.to(6, kept=0.2)).kept
    assert (record.decision, record.reason) == ("ask", "it restarts offline work, and auto_restart_offline is off")
    assert rig.backend.writes == []


@pytest.mark.parametrize(("rows", "backend", "kept"), [(True, False, False), (True, True, True), (False, False, True)])
def test_a_plan_is_simulated_where_its_rows_are_and_stays_off_a_real_backend(
    make_rig: Callable[..., Rig], rows: bool, backend: bool, kept: bool
) -> None:
    rig = make_rig(simulated=rows)
    rig.backend.simulated = backend
    tuner = rig.tuner()
    tuner.fast_once(rig.to(0))
    result = tuner.fast_once(rig.to(6, kept=0.2))
    assert bool(result.kept) is kept
    assert bool(rig.backend.writes) is kept
    assert {r.simulated for r in list_groups(rig.state)} == {rows}
    if not kept:
        assert {d.guard for d in result.drops} == {"simulation"}


def queue_of(tenant: str, quota: float, pending: int) -> TargetState:
    """A queue of a pool with 8 cards of which 4 stand free."""
    numbers = {"allocated": 2, "pending": pending, "free": 4, "capacity": 8}
    facts = {"tenant": tenant, **{f"{name}_gpu_count": str(value) for name, value in numbers.items()}}
    return TargetState(queue_target(tenant), {"quota_gpu_count": quota}, {"quota_gpu_count": quota}, "1", facts)


@pytest.mark.parametrize("predicts", [True, False])
@pytest.mark.parametrize(
    ("mode", "decision"), [(Mode.AUTO, "ask"), (Mode.APPROVE, "ask"), (Mode.RECOMMEND, "write_down")]
)
def test_what_can_evict_is_only_advice_where_nobody_predicts(
    make_rig: Callable[..., Rig], mode: Mode, decision: str, predicts: bool
) -> None:
    rig = make_rig(*FLEET, queue_of("red", 6.0, 0), queue_of("blue", 2.0, 2), knobs=(QUEUE,))
    rig.backend.predicts = predicts
    tuner = rig.tuner(TunerSettings(mode=mode))
    tuner.run_once(rig.to(0))
    result = tuner.run_once(rig.to(6))
    decided = [(r.group.kind, r.decision) for r in result.kept]
    guards = [d.guard for d in result.drops if d.action == "dropped"]
    if predicts or mode is Mode.RECOMMEND:
        assert (decided, guards) == ([("queue", decision)], [])
        assert ("nobody has predicted whom" in result.kept[0].reason) is (not predicts)
    else:
        assert (decided, guards) == ([], ["prediction"])
    assert rig.backend.writes == []


def test_a_dry_run_that_starts_again_sees_no_foreign_change(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    real = rig.backend

    def process() -> Tuner:
        """A new process: it has forgotten what the last one pretended."""
        rig.backend = DryRunBackend(real.read, real.knobs())  # type: ignore[assignment]  # it stands in for the fake
        return rig.tuner()

    first = process()
    first.fast_once(rig.to(0))
    done = first.fast_once(rig.to(6, kept=0.2))
    assert [(s.state, s.reason) for s in done.steps] == [
        (ChangeState.CONFIRMED, "pretended: the dry run changes nothing")
    ]
    first.close()
    second = process()
    again = [second.run_once(rig.to(minute)) for minute in (7, 12)]
    assert [r.held for r in again] == ["", ""]
    found = get_group(rig.state, done.steps[0].group_id)
    assert found is not None
    assert found.state is ChangeState.CONFIRMED
    assert not {"drift", "foreign_change", "verifying"} & {e.event for e in entries(rig.state)}
    assert "frozen target" not in {d.guard for r in again for d in r.drops}
    assert real.writes == []


def test_nothing_is_lowered_before_own_samples_were_watched(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    tuner = rig.tuner()
    result = tuner.fast_once(rig.to(6, kept=0.2))
    assert [d.guard for d in result.drops] == ["warm-up"]
    assert rig.backend.writes == []
    assert [d.guard for d in tuner.fast_once(rig.to(10, kept=0.2)).drops] == ["warm-up"]
    assert tuner.fast_once(rig.to(11, kept=0.2)).drops == ()
    assert rig.backend.value(TRAIN) == pytest.approx(0.3)


def test_watching_begins_with_the_first_own_sample(make_rig: Callable[..., Rig], tmp_path: Path) -> None:
    rig = make_rig()
    rig.store.delete("slice", Window(at(-60), at(60)))
    tuner = rig.tuner()
    tuner.fast_once(rig.clock.now())
    rig.clock.advance(3600)
    rig.fill(55, 60, kept=0.2)
    assert [d.guard for d in tuner.fast_once(rig.clock.now()).drops] == ["warm-up"]


# -- what holds it -----------------------------------------------------------------------------------------------------


def test_an_unreachable_backend_holds_the_cycle_and_the_fast_path(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    tuner = rig.tuner()
    rig.backend.unreadable = 2
    for held in (tuner.run_once(rig.to(0)), tuner.fast_once(rig.to(0))):
        assert held.held == "the fake backend does not answer"
        assert (held.plan_id, held.kept, held.drops) == ("", (), ())
    assert list_groups(rig.state) == []
    assert tuner.run_once(rig.to(1)).held == ""


def test_stale_rows_hold_every_group(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(*ROOMY)
    rig.clock.advance(4.5 * 60)
    result = rig.tuner().run_once(rig.clock.now())
    assert result.kept == ()
    assert {d.guard for d in result.drops} == {"freshness"}
    assert rig.backend.writes == []


def test_a_clock_that_jumped_holds_one_plan(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(*ROOMY)
    clock = JumpingClock(rig.clock.now())
    rig.clock = clock
    rig.backend.clock = clock
    tuner = rig.tuner()
    tuner.fast_once(rig.to(0))
    clock.jump(120.0)
    rig.fill(1, 2)
    result = tuner.run_once(clock.now())
    assert [(d.guard, d.reason) for d in result.drops] == [("impossible world", "the clock jumped by 120 s")]
    assert rig.backend.writes == []
    assert [r.group.kind for r in tuner.run_once(rig.to(3)).kept] == ["give"]


def test_one_instant_has_one_plan(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(*ROOMY)
    first, second = rig.tuner(TunerSettings()), rig.tuner(TunerSettings())
    assert first.run_once(rig.to(0)).held == ""
    first.close()
    again = second.run_once(rig.clock.now())
    assert again.held == "plan-20260302T000000 was made already: there is one plan an instant"
    assert (again.plan_id, again.kept) == ("", ())
    assert second.run_once(rig.to(1)).held == ""
    assert verify_chain(rig.state).ok


def test_another_holder_of_the_lease_makes_it_stand_by(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    tuner = rig.tuner()
    tuner.fast_once(rig.to(0))
    other = Lease(rig.state, "other", rig.clock, seconds=900.0)
    assert other.acquire()
    before = len(entries(rig.state))
    now = rig.to(6, kept=0.2)
    for result in (tuner.run_once(now), tuner.fast_once(now)):
        assert result.held == "another tuner holds the lease: this one stands by"
        assert (result.plan_id, result.kept, result.steps) == ("", (), ())
    assert rig.backend.writes == []
    assert len(entries(rig.state)) == before
    other.release()
    assert tuner.fast_once(now).held == ""
    assert rig.backend.value(TRAIN) == pytest.approx(0.3)


def test_a_tuner_that_goes_gives_its_lease_back(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    first, second = rig.tuner(holder="first"), rig.tuner(holder="second")
    first.run_once(rig.to(0))
    assert second.run_once(rig.to(1)).held
    first.close()
    assert second.run_once(rig.to(1)).held == ""


@pytest.mark.parametrize("level", [Freeze.NEW, Freeze.ALL])
def test_the_kill_switch_stops_every_write(make_rig: Callable[..., Rig], level: Freeze) -> None:
    rig = make_rig()
    tuner = rig.tuner()
    tuner.fast_once(rig.to(0))
    killswitch.pause(rig.switch, level, who="ops", why="drill", at=rig.clock.now())
    for result in (tuner.fast_once(rig.to(6, kept=0.2)), tuner.run_once(rig.to(11, kept=0.2))):
        assert result.kept == ()
        assert {d.guard for d in result.drops} <= {"kill switch"}
    assert rig.backend.writes == []
    killswitch.resume(rig.switch)
    tuner.fast_once(rig.to(12, kept=0.2))
    assert rig.backend.value(TRAIN) == pytest.approx(0.3)


def test_a_rollback_goes_on_while_new_changes_are_frozen_and_not_while_all_are(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    tuner = rig.tuner()
    tuner.fast_once(rig.to(0))
    (record,) = tuner.fast_once(rig.to(6, kept=0.2)).kept
    killswitch.pause(rig.switch, Freeze.ALL, who="ops", why="drill", at=rig.clock.now())
    written = len(rig.backend.writes)
    rig.fill(7, 20)
    rig.store.write(slice_rows(TRAIN, range(7, 21), workload="train", steps_count=1.0, step_seconds=50.0))
    rig.clock.advance(14 * 60)
    result = tuner.run_once(rig.clock.now())
    assert any("paused (freeze_all)" in s.reason for s in result.steps)
    assert len(rig.backend.writes) == written
    killswitch.pause(rig.switch, Freeze.NEW, who="ops", why="drill", at=rig.clock.now())
    rig.clock.advance(60)
    rig.fill(21, 21)
    tuner.run_once(rig.clock.now())
    settled = get_group(rig.state, record.id)
    assert settled is not None
    assert settled.state is ChangeState.ROLLED_BACK
    assert rig.backend.value(TRAIN) == pytest.approx(0.4)
    assert verify_chain(rig.state).ok


# -- findings ----------------------------------------------------------------------------------------------------------


class Pair:
    """Says that train slows chat down; runs `then` whenever it concludes."""

    codes = ("TT101",)

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self.needs: Needs = {}
        self.windows: list[Window] = []
        self.forecasts: list[int] = []
        self._then = then

    def measure(self, partition: Partition) -> pd.DataFrame:
        return partition.slice.head(0)

    def conclude(self, measures: pd.DataFrame, context: Context) -> Conclusion:
        self.windows.append(context.window)
        self.forecasts.append(len(context.forecasts))
        self._then()
        return Conclusion([pair_finding(context.window)], [])


def pair_finding(window: Window) -> Finding:
    def ref(role: Role, target: Target, workload: str) -> SubjectRef:
        return SubjectRef(role, target.cluster, target.node, target.gpu, target.slice, workload, "t")

    subjects = (ref(Role.VICTIM, CHAT, "chat-chat"), ref(Role.SUSPECT, TRAIN, "train"))
    return make_finding(
        "TT101", Verdict.HOLDS, subjects, window, claim="chat is slowed", risk="", confidence=0.9, coverage=1.0
    )


ROOMY = (slot(CHAT, 0.3, workload="chat-chat"), slot(TRAIN, 0.2, workload="train"))


def test_without_a_finding_the_free_share_is_given(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(*ROOMY)
    rig.fill(-10, 0, kept=0.2)
    result = rig.tuner().run_once(rig.to(0))
    (record,) = result.kept
    assert record.group.kind == "give"
    assert rig.backend.value(TRAIN) == pytest.approx(0.7)  # a card of 1.0, of which the service keeps its 0.3


def test_a_pair_that_holds_keeps_the_aggressor_of_a_service_that_misses_from_more(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(*ROOMY)
    rig.fill(-10, 0, kept=0.2)
    pair = Pair()
    result = rig.tuner(detectors={"pair": pair}).run_once(rig.to(0))
    assert result.held == ""
    assert result.kept == ()
    assert rig.backend.writes == []
    (stored,) = list_findings(rig.state)
    assert (stored.code, stored.verdict, stored.last_seen) == ("TT101", "holds", at(0))


def test_a_finding_that_an_operator_suppressed_does_not_bind_the_plan(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(*ROOMY)
    rig.fill(-10, 0, kept=0.2)
    add_suppression(rig.state, code="TT101", subject="t/train", who="ops", why="known", now=rig.clock.now(), until=None)
    rig.tuner(detectors={"pair": Pair()}).run_once(rig.to(0))
    assert rig.backend.value(TRAIN) == pytest.approx(0.7)


def test_findings_are_renewed_after_their_time_over_the_rows_there_are(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(*ROOMY)
    pair = Pair()
    tuner = rig.tuner(TunerSettings(analyze_seconds=600.0), detectors={"pair": pair})
    for minute in (0, 5, 10):
        tuner.run_once(rig.to(minute))
    assert [w.end for w in pair.windows] == [at(0), at(10)]
    assert [w.start for w in pair.windows] == [at(-10), at(-10)]
    assert pair.forecasts[0] == 0
    assert pair.forecasts[1] > 0  # needs of the watch, for the ledger's reserve


def test_an_analysis_without_rows_keeps_its_whole_window(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(*ROOMY)
    rig.store.delete("slice", Window(at(-60), at(60)))
    pair = Pair()
    rig.tuner(detectors={"pair": pair}).analyse(rig.clock.now())
    assert [window.seconds for window in pair.windows] == [2 * 86400]


def test_a_tuner_that_loses_the_lease_in_the_middle_writes_nothing(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(*ROOMY)

    def rob() -> None:
        rig.clock.advance(901.0)  # it slept past the end of its lease
        assert Lease(rig.state, "other", rig.clock, seconds=900.0).acquire()

    tuner = rig.tuner(detectors={"pair": Pair(rob)})
    with pytest.raises(LeaseLostError):
        tuner.run_once(rig.to(0))
    assert rig.backend.writes == []
    assert list_groups(rig.state) == []
    assert tuner.run_once(rig.clock.now()).held


# -- what it writes ----------------------------------------------------------------------------------------------------


def test_running_mps_shares_become_rows_unless_the_backend_has_them_from_the_store(
    make_rig: Callable[..., Rig],
) -> None:
    rig = make_rig()
    window = Window(at(0), at(5))

    def shares() -> dict[str, float]:
        rows = rig.store.read("slice", window, fields=["sm_quota_ratio"]).dropna()
        return dict(zip(rows["slice"], rows["sm_quota_ratio"], strict=True))

    silent = rig.tuner(read_back=False)
    assert silent.run_once(rig.to(0)).held == ""
    silent.close()
    assert shares() == {}
    rig.tuner().run_once(rig.to(1))
    assert shares() == {"search": 0.5, "batch": 0.5}


def test_shares_that_are_read_back_do_not_make_silent_slices_look_alive(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    tuner = rig.tuner()
    tuner.run_once(rig.to(1))
    assert set(tuner.watch.look(rig.clock.now()).coverage.values()) == {1.0}
    for _ in range(2):
        rig.clock.advance(200.0)  # nobody collects any more
        tuner.run_once(rig.clock.now())
    span = rig.store.span("slice")
    assert span is not None
    assert span.end == at(1) + timedelta(milliseconds=1)
    assert set(tuner.watch.look(rig.clock.now()).coverage.values()) == {0.0}


def test_a_value_that_somebody_else_set_rests(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(*ROOMY)
    tuner = rig.tuner(TunerSettings(mode=Mode.AUTO, auto_restart_offline=True, cooldown_seconds=0.0))
    (record,) = tuner.run_once(rig.to(0)).kept
    for minute in range(5, 30, 5):
        tuner.run_once(rig.to(minute))
    settled = get_group(rig.state, record.id)
    assert settled is not None
    assert settled.state is ChangeState.CONFIRMED
    rig.backend.foreign(change(TRAIN, 0.7, 0.4), 0.4)
    written = len(rig.backend.writes)
    result = tuner.run_once(rig.to(30))
    assert [d.guard for d in result.drops] == ["frozen target"]
    assert "somebody else set sm_quota_ratio to 0.4" in result.drops[0].reason
    assert len(rig.backend.writes) == written
    assert [e.event for e in entries(rig.state) if e.event == "drift"] == ["drift"]


# -- the loop ----------------------------------------------------------------------------------------------------------


class Loop(VirtualClock):
    """Notes each wait, lets rows arrive, and stops the loop after so many."""

    def __init__(self, rig: Rig, waits: int, stop: threading.Event) -> None:
        super().__init__(rig.clock.now())
        self.rig, self.left, self.stop = rig, waits, stop
        self.seconds: list[float] = []

    def wait(self, seconds: float, stop: threading.Event | None = None) -> bool:
        self.seconds.append(seconds)
        self.left -= 1
        if self.left == 0:
            self.stop.set()
        ended = super().wait(seconds, stop)
        self.rig.to(round((self.now() - START) / MINUTE))
        return ended


class Spy(Tuner):
    """Notes what the loop calls."""

    def __init__(self, parts: TunerParts) -> None:
        super().__init__(parts)
        self.calls: list[tuple[str, float]] = []
        self.failures: list[TrimtabError] = []

    def run_once(self, now: datetime) -> CycleResult:
        self.calls.append(("cycle", (now - START) / MINUTE))
        if self.failures:
            raise self.failures.pop(0)
        return super().run_once(now)

    def fast_once(self, now: datetime) -> CycleResult:
        self.calls.append(("fast", (now - START) / MINUTE))
        return super().fast_once(now)


@pytest.fixture
def make_loop(make_rig: Callable[..., Rig]) -> Callable[[int], tuple[Spy, Loop]]:
    def make(waits: int) -> tuple[Spy, Loop]:
        rig = make_rig()
        loop = Loop(rig, waits, threading.Event())
        parts = TunerParts(
            store=rig.store,
            backend=rig.backend,
            state=rig.state,
            clock=loop,
            settings=AUTO,
            state_settings=StateSettings(path=rig.folder / "state.db", kill_switch=rig.switch),
            interval_seconds=60.0,
            declarations=PROMISES,
        )
        return Spy(parts), loop

    return make


def test_the_loop_runs_cycles_with_the_fast_path_between_until_it_is_stopped(
    make_loop: Callable[[int], tuple[Spy, Loop]], caplog: pytest.LogCaptureFixture
) -> None:
    spy, loop = make_loop(7)
    with caplog.at_level("INFO", logger="tuner.service.cycle"):
        spy.run(loop.stop)
    assert spy.calls == [
        ("cycle", 0.0),
        ("fast", 1.0),
        ("fast", 2.0),
        ("fast", 3.0),
        ("fast", 4.0),
        ("cycle", 5.0),
        ("fast", 6.0),
    ]
    assert loop.seconds == [60.0] * 7
    told = [r.getMessage().partition(",")[0] for r in caplog.records]
    assert told == [
        "cycle at 2026-03-02T00:00:00+00:00: plan-20260302T000000",
        "cycle at 2026-03-02T00:05:00+00:00: plan-20260302T000500",
    ]
    spy.run(loop.stop)  # already stopped: nothing runs
    assert len(spy.calls) == 7


def test_the_loop_outlives_what_does_not_answer_and_whoever_is_faster(
    make_loop: Callable[[int], tuple[Spy, Loop]], caplog: pytest.LogCaptureFixture
) -> None:
    spy, loop = make_loop(5)
    spy.failures = [UnreachableError("locked"), LeaseLostError("robbed"), StateMovedError("answered")]
    spy._parts.backend.unreadable = 1  # type: ignore[attr-defined]  # the backend in memory
    spy.run(loop.stop)
    assert spy.calls == [("cycle", 0.0), ("cycle", 1.0), ("cycle", 2.0), ("cycle", 3.0), ("fast", 4.0)]
    assert [r.getMessage().rpartition(": ")[2] for r in caplog.records if r.levelname == "WARNING"] == [
        "locked",
        "robbed",
        "answered",
        "the fake backend does not answer",
    ]


def test_the_loop_ends_where_the_configuration_is_wrong(make_loop: Callable[[int], tuple[Spy, Loop]]) -> None:
    spy, loop = make_loop(5)
    spy.failures = [ConfigurationError("no such zone")]
    with pytest.raises(ConfigurationError):
        spy.run(loop.stop)


def test_a_store_that_fails_to_answer_holds_the_cycle(
    make_rig: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig()
    tuner = rig.tuner()

    def broken(*_: object, **__: object) -> pd.DataFrame:
        raise UnreachableError("the store does not answer")

    monkeypatch.setattr(rig.store, "read", broken)
    assert tuner.run_once(rig.to(0)).held == "the store does not answer"


def test_live_shares_are_read_from_any_knob(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(knobs=(SM,))
    tuner = rig.tuner()
    tuner.fast_once(rig.to(0))
    result = tuner.fast_once(rig.to(6, kept=0.2))
    (record,) = result.kept
    assert [(c.target, c.after) for c in record.group.changes] == [(TRAIN, pytest.approx(0.3))]
