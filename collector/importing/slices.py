"""Samples of processes and instances become `slice` rows of unknown tenants; a chunk at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
import pyarrow as pa

from collector.batch import Batch, Event, Fact, Provenance, Reject, Subject, make_rows
from collector.clock import to_ms
from collector.importing.cards import device_event
from collector.importing.columns import Cell, told
from collector.importing.log import CHUNK_ROWS, LogPlace, Tally
from collector.schema import SLICE, UNKNOWN

_FIELDS = {name: n for n, name in enumerate(SLICE.field_names)}


@dataclass(frozen=True, slots=True)
class SliceSample:
    """One sample of a slice.

    Attributes:
        line: its place in the file.
        at: its instant.
        gpu: the card's name.
        cells: field of `slice` rows -> what was read.
        slice: the slice's name; empty: it is that of process `pid`.
        pid: the process.
        workload: who it is: of a process the command, with or without its folder.
        facts: what is told of the slice beside numbers.
    """

    line: int
    at: datetime
    gpu: str
    cells: Mapping[str, Cell]
    slice: str = ""
    pid: str = ""
    workload: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def tag(self) -> str:
        """Return the workload as rows carry it."""
        return command(self.workload) or UNKNOWN


class SliceRows:
    """Gathers samples of slices into batches.

    The slice of a process is `<host>/<pid>.<start>`; logs do not tell the start, so that the first time that they show
    the process stands for it, in seconds since the epoch.

    Args:
        place: cluster and node of the rows.
        tally: counts what is accepted and rejected.
    """

    def __init__(self, place: LogPlace, tally: Tally) -> None:
        self._place = place
        self._tally = tally
        self._samples: list[SliceSample] = []
        self._starts: dict[tuple[str, str], int] = {}
        self._told: dict[tuple[Subject, str], str] = {}
        self._cards: set[str] = set()
        self._facts: list[Fact] = []

    @property
    def full(self) -> bool:
        """Whether it is time to take a batch."""
        return len(self._samples) >= CHUNK_ROWS

    def add(self, sample: SliceSample) -> None:
        """Take one sample."""
        self._samples.append(sample)
        self.see(sample.gpu, sample.at)

    def see(self, gpu: str, at: datetime) -> None:
        """Note that a card is there, whoever holds it."""
        if gpu not in self._cards:
            self._cards.add(gpu)
            if "/" in gpu:
                subject = Subject("gpu", self._place.cluster, self._place.node, gpu)
                self._facts.append(Fact(subject, "identity", "assumed", at, "estimated"))

    def take(self) -> Batch:
        """Return what was gathered since the last call."""
        samples, self._samples = self._samples, []
        batch = Batch(facts=self._facts)
        self._facts = []
        if not samples:
            return batch
        fresh: dict[tuple[str, str], datetime] = {}
        for sample in samples:
            key = (sample.pid, sample.tag)
            if not sample.slice and key not in self._starts:
                fresh[key] = min(sample.at, fresh.get(key, sample.at))
        self._starts |= {key: int(at.timestamp()) for key, at in fresh.items()}
        matrix = np.full((len(samples), len(_FIELDS)), np.nan)
        slices = []
        for row, sample in zip(matrix, samples, strict=True):
            slices.append(sample.slice or self._process(sample))
            self._read(sample, slices[-1], row, batch)
        self._tally.accepted += len(samples)
        tags = {
            "cluster": [self._place.cluster] * len(samples),
            "node": [self._place.node] * len(samples),
            "gpu": [s.gpu for s in samples],
            "slice": slices,
            "tenant": [UNKNOWN] * len(samples),
            "workload": [s.tag for s in samples],
        }
        there = ~np.isnan(matrix).all(axis=0)
        values = {name: matrix[:, n] for name, n in _FIELDS.items() if there[n]}
        batch.rows["slice"] = make_rows("slice", [to_ms(s.at) for s in samples], tags, values)
        return batch

    def _process(self, sample: SliceSample) -> str:
        return f"{self._place.node}/{sample.pid}.{self._starts[sample.pid, sample.tag]}"

    def _read(self, sample: SliceSample, name: str, row: np.ndarray, batch: Batch) -> None:
        subject = Subject("slice", self._place.cluster, self._place.node, sample.gpu, name)
        for fact, text in sample.facts.items():
            if self._told.get((subject, fact)) != text:
                self._told[subject, fact] = text
                provenance: Provenance = "estimated" if fact == "identity" else "measured"
                batch.facts.append(Fact(subject, fact, text, sample.at, provenance))
        for column, cell in sample.cells.items():
            if not math.isnan(cell.value):
                row[_FIELDS[column]] = cell.value
            if cell.reason:
                self._tally.reject(f"{column}: {cell.reason}", sample.line)
                batch.rejects.append(Reject(subject, column, cell.reason, sample.at))
            if cell.device_error:
                card = Subject("gpu", self._place.cluster, self._place.node, sample.gpu)
                batch.events.append(device_event(card, cell.reason, sample.at))


def both(cards: Batch, slices: Batch, events: Sequence[Event] = ()) -> Batch:
    """Return one batch of cards and slices."""
    rows: dict[str, pa.Table] = dict(cards.rows)
    for name, table in slices.rows.items():
        rows[name] = pa.concat_tables([rows[name], table], promote_options="default") if name in rows else table
    return Batch(
        rows, cards.facts + slices.facts, [*cards.events, *slices.events, *events], cards.rejects + slices.rejects
    )


def command(name: str) -> str:
    """Return a command without its folder; empty where the log tells none."""
    return name.strip().replace("\\", "/").rsplit("/", 1)[-1] if told(name) else ""
