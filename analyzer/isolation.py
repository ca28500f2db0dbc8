"""TT606: isolation broken. A slice uses more than its sharing kind should allow, or its fault killed its neighbours.

Faults of programs (XIDs whose advice is to restart the application, and kills for want of memory) are charged to the
slice that caused them: the one that the event names, else the only holder, else the only one that died with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.cards import cards
from analyzer.facts import hardware_facts, records
from analyzer.findings import Effect, Finding, Role, SubjectRef, Verdict, finding_id
from analyzer.protocols import Conclusion, Context, Needs, Partition, Withheld
from analyzer.runs import longest_run
from analyzer.shares import Card
from analyzer.xids import xid, xid_number
from collector.clock import to_ms

CODE = "TT606"
_MEMORY_SLACK, _MEMORY_INTERVALS = 1.02, 3
_COMPUTE_SLACK = 0.05  # points of the card: a limiter's dead band
_COMPUTE_SECONDS, _COMPUTE_WINDOWS = 600.0, 3
_MOSTLY = 0.5  # part of the windows at work in which an estimated use must be beyond the cap
_LEFT = 0.1  # part of its memory below which a process is gone
_LEAST_BYTES = 64 * 2**20
_PLACE = ["cluster", "node", "gpu", "slice"]
_COLUMNS = [
    *_PLACE, "tenant", "workload", "kind", "backend", "breach", "value", "limit", "seconds", "at_ms", "what", "victims",
    "withheld",
]  # fmt: skip
_BACKENDS = {"mig": "MIG, in hardware", "mps": "MPS", "timeslice": "time slicing", "whole": "no sharing"}
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Fault:
    """A program's fault on a card: when (index of the interval and ms), what, whose (-1: not known), who died with it.

    `died` are places of holdings, without the one that is charged.
    """

    at: int
    at_ms: int
    what: str
    number: int  # XID; 0: killed for want of memory
    culprit: int
    died: tuple[int, ...]


class IsolationDetector:
    """Finds slices that go beyond their limits and faults that reach neighbours."""

    codes = (CODE,)
    needs: ClassVar[Needs] = {CODE: {"slice": ("memory_used_bytes|busy_ratio|sm_active_ratio",)}}

    def measure(self, partition: Partition) -> pd.DataFrame:
        """Return a row a breach, and one for each slice of which neither memory nor use is known."""
        sources = hardware_facts(partition.facts, "slice", "source")
        rows: list[dict[str, Any]] = []
        for card in cards(partition):
            for j, holding in enumerate(card.holdings):
                if holding.held:
                    source = sources.get((card.cluster, card.node, card.gpu, holding.slice), "")
                    rows += _beyond(card, j, backend_of(holding.kind, source))
            for fault in faults(card, partition):
                if fault.died:
                    rows.append(_spread(card, fault, sources))
        return pd.DataFrame([{name: row.get(name, _EMPTY.get(name)) for name in _COLUMNS} for row in rows],
                            columns=_COLUMNS)  # fmt: skip

    def conclude(self, measures: pd.DataFrame, context: Context) -> Conclusion:
        """Judge each breach."""
        if measures.empty:
            return Conclusion([], [])
        findings, withheld = [], []
        for row in records(measures.sort_values([*_PLACE, "breach", "at_ms"], kind="stable")):
            if row["withheld"]:
                withheld.append(Withheld(CODE, row["cluster"], row["node"], row["gpu"], row["slice"], row["withheld"]))
            else:
                findings.append(_finding(row, context))
        once = {f.id: f for f in findings}  # of one claim the newest
        return Conclusion(list(once.values()), withheld)


_EMPTY: dict[str, Any] = {
    "slice": "", "tenant": "", "workload": "", "value": math.nan, "limit": math.nan, "seconds": math.nan,
    "at_ms": 0, "what": "", "victims": (), "withheld": "", "breach": "",
}  # fmt: skip


def backend_of(kind: str, source: str) -> str:
    """Return what enforces a slice's limits, as far as its exporters tell."""
    if kind in _BACKENDS:
        return _BACKENDS[kind]
    for name, words in (("hami", "HAMi"), ("volcano", "Volcano vGPU")):
        if name in source:
            return words
    return "a vGPU layer" if kind == "vgpu" else "a layer that is not known"


