"""Time, injected: every loop takes a Clock, so that a day is tested in a second and a past week replayed."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

# Rows, whatever stamped them, lie between: outside a clock was never set, or a number was taken for a time.
EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
LATEST = datetime(2100, 1, 1, tzinfo=UTC)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def to_ms(instant: datetime) -> int:
    """Return the millisecond since the epoch that an aware instant lies in: the floor, as the grid's, in integers."""
    return (instant - _EPOCH) // _MILLISECOND


def from_ms(milliseconds: int) -> datetime:
    """Return the aware UTC instant of milliseconds since the epoch."""
    return _EPOCH + milliseconds * _MILLISECOND


class Clock(Protocol):
    """What a loop needs of time."""

    def now(self) -> datetime:
        """Return the present instant, aware, in UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go backwards."""
        ...

    def wait(self, seconds: float, stop: threading.Event | None = None) -> bool:
        """Wait `seconds`, or until `stop` is set; return True if it was set."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        """Return the present instant, aware, in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds that never go backwards."""
        return time.monotonic()

    def wait(self, seconds: float, stop: threading.Event | None = None) -> bool:
        """Wait `seconds`, or until `stop` is set; return True if it was set."""
        if stop is None:
            time.sleep(max(seconds, 0.0))
            return False
        return stop.wait(max(seconds, 0.0))


class VirtualClock:
    """A clock that moves only when told, or when somebody waits on it."""

    def __init__(self, start: datetime) -> None:
        if start.tzinfo is None:
            raise ValueError(f"expected an aware datetime, got {start!r}; add tzinfo=UTC")
        self._start = start.astimezone(UTC)
        self._now = self._start

    def now(self) -> datetime:
        """Return the virtual instant."""
        return self._now

    def monotonic(self) -> float:
        """Return virtual seconds since the clock was made."""
        return (self._now - self._start).total_seconds()

    def wait(self, seconds: float, stop: threading.Event | None = None) -> bool:
        """Move the clock by `seconds` at once; return True, without moving it, if `stop` is set."""
        if stop is not None and stop.is_set():
            return True
        self.advance(max(seconds, 0.0))
        return False

    def advance(self, seconds: float) -> None:
        """Move the clock forward.

        Raises:
            ValueError: `seconds` is negative.
        """
        if seconds < 0:
            raise ValueError(f"a clock never goes backwards: expected seconds >= 0, got {seconds}")
        self._now += timedelta(seconds=seconds)


def grid_floor(now: datetime, interval_seconds: float) -> datetime:
    """Return floor(now / interval) x interval, counted from the epoch: the instant a cycle's rows stand on."""
    epoch_seconds = now.timestamp()
    return datetime.fromtimestamp(epoch_seconds // interval_seconds * interval_seconds, UTC)
