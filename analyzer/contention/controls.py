"""The design matrix of a victim: all that moves its cost per unit of work without any neighbour's doing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.interpolate import BSpline
from scipy.linalg import cho_factor, cho_solve
from scipy.signal import lfilter

from analyzer.contention.series import Bools, Card, Floats, Lane, fill

_DAY_SECONDS = 86_400.0
_HOUR_SECONDS = 3_600.0
_TREND_KNOT_SECONDS = 4 * _HOUR_SECONDS
_DAY_HARMONICS = 4
_HOUR_HARMONICS = 8
_ROUNDING = 1e-9  # root mean square of a column below which it is rounding
_RIDGE = 1e-9  # of a column of length 1
_STEP_SAMPLES = 30  # a stay shorter than this gets no level of its own


@dataclass(frozen=True, slots=True)
class Controls:
    """Columns (n, k) without gaps, and what they stand for."""

    columns: Floats
    names: tuple[str, ...]


def ewma(values: Floats, span: int) -> Floats:
    """Exponentially weighted mean over about `span` samples, started at the first value (no gaps allowed)."""
    weight = 2.0 / (span + 1.0)
    smoothed, _ = lfilter([weight], [1.0, weight - 1.0], values, zi=[(1.0 - weight) * values[0]])
    return np.asarray(smoothed, dtype=np.float64)


def victim_controls(victim: Lane, card: Card, cut: slice, interval_seconds: float) -> Controls:
    """Build the controls that do not depend on the suspect, for the stretch `cut` of the window.

    Offered load (linear spline at its quartiles, and its lag), hour of day, minute of hour, a slow trend, the card's
    clock, activity that nobody accounts for, the victim's own quota, and a level for each of its stays.
    """
    n = cut.stop - cut.start
    blocks: list[tuple[str, Floats]] = [("level", np.ones((n, 1)))]
    load = _load(victim)
    if load is not None:
        name, values = load
        blocks.append((name, _load_spline(fill(values[cut]))))
    blocks += _calendar(n, interval_seconds)
    clock = fill(card.clock[cut])
    if np.ptp(clock) > 0:
        blocks.append(("clock", np.log(clock / clock.max())[:, None]))
    if np.isfinite(card.unattributed[cut]).mean() > 0.5:
        other = fill(card.unattributed[cut])
        blocks.append(("unattributed activity", np.column_stack([other, ewma(other, 5)])))
    quota = fill(victim.quota[cut])
    if np.ptp(quota) > 0 and quota.min() > 0:
        blocks.append(("own quota", np.log(quota)[:, None]))
    stays = [first - cut.start for first, last in victim.lives[1:] if last - first + 1 >= _STEP_SAMPLES]
    steps = [_since(first, n) for first in stays if 0 < first < n]
    if steps:
        blocks.append(("restarts", np.column_stack(steps)))
    return Controls(np.column_stack([block for _, block in blocks]), tuple(name for name, _ in blocks[1:]))


def neighbour_columns(lane: Lane) -> Floats:
    """Columns (n, 3) of a co-runner: its activity, raw and smoothed over 3 and 8 samples."""
    if lane.activity is None:
        raise ValueError("expected a lane with a measured activity")
    values = fill(lane.activity.values)
    return np.column_stack([values, ewma(values, 3), ewma(values, 8)])


class Projection:
    """Takes the span of chosen columns out of series (Frisch-Waugh-Lovell), from one Gram matrix a set of rows.

    The pairs of a victim share most of their columns; with the Gram matrix at hand a pair costs one small Cholesky
    factor and one product.

    Args:
        columns: (n, p), no gaps.
    """

    def __init__(self, columns: Floats) -> None:
        scale = np.sqrt(np.einsum("ij,ij->j", columns, columns))
        self._columns = columns / np.where(scale > _ROUNDING * math.sqrt(columns.shape[0]), scale, np.inf)
        self._grams: dict[bytes, tuple[Floats, Floats]] = {}

    def residual(self, values: Floats, rows: Bools, pick: Floats | None = None) -> Floats:
        """Return `values` (n,) or (n, k) less their projection on the columns, fitted on `rows`.

        Args:
            values: finite on `rows`; NaN elsewhere stays NaN.
            rows: where the projection is fitted.
            pick: (p, q) mixes the columns into those that are taken out; None: all as they are.
        """
        inside, gram = self._on(rows)
        chosen = values if rows.all() else values[rows]
        cross = inside.T @ chosen
        if pick is not None:
            gram, cross = pick.T @ gram @ pick, pick.T @ cross
        weights = np.asarray(cho_solve(cho_factor(_ridged(gram), check_finite=False), cross, check_finite=False))
        return np.asarray(values - self._columns @ (weights if pick is None else pick @ weights))

    def rank(self, rows: Bools, pick: Floats | None = None) -> int:
        """Dimensions that the columns take on `rows`."""
        _, gram = self._on(rows)
        return int(np.linalg.matrix_rank(gram if pick is None else pick.T @ gram @ pick, tol=1e-8, hermitian=True))

    def _on(self, rows: Bools) -> tuple[Floats, Floats]:
        key = rows.tobytes()
        if key not in self._grams:
            inside = self._columns if rows.all() else self._columns[rows]
            self._grams[key] = (inside, inside.T @ inside)
        return self._grams[key]


def _ridged(gram: Floats) -> Floats:
    """Add what keeps repeated columns solvable and moves nothing else by more than rounding."""
    ridged = gram.copy()
    ridged.flat[:: gram.shape[0] + 1] += _RIDGE
    return ridged


def _load(victim: Lane) -> tuple[str, Floats] | None:
    """Offered load; for a latency without one, the victim's own activity stands in."""
    if victim.load is not None:
        return "offered load", victim.load
    if victim.cost is not None and victim.cost.name.startswith("latency") and victim.activity is not None:
        return "own activity", victim.activity.values
    return None


