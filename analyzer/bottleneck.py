"""TT401 limited by compute, TT402 limited by memory bandwidth, out of profiling counters.

Ten-minute windows in which the subject works are scored for every class of limit (1.0: its threshold is reached); the
best score names the window, holds for two windows, and gives way only to one that is 5 points better. Thresholds are
DCGM's (SM activity 0.8; a memory interface reaches about 0.8) and our own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.facts import records
from analyzer.findings import Effect, Finding, Role, SubjectRef, Verdict, make_finding
from analyzer.mig import board_of
from analyzer.protocols import Conclusion, Context, Needs, Partition, Withheld
from analyzer.settings import AnalyzeSettings
from analyzer.shares import Card, cards
from collector.clock import to_ms
from collector.gpu_models import gpu_model

Series = npt.NDArray[np.float64]

_WINDOW_SECONDS = 600.0
_WINDOW_COVERAGE = 0.8
_WORKS = 0.05  # activity of its own share from which a subject works
_HOLD = 2
_HYSTERESIS = 0.05
_LIMITED = 0.5  # part of the working windows that a limit must name
_FEWEST_WINDOWS = 3
_ALONE = 0.9  # part of a shared card's use from which its counters are this slice's own

_REACHABLE_DRAM = 0.8
_PIPES = ("tensor_active_ratio", "fp64_active_ratio", "fp32_active_ratio", "fp16_active_ratio")
# PCIe, bytes/s a lane and direction, by generation.
_LANE_BYTES = {3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
_CODES = {"compute": "TT401", "memory_bandwidth": "TT402"}
_TEXT = {"compute": "its compute units", "memory_bandwidth": "the bandwidth of its memory"}

_KEY = ["cluster", "node", "gpu", "slice", "tenant", "workload"]
_MEANS = ("sm", "pipe", "dram", "engine", "busy")
_COLUMNS = [
    *_KEY, "withheld", "applicable", "kind", "counters", "coverage", "working", "pipes", *_MEANS,
    *(f"{part}_{name}" for name in _CODES for part in ("share", "lower", "upper")), "scores",
]  # fmt: skip


class BottleneckDetector:
    """Names what limits a slice while it works."""

    codes = ("TT401", "TT402")
    needs: ClassVar[Needs] = {
        code: {"gpu": ("sm_active_ratio", "dram_active_ratio", "|".join(_PIPES))} for code in ("TT401", "TT402")
    }

    def measure(self, partition: Partition) -> pd.DataFrame:
        """Return a row a subject: slices with counters of their own, else the card that they share."""
        floor = AnalyzeSettings.model_validate(partition.settings).coverage_floor
        rows: list[dict[str, Any]] = []
        host = _on_grid(partition, "cpu_busy_ratio")
        for card in cards(partition):
            for subject in _subjects_of(card):
                common = {
                    "cluster": card.cluster,
                    "node": card.node,
                    "gpu": card.gpu,
                    "slice": subject.slice,
                    "tenant": subject.tenant,
                    "workload": subject.workload,
                    "kind": subject.kind,
                    "counters": subject.counters,
                    "withheld": subject.withheld,
                    "applicable": True,
                }
                rows.append(common if subject.withheld else {**common, **_measure_subject(subject, host, floor)})
        return pd.DataFrame(rows, columns=_COLUMNS)

    def conclude(self, measures: pd.DataFrame, context: Context) -> Conclusion:
        """Judge each subject."""
        if measures.empty:
            return Conclusion([], [])
        findings: list[Finding] = []
        withheld: list[Withheld] = []
        for row in records(measures.sort_values(_KEY, kind="stable")):
            for limit, code in _CODES.items():
                if row["withheld"]:
                    place = (row["cluster"], row["node"], row["gpu"], row["slice"])
                    withheld.append(Withheld(code, *place, row["withheld"], bool(row["applicable"])))
                elif row[f"share_{limit}"] >= _LIMITED:
                    findings.append(_finding(row, limit, context))
        return Conclusion(findings, withheld)


@dataclass(frozen=True, slots=True)
class _Subject:
    """A slice (or a whole card) and its counters, each relative to its own share."""

    slice: str
    tenant: str
    workload: str
    kind: str
    counters: str  # whose counters: own, card
    interval_seconds: float
    fields: Mapping[str, Series]
    pipes: int  # how many pipes are known
    alive: npt.NDArray[np.bool_]
    withheld: str = ""


def _measure_subject(subject: _Subject, host: Series, floor: float) -> dict[str, Any]:
    missing = [name for name in ("sm", "dram", "pipe") if np.isnan(subject.fields[name]).all()]
    if missing:
        names = {
            "sm": "sm_active_ratio",
            "dram": "dram_active_ratio",
            "pipe": "any pipe (tensor, fp16, fp32, fp64)",
        }
        return {"withheld": f"no {', '.join(names[name] for name in missing)}"}
    step = max(round(_WINDOW_SECONDS / subject.interval_seconds), 1)
    windows = {name: _windows(values, step) for name, values in {**subject.fields, "host": host}.items()}
    complete = ~np.isnan(windows["sm"]) & ~np.isnan(windows["dram"]) & ~np.isnan(windows["pipe"])
    lived = _windows(np.where(subject.alive, 1.0, np.nan), step) == 1.0
    coverage = float(complete[lived].mean()) if lived.any() else 0.0
    if lived.sum() < _FEWEST_WINDOWS:
        return {"withheld": f"lived for less than {_FEWEST_WINDOWS * _WINDOW_SECONDS / 60:g} min of the window"}
    if coverage < floor:
        return {"withheld": f"samples cover less than {floor:.0%} of its life in the window"}
    working = complete & (np.where(np.isnan(windows["engine"]), windows["sm"], windows["engine"]) >= _WORKS)
    if working.sum() < _FEWEST_WINDOWS:
        return {"withheld": "hardly worked in the window", "applicable": False}
    at = {name: values[working] for name, values in windows.items()}
    scores = limit_scores(at)
    labels = hold(scores)
    row: dict[str, Any] = {
        "withheld": "",
        "coverage": coverage,
        "working": int(working.sum()),
        "pipes": subject.pipes,
    }
    row |= {name: _mean(at[name]) for name in _MEANS}
    for name in _CODES:
        row[f"share_{name}"] = float((labels == name).mean())
        row[f"lower_{name}"] = float((scores[name] >= 1 + _HYSTERESIS).mean())
        row[f"upper_{name}"] = float((scores[name] >= 1 - _HYSTERESIS).mean())
    row["scores"] = {name: _mean(values) for name, values in scores.items()}
    return row


def _subjects_of(card: Card) -> list[_Subject]:
    subjects = []
    shared = []
    for j, holding in enumerate(card.holdings):
        if not holding.held:
            continue
        names = (holding.slice, holding.tenant, holding.workload, holding.kind)
        if holding.kind == "mig":
            subjects.append(_mig_subject(card, j, names))
        elif holding.kind == "whole":
            subjects.append(_card_subject(card, names, card.alive[:, j]))
        else:
            shared.append((j, names))
    if shared:
        subjects.append(_card_subject(card, ("", "", "", "card"), card.observed))
        total = float(np.nansum(card.used))
        for j, names in shared:
            if total > 0 and float(np.nansum(card.used[:, j])) >= _ALONE * total:
                subjects.append(_card_subject(card, names, card.alive[:, j]))
            else:
                reason = f"under {names[3]} the counters are the card's: see what is said of the card"
                subjects.append(_Subject(*names, "card", card.interval_seconds, {}, 0, card.observed, reason))
    return subjects


def _mig_subject(card: Card, j: int, names: tuple[str, str, str, str]) -> _Subject:
    holding = card.holdings[j]
    board = board_of(card.model, [holding.profile])
    if board is None or holding.profile not in board.profiles:
        reason = f"share of memory slices of {holding.profile or 'an unnamed profile'} is not known"
        return _Subject(*names, "own", card.interval_seconds, {}, 0, card.observed, reason)
    compute = np.where(card.quota[:, j] > 0, card.quota[:, j], np.nan)
    memory = board.profiles[holding.profile].size / board.memory_slices
    alive = np.where(card.alive[:, j], 1.0, np.nan)
    own = {
        name: card.of_slices(name)[:, j] * alive / compute
        for name in ("sm_active_ratio", "engine_active_ratio", *_PIPES)
    }
    fields = {
        "sm": own["sm_active_ratio"],
        "engine": own["engine_active_ratio"],
        "dram": card.of_slices("dram_active_ratio")[:, j] * alive / memory,
        "busy": card.of_slices("busy_ratio")[:, j],
        **_busiest([own[name] for name in _PIPES]),
    }
    return _Subject(*names, "own", card.interval_seconds, fields, _known([own[p] for p in _PIPES]), card.alive[:, j])


def _card_subject(card: Card, names: tuple[str, str, str, str], alive: npt.NDArray[np.bool_]) -> _Subject:
    pipes = [card.of_card(name) for name in _PIPES]
    model = gpu_model(card.model) if card.model else None
    peak = _LANE_BYTES.get(model.pcie_generation, math.nan) * 16 if model is not None else math.nan
    traffic = np.fmax(card.of_card("pcie_rx_bytes_per_second"), card.of_card("pcie_tx_bytes_per_second"))
    heat = [card.of_card(f"throttle_{why}_ratio") for why in ("thermal", "brake")]
    fields = {
        "sm": card.of_card("sm_active_ratio"),
        "engine": card.of_card("engine_active_ratio"),
        "dram": card.of_card("dram_active_ratio"),
        "busy": card.of_card("busy_ratio"),
        "transfer": traffic / peak,
        "heat": np.fmax(*heat),
        **_busiest(pipes),
    }
    fields = {name: np.where(alive, values, np.nan) for name, values in fields.items()}
    return _Subject(*names, "card", card.interval_seconds, fields, _known(pipes), alive)


def _known(pipes: list[Series]) -> int:
    return sum(not bool(np.isnan(pipe).all()) for pipe in pipes)


def _busiest(pipes: list[Series]) -> dict[str, Series]:
    return {"pipe": np.asarray(np.fmax.reduce(pipes))}


def _on_grid(partition: Partition, field: str) -> Series:
    """Return a field of the node's rows on the grid, (T,)."""
    count = max(math.ceil(partition.window.seconds / partition.interval_seconds), 1)
    out = np.full(count, np.nan)
    rows = partition.node_rows
    if field in rows and len(rows):
        start = to_ms(partition.window.start)
        times = rows["time"].to_numpy("datetime64[ms]").astype(np.int64)
        bins = np.clip((times - start) // (partition.interval_seconds * 1000), 0, count - 1).astype(np.intp)
        out[bins] = rows[field].to_numpy(np.float64)
    return out


def _windows(values: Series, step: int) -> Series:
    """Return means over `step` samples; NaN where fewer than 80 % of them are there."""
    whole = len(values) // step * step
    table = values[:whole].reshape(-1, step)
    known = ~np.isnan(table)
    count = known.sum(axis=1)
    sums = np.where(known, table, 0.0).sum(axis=1)
    return np.asarray(np.where(count >= _WINDOW_COVERAGE * step, sums / np.maximum(count, 1), np.nan))


def _mean(values: Series) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def limit_scores(at: Mapping[str, Series]) -> dict[str, Series]:
    """Score each class of limit; 1.0 is its threshold, NaN where its counters are absent.

    Args:
        at: means of windows, all of the subject's own share: sm, pipe (the busiest), dram, engine; where known also
            transfer (of the link's peak), heat (share of time), host (CPU).
    """
    sm, pipe = np.minimum(at["sm"], 1.0), np.minimum(at["pipe"], 1.0)
    dram = np.minimum(at["dram"] / _REACHABLE_DRAM, 1.0)
    engine = np.minimum(at["engine"], 1.0)
    absent = np.full(len(sm), np.nan)
    memory = dram / 0.75
    scores = {
        "compute": np.minimum(pipe / 0.6, sm / 0.8),
        # Memory is the limit only where it stands clear of the pipes that it feeds.
        "memory_bandwidth": np.where(dram >= pipe + 0.1, memory, np.minimum(memory, 1 - 2 * _HYSTERESIS)),
        "small_grid": np.minimum(engine / 0.8, (1 - sm) / 0.5),
        "latency": np.minimum(np.minimum(sm / 0.8, (1 - pipe) / 0.8), (1 - np.minimum(at["dram"], 1.0)) / 0.6),
        "transfer": np.minimum(at.get("transfer", absent) / 0.6, (1 - sm) / 0.5),
        "host": np.minimum(at.get("host", absent) / 0.9, (1 - engine) / 0.5),
        "heat": at.get("heat", absent) / 0.05,
    }
    return {name: np.asarray(values, dtype=np.float64) for name, values in scores.items()}


def hold(scores: Mapping[str, Series]) -> npt.NDArray[np.str_]:
    """Name each window by its best class that reaches 1 (empty: none), held for two windows and by 5 points."""
    names = list(scores)
    table = np.nan_to_num(np.stack([scores[name] for name in names]), nan=-1.0)
    labels = []
    present, since, pending = -1, 0, -1
    for column in table.T:
        best = int(np.argmax(column))
        wanted = best if column[best] >= 1 else -1
        stays = present >= 0 and column[present] >= 1 and column[best] < column[present] + _HYSTERESIS
        if wanted == present or stays:
            since, pending = 0, present
        else:
            since = since + 1 if wanted == pending else 1
            pending = wanted
            if since >= _HOLD:
                present = wanted
        labels.append(names[present] if present >= 0 else "")
    return np.array(labels, dtype=np.str_)


def _finding(row: dict[str, Any], limit: str, context: Context) -> Finding:
    overstated = overstated_by(row["busy"], row["sm"])
    rivals = sorted(
        ((name, score) for name, score in row["scores"].items() if name != limit and not math.isnan(score)),
        key=lambda item: -item[1],
    )[:2]
    who = f"{row['tenant']}/{row['workload']} on {row['gpu']}" if row["slice"] else f"what shares {row['gpu']}"
    claim = (
        f"{who} ({row['node']}) works against {_TEXT[limit]} in "
        f"{row[f'share_{limit}']:.0%} of the time: SMs {row['sm']:.0%} active, busiest pipe {row['pipe']:.0%}, memory "
        f"interface {row['dram']:.0%}"
    )
    if overstated is not None and overstated >= 1.5:
        claim += f"; the busy counter says {row['busy']:.0%} and overstates the SMs {overstated:.1f} times"
    low, high = sorted((row[f"lower_{limit}"], row[f"upper_{limit}"]))
    share = row[f"share_{limit}"]
    return make_finding(
        _CODES[limit],
        Verdict.HOLDS,
        (SubjectRef(Role.SUBJECT, *(row[name] for name in ("cluster", "node", "gpu", "slice", "workload", "tenant"))),),
        context.window,
        claim=claim,
        risk="busy units are not needed work: a spin-wait keeps them busy too; a pipe that no counter shows is missed",
        confidence=0.9 * row["coverage"] * (1.0 if row["pipes"] > 1 else 0.8),
        coverage=row["coverage"],
        effect=Effect(share, "ratio", min(low, share), max(high, share)),
        evidence={
            "working_windows": int(row["working"]),
            "score": row["scores"][limit],
            "runners_up": [{"limit": name, "score": score} for name, score in rivals],
            "sm_active": row["sm"],
            "busiest_pipe": row["pipe"],
            "dram_active": row["dram"],
            "engine_active": row["engine"],
            "busy": row["busy"],
            "busy_overstates_sm_times": overstated,
            "counters": row["counters"],
            "pipes_known": int(row["pipes"]),
            "kind": row["kind"],
        },
        simulated=context.simulated,
    )


def overstated_by(busy: float, sm_active: float) -> float | None:
    """Return how many times the busy counter overstates SM activity; None where nothing ran or either is absent.

    One block on one SM for a whole second is 100 % busy: the counter only says that some kernel ran.
    """
    return busy / sm_active if sm_active > 0 and not math.isnan(busy) else None
