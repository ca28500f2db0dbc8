"""TT231 memory oversubscribed, TT232 memory over-reserved, TT233 ghost memory: what is granted, used, and by nobody.

Reserved is what a slice was granted (`memory_quota_bytes`) or what its framework keeps; used is what it held at the
end; the peak is the most that it held in the window.
"""

from __future__ import annotations

import json
import math
from shlex import quote
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.cards import cards
from analyzer.facts import hardware_facts, records, to_float
from analyzer.findings import Effect, Finding, Role, SubjectRef, Verdict, make_finding
from analyzer.protocols import Conclusion, Context, Needs, Partition, Withheld
from analyzer.settings import AnalyzeSettings
from analyzer.shares import Card

GIB = float(1 << 30)
_SHARED = frozenset(("mps", "timeslice", "vgpu"))
_NEAR = 0.8  # of the card: the holders' peaks come near to it
_CURRENT_INTERVALS = 3
_LASTS_MINUTES = 10.0  # ghosts: as long, up to the end
_GHOST_SHARE = 0.02  # of the card
_CONTEXT_BYTES = 0.6 * GIB  # of one process: what some sources count for the card and not for the process
_KEPT_SHARE, _MARGIN = 0.25, 1.15
_KEY = ["cluster", "node", "gpu", "slice"]
_COLUMNS = [*_KEY, "tenant", "workload", "code", "withheld", "applicable", "coverage", "values"]
Vector = npt.NDArray[np.float64]
Judged = dict[str, Any]


