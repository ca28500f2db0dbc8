"""nvidia-smi logs: --query-gpu and --query-compute-apps CSV, and dmon with date and time."""

from __future__ import annotations

import csv
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from itertools import pairwise
from statistics import median

import numpy as np

from collector.batch import Batch, Event, Fact, Reject, Severity, Subject, make_rows
from collector.importing.columns import FACT_COLUMNS, GPU_COLUMNS, column_name, read_cell
from collector.schema import UNKNOWN

_IDENTITY = ("uuid", "gpu_uuid")
_INDEX = ("index", "gpu")
_HELD_BYTES = 64 * 2.0**20  # a driver alone keeps a few MiB: more means that a process holds the card
_MIB = 2.0**20
_LOCAL = re.compile(r"^\d{4}[-/]\d{2}[-/]\d{2}[ T]\d{2}:\d{2}:\d{2}")
_EPOCH = re.compile(r"^\d{9,10}(\.\d+)?$|^\d{13}$")
_EPOCH_MS = 1e11


class NotImportableError(Exception):
    """A log that cannot be imported as it is; the text says why and what to do."""


@dataclass(slots=True)
class LogResult:
    """What a log became: a batch, lines accepted, lines rejected by reason (with the first line number), warnings."""

    batch: Batch
    accepted: int = 0
    rejected: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    warnings: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Sample:
    line: int
    at: datetime
    gpu: str
    cells: dict[str, str]


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Where a log comes from: cluster, node, and the zone of stamps that carry none (None: nobody said)."""

    cluster: str
    node: str
    zone: tzinfo | None


def read_query(text: str, place: LogPlace) -> LogResult:
    """Read a --query-gpu log.

    Raises:
        NotImportableError: rows of several cards cannot be told apart.
    """
    result = LogResult(Batch())
    samples = _samples(text, place, result)
    _build_cards(samples, place, result)
    return result


def read_dmon(text: str, place: LogPlace) -> LogResult:
    """Read a dmon log with `-o DT`: columns by name from the `#` lines."""
    result = LogResult(Batch())
    names: list[str] = []
    samples: list[_Sample] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.replace("#", " ").split()
        if line.lstrip().startswith("#"):
            names = [w.lower() for w in words] if "gpu" in (w.lower() for w in words) else names
        elif words:
            if len(words) != len(names):
                result.rejected[f"expected {len(names)} columns, got another number"].append(number)
                continue
            cells = dict(zip(names, words, strict=True))
            at = _instant(f"{_dashed(cells.pop('date'))} {cells.pop('time')}", place, result)
            if at is None:
                result.rejected["expected a date and a time"].append(number)
            else:
                samples.append(_Sample(number, at, f"{place.node}/{cells.pop('gpu')}", cells))
    _build_cards(samples, place, result)
    return result


def read_apps(text: str, place: LogPlace) -> LogResult:
    """Read a --query-compute-apps log: memory of each process, as slices of unknown tenants."""
    result = LogResult(Batch())
    rows: list[tuple[int, str, str, str, float]] = []
    for number, cells in _rows(text, result):
        at = _instant(cells.get("timestamp", ""), place, result)
        card = cells.get("gpu_uuid") or cells.get("gpu_bus_id") or ""
        memory = read_cell(cells.get("used_gpu_memory", "") or cells.get("used_memory", ""), "memory_used_bytes", _MIB)
        if at is None or not card or not cells.get("pid"):
            result.rejected["expected a time stamp, a card and a pid"].append(number)
            continue
        name = cells.get("process_name", UNKNOWN).replace("\\", "/").rsplit("/", 1)[-1] or UNKNOWN
        rows.append((_ms(at), card, f"{place.node}/{cells['pid']}", name, memory.value))
        result.accepted += 1
        if memory.reason:
            result.rejected[memory.reason].append(number)
    if rows:
        tags = {
            "cluster": [place.cluster] * len(rows),
            "node": [place.node] * len(rows),
            "gpu": [r[1] for r in rows],
            "slice": [r[2] for r in rows],
            "tenant": [UNKNOWN] * len(rows),
            "workload": [r[3] for r in rows],
        }
        values = {"memory_used_bytes": np.array([r[4] for r in rows])}
        result.batch.rows["slice"] = make_rows("slice", [r[0] for r in rows], tags, values)
    return result


def _rows(text: str, result: LogResult) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line, column -> cell); headers may repeat, `date` lines and torn lines are rejected."""
    names: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        cells = [cell.strip() for cell in next(csv.reader([line], skipinitialspace=True))]
        headings = [column_name(cell) for cell in cells]
        if not names or headings == names:
            names = names or headings
        elif len(cells) != len(names):
            result.rejected[f"expected {len(names)} columns, got another number"].append(number)
        else:
            yield number, dict(zip(names, cells, strict=True))


