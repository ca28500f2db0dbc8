"""Who moves whom: two series that move together in the same minute do not say it by time alone.

A passive record settles it only where the suspect shows a will of its own. Each look is blind where another sees:

- *time*: after prewhitening by the suspect's own rhythm (Box and Jenkins), is the peak of the cross-correlation before
  or after lag 0?
- *state*: where the suspect has two states (a batch job runs or not), the state alone is an instrument: it must move
  the victim as strongly as all of the suspect's activity does. Where the victim, too, lies in two states that stand
  apart by it, no reaction made it so: a reaction splits the victim's noise in two, and leaves no gap.
- *shape* (pairwise LiNGAM; Hyvarinen and Smith, JMLR 14, 2013; Vuong's z): in the causal direction the residual is
  independent of the cause. Its first half, whether the suspect is plainer by itself than with the victim taken out,
  must agree: a suspect that mirrors the victim's noise passes the whole but not that half.
- *rhythm*: what is moved carries the rhythm of what moves it. Forward, the victim is the suspect's own rhythm plus the
  victim's noise; backward, the suspect is the victim's noise plus a rhythm of its own. With noises of unlike memory
  only one of the two fits (Vuong's z between two autoregressive models of equal size).
- *foresight*: a suspect that reacts to slowness is announced by it: while the suspect is low, the victim's noise tells
  whether it will be high in the next sample. Nothing announces a suspect that moves by itself.
- *dose*: the suspect's small movements within its low state, which no reaction explains, move the victim too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.ndimage import gaussian_filter1d
from scipy.stats import rankdata

from analyzer.contention.series import Bools, Floats
from analyzer.contention.whiten import fit_ar, whiten

_LEAD = 4  # samples by which a reaction may come late
_LAG = 8
_MEMORY = 3  # lags of both series that innovations are taken against
_FEW = 24  # innovations, below which a density is not worth estimating
_GRID = 512
TWO_STATES = 4.0  # distance from which a series is either up or down


@dataclass(frozen=True, slots=True)
class Direction:
    """Evidence on direction; z-values are positive where the suspect moves the victim.

    Attributes:
        lead_z: highest prewhitened cross-correlation where the suspect follows the victim by 1 to 4 samples.
        lag_z: highest one where the victim follows the suspect by 1 to 8 samples.
        same_z: the one in the same sample.
        states: distance of the suspect's two states in their common spread (Ashman's D; a bell split in two has 2.6).
        state_z: the victim's response to the state alone.
        state_share: that response against the response to all of the suspect's activity; 1 where they agree.
        gap: distance of the victim in the suspect's two states, in its spread within them (Ashman's D).
        shape_z: the likelihood ratio of the two directions; NaN with too few samples.
        own_z: the half of it that speaks of the suspect alone.
        rhythm_z: the likelihood ratio of the two directions by the memory of both series.
        memory: correlation of the suspect's state with the one before.
        foresight_z: how well the victim's noise foretells the suspect's next state.
        dose_z: the victim's response to the suspect's movements inside its low state.
    """

    lead_z: float
    lag_z: float
    same_z: float
    states: float
    state_z: float
    state_share: float
    gap: float
    shape_z: float
    own_z: float
    rhythm_z: float
    memory: float
    foresight_z: float
    dose_z: float


def direction(
    victim: Floats, suspect: Floats, activity: Floats, project: Callable[[Floats], Floats], lag: int
) -> Direction:
    """Weigh the direction of one pair.

    Args:
        victim: residual of the victim after the controls, NaN absent.
        suspect: residual of the suspect's activity after the same controls, NaN absent.
        activity: the suspect's activity as measured, NaN absent.
        project: takes the controls out of a series.
        lag: samples by which the victim follows; all but time is judged there.
    """
    lead_z, same_z, lag_z = _peaks(victim, suspect)
    moved = shifted(suspect, lag)
    raw = _split(activity)
    left = _split(suspect)
    if raw.distance >= left.distance:
        high, instrument = shifted(raw.high, lag), shifted(project(raw.high), lag)
    else:
        high, instrument = shifted(left.high, lag), shifted(left.high, lag)
    state_z, state_share, gap = _state(victim, moved, instrument)
    shape_z, own_z = _shape(victim, moved)
    return Direction(
        lead_z,
        lag_z,
        same_z,
        max(raw.distance, left.distance),
        state_z,
        state_share,
        gap,
        shape_z,
        own_z,
        _rhythm(victim, moved),
        _memory(high),
        _foresight(victim, moved, high),
        _dose(victim, shifted(activity, lag), high),
    )


def shifted(values: Floats, lag: int) -> Floats:
    """Return the series as it was `lag` samples before."""
    if lag == 0:
        return values
    moved = np.full_like(values, np.nan)
    moved[lag:] = values[:-lag]
    return moved


def two_states(activity: Floats) -> float:
    """Return the distance of a series' two states in their common spread (Ashman's D)."""
    return _split(activity).distance


@dataclass(frozen=True, slots=True)
class _Split:
    high: Floats  # 1 in the high state, 0 in the low one, NaN absent
    distance: float


def _split(values: Floats) -> _Split:
    good = np.isfinite(values)
    a = values[good]
    if a.size < _FEW:
        return _Split(np.where(good, 0.0, np.nan), 0.0)
    cut = _two_means(a)
    high = a > cut
    state = np.where(good, (values > cut).astype(np.float64), np.nan)
    if min(high.sum(), (~high).sum()) < max(4, 0.01 * a.size):
        return _Split(state, 0.0)
    spread = math.sqrt((float(a[high].var()) + float(a[~high].var())) / 2.0)
    return _Split(state, float(a[high].mean() - a[~high].mean()) / max(spread, 1e-9))


def _state(victim: Floats, suspect: Floats, instrument: Floats) -> tuple[float, float, float]:
    both = np.isfinite(victim) & np.isfinite(suspect) & np.isfinite(instrument)
    if both.sum() < _FEW:
        return 0.0, 0.0, 0.0
    rhythm = fit_ar(victim, 1 if both.mean() > 0.6 else 0)
    z = _correlation_z(whiten(victim, rhythm), whiten(instrument, rhythm), 0)
    y, a, s = (series[both] - series[both].mean() for series in (victim, suspect, instrument))
    by_state = float(y @ s) / max(float(a @ s), 1e-12)
    by_all = float(y @ a) / max(float(a @ a), 1e-12)
    step = float(y @ s) / max(float(s @ s), 1e-12)
    return z, by_state / by_all if by_all > 0 else 0.0, step / max(float((y - step * s).std()), 1e-9)


def _foresight(victim: Floats, suspect: Floats, high: Floats) -> float:
    """Correlate what the suspect does not explain in the victim with the suspect's next state, in either state."""
    noise = _unexplained(victim, suspect)
    now, following = high[:-1], high[1:]
    scores = []
    for state in (0.0, 1.0):
        inside = (now == state) & np.isfinite(following) & np.isfinite(noise[:-1])
        u, v = noise[:-1][inside], following[inside]
        if u.size < 8 or v.std() == 0 or u.std() == 0:
            continue
        scores.append(float(np.corrcoef(u, v)[0, 1]) * math.sqrt(u.size))
    return sum(scores) / math.sqrt(len(scores)) if scores else 0.0


