"""The design matrix of a victim: all that moves its cost per unit of work without any neighbour's doing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.interpolate import BSpline
from scipy.linalg.lapack import dposv
from scipy.signal import lfilter

from analyzer.contention.series import Bools, Card, Floats, Indices, Lane, Signal, fill

_DAY_SECONDS = 86_400.0
_HOUR_SECONDS = 3_600.0
_TREND_KNOT_SECONDS = 4 * _HOUR_SECONDS
_DAY_HARMONICS = 4
_HOUR_HARMONICS = 8
_ROUNDING = 1e-9  # root mean square of a column below which it is rounding
_RIDGE = 1e-9  # of a column of length 1
_WAVES_STEP = 720  # samples by which lengths of waves are rounded up
_STEP_SAMPLES = 30  # a stay shorter than this gets no level of its own


@dataclass(frozen=True, slots=True)
class Controls:
    """Rows (k, n) without gaps, one a control, and what they stand for."""

    table: Floats
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
    blocks: list[tuple[str, Floats]] = [("level", np.ones((1, n)))]
    load = _load(victim)
    if load is not None:
        name, values = load
        blocks.append((name, _load_spline(fill(values[cut]))))
    blocks += _calendar(n, interval_seconds)
    clock = fill(card.clock[cut])
    if np.ptp(clock) > 0:
        blocks.append(("clock", np.log(clock / clock.max())[None]))
    if np.isfinite(card.unattributed[cut]).mean() > 0.5:
        other = fill(card.unattributed[cut])
        blocks.append(("unattributed activity", np.stack([other, ewma(other, 5)])))
    quota = fill(victim.quota[cut])
    if np.ptp(quota) > 0 and quota.min() > 0:
        blocks.append(("own quota", np.log(quota)[None]))
    stays = [first - cut.start for first, last in victim.lives[1:] if last - first + 1 >= _STEP_SAMPLES]
    steps = [_since(first, n) for first in stays if 0 < first < n]
    if steps:
        blocks.append(("restarts", np.stack(steps)))
    return Controls(np.concatenate([block for _, block in blocks]), tuple(name for name, _ in blocks[1:]))


def shapes_of(lane: Lane, cut: slice) -> Floats:
    """Rows (3, n) of a co-runner: its activity, raw and smoothed over 3 and 8 samples."""
    if lane.activity is None:
        raise ValueError("expected a lane with a measured activity")
    return _shapes(lane.activity)[:, cut]


@lru_cache(maxsize=64)
def _shapes(activity: Signal) -> Floats:
    """Return the shapes over the whole window: the same for all victims (not to be written to)."""
    values = fill(activity.values)
    return np.stack([values, ewma(values, 3), ewma(values, 8)])


class Projection:
    """Takes the span of chosen columns out of series (Frisch-Waugh-Lovell), from one Gram matrix a set of rows.

    The pairs of a victim share most of their columns; with the Gram matrix at hand a pair costs one small Cholesky
    factor and one product.

    Args:
        table: (p, n), no gaps, one row a column of the regression (rows lie together in memory); it is scaled in place.
    """

    def __init__(self, table: Floats) -> None:
        lengths = np.sqrt(np.einsum("ij,ij->i", table, table))
        real = lengths > _ROUNDING * math.sqrt(table.shape[1])
        table *= np.divide(1.0, lengths, out=np.zeros_like(lengths), where=real)[:, None]
        self._table = table
        self._lengths = np.where(real, lengths, 0.0)
        self._gram = table @ table.T
        self._grams: dict[bytes, Floats] = {}
        self._crosses: dict[bytes, Floats] = {}

    def series(self, at: slice) -> Floats:
        """Return rows of the table in their own units."""
        return np.asarray(self._table[at] * self._lengths[at, None])

    def residual(self, values: Floats, rows: Bools, pick: Indices | None = None) -> Floats:
        """Return `values` (n,) less their projection on the table, fitted on `rows`.

        Args:
            values: finite on `rows`; NaN elsewhere stays NaN.
            rows: where the projection is fitted.
            pick: which rows of the table are taken out; None: all.
        """
        cross = self._table @ np.where(rows, values, 0.0)
        return np.asarray(values - self._weights(self._on(rows), cross, pick) @ self._table)

    def pair(self, outcome: Floats, rows: Bools, own: slice, pick: Indices) -> Floats:
        """Return the residuals of an outcome, fitted on `rows`, and of the series `own`, fitted everywhere.

        The same as `residual` of each, at the cost of one product: the Gram matrix holds what the series share.

        Args:
            outcome: (n,), finite on `rows`, always the same series of this projection.
            rows: where the outcome is known.
            own: the suspect's rows of the table, none of them picked.
            pick: which rows of the table are taken out.

        Returns:
            (1 + k, n): the outcome's, then those of `own`, in their own units.
        """
        key = rows.tobytes()
        if key not in self._crosses:
            self._crosses[key] = self._table @ np.where(rows, outcome, 0.0)
        lengths = self._lengths[own]
        left = np.empty((1 + lengths.size, self._table.shape[0]))
        left[0] = self._weights(self._on(rows), self._crosses[key], pick)
        left[1:] = (self._weights(self._gram, self._gram[:, own], pick) * lengths).T
        left[1:, own] -= np.diag(lengths)
        result = np.asarray(left @ self._table)
        result[0] = outcome - result[0]
        result[1:] *= -1.0
        return result

    def rank(self, rows: Bools, pick: Indices | None = None) -> int:
        """Dimensions that the table takes on `rows`."""
        gram = self._on(rows)
        return int(np.linalg.matrix_rank(gram if pick is None else gram[np.ix_(pick, pick)], tol=1e-8, hermitian=True))

    def _weights(self, gram: Floats, cross: Floats, pick: Indices | None) -> Floats:
        if pick is not None:
            gram, whole, cross = gram[np.ix_(pick, pick)], np.zeros_like(cross), cross[pick]
        else:
            gram = gram.copy()
        # The ridge keeps repeated columns solvable and moves nothing else by more than rounding.
        gram.flat[:: gram.shape[0] + 1] += _RIDGE
        _, solution, info = dposv(gram.T, cross, overwrite_a=1)  # symmetric: turned, it lies as LAPACK reads it
        if info != 0:
            raise ValueError(f"expected finite columns to take out, got some that are not (LAPACK dposv: {info})")
        if pick is None:
            return np.asarray(solution)
        whole[pick] = solution
        return np.asarray(whole)

    def _on(self, rows: Bools) -> Floats:
        key = rows.tobytes()
        if key not in self._grams:
            absent = rows.size - np.count_nonzero(rows)
            if absent < rows.size / 2:  # taking few rows off is cheaper than adding many up
                missing = self._table[:, ~rows]
                self._grams[key] = self._gram - missing @ missing.T
            else:
                inside = self._table[:, rows]
                self._grams[key] = inside @ inside.T
        return self._grams[key]


def _load(victim: Lane) -> tuple[str, Floats] | None:
    """Offered load; for a latency without one, the victim's own activity stands in."""
    if victim.load is not None:
        return "offered load", victim.load
    if victim.cost is not None and victim.cost.name.startswith("latency") and victim.activity is not None:
        return "own activity", victim.activity.values
    return None


