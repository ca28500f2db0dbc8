"""Generalised least squares: take out the memory of the victim's noise, so that samples count as independent."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy.special import ndtri

from analyzer.contention.series import Floats

ORDER = 6  # of the noise model
MANY_GAPS = 0.06  # share missing from which the noise model is AR(1), which can step over gaps


def fit_ar(values: Floats, order: int) -> Floats:
    """Return Yule-Walker coefficients of an AR(`order`) model; pairs with a missing side are left out."""
    if order == 0:
        return np.empty(0)
    good = np.isfinite(values)
    centred = np.where(good, values - values[good].mean(), 0.0)
    n = values.size
    products = np.array([centred[lag:] @ centred[: n - lag] for lag in range(order + 1)])
    counts = np.array([np.count_nonzero(good[lag:] & good[: n - lag]) for lag in range(order + 1)])
    covariance = products / np.maximum(counts, 1.0)
    if covariance[0] <= 0:
        return np.zeros(order)
    # The ridge keeps an almost random walk (or an odd pattern of gaps) solvable.
    column = covariance[:order].copy()
    column[0] *= 1.0 + 1e-6
    at = np.arange(order)
    return np.asarray(np.linalg.solve(column[np.abs(at[:, None] - at)], covariance[1:]))


def whiten(values: Floats, coefficients: Floats) -> Floats:
    """Filter by an AR model: e(t) - sum phi(i) e(t - i); NaN where any of them is missing, and at the start.

    Args:
        values: (..., n), each series by itself.
        coefficients: phi, the nearest sample first.
    """
    result = values.copy()
    order = coefficients.size
    for i, phi in enumerate(coefficients, start=1):
        result[..., i:] -= phi * values[..., :-i]
    result[..., :order] = np.nan
    return result


def whiten_gaps(values: Floats, phi: float) -> Floats:
    """Filter by an AR(1) model that steps over gaps: no sample is lost but the first.

    After a gap of k samples the prediction is phi^k times the last value seen, and its error is larger; the result is
    scaled so that all errors have the variance of a step of one.
    """
    phi = min(max(phi, 0.0), 0.999)
    at = np.flatnonzero(np.isfinite(values))
    result = np.full_like(values, np.nan)
    if at.size < 2:
        return result
    carried = phi ** np.diff(at)
    error = np.sqrt((1.0 - phi**2) / (1.0 - carried**2))
    result[at[1:]] = (values[at[1:]] - carried * values[at[:-1]]) * error
    return result


def rank_normal(values: Floats) -> Floats:
    """Replace values by the normal quantiles of their ranks: a few wild samples then weigh like any others."""
    good = np.flatnonzero(np.isfinite(values))
    result = np.full_like(values, np.nan)
    result[good[np.argsort(values[good], kind="stable")]] = _normal_quantiles(good.size)
    return result


@lru_cache(maxsize=64)
def _normal_quantiles(count: int) -> Floats:
    return np.asarray(ndtri((np.arange(count) + 0.5) / max(count, 1)))
