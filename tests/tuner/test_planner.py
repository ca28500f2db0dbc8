"""The planner: reserves, shares, queues, memory and the fast path, on small worlds with known answers."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.model import Knob, KnobEffect, Target
from tuner.planner import CardView, PlannerInput, QueueView, SliceView, make_plan, plan_fast
from tuner.planner.probes import NO_LIVE_SHARE
from tuner.planner.reserve import reserve_share, utilisation_limit
from tuner.settings import TunerSettings

NOW = datetime(2026, 1, 6, 1, 0, tzinfo=UTC)
GIB = 2.0**30
SETTINGS = TunerSettings()
RESTART = Knob(
    "sm_quota_ratio", "slice", "vgpu", "ratio", 0.05, 0.05, 1.0, KnobEffect.NEEDS_RESTART, restart_seconds=180.0
)
NEW_ONLY = Knob("sm_quota_ratio", "slice", "mps", "ratio", 0.01, 0.01, 1.0, KnobEffect.NEW_WORK_ONLY)
MEMORY = Knob("memory_quota_bytes", "slice", "vgpu", "bytes", GIB, GIB, 80 * GIB, KnobEffect.LIVE)
QUEUE = Knob("quota_gpu_count", "queue", None, "cards", 1.0, 0.0, 64.0, KnobEffect.LIVE, can_evict=True)
KNOBS = (RESTART, NEW_ONLY, MEMORY, QUEUE)


def slice_view(name: str, service_class: str = "online", **rest: object) -> SliceView:
    base: dict[str, object] = {
        "target": Target("slice", "c", "n", "GPU-1", name),
        "kind": "vgpu",
        "tenant": "t",
        "workload": name,
        "service_class": service_class,
        "protected": False,
        "floor": 0.0,
        "weight": 1.0,
        "quota": 0.5,
        "effective": 0.5,
        "used": 0.1,
        "need_lead": 0.1,
        "need_hold": 0.1,
        "utilisation_limit": 0.6,
        "kept": math.nan,
        "objective_share": 0.999,
        "memory_quota_bytes": 8 * GIB,
        "memory_peak_bytes": 4 * GIB,
        "memory_need_bytes": math.nan,
        "coverage": 1.0,
        "age_seconds": 0.0,
        "history_seconds": 86_400.0,
    }
    return SliceView(**{**base, **rest})  # type: ignore[arg-type]


def card(*slices: SliceView, sharing: str = "vgpu", memory: float = 48 * GIB) -> CardView:
    return CardView("c", "n", "GPU-1", sharing, memory, slices)


def world(*cards: CardView, queues: tuple[QueueView, ...] = ()) -> PlannerInput:
    return PlannerInput(NOW, NOW, cards, queues, KNOBS)


def test_reserve_is_the_need_with_margin_over_the_utilisation_limit() -> None:
    view = slice_view("a", need_lead=0.2, need_hold=0.24, used=0.05)
    assert reserve_share(view, SETTINGS, hold=False) == pytest.approx(0.2 * 1.15 / 0.6)
    assert reserve_share(view, SETTINGS, hold=True) == pytest.approx(0.24 * 1.15 / 0.6)


@pytest.mark.parametrize(
    "change", [{"protected": True}, {"need_lead": math.nan}, {"used": math.nan}, {"history_seconds": 3000.0}]
)
def test_whoever_is_protected_or_unknown_keeps_the_whole_quota(change: dict[str, object]) -> None:
    assert reserve_share(slice_view("a", **change), SETTINGS, hold=False) == 0.5


def test_reserve_never_exceeds_the_quota() -> None:
    assert reserve_share(slice_view("a", need_lead=0.9), SETTINGS, hold=False) == 0.5


def test_utilisation_limit_is_the_first_use_at_which_minutes_are_lost() -> None:
    seen = [0] * 20
    seen[4], seen[10], seen[16] = 20, 20, 20
    kept = list(seen)
    assert utilisation_limit(seen, kept) == 0.85
    kept[16] = 17
    assert utilisation_limit(seen, kept) == 0.8
    kept[4] = 0
    assert utilisation_limit(seen, kept) == 0.3
    assert utilisation_limit([0] * 20, [0] * 20) == 0.6
    assert utilisation_limit([2] * 20, [0] * 20) == 0.6  # two minutes prove nothing


def test_offline_takes_what_online_will_not_need() -> None:
    online, offline = slice_view("chat"), slice_view("train", "offline", quota=0.2, effective=0.2, used=0.2)
    (group,) = make_plan(world(card(online, offline)), SETTINGS).groups
    (change,) = group.changes
    assert group.kind == "give"
    assert (change.before, change.after) == (0.2, 0.8)  # 1 - 0.1 x 1.15 / 0.6 = 0.808, down to the quantum
    assert group.predicted_gain == pytest.approx(3600 * 0.6)


def test_offline_gives_way_before_the_morning() -> None:
    online = slice_view("chat", need_lead=0.24, need_hold=0.24)
    offline = slice_view("train", "offline", quota=0.8, effective=0.8)
    (group,) = make_plan(world(card(online, offline)), SETTINGS).groups
    assert group.kind == "reserve"
    assert group.changes[0].after == pytest.approx(0.5)  # 1 - 0.46 = 0.54, down to the quantum


@pytest.mark.parametrize(
    ("need", "after"),
    [
        (0.17, None),  # the card lacks 2.6 points of the trainer's 70: borne
        (0.18, 0.63),  # 4.5 points lack: one step that the dead band lets through
        (0.22, 0.57),  # what is needed is more than that step
    ],
)
def test_giving_way_is_one_step_that_is_worth_a_write(need: float, after: float | None) -> None:
    online = slice_view("chat", kind="mps", need_lead=need, need_hold=need)
    offline = slice_view("train", "offline", kind="mps", quota=0.7, effective=0.7)
    groups = make_plan(world(card(online, offline, sharing="mps")), SETTINGS).groups
    assert [c.after for g in groups for c in g.changes] == ([] if after is None else [pytest.approx(after)])


def test_between_lead_and_hold_nothing_moves() -> None:
    online = slice_view("chat", need_lead=0.1, need_hold=0.24)
    offline = slice_view("train", "offline", quota=0.7, effective=0.7)
    assert make_plan(world(card(online, offline)), SETTINGS).groups == ()


def test_a_restart_must_pay_for_itself() -> None:
    online = slice_view("chat", need_lead=0.1, need_hold=0.1)
    offline = slice_view("train", "offline", quota=0.75, effective=0.75)
    assert make_plan(world(card(online, offline)), SETTINGS).groups == ()  # 5 points x 2 h < 3 x 180 s x 0.75 x ...


def test_weights_and_floors_divide_the_rest() -> None:
    slices = (
        slice_view("a", "offline", quota=0.1, effective=0.1, weight=3.0),
        slice_view("b", "offline", quota=0.1, effective=0.1, weight=1.0, floor=0.4),
    )
    (group,) = make_plan(world(card(*slices)), SETTINGS).groups
    assert [c.after for c in group.changes] == pytest.approx([0.6, 0.4])


def test_an_aggressor_is_not_given_more_while_its_victim_misses_its_objective() -> None:
    online = slice_view("chat", victim_in=("tt101-1",), kept=0.9)
    offline = slice_view("train", "offline", quota=0.2, effective=0.2, suspect_in=("tt101-1",))
    assert make_plan(world(card(online, offline)), SETTINGS).groups == ()
    (group,) = make_plan(world(card(replace(online, kept=1.0), offline)), SETTINGS).groups
    assert (group.kind, group.findings) == ("give", ("tt101-1",))


def test_minutes_lost_to_a_neighbour_do_not_widen_the_reserve() -> None:
    hurt = slice_view("a", need_lead=0.1, utilisation_limit=0.3)
    assert reserve_share(hurt, SETTINGS, hold=False) == pytest.approx(0.1 * 1.15 / 0.3)
    assert reserve_share(replace(hurt, victim_in=("x",)), SETTINGS, hold=False) == pytest.approx(0.1 * 1.15 / 0.6)


def test_unhealthy_cards_and_kinds_without_a_knob_are_left_alone() -> None:
    pair = (slice_view("chat"), slice_view("train", "offline", quota=0.2))
    assert make_plan(world(replace(card(*pair), healthy=False)), SETTINGS).groups == ()
    assert make_plan(world(card(*pair, sharing="timeslice")), SETTINGS).groups == ()


@given(
    needs=st.lists(st.floats(0.0, 0.5), min_size=1, max_size=4),
    offline=st.lists(st.tuples(st.floats(0.05, 0.9), st.floats(0.1, 5.0)), min_size=1, max_size=3),
)
def test_reserves_and_offline_shares_never_exceed_the_card_after_a_raise(
    needs: list[float], offline: list[tuple[float, float]]
) -> None:
    online = [slice_view(f"o{i}", need_lead=n, need_hold=n, used=n, quota=0.25) for i, n in enumerate(needs)]
    batch = [slice_view(f"b{i}", "offline", quota=q, effective=q, weight=w) for i, (q, w) in enumerate(offline)]
    plan = make_plan(world(card(*online, *batch, sharing="mps")), SETTINGS)
    reserved = sum(reserve_share(s, SETTINGS, hold=True) for s in online)
    for group in plan.groups:
        after = {c.target: c.after for c in group.changes}
        total = sum(after.get(s.target, s.quota) for s in batch)
        assert total <= max(1.0 - reserved, 0.0) + 0.01 * len(batch) + 1e-9  # each keeps at least one quantum


def test_queue_is_raised_to_what_stands_free() -> None:
    queues = (
        QueueView(Target("queue", "c", name="default/a"), "a", quota=2, allocated=2, pending=5, free=3, weight=2),
        QueueView(Target("queue", "c", name="default/b"), "b", quota=2, allocated=1, pending=4, free=3, weight=1),
    )
    (group,) = make_plan(world(queues=queues), SETTINGS).groups
    assert (group.changes[0].target.name, group.changes[0].before, group.changes[0].after) == ("default/a", 2, 5)


def test_idle_quota_of_another_queue_is_moved_where_the_pool_is_full() -> None:
    a = QueueView(Target("queue", "c", name="default/a"), "a", quota=2, allocated=2, pending=3, free=3, capacity=8)
    b = QueueView(Target("queue", "c", name="default/b"), "b", quota=6, allocated=2, pending=2, free=3, capacity=8)
    (group,) = make_plan(world(queues=(a, b)), SETTINGS).groups
    # All that is free goes to the longer queue: what the other one waits for could not start anyway.
    assert [(c.target.name, c.before, c.after) for c in group.changes] == [("default/b", 6, 3), ("default/a", 2, 5)]
    assert sum(c.after - c.before for c in group.changes) == 0
    used = replace(b, allocated=6.0)
    assert make_plan(world(queues=(a, used)), SETTINGS).groups == ()


def test_queue_without_waiting_work_or_with_room_is_left_alone() -> None:
    target = Target("queue", "c", name="default/a")
    for queue in (
        QueueView(target, "a", quota=2, allocated=2, pending=0, free=3),
        QueueView(target, "a", quota=1, allocated=2, pending=0, free=3),
        QueueView(target, "a", quota=2, allocated=2, pending=3, free=0),
        QueueView(target, "a", quota=8, allocated=2, pending=3, free=3),
        QueueView(target, "a", quota=-1, allocated=2, pending=3, free=3),
    ):
        assert make_plan(world(queues=(queue,)), SETTINGS).groups == ()


def test_memory_grows_before_it_runs_out_within_what_is_free() -> None:
    view = slice_view("chat", memory_quota_bytes=8 * GIB, memory_need_bytes=9 * GIB)
    plan = make_plan(world(card(view, memory=10 * GIB)), SETTINGS)
    assert [(g.kind, g.changes[0].after) for g in plan.groups] == [("right_size", pytest.approx(9 * GIB))]
    assert make_plan(world(card(view, memory=8 * GIB)), SETTINGS).groups == ()


def test_fast_path_takes_from_offline_neighbours_when_an_objective_is_missed() -> None:
    online = slice_view("chat", kept=0.98, used=0.45)
    offline = slice_view("train", "offline", quota=0.5)
    (group,) = plan_fast(world(card(online, offline)), SETTINGS).groups
    assert not group.fast  # nobody is raised: no fast lane
    assert [(c.workload, c.after) for c in group.changes] == [("train", pytest.approx(0.4))]
    live = replace(RESTART, effect=KnobEffect.LIVE, restart_seconds=0.0)
    (group,) = plan_fast(replace(world(card(online, offline)), knobs=(live,)), SETTINGS).groups
    assert group.fast
    assert [(c.workload, c.after) for c in group.changes] == [
        ("train", pytest.approx(0.4)),
        ("chat", pytest.approx(0.6)),
    ]


def test_fast_path_is_silent_while_promises_are_kept_or_nothing_reaches_running_work() -> None:
    offline = slice_view("train", "offline")
    assert plan_fast(world(card(slice_view("chat", kept=1.0), offline)), SETTINGS).groups == ()
    missed = slice_view("chat", kept=0.9)
    assert plan_fast(world(card(missed, offline, sharing="mps")), SETTINGS).groups == ()


def test_confidence_falls_with_coverage_and_youth_and_by_its_record() -> None:
    offline = slice_view("train", "offline", quota=0.2)
    (old,) = make_plan(world(card(slice_view("chat"), offline)), SETTINGS).groups
    assert (old.confidence, old.coverage) == (pytest.approx(0.9), 1.0)
    (young,) = make_plan(world(card(slice_view("chat", history_seconds=43_200.0), offline)), SETTINGS).groups
    assert young.confidence == pytest.approx(0.9 * 0.875)
    (thin,) = make_plan(world(card(slice_view("chat", coverage=0.8), offline)), SETTINGS).groups
    assert (thin.confidence, thin.coverage) == (pytest.approx(0.72), 0.8)
    blamed = replace(world(card(slice_view("chat"), offline)), confidence={"give": 0.5})
    assert make_plan(blamed, SETTINGS).groups[0].confidence == pytest.approx(0.45)
    assert all(g.risk for g in (old, young, thin))


def test_open_pairs_without_a_share_that_acts_at_once_are_told() -> None:
    plain = world(card(slice_view("a"), slice_view("b", "offline")))
    assert make_plan(plain, SETTINGS).notes == ()
    (note,) = make_plan(replace(plain, open_pairs=("vgpu", "mps", "mig")), SETTINGS).notes
    told = "mig: none can be set; mps: acts on new work only; vgpu: acts at a restart"
    assert note == f"3 open pairs of TT101 cannot be tried out: {NO_LIVE_SHARE} ({told})"
    live = replace(plain, knobs=(replace(NEW_ONLY, effect=KnobEffect.LIVE), RESTART))
    assert make_plan(replace(live, open_pairs=("mps", "mps")), SETTINGS).notes == ()
    (note,) = make_plan(replace(live, open_pairs=("mps", "vgpu")), SETTINGS).notes
    assert note == f"1 open pair of TT101 cannot be tried out: {NO_LIVE_SHARE} (vgpu: acts at a restart)"
    assert make_plan(replace(plain, open_pairs=("mps",)), replace_probes(0)).notes == ()


def replace_probes(pairs: int) -> TunerSettings:
    return SETTINGS.model_copy(update={"probe_pairs": pairs})


def test_the_same_world_gives_the_same_plan() -> None:
    view = world(card(slice_view("chat"), slice_view("train", "offline", quota=0.2)))
    assert make_plan(view, SETTINGS) == make_plan(view, SETTINGS)
