"""Units that exporters write, and their factor to the base units of the schema."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from collector.schema import Field, Kind

# unit -> (base unit, factor). Names without a power of two in them (MB) are decimal; `MiB` is 2**20 bytes.
UNITS: dict[str, tuple[str, float]] = {
    "ratio": ("ratio", 1.0),
    "percent": ("ratio", 0.01),
    "bytes": ("bytes", 1.0),
    "kB": ("bytes", 1e3),
    "MB": ("bytes", 1e6),
    "GB": ("bytes", 1e9),
    "KiB": ("bytes", 2.0**10),
    "MiB": ("bytes", 2.0**20),
    "GiB": ("bytes", 2.0**30),
    "bytes/s": ("bytes/s", 1.0),
    "kB/s": ("bytes/s", 1e3),
    "MB/s": ("bytes/s", 1e6),
    "GB/s": ("bytes/s", 1e9),
    "KiB/s": ("bytes/s", 2.0**10),
    "MiB/s": ("bytes/s", 2.0**20),
    "GiB/s": ("bytes/s", 2.0**30),
    "Mbit/s": ("bytes/s", 1e6 / 8),
    "s": ("seconds", 1.0),
    "ms": ("seconds", 1e-3),
    "us": ("seconds", 1e-6),
    "ns": ("seconds", 1e-9),
    "min": ("seconds", 60.0),
    "W": ("watts", 1.0),
    "mW": ("watts", 1e-3),
    "J": ("joules", 1.0),
    "mJ": ("joules", 1e-3),
    "uJ": ("joules", 1e-6),
    "kJ": ("joules", 1e3),
    "Wh": ("joules", 3600.0),
    "C": ("celsius", 1.0),
    "Hz": ("hertz", 1.0),
    "kHz": ("hertz", 1e3),
    "MHz": ("hertz", 1e6),
    "GHz": ("hertz", 1e9),
    "FLOP": ("FLOP", 1.0),
    "TFLOP": ("FLOP", 1e12),
    "FLOP/s": ("FLOP/s", 1.0),
    "TFLOP/s": ("FLOP/s", 1e12),
    "count": ("count", 1.0),
    "requests": ("requests", 1.0),
    "requests/s": ("requests/s", 1.0),
    "tokens": ("tokens", 1.0),
    "tokens/s": ("tokens/s", 1.0),
    "level": ("level", 1.0),
}
_COUNTED = frozenset(("count", "requests", "tokens"))


def factor(unit: str) -> float:
    """Return the factor from `unit` to its base unit.

    Raises:
        ValueError: the unit is not known; the message names the nearest.
    """
    if unit not in UNITS:
        raise ValueError(f"expected a unit ({', '.join(UNITS)}), got {unit!r}{nearest(unit, UNITS)}")
    return UNITS[unit][1]


def fits(unit: str, field: Field, *, counter: bool) -> bool:
    """Say whether a metric in `unit` can become `field`: its growth where it is a counter, its value else."""
    base = UNITS[unit][0]
    if base == field.unit or (base in _COUNTED and field.unit in _COUNTED):
        return True
    if not counter:
        return False
    if field.kind is Kind.RATE:
        return f"{base}/s" == field.unit
    return base == "seconds" and field.unit == "ratio"  # seconds in a state, over the seconds that went by


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `; the nearest is 'x'`, or an empty text where nothing is near."""
    names = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), list(names), n=1, cutoff=0.4)
    return f"; the nearest is {names[near[0]]!r}" if near else ""
