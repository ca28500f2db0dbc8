"""The true ledger of a run: where every SM-second of every card went, minute by minute.

Level 1: used + reserved + wasted + free + stranded = capacity (nothing is unobserved to one who knows all). What nobody
holds is free where some request of the run would fit there in that minute, else stranded. Level 2: useful + contention
+ throttling + overhead + unrated = used; overhead is work that came too late, and use in which nothing was finished.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from collector.declarations import Owner
from sample_data.cluster.spec import MIG_PROFILES, STEP_SECONDS, ClusterSpec, SliceSpec
from sample_data.cluster.truth import Truth

FloatArray = npt.NDArray[np.float64]
LEVEL_1 = ("used", "reserved", "wasted", "free", "stranded")
LEVEL_2 = ("useful", "contention", "throttling", "overhead", "unrated")
_MIG_STARTS = {"1g.10gb": range(7), "2g.20gb": (0, 2, 4), "3g.40gb": (0, 4), "4g.40gb": (0,)}  # of an A100-80
_MINUTES = 60  # what a reserve is judged over
_EPSILON = 1e-9


def true_ledger(truth: Truth, reserves: Mapping[Owner, float]) -> dict[str, FloatArray]:
    """Return each term of both levels in SM-seconds per card.

    Args:
        truth: of the run.
        reserves: (cluster, tenant, workload) -> share of a card that each of its slices keeps on purpose.
    """
    spec = truth.spec
    cards = len(spec.cards)
    card = np.array([s.card for s in spec.slices])
    sms = np.array([c.hardware.sm_count for c in spec.cards], dtype=np.float64) * STEP_SECONDS
    kept = np.array([reserves.get((spec.name, s.tenant, s.name), 0.0) for s in spec.slices])
    used = np.stack([m.used for m in truth.minutes]) / sms[card]
    quota = np.stack([m.quota for m in truth.minutes])
    onto = np.eye(cards)[card]  # (slices, cards)
    used *= (1.0 / np.maximum(used @ onto, 1.0))[:, card]
    unused = np.clip(quota - used, 0.0, None)
    room = np.clip(1.0 - used @ onto, 0.0, 1.0)
    unused *= (np.minimum(unused @ onto, room) / np.maximum(unused @ onto, _EPSILON))[:, card]
    hours = np.arange(0, len(used), _MINUTES)
    lengths = np.diff(np.r_[hours, len(used)])[:, None]
    spare = np.clip(kept * lengths - np.add.reduceat(used, hours, axis=0), 0.0, None)
    reserved = np.minimum(np.add.reduceat(unused, hours, axis=0), spare)
    unheld = room - unused @ onto
    usable = np.column_stack([_usable(spec, c, quota[:, card == c]) for c in range(cards)])
    terms = {
        "used": (used @ onto).sum(axis=0) * sms,
        "reserved": (reserved @ onto).sum(axis=0) * sms,
        "free": np.where(usable, unheld, 0.0).sum(axis=0) * sms,
        "stranded": np.where(usable, 0.0, unheld).sum(axis=0) * sms,
    }
    terms["wasted"] = (unused @ onto).sum(axis=0) * sms - terms["reserved"]
    for name, field in (("useful", "useful"), ("contention", "contention"), ("throttling", "throttling")):
        terms[name] = sum((getattr(m, field) for m in truth.minutes), np.zeros(len(card))) @ onto
    countless = np.array([s.role == "held" for s in spec.slices])
    terms["overhead"] = (sum((m.vain for m in truth.minutes), np.zeros(len(card))) * ~countless) @ onto
    terms["unrated"] = (np.stack([m.used for m in truth.minutes]).sum(axis=0) * countless) @ onto
    return terms


def _usable(spec: ClusterSpec, card: int, quota: FloatArray) -> npt.NDArray[np.bool_]:
    """Return in which minutes some request of the run fits into what nobody holds on a card.

    Args:
        spec: of the run.
        card: its index.
        quota: (minutes, slices of the card).
    """
    members = [s for s in spec.slices if s.card == card]
    held = quota > 0
    sharing = spec.cards[card].sharing
    if sharing == "mig":
        layouts, which = np.unique(held, axis=0, return_inverse=True)
        fits = np.array([_instance_fits(spec, members, layout) for layout in layouts])
        return np.asarray(fits[which.ravel()])
    if sharing in ("mps", "whole"):  # a unit of the plug-in, or the card: what the queue's jobs ask for
        seats = np.array([s.role == "seat" for s in members])
        return np.asarray((~held[:, seats]).any(axis=1))
    memory = np.array([s.memory_quota_bytes for s in members])
    room = spec.cards[card].hardware.memory_bytes - held @ memory
    share = 1.0 - quota.sum(axis=1)
    fits = np.zeros(len(quota), dtype=bool)
    for wanted, size in _shares_asked(spec):
        fits |= (share >= wanted - _EPSILON) & (room >= size)
    return fits


def _shares_asked(spec: ClusterSpec) -> Iterator[tuple[float, float]]:
    for s in spec.slices:
        if s.kind == "vgpu":
            yield round(s.sm_quota, 2), s.memory_quota_bytes
    if any(s.role == "seat" and s.kind == "whole" for s in spec.slices):
        yield 1.0, 0.0


def _instance_fits(spec: ClusterSpec, members: list[SliceSpec], held: npt.NDArray[np.bool_]) -> bool:
    """Say whether an instance that some pod asks for is there and empty, or can be made where none is."""
    asked = {s.profile for s in spec.slices if s.profile and (s.role != "seat" or s.seat_class == "mig")}
    if any(s.profile in asked and not there for s, there in zip(members, held, strict=True)):
        return True
    taken = {k for s in members for k in range(s.start, s.start + MIG_PROFILES[s.profile].memory_slices)}
    compute = 7 - sum(int(s.profile[0]) for s in members)
    return any(
        int(profile[0]) <= compute and not taken & set(range(start, start + MIG_PROFILES[profile].memory_slices))
        for profile in asked
        for start in _MIG_STARTS[profile]
    )
