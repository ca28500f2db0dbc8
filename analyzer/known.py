"""Sums and means of what was told; where nothing was told the answer is NaN, never 0."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]


def known_sum(values: Values) -> float:
    """Return the sum of the values that are there; NaN of none."""
    known = values[np.isfinite(values)]
    return float(known.sum()) if len(known) else math.nan


def known_mean(values: Values) -> float:
    """Return the mean of the values that are there; NaN of none."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else math.nan


def known_most(values: Values) -> float:
    """Return the largest of the values that are there; NaN of none."""
    known = values[np.isfinite(values)]
    return float(known.max()) if len(known) else math.nan
