"""A target's list of series laid out; when it changes only series never seen before are looked at closely."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from collector.exposition import Series
from collector.layout import NOWHERE
from collector.readers import SeriesReader
from collector.settings import TargetSettings
from collector.slots import Holder, Reading, Slot, World, XidReading, target_key

_SLACK = 1024


@dataclass(slots=True)
class Arrangement:
    """A target's present list of series, laid out.

    instances: card -> GPU instance -> profile; described: card -> what labels tell of it.
    samples, channels, cards: parallel; sample `samples[n]` feeds `channels[n]` and speaks of card number `cards[n]`.
    """

    samples: NDArray[np.int64]
    channels: NDArray[np.int64]
    cards: NDArray[np.int64]
    holders: list[Holder] = field(default_factory=list)
    xids: list[tuple[int, XidReading]] = field(default_factory=list)
    facts: list[tuple[int, Reading]] = field(default_factory=list)
    kube: list[tuple[int, str]] = field(default_factory=list)
    servers: list[int] = field(default_factory=list)
    uuids: frozenset[str] = frozenset()
    instances: dict[str, dict[str, str]] = field(default_factory=dict)
    described: dict[str, dict[str, str]] = field(default_factory=dict)
    hostnames: frozenset[str] = frozenset()
    rejects: dict[str, int] = field(default_factory=dict)
    holders_known: bool = False


class TargetState:
    """What is known of one target from cycle to cycle."""

    def __init__(self, target: TargetSettings, world: World) -> None:
        self.target = target
        self.key = target_key(target)
        self._reader = SeriesReader(target, world)
        self._slots: dict[Series, Slot] = {}

    def arrange(self, series: Sequence[Series]) -> Arrangement:
        """Lay out a list of series."""
        known = self._slots
        slots = []
        for one in series:
            slot = known.get(one)
            if slot is None:
                slot = known[one] = self._reader.slot(one)
            slots.append(slot)
        if len(known) > 2 * len(slots) + _SLACK:
            self._slots = dict(zip(series, slots, strict=True))
        twice = _used_twice(slots)
        if twice:
            refused = sum(slot.uuid in twice for slot in slots)
            slots = [_NOTHING if slot.uuid in twice else slot for slot in slots]
        result = _connect(slots)
        if twice:
            result.rejects["one UUID for several cards"] = refused
        _collect(result, slots)
        return result


_NOTHING = Slot()


def _connect(slots: Sequence[Slot]) -> Arrangement:
    """Choose the channels of each sample: newest name first, a device's own series before copies on pods."""
    fed: list[Sequence[int]]
    if all(slot.plain for slot in slots):
        fed = [_all_channels(slot) for slot in slots]
    else:
        ranks: dict[int, int] = {}
        own: set[tuple[str, str]] = set()
        for slot in slots:
            for part in slot.parts:
                ranks[part.metric] = min(part.rank, ranks.get(part.metric, part.rank))
                if part.device_key is not None and not part.labelled:
                    own.add(part.device_key)
        fed = [_all_channels(slot) if slot.plain else _chosen_channels(slot, ranks, own) for slot in slots]
    return Arrangement(
        samples=np.array([index for index, channels in enumerate(fed) for _ in channels], dtype=np.int64),
        channels=np.array([channel for channels in fed for channel in channels], dtype=np.int64),
        cards=np.array(
            [slot.card for slot, channels in zip(slots, fed, strict=True) for _ in channels], dtype=np.int64
        ),
    )


def _all_channels(slot: Slot) -> Sequence[int]:
    if len(slot.parts) == 1:
        return slot.parts[0].channels
    return [channel for part in slot.parts for channel in part.channels]


def _chosen_channels(slot: Slot, ranks: Mapping[int, int], own: set[tuple[str, str]]) -> list[int]:
    chosen: list[int] = []
    for part in slot.parts:
        if part.rank == ranks[part.metric]:
            chosen += part.own if part.labelled and part.device_key in own else part.channels
    return chosen


def _collect(result: Arrangement, slots: Sequence[Slot]) -> None:
    """Gather what slots say beside numbers."""
    for slot in slots:
        if slot.reject:
            result.rejects[slot.reject] = result.rejects.get(slot.reject, 0) + 1
    for uuid, instance, profile in {(slot.uuid, slot.instance, slot.profile) for slot in slots if slot.instance}:
        result.instances.setdefault(uuid, {})[instance] = profile
    for uuid, described in {(slot.uuid, slot.described) for slot in slots if slot.described}:
        result.described.setdefault(uuid, {}).update(described)
    result.xids = [(index, slot.xid) for index, slot in enumerate(slots) if slot.xid is not None]
    result.facts = [(index, slot.fact) for index, slot in enumerate(slots) if slot.fact is not None]
    result.kube = [(index, slot.kube) for index, slot in enumerate(slots) if slot.kube]
    result.holders = list(dict.fromkeys(slot.holder for slot in slots if slot.holder is not None))
    result.holders_known = any(holder.origin == "device" for holder in result.holders)
    result.servers = sorted({slot.server for slot in slots} - {NOWHERE})
    result.uuids = frozenset({slot.uuid for slot in slots} - {""})
    result.hostnames = frozenset({slot.hostname for slot in slots} - {""})


def _used_twice(slots: Sequence[Slot]) -> set[str]:
    """Return UUIDs that one scrape gives to cards of different index: none of their values can be believed."""
    seen: dict[str, str] = {}
    pairs = {(slot.uuid, slot.index) for slot in slots if slot.index}
    return {uuid for uuid, index in pairs if uuid and seen.setdefault(uuid, index) != index}
