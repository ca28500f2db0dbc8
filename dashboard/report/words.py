"""Amounts that only the report speaks of; numbers and times read as in the rest of the dashboard."""

from __future__ import annotations

import math
import re

from dashboard.views.text import NO_DATA, gib, number, percent, seconds

_UUID = re.compile(r"\b(GPU|MIG)-([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE)
_UNITS = {"gpu_hours": "card-hours"}
_NOTHING = 1e-6  # shares and cards below this are rounding, not amounts


def share(ratio: float) -> str:
    """Return a ratio as per cent with one digit, so that the terms of a ledger can be added up by hand."""
    if math.isnan(ratio):
        return NO_DATA
    whole = round(ratio)
    return percent(float(whole) if abs(ratio - whole) < _NOTHING else ratio, 1)


def cards(amount: float) -> str:
    """Return a number of average cards with two digits."""
    if math.isnan(amount):
        return NO_DATA
    return f"{0.0 if abs(amount) < _NOTHING else amount:.2f}"


def energy(joules: float) -> str:
    """Return energy in kWh; in Wh where it is less than one."""
    return number(joules / 3600, "Wh") if joules < 3.6e6 else number(joules / 3.6e6, "kWh")


def money(amount: float, currency: str) -> str:
    """Return an amount of money."""
    return NO_DATA if math.isnan(amount) else f"{amount:,.0f} {currency}"


def amount(value: float, unit: str) -> str:
    """Return the size of an effect in words."""
    if unit == "ratio":
        return percent(value, 0 if abs(value) >= 0.1 else 1)
    if unit == "bytes":
        return gib(value)
    if unit == "seconds":
        return seconds(value)
    if unit == "count":
        return "once" if value == 1 else number(value, "times")
    return number(value, _UNITS.get(unit, unit.replace("_", " ")))


def shorter(text: str) -> str:
    """Return a text in which the UUIDs of cards are cut to their first eight digits."""
    return _UUID.sub(lambda match: f"{match[1]}-{match[2]}", text)


def state_text(state: str) -> str:
    """Return the state of a change in words."""
    return {"superseded": "replaced later", "confirmed": "kept", "planned": "waits"}.get(state, state.replace("_", " "))
