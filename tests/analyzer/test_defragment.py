"""Plans of moves: worked examples, exhaustive search on small instances, laws of every plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.defragment.bound import relax
from analyzer.defragment.exact import best_demand, fewest_moves
from analyzer.defragment.free_cards import free_cards
from analyzer.defragment.model import (
    UNLIMITED,
    WHOLE,
    Card,
    Cost,
    Fleet,
    Kind,
    Move,
    Node,
    Placed,
    Plan,
    Pod,
    Request,
    Shape,
    State,
)
from analyzer.defragment.order import in_order
from analyzer.defragment.planner import place_demand
from analyzer.defragment.room import make_room
from analyzer.mig import Instance, boards, layout_faults
from benchmarks.defragment_figures import exhaustive_demand, exhaustive_moves, small_instance


def fleet_of(*cards: Sequence[int], cpu: int = UNLIMITED, fixed: Sequence[int] = ()) -> Fleet:
    """One node; each card given by the shares of its pods, which want a core each."""
    pods = [(card, share) for card, shares in enumerate(cards) for share in shares]
    return Fleet(
        (Node("n", cpu),),
        tuple(Card(0, f"c{n}") for n in range(len(cards))),
        tuple(Pod(f"p{n}", 0, (c,), Shape(1, s, 0, 1000), fixed=n in fixed) for n, (c, s) in enumerate(pods)),
    )


def check(fleet: Fleet, demand: Sequence[Request], plan: Plan, moves: int) -> None:
    """Carry the plan out, step by step, and see that nothing is ever over its capacity."""
    state = State(fleet)
    assert len(plan.moves) <= moves
    assert len({move.pod for move in plan.moves}) == len(plan.moves)
    for number, move in enumerate(plan.moves):
        pod = fleet.pods[move.pod]
        assert not pod.fixed
        assert pod.shape.allows(fleet.nodes[move.node].type)
        if move.kind is Kind.RESIZE:
            state.share[pod.cards[0]] += pod.shape.share - move.share
            continue
        state.add(pod.shape, pod.node, pod.cards, -1)
        state.add(pod.shape, move.node, move.cards)
        if number < len(plan.moves) - plan.together:
            _within(state)
    counts = [0] * len(demand)
    for place in plan.placements:
        shape = demand[place.request].shape
        counts[place.request] += 1
        assert len(set(place.cards)) == shape.cards
        assert all(fleet.cards[card].node == place.node for card in place.cards)
        state.add(shape, place.node, place.cards)
    _within(state)
    assert all(count <= request.count for count, request in zip(counts, demand, strict=True))
    assert plan.placed == pytest.approx(sum(demand[p.request].shape.amount for p in plan.placements))
    assert plan.before - 1e-9 <= plan.placed <= plan.bound + 1e-9


def _within(state: State) -> None:
    assert min(state.share) >= 0
    assert min(state.cpu) >= 0
    assert min(state.memory) >= 0


def test_one_move_frees_a_card() -> None:
    fleet = fleet_of([300], [600])
    plan = place_demand(fleet, [Request(Shape(1, WHOLE))], 1)
    assert (plan.before, plan.placed, plan.exact) == (0.0, 1.0, True)
    assert plan.moves in {(Move(Kind.MIGRATE, 1, 0, (0,)),), (Move(Kind.MIGRATE, 0, 0, (1,)),)}
    assert place_demand(fleet, [Request(Shape(1, WHOLE))], 0).placed == 0.0
    assert make_room(fleet, Shape(1, WHOLE)) is not None


def test_a_protected_pod_never_moves() -> None:
    fleet = fleet_of([300], [600], fixed=(0,))
    plan = make_room(fleet, Shape(1, WHOLE))
    assert plan is not None
    assert [move.pod for move in plan.moves] == [1]
    assert make_room(fleet_of([300], [600], fixed=(0, 1)), Shape(1, WHOLE)) is None


def test_of_equally_few_moves_the_cheaper_is_taken() -> None:
    fleet = fleet_of([300], [600])
    dear = replace(fleet.pods[0], cost=Cost(moved_gib=40.0, restarts=1, lost_seconds=7200.0))
    plan = make_room(replace(fleet, pods=(dear, fleet.pods[1])), Shape(1, WHOLE))
    assert plan is not None
    assert [move.pod for move in plan.moves] == [1]
    unknown = replace(fleet.pods[1], cost=Cost(lost_seconds=math.nan))  # how long ago, nobody knows: as an hour
    plan = make_room(replace(fleet, pods=(fleet.pods[0], unknown)), Shape())
    assert plan is not None
    assert [move.pod for move in plan.moves] == [0]


def test_what_is_granted_too_much_is_resized_in_its_place() -> None:
    fleet = fleet_of([700])
    fleet = replace(fleet, pods=(replace(fleet.pods[0], smaller_share=300),))
    plan = make_room(fleet, Shape(1, 600))
    assert plan is not None
    assert plan.moves == (Move(Kind.RESIZE, 0, 0, (0,), -1, 300),)
    assert plan.cost == Cost()


def test_cpu_stands_in_the_way_too() -> None:
    pods = (Pod("batch", 0, (), Shape(0, 0, 0, 30_000)),)
    fleet = Fleet((Node("a", 2000), Node("b", 40_000)), (Card(0, "a0"),), pods)
    plan = make_room(fleet, Shape(1, WHOLE, 0, 8000))
    assert plan is not None
    assert plan.moves == (Move(Kind.MIGRATE, 0, 1, ()),)
    tight = replace(fleet, nodes=(fleet.nodes[0], Node("b", 10_000)))
    assert make_room(tight, Shape(1, WHOLE, 0, 8000)) is None


def test_those_who_hurt_each_other_do_not_meet() -> None:
    fleet = fleet_of([300], [600])
    named = replace(fleet, pods=tuple(replace(pod, tenant="t", workload=pod.name) for pod in fleet.pods))
    enemies = replace(named, apart=frozenset({frozenset({("t", "p0"), ("t", "p1")})}))
    assert make_room(named, Shape()) is not None
    assert make_room(enemies, Shape()) is None
    together = replace(enemies, pods=(named.pods[0], replace(named.pods[1], cards=(0,))))
    assert make_room(together, Shape(1, 500)) is not None  # that they share a card already is no plan's fault


def test_nothing_comes_to_a_card_that_is_closed_or_over_full() -> None:
    fleet = fleet_of([300], [])
    closed = replace(fleet, cards=(fleet.cards[0], replace(fleet.cards[1], closed=True)))
    assert make_room(closed, Shape()) is None
    assert place_demand(closed, [Request(Shape(), 2)], 1).placed == 0.0
    over = fleet_of([800, 500], [700])
    plan = place_demand(over, [Request(Shape(1, 300))], 0)
    assert plan.placements == (Placed(0, 0, (1,)),)
    assert free_cards(closed).moves == ()


def test_memory_and_types_bind() -> None:
    cards = (Card(0, "a", 80), Card(1, "b", 40))
    pods = (Pod("p", 0, (0,), Shape(1, 300, 50)),)
    fleet = Fleet((Node("a", type="A100"), Node("b", type="L4")), cards, pods)
    assert make_room(fleet, Shape(1, 500, 40)) is not None  # on b, without a move
    assert make_room(fleet, Shape(1, 500, 40, types=frozenset({"A100"}))) is None  # p's memory fits on no other card
    roomy = replace(fleet, cards=(cards[0], Card(1, "b", 60)))
    plan = make_room(roomy, Shape(1, 500, 40, types=frozenset({"A100"})))
    assert plan is not None
    assert len(plan.moves) == 1
    bound_to = replace(pods[0], shape=replace(pods[0].shape, types=frozenset({"A100"})))
    assert make_room(replace(roomy, pods=(bound_to,)), Shape(1, 500, 40, types=frozenset({"A100"}))) is None


def mig(*layout: Sequence[tuple[str, int]]) -> Fleet:
    board = "A100-40GB"
    pods = [
        Pod(f"{card}-{start}", 0, (card,), Shape(1, 0, profile=profile), start=start)
        for card, instances in enumerate(layout)
        for profile, start in instances
    ]
    return Fleet((Node("n"),), tuple(Card(0, f"c{n}", board=board) for n in range(len(layout))), tuple(pods))


def test_a_cut_card_is_cut_anew() -> None:
    fleet = mig([("1g.5gb", 1), ("1g.5gb", 5)])
    plan = make_room(fleet, Shape(1, 0, profile="4g.20gb"))
    assert plan is not None
    assert [(move.kind, move.pod) for move in plan.moves] == [(Kind.RECUT, 0)]
    assert plan.exact
    (place,) = plan.placements
    after = [Instance("4g.20gb", place.start), Instance("1g.5gb", 5), Instance("1g.5gb", plan.moves[0].start)]
    assert not layout_faults(boards()["A100-40GB"], after)


def test_an_instance_goes_to_another_card() -> None:
    fleet = mig([("4g.20gb", 0)], [("3g.20gb", 4)])
    fleet = replace(fleet, pods=(replace(fleet.pods[0], fixed=True), fleet.pods[1]))
    plan = make_room(fleet, Shape(1, 0, profile="7g.40gb"))
    assert plan is not None
    assert [(move.kind, move.pod, move.cards, move.start) for move in plan.moves] == [(Kind.MIGRATE, 1, (0,), 4)]
    assert plan.placements == (Placed(0, 0, (1,), 0),)
    assert make_room(mig([("7g.40gb", 0)]), Shape(1, 0, profile="1g.5gb")) is None


def test_pods_that_change_places_are_told_to_stop_together() -> None:
    fleet = Fleet(
        (Node("n"),), (Card(0, "a"), Card(0, "b")), (Pod("p", 0, (0,), Shape(1, 900)), Pod("q", 0, (1,), Shape(1, 800)))
    )
    swapped = [Move(Kind.MIGRATE, 0, 0, (1,)), Move(Kind.MIGRATE, 1, 0, (0,))]
    ordered, together = in_order(fleet, swapped)
    assert (len(ordered), together) == (2, 2)
    third = replace(fleet, cards=(*fleet.cards, Card(0, "c")))
    ordered, together = in_order(third, [Move(Kind.MIGRATE, 0, 0, (1,)), Move(Kind.MIGRATE, 1, 0, (2,))])
    assert ([move.pod for move in ordered], together) == ([1, 0], 0)


def test_small_instances_against_exhaustive_search() -> None:
    rng = np.random.default_rng(5)
    for _ in range(25):
        fleet, demand = small_instance(rng)
        moves = int(rng.integers(0, 3))
        wanted = exhaustive_demand(fleet, demand, moves)
        plan = place_demand(fleet, demand, moves)
        check(fleet, demand, plan, moves)
        assert plan.placed == pytest.approx(wanted)
        assert relax(fleet, demand, moves).bound >= wanted - 1e-9
        room = make_room(fleet, demand[0].shape)
        assert (None if room is None else len(room.moves)) == exhaustive_moves(fleet, demand[0].shape)
        if room is not None:
            check(fleet, [Request(demand[0].shape)], room, len(fleet.pods))
            best = fewest_moves(fleet, [Request(demand[0].shape)])
            assert best is not None
            assert len(best.moves) == len(room.moves)


def random_fleet(rng: np.random.Generator, nodes: int) -> Fleet:
    made: list[Node] = []
    cards: list[Card] = []
    pods: list[Pod] = []
    for n in range(nodes):
        first, cpu = len(cards), 32_000
        cards += [Card(n, f"{n}/{i}", 80) for i in range(4)]
        free = [WHOLE] * 4
        for _ in range(int(rng.integers(3, 9))):
            share, card, cores = int(rng.choice([100, 300, 500, 700])), int(rng.integers(4)), int(rng.integers(1, 6))
            if free[card] >= share and cpu >= cores * 1000:
                free[card] -= share
                cpu -= cores * 1000
                shape = Shape(1, share, share // 20, cores * 1000)
                pods.append(Pod(f"p{len(pods)}", n, (first + card,), shape, fixed=bool(rng.random() < 0.1)))
        if rng.random() < 0.3 and cpu >= 8000:
            cpu -= 8000
            pods.append(Pod(f"p{len(pods)}", n, (), Shape(0, 0, 0, 8000)))
        made.append(Node(f"n{n}", cpu))
    return Fleet(tuple(made), tuple(cards), tuple(pods))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_fleet_is_planned_near_its_bound(seed: int) -> None:
    fleet = random_fleet(np.random.default_rng(seed), 30)
    demand = [
        Request(Shape(1, WHOLE, 60, 4000), 25),
        Request(Shape(2, WHOLE, 60, 8000), 4),
        Request(Shape(1, 500, 20, 2000), 15),
    ]
    plan = place_demand(fleet, demand, 12)
    assert not plan.exact
    check(fleet, demand, plan, 12)
    assert plan.placed > plan.before
    assert plan.gap < 0.2  # the bound leaves memory out
    assert place_demand(fleet, demand, 12) == plan


def test_nothing_moves_where_all_fits() -> None:
    fleet = random_fleet(np.random.default_rng(4), 30)
    plan = place_demand(fleet, [Request(Shape(1, 100, 1, 0), 3)], 10)
    assert (plan.moves, plan.exact, plan.placed) == ((), True, pytest.approx(0.3))


def test_the_fewest_cards() -> None:
    fleet = fleet_of([300], [600], [500, 200], [WHOLE])
    freed = free_cards(fleet)
    assert (freed.used_before, freed.used_after, freed.at_least) == (4, 3, 3)
    assert freed.freed in {(0,), (1,)}
    assert freed.gap == 0.0
    names = [replace(pod, tenant="t", workload=pod.name) for pod in fleet.pods]
    apart = [frozenset({("t", "p0"), ("t", other)}) for other in ("p1", "p2", "p3")]
    kept = free_cards(replace(fleet, pods=tuple(names), apart=frozenset(apart)))
    assert kept.freed == ()  # 0.6 fits beside nobody else
    assert free_cards(fleet, moves=0).moves == ()
    assert free_cards(fleet_of([300], [600], fixed=(0, 1))).freed == ()
    assert free_cards(Fleet((), (), ())).gap == 0.0


@settings(max_examples=30)
@given(st.integers(0, 10_000))
def test_laws_of_emptying(seed: int) -> None:
    fleet = random_fleet(np.random.default_rng(seed), 3)
    freed = free_cards(fleet)
    state = State(fleet)
    for move in freed.moves:
        pod = fleet.pods[move.pod]
        assert not pod.fixed
        state.add(pod.shape, pod.node, pod.cards, -1)
        state.add(pod.shape, move.node, move.cards)
        _within(state)
    assert all(state.share[card] == WHOLE for card in freed.freed)
    assert freed.at_least <= freed.used_after == freed.used_before - len(freed.freed)


def test_a_best_plan_of_no_demand_is_none() -> None:
    plan = best_demand(fleet_of([300]), [], 2)
    assert (plan.moves, plan.placements, plan.placed) == ((), (), 0.0)
