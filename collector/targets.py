"""A target's list of series laid out; when it changes only series never seen before are looked at closely."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from collector.exposition import Series
from collector.layout import NOWHERE
from collector.naming import Names, read_names
from collector.readers import SeriesReader
from collector.roster import merged
from collector.settings import TargetSettings
from collector.slots import About, Holder, Reading, Sighting, Slot, World, XidReading, target_key

Ints = NDArray[np.int64]
Word = tuple[Hashable, ...]

_SLACK = 1024
# Clocks and counters of an exporter's own work: in a text that is made anew they are never the same again and again.
_MUST_MOVE = frozenset(
    ("process_cpu_seconds_total", "go_memstats_alloc_bytes_total", "node_time_seconds", "node_cpu_seconds_total")
)
_PLACE, _ABOUT, _RANK, _OWN, _COPY = "place", "about", "rank", "own", "copy"


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
        self._roster: list[Series] = []
        self._slots: list[Slot] = []  # of the roster
        self._others: dict[Series, Slot] = {}  # of series that were there before
        self._layout: Arrangement | None = None
        # What the series of the layout say, for lists that lack some; made when the first such list comes.
        self._told: list[Slot] = []
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
        self._slots, self._others = [], {}
        self._reader.forget()

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
            self._says = [_words(slot, one.name) for one, slot in zip(roster, slots, strict=True)]
        self._ranks = {}
        for kind in (part.kind for slot in slots for part in slot.parts()):
            if kind is not None:
                self._ranks.setdefault(kind.metric, set()).add(kind.rank)
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
        if any(self._matters(word, unsaid) for word in lost) or self._says_more(lost):
            return None
        return np.array(places, dtype=np.int64)

    def _says_more(self, lost: Sequence[Word]) -> bool:
        """Say whether any that nothing of is there any more says what none of those says that are still there."""
        gone = set(_abouts(lost))
        if not gone:
            return False
        left = {about for words in self._says for about in _abouts(words)} - gone
        said = {what for about in left for what in _said_by(about)}
        return any(what not in said for about in gone for what in _said_by(about))

    def _matters(self, word: Word, unsaid: Counter[Word]) -> bool:
        """Say whether the layout is another one without this word."""
        if word[0] in (_COPY, _ABOUT):
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
        known = self._others
        known.update(zip(self._roster, self._slots, strict=False))  # none after `_forget`
        slots = []
        for one in roster:
            slot = known.get(one)
            if slot is None:
                slot = known[one] = self._reader.slot(one)
            slots.append(slot)
        self._slots = slots
        there = set(roster)
        few = len(known) <= 2 * len(slots) + _SLACK
        self._others = {one: slot for one, slot in known.items() if one not in there} if few else {}
        twice = _used_twice(slots)
        if twice:
            refused = sum(slot.about.uuid in twice for slot in slots)
            slots = [_NOTHING if slot.about.uuid in twice else slot for slot in slots]
        result = _connect(slots, roster)
        if twice:
            result.rejects["one UUID for several cards"] = refused
            result.twice = frozenset(twice)
        _collect(result, [slot.about for slot in slots])
        result.doubled = _doubled(roster, slots)
        result.must_move = any(one.name in _MUST_MOVE for one in roster)
        self._layout, self._roster, self._told, self._places = result, roster, slots, {}
        return result


def _doubled(roster: Sequence[Series], slots: Sequence[Slot]) -> list[Ints]:
    """Return the places of series that are there more than once (labels in any order), of those that are used."""
    # A sum of the values' hashes is the same in any order, and cheap; only what agrees in it is compared.
    sums: dict[int, int] = {}  # by the mapping's identity: a device's series share theirs
    groups: dict[tuple[str, int], list[int]] = {}
    for place, one in enumerate(roster):
        known = sums.get(id(one.labels))
        if known is None:
            known = sums[id(one.labels)] = sum(map(hash, one.labels.values()))
        groups.setdefault((one.name, known), []).append(place)
    return [
        np.array(same, dtype=np.int64)
        for group in groups.values()
        if len(group) > 1
        for same in _alike(roster, group)
        if len(same) > 1 and _is_used(slots[same[0]])
    ]


def _alike(roster: Sequence[Series], places: Sequence[int]) -> Iterable[list[int]]:
    groups: dict[frozenset[tuple[str, str]], list[int]] = {}
    for place in places:
        groups.setdefault(frozenset(roster[place].labels.items()), []).append(place)
    return groups.values()


def _is_used(slot: Slot) -> bool:
    about = slot.about
    return bool(slot.parts() or about.fact is not None or about.xid is not None or about.kube)


def _words(slot: Slot, name: str) -> tuple[Word, ...]:
    """Return what a series of this name says beside its number: nothing of it may be lost with a missing sample."""
    words: list[Word] = [(_ABOUT, slot.about)]
    if slot.about.reject:
        words.append(("refused", id(slot)))
    for part in slot.parts():
        kind = part.kind
        if kind is None:
            continue
        words.append((_RANK, kind.metric, kind.rank))
        if kind.of_device:
            words.append((_COPY if kind.labelled else _OWN, (slot.about.uuid, name)))
    return tuple(words)


def _abouts(words: Iterable[Word]) -> Iterator[About]:
    return (word[1] for word in words if isinstance(word[1], About))


def _said_by(about: About) -> tuple[Word, ...]:
    """Return what is said, piece by piece: another may say the same of each."""
    return (
        ("card", about.uuid, about.index, about.hostname, about.described),
        ("server", about.server),
        ("node", about.node),
        ("instance", about.uuid, about.instance, about.profile),
        ("holder", about.holder),
        ("holders", about.uuid, about.holders),
        ("version", about.version),
    )


_NOTHING = Slot(None)


def _connect(slots: Sequence[Slot], roster: Sequence[Series]) -> Arrangement:
    """Choose the channels of each sample: newest name first, a device's own series before copies on pods."""
    fed: list[Sequence[int]]
    if all(slot.plain for slot in slots):
        fed = [[part.channel for part in slot.parts() if part.channel != NOWHERE] for slot in slots]
    else:
        ranks: dict[int, int] = {}
        own: set[tuple[str, str]] = set()
        for slot, one in zip(slots, roster, strict=True):
            for part in slot.parts():
                kind = part.kind
                if kind is not None:
                    ranks[kind.metric] = min(kind.rank, ranks.get(kind.metric, kind.rank))
                    if kind.of_device and not kind.labelled:
                        own.add((slot.about.uuid, one.name))
        told_apart = {uuid for uuid, _ in own}
        fed = [
            _chosen_channels(slot, one.name, ranks, own, told_apart) for slot, one in zip(slots, roster, strict=True)
        ]
    return Arrangement(
        size=len(slots),
        samples=np.array([index for index, channels in enumerate(fed) for _ in channels], dtype=np.int64),
        channels=np.array([channel for channels in fed for channel in channels], dtype=np.int64),
        cards=np.array(
            [slot.about.card for slot, channels in zip(slots, fed, strict=True) for _ in channels], dtype=np.int64
        ),
    )