def _samples(text: str, place: LogPlace, result: LogResult) -> list[_Sample]:
    rows = list(_rows(text, result))
    card_of = _card_namer([cells for _, cells in rows], place, result)
    samples: list[_Sample] = []
    for number, cells in rows:
        at = _instant(cells.get("timestamp", ""), place, result)
        if at is None:
            result.rejected["expected a time stamp"].append(number)
            continue
        samples.append(_Sample(number, at, card_of(cells), cells))
    return samples


class _CardNamer:
    """Names the card of a row: UUID, else index, else the only card of the node."""

    def __init__(self, column: str, node: str) -> None:
        self._column, self._node = column, node

    def __call__(self, cells: dict[str, str]) -> str:
        if not self._column:
            return f"{self._node}/0"
        return cells[self._column] if self._column in _IDENTITY else f"{self._node}/{cells[self._column]}"


def _card_namer(rows: Sequence[dict[str, str]], place: LogPlace, result: LogResult) -> _CardNamer:
    columns = rows[0].keys() if rows else ()
    for name in _IDENTITY:
        if name in columns:
            return _CardNamer(name, place.node)
    present = [name for name in _INDEX if name in columns]
    if present:
        # A loop that asks each card alone prints index 0 on every row: the column that varies is the card's number.
        varying = [name for name in present if len({row[name] for row in rows}) > 1]
        result.warnings.append("cards are named by node and index: the log has no UUID")
        return _CardNamer((varying or present)[0], place.node)
    stamps = [row.get("timestamp", "") for row in rows]
    if len(set(stamps)) < len(stamps):
        raise NotImportableError(
            "several rows share a time stamp and no column tells the cards apart: log with `index` or `uuid`"
        )
    result.warnings.append("the log names no card: all rows are taken for one card, index 0")
    return _CardNamer("", place.node)


def _build_cards(samples: list[_Sample], place: LogPlace, result: LogResult) -> None:
    """Turn samples into `gpu` rows, facts, rejects and the slice row of whoever holds a card."""
    if not samples:
        return
    fields = sorted({GPU_COLUMNS[c][0] for s in samples for c in s.cells if c in GPU_COLUMNS})
    values = {name: np.full(len(samples), np.nan) for name in fields}
    for row, sample in enumerate(samples):
        for column, cell_text in sample.cells.items():
            if column not in GPU_COLUMNS:
                continue
            name, scale = GPU_COLUMNS[column]
            cell = read_cell(cell_text, name, scale)
            if cell.reason:
                _report_cell(sample, name, cell.reason, place, result, device_error=cell.device_error)
            if math.isnan(values[name][row]):
                values[name][row] = cell.value
    result.accepted += len(samples)
    times = [_ms(s.at) for s in samples]
    tags = {
        "cluster": [place.cluster] * len(samples),
        "node": [place.node] * len(samples),
        "gpu": [s.gpu for s in samples],
    }
    result.batch.rows["gpu"] = make_rows("gpu", times, tags, values)
    _add_holders(samples, times, tags, values, result)
    _add_facts(samples, place, result)


