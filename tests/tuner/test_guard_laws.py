"""Laws of the chain, over random worlds and plans."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tuner.fakes import START, change, declared, group, held, plan, slice_target, world_of
from tuner.guards import GUARDS, Facts, Ruling, World, domain_of, in_order, lessen, run_guards
from tuner.guards.chain import run_chain
from tuner.killswitch import Pause
from tuner.model import Change, Freeze, Group, Plan, Target, TargetState
from tuner.record import ChangeState, GroupRecord
from tuner.settings import TunerSettings

SHARE = "sm_quota_ratio"
LOOSE = TunerSettings(
    cooldown_seconds=0, changes_per_gpu_hour=1000, changes_per_hour=1000, changes_per_tenant_hour=1000, dead_band=0
)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[World, Plan]:
    """Three cards with up to four slices each, floors, and up to eight groups over them."""
    states: list[TargetState] = []
    promises = {}
    for gpu in range(3):
        shares = draw(st.lists(st.integers(0, 40), min_size=1, max_size=4))
        for i, share in enumerate(shares):
            target = slice_target(f"s{i}", f"GPU-{gpu}")
            kind = draw(st.sampled_from(["mps", "vgpu"]))
            step = 0.05 if kind == "vgpu" else 0.01
            states.append(
                held(target, {"sm_quota_ratio": round(share / 100 / step) * step}, kind=kind, workload=f"w{gpu}{i}")
            )
            floor = draw(st.sampled_from([0.0, 0.1, 0.3]))
            promises["c", "t", f"w{gpu}{i}"] = declared("t", f"w{gpu}{i}", floor=floor)
    groups = []
    for n in range(draw(st.integers(1, 8))):
        chosen = draw(st.lists(st.sampled_from(states), min_size=1, max_size=4, unique_by=lambda s: s.target))
        changes = [
            change(
                s.target, s.values["sm_quota_ratio"], draw(st.integers(-10, 130)) / 100, workload=s.facts["workload"]
            )
            for s in chosen
        ]
        groups.append(group(*changes, name=f"g{n}", kind=draw(st.sampled_from(["give", "reserve"]))))
    world = world_of(states, declarations=promises)
    return world, plan(*groups)


def sums_of(values: Mapping[Target, float]) -> dict[Target, float]:
    sums: dict[Target, float] = {}
    for target, value in values.items():
        sums[domain_of(target)] = sums.get(domain_of(target), 0.0) + value
    return sums


def apply_in(order: Sequence[Change], world: World) -> Iterator[dict[Target, float]]:
    """Give what each card's shares sum to after every single write."""
    values = {t: s.values[SHARE] for t, s in world.state.targets.items()}
    for step in order:
        values[step.target] = step.after
        yield sums_of(values)


@settings(max_examples=80, deadline=None)
@given(worlds(), st.randoms(use_true_random=False))
def test_sums_stay_within_capacity_on_every_prefix_of_every_interleaving(
    case: tuple[World, Plan], chance: random.Random
) -> None:
    world, wanted = case
    result = run_guards(wanted, world, LOOSE)
    start = sums_of({t: s.values[SHARE] for t, s in world.state.targets.items()})
    limit = {domain: max(1.0, total) + 1e-6 for domain, total in start.items()}
    queues = [list(in_order(g.changes)) for g in result.groups if chance.random() < 0.8]  # some never succeed
    order: list[Change] = []
    while any(queues):
        queue = chance.choice([q for q in queues if q])
        order.append(queue.pop(0))
    for sums in apply_in(order, world):
        assert all(total <= limit[domain] for domain, total in sums.items())


@settings(max_examples=80, deadline=None)
@given(worlds())
def test_guards_only_lessen_and_floors_hold(case: tuple[World, Plan]) -> None:
    world, wanted = case
    asked = {(g.id, c.target): c for g in wanted.groups for c in g.changes}
    result = run_guards(wanted, world, LOOSE)
    dropped = [d.group_id for d in result.drops if d.action == "dropped"]
    assert len(set(dropped)) == len(dropped)
    assert {g.id for g in result.groups} | set(dropped) == {g.id for g in wanted.groups}
    facts = Facts(world, wanted)
    for kept in result.groups:
        for step in kept.changes:
            was = asked[kept.id, step.target]
            low, high = min(was.before, was.after), max(was.before, was.after)
            assert low - 1e-9 <= step.after <= high + 1e-9
            knob = facts.knob(step)
            assert knob is not None
            assert (step.after - step.before) / knob.quantum == pytest.approx(
                round((step.after - step.before) / knob.quantum), abs=1e-5
            )
            promise = world.declarations["c", "t", step.workload].declaration
            assert not step.is_decrease or step.after >= promise.floor - 1e-9
    for drop in result.drops:
        assert drop.guard
        assert drop.reason
    # what is left is left alone by a second run
    again = run_guards(replace(wanted, groups=result.groups), world, LOOSE)
    assert again.groups == result.groups
    assert again.drops == ()


