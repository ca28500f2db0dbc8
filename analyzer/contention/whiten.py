"""Generalised least squares: take out the memory of the victim's noise, so that samples count as independent."""

from __future__ import annotations

import numpy as np
from scipy.linalg import solve_toeplitz
from scipy.special import ndtri
from scipy.stats import rankdata

from analyzer.contention.series import Floats

_ORDER = 6


def ar_order(missing_share: float) -> int:
    """Order of the noise model: each missing sample costs `order` filtered ones."""
    if missing_share > 0.25:
        return 0
    return 1 if missing_share > 0.06 else _ORDER


def fit_ar(values: Floats, order: int) -> Floats:
    """Return Yule-Walker coefficients of an AR(`order`) model; pairs with a missing side are left out."""
    if order == 0:
        return np.empty(0)
    good = np.isfinite(values)
    centred = np.where(good, values - values[good].mean(), 0.0)
    mask = good.astype(np.float64)
    n = values.size
    products = np.array([centred[lag:] @ centred[: n - lag] for lag in range(order + 1)])
    counts = np.array([mask[lag:] @ mask[: n - lag] for lag in range(order + 1)])
    covariance = products / np.maximum(counts, 1.0)
    if covariance[0] <= 0:
        return np.zeros(order)
    # The ridge keeps an almost random walk (or an odd pattern of gaps) solvable.
    column = covariance[:order].copy()
    column[0] *= 1.0 + 1e-6
    return np.asarray(solve_toeplitz(column, covariance[1:]), dtype=np.float64)


def whiten(values: Floats, coefficients: Floats) -> Floats:
    """Filter by an AR model: e(t) - sum phi(i) e(t - i); NaN where any of them is missing, and at the start."""
    result = values.copy()
    order = coefficients.size
    for i, phi in enumerate(coefficients, start=1):
        result[i:] = result[i:] - phi * values[:-i]
    result[:order] = np.nan
    return result


def rank_normal(values: Floats) -> Floats:
    """Replace values by the normal quantiles of their ranks: a few wild samples then weigh like any others."""
    good = np.isfinite(values)
    result = np.full_like(values, np.nan)
    ranks = rankdata(values[good])
    result[good] = ndtri((ranks - 0.5) / max(ranks.size, 1))
    return result
