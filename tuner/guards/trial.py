"""Guard on probes: only where something can be learnt, on a calm card, and with a share that acts at once."""

from __future__ import annotations

from collector.words import plural
from tuner.guards.world import Facts, domain_of
from tuner.model import Group, KnobEffect
from tuner.settings import TunerSettings


def trial(group: Group, facts: Facts, settings: TunerSettings) -> str | None:
    """A probe holds back one slice, live and within bounds, while the card is calm."""
    if group.trial is None:
        return None
    if len(group.changes) != 1 or not group.changes[0].is_decrease:
        return "a probe holds back one slice and nothing else"
    (change,) = group.changes
    knob = facts.knob(change)
    if knob is not None and knob.effect is not KnobEffect.LIVE:
        return f"{change.knob} of {change.target} {_acts(knob.effect)}: a probe needs one that acts on running work"
    if group.trial.pairs > settings.probe_pairs:
        return f"it would run {plural(group.trial.pairs, 'pair')} of blocks, at most {settings.probe_pairs} are allowed"
    card = domain_of(change.target)
    if group.trial.victim not in facts.world.state.targets or domain_of(group.trial.victim) != card:
        return f"{group.trial.victim} is not on the card of {change.target}"
    unrest = facts.world.unrest.get(card)
    return f"nobody looked at {card}" if unrest is None else unrest or None


def _acts(effect: KnobEffect) -> str:
    return effect.value.replace("_", " ") if effect is not KnobEffect.NEW_WORK_ONLY else "acts on new work only"
