"""Compute shares on one card: online work keeps its reserve, offline work takes the rest by weight, above its floor."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tuner.model import Change, Knob, KnobEffect
from tuner.planner.reserve import reserve_share
from tuner.planner.views import SHARE_KNOB, CardView, SliceView, knob_for
from tuner.settings import TunerSettings

# A restart must win back several times the work that it loses within the time the new share is expected to hold.
_RESTART_PAYBACK = 3.0
_HOLD_HOURS = 2.0


@dataclass(frozen=True, slots=True)
class ShareProposal:
    """Changes of one card that belong together, the useful SM-seconds an hour they promise, and why."""

    changes: tuple[Change, ...]
    gain: float
    why: str


def propose_shares(card: CardView, knobs: tuple[Knob, ...], settings: TunerSettings) -> ShareProposal | None:
    """Say which offline shares of a card should change.

    Lowering is decided on the lead time (what online work may need before a decrease has reached the work); raising on
    the hold time (what it may need while the new share lasts): the gap between the two is the hysteresis.

    Returns:
        None where the card has no such knob, no tunable offline slice, or nothing to change.
    """
    knob = knob_for(knobs, SHARE_KNOB, "slice", card.sharing)
    if knob is None or not card.healthy:
        return None
    tunable = [s for s in card.slices if _tunable(s)]
    if not tunable:
        return None
    fixed = [s for s in card.slices if not s.online and not _tunable(s)]
    taken = [*(s.effective for s in fixed), card.open_share]
    held = sum(share for share in taken if not math.isnan(share))
    # Whoever has a share that nobody knows may have the whole rest of the card: nothing is left to give.
    known = not any(math.isnan(share) for share in taken)
    room_lead = _room(card, settings, held, hold=False)
    room_hold = _room(card, settings, held, hold=True)
    total = sum(s.quota for s in tunable)
    # Half a dead band of want is borne; beyond it one step is made that the dead band lets through.
    band = settings.dead_band * total
    if total - room_lead > max(band / 2, 1e-9):
        wanted = _divide(tunable, max(min(room_lead, total - band), 0.0))
        why = f"online work on {card.gpu} may need the card back: offline shares fall to {_percent(room_lead)} in all"
    elif known and room_hold > total + 1e-9:
        wanted = _divide(tunable, room_hold)
        why = f"{_percent(room_hold - total)} of {card.gpu} is not needed by online work in the hours ahead"
    else:
        return None
    changes = tuple(c for s in tunable for c in _change(s, wanted[s], knob, card))
    if not changes:
        return None
    gain = 3600.0 * sum(c.after - c.before for c in changes)
    if knob.effect is KnobEffect.NEEDS_RESTART and not _worth_a_restart(changes, knob):
        return None
    return ShareProposal(changes, gain, why)


def _tunable(view: SliceView) -> bool:
    return not view.online and not view.protected and not math.isnan(view.quota)


def _room(card: CardView, settings: TunerSettings, held: float, *, hold: bool) -> float:
    reserved = sum(reserve_share(s, settings, hold=hold) for s in card.slices if s.online)
    return settings.oversubscription - reserved - held


def _divide(slices: list[SliceView], room: float) -> dict[SliceView, float]:
    """Split `room` by weight with floors (water-filling): a floor that the split misses is granted first."""
    shares: dict[SliceView, float] = {}
    open_slices, left = list(slices), room
    while open_slices:
        weight = sum(s.weight for s in open_slices)
        short = [s for s in open_slices if left * s.weight / weight < s.floor]
        if not short:
            shares |= {s: left * s.weight / weight for s in open_slices}
            break
        for view in short:
            shares[view] = view.floor
            left = max(left - view.floor, 0.0)
            open_slices.remove(view)
    return shares


def _change(view: SliceView, wanted: float, knob: Knob, card: CardView) -> list[Change]:
    # A slice that slows a neighbour down is not given more of the card while that neighbour misses its objective.
    hurts = bool(view.suspect_in) and any(s.victim_in and s.misses_objective for s in card.slices)
    ceiling = view.quota if hurts else knob.high
    after = knob.quantise(min(wanted, ceiling))
    if after > wanted + 1e-9:  # rounding up would break the card's sum
        after = max(knob.quantise(after - knob.quantum), knob.low)
    if math.isclose(after, view.quota, abs_tol=knob.quantum / 2):
        return []
    reason = "forecast of online demand leaves room" if after > view.quota else "online demand is expected to return"
    return [Change(view.target, SHARE_KNOB, view.quota, after, reason, view.tenant, view.workload)]


def _worth_a_restart(changes: tuple[Change, ...], knob: Knob) -> bool:
    if any(c.is_decrease for c in changes):
        return True  # a promise to online work is not weighed against lost batch work
    won = sum(c.after - c.before for c in changes) * _HOLD_HOURS * 3600.0
    lost = sum(c.before for c in changes) * knob.restart_seconds
    return won > _RESTART_PAYBACK * lost


def _percent(share: float) -> str:
    return f"{100 * max(share, 0.0):.0f} %"
