"""Latencies from histograms: the requests of one interval, linear within the bucket."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def requests_for(quantile: float) -> float:
    """Return how many requests an interval needs before it has this quantile: 10 / (1 - q)."""
    return 10.0 / (1.0 - quantile)


def histogram_quantiles(bounds: Floats, cumulative: Floats, quantiles: Sequence[float]) -> Floats:
    """Return quantiles of many histograms in the unit of `bounds`; NaN under `10 / (1 - q)` requests.

    Args:
        bounds: histograms x buckets: upper bounds, ascending, infinite behind the last finite one.
        cumulative: requests of the interval at or below each bound, same shape, never falling.
        quantiles: in (0, 1).

    Returns:
        histograms x quantiles. A quantile beyond the last finite bound is given as that bound: it is at least so long.
    """
    rows = np.arange(len(bounds))
    low, before = _left(bounds), _left(cumulative)
    columns = []
    for quantile in quantiles:
        rank = quantile * cumulative[:, -1]
        place = (cumulative >= rank[:, None]).argmax(axis=1)
        bound, count = bounds[rows, place], cumulative[rows, place]
        start, less = low[rows, place], before[rows, place]
        with np.errstate(divide="ignore", invalid="ignore"):
            inside = start + (bound - start) * (rank - less) / (count - less)
        value = np.where(np.isinf(bound), start, np.where(count > less, inside, bound))
        columns.append(np.where(cumulative[:, -1] >= requests_for(quantile), value, np.nan))
    return np.stack(columns, axis=1)


def requests_within(bounds: Floats, cumulative: Floats, limits: Floats) -> Floats:
    """Return how many requests of the interval took at most the limit; beyond the last finite bound none are added.

    Args:
        bounds: histograms x buckets, as for `histogram_quantiles`.
        cumulative: same shape.
        limits: one a histogram; NaN for none, which gives NaN.
    """
    rows = np.arange(len(bounds))
    reached = bounds >= limits[:, None]
    place = reached.argmax(axis=1)
    bound, start, less = bounds[rows, place], _left(bounds)[rows, place], _left(cumulative)[rows, place]
    with np.errstate(invalid="ignore"):
        inside = less + (cumulative[rows, place] - less) * (limits - start) / (bound - start)
    result = np.where(np.isinf(bound), less, inside)
    result = np.where(reached.any(axis=1), result, cumulative[:, -1])
    return np.where(np.isnan(limits), np.nan, result)


def _left(values: Floats) -> Floats:
    """Return each bucket's left neighbour, 0 before the first."""
    return np.concatenate([np.zeros((len(values), 1)), values[:, :-1]], axis=1)
