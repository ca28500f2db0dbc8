"""TT241 the allocator fragments, TT242 releasable memory, TT243 the key-value cache: of the live gauges of servers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.allocator import fragments, much_releasable
from analyzer.facts import records
from analyzer.findings import Effect, Finding, Role, SubjectRef, Verdict, make_finding
from analyzer.known import known_sum
from analyzer.protocols import Conclusion, Context, Needs, Partition, Withheld
from analyzer.runs import run_starts
from analyzer.settings import AnalyzeSettings
from collector.schema import NOBODY

_KEY = ["cluster", "node", "gpu", "slice"]
_ALLOCATOR = ("allocator_reserved_bytes", "allocator_allocated_bytes", "allocator_inactive_split_bytes")
_CACHE = "kv_cache_used_ratio"
_ASKED = re.compile(r"asked for (\d+) bytes")
_FEWEST_SAMPLES = 30
_FULL, _OFTEN = 0.95, 0.05  # a cache is the limit when it is so full in such a part of the samples
_EMPTY = 0.5  # of the pool: never used, by the 99 % quantile
_ADVICE = (
    "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (on older versions max_split_size_mb:128) and restart; "
    "`trimtab analyze fragmentation --allocator FILE` replays a memory snapshot under each setting"
)
_COLUMNS = [*_KEY, "tenant", "workload", "code", "withheld", "applicable", "coverage", "samples", "values"]
Vector = npt.NDArray[np.float64]


class AllocatorDetector:
    """Finds memory that frameworks hold and cannot use or give back, and caches that are full or mostly empty."""

    codes = ("TT241", "TT242", "TT243")
    needs: ClassVar[Needs] = {
        "TT241": {"slice": _ALLOCATOR},
        "TT242": {"slice": _ALLOCATOR},
        "TT243": {"slice": (_CACHE,)},
    }

    def __init__(self, settings: AnalyzeSettings | None = None) -> None:
        self._settings = settings or AnalyzeSettings()

    def measure(self, partition: Partition) -> pd.DataFrame:
        """Return a row a slice and code; `values` is a mapping of what was measured."""
        rows = partition.slice.sort_values([*_KEY, "time"], kind="stable")
        if rows.empty:
            return pd.DataFrame(columns=_COLUMNS)
        columns = {name: _column(rows, name) for name in (*_ALLOCATOR, _CACHE)}
        columns |= {name: _column(rows, name) for name in ("preemption_count", "queue_depth_count")}
        keys = rows[_KEY].to_numpy(dtype=object)
        holders = rows[["tenant", "workload"]].to_numpy(dtype=object)
        failed = _failed_asks(partition.events)
        found: list[dict[str, Any]] = []
        starts = run_starts(*keys.T)
        for first, end in zip(starts, [*starts[1:], len(rows)], strict=True):
            key = dict(zip(_KEY, (str(part) for part in keys[first]), strict=True))
            tenant, workload = (str(part) for part in holders[end - 1])
            mine = {name: values[first:end] for name, values in columns.items()}
            asked = failed.get((key["gpu"], key["slice"]), math.nan)
            common = {**key, "tenant": tenant, "workload": workload, "withheld": "", "applicable": True}
            for code, measured in self._measured(mine, asked, held=workload != NOBODY).items():
                found.append({**common, "code": code, **measured})
        return pd.DataFrame(found, columns=_COLUMNS)

    def _measured(self, fields: dict[str, Vector], asked: float, *, held: bool) -> dict[str, dict[str, Any]]:
        if not held:
            gone = {"withheld": "nobody holds it", "applicable": False}
            return dict.fromkeys(self.codes, gone)
        reserved, allocated, stuck = (fields[name] for name in _ALLOCATOR)
        known = ~(np.isnan(reserved) | np.isnan(allocated) | np.isnan(stuck))
        cache = fields[_CACHE]
        return {
            "TT241": self._told(known, "no gauges of a framework's allocator", 1)
            or {**_share(known), "values": _fragments(reserved[known], allocated[known], stuck[known], asked)},
            "TT242": self._told(known, "no gauges of a framework's allocator", 1)
            or {**_share(known), "values": _releasable(reserved[known], allocated[known], stuck[known])},
            "TT243": self._told(~np.isnan(cache), "no gauge of a key-value cache", _FEWEST_SAMPLES)
            or {**_share(~np.isnan(cache)), "values": _cached(cache, fields)},
        }

    def _told(self, known: npt.NDArray[np.bool_], reason: str, fewest: int) -> dict[str, Any] | None:
        count = int(known.sum())
        if not count:
            return {"withheld": reason, "applicable": False}
        if count < fewest:
            return {"withheld": f"fewer than {fewest} samples"}
        # A snapshot is one sample and complete in itself; gauges must cover the time between first and last.
        span = np.flatnonzero(known)
        coverage = count / (span[-1] - span[0] + 1)
        if coverage < self._settings.coverage_floor:
            return {"withheld": f"coverage {coverage:.0%} is below the floor {self._settings.coverage_floor:.0%}"}
        return None

    def conclude(self, measures: pd.DataFrame, context: Context) -> Conclusion:
        """Judge each slice by itself."""
        if measures.empty:
            return Conclusion([], [])
        findings: list[Finding] = []
        withheld: list[Withheld] = []
        for row in records(measures.sort_values([*_KEY, "code"], kind="stable")):
            if row["withheld"]:
                place = (row["cluster"], row["node"], row["gpu"], row["slice"])
                withheld.append(Withheld(row["code"], *place, row["withheld"], bool(row["applicable"])))
                continue
            judged = _JUDGES[row["code"]](row, context)
            if judged is not None:
                findings.append(judged)
        return Conclusion(findings, withheld)


def _column(rows: pd.DataFrame, name: str) -> Vector:
    return rows[name].to_numpy(np.float64) if name in rows else np.full(len(rows), np.nan)


def _share(known: npt.NDArray[np.bool_]) -> dict[str, Any]:
    span = np.flatnonzero(known)
    return {"samples": int(known.sum()), "coverage": float(known.sum() / (span[-1] - span[0] + 1))}


def _failed_asks(events: pd.DataFrame) -> dict[tuple[str, str], float]:
    """Return the smallest number of bytes that was asked for in vain, by card and slice."""
    found: dict[tuple[str, str], float] = {}
    if events.empty:
        return found
    told = events[events["code"] == "oom"]
    for gpu, part, message in told[["gpu", "slice", "message"]].itertuples(index=False, name=None):
        asked = _ASKED.search(str(message))
        if asked:
            key = (str(gpu), str(part))
            found[key] = min(found.get(key, math.inf), float(asked[1]))
    return found


def _fragments(reserved: Vector, allocated: Vector, stuck: Vector, asked: float) -> dict[str, float]:
    often = np.mean([fragments(s, r, a) for s, r, a in zip(stuck, reserved, allocated, strict=True)])
    at = int(np.argmax(stuck))
    return {
        "reserved": float(reserved[-1]),
        "allocated": float(allocated[-1]),
        "stuck": float(stuck[-1]),
        "stuck_peak": float(stuck[at]),
        "reserved_then": float(reserved[at]),
        "often": float(often),
        "now": float(fragments(stuck[-1], reserved[-1], allocated[-1])),
        "asked": asked,
        "cached_peak": float(np.max(reserved - allocated)),
    }


def _releasable(reserved: Vector, allocated: Vector, stuck: Vector) -> dict[str, float]:
    releasable = np.clip(reserved - allocated - stuck, 0.0, None)
    return {
        "always": float(np.quantile(releasable, 0.05, method="lower")),
        "middle": float(np.median(releasable)),
        "now": float(releasable[-1]),
        "reserved": float(reserved[-1]),
    }


def _cached(cache: Vector, fields: dict[str, Vector]) -> dict[str, float]:
    known = cache[~np.isnan(cache)]
    queued = fields["queue_depth_count"][cache >= _FULL]
    waiting = queued[~np.isnan(queued)] > 0
    return {
        "full_part": float(np.mean(known >= _FULL)),
        "peak": float(np.quantile(known, 0.99, method="higher")),
        "middle": float(np.median(known)),
        "preempted": known_sum(fields["preemption_count"]),
        "waiting_part": float(np.mean(waiting)) if len(waiting) else math.nan,
    }


def _subject(row: dict[str, Any]) -> tuple[SubjectRef, ...]:
    return (SubjectRef(Role.SUBJECT, **{name: row[name] for name in (*_KEY, "tenant", "workload")}),)


def _who(row: dict[str, Any]) -> str:
    return f"{row['tenant']}/{row['workload']} on {row['gpu']} on {row['node']}"


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"


def _judge_fragments(row: dict[str, Any], context: Context) -> Finding | None:
    v = row["values"]
    in_vain = v["asked"] <= v["cached_peak"]  # NaN: nothing was asked for in vain
    if not in_vain and not v["now"] and v["often"] < 0.1:
        return None
    sure = in_vain or (bool(v["now"]) and v["often"] >= 0.5)
    claim = (
        f"{_who(row)}: {_gib(v['stuck'])} of {_gib(v['reserved'])} that its allocator holds lie between tensors that "
        f"live and can neither be given back nor serve a large request"
    )
    if in_vain:
        claim += f"; {_gib(v['asked'])} were asked for in vain while up to {_gib(v['cached_peak'])} lay unused"
    return make_finding(
        "TT241",
        Verdict.HOLDS if sure else Verdict.SUSPECTED,
        _subject(row),
        context.window,
        claim=claim,
        risk="a peak of activity leaves such pieces behind and the next one fills them again",
        confidence=0.9 if sure else 0.5,
        coverage=row["coverage"],
        effect=Effect(v["stuck"], "bytes", min(v["stuck"], v["stuck_peak"]), v["stuck_peak"]),
        evidence={
            "reserved_bytes": v["reserved"],
            "allocated_bytes": v["allocated"],
            "stuck_bytes": v["stuck"],
            "stuck_peak_bytes": v["stuck_peak"],
            "part_of_samples": v["often"],
            "asked_in_vain_bytes": v["asked"],
            "samples": row["samples"],
            "what_to_do": _ADVICE,
        },
        simulated=context.simulated,
    )


def _judge_releasable(row: dict[str, Any], context: Context) -> Finding | None:
    v = row["values"]
    if not much_releasable(v["middle"], v["reserved"]):
        return None
    sure = much_releasable(v["always"], v["reserved"])
    return make_finding(
        "TT242",
        Verdict.HOLDS if sure else Verdict.SUSPECTED,
        _subject(row),
        context.window,
        claim=(
            f"{_who(row)} keeps {_gib(v['middle'])} in segments without any tensor and could give them back: "
            f"{_gib(v['always'])} lay unused nearly always"
        ),
        risk=(
            "blocks that wait for a stream count as free here; what is given back must be fetched again, slowly, "
            "when the next peak comes"
        ),
        confidence=0.9 if sure else 0.5,
        coverage=row["coverage"],
        effect=Effect(v["middle"], "bytes", v["always"], max(v["now"], v["middle"])),
        evidence={
            "reserved_bytes": v["reserved"],
            "releasable_bytes": v["now"],
            "releasable_nearly_always_bytes": v["always"],
            "samples": row["samples"],
            "what_to_do": (
                "call torch.cuda.empty_cache() after warm-up or between phases, or set "
                "PYTORCH_CUDA_ALLOC_CONF=garbage_collection_threshold:0.8"
            ),
        },
        simulated=context.simulated,
    )


def _judge_cache(row: dict[str, Any], context: Context) -> Finding | None:
    v = row["values"]
    full = v["full_part"] >= _OFTEN
    if not full and v["peak"] >= _EMPTY:
        return None
    hurt = v["preempted"] > 0 or v["waiting_part"] >= 0.5
    if full:
        claim = f"{_who(row)}: its key-value cache is full in {v['full_part']:.0%} of the samples"
        claim += f", and {v['preempted']:.0f} sequences were pushed out of it" if v["preempted"] > 0 else ""
        claim += ", while requests wait" if v["waiting_part"] >= 0.5 else ""
        todo = "give the server more memory, a cache of smaller numbers (fp8), or a lower limit of sequences at once"
    else:
        claim = (
            f"{_who(row)}: its key-value cache was never more than {v['peak']:.0%} full; the rest of the pool is set "
            "aside for nothing"
        )
        todo = "lower gpu_memory_utilization (or its like) and restart: the pool is taken when the server starts"
    return make_finding(
        "TT243",
        Verdict.HOLDS if hurt or not full else Verdict.SUSPECTED,
        _subject(row),
        context.window,
        claim=claim,
        risk=(
            "a cache of prefixes fills itself with what may be used again, and looks full without harm"
            if full
            else "a peak that comes less often than the window is long is not in it"
        ),
        confidence=0.9 if hurt or not full else 0.5,
        coverage=row["coverage"],
        effect=Effect(v["full_part"], "ratio", v["full_part"], v["full_part"])
        if full
        else Effect(1 - v["peak"], "ratio", 1 - v["peak"], 1 - v["middle"]),
        evidence={
            "kind": "full" if full else "mostly empty",
            "peak_used_ratio": v["peak"],
            "median_used_ratio": v["middle"],
            "part_of_samples_full": v["full_part"],
            "preempted": v["preempted"],
            "samples": row["samples"],
            "what_to_do": todo,
        },
        simulated=context.simulated,
    )


_JUDGES: dict[str, Callable[[dict[str, Any], Context], Finding | None]] = {
    "TT241": _judge_fragments,
    "TT242": _judge_releasable,
    "TT243": _judge_cache,
}
