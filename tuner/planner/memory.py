"""Memory quotas: grown before the work runs out; never shrunk below the peak seen plus a margin."""

from __future__ import annotations

import math

from tuner.model import Change, Knob
from tuner.planner.views import MEMORY_KNOB, CardView, knob_for
from tuner.settings import TunerSettings


def propose_memory(card: CardView, knobs: tuple[Knob, ...], settings: TunerSettings) -> tuple[Change, ...]:
    """Return increases for slices whose expected use comes within the margin of their memory quota.

    Only what no quota on the card holds is handed out. A slice without a known quota may take all that is left, so that
    beside it nothing is.
    """
    knob = knob_for(knobs, MEMORY_KNOB, "slice", card.sharing)
    if knob is None:
        return ()
    free = card.memory_bytes - sum(s.memory_quota_bytes for s in card.slices)
    if math.isnan(free):
        return ()
    changes: list[Change] = []
    for view in card.slices:
        known = [v for v in (view.memory_need_bytes, view.memory_peak_bytes) if not math.isnan(v)]
        need = max(known, default=math.nan)
        if math.isnan(need):
            continue
        wanted = need * (1.0 + settings.memory_margin)
        grow = min(wanted - view.memory_quota_bytes, free)
        if grow < knob.quantum:
            continue
        after = knob.quantise(math.floor((view.memory_quota_bytes + grow) / knob.quantum + 1e-9) * knob.quantum)
        if after <= view.memory_quota_bytes:
            continue
        free -= after - view.memory_quota_bytes
        reason = f"use is expected to reach {need / 2**30:.1f} GiB of {view.memory_quota_bytes / 2**30:.1f} GiB"
        changes.append(
            Change(view.target, MEMORY_KNOB, view.memory_quota_bytes, after, reason, view.tenant, view.workload)
        )
    return tuple(changes)
