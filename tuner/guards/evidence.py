"""Guards on what is known: fresh, complete, sure enough, and a world that makes sense."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tuner.guards.chain import Ruling
from tuner.guards.world import MEMORY_QUOTA, Facts, Vitals, domain_of
from tuner.model import Change, Group
from tuner.settings import TunerSettings

UNHEALTHY_SHARE = 0.45  # Cluster Autoscaler stops at 45 % unready nodes
UNHEALTHY_AT_LEAST = 3
ACTIVITY_FALL = 0.7  # the fleet's mean activity lost within one cycle: blind, not idle
ALL_IDLE = 0.001
CLOCK_JUMP_SECONDS = 30.0
FUTURE_SECONDS = 5.0  # an input from so far ahead is a clock error, not a fresh input


def freshness(_group: Group, facts: Facts, settings: TunerSettings) -> str | None:
    """Old inputs hold everything; so do inputs from the future."""
    for what, at in (("the oldest input", facts.plan.as_of), ("the backend's state", facts.world.state.read_at)):
        age = (facts.world.now - at).total_seconds()
        if age > settings.max_age_seconds:
            return f"{what} is {_span(age)} old, at most {_span(settings.max_age_seconds)} is allowed"
        if age < -FUTURE_SECONDS:
            return f"{what} is {_span(-age)} ahead of the clock"
    return None


def world_makes_sense(_group: Group, facts: Facts, _settings: TunerSettings) -> str | None:
    """A fleet that changed too much at once is more likely misread than changed."""
    return impossible(facts.world.vitals)


def impossible(vitals: Vitals | None) -> str | None:
    """Say what cannot be about the fleet, or None."""
    if vitals is None:
        return "the fleet's vital signs are not known"
    reasons = (
        (vitals.cards == 0, "no card is seen at all"),
        (
            vitals.cards != vitals.cards_before,
            f"{vitals.cards} cards are seen, {vitals.cards_before} a cycle ago",
        ),
        (
            vitals.cards_unhealthy > UNHEALTHY_AT_LEAST and vitals.cards_unhealthy > UNHEALTHY_SHARE * vitals.cards,
            f"{vitals.cards_unhealthy} of {vitals.cards} cards are unhealthy",
        ),
        (
            abs(vitals.clock_jump_seconds) > CLOCK_JUMP_SECONDS,
            f"the clock jumped by {vitals.clock_jump_seconds:.0f} s",
        ),
        (
            vitals.activity < ALL_IDLE <= vitals.activity_before,
            "every slice is idle at once",
        ),
        (
            vitals.activity < vitals.activity_before * (1 - ACTIVITY_FALL),
            f"activity fell from {vitals.activity_before:.0%} to {vitals.activity:.0%} within a cycle",
        ),
    )
    return next((reason for wrong, reason in reasons if wrong), None)


def warm_up(group: Group, facts: Facts, settings: TunerSettings) -> str | None:
    """Nothing is lowered before the tuner has watched a whole window itself, or while activity is unknown."""
    if not any(c.is_decrease for c in group.changes):
        return None
    since = facts.world.watching_since
    if since is None:
        return "nothing is lowered before the inventory is complete"
    watched = (facts.world.now - since).total_seconds()
    if watched < settings.stabilisation_seconds:
        return f"nothing is lowered yet: watching for {_span(watched)} of {_span(settings.stabilisation_seconds)}"
    if facts.world.vitals is not None and math.isnan(facts.world.vitals.activity):
        return "nothing is lowered while the fleet's activity is not known"
    return None


def coverage(group: Group, facts: Facts, settings: TunerSettings) -> str | None:
    """Missing members count against the action; not known is not enough."""
    known = [facts.world.coverage[c.target] for c in group.changes if c.target in facts.world.coverage]
    for value in (group.coverage, *known):
        if not value >= settings.coverage_floor:  # NaN fails too
            return f"coverage is {_ratio(value)}, the floor is {settings.coverage_floor:.0%}"
    return None


def confidence(group: Group, _facts: Facts, settings: TunerSettings) -> str | None:
    """Advice that is not sure enough is only written down."""
    if not group.confidence >= settings.confidence_floor:
        return (
            f"confidence is {_ratio(group.confidence)}, the floor is {settings.confidence_floor:.0%}: written down only"
        )
    return None


def health(group: Group, facts: Facts, _settings: TunerSettings) -> str | None:
    """No quota moves onto a card with evidence against it; unknown is not healthy."""
    for change in group.changes:
        if change.is_decrease or change.target.kind == "queue":
            continue
        card = domain_of(change.target)
        evidence = facts.world.health.get(card)
        if evidence is None:
            return f"the health of {card} is not known"
        if evidence:
            return f"{card}: {'; '.join(evidence)}"
    return None


def memory(groups: Sequence[Group], facts: Facts, settings: TunerSettings) -> Iterator[Ruling]:
    """Memory is never lowered below the peak seen plus a margin; without a known peak not at all."""
    for group in groups:
        for change in group.changes:
            if change.knob != MEMORY_QUOTA or not change.is_decrease:
                continue
            reason = _memory_reason(change, facts, settings)
            if reason is not None:
                yield Ruling(group.id, reason)
                break


def _memory_reason(change: Change, facts: Facts, settings: TunerSettings) -> str | None:
    peak = facts.world.peak_memory_bytes.get(change.target, math.nan)
    if math.isnan(peak):
        return f"the peak memory of {change.target} is not known"
    least = peak * (1 + settings.memory_margin)
    if change.after < least:
        return (
            f"{change.target} would get {change.after / 2**30:.2f} GiB, its peak with margin is {least / 2**30:.2f} GiB"
        )
    return None


def _span(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if abs(seconds) >= 180 else f"{seconds:.0f} s"


def _ratio(value: float) -> str:
    return "not known" if math.isnan(value) else f"{value:.0%}"
