"""Series that tell what other series of their target are about: MIG instances, AMD partitions, versions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from collector.exposition import Series
from collector.mappings import ExporterMapping, MappingTable
from collector.mappings.tables import HOST, MIG_INSTANCE, VERSIONS

_BARE_UUID = re.compile(r"^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-")
_NO_UUID = re.compile(r"^[0-]*$")
_COMPUTE_INSTANCE = re.compile(r"^\d+c\.")
_NO_VERSION = frozenset(("", "N/A", "[N/A]"))
_NO_BOARD = frozenset(("", "0", "NA", "N/A", "[N/A]"))
_NO_PARTITION = frozenset(("", "NA", "4294967295"))
_UNDIVIDED = frozenset(("", "spx", "none", "na"))
_VERSION_LABELS = {"driver_version": "driver_version", "cuda_driver_version": "cuda_version"}
# Compute partitions of a card by the name of the mode; cpx is one a compute die, which the model says.
PARTITIONS = {"dpx": 2, "tpx": 3, "qpx": 4}


class MigDevice(NamedTuple):
    """A MIG instance: its card, its number on the card, its profile (empty: not said)."""

    card: str
    instance: str
    profile: str


@dataclass(frozen=True, slots=True)
class Names:
    """What the naming series of a target say.

    versions: facts of every card that the target speaks of.
    profiles: (card, GPU instance) -> profile.
    devices: MIG UUID -> the instance.
    boards: what partitions have in common -> UUID and index of the card's first partition.
    cut: cards whose index has MIG instances under it.
    host: the machine's own name, where its exporter tells it.
    """

    versions: tuple[tuple[str, str], ...] = ()
    profiles: Mapping[tuple[str, str], str] = field(default_factory=dict)
    devices: Mapping[str, MigDevice] = field(default_factory=dict)
    boards: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    cut: frozenset[str] = frozenset()
    host: str = ""


def read_names(roster: Iterable[Series], table: MappingTable) -> Names:
    """Return what the naming series among those of one target say."""
    found = _Found()
    for series in roster:
        if not table.is_naming(series.name):
            continue
        labels = series.labels
        for mapped in table.find(series.name, labels)[:1]:
            if mapped.row.field == VERSIONS:
                for name, fact in _VERSION_LABELS.items():
                    found.version(fact, labels.get(name, ""))
            elif mapped.row.field == HOST:
                found.host = pick(labels, mapped.exporter.node)
            elif mapped.row.field == MIG_INSTANCE:
                found.instance(labels, mapped.exporter)
            elif mapped.exporter.partition:
                found.partition(labels, mapped.exporter)
            elif mapped.exporter.instance_index:
                found.index(labels, mapped.exporter)
    return found.names()


@dataclass(slots=True)
class _Found:
    versions: dict[str, str] = field(default_factory=dict)
    profiles: dict[tuple[str, str], str] = field(default_factory=dict)
    devices: dict[str, MigDevice] = field(default_factory=dict)
    boards: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    parents: dict[tuple[str, str], str] = field(default_factory=dict)
    under: set[tuple[str, str]] = field(default_factory=set)
    host: str = ""

    def version(self, fact: str, text: str) -> None:
        if text not in _NO_VERSION:
            self.versions[fact] = text

    def instance(self, labels: Mapping[str, str], exporter: ExporterMapping) -> None:
        device = mig_device(labels, exporter)
        if device is not None:
            self.profiles[device.card, device.instance] = device.profile
            if labels.get("mig_uuid"):
                self.devices[with_prefix(labels["mig_uuid"], "MIG-")] = device

    def partition(self, labels: Mapping[str, str], exporter: ExporterMapping) -> None:
        board = board_of(labels, exporter)
        if board and pick(labels, exporter.partition) == "0":
            uuid, index = pick(labels, exporter.uuid), pick(labels, exporter.index)
            self.boards.setdefault(board, set()).add((uuid if is_uuid(uuid) else "", index))

    def index(self, labels: Mapping[str, str], exporter: ExporterMapping) -> None:
        host, index = pick(labels, exporter.node), pick(labels, exporter.index)
        if ":" in index:
            self.under.add((host, index.partition(":")[0]))
        else:
            self.parents[host, index] = pick(labels, exporter.uuid)

    def names(self) -> Names:
        return Names(
            versions=tuple(sorted(self.versions.items())),
            profiles=self.profiles,
            devices=self.devices,
            # One board of several cards tells its partitions apart no more.
            boards={board: next(iter(firsts)) for board, firsts in self.boards.items() if len(firsts) == 1},
            host=self.host,
            cut=frozenset(self.parents[key] for key in self.under if key in self.parents),
        )


def mig_device(labels: Mapping[str, str], exporter: ExporterMapping) -> MigDevice | None:
    """Return the MIG instance that an info series names; None where card or number is missing."""
    uuid, instance = pick(labels, exporter.uuid), pick(labels, exporter.instance)
    if not uuid or not instance:
        return None
    profile = _COMPUTE_INSTANCE.sub("", pick(labels, exporter.profile))
    return MigDevice(with_prefix(uuid, exporter.uuid_prefix), instance, profile)


def partition_of(labels: Mapping[str, str], exporter: ExporterMapping) -> tuple[str, str]:
    """Return number and mode of a partition; an empty mode where the card is not divided."""
    number = pick(labels, exporter.partition)
    mode = pick(labels, exporter.profile).lower()
    return ("" if number in _NO_PARTITION else number), ("" if mode in _UNDIVIDED else mode)


def board_of(labels: Mapping[str, str], exporter: ExporterMapping) -> str:
    """Return what an AMD card's partitions have in common, empty where it is not said."""
    board = pick(labels, exporter.board)
    return "" if board in _NO_BOARD else board


def with_prefix(uuid: str, prefix: str) -> str:
    """Return a UUID with its prefix, where it is written without."""
    return prefix + uuid if prefix and _BARE_UUID.match(uuid) else uuid


def is_uuid(text: str) -> bool:
    """Say whether a text identifies a card: not empty, and not all zeros."""
    return bool(text) and not _NO_UUID.match(text)


def pick(labels: Mapping[str, str], names: Iterable[str]) -> str:
    """Return the first label of `names` that has a value; `exported_` ones go first, they are the workload's own."""
    for name in names:
        value = labels.get("exported_" + name) or labels.get(name)
        if value:
            return value
    return ""
