"""CSV of `nvidia-smi --query-gpu` and `--query-compute-apps`: any columns; units, heading, stamps may be missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice

from collector.batch import Batch
from collector.importing.cards import CardRows
from collector.importing.columns import (
    GPU_COLUMNS,
    IDENTITY_COLUMNS,
    INDEX_COLUMNS,
    KNOWN_COLUMNS,
    STAMP,
    card_name,
    column_name,
    is_device_error,
    is_heading,
    read_cell,
    split_row,
    told,
)
from collector.importing.log import SURVEYED_ROWS, TORN, LogPlace, NotImportableError, RowClock, Stamps, Tally
from collector.importing.slices import SliceRows, SliceSample
from collector.importing.text import TextFile
from collector.importing.turns import Row, find_turns, in_turn, unstamped_turns

_MIB = 2.0**20
_NO_STAMP = "expected a time stamp"
_NO_CARD = "expected the UUID or the number of a card"


@dataclass(slots=True)
class _Survey:
    """What the first rows tell.

    names: columns that there are.
    cards: columns that name the card, the best first; empty: none does.
    single: all rows are of one card.
    stamps: of the rows; columns: values of the rows, of fields.
    """

    names: set[str] = field(default_factory=set)
    cards: list[str] = field(default_factory=list)
    single: bool = True
    stamps: list[datetime] = field(default_factory=list)
    columns: dict[str, list[float]] = field(default_factory=dict)

    @property
    def stamped(self) -> bool:
        """Whether rows carry their time."""
        return STAMP in self.names


def read_query(file: TextFile, place: LogPlace, tally: Tally) -> Iterator[Batch]:
    """Read a --query-gpu log.

    Raises:
        NotImportableError: rows of several cards cannot be told apart, or no column is of use.
    """
    survey = _survey(file, place, tally)
    if not survey.names & (KNOWN_COLUMNS - {STAMP, *IDENTITY_COLUMNS, *INDEX_COLUMNS}):
        raise NotImportableError("none of its columns is one that is kept: log utilization, memory, power or clocks")
    builder = CardRows(place, tally)
    for row, at, gpu, errors in _sampled(file, place, tally, survey):
        for cell in errors:
            builder.device_error(row.line, at, gpu, cell)
        if gpu and row.cells is not None:
            builder.add(row.line, at, gpu, row.cells)
        if builder.full:
            yield builder.take()
    yield builder.take()


def read_apps(file: TextFile, place: LogPlace, tally: Tally) -> Iterator[Batch]:
    """Read a --query-compute-apps log: memory of each process.

    Raises:
        NotImportableError: no column names the cards, and nobody says that there is only one.
    """
    survey = _survey(file, place, tally)
    named = [name for name in ("gpu_uuid", "gpu_bus_id") if name in survey.names]
    if not named and place.gpus != 1:
        raise NotImportableError("no column names the cards: log with `gpu_uuid`, or say --gpus 1 if there is only one")
    builder = SliceRows(place, tally)
    stamps = Stamps(place, tally)
    clock = None if survey.stamped else RowClock(place, tally)
    for row in _rows(file, place, tally):
        if row.cells is None:
            continue
        cells = row.cells
        card = next((cells[c].strip() for c in named if told(cells.get(c, ""))), "" if named else f"{place.node}/0")
        pid = cells.get("pid", "").strip()
        at = stamps.read(cells.get(STAMP, "")) if clock is None else clock.at((card, pid))
        if at is None or not card or not pid.isdecimal():
            tally.reject("expected a time stamp, a card and a pid", row.line)
            continue
        text = cells.get("used_gpu_memory", "") or cells.get("used_memory", "")
        memory = read_cell(text, "memory_used_bytes", _MIB)
        name = cells.get("process_name", "")
        builder.add(SliceSample(row.line, at, card, {"memory_used_bytes": memory}, pid=pid, workload=name))
        if builder.full:
            yield builder.take()
    yield builder.take()


_Sampled = tuple[Row, datetime, str, Sequence[str]]


def _sampled(file: TextFile, place: LogPlace, tally: Tally, survey: _Survey) -> Iterator[_Sampled]:
    """Yield (row, instant, card, errors that stand where the card's name should)."""
    stamps = Stamps(place, tally)
    if survey.cards:
        named = _Named(survey, place, tally, stamps, None if survey.stamped else RowClock(place, tally))
        yield from filter(None, map(named.read, _rows(file, place, tally)))
        return
    if survey.stamped:
        turns = find_turns(survey.stamps, place.gpus, tally)
        for card, row in in_turn(_stamped(_rows(file, place, tally), stamps, tally), turns, tally):
            if row.at is not None:
                yield row, row.at, f"{place.node}/{card}", ()
        return
    turns = unstamped_turns(survey.columns, place.gpus, tally)
    clock = RowClock(place, tally)
    for place_in_file, row in enumerate(_rows(file, place, tally)):
        at = clock.instant(place_in_file // turns.cards)
        if row.cells is None:
            continue
        if at is None:
            tally.reject(_NO_STAMP, row.line)
        else:
            yield row, at, f"{place.node}/{place_in_file % turns.cards}", ()


@dataclass(frozen=True, slots=True)
class _Named:
    """Reads rows whose columns name the card. `clock`: where rows carry no time."""

    survey: _Survey
    place: LogPlace
    tally: Tally
    stamps: Stamps
    clock: RowClock | None

    def read(self, row: Row) -> _Sampled | None:
        single, clock = self.survey.single, self.clock
        if row.cells is None:
            if clock is not None and single:
                clock.next_cycle()  # the torn line was a cycle of its own
            return None
        cells = row.cells
        gpu = next((name for name in (_card(cells, column, self.place) for column in self.survey.cards) if name), "")
        at = self.stamps.read(cells.get(STAMP, "")) if clock is None else clock.at("" if single else gpu)
        if at is None:
            self.tally.reject(_NO_STAMP, row.line)
            return None
        errors = sorted({cells[c] for c in self.survey.cards if is_device_error(cells.get(c, ""))})
        if not gpu and not errors:
            self.tally.reject(_NO_CARD, row.line)
            return None
        return row, at, gpu, errors


def _stamped(rows: Iterator[Row], stamps: Stamps, tally: Tally) -> Iterator[Row]:
    """Read the stamps of rows; one without keeps its place."""
    for row in rows:
        if row.cells is not None:
            row.at = stamps.read(row.cells.get(STAMP, ""))
            if row.at is None:
                tally.reject(_NO_STAMP, row.line)
                row.cells = None
        yield row


def _card(cells: Mapping[str, str], column: str, place: LogPlace) -> str:
    cell = cells.get(column, "")
    return card_name(cell, "", place.node) if column in IDENTITY_COLUMNS else card_name("", cell, place.node)


def _survey(file: TextFile, place: LogPlace, tally: Tally) -> _Survey:
    """Look at the first rows; what they have wrong is counted when they are read."""
    survey = _Survey()
    silent = Tally()
    stamps = Stamps(place, silent)
    values: dict[str, set[str]] = {}
    for row in islice(_rows(file, place, silent), SURVEYED_ROWS):
        if row.cells is None:
            continue
        survey.names |= row.cells.keys()
        for name in (*IDENTITY_COLUMNS, *INDEX_COLUMNS):
            if name in row.cells:
                values.setdefault(name, set()).add(row.cells[name])
        at = stamps.read(row.cells.get(STAMP, ""))
        if at is not None:
            survey.stamps.append(at)
        for name in row.cells.keys() & GPU_COLUMNS.keys():
            cell = read_cell(row.cells[name], *GPU_COLUMNS[name])
            survey.columns.setdefault(name, []).append(cell.value)
    identity = [name for name in IDENTITY_COLUMNS if name in values][:1]
    present = [name for name in INDEX_COLUMNS if name in values]
    # A loop that asks each card alone prints index 0 on every row: the column that varies is the card's number.
    varying = [name for name in present if len(values[name]) > 1]
    survey.cards = identity + (varying or present)[:1]
    survey.single = all(len(values[name]) == 1 for name in survey.cards)
    if survey.cards and not identity:
        tally.note("cards are named by node and index: the log has no UUID")
    return survey


def _rows(file: TextFile, place: LogPlace, tally: Tally) -> Iterator[Row]:
    """Yield the rows of data; headings may repeat and change, `date` lines and torn lines are rejected."""
    names = list(place.columns) if place.columns and not _has_heading(file) else []
    for number, line in file.lines():
        if not line.strip():
            continue
        cells = split_row(line)
        if cells is None:
            tally.reject(TORN, number)
            yield Row(number, None)
        elif is_heading(cells, names):
            names = [column_name(cell) for cell in cells]
        elif not names:
            tally.reject("expected a heading above it", number)
        elif len(cells) != len(names):
            tally.reject(f"expected {len(names)} columns, got another number", number)
            if len(cells) > 1:
                yield Row(number, None)
        else:
            yield Row(number, dict(zip(names, cells, strict=True)))


def _has_heading(file: TextFile) -> bool:
    return any(is_heading(split_row(line) or ["0"]) for _, line in islice(file.lines(), 40))
