"""What a page looks at: the range that ends at the newest row, how much of it is there, how it is bucketed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from analyzer.facts import says_simulated
from collector.protocols import StoreReader
from collector.schema import MEASUREMENTS
from collector.window import Window

RANGES = {
    "1 h": timedelta(hours=1),
    "6 h": timedelta(hours=6),
    "24 h": timedelta(hours=24),
    "2 d": timedelta(days=2),
    "7 d": timedelta(days=7),
}
_STEPS = tuple(timedelta(minutes=m) for m in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440))


@dataclass(frozen=True, slots=True)
class Look:
    """A range of rows.

    Attributes:
        window: ends with the cycle of the newest row, begins at most `length` earlier, not before the oldest row.
        interval_seconds: length of a cycle.
        simulated: the rows come from a simulation.
        coverage: share of the cards' expected samples that are there, 0..1; NaN without any card.
        cards: cards with a row in the window.
    """

    window: Window
    interval_seconds: float
    simulated: bool
    coverage: float
    cards: int

    @property
    def newest(self) -> datetime:
        """Start of the newest cycle."""
        return self.window.end - timedelta(seconds=self.interval_seconds)


def look(store: StoreReader, length: timedelta, interval_seconds: float) -> Look | None:
    """Return the last `length` of what the store holds, or None where it holds nothing."""
    spans = [span for name in MEASUREMENTS if (span := store.span(name)) is not None]
    if not spans:
        return None
    newest = max(span.end for span in spans) - timedelta(milliseconds=1)
    end = newest + timedelta(seconds=interval_seconds)
    window = Window(max(end - length, min(span.start for span in spans)), end)
    counts = store.read(
        "gpu",
        window,
        fields=["busy_ratio", "sm_active_ratio", "power_watts"],
        aggregate="count",
        by=["cluster", "node", "gpu"],
    )
    seen = counts[["busy_ratio", "sm_active_ratio", "power_watts"]].max(axis=1)
    expected = len(counts) * max(round(window.seconds / interval_seconds), 1)
    return Look(
        window=window,
        interval_seconds=interval_seconds,
        simulated=says_simulated(store.facts(window, names=["simulated"])),
        coverage=min(float(seen.sum()) / expected, 1.0) if expected else float("nan"),
        cards=len(counts),
    )


def bucket(window: Window, interval_seconds: float, most: int = 240) -> timedelta:
    """Return the width of a bucket that divides the window into at most about `most`, never below the interval."""
    least = max(window.seconds / most, interval_seconds)
    return next((step for step in _STEPS if step.total_seconds() >= least), _STEPS[-1])
