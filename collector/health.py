"""Targets that come and go, that stand still, or are not who they were; errors that cards report."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collector.batch import Severity, Subject
from collector.exposition import Exposition
from collector.masking import mask_address
from collector.plugins import SourceContext
from collector.report import Report
from collector.settings import TargetSettings
from collector.slots import Card, XidReading, target_key
from collector.targets import Arrangement
from collector.whole import whole

Floats = NDArray[np.float64]

_LEAST_SKEW_SECONDS = 2.0  # an answer's date has whole seconds
_GONE_SECONDS, _GONE_TURNS = 900.0, 3  # of absence, after which a target is none any more
_MACHINES = 2  # changes of machine under one address before it is refused

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
    seconds: float = math.nan  # since the epoch, when it was last among the targets
    skewed: bool = False
    hostnames: frozenset[str] = frozenset()
    uuids: frozenset[str] = frozenset()
    moves: int = 0
    denied: dict[str, str] = field(default_factory=dict)
    values: Floats | None = None
    still: int = 0


# What must move and stands still for so many polls, and so long, is frozen. An exporter that samples each 30 s (as
# dcgm-exporter does) repeats itself when it is asked more often: four of its own steps are no accident.
_STALE_POLLS = 10
_STALE_SECONDS = 120.0


def still_polls(interval_seconds: float) -> int:
    """Return how many polls what must move may stand still before its source counts as frozen."""
    return max(_STALE_POLLS, math.ceil(_STALE_SECONDS / interval_seconds))


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

    def forget_gone(self, there: set[str], longest_interval_seconds: float, report: Report) -> None:
        """Forget targets that are none any more; one that was down is told of a last time.

        One that fails again and again is asked every few minutes only, and is not among the targets in between.

        Args:
            there: keys of the targets of this poll, also of those that were not asked.
            longest_interval_seconds: after how long any target is asked at the latest, by its own interval.
            report: takes the events.
        """
        now = report.now.timestamp()
        longest = max(longest_interval_seconds, self._context.interval_seconds)
        for key, memory in list(self._targets.items()):
            if key in there or math.isnan(memory.seconds):
                memory.seconds = now
            elif now - memory.seconds > max(_GONE_SECONDS, _GONE_TURNS * longest):
                del self._targets[key]
                if memory.up is False:
                    place = mask_address(key)
                    subject = Subject("node", report.cluster, "", object=place)
                    report.event(subject, "target_gone", Severity.INFO, f"{place} was down, and is no target any more")

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

    def frozen(self, target: TargetSettings, body: Exposition, report: Report, *, must_move: bool) -> bool:
        """Say whether a target repeats one text although something in it must move; events tell of a change.

        Args:
            target: who answered.
            body: what it said.
            report: takes the events.
            must_move: it has a clock or a counter of its own work, or its servers' slices are at work.
        """
        memory = self._targets[target_key(target)]
        before = self._is_frozen(memory)
        # Once frozen it stays so until something moves: nothing of it is shown meanwhile, hence nobody works with it.
        values = np.asarray(body.values, dtype=np.float64) if must_move or before else None
        same = (
            values is not None and memory.values is not None and np.array_equal(values, memory.values, equal_nan=True)
        )
        memory.values, memory.still = values, memory.still + 1 if same else 0
        now = self._is_frozen(memory)
        place = mask_address(target.url) if now != before else ""
        if now and not before:
            polls = memory.still + 1
            message = f"{place}: {polls} answers in a row are the same, counters and clocks too: a frozen source"
            report.event(report.target(target), "source_frozen", Severity.ERROR, message)
        if before and not now:
            report.event(report.target(target), "source_moves", Severity.INFO, f"{place}: its values move again")
        return now

    def _is_frozen(self, memory: _TargetMemory) -> bool:
        return memory.still >= still_polls(self._context.interval_seconds)

    def clock(
        self, target: TargetSettings, body: Exposition, report: Report, *, skew_seconds: float = math.nan
    ) -> float:
        """Return how old a target's values are by their explicit timestamps, in seconds; 0 without them.

        One whose timestamps are more than two intervals off is told of, once: its clock is wrong, or its values old;
        so is one whose answer's date is more than an interval off.

        Args:
            target: the target.
            body: what it said.
            report: takes the event.
            skew_seconds: how far its clock is ahead, as its answer's date says; NaN: it does not say.
        """
        memory = self._targets[target_key(target)]
        skewed, age = False, 0.0
        if not body.stamps_ms and abs(skew_seconds) > max(self._context.interval_seconds, _LEAST_SKEW_SECONDS):
            skewed = True
            if not memory.skewed:
                message = f"{mask_address(target.url)}: its clock is {skew_seconds:+.0f} s from the collector's"
                report.event(report.target(target), "clock_skew", Severity.WARNING, message)
        if body.stamps_ms:
            offset = float(np.median(list(body.stamps_ms.values()))) / 1000.0 - report.now.timestamp()
            skewed = abs(offset) > 2 * self._context.interval_seconds
            age = max(-offset, 0.0) if len(body.stamps_ms) > len(body.series) // 2 else 0.0
            if skewed and not memory.skewed:
                message = f"{mask_address(target.url)}: its timestamps are {offset:+.0f} s from the collector's clock"
                report.event(report.target(target), "clock_skew", Severity.WARNING, message)
        memory.skewed = skewed
        return age

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
                code, times = whole(reading.code), int(value)
                happened = code != 0 and times > 0
            else:
                code = whole(reading.code)
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
