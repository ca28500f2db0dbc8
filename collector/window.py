"""Windows of time: [start, end), aware, UTC."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from collector.errors import ConfigurationError

_DURATION = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(s|m|h|d|w)\s*$")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
LONGEST_SECONDS = 3650 * 86400.0  # of any length of time that is set: far above all use, far below what overflows
_YEARS = (1970, 2200)


@dataclass(frozen=True, slots=True)
class Window:
    """A half-open span [start, end) of aware UTC instants.

    Raises:
        ValueError: a bound is naive, or the window is empty or reversed.
    """

    start: datetime
    end: datetime

    def __post_init__(self) -> None:
        """Reject naive, empty and reversed windows; turn both bounds into UTC."""
        if self.start.tzinfo is None or self.end.tzinfo is None:
            raise ValueError(f"expected aware datetimes, got {self.start!r} .. {self.end!r}")
        if self.start >= self.end:
            raise ValueError(f"expected start before end, got {self.start.isoformat()} .. {self.end.isoformat()}")
        object.__setattr__(self, "start", self.start.astimezone(UTC))
        object.__setattr__(self, "end", self.end.astimezone(UTC))

    @classmethod
    def last(cls, end: datetime, length: timedelta) -> Window:
        """Return the window of `length` that ends at `end`."""
        return cls(end - length, end)

    @property
    def length(self) -> timedelta:
        """Length of the window."""
        return self.end - self.start

    @property
    def seconds(self) -> float:
        """Length of the window in seconds."""
        return self.length.total_seconds()

    def aligned(self, every: timedelta) -> Window:
        """Return the smallest window on the epoch's grid of `every` that holds this one."""
        step = every.total_seconds()
        start = self.start.timestamp() // step * step
        end = -(-self.end.timestamp() // step) * step
        return Window(datetime.fromtimestamp(start, UTC), datetime.fromtimestamp(end, UTC))


def parse_duration(text: str) -> timedelta:
    """Read a length of time such as `90s`, `15m`, `6h`, `2d` or `1w`.

    Raises:
        ConfigurationError: the text is not a number followed by one of s, m, h, d, w, is zero, or above ten years.
    """
    match = _DURATION.match(text)
    if match is None or float(match[1]) == 0:
        raise ConfigurationError(f"expected a length of time such as 90s, 15m, 6h, 2d or 1w, got {text!r}")
    seconds = float(match[1]) * _UNIT_SECONDS[match[2]]
    if seconds > LONGEST_SECONDS:
        raise ConfigurationError(f"expected a length of time of at most ten years (3650d), got {text[:40]!r}")
    return timedelta(seconds=seconds)


def parse_instant(text: str) -> datetime:
    """Read an ISO 8601 instant; without a zone it is UTC.

    Raises:
        ConfigurationError: the text is not ISO 8601, or so far off that ten years before or after it overflow.
    """
    try:
        instant = datetime.fromisoformat(text.strip())
        instant = instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ConfigurationError(f"expected an instant such as 2026-01-05T00:00:00Z, got {text!r}") from None
    if not _YEARS[0] <= instant.year <= _YEARS[1]:
        raise ConfigurationError(f"expected an instant from {_YEARS[0]} to {_YEARS[1]}, got {text!r}")
    return instant
