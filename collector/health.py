"""Targets and cards that come and go, errors that cards report, sources that stand still."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collector.batch import Severity, Subject
from collector.cycle import Numbers
from collector.exposition import Exposition
from collector.kube import KubeState
from collector.layout import FIELD_INDEX
from collector.masking import mask_address
from collector.plugins import SourceContext
from collector.report import Report
from collector.settings import TargetSettings
from collector.slots import Card, Holder, XidReading, target_key
from collector.targets import Arrangement

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

STALE_POLLS = 10  # a source whose ever-changing values stood still for so many polls is frozen
_LOST_AFTER = 2  # polls without a card before it is called lost
_FLAPPING_POLLS = 10
_MACHINES = 2  # changes of machine under one address before it is refused

_ENERGY = FIELD_INDEX["energy_joules"]
_MOVING = np.array([FIELD_INDEX[name] for name in ("power_watts", "sm_clock_hertz", "temperature_celsius")])
_BUSY, _ENGINE = FIELD_INDEX["busy_ratio"], FIELD_INDEX["engine_active_ratio"]

# What the driver's documentation calls fatal for the card, and what it calls an application's or a passing error.
_CRITICAL_XIDS = frozenset((48, 54, 62, 64, 74, 79, 95, 110, 119, 120, 121, 140, 143, 155, 156))
_WARNING_XIDS = frozenset((8, 11, 13, 25, 31, 32, 37, 43, 44, 45, 68, 69, 94, 109))
_INFO_XIDS = frozenset((0, 63, 92))


def xid_severity(code: int) -> Severity:
    """Return how bad an XID is for the card: an application's fault is a warning, a lost or broken card critical."""
    if code in _CRITICAL_XIDS:
        return Severity.CRITICAL
    if code in _WARNING_XIDS:
        return Severity.WARNING
    return Severity.INFO if code in _INFO_XIDS else Severity.ERROR


@dataclass(slots=True)
class _TargetMemory:
    up: bool | None = None
    skewed: bool = False
    hostnames: frozenset[str] = frozenset()
    uuids: frozenset[str] = frozenset()
    moves: int = 0
    denied: dict[str, str] = field(default_factory=dict)


