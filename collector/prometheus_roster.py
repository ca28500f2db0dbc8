"""Series of a Prometheus by number, and which machine's exporter each is of.

A target of a Prometheus is a `job` and an `instance`. Where several machines are behind one of these (a service before
all exporters, `honor_labels`, a relabelling that gives all the same name) they are told apart by what their own series
say: the host of a card's exporter, where its cards are on no other host; else the labels by which Prometheus itself
tells its targets apart, those of `up`. Each such machine is then a target of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import orjson
from numpy.typing import NDArray

from collector.exposition import Series
from collector.mappings import MappingTable
from collector.naming import pick
from collector.settings import TargetSettings

Ints = NDArray[np.int64]

# Labels that tell copies of one series apart: those of a pair of Prometheus servers that scrape the same targets.
_COPIES = ("__name__", "__replica__")
_UP = "up"
_TARGET = frozenset(("job", "instance"))
_NODES = ("node", "kubernetes_node", "nodename")
_OF_A_HOST = frozenset(("device", "container", "process"))


@dataclass(slots=True)
class _Pair:
    """All series of one `job` and `instance`.

    job: number of the job. told: it has a series that the mapping tables know, beside `up`.
    numbers: its series. ups: number of each `up` -> first and last time that it was seen, in milliseconds.
    cards: host -> its cards. names: host -> the name of its machine, where there are several.
    shared: several machines are behind it. apart: labels of `up` that tell targets apart.
    """

    address: tuple[str, str]
    rest: int
    job: int
    told: bool = False
    numbers: list[int] = field(default_factory=list)
    ups: dict[int, tuple[int, int]] = field(default_factory=dict)
    cards: dict[str, set[str]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    apart: tuple[str, ...] = ()
    changed: bool = True

    @property
    def key(self) -> str:
        return "/".join(self.address)

    @property
    def shared(self) -> bool:
        return bool(self.names or self.apart)


@dataclass(frozen=True, slots=True)
class SharedAddress:
    """A job and an instance that several machines share.

    machines: by which names they are told apart.
    alternates: they are behind one target of Prometheus, so that each is scraped only now and then.
    mixed: how many series cannot be told apart, and are left out.
    """

    address: str
    machines: tuple[str, ...]
    alternates: bool
    mixed: int


@dataclass(slots=True)
class Roster:
    """Series by number: the same labels are the same number and the same object, from answer to answer.

    table: what exporters' names and labels mean.
    series, target_of, pair_of, is_up: by a series' number: itself, numbers of its target and of its job and instance,
        whether it is `up`.
    mixable: by a series' number: nothing in it says of which card or machine it is.
    targets: by a target's number.
    strangers_down: targets of which nothing was ever seen that the tables know, and that are down: hardly ours.
    mixed, alternating: series that several machines write, and pairs of which each scrape shows another machine, as
        the last samples showed.
    """

    table: MappingTable
    series: list[Series] = field(default_factory=list)
    target_of: list[int] = field(default_factory=list)
    pair_of: list[int] = field(default_factory=list)
    is_up: list[bool] = field(default_factory=list)
    mixable: list[bool] = field(default_factory=list)
    targets: list[TargetSettings] = field(default_factory=list)
    strangers_down: frozenset[str] = frozenset()
    mixed: frozenset[int] = frozenset()
    alternating: frozenset[int] = frozenset()
    _hosts: list[str] = field(default_factory=list)
    _numbers: dict[bytes, int] = field(default_factory=dict)
    _same: dict[tuple[str, tuple[tuple[str, str], ...]], int] = field(default_factory=dict)
    _target_numbers: dict[str, int] = field(default_factory=dict)
    _jobs: dict[str, int] = field(default_factory=dict)
    _pairs: dict[tuple[str, str], int] = field(default_factory=dict)
    _pair_list: list[_Pair] = field(default_factory=list)
    _pair_of_rest: dict[int, int] = field(default_factory=dict)
    _rosters: dict[int, tuple[bytes, list[Series]]] = field(default_factory=dict)

    def number(self, metric: Mapping[str, str]) -> int:
        """Return the number of a series."""
        key = orjson.dumps(metric)
        known = self._numbers.get(key)
        if known is None:
            known = self._numbers[key] = self._add(metric)
        return known

    def listed(self, target: int, numbers: Ints) -> list[Series]:
        """Return series of a target; the very list of the time before where they are the same ones."""
        key = numbers.tobytes()
        before = self._rosters.get(target)
        if before is not None and before[0] == key:
            return before[1]
        series = [self.series[number] for number in numbers.tolist()]
        self._rosters[target] = (key, series)
        return series

    def settle(self, up_numbers: Iterable[int], firsts_ms: Iterable[int], lasts_ms: Iterable[int]) -> None:
        """Say when each `up` was seen; then tell machines apart where several are behind one job and instance."""
        for number, first, last in zip(up_numbers, firsts_ms, lasts_ms, strict=True):
            pair = self._pair_list[self.pair_of[number]]
            before = pair.ups.get(number)
            span = (first, last) if before is None else (min(first, before[0]), max(last, before[1]))
            pair.ups[number] = span
        for pair in self._pair_list:
            if pair.changed or self._apart(pair) != pair.apart:
                pair.changed = False
                self._tell_apart(pair)

    def address(self, pair: int) -> tuple[str, str]:
        """Return job and instance of a pair, by its number."""
        return self._pair_list[pair].address

    def know(self, addresses: Iterable[tuple[str, str]]) -> None:
        """Note that targets, by job and instance, told something that the tables know before anything was read."""
        for address in addresses:
            self._pair_list[self._pairs[address]].told = True

    def told_pairs(self) -> NDArray[np.bool_]:
        """Return, by a pair's number, whether anything of it was ever seen that the tables know."""
        return np.array([pair.told for pair in self._pair_list], dtype=bool)

    def jobs(self) -> Ints:
        """Return, by a pair's number, the number of its job."""
        return np.array([pair.job for pair in self._pair_list], dtype=np.int64)

    def told_alone(self, target: int) -> bool:
        """Say whether a target is a pair's only one, and ever told something that the tables know."""
        number = self._pair_of_rest.get(target)
        return number is not None and self._pair_list[number].told and not self._pair_list[number].shared

    def shared_pairs(self) -> NDArray[np.bool_]:
        """Return, by a pair's number, whether several machines are behind it."""
        return np.array([pair.shared for pair in self._pair_list], dtype=bool)

    def lone_ups(self) -> NDArray[np.bool_]:
        """Return, by a pair's number, whether one `up` speaks of all the machines behind it."""
        return np.array([pair.shared and len(pair.ups) == 1 for pair in self._pair_list], dtype=bool)

    def rests(self) -> Ints:
        """Return, by a pair's number, the target of what is of no machine in particular."""
        return np.array([pair.rest for pair in self._pair_list], dtype=np.int64)

    def shared_addresses(self) -> list[SharedAddress]:
        """Return the pairs of job and instance that several machines share."""
        mixed = Counter(self.pair_of[number] for number in self.mixed)
        return [
            SharedAddress(pair.key, tuple(sorted(self._machines_of(pair))), number in self.alternating, mixed[number])
            for number, pair in enumerate(self._pair_list)
            if pair.shared
        ]

    def _machines_of(self, pair: _Pair) -> set[str]:
        rest, prefix = self.targets[pair.rest].url, f"{pair.key}/"
        urls = {self.targets[self.target_of[number]].url for number in pair.numbers} - {rest}
        return {url.removeprefix(prefix) for url in urls}

    def _add(self, metric: Mapping[str, str]) -> int:
        name = metric.get("__name__", "")
        labels = {label: value for label, value in metric.items() if label not in _COPIES}
        same = (name, tuple(sorted(labels.items())))
        number = self._same.get(same)
        if number is not None:
            return number
        number = self._same[same] = len(self.series)
        self.series.append(Series(name, labels))
        self.is_up.append(name == _UP)
        pair_number = self._pair(labels)
        pair = self._pair_list[pair_number]
        pair.numbers.append(number)
        pair.told |= name != _UP
        self.pair_of.append(pair_number)
        self.target_of.append(pair.rest)
        host, card, anonymous = ("", "", False) if name == _UP else self._said(name, labels)
        self._hosts.append(host)
        self.mixable.append(anonymous)
        cards = pair.cards.setdefault(host, set()) if host else set()
        if card:
            cards.add(card)
        pair.changed |= len(pair.cards) > 1 or pair.shared
        return number

    def _pair(self, labels: Mapping[str, str]) -> int:
        key = (labels.get("job", ""), labels.get("instance", ""))
        number = self._pairs.get(key)
        if number is None:
            number = self._pairs[key] = len(self._pair_list)
            text = "/".join(key)
            job = self._jobs.setdefault(key[0], len(self._jobs))
            pair = _Pair(key, self._target(text), job)
            self._pair_of_rest[pair.rest] = number
            self._pair_list.append(pair)
        return number

    def _target(self, key: str) -> int:
        number = self._target_numbers.get(key)
        if number is None:
            number = self._target_numbers[key] = len(self.targets)
            self.targets.append(TargetSettings(url=key))
        return number

    def _said(self, name: str, labels: Mapping[str, str]) -> tuple[str, str, bool]:
        """Return the host of an exporter of cards, the card, and whether neither is said of a card or a machine."""
        for mapped in self.table.find(name, labels)[:1]:
            exporter = mapped.exporter
            if exporter.subject in _OF_A_HOST:
                host = next((labels[one] for one in _NODES if labels.get(one)), "") or pick(labels, exporter.node)
                card = pick(labels, exporter.uuid)
                return host, card, not host and not card
            return "", "", exporter.subject == "node"
        return "", "", False

    def _tell_apart(self, pair: _Pair) -> None:
        pair.names = _machines(pair.cards)
        pair.apart = self._apart(pair)
        writers = {self._values(pair, number): number for number in pair.ups} if pair.apart else {}
        linked: dict[int, set[int]] = {}
        for number in pair.numbers:
            if self.is_up[number]:
                continue
            values = self._values(pair, number)
            machine = pair.names.get(self._hosts[number], "")
            if not machine and values in writers:
                machine = ",".join(filter(None, values))
            self.target_of[number] = self._target(f"{pair.key}/{machine}") if machine else pair.rest
            if machine and values in writers:
                linked.setdefault(writers[values], set()).add(self.target_of[number])
        for number in pair.ups:
            targets = linked.get(number, set())
            self.target_of[number] = next(iter(targets)) if len(targets) == 1 else pair.rest
        self._rosters = {}

    def _apart(self, pair: _Pair) -> tuple[str, ...]:
        """Return the labels by which Prometheus tells targets of a pair apart; none where one followed the other."""
        if len(pair.ups) < 2 or not _at_once(list(pair.ups.values())):
            return ()
        return _differing([self.series[number].labels for number in pair.ups])

    def _values(self, pair: _Pair, number: int) -> tuple[str, ...]:
        labels = self.series[number].labels
        return tuple(labels.get(name, "") for name in pair.apart)