class SharingMemoryDetector:
    """Finds cards whose memory is promised twice, kept without need, or held by no living process."""

    codes = ("TT231", "TT232", "TT233")
    needs: ClassVar[Needs] = {
        "TT231": {"slice": ("memory_used_bytes",), "gpu": ("memory_used_bytes",)},
        "TT232": {"slice": ("allocator_allocated_bytes",)},
        "TT233": {"slice": ("memory_used_bytes",), "gpu": ("memory_used_bytes",)},
    }

    def __init__(self, settings: AnalyzeSettings | None = None) -> None:
        self._settings = settings or AnalyzeSettings()

    def measure(self, partition: Partition) -> pd.DataFrame:
        """Return a row a card for TT231 and TT233 and a row a holding for TT232."""
        totals = hardware_facts(partition.facts, "gpu", "memory_total_bytes")
        rows: list[dict[str, Any]] = []
        for card in cards(partition):
            total = to_float(totals.get((card.cluster, card.node, card.gpu, "")))
            total = total if total > 0 else _seen_total(card)
            granted, ghost = self._granted(card, total), self._ghost(card, total)
            rows.append({**card.place, "slice": "", "code": "TT231", **granted})
            rows.append({**card.place, "slice": "", "code": "TT233", **ghost})
            for j, holding in enumerate(card.holdings):
                rows.append({**card.holder(holding), "code": "TT232", **self._kept(card, j)})
        frame = pd.DataFrame(rows, columns=_COLUMNS)
        frame["withheld"] = frame["withheld"].fillna("")
        return frame

    def _granted(self, card: Card, total: float) -> Judged:
        now = _alive_now(card)
        shared = [j for j, h in enumerate(card.holdings) if now[j] and h.held and h.kind in _SHARED]
        if not shared:
            return _not_meant("no slice of it shares memory")
        used = card.of_slices("memory_used_bytes")[:, shared]
        if not total > 0:
            return _without("the card's memory is not known")
        if np.isnan(used).all(axis=0).any():
            return _without("the memory in use of a slice is not known")
        quota = _last(card.of_slices("memory_quota_bytes")[:, shared])
        together = np.nansum(used, axis=1)[~np.isnan(used).all(axis=1)]
        holders = [
            {
                "tenant": card.holdings[j].tenant,
                "workload": card.holdings[j].workload,
                "reserved_bytes": quota[place],
                "used_bytes": _last(used[:, [place]])[0],
                "peak_bytes": float(np.nanmax(used[:, place])),
            }
            for place, j in enumerate(shared)
        ]
        values = {
            "total": total,
            "granted": float(quota.sum()),  # NaN: one has no quota, and may take all
            "peaks": float(np.nanmax(used, axis=0).sum()),
            "together": float(together.max()),
            "holders": json.dumps(holders),
        }
        return _measured(values, float((~np.isnan(used)).any(axis=1).sum() / max(_life(card, shared), 1)))

    def _ghost(self, card: Card, total: float) -> Judged:
        on_card = card.of_card("memory_used_bytes")
        if np.isnan(on_card).all() or card.newest < 0:
            return _without("the card's memory in use is not known")
        if not card.holdings:
            return _without("nothing lists the processes of the card")
        used = card.of_slices("memory_used_bytes")
        told = ~np.isnan(used).all(axis=0)
        held = np.array([h.held for h in card.holdings], dtype=bool)
        if (held & ~told & _alive_now(card)).any():
            return _without("the memory in use of a slice is not known")
        # A sample that is missing between two others is bridged by the last one; where a slice lives without any, all
        # that the card uses may be its own.
        own = pd.DataFrame(used).ffill(limit=_CURRENT_INTERVALS).to_numpy(np.float64)
        blind = (card.held & np.isnan(own)).any(axis=1)
        living = card.held.sum(axis=1)
        over = on_card - np.nansum(np.where(card.alive, own, 0.0), axis=1) - _CONTEXT_BYTES * np.maximum(living, 1)
        over[blind] = np.nan
        floor = max(GIB, _GHOST_SHARE * total) if total > 0 else GIB
        intervals = max(math.ceil(_LASTS_MINUTES * 60 / card.interval_seconds), 2)
        last = over[: card.newest + 1]
        known = last[~np.isnan(last)]
        if not len(known):
            return _without("no interval in which the card's and its slices' memory are both known")
        quiet = np.flatnonzero(~(known > floor))
        since = int(quiet[-1]) + 1 if len(quiet) else 0
        stretch = known[since:]
        values = {
            "bytes": float(np.median(stretch)) if len(stretch) else 0.0,
            "least": float(stretch.min()) if len(stretch) else 0.0,
            "most": float(stretch.max()) if len(stretch) else 0.0,
            "minutes": len(stretch) * card.interval_seconds / 60,
            "lasts": float(len(stretch) >= intervals),
            "living": float(living[card.newest]),
            "total": total,
        }
        return _measured(values, len(known) / max(len(last), 1))

    def _kept(self, card: Card, j: int) -> Judged:
        if not card.holdings[j].held:
            return _not_meant("nobody holds it")
        need = card.of_slices("allocator_allocated_bytes")[:, j]
        kept = card.of_slices("memory_used_bytes")[:, j]
        kept = np.where(np.isnan(kept), card.of_slices("allocator_reserved_bytes")[:, j], kept)
        if np.isnan(need).all():
            return _not_meant("no gauge of what its framework's tensors use")
        known = ~(np.isnan(need) | np.isnan(kept))
        coverage = float(known.sum() / max(int(card.alive[:, j].sum()), 1))
        if not known.any() or coverage < self._settings.coverage_floor:
            return _without(f"coverage {coverage:.0%} is below the floor {self._settings.coverage_floor:.0%}")
        values = {
            "kept": float(np.median(kept[known])),
            "used": float(need[known][-1]),
            "peak": float(need[known].max()),
            "quota": float(_last(card.of_slices("memory_quota_bytes")[:, [j]])[0]),
        }
        return _measured(values, min(coverage, 1.0))

    def conclude(self, measures: pd.DataFrame, context: Context) -> Conclusion:
        """Judge each card and holding by itself."""
        if measures.empty:
            return Conclusion([], [])
        findings: list[Finding] = []
        withheld: list[Withheld] = []
        judges = {"TT231": _judge_granted, "TT232": _judge_kept, "TT233": _judge_ghost}
        for row in records(measures.sort_values([*_KEY, "code"], kind="stable")):
            if row["withheld"]:
                place = (row["cluster"], row["node"], row["gpu"], row["slice"])
                withheld.append(Withheld(row["code"], *place, row["withheld"], bool(row["applicable"])))
                continue
            judged = judges[row["code"]](row, context)
            if judged is not None:
                findings.append(judged)
        return Conclusion(findings, withheld)


def _measured(values: dict[str, Any], coverage: float) -> Judged:
    return {"values": values, "coverage": coverage, "withheld": "", "applicable": True}


def _without(reason: str) -> Judged:
    return {"withheld": reason, "applicable": True}


def _not_meant(reason: str) -> Judged:
    return {"withheld": reason, "applicable": False}


def _seen_total(card: Card) -> float:
    both = card.of_card("memory_used_bytes") + card.of_card("memory_free_bytes")
    return float(np.nanmax(both)) if not np.isnan(both).all() else math.nan


def _alive_now(card: Card) -> npt.NDArray[np.bool_]:
    if card.newest < 0:
        return np.zeros(len(card.holdings), dtype=bool)
    return np.asarray(card.alive[max(card.newest - _CURRENT_INTERVALS, 0) : card.newest + 1].any(axis=0))


def _life(card: Card, which: list[int]) -> int:
    return int(card.alive[:, which].any(axis=1).sum())


def _last(matrix: npt.NDArray[np.float64]) -> Vector:
    """Return the last known value of each column, (S,); NaN: none."""
    return np.asarray(pd.DataFrame(matrix).ffill().iloc[-1].to_numpy(np.float64))


