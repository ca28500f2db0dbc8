"""Short names for what several tests do."""

from __future__ import annotations

from typing import TypeVar

from sample_data.cluster import ClusterSpec, SimulatedCluster
from sample_data.cluster.backend import SimulatorBackend
from sample_data.cluster.simulation import World
from tuner.model import ApplyStatus, Change, Group, Target

Stepping = TypeVar("Stepping", World, SimulatedCluster)


def run(thing: Stepping, minutes: int) -> Stepping:
    for _ in range(minutes):
        thing.step()
    return thing


def find(spec: ClusterSpec, name: str, ordinal: int = 0) -> int:
    return next(i for i, s in enumerate(spec.slices) if (s.name, s.ordinal) == (name, ordinal))


def target_of(cluster: SimulatedCluster, name: str, ordinal: int = 0) -> Target:
    index = find(cluster.spec, name, ordinal)
    card = cluster.spec.cards[cluster.spec.slices[index].card]
    return Target("slice", cluster.spec.name, card.node, card.uuid, cluster.world.slice_id(index))


def group(*changes: Change) -> Group:
    return Group("g", changes, "test", "give", 0.0, 1.0, 1.0)


def change(backend: SimulatorBackend, target: Target, knob: str, after: float) -> bool:
    held = backend.read([target]).targets[target]
    wanted = group(Change(target, knob, held.values[knob], after, "test"))
    return backend.apply(wanted, {target: held.generation}).status in (ApplyStatus.APPLIED, ApplyStatus.ACCEPTED)
