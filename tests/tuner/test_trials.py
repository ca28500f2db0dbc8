"""A probe from the question to the answer, and back to the former share whatever happens on the way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from analyzer.contention import ContentionDetector
from analyzer.contention.probe import Prospect
from analyzer.findings import Finding, Role, Verdict
from collector.clock import VirtualClock
from collector.settings import StoreSettings
from collector.store import EmbeddedStore
from collector.window import Window
from dashboard.cli.changes import trial_words
from tests.tuner.fakes import SM, CrashError, FakeBackend, backend_with, slice_target
from tests.tuner.service_rows import MINUTE, PROMISES, at, card_rows, slice_rows, slot
from tuner import consent, killswitch
from tuner.audit import verify_chain
from tuner.journal import entries
from tuner.lease import Lease
from tuner.model import Freeze, KnobEffect, Mode
from tuner.planner.views import Candidate
from tuner.record import ChangeState, GroupRecord
from tuner.service.cycle import CycleResult, Tuner, TunerParts
from tuner.settings import StateSettings, TunerSettings
from tuner.state import State
from tuner.state.plans import get_group, list_drops, list_groups, newest_notes

CHAT, TRAIN = slice_target("chat"), slice_target("train")
SHARE = 0.4
APPROVE = TunerSettings(
    mode=Mode.APPROVE, stabilisation_seconds=0.0, changes_per_gpu_hour=60, changes_per_tenant_hour=60
)
LEARNT = 300  # minutes before the probe
OPEN = Candidate("tt101-open", CHAT, TRAIN, math.nan, suspected=False, prospect=Prospect(0.0126, SHARE, SHARE, 0.98))
HARM = 0.3  # ln slow-down of chat at train's full share


@dataclass
class Lab:
    """A card with chat and train on it, whose minutes follow from the shares that the backend holds."""

    store: EmbeddedStore
    state: State
    backend: FakeBackend
    clock: VirtualClock
    folder: Path
    harm: float = HARM
    kept: float = 1.0
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(5))

    @property
    def switch(self) -> Path:
        return self.folder / "PAUSED"

    @property
    def share(self) -> float:
        return self.backend.value(TRAIN)

    def tuner(self, settings: TunerSettings = APPROVE, *, holder: str = "one", analysed: bool = False) -> Tuner:
        """A tuner that analyses what it sees, or one that has done so and found the pair open."""
        tuner = Tuner(
            TunerParts(
                store=self.store,
                backend=self.backend,
                state=self.state,
                clock=self.clock,
                settings=settings,
                state_settings=StateSettings(path=self.folder / "state.db", kill_switch=self.switch),
                interval_seconds=60.0,
                detectors={"contention": ContentionDetector()} if analysed else {},
                declarations=PROMISES,
                holder=holder,
            )
        )
        if not analysed:
            tuner._candidates = (OPEN,)
        return tuner

    def write(self, first: int, last: int) -> None:
        """Rows of the minutes first..last under the shares of now."""
        minutes = range(first, last + 1)
        n = len(minutes)
        held = min(SHARE, self.share)
        noise = self.rng.normal(0, 0.02, n)
        slow = self.harm * held / SHARE
        batch = slice_rows(
            CHAT,
            minutes,
            workload="chat-chat",
            busy_ratio=0.2,
            sm_active_ratio=0.1,
            requests_per_second=50.0 + self.rng.normal(0, 1, n),
            within_objective_per_second=50.0 * self.kept,
            latency_p50_seconds=0.05 * np.exp(slow + noise),
        )
        self.store.write(batch)
        activity = held + self.rng.normal(0, 0.002, n)
        self.store.write(
            slice_rows(
                TRAIN,
                minutes,
                workload="train",
                busy_ratio=held,
                sm_active_ratio=activity,
                steps_count=60.0 * held,
                step_seconds=0.5 / held,
            )
        )
        self.store.write(card_rows("GPU-0", minutes, sm_active_ratio=activity + 0.1, sm_clock_hertz=1.4e9))

    def minute(self) -> int:
        """Let a minute pass."""
        now = round((self.clock.now() - at(0)) / MINUTE) + 1
        self.clock.advance(60.0)
        self.write(now, now)
        return now

    def sleep(self, minutes: int) -> None:
        """Let time pass without a tuner, such as until the lease of one that died is over."""
        now = round((self.clock.now() - at(0)) / MINUTE)
        self.write(now + 1, now + minutes)
        self.clock.advance(60.0 * minutes)

    def probes(self) -> list[GroupRecord]:
        return [r for r in list_groups(self.state, limit=1000) if r.group.trial is not None]

    def asked(self) -> GroupRecord:
        (asked,) = [r for r in self.probes() if r.decision == "ask" and r.state is ChangeState.PLANNED]
        return asked

    def consented(self, tuner: Tuner) -> str:
        """Let a cycle ask for the probe, and say yes."""
        tuner.run_once(self.clock.now())
        asked = self.asked()
        consent.approve(self.state, asked.id, who="ann", why="to know", role="operator", now=self.clock.now())
        return asked.id

    def run(self, tuner: Tuner, minutes: int, until: Callable[[], bool] = lambda: False) -> list[CycleResult]:
        results = []
        for _ in range(minutes):
            now = self.minute()
            cycle = tuner.run_once if now % 5 == 0 else tuner.fast_once
            results.append(cycle(self.clock.now()))
            if until():
                break
        return results

    def begun(self, tuner: Tuner) -> str:
        """Ask, consent, and go on until a pair of blocks is throttled."""
        group_id = self.consented(tuner)
        self.run(tuner, 40, until=lambda: self.throttles(group_id) >= 1 and self.share < SHARE)
        assert self.share < SHARE
        return group_id

    def throttles(self, group_id: str) -> int:
        return sum(e.event == "throttled" for e in entries(self.state, group_id=group_id))

    def record(self, group_id: str) -> GroupRecord:
        record = get_group(self.state, group_id)
        assert record is not None
        return record

    def finding(self, tuner: Tuner) -> Finding:
        for finding in tuner.analyse(self.clock.now()):
            if finding.code == "TT101" and finding.subject(Role.VICTIM).slice == "chat":
                return finding
        raise AssertionError("chat has no finding")


@pytest.fixture
def make_lab(tmp_path: Path, state: State, clock: VirtualClock) -> Iterator[Callable[..., Lab]]:
    store = EmbeddedStore(StoreSettings(path=tmp_path / "store"))

    def make(*, effect: KnobEffect = KnobEffect.LIVE, **rest: float) -> Lab:
        knob = replace(SM, effect=effect, read_back_seconds=0.0)
        states = (
            slot(CHAT, 0.5, kind="mps", workload="chat-chat"),
            slot(TRAIN, SHARE, kind="mps", workload="train"),
        )
        lab = Lab(store, state, backend_with(clock, *states, knob_list=(knob,)), clock, tmp_path, **rest)
        lab.write(0, LEARNT)
        clock.advance(60.0 * LEARNT)
        return lab

    yield make
    store.close()


# -- asking ----------------------------------------------------------------------------------------------------------


def test_an_open_pair_is_asked_about_with_time_and_cost(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab()
    lab.tuner(APPROVE.model_copy(update={"changes_per_gpu_hour": 6}), analysed=True).run_once(lab.clock.now())
    asked = lab.asked()
    trial, (change,) = asked.group.trial, asked.group.changes
    assert trial is not None
    assert (change.target, change.before, change.after) == (TRAIN, SHARE, pytest.approx(0.1))
    assert trial.victim == CHAT
    assert (trial.block_seconds, trial.every_seconds) == (240.0, 720.0)
    assert trial.pairs >= 16
    assert trial.expected_seconds == pytest.approx(trial.pairs * 720.0, rel=0.1)
    assert trial.lost_sm_seconds == pytest.approx(trial.pairs * 240.0 * 0.3, rel=0.05)
    assert trial.lost_ratio == pytest.approx(0.25, abs=0.03)
    assert 0.0 < trial.detects <= 0.1
    assert asked.reason == "it slows work on purpose, to learn: a person says yes first"


@pytest.mark.parametrize("mode", [Mode.RECOMMEND, Mode.AUTO])
def test_without_consent_nothing_is_written(make_lab: Callable[..., Lab], mode: Mode) -> None:
    lab = make_lab()
    tuner = lab.tuner(APPROVE.model_copy(update={"mode": mode}))
    tuner.run_once(lab.clock.now())
    lab.run(tuner, 6)
    assert [w for w in lab.backend.writes if w[0] == TRAIN and w[2] < SHARE] == []
    decisions = {r.decision for r in lab.probes() if r.state is not ChangeState.DROPPED}
    assert decisions == ({"write_down"} if mode is Mode.RECOMMEND else {"ask"})


def test_a_probe_that_was_refused_is_not_run(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab()
    tuner = lab.tuner()
    tuner.run_once(lab.clock.now())
    consent.reject(lab.state, lab.asked().id, who="ann", why="no", role="operator", now=lab.clock.now())
    lab.run(tuner, 5)
    assert lab.share == SHARE
    assert lab.backend.writes == []


def test_a_share_that_does_not_act_at_once_is_not_probed(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(effect=KnobEffect.NEW_WORK_ONLY)
    lab.tuner().run_once(lab.clock.now())
    assert lab.probes() == []
    assert newest_notes(lab.state) == ("no probe of train against chat-chat on GPU-0: its share acts on new work only",)


def test_a_suspect_whose_activity_is_told_as_time_is_not_probed(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab()
    tuner = lab.tuner()
    tuner._candidates = (replace(OPEN, prospect=replace(OPEN.prospect, level=0.9, swing=0.9)),)
    tuner.run_once(lab.clock.now())
    assert lab.probes() == []
    told = (
        "no probe of train against chat-chat on GPU-0: it is busy for 90% with 40% of the card: a cut would not be seen"
    )
    assert newest_notes(lab.state) == (told,)


def test_none_of_it_where_probes_are_off(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab()
    lab.tuner(APPROVE.model_copy(update={"probe_pairs": 0})).run_once(lab.clock.now())
    assert lab.probes() == []


def test_nothing_begins_while_an_objective_is_missed(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(kept=0.5)
    lab.tuner().run_once(lab.clock.now())
    assert any(d.guard == "trial" and "misses its objective" in d.reason for d in list_drops(lab.state))


# -- from the question to the answer -----------------------------------------------------------------------------------


def test_what_watching_cannot_decide_is_decided(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab()
    tuner = lab.tuner(analysed=True)
    assert lab.finding(tuner).verdict is Verdict.CANNOT_TELL
    group_id = lab.consented(tuner)
    lab.run(tuner, 460, until=lambda: lab.record(group_id).state is ChangeState.ROLLED_BACK)
    record, trial = lab.record(group_id), lab.record(group_id).group.trial
    assert trial is not None
    assert record.reason.startswith("the probe is over")
    assert lab.throttles(group_id) == trial.pairs
    assert lab.share == SHARE
    assert {round(w[2], 6) for w in lab.backend.writes} == {0.1, SHARE}
    lab.run(tuner, 1)
    found = lab.finding(tuner)
    assert found.verdict is Verdict.HOLDS
    assert f"by experiment: {trial.pairs} pairs of blocks" in found.claim
    assert found.evidence["probe"]["change"] == group_id
    assert found.effect is not None
    assert found.effect.lower < np.expm1(HARM) < found.effect.upper
    events = lab.store.events(Window.last(lab.clock.now(), timedelta(hours=1)))
    assert list(events[events["code"] == "probe"]["slice"]) == ["chat"]
    assert verify_chain(lab.state).ok
    lab.run(tuner, 5)
    assert [r.id for r in lab.probes() if r.state in {ChangeState.PLANNED, ChangeState.APPROVED}] == []


def test_blocks_stand_in_the_journal_before_they_are_written(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab()
    group_id = lab.begun(lab.tuner())
    events = [e.event for e in entries(lab.state, group_id=group_id)]
    assert events[:6] == ["approved", "intent", "applied", "read_back", "verifying", "release"]
    last = entries(lab.state, group_id=group_id)[-1]
    assert last.event == "throttled"
    assert events[-2] == "throttle"
    assert last.body["pair"] == 1
    assert last.fence is not None


# -- and always back ---------------------------------------------------------------------------------------------------


def assert_over(lab: Lab, group_id: str, why: str) -> None:
    record = lab.record(group_id)
    assert record.state is ChangeState.ROLLED_BACK
    assert why in record.reason
    assert lab.share == SHARE
    assert verify_chain(lab.state).ok


def test_an_objective_that_is_missed_ends_it(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab()
    tuner = lab.tuner()
    group_id = lab.begun(tuner)
    lab.kept = 0.5
    lab.run(tuner, 4)
    assert_over(lab, group_id, "misses its objective")
    lab.kept = 1.0
    lab.run(tuner, 1)
    again = lab.tuner(analysed=True)
    assert lab.finding(again).evidence["probe"]["problem"].startswith("it ended early")
    assert TRAIN not in {c.suspect for c in again._candidates}  # not again today


def test_somebody_elses_value_ends_it_and_stays(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab()
    tuner = lab.tuner()
    group_id = lab.begun(tuner)
    lab.backend.foreign(lab.record(group_id).group.changes[0], 0.25)
    lab.run(tuner, 5)
    assert lab.record(group_id).state in {ChangeState.FOREIGN_CHANGE, ChangeState.ROLLBACK_BLOCKED}
    assert lab.share == 0.25


@pytest.mark.parametrize(("level", "share"), [(Freeze.NEW, SHARE), (Freeze.ALL, 0.1)])
def test_the_kill_switch_ends_it(make_lab: Callable[..., Lab], level: Freeze, share: float) -> None:
    lab = make_lab()
    tuner = lab.tuner()
    group_id = lab.begun(tuner)
    writes = len(lab.backend.writes)
    killswitch.pause(lab.switch, level, who="ann", why="stop", at=lab.clock.now())
    lab.run(tuner, 5)
    assert lab.share == pytest.approx(share)  # no write at all means that not even the way back is written
    assert len(lab.backend.writes) == writes + (level is Freeze.NEW)
    killswitch.resume(lab.switch)
    lab.run(tuner, 5)
    assert_over(lab, group_id, "")


def test_a_person_can_end_it(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab()
    tuner = lab.tuner()
    group_id = lab.begun(tuner)
    consent.request_roll_back(lab.state, group_id, who="ann", why="enough", role="operator", now=lab.clock.now())
    lab.run(tuner, 1)  # the next pass, whichever it is
    assert_over(lab, group_id, "enough")
    assert entries(lab.state, group_id=group_id)[-2].actor == "ann"
    lab.run(tuner, 1)
    again = lab.tuner(analysed=True)
    assert lab.finding(again).evidence["probe"]["problem"] == "it ended early: enough"
    assert TRAIN not in {c.suspect for c in again._candidates}  # who said enough is not asked again today


def test_a_tuner_that_is_stopped_sets_it_back_first(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab()
    tuner = lab.tuner()
    group_id = lab.begun(tuner)
    tuner.close()
    assert_over(lab, group_id, "the tuner was stopped")


def test_a_crash_in_a_throttled_block_is_set_back_by_the_next_process(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab()
    group_id = lab.begun(lab.tuner())  # and the process is gone, without a word
    lab.sleep(16)
    lab.tuner().run_once(lab.clock.now())
    assert_over(lab, group_id, "the process that ran it is gone")


@pytest.mark.parametrize(
    ("switches", "fault"), [(0, "crash_before"), (0, "crash_after"), (1, "crash_after"), (2, "crash_after")]
)
def test_a_crash_at_any_write_is_set_back(make_lab: Callable[..., Lab], fault: str, switches: int) -> None:
    lab = make_lab()
    tuner = lab.tuner()
    group_id = lab.consented(tuner)
    lab.backend.faults = ["applied"] * switches + [fault]
    with pytest.raises(CrashError):
        lab.run(tuner, 60)
    lab.sleep(16)
    lab.tuner().run_once(lab.clock.now())
    assert lab.share == SHARE
    assert lab.record(group_id).state in {ChangeState.ROLLED_BACK, ChangeState.NOT_APPLIED}
    assert verify_chain(lab.state).ok


def test_whoever_loses_the_lease_writes_no_more_and_the_other_sets_it_back(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab()
    tuner = lab.tuner()
    group_id = lab.begun(tuner)
    writes = len(lab.backend.writes)
    lab.sleep(16)
    other = Lease(lab.state, "two", lab.clock, seconds=900.0)
    assert other.acquire()
    held = [r.held for r in lab.run(tuner, 2)]
    assert all("stands by" in reason for reason in held)
    assert len(lab.backend.writes) == writes
    other.release()
    lab.tuner(holder="two").run_once(lab.clock.now())
    assert_over(lab, group_id, "the process that ran it is gone")


@pytest.mark.parametrize("fault", ["refused", "lost_before"])
def test_a_block_that_cannot_be_switched_ends_it(make_lab: Callable[..., Lab], fault: str) -> None:
    lab = make_lab()
    tuner = lab.tuner()
    group_id = lab.begun(tuner)
    lab.backend.faults = [fault]
    lab.run(tuner, 12, until=lambda: not lab.record(group_id).is_open)
    assert_over(lab, group_id, "release")


def test_a_guard_that_says_no_in_the_middle_ends_it(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab()
    tuner = lab.tuner()
    group_id = lab.consented(tuner)
    lab.run(tuner, 20, until=lambda: lab.record(group_id).state is ChangeState.VERIFYING)
    stricter = APPROVE.model_copy(update={"protected": ("t/train",)})
    tuner._parts = replace(tuner._parts, settings=stricter)  # the same process under another rule
    lab.run(tuner, 40, until=lambda: not lab.record(group_id).is_open)
    assert_over(lab, group_id, "protected by configuration")


def test_a_block_that_was_slept_through_ends_it(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab()
    tuner = lab.tuner()
    group_id = lab.begun(tuner)
    lab.sleep(13)
    tuner.run_once(lab.clock.now())
    assert_over(lab, group_id, "slept through")


def test_a_clock_that_is_set_back_in_a_block_ends_it(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab()
    tuner = lab.tuner()
    group_id = lab.begun(tuner)
    lab.clock._now -= timedelta(hours=1)
    lab.clock.advance(60.0)
    tuner.fast_once(lab.clock.now())
    assert_over(lab, group_id, "the clock was set back")


def test_a_throttle_that_arrives_after_the_end_is_set_back(make_lab: Callable[..., Lab]) -> None:
    """Asked for and not there in time: the probe ends, and is closed only when nothing can arrive any more."""
    lab = make_lab()
    lab.backend.delay_seconds = 90.0
    tuner = lab.tuner()
    group_id = lab.begun(tuner)
    lab.run(tuner, 40, until=lambda: lab.share == SHARE)
    lab.backend.faults = ["late"]
    lab.run(tuner, 40, until=lambda: not lab.backend.faults)
    assert lab.share == SHARE
    assert lab.record(group_id).state is ChangeState.ROLLING_BACK
    lab.run(tuner, 5)
    lab.backend.read()
    assert_over(lab, group_id, "")
    assert [value for _, _, value in lab.backend.writes[-2:]] == [pytest.approx(0.1), SHARE]


def test_who_sets_a_throttled_share_back_ends_it(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab()
    tuner = lab.tuner()
    group_id = lab.begun(tuner)
    throttles = lab.throttles(group_id)
    lab.backend.foreign(lab.record(group_id).group.changes[0], SHARE)
    lab.run(tuner, 40, until=lambda: not lab.record(group_id).is_open)
    assert_over(lab, group_id, "somebody else has set it back")
    assert lab.throttles(group_id) == throttles


def test_a_card_takes_one_probe_and_no_other_change(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab()
    tuner = lab.tuner()
    group_id = lab.begun(tuner)
    lab.run(tuner, 6, until=lambda: False)
    others = [r for r in list_groups(lab.state, limit=1000) if r.id != group_id and r.intent_at is not None]
    assert others == []
    assert [r.id for r in lab.probes() if r.is_open] == [group_id]


def test_what_is_asked_says_what_when_at_what_cost_and_what_for(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab()
    lab.tuner(APPROVE.model_copy(update={"mode": Mode.RECOMMEND})).run_once(lab.clock.now())
    (record,) = lab.probes()
    assert record.decision == "write_down"
    said = " ".join(trial_words(record))
    for part in (
        "16 pairs of blocks of 4 min",
        "train at 10.0% of the card and one at 40.0%",
        "coin-flip order",
        "about 2.2 h, at most 12 h",
        "SM-seconds",
        "decides whether train slows chat-chat",
        "tt101-open",
    ):
        assert part in said
    other = replace(record, group=replace(record.group, trial=None))
    assert trial_words(other) == []
