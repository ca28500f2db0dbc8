"""Samples of cards become `gpu` rows, facts, rejects, and the slice row of whoever holds a card; a chunk at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from itertools import pairwise
from statistics import median

import numpy as np

from collector.batch import Batch, Event, Fact, Reject, Severity, Subject, make_rows
from collector.clock import to_ms
from collector.importing.columns import (
    FACT_COLUMNS,
    GPU_COLUMNS,
    MIG_MODE,
    REASON_FLAGS,
    REASON_MASKS,
    TOTAL_COLUMNS,
    fact_text,
    read_cell,
    reason_mask,
    throttles,
)
from collector.importing.log import CHUNK_ROWS, LogPlace, Tally
from collector.schema import GPU, UNKNOWN

_HELD_BYTES = 64 * 2.0**20  # a driver alone keeps a few MiB: more means that a process holds the card
_GAP_STEPS = 2  # over a longer gap than so many steps energy is unknown
_FIELDS = {name: n for n, name in enumerate(GPU.field_names)}


@dataclass(slots=True)
class _Sample:
    line: int
    at: datetime
    gpu: str
    cells: Mapping[str, str]
    held: bool


@dataclass(slots=True)
class _Card:
    """What is known of a card from the rows before."""

    facts: dict[str, str] = field(default_factory=dict)
    totals: dict[str, tuple[float, datetime]] = field(default_factory=dict)
    step_seconds: float = math.nan
    described: bool = False
    whole: bool = False


@dataclass(frozen=True, slots=True)
class _Used:
    """Which columns of a log are kept, the better ones of a field first."""

    values: tuple[tuple[str, str, float], ...]
    totals: tuple[tuple[str, str, float], ...]
    facts: tuple[tuple[str, str, float | None], ...]
    reasons: bool


@lru_cache(maxsize=64)
def _used_columns(names: tuple[str, ...]) -> _Used:
    there = frozenset(names)
    return _Used(
        tuple((column, *what) for column, what in GPU_COLUMNS.items() if column in there),
        tuple((column, *what) for column, what in TOTAL_COLUMNS.items() if column in there),
        tuple((column, *what) for column, what in FACT_COLUMNS.items() if column in there),
        not there.isdisjoint((*REASON_MASKS, *REASON_FLAGS)),
    )


class CardRows:
    """Gathers samples of cards into batches.

    Args:
        place: cluster and node of the rows.
        tally: counts what is accepted and rejected.
    """

    def __init__(self, place: LogPlace, tally: Tally) -> None:
        self._place = place
        self._tally = tally
        self._samples: list[_Sample] = []
        self._cards: dict[str, _Card] = {}
        self._events: list[Event] = []

    @property
    def full(self) -> bool:
        """Whether it is time to take a batch."""
        return len(self._samples) >= CHUNK_ROWS

    def add(self, line: int, at: datetime, gpu: str, cells: Mapping[str, str], *, held: bool = True) -> None:
        """Take one sample of a card.

        Args:
            line: its place in the file.
            at: its instant.
            gpu: the card's name.
            cells: column -> text.
            held: nothing else tells who holds the card: its own figures shall.
        """
        self._samples.append(_Sample(line, at, gpu, cells, held))

    def device_error(self, line: int, at: datetime, gpu: str, cell: str) -> None:
        """Note that the device answered with an error where its name should stand."""
        subject = Subject("gpu" if gpu else "node", self._place.cluster, self._place.node, gpu)
        self._tally.reject(f"identity: the device answered {cell!r}", line)
        self._events.append(device_event(subject, f"the device answered {cell!r}", at))

    def take(self) -> Batch:
        """Return what was gathered since the last call."""
        samples, self._samples = self._samples, []
        batch = Batch(events=self._events)
        self._events = []
        if not samples:
            return batch
        matrix = np.full((len(samples), len(_FIELDS)), np.nan)
        self._learn_steps(samples)
        for row, sample in zip(matrix, samples, strict=True):
            self._read(sample, row, batch)
        self._tally.accepted += len(samples)
        times = [to_ms(s.at) for s in samples]
        tags = {
            "cluster": [self._place.cluster] * len(samples),
            "node": [self._place.node] * len(samples),
            "gpu": [s.gpu for s in samples],
        }
        there = ~np.isnan(matrix).all(axis=0)
        values = {name: matrix[:, n] for name, n in _FIELDS.items() if there[n]}
        batch.rows["gpu"] = make_rows("gpu", times, tags, values)
        self._add_holders(samples, times, tags, matrix, batch)
        for gpu, rows in _by_card(samples).items():
            batch.facts += self._facts(gpu, rows)
        return batch

    def _read(self, sample: _Sample, row: np.ndarray, batch: Batch) -> None:
        cells = sample.cells
        used = _used_columns(tuple(cells))
        for column, name, scale in used.values:
            cell = read_cell(cells[column], name, scale)
            if cell.reason:
                self._reject(sample, name, cell.reason, batch, device_error=cell.device_error)
            if math.isnan(row[_FIELDS[name]]):
                row[_FIELDS[name]] = cell.value
        for column, name, scale in used.totals:
            cell = read_cell(cells[column], name, scale, total=True)
            if cell.reason:
                self._reject(sample, name, cell.reason, batch, device_error=cell.device_error)
            elif not math.isnan(cell.value):
                row[_FIELDS[name]] = self._growth(sample, name, cell.value, batch)
        if not used.reasons:
            return
        mask, reason = reason_mask(cells)
        if reason:
            self._reject(sample, "throttle_power_ratio", reason, batch, device_error=False)
        if mask is not None:
            for name, value in throttles(mask).items():
                row[_FIELDS[name]] = value

    def _growth(self, sample: _Sample, name: str, total: float, batch: Batch) -> float:
        """Return what a total grew by; NaN at its first sight, where it fell, and for energy across a gap."""
        card = self._cards[sample.gpu]
        before = card.totals.get(name)
        card.totals[name] = (total, sample.at)
        if before is None:
            return math.nan
        if total < before[0]:
            subject = Subject("gpu", self._place.cluster, self._place.node, sample.gpu)
            message = f"{name} fell: its source started anew"
            batch.events.append(Event(subject, "counter_reset", Severity.INFO, message, sample.at))
            return math.nan
        gap = (sample.at - before[1]).total_seconds() > _GAP_STEPS * card.step_seconds + 1e-6
        return math.nan if gap and name == "energy_joules" else total - before[0]

    def _reject(self, sample: _Sample, name: str, reason: str, batch: Batch, *, device_error: bool) -> None:
        subject = Subject("gpu", self._place.cluster, self._place.node, sample.gpu)
        self._tally.reject(f"{name}: {reason}", sample.line)
        batch.rejects.append(Reject(subject, name, reason, sample.at))
        if device_error:
            batch.events.append(device_event(subject, reason, sample.at))

    def _learn_steps(self, samples: list[_Sample]) -> None:
        for gpu, rows in _by_card(samples).items():
            card = self._cards.setdefault(gpu, _Card())
            if math.isnan(card.step_seconds):
                steps = [(b.at - a.at).total_seconds() for a, b in pairwise(rows) if b.at > a.at]
                card.step_seconds = max(round(median(steps), 3), 0.001) if steps else math.nan

    def _add_holders(
        self, samples: list[_Sample], times: list[int], tags: dict[str, list[str]], matrix: np.ndarray, batch: Batch
    ) -> None:
        """Say that somebody unknown holds the card, save where its memory or its activity shows that nobody does.

        Where neither is told, nobody knows whether the card is held: the row stands and is of unknown holder and
        activity. The card's memory stays on the card's own row. A card that is cut into instances is nobody's as a
        whole.
        """
        memory, busy = matrix[:, _FIELDS["memory_used_bytes"]], matrix[:, _FIELDS["busy_ratio"]]
        alone = np.array([s.held and not is_cut(s.cells) for s in samples])
        held = np.flatnonzero(alone & ((memory > _HELD_BYTES) | (busy > 0) | (np.isnan(memory) & np.isnan(busy))))
        if not len(held):
            return
        slice_tags = {name: [column[i] for i in held] for name, column in tags.items()}
        size = len(held)
        slice_tags |= {"slice": ["whole"] * size, "tenant": [UNKNOWN] * size, "workload": [UNKNOWN] * size}
        batch.rows["slice"] = make_rows("slice", [times[i] for i in held], slice_tags, {})

    def _facts(self, gpu: str, rows: list[_Sample]) -> Iterator[Fact]:
        subject = Subject("gpu", self._place.cluster, self._place.node, gpu)
        card, first = self._cards[gpu], rows[0]
        yield from _hardware_facts(subject, card.facts, rows)
        if not card.described:
            card.described = True
            if "/" in gpu:
                yield Fact(subject, "identity", "assumed", first.at, "estimated")
        if not card.whole and first.held and not is_cut(first.cells):
            card.whole = True
            held = Subject("slice", self._place.cluster, self._place.node, gpu, "whole")
            yield Fact(held, "kind", "whole", first.at, "estimated")
        if not math.isnan(card.step_seconds) and "interval_seconds" not in card.facts:
            # A fact of this card: rows of a collector keep the cycle that the cluster's own fact tells.
            card.facts["interval_seconds"] = f"{card.step_seconds:g}"
            yield Fact(subject, "interval_seconds", card.facts["interval_seconds"], first.at, "estimated")


def is_cut(cells: Mapping[str, str]) -> bool:
    """Whether a card is cut into MIG instances."""
    return cells.get(MIG_MODE, "").strip().lower() == "enabled"


def device_event(subject: Subject, reason: str, at: datetime) -> Event:
    """Return the event of a device that answers with an error."""
    return Event(subject, "device_error", Severity.ERROR, reason, at)


def _by_card(samples: list[_Sample]) -> dict[str, list[_Sample]]:
    """Return each card's samples in the order of time; cards by name."""
    found: dict[str, list[_Sample]] = {}
    for sample in sorted(samples, key=lambda s: s.at):
        found.setdefault(sample.gpu, []).append(sample)
    return dict(sorted(found.items()))


def _hardware_facts(subject: Subject, known: dict[str, str], rows: list[_Sample]) -> Iterator[Fact]:
    """Yield what a row tells of a card and the rows before did not; cells that tell nothing change nothing."""
    for row in rows:
        told: dict[str, str] = {}
        for column, name, scale in _used_columns(tuple(row.cells)).facts:
            text = fact_text(row.cells[column], scale)
            if text:
                told.setdefault(name, text)
        if MIG_MODE in row.cells and row.cells[MIG_MODE].strip().lower() in ("enabled", "disabled"):
            told["mig"] = row.cells[MIG_MODE].strip().lower()
        for name, text in told.items():
            if known.get(name) != text:
                known[name] = text
                yield Fact(subject, name, text, row.at)