def _add_holders(
    samples: list[_Sample],
    times: list[int],
    tags: dict[str, list[str]],
    values: dict[str, np.ndarray],
    result: LogResult,
) -> None:
    """Say that somebody unknown holds the card where its memory or its activity shows it."""
    nothing = np.zeros(len(samples))
    memory = np.nan_to_num(values.get("memory_used_bytes", nothing), nan=0.0)
    busy = np.nan_to_num(values.get("busy_ratio", nothing), nan=0.0)
    held = np.flatnonzero((memory > _HELD_BYTES) | (busy > 0))
    if not len(held):
        return
    slice_tags = {name: [column[i] for i in held] for name, column in tags.items()}
    slice_tags |= {"slice": ["whole"] * len(held), "tenant": [UNKNOWN] * len(held), "workload": [UNKNOWN] * len(held)}
    used = np.where(memory[held] > 0, memory[held], np.nan)
    result.batch.rows["slice"] = make_rows("slice", [times[i] for i in held], slice_tags, {"memory_used_bytes": used})


def _add_facts(samples: list[_Sample], place: LogPlace, result: LogResult) -> None:
    by_card: dict[str, list[_Sample]] = defaultdict(list)
    for sample in samples:
        by_card[sample.gpu].append(sample)
    for gpu, rows in sorted(by_card.items()):
        subject = Subject("gpu", place.cluster, place.node, gpu)
        first = rows[0]
        for column, (name, scale) in FACT_COLUMNS.items():
            text = first.cells.get(column, "").strip()
            if not text or text.startswith("[") or text.upper() == "N/A":
                continue
            if scale is not None:
                number = re.match(r"[-+]?\d+(\.\d+)?", text)
                if number is None:
                    continue
                text = f"{float(number[0]) * scale:.0f}"
            result.batch.facts.append(Fact(subject, name, text, first.at))
        if "/" in gpu:
            result.batch.facts.append(Fact(subject, "identity", "assumed", first.at, "estimated"))
        held = Subject("slice", place.cluster, place.node, gpu, "whole")
        result.batch.facts.append(Fact(held, "kind", "whole", first.at, "estimated"))
    steps = [(b.at - a.at).total_seconds() for rows in by_card.values() for a, b in pairwise(rows)]
    steps = [s for s in steps if s > 0]
    if steps:
        cluster = Subject("cluster", place.cluster)
        step = f"{max(round(median(steps), 3), 0.001):g}"
        result.batch.facts.append(Fact(cluster, "interval_seconds", step, min(s.at for s in samples), "estimated"))


def _report_cell(
    sample: _Sample, name: str, reason: str, place: LogPlace, result: LogResult, *, device_error: bool
) -> None:
    subject = Subject("gpu", place.cluster, place.node, sample.gpu)
    result.rejected[f"{name}: {reason}"].append(sample.line)
    result.batch.rejects.append(Reject(subject, name, reason, sample.at))
    if device_error:
        result.batch.events.append(Event(subject, "device_error", Severity.ERROR, reason, sample.at))


def _instant(text: str, place: LogPlace, result: LogResult) -> datetime | None:
    stripped = text.strip()
    if _EPOCH.match(stripped):
        seconds = float(stripped)
        return datetime.fromtimestamp(seconds / 1000 if seconds > _EPOCH_MS else seconds, UTC)
    if not _LOCAL.match(stripped):
        return None
    try:
        at = datetime.fromisoformat(stripped.replace("/", "-"))
    except ValueError:
        return None
    if at.tzinfo is None:
        if place.zone is None:
            note = "its time stamps name no zone: taken as UTC (say --tz)"
            if note not in result.warnings:
                result.warnings.append(note)
        at = at.replace(tzinfo=place.zone or UTC)
    return at.astimezone(UTC)


def _dashed(date: str) -> str:
    return f"{date[:4]}-{date[4:6]}-{date[6:8]}" if re.fullmatch(r"\d{8}", date) else date


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)
