"""A target's list of series laid out; when it changes only series never seen before are looked at closely."""

from __future__ import annotations

from collections.abc import Sequence
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
    instances: dict[str, set[str]] = field(default_factory=dict)
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
        refused = {index for index, slot in enumerate(slots) if slot.uuid in twice}
        result = _connect(slots, refused)
        if refused:
            result.rejects["one UUID for several cards"] = len(refused)
        _collect(result, [(index, slot) for index, slot in enumerate(slots) if index not in refused])
        return result


def _connect(slots: Sequence[Slot], refused: set[int]) -> Arrangement:
    """Choose the channels of each sample: newest name first, a device's own series before copies on pods."""
    ranks: dict[int, int] = {}
    own: set[tuple[str, str]] = set()
    for slot in slots:
        for part in slot.parts:
            ranks[part.metric] = min(part.rank, ranks.get(part.metric, part.rank))
            if part.device_key is not None and not part.labelled:
                own.add(part.device_key)
    samples: list[int] = []
    channels: list[int] = []
    cards: list[int] = []
    for index, slot in enumerate(slots):
        if index in refused:
            continue
        for part in slot.parts:
            if part.rank == ranks[part.metric]:
                fed = part.own if part.labelled and part.device_key in own else part.channels
                samples += [index] * len(fed)
                channels += fed
                cards += [slot.card] * len(fed)
    return Arrangement(
        samples=np.array(samples, dtype=np.int64),
        channels=np.array(channels, dtype=np.int64),
        cards=np.array(cards, dtype=np.int64),
    )


def _collect(result: Arrangement, slots: Sequence[tuple[int, Slot]]) -> None:
    """Gather what slots say beside numbers."""
    holders: dict[Holder, None] = {}
    for index, slot in slots:
        if slot.reject:
            result.rejects[slot.reject] = result.rejects.get(slot.reject, 0) + 1
        if slot.holder is not None:
            holders[slot.holder] = None
        if slot.instance:
            result.instances.setdefault(slot.uuid, set()).add(slot.instance)
        if slot.xid is not None:
            result.xids.append((index, slot.xid))
        if slot.fact is not None:
            result.facts.append((index, slot.fact))
        if slot.kube:
            result.kube.append((index, slot.kube))
    result.holders = list(holders)
    result.holders_known = any(holder.origin == "device" for holder in holders)
    result.servers = sorted({slot.server for _, slot in slots if slot.server != NOWHERE})
    result.uuids = frozenset(slot.uuid for _, slot in slots if slot.uuid)
    result.hostnames = frozenset(slot.hostname for _, slot in slots if slot.hostname)


def _used_twice(slots: Sequence[Slot]) -> set[str]:
    """Return UUIDs that one scrape gives to cards of different index: none of their values can be believed."""
    seen: dict[str, str] = {}
    return {
        slot.uuid for slot in slots if slot.uuid and slot.index and seen.setdefault(slot.uuid, slot.index) != slot.index
    }
