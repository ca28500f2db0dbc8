"""Cards that vanish, come back, are replaced, or whose values stand still."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collector.batch import Severity, Subject
from collector.census import CardCensus
from collector.clock import to_ms
from collector.cycle import Numbers
from collector.health import still_polls
from collector.kube import KubeState
from collector.layout import FIELD_INDEX
from collector.masking import mask_address
from collector.plugins import SourceContext
from collector.report import Report
from collector.slots import Card, Holder
from collector.targets import Arrangement
from collector.words import plural

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Targets = Mapping[str, tuple[Arrangement, float]]  # a target that answered -> what it shows, and the age of its values

_LOST_AFTER = 2  # polls without a card before it is called lost
_FORGOTTEN_DAYS = 7.0  # a lost card stays in capacity for so long; that it leaves is an event
_FLAPPING_POLLS = 10

_WHAT_MOVES = "energy, or power, clock and temperature under load"

_ENERGY = FIELD_INDEX["energy_joules"]
_MOVING = np.array([FIELD_INDEX[name] for name in ("power_watts", "sm_clock_hertz", "temperature_celsius")])
_BUSY, _ENGINE = FIELD_INDEX["busy_ratio"], FIELD_INDEX["engine_active_ratio"]


@dataclass(slots=True)
class _CardMemory:
    target: str
    node: str
    missing: int = 0
    lost: bool = False
    lost_ms: int = 0
    holders: list[str] = field(default_factory=list)
    flapping_until: int = 0


class CardWatch:
    """Cards that vanish, come back, or whose values stand still."""

    def __init__(self, context: SourceContext) -> None:
        self._context = context
        self._cards: dict[str, _CardMemory] = {}
        self._shown: dict[str, frozenset[str]] = {}
        self._some_gone = True  # a card is missing or lost, as far as is known
        self.frozen: frozenset[str] = frozenset()  # cards whose values stand still
        self._counts: dict[str, int] | None = None
        self.census = CardCensus()
        self.departed: list[str] = []  # cards that left for good since this was last emptied
        self._watched: Sequence[Card] = ()
        self._moving: Floats = np.empty((0, len(_MOVING)))  # last values of the watched cards
        self._rows: Ints = np.empty(0, dtype=np.int64)
        self._still: Ints = np.empty(0, dtype=np.int64)  # for how many polls each of them stood still
        self._poll = 0

    def observe(self, cards: Sequence[Card], numbers: Numbers, targets: Targets, report: Report) -> dict[str, float]:
        """Note the present cards and return the age of what is said of each, in seconds; strike out frozen values.

        Args:
            cards: cards with samples.
            numbers: the cycle's numbers; values of a frozen card become NaN.
            targets: targets that answered.
            report: takes the events and rejects.
        """
        self._poll += 1
        ages: dict[str, float] = {}
        for key, (layout, age) in targets.items():
            if self._some_gone or self._shown.get(key) is not layout.uuids:
                for uuid in layout.uuids:
                    memory = self._cards.get(uuid)
                    if memory is None or memory.missing or memory.lost:
                        self._seen(uuid, key, report)
            if age:
                ages.update((uuid, max(ages.get(uuid, 0.0), age)) for uuid in layout.uuids)
        self._watch(cards)
        self._strike_frozen(cards, numbers, ages, targets, report)
        shown = {key: layout.uuids for key, (layout, _) in targets.items()}
        same = shown.keys() == self._shown.keys() and all(self._shown[key] is uuids for key, uuids in shown.items())
        if not same:
            self._look(targets, report)
        if self._some_gone or not same:
            self._missing(targets, report)
        self.census.tell_doubled(self.node_of, report)
        self._shown = shown
        return ages

    def node_of(self, uuid: str) -> str:
        """Return the node of a card, empty where it is not known."""
        memory = self._cards.get(uuid)
        return memory.node if memory is not None else ""

    def _strike_frozen(
        self, cards: Sequence[Card], numbers: Numbers, ages: dict[str, float], targets: Targets, report: Report
    ) -> None:
        """Make values of frozen cards absent and count their age on; tell when one freezes and when it moves again."""
        frozen = self._frozen(numbers)
        for n in frozen:
            card = cards[n]
            row = numbers.matrix[card.row]
            count = int((~np.isnan(row)).sum())
            row[:] = np.nan
            report.reject(report.card(card), "", "stale", count)
            ages[card.uuid] = ages.get(card.uuid, 0.0) + int(self._still[n]) * self._context.interval_seconds
        names = frozenset(cards[n].uuid for n in frozen)
        if names == self.frozen:
            return
        self._tell_frozen(names, targets, report)
        self.frozen = names

    def _tell_frozen(self, frozen: frozenset[str], targets: Targets, report: Report) -> None:
        """Tell of a target all of whose cards froze at once, of other cards one by one."""
        fresh, moving = frozen - self.frozen, self.frozen - frozen
        for key, (layout, _) in targets.items():
            if len(layout.uuids) > 1 and layout.uuids & fresh and layout.uuids <= frozen:
                place = mask_address(key)
                node = self.node_of(next(iter(layout.uuids)))
                message = (
                    f"{place}: none of its {plural(len(layout.uuids), 'card')} moves ({_WHAT_MOVES}): a frozen source"
                )
                report.event(
                    Subject("node", report.cluster, node, object=place), "source_frozen", Severity.ERROR, message
                )
                fresh -= layout.uuids
        for uuid in sorted(fresh):
            subject = Subject("gpu", report.cluster, self.node_of(uuid), uuid)
            message = f"{uuid}: nothing that must move has moved ({_WHAT_MOVES}): its values count as absent"
            report.event(subject, "source_frozen", Severity.ERROR, message)
        for uuid in sorted(moving):
            if uuid in self._cards and not self._cards[uuid].missing:
                subject = Subject("gpu", report.cluster, self.node_of(uuid), uuid)
                report.event(subject, "source_moves", Severity.INFO, f"{uuid}: its values move again")

    def counts(self) -> dict[str, int]:
        """Return node -> cards that are shown there, or were and are missed."""
        if self._counts is None:
            self._counts = {}
            for memory in self._cards.values():
                self._counts[memory.node] = self._counts.get(memory.node, 0) + 1
            self._counts.pop("", None)
        return self._counts

    def flapping(self, holders: Sequence[Holder], kube: KubeState | None) -> frozenset[str]:
        """Return cards whose only named holder changes to and fro: the exporter names one of several at random."""
        named: dict[str, set[str]] = {}
        for holder in holders:
            if holder.origin == "device" and not holder.instance and not holder.shared:
                named.setdefault(holder.uuid, set()).add(f"{holder.namespace}/{holder.pod}")
        found = set()
        for uuid, pods in named.items():
            memory = self._cards.get(uuid)
            if memory is None or len(pods) != 1:
                continue
            pod = next(iter(pods))
            if not memory.holders or memory.holders[-1] != pod:
                alive = kube is None or all(p in kube.pods for p in memory.holders[-1:])
                if pod in memory.holders and alive:
                    memory.flapping_until = self._poll + _FLAPPING_POLLS
                memory.holders = [*memory.holders[-3:], pod]
            if memory.flapping_until >= self._poll:
                found.add(uuid)
        return frozenset(found)

    def to_json(self) -> dict[str, Any]:
        """Return what a later start needs."""
        return {
            "cards": {uuid: [m.target, m.node, m.lost, m.lost_ms] for uuid, m in self._cards.items()},
            "places": self.census.to_json(),
        }

    def load_json(self, state: Mapping[str, Any]) -> None:
        """Go on from `to_json`."""
        for uuid, (target, node, lost, lost_ms) in state.get("cards", {}).items():
            self._cards[uuid] = _CardMemory(target, node, lost=lost, lost_ms=lost_ms)
        self.census.load_json(state.get("places", {}))

    def _seen(self, uuid: str, target: str, report: Report) -> _CardMemory:
        memory = self._cards.get(uuid)
        if memory is None:
            memory = self._cards[uuid] = _CardMemory(target, "")
        if memory.lost:
            subject = Subject("gpu", report.cluster, memory.node, uuid)
            report.event(subject, "card_returned", Severity.INFO, f"{uuid} has samples again")
        memory.target, memory.missing, memory.lost = target, 0, False
        return memory

    def _look(self, targets: Targets, report: Report) -> None:
        """Let the census look at who is where now; a card that was replaced is not missed."""
        shown = {key: layout.sightings for key, (layout, _) in targets.items()}
        twice = {uuid for layout, _ in targets.values() for uuid in layout.twice}
        nodes = {uuid: memory.node for uuid, memory in self._cards.items()}
        self.census.look_doubled(shown, twice)
        for uuid in self.census.look(shown, nodes, report):
            self._leave(uuid)
        self._counts = None

    def _leave(self, uuid: str) -> None:
        self.departed.append(uuid)
        self._cards.pop(uuid, None)
        self._counts = None

    def _missing(self, targets: Targets, report: Report) -> None:
        """Tell of cards without samples although their target answers; forget those that are lost for long."""
        now_ms = to_ms(report.now)
        for uuid, memory in list(self._cards.items()):
            subject = Subject("gpu", report.cluster, memory.node, uuid)
            if memory.lost and now_ms - memory.lost_ms > _FORGOTTEN_DAYS * 86_400_000:
                message = f"{uuid} was lost for {_FORGOTTEN_DAYS:g} days: it leaves the capacity"
                report.event(subject, "card_forgotten", Severity.WARNING, message)
                self.census.forget(uuid)
                self._leave(uuid)
                continue
            answer = targets.get(memory.target)
            if memory.lost or answer is None or uuid in answer[0].uuids:
                continue
            if any(uuid in layout.uuids for layout, _ in targets.values()):
                continue
            memory.missing += 1
            if memory.missing >= _LOST_AFTER:
                memory.lost, memory.lost_ms = True, now_ms
                message = f"{uuid} has no samples although its target answers: it stays in capacity, not observed"
                report.event(subject, "card_lost", Severity.CRITICAL, message)
        self._some_gone = any(memory.missing or memory.lost for memory in self._cards.values())

    def _watch(self, cards: Sequence[Card]) -> None:
        """Watch these cards; those that were watched before keep what is known of them."""
        if cards is self._watched:
            return
        known = {card.uuid: n for n, card in enumerate(self._watched)}
        moving, still = np.full((len(cards), len(_MOVING)), np.nan), np.zeros(len(cards), dtype=np.int64)
        for n, card in enumerate(cards):
            self._cards[card.uuid].node = card.node
            before = known.get(card.uuid)
            if before is not None:
                moving[n], still[n] = self._moving[before], self._still[before]
        self._watched, self._moving, self._still = cards, moving, still
        self._rows = np.array([card.row for card in cards], dtype=np.int64)

    def _frozen(self, numbers: Numbers) -> list[int]:
        """Return which watched cards stand still: no energy, or the same power, clock and heat under load."""
        matrix = numbers.matrix[self._rows]
        energy, moving = matrix[:, _ENERGY], matrix[:, _MOVING]
        loaded = (matrix[:, _BUSY] > 0.1) | (matrix[:, _ENGINE] > 0.1)
        same = (moving == self._moving).all(axis=1)  # NaN is equal to nothing
        moved = np.where(np.isnan(energy), ~(same & loaded), (energy > 0) | ~same)
        silent = np.isnan(energy) & np.isnan(moving).all(axis=1)  # nothing was read: it is neither still nor moving
        self._still = np.where(silent, self._still, np.where(moved, 0, self._still + 1))
        self._moving = np.where(silent[:, np.newaxis], self._moving, moving)
        limit = still_polls(self._context.interval_seconds)
        frozen: list[int] = np.flatnonzero(self._still >= limit).tolist()
        return frozen
