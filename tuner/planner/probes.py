"""Probes: which open pair of a card is tried out, how long and how hard, and what that costs the one held back."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

from analyzer.contention.probe import BUSY, FEWEST_PAIRS, POWER, Prospect, pairs_to_run, sought
from collector.words import plural
from tuner.model import Change, Group, Knob, KnobEffect, Trial
from tuner.planner.reserve import reserve_share
from tuner.planner.views import SHARE_KNOB, Candidate, CardView, PlannerInput, SliceView, knob_for
from tuner.settings import TunerSettings

PROBE = "probe"
BLOCK_SECONDS = 240.0
BLOCK_SAMPLES = 4  # a block has at least so many rows
_LEAST_TAKEN = 0.3  # of the suspect's activity: a smaller cut would be lost in the noise
_OVER = 1.25  # times its quota: what tells its activity counts time, or the quota does not hold it
_BURST = 1.5  # times its forecast, and by so much of the card
_BURST_SHARE = 0.05
NO_LIVE_SHARE = "no share acts on running work at once under this backend, as a probe needs it"
_ACTS = {
    KnobEffect.LIVE: "",
    KnobEffect.NEW_WORK_ONLY: "acts on new work only",
    KnobEffect.NEEDS_RESTART: "acts at a restart",
    KnobEffect.NEEDS_DRAIN: "acts on an empty card",
    KnobEffect.NEEDS_REBOOT: "acts at a reboot",
}
_RISK = "the suspect's work is late for nothing where the two do not touch; an objective that is missed ends it at once"


def block_seconds(interval_seconds: float) -> float:
    """Return the length of a block on a grid of rows."""
    return max(BLOCK_SECONDS, BLOCK_SAMPLES * interval_seconds)


def incident(card: CardView) -> str:
    """Say why no probe may go on on a card; empty: nothing."""
    if not card.healthy:
        return f"there is evidence against {card.gpu}, or nobody looked at it"
    missed = [s for s in card.slices if s.misses_objective]
    return f"{missed[0].workload} misses its objective on {card.gpu}" if missed else ""


def unrest(card: CardView) -> str:
    """Say why no probe may begin a block on a card now; empty: it is calm.

    An incident, a service in a burst that was not forecast, or one whose forecast comes near its own share.
    """
    for view in card.slices:
        if not view.online or math.isnan(view.need_lead):
            continue
        if view.used > max(_BURST * view.need_lead, view.need_lead + _BURST_SHARE):
            return f"{view.workload} is in a burst on {card.gpu}"
        if view.need_lead > view.utilisation_limit * view.quota:
            return f"a peak of {view.workload} is forecast on {card.gpu}"
    return incident(card)


def why_not(sharing: str, knobs: Sequence[Knob]) -> str:
    """Say why no slice of that sharing kind can be held back and let go by the minute; empty: it can."""
    knob = knob_for(tuple(knobs), SHARE_KNOB, "slice", sharing)
    return "none can be set" if knob is None else _ACTS[knob.effect]


def untried(pairs: Sequence[str], knobs: Sequence[Knob]) -> str:
    """Say how many open pairs no probe can decide under these knobs, and why; empty: none.

    Args:
        pairs: of each open pair, how the suspect shares its card.
        knobs: of the backend.
    """
    reasons = {sharing: why_not(sharing, knobs) for sharing in sorted(set(pairs))}
    count = sum(bool(reasons[sharing]) for sharing in pairs)
    if not count:
        return ""
    told = "; ".join(f"{sharing or 'unknown sharing'}: {reason}" for sharing, reason in reasons.items() if reason)
    return f"{plural(count, 'open pair')} of TT101 cannot be tried out: {NO_LIVE_SHARE} ({told})"


def propose_probes(world: PlannerInput, settings: TunerSettings) -> tuple[list[Group], list[str]]:
    """Return one probe a card at most, and why the other open pairs are not tried out.

    Suspected pairs come first, larger effects before smaller.
    """
    if settings.probe_pairs < FEWEST_PAIRS:
        return [], []
    groups: list[Group] = []
    notes: list[str] = []
    if withheld := untried(world.open_pairs, world.knobs):
        notes.append(withheld)
    ranked = sorted(world.candidates, key=_rank)
    for card in world.cards:
        views = {view.target: view for view in card.slices}
        for candidate in ranked:
            victim, suspect = views.get(candidate.victim), views.get(candidate.suspect)
            if victim is None or suspect is None:
                continue
            group = _probe(card, victim, suspect, candidate, world, settings)
            if isinstance(group, Group):
                groups.append(group)
                break
            notes.append(f"no probe of {suspect.workload} against {victim.workload} on {card.gpu}: {group}")
    return groups, notes


def _rank(candidate: Candidate) -> tuple[bool, float, str]:
    return not candidate.suspected, 0.0 if math.isnan(candidate.effect) else -candidate.effect, candidate.finding


def _probe(  # noqa: PLR0917 - all that decides it
    card: CardView,
    victim: SliceView,
    suspect: SliceView,
    candidate: Candidate,
    world: PlannerInput,
    settings: TunerSettings,
) -> Group | str:
    knob = knob_for(world.knobs, SHARE_KNOB, "slice", card.sharing)
    prospect = candidate.prospect
    if knob is None or (against := _unfit(suspect, prospect, knob)):
        return "its share cannot be set" if knob is None else against
    after = _held_to(suspect, prospect, knob, settings)
    taken = 1.0 - after / prospect.level if prospect.level > 0 else 0.0
    if not taken >= _LEAST_TAKEN:
        return f"its floor leaves too little to take away ({max(taken, 0.0):.0%} of what it uses)"
    pairs = pairs_to_run(prospect, candidate.effect, taken, settings.probe_pairs)
    if not pairs:
        most = settings.probe_pairs
        return f"{plural(most, 'pair')} of blocks would not decide it (it takes {_needed(candidate, taken)})"
    block = block_seconds(world.interval_seconds) + knob.read_back_seconds
    # One change an hour of the card's budget is left to others.
    every = max(2.0 * block, 3600.0 / max(settings.changes_per_gpu_hour - 1, 1))
    expected = pairs * every / max(prospect.busy_share, 1e-6)
    longest = 3600.0 * settings.probe_hours
    if expected > longest:
        return f"both are at work for {prospect.busy_share:.0%} of the time: it would take {expected / 3600:.0f} h"
    lost = pairs * block * (prospect.level - after)
    whole = expected * max(prospect.busy_share, 1e-6) * prospect.level
    change = Change(
        suspect.target,
        SHARE_KNOB,
        suspect.quota,
        after,
        "held back now and then, to see whether its neighbour runs faster",
        suspect.tenant,
        suspect.workload,
    )
    identity = f"{world.now.isoformat()}|{PROBE}|{candidate.finding}|{change.target}:{after:g}"
    digest = hashlib.sha256(identity.encode()).hexdigest()
    trial = Trial(
        victim=victim.target,
        victim_tenant=victim.tenant,
        victim_workload=victim.workload,
        finding=candidate.finding,
        seed=int(digest[-8:], 16),
        pairs=pairs,
        block_seconds=block,
        every_seconds=every,
        longest_seconds=longest,
        busy_share=BUSY * prospect.level,
        expected_seconds=expected,
        lost_sm_seconds=lost,
        lost_ratio=min(lost / whole, 1.0) if whole > 0 else 1.0,
        detects=prospect.smallest(pairs, taken),
    )
    coverage = min(victim.coverage, suspect.coverage)
    return Group(
        id=f"g-{digest[:12]}",
        changes=(change,),
        why=f"whether {suspect.workload} slows {victim.workload} on {card.gpu} is open: a trial would decide it",
        kind=PROBE,
        predicted_gain=0.0,
        confidence=POWER * coverage,
        coverage=coverage,
        risk=_RISK,
        findings=(candidate.finding,),
        trial=trial,
    )


def _unfit(suspect: SliceView, prospect: Prospect, knob: Knob) -> str:
    """Say why a slice cannot be held back; empty: it can."""
    if math.isnan(suspect.quota):
        return "its share cannot be set"
    if knob.effect is not KnobEffect.LIVE:
        return f"its share {_ACTS[knob.effect]}"
    if suspect.protected:
        return "it is protected, or nobody declared it"
    if prospect.level > _OVER * suspect.quota:
        return f"it is busy for {prospect.level:.0%} with {suspect.quota:.0%} of the card: a cut would not be seen"
    return ""


def _held_to(suspect: SliceView, prospect: Prospect, knob: Knob, settings: TunerSettings) -> float:
    """Return the share that the suspect keeps in a throttled block: never below its floor, reserve or one step."""
    wanted = (1.0 - settings.probe_depth) * min(suspect.quota, prospect.level)
    reserve = reserve_share(suspect, settings, hold=False) if suspect.online else 0.0
    least = max(wanted, knob.low, suspect.floor, reserve, suspect.quota - settings.step_limit)
    steps = math.floor((suspect.quota - least) / knob.quantum + 1e-9)
    return suspect.quota - max(steps, 0) * knob.quantum


def _needed(candidate: Candidate, taken: float) -> str:
    needed = candidate.prospect.pairs_needed(2 * sought(candidate.effect), taken)
    return f"{needed:.0f}" if math.isfinite(needed) else "more than can be said"
