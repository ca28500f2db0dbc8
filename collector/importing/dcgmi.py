"""`dcgmi dmon`: entities of two words, headings that come again, no times."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from collector.batch import Batch, Event, Subject
from collector.health import xid_severity
from collector.importing.cards import CardRows
from collector.importing.columns import Cell, read_cell
from collector.importing.log import SURVEYED_ROWS, TORN, LogPlace, RowClock, Tally
from collector.importing.slices import SliceRows, SliceSample, both
from collector.importing.text import LONGEST_LINE, TextFile

_HEADING = re.compile(r"^#\s*Entity\b", re.IGNORECASE)
_UNITS = re.compile(r"^ID\b", re.IGNORECASE)
_ROW = re.compile(r"^(GPU-CI|GPU-I|GPU)\s+(\d+)\s+(\S.*)$")
_OTHER = re.compile(r"^([A-Za-z][A-Za-z-]*)\s+\d+\s")
_ENDED = re.compile(r"^dmon was stopped", re.IGNORECASE)
_MIB = 2.0**20
_MOST_XID = 1e6
_INSTANCE_FIELDS = {"fbusd": ("memory_used_bytes", _MIB), "fbttl": ("memory_quota_bytes", _MIB)}


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    entity: str
    id: str
    cells: Mapping[str, str]


def read_dcgmi(file: TextFile, place: LogPlace, tally: Tally) -> Iterator[Batch]:
    """Read a `dcgmi dmon` log: cards, their XIDs, and the memory of MIG instances.

    The number of an instance is dcgm's own, not the id of the GPU instance, and neither its profile nor its card is
    told: its slice is named `dcgm<number>`, its identity is assumed, its activity (of an unknown share) is left out.
    """
    first = list(islice(_lines(file, Tally()), SURVEYED_ROWS))
    shown = {line.id for line in first if line.entity == "GPU"}
    cut = any(line.entity == "GPU-I" for line in first)
    only = f"{place.node}/{next(iter(shown))}" if len(shown) == 1 else ""
    cards, slices = CardRows(place, tally), SliceRows(place, tally)
    clock = RowClock(place, tally)
    xids: dict[str, float] = {}
    events: list[Event] = []
    tally.note("cards are named by node and index: the log has no UUID")
    for line in _lines(file, tally):
        at = clock.at((line.entity, line.id))
        if at is None:
            tally.reject("expected a time after 2000 and before 2100: say another --start or --interval", line.number)
        elif line.entity == "GPU":
            card = f"{place.node}/{line.id}"
            cards.add(line.number, at, card, line.cells, held=not cut)
            events += _xid(line, at, Subject("gpu", place.cluster, place.node, card), xids)
        elif line.entity == "GPU-I" and only:
            _add_instance(slices, line, at, only, tally)
        else:
            tally.reject(f"{line.entity}: whose it is, is not told", line.number)
        if cards.full or slices.full:
            yield both(cards.take(), slices.take(), events)
            events = []
    yield both(cards.take(), slices.take(), events)


def _add_instance(slices: SliceRows, line: _Line, at: datetime, card: str, tally: Tally) -> None:
    cells: dict[str, Cell] = {
        field: read_cell(line.cells[column], "memory_used_bytes", scale)
        for column, (field, scale) in _INSTANCE_FIELDS.items()
        if column in line.cells
    }
    if any(name in line.cells for name in ("gract", "smact", "smocc", "tenso", "drama")):
        tally.note("activity of MIG instances is left out: dcgmi does not tell which share of the card they are")
    facts = {"kind": "mig", "identity": "assumed"}
    slices.add(SliceSample(line.number, at, card, cells, slice=f"dcgm{line.id}", facts=facts))


def _xid(line: _Line, at: datetime, subject: Subject, last: dict[str, float]) -> Iterator[Event]:
    """Yield an event where the code of the last error changes; it stays until the next error."""
    cell = read_cell(line.cells.get("xider", ""), "power_watts", 1.0, total=True)
    if not 0 <= cell.value < _MOST_XID:
        return
    before = last.get(line.id)
    last[line.id] = cell.value
    if cell.value not in (0.0, before):
        code = int(cell.value)
        yield Event(subject, "xid", xid_severity(code), f"XID {code}: see the driver log", at)


def _lines(file: TextFile, tally: Tally) -> Iterator[_Line]:
    names: list[str] = []
    for number, raw in file.lines():
        line = raw.strip()
        if not line or _UNITS.match(line) or _ENDED.match(line):
            continue
        if "\0" in line or len(line) > LONGEST_LINE:
            tally.reject(TORN, number)
        elif _HEADING.match(line):
            names = [word.lower() for word in line.lstrip("# ").split()[1:]]
        elif match := _ROW.match(line):
            cells = match[3].split()
            if len(cells) != len(names):
                tally.reject(f"expected {len(names)} columns, got another number", number)
            else:
                yield _Line(number, match[1], match[2], dict(zip(names, cells, strict=True)))
        elif match := _OTHER.match(line):
            tally.reject(f"{match[1]}: such entities are not kept", number)
        else:
            tally.reject("expected an entity such as `GPU 0`", number)
