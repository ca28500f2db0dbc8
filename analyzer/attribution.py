"""Dividing a card's measured activity among the slices that have no counters of their own."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def attribute(own: Floats, weight: Floats, moment: npt.NDArray[np.intp], card_activity: Floats) -> Floats:
    """Return the share of the card that each sample's slice uses.

    A slice with counters of its own keeps them. What is left of the card's activity is divided among the others by
    weight; without a measured activity of the card the weights stand as they are. Shares of a moment sum to at most 1.

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
    taken = np.bincount(moment, weights=np.where(measured, own, 0.0), minlength=count)
    divided = np.where(measured | np.isnan(weight), 0.0, weight)
    total = np.bincount(moment, weights=divided, minlength=count)
    rest = np.clip(card_activity - taken, 0.0, None)
    part = np.divide(weight, total[moment], out=np.zeros_like(weight), where=total[moment] > 0)
    part = np.where(np.isnan(weight), np.nan, part)
    to_card = np.where(np.isnan(card_activity[moment]), weight, part * rest[moment])
    used = np.where(measured, own, to_card)
    sums = np.bincount(moment, weights=np.nan_to_num(used, nan=0.0), minlength=count)
    return np.asarray(used / np.maximum(sums, 1.0)[moment])