def _dose(victim: Floats, activity: Floats, high: Floats) -> float:
    """Rank correlation of the small steps from sample to sample inside the low state.

    Starts and stops must not speak for it, nor the traces that projecting out the controls leaves in both series:
    hence steps of the activity as measured, and of those only the ordinary ones.
    """
    y, a = np.diff(victim), np.diff(np.where(high == 0.0, activity, np.nan))
    both = np.isfinite(y) & np.isfinite(a)
    if both.sum() < _FEW:
        return 0.0
    y, a = y[both], a[both]
    ordinary = _ordinary(y, 3.0) & _ordinary(a, 2.0)
    y, a = y[ordinary], a[ordinary]
    if a.size < _FEW or np.ptp(a) == 0 or np.ptp(y) == 0:
        return 0.0
    return float(np.corrcoef(rankdata(y), rankdata(a))[0, 1]) * math.sqrt(a.size)


def _ordinary(values: Floats, width: float) -> Bools:
    centre = float(np.median(values))
    return np.asarray(np.abs(values - centre) <= width * 1.4826 * float(np.median(np.abs(values - centre))))


def _memory(high: Floats) -> float:
    """Correlation of the state with the one before: 0 where it is thrown anew in each sample."""
    both = np.isfinite(high[1:]) & np.isfinite(high[:-1])
    u, v = high[1:][both], high[:-1][both]
    if u.size < 8 or u.std() == 0 or v.std() == 0:
        return 0.0
    return float(np.corrcoef(u, v)[0, 1])


