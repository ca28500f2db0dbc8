"""Before values are set back: has a later change of ours taken the room that they need?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tuner.guards import Facts, World, domain_of
from tuner.guards.shape import capacity as capacity_guard
from tuner.model import BackendState, Group, Knob, Plan, Target
from tuner.record import WRITTEN_STATES, ChangeState, GroupRecord
from tuner.settings import TunerSettings

_IN_FORCE = WRITTEN_STATES - {ChangeState.ROLLED_BACK}


def raised_since(record: GroupRecord, past: Sequence[GroupRecord]) -> frozenset[Target]:
    """Return the cards and pools of a group where a later group of ours raised something that is still in force."""
    mine = {domain_of(c.target) for c in record.group.changes}
    later = [
        r
        for r in past
        if r.intent_at is not None
        and record.intent_at is not None
        and r.intent_at > record.intent_at
        and r.state in _IN_FORCE
        and not r.is_pretended
    ]
    return frozenset(domain_of(c.target) for r in later for c in r.group.changes if not c.is_decrease) & mine


def lacks_room(
    undo: Group,
    state: BackendState,
    domains: frozenset[Target],
    *,
    knobs: Sequence[Knob],
    capacity: Mapping[Target, Mapping[str, float]],
    reserves: Mapping[Target, float],
    settings: TunerSettings,
) -> str | None:
    """Return why the values of `undo` no longer fit, by the rule of the capacity guard.

    Only where a later change of ours took room (`domains`): else the sums are what their owners had before, however
    high, and back to those is always allowed. A capacity that is not known is no reason either.
    """
    changes = tuple(
        c
        for c in undo.changes
        if domain_of(c.target) in domains
        and not math.isnan(capacity.get(domain_of(c.target), {}).get(c.knob, math.nan))
    )
    group = replace(undo, changes=changes)
    world = World(
        now=state.read_at,
        state=state,
        knobs=knobs,
        harmless_backend=False,
        capacity=capacity,
        health={},
        vitals=None,
        reserves=reserves,
    )
    facts = Facts(world, Plan(undo.id, state.read_at, state.read_at, (group,)))
    return next((ruling.reason for ruling in capacity_guard([group], facts, settings)), None)
