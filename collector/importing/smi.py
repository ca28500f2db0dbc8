"""nvidia-smi logs: --query-gpu and --query-compute-apps CSV, and dmon with date and time."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from itertools import pairwise
from statistics import median

import numpy as np

from collector.batch import Batch, Event, Fact, Reject, Severity, Subject, make_rows
from collector.clock import EARLIEST, LATEST, to_ms
from collector.importing.columns import (
    FACT_COLUMNS,
    GPU_COLUMNS,
    column_name,
    fact_text,
    is_device_error,
    read_cell,
    split_row,
    told,
)
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
    """Read a dmon log with `-o DT`: columns by name from the `#` lines, which may change on the way."""
    result = LogResult(Batch())
    names: list[str] = []
    samples: list[_Sample] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.replace("#", " ").split()
        if line.lstrip().startswith("#"):
            names = [w.lower() for w in words] if "gpu" in (w.lower() for w in words) else names
        elif words:
            read = _dmon_sample(number, names, words, place, result)
            if isinstance(read, str):
                result.rejected[read].append(number)
            else:
                samples.append(read)
    _build_cards(samples, place, result)
    return result


def _dmon_sample(number: int, names: list[str], words: list[str], place: LogPlace, result: LogResult) -> _Sample | str:
    """Return the sample of a line, or the reason why there is none."""
    if "pid" in names or not {"date", "time", "gpu"} <= set(names):
        return "expected a heading with Date, Time and gpu above it (dmon -o DT)"
    if len(words) != len(names):
        return f"expected {len(names)} columns, got another number"
    cells = dict(zip(names, words, strict=True))
    at = _instant(f"{_dashed(cells.pop('date'))} {cells.pop('time')}", place, result)
    if at is None:
        return "expected a date and a time"
    index = cells.pop("gpu")
    return _Sample(number, at, f"{place.node}/{index}", cells) if index.isdecimal() else "expected the number of a card"


@dataclass(frozen=True, slots=True)
class _Process:
    """One line of a --query-compute-apps log."""

    at: datetime
    gpu: str
    pid: str
    name: str
    memory_bytes: float


def read_apps(text: str, place: LogPlace) -> LogResult:
    """Read a --query-compute-apps log: memory of each process, as slices of unknown tenants.

    A slice is `<host>/<pid>.<start>`; the log does not tell the start, so that the first time that it shows the process
    stands for it, in seconds since the epoch.
    """
    result = LogResult(Batch())
    rows: list[_Process] = []
    invalid: list[tuple[_Process, str, bool]] = []
    for number, cells in _rows(text, result):
        at = _instant(cells.get("timestamp", ""), place, result)
        card = next((cells[c] for c in ("gpu_uuid", "gpu_bus_id") if told(cells.get(c, ""))), "")
        pid = cells.get("pid", "")
        if at is None or not card or not pid.isdecimal():
            result.rejected["expected a time stamp, a card and a pid"].append(number)
            continue
        name = cells.get("process_name", "")
        name = name.replace("\\", "/").rsplit("/", 1)[-1] if told(name) else ""
        memory = read_cell(cells.get("used_gpu_memory", "") or cells.get("used_memory", ""), "memory_used_bytes", _MIB)
        rows.append(_Process(at, card, pid, name or UNKNOWN, memory.value))
        result.accepted += 1
        if memory.reason:
            result.rejected[f"memory_used_bytes: {memory.reason}"].append(number)
            invalid.append((rows[-1], memory.reason, memory.device_error))
    starts: dict[tuple[str, str], datetime] = {}
    for row in rows:
        starts[row.pid, row.name] = min(row.at, starts.get((row.pid, row.name), row.at))

    def slice_of(row: _Process) -> str:
        return f"{place.node}/{row.pid}.{int(starts[row.pid, row.name].timestamp())}"

    for row, reason, device_error in invalid:
        subject = Subject("slice", place.cluster, place.node, row.gpu, slice_of(row))
        result.batch.rejects.append(Reject(subject, "memory_used_bytes", reason, row.at))
        if device_error:
            _report_device(Subject("gpu", place.cluster, place.node, row.gpu), reason, row.at, result)
    if rows:
        tags = {
            "cluster": [place.cluster] * len(rows),
            "node": [place.node] * len(rows),
            "gpu": [r.gpu for r in rows],
            "slice": [slice_of(r) for r in rows],
            "tenant": [UNKNOWN] * len(rows),
            "workload": [r.name for r in rows],
        }
        values = {"memory_used_bytes": np.array([r.memory_bytes for r in rows])}
        result.batch.rows["slice"] = make_rows("slice", [to_ms(r.at) for r in rows], tags, values)
    return result


def _rows(text: str, result: LogResult) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line, column -> cell); headers may repeat, `date` lines and torn lines are rejected."""
    names: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        cells = split_row(line)
        if cells is None:
            result.rejected["expected a line of text, got NUL characters or a cell without end"].append(number)
            continue
        headings = [column_name(cell) for cell in cells]
        if not names or headings == names:
            names = names or headings
        elif len(cells) != len(names):
            result.rejected[f"expected {len(names)} columns, got another number"].append(number)
        else:
            yield number, dict(zip(names, cells, strict=True))