def faults(card: Card, partition: Partition) -> list[Fault]:
    """Return the programs' faults on a card, oldest first, each charged to its slice where that can be told."""
    events = partition.events
    pods = {holding.pod: j for j, holding in enumerate(card.holdings) if holding.pod}
    mine = events[(events["gpu"] == card.gpu) & (events["code"] == "xid")]
    killed = events[(events["code"] == "oom") & events["object"].isin(list(pods))]
    told = pd.concat([mine, killed]) if len(killed) else mine
    if told.empty:
        return []
    columns = told.sort_values("time", kind="stable")[["time", "code", "slice", "object", "message"]]
    gone = _Deaths(card)
    found = []
    for time, code, slice_id, pod, message in columns.itertuples(index=False):
        number = xid_number(message) or 0
        if code == "xid" and xid(number).action != "restart_app":
            continue
        at_ms = to_ms(time)
        at = int(np.clip((at_ms - card.start_ms) // (card.interval_seconds * 1000), 0, card.intervals - 1))
        holders = [j for j, h in enumerate(card.holdings) if h.held and card.alive[max(at - 1, 0) : at + 1, j].any()]
        died = [j for j in holders if gone.around(j, at)]
        named = [j for j in holders if slice_id and card.holdings[j].slice == slice_id]
        culprit = pods.get(pod, -1) if code == "oom" else _charged(named, holders, died)
        what = f"XID {number}" if code == "xid" else "a kill for want of memory"
        found.append(Fault(at, at_ms, what, number, culprit, tuple(j for j in died if j != culprit)))
    return found


def _charged(named: Sequence[int], holders: Sequence[int], died: Sequence[int]) -> int:
    for candidates in (named, holders, died):
        if len(candidates) == 1:
            return candidates[0]
    return -1


class _Deaths:
    """When the processes of a card's holdings died: their rows ended, or their memory was given back at once."""

    def __init__(self, card: Card) -> None:
        self._card = card
        self._memory = card.of_slices("memory_used_bytes")
        self._last = [int(where[-1]) if len(where := np.flatnonzero(alive)) else -1 for alive in card.alive.T]

    def around(self, j: int, at: int) -> bool:
        """Say whether it died in the interval of the fault or the next one."""
        ended = self._last[j] in {at - 1, at, at + 1} and self._last[j] < self._card.newest
        before = self._memory[max(at - 2, 0) : at + 1, j]
        after = self._memory[at : at + 3, j]
        held = float(np.nanmax(before)) if np.isfinite(before).any() else 0.0
        left = float(np.nanmin(after)) if np.isfinite(after).any() else math.inf
        return ended or (held >= _LEAST_BYTES and left < _LEFT * held)


def _beyond(card: Card, j: int, backend: str) -> list[dict[str, Any]]:
    """Return where a slice goes beyond its memory quota, or beyond a hard cap on compute."""
    holding = card.holdings[j]
    common = {
        **card.holder(holding),
        "kind": holding.kind,
        "backend": backend,
    }
    memory, granted = card.of_slices("memory_used_bytes")[:, j], card.of_slices("memory_quota_bytes")[:, j]
    use, quota, measured = _capped_use(card, j)
    if np.isnan(memory).all() and np.isnan(use).all() and holding.kind != "whole":
        return [{**common, "withheld": "neither its memory nor its own use is known"}]
    rows = []
    over = memory > _MEMORY_SLACK * np.where(granted > 0, granted, np.nan)
    if longest_run(over) >= _MEMORY_INTERVALS:
        worst = int(np.nanargmax(np.where(over, memory / granted, np.nan)))
        rows.append(
            _breach(common, "memory", card, worst, float(memory[worst]), float(granted[worst]), int(over.sum()))
        )
    step = max(round(_COMPUTE_SECONDS / card.interval_seconds), 1)
    long_use, long_quota = _means(use, step), _means(quota, step)
    beyond = long_use > long_quota + _COMPUTE_SLACK
    # Use that is divided out of the card's proves nothing in single windows.
    least = _COMPUTE_WINDOWS if measured else max(_COMPUTE_WINDOWS, _MOSTLY * int((long_use > 0).sum()))
    if beyond.sum() >= least:
        worst = int(np.nanargmax(np.where(beyond, long_use - long_quota, np.nan)))
        value, limit = float(long_use[beyond].mean()), float(long_quota[beyond].mean())
        rows.append(_breach(common, "compute", card, worst * step, value, limit, int(beyond.sum()) * step))
    return rows


def _breach(common: Mapping[str, Any], breach: str, card: Card, *worst: float) -> dict[str, Any]:
    at, value, limit, intervals = worst
    return {
        **common,
        "breach": breach,
        "at_ms": int(card.times_ms()[int(at)]),
        "value": value,
        "limit": limit,
        "seconds": intervals * card.interval_seconds,
    }


def _capped_use(card: Card, j: int) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return use and quota of a slice whose compute is capped, both of the card, and whether use is its own counter's.

    NaN where nothing caps it. Of a vGPU slice it is the smaller of its time share and its share of the card's activity.
    """
    nothing = np.full(card.intervals, np.nan)
    holding, quota = card.holdings[j], card.quota[:, j]
    if card.quota_estimated[j] or holding.kind not in {"mig", "mps", "vgpu"}:
        return nothing, nothing, False
    own = card.of_slices("sm_active_ratio")[:, j]
    if np.isfinite(own).any() or holding.kind != "vgpu":
        return own, quota, True
    return np.minimum(card.of_slices("busy_ratio")[:, j], card.used[:, j]), quota, False


def _means(values: np.ndarray, step: int) -> np.ndarray:
    whole = len(values) // step * step
    parts = values[:whole].reshape(-1, step)
    known = np.isfinite(parts).sum(axis=1)
    sums = np.nansum(parts, axis=1)
    return np.where(known >= 0.8 * step, sums / np.maximum(known, 1), np.nan)


def _spread(card: Card, fault: Fault, sources: Mapping[tuple[str, str, str, str], str]) -> dict[str, Any]:
    """Return a fault that neighbours died of; where nobody can be charged, all who died stand as its victims."""
    first = fault.culprit if fault.culprit >= 0 else fault.died[0]
    holding = card.holdings[first]
    source = sources.get((card.cluster, card.node, card.gpu, holding.slice), "")
    charged = fault.culprit >= 0
    return {
        **card.holder(holding if charged else None),
        "kind": holding.kind,
        "backend": backend_of(holding.kind, source),
        "breach": "fault",
        "value": float(len(fault.died)),
        "at_ms": fault.at_ms,
        "what": fault.what,
        "victims": tuple((h.slice, h.tenant, h.workload) for h in (card.holdings[j] for j in fault.died)),
    }


def _finding(row: dict[str, Any], context: Context) -> Finding:
    place = (row["cluster"], row["node"], row["gpu"])
    role = Role.SUSPECT if row["breach"] == "fault" else Role.SUBJECT
    named = [SubjectRef(role, *place, row["slice"], row["workload"], row["tenant"])] if row["slice"] else []
    hit = [SubjectRef(Role.VICTIM, *place, part, workload, tenant) for part, tenant, workload in row["victims"]]
    subjects = (*named, *hit)
    at = pd.Timestamp(int(row["at_ms"]), unit="ms", tz="UTC").to_pydatetime()
    who = f"{row['tenant']}/{row['workload']}" if row["slice"] else "nobody who could be charged"
    by = f"{row['kind']} sharing, enforced by {row['backend']}"
    if row["breach"] == "fault":
        others = ", ".join(f"{tenant}/{workload}" for _, tenant, workload in row["victims"])
        claim = (
            f"{row['what']} of {who} on {row['gpu']} ({row['node']}) at {at:%Y-%m-%d %H:%M} UTC took down {others} "
            f"within one interval: {by}, did not keep them apart"
        )
        effect = Effect(row["value"], "slices", row["value"], row["value"])
        do = "put tenants that do not trust each other on MIG instances or cards of their own"
        risk = "neighbours may have been stopped by their owner in the same minute; a card's own fault kills all"
        sure = 0.85 if row["slice"] else 0.6
    elif row["breach"] == "memory":
        value, limit = row["value"] / 2**30, row["limit"] / 2**30
        claim = (
            f"{who} used {value:.1f} GiB of {row['gpu']} ({row['node']}) beyond its {limit:.1f} GiB for "
            f"{row['seconds'] / 60:.0f} min: {by}, did not hold it"
        )
        over = row["value"] - row["limit"]
        effect = Effect(over, "bytes", over, over)
        do = "see that the layer is loaded in its containers and that its memory limit is on"
        risk = "contexts and drivers count as use in some exporters and not in the quota"
        sure = 0.9
    else:
        claim = (
            f"{who} used {row['value']:.0%} of {row['gpu']} ({row['node']}) beyond its hard {row['limit']:.0%} for "
            f"{row['seconds'] / 60:.0f} min: {by}, did not hold it"
        )
        over = row["value"] - row["limit"]
        effect = Effect(over, "ratio", over, over)
        do = "see whether the layer's core limit is on (some lift it while nobody else wants the card)"
        risk = "layers may lift the limit on purpose while the card is otherwise idle; time share is no SM share"
        sure = 0.75
    return Finding(
        id=finding_id(CODE, subjects, row["breach"]),  # one finding a kind of breach
        code=CODE,
        verdict=Verdict.HOLDS if sure > 0.7 else Verdict.SUSPECTED,
        subjects=subjects,
        window=context.window,
        claim=claim,
        risk=risk,
        confidence=sure,
        coverage=1.0,
        effect=effect,
        channel={"fault": "fault", "memory": "memory", "compute": "SM"}[row["breach"]],
        evidence={
            "breach": row["breach"],
            "backend": row["backend"],
            "kind": row["kind"],
            "at": at,
            "value": row["value"],
            "limit": row["limit"],
            "seconds": row["seconds"],
            "what": row["what"],
            "what_to_do": do,
            "severity": "error",
            "take_out": False,
        },
        simulated=context.simulated,
    )