def _gib(size: float) -> str:
    return f"{size / GIB:.1f} GiB"


def _judge_granted(row: dict[str, Any], context: Context) -> Finding | None:
    v = row["values"]
    total, granted = v["total"], v["granted"]
    unlimited = math.isnan(granted)
    if not unlimited and granted <= total:
        return None
    if unlimited and v["peaks"] < _NEAR * total:
        return None
    if v["peaks"] > total:
        verdict = Verdict.HOLDS
    else:
        verdict = Verdict.SUSPECTED if v["peaks"] >= _NEAR * total else Verdict.NO_EFFECT
    holders = json.loads(v["holders"])
    what = "and some have no limit" if unlimited else f"who are granted {_gib(granted)}"
    return make_finding(
        "TT231",
        verdict,
        (SubjectRef(Role.SUBJECT, row["cluster"], row["node"], row["gpu"]),),
        context.window,
        claim=(
            f"{row['gpu']} on {row['node']}: {_gib(total)} for {len(holders)} holders, {what}; their own peaks sum to "
            f"{_gib(v['peaks'])}, the most at one time was {_gib(v['together'])}"
        ),
        risk="peaks need not meet; where the layer swaps to host memory, running over costs speed and not the work",
        confidence=0.9 * min(row["coverage"], 1.0),
        coverage=min(row["coverage"], 1.0),
        effect=Effect(v["peaks"] / total, "ratio", v["together"] / total, np.fmax(v["peaks"], granted) / total),
        evidence={
            "card_bytes": total,
            "granted_bytes": granted,
            "sum_of_peaks_bytes": v["peaks"],
            "peak_together_bytes": v["together"],
            "holders": holders,
        },
        simulated=context.simulated,
    )


def _judge_kept(row: dict[str, Any], context: Context) -> Finding | None:
    v = row["values"]
    need = _MARGIN * v["peak"] + _CONTEXT_BYTES
    over = v["kept"] - need
    if over < GIB or over < _KEPT_SHARE * v["kept"]:
        return None
    who = {name: row[name] for name in (*_KEY, "tenant", "workload")}
    return make_finding(
        "TT232",
        Verdict.HOLDS,
        (SubjectRef(Role.SUBJECT, **who),),
        context.window,
        claim=(
            f"{row['tenant']}/{row['workload']} keeps {_gib(v['kept'])} of {row['gpu']} on {row['node']}; its tensors "
            f"never used more than {_gib(v['peak'])}: {_gib(need)} would do"
        ),
        risk="memory outside of the framework's allocator (libraries, graphs, a cache of its own) is not in its gauges",
        confidence=0.85,
        coverage=row["coverage"],
        effect=Effect(over, "bytes", over, max(v["kept"] - v["used"], over)),
        evidence={
            "reserved_bytes": v["kept"],
            "used_bytes": v["used"],
            "peak_bytes": v["peak"],
            "quota_bytes": v["quota"],
            "would_do_bytes": need,
            "what_to_do": (
                "limit what the framework takes (torch.cuda.set_per_process_memory_fraction, gpu_memory_utilization), "
                "then lower its quota"
            ),
        },
        simulated=context.simulated,
    )


def _judge_ghost(row: dict[str, Any], context: Context) -> Finding | None:
    v = row["values"]
    if not v["lasts"]:
        return None
    # With a living holder the rest may be his: contexts, or a process that his exporter does not see.
    verdict = Verdict.HOLDS if v["living"] == 0 else Verdict.SUSPECTED
    return make_finding(
        "TT233",
        verdict,
        (SubjectRef(Role.SUBJECT, row["cluster"], row["node"], row["gpu"]),),
        context.window,
        claim=(
            f"{_gib(v['bytes'])} of {row['gpu']} on {row['node']} are in use and no living process accounts for them, "
            f"for {v['minutes']:.0f} min up to now"
            + ("" if v["living"] == 0 else f", beside {v['living']:.0f} that live there")
        ),
        risk="a process outside of all containers, or one whose memory is not listed, looks like a dead one",
        confidence=0.85 if verdict is Verdict.HOLDS else 0.5,
        coverage=min(row["coverage"], 1.0),
        effect=Effect(v["bytes"], "bytes", v["least"], v["most"]),
        evidence={
            "ghost_bytes": v["bytes"],
            "minutes": v["minutes"],
            "card_bytes": v["total"],
            "living_slices": v["living"],
            "check": f"nvidia-smi --query-compute-apps=pid,used_memory --format=csv -i {quote(row['gpu'])}",
            "what_to_do": (
                "on the node, look who has the device open (fuser -v /dev/nvidia*) and end what is left over; where "
                "nobody has, the card gives it back when it is reset, empty"
            ),
        },
        simulated=context.simulated,
    )
