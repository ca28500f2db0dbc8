"""A plan of moves in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from collector.words import plural
from dashboard.cli.output import clean as printable
from dashboard.views import svg
from dashboard.views.names import CardNames, named
from dashboard.views.text import percent, seconds
from tuner.service.moves_plan import MovesPlan, Objective, Role, Step

ROLES = {
    Role.STAYS: "stays",
    Role.PROTECTED: "protected, never moved",
    Role.LEAVES: "leaves",
    Role.COMES: "comes",
    Role.REQUEST: "what there is then room for",
    Role.FREE: "free",
}


COLOURS = {
    Role.STAYS: "#4a8fe0",
    Role.PROTECTED: "#8fa3b8",
    Role.LEAVES: "#d97742",
    Role.COMES: "#8b5cf6",
    Role.REQUEST: "#2e9360",
    Role.FREE: "",
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
    if not plan.steps:
        return f"{plan.placed:.1f} cards' worth of it fits now, and no move that may be made brings more"
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


def left_alone(plan: MovesPlan) -> str:
    """Say what a plan does not touch, and that it is advice."""
    protected = f"{plan.protected} of {plural(plan.pods, 'pod')} are protected and never move"
    left = ", ".join(f"{plural(count, 'card')} ({reason})" for reason, count in plan.left_out.items())
    return f"{protected}." + (f" Left out: {left}." if left else "") + " Plans are advice: nothing was moved."


def steps_table(plan: MovesPlan, names: CardNames) -> pd.DataFrame:
    """Return the steps in their order, a row each."""
    return pd.DataFrame(
        [
            {
                "move": step_text(step),
                "who": printable(f"{step.tenant}/{step.workload}" if step.workload else step.pod),
                "from": where(step.from_node, step.from_gpus, names),
                "to": where(step.to_node, step.to_gpus, names),
                "GiB": step.moved_gib,
                "away (min)": step.drain_minutes,
                "work lost (min)": step.lost_seconds / 60,
            }
            for step in plan.steps
        ]
    )


def strips(plan: MovesPlan, names: CardNames, most: int = 12) -> list[svg.Strip]:
    """Return the cards that a plan changes, each before and after, ready to be drawn."""
    found = []
    for change in plan.changes[:most]:
        rows = [
            tuple(svg.Piece(part.label, part.share, 1.0, COLOURS[part.role]) for part in parts)
            for parts in (change.before, change.after)
        ]
        found.append(svg.Strip(printable(named(change.gpu, names)), rows[0], rows[1]))
    return found


def step_text(step: Step) -> str:
    """Say what kind of move a step is."""
    if step.kind == "resize":
        return f"resize to {step.share:.0%}"
    if step.to_start is not None:
        return f"{step.kind}, at slice {step.to_start}"
    return step.kind


def where(node: str, gpus: Sequence[str], names: CardNames) -> str:
    """Name a place; CPU alone lies on a node without a card."""
    return printable(", ".join(named(gpu, names) for gpu in gpus) or node)
