"""The tuner on the simulated cluster: recommend writes down, approve waits, auto applies, verifies and keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from collector.clock import VirtualClock
from collector.settings import StoreSettings
from collector.store import EmbeddedStore
from sample_data.cluster import SimulatedCluster
from sample_data.cluster.backend import SimulatorBackend
from sample_data.cluster.presets import mixed
from tuner import killswitch
from tuner.audit import verify_chain
from tuner.consent import approve, reject, request_roll_back
from tuner.journal import entries
from tuner.model import BackendState, Change, Freeze, Group, Mode, Target
from tuner.outcome import list_outcomes
from tuner.record import ChangeState, GroupRecord
from tuner.service.cycle import CycleResult, Tuner, TunerParts
from tuner.settings import StateSettings, TunerSettings
from tuner.state import State, open_state
from tuner.state.plans import get_group, list_groups

AUTO = TunerSettings(mode=Mode.AUTO, auto_restart_offline=True)


@dataclass
class Demo:
    """A simulated cluster, its store, and a tuner in one mode."""

    folder: Path
    settings: TunerSettings
    cluster: SimulatedCluster = field(default_factory=lambda: SimulatedCluster(mixed(1)))

    def __post_init__(self) -> None:
        self.clock = VirtualClock(self.cluster.spec.start)
        self.store = EmbeddedStore(StoreSettings(path=self.folder / "store"))
        self.switch = self.folder / "PAUSED"
        places = StateSettings(path=self.folder / "state.db", kill_switch=self.switch)
        self.state: State = open_state(places)
        self.backend = SimulatorBackend(self.cluster)
        self.tuner = Tuner(
            TunerParts(
                store=self.store,
                backend=self.backend,
                state=self.state,
                clock=self.clock,
                settings=self.settings,
                state_settings=places,
                interval_seconds=60.0,
            )
        )

    @property
    def now(self) -> datetime:
        return self.clock.now()

    def minutes(self, count: int) -> None:
        for _ in range(count):
            self.cluster.step()
            self.clock.advance(60.0)
            self.store.write(self.cluster.frames())

    def cycle(self, after_minutes: int = 0) -> CycleResult:
        self.minutes(after_minutes)
        return self.tuner.run_once(self.now)

    def record(self, group_id: str) -> GroupRecord:
        found = get_group(self.state, group_id)
        assert found is not None
        return found

    def value(self, change: Change) -> float:
        return self.backend.read([change.target]).targets[change.target].values[change.knob]

    def set_by_hand(self, target: Target, knob: str, value: float) -> None:
        held = self.backend.read([target]).targets[target]
        change = Change(target, knob, held.values[knob], value, "by hand")
        self.backend.apply(Group("hand", (change,), "by hand", "give", 0.0, 1.0, 1.0), {target: held.generation})

    def close(self) -> None:
        self.tuner.close()
        self.state.close()
        self.store.close()


@pytest.fixture(scope="module")
def make_demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[TunerSettings], Demo]]:
    made: list[Demo] = []

    def make(settings: TunerSettings) -> Demo:
        demo = Demo(tmp_path_factory.mktemp("demo"), settings)
        made.append(demo)
        demo.minutes(12)
        return demo

    yield make
    for demo in made:
        demo.close()


def held_values(state: BackendState) -> dict[Target, tuple[dict[str, float], str]]:
    return {t: (dict(s.values), s.generation) for t, s in state.targets.items()}


def share_changes(result: CycleResult) -> list[GroupRecord]:
    return [r for r in result.kept if r.group.kind == "give"]


def test_recommend_writes_the_plan_down_and_touches_nothing(make_demo: Callable[[TunerSettings], Demo]) -> None:
    demo = make_demo(TunerSettings())
    before = held_values(demo.backend.read())
    result = demo.cycle()
    assert (result.held, result.steps) == ("", ())
    assert result.plan_id == "plan-20260105T001200"
    assert share_changes(result)
    assert {(r.decision, r.reason, r.state) for r in result.kept} == {
        ("write_down", "mode recommend", ChangeState.PLANNED)
    }
    assert held_values(demo.backend.read()) == before
    written = {r.id: r for r in list_groups(demo.state)}
    assert all(written[r.id].group == r.group for r in result.kept)
    assert {written[d.group_id].state for d in result.drops if d.action == "dropped"} == {ChangeState.DROPPED}
    assert all(r.simulated for r in written.values())
    assert verify_chain(demo.state).ok
    demo.cycle(5)
    assert held_values(demo.backend.read()).keys() >= {c.target for r in result.kept for c in r.group.changes}
    assert all(demo.value(c) == c.before for r in share_changes(result) for c in r.group.changes)


def test_planned_shares_fit_their_cards(make_demo: Callable[[TunerSettings], Demo]) -> None:
    demo = make_demo(TunerSettings())
    sight = demo.tuner.watch.look(demo.now)
    cards = {(c.node, c.gpu): c for c in sight.planner.cards}
    for record in share_changes(demo.cycle()):
        after = {c.target: c.after for c in record.group.changes}
        target = next(iter(after))
        card = cards[target.node, target.gpu]
        total = sum(after.get(s.target, s.effective) for s in card.slices)
        assert total + card.open_share <= 1.0 + 1e-9, target


def test_approve_waits_for_a_person_and_applies_after_the_answer(make_demo: Callable[[TunerSettings], Demo]) -> None:
    demo = make_demo(TunerSettings(mode=Mode.APPROVE))
    before = held_values(demo.backend.read())
    first = demo.cycle()
    assert {(r.decision, r.reason) for r in first.kept} == {("ask", "mode approve")}
    assert held_values(demo.backend.read()) == before
    (asked,) = share_changes(first)
    assert asked.until == demo.now + timedelta(days=1)
    demo.cycle(5)
    waiting = [r for r in list_groups(demo.state) if r.state is ChangeState.PLANNED]
    shares = [r for r in waiting if r.group.kind == "give"]
    assert len(shares) == len({c.target.gpu for r in shares for c in r.group.changes})  # one ask a card
    assert all(demo.value(c) == c.before for r in waiting for c in r.group.changes)
    chosen, *others = sorted(shares, key=lambda r: r.id)
    approve(demo.state, chosen.id, who="ana", why="looks right", role="operator", now=demo.now)
    for other in others:
        reject(demo.state, other.id, who="ana", why="not today", role="operator", now=demo.now)
    done = demo.cycle(1)
    assert next(s for s in done.steps if s.group_id == chosen.id).state is ChangeState.VERIFYING
    assert all(demo.value(c) == pytest.approx(c.after) for c in chosen.group.changes)
    assert {demo.record(o.id).state for o in others} <= {ChangeState.REFUSED}
    assert all(demo.value(c) == c.before for o in others for c in o.group.changes)
    assert verify_chain(demo.state).ok


@dataclass
class Hour:
    """A simulated hour in mode auto, and what each cycle did."""

    demo: Demo
    results: list[CycleResult]


@pytest.fixture(scope="module")
def hour(make_demo: Callable[[TunerSettings], Demo]) -> Hour:
    demo = make_demo(AUTO)
    results = [demo.cycle()]
    results += [demo.cycle(5) for _ in range(8)]
    return Hour(demo, results)


def test_auto_applies_verifies_and_confirms_within_the_hour(hour: Hour) -> None:
    demo, first = hour.demo, hour.results[0]
    (given,) = share_changes(first)
    assert (given.decision, given.reason) == ("go", "mode auto")
    assert (given.id, ChangeState.VERIFYING) in [(s.group_id, s.state) for s in first.steps]
    record = demo.record(given.id)
    assert record.state is ChangeState.CONFIRMED
    assert record.applied_at == first.now
    assert record.settled_at is not None
    assert timedelta(minutes=15) <= record.settled_at - first.now <= timedelta(minutes=25)
    assert "kept what they had" in record.reason
    events = [e.event for e in entries(demo.state, group_id=given.id)]
    assert events == ["intent", "applied", "read_back", "verifying", "confirmed"]


def test_what_was_confirmed_paid_off_and_is_believed(hour: Hour) -> None:
    outcomes = {o.group_id: o for o in list_outcomes(hour.demo.state)}
    given = share_changes(hour.results[0])[0]
    assert outcomes[given.id].verdict == "pass"
    assert outcomes[given.id].predicted == pytest.approx(3600 * sum(c.after - c.before for c in given.group.changes))
    raised = sum(c.after for c in given.group.changes) / sum(c.before for c in given.group.changes)
    assert outcomes[given.id].realised == pytest.approx(raised - 1, abs=0.25)  # a trainer that is bound by its share


def test_the_first_change_goes_alone_and_success_opens_the_next_wave(hour: Hour) -> None:
    flying = [len(share_changes(result)) for result in hour.results]
    assert flying[0] == 1
    assert flying[1:3] == [0, 0]
    assert max(flying[3:]) == 2
    assert any(d.guard == "wave" for d in hour.results[0].drops)


def test_every_step_of_the_hour_is_in_an_unbroken_journal(hour: Hour) -> None:
    audit = verify_chain(hour.demo.state)
    assert audit.ok
    plans = [e for e in entries(hour.demo.state) if e.event == "planned"]
    assert [e.plan_id for e in plans[: len(hour.results)]] == [r.plan_id for r in hour.results]
    assert {e.fence for e in plans} == {1}


def test_a_foreign_value_stays_and_its_target_rests(hour: Hour) -> None:
    demo = hour.demo
    (given,) = share_changes(hour.results[0])
    target = given.group.changes[0]
    by_hand = round((target.before + target.after) / 2, 2)
    demo.set_by_hand(target.target, target.knob, by_hand)
    result = demo.cycle(5)
    assert demo.value(target) == by_hand
    (noted,) = [e for e in entries(demo.state) if e.event == "drift"]
    assert (noted.body["found"], noted.body["expected"]) == (by_hand, pytest.approx(target.after))
    touched = {c.target for r in result.kept for c in r.group.changes}
    assert target.target not in touched


@pytest.mark.parametrize("level", [Freeze.NEW, Freeze.ALL])
def test_the_kill_switch_stops_all_new_changes(make_demo: Callable[[TunerSettings], Demo], level: Freeze) -> None:
    demo = make_demo(AUTO)
    killswitch.pause(demo.switch, level, who="ops", why="drill", at=demo.now)
    before = held_values(demo.backend.read())
    result = demo.cycle()
    assert result.kept == ()
    assert result.steps == ()
    assert {d.guard for d in result.drops} == {"kill switch"}
    assert all("drill" in d.reason for d in result.drops)
    assert held_values(demo.backend.read()) == before


def test_a_rollback_that_was_asked_for_happens_under_freeze_new_and_waits_under_freeze_all(
    make_demo: Callable[[TunerSettings], Demo],
) -> None:
    demo = make_demo(AUTO)
    (given,) = share_changes(demo.cycle())
    change = given.group.changes[0]
    assert demo.value(change) == pytest.approx(change.after)
    request_roll_back(demo.state, given.id, who="ana", why="not now", role="operator", now=demo.now)
    killswitch.pause(demo.switch, Freeze.ALL, who="ops", why="drill", at=demo.now)
    demo.cycle(1)
    assert demo.record(given.id).state is ChangeState.ROLLING_BACK
    assert demo.value(change) == pytest.approx(change.after)
    killswitch.pause(demo.switch, Freeze.NEW, who="ops", why="drill", at=demo.now)
    result = demo.cycle(1)
    assert demo.record(given.id).state is ChangeState.ROLLED_BACK
    assert demo.value(change) == pytest.approx(change.before)
    assert result.kept == ()