def _rhythm(victim: Floats, suspect: Floats) -> float:
    """Vuong's z of "the victim is moved by the suspect" against "the suspect is moved by the victim"."""
    both = np.isfinite(victim) & np.isfinite(suspect)
    if both.sum() < 4 * _FEW:
        return math.nan
    y, a = (np.where(both, series - series[both].mean(), np.nan) for series in (victim, suspect))
    order = _MEMORY if both.mean() > 0.6 else 1
    forward = _fit(a, order) + _fit(_moved_by(y, a, order), order)
    backward = _fit(y, order) + _fit(_moved_by(a, y, order), order)
    ratio = forward - backward
    return _z(ratio[np.isfinite(ratio)])


def _moved_by(moved: Floats, mover: Floats, order: int) -> Floats:
    """Return what is left of a series without its mover; the slope by least squares, then by generalised ones."""
    rest = _unexplained(moved, mover)
    rhythm = fit_ar(rest, order)
    left, right = whiten(moved, rhythm), whiten(mover, rhythm)
    both = np.isfinite(left) & np.isfinite(right)
    power = float(right[both] @ right[both])
    return moved - (float(left[both] @ right[both]) / power if power > 0 else 0.0) * mover


def _fit(values: Floats, order: int) -> Floats:
    """Log likelihood of each sample under an autoregressive model; wild samples count as four deviations."""
    errors = whiten(values, fit_ar(values, order))
    spread = math.sqrt(max(float(np.nanmean(errors**2)), 1e-18))
    return np.asarray(-math.log(spread) - 0.5 * np.clip(errors / spread, -4.0, 4.0) ** 2)


def _unexplained(victim: Floats, suspect: Floats) -> Floats:
    both = np.isfinite(victim) & np.isfinite(suspect)
    power = float(suspect[both] @ suspect[both])
    slope = float(victim[both] @ suspect[both]) / power if power > 0 else 0.0
    return victim - slope * suspect


def _two_means(values: Floats) -> float:
    """Threshold between two groups (k-means in one dimension, from the middle of the range)."""
    low, high = np.quantile(values, [0.02, 0.98])
    cut = float(low + high) / 2.0
    for _ in range(20):
        above = values > cut
        if above.all() or not above.any():
            return cut
        moved = float(values[above].mean() + values[~above].mean()) / 2.0
        if moved == cut:
            break
        cut = moved
    return cut


def _peaks(victim: Floats, suspect: Floats) -> tuple[float, float, float]:
    rhythm = fit_ar(suspect, 2)
    y, a = whiten(victim, rhythm), whiten(suspect, rhythm)
    own = fit_ar(y, 2)  # what memory is left in the victim would smear the peaks
    y, a = whiten(y, own), whiten(a, own)
    z = {lag: _correlation_z(y, a, lag) for lag in range(-_LEAD, _LAG + 1)}
    return max(z[k] for k in range(-_LEAD, 0)), z[0], max(z[k] for k in range(1, _LAG + 1))


