"""Latencies from histograms: the requests of one interval, linear within the bucket."""

from __future__ import annotations

import math
from collections.abc import Sequence


def requests_for(quantile: float) -> float:
    """Return how many requests an interval needs before it has this quantile: 10 / (1 - q)."""
    return 10.0 / (1.0 - quantile)


def histogram_quantile(bounds: Sequence[float], cumulative: Sequence[float], quantile: float) -> float:
    """Return a quantile in the unit of `bounds`; NaN under `10 / (1 - q)` requests.

    Args:
        bounds: upper bounds, ascending, the last one infinite.
        cumulative: requests of the interval at or below each bound.
        quantile: in (0, 1).

    A quantile beyond the last finite bound is given as that bound: it is at least so long.
    """
    if not bounds or not cumulative[-1] >= requests_for(quantile):
        return math.nan
    rank = quantile * cumulative[-1]
    low, before = 0.0, 0.0
    for bound, count in zip(bounds, cumulative, strict=True):
        if count >= rank:
            if math.isinf(bound):
                return low
            return low + (bound - low) * (rank - before) / (count - before) if count > before else bound
        low, before = bound, count
    return low


def requests_within(bounds: Sequence[float], cumulative: Sequence[float], limit: float) -> float:
    """Return how many requests of the interval took at most `limit`; beyond the last finite bound none are added."""
    low, before = 0.0, 0.0
    for bound, count in zip(bounds, cumulative, strict=True):
        if bound >= limit:
            if math.isinf(bound):
                return before
            return before + (count - before) * (limit - low) / (bound - low)
        low, before = bound, count
    return before