class TargetWatch:
    """Whether targets answer, whether it is always the same machine, and whether its clock is right."""

    def __init__(self, context: SourceContext) -> None:
        self._context = context
        self._targets: dict[str, _TargetMemory] = {}

    def observe(self, target: TargetSettings, body: Exposition | None, error: str, report: Report) -> bool:
        """Note whether a target answered with an exposition; events tell of a change. Returns whether it did."""
        key = target_key(target)
        memory = self._targets.get(key)
        if memory is None:
            memory = self._targets[key] = _TargetMemory()
        reason = error
        if body is not None and not reason:
            if body.rejects:
                report.reject_all(report.target(target), Counter(reject.reason for reject in body.rejects))
            if not body.series and not body.metadata:
                reason = body.rejects[0].reason if body.rejects else "the answer is empty"
                if not body.rejects:
                    report.reject(report.target(target), "", "empty body")
        up = not reason
        if memory.up is not False and not up:
            place = mask_address(target.url)
            message = f"{place}: {reason.removeprefix(f'{place}: ')}"
            report.event(report.target(target), "target_down", Severity.ERROR, message)
        if memory.up is False and up:
            report.event(report.target(target), "target_up", Severity.INFO, f"{mask_address(target.url)} answers again")
        memory.up = up
        return up

    def same_machine(self, target: TargetSettings, layout: Arrangement, report: Report) -> bool:
        """Say whether the answers come from one machine; an address that leads to a random one is refused."""
        memory = self._targets[target_key(target)]
        moved = (
            bool(memory.hostnames and memory.uuids and layout.uuids)
            and memory.hostnames.isdisjoint(layout.hostnames)
            and memory.uuids.isdisjoint(layout.uuids)
        )
        memory.moves += moved
        if layout.uuids:
            memory.hostnames, memory.uuids = layout.hostnames, layout.uuids
        if memory.moves < _MACHINES:
            return True
        count = max(len(layout.samples), 1)
        report.reject(report.target(target), "", "several machines behind one address", count)
        return False

    def clock(self, target: TargetSettings, body: Exposition, report: Report) -> None:
        """Tell, once, of a target whose explicit timestamps are more than an interval off."""
        memory = self._targets[target_key(target)]
        skewed = False
        if body.stamps_ms:
            offset = float(np.median(list(body.stamps_ms.values()))) / 1000.0 - report.now.timestamp()
            skewed = abs(offset) > 2 * self._context.interval_seconds
            if skewed and not memory.skewed:
                message = f"{mask_address(target.url)}: its timestamps are {offset:+.0f} s from the collector's clock"
                report.event(report.target(target), "clock_skew", Severity.WARNING, message)
        memory.skewed = skewed

    def denied(self, target: TargetSettings, parts: Mapping[str, str], report: Report) -> None:
        """Tell, once, of parts of a source that answer no: a right that is missing, or an error of theirs."""
        memory = self._targets[target_key(target)]
        for part, reason in parts.items():
            if memory.denied.get(part) != reason:
                message = f"{mask_address(target.url)}: {part} cannot be read: {reason}"
                report.event(report.target(target), "source_denied", Severity.WARNING, message)
        for part in memory.denied.keys() - parts.keys():
            message = f"{mask_address(target.url)}: {part} can be read again"
            report.event(report.target(target), "source_granted", Severity.INFO, message)
        memory.denied = dict(parts)

    def to_json(self) -> dict[str, Any]:
        """Return what a later start needs."""
        return {key: memory.up for key, memory in self._targets.items()}

    def load_json(self, state: Mapping[str, Any]) -> None:
        """Go on from `to_json`."""
        for key, up in state.items():
            self._targets[key] = _TargetMemory(up=up)


@dataclass(slots=True)
class _CardMemory:
    target: str
    node: str
    missing: int = 0
    lost: bool = False
    holders: list[str] = field(default_factory=list)
    flapping_until: int = 0


class CardWatch:
    """Cards that vanish, come back, or whose values stand still."""

    def __init__(self, context: SourceContext) -> None:
        self._context = context
        self._cards: dict[str, _CardMemory] = {}
        self._shown: dict[str, frozenset[str]] = {}
        self._some_gone = True  # a card is missing or lost, as far as is known
        self._watched: Sequence[Card] = ()
        self._moving: Floats = np.empty((0, len(_MOVING)))  # last values of the watched cards
        self._rows: Ints = np.empty(0, dtype=np.int64)
        self._still: Ints = np.empty(0, dtype=np.int64)  # for how many polls each of them stood still
        self._poll = 0

    def observe(
        self,
        cards: Sequence[Card],
        numbers: Numbers,
        targets: Mapping[str, tuple[frozenset[str], float]],
        report: Report,
    ) -> dict[str, float]:
        """Note the present cards and return the age of what is said of each, in seconds; strike out frozen values.

        Args:
            cards: cards with samples.
            numbers: the cycle's numbers; values of a frozen card become NaN.
            targets: a target that answered -> the cards it shows, and the age of its values.
            report: takes the events and rejects.
        """
        self._poll += 1
        ages: dict[str, float] = {}
        for key, (uuids, age) in targets.items():
            if self._some_gone or self._shown.get(key) is not uuids:
                for uuid in uuids:
                    memory = self._cards.get(uuid)
                    if memory is None or memory.missing or memory.lost:
                        self._seen(uuid, key, report)
            if age:
                ages.update((uuid, max(ages.get(uuid, 0.0), age)) for uuid in uuids)
        self._watch(cards)
        for n in self._frozen(numbers):
            card = cards[n]
            row = numbers.matrix[card.row]
            count = int((~np.isnan(row)).sum())
            row[:] = np.nan
            report.reject(report.card(card), "", "stale", count)
            ages[card.uuid] = ages.get(card.uuid, 0.0) + int(self._still[n]) * self._context.interval_seconds
        shown = {key: uuids for key, (uuids, _) in targets.items()}
        same = shown.keys() == self._shown.keys() and all(self._shown[key] is uuids for key, uuids in shown.items())
        if self._some_gone or not same:
            self._missing(targets, report)
        self._shown = shown
        return ages

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
        return {uuid: [m.target, m.node, m.lost] for uuid, m in self._cards.items()}

    def load_json(self, state: Mapping[str, Any]) -> None:
        """Go on from `to_json`."""
        for uuid, (target, node, lost) in state.items():
            self._cards[uuid] = _CardMemory(target, node, lost=lost)

    def _seen(self, uuid: str, target: str, report: Report) -> _CardMemory:
        memory = self._cards.get(uuid)
        if memory is None:
            memory = self._cards[uuid] = _CardMemory(target, "")
        if memory.lost:
            subject = Subject("gpu", report.cluster, memory.node, uuid)
            report.event(subject, "card_returned", Severity.INFO, f"{uuid} has samples again")
        memory.target, memory.missing, memory.lost = target, 0, False
        return memory

    def _missing(self, targets: Mapping[str, tuple[frozenset[str], float]], report: Report) -> None:
        """Tell of cards without samples although their target answers."""
        for uuid, memory in self._cards.items():
            answer = targets.get(memory.target)
            if memory.lost or answer is None or uuid in answer[0]:
                continue
            if any(uuid in shown for shown, _ in targets.values()):
                continue
            memory.missing += 1
            if memory.missing >= _LOST_AFTER:
                memory.lost = True
                subject = Subject("gpu", report.cluster, memory.node, uuid)
                message = f"{uuid} has no samples although its target answers: lost, or replaced"
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
        self._moving, self._still = moving, np.where(moved, 0, self._still + 1)
        frozen: list[int] = np.flatnonzero(self._still >= STALE_POLLS).tolist()
        return frozen


