"""Which card, MIG instance or partition a device's series is about, by its labels and what its target's names say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from collector.mappings import ExporterMapping
from collector.naming import PARTITIONS, MigDevice, Names, board_of, is_uuid, partition_of, pick, with_prefix

UNPLACED = "MIG instance of a card that is not known"
_FIRST = frozenset(("", "0"))
_MANY = frozenset(("nps6", "nps8"))  # memory divided as cpx divides the compute dies


@dataclass(frozen=True, slots=True)
class Place:
    """What a device's series is about.

    assumed: the identity is made from the index, for want of a UUID.
    instance: the MIG instance, or `p<id>` for a partition; empty for the card itself.
    foreign: another partition of the card carries its sensors.
    divided: memory is the instance's own.
    """

    uuid: str
    assumed: bool
    index: str
    instance: str = ""
    profile: str = ""
    foreign: bool = False
    divided: bool = True


def place_of(
    labels: Mapping[str, str], exporter: ExporterMapping, node: str, names: Names, mig: Mapping[str, MigDevice]
) -> Place | str:
    """Return what a device's series is about, or the reason why that is not known."""
    said, index = pick(labels, exporter.uuid), pick(labels, exporter.index)
    if said.startswith("MIG-"):
        device = mig.get(said)
        if device is None:
            return UNPLACED
        return Place(device.card, assumed=False, index="", instance=device.instance, profile=device.profile)
    if exporter.partition:
        return _partition(labels, exporter, node, names)
    uuid, assumed = _identity(with_prefix(said, exporter.uuid_prefix), index, node)
    if not uuid:
        return "no device named"
    instance = pick(labels, exporter.instance)
    profile = ""
    if instance:
        profile = names.profiles.get((uuid, instance)) or pick(labels, exporter.profile)
    return Place(uuid, assumed, index, instance, profile)


def _partition(labels: Mapping[str, str], exporter: ExporterMapping, node: str, names: Names) -> Place | str:
    """Return which partition of which AMD card a series is about: partitions have UUID and index of their own."""
    said, index = pick(labels, exporter.uuid), pick(labels, exporter.index)
    number, mode = partition_of(labels, exporter)
    foreign = number not in _FIRST
    if foreign and mode:
        first = names.boards.get(board_of(labels, exporter))
        if first is None:
            return "partition of a card that is not known"
        said, index = first
    uuid, assumed = _identity(said, index, node)
    if not uuid:
        return "no device named"
    if not mode or not number:
        return Place(uuid, assumed, index, foreign=foreign, divided=False)
    memory = labels.get("gpu_memory_partition_type", "").lower()
    divided = memory == f"nps{PARTITIONS[mode]}" if mode in PARTITIONS else memory in _MANY
    profile = f"{mode}/{memory}" if memory else mode
    return Place(uuid, assumed, index, f"p{number}", profile, foreign, divided)


def _identity(uuid: str, index: str, node: str) -> tuple[str, bool]:
    """Return the card's identity and whether it is assumed from an index for want of a UUID."""
    if is_uuid(uuid):
        return uuid, False
    return (f"{node}/{index}", True) if index else ("", True)
