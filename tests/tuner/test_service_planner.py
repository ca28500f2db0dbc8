"""Edges of the planner: memory by peak alone, floors that do not fit, and what a group rests on."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.tuner.fakes import CORES, MEMORY, QUEUE, SM, START, slice_target
from tests.tuner.service_rows import GIB
from tuner.model import Change, Knob, Target
from tuner.planner import CardView, PlannerInput, QueueView, SliceView, make_plan, plan_fast
from tuner.settings import TunerSettings

SETTINGS = TunerSettings()
COARSE = replace(MEMORY, quantum=GIB, low=GIB)


def view(name: str, service_class: str = "offline", **rest: object) -> SliceView:
    base: dict[str, object] = {
        "target": slice_target(name),
        "kind": "vgpu",
        "tenant": "t",
        "workload": name,
        "service_class": service_class,
        "protected": False,
        "floor": 0.0,
        "weight": 1.0,
        "quota": 0.3,
        "effective": 0.3,
        "used": 0.1,
        "need_lead": 0.1,
        "need_hold": 0.1,
        "utilisation_limit": 0.5,
        "kept": math.nan,
        "objective_share": math.nan,
        "memory_quota_bytes": math.nan,
        "memory_peak_bytes": math.nan,
        "memory_need_bytes": math.nan,
        "coverage": 1.0,
        "age_seconds": 0.0,
        "history_seconds": 86_400.0,
    }
    return SliceView(**{**base, **rest})  # type: ignore[arg-type]  # fields of SliceView


def world(*slices: SliceView, knobs: tuple[Knob, ...] = (CORES,), memory: float = math.nan) -> PlannerInput:
    return PlannerInput(START, START, (CardView("c", "n0", "GPU-0", "vgpu", memory, slices),), (), knobs)


def memory_changes(*slices: SliceView, memory: float) -> dict[str, float]:
    plan = make_plan(world(*slices, knobs=(COARSE,), memory=memory), SETTINGS)
    return {c.workload: c.after for g in plan.groups for c in g.changes}


def test_memory_grows_by_the_peak_where_nothing_is_forecast() -> None:
    tight = view("a", memory_quota_bytes=10 * GIB, memory_peak_bytes=9.9 * GIB)  # 10.89 with the margin
    assert memory_changes(tight, memory=48 * GIB) == {}  # less than a quantum
    tight = view("a", memory_quota_bytes=10 * GIB, memory_peak_bytes=11 * GIB)
    assert memory_changes(tight, memory=48 * GIB) == {"a": 12 * GIB}


def test_memory_takes_the_larger_of_forecast_and_peak() -> None:
    for need, peak in ((15.0, 4.0), (4.0, 15.0)):
        slot = view("a", memory_quota_bytes=10 * GIB, memory_need_bytes=need * GIB, memory_peak_bytes=peak * GIB)
        assert memory_changes(slot, memory=48 * GIB) == {"a": 16 * GIB}


def test_the_last_free_quantum_is_given_once() -> None:
    slices = [view(n, memory_quota_bytes=8 * GIB, memory_need_bytes=20 * GIB) for n in ("a", "b")]
    assert memory_changes(*slices, memory=17 * GIB) == {"a": 9 * GIB}
    assert memory_changes(*slices, memory=math.nan) == {}


def test_memory_beside_a_slice_without_a_known_quota_is_not_handed_out() -> None:
    tight = view("a", memory_quota_bytes=8 * GIB, memory_need_bytes=20 * GIB)
    unlimited = view("b", memory_peak_bytes=2 * GIB)
    assert memory_changes(tight, unlimited, memory=48 * GIB) == {}
    assert memory_changes(tight, replace(unlimited, memory_quota_bytes=4 * GIB), memory=48 * GIB) == {"a": 22 * GIB}


def test_beside_a_share_that_nobody_knows_nothing_is_raised() -> None:
    small = view("a", quota=0.1)
    unknown = view("b", protected=True, quota=math.nan, effective=math.nan)
    assert make_plan(world(small, unknown), SETTINGS).groups == ()
    (group,) = make_plan(world(small, replace(unknown, effective=0.4)), SETTINGS).groups
    assert {c.workload: c.after for c in group.changes} == {"a": pytest.approx(0.6)}
    alone = world(small)
    closed = replace(alone, cards=(replace(alone.cards[0], open_share=math.nan),))
    assert make_plan(closed, SETTINGS).groups == ()


def test_an_unknown_share_does_not_keep_offline_work_from_giving_way() -> None:
    online = view("chat", "online", quota=0.7, protected=True)
    unknown = view("b", protected=True, quota=math.nan, effective=math.nan)
    (group,) = make_plan(world(online, unknown, view("a", quota=0.5)), SETTINGS).groups
    assert group.kind == "reserve"
    assert [c.after for c in group.changes] == pytest.approx([0.3])


def queue(pool: str, tenant: str, *, cluster: str = "c", **cards: float) -> QueueView:
    return QueueView(Target("queue", cluster, name=f"{pool}/{tenant}"), tenant, **cards)


def test_each_pool_keeps_its_own_cards_and_quotas() -> None:
    queues = (
        # All quota of the pool is handed out and in use: only the other pool has something idle.
        queue("east", "red", quota=4, allocated=4, pending=2, free=2, capacity=4),
        queue("west", "blue", quota=8, allocated=1, pending=0, free=7, capacity=8),
        queue("west", "green", quota=0, allocated=0, pending=3, free=7, capacity=8),
        queue("west", "gold", cluster="d", quota=1, allocated=1, pending=3, free=3, capacity=4),
    )
    plan = make_plan(PlannerInput(START, START, (), queues, (QUEUE,)), SETTINGS)
    found = {str(g.changes[-1].target): [(c.target.name, c.before, c.after) for c in g.changes] for g in plan.groups}
    assert found == {
        "queue c/west/green": [("west/blue", 8, 5), ("west/green", 0, 3)],
        "queue d/west/gold": [("west/gold", 1, 4)],
    }


def test_memory_stays_where_the_backend_can_hold_no_more() -> None:
    full = view("a", memory_quota_bytes=MEMORY.high, memory_need_bytes=MEMORY.high)
    assert memory_changes(full, memory=2 * MEMORY.high) == {}


def test_floors_come_first_even_where_they_do_not_all_fit() -> None:
    online = view("chat", "online", quota=0.8, protected=True)
    slices = [view(n, quota=q, floor=f) for n, q, f in (("a", 0.4, 0.2), ("b", 0.3, 0.15))]
    (group,) = make_plan(world(online, *slices), SETTINGS).groups
    assert {c.workload: c.after for c in group.changes} == {"a": pytest.approx(0.2), "b": pytest.approx(0.15)}


def test_a_group_names_the_findings_that_speak_of_what_it_changes() -> None:
    online = view("chat", "online", quota=0.9, protected=True, victim_in=("tt101-1",))
    suspect = view("a", suspect_in=("tt101-1",))
    (group,) = make_plan(world(online, suspect), SETTINGS).groups
    assert (group.kind, group.findings) == ("reserve", ("tt101-1",))
    (group,) = make_plan(world(online, view("b", suspect_in=())), SETTINGS).groups
    assert group.findings == ()


def test_advice_is_believed_by_the_record_of_its_kind() -> None:
    online, train = view("chat", "online", quota=0.3, protected=True), view("train")
    base = world(online, train)
    (plain,) = make_plan(base, SETTINGS).groups
    (doubted,) = make_plan(replace(base, confidence={"give": 0.5, "reserve": 0.1}), SETTINGS).groups
    assert (plain.confidence, doubted.confidence) == (pytest.approx(0.9), pytest.approx(0.45))


def test_the_fast_path_stops_at_the_floor_and_leaves_protected_work() -> None:
    missing = view("chat", "online", kept=0.5, objective_share=0.9, used=0.0)
    slices = (
        view("low", quota=0.2, floor=0.15),
        view("at-floor", quota=0.2, floor=0.2),
        view("kept", quota=0.4, protected=True),
        view("none", quota=math.nan),
    )
    (group,) = plan_fast(world(missing, *slices, knobs=(SM,)), SETTINGS).groups
    assert [(c.workload, c.after) for c in group.changes] == [("low", pytest.approx(0.15))]
    assert plan_fast(world(missing, *slices[1:], knobs=(SM,)), SETTINGS).groups == ()


def test_a_service_gets_no_more_at_once_than_was_freed_and_may_be_moved() -> None:
    missing = view("chat", "online", quota=0.2, kept=0.5, objective_share=0.9, used=0.19)
    slices = [view(n, quota=0.25) for n in ("a", "b", "c")]
    (group,) = plan_fast(world(missing, *slices, knobs=(SM,)), TunerSettings(step_limit=0.2)).groups
    raised: Change = group.changes[-1]
    assert (raised.workload, raised.after) == ("chat", pytest.approx(0.4))
    assert sum(c.before - c.after for c in group.changes[:-1]) == pytest.approx(0.3)
