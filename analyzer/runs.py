"""Runs of equal values in rows that stand sorted."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def run_starts(*columns: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """Return the index at which each run of rows that are equal in all columns begins; (N,) columns, N of 1 or more."""
    changed = np.zeros(len(columns[0]), dtype=bool)
    changed[0] = True
    for column in columns:
        changed[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(changed)


def longest_run(flags: npt.NDArray[np.bool_]) -> int:
    """Return the length of the longest run of True; 0 where there is none."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], flags.astype(np.int8), [0]))))
    return int((edges[1::2] - edges[::2]).max()) if len(edges) else 0