def _load_spline(load: Floats) -> Floats:
    scaled = load / max(float(np.abs(load).max()), 1e-12)
    knots = np.unique(np.quantile(scaled, [0.25, 0.5, 0.75, 0.92]))
    hinges = [np.maximum(scaled - knot, 0.0) for knot in knots]
    return np.stack([scaled, *hinges, np.concatenate([scaled[:1], scaled[:-1]])])


@lru_cache(maxsize=16)
def _calendar(n: int, interval_seconds: float) -> tuple[tuple[str, Floats], ...]:
    """Hour of day, minute of hour, trend: the same for all that worked equally long (not to be written to)."""
    length = n * interval_seconds
    blocks = []
    if length >= _DAY_SECONDS:
        blocks.append(("hour of day", _harmonics(n, _DAY_SECONDS / interval_seconds, _DAY_HARMONICS)))
    # Harmonics above half the sampling rate would only repeat lower ones.
    count = min(_HOUR_HARMONICS, int(_HOUR_SECONDS / interval_seconds / 2))
    if length >= 6 * _HOUR_SECONDS and count > 0:
        blocks.append(("minute of hour", _harmonics(n, _HOUR_SECONDS / interval_seconds, count)))
    pieces = int(length // _TREND_KNOT_SECONDS)
    blocks.append(("trend", _trend(n, pieces) if pieces >= 1 else np.linspace(-1.0, 1.0, n)[None]))
    return tuple(blocks)


def _harmonics(n: int, period_samples: float, count: int) -> Floats:
    return _waves(-(-n // _WAVES_STEP) * _WAVES_STEP, period_samples, count)[:, :n]


@lru_cache(maxsize=16)
def _waves(n: int, period_samples: float, count: int) -> Floats:
    """Return sines and cosines of a round length: those of all shorter stretches are their beginning."""
    angles = 2.0 * np.pi * np.outer(np.arange(1, count + 1), np.arange(n) / period_samples)
    return np.concatenate([np.sin(angles), np.cos(angles)])


def _trend(n: int, pieces: int) -> Floats:
    """Cubic B-splines over `pieces` equal stretches."""
    inner = np.linspace(0.0, 1.0, pieces + 1)
    knots = np.concatenate([[0.0] * 3, inner, [1.0] * 3])
    at = np.linspace(0.0, 1.0, n)
    return np.asarray(BSpline.design_matrix(at, knots, 3).T.toarray(), dtype=np.float64)


def _since(first: int, n: int) -> Floats:
    return (np.arange(n) >= first).astype(np.float64)
