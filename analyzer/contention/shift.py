"""The test: does the victim's noise follow the suspect's activity more than it follows the same activity shifted?

Shifting the suspect in a circle keeps its own rhythm, bursts and gaps and breaks only the moment; the share of shifts
that do as well as the true one is the p-value. One Fourier transform gives all shifts at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import fft
from scipy.stats import t as student

from analyzer.contention.series import Floats

MAX_LAG = 6
MIN_SHIFT = 60
SHIFT_SAMPLES = 200  # a window shorter than this has too few shifts
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


def masked_correlation(outcome: Floats, regressor: Floats) -> Floats:
    """Return r(k) = sum y(t) a(t - k) / sqrt(sum y(t)^2 m(t - k) * sum w(t) a(t - k)^2) for every circular shift k.

    Args:
        outcome: y, length n, NaN where absent (mask w).
        regressor: a, length n, NaN where absent (mask m).
    """
    n = outcome.size
    w, m = np.isfinite(outcome).astype(np.float64), np.isfinite(regressor).astype(np.float64)
    y, a = np.nan_to_num(outcome), np.nan_to_num(regressor)
    spectra = fft.rfft(np.stack([y, y * y, w, a, m, a * a]), axis=1)
    products = np.stack(
        [spectra[0] * spectra[3].conj(), spectra[1] * spectra[4].conj(), spectra[2] * spectra[5].conj()]
    )
    cross, power_y, power_a = fft.irfft(products, n=n, axis=1)
    scale = np.sqrt(np.maximum(power_y, 0.0) * np.maximum(power_a, 0.0))
    return np.asarray(np.divide(cross, scale, out=np.zeros(n), where=scale > 1e-12))


def shift_test(outcome: Floats, shapes: tuple[Floats, ...]) -> ShiftTest:
    """Test one pair against all circular shifts of the suspect by at least an hour of samples.

    Args:
        outcome: whitened victim residual (n >= SHIFT_SAMPLES), NaN absent.
        shapes: the suspect's residual filtered in the same way: raw, then smoothed shapes (used at lag 0 only).
    """
    n = outcome.size
    standardised = []
    plain = []
    for shape in shapes:
        r = masked_correlation(outcome, shape)
        spread = float(np.std(r[MIN_SHIFT : n - MIN_SHIFT]))
        plain.append(r)
        standardised.append(r / spread if spread > 0 else np.zeros(n))
    raw = standardised[0]
    candidates = np.stack([np.roll(raw, -lag) for lag in range(MAX_LAG + 1)] + standardised[1:])
    best = candidates.max(axis=0)
    winner = int(np.argmax(candidates[:, 0]))
    observed = float(best[0])
    null = best[MIN_SHIFT : n - MIN_SHIFT]
    exceeding = int(np.sum(null >= observed))
    p = (1.0 + exceeding) / (1.0 + null.size)
    if exceeding < _FEW_EXCEEDING:
        p = min(p, _gumbel_tail(observed, null))
    won = max(0, winner - MAX_LAG)
    lag = winner if won == 0 else 0
    return ShiftTest(p, observed, won, lag, float(plain[won][lag]))


def short_test(outcome: Floats, shapes: tuple[Floats, ...], used_dimensions: int) -> ShiftTest:
    """Test a pair in a short window: Student's t of the correlation at lag 0, for the best shape, by Bonferroni.

    Raises:
        ValueError: no degrees of freedom are left.
    """
    results = []
    for number, shape in enumerate(shapes):
        both = np.isfinite(outcome) & np.isfinite(shape)
        freedom = int(both.sum()) - used_dimensions - 2
        if freedom < 1:
            raise ValueError(f"expected more samples than the {used_dimensions} controls, got {int(both.sum())}")
        y, a = outcome[both] - outcome[both].mean(), shape[both] - shape[both].mean()
        scale = math.sqrt(float(y @ y) * float(a @ a))
        r = float(y @ a) / scale if scale > 0 else 0.0
        z = r * math.sqrt(freedom / max(1.0 - r * r, 1e-12))
        results.append(ShiftTest(float(student.sf(z, freedom)), z, number, 0, r))
    best = min(results, key=lambda result: result.p)
    return ShiftTest(min(1.0, best.p * len(shapes)), best.z, best.shape, 0, best.correlation)


def _gumbel_tail(observed: float, null: Floats) -> float:
    """P(S >= observed) for a maximum, fitted by moments; without it p could not fall below 1 / number of shifts."""
    scale = float(np.std(null)) * math.sqrt(6.0) / math.pi
    if scale <= 0:
        return 1.0
    location = float(np.mean(null)) - _EULER * scale
    return -math.expm1(-math.exp(-(observed - location) / scale))
