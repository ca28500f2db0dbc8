"""From views to a plan: one group a card or quota move, each with the sentence that an operator reads."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace

from tuner.model import Change, Group, Knob, Plan
from tuner.planner.memory import propose_memory
from tuner.planner.probes import propose_probes
from tuner.planner.queues import propose_queue_moves
from tuner.planner.shares import propose_shares
from tuner.planner.views import SHARE_KNOB, CardView, PlannerInput, SliceView, knob_for, reaches_running_work
from tuner.settings import TunerSettings

_BEST_CONFIDENCE = 0.9  # no forecast is certain
_YOUNG = 0.75  # share of it for workloads that were only just seen; a day of history gives all
_DAY_SECONDS = 86_400.0
_RISKS = {
    "give": "online work may need more than was ever seen; its quota stays, and the next cycle takes the share back",
    "reserve": "the load may not come back as it did before: offline work was slowed for nothing",
    "queue": "what is admitted may slow its neighbours, or hold cards that another queue wants soon",
    "right_size": "growth may have stopped by itself; memory that is granted cannot be taken back while it is used",
    "fast": "the objective may be missed for another reason: offline work gives way in vain",
}
_FAST_STEP = 0.1  # share of the card that the fast path moves at once


def make_plan(world: PlannerInput, settings: TunerSettings) -> Plan:
    """Plan one full cycle."""
    groups: list[Group] = []
    for card in world.cards:
        groups += _card_groups(card, world, settings)
    for changes in propose_queue_moves(world.queues, world.knobs):
        queue = changes[-1]
        gain = 3600.0 * (queue.after - queue.before)
        groups.append(_group(world, "queue", changes, f"queue {queue.target.name}: {queue.reason}", gain=gain))
    probes, notes = propose_probes(world, settings)
    return _plan(world, [*groups, *probes], notes, fast=False)


def plan_fast(world: PlannerInput, settings: TunerSettings) -> Plan:
    """Plan the fast path: only for online slices that miss their objective right now.

    Offline neighbours on the card give way by a step where that reaches running work; a slice that fills its own quota
    and can be raised live gets what they gave. Only such a raise passes the guards by the fast lane; neighbours that
    give way without one do so at the pace of any other change.
    """
    groups: list[Group] = []
    for card in world.cards:
        missing = [s for s in card.slices if s.online and s.misses_objective and not s.protected]
        if missing and card.healthy:
            changes = _relief(card, missing, world.knobs, settings)
            if changes:
                names = ", ".join(sorted({s.workload for s in missing}))
                why = f"{names} misses its objective on {card.gpu}"
                group = _group(world, "fast", changes, why, slices=card.slices)
                groups.append(replace(group, fast=any(not c.is_decrease for c in changes)))
    return _plan(world, groups, [], fast=True)


def _card_groups(card: CardView, world: PlannerInput, settings: TunerSettings) -> list[Group]:
    groups: list[Group] = []
    shares = propose_shares(card, world.knobs, settings)
    if shares is not None:
        kind = "give" if shares.gain > 0 else "reserve"
        groups.append(_group(world, kind, shares.changes, shares.why, gain=shares.gain, slices=card.slices))
    memory = propose_memory(card, world.knobs, settings)
    if memory:
        why = f"memory on {card.gpu} is raised before it runs out"
        groups.append(_group(world, "right_size", memory, why, slices=card.slices))
    return groups


def _relief(
    card: CardView, missing: list[SliceView], knobs: tuple[Knob, ...], settings: TunerSettings
) -> tuple[Change, ...]:
    knob = knob_for(knobs, SHARE_KNOB, "slice", card.sharing)
    if knob is None or not reaches_running_work(knob):
        return ()
    changes: list[Change] = []
    for view in card.slices:
        if view.online or view.protected or math.isnan(view.quota):
            continue
        after = knob.quantise(max(view.quota - _FAST_STEP, view.floor, knob.low))
        if after < view.quota:
            reason = "gives way to online work that misses its objective"
            changes.append(Change(view.target, SHARE_KNOB, view.quota, after, reason, view.tenant, view.workload))
    freed = sum(c.before - c.after for c in changes)
    for view in missing:
        full = not math.isnan(view.used) and view.used > view.utilisation_limit * view.quota
        if full and knob.restart_seconds == 0 and freed >= knob.quantum:
            after = knob.quantise(min(view.quota + freed, view.quota + settings.step_limit))
            reason = "fills its own share and misses its objective"
            changes.append(Change(view.target, SHARE_KNOB, view.quota, after, reason, view.tenant, view.workload))
            freed -= after - view.quota
    return tuple(changes)


def _trust(slices: tuple[SliceView, ...]) -> tuple[float, float]:
    """Return (confidence, coverage) of advice about a card: its worst-seen slice, and how long its work was watched."""
    coverage = min((s.coverage for s in slices), default=1.0)
    watched = [min(s.history_seconds / _DAY_SECONDS, 1.0) for s in slices if s.online]
    known = min(watched, default=1.0)
    return _BEST_CONFIDENCE * coverage * (_YOUNG + (1.0 - _YOUNG) * known), coverage


def _group(
    world: PlannerInput,
    kind: str,
    changes: tuple[Change, ...],
    why: str,
    *,
    gain: float = 0.0,
    slices: tuple[SliceView, ...] = (),
) -> Group:
    subject = "|".join(sorted(f"{c.target}:{c.knob}:{c.after:g}" for c in changes))
    digest = hashlib.sha256(f"{world.now.isoformat()}|{kind}|{subject}".encode()).hexdigest()[:12]
    trust, coverage = _trust(slices)
    confidence = trust * (world.confidence or {}).get(kind, 1.0)
    findings = tuple(
        sorted({f for card in world.cards for s in card.slices for f in s.suspect_in if _touches(changes, s)})
    )
    return Group(f"g-{digest}", changes, why, kind, gain, confidence, coverage, _RISKS[kind], findings)


def _touches(changes: tuple[Change, ...], view: SliceView) -> bool:
    return any(c.target == view.target for c in changes)


def _plan(world: PlannerInput, groups: list[Group], notes: list[str], *, fast: bool) -> Plan:
    groups.sort(key=lambda g: (-g.predicted_gain, g.id))
    prefix = "fast" if fast else "plan"
    return Plan(
        id=f"{prefix}-{world.now.strftime('%Y%m%dT%H%M%S')}",
        made_at=world.now,
        as_of=world.as_of,
        groups=tuple(groups),
        simulated=world.simulated,
        notes=tuple(notes),
    )
