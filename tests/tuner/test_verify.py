from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from collector.clock import VirtualClock
from collector.window import Window
from tests.tuner.fakes import CORES, KNOBS, START, backend_with, change, group, held, plan, slice_target
from tuner import killswitch
from tuner.execute import execute
from tuner.journal import entries, record_plan
from tuner.lease import Lease
from tuner.model import Freeze, Group, Target
from tuner.outcome import list_outcomes
from tuner.record import ChangeState, GroupRecord
from tuner.settings import TunerSettings
from tuner.state import State, get_group
from tuner.verify import Evidence, Measured, Verdict, judge, realised_gain, watch
from tuner.writer import Writer

A, B, C = slice_target("a"), slice_target("b"), slice_target("c", "GPU-1")
LIMIT = 0.05
BUSY = Measured(requests=6000, kept=0.999, latency_seconds=0.1)


def online(target: Target = A, quota_ratio: float = 1.0, before: Measured = BUSY, **after: float) -> Evidence:
    return Evidence(target, True, before, replace(BUSY, **after), quota_ratio)


def offline(before: float, after: float, quota_ratio: float = 1.0, target: Target = B) -> Evidence:
    return Evidence(target, False, Measured(throughput=before), Measured(throughput=after), quota_ratio)


def verdict(*affected: Evidence, peers: Sequence[Evidence] = ()) -> Verdict:
    return judge(affected, peers, regression_limit=LIMIT).verdict


NAN = math.nan
PASS, FAIL, INCONCLUSIVE = Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        (online(), PASS),
        (online(kept=0.95), PASS),  # within the limit
        (online(kept=0.93), FAIL),
        (online(kept=0.943, requests=300), INCONCLUSIVE),  # could be chance
        (online(requests=NAN), INCONCLUSIVE),
        (online(before=Measured()), INCONCLUSIVE),
        (online(requests=10), INCONCLUSIVE),  # was busy, is hardly tried
        (online(before=replace(BUSY, requests=10), kept=0.9), FAIL),  # new load, against the promise
        (online(before=replace(BUSY, kept=NAN), kept=0.999), PASS),
        (online(kept=NAN), PASS),  # falls back to the tail
        (online(kept=NAN, latency_seconds=0.12), PASS),
        (online(kept=NAN, latency_seconds=0.13), FAIL),
        (online(kept=NAN, latency_seconds=NAN), INCONCLUSIVE),
        (online(kept=0.999, latency_seconds=5.0), PASS),  # the promise decides, not the tail
        (offline(100, 100), PASS),
        (offline(100, 76), PASS),
        (offline(100, 74), FAIL),
        (offline(100, 50, quota_ratio=0.6), PASS),  # the cut explains 40 %
        (offline(100, 34, quota_ratio=0.6), FAIL),
        (offline(100, 74, quota_ratio=2.0), FAIL),
        (offline(100, 74, quota_ratio=NAN), FAIL),
        (offline(NAN, 100), INCONCLUSIVE),
        (offline(100, NAN), INCONCLUSIVE),
        (offline(0, 50), PASS),
        (offline(0, 0), PASS),
        (offline(100, 0), FAIL),
    ],
)
def test_verdict_of_one_slice(evidence: Evidence, expected: Verdict) -> None:
    assert verdict(evidence) is expected


def test_nothing_measured_is_inconclusive() -> None:
    assert verdict() is INCONCLUSIVE


def test_one_loser_is_enough_and_one_unknown_blocks_a_pass() -> None:
    assert verdict(online(), online(B, kept=0.5), online(C, requests=NAN)) is FAIL
    assert verdict(online(), online(C, requests=NAN)) is INCONCLUSIVE


def test_a_slice_lowered_while_quiet_proves_nothing() -> None:
    quiet = replace(BUSY, requests=0.0, kept=NAN, latency_seconds=NAN)
    lowered = Evidence(A, True, quiet, quiet, 0.5)
    raised = replace(lowered, quota_ratio=1.5)
    assert verdict(lowered) is INCONCLUSIVE
    assert verdict(raised) is PASS
    assert verdict(lowered, offline(100, 120)) is PASS


