"""A target's list of series laid out; when it changes only series never seen before are looked at closely."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from collector.exposition import Series
from collector.layout import NOWHERE
from collector.naming import Names, read_names
from collector.readers import SeriesReader
from collector.roster import merged
from collector.settings import TargetSettings
from collector.slots import Holder, Reading, Sighting, Slot, World, XidReading, target_key

Ints = NDArray[np.int64]
Word = tuple[Hashable, ...]

_SLACK = 1024
# Clocks and counters of an exporter's own work: in a text that is made anew they are never the same again and again.
_MUST_MOVE = frozenset(
    ("process_cpu_seconds_total", "go_memstats_alloc_bytes_total", "node_time_seconds", "node_cpu_seconds_total")
)
_PLACE, _RANK, _OWN, _COPY = "place", "rank", "own", "copy"


@dataclass(slots=True)
class Arrangement:
    """A list of series of a target, laid out: those of a scrape, and some that only others lack.

    size: how many series there are.
    instances: card -> GPU instance -> profile; described: card -> what labels tell of it.
    sightings: (card, kind of exporter) -> how it is shown; twice: UUIDs of several cards at once.
    doubled: places of each series that stands in the list more than once.
    must_move: it has a clock, or a counter of the exporter's own work: a text that stays the same is no live one.
    xid_places, fact_places: parallel to `xids` and `facts`; which series each is.
    samples, channels, cards: parallel; sample `samples[n]` feeds `channels[n]` and speaks of card number `cards[n]`.
    """

    size: int
    samples: NDArray[np.int64]
    channels: NDArray[np.int64]
    cards: NDArray[np.int64]
    holders: list[Holder] = field(default_factory=list)
    xids: list[XidReading] = field(default_factory=list)
    xid_places: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    facts: list[Reading] = field(default_factory=list)
    fact_places: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    kube: list[tuple[int, str]] = field(default_factory=list)
    servers: list[int] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    uuids: frozenset[str] = frozenset()
    instances: dict[str, dict[str, str]] = field(default_factory=dict)
    described: dict[str, dict[str, str]] = field(default_factory=dict)
    sightings: dict[tuple[str, str], Sighting] = field(default_factory=dict)
    twice: frozenset[str] = frozenset()
    doubled: list[Ints] = field(default_factory=list)
    must_move: bool = False
    hostnames: frozenset[str] = frozenset()
    rejects: dict[str, int] = field(default_factory=dict)
    holders_known: frozenset[str] = frozenset()
    version: str = ""
    new_xids: bool = False  # some sample counts what is new since the last cycle: the same number again is news again


class TargetState:
    """What is known of one target from cycle to cycle."""

    def __init__(self, target: TargetSettings, world: World) -> None:
        self.target = target
        self.key = target_key(target)
        self._world = world
        self._reader = SeriesReader(target, world)
        self._names = Names()
        self._mig_version = 0
        self._known: dict[Series, Slot] = {}
        self._roster: list[Series] = []
        self._layout: Arrangement | None = None
        # What the series of the layout say, for lists that lack some; made when the first such list comes.
        self._told: list[Slot] = []
        self._words: dict[Series, tuple[Word, ...]] = {}
        self._places: dict[Series, int] = {}
        self._says: list[tuple[Word, ...]] = []
        self._times_said: Counter[Word] = Counter()
        self._ranks: dict[Hashable, set[int]] = {}

    def arrange(self, series: Sequence[Series]) -> tuple[Arrangement, Ints | None]:
        """Lay out a list of series.

        Exporters leave out a sample now and then. A list that lacks series of the layout keeps it, as long as others
        say all that the missing ones would; it comes with the places of its series in the layout (None: all of them).
        """
        wanted = list(series)
        if self.outdated:
            self._layout = None
            self._forget()
        if self._layout is None or wanted != self._roster:
            places = self._fitting(wanted) if self._layout is not None else None
            if self._layout is not None and places is not None:
                return self._layout, places
            self._layout = self._lay_out(merged(self._roster, wanted), wanted)
        if wanted == self._roster:
            return self._layout, None
        places = self._fitting(wanted)
        return (self._layout, places) if places is not None else (self._lay_out(wanted, wanted), None)

    @property
    def outdated(self) -> bool:
        """Say whether another target has told since which card a MIG instance of this one is on."""
        return self._reader.mentions_mig and self._mig_version != self._world.mig_version

    def series(self, place: int) -> Series:
        """Return the series at a place of the present layout."""
        return self._roster[place]

    def _forget(self) -> None:
        self._known.clear()
        self._words.clear()

    def _listen(self) -> None:
        """Take down what the series of the layout say."""
        if self._places:
            return
        roster, slots = self._roster, self._told
        twice = self._layout is not None and bool(self._layout.twice)
        self._places = {one: place for place, one in enumerate(roster)}
        if twice:
            self._says = [((_PLACE, place),) for place in range(len(roster))]
        else:
            known = self._words
            self._words = {one: known.get(one) or _words(slot) for one, slot in zip(roster, slots, strict=True)}
            self._says = [self._words[one] for one in roster]
        self._ranks = {}
        for part in (part for slot in slots for part in slot.parts):
            self._ranks.setdefault(part.metric, set()).add(part.rank)
        self._times_said = Counter(word for words in self._says for word in words)

    def _fitting(self, series: list[Series]) -> Ints | None:
        """Return the series' places in the present layout; None where it does not hold for them."""
        self._listen()
        places = [self._places.get(one, -1) for one in series]
        missing = self._places.keys() - series
        # Nothing fits beside a series that stands twice.
        if -1 in places or len(places) + len(missing) != len(self._roster):
            return None
        unsaid = Counter(word for one in missing for word in self._says[self._places[one]])
        lost = [word for word, count in unsaid.items() if count == self._times_said[word]]
        if any(self._matters(word, unsaid) for word in lost):
            return None
        return np.array(places, dtype=np.int64)

    def _matters(self, word: Word, unsaid: Counter[Word]) -> bool:
        """Say whether the layout is another one without this word."""
        if word[0] == _COPY:
            return False
        if word[0] == _OWN:  # matters to copies that are still there
            copy = (_COPY, *word[1:])
            return unsaid[copy] < self._times_said[copy]
        if word[0] == _RANK:
            return len(self._ranks[word[1]]) > 1
        return True

    def _lay_out(self, roster: list[Series], present: list[Series]) -> Arrangement:
        names = read_names(roster, self._world.table)
        if roster != present:  # an older version may still stand in the roster
            names = replace(names, versions=read_names(present, self._world.table).versions)
        self._world.learn_mig(names)
        if names != self._names:
            self._names = self._reader.names = names
            self._forget()
        self._mig_version = self._world.mig_version
        known = self._known
        slots = []
        for one in roster:
            slot = known.get(one)
            if slot is None:
                slot = known[one] = self._reader.slot(one)
            slots.append(slot)
        if len(known) > 2 * len(slots) + _SLACK:
            self._known = dict(zip(roster, slots, strict=True))
        twice = _used_twice(slots)
        if twice:
            refused = sum(slot.uuid in twice for slot in slots)
            slots = [_NOTHING if slot.uuid in twice else slot for slot in slots]
        result = _connect(slots)
        if twice:
            result.rejects["one UUID for several cards"] = refused
            result.twice = frozenset(twice)
        _collect(result, slots)
        result.doubled = _doubled(roster, slots)
        result.must_move = any(one.name in _MUST_MOVE for one in roster)
        self._layout, self._roster, self._told, self._places = result, roster, slots, {}
        return result


