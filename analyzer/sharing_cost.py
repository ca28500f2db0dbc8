"""TT112: what sharing costs a workload: work per granted SM-second, against its own record alone or on a whole card.

The cost of a unit of work is the time that it takes times the SMs that were granted meanwhile; work per granted
SM-second is its inverse. Granted is a MIG instance's or a hard quota's share; where a neighbour's idle SMs can be used
(rotation, MPS without a limit), whatever the others leave. Blocks of ten minutes are compared, of one workload on one
model of card; where requests are counted, at the same request rate. Of a workload that was never alone, the time in
which its neighbours rest stands for that: what they cost beyond that time is estimated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from analyzer.cards import cards
from analyzer.evidence import SampleWindows, alike, sample_windows
from analyzer.facts import records
from analyzer.findings import Effect, Finding, Role, SubjectRef, Verdict, finding_id
from analyzer.granularity import fitting_cuts, measure_use
from analyzer.mig import board_of
from analyzer.protocols import Conclusion, Context, Needs, Partition, Withheld
from analyzer.settings import AnalyzeSettings
from analyzer.shares import Card
from analyzer.sharing_record import FILLED, MOMENTS, Comparison, Record, block_moments, compare
from collector.schema import NOBODY, UNKNOWN

CODE = "TT112"
SOLO = "solo"
_REST = "rest beside "  # and the kind of sharing
_QUIET, _BESIDE = 0.05, 0.1  # others' use of the card: up to here alone, from here on shared
_RESTING = 0.5  # of what is usual beside it: up to here its neighbours rest
_MOST_STRETCH = 2.5
_REST_FILLED, _FEWEST_RESTS = 0.2, 12  # neighbours rest for minutes at a time: of a block, and blocks
_ESTIMATED = 0.7  # trust in a record of resting neighbours
_WORKS = 0.05
_FEWEST_BLOCKS = 6
_OVERUSE = 1.1  # use beyond its quota from which an MPS share is no hard limit
_PLACE = ["cluster", "node", "gpu", "slice"]
_COLUMNS = [
    *_PLACE,
    "tenant",
    "workload",
    "model",
    "kind",
    "mode",
    "basis",
    "alike",
    "bound",
    "use",
    "withheld",
    *MOMENTS,
]
_TRUST = {"step_seconds": 0.9, "steps_count": 0.8, "latency_p50_seconds": 0.65, "": 0.0}


class SharingCostDetector:
    """Compares each workload's work per granted SM-second while it shares with its own record alone."""

    codes = (CODE,)
    needs: ClassVar[Needs] = {CODE: {"slice": ("step_seconds|steps_count|latency_p50_seconds",)}}

    def __init__(self, settings: AnalyzeSettings | None = None) -> None:
        self._settings = settings if settings is not None else AnalyzeSettings()

    def measure(self, partition: Partition) -> pd.DataFrame:
        """Return a row a holding and mode (alone, or how it shared): moments of ln(cost) over blocks."""
        windows = sample_windows(partition.facts)
        rows = [row for card in cards(partition) for row in _of_card(card, windows)]
        return pd.DataFrame(rows, columns=_COLUMNS)

    def conclude(self, measures: pd.DataFrame, context: Context) -> Conclusion:
        """Pool each workload's records over the fleet and compare its modes."""
        if measures.empty:
            return Conclusion([], [])
        findings: list[Finding] = []
        withheld: list[Withheld] = []
        groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for row in records(measures.sort_values([*_PLACE, "tenant", "workload", "mode"], kind="stable")):
            if row["withheld"]:
                withheld.append(_withheld(row, row["withheld"], applicable=row["kind"] != "whole"))
            else:
                key = tuple(row[name] for name in ("cluster", "tenant", "workload", "model", "basis"))
                groups.setdefault(key, []).append(row)
        for rows in groups.values():
            by_mode: dict[str, list[dict[str, Any]]] = {}
            for row in rows:
                by_mode.setdefault(row["mode"], []).append(row)
            alone = by_mode.pop(SOLO, [])
            rests = {mode: by_mode.pop(mode) for mode in list(by_mode) if mode.startswith(_REST)}
            solo = Record.pooled(alone)
            for mode, shared in sorted(by_mode.items()):
                record = Record.pooled(shared)
                rest = Record.pooled(rests.get(_REST + mode, []))
                if record.blocks < _FEWEST_BLOCKS:
                    reason = "it worked beside others for less than an hour"
                elif solo.blocks >= _FEWEST_BLOCKS:
                    findings.append(self._finding(shared, solo, record, mode, context))
                    continue
                elif rest.blocks < _FEWEST_RESTS or _stretch(rest, record) > _MOST_STRETCH:
                    reason = "it was never seen alone for an hour, nor on a whole card; its neighbours rest too little"
                else:
                    findings.append(self._finding(shared, rest, record, mode, context, estimated=True))
                    continue
                withheld += [_withheld(row, reason) for row in shared]
            if not by_mode:
                withheld += [_withheld(row, "nobody worked beside it", applicable=False) for row in alone]
        return Conclusion(findings, withheld)

    def _finding(
        self,
        shared: Sequence[dict[str, Any]],
        solo: Record,
        record: Record,
        mode: str,
        context: Context,
        *,
        estimated: bool = False,
    ) -> Finding:
        row = shared[0]
        bandwidth = any(r["bound"] == "bandwidth" for r in shared) or solo.bound == "bandwidth"
        limit = self._settings.sharing_bandwidth_cost_limit if bandwidth else self._settings.sharing_compute_cost_limit
        stretch = _stretch(solo, record) if estimated else 1.0
        found = compare(solo, record, limit, bandwidth=bandwidth, stretch=stretch)
        promise = context.declarations.get((row["cluster"], row["tenant"], row["workload"]))
        offline = promise is not None and promise.declared and promise.declaration.service_class == "offline"
        use = max((r["use"] for r in shared), key=lambda u: np.nan_to_num(u["compute"], nan=-1.0))
        cut = fitting_cuts(use, row["model"], online=not offline, private=True)[0]
        subjects = (SubjectRef(Role.SUBJECT, row["cluster"], workload=row["workload"], tenant=row["tenant"]),)
        trust = _TRUST[row["basis"]] * (1.0 if found.same_load else 0.6) * (_ESTIMATED if estimated else 1.0)
        return Finding(
            id=finding_id(CODE, subjects, f"{mode} {row['model']}"),
            code=CODE,
            verdict=found.verdict,
            subjects=subjects,
            window=context.window,
            claim=_claim(found, row, cut.text, bandwidth=bandwidth, estimated=estimated),
            risk="another release, other inputs or another batch size between the two look like a cost of sharing"
            + ("; what its neighbours cost while they rest is not seen" if estimated else ""),
            confidence=trust,
            coverage=1.0,
            effect=Effect(found.cost, "ratio", found.lower, found.upper),
            channel="DRAM" if bandwidth else "SM",
            evidence={
                "mode": mode,
                "model": row["model"],
                "work_is_told_by": row["basis"],
                "resource": "bandwidth" if bandwidth else "compute",
                "limit": limit,
                "provenance": "estimated" if estimated else "measured",
                "alone_is": "its neighbours at rest" if estimated else "alone, or a whole card",
                "neighbours_ran_alone": solo.beside,
                "neighbours_ran_shared": record.beside,
                "blocks_alone": solo.blocks,
                "blocks_shared": record.blocks,
                "at_request_rate": found.rate,
                "same_load": found.same_load,
                "grows_with_request_rate": found.grows,
                "growth_per_doubling": found.growth,
                "cost_at_high_rate": found.cost_high,
                "fits": {"kind": cut.kind, "profile": cut.profile, "share": cut.share},
                "what_to_do": f"give it {cut.text}" if found.verdict is not Verdict.NO_EFFECT else "",
            },
            needs=("a day on a whole card, or hours in which its neighbours rest, at its usual load",)
            if found.verdict is Verdict.CANNOT_TELL
            else (),
            simulated=context.simulated,
        )


