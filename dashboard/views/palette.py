"""Colours that mean something, the same in light and dark, on every page and in the report."""

from __future__ import annotations

from collections.abc import Iterable

# Terms of the ledger: green is worth its money, red and orange are losses, blue is kept on purpose, grey is idle.
LEDGER = {
    "useful": "#2f9e5b",
    "unrated": "#86bfa0",
    "contention": "#d64545",
    "throttling": "#e07b39",
    "overhead": "#c9a227",
    "reserved": "#4a8fe0",
    "wasted": "#e0559a",
    "stranded": "#8b5cf6",
    "free": "#a9b4c0",
    "unobserved": "#5f6b78",
    "unaccounted": "#3c4650",
    "used": "#2f9e5b",
}
LEVELS = {"critical": "red", "warning": "orange", "info": "blue", "good": "green"}
KINDS = {"mig": "#4a8fe0", "mps": "#2f9e5b", "timeslice": "#c9a227", "vgpu": "#8b5cf6", "whole": "#5f6b78"}
_TENANTS = (
    "#4a8fe0",
    "#d9772b",
    "#2f9e5b",
    "#8b5cf6",
    "#d0488a",
    "#17969f",
    "#b08d14",
    "#d64545",
    "#6d7a88",
    "#7a5230",
)
HEAT = ("#eef3f8", "#c9dcf0", "#8fb8e3", "#4a8fe0", "#1d5fae", "#0c2f5e")
HEAT_DARK = ("#17212c", "#1f3a58", "#27598c", "#3d82c8", "#74b0ee", "#cfe6ff")
NO_DATA = "#b9a9a9"
NO_DATA_DARK = "#5a4a4a"


def tenant_colours(tenants: Iterable[str]) -> dict[str, str]:
    """Return a colour for each tenant; the same set gives the same colours, more than ten share them."""
    return {name: _TENANTS[place % len(_TENANTS)] for place, name in enumerate(sorted(set(tenants)))}


def heat_legend(*, dark: bool) -> dict[str, str]:
    """Return what the colours of a heat map mean."""
    ramp = HEAT_DARK if dark else HEAT
    return {
        "idle": ramp[0],
        "half": ramp[len(ramp) // 2],
        "full": ramp[-1],
        "no data": NO_DATA_DARK if dark else NO_DATA,
    }
