"""A plan of moves in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dashboard.views.names import CardNames, named
from dashboard.views.text import percent, plural, seconds
from tuner.service.defragment import MovesPlan, Objective, Role, Step

ROLES = {
    Role.STAYS: "stays",
    Role.PROTECTED: "protected, never moved",
    Role.LEAVES: "leaves",
    Role.COMES: "comes",
    Role.REQUEST: "what there is then room for",
    Role.FREE: "free",
}


def result(plan: MovesPlan) -> str:
    """Say what a plan achieves, and how near to the best that is."""
    moves = plural(len(plan.steps), "move")
    if plan.objective == Objective.FREE_CARDS:
        text = f"{moves}: {plan.placed:.0f} of {plan.before:.0f} cards stay in use, {len(plan.freed)} freed"
        return f"{text}; {_fewest(plan)}"
    if plan.objective == Objective.ROOM:
        if not plan.steps:
            return "it fits now, without a move"
        return f"{moves}, and it fits" + ("; no plan needs fewer" if plan.exact else "; fewer may do")
    text = f"{moves}: {plan.placed:.1f} cards' worth of it fits, {plan.before:.1f} without a move"
    if plan.exact:
        return f"{text}; no plan of so many moves places more"
    return f"{text}; no plan of so many moves places more than {plan.bound:.1f} (within {percent(plan.gap, 1)})"


def _fewest(plan: MovesPlan) -> str:
    if plan.exact:
        return "fewer cannot hold it"
    return f"no packing does with fewer than {plan.bound:.0f} (within {percent(plan.gap, 1)})"


def costs(plan: MovesPlan) -> str:
    """Say what a plan costs."""
    cost = plan.cost
    lost = "an unknown amount of work" if math.isnan(cost.lost_seconds) else f"{seconds(cost.lost_seconds)} of work"
    return (
        f"cost: {cost.moved_gib:.1f} GiB moved, {plural(cost.restarts, 'restart')}, "
        f"{cost.drain_minutes:.0f} min away in all, {lost} since the last checkpoints"
    )


def step_text(step: Step) -> str:
    """Say what kind of move a step is."""
    if step.kind == "resize":
        return f"resize to {step.share:.0%}"
    if step.to_start is not None:
        return f"{step.kind}, at slice {step.to_start}"
    return step.kind


def where(node: str, gpus: Sequence[str], names: CardNames) -> str:
    """Name a place; CPU alone lies on a node without a card."""
    return ", ".join(named(gpu, names) for gpu in gpus) or node
