"""Dividing a card's measured activity among the slices that have no counters of their own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


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
