"""Whole numbers that outside text tells: labels, annotations and names are anybody's, and may be of any length."""

from __future__ import annotations

DIGITS = 15  # more are no count of anything, and floats do not hold them


def whole(text: str, otherwise: int = 0) -> int:
    """Return the whole number that a text is; `otherwise` where it is none, or one beyond reason."""
    return int(text) if text.isdecimal() and len(text) <= DIGITS else otherwise


def whole_of(value: float, otherwise: int = 0) -> int:
    """Return a number without its fraction; `otherwise` where it is NaN or beyond reason."""
    return int(value) if abs(value) < 10.0**DIGITS else otherwise
