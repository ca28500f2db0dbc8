"""TT211 fleet demand that no longer fits for want of share in one piece, TT221 stranded slices of cut (MIG) cards."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from analyzer.demand import Demand, Wish, demand, free_memory, type_allows
from analyzer.facts import hardware_facts, records, requests, to_float
from analyzer.fgd import Cause, Fragmentation, NodeIdle, Task, blocked_by, fragmentation
from analyzer.findings import Effect, Finding, Role, SubjectRef, Verdict, make_finding
from analyzer.mig import Board, Instance, MigMeasure, board_of, fewest_moves, layout_faults, layouts, measure
from analyzer.protocols import Conclusion, Context, Needs, Partition, Withheld
from analyzer.shares import Card, cards

_CURRENT_INTERVALS = 3
_LOST_DEMAND = 0.05  # part of the mix that must have lost its place
_FRAGMENT = 0.5  # part of the free share that serves nobody: suspected
_PLACEMENT = 0.1  # placement fragmentation of the demand that is reported

_COLUMNS = [
    "cluster",
    "node",
    "gpu",
    "code",
    "model",
    "free_share",
    "free_memory_bytes",
    "memory_bytes",
    "instances",
    "pods",
    "withheld",
]


class FragmentationDetector:
    """Measures what is free on each card now, and what of the demand it can still serve."""

    codes = ("TT211", "TT221")
    needs: ClassVar[Needs] = {"TT211": {"slice": ("sm_quota_ratio",)}, "TT221": {}}

    def measure(self, partition: Partition) -> pd.DataFrame:
        """Return a row a card: TT211 for cards that are shared or whole, TT221 for cards that are cut."""
        found = cards(partition)
        newest = max((card.newest for card in found), default=-1)
        starts = hardware_facts(partition.facts, "slice", "placement")
        rows = []
        for card in found:
            row: dict[str, Any] = {"cluster": card.cluster, "node": card.node, "gpu": card.gpu, "model": card.model}
            row |= {"code": "TT221" if card.mig else "TT211", "withheld": ""}
            row["pods"] = json.dumps(sorted({h.pod for h in card.holdings if h.pod}))
            if card.newest < newest - _CURRENT_INTERVALS:
                rows.append({**row, "withheld": "the card is not there now"})
            elif card.mig:
                rows.append({**row, "instances": json.dumps(_instances(card, newest, starts))})
            else:
                rows.append({**row, **_free(card, newest)})
        return pd.DataFrame(rows, columns=_COLUMNS)

    def conclude(self, measures: pd.DataFrame, context: Context) -> Conclusion:
        """Judge each cluster's free share and each cut card against the demand mix."""
        if measures.empty:
            return Conclusion([], [])
        wanted = demand(requests(context.facts), context.window)
        ordered = measures.sort_values(["cluster", "node", "gpu"], kind="stable")
        findings: list[Finding] = []
        withheld: list[Withheld] = []
        for cluster in sorted(set(ordered["cluster"])):
            rows = records(ordered[ordered["cluster"] == cluster])
            shared = [row for row in rows if row["code"] == "TT211"]
            judged = _judge_share(str(cluster), shared, wanted, context)
            for row in rows:
                other = "TT211" if row["code"] == "TT221" else "TT221"
                if other == "TT221":
                    withheld.append(_without(row, "TT221", "not a MIG card", applicable=False))
            for verdict in [judged, *(_judge_mig(row, wanted, context) for row in rows if row["code"] == "TT221")]:
                if isinstance(verdict, Finding):
                    findings.append(verdict)
                elif verdict is not None:
                    withheld.append(verdict)
        return Conclusion(findings, withheld)


def _current(card: Card, newest: int) -> np.ndarray:
    """Return which holdings live now, (S,)."""
    return np.asarray(card.alive[max(newest - _CURRENT_INTERVALS, 0) : newest + 1].any(axis=0))


def _instances(card: Card, newest: int, starts: Mapping[tuple[str, str, str, str], str]) -> list[list[Any]]:
    """Return [slice, profile, start or None, held] of each instance that exists now."""
    now = _current(card, newest)
    found: dict[str, list[Any]] = {}
    for j, holding in enumerate(card.holdings):
        if now[j]:
            start = to_float(starts.get((card.cluster, card.node, card.gpu, holding.slice)))
            held = holding.held or found.get(holding.slice, [None, None, None, False])[3]
            found[holding.slice] = [holding.slice, holding.profile, None if math.isnan(start) else int(start), held]
    return [found[name] for name in sorted(found)]


