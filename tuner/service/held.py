"""What a backend holds, as the planner asks for it: cards, queues, and what quotas may sum to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tuner.model import BackendState, Target, TargetState
from tuner.planner import CardView, QueueView, SliceView
from tuner.planner.views import MEMORY_KNOB, QUEUE_KNOB, SHARE_KNOB

_FOREVER = 1e6  # seconds


def beside_others(state: BackendState) -> set[Target]:
    """Return the slices that run at the same time as others of their card, not in turn."""
    return {t for t, s in state.targets.items() if s.facts.get("kind") == "mps"}


def sharing_kinds(state: BackendState) -> dict[Target, str]:
    """Return how each slice shares its card; empty text: the backend does not tell."""
    return {t: s.facts.get("kind", "") for t, s in state.targets.items() if t.kind == "slice"}


def age_of_inputs(views: Sequence[SliceView], most: float) -> float:
    """Return the age of the oldest input, in seconds.

    A slice that went silent has no coverage, and only what touches it is held; when half of them are silent it is the
    source that is stale, and everything is held.
    """
    ages = [min(v.age_seconds, _FOREVER) for v in views]
    fresh = [age for age in ages if age <= most]
    if len(fresh) * 2 <= len(ages):
        return max(ages, default=_FOREVER)
    return max(fresh)


def card_of(target: Target) -> Target:
    """Return the card that a slice is on."""
    return Target("card", target.cluster, target.node, target.gpu)


def card_view(
    key: tuple[str, str, str],
    slices: Sequence[SliceView],
    state: BackendState,
    capacity: Mapping[Target, Mapping[str, float]],
    health: Mapping[Target, tuple[str, ...]],
) -> CardView:
    """Return a card as the planner sees it.

    Args:
        key: cluster, node, gpu.
        slices: those on it.
        state: what the backend holds.
        capacity: as `capacity_of` returns it.
        health: card -> evidence against it; one that is absent was not seen.
    """
    target = Target("card", *key)
    kinds = {s.kind for s in slices}
    return CardView(
        *key,
        sharing=kinds.pop() if len(kinds) == 1 else "mixed",
        memory_bytes=capacity.get(target, {}).get(MEMORY_KNOB, math.nan),
        slices=tuple(slices),
        healthy=health.get(target, ("not seen",)) == (),
        open_share=_open_share(state.targets.get(target)),
    )


def _open_share(held: TargetState | None) -> float:
    """Return what the card's `open_share` fact says.

    A backend whose layer admits only what is not granted has no such fact: what is granted is then all that anybody
    may take. One that lets work in beside its grants must tell it.
    """
    return 0.0 if held is None or "open_share" not in held.facts else _number(held, "open_share")


def queue_views(state: BackendState) -> tuple[QueueView, ...]:
    """Return the queues whose quota can be set, as the planner sees them."""
    return tuple(
        QueueView(
            target=target,
            tenant=held.facts.get("tenant", ""),
            quota=held.values[QUEUE_KNOB],
            allocated=_number(held, "allocated_gpu_count"),
            pending=_number(held, "pending_gpu_count"),
            free=_number(held, "free_gpu_count"),
            capacity=_number(held, "capacity_gpu_count"),
        )
        for target, held in sorted(state.targets.items())
        if target.kind == "queue" and QUEUE_KNOB in held.values
    )


def _number(held: TargetState, name: str) -> float:
    try:
        return float(held.facts[name])
    except (KeyError, ValueError):
        return math.nan


def capacity_of(state: BackendState) -> dict[Target, dict[str, float]]:
    """Return what quotas may sum to: a card's compute is 1, its memory what the backend says; a pool's cards."""
    capacity: dict[Target, dict[str, float]] = {}
    for target, held in state.targets.items():
        if target.kind == "slice":
            limits = capacity.setdefault(card_of(target), {SHARE_KNOB: 1.0})
            limits[MEMORY_KNOB] = _number(held, "card_memory_bytes")
        elif target.kind == "queue":
            pool = Target("queue", target.cluster, name=target.name.partition("/")[0])
            capacity.setdefault(pool, {})[QUEUE_KNOB] = _number(held, "capacity_gpu_count")
    return capacity