class XidWatch:
    """XIDs become events: the last code on change, counts on growth."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}

    def observe(self, readings: Sequence[tuple[XidReading, float]], cards: Mapping[str, Card], report: Report) -> None:
        """Tell an event for each new XID; one that all instances of a card show is the card's."""
        fresh: dict[tuple[str, int], dict[str, tuple[str, int]]] = {}
        for reading, value in readings:
            if not math.isfinite(value) or value < 0 or value > 1e6:
                continue
            key = f"{reading.nature}|{reading.uuid}|{reading.instance}|{reading.code}"
            before = self._last.get(key)
            self._last[key] = value
            if reading.nature == "xid":
                code, times = int(value), 1
                happened = code != 0 and value != before
            elif reading.nature == "xid_new":
                code, times = int(reading.code) if reading.code.isdigit() else 0, int(value)
                happened = code != 0 and times > 0
            else:
                code = int(reading.code) if reading.code.isdigit() else 0
                times = int(value - (before or 0.0)) if before is not None or reading.nature == "xid_window" else 0
                happened = code != 0 and times > 0
            if happened:
                said = fresh.setdefault((reading.uuid, code), {})
                known = said.get(reading.instance)
                said[reading.instance] = (
                    reading.text or (known[0] if known else ""),
                    max(times, known[1] if known else 0),
                )
        for (uuid, code), said in fresh.items():
            card = cards.get(uuid)
            node = card.node if card else ""
            subject = Subject("gpu", report.cluster, node, uuid)
            if len(said) == 1 and next(iter(said)):
                subject = Subject("slice", report.cluster, node, uuid, f"gi{next(iter(said))}")
            text, times = next(iter(said.values()))
            message = f"XID {code}: {text or 'see the driver log'}" + (f" ({times} times)" if times > 1 else "")
            report.event(subject, "xid", xid_severity(code), message)

    def to_json(self) -> dict[str, float]:
        """Return what a later start needs."""
        return dict(self._last)

    def load_json(self, state: Mapping[str, float]) -> None:
        """Go on from `to_json`."""
        self._last.update({key: float(value) for key, value in state.items()})