def _free(card: Card, newest: int) -> dict[str, Any]:
    now = _current(card, newest)
    held = now & np.array([h.held for h in card.holdings], dtype=bool)
    last = [int(np.flatnonzero(card.alive[:, j])[-1]) for j in np.flatnonzero(held)]
    quotas = [card.quota[t, j] for t, j in zip(last, np.flatnonzero(held), strict=True)]
    if any(math.isnan(q) for q in quotas) or (held & card.quota_estimated).any():
        return {"withheld": "a holder's quota is not known"}
    room = free_memory(card)
    total = card.of_card("memory_used_bytes") + card.of_card("memory_free_bytes")
    known = ~np.isnan(room) & ~np.isnan(total)
    left, size = (float(room[known][-1]), float(total[known][-1])) if known.any() else (math.nan, math.nan)
    return {"free_share": max(1.0 - sum(quotas), 0.0), "free_memory_bytes": left, "memory_bytes": size}


# --- TT211 ------------------------------------------------------------------------------------------------------------


def _judge_share(
    cluster: str, rows: Sequence[dict[str, Any]], wanted: Demand, context: Context
) -> Finding | Withheld | None:
    wishes = {wish: count for wish, count in wanted.counts.items() if not wish.profile}
    usable = [row for row in rows if not row["withheld"]]
    if not usable:
        reason = "no card is shared by quota" if not rows else "no shared card whose holders' quotas are known"
        return Withheld("TT211", cluster, "", "", "", reason, applicable=bool(rows))
    if not wishes:
        return Withheld("TT211", cluster, "", "", "", "nobody's requests are known (fact `request`)")
    nodes = _idle_nodes(usable, context)
    total = sum(wishes.values())
    tasks = {wish: _task(wish, count / total, nodes) for wish, count in wishes.items()}
    measured = fragmentation(nodes, list(tasks.values()))
    if measured.idle <= 0:
        return None
    lost = [wish for wish, task in tasks.items() if _lost_for_share(task, nodes)]
    lost_part = sum(tasks[wish].weight for wish in lost)
    fragment = measured.by_cause[Cause.TOO_SMALL] / measured.idle
    if lost_part < _LOST_DEMAND and (fragment < _FRAGMENT or measured.idle < 1.0):
        return None
    placeable = [wish for wish, task in tasks.items() if any(blocked_by(node, task) is None for node in nodes)]
    verdict = Verdict.HOLDS if lost_part >= _LOST_DEMAND else Verdict.SUSPECTED
    pieces = sorted((float(share) for node in nodes for share in node.left if share > 0), reverse=True)
    waiting = sum(wanted.waiting.get(wish, 0) for wish in lost)
    biggest = max(placeable, key=lambda w: (w.cards * w.share, w.memory_bytes), default=None)
    claim = (
        f"{measured.idle:.1f} cards' worth of share is free in {len(pieces)} pieces, the largest {pieces[0]:.0%} of a "
        f"card: {lost_part:.0%} of what people ask for fits on no card any more"
        + (f" ({_wish_text(max(lost, key=lambda w: tasks[w].weight))} above all)" if lost else "")
        + (f", {waiting} of these wait now" if waiting else "")
        + f"; the biggest request that still fits is {_wish_text(biggest) if biggest else 'none'}"
    )
    return make_finding(
        "TT211",
        verdict,
        (SubjectRef(Role.SUBJECT, cluster),),
        context.window,
        claim=claim,
        risk="the mix is what was asked for in the window; what nobody dared to ask for is not in it",
        confidence=0.9 * len(usable) / len(rows),
        coverage=len(usable) / len(rows),
        effect=Effect(fragment, "ratio", fragment, measured.ratio),
        evidence={
            **_share_evidence(measured, nodes, tasks, lost),
            "biggest_placeable": None if biggest is None else _wish_text(biggest),
            "waiting_now": waiting,
            "cards_left_out": len(rows) - len(usable),
        },
        simulated=context.simulated,
    )


def _share_evidence(
    measured: Fragmentation, nodes: Sequence[NodeIdle], tasks: Mapping[Wish, Task], lost: Sequence[Wish]
) -> dict[str, Any]:
    return {
        "free_cards": measured.idle,
        "fragmented_cards": measured.fragmented,
        "fragmentation_ratio": measured.ratio,
        "by_cause_cards": {cause.value: amount for cause, amount in measured.by_cause.items() if amount > 0},
        "free_share_by_node": {node.name: [round(share, 4) for share in node.left] for node in nodes},
        "demand": [
            {"request": _wish_text(wish), "part": task.weight, "fits": wish not in lost}
            for wish, task in sorted(tasks.items(), key=lambda item: -item[1].weight)[:12]
        ],
        "lost_part": sum(tasks[wish].weight for wish in lost),
        "cpu_known": any(math.isfinite(node.cpu_cores_left) for node in nodes),
    }