def _claim(found: Comparison, row: Mapping[str, Any], cut: str, *, bandwidth: bool, estimated: bool) -> str:
    who, mode, name = f"{row['tenant']}/{row['workload']}", row["mode"], row["model"] or "its card"
    how = " (estimated from the time in which its neighbours rest)" if estimated else ""
    unit = f"per granted {'memory bandwidth' if bandwidth else 'SM'}-second"
    if found.verdict in {Verdict.HOLDS, Verdict.SUSPECTED}:
        size = f"{found.cost:.0%} ({found.lower:.0%} to {found.upper:.0%})"
        grows = ", and the more requests, the more" if found.grows else ""
        advice = "do not share it" if found.verdict is Verdict.HOLDS else "better do not share it"
        return (
            f"{who} does {size} less work {unit} under {mode} than alone on {name}{how}{grows}: {advice}; {cut} fits it"
        )
    if found.verdict is Verdict.NO_EFFECT:
        most = f"at most {max(found.upper, 0.0):.0%} of its work {unit}"
        return f"sharing under {mode} costs {who} {most} on {name}{how}: it may"
    span = f"between {found.lower:.0%} and {found.upper:.0%} of its work {unit}"
    return f"whether sharing under {mode} costs {who} too much on {name} cannot be told: {span}{how}"


