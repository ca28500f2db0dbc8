from __future__ import annotations

import numpy as np

from analyzer.runs import run_starts


def test_a_run_begins_where_any_column_changes() -> None:
    names = np.array(["a", "a", "a", "b", "b"], dtype=object)
    hours = np.array([1, 1, 2, 2, 2])
    assert run_starts(names, hours).tolist() == [0, 2, 3]
    assert run_starts(hours).tolist() == [0, 2]
    assert run_starts(hours[:1]).tolist() == [0]