def _chosen_channels(
    slot: Slot, name: str, ranks: Mapping[int, int], own: set[tuple[str, str]], told_apart: set[str]
) -> list[int]:
    """Return the channels of one sample of this name.

    An exporter that writes a card's own series beside those of pods gives what a pod's processes use, where it has
    that: such a value is no copy, even if the card's own was left out of this scrape.
    """
    chosen: list[int] = []
    for part in slot.parts():
        kind = part.kind
        if kind is not None and kind.rank == ranks[kind.metric]:
            uuid = slot.about.uuid
            apart = part.own != NOWHERE and uuid in told_apart
            to_pod = kind.labelled and (apart or (kind.of_device and (uuid, name) in own))
            channel = part.own if to_pod else part.channel
            if channel != NOWHERE:
                chosen.append(channel)
    return chosen


def _collect(result: Arrangement, told: Sequence[About]) -> None:
    """Gather what series say beside numbers; `told` is parallel to them."""
    result.rejects.update(Counter(about.reject for about in told if about.reject))
    xids = [(index, about.xid) for index, about in enumerate(told) if about.xid is not None]
    facts = [(index, about.fact) for index, about in enumerate(told) if about.fact is not None]
    result.xids, result.xid_places = [xid for _, xid in xids], np.array([n for n, _ in xids], dtype=np.int64)
    result.new_xids = any(xid.nature == "xid_new" for _, xid in xids)
    result.facts, result.fact_places = [fact for _, fact in facts], np.array([n for n, _ in facts], dtype=np.int64)
    result.kube = [(index, about.kube) for index, about in enumerate(told) if about.kube]
    abouts = list(dict.fromkeys(told))
    for uuid, instance, profile in {(one.uuid, one.instance, one.profile) for one in abouts if one.instance}:
        result.instances.setdefault(uuid, {})[instance] = profile
    for uuid, described in {(one.uuid, one.described) for one in abouts if one.described}:
        result.described.setdefault(uuid, {}).update(described)
    result.holders = list(dict.fromkeys(one.holder for one in abouts if one.holder is not None))
    known = {(one.uuid, one.holders) for one in abouts if one.holders}
    if known:
        result.holders_known = frozenset(uuid for uuid, word in known if word == "known")
    elif any(holder.origin == "device" for holder in result.holders):
        result.holders_known = frozenset({one.uuid for one in abouts} - {""})
    result.nodes = sorted({one.node for one in abouts} - {NOWHERE})
    result.servers = sorted({one.server for one in abouts} - {NOWHERE})
    result.uuids = frozenset({one.uuid for one in abouts} - {""})
    result.version = ", ".join(sorted({one.version for one in abouts} - {""}))
    result.hostnames = frozenset({one.hostname for one in abouts} - {""})
    result.sightings = _sightings(abouts)


def _sightings(abouts: Sequence[About]) -> dict[tuple[str, str], Sighting]:
    """Return how each card is shown; a MIG instance's host and number are its card's."""
    said = {(one.uuid, one.exporter, one.index, one.host, one.described) for one in abouts if one.exporter}
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
    pairs = {(slot.about.uuid, slot.about.index) for slot in slots if slot.about.index}
    return {uuid for uuid, index in pairs if uuid and seen.setdefault(uuid, index) != index}