def _stretch(rest: Record, shared: Record) -> float:
    """Return how many times more neighbours run while they work than they run more then than while they rest."""
    more = shared.beside - rest.beside
    return shared.beside / more if more > 0 else math.inf


def _withheld(row: Mapping[str, Any], reason: str, *, applicable: bool = True) -> Withheld:
    return Withheld(CODE, row["cluster"], row["node"], row["gpu"], row["slice"], reason, applicable)


class _Neighbours:
    """What all holdings of a card use, and for how long they are busy; NaN where a living one tells neither."""

    def __init__(self, card: Card) -> None:
        used = np.where(card.held, card.used, 0.0)
        # A neighbour that runs is there, even if hardly any of the card's activity is its own.
        running = np.where(card.held, np.fmax(card.used, card.of_slices("busy_ratio")), 0.0)
        self._used, self._running = used, running
        self._all_used, self._all_running = used.sum(axis=1), running.sum(axis=1)

    def use_beside(self, j: int) -> np.ndarray:
        return np.asarray(np.maximum(self._all_used - self._used[:, j], 0.0))

    def running_beside(self, j: int) -> np.ndarray:
        return np.asarray(np.maximum(self._all_running - self._running[:, j], 0.0))


def _of_card(card: Card, windows: Mapping[tuple[str, str, str, str], SampleWindows]) -> Iterator[dict[str, Any]]:
    neighbours = _Neighbours(card) if len(card.holdings) > 1 else None
    work = {name: card.of_slices(name) for name in ("step_seconds", "steps_count", "latency_p50_seconds")}
    rates = card.of_slices("requests_per_second")
    for j, holding in enumerate(card.holdings):
        if not holding.held:
            continue
        common: dict[str, Any] = {
            **card.holder(holding),
            "model": card.model,
            "kind": holding.kind,
            "withheld": "",
            "use": {},
        }
        basis = next((name for name, values in work.items() if np.isfinite(values[:, j]).any()), "")
        if not basis or holding.workload in {"", UNKNOWN, NOBODY}:
            reason = (
                "which workload it is, is not known" if basis else "no step_seconds, steps_count or latency_p50_seconds"
            )
            yield {**common, **dict.fromkeys(MOMENTS, 0.0), "mode": "", "basis": "", "withheld": reason}
            continue
        nobody = np.zeros(card.intervals)
        running = neighbours.running_beside(j) if neighbours is not None else nobody
        granted, memory = _granted(card, j, neighbours.use_beside(j) if neighbours is not None else nobody)
        seconds = _seconds_per_unit(card, j, basis, work[basis][:, j], granted)
        with np.errstate(divide="ignore", invalid="ignore"):
            y = np.log(seconds * granted)
            r = np.log(rates[:, j])
            more = np.log(memory / granted)
        y[~np.isfinite(y) | ~card.alive[:, j]] = np.nan
        r[~np.isfinite(r)] = np.nan
        told = windows.get((card.cluster, card.node, card.gpu, holding.slice))
        same = told is None or alike(*(told.seconds(n, card.interval_seconds) for n in (basis, "requests_per_second")))
        use, bound = measure_use(card, j), _bound(card, j)
        beside = running >= _BESIDE
        usual = float(np.median(running[beside])) if beside.any() else math.nan
        rest = (running >= _QUIET) & (running <= _RESTING * usual)
        modes = {SOLO: running < _QUIET, holding.kind: beside, _REST + holding.kind: rest}
        if holding.kind in {"whole", "mig"}:
            modes = {SOLO if holding.kind == "whole" else "mig": np.ones(card.intervals, dtype=bool)}
        for mode, when in modes.items():
            filled = _REST_FILLED if mode.startswith(_REST) else FILLED
            moments = block_moments(
                np.where(when, y, np.nan), r, more, running, interval_seconds=card.interval_seconds, least_filled=filled
            )
            if moments["n"] or mode == holding.kind != "whole":
                yield {**common, **moments, "mode": mode, "basis": basis, "alike": same, "bound": bound, "use": use}


