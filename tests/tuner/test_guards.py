"""Each guard: what it says no to, in words, and what it lets through."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from collector.declarations import ResolvedWorkload, WorkloadDeclaration
from collector.errors import ConfigurationError
from tests.tuner.fakes import (
    KNOBS,
    MEMORY,
    SM,
    START,
    change,
    declared,
    group,
    held,
    plan,
    queue_target,
    slice_target,
    world_of,
)
from tuner.guards import GuardedPlan, Vitals, World, domain_of, run_guards, still_allowed
from tuner.guards.pace import wave_limit
from tuner.guards.permission import in_span
from tuner.killswitch import Pause
from tuner.model import BackendState, Change, Eviction, Freeze, Group, KnobEffect, Mode, Target
from tuner.record import ChangeState, Decision, GroupRecord
from tuner.settings import CalendarSettings, ModeSettings, TunerSettings

A, B, C = slice_target("a"), slice_target("b"), slice_target("c", "GPU-1")
RED, BLUE = queue_target("red"), queue_target("blue")
SETTINGS = TunerSettings()
GIB = float(2**30)
STATES = [
    held(A, {"sm_quota_ratio": 0.2, "memory_quota_bytes": 8 * GIB}, workload="a"),
    held(B, {"sm_quota_ratio": 0.6, "memory_quota_bytes": 16 * GIB}, workload="b"),
    held(C, {"sm_quota_ratio": 0.5}, workload="c"),
    held(RED, {"quota_gpu_count": 8.0}, workload=""),
    held(BLUE, {"quota_gpu_count": 24.0}, workload=""),
    held(Target("card", "c", "n0", "GPU-0"), {"mig_profile": 1.0}),
]
RAISE, LOWER = change(A, 0.2, 0.3), change(B, 0.6, 0.4)


def guarded(*groups: Group, settings: TunerSettings = SETTINGS, **spoil: object) -> GuardedPlan:
    return run_guards(plan(*groups), world_of(STATES, **spoil), settings)


def refusal(*changes: Change, settings: TunerSettings = SETTINGS, name: str = "g1", **spoil: object) -> str:
    """Return `guard: reason` of the drop of one group; `kept` where it is not dropped."""
    result = guarded(group(*changes), settings=settings, **spoil)
    drop = result.dropped(name)
    if drop is None:
        return "kept"
    assert result.groups == ()
    return f"{drop.guard}: {drop.reason}"


def past(
    *changes: Change,
    minutes_ago: float,
    state: ChangeState = ChangeState.CONFIRMED,
    name: str = "old",
    kind: str = "give",
    restarts: int = 0,
    evictions: int = 0,
    decision: Decision = "go",
) -> GroupRecord:
    at = START - timedelta(minutes=minutes_ago)
    settled = None if state in {ChangeState.INTENT, ChangeState.VERIFYING} else at
    return GroupRecord(
        group(*changes, name=name, kind=kind),
        "p0",
        state,
        decision,
        "",
        at,
        at,
        intent_at=at,
        settled_at=settled,
        restarts=restarts,
        evictions=evictions,
    )


def test_a_good_group_passes_unchanged() -> None:
    wanted = group(RAISE, LOWER)
    result = guarded(wanted)
    assert result.groups == (wanted,)
    assert result.drops == ()


@pytest.mark.parametrize("level", [Freeze.NEW, Freeze.ALL])
def test_kill_switch(level: Freeze) -> None:
    assert refusal(RAISE, pause=Pause(level, "ann", "drill")) == f"kill switch: paused ({level.value}) by ann: drill"


def test_simulated_plans_only_go_to_simulated_backends() -> None:
    wanted = group(RAISE)
    result = run_guards(plan(wanted, simulated=True), world_of(STATES, harmless_backend=False), SETTINGS)
    assert result.drops[0].guard == "simulation"
    assert run_guards(plan(wanted, simulated=True), world_of(STATES), SETTINGS).groups == (wanted,)
    assert run_guards(plan(wanted), world_of(STATES, harmless_backend=False), SETTINGS).groups == (wanted,)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ((), "it changes nothing"),
        ((RAISE, RAISE), "sm_quota_ratio of slice c/n0/GPU-0/a twice"),
        ((change(slice_target("z"), 0.2, 0.3),), "slice c/n0/GPU-0/z cannot be read back"),
        ((change(A, 1, 2, "priority"),), "the backend cannot set priority"),
        ((change(C, 1, 2, "memory_quota_bytes"),), "is nan now and would become 2"),
        ((change(A, 0.2, math.nan),), "is 0.2 now and would become nan"),
        ((change(A, 0.3, 0.4),), "was planned from 0.3, it is 0.2 now"),
    ],
)
def test_scope(wrong: tuple[Change, ...], words: str) -> None:
    said = refusal(*wrong)
    assert said.startswith("scope: ")
    assert words in said


def test_special_values_are_left_to_a_person() -> None:
    knob = replace(SM, special={0.2: "unlimited"})
    assert refusal(RAISE, knobs=(knob,)) == (
        "scope: sm_quota_ratio of slice c/n0/GPU-0/a: 0.2 means 'unlimited', left to a person"
    )
    choices = replace(SM, special={0.2: "small", 0.3: "large"})
    assert refusal(RAISE, knobs=(choices,)) == "kept"


def test_protected_and_undeclared() -> None:
    assert refusal(RAISE, settings=TunerSettings(protected=("t/a",))) == (
        "protection: t/a is protected by configuration"
    )
    guarded_one = {("c", "t", "a"): declared("t", "a", protected=True)}
    assert refusal(RAISE, declarations=guarded_one) == "protection: t/a is declared protected"
    said = refusal(LOWER, declarations={})
    assert said == "protection: nobody declared t/b: it counts as online and is never lowered"
    assert refusal(RAISE, declarations={}) == "kept"
    undeclared = ResolvedWorkload(
        tenant="t", workload="b", declaration=WorkloadDeclaration(protected=True), declared=False, origin={}
    )
    assert refusal(LOWER, declarations={("c", "t", "b"): undeclared}).startswith("protection: nobody declared")


def test_a_queue_belongs_to_many_workloads() -> None:
    move = (change(BLUE, 24, 16, "quota_gpu_count"), change(RED, 8, 16, "quota_gpu_count"))
    evictions = {"g1": [Eviction(BLUE, "job", 1, "at once")]}
    assert refusal(*move, declarations={}, evictions=evictions) == "kept"
    assert refusal(*move, settings=TunerSettings(protected=("t",)), evictions=evictions).startswith("protection: t is")


def test_frozen_targets() -> None:
    assert refusal(RAISE, frozen={A: "foreign"}) == "frozen target: slice c/n0/GPU-0/a rests: foreign"


def calendar(start: str, end: str, zone: str = "UTC", **rest: object) -> CalendarSettings:
    return CalendarSettings(name="freeze", start=start, end=end, timezone=zone, **rest)  # type: ignore[arg-type]


def test_calendar_freezes() -> None:
    night = calendar("22:00", "06:00")
    assert refusal(RAISE, calendars=(night,)) == "calendar: calendar 'freeze' freezes 22:00-06:00 UTC"
    assert refusal(RAISE, calendars=(calendar("22:00", "06:00", freeze=False),)) == "kept"
    assert refusal(RAISE, calendars=(calendar("08:00", "09:00"),)) == "kept"


@pytest.mark.parametrize(
    ("entry", "at", "inside"),
    [
        # a span that passes midnight belongs to the day it starts on: Friday night, not Sunday night
        (calendar("22:00", "06:00", days=(4,)), datetime(2026, 3, 6, 23, tzinfo=UTC), True),
        (calendar("22:00", "06:00", days=(4,)), datetime(2026, 3, 7, 5, 59, tzinfo=UTC), True),
        (calendar("22:00", "06:00", days=(4,)), datetime(2026, 3, 7, 6, tzinfo=UTC), False),
        (calendar("22:00", "06:00", days=(4,)), datetime(2026, 3, 6, 5, tzinfo=UTC), False),
        (calendar("00:00", "00:00", days=(5, 6)), datetime(2026, 3, 7, 12, tzinfo=UTC), True),
        (calendar("00:00", "00:00", days=(5, 6)), datetime(2026, 3, 9, 0, tzinfo=UTC), False),
        (calendar("09:00", "17:00"), datetime(2026, 3, 2, 17, tzinfo=UTC), False),
        # Berlin: winter UTC+1, summer UTC+2 from 29 March 2026
        (calendar("09:00", "10:00", "Europe/Berlin"), datetime(2026, 3, 27, 8, 30, tzinfo=UTC), True),
        (calendar("09:00", "10:00", "Europe/Berlin"), datetime(2026, 3, 30, 8, 30, tzinfo=UTC), False),
        (calendar("09:00", "10:00", "Europe/Berlin"), datetime(2026, 3, 30, 7, 30, tzinfo=UTC), True),
        # the hour 02:00-03:00 does not exist on 29 March, and exists twice on 25 October
        (calendar("02:00", "03:00", "Europe/Berlin"), datetime(2026, 3, 29, 0, 59, tzinfo=UTC), False),
        (calendar("02:00", "03:00", "Europe/Berlin"), datetime(2026, 3, 29, 1, 0, tzinfo=UTC), False),
        (calendar("02:00", "03:00", "Europe/Berlin"), datetime(2026, 10, 25, 0, 30, tzinfo=UTC), True),
        (calendar("02:00", "03:00", "Europe/Berlin"), datetime(2026, 10, 25, 1, 30, tzinfo=UTC), True),
        (calendar("02:00", "03:00", "Europe/Berlin"), datetime(2026, 10, 25, 2, 0, tzinfo=UTC), False),
    ],
)
def test_calendar_spans(entry: CalendarSettings, at: datetime, inside: bool) -> None:
    assert in_span(entry, at) is inside


@pytest.mark.parametrize("entry", [calendar("09:00", "10:00", "Europe/Berlim"), calendar("9 o'clock", "10:00")])
def test_a_calendar_that_is_not_understood_names_itself(entry: CalendarSettings) -> None:
    with pytest.raises(ConfigurationError, match="'freeze': expected"):
        in_span(entry, START)


@pytest.mark.parametrize("mode", list(Mode))
def test_evicting_changes_are_predicted_by_name_unless_they_are_mere_advice(mode: Mode) -> None:
    lower, settings = change(BLUE, 24, 16, "quota_gpu_count"), TunerSettings(mode=mode)
    drop = "prediction: it can evict, and nobody has predicted whom"
    assert refusal(lower, settings=settings) == ("kept" if mode is Mode.RECOMMEND else drop)
    assert refusal(lower, settings=settings, evictions={"g1": ()}) == "kept"
    advice = TunerSettings(mode=mode, modes=(ModeSettings(tenant="t", mode=Mode.RECOMMEND),))
    assert refusal(lower, settings=advice) == "kept"


@pytest.mark.parametrize(("age", "ok"), [(180, True), (181, False), (-5, True), (-6, False)])
def test_freshness(age: float, ok: bool) -> None:
    stale = replace(plan(group(RAISE)), as_of=START - timedelta(seconds=age))
    result = run_guards(stale, world_of(STATES), SETTINGS)
    assert (result.drops == ()) is ok
    old_state = BackendState(START - timedelta(seconds=age), {s.target: s for s in STATES})
    said = refusal(RAISE, state=old_state)
    assert said == "kept" if ok else said.startswith("freshness: the backend's state is ")


@pytest.mark.parametrize(
    ("vitals", "words"),
    [
        (None, "not known"),
        (Vitals(0, 0), "no card is seen"),
        (Vitals(15, 16), "15 cards are seen, 16 a cycle ago"),
        (Vitals(16, 16, 8), "8 of 16 cards are unhealthy"),
        (Vitals(16, 16, activity=0.0, activity_before=0.3), "every slice is idle at once"),
        (Vitals(16, 16, activity=0.05, activity_before=0.4), "activity fell from 40% to 5%"),
        (Vitals(16, 16, clock_jump_seconds=-3600.0), "the clock jumped by -3600 s"),
    ],
)
def test_impossible_worlds_freeze_everything(vitals: Vitals | None, words: str) -> None:
    said = refusal(RAISE, vitals=vitals)
    assert said.startswith("impossible world: ")
    assert words in said


@pytest.mark.parametrize(
    "vitals", [Vitals(16, 16, 7), Vitals(6, 6, 3), Vitals(16, 16, activity=0.15, activity_before=0.4), Vitals(16, 16)]
)
def test_possible_worlds(vitals: Vitals) -> None:
    assert refusal(RAISE, vitals=vitals) == "kept"


def test_warm_up_allows_increases_only() -> None:
    for since, words in ((None, "before the inventory is complete"), (START - timedelta(seconds=299), "watching for")):
        assert refusal(RAISE, watching_since=since) == "kept"
        said = refusal(LOWER, watching_since=since)
        assert said.startswith("warm-up: ")
        assert words in said
    assert refusal(LOWER, watching_since=START - timedelta(seconds=300)) == "kept"
    blind = Vitals(16, 16)
    assert "activity is not known" in refusal(LOWER, vitals=blind)


@pytest.mark.parametrize(("value", "ok"), [(0.8, True), (0.79, False), (math.nan, False)])
def test_coverage_floor(value: float, ok: bool) -> None:
    expected = "kept" if ok else "coverage"
    assert refusal(RAISE, coverage={A: value}).split(":")[0] == expected
    result = guarded(group(RAISE, coverage=value))
    assert (result.dropped("g1") is None) is ok


@pytest.mark.parametrize(("value", "ok"), [(0.5, True), (0.49, False), (math.nan, False)])
def test_confidence_floor(value: float, ok: bool) -> None:
    result = guarded(group(RAISE, confidence=value))
    assert (result.dropped("g1") is None) is ok
    if not ok:
        assert "written down only" in result.drops[0].reason


def test_no_quota_moves_onto_a_card_with_evidence_against_it() -> None:
    card = domain_of(A)
    bad = {card: ("XID 79: fallen off the bus", "row remap pending")}
    assert refusal(RAISE, health=bad) == "health: card c/n0/GPU-0: XID 79: fallen off the bus; row remap pending"
    assert refusal(LOWER, health=bad) == "kept"
    assert refusal(RAISE, health={}) == "health: the health of card c/n0/GPU-0 is not known"


def test_values_between_quanta_move_toward_the_present() -> None:
    result = guarded(group(change(A, 0.2, 0.309)))
    assert result.groups[0].changes[0].after == pytest.approx(0.30)
    assert [(d.guard, d.action) for d in result.drops] == [("quantum", "lessened")]
    nothing = guarded(group(change(A, 0.2, 0.204)))
    assert (nothing.groups, nothing.drops[0].guard) == ((), "quantum")


def test_floor_and_range() -> None:
    floors = {("c", "t", "b"): declared("t", "b", floor=0.45)}
    result = guarded(group(change(B, 0.6, 0.3)), declarations=floors)
    assert result.groups[0].changes[0].after == pytest.approx(0.45)
    assert result.drops[0].reason == "sm_quota_ratio of slice c/n0/GPU-0/b ends at 0.45 (its declared floor)"
    below = {("c", "t", "b"): declared("t", "b", floor=0.7)}
    assert refusal(change(B, 0.6, 0.3), declarations=below).startswith("limits: ")
    high = guarded(group(change(C, 0.5, 0.9)), knobs=(replace(SM, high=0.6), MEMORY))
    assert high.groups[0].changes[0].after == pytest.approx(0.6)


def test_step_limit_keeps_the_sum_of_a_move() -> None:
    move = group(change(A, 0.2, 0.6), change(B, 0.6, 0.2))
    result = guarded(move, settings=TunerSettings(step_limit=0.15))
    after = {c.target: c.after for c in result.groups[0].changes}
    assert after == {A: pytest.approx(0.35), B: pytest.approx(0.45)}
    assert result.drops[0].guard == "step limit"


def test_a_move_between_queues_stays_whole_and_balanced() -> None:
    evictions = {"g1": ()}
    green = queue_target("green")
    states = [*STATES, held(green, {"quota_gpu_count": 0.0}, workload="")]
    move = group(
        change(BLUE, 24, 9, "quota_gpu_count"),
        change(RED, 8, 16, "quota_gpu_count"),
        change(green, 0, 7, "quota_gpu_count"),
    )
    result = run_guards(plan(move), world_of(states, evictions=evictions), TunerSettings(step_limit=0.25))
    moved = {c.target: c.after - c.before for c in result.groups[0].changes}
    # a quarter of 32 cards may move: 8/15 of what was asked, in whole cards, and the donor gives what is taken
    assert moved == {RED: 4, green: 3, BLUE: -7}


def test_memory_never_falls_below_the_peak_with_margin() -> None:
    lower = change(B, 16 * GIB, 8 * GIB, "memory_quota_bytes")
    peaks = {B: 7 * GIB}
    assert refusal(lower, peak_memory_bytes=peaks) == "kept"  # 7.7 GiB with margin
    assert refusal(lower, peak_memory_bytes={B: 7.5 * GIB}) == (
        "memory: slice c/n0/GPU-0/b would get 8.00 GiB, its peak with margin is 8.25 GiB"
    )
    assert "the peak memory of" in refusal(lower, peak_memory_bytes={})


def test_dead_band() -> None:
    assert refusal(change(B, 0.6, 0.55)).startswith(
        "dead band: within the dead band of 10%: sm_quota_ratio 0.6 -> 0.55"
    )
    assert refusal(change(B, 0.6, 0.54)) == "kept"
    # turning back needs twice the band
    raised = past(change(B, 0.5, 0.6), minutes_ago=50)
    assert refusal(change(B, 0.6, 0.54), past=[raised]).startswith("dead band: ")
    assert refusal(change(B, 0.6, 0.48), past=[raised]) == "kept"
    long_ago = past(change(B, 0.5, 0.6), minutes_ago=61)
    assert refusal(change(B, 0.6, 0.54), past=[long_ago]) == "kept"
    # one change that matters carries the group
    assert refusal(change(B, 0.6, 0.58), change(A, 0.2, 0.3)) == "kept"


def test_capacity_lessens_to_what_is_free_and_drops_when_full() -> None:
    assert guarded(group(change(A, 0.2, 0.4))).drops == ()
    result = guarded(group(change(A, 0.2, 0.5)))  # 0.2 are free
    assert result.groups[0].changes[0].after == pytest.approx(0.4)
    assert result.drops[0].reason == "sm_quota_ratio of card c/n0/GPU-0 has room for 0.2, the group adds 0.3"
    full = {domain_of(A): {"sm_quota_ratio": 0.8}}
    assert refusal(RAISE, capacity=full).startswith("capacity: ")
    assert refusal(RAISE, capacity={}) == ("capacity: what the sm_quota_ratio of card c/n0/GPU-0 sum to is not known")
    assert guarded(group(change(A, 0.2, 0.5)), settings=TunerSettings(oversubscription=1.2)).drops == ()


def test_capacity_counts_on_no_other_group() -> None:
    give = group(LOWER, name="g1")
    take = group(change(A, 0.2, 0.6), name="g2")
    states = [s for s in STATES if s.target != C]
    world = world_of(states)
    # the same card: only one of them may be under way at all
    result = run_guards(plan(give, take), world, SETTINGS)
    assert [g.id for g in result.groups] == ["g1"]
    assert result.drops[-1].guard == "in flight"


def test_memory_that_running_work_still_uses_is_not_free() -> None:
    live = guarded(
        group(change(B, 16 * GIB, 8 * GIB, "memory_quota_bytes"), change(A, 8 * GIB, 16 * GIB, "memory_quota_bytes")),
        capacity={domain_of(A): {"memory_quota_bytes": 24 * GIB, "sm_quota_ratio": 1.0}},
    )
    assert live.drops == ()
    later = replace(MEMORY, effect=KnobEffect.NEW_WORK_ONLY)
    capacity = {domain_of(A): {"memory_quota_bytes": 24 * GIB, "sm_quota_ratio": 1.0}}
    move = (
        change(B, 16 * GIB, 8 * GIB, "memory_quota_bytes"),
        change(A, 8 * GIB, 16 * GIB, "memory_quota_bytes"),
    )
    assert refusal(*move, knobs=(SM, later), capacity=capacity).startswith("capacity: ")


def test_one_change_under_way_on_a_card_or_pool() -> None:
    busy = past(change(B, 0.7, 0.6), minutes_ago=5, state=ChangeState.INTENT)
    assert refusal(RAISE, past=[busy]) == "in flight: old is intent on card c/n0/GPU-0"
    assert refusal(change(C, 0.5, 0.7), past=[busy]) == "kept"
    watched = past(change(B, 0.7, 0.6), minutes_ago=5, state=ChangeState.VERIFYING)
    assert refusal(RAISE, past=[watched]).startswith("in flight: old is verifying")
    fast = guarded(group(RAISE, fast=True, kind="fast"), past=[watched])
    assert fast.drops == ()
    assert guarded(group(RAISE, fast=True, kind="fast"), past=[busy]).groups == ()


def test_cooldown_is_longer_after_failures() -> None:
    rested = past(change(A, 0.1, 0.2), minutes_ago=15)
    assert refusal(RAISE, past=[rested]) == "kept"
    recent = past(change(A, 0.1, 0.2), minutes_ago=14)
    assert refusal(RAISE, past=[recent]) == "cooldown: slice c/n0/GPU-0/a rests for 1 more minutes"
    assert guarded(group(RAISE, fast=True), past=[recent]).drops == ()
    failed = past(change(A, 0.1, 0.2), minutes_ago=29, state=ChangeState.NOT_APPLIED)
    assert refusal(RAISE, past=[failed]) == "cooldown: slice c/n0/GPU-0/a rests for 1 more minutes after 1 failures"
    assert guarded(group(RAISE, fast=True), past=[failed]).groups == ()
    old_failure = past(change(A, 0.1, 0.2), minutes_ago=185, state=ChangeState.NOT_APPLIED)
    assert refusal(RAISE, past=[old_failure]) == "kept"


def test_oscillation_quarantines() -> None:
    settings = TunerSettings(cooldown_seconds=0)
    swings = [
        past(change(A, 0.2, 0.4), minutes_ago=200, name="o1"),
        past(change(A, 0.4, 0.2), minutes_ago=150, name="o2"),
        past(change(A, 0.2, 0.4), minutes_ago=100, name="o3"),
        past(change(A, 0.4, 0.2), minutes_ago=70, name="o4"),
    ]
    assert refusal(change(A, 0.2, 0.4), past=swings, settings=settings) == (
        "oscillation: slice c/n0/GPU-0/a turned 4 times in 4 h: quarantined"
    )
    assert refusal(change(A, 0.2, 0.4), past=swings[1:], settings=settings) == "kept"


def test_going_straight_back_is_a_swing() -> None:
    there = past(change(A, 0.4, 0.2), minutes_ago=20)
    assert refusal(change(A, 0.2, 0.4), past=[there]) == (
        "oscillation: slice c/n0/GPU-0/a would go back to 0.4 within 30 min"
    )
    assert refusal(change(A, 0.2, 0.3), past=[there]) == "kept"
    assert guarded(group(change(A, 0.2, 0.4), fast=True), past=[there]).drops == ()


def test_what_was_rolled_back_is_not_tried_again_for_longer_and_longer() -> None:
    once = past(RAISE, minutes_ago=59, state=ChangeState.ROLLED_BACK)
    settings = TunerSettings(cooldown_seconds=0)
    assert refusal(RAISE, past=[once], settings=settings).startswith(
        "blacklist: raising sm_quota_ratio of slice c/n0/GPU-0/a was rolled back 1 time: not before 2026-03-02T00:01"
    )
    assert refusal(change(A, 0.2, 0.1), past=[once], settings=settings) == "kept"
    earlier = past(RAISE, minutes_ago=61, state=ChangeState.ROLLED_BACK)
    assert refusal(RAISE, past=[earlier], settings=settings) == "kept"
    twice = [past(RAISE, minutes_ago=600, state=ChangeState.ROLLED_BACK, name="o1"), earlier]
    assert refusal(RAISE, past=twice, settings=settings).startswith("blacklist: ")


def test_breaker_opens_after_three_failures_in_a_row() -> None:
    failures = [
        past(change(C, 0.4, 0.5), minutes_ago=m, state=ChangeState.NOT_APPLIED, name=f"o{m}") for m in (30, 20, 9)
    ]
    assert refusal(RAISE, past=failures) == (
        "breaker: the backend failed 3 times in a row: nothing is written for 1 min"
    )
    assert refusal(RAISE, past=failures[:2]) == "kept"
    rested = [
        past(change(C, 0.4, 0.5), minutes_ago=m, state=ChangeState.NOT_APPLIED, name=f"o{m}") for m in (30, 20, 10)
    ]
    assert refusal(RAISE, past=rested) == "kept"


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        ({"changes_per_hour": 2}, "budget of the fleet: 1 of 2 spent in the last hour, it needs 2"),
        ({"changes_per_hour": 0}, "budget of the fleet: 1 of 0 spent"),
        ({"changes_per_gpu_hour": 2}, "budget of card c/n0/GPU-0: 1 of 2 spent"),
        ({"changes_per_tenant_hour": 2}, "budget of tenant t: 1 of 2 spent"),
    ],
)
def test_change_budgets(budget: dict[str, int], words: str) -> None:
    spent = past(change(A, 0.1, 0.2), minutes_ago=59)
    settings = TunerSettings.model_validate(budget)
    assert words in refusal(RAISE, LOWER, past=[spent], settings=settings)
    if budget.get("changes_per_hour") != 0:
        forgotten = past(change(A, 0.1, 0.2), minutes_ago=60)
        assert refusal(RAISE, LOWER, past=[forgotten], settings=settings) == "kept"


def test_budgets_add_up_within_a_plan() -> None:
    settings = TunerSettings(changes_per_hour=1)
    result = guarded(group(RAISE), group(change(C, 0.5, 0.7), name="g2"), settings=settings)
    assert [g.id for g in result.groups] == ["g1"]
    assert result.drops[0].guard == "budget"


def test_restart_and_eviction_budgets() -> None:
    states = [held(A, {"sm_quota_ratio": 0.2}, kind="vgpu"), *STATES[1:]]
    spent = past(change(C, 0.4, 0.5), minutes_ago=30, restarts=1, evictions=1)
    world = world_of(states, past=[spent])
    result = run_guards(plan(group(RAISE)), world, TunerSettings(restarts_per_hour=1))
    assert result.drops[0].reason == "budget of restarts: 1 of 1 spent in the last hour, it needs 1"
    lower = change(BLUE, 24, 16, "quota_gpu_count")
    evictions = {"g1": [Eviction(BLUE, "job", 4, "at once")]}
    said = refusal(lower, past=[spent], evictions=evictions)
    assert said == "budget: budget of evictions: 1 of 4 spent in the last hour, it needs 4"


def test_waves_widen_as_a_kind_proves_itself() -> None:
    assert [wave_limit(n, 64, failed=False) for n in (0, 1, 4, 5)] == [1, 7, 7, 32]
    assert [wave_limit(n, 64, failed=True) for n in (0, 1, 5)] == [1, 1, 7]
    assert wave_limit(1, 4, failed=False) == 2
    first = guarded(group(RAISE), group(change(C, 0.5, 0.7), name="g2"), proven={})
    assert [g.id for g in first.groups] == ["g1"]
    assert first.drops[0].reason == "wave of 1: 1 changes of kind give are under way"
    flying = past(change(C, 0.4, 0.5), minutes_ago=5, state=ChangeState.VERIFYING)
    assert refusal(RAISE, proven={}, past=[flying]).startswith("wave: wave of 1")
    failed = past(change(C, 0.4, 0.5), minutes_ago=5, state=ChangeState.ROLLED_BACK)
    assert refusal(RAISE, proven={"give": 1}, past=[failed]) == "kept"
    assert guarded(group(RAISE, fast=True, kind="fast"), proven={}, past=[flying]).drops == ()


def test_a_drain_is_done_or_not_never_lessened() -> None:
    card = Target("card", "c", "n0", "GPU-0")
    recut = change(card, 1, 3, "mig_profile")
    states = [*STATES[:5], replace(STATES[5], facts={"tenant": "t", "workload": "a"})]
    world = world_of(states)
    result = run_guards(plan(group(recut)), world, SETTINGS)
    assert result.groups[0].changes == (recut,)
    tight = replace(world, knobs=[replace(k, high=2.0) if k.name == "mig_profile" else k for k in KNOBS])
    assert run_guards(plan(group(recut)), tight, SETTINGS).groups == ()


def test_nothing_to_guard() -> None:
    assert guarded().drops == ()


def test_world_with_defaults_holds_everything() -> None:
    bare = World(START, BackendState(START, {}), (), False, {}, {}, None)
    result = run_guards(plan(group(RAISE)), bare, SETTINGS)
    assert result.drops[0].guard == "impossible world"


def test_guards_once_more_before_the_write() -> None:
    fresh = BackendState(START + timedelta(seconds=15), {A: STATES[0]})
    whole = world_of(STATES)
    assert still_allowed(group(RAISE), whole, fresh, SETTINGS, simulated=True) is None
    moved = BackendState(fresh.read_at, {A: held(A, {"sm_quota_ratio": 0.25}, workload="a")})
    assert "it is 0.25 now" in (still_allowed(group(RAISE), whole, moved, SETTINGS, simulated=True) or "")
    real = replace(whole, harmless_backend=False)
    assert still_allowed(group(RAISE), real, fresh, SETTINGS, simulated=False) is None
    said = still_allowed(group(RAISE), real, fresh, SETTINGS, simulated=True)
    assert said == "simulation: a simulated plan only goes to the simulator or a dry run"
    # what would only be lessened is not written either
    less = still_allowed(group(change(A, 0.2, 0.5)), whole, fresh, SETTINGS, simulated=False)
    assert less is not None
    assert less.startswith("capacity: ")
