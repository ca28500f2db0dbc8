"""Who really hurts whom: every ordered pair of slices on one card, by counterfactual physics."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sample_data.cluster.sharing import SWITCH_COST, Pairs
from sample_data.cluster.spec import CHANNELS, ClusterSpec

FloatArray = npt.NDArray[np.float64]

ROTATION = "rotation"  # the channel of time slicing itself


@dataclass(frozen=True, slots=True)
class Pair:
    """One ordered pair of slices on a card: what the suspect really does to the victim.

    `effect` is the relative slow-down of the victim's work at the suspect's full swing (98 % against 2 % of its
    activity over the run), everything else as it was. `channel` is the strongest one.
    """

    node: str
    gpu: str
    kind: str
    victim: str  # workload#ordinal; a seat's name for queue jobs
    suspect: str
    effect: float
    planted: bool
    decoy: str  # what it looks like contention for, or empty
    channel: str


def true_pairs(spec: ClusterSpec, activity: FloatArray, turn: FloatArray) -> list[Pair]:
    """Return all pairs of a run.

    Args:
        spec: the cluster.
        activity: how hard each slice pressed, (minutes, slices), 0..1.
        turn: share of the time that each slice wanted in a rotation, (minutes, slices); 0 for other kinds.
    """
    low, high = np.percentile(activity, 2, axis=0), np.percentile(activity, 98, axis=0)
    turn_low, turn_high, turn_mean = np.percentile(turn, 2, axis=0), np.percentile(turn, 98, axis=0), turn.mean(axis=0)
    names = [f"{s.name}#{s.ordinal}" for s in spec.slices]
    planted = set(spec.planted)
    decoys = {(d.victim, d.suspect): d.name for d in spec.decoys}
    on_card = {c: [i for i, s in enumerate(spec.slices) if s.card == c] for c in range(len(spec.cards))}
    pairs = []
    reach = Pairs.of(spec)
    for v, s, strength in zip(reach.victim.tolist(), reach.suspect.tolist(), reach.strength, strict=True):
        by_channel = (1 + strength * high[s]) / (1 + strength * low[s])
        factor, channel = float(by_channel.prod()), CHANNELS[int(np.argmax(by_channel))]
        victim = spec.slices[v]
        if victim.kind == "timeslice":
            rest = [i for i in on_card[victim.card] if i not in (v, s)]
            turned = _rotation(victim.online, float(turn_mean[rest].sum()), float(turn_low[s]), float(turn_high[s]))
            channel = ROTATION if turned > by_channel.max() else channel
            factor *= turned
        card = spec.cards[victim.card]
        key = (names[v], names[s])
        pairs.append(
            Pair(card.node, card.uuid, victim.kind, *key, factor - 1, key in planted, decoys.get(key, ""), channel)
        )
    return pairs


def _rotation(online: bool, rest: float, low: float, high: float) -> float:
    """Return the factor on a victim's work when one process of its rotation goes from `low` to `high`."""
    if online:
        return (1 + (rest + high) * (1 + SWITCH_COST)) / (1 + (rest + low) * (1 + SWITCH_COST))
    # A process that always wants more gets what the others leave, at least its equal part.
    return max(1 - rest - low, 1 / (1 + rest + low)) / max(1 - rest - high, 1 / (1 + rest + high))
