"""Counters become increments; the last raw values survive a restart of the collector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Growth:
    """Growth of some counters in one cycle, parallel to the ids that were asked for.

    increment: in the counter's own unit; NaN at the first sight, where nothing came, and where the counter fell.
    seconds: since the value before; NaN at the first sight.
    fell: the counter is lower than before: its source was reset, and a new segment begins.
    """

    increment: Floats
    seconds: Floats
    fell: Bools


class CounterBook:
    """Last raw value and its time, one a counter. Counters are named by text and used by number."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._raw: Floats = np.full(64, np.nan)
        self._at_ms: Floats = np.full(64, np.nan)
        self._imported: dict[str, tuple[float, float]] = {}
        self._names_json: tuple[int, bytes] = (-1, b"")

    def number(self, name: str) -> int:
        """Return the number of the counter `name`, a new one if it was never asked for."""
        number = self._names.setdefault(name, len(self._names))
        if number >= len(self._raw):
            self._raw = np.concatenate([self._raw, np.full(len(self._raw), np.nan)])
            self._at_ms = np.concatenate([self._at_ms, np.full(len(self._at_ms), np.nan)])
        if name in self._imported:
            self._raw[number], self._at_ms[number] = self._imported.pop(name)
        return number

    def advance(self, numbers: Ints, raw: Floats, now_ms: int) -> Growth:
        """Take the raw values of one cycle (NaN: nothing came) and return the growth of each counter.

        What a second cycle on the same instant brings is counted by the next one on a later instant.
        """
        before, at_ms = self._raw[numbers], self._at_ms[numbers]
        came = ~np.isnan(raw)
        seconds = (now_ms - at_ms) / 1000.0
        increment = raw - before
        fell = increment < 0
        increment[fell | ~(seconds > 0)] = np.nan
        came &= (seconds != 0) | fell
        self._raw[numbers[came]] = raw[came]
        self._at_ms[numbers[came]] = now_ms
        return Growth(increment, seconds, fell)

    def forget(self, numbers: Ints) -> None:
        """Begin counters anew: their next value is a first sight."""
        self._raw[numbers] = self._at_ms[numbers] = np.nan

    def compact(self, oldest_ms: float) -> None:
        """Give out all numbers anew, without the counters that last came before `oldest_ms`."""
        kept = {name: pair for name, pair in self.to_json().items() if pair[1] >= oldest_ms}
        self._names, self._imported, self._names_json = {}, {}, (-1, b"")
        self._raw, self._at_ms = np.full(64, np.nan), np.full(64, np.nan)
        self.load_json(kept)

    def to_json(self) -> dict[str, list[float]]:
        """Return name -> [raw value, milliseconds since the epoch], for the next start."""
        values = {
            name: [float(self._raw[number]), float(self._at_ms[number])]
            for name, number in self._names.items()
            if not np.isnan(self._raw[number])
        }
        return values | {name: list(pair) for name, pair in self._imported.items()}

    def load_json(self, values: Mapping[str, list[float]]) -> None:
        """Go on from what `to_json` returned."""
        for name, (raw, at_ms) in values.items():
            self._imported[name] = (float(raw), float(at_ms))
            if name in self._names:
                self.number(name)

    def columns(self) -> dict[str, Any]:
        """Return what `to_json` does as columns that cost little to write again and again; NaN where nothing came."""
        count = len(self._names)
        if self._names_json[0] != count:
            self._names_json = count, orjson.dumps(list(self._names))
        return {
            "names": orjson.Fragment(self._names_json[1]),
            "raw": self._raw[:count],
            "at_ms": self._at_ms[:count],
            "waiting": {name: list(pair) for name, pair in self._imported.items()},
        }

    def load_columns(self, columns: Mapping[str, Any]) -> None:
        """Go on from what was written of `columns`."""
        pairs = zip(columns["names"], columns["raw"], columns["at_ms"], strict=True)
        self.load_json({name: [raw, at_ms] for name, raw, at_ms in pairs if raw is not None})
        self.load_json(columns["waiting"])
