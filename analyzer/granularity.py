"""TT321: which cut of a card fits a workload: a MIG profile, an MPS share, turns in rotation, or a whole card.

Need is the 95 % quantile of compute and memory bandwidth and the peak of memory, with the margins of an autoscaler:
15 % on compute and bandwidth, 10 % on memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from analyzer.findings import Effect, Finding, Role, SubjectRef, Verdict, make_finding
from analyzer.mig import board_of
from analyzer.protocols import Context
from analyzer.shares import Card

CODE = "TT321"
_COMPUTE_MARGIN, _MEMORY_MARGIN, _QUANTILE = 1.15, 1.1, 0.95
_REACHABLE_DRAM = 0.8
_WHOLE_COMPUTE, _WHOLE_MEMORY = 0.75, 0.85  # needs from which only a whole card fits
_BURSTY = 0.25  # share of time at work below which turns in rotation do
_BANDWIDTH_HUNGRY = 0.4  # need from which the interface wants to be one's own
_QUANTUM = 0.05
_WORKS = 0.05
_FEWEST_SAMPLES, _SURE_DAYS = 60, 1.0
_FREED = 0.25  # part of a card that must come free before a smaller cut is worth a word


@dataclass(frozen=True, slots=True)
class Cut:
    """A way to hold a card: kind, MIG profile (else empty), share of the compute, and why it fits."""

    kind: str
    profile: str
    share: float
    why: str

    @property
    def text(self) -> str:
        """What an operator calls it."""
        if self.kind == "mig":
            return f"a MIG {self.profile}"
        if self.kind == "whole":
            return "a whole card"
        words = {"mps": "an MPS share of", "timeslice": "turns in rotation with a share of", "vgpu": "a vGPU share of"}
        return f"{words[self.kind]} {self.share:.0%}"


def measure_use(card: Card, j: int) -> dict[str, float]:
    """Return what a holding needs of its card: shares of the whole card, NaN where it is not known."""
    alive = card.alive[:, j]
    used = card.used[alive, j]
    known = used[~np.isnan(used)]
    own = card.of_slices("dram_active_ratio")[alive, j]
    if card.holdings[j].kind == "whole":
        own = card.of_card("dram_active_ratio")[alive]
    size = card.of_card("memory_used_bytes") + card.of_card("memory_free_bytes")
    total = float(np.nanmedian(size)) if np.isfinite(size).any() else math.nan
    memory = card.of_slices("memory_used_bytes")[alive, j]
    if card.holdings[j].kind == "whole" and np.isnan(memory).all():
        memory = card.of_card("memory_used_bytes")[alive]
    quota = card.quota[alive, j]
    quota = quota[~np.isnan(quota)]
    return {
        "compute": _quantile(known),
        "typical": float(np.median(known)) if len(known) else math.nan,
        "bandwidth": _quantile(own[~np.isnan(own)]),
        "memory": float(np.nanmax(memory)) / total if np.isfinite(memory).any() else math.nan,
        "active": float((known >= _WORKS * quota.max()).mean()) if len(known) and len(quota) else math.nan,
        "quota": float(quota.mean()) if len(quota) else math.nan,
        "samples": float(len(known)),
        "lived": float(alive.sum()),
        "days": float(alive.sum()) * card.interval_seconds / 86_400,
        "measured": float(card.measured[j]),
    }


def _quantile(values: np.ndarray) -> float:
    if not len(values):
        return math.nan
    place = max(math.ceil(_QUANTILE * len(values)) - 1, 0)
    return float(np.partition(values, place)[place])


def fitting_cuts(use: Mapping[str, float], model: str, *, online: bool, private: bool = False) -> tuple[Cut, ...]:
    """Return the cuts that fit, best first; a whole card is always the last.

    Args:
        use: as of `measure_use`; needs that are not known do not count.
        model: of the card, for its MIG profiles.
        online: it has a promise on latency: neighbours are kept away where the board can do so.
        private: sharing SMs and memory with neighbours was seen to cost it too much.
    """
    compute = use["compute"] * _COMPUTE_MARGIN
    memory = _or_nothing(use["memory"]) * _MEMORY_MARGIN
    bandwidth = _or_nothing(use["bandwidth"]) / _REACHABLE_DRAM * _COMPUTE_MARGIN
    needs = f"needs {compute:.0%} of the compute, {memory:.0%} of the memory, {bandwidth:.0%} of the bandwidth"
    whole = Cut("whole", "", 1.0, needs)
    if compute >= _WHOLE_COMPUTE or memory >= _WHOLE_MEMORY or bandwidth >= _WHOLE_MEMORY:
        return (whole,)
    board = board_of(model)
    instances = [
        (size, share, profile.name)
        for profile in (board.profiles.values() if board is not None else ())
        if board is not None
        and profile.plain
        and (share := board.sm_share(profile.name)[0]) >= compute
        and (size := profile.size / board.memory_slices) >= max(memory, bandwidth)
        and size < 1
    ]
    mig = (
        [Cut("mig", min(instances)[2], min(instances)[1], f"{needs}; neighbours cannot reach it")] if instances else []
    )
    share = max(math.ceil(compute / _QUANTUM - 1e-9) * _QUANTUM, _QUANTUM)
    mps = Cut("mps", "", share, f"{needs}; runs beside others")
    turns = Cut("timeslice", "", share, f"{needs}; works {use['active']:.0%} of the time")
    if private:
        return (*mig, whole)
    if online or bandwidth >= _BANDWIDTH_HUNGRY:
        return (*mig, mps, whole)
    return (turns, mps, *mig, whole) if use["active"] < _BURSTY else (mps, *mig, turns, whole)


def _full(use: Mapping[str, float]) -> bool:
    return _or_nothing(use["memory"]) * _MEMORY_MARGIN >= _WHOLE_MEMORY


def _or_nothing(value: float) -> float:
    return 0.0 if math.isnan(value) else value


def _better(row: Mapping[str, Any], use: Mapping[str, float], cuts: tuple[Cut, ...], held: float) -> Cut | None:
    """Return the cut that a holding should have instead; None where it has what fits."""
    best = cuts[0]
    if row["kind"] == "mig":
        # Another cut of the board; what does not fit into its instance could not have shown in its counters.
        mine = next((cut for cut in cuts if cut.kind == "mig"), None)
        smaller = mine is not None and mine.profile != row["profile"] and held - mine.share >= _FREED / 2
        return mine if smaller else None
    if row["kind"] == "whole":
        return best if best.kind != "whole" and use["active"] > 0 and held - best.share >= _FREED else None
    # Peaks of a use that was divided out of the card's are no evidence.
    needs_it = use["measured"] or use["typical"] * _COMPUTE_MARGIN >= _WHOLE_COMPUTE or _full(use)
    return best if best.kind == "whole" and needs_it and held < _WHOLE_COMPUTE else None


def judge_granularity(row: Mapping[str, Any], context: Context) -> Finding | str | None:
    """Judge one holding of `BottleneckDetector.measure`: a finding, or why it cannot be told; None: it fits."""
    use = row["use"]
    if math.isnan(use["compute"]) or math.isnan(use["memory"]):
        what = "activity" if math.isnan(use["compute"]) else "memory_used_bytes beside the card's size"
        return f"no {what}"
    if use["samples"] < _FEWEST_SAMPLES:
        return f"fewer than {_FEWEST_SAMPLES} samples"
    promise = context.declarations.get((row["cluster"], row["tenant"], row["workload"]))
    offline = promise is not None and promise.declared and promise.declaration.service_class == "offline"
    cuts = fitting_cuts(use, row["model"], online=not offline)
    held = 1.0 if row["kind"] == "whole" else use["quota"]
    if math.isnan(held):
        return "its quota is not known (sm_quota_ratio)"
    best = _better(row, use, cuts, held)
    if best is None:
        return None
    freed = held - best.share
    coverage = use["samples"] / max(use["lived"], 1.0)
    sure = use["days"] >= _SURE_DAYS and use["measured"] > 0
    who = f"{row['tenant']}/{row['workload']}"
    holds = (
        f"{row['kind']} {row['profile']}".strip() if row["kind"] in {"mig", "whole"} else f"{held:.0%} by {row['kind']}"
    )
    gain = f"frees {freed:.0%} of {row['gpu']}" if freed > 0 else f"asks for {-freed:.0%} more"
    others = ", ".join(cut.text for cut in cuts if cut is not best)
    return make_finding(
        CODE,
        Verdict.HOLDS if sure else Verdict.SUSPECTED,
        (SubjectRef(Role.SUBJECT, *(row[key] for key in ("cluster", "node", "gpu", "slice", "workload", "tenant"))),),
        context.window,
        claim=f"{who} holds {holds} on {row['node']}, and {best.text} fits it: it {best.why}; that {gain}",
        risk="a need that did not show in the window is not in it; a smaller cut can make requests queue",
        confidence=(0.85 if sure else 0.6) * min(coverage, 1.0),
        coverage=min(coverage, 1.0),
        effect=Effect(freed, "ratio", freed, freed),
        evidence={
            "present": {"kind": row["kind"], "profile": row["profile"], "share": held},
            "fits": {"kind": best.kind, "profile": best.profile, "share": best.share},
            "others": others,
            "compute_p95": use["compute"],
            "memory_peak": use["memory"],
            "bandwidth_p95": use["bandwidth"],
            "active": use["active"],
        },
        simulated=context.simulated,
    )
