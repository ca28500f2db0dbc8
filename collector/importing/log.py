"""What all readers of logs share: where a log comes from, what became of its lines, and when its rows were."""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, tzinfo

from collector.clock import EARLIEST, LATEST

CHUNK_ROWS = 20_000  # of one batch: what a reader holds at a time
SURVEYED_ROWS = 20_000  # rows that tell what the columns do not
_LOCAL = re.compile(r"^\d{4}[-/]\d{2}[-/]\d{2}[ T]\d{2}:\d{2}:\d{2}")
_EPOCH = re.compile(r"^\d{9,10}(\.\d+)?$|^\d{13}$")
_EPOCH_MS = 1e11
_STEP_SECONDS = 1.0
TORN = "expected a line of text, got NUL characters or a cell without end"


class NotImportableError(Exception):
    """A log that cannot be imported as it is; the text says why and what to do."""


@dataclass(slots=True)
class Tally:
    """What became of a log's lines.

    Attributes:
        accepted: lines that were used.
        rejected: reason -> (how many lines or cells, the first line).
        warnings: what its user should know.
        guesses: those of them that say what was guessed.
    """

    accepted: int = 0
    rejected: dict[str, tuple[int, int]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    guesses: list[str] = field(default_factory=list)

    def reject(self, reason: str, line: int) -> None:
        """Count a line, or a cell of it, that cannot be used."""
        count, first = self.rejected.get(reason, (0, line))
        self.rejected[reason] = (count + 1, first)

    def warn(self, text: str) -> None:
        """Note, once, something that was guessed."""
        if text not in self.guesses:
            self.guesses.append(text)
            self.note(text)

    def note(self, text: str) -> None:
        """Note, once, something that a user should know and that nobody guessed."""
        if text not in self.warnings:
            self.warnings.append(text)


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Where a log comes from, and what its user says of it.

    Attributes:
        cluster: cluster of the rows.
        node: node of the rows.
        zone: of stamps that carry none; None: nobody said.
        start: instant of the first row of a log without stamps; None: `file_time`, with a warning.
        step_seconds: from row to row of a log without stamps; None: 1 s, with a warning.
        columns: names of the columns of a log without a heading.
        gpus: how many cards print their rows in turn, where no column tells them apart; None: to be guessed.
        file_time: when the file was last written.
    """

    cluster: str
    node: str
    zone: tzinfo | None = None
    start: datetime | None = None
    step_seconds: float | None = None
    columns: tuple[str, ...] = ()
    gpus: int | None = None
    file_time: datetime = EARLIEST


class Stamps:
    """Reads time stamps; says once what it had to guess."""

    def __init__(self, place: LogPlace, tally: Tally) -> None:
        self._zone = place.zone
        self._tally = tally
        self._last: tuple[str, datetime | None] = ("", None)
        self._twice: date | None = None  # a day of which it was said that the clocks were set back

    def read(self, text: str) -> datetime | None:
        """Return the instant of a stamp; None where it is none, or one out of reason."""
        if text != self._last[0]:
            self._last = (text, self._read(text.strip()))
        return self._last[1]

    def aware(self, at: datetime) -> datetime | None:
        """Return a local time in UTC; None where it is out of reason."""
        if at.tzinfo is None:
            if self._zone is None:
                self._tally.warn("its time stamps name no zone: taken as UTC (say --tz)")
            at = at.replace(tzinfo=self._zone or UTC)
            if not self._ever_was(at):
                return None
        # Compared first: a year of 1 or 9999 need not exist in UTC.
        return at.astimezone(UTC) if EARLIEST <= at < LATEST else None

    def _ever_was(self, at: datetime) -> bool:
        """Say whether a local time ever was; note one that was twice, for it is taken as the first of them."""
        first, second = at.replace(fold=0).utcoffset(), at.replace(fold=1).utcoffset()
        if first == second or first is None or second is None:
            return True
        if first < second:  # the clocks were set forward over it
            return False
        if at.date() != self._twice:
            self._twice = at.date()
            self._tally.warn(
                f"the clocks were set back on {at:%Y-%m-%d}: time stamps from {at:%H:%M:%S} on were there twice, and "
                "each is taken as the first time (log in UTC)"
            )
        return True

    def _read(self, text: str) -> datetime | None:
        if _EPOCH.match(text):
            seconds = float(text)
            at = datetime.fromtimestamp(seconds / 1000 if seconds > _EPOCH_MS else seconds, UTC)
            return at if EARLIEST <= at < LATEST else None
        if not _LOCAL.match(text):
            return None
        try:
            return self.aware(datetime.fromisoformat(text.replace("/", "-")))
        except ValueError:
            return None


class RowClock:
    """Times of rows that carry none: start + cycle x step. A cycle ends where a subject comes again."""

    def __init__(self, place: LogPlace, tally: Tally) -> None:
        start = place.start
        if start is None:
            start = place.file_time
            tally.warn(f"its rows carry no time: the first is taken as {_text(start)}, the file's own (say --start)")
        if place.step_seconds is None:
            tally.warn(f"its rows carry no time: taken as {_STEP_SECONDS:g} s apart (say --interval)")
        self._start = start
        self._step = timedelta(seconds=_STEP_SECONDS if place.step_seconds is None else place.step_seconds)
        self._cycle = 0
        self._seen: set[Hashable] = set()

    def at(self, subject: Hashable) -> datetime | None:
        """Return the instant of a subject's next row; None where it is out of reason."""
        if subject in self._seen:
            self.next_cycle()
        self._seen.add(subject)
        return self.instant(self._cycle)

    def next_cycle(self) -> None:
        """Begin a new cycle."""
        self._cycle += 1
        self._seen.clear()

    def instant(self, cycle: int) -> datetime | None:
        """Return the instant of a cycle; None where it is out of reason."""
        try:
            at = self._start + cycle * self._step
        except OverflowError:
            return None
        return at if EARLIEST <= at < LATEST else None


def _text(at: datetime) -> str:
    return at.isoformat(timespec="seconds")
