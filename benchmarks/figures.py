"""One row of a benchmark, and the calibration that scales absolute bounds to the machine at hand."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Figure:
    """One measured figure beside its peer; `holds` is False where the bound fails (True without a bound)."""

    name: str
    ours: float
    peer: float
    peer_name: str
    ratio: float
    unit: str
    bound: str
    holds: bool

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, NaN as null."""
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(self).items()}


def figure(
    name: str,
    ours: float,
    unit: str,
    *,
    peer: float = math.nan,
    peer_name: str = "",
    at_least: float | None = None,
    at_most: float | None = None,
) -> Figure:
    """Build a figure; `at_least` and `at_most` bound ours."""
    bounds = [f">= {at_least:g}"] if at_least is not None else []
    bounds += [f"<= {at_most:g}"] if at_most is not None else []
    holds = (at_least is None or ours >= at_least) and (at_most is None or ours <= at_most)
    ratio = ours / peer if math.isfinite(peer) and peer != 0 else math.nan
    return Figure(name, float(ours), float(peer), peer_name, float(ratio), unit, " and ".join(bounds), bool(holds))


def calibration_seconds() -> float:
    """CPU seconds of a fixed piece of numpy work: 0.1 on the machine that absolute bounds were set on."""
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(400, 400))
    start = time.process_time()
    for _ in range(20):
        matrix = np.tanh(matrix @ matrix.T / 400.0)
        np.sort(matrix, axis=None)
    return time.process_time() - start