def _doubled(roster: Sequence[Series], slots: Sequence[Slot]) -> list[Ints]:
    """Return the places of series that are there more than once (labels in any order), of those that are used."""
    labels: dict[int, frozenset[tuple[str, str]]] = {}  # by the mapping's identity: a device's series share theirs
    places: dict[tuple[str, frozenset[tuple[str, str]]], list[int]] = {}
    for place, one in enumerate(roster):
        said = labels.get(id(one.labels))
        if said is None:
            said = labels[id(one.labels)] = frozenset(one.labels.items())
        places.setdefault((one.name, said), []).append(place)
    return [np.array(same, dtype=np.int64) for same in places.values() if len(same) > 1 and _is_used(slots[same[0]])]


def _is_used(slot: Slot) -> bool:
    return bool(slot.parts or slot.fact is not None or slot.xid is not None or slot.kube)


def _words(slot: Slot) -> tuple[Word, ...]:
    """Return what a series says beside its number: nothing of it may be lost with a missing sample."""
    words: list[Word] = [
        ("card", slot.uuid, slot.index, slot.hostname, slot.described),
        ("server", slot.server),
        ("node", slot.node),
        ("instance", slot.uuid, slot.instance, slot.profile),
        ("holder", slot.holder),
        ("holders", slot.uuid, slot.holders),
        ("version", slot.version),
    ]
    if slot.reject:
        words.append(("refused", id(slot)))
    for part in slot.parts:
        words.append((_RANK, part.metric, part.rank))
        if part.device_key is not None:
            words.append((_COPY if part.labelled else _OWN, part.device_key))
    return tuple(words)


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
        told_apart = {uuid for uuid, _ in own}
        fed = [_all_channels(slot) if slot.plain else _chosen_channels(slot, ranks, own, told_apart) for slot in slots]
    return Arrangement(
        size=len(slots),
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


def _chosen_channels(
    slot: Slot, ranks: Mapping[int, int], own: set[tuple[str, str]], told_apart: set[str]
) -> list[int]:
    """Return the channels of one sample.

    An exporter that writes a card's own series beside those of pods gives what a pod's processes use, where it has
    that: such a value is no copy, even if the card's own was left out of this scrape.
    """
    chosen: list[int] = []
    for part in slot.parts:
        if part.rank == ranks[part.metric]:
            to_pod = part.labelled and (part.device_key in own or (bool(part.own) and slot.uuid in told_apart))
            chosen += part.own if to_pod else part.channels
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
    xids = [(index, slot.xid) for index, slot in enumerate(slots) if slot.xid is not None]
    facts = [(index, slot.fact) for index, slot in enumerate(slots) if slot.fact is not None]
    result.xids, result.xid_places = [xid for _, xid in xids], np.array([n for n, _ in xids], dtype=np.int64)
    result.new_xids = any(xid.nature == "xid_new" for _, xid in xids)
    result.facts, result.fact_places = [fact for _, fact in facts], np.array([n for n, _ in facts], dtype=np.int64)
    result.kube = [(index, slot.kube) for index, slot in enumerate(slots) if slot.kube]
    result.holders = list(dict.fromkeys(slot.holder for slot in slots if slot.holder is not None))
    told = {(slot.uuid, slot.holders) for slot in slots if slot.holders}
    if told:
        result.holders_known = frozenset(uuid for uuid, word in told if word == "known")
    elif any(holder.origin == "device" for holder in result.holders):
        result.holders_known = frozenset({slot.uuid for slot in slots} - {""})
    result.nodes = sorted({slot.node for slot in slots} - {NOWHERE})
    result.servers = sorted({slot.server for slot in slots} - {NOWHERE})
    result.uuids = frozenset({slot.uuid for slot in slots} - {""})
    result.version = ", ".join(sorted({slot.version for slot in slots} - {""}))
    result.hostnames = frozenset({slot.hostname for slot in slots} - {""})
    result.sightings = _sightings(slots)


def _sightings(slots: Sequence[Slot]) -> dict[tuple[str, str], Sighting]:
    """Return how each card is shown; a MIG instance's host and number are its card's."""
    said = {(slot.uuid, slot.exporter, slot.index, slot.host, slot.described) for slot in slots if slot.exporter}
    found: dict[tuple[str, str], Sighting] = {}
    for uuid, exporter, index, host, described in sorted(said):
        before = found.get((uuid, exporter), Sighting())
        bus = dict(described).get("pci_bus_id", "")
        found[uuid, exporter] = Sighting(
            before.index or index, before.bus or bus.lower(), before.hosts | ({host} if host else frozenset())
        )
    return found


def _used_twice(slots: Sequence[Slot]) -> set[str]:
    """Return UUIDs that one scrape gives to cards of different index: none of their values can be believed."""
    seen: dict[str, str] = {}
    pairs = {(slot.uuid, slot.index) for slot in slots if slot.index}
    return {uuid for uuid, index in pairs if uuid and seen.setdefault(uuid, index) != index}
