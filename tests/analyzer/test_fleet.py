"""The measure over arrays and the placing by its gradient, against the readable one a node and against brute force."""

from __future__ import annotations

import csv
import itertools
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.fgd import Cause, NodeIdle, Task, blocked_by, fragmentation, node_fragmentation, score
from analyzer.fleet import Fleet, Mix, causes, fit, measure_fleet, typical
from analyzer.placing import Placing
from analyzer.stranded import strandings
from benchmarks.arrivals import arrive, read_pods, read_state

GB = 1e9
share = st.integers(0, 10).map(lambda n: n / 10)
TYPES = ("A100", "T4")


@st.composite
def node(draw: st.DrawFn) -> NodeIdle:
    left = tuple(draw(st.lists(share, min_size=0, max_size=4)))
    memory = draw(st.booleans())
    rooms = tuple(draw(st.integers(0, 4)) * 10 * GB for _ in left) if memory else ()
    cpu = draw(st.sampled_from([0.0, 2.0, 5.0, math.inf]))
    return NodeIdle("n", left, cpu, draw(st.sampled_from(TYPES)), rooms, 40 * GB if memory else math.nan)


@st.composite
def task(draw: st.DrawFn) -> Task:
    cards = draw(st.integers(0, 3))
    return Task(
        cards,
        draw(st.integers(1, 10)) / 10 if cards == 1 else 1.0,
        float(draw(st.integers(0, 4))),
        frozenset(draw(st.sets(st.sampled_from(TYPES), max_size=2))),
        draw(st.sampled_from([0.0, 10 * GB, 25 * GB])),
    )


fleets = st.lists(node(), min_size=1, max_size=5)
mixes = st.lists(task(), min_size=1, max_size=4).map(lambda ts: [replace(t, weight=1 / len(ts)) for t in ts])


@given(fleets, mixes)
def test_arrays_say_what_one_node_at_a_time_says(nodes: list[NodeIdle], mix: list[Task]) -> None:
    got, want = measure_fleet(Fleet.of(nodes), mix), fragmentation(nodes, mix)
    assert got.idle == pytest.approx(want.idle)
    assert got.fragmented == pytest.approx(want.fragmented)
    assert got.per_task == pytest.approx(want.per_task)
    for cause in Cause:
        assert got.by_cause[cause] == pytest.approx(want.by_cause[cause], abs=1e-12), cause
    assert sum(got.by_cause.values()) == pytest.approx(got.fragmented)


@given(fleets, mixes)
def test_causes_and_fit_agree_with_one_node_at_a_time(nodes: list[NodeIdle], mix: list[Task]) -> None:
    fleet = Fleet.of(nodes)
    bound = Mix.of(mix, fleet.types)
    why, runs = causes(fleet, bound), fit(fleet, bound).runs
    for (i, one), (j, wanted) in itertools.product(enumerate(nodes), enumerate(mix)):
        named = [cause for cause in Cause if why[cause][i, j]]
        reason = blocked_by(one, wanted)
        if reason is None and wanted.cards == 0:
            reason = Cause.NO_GPU_TASK
        assert named == ([] if reason is None else [reason])
        assert runs[i, j] == (reason is None)


def test_a_block_too_large_for_memory_is_measured_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        NodeIdle("n", (0.4, 0.9), memory_left_bytes=(30 * GB, 5 * GB), memory_bytes=40 * GB),
        NodeIdle("m", (1.0,)),
    ]
    mix = [Task(1, 0.3, memory_bytes=10 * GB, weight=0.5), Task(1, 1.0, weight=0.5)]
    whole = measure_fleet(Fleet.of(nodes), mix)
    monkeypatch.setattr("analyzer.fleet._CELLS", 1)
    assert measure_fleet(Fleet.of(nodes), mix) == whole


def test_a_fleet_of_nothing_has_nothing() -> None:
    got = measure_fleet(Fleet.of([]), [Task(1, 0.5)])
    assert (got.idle, got.fragmented, got.ratio) == (0.0, 0.0, 0.0)
    assert Placing(Fleet.of([]), [Task(1, 0.5)]).best(Task(1, 0.5)) is None


def brute_growth(one: NodeIdle, mix: list[Task], wanted: Task) -> float:
    """Try every set of cards; several cards are taken with least left first, as the rule says."""
    if blocked_by(one, wanted) is not None:
        return math.inf
    rooms = one.memory_left_bytes or (math.inf,) * len(one.left)
    good = [g for g, left in enumerate(one.left) if left >= wanted.share - 1e-9 and rooms[g] >= wanted.memory_bytes - 1]
    sets = (
        [(g,) for g in good]
        if wanted.cards == 1 and wanted.share < 1
        else [tuple(sorted(good, key=lambda g: one.left[g])[: wanted.cards])]
    )
    before = node_fragmentation(one, mix).fragmented
    found = math.inf
    for cards in sets:
        left, room = list(one.left), list(one.memory_left_bytes)
        for g in cards:
            left[g] -= wanted.share
            if room:
                room[g] -= wanted.memory_bytes
        after = replace(
            one,
            left=tuple(max(x, 0.0) for x in left),
            memory_left_bytes=tuple(room),
            cpu_cores_left=one.cpu_cores_left - wanted.cpu_cores,
        )
        found = min(found, node_fragmentation(after, mix).fragmented - before)
    return found


@given(fleets, mixes, task())
def test_growth_is_the_least_of_all_ways(nodes: list[NodeIdle], mix: list[Task], wanted: Task) -> None:
    placing = Placing(Fleet.of(nodes), mix)
    want = [brute_growth(one, mix, wanted) for one in nodes]
    assert placing.growths(wanted) == pytest.approx(want, abs=1e-9)
    spot = placing.best(wanted)
    if spot is None:
        assert all(math.isinf(growth) for growth in want)
        return
    assert spot.growth == pytest.approx(want[spot.row], abs=1e-9)
    assert score(spot.growth) == max(score(growth) for growth in want if math.isfinite(growth))


