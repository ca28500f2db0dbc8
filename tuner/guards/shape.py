"""Guards on the size of a change: range and floor, step limit, dead band, capacity."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import timedelta

from tuner.guards.chain import Ruling, less_or_nothing
from tuner.guards.world import MEMORY_QUOTA, QUEUE_QUOTA, SM_QUOTA, SUMMED_KNOBS, Facts, domain_of, lessen
from tuner.model import Change, Group, KnobEffect, Target
from tuner.settings import TunerSettings

REVERSAL_FACTOR = 2.0  # turning back needs a band twice as wide: enter and leave thresholds differ
REVERSAL_MEMORY = timedelta(hours=1)
_SLACK = 1e-9


def quantum(groups: Sequence[Group], facts: Facts, _settings: TunerSettings) -> Iterator[Ruling]:
    """Every value is one that the backend can hold: what lies between moves toward the present."""
    for group in groups:
        for change in group.changes:
            knob = facts.knob(change)
            if knob is None:
                break  # scope has dropped it
            steps = (change.after - change.before) / knob.quantum
            if abs(steps - round(steps)) > 1e-6:
                reason = f"{change.knob} {change.after:g} of {change.target} lies between steps of {knob.quantum:g}"
                yield Ruling(group.id, reason, lessen(group, facts, 1.0))
                break


def limits(groups: Sequence[Group], facts: Facts, _settings: TunerSettings) -> Iterator[Ruling]:
    """Within the knob's range, and never below a declared floor."""
    for group in groups:
        worst, why = 1.0, ""
        for change in group.changes:
            low, high, floor_name = _range(change, facts)
            wanted = change.after - change.before
            allowed = min(max(change.after, low), high) - change.before
            if change.is_decrease and change.before < low:
                allowed = 0.0
            factor = max(allowed / wanted, 0.0) if wanted else 1.0
            if factor < worst - _SLACK:
                worst = factor
                bound, name = (low, floor_name) if change.is_decrease else (high, "the most")
                why = f"{change.knob} of {change.target} ends at {bound:g} ({name})"
        if worst < 1.0:
            yield less_or_nothing(group, facts, worst, why)


def _range(change: Change, facts: Facts) -> tuple[float, float, str]:
    knob = facts.knob(change)
    if knob is None:
        return -math.inf, math.inf, ""
    low, name = knob.low, "the least"
    promise = facts.declaration(change)
    if change.knob == SM_QUOTA and promise is not None and promise.declaration.floor > low:
        low, name = promise.declaration.floor, "its declared floor"
    return low, knob.high, name


def step_limit(groups: Sequence[Group], facts: Facts, settings: TunerSettings) -> Iterator[Ruling]:
    """No share moves by more than the step limit at once."""
    for group in groups:
        worst, why = 1.0, ""
        for change in group.changes:
            most = _largest_step(change, facts, settings)
            size = abs(change.after - change.before)
            if size > most * (1 + 1e-6) and most / size < worst:
                worst = most / size
                why = f"{change.knob} of {change.target} would move by {size:g}, at most {most:g} at once"
        if worst < 1.0:
            yield less_or_nothing(group, facts, worst, why)


def _largest_step(change: Change, facts: Facts, settings: TunerSettings) -> float:
    if facts.effects(Group("", (change,), "", "", 0, 1, 1)) & {KnobEffect.NEEDS_DRAIN, KnobEffect.NEEDS_REBOOT}:
        return math.inf  # not a share: it is done or not, and always asked for
    if change.knob == SM_QUOTA:
        return settings.step_limit
    if change.knob in {MEMORY_QUOTA, QUEUE_QUOTA}:
        whole = facts.world.capacity.get(domain_of(change.target), {}).get(change.knob, math.inf)
        return max(settings.step_limit * whole, 1.0 if change.knob == QUEUE_QUOTA else 0.0)
    return math.inf


def dead_band(group: Group, facts: Facts, settings: TunerSettings) -> str | None:
    """A group whose every change is small is not worth a write: relative, and at least one quantum."""
    sizes = []
    for change in group.changes:
        knob = facts.knob(change)
        least = 0.0 if knob is None else knob.quantum
        band = settings.dead_band * (REVERSAL_FACTOR if _turns_back(change, facts) and not group.fast else 1.0)
        size = abs(change.after - change.before)
        if size >= least * (1 - 1e-6) and size >= band * abs(change.before) * (1 - _SLACK):
            return None
        sizes.append(f"{change.knob} {change.before:g} -> {change.after:g}")
    return f"within the dead band of {settings.dead_band:.0%}: {', '.join(sizes)}"


def _turns_back(change: Change, facts: Facts) -> bool:
    past = facts.history.get((change.target, change.knob))
    if not past or facts.world.now - past[-1].at > REVERSAL_MEMORY:
        return False
    return past[-1].change.is_decrease != change.is_decrease


def capacity(groups: Sequence[Group], facts: Facts, settings: TunerSettings) -> Iterator[Ruling]:
    """What the quotas of a card or pool sum to stays within its capacity, whichever groups succeed, in any order.

    Within a group decreases come first, so that its sum is highest at the start or at the end: a group adds at most
    max(0, its sum). Different groups may interleave or fail, so that one group's decrease never pays for another's
    increase. A sum that is too high already may not grow.
    """
    added: dict[tuple[Target, str], float] = defaultdict(float)
    for group in groups:
        sums: dict[tuple[Target, str], float] = defaultdict(float)
        for change in group.changes:
            if change.knob in SUMMED_KNOBS:
                key = (domain_of(change.target), change.knob)
                sums[key] += _frees(change, facts) if change.is_decrease else change.after - change.before
        worst, why = 1.0, ""
        for (domain, knob), more in sums.items():
            if more <= _SLACK:
                continue
            room, known = _room(domain, knob, facts, settings)
            room -= added[domain, knob]
            if not known:
                worst, why = 0.0, f"what the {knob} of {domain} sum to is not known"
            elif more > room + _SLACK:
                factor = max(room, 0.0) / more
                if factor < worst:
                    worst = factor
                    why = f"{knob} of {domain} has room for {max(room, 0.0):g}, the group adds {more:g}"
        if worst < 1.0:
            less = lessen(group, facts, worst) if worst > 0 else None
            yield Ruling(group.id, why, less)
            continue
        for key, more in sums.items():
            added[key] += max(more, 0.0)


def _frees(change: Change, facts: Facts) -> float:
    """Return what a decrease takes off the sum at once (<= 0).

    A compute share is a cap for the next work, so that its sum falls at once. Memory that running work may still use
    is only free when the knob acts on running work.
    """
    if change.knob != MEMORY_QUOTA:
        return change.after - change.before
    knob = facts.knob(change)
    return change.after - change.before if knob is not None and knob.effect is KnobEffect.LIVE else 0.0


def _room(domain: Target, knob: str, facts: Facts, settings: TunerSettings) -> tuple[float, bool]:
    """Return what may still be added to the sum, and whether that is known."""
    whole = facts.world.capacity.get(domain, {}).get(knob, math.nan)
    if knob == SM_QUOTA:
        whole *= settings.oversubscription
    total = 0.0
    for held in facts.members.get(domain, ()):
        if knob not in held.values:
            continue  # this kind of target has no such quota
        value = held.values[knob]
        if knob == SM_QUOTA:
            value = min(value, facts.world.reserves.get(held.target, value))
        effective = held.effective.get(knob, value) if knob == MEMORY_QUOTA else value
        total += max(value, effective) if not math.isnan(effective) else value
    room = whole - total
    return room, not math.isnan(room)