def _idle_nodes(rows: Sequence[dict[str, Any]], context: Context) -> list[NodeIdle]:
    """Group cards by node and model; a node's CPU is what it may give minus what its pods asked for."""
    cpu = _cpu_left(rows, context.facts)
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["node"], row["model"]), []).append(row)
    nodes = []
    for (node, model), group in sorted(groups.items()):
        rooms = tuple(row["free_memory_bytes"] for row in group)
        known = all(not math.isnan(room) for room in rooms)
        shares = tuple(row["free_share"] for row in group)
        size = max((row["memory_bytes"] for row in group), default=math.nan)
        nodes.append(NodeIdle(node, shares, cpu.get(node, math.inf), model, rooms if known else (), size))
    return nodes


def _cpu_left(rows: Sequence[dict[str, Any]], facts: pd.DataFrame) -> dict[str, float]:
    allowed = {key[1]: to_float(value) for key, value in hardware_facts(facts, "node", "allocatable_cpu").items()}
    asked = {r.pod: r.cpu_cores for r in requests(facts) if not math.isnan(r.cpu_cores)}
    pods: dict[str, set[str]] = {}
    for row in rows:
        pods.setdefault(row["node"], set()).update(json.loads(row["pods"]))
    return {
        node: max(cores - sum(asked.get(pod, 0.0) for pod in pods.get(node, ())), 0.0)
        for node, cores in allowed.items()
        if not math.isnan(cores)
    }


def _task(wish: Wish, weight: float, nodes: Sequence[NodeIdle]) -> Task:
    types = frozenset(node.gpu_type for node in nodes if type_allows(wish, node.gpu_type)) if wish.gpu_type else None
    if types is not None and not types:
        types = frozenset({wish.gpu_type})
    return Task(wish.cards, wish.share, wish.cpu_cores, types or frozenset(), wish.memory_bytes, weight)


def _lost_for_share(task: Task, nodes: Sequence[NodeIdle]) -> bool:
    """Say whether a task fits on no node for want of share in one piece, though there is enough in all.

    Memory is left aside: what fits by share and not by memory is another claim.
    """
    nodes = [replace(node, memory_left_bytes=()) for node in nodes]
    causes = [blocked_by(node, task) for node in nodes]
    small = [node for node, cause in zip(nodes, causes, strict=True) if cause is Cause.TOO_SMALL]
    if any(cause in {None, Cause.CPU} for cause in causes) or not small:
        return False
    return sum(sum(node.left) for node in small) >= task.cards * task.share


def _wish_text(wish: Wish) -> str:
    what = f"{wish.share:.0%} of a card" if wish.share < 1 else ("a whole card" if wish.cards == 1 else "whole cards")
    many = f"{wish.cards} x " if wish.cards > 1 else ""
    memory = f" with {wish.memory_bytes / 2**30:.0f} GiB" if wish.memory_bytes else ""
    kind = f" of type {wish.gpu_type}" if wish.gpu_type else ""
    return f"{many}{what}{memory}{kind}"


# --- TT221 ------------------------------------------------------------------------------------------------------------


def _without(row: dict[str, Any], code: str, reason: str, *, applicable: bool = True) -> Withheld:
    return Withheld(code, row["cluster"], row["node"], row["gpu"], "", reason, applicable)


def _judge_mig(row: dict[str, Any], wanted: Demand, context: Context) -> Finding | Withheld | None:
    if row["withheld"]:
        return _without(row, "TT221", row["withheld"])
    instances = json.loads(row["instances"])
    profiles = [profile for _, profile, _, _ in instances]
    if not all(profiles):
        return _without(row, "TT221", "an instance's profile is not known (fact `profile`)")
    board = board_of(row["model"], profiles)
    if board is None or board.placements == "unknown" or any(p not in board.profiles for p in profiles):
        return _without(row, "TT221", f"no placement table for {row['model'] or 'a card without a model name'}")
    possible = _possible_layouts(board, instances)
    if not possible:
        return _without(row, "TT221", "these instances cannot lie together on the board that the model name tells")
    asked = Counter(
        {
            wish.profile: count
            for wish, count in wanted.counts.items()
            if wish.profile in board.profiles and type_allows(wish, row["model"])
        }
    )
    total = sum(asked.values())
    mix = {profile: count / total for profile, count in sorted(asked.items())}
    measured = [(measure(board, layout, mix), layout) for layout in possible]
    best, best_layout = min(measured, key=lambda m: _badness(board, m[0]))
    worst, _ = max(measured, key=lambda m: _badness(board, m[0]))
    unwanted = [profile for _, profile, _, held in instances if not held and mix and profile not in mix]
    if not unwanted and not _bad(worst):
        return None
    verdict = Verdict.HOLDS if unwanted or _bad(best) else Verdict.SUSPECTED
    return make_finding(
        "TT221",
        verdict,
        (SubjectRef(Role.SUBJECT, row["cluster"], row["node"], row["gpu"]),),
        context.window,
        claim=_mig_claim(row, board, best if verdict is Verdict.HOLDS else worst, unwanted),
        risk="some stranding comes with the layout itself; where instances begin is often not exported",
        confidence=(0.95 if verdict is Verdict.HOLDS else 0.5) * (1.0 if board.placements == "published" else 0.85),
        coverage=1.0,
        effect=Effect(
            _stranded(board, best, unwanted),
            "ratio",
            _stranded(board, best, unwanted),
            _stranded(board, worst, unwanted),
        ),
        evidence={
            "board": board.name,
            "placements": board.placements,
            "instances": [[slice_id, profile, start, held] for slice_id, profile, start, held in instances],
            "layouts_possible": len(possible),
            "best": _mig_evidence(best),
            "worst": _mig_evidence(worst),
            "demand": mix,
            "unheld_not_asked_for": unwanted,
            "moves": _moves(board, best_layout, best, mix),
        },
        simulated=context.simulated,
    )


