"""Through what a suspect reaches its victim: the resource whose use explains the victim's residual best."""

from __future__ import annotations

import math
from collections.abc import Mapping

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


def name_channel(shares: Mapping[str, float], *, mig: bool, floor: float) -> tuple[str, str]:
    """Return the channel with the largest share, and how it was found: `measured`, `excluded` or empty.

    Under MIG only the channels that its walls leave open count, above `floor`. Where neither PCIe nor NVLink is counted
    (exporters give neither for cut cards) the fabric is what remains when all else is excluded.

    Args:
        shares: result of `partial_r2`.
        mig: the two live in different MIG instances.
        floor: smallest share that is not noise.
    """
    allowed = {name: share for name, share in shares.items() if not mig or name in SHARED_UNDER_MIG}
    best = max(sorted(allowed), key=lambda name: allowed[name], default="")
    if best and allowed[best] > (floor if mig else 0.0):
        return best, "measured"
    return ("pcie", "excluded") if mig and not {"pcie", "nvlink"} & set(shares) else ("", "")
