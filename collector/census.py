"""The census of cards: counted by every source that can see them, so that none goes missing without a word.

Exporters (and the driver) name cards by UUID; schedulers and the PCI bus count them by node. What others count and no
exporter shows stays in capacity, as not observed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from collector.batch import Severity, Subject
from collector.masking import mask_address
from collector.report import Report
from collector.slots import Sighting
from collector.whole import whole_of

# Other than for one moment, such as while an exporter is restarted.
_DOUBLED_POLLS = 3
_UNOBSERVED_POLLS = 2


Shown = Mapping[str, Mapping[tuple[str, str], Sighting]]  # target -> (card, kind of exporter) -> how it is shown


@dataclass(slots=True)
class _Known:
    node: str = ""
    bus: str = ""
    indices: dict[str, str] = field(default_factory=dict)  # exporter -> number


@dataclass(slots=True)
class CardCensus:
    """What is known of each card's place, and of counts that do not agree."""

    _known: dict[str, _Known] = field(default_factory=dict)
    _doubled: dict[str, int] = field(default_factory=dict)  # card -> polls
    _why_doubled: dict[str, str] = field(default_factory=dict)
    _unobserved: dict[str, tuple[int, int, int]] = field(default_factory=dict)  # node -> how many, polls, how many told
    _compared: tuple[Mapping[str, Mapping[str, float]], Mapping[str, int]] | None = None

    def look(self, shown: Shown, nodes: Mapping[str, str], report: Report) -> dict[str, str]:
        """Look at where cards are shown; tell of renumbered and replaced ones.

        Args:
            shown: what is shown; look whenever that changed.
            nodes: card -> its node.
            report: takes the events.

        Returns:
            Cards that were replaced -> the card in their place.
        """
        present = {uuid for cards in shown.values() for uuid, _ in cards}
        replaced: dict[str, str] = {}
        for cards in shown.values():
            for (uuid, exporter), sighting in cards.items():
                node = nodes.get(uuid, "")
                if uuid not in self._known:
                    before = self._predecessor(exporter, sighting, node, present)
                    if before:
                        replaced.setdefault(before, uuid)
                    self._known[uuid] = _Known()
                self._place(uuid, exporter, sighting, node, report)
        for before, uuid in replaced.items():
            known = self._known.pop(before)
            subject = Subject("gpu", report.cluster, known.node, before)
            place = f"PCI address {known.bus}" if known.bus else f"number {next(iter(known.indices.values()), '')}"
            message = f"{before} was replaced: {uuid} is in its place ({place})"
            report.event(subject, "card_replaced", Severity.WARNING, message)
        return replaced

    def forget(self, uuid: str) -> None:
        """Take a card for gone: whatever comes in its place is new."""
        self._known.pop(uuid, None)

    def _predecessor(self, exporter: str, sighting: Sighting, node: str, present: Collection[str]) -> str:
        """Return the missing card of the same node that had this place: the bus address, else the number."""
        for uuid, known in self._known.items():
            if uuid in present or known.node != node:
                continue
            if sighting.bus and known.bus:
                if sighting.bus == known.bus:
                    return uuid
            elif sighting.index and sighting.index == known.indices.get(exporter):
                return uuid
        return ""

    def _place(self, uuid: str, exporter: str, sighting: Sighting, node: str, report: Report) -> None:
        known = self._known[uuid]
        before = known.indices.get(exporter, sighting.index)
        if sighting.index and before != sighting.index:
            subject = Subject("gpu", report.cluster, node, uuid)
            message = f"{uuid} was number {before} and is {sighting.index} now"
            if known.bus and sighting.bus and known.bus != sighting.bus:
                message += f" (PCI address {known.bus}, now {sighting.bus})"
            report.event(subject, "card_renumbered", Severity.WARNING, message)
        if sighting.index:
            known.indices[exporter] = sighting.index
        known.bus, known.node = sighting.bus or known.bus, node or known.node

    def look_doubled(self, shown: Shown, twice: Collection[str]) -> None:
        """Look for cards that are shown twice: at two targets, on two hosts, or with two numbers at one target.

        Args:
            shown: what is shown; look whenever that changed.
            twice: UUIDs that one target gives to cards of different numbers.
        """
        targets: dict[tuple[str, str], list[str]] = {}
        hosts: dict[tuple[str, str], set[str]] = {}
        for target, cards in shown.items():
            for key, sighting in cards.items():
                targets.setdefault(key, []).append(target)
                hosts.setdefault(key, set()).update(sighting.hosts)
        found = dict.fromkeys(sorted(twice), "one UUID for several cards")
        for (uuid, exporter), places in sorted(targets.items()):
            names = sorted(hosts[uuid, exporter])
            if len(names) > 1:
                found.setdefault(uuid, f"{exporter} shows it on {len(names)} hosts, {names[0]} and {names[1]}")
            elif len(places) > 1:
                first, second, *_ = sorted(mask_address(place) for place in places)
                found.setdefault(uuid, f"{exporter} shows it at {len(places)} targets, {first} and {second}")
        self._why_doubled = found
        for uuid in self._doubled.keys() - found.keys():
            del self._doubled[uuid]

    def tell_doubled(self, node_of: Callable[[str], str], report: Report) -> None:
        """Count one more poll; tell, once, of cards that are shown twice for longer than a restart takes."""
        for uuid, why in self._why_doubled.items():
            polls = self._doubled[uuid] = self._doubled.get(uuid, 0) + 1
            if polls == _DOUBLED_POLLS:
                subject = Subject("gpu", report.cluster, node_of(uuid), uuid)
                report.event(subject, "card_doubled", Severity.WARNING, f"{uuid} is there twice: {why}")

    def compare(
        self, counted: Mapping[str, Mapping[str, float]], known: Mapping[str, int], report: Report
    ) -> dict[str, int]:
        """Compare what others count with the cards that exporters have shown, node by node.

        Args:
            counted: who counts -> node -> cards, NaN where it does not tell.
            known: node -> cards that exporters show, or showed and are missed: those stay in capacity by themselves.
            report: takes the events.

        Returns:
            Node (as who counts names it) -> cards that no exporter ever showed.
        """
        same = self._compared is not None and self._compared[0] is counted and self._compared[1] is known
        if same and not self._unobserved:
            return {}  # nothing was missing, and nothing has changed
        self._compared = counted, known
        missing: dict[str, tuple[int, str]] = {}
        for who, nodes in counted.items():
            for node, count in matched(nodes, known).items():
                more = whole_of(count) - known.get(node, 0)
                if more > missing.get(node, (0, ""))[0]:
                    text = f"{who} counts {count:.0f} cards, exporters show {known.get(node, 0)}"
                    missing[node] = more, text
        for node in sorted(self._unobserved.keys() | missing.keys()):
            more, text = missing.get(node, (0, ""))
            before, polls, told = self._unobserved.get(node, (0, 0, 0))
            polls = polls + 1 if more == before else 1
            subject = Subject("node", report.cluster, node)
            if not more:
                if told:
                    report.event(subject, "card_observed", Severity.INFO, "exporters show every card that is counted")
                self._unobserved.pop(node, None)
                continue
            if polls >= _UNOBSERVED_POLLS and told != more:
                message = f"{text}: {more} not observed, which stays in capacity"
                report.event(subject, "card_unobserved", Severity.WARNING, message)
                told = more
            self._unobserved[node] = more, polls, told
        return {node: told for node, (_, _, told) in self._unobserved.items() if told}

    def to_json(self) -> dict[str, Any]:
        """Return what a later start needs."""
        return {uuid: [known.node, known.bus, known.indices] for uuid, known in self._known.items()}

    def load_json(self, state: Mapping[str, Any]) -> None:
        """Go on from `to_json`."""
        for uuid, (node, bus, indices) in state.items():
            self._known[uuid] = _Known(node, bus, dict(indices))


def matched(counted: Mapping[str, float], known: Mapping[str, int]) -> dict[str, float]:
    """Return counts by the nodes' names as exporters have them (`gpu-1` is `gpu-1.lab.example`).

    A node that no exporter names is taken to be without an exporter, but not as long as there are exporters' nodes that
    nobody counts: then they may be the same nodes under other names, and nothing is said of them.
    """
    short = {name.partition(".")[0]: name for name in known}
    found: dict[str, float] = {}
    strange: dict[str, float] = {}
    for node, count in counted.items():
        if math.isnan(count):
            continue
        name = node if node in known else short.get(node.partition(".")[0], "")
        if name:
            found[name] = max(count, found.get(name, 0.0))
        elif count > 0:
            strange[node] = count
    return found if known.keys() - found.keys() else found | strange