def test_a_neighbour_that_took_less_is_not_blamed_for_a_service_in_trouble() -> None:
    """Set back, the trainer would have more again: just what the service does not need."""
    suffers, cut = online(kept=0.80), offline(100, 82, quota_ratio=0.8)
    assert judge([suffers, cut], (), regression_limit=LIMIT).verdict is FAIL
    assert judge([suffers, cut], (), regression_limit=LIMIT, gives_way=True).verdict is PASS
    ruined = offline(100, 30, quota_ratio=0.8)
    assert judge([suffers, ruined], (), regression_limit=LIMIT, gives_way=True).verdict is FAIL


def test_what_the_day_does_to_everybody_is_not_ours() -> None:
    bad_day = [online(C, kept=0.90), online(B, kept=0.92), online(A, kept=0.91)]
    assert verdict(online(kept=0.90)) is FAIL
    assert verdict(online(kept=0.90), peers=bad_day) is PASS
    assert verdict(online(kept=0.80), peers=bad_day) is FAIL
    # a good day of the peers is no excuse to demand more
    good_day = [online(C, before=replace(BUSY, kept=0.5), kept=0.999)]
    assert verdict(online(kept=0.96), peers=good_day) is PASS
    slow_day = [online(C, latency_seconds=0.2)]
    assert verdict(online(kept=NAN, latency_seconds=0.2), peers=slow_day) is PASS
    idle_day = [offline(100, 50, target=C)]
    assert verdict(offline(100, 50), peers=idle_day) is PASS
    # peers of the other class, or without numbers, say nothing
    assert verdict(offline(100, 50), peers=[online(C, kept=0.1), offline(NAN, 1, target=C)]) is FAIL


def test_numbers_say_why_for_every_slice() -> None:
    judgement = judge([online(kept=0.5), offline(NAN, 1)], [], regression_limit=LIMIT)
    assert judgement.reason == "slice c/n0/GPU-0/a: kept requests fell from 99.90% to 50.00%"
    assert judgement.numbers["slice c/n0/GPU-0/b"] == {
        "says": "inconclusive",
        "why": "its throughput is not known",
        "before": {"requests": None, "kept": None, "latency_seconds": None, "throughput": None},
        "after": {"requests": None, "kept": None, "latency_seconds": None, "throughput": 1},
        "quota_ratio": 1.0,
    }


def test_realised_gain_is_that_of_offline_work() -> None:
    assert realised_gain([online(), offline(100, 150), offline(100, 90)]) == pytest.approx(0.2)
    assert math.isnan(realised_gain([online(), offline(0, 90), offline(100, NAN)]))


class Scene:
    """A change that was applied at START + 15 s and is being watched."""

    def __init__(self, state: State, clock: VirtualClock, folder: Path, wanted: Group | None = None) -> None:
        self.state, self.clock, self.kill_switch = state, clock, folder / "PAUSED"
        values = {"sm_quota_ratio": 0.2, "mig_profile": 1.0}
        self.backend = backend_with(
            clock, held(A, values), held(B, {"sm_quota_ratio": 0.3}), held(Target("card", "c", "n0", "GPU-0"), values)
        )
        self.lease = Lease(state, "t", clock)
        self.lease.acquire()
        self.writer = Writer(state, self.backend, clock, self.lease, self.kill_switch)
        group_ = wanted or group(change(A, 0.2, 0.3))
        record = GroupRecord(group_, "p1", ChangeState.PLANNED, "go", "", START, START)
        record_plan(state, plan(group_), [record], [], actor="t", now=START)
        execute(self.writer, group_.id)
        self.windows: list[tuple[Window, Window]] = []
        self.evidence: list[Evidence] = [online(), offline(100, 110)]

    @property
    def record(self) -> GroupRecord:
        found = get_group(self.state, "g1")
        assert found is not None
        return found

    def look(self, minutes: float) -> ChangeState:
        now = START + timedelta(minutes=minutes)
        self.clock.advance(max((now - self.clock.now()).total_seconds(), 0))

        def read(_group: Group, before: Window, after: Window) -> tuple[list[Evidence], list[Evidence]]:
            self.windows.append((before, after))
            return self.evidence, []

        return watch(
            self.record,
            writer=self.writer,
            knobs=KNOBS,
            read_evidence=read,
            settings=TunerSettings(verify_seconds=900),
            now=now,
        ).state


