"""Where a group's values are, by a read of the backend, and the way back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum

from tuner.guards.world import in_order
from tuner.model import BackendState, Change, Group, Knob

_UNDO = "~undo"


class Place(StrEnum):
    """Where a group's values are, by a read of the backend."""

    BEFORE = "before"
    AFTER = "after"
    MIXED = "mixed"  # some at before, some at after
    FOREIGN = "foreign"  # at least one holds a value that is neither
    MISSING = "missing"  # not one of them can be read


def locate(group: Group, state: BackendState, knobs: Mapping[tuple[str, str], Knob]) -> Place:
    """Say where a group's values are, of those that can be read; values within half a quantum are equal."""
    at_before = at_after = True
    gone = unreadable(group, state)
    if len(gone) == len(group.changes):
        return Place.MISSING
    for change in group.changes:
        if change in gone:
            continue
        value = state.targets[change.target].values[change.knob]
        knob = knobs.get((change.knob, change.target.kind))
        slack = 1e-9 if knob is None else knob.quantum / 2
        is_before, is_after = abs(value - change.before) <= slack, abs(value - change.after) <= slack
        if not is_before and not is_after:
            return Place.FOREIGN
        at_before, at_after = at_before and is_before, at_after and is_after
    return Place.BEFORE if at_before else Place.AFTER if at_after else Place.MIXED


def unreadable(group: Group, state: BackendState) -> list[Change]:
    """Return the changes whose target is gone, or holds no value that can be read."""
    gone = []
    for change in group.changes:
        held = state.targets.get(change.target)
        if held is None or math.isnan(held.values.get(change.knob, math.nan)):
            gone.append(change)
    return gone


def inverse(group: Group) -> Group:
    """Return the way back: every change from our value to the pre-image, decreases first."""
    changes = in_order([replace(c, before=c.after, after=c.before, reason="rollback") for c in group.changes])
    return replace(group, id=f"{group.id}{_UNDO}", changes=changes, kind="rollback", why=f"undo of {group.id}")


def undone_id(undo: Group) -> str:
    """Return the id of the group that `undo` is the way back of."""
    return undo.id.removesuffix(_UNDO)
