"""The guard chain: pure links that can drop or lessen whole groups, and say why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tuner.guards import evidence, pace, permission, shape
from tuner.guards import trial as trials
from tuner.guards.chain import Guard, GuardedPlan, Ruling, each, run_chain
from tuner.guards.world import FAILED_PAST, PAST, Facts, Vitals, World, domain_of, in_order, lessen
from tuner.model import BackendState, Group, Plan
from tuner.settings import TunerSettings

GUARDS: tuple[tuple[str, Guard], ...] = (
    ("kill switch", each(permission.kill_switch)),
    ("simulation", each(permission.simulation)),
    ("freshness", each(evidence.freshness)),
    ("impossible world", each(evidence.world_makes_sense)),
    ("scope", each(permission.scope)),
    ("protection", each(permission.protection)),
    ("frozen target", each(permission.frozen_target)),
    ("calendar", each(permission.calendar)),
    ("prediction", each(permission.prediction)),
    ("trial", each(trials.trial)),
    ("coverage", each(evidence.coverage)),
    ("confidence", each(evidence.confidence)),
    ("warm-up", each(evidence.warm_up)),
    ("health", each(evidence.health)),
    ("quantum", shape.quantum),
    ("limits", shape.limits),
    ("step limit", shape.step_limit),
    ("memory", evidence.memory),
    ("dead band", each(shape.dead_band)),
    ("blacklist", each(pace.blacklist)),
    ("cooldown", each(pace.cooldown)),
    ("oscillation", each(pace.oscillation)),
    ("breaker", each(pace.breaker)),
    ("in flight", pace.in_flight),
    ("capacity", shape.capacity),
    ("budget", pace.budgets),
    ("wave", pace.waves),
)


# A probe that has consent goes at the pace that was consented to.
_PACE = frozenset({"dead band", "blacklist", "cooldown", "oscillation", "in flight", "budget", "wave"})
TRIAL_GUARDS: tuple[tuple[str, Guard], ...] = tuple((name, guard) for name, guard in GUARDS if name not in _PACE)


def run_guards(plan: Plan, world: World, settings: TunerSettings) -> GuardedPlan:
    """Return what is left of a plan, and every drop and lessening with its guard and reason."""
    return run_chain(plan, world, settings, GUARDS)


def still_allowed(
    group: Group,
    world: World,
    fresh: BackendState,
    settings: TunerSettings,
    *,
    simulated: bool,
    guards: Sequence[tuple[str, Guard]] = GUARDS,
) -> str | None:
    """Run the guards on one group once more, on a fresh read of its targets; return the first reason against it.

    For `tuner.execute.execute(still_ok=...)`. A group that would only be lessened is not carried out either: what is
    written is what was planned or approved.

    Args:
        group: what is about to be written.
        world: as for the plan, or newer.
        fresh: a read of at least the group's targets.
        settings: the tuner's.
        simulated: whether the group was planned on simulated rows.
        guards: `TRIAL_GUARDS` for a block of a probe that runs already.
    """
    state = BackendState(fresh.read_at, {**world.state.targets, **fresh.targets})
    now = max(world.now, fresh.read_at)
    plan = Plan("recheck", now, fresh.read_at, (group,), simulated=simulated)
    drops = run_chain(plan, replace(world, now=now, state=state), settings, guards).drops
    return f"{drops[0].guard}: {drops[0].reason}" if drops else None


__all__ = [
    "FAILED_PAST",
    "GUARDS",
    "PAST",
    "TRIAL_GUARDS",
    "Facts",
    "GuardedPlan",
    "Ruling",
    "Vitals",
    "World",
    "domain_of",
    "in_order",
    "lessen",
    "run_guards",
    "still_allowed",
]
