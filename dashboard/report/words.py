"""Numbers as people read them; what is absent reads `no data`."""

from __future__ import annotations

import math
from datetime import datetime

NO_DATA = "no data"


def percent(ratio: float, digits: int | None = None) -> str:
    """Return a ratio as per cent: one digit where it is small or nearly whole, none else; never rounded up to 100."""
    if math.isnan(ratio):
        return NO_DATA
    value = 100 * ratio
    if digits is None:
        digits = 0 if 10 <= abs(value) < 99 else 1
    if ratio < 1 and float(f"{value:.{digits}f}") >= 100:
        value = 100 - 10**-digits
    text = f"{value:.{digits}f}"
    return f"{text.removesuffix('.0')} %"


def cards_text(cards: float) -> str:
    """Return a number of average cards."""
    return NO_DATA if math.isnan(cards) else f"{cards:.1f} {'card' if f'{cards:.1f}' == '1.0' else 'cards'}"


def plural(count: int, word: str) -> str:
    """Return `1 card`, `2 cards`."""
    return f"{count:,} {word if count == 1 else word + 's'}"


def number(value: float, digits: int = 3) -> str:
    """Return a number with so many significant digits, thousands apart."""
    if math.isnan(value):
        return NO_DATA
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def duration_text(seconds: float) -> str:
    """Return a length of time in its largest fitting unit."""
    if math.isnan(seconds):
        return NO_DATA
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length * (2 if unit == "days" else 1):
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds * 1000:.3g} ms" if 0 < seconds < 1 else f"{seconds:.3g} s"


def energy_text(joules: float) -> str:
    """Return energy in kWh (Wh where it is little)."""
    if math.isnan(joules):
        return NO_DATA
    hours = joules / 3600
    return f"{number(hours / 1000)} kWh" if hours >= 1000 else f"{number(hours)} Wh"


def money(amount: float, currency: str) -> str:
    """Return an amount of money."""
    return NO_DATA if math.isnan(amount) else f"{amount:,.0f} {currency}"


def instant_text(instant: datetime) -> str:
    """Return an instant to the minute."""
    return f"{instant:%a %d %b %H:%M}"


def amount_text(value: float, unit: str) -> str:
    """Return an effect in its unit."""
    if math.isnan(value):
        return NO_DATA
    if unit == "ratio":
        return percent(value)
    if unit == "bytes":
        return f"{number(value / 2**30)} GiB"
    if unit == "seconds":
        return duration_text(value)
    return f"{number(value)} {unit}"
