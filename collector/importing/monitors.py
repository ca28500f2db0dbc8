"""`nvidia-smi dmon` and `pmon`: columns by name from the `#` lines, which may come again and change on the way."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time, timedelta

from collector.batch import Batch
from collector.importing.cards import CardRows
from collector.importing.columns import read_cell
from collector.importing.log import TORN, LogPlace, RowClock, Stamps, Tally
from collector.importing.slices import SliceRows, SliceSample
from collector.importing.text import LONGEST_LINE, TextFile

_BREAK = re.compile(r"[,\s]+")
_NO_HEADING = "expected a heading with the names of the columns above it"
_NO_CARD = "expected the number of a card"
_NO_STAMP = "expected a date and a time"
_MIB = 2.0**20
# Column of pmon -> (field of `slice` rows, factor); its `mem` is of the memory interface, which slices do not have.
_PROCESS_FIELDS = {
    "sm": ("busy_ratio", 0.01),
    "enc": ("encoder_ratio", 0.01),
    "dec": ("decoder_ratio", 0.01),
    "fb": ("memory_used_bytes", _MIB),
}
_DAY = timedelta(days=1)
_HALF_A_DAY = timedelta(hours=12)


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    cells: Mapping[str, str]


def read_dmon(file: TextFile, place: LogPlace, tally: Tally) -> Iterator[Batch]:
    """Read a dmon log, with or without `-o D`, `T` or `DT`."""
    builder = CardRows(place, tally)
    times = _Times(place, tally)
    for line in _lines(file, tally, processes=False):
        index = line.cells["gpu"]
        at = times.at(line.cells, index)
        if at is None:
            tally.reject(_NO_STAMP, line.number)
        else:
            builder.add(line.number, at, f"{place.node}/{index}", line.cells)
        if builder.full:
            yield builder.take()
    _warn_of_numbers(tally)
    yield builder.take()


def read_pmon(file: TextFile, place: LogPlace, tally: Tally) -> Iterator[Batch]:
    """Read a pmon log, with or without `-o D`, `T` or `DT`: use and memory of each process.

    A line whose process is `-` says that the card has none at that instant.
    """
    builder = SliceRows(place, tally)
    times = _Times(place, tally)
    for line in _lines(file, tally, processes=True):
        cells = line.cells
        pid, card = cells["pid"], cells["gpu"]
        at = times.at(cells, (card, pid))
        if at is None:
            tally.reject(_NO_STAMP, line.number)
        elif pid == "-":
            builder.see(f"{place.node}/{card}", at)
            tally.accepted += 1
        elif not pid.isdecimal() or pid == "0":
            tally.reject("expected the number of a process", line.number)
        else:
            values = {
                field: read_cell(cells[column], field, scale)
                for column, (field, scale) in _PROCESS_FIELDS.items()
                if column in cells
            }
            facts = {"kind": "mps"} if "M" in cells.get("type", "").upper().split("+") else {}
            name = cells.get("command", "")
            builder.add(
                SliceSample(line.number, at, f"{place.node}/{card}", values, pid=pid, workload=name, facts=facts)
            )
        if builder.full:
            yield builder.take()
    _warn_of_numbers(tally)
    yield builder.take()


def _warn_of_numbers(tally: Tally) -> None:
    tally.note("cards are named by node and index: the log has no UUID")


def _lines(file: TextFile, tally: Tally, *, processes: bool) -> Iterator[_Line]:
    names: list[str] = []
    for number, line in file.lines():
        text = line.strip()
        if not text:
            continue
        if "\0" in text or len(text) > LONGEST_LINE:
            tally.reject(TORN, number)
            continue
        if text.startswith("#"):
            words = [word.lower() for word in _BREAK.split(text.lstrip("# ")) if word]
            names = words if "gpu" in words else names
            continue
        # The last column of pmon is a command, which may hold blanks.
        words = _BREAK.split(text, maxsplit=len(names) - 1) if processes and names else _BREAK.split(text)
        if not names or ("pid" in names) is not processes:
            tally.reject(_NO_HEADING, number)
        elif len(words) != len(names):
            tally.reject(f"expected {len(names)} columns, got another number", number)
        elif not words[names.index("gpu")].isdecimal():
            tally.reject(_NO_CARD, number)
        else:
            yield _Line(number, dict(zip(names, words, strict=True)))


class _Times:
    """Instants of lines that carry a date and a time, only one of them, or none."""

    def __init__(self, place: LogPlace, tally: Tally) -> None:
        self._place, self._tally = place, tally
        self._stamps = Stamps(place, tally)
        self._clock: RowClock | None = None
        self._last: datetime | None = None
        self._dated = False

    def at(self, cells: Mapping[str, str], subject: object) -> datetime | None:
        date, hour = cells.get("date"), cells.get("time")
        if date is not None and hour is not None:
            self._dated = True
            return self._stamps.read(f"{_dashed(date)} {hour}")
        if self._dated:
            return None  # others are counted where none is dated: the two do not mix
        if hour is not None:
            return self._of_time(hour)
        return self._counted(date, subject)

    def _of_time(self, text: str) -> datetime | None:
        """Put a time of day on the day of the log's start, and on the next one each time that it goes back."""
        try:
            of_day = time.fromisoformat(text)
        except ValueError:
            return None
        zone = self._place.zone or UTC
        if self._last is None:
            start = self._place.start
            if start is None:
                start = self._place.file_time
                day = start.astimezone(zone).date()
                self._tally.warn(
                    f"its rows carry no date: the first is taken as of {day}, the file's own (say --start)"
                )
            at = datetime.combine(start.astimezone(zone).date(), of_day)
        else:
            at = datetime.combine(self._last.date(), of_day)
            if at < self._last - _HALF_A_DAY:
                at += _DAY
        self._last = at
        return self._stamps.aware(at)

    def _counted(self, date: str | None, subject: object) -> datetime | None:
        """Count cycles; where a date is told, the counted instant must be of that day."""
        zone = self._place.zone or UTC
        if self._clock is None:
            place = self._place
            if date is not None and place.start is None:
                midnight = self._stamps.read(f"{_dashed(date)} 00:00:00")
                if midnight is None:
                    return None
                self._tally.warn("its rows carry no time of day: the first is taken as of midnight (say --start)")
                place = replace(place, start=midnight)
            self._clock = RowClock(place, self._tally)
        at = self._clock.at(subject)
        if at is not None and date is not None and at.astimezone(zone).date().isoformat() != _dashed(date):
            return None
        return at


def _dashed(date: str) -> str:
    return f"{date[:4]}-{date[4:6]}-{date[6:8]}" if re.fullmatch(r"\d{8}", date) else date
