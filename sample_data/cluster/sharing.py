"""Who gets how much of a card, and how much neighbours slow one another: the physics of each sharing kind."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sample_data.cluster.spec import CHANNELS, ClusterSpec

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

# A kernel that lives on memory fills the bus from a small part of the card: beyond this share more SMs press no harder.
PRESSURE_KNEE = 0.1
# Kernels of an overcommitted card wait for one another at launch: slow-down for each card's worth of unmet wishes.
OVERCOMMIT_SLOWING = 0.6
# Room on the card, in times of a server's mean need: with enough it runs as if the card were its own up to its cap;
# below that its peaks within the minute meet busy SMs; at `SCARCE_ROOM` only what is really free counts.
ENOUGH_ROOM, SCARCE_ROOM = 1.6, 1.25
_NO_DEMAND = 1e-9
SWITCH_COST = 0.02  # of the service time, for each other process in the rotation
_SHARED_CHANNELS = {
    "mig": (0.0, 0.0, 0.0, 1.0),  # SMs, DRAM and L2 are private to an instance
    "mps": (1.0, 1.0, 1.0, 1.0),
    "vgpu": (1.0, 1.0, 1.0, 1.0),
    "timeslice": (0.0, 1.0, 1.0, 1.0),
    "whole": (0.0, 0.0, 0.0, 0.0),
}


def water_fill(wishes: FloatArray, capacity: float = 1.0) -> FloatArray:
    """Divide `capacity` max-min fairly: nobody gets more than the wish, nothing is left while a wish is open."""
    if wishes.sum() <= capacity:
        return wishes.copy()
    order = np.argsort(wishes)
    granted = np.empty_like(wishes)
    left = capacity
    for rank, i in enumerate(order):
        granted[i] = min(wishes[i], left / (len(order) - rank))
        left -= granted[i]
    return granted


@dataclass(frozen=True, slots=True)
class Pairs:
    """All ordered pairs of slices on one card, and how strongly the suspect can reach the victim by channel."""

    victim: IntArray
    suspect: IntArray
    strength: FloatArray  # (pairs, channels): sensitivity x pressure, 0 where the kind isolates

    @classmethod
    def of(cls, spec: ClusterSpec) -> Pairs:
        """Build the pairs of a spec."""
        victim, suspect, strength = [], [], []
        for v, a in enumerate(spec.slices):
            for s, b in enumerate(spec.slices):
                if v != s and a.card == b.card:
                    victim.append(v)
                    suspect.append(s)
                    shared = np.array(_SHARED_CHANNELS[a.kind])
                    strength.append(np.array(a.sensitivity) * np.array(b.pressure) * shared)
        return cls(np.array(victim), np.array(suspect), np.array(strength).reshape(-1, len(CHANNELS)))

    def slowing(self, activity: FloatArray) -> FloatArray:
        """Return each slice's factor on its service time: product of (1 + sensitivity x pressure x activity)."""
        terms = np.log1p(self.strength * activity[self.suspect, None]).sum(axis=1)
        return np.asarray(np.exp(np.bincount(self.victim, weights=terms, minlength=len(activity))))


def pressing(share: FloatArray) -> FloatArray:
    """Return how hard slices press (0..1), by the share of the card that they run on."""
    return np.asarray(np.minimum(share / PRESSURE_KNEE, 1.0))


def _headroom(room: FloatArray, demand: FloatArray) -> FloatArray:
    """Return 1 where the mean need is free `ENOUGH_ROOM` times, so that a minute's peaks find SMs, 0 when scarce."""
    times = np.divide(room, demand, out=np.full_like(room, ENOUGH_ROOM), where=demand > _NO_DEMAND)
    return np.clip((times - SCARCE_ROOM) / (ENOUGH_ROOM - SCARCE_ROOM), 0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Grant:
    """What a card's slices get in a minute, in shares of the card.

    For online slices `available` is what they can use at most, `stretch` how much longer a request takes because it is
    not alone in the rotation or because the card is overcommitted; `granted` is what the others run on.
    """

    granted: FloatArray
    available: FloatArray
    stretch: FloatArray


class Divider:
    """Divides all cards of a cluster at once."""

    def __init__(self, spec: ClusterSpec) -> None:
        self._card = np.array([s.card for s in spec.slices])
        self._cards = len(spec.cards)
        self._width = np.array([s.width for s in spec.slices])
        self._online = np.array([s.online for s in spec.slices])
        kinds = np.array([s.kind for s in spec.slices])
        self._pooled = np.isin(kinds, ("mps", "vgpu"))
        self._rotating = kinds == "timeslice"
        self._members = [np.flatnonzero(self._card == c) for c in range(self._cards)]
        self._rotating_cards = [c for c, m in enumerate(self._members) if m.size and self._rotating[m[0]]]
        self._pooled_card = np.array([bool(m.size and self._pooled[m[0]]) for m in self._members])

    def divide(self, cap: FloatArray, demand: FloatArray, wave: FloatArray) -> Grant:
        """Return the grants.

        Args:
            cap: share that each slice may use at most (0: cannot run).
            demand: online: share that its requests need on average.
            wave: others: 0..1, how much of its width it wants.
        """
        wish = np.where(self._online, np.minimum(demand, cap), np.minimum(cap, self._width) * wave)
        granted, available, stretch = wish.copy(), cap.copy(), np.ones_like(wish)
        totals = np.bincount(self._card, weights=np.where(self._pooled, wish, 0.0), minlength=self._cards)
        for c in np.flatnonzero(self._pooled_card & (totals > 1.0)):
            members = self._members[c]
            granted[members] = water_fill(wish[members])
            stretch[members] += OVERCOMMIT_SLOWING * (totals[c] - 1.0)
        used = np.bincount(self._card, weights=np.where(self._pooled, granted, 0.0), minlength=self._cards)
        free = np.maximum(1.0 - used[self._card], 0.0)
        room = np.minimum(cap, granted + free)
        available = np.where(self._pooled, room + (cap - room) * _headroom(room, demand), available)
        grant = Grant(granted, available, stretch)
        self._rotate(cap, demand, wave, grant)
        return grant

    def _rotate(self, cap: FloatArray, demand: FloatArray, wave: FloatArray, grant: Grant) -> None:
        """Time slicing: a request takes n times as long among n active processes; the rest share what time is left."""
        for c in self._rotating_cards:
            members = self._members[c]
            alive = cap[members] > 0
            wish = np.where(self._online[members], demand[members] / self._width[members], wave[members])
            time = np.where(alive, np.minimum(wish, 1.0), 0.0)
            others = time.sum() - time
            grant.granted[members] = water_fill(time) * self._width[members]
            grant.available[members] = np.where(alive, self._width[members], 0.0)
            grant.stretch[members] = np.where(
                self._online[members], 1.0 + others * (1.0 + SWITCH_COST), 1.0 + others * SWITCH_COST
            )
