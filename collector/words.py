"""Words that every floor says alike."""

from __future__ import annotations


def plural(count: int, one: str, many: str = "") -> str:
    """Return `1 card`, `2 cards`."""
    return f"{count} {one if count == 1 else many or one + 's'}"
