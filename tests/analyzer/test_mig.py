"""MIG placement: worked cases, own examples, laws."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.mig import Instance, board_of, boards, fewest_moves, fitting_profiles, layout_faults, layouts, measure

A100 = boards()["A100-40GB"]
KNOWN = sorted(name for name, board in boards().items() if board.placements != "unknown")


def cases(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "mig.json").read_text())["cases"]
    assert found
    return found


def near(value: float) -> Any:
    return pytest.approx(value, rel=1e-9, abs=6e-7)  # the cases are printed with six decimals


def test_worked_measures(cases_dir: Path) -> None:
    seen = 0
    for case in cases(cases_dir):
        if "valid" in case["expect"]:
            continue
        seen += 1
        board = boards()[case["input"]["board"]]
        instances = [Instance(**i) for i in case["input"]["instances"]]
        expect = case["expect"]
        got = measure(board, instances, case["input"]["profile_mix"])
        assert got.free_memory_slices == expect["free_mem_slices"], case["id"]
        assert got.free_compute_slices == expect["free_compute_slices"], case["id"]
        for name, profile in expect["per_profile"].items():
            mine = got.per_profile[name]
            assert list(mine.feasible_starts) == profile["feasible_starts"], (case["id"], name)
            assert (mine.placeable, mine.by_capacity) == (profile["placeable"], profile["by_capacity"]), case["id"]
            assert mine.fragmentation == near(profile["frag"])
            assert mine.unusable_memory_slices == profile["unusable_mem_slices"], (case["id"], name)
        assert got.capability == expect["capability"], case["id"]
        assert got.largest_placeable == expect["largest_placeable"], case["id"]
        assert got.stranded_memory_slices == expect["stranded_mem_slices"], case["id"]
        assert got.stranded_compute_slices == expect["stranded_compute_slices"], case["id"]
        assert got.mix_unusable_memory_slices == near(expect["mix_frag_mem_slices"])
        if expect["mix_frag_ratio"] is None:
            assert got.mix_unusable_ratio is None
        else:
            assert got.mix_unusable_ratio == near(expect["mix_frag_ratio"])
        assert got.mix_placement_fragmentation == near(expect["mix_placement_frag"])
        if "defrag" in expect:
            request = expect["defrag"]["request"]
            assert (got.per_profile[request].placeable > 0) == expect["defrag"]["fits_now"], case["id"]
            assert (got.per_profile[request].by_capacity > 0) == expect["defrag"]["fits_by_capacity"], case["id"]
            assert fewest_moves(board, instances, request) == expect["defrag"]["fewest_moves"], case["id"]
    assert seen >= 10


def test_worked_layouts(cases_dir: Path) -> None:
    seen = 0
    for case in cases(cases_dir):
        if "valid" not in case["expect"]:
            continue
        seen += 1
        board = boards()[case["input"]["board"]]
        faults = layout_faults(board, [Instance(**i) for i in case["input"]["instances"]])
        assert (not faults) == case["expect"]["valid"], case["id"]
        for reason in case["expect"]["reasons"]:
            if reason.endswith("not an allowed start"):
                assert reason in faults, case["id"]
    assert seen >= 5


def test_a_small_instance_in_the_wrong_half_costs_the_big_one() -> None:
    left, right = [Instance("1g.5gb", 0)], [Instance("1g.5gb", 6)]
    assert measure(A100, left).per_profile["4g.20gb"].placeable == 0
    assert measure(A100, right).per_profile["4g.20gb"].placeable == 1
    assert fewest_moves(A100, left, "4g.20gb") == 1
    assert fewest_moves(A100, right, "4g.20gb") == 0


def test_two_moves_where_one_does_not_do() -> None:
    scattered = [Instance("1g.5gb", 0), Instance("1g.5gb", 2)]
    assert fewest_moves(A100, scattered, "4g.20gb") == 2


def test_no_move_helps_a_full_card() -> None:
    full = [Instance("4g.20gb", 0), Instance("3g.20gb", 4)]
    assert fewest_moves(A100, full, "1g.5gb") is None


def test_seven_small_ones_strand_a_memory_slice_and_two_threes_a_compute_slice() -> None:
    seven = measure(A100, [Instance("1g.5gb", s) for s in range(7)])
    assert (seven.stranded_memory_slices, seven.stranded_compute_slices) == (1, 0)
    threes = measure(A100, [Instance("3g.20gb", 0), Instance("3g.20gb", 4)])
    assert (threes.stranded_memory_slices, threes.stranded_compute_slices) == (0, 1)


def test_media_engines_exist_once() -> None:
    one = [Instance("1g.5gb+me", 0)]
    assert measure(A100, one, {"1g.5gb+me": 1.0}).per_profile["1g.5gb+me"].by_capacity == 0
    faults = layout_faults(A100, [*one, Instance("1g.5gb+me", 1)])
    assert faults == ["2 x 1g.5gb+me, at most 1 may exist"]


def test_faults_are_named() -> None:
    faults = layout_faults(A100, [Instance("9g.9gb", 0), Instance("3g.20gb", 0), Instance("4g.20gb", 0)])
    assert faults == ["9g.9gb is not a profile of A100-40GB", "4g.20gb@0 overlaps another instance"]
    too_much = layout_faults(A100, [Instance("7g.40gb", 0), Instance("1g.5gb", 0)])
    assert "8 compute slices asked, the board has 7" in too_much


def test_wrong_input_is_refused() -> None:
    with pytest.raises(ValueError, match="overlaps"):
        measure(A100, [Instance("3g.20gb", 0), Instance("1g.5gb", 1)])
    with pytest.raises(ValueError, match="placements are known"):
        measure(boards()["RTX-PRO-5000-48GB"], [])
    with pytest.raises(KeyError, match="expected a profile of A100-40GB"):
        measure(A100, [], {"1g.10gb+me": 1.0})
    assert list(layouts(A100, ["9g.9gb"])) == []
    assert list(layouts(A100, ["4g.20gb", "4g.20gb"])) == []
    assert list(layouts(A100, ["4g.20gb", "3g.20gb", "1g.5gb"])) == []


@pytest.mark.parametrize(
    ("model", "profiles", "name"),
    [
        ("NVIDIA A100-SXM4-40GB", [], "A100-40GB"),
        ("NVIDIA A100 80GB PCIe", [], "A100-80GB"),
        ("NVIDIA H100 80GB HBM3", ["1g.10gb"], "H100-80GB"),
        ("NVIDIA H100 NVL", [], "H100-94GB"),
        ("NVIDIA GH200 480GB", [], "H100-96GB"),
        ("NVIDIA H20", ["1g.12gb"], "H20-96GB"),
        ("", ["3g.48gb"], "H100-96GB"),
        ("NVIDIA H200", [], "H200-141GB"),
        ("NVIDIA B200", [], "B200-180GB"),
        ("NVIDIA GB200", [], "GB200-186GB"),
        ("NVIDIA A30", [], "A30-24GB"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", [], "RTX-PRO-6000-96GB"),
        ("", ["2g.10gb"], "A100-40GB"),
        ("Tesla T4", [], None),
        (None, ["1g.10gb", "7g.80gb"], None),  # two boards know these
        ("NVIDIA A300", [], None),
    ],
)
def test_boards_are_found_by_name_or_profiles(model: str | None, profiles: list[str], name: str | None) -> None:
    board = board_of(model, profiles)
    assert (board.name if board else None) == name


def test_sm_shares_are_counted_not_sevenths() -> None:
    assert boards()["H100-80GB"].sm_share("1g.10gb") == (16 / 132, True)
    assert boards()["H100-80GB"].sm_share("1g.20gb") == (26 / 132, True)
    assert boards()["B200-180GB"].sm_share("3g.90gb") == (3 / 7, False)
    assert boards()["H20-96GB"].sm_share("1g.12gb") == (1 / 7, False)  # of 78, not of its sisters' 132


def test_what_fits_beside_instances_that_lie_well() -> None:
    assert "4g.20gb" in fitting_profiles(A100, ("1g.5gb",))
    assert "4g.20gb" not in fitting_profiles(A100, ("4g.20gb",))
    assert fitting_profiles(A100, ("3g.20gb", "4g.20gb")) == frozenset()


@st.composite
def valid_layouts(draw: st.DrawFn) -> tuple[str, list[Instance]]:
    board = boards()[draw(st.sampled_from(KNOWN))]
    instances: list[Instance] = []
    for _ in range(draw(st.integers(0, 7))):
        names = sorted(name for name, p in board.profiles.items() if p.plain)
        profile = board.profiles[draw(st.sampled_from(names))]
        wanted = [*instances, Instance(profile.name, draw(st.sampled_from(profile.starts)))]
        if not layout_faults(board, wanted):
            instances = wanted
    return board.name, instances


@given(valid_layouts())
def test_laws_of_measures(layout: tuple[str, list[Instance]]) -> None:
    board = boards()[layout[0]]
    got = measure(board, layout[1])
    assert 0 <= got.stranded_memory_slices <= got.free_memory_slices <= board.memory_slices
    assert 0 <= got.stranded_compute_slices <= got.free_compute_slices <= board.compute_slices
    for name, profile in got.per_profile.items():
        assert 0 <= profile.placeable <= profile.by_capacity
        assert 0 <= profile.unusable_memory_slices <= got.free_memory_slices
        # Placing the first feasible start must be a valid layout; a profile with none must not be placeable.
        assert bool(profile.placeable) == bool(profile.feasible_starts)
        for start in profile.feasible_starts:
            assert not layout_faults(board, [*layout[1], Instance(name, start)])
            assert fewest_moves(board, layout[1], name) == 0
    assert tuple(sorted(layout[1])) in set(layouts(board, [i.profile for i in layout[1]]))
    assert measure(board, layout[1][::-1]) == got