def _possible_layouts(board: Board, instances: Sequence[Sequence[Any]]) -> list[tuple[Instance, ...]]:
    if all(start is not None for _, _, start, _ in instances):
        layout = tuple(Instance(profile, start) for _, profile, start, _ in instances)
        return [] if layout_faults(board, layout) else [layout]
    fixed = Counter(Instance(profile, start) for _, profile, start, _ in instances if start is not None)
    every = layouts(board, [profile for _, profile, _, _ in instances])
    return [layout for layout in every if fixed <= Counter(layout)]


def _bad(measured: MigMeasure) -> bool:
    stranded = measured.stranded_memory_slices + measured.stranded_compute_slices
    return stranded > 0 or measured.mix_placement_fragmentation >= _PLACEMENT


def _badness(board: Board, measured: MigMeasure) -> tuple[float, float]:
    stranded, misplaced = _stranded(board, measured, []), measured.mix_placement_fragmentation
    return max(stranded, misplaced), stranded + misplaced


def _stranded(board: Board, measured: MigMeasure, unwanted: Sequence[str]) -> float:
    """Return the part of the card that is stranded: of its memory or of its compute slices, whichever is more."""
    memory = measured.stranded_memory_slices + sum(board.profiles[p].size for p in unwanted)
    compute = measured.stranded_compute_slices + sum(board.profiles[p].compute for p in unwanted)
    return max(memory / board.memory_slices, compute / board.compute_slices)


def _mig_claim(row: dict[str, Any], board: Board, measured: MigMeasure, unwanted: Sequence[str]) -> str:
    parts = []
    if measured.stranded_memory_slices:
        parts.append(f"{measured.stranded_memory_slices} of {board.memory_slices} memory slices")
    if measured.stranded_compute_slices:
        parts.append(f"{measured.stranded_compute_slices} of {board.compute_slices} compute slices")
    text = [f"{' and '.join(parts)} can be used by no further instance"] if parts else []
    if unwanted:
        text.append(f"{', '.join(unwanted)} is held by nobody and asked for by nobody")
    if measured.mix_placement_fragmentation >= _PLACEMENT:
        text.append(f"{measured.mix_placement_fragmentation:.0%} of what is asked for does not fit for its place alone")
    return f"{row['gpu']} on {row['node']}: {'; '.join(text)}"


def _mig_evidence(measured: MigMeasure) -> dict[str, Any]:
    return {
        "free_memory_slices": measured.free_memory_slices,
        "free_compute_slices": measured.free_compute_slices,
        "stranded_memory_slices": measured.stranded_memory_slices,
        "stranded_compute_slices": measured.stranded_compute_slices,
        "largest_placeable": measured.largest_placeable,
        "capability": measured.capability,
        "mix_unusable_ratio": measured.mix_unusable_ratio,
        "mix_placement_fragmentation": measured.mix_placement_fragmentation,
        "placeable": {name: m.placeable for name, m in measured.per_profile.items()},
    }


def _moves(
    board: Board, layout: Sequence[Instance], measured: MigMeasure, mix: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Return, for each profile that is asked for and fits by capacity alone, the fewest instances to move."""
    found = []
    for profile in sorted(mix, key=lambda name: -mix[name]):
        m = measured.per_profile[profile]
        if m.by_capacity and not m.placeable:
            found.append({"profile": profile, "fewest_moves": fewest_moves(board, layout, profile)})
    return found