def _granted(card: Card, j: int, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the share of the SMs, and of the memory interface, that a holding was granted, (T,) each."""
    holding = card.holdings[j]
    quota = np.where(card.quota[:, j] > 0, card.quota[:, j], np.nan)
    if holding.kind == "whole":
        return np.ones(card.intervals), np.ones(card.intervals)
    if holding.kind == "mig":
        board = board_of(card.model, [holding.profile])
        profile = board.profiles.get(holding.profile) if board is not None else None
        part = profile.size / board.memory_slices if board is not None and profile is not None else math.nan
        return quota, np.where(math.isnan(part), quota, part)
    if holding.kind == "vgpu":
        return quota, quota
    known = card.used[:, j][np.isfinite(card.used[:, j])]
    median = float(np.nanmedian(quota)) if np.isfinite(quota).any() else math.nan
    capped = holding.kind == "mps" and not card.quota_estimated[j]
    if capped and len(known) and float(np.quantile(known, 0.99)) <= _OVERUSE * median:
        return quota, quota
    left = np.fmax(quota, 1 - np.minimum(others, 1.0))
    return left, left


def _seconds_per_unit(card: Card, j: int, basis: str, values: np.ndarray, granted: np.ndarray) -> np.ndarray:
    if basis != "steps_count":
        return np.where(values > 0, values, np.nan)
    # Counted work tells a time only while it fills what is granted.
    full = card.used[:, j] >= 0.5 * granted
    return np.asarray(np.where(full & (values > 0), card.interval_seconds / np.where(values > 0, values, 1.0), np.nan))


def _bound(card: Card, j: int) -> str:
    """Return `bandwidth` where the memory interface stands above every pipe while it alone works on a whole card."""
    if card.holdings[j].kind == "whole":
        dram, pipes = card.of_card("dram_active_ratio"), [card.of_card(f"{p}_active_ratio") for p in _PIPES]
    else:
        dram = card.of_slices("dram_active_ratio")[:, j]
        pipes = [card.of_slices(f"{p}_active_ratio")[:, j] for p in _PIPES]
    pipe = np.fmax.reduce(pipes)
    busy = np.isfinite(dram) & np.isfinite(pipe) & (np.fmax(dram, pipe) >= _WORKS)
    if busy.sum() < _FEWEST_BLOCKS:
        return ""
    return "bandwidth" if float(dram[busy].mean()) >= float(pipe[busy].mean()) + 0.1 else "compute"


_PIPES = ("tensor", "fp64", "fp32", "fp16")
