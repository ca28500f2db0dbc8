"""Dividing a card's measured activity among the slices that have no counters of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

Floats = npt.NDArray[np.float64]

# Costs are learnt from at least so many samples, and so many for each slice.
_FEWEST_SAMPLES = 30
_SAMPLES_PER_SLICE = 3
# A perfect fit of few or constant samples proves little: their noise counts as at least this part of their mean.
_LEAST_NOISE = 0.05


def first_known(candidates: Sequence[Floats]) -> Floats:
    """Return, element by element, the first of the equally shaped candidates that is not NaN."""
    out = candidates[0].copy()
    for other in candidates[1:]:
        out = np.where(np.isnan(out), other, out)
    return out


def busy_weight(busy: Floats, quota: Floats, side_by_side: npt.NDArray[np.bool_]) -> Floats:
    """Return what a slice without counters weighs when its card's activity is divided.

    Clients under MPS (`side_by_side`) run at once on their shares of the SMs: busy x quota, where no quota limits one
    it has all. In rotation one runs at a time on all SMs: busy. The arguments are broadcast.
    """
    shares = np.where(np.isnan(quota), 1.0, quota)
    return np.asarray(np.where(side_by_side, busy * shares, busy))


@dataclass(frozen=True, slots=True)
class LearntUse:
    """Use as it was learnt: (T, S) shares of the card, NaN unknown; and by how much their sum misses (rms, a share)."""

    used: Floats
    error: float


def learn_use(activity: Floats, load: Floats, first_guess: Floats) -> LearntUse | None:
    """Learn what a unit of each slice's load costs, from how the card's activity moves with the loads.

    Non-negative least squares: activity(t) = sum over slices of cost x load(t). The first guess of each cost counts as
    one more sample, good to a factor of two and as noisy as the others: what the samples cannot tell apart (loads that
    rise and fall together, a slice that lived shortly) stays divided as it was guessed.

    Args:
        activity: (T,) share of the card that these slices used together, NaN absent.
        load: (T, S) what each did, in units of its own (requests, steps, busy time); 0 where it did not live, NaN
            where nobody knows.
        first_guess: (T, S) shares of the card.

    Returns:
        The learnt use; None where there is too little to learn from.
    """
    known = ~(np.isnan(activity) | np.isnan(load).any(axis=1) | np.isnan(first_guess).any(axis=1))
    guessed, done = first_guess[known].sum(axis=0), load[known].sum(axis=0)
    columns = np.flatnonzero((guessed > 0) & (done > 0))
    if not len(columns) or known.sum() < max(_FEWEST_SAMPLES, _SAMPLES_PER_SLICE * len(columns)):
        return None
    expected = load[:, columns] * (guessed[columns] / done[columns])  # by the first guess: every cost is 1
    samples, target = expected[known], activity[known]
    # The triangle of a QR factorisation fits as the samples do, and stays small however long the window is.
    triangle = np.asarray(np.linalg.qr(np.column_stack([samples, target]), mode="r"))
    free, _ = nnls(triangle[:, :-1], triangle[:, -1])
    noise = max(_rms(samples @ free - target), _LEAST_NOISE * float(target.mean()))
    prior = noise * np.eye(len(columns))
    cost, _ = nnls(np.vstack([triangle[:, :-1], prior]), np.r_[triangle[:, -1], np.diag(prior)])
    used = np.where(np.isnan(load), np.nan, 0.0)
    used[:, columns] = expected * cost
    return LearntUse(used, _rms(samples @ cost - target))


def _rms(values: Floats) -> float:
    return float(np.sqrt(np.mean(values**2)))


def attribute(own: Floats, weight: Floats, moment: npt.NDArray[np.intp], card_activity: Floats) -> Floats:
    """Return the share of the card that each sample's slice uses.

    A slice with counters of its own keeps them; only where the counters alone sum to more than 1 are they scaled to 1.
    What is left of the card's activity is divided among the others by weight. Without a measured activity of the card
    the weights stand as they are, scaled down where they exceed what the counters leave of the card. Shares of a
    moment sum to at most 1. A slice whose weight is NaN takes no part in the division: its share is unknown, and the
    others divide the whole rest.

    Args:
        own: (N,) measured share of the card, NaN where the slice has no counter.
        weight: (N,) estimate of the use of a slice without counters (busy, or busy x quota under MPS), NaN absent.
        moment: (N,) index of the card and instant that a sample belongs to.
        card_activity: (moments,) measured activity of the card, NaN absent.

    Returns:
        (N,) shares; NaN where neither a counter nor a weight is known.
    """
    count = len(card_activity)
    measured = ~np.isnan(own)
    counted = np.bincount(moment, weights=np.where(measured, own, 0.0), minlength=count)
    taken = np.minimum(counted, 1.0)
    divided = np.where(measured | np.isnan(weight), 0.0, weight)
    total = np.bincount(moment, weights=divided, minlength=count)
    known_rest = np.clip(np.minimum(card_activity, 1.0) - taken, 0.0, None)
    rest = np.where(np.isnan(card_activity), np.minimum(total, 1.0 - taken), known_rest)
    part = np.divide(weight, total[moment], out=np.zeros_like(weight), where=total[moment] > 0)
    estimated = np.where(np.isnan(weight), np.nan, part * rest[moment])
    return np.where(measured, own / np.maximum(counted, 1.0)[moment], estimated)
