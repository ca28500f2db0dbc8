"""The worked cases, as the benchmark of fragmentation checks them, and the comparison itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.worked_cases import COMPUTE, check_boards, check_file, check_xids, differences


@pytest.mark.parametrize("kind", sorted(COMPUTE))
def test_worked_cases_of_each_kind(cases_dir: Path, kind: str) -> None:
    count, wrong = check_file(cases_dir / f"{kind}.json")
    assert count
    assert wrong == []


def test_tables_of_boards_and_xids(cases_dir: Path) -> None:
    for check, name in ((check_boards, "mig_boards.json"), (check_xids, "xid_table.json")):
        count, wrong = check(cases_dir / name)
        assert count
        assert wrong == []


def test_every_difference_is_told_with_its_place() -> None:
    expect = {"a": 1.0, "b": [0.333333, None], "c": {"d": True}, "e": 2}
    assert differences({"a": 1.0, "b": [1 / 3, None], "c": {"d": True}, "e": 2, "more": 1}, expect) == []
    got = differences({"a": 1.00001, "b": [1 / 3], "c": 3}, expect, "case")
    assert got == [
        "case.a: 1.00001, expected 1.0",
        "case.b: [0.3333333333333333] is not as long as [0.333333, None]",
        "case.c: 3 is no table",
        "case.e: not computed",
    ]
    assert differences({"d": 1}, {"d": True}) == []  # Python's own equality
    assert differences({"d": 0.5}, {"d": True}) == [".d: 0.5, expected True"]


def test_a_case_of_our_own(tmp_path: Path) -> None:
    node = {"name": "n", "cpu_milli_left": 4000, "gpu_milli_left": [400, 1000], "gpu_type": "A100"}
    task = {"cpu_milli": 1000, "gpu_milli": 500, "num_gpu": 1, "gpu_type": "", "freq": 1.0}
    place = [None, {"gpu": 1, "delta_frag": 500.0, "score": 37}]
    told = {
        "name": "n",
        "idle_milli": 1400,
        "frag_milli": 400.0,
        "frag_ratio": 0.285714,
        "per_task": [400],
        "place": place,
    }
    case = {"id": "own", "input": {"nodes": [node], "task_mix": [task], "place": task}, "expect": {"nodes": [told]}}
    path = tmp_path / "fgd.json"
    path.write_text(json.dumps({"kind": "fgd", "cases": [case]}))
    count, wrong = check_file(path)
    assert count == 1
    # Half of the second card is left, which another such task can use: nothing more is lost.
    assert wrong == [
        "own.nodes[0].place[1].delta_frag: 0.0, expected 500.0",
        "own.nodes[0].place[1].score: 50, expected 37",
    ]
