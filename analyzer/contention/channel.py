"""Through what a suspect reaches its victim: the resource whose use explains the victim's residual best."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum

import numpy as np

from analyzer.contention.series import Floats

# What a neighbour can reach through the walls of a MIG instance: SMs, L2 slices and DRAM channels are its own.
SHARED_UNDER_MIG = frozenset({"pcie", "nvlink", "clock", "host"})

CHANNEL_WORDS = {
    "sm": "compute time",
    "dram": "memory bandwidth",
    "tensor": "tensor cores",
    "pcie": "PCIe",
    "nvlink": "NVLink",
    "clock": "power and clock",
    "host": "host CPU",
    "memory": "memory capacity",
}

PIPE_CHANNELS = {"dram_active_ratio": "dram", "tensor_active_ratio": "tensor"}


def partial_r2(outcome: Floats, candidates: Mapping[str, Floats]) -> dict[str, float]:
    """Return the share of the outcome's variance that each candidate explains (0 where it goes the wrong way).

    Args:
        outcome: whitened residual of the victim.
        candidates: channel -> the suspect's use of it, residual and whitened in the same way.
    """
    result = {}
    for name, values in candidates.items():
        both = np.isfinite(outcome) & np.isfinite(values)
        result[name] = 0.0
        if both.sum() < 8:
            continue
        u, v = outcome[both] - outcome[both].mean(), values[both] - values[both].mean()
        scale = math.sqrt(float(u @ u) * float(v @ v))
        if scale > 0:
            result[name] = max(float(u @ v) / scale, 0.0) ** 2
    return result


class Walls(StrEnum):
    """What stands between two slices."""

    NONE = "none"
    MIG = "MIG"
    CARDS = "cards"

    @classmethod
    def of(cls, victim_kind: str, suspect_kind: str, *, across: bool) -> Walls:
        """Say what stands between slices of these kinds, on one card or `across` two."""
        if across:
            return cls.CARDS
        return cls.MIG if victim_kind == suspect_kind == "mig" else cls.NONE


def name_channel(shares: Mapping[str, float], *, walls: Walls, floor: float) -> tuple[str, str]:
    """Return the channel with the largest share, and how it was found: `measured`, `excluded` or empty.

    Behind walls only the channels that they leave open count, above `floor`. Where neither PCIe nor NVLink is counted
    (exporters give neither for cut cards) the fabric is what remains when all else on the card is excluded.

    Args:
        shares: result of `partial_r2`.
        walls: what stands between the two.
        floor: smallest share that is not noise.
    """
    allowed = {name: share for name, share in shares.items() if walls is Walls.NONE or name in SHARED_UNDER_MIG}
    best = max(sorted(allowed), key=lambda name: allowed[name], default="")
    if best and allowed[best] > (0.0 if walls is Walls.NONE else floor):
        return best, "measured"
    return ("pcie", "excluded") if walls is Walls.MIG and not {"pcie", "nvlink"} & set(shares) else ("", "")
