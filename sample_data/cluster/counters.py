"""Growth of counters between readings, by the rules that a collector follows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


class Increments:
    """Remembers the last value of each counter of one array; NaN is a sample that is not there."""

    def __init__(self) -> None:
        self._last: dict[str, FloatArray] = {}
        self._seen: dict[str, FloatArray] = {}

    def grow(self, name: str, values: FloatArray, minute: int, *, max_gap: int = 2) -> tuple[FloatArray, FloatArray]:
        """Return the growth since the last sample and the minutes it took; NaN first, after a reset or a long gap."""
        if name not in self._last:
            self._last[name] = np.full_like(values, np.nan)
            self._seen[name] = np.full(values.shape, -1.0)
        last, seen = self._last[name], self._seen[name]
        growth = values - last
        took = minute - seen
        growth = np.where((growth >= 0) & (took <= max_gap), growth, np.nan)
        present = np.isfinite(values)
        self._last[name] = np.where(present, values, last)
        self._seen[name] = np.where(present, float(minute), seen)
        return growth, took

    def forget(self, index: list[int]) -> None:
        """Forget some elements: another thing stands in their place now."""
        for name in self._last:
            self._last[name][index] = np.nan