def _samples(text: str, place: LogPlace, result: LogResult) -> list[_Sample]:
    rows = list(_rows(text, result))
    columns = _card_columns([cells for _, cells in rows], result)
    samples: list[_Sample] = []
    for number, cells in rows:
        at = _instant(cells.get("timestamp", ""), place, result)
        if at is None:
            result.rejected["expected a time stamp"].append(number)
            continue
        gpu = _card(cells, columns, place.node)
        errors = {cells[name] for name in columns if is_device_error(cells[name])}
        for cell in sorted(errors):
            subject = Subject("gpu" if gpu else "node", place.cluster, place.node, gpu)
            result.rejected[f"identity: the device answered {cell!r}"].append(number)
            _report_device(subject, f"the device answered {cell!r}", at, result)
        if gpu:
            samples.append(_Sample(number, at, gpu, cells))
        elif not errors:
            result.rejected["expected the UUID or the number of a card"].append(number)
    return samples


def _card(cells: dict[str, str], columns: list[str], node: str) -> str:
    """Name the card of a row: UUID, else index, else (no column names cards) the only card; empty: it tells none."""
    for name in columns:
        cell = cells[name]
        if name in _IDENTITY and told(cell):
            return cell
        if name in _INDEX and cell.isdecimal():
            return f"{node}/{cell}"
    return "" if columns else f"{node}/0"


def _card_columns(rows: list[dict[str, str]], result: LogResult) -> list[str]:
    """Return the columns that name the card, the better first: one with its UUID, one with its number."""
    columns = rows[0].keys() if rows else ()
    identity = [name for name in _IDENTITY if name in columns][:1]
    present = [name for name in _INDEX if name in columns]
    # A loop that asks each card alone prints index 0 on every row: the column that varies is the card's number.
    varying = [name for name in present if len({row[name] for row in rows}) > 1]
    found = identity + (varying or present)[:1]
    if not identity and found:
        result.warnings.append("cards are named by node and index: the log has no UUID")
    if not found:
        stamps = [row.get("timestamp", "") for row in rows]
        if len(set(stamps)) < len(stamps):
            raise NotImportableError(
                "several rows share a time stamp and no column tells the cards apart: log with `index` or `uuid`"
            )
        result.warnings.append("the log names no card: all rows are taken for one card, index 0")
    return found


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
    times = [to_ms(s.at) for s in samples]
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
    """Say that somebody unknown holds the card, save where its memory or its activity shows that nobody does.

    Where neither is told, nobody knows whether the card is held: the row stands and is of unknown holder and activity.
    The card's memory stays on the card's own row.
    """
    absent = np.full(len(samples), np.nan)
    memory, busy = values.get("memory_used_bytes", absent), values.get("busy_ratio", absent)
    held = np.flatnonzero((memory > _HELD_BYTES) | (busy > 0) | (np.isnan(memory) & np.isnan(busy)))
    if not len(held):
        return
    slice_tags = {name: [column[i] for i in held] for name, column in tags.items()}
    slice_tags |= {"slice": ["whole"] * len(held), "tenant": [UNKNOWN] * len(held), "workload": [UNKNOWN] * len(held)}
    result.batch.rows["slice"] = make_rows("slice", [times[i] for i in held], slice_tags, {})


def _add_facts(samples: list[_Sample], place: LogPlace, result: LogResult) -> None:
    by_card: dict[str, list[_Sample]] = defaultdict(list)
    for sample in sorted(samples, key=lambda s: s.at):
        by_card[sample.gpu].append(sample)
    for gpu, rows in sorted(by_card.items()):
        subject = Subject("gpu", place.cluster, place.node, gpu)
        first = rows[0]
        result.batch.facts += _hardware_facts(subject, rows)
        if "/" in gpu:
            result.batch.facts.append(Fact(subject, "identity", "assumed", first.at, "estimated"))
        held = Subject("slice", place.cluster, place.node, gpu, "whole")
        result.batch.facts.append(Fact(held, "kind", "whole", first.at, "estimated"))
        steps = [(b.at - a.at).total_seconds() for a, b in pairwise(rows) if b.at > a.at]
        if steps:
            # A fact of this card: rows of a collector keep the cycle that the cluster's own fact tells.
            step = f"{max(round(median(steps), 3), 0.001):g}"
            result.batch.facts.append(Fact(subject, "interval_seconds", step, first.at, "estimated"))


def _hardware_facts(subject: Subject, rows: list[_Sample]) -> Iterator[Fact]:
    """Yield what a row tells of a card and the rows before did not; cells that tell nothing change nothing."""
    known: dict[str, str] = {}
    for row in rows:
        for column, (name, scale) in FACT_COLUMNS.items():
            text = fact_text(row.cells.get(column, ""), scale)
            if text and known.get(name) != text:
                known[name] = text
                yield Fact(subject, name, text, row.at)


def _report_cell(
    sample: _Sample, name: str, reason: str, place: LogPlace, result: LogResult, *, device_error: bool
) -> None:
    subject = Subject("gpu", place.cluster, place.node, sample.gpu)
    result.rejected[f"{name}: {reason}"].append(sample.line)
    result.batch.rejects.append(Reject(subject, name, reason, sample.at))
    if device_error:
        _report_device(subject, reason, sample.at, result)


def _report_device(subject: Subject, reason: str, at: datetime, result: LogResult) -> None:
    result.batch.events.append(Event(subject, "device_error", Severity.ERROR, reason, at))


def _instant(text: str, place: LogPlace, result: LogResult) -> datetime | None:
    stripped = text.strip()
    if _EPOCH.match(stripped):
        seconds = float(stripped)
        at = datetime.fromtimestamp(seconds / 1000 if seconds > _EPOCH_MS else seconds, UTC)
        return at if EARLIEST <= at < LATEST else None
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
    # Compared first: a year of 1 or 9999 need not exist in UTC.
    return at.astimezone(UTC) if EARLIEST <= at < LATEST else None


def _dashed(date: str) -> str:
    return f"{date[:4]}-{date[4:6]}-{date[6:8]}" if re.fullmatch(r"\d{8}", date) else date
