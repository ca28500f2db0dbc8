"""FGD: worked cases, own examples, laws."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.fgd import Cause, NodeIdle, Task, blocked_by, fragmentation, node_fragmentation, placements

HALF, WHOLE, PAIR = Task(1, 0.5, weight=0.5), Task(1, 1.0, weight=0.3), Task(2, 1.0, weight=0.2)
MIX = [HALF, WHOLE, PAIR]


def near(milli: float) -> Any:
    return pytest.approx(milli, rel=1e-9, abs=6e-7)  # ratios are printed with six decimals


def task_of(entry: dict[str, Any]) -> Task:
    types = frozenset(filter(None, entry["gpu_type"].split("|")))
    return Task(entry["num_gpu"], entry["gpu_milli"] / 1000, entry["cpu_milli"] / 1000, types, weight=entry["freq"])


def node_of(entry: dict[str, Any]) -> NodeIdle:
    left = tuple(milli / 1000 for milli in entry["gpu_milli_left"])
    return NodeIdle(entry["name"], left, entry["cpu_milli_left"] / 1000, entry["gpu_type"])


def test_worked_cases(cases_dir: Path) -> None:
    cases = json.loads((cases_dir / "fgd.json").read_text())["cases"]
    assert cases
    for case in cases:
        nodes = [node_of(entry) for entry in case["input"]["nodes"]]
        mix = [task_of(entry) for entry in case["input"]["task_mix"]]
        wanted = case["input"]["place"]
        best: list[tuple[float, str, int]] = []
        for node, expect in zip(nodes, case["expect"]["nodes"], strict=True):
            got = node_fragmentation(node, mix)
            assert got.idle * 1000 == near(expect["idle_milli"]), case["id"]
            assert got.fragmented * 1000 == near(expect["frag_milli"]), case["id"]
            assert got.ratio == near(expect["frag_ratio"]), case["id"]
            assert [amount * 1000 for amount in got.per_task] == near(expect["per_task"]), case["id"]
            assert sum(got.by_cause.values()) == near(got.fragmented)
            if wanted is None or wanted["num_gpu"] != 1:
                continue
            places = placements(node, mix, task_of(wanted))
            if expect["place"] is None:
                assert places is None
                continue
            assert places is not None
            for place, reference in zip(places, expect["place"], strict=True):
                assert (place is None) == (reference is None), case["id"]
                if place is not None:
                    assert place.delta * 1000 == near(reference["delta_frag"]), case["id"]
                    assert (place.gpu, place.score) == (reference["gpu"], reference["score"]), case["id"]
                    best.append((place.delta, node.name, place.gpu))
        if best:
            reference = case["expect"]["best"][0]
            assert min(best)[0] * 1000 == near(reference["delta_frag"])
            assert min(best)[1:] == (reference["node"], reference["gpu"])
        cluster = fragmentation(nodes, mix)
        assert cluster.idle * 1000 == near(case["expect"]["cluster_idle_milli"])
        assert cluster.fragmented * 1000 == near(case["expect"]["cluster_frag_milli"])
        assert cluster.ratio == near(case["expect"]["cluster_frag_ratio"])


def test_pieces_that_are_too_small() -> None:
    got = node_fragmentation(NodeIdle("n", (0.4, 0.6)), MIX)
    # A half fits on the second card and strands 0.4; a whole card and a pair strand everything.
    assert got.per_task == pytest.approx((0.4, 1.0, 1.0))
    assert got.fragmented == pytest.approx(0.5 * 0.4 + 0.3 * 1.0 + 0.2 * 1.0)
    assert got.by_cause[Cause.TOO_SMALL] == pytest.approx(0.7)


def test_causes_are_kept_apart() -> None:
    task = Task(1, 1.0, 8.0, frozenset({"A100"}))
    empty = NodeIdle("n", (1.0,), 64.0, "A100")
    assert blocked_by(empty, task) is None
    assert blocked_by(replace(empty, cpu_cores_left=1.0), task) is Cause.CPU
    assert blocked_by(replace(empty, gpu_type="T4"), task) is Cause.TYPE
    assert blocked_by(replace(empty, left=(0.5,)), task) is Cause.TOO_SMALL
    assert blocked_by(replace(empty, left=(0.5,), cpu_cores_left=1.0), task) is Cause.CPU_AND_SHARE
    no_card = Task(0, 0.0, 8.0)
    assert blocked_by(empty, no_card) is None
    assert blocked_by(replace(empty, cpu_cores_left=1.0), no_card) is Cause.NO_GPU_TASK_CPU
    assert node_fragmentation(empty, [no_card]).by_cause[Cause.NO_GPU_TASK] == 1.0


def test_memory_must_fit_too_and_bounds_what_is_idle() -> None:
    node = NodeIdle("n", (0.8, 0.5), memory_left_bytes=(8e9, 20e9), memory_bytes=40e9)
    assert node.idle == pytest.approx(0.7)
    task = Task(1, 0.5, memory_bytes=16e9)
    got = node_fragmentation(node, [task])
    assert got.fragmented == pytest.approx(0.2)
    assert got.by_cause[Cause.MEMORY] == pytest.approx(0.2)  # its share would be enough
    assert blocked_by(node, replace(task, memory_bytes=30e9)) is Cause.MEMORY
    assert blocked_by(node, replace(task, memory_bytes=30e9, cards=2, share=0.6)) is Cause.TOO_SMALL
    places = placements(node, [task], task)
    assert places is not None
    assert places[0] is None
    assert places[1] is not None
    assert places[1].delta == pytest.approx(0.0)  # 0.2 was lost before and is lost after: the rest of card 2 is empty


def test_a_tie_of_sums_does_not_hang_on_the_last_bit() -> None:
    left = 1.0 - 0.1 - 0.1 - 0.1  # 0.7000000000000001, and its neighbours fall on the other side
    assert blocked_by(NodeIdle("n", (left - 1e-12,)), Task(1, 0.7)) is None


def test_only_tasks_on_one_card_are_placed() -> None:
    with pytest.raises(ValueError, match="one card"):
        placements(NodeIdle("n", (1.0, 1.0)), MIX, PAIR)
    assert placements(NodeIdle("n", (0.2,)), MIX, HALF) is None


def test_nothing_idle_has_no_ratio_to_speak_of() -> None:
    assert fragmentation([NodeIdle("n", (0.0,))], MIX).ratio == 0.0


shares = st.lists(st.integers(0, 20).map(lambda n: n / 20), min_size=1, max_size=4).map(tuple)
tasks = st.builds(Task, st.integers(0, 3), st.integers(1, 20).map(lambda n: n / 20), st.integers(0, 4).map(float))
nodes = st.builds(NodeIdle, st.just("n"), shares, st.sampled_from([1.0, 3.0, math.inf]))


@given(st.lists(nodes, min_size=1, max_size=3), st.lists(tasks, min_size=1, max_size=4))
def test_laws(cluster: list[NodeIdle], wanted: list[Task]) -> None:
    mix = [replace(task, weight=1 / len(wanted)) for task in wanted]
    got = fragmentation(cluster, mix)
    assert -1e-9 <= got.fragmented <= got.idle + 1e-9
    assert sum(got.by_cause.values()) == pytest.approx(got.fragmented)
    turned = [replace(node, left=node.left[::-1]) for node in cluster[::-1]]
    assert fragmentation(turned, mix[::-1]).fragmented == pytest.approx(got.fragmented)
