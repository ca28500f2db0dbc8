"""The design matrix of a victim: all that moves its cost per unit of work without any neighbour's doing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.interpolate import BSpline
from scipy.signal import lfilter

from analyzer.contention.series import Bools, Card, Floats, Lane, fill

_DAY_SECONDS = 86_400.0
_HOUR_SECONDS = 3_600.0
_TREND_KNOT_SECONDS = 4 * _HOUR_SECONDS
_DAY_HARMONICS = 4
_HOUR_HARMONICS = 8
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
    """Takes the span of some columns out of series, on the rows where a series is known (Frisch-Waugh-Lovell)."""

    def __init__(self, columns: Floats) -> None:
        scale = np.nanmax(np.abs(columns), axis=0, initial=0.0)
        real = scale > 1e-9  # smaller is rounding
        self._columns = columns[:, real] / scale[real]
        self._bases: dict[bytes, Floats] = {}

    def rank(self, rows: Bools) -> int:
        """Dimensions that the columns take on `rows`."""
        return int(self._basis(rows).shape[1])

    def residual(self, values: Floats, rows: Bools) -> Floats:
        """Return `values` (n,) or (n, k) less their projection, fitted on `rows`; NaN elsewhere."""
        basis = self._basis(rows)
        inside = values[rows]
        result = np.full_like(values, np.nan)
        result[rows] = inside - basis @ (basis.T @ inside)
        return result

    def _basis(self, rows: Bools) -> Floats:
        key = rows.tobytes()
        if key not in self._bases:
            columns = self._columns[rows]
            # Eigenvectors of the small Gram matrix: an order faster than the SVD of the tall one, exact enough here.
            power, directions = np.linalg.eigh(columns.T @ columns)
            keep = power > 1e-9 * max(float(power.max(initial=0.0)), 1e-300)
            self._bases[key] = columns @ (directions[:, keep] / np.sqrt(power[keep]))
        return self._bases[key]


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


def _calendar(n: int, interval_seconds: float) -> list[tuple[str, Floats]]:
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
    return blocks


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
