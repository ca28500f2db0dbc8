"""Whose row is it, where no column says so: cards that print their rows in turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

import numpy as np

from collector.importing.log import NotImportableError, Tally

_MOST_CARDS = 64  # of one machine
_FEWEST_CYCLES = 3  # that show how many cards there are
_CLEAR = 4.0  # so many times longer is the wait between cycles than within one
_WITHIN_SECONDS = 0.0005  # half of the least that stamps tell apart
_SAY = "log with `index` or `uuid`, or say how many cards there are with --gpus"


@dataclass(slots=True)
class Row:
    """A line of data. `cells` is None where the line is torn: it has its place among the others all the same."""

    line: int
    cells: Mapping[str, str] | None
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Turns:
    """How many cards take turns. `gap_seconds`: a longer wait begins a new cycle; None: the place alone counts."""

    cards: int
    gap_seconds: float | None = None


def find_turns(stamps: Sequence[datetime], gpus: int | None, tally: Tally) -> Turns:
    """Return how many cards print their stamped rows in turn.

    Args:
        stamps: of the first rows, in the order of the file.
        gpus: how many cards there are, as the user says; None: to be guessed.
        tally: is told what was guessed.

    Raises:
        NotImportableError: nobody says it, and the stamps leave it open.
    """
    waits = np.diff([at.timestamp() for at in stamps])
    if gpus is not None:
        matching = (gap for gap in _gaps(waits) if np.median(_lengths(waits, gap)) == gpus)
        return Turns(gpus, next(matching, None) if gpus > 1 else None)
    for gap in _gaps(waits):
        length = _common_length(waits, gap)
        if 1 < length <= _MOST_CARDS and np.count_nonzero(np.abs(waits) > gap) >= _FEWEST_CYCLES - 1:
            if all(at.microsecond == 0 for at in stamps):
                break  # several samples of one card in a second look like several cards
            tally.warn(f"no column names the cards: taken as {length} cards that print in turn (say --gpus)")
            return Turns(length, gap)
    if len(waits) and (waits.min() <= 0 or waits.min() < np.percentile(waits, 90) / _CLEAR):
        raise NotImportableError(f"several rows share a time stamp, or nearly, and no column tells cards apart: {_SAY}")
    tally.warn("the log names no card: all rows are taken for one card, index 0")
    return Turns(1)


def unstamped_turns(columns: Mapping[str, Sequence[float]], gpus: int | None, tally: Tally) -> Turns:
    """Return how many cards print rows without stamps in turn: as the user says, else one, if nothing speaks against.

    Values of one card change little from row to row. Where each is much nearer to the one N rows before, N cards may
    take turns.

    Args:
        columns: values of the first rows, by column; NaN where there is none.
        gpus: how many cards there are, as the user says.
        tally: is told what was guessed.

    Raises:
        NotImportableError: nobody says it, and the rows look like those of several cards.
    """
    if gpus is not None:
        return Turns(gpus)
    for name, values in columns.items():
        x = np.asarray(values, dtype=np.float64)
        steps = np.abs(np.diff(x))
        near = float(np.nanmean(steps)) if (~np.isnan(steps)).any() else 0.0
        for lag in range(2, min(_MOST_CARDS, len(x) // _FEWEST_CYCLES) + 1):
            far = np.abs(x[lag:] - x[:-lag])
            if near > 0 and (~np.isnan(far)).any() and float(np.nanmean(far)) * _CLEAR <= near:
                raise NotImportableError(
                    f"`{name}` comes back every {lag} rows, as if {lag} cards printed in turn, and no column tells them"
                    f" apart: {_SAY} ({lag}, or 1)"
                )
    tally.warn("the log names no card: all rows are taken for one card, index 0")
    return Turns(1)


def in_turn(rows: Iterator[Row], turns: Turns, tally: Tally) -> Iterator[tuple[int, Row]]:
    """Yield (number of the card, row) for the rows that are not torn.

    Where waits tell the cycles apart, one that has not a row of each card is rejected: whose the others are, is open.
    """
    if turns.gap_seconds is None:
        for place, row in enumerate(rows):
            if row.cells is not None:
                yield place % turns.cards, row
        return
    for cycle in _cycles(rows, turns.gap_seconds):
        if len(cycle) != turns.cards:
            for row in cycle:
                if row.cells is not None:
                    tally.reject(
                        f"expected {turns.cards} rows in turn, got another number: whose they are is open", row.line
                    )
            continue
        yield from ((card, row) for card, row in enumerate(cycle) if row.cells is not None)


def _cycles(rows: Iterator[Row], gap_seconds: float) -> Iterator[list[Row]]:
    cycle: list[Row] = []
    last: datetime | None = None
    for row in rows:
        if row.at is not None:
            if last is not None and abs((row.at - last).total_seconds()) > gap_seconds:
                yield cycle
                cycle = []
            last = row.at
        cycle.append(row)
    if cycle:
        yield cycle


def _gaps(waits: np.ndarray) -> Iterator[float]:
    """Yield waits that lie clearly between shorter and longer ones, the shortest first."""
    ordered = np.unique(np.maximum(np.abs(waits), _WITHIN_SECONDS))
    for shorter, longer in pairwise(ordered):
        if longer >= _CLEAR * shorter:
            yield float((shorter * longer) ** 0.5)


def _lengths(waits: np.ndarray, gap: float) -> np.ndarray:
    """Return how many rows each cycle has."""
    ends = np.flatnonzero(np.abs(waits) > gap) + 1
    return np.diff([0, *ends, len(waits) + 1])


def _common_length(waits: np.ndarray, gap: float) -> int:
    """Return how many rows each cycle has; 0 where they differ. The first and the last may have been cut."""
    lengths = _lengths(waits, gap)
    inner = lengths[1:-1] if len(lengths) > 2 else lengths
    if not len(inner) or (inner != inner[0]).any() or max(lengths[0], lengths[-1]) > inner[0]:
        return 0
    return int(inner[0])
