"""What of a granted quota was used, wasted or borrowed, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """Use of a quota over a time. Shares are of the card, `of_quota` of the quota; a quota of 0 has no `of_quota`."""

    of_quota: float | None
    of_quota_capped: float | None
    of_card: float
    wasted_gpu_seconds: float
    borrowed_gpu_seconds: float


def quota_use(quota_share: float, used_share: float, seconds: float) -> QuotaUse:
    """Say how much of a quota was used, wasted and borrowed beyond it.

    Args:
        quota_share: share of the card that is granted; for a MIG instance its SMs over the card's, not g/7.
        used_share: share of the card that was used.
        seconds: how long.
    """
    of_quota = used_share / quota_share if quota_share > 0 else None
    return QuotaUse(
        of_quota=of_quota,
        of_quota_capped=None if of_quota is None else min(of_quota, 1.0),
        of_card=used_share,
        wasted_gpu_seconds=max(quota_share - used_share, 0.0) * seconds,
        borrowed_gpu_seconds=max(used_share - quota_share, 0.0) * seconds,
    )


@dataclass(frozen=True, slots=True)
class Cost:
    """What a share of a card costs, and what of it was useful. Nothing useful: no price per useful hour."""

    allocated_gpu_hours: float
    useful_gpu_hours: float
    cost: float
    waste_cost: float
    cost_per_useful_gpu_hour: float | None


def cost_of(price_per_hour: float, hours: float, quota_share: float, useful_of_quota: float) -> Cost:
    """Price a share of a card, in the currency of `price_per_hour` (of a whole card)."""
    allocated = hours * quota_share
    useful = allocated * useful_of_quota
    cost = price_per_hour * allocated
    return Cost(
        allocated_gpu_hours=allocated,
        useful_gpu_hours=useful,
        cost=cost,
        waste_cost=cost - price_per_hour * useful,
        cost_per_useful_gpu_hour=cost / useful if useful > 0 else None,
    )
