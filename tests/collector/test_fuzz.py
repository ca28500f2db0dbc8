"""A short round of the fuzzing that `python -m benchmarks fuzz` does at length, the same bodies each time."""

from __future__ import annotations

from random import Random

import pytest

from benchmarks.fuzz import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_no_crash_no_wrong_value_no_good_one_lost(name: str) -> None:
    random = Random(f"trimtab {name}")
    for _ in range(12):
        TARGETS[name](random)
