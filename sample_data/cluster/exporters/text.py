"""Joining prepared series texts with values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def shortest(value: float) -> str:
    """Write a value as briefly as it reads back the same."""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


def samples(prefixes: Sequence[str], values: Sequence[float], integer: bool) -> list[str]:
    """Return one line for each value that is there (NaN: no line)."""
    if integer:
        return [f"{p} {int(v)}" for p, v in zip(prefixes, values, strict=True) if v == v]  # noqa: PLR0124 - NaN test
    return [f"{p} {v:.6f}" for p, v in zip(prefixes, values, strict=True) if v == v]  # noqa: PLR0124 - NaN test


def head(name: str, kind: str, text: str) -> str:
    """Return the HELP and TYPE lines of a metric."""
    return f"# HELP {name} {text}\n# TYPE {name} {kind}"
