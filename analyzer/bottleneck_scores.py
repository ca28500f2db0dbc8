"""Classes of limit: how each is scored in a window, and how a window gets its name.

A score of 1 is a class's threshold. Thresholds are DCGM's (SM activity 0.8; a memory interface reaches about 0.8),
Nsight Compute's (60 % of a pipe; ten points between units) and our own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Series = npt.NDArray[np.float64]

HYSTERESIS = 0.05
_HOLD = 2
_REACHABLE_DRAM = 0.8


@dataclass(frozen=True, slots=True)
class Limit:
    """A class of limit: its code, the series that its rule needs (alternatives joined by `|`), and how it is said."""

    code: str
    needs: tuple[str, ...]
    text: str


LIMITS: Mapping[str, Limit] = {
    "compute": Limit("TT401", ("sm", "pipe"), "its compute units"),
    "memory_bandwidth": Limit("TT402", ("dram", "pipe"), "the bandwidth of its memory"),
    "memory_capacity": Limit("TT403", ("memory|cache",), "the size of its memory"),
    "transfer": Limit("TT404", ("transfer", "sm"), "PCIe or NVLink"),
    "power": Limit("TT405", ("power_cap", "clock"), "its power cap"),
    "heat": Limit("TT406", ("heat",), "heat"),
    "latency": Limit("TT407", ("sm", "pipe", "dram"), "latency: its units wait for data and launches"),
    "small_grid": Limit("TT408", ("sm", "engine"), "the size of its kernels, too small for its SMs"),
    "host": Limit("TT409", ("host|iowait", "engine"), "its host: CPU or data loading"),
    "quota": Limit("TT410", ("of_quota",), "its quota"),
}
# Series -> what an exporter calls it.
FIELDS: Mapping[str, str] = {
    "sm": "sm_active_ratio",
    "dram": "dram_active_ratio",
    "pipe": "any pipe (tensor, fp16, fp32, fp64)",
    "engine": "engine_active_ratio",
    "transfer": "PCIe or NVLink traffic beside the link's peak",
    "power_cap": "throttle_power_ratio",
    "clock": "sm_clock_hertz beside the card's maximum",
    "heat": "throttle_thermal_ratio or throttle_brake_ratio",
    "memory|cache": "memory_used_bytes beside a limit, or kv_cache_used_ratio",
    "host|iowait": "cpu_busy_ratio or cpu_iowait_ratio",
    "of_quota": "use beside a hard quota",
}
SERIES = (
    "sm", "pipe", "dram", "engine", "busy", "transfer", "power_cap", "clock", "heat", "host", "iowait", "memory",
    "cache", "pressed", "of_quota",
)  # fmt: skip


def limit_scores(at: Mapping[str, Series]) -> dict[str, Series]:
    """Score each class of limit; 1.0 is its threshold, NaN where its counters are absent.

    Args:
        at: means of windows, by `SERIES`, those that are known; units are of the subject's own share: sm, pipe (the
            busiest), dram, engine; transfer (of the link's peak), power_cap and heat (share of time), clock (of the
            maximum), host and iowait (of the node's CPUs), memory (of its limit), cache (of a server's pool), pressed
            (above 0 where work was preempted or killed for want of memory), of_quota (use of a hard quota).
    """
    length = len(next(iter(at.values())))
    absent = np.full(length, np.nan)

    def of(name: str) -> Series:
        return at.get(name, absent)

    sm, pipe, engine = (np.minimum(of(name), 1.0) for name in ("sm", "pipe", "engine"))
    dram = np.minimum(of("dram") / _REACHABLE_DRAM, 1.0)
    memory = dram / 0.75
    below = 1 - 2 * HYSTERESIS
    full = np.fmax(of("memory"), of("cache")) / 0.95
    scores = {
        "compute": np.minimum(pipe / 0.6, sm / 0.8),
        # Memory is the limit only where it stands clear of the pipes that it feeds.
        "memory_bandwidth": np.where(dram >= pipe + 0.1, memory, np.minimum(memory, np.where(pipe >= 0, below, pipe))),
        # A pool that is kept full on purpose limits nobody until work is turned away for it.
        "memory_capacity": np.where(np.nan_to_num(of("pressed")) > 0, full, np.minimum(full, below)),
        "transfer": np.minimum(of("transfer") / 0.6, (1 - sm) / 0.5),
        "power": np.minimum(of("power_cap") / 0.1, (1 - np.minimum(of("clock"), 1.0)) / 0.1),
        "heat": of("heat") / 0.05,
        "latency": np.minimum(np.minimum(sm / 0.8, (1 - pipe) / 0.8), (1 - np.minimum(of("dram"), 1.0)) / 0.6),
        "small_grid": np.minimum(engine / 0.8, (1 - sm) / 0.5),
        "host": np.minimum(np.fmax(of("host") / 0.9, of("iowait") / 0.3), (1 - engine) / 0.5),
    }
    others = np.fmax.reduce([np.nan_to_num(score, nan=0.0) for score in scores.values()])
    quota = of("of_quota") / 0.95
    scores["quota"] = np.where(others >= 1, np.minimum(quota, below), quota)  # only where nothing else limits
    return {name: np.asarray(values, dtype=np.float64) for name, values in scores.items()}


def hold(scores: Mapping[str, Series]) -> npt.NDArray[np.str_]:
    """Name each window by its best class that reaches 1 (empty: none), held for two windows and by 5 points."""
    names = list(scores)
    table = np.nan_to_num(np.stack([scores[name] for name in names]), nan=-1.0)
    bests, highest = table.argmax(axis=0).tolist(), table.max(axis=0).tolist()
    own = table.tolist()
    labels = []
    present, since, pending = -1, 0, -1
    for at, (best, high) in enumerate(zip(bests, highest, strict=True)):
        wanted = best if high >= 1 else -1
        stays = present >= 0 and own[present][at] >= 1 and high < own[present][at] + HYSTERESIS
        if wanted == present or stays:
            since, pending = 0, present
        else:
            since = since + 1 if wanted == pending else 1
            pending = wanted
            if since >= _HOLD:
                present = wanted
        labels.append(names[present] if present >= 0 else "")
    return np.array(labels, dtype=np.str_)


def overstated_by(busy: float, sm_active: float) -> float | None:
    """Return how many times the busy counter overstates SM activity; None where nothing ran or either is absent.

    One block on one SM for a whole second is 100 % busy: the counter only says that some kernel ran.
    """
    return busy / sm_active if sm_active > 0 and not math.isnan(busy) else None
