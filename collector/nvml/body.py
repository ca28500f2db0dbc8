"""What the driver said in one cycle, as the samples that the assembler reads."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from collector.exposition import Exposition, LineReject, Series
from collector.nvml.binding import Answer

Labels = Mapping[str, str]
_SLACK = 1024


class SeriesBook:
    """The same series object for the same name and labels, from cycle to cycle."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Series] = {}

    def get(self, name: str, labels: Labels) -> Series:
        """Return the series."""
        key = (name, *labels.items())
        series = self._known.get(key)
        if series is None:
            series = self._known[key] = Series(name, dict(labels))
        return series

    def forget_all_but(self, present: list[Series]) -> None:
        """Drop series that are gone, once they are many: those of processes never come again."""
        if len(self._known) > 2 * len(present) + _SLACK:
            there = set(present)
            self._known = {key: series for key, series in self._known.items() if series in there}


class Body:
    """Collects samples: a value is one, absent is none, invalid is NaN with its reason."""

    def __init__(self, book: SeriesBook) -> None:
        self._book = book
        self.series: list[Series] = []
        self._values: list[float] = []
        self._reasons: dict[int, str] = {}
        self._rejects: list[LineReject] = []

    def add(self, name: str, labels: Labels, answer: Answer[float] | Answer[int] | float) -> None:
        """Add one sample."""
        if not isinstance(answer, Answer):
            answer = Answer(float(answer))
        if answer.value is None and not answer.reason:
            return
        if answer.value is None:
            self._reasons[len(self.series)] = answer.reason
        self.series.append(self._book.get(name, labels))
        self._values.append(math.nan if answer.value is None else float(answer.value))

    def reject(self, reason: str, text: str) -> None:
        """Count something that has no sample of its own."""
        self._rejects.append(LineReject(0, reason, text))

    def place(self) -> tuple[int, int]:
        """Return a place to which `cut` goes back."""
        return len(self.series), len(self._rejects)

    def cut(self, place: tuple[int, int]) -> None:
        """Take back what was added since `place`: of a card that was lost half way nothing holds."""
        size, rejects = place
        del self.series[size:], self._values[size:], self._rejects[rejects:]
        self._reasons = {index: reason for index, reason in self._reasons.items() if index < size}

    def exposition(self) -> Exposition:
        """Return all of it."""
        values = np.array(self._values, dtype=np.float64)
        return Exposition(self.series, values, reasons=self._reasons, rejects=self._rejects, metadata=True)