def _machines(cards: Mapping[str, set[str]]) -> dict[str, str]:
    """Return the machine of each host: hosts that show a card in common are one; empty where there is but one.

    >>> _machines({"pod-a": {"GPU-0"}, "pod-b": {"GPU-0"}})
    {}
    >>> _machines({"a": {"GPU-0"}, "b": {"GPU-1"}})
    {'a': 'a', 'b': 'b'}
    """
    groups: list[tuple[str, set[str]]] = []
    name_of: dict[str, str] = {}
    for host, shown in cards.items():
        same = [group for group in groups if not group[1].isdisjoint(shown)]
        name = same[0][0] if same else host
        groups = [group for group in groups if group not in same]
        groups.append((name, shown.union(*(group[1] for group in same))))
        joined = {group[0] for group in same}
        name_of = {one: name if known in joined else known for one, known in name_of.items()}
        name_of[host] = name
    return name_of if len(groups) > 1 else {}


def _at_once(spans: list[tuple[int, int]]) -> bool:
    """Say whether any two of these spans of time overlap: one that follows another is its successor."""
    ordered = sorted(spans)
    return any(later[0] < earlier[1] for earlier, later in pairwise(ordered))


def _differing(labels: list[Mapping[str, str]]) -> tuple[str, ...]:
    names = sorted({name for one in labels for name in one} - _TARGET)
    return tuple(name for name in names if len({one.get(name, "") for one in labels}) > 1)
