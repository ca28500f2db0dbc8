"""The test: does the victim's noise follow the suspect's activity more than it follows the same activity shifted?

Shifting the suspect in a circle keeps its own rhythm, bursts and gaps and breaks only the moment; the share of shifts
that do as well as the true one is the p-value. One Fourier transform gives all shifts at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import fft
from scipy.special import stdtr

from analyzer.contention.series import Floats

MAX_LAG = 6
MIN_SHIFT = 60
SHIFT_SAMPLES = 600  # fewer make too few independent shifts: Student's t has more power, and is as honest
_NEARLY_ALL = 0.95
_FEW_EXCEEDING = 10
_EULER = 0.5772156649


@dataclass(frozen=True, slots=True)
class ShiftTest:
    """Statistic and p of one pair.

    Attributes:
        p: one-sided p-value of a slow-down.
        z: the statistic: the largest standardised correlation.
        shape: which shape of the suspect won: 0 raw, 1 and 2 the smoothed ones.
        lag: samples by which the victim follows (raw shape), else 0.
        correlation: plain correlation at the winning shape and lag.
    """

    p: float
    z: float
    shape: int
    lag: int
    correlation: float


def masked_correlations(outcome: Floats, regressors: Sequence[Floats]) -> Floats:
    """Return r(k) = sum y(t) a(t - k) / sqrt(sum y(t)^2 m(t - k) * sum w(t) a(t - k)^2) for every circular shift k.

    Args:
        outcome: y, length n, NaN where absent (mask w).
        regressors: a, each of length n, all NaN at the same samples (mask m).

    Returns:
        One row of length n for each regressor.
    """
    n = outcome.size
    w, m = np.isfinite(outcome), np.isfinite(regressors[0])
    # Single precision is far finer than the noise of a correlation, and twice as fast.
    table = np.stack([outcome, *regressors], dtype=np.float32, casting="same_kind")
    table[~np.isfinite(table)] = 0.0
    spectra = fft.rfft(table, axis=1)
    cross = fft.irfft(spectra[0] * spectra[1:].conj(), n=n, axis=1)
    squares = table * table
    if min(np.count_nonzero(w), np.count_nonzero(m)) > _NEARLY_ALL * n:  # a few samples move the scale hardly
        scale = np.sqrt(squares[0].sum() * squares[1:].sum(axis=1))[:, None]
    else:
        masks = fft.rfft(np.stack([w, m]).astype(np.float32), axis=1)
        powers = fft.rfft(squares, axis=1)
        power_y = fft.irfft(powers[0] * masks[1].conj(), n=n)
        power_a = fft.irfft(masks[0] * powers[1:].conj(), n=n, axis=1)
        scale = np.sqrt(np.maximum(power_y, 0.0) * np.maximum(power_a, 0.0))
    return np.asarray(np.divide(cross, scale, out=np.zeros_like(cross), where=scale > 1e-6))


def shift_test(outcome: Floats, shapes: tuple[Floats, ...]) -> ShiftTest:
    """Test one pair against all circular shifts of the suspect by at least an hour of samples.

    Args:
        outcome: whitened victim residual (n >= SHIFT_SAMPLES), NaN absent.
        shapes: the suspect's residual filtered in the same way: raw, then smoothed shapes (used at lag 0 only).
    """
    n = outcome.size
    plain = masked_correlations(outcome, shapes)
    spread = plain[:, MIN_SHIFT : n - MIN_SHIFT].std(axis=1, keepdims=True)
    standardised = np.divide(plain, spread, out=np.zeros_like(plain), where=spread > 0)
    raw = standardised[0]
    winner = int(np.argmax([*raw[: MAX_LAG + 1], *standardised[1:, 0]]))
    best = standardised[1:, : n - MIN_SHIFT].max(axis=0)
    for lag in range(MAX_LAG + 1):
        np.maximum(best, raw[lag : lag + best.size], out=best)
    observed = float(best[0])
    null = best[MIN_SHIFT:]
    exceeding = np.count_nonzero(null >= observed)
    p = (1.0 + exceeding) / (1.0 + null.size)
    if exceeding < _FEW_EXCEEDING:
        p = min(p, _gumbel_tail(observed, null))
    won = max(0, winner - MAX_LAG)
    lag = winner if won == 0 else 0
    return ShiftTest(p, observed, won, lag, float(plain[won][lag]))


def short_test(outcome: Floats, shapes: tuple[Floats, ...], used_dimensions: int, lags: int) -> ShiftTest:
    """Test a pair in a short window: Student's t of the correlation, for the best shape and lag, by Bonferroni.

    Args:
        outcome: whitened victim residual, NaN absent.
        shapes: the suspect's residual filtered in the same way: raw, then smoothed shapes (used at lag 0 only).
        used_dimensions: what controls and noise model have taken.
        lags: how many samples the victim may follow the raw shape by.

    Raises:
        ValueError: no degrees of freedom are left.
    """
    results = []
    for number, lag in [(0, lag) for lag in range(lags + 1)] + [(number, 0) for number in range(1, len(shapes))]:
        shape = np.concatenate([np.full(lag, np.nan), shapes[number][: outcome.size - lag]])
        both = np.isfinite(outcome) & np.isfinite(shape)
        freedom = int(np.count_nonzero(both)) - used_dimensions - 2
        if freedom < 1:
            raise ValueError(f"expected more samples than the {used_dimensions} controls, got {np.count_nonzero(both)}")
        y, a = outcome[both] - outcome[both].mean(), shape[both] - shape[both].mean()
        scale = math.sqrt(float(y @ y) * float(a @ a))
        r = float(y @ a) / scale if scale > 0 else 0.0
        z = r * math.sqrt(freedom / max(1.0 - r * r, 1e-12))
        results.append(ShiftTest(float(stdtr(freedom, -z)), z, number, lag, r))
    best = min(results, key=lambda result: result.p)
    return ShiftTest(min(1.0, best.p * len(results)), best.z, best.shape, best.lag, best.correlation)


def _gumbel_tail(observed: float, null: Floats) -> float:
    """P(S >= observed) for a maximum, fitted by moments; without it p could not fall below 1 / number of shifts."""
    scale = float(np.std(null)) * math.sqrt(6.0) / math.pi
    if scale <= 0:
        return 1.0
    location = float(np.mean(null)) - _EULER * scale
    return -math.expm1(-math.exp(-(observed - location) / scale))
