"""What state a holding is in now: active, idle, idle and held, abandoned, zombie, free, or not to be told.

Idle is a stretch without activity that reaches to the newest sample. Activity is the slice's own: of its own share of
the SMs where its use is measured, the time share of its processes elsewhere; a request served, video coded, or traffic
over PCIe while it is alone on its card, is activity too. Missing samples are neither: they make the state unknown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

import numpy as np

from analyzer.facts import Request
from analyzer.settings import AnalyzeSettings
from analyzer.shares import Card, Mask, Vector
from collector.clock import to_ms

_IDLE_MINUTES = 10.0  # less is a pause
_PCIE_QUIET = 1e6  # bytes a second: what monitoring alone moves is far below
_MEMORY_HELD = 64 * 2**20  # bytes: less is no process's context
_LATE_INTERVALS = 3  # by so many an exporter may show a holder that is gone


class State(StrEnum):
    """States of a holding."""

    ACTIVE = "active"
    IDLE = "idle"
    IDLE_HELD = "idle-held"
    ABANDONED = "abandoned"
    ZOMBIE = "zombie"
    FREE = "free"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Stretch:
    """The time without activity up to the newest sample (empty: since = until), and what was held in it.

    clientless: a server that told in it that no request came or waited; memory_bytes is the newest, NaN not known.
    """

    since_ms: int
    until_ms: int
    from_start: bool  # nothing else was seen: it may be older
    coverage: float
    quota: float
    memory_bytes: float
    clientless: bool

    @property
    def minutes(self) -> float:
        """Length."""
        return (self.until_ms - self.since_ms) / 60_000


def idle_stretch(card: Card, j: int, below: float) -> Stretch:
    """Return the idle stretch of a holding of a card.

    Args:
        card: the card.
        j: number of the holding.
        below: activity below which a slice is idle.
    """
    alive = card.alive[:, j]
    sampled = card.sampled[:, j]
    active = (sampled & ~(_own_activity(card, j) < below)) | _other_activity(card, j, below)
    last = last_of(alive)
    first = int(np.argmax(alive))
    since = max(last_of(active) + 1, first)
    step = int(card.interval_seconds * 1000)
    length = last + 1 - since
    span = slice(since, last + 1) if length else slice(last, last + 1)
    since_ms = card.start_ms + since * step
    until_ms = card.start_ms + (last + 1) * step
    told = card.of_slices("idle_seconds")[last, j]
    if not active.any() and told * 1000 > until_ms - since_ms:
        since_ms = int(until_ms - told * 1000)
    memory = memory_used(card, j)
    known = memory[~np.isnan(memory)]
    requests, waiting = (card.of_slices(f)[span, j] for f in ("requests_per_second", "queue_depth_count"))
    return Stretch(
        since_ms=since_ms,
        until_ms=until_ms,
        from_start=not active.any(),
        coverage=float(sampled[span].mean()) if length else 1.0,
        quota=float(np.median(card.quota[span, j])),
        memory_bytes=float(known[-1]) if len(known) else math.nan,
        clientless=bool((requests == 0).mean() > 0.5 and not (requests > 0).any() and not (waiting > 0).any()),
    )


def state_of(card: Card, j: int, stretch: Stretch, settings: AnalyzeSettings, gone: Mapping[str, datetime]) -> State:
    """Return the state of a holding.

    Args:
        card: the card.
        j: number of the holding.
        stretch: its idle stretch.
        settings: from when on it counts as held, and as abandoned.
        gone: pod -> when it ended, as `ended_pods` returns them.
    """
    holding = card.holdings[j]
    if not holding.held:
        return State.FREE
    if not card.basis[j] or (stretch.minutes >= _IDLE_MINUTES and stretch.coverage < settings.coverage_floor):
        return State.UNKNOWN
    if stretch.minutes < _IDLE_MINUTES:
        return State.ACTIVE
    if stretch.minutes < settings.idle_minutes:
        return State.IDLE
    if client_gone(card, j, stretch, gone) or (stretch.clientless and stretch.memory_bytes >= _MEMORY_HELD):
        return State.ZOMBIE
    return State.ABANDONED if stretch.minutes >= 60 * settings.abandoned_hours else State.IDLE_HELD


def client_gone(card: Card, j: int, stretch: Stretch, gone: Mapping[str, datetime]) -> bool:
    """Say whether the pod of a holding ended, and its slice went on being shown with memory in use."""
    ended = gone.get(card.holdings[j].pod)
    if ended is None or not stretch.memory_bytes >= _MEMORY_HELD:
        return False
    return to_ms(ended) < stretch.until_ms - _LATE_INTERVALS * card.interval_seconds * 1000


def ended_pods(asked: list[Request]) -> dict[str, datetime]:
    """Return pod -> when it ended, of those that did not come back under the same name."""
    newest: dict[str, Request] = {}
    for request in sorted(asked, key=lambda r: r.created):
        newest[request.pod] = request
    return {pod: request.ended for pod, request in newest.items() if request.ended is not None}


def memory_used(card: Card, j: int) -> Vector:
    """Return the memory that a holding uses, (T,) bytes; a whole card's own stands on the card."""
    memory = card.of_slices("memory_used_bytes")[:, j]
    if card.holdings[j].kind == "whole":
        memory = np.where(np.isnan(memory) & card.alive[:, j], card.of_card("memory_used_bytes"), memory)
    return memory


def last_of(mask: Mask) -> int:
    """Return the last place at which a mask is set; -1: nowhere."""
    where = np.flatnonzero(mask)
    return int(where[-1]) if len(where) else -1


def instant(ms: float) -> datetime:
    """Return milliseconds since the epoch as a time."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


def _own_activity(card: Card, j: int) -> Vector:
    """Activity of a slice by its own measure: of its own share where its use is measured, else its busy time."""
    if not card.measured[j]:
        return card.of_slices("busy_ratio")[:, j]
    quota = card.quota[:, j]
    return np.asarray(card.used[:, j] / np.where((quota > 0) & (quota <= 1), quota, 1.0))


def _other_activity(card: Card, j: int, below: float) -> Mask:
    """Where requests were served, video was coded, or the only holder of a card moved data to or from it."""
    found: Mask = card.of_slices("requests_per_second")[:, j] > 0
    for name in ("encoder_ratio", "decoder_ratio"):
        found |= card.of_slices(name)[:, j] >= below
    alone = card.alive[:, j] & (card.held.sum(axis=1) == 1)
    traffic = np.nansum([card.of_card(f"pcie_{way}_bytes_per_second") for way in ("rx", "tx")], axis=0)
    coded = np.nanmax(
        [card.of_card(name) for name in ("encoder_ratio", "decoder_ratio")] + [np.zeros(len(alone))], axis=0
    )
    return np.asarray(found | (alone & ((traffic >= _PCIE_QUIET) | (coded >= below))))
