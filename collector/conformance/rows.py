"""Rows that the suites write, and the instants that they lie at."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import numpy as np

from collector.batch import Batch, make_rows
from collector.clock import to_ms
from collector.window import Window

START = datetime(2026, 1, 5, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


def at(minutes: float) -> datetime:
    """Return the instant so many minutes after the suite's start."""
    return START + minutes * MINUTE


def window(first_minute: float, last_minute: float) -> Window:
    """Return [start + first, start + last)."""
    return Window(at(first_minute), at(last_minute))


def slice_rows(
    minutes: Sequence[float],
    names: Sequence[str],
    *,
    tenant: str | Sequence[str] = "team",
    cluster: str = "lab",
    node: str | Sequence[str] = "node-a",
    **fields: Sequence[float],
) -> Batch:
    """Build a batch of `slice` rows, one a minute and name."""
    count = len(minutes)

    def column(value: str | Sequence[str]) -> list[str]:
        return [value] * count if isinstance(value, str) else list(value)

    times = [to_ms(at(m)) for m in minutes]
    tags = {
        "cluster": [cluster] * count,
        "node": column(node),
        "gpu": ["GPU-1"] * count,
        "slice": list(names),
        "tenant": column(tenant),
        "workload": ["job"] * count,
    }
    values = {name: np.asarray(v, dtype=np.float64) for name, v in fields.items()}
    return Batch(rows={"slice": make_rows("slice", times, tags, values)})