def _load_spline(load: Floats) -> Floats:
    scaled = load / max(float(np.abs(load).max()), 1e-12)
    knots = np.unique(np.quantile(scaled, [0.25, 0.5, 0.75]))
    hinges = [np.maximum(scaled - knot, 0.0) for knot in knots]
    return np.column_stack([scaled, *hinges, np.concatenate([scaled[:1], scaled[:-1]])])


@lru_cache(maxsize=16)
def _calendar(n: int, interval_seconds: float) -> tuple[tuple[str, Floats], ...]:
    """Hour of day, minute of hour, trend: the same for all that worked equally long (not to be written to)."""
    seconds = np.arange(n, dtype=np.float64) * interval_seconds
    length = n * interval_seconds
    blocks = []
    if length >= _DAY_SECONDS:
        blocks.append(("hour of day", _harmonics(np.asarray(seconds / _DAY_SECONDS), _DAY_HARMONICS)))
    # Harmonics above half the sampling rate would only repeat lower ones.
    count = min(_HOUR_HARMONICS, int(_HOUR_SECONDS / interval_seconds / 2) - 1)
    if length >= 6 * _HOUR_SECONDS and count > 0:
        blocks.append(("minute of hour", _harmonics(np.asarray(seconds / _HOUR_SECONDS), count)))
    pieces = int(length // _TREND_KNOT_SECONDS)
    blocks.append(("trend", _trend(n, pieces) if pieces >= 1 else np.linspace(-1.0, 1.0, n)[:, None]))
    return tuple(blocks)


def _harmonics(phase: Floats, count: int) -> Floats:
    angles = 2.0 * np.pi * np.outer(phase, np.arange(1, count + 1))
    return np.column_stack([np.sin(angles), np.cos(angles)])


def _trend(n: int, pieces: int) -> Floats:
    """Cubic B-splines over `pieces` equal stretches."""
    inner = np.linspace(0.0, 1.0, pieces + 1)
    knots = np.concatenate([[0.0] * 3, inner, [1.0] * 3])
    at = np.linspace(0.0, 1.0, n)
    return np.asarray(BSpline.design_matrix(at, knots, 3).toarray(), dtype=np.float64)


def _since(first: int, n: int) -> Floats:
    return (np.arange(n) >= first).astype(np.float64)