@given(fleets, mixes, st.lists(task(), min_size=1, max_size=6))
def test_what_is_placed_is_measured_anew_and_can_be_taken_back(
    nodes: list[NodeIdle], mix: list[Task], wanted: list[Task]
) -> None:
    placing = Placing(Fleet.of(nodes), mix)
    before = placing.fragment.copy()
    done = []
    for one in wanted:
        spot = placing.best(one)
        if spot is None:
            continue
        fragmented = placing.fragmented
        placing.place(one, spot.row, spot.cards)
        done.append((one, spot))
        assert placing.fragmented - fragmented == pytest.approx(spot.growth, abs=1e-9)
        fresh = Placing(placing.fleet, mix)
        assert placing.fragment == pytest.approx(fresh.fragment)
        assert placing.growths(one) == pytest.approx(fresh.growths(one), abs=1e-9)
    for one, spot in reversed(done):
        placing.remove(one, spot.row, spot.cards)
    assert placing.fragment == pytest.approx(before)
    assert placing.idle == pytest.approx(sum(one.idle for one in nodes))


def test_of_equal_spots_the_fullest_node_is_taken() -> None:
    small = Task(1, 0.2, weight=1.0)
    placing = Placing(Fleet.of([NodeIdle("empty", (1.0, 1.0)), NodeIdle("used", (1.0, 0.4))]), [small])
    spot = placing.best(small)
    assert spot is not None
    assert spot.row == 1
    among = np.array([True, False])
    assert placing.best(small, among) == replace(spot, row=0)


def test_recorded_states_measure_as_the_reference_says(shared_dir: Path) -> None:
    folder = shared_dir / "data" / "cluster_snapshot"
    with (folder / "states" / "reference.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows
    for row in rows:
        workload = row["workload"].removeprefix("openb_pod_list_")
        typical_path = folder / "states" / f"typical_{workload}.csv"
        nodes, mix = read_state(folder / "states" / f"{row['state']}_nodes.csv.gz", typical_path)
        got = measure_fleet(Fleet.of(nodes), mix)
        assert got.idle * 1000 == pytest.approx(float(row["idle_milli"]))
        assert got.fragmented * 1000 == pytest.approx(float(row["frag_milli"]), rel=1e-6)
        mine = typical(Counter(read_pods(folder / f"pods_{workload}.csv.gz")))
        assert sorted((t.cards, t.cpu_cores, round(t.weight, 9)) for t in mine) == sorted(
            (t.cards, t.cpu_cores, round(t.weight, 9)) for t in mix
        )


def test_the_typical_mix_is_what_comes_most() -> None:
    small, whole, rare = Task(1, 0.5), Task(1, 1.0), Task(2, 1.0)
    assert typical({small: 6, whole: 3, rare: 1}, 0.9) == [replace(small, weight=6 / 9), replace(whole, weight=3 / 9)]
    assert [t.weight for t in typical({small: 6, whole: 3, rare: 1}, 1.0)] == [0.6, 0.3, 0.1]
    assert typical({}) == []


def test_the_gradient_allocates_more_than_chance() -> None:
    nodes = [NodeIdle(f"n{i}", (1.0,) * 4, 32.0, "A100") for i in range(6)]
    pods = [Task(1, 0.3, 1.0)] * 8 + [Task(1, 0.6, 2.0)] * 6 + [Task(1, 1.0, 6.0)] * 4 + [Task(4, 1.0, 24.0)] * 2
    full = {rule: arrive(nodes, pods, rule, 1)[100] for rule in ("random", "best fit", "gradient")}
    assert full["gradient"][0] > full["random"][0]
    assert full["gradient"][1] < full["random"][1]
    assert full["best fit"][0] >= full["random"][0]


@given(fleets, mixes)
def test_what_one_dimension_strands_is_what_would_serve_without_it(nodes: list[NodeIdle], mix: list[Task]) -> None:
    found = strandings(Fleet.of(nodes), mix)
    without = {
        "cpu": ([replace(one, cpu_cores_left=math.inf) for one in nodes], mix),
        "type": (nodes, [replace(t, types=frozenset()) for t in mix]),
        "memory": ([replace(one, memory_left_bytes=()) for one in nodes], mix),
    }

    def runs(one: NodeIdle, wanted: Task) -> bool:
        return wanted.cards > 0 and blocked_by(one, wanted) is None

    def served(one: NodeIdle, tasks: list[Task]) -> list[bool]:
        rooms = one.memory_left_bytes or (math.inf,) * len(one.left)
        able = [t for t in tasks if runs(one, t)]
        return [
            any(left >= t.share - 1e-9 and room >= t.memory_bytes - 1 for t in able)
            for left, room in zip(one.left, rooms, strict=True)
        ]

    for name, (others, tasks) in without.items():
        lost = [
            m
            for m, (wanted, freed) in enumerate(zip(mix, tasks, strict=True))
            if wanted.cards and not any(runs(one, wanted) for one in nodes) and any(runs(one, freed) for one in others)
        ]
        assert list(found[name].lost) == lost, name
        total = 0.0
        for one, other in zip(nodes, others, strict=True):
            amounts = one.left if name == "memory" else one.amounts
            for amount, now, then in zip(amounts, served(one, mix), served(other, tasks), strict=True):
                total += amount if then and not now else 0.0
        assert found[name].stranded_cards == pytest.approx(total), name
