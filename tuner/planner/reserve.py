"""What online work must be able to take at once: the forecast's upper quantile, turned into a share of the card."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tuner.planner.views import SliceView
from tuner.settings import TunerSettings

# A workload that was watched for less than this has shown nothing yet: it keeps its whole quota.
_LEAST_HISTORY_SECONDS = 3600.0
_DEFAULT_UTILISATION = 0.6
_FEW_MINUTES = 3
_KEPT_SHARE = 0.9
MIN_UTILISATION = 0.3
MAX_UTILISATION = 0.85


BINS = 20  # of 5 points of the use of the own quota


def utilisation_limit(minutes: Sequence[int], kept: Sequence[int]) -> float:
    """Return how far a service may fill its quota: its own measured latency-against-quota response.

    The highest use of its quota at which it kept its objective in nine of ten minutes; the first bin that fails ends
    it. Without evidence the default of a queue with bursts is taken.

    Args:
        minutes: minutes with requests seen in each of BINS bins of use / quota.
        kept: how many of them kept the objective.

    Returns:
        A ratio between MIN_UTILISATION and MAX_UTILISATION.
    """
    proven = 0.0
    for index, (seen, good) in enumerate(zip(minutes, kept, strict=True)):
        if seen >= _FEW_MINUTES and good < _KEPT_SHARE * seen:
            return min(max(index / BINS, MIN_UTILISATION), MAX_UTILISATION)
        if seen >= _FEW_MINUTES:
            proven = (index + 1) / BINS
    return min(max(proven, _DEFAULT_UTILISATION), MAX_UTILISATION)


def reserve_share(view: SliceView, settings: TunerSettings, *, hold: bool) -> float:
    """Return the share of the card to keep for an online slice.

    max(use now, forecast) x (1 + margin) / utilisation limit, never above its quota. The forecast's own band is wide
    while history is short. What nobody declared, what is protected and what cannot be forecast keeps its whole quota.

    Args:
        view: the slice.
        settings: margin.
        hold: over the time for which an increase of a neighbour holds (else: over the lead time of a decrease).
    """
    quota = 1.0 if math.isnan(view.quota) else view.quota
    need = view.need_hold if hold else view.need_lead
    unknown = math.isnan(need) or math.isnan(view.used) or view.history_seconds < _LEAST_HISTORY_SECONDS
    if view.protected or unknown:
        return quota
    # Minutes that a victim lost to a neighbour say nothing of how far it may fill its own quota.
    limit = max(view.utilisation_limit, _DEFAULT_UTILISATION) if view.victim_in else view.utilisation_limit
    share = max(view.used, need) * (1.0 + settings.reserve_margin) / limit
    return min(share, quota)