@pytest.fixture
def scene(state: State, clock: VirtualClock, tmp_path: Path) -> Scene:
    return Scene(state, clock, tmp_path)


def test_a_pass_waits_for_the_whole_watch(scene: Scene) -> None:
    assert scene.look(2) is ChangeState.VERIFYING
    assert scene.windows == []  # too early to look
    assert scene.look(10) is ChangeState.VERIFYING
    assert scene.look(16) is ChangeState.CONFIRMED
    before, after = scene.windows[-1]
    assert (before.end, before.seconds) == (START + timedelta(seconds=15), 900)
    assert after.start == START + timedelta(seconds=15 + 5)  # after the read-back delay
    outcome = list_outcomes(scene.state)[0]
    assert (outcome.verdict, outcome.predicted, outcome.realised) == ("pass", 10.0, pytest.approx(0.1))
    assert entries(scene.state, group_id="g1")[-1].body["verdict"] == "pass"
    with pytest.raises(ValueError, match="expected a change that is verifying, got g1 in confirmed"):
        scene.look(17)


def test_a_fail_is_rolled_back_at_once_with_its_numbers(scene: Scene) -> None:
    scene.evidence = [online(kept=0.5)]
    assert scene.look(6) is ChangeState.ROLLED_BACK
    assert scene.backend.value(A) == 0.2
    assert list_outcomes(scene.state)[0].verdict == "fail"
    body = entries(scene.state, group_id="g1")[-2].body
    assert body["numbers"]["slice c/n0/GPU-0/a"]["after"]["kept"] == 0.5


def test_giving_way_is_kept_though_the_service_fares_worse(state: State, clock: VirtualClock, tmp_path: Path) -> None:
    scene = Scene(state, clock, tmp_path, group(change(B, 0.3, 0.2)))
    scene.evidence = [online(kept=0.5), offline(100, 70, quota_ratio=2 / 3)]
    assert scene.look(6) is ChangeState.VERIFYING
    assert scene.look(16) is ChangeState.CONFIRMED


def test_inconclusive_goes_on_and_is_rolled_back_in_the_end(scene: Scene) -> None:
    scene.evidence = [online(requests=NAN)]
    assert scene.look(16) is ChangeState.VERIFYING
    assert scene.look(59) is ChangeState.VERIFYING
    assert scene.look(61) is ChangeState.ROLLED_BACK
    assert scene.backend.value(A) == 0.2
    assert list_outcomes(scene.state)[0].verdict == "inconclusive"


def test_a_paused_rollback_is_judged_again(scene: Scene) -> None:
    scene.evidence = [online(kept=0.5)]
    killswitch.pause(scene.kill_switch, Freeze.ALL, who="ann", why="drill", at=START)
    assert scene.look(6) is ChangeState.VERIFYING
    assert list_outcomes(scene.state) == []
    killswitch.resume(scene.kill_switch)
    assert scene.look(7) is ChangeState.ROLLED_BACK


def test_what_cannot_be_undone_is_left_to_a_person(state: State, clock: VirtualClock, tmp_path: Path) -> None:
    recut = group(change(Target("card", "c", "n0", "GPU-0"), 1.0, 2.0, "mig_profile"))
    scene = Scene(state, clock, tmp_path, recut)
    scene.evidence = [online(kept=0.5)]
    assert scene.look(6) is ChangeState.ROLLBACK_BLOCKED
    assert scene.backend.value(Target("card", "c", "n0", "GPU-0"), "mig_profile") == 2.0
    assert "a person decides" in scene.record.reason


def test_a_restart_delays_the_watch(scene: Scene) -> None:
    slow = replace(CORES, restart_seconds=600.0)
    step = watch(
        scene.record,
        writer=scene.writer,
        knobs=[slow],
        read_evidence=lambda *_: ([], []),
        settings=TunerSettings(verify_seconds=900),
        now=START + timedelta(minutes=14),
    )
    assert (step.state, step.reason) == (ChangeState.VERIFYING, "being watched")
