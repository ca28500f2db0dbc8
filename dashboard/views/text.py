"""Numbers, times and names as people read them; names from the fleet are never markup."""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta

from dashboard.cli.output import clean as printable

NO_DATA = "no data"
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+\-.!|<>~:$&^=@/])")


def escaped(name: str) -> str:
    """Return a name as Markdown that shows exactly its characters: no emphasis, link, directive, icon or formula."""
    return _MARKDOWN.sub(r"\\\1", printable(name))


def shortened(name: str, most: int) -> str:
    """Return a printable name of at most `most` characters."""
    text = printable(name)
    return text if len(text) <= most else text[: max(most - 1, 1)] + "…"


def percent(ratio: float | None, digits: int = 0) -> str:
    """Return `12 %`; absent is `no data`, what is not quite all or nothing is never rounded to it."""
    if ratio is None or math.isnan(ratio):
        return NO_DATA
    text = f"{100 * ratio:z.{digits}f}"
    edge = 10.0**-digits
    if 0 < ratio < 1 and float(text) in (0.0, 100.0):
        return f"<{edge:g} %" if float(text) == 0.0 else f">{100 - edge:g} %"
    return f"{text} %"


def gib(amount_bytes: float | None, digits: int = 1) -> str:
    """Return `12.3 GiB`."""
    return NO_DATA if amount_bytes is None or math.isnan(amount_bytes) else f"{amount_bytes / 2**30:.{digits}f} GiB"


def number(value: float | None, unit: str = "", digits: int = 3) -> str:
    """Return a number with so many significant digits, and its unit."""
    if value is None or math.isnan(value):
        return NO_DATA
    whole = abs(value) >= 10 ** (digits - 1)
    return f"{value:,.0f}{_spaced(unit)}" if whole else f"{value:.{digits}g}{_spaced(unit)}"


def _spaced(unit: str) -> str:
    return f" {unit}" if unit else ""


def seconds(value: float | None) -> str:
    """Return a length of time in its natural unit: `12 ms`, `3.4 s`, `25 min`, `7.5 h`, `3 d`; infinite: `no end`."""
    if value is None or math.isnan(value):
        return NO_DATA
    if math.isinf(value):
        return "no end"
    if value < 1:
        return f"{value * 1000:.3g} ms"
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if value >= 2 * size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g} s"


def length(span: timedelta) -> str:
    """Return a length of time in its natural unit."""
    return seconds(span.total_seconds())


def stamp(instant: datetime | None) -> str:
    """Return `Tue 6 Jan 14:05`, in UTC."""
    return NO_DATA if instant is None else f"{instant:%a} {instant.day} {instant:%b %H:%M}"