def _correlation_z(y: Floats, a: Floats, lag: int) -> float:
    """Correlation of y(t) and a(t - lag), in standard errors."""
    n = y.size
    left, right = (y[lag:], a[: n - lag]) if lag >= 0 else (y[:lag], a[-lag:])
    both = np.isfinite(left) & np.isfinite(right)
    count = int(both.sum())
    if count < 8:
        return 0.0
    u, v = left[both] - left[both].mean(), right[both] - right[both].mean()
    scale = math.sqrt(float(u @ u) * float(v @ v))
    return float(u @ v) / scale * math.sqrt(count) if scale > 0 else 0.0


def _shape(victim: Floats, suspect: Floats) -> tuple[float, float]:
    """Vuong's z (Econometrica 57, 1989) of both halves together and of the suspect's half."""
    y, x = _innovations(victim, suspect)
    if y.size < _FEW:
        return math.nan, math.nan
    x, y = _standard(x), _standard(y)
    r = float(np.mean(x * y))
    rest = math.sqrt(max(1.0 - r * r, 1e-9))
    own = _log_density(x) - _log_density((x - r * y) / rest)
    other = _log_density((y - r * x) / rest) - _log_density(y)
    return _z(own + other), _z(own)


def _z(values: Floats) -> float:
    spread = float(values.std())
    return float(values.mean()) / spread * math.sqrt(values.size) if spread > 0 else 0.0


def _innovations(victim: Floats, suspect: Floats) -> tuple[Floats, Floats]:
    """Residuals of both series on the last samples of both, where all are known."""
    n = victim.size
    past = [series[_MEMORY - i : n - i] for i in range(1, _MEMORY + 1) for series in (victim, suspect)]
    table = np.column_stack([victim[_MEMORY:], suspect[_MEMORY:], *past])
    table = table[np.isfinite(table).all(axis=1)]
    if table.shape[0] < _FEW:
        return np.empty(0), np.empty(0)
    if table.shape[0] < 10 * (table.shape[1] - 2):
        table = table[:, :4]  # a short window affords one lag
    table = table - table.mean(axis=0)
    solution, *_ = np.linalg.lstsq(table[:, 2:], table[:, :2], rcond=None)
    left = table[:, :2] - table[:, 2:] @ solution
    return left[:, 0], left[:, 1]


def _standard(values: Floats) -> Floats:
    spread = float(values.std())
    return (values - values.mean()) / spread if spread > 0 else np.zeros_like(values)


def _log_density(values: Floats) -> Floats:
    """Log density of each value, by a kernel estimate on an asinh scale: fine at the peak, wide in the tails."""
    scale = max(1.4826 * float(np.median(np.abs(values - np.median(values)))), 1e-3)
    bent = np.arcsinh((values - np.median(values)) / scale)
    low, high = float(bent.min()) - 1.0, float(bent.max()) + 1.0
    step = (high - low) / (_GRID - 1)
    position = (bent - low) / step
    left = position.astype(np.int64)
    part = position - left
    counts = np.bincount(left, 1.0 - part, _GRID) + np.bincount(left + 1, part, _GRID)
    quartiles = np.subtract(*np.quantile(bent, [0.75, 0.25])) / 1.349
    width = 0.9 * min(float(bent.std()), float(quartiles)) * values.size**-0.2
    smooth = gaussian_filter1d(counts, max(width / step, 0.5), mode="constant") / (values.size * step)
    flat = 1.0 / (high - low)
    density = 0.99 * np.interp(position, np.arange(_GRID), smooth) + 0.01 * flat
    return np.asarray(np.log(density) - np.log(scale) - 0.5 * np.log1p(np.sinh(bent) ** 2))