@settings(max_examples=30, deadline=None)
@given(worlds(), st.sampled_from([Freeze.NEW, Freeze.ALL]))
def test_nothing_passes_the_kill_switch(case: tuple[World, Plan], level: Freeze) -> None:
    world, wanted = case
    paused = replace(world, pause=Pause(level, "ann", "drill"))
    assert run_guards(wanted, paused, LOOSE).groups == ()


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=2, max_size=5), st.floats(0, 1))
def test_lessening_a_move_keeps_its_sum(moves: list[tuple[int, int]], factor: float) -> None:
    values = [m[0] / 100 for m in moves]
    wanted = [m[1] / 100 for m in moves]
    wanted[-1] = values[-1] - sum(w - v for v, w in zip(values[:-1], wanted[:-1], strict=True))  # a move
    targets = [slice_target(f"s{i}") for i in range(len(moves))]
    world = world_of([held(t, {"sm_quota_ratio": v}) for t, v in zip(targets, values, strict=True)])
    changes = [change(t, v, w) for t, v, w in zip(targets, values, wanted, strict=True) if v != w]
    asked = group(*changes)
    less = lessen(asked, Facts(world, plan(asked)), factor)
    if less is not None:
        assert sum(c.after - c.before for c in less.changes) == pytest.approx(0.0, abs=1e-9)
        for c in less.changes:
            was = next(x for x in changes if x.target == c.target)
            assert abs(c.after - c.before) <= abs(was.after - was.before) * factor + 1e-6 + 0.01 * 1e-3


def test_a_guard_that_lessens_for_ever_ends() -> None:
    rounds = itertools.count()

    def nagging(groups: Sequence[Group], facts: Facts, _settings: TunerSettings) -> Iterator[Ruling]:
        next(rounds)
        for g in groups:
            yield Ruling(g.id, "less", lessen(g, facts, 0.999))

    target = slice_target("a")
    world = world_of([held(target, {"sm_quota_ratio": 0.2})])
    result = run_chain(plan(group(change(target, 0.2, 0.8))), world, LOOSE, [("nagging", nagging)])
    assert result.groups == ()
    assert next(rounds) <= 62  # one quantum a turn, 60 quanta


@pytest.mark.parametrize(
    "grow",
    [
        lambda g: replace(g, changes=(replace(g.changes[0], after=0.9),)),
        lambda g: replace(g, changes=(replace(g.changes[0], after=0.1),)),
        lambda g: replace(g, changes=(replace(g.changes[0], before=0.3),)),
        lambda g: replace(g, changes=(*g.changes, change(slice_target("b"), 0.1, 0.2))),
        lambda g: replace(g, why="another"),
    ],
)
def test_a_guard_that_asks_for_more_loses_the_group(grow: object) -> None:
    def greedy(groups: Sequence[Group], _facts: Facts, _settings: TunerSettings) -> list[Ruling]:
        return [Ruling(g.id, "more", grow(g)) for g in groups]  # type: ignore[operator]

    target = slice_target("a")
    world = world_of([held(target, {"sm_quota_ratio": 0.2})])
    result = run_chain(plan(group(change(target, 0.2, 0.8))), world, LOOSE, [("greedy", greedy)])
    assert result.groups == ()
    assert result.drops[0].reason == "the guard asked for more than the plan did"


def test_a_flapping_planner_makes_a_bounded_number_of_changes_an_hour() -> None:
    """Whatever the planner asks for, each minute, a card changes no more often than its budget says."""
    target = slice_target("a")
    strict = TunerSettings(changes_per_gpu_hour=6, cooldown_seconds=60)
    value, done = 0.2, []
    records: list[GroupRecord] = []
    for minute in range(360):
        now = START + timedelta(minutes=minute)
        after = 0.6 if value < 0.4 else 0.2
        wanted = group(change(target, value, after), name=f"g{minute}", fast=bool(minute % 2))
        world = world_of([held(target, {"sm_quota_ratio": value})], now, past=records)
        result = run_guards(plan(wanted, now=now, name=f"p{minute}"), world, strict)
        if result.groups:
            value = result.groups[0].changes[0].after
            done.append(now)
            records.append(
                GroupRecord(
                    result.groups[0], "p", ChangeState.CONFIRMED, "go", "", now, now, intent_at=now, settled_at=now
                )
            )
    for at in done:
        assert sum(at <= other < at + timedelta(hours=1) for other in done) <= 6
    assert len(done) >= 6


@settings(max_examples=80, deadline=None)
@given(worlds(), st.randoms(use_true_random=False))
def test_capacity_holds_even_where_many_groups_share_a_card(case: tuple[World, Plan], chance: random.Random) -> None:
    """The capacity guard alone, without the guard that allows one group a card."""
    world, wanted = case
    links = [(name, guard) for name, guard in GUARDS if name in {"scope", "quantum", "limits", "capacity"}]
    result = run_chain(wanted, world, LOOSE, links)
    start = sums_of({t: s.values[SHARE] for t, s in world.state.targets.items()})
    moves = [[(c.target, c.after - c.before) for c in in_order(g.changes)] for g in result.groups]
    queues = [m for m in moves if chance.random() < 0.8]
    while any(queues):
        target, delta = chance.choice([q for q in queues if q]).pop(0)
        start[domain_of(target)] += delta
        before = sums_of({t: s.values[SHARE] for t, s in world.state.targets.items()})
        assert start[domain_of(target)] <= max(1.0, before[domain_of(target)]) + 1e-6
