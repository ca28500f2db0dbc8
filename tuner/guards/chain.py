"""The chain: every guard can say no, or less, to a whole group; it runs again until nothing changes.

It ends: each turn either removes a group or moves changes toward the present by at least one quantum, and both are
finite. A guard that tries anything else has its group dropped, and is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tuner.guards.world import Facts, World, lessen
from tuner.model import Group, Plan
from tuner.record import Drop
from tuner.settings import TunerSettings


class Ruling(NamedTuple):
    """What a guard decides about a group: a reason in words, and what is left of it (None: nothing)."""

    group_id: str
    reason: str
    lessened: Group | None = None


Guard = Callable[[Sequence[Group], Facts, TunerSettings], Iterable[Ruling]]
Check = Callable[[Group, Facts, TunerSettings], str | None]


@dataclass(frozen=True, slots=True)
class GuardedPlan:
    """A plan after the guards: the groups that are left, and everything that was decided against."""

    plan: Plan
    groups: tuple[Group, ...]
    drops: tuple[Drop, ...]

    def dropped(self, group_id: str) -> Drop | None:
        """Return why a group was dropped, or None where it was kept."""
        return next((d for d in self.drops if d.group_id == group_id and d.action == "dropped"), None)


def each(check: Check) -> Guard:
    """Make a guard of a check that looks at one group: a reason drops it."""

    def guard(groups: Sequence[Group], facts: Facts, settings: TunerSettings) -> Iterator[Ruling]:
        for group in groups:
            reason = check(group, facts, settings)
            if reason is not None:
                yield Ruling(group.id, reason)

    guard.__name__ = check.__name__
    guard.__doc__ = check.__doc__
    return guard


def run_chain(plan: Plan, world: World, settings: TunerSettings, guards: Sequence[tuple[str, Guard]]) -> GuardedPlan:
    """Run `guards` in order, over and over, until a whole turn changes nothing."""
    facts = Facts(world, plan)
    groups: dict[str, Group] = {g.id: g for g in plan.groups}
    drops: list[Drop] = []
    changed = bool(groups)
    while changed:
        changed = False
        for name, guard in guards:
            if not groups:
                break
            for ruling in list(guard(tuple(groups.values()), facts, settings)):
                present = groups.get(ruling.group_id)
                if present is None or ruling.lessened == present:
                    continue
                changed = True
                if ruling.lessened is None:
                    del groups[present.id]
                    drops.append(Drop(present.id, name, "dropped", ruling.reason))
                elif _is_less(ruling.lessened, present, facts):
                    groups[present.id] = ruling.lessened
                    drops.append(Drop(present.id, name, "lessened", ruling.reason))
                else:
                    del groups[present.id]
                    drops.append(Drop(present.id, name, "dropped", "the guard asked for more than the plan did"))
    return GuardedPlan(plan, tuple(groups.values()), tuple(drops))


def less_or_nothing(group: Group, facts: Facts, factor: float, reason: str) -> Ruling:
    """Lessen by `factor`; where not a single quantum is left, drop."""
    return Ruling(group.id, reason, lessen(group, facts, factor))


def _is_less(new: Group, old: Group, facts: Facts) -> bool:
    """Whether `new` only moves changes of `old` toward the present, at least one of them by a quantum."""
    if replace(new, changes=()) != replace(old, changes=()):
        return False
    before = {(c.target, c.knob): c for c in old.changes}
    smaller = len(new.changes) < len(old.changes)
    for change in new.changes:
        was = before.get((change.target, change.knob))
        if was is None or change.before != was.before:
            return False
        knob = facts.knob(change)
        slack = 1e-9 if knob is None else knob.quantum * 1e-3
        low, high = min(was.before, was.after), max(was.before, was.after)
        if not low - slack <= change.after <= high + slack:
            return False
        smaller = smaller or abs(change.after - was.after) > slack
    return smaller
