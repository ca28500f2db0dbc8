"""TT211 to TT214: what people ask for and no card of the fleet can take, for want of share, CPU, type or memory."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analyzer.demand import Demand, Wish, type_allows
from analyzer.facts import hardware_facts, requests, to_float
from analyzer.fgd import Cause, Fragmentation, NodeIdle, Task
from analyzer.findings import Effect, Finding, Role, SubjectRef, Verdict, make_finding
from analyzer.fleet import Fleet, Mix, causes, fit, measure_fleet, measure_memory
from analyzer.protocols import Context, Withheld
from analyzer.stranded import Dimensions, Room, Stranding, dimensions, rooms, strandings

FLEET_CODES = ("TT211", "TT212", "TT213", "TT214")

_LOST_DEMAND = 0.05  # part of the mix that must have lost its place
_FRAGMENT = 0.5  # part of the free share that serves nobody: suspected
_STRANDED = 0.25  # part of the free share that one dimension alone strands
_LEAST_CARDS = 1.0  # idle, for a claim about idle share
_SHOWN_NODES, _SHOWN_REQUESTS, _SHOWN_ROOMS = 40, 12, 24
_UNKNOWN = {
    "TT212": "no node's CPU is known (fact `allocatable_cpu`)",
    "TT213": "no card's model is known (fact `model`)",
    "TT214": "no card's memory is known",
}
_WORDS = {
    "TT212": ("cpu", "CPU of its node", "the CPU of their nodes is given away"),
    "TT213": ("type", "card type", "they are of types that nobody asks for"),
    "TT214": ("memory", "card memory", "the memory of their cards is given away"),
}
_RISK = "the mix is what was asked for in the window; what nobody dared to ask for is not in it"


@dataclass(frozen=True, slots=True)
class FleetMeasure:
    """Everything said of a fleet against a mix; `tasks` are the wishes, in their order, weights summing to 1."""

    wishes: tuple[Wish, ...]
    tasks: tuple[Task, ...]
    fleet: Fleet
    measured: Fragmentation
    memory: Fragmentation  # of free card memory, in bytes
    rooms: tuple[Room, ...]
    dimensions: Dimensions
    strandings: Mapping[str, Stranding]
    lost_for_share: tuple[int, ...]
    fits: tuple[bool, ...]


def measure_demand(nodes: Sequence[NodeIdle], pools: Sequence[str], wishes: Mapping[Wish, float]) -> FleetMeasure:
    """Measure what nodes have left against what is asked for.

    Args:
        nodes: what is left, one entry a node and card model.
        pools: the pool of each node.
        wishes: requests without MIG profile, and how often each came.
    """
    total = sum(wishes.values())
    names = {node.gpu_type for node in nodes}
    tasks = tuple(task_of(wish, count / total, names) for wish, count in wishes.items())
    fleet = Fleet.of(nodes)
    mix = Mix.of(tasks, fleet.types)
    runs = np.asarray(fit(fleet, mix).runs.any(axis=0))
    return FleetMeasure(
        wishes=tuple(wishes),
        tasks=tasks,
        fleet=fleet,
        measured=measure_fleet(fleet, tasks),
        memory=measure_memory(fleet, tasks),
        rooms=tuple(rooms(fleet, pools, tasks)),
        dimensions=dimensions(fleet, tasks),
        strandings=strandings(fleet, tasks),
        lost_for_share=_lost_for_share(fleet, tasks),
        fits=tuple(runs.tolist()),
    )


def task_of(wish: Wish, weight: float, models: AbstractSet[str]) -> Task:
    """Return the task that a wish is on cards of these models: a model named to the letter goes before one like it."""
    named = frozenset(wish.gpu_type.split("|")) & frozenset(models) - {""}
    types = named or (frozenset(m for m in models if type_allows(wish, m)) if wish.gpu_type else frozenset[str]())
    if wish.gpu_type and not types:
        types = frozenset({wish.gpu_type})
    return Task(wish.cards, wish.share, wish.cpu_cores, types, wish.memory_bytes, weight)


def _lost_for_share(fleet: Fleet, tasks: Sequence[Task]) -> tuple[int, ...]:
    """Return the tasks that fit on no node for want of share in one piece, though there is enough in all.

    Memory is left aside: what fits by share and not by memory is another claim. Nodes that are short of CPU as well
    do not count as room.
    """
    bare = replace(fleet, memory_left_bytes=np.full_like(fleet.left, math.nan))
    mix = Mix.of(tasks, fleet.types)
    why = causes(bare, mix)
    open_ = (fit(bare, mix).runs | why[Cause.CPU]).any(axis=0)
    small = why[Cause.TOO_SMALL].T.astype(float) @ np.maximum(fleet.left, 0.0).sum(axis=1)
    asked = np.array([task.cards * task.share for task in tasks])
    return tuple(np.flatnonzero((mix.cards > 0) & ~open_ & (small > 0) & (small >= asked)).tolist())


def judge_fleet(
    cluster: str, rows: Sequence[dict[str, Any]], wanted: Demand, context: Context
) -> list[Finding | Withheld]:
    """Judge one cluster's cards that are not cut.

    Args:
        cluster: its name.
        rows: of `FragmentationDetector.measure`, code TT211.
        wanted: the demand mix; its wishes with a MIG profile are left aside.
        context: of the analysis.
    """
    wishes = {wish: float(count) for wish, count in wanted.counts.items() if not wish.profile}
    usable = [row for row in rows if not row["withheld"]]
    if not usable:
        reason = "no card is shared by quota" if not rows else "no shared card whose holders' quotas are known"
        return [Withheld(code, cluster, "", "", "", reason, applicable=bool(rows)) for code in FLEET_CODES]
    if not wishes:
        reason = "nobody's requests are known (fact `request`)"
        return [Withheld(code, cluster, "", "", "", reason) for code in FLEET_CODES]
    nodes, pools = idle_nodes(usable, context)
    found = measure_demand(nodes, pools, wishes)
    return judge_nodes(cluster, found, wanted, context, (len(usable), len(rows)))


def judge_nodes(
    cluster: str, found: FleetMeasure, wanted: Demand, context: Context, counted: tuple[int, int]
) -> list[Finding | Withheld]:
    """Judge a fleet that is measured; `counted` is of how many cards of all it is made."""
    known = {
        "TT212": np.isfinite(found.fleet.cpu_cores_left).any(),
        "TT213": any(found.fleet.types),
        "TT214": np.isfinite(found.fleet.memory_left_bytes).any(),
    }
    judged: list[Finding | Withheld] = []
    for code in FLEET_CODES:
        if not known.get(code, True):
            judged.append(Withheld(code, cluster, "", "", "", _UNKNOWN[code]))
        elif code != "TT211" or found.measured.idle > 0:
            claim = (
                (_share(found, wanted) or _open(found, wanted)) if code == "TT211" else _dimension(code, found, wanted)
            )
            judged += [] if claim is None else [_finding(code, cluster, claim, context, counted)]
    return judged


@dataclass(frozen=True, slots=True)
class _Claim:
    text: str
    verdict: Verdict
    effect: Effect
    evidence: dict[str, Any]


def _share(found: FleetMeasure, wanted: Demand) -> _Claim | None:
    measured, tasks = found.measured, found.tasks
    lost_part = sum(tasks[m].weight for m in found.lost_for_share)
    fragment = measured.by_cause[Cause.TOO_SMALL] / measured.idle
    if lost_part < _LOST_DEMAND and (fragment < _FRAGMENT or measured.idle < _LEAST_CARDS):
        return None
    pieces = sorted((float(share) for share in found.fleet.left.ravel() if share > 0), reverse=True)
    placeable = [m for m, fits in enumerate(found.fits) if fits]
    biggest = max(placeable, key=lambda m: (tasks[m].cards * tasks[m].share, tasks[m].memory_bytes), default=None)
    waiting = _waiting(found, found.lost_for_share, wanted)
    text = (
        f"{measured.idle:.1f} cards' worth of share is free in {len(pieces)} pieces, the largest {pieces[0]:.0%} of a "
        f"card: {lost_part:.0%} of what people ask for fits on no card any more"
        + _above_all(found, found.lost_for_share)
        + (f", {waiting} of these wait now" if waiting else "")
        + f"; the biggest request that still fits is {'none' if biggest is None else wish_text(found.wishes[biggest])}"
    )
    evidence = {
        **fleet_evidence(found, wanted),
        "lost_part": lost_part,
        "biggest_placeable": None if biggest is None else wish_text(found.wishes[biggest]),
        "waiting_now": waiting,
    }
    verdict = Verdict.HOLDS if lost_part >= _LOST_DEMAND else Verdict.SUSPECTED
    return _Claim(text, verdict, Effect(fragment, "ratio", fragment, measured.ratio), evidence)


def _open(found: FleetMeasure, wanted: Demand) -> _Claim:
    """Return the picture of a fleet whose free share serves, for whoever wants to look."""
    measured = found.measured
    part = sum(task.weight for task, fits in zip(found.tasks, found.fits, strict=True) if fits)
    lost = sum(found.tasks[m].weight for m in found.lost_for_share)
    text = (
        f"{measured.idle:.1f} cards' worth of share is free, {measured.fragmented:.1f} of it does not serve what is "
        f"asked for; {part:.0%} of the requests still fit somewhere, {lost:.0%} are lost for want of share in one piece"
    )
    effect = Effect(measured.ratio, "ratio", measured.ratio, measured.ratio)
    return _Claim(text, Verdict.NO_EFFECT, effect, fleet_evidence(found, wanted))


def _dimension(code: str, found: FleetMeasure, wanted: Demand) -> _Claim | None:
    name, word, why = _WORDS[code]
    stranding = found.strandings[name]
    lost_part = sum(found.tasks[m].weight for m in stranding.lost)
    idle = max(found.measured.idle, stranding.stranded_cards)  # share beside full memory does not count as idle
    big = stranding.stranded_cards >= max(_LEAST_CARDS, _STRANDED * idle)
    if lost_part < _LOST_DEMAND and not big:
        return None
    waiting = _waiting(found, stranding.lost, wanted)
    parts = []
    if stranding.stranded_cards > 0:
        parts.append(f"{stranding.stranded_cards:.1f} free cards' worth of share cannot be used because {why}")
    if stranding.lost:
        parts.append(
            f"{lost_part:.0%} of what people ask for fits nowhere for want of {word} alone"
            + _above_all(found, stranding.lost)
            + (f", {waiting} of these wait now" if waiting else "")
        )
    evidence = {**fleet_evidence(found, wanted), "lost_part": lost_part, "waiting_now": waiting}
    # Share that lies beside a dimension in short supply may be wanted tomorrow; lost demand is lost today.
    verdict = Verdict.HOLDS if lost_part >= _LOST_DEMAND else Verdict.SUSPECTED
    size = stranding.stranded_cards
    return _Claim("; ".join(parts), verdict, Effect(size, "cards", size, size), evidence)


def _finding(code: str, cluster: str, claim: _Claim, context: Context, counted: tuple[int, int]) -> Finding:
    measured, cards = counted
    return make_finding(
        code,
        claim.verdict,
        (SubjectRef(Role.SUBJECT, cluster),),
        context.window,
        claim=claim.text,
        risk=_RISK,
        confidence=0.9 * measured / cards,
        coverage=measured / cards,
        effect=claim.effect,
        evidence={**claim.evidence, "cards_left_out": cards - measured},
        simulated=context.simulated,
    )


def _waiting(found: FleetMeasure, lost: Iterable[int], wanted: Demand) -> int:
    return sum(wanted.waiting.get(found.wishes[m], 0) for m in lost)


def _above_all(found: FleetMeasure, lost: Sequence[int]) -> str:
    if not lost:
        return ""
    return f" ({wish_text(found.wishes[max(lost, key=lambda m: found.tasks[m].weight)])} above all)"


def fleet_evidence(found: FleetMeasure, wanted: Demand | None = None) -> dict[str, Any]:
    """Return the whole picture as JSON values: idle, fragmented by cause, rooms, dimensions, demand and what fits."""
    measured, memory, lost = found.measured, found.memory, found.dimensions
    order = np.argsort(-found.fleet.amounts.sum(axis=1), kind="stable")[:_SHOWN_NODES].tolist()
    demand = sorted(range(len(found.tasks)), key=lambda m: -found.tasks[m].weight)
    return {
        "free_cards": measured.idle,
        "fragmented_cards": measured.fragmented,
        "fragmentation_ratio": measured.ratio,
        "by_cause_cards": {cause.value: amount for cause, amount in measured.by_cause.items() if amount > 0},
        "free_memory_bytes": memory.idle,
        "fragmented_memory_bytes": memory.fragmented,
        "memory_fragmentation_ratio": memory.ratio if memory.idle > 0 else None,
        "stranded_cards": {name: one.stranded_cards for name, one in found.strandings.items()},
        "compute_without_memory_cards": lost.compute_without_memory,
        "memory_without_compute_bytes": lost.memory_without_compute_bytes,
        "compute_without_cpu_cards": None if math.isnan(lost.compute_without_cpu) else lost.compute_without_cpu,
        "rooms": [
            {
                "pool": room.pool,
                "model": room.model,
                "nodes": room.nodes,
                "cards": room.cards,
                "free_cards": room.idle_cards,
                "largest_piece": room.largest_piece,
                "most_whole_cards": room.most_whole_cards,
                "biggest_placeable": None if room.biggest is None else wish_text(found.wishes[room.biggest]),
                "fits_part": room.fits_part,
            }
            for room in found.rooms[:_SHOWN_ROOMS]
        ],
        "free_share_by_node": {
            found.fleet.names[i]: [round(share, 4) for share in found.fleet.left[i].tolist() if share >= 0]
            for i in sorted(order)
        },
        "demand": [
            {
                "request": wish_text(found.wishes[m]),
                "part": found.tasks[m].weight,
                "fits": found.fits[m] if found.tasks[m].cards else None,
                "lost_for": lost_for(found, m),
                "waiting": 0 if wanted is None else wanted.waiting.get(found.wishes[m], 0),
            }
            for m in demand[:_SHOWN_REQUESTS]
        ],
        "cpu_known": bool(np.isfinite(found.fleet.cpu_cores_left).any()),
    }


def lost_for(found: FleetMeasure, task: int) -> list[str]:
    """Return the dimensions of which each alone keeps a request out everywhere; empty: it fits, or several do."""
    alone = [name for name, one in found.strandings.items() if task in one.lost]
    return ["share", *alone] if task in found.lost_for_share else alone


def idle_nodes(rows: Sequence[dict[str, Any]], context: Context) -> tuple[list[NodeIdle], list[str]]:
    """Group cards by node and model, with their pools; a node's CPU is what it may give less what pods asked for."""
    cpu = _cpu_left(rows, context)
    pool = {key[1]: value for key, value in hardware_facts(context.facts, "node", "pool").items()}
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["node"], row["model"]), []).append(row)
    nodes, pools = [], []
    for (node, model), group in sorted(groups.items()):
        left = tuple(row["free_memory_bytes"] for row in group)
        size = max((row["memory_bytes"] for row in group), default=math.nan)
        known = all(not math.isnan(room) for room in left)
        shares = tuple(row["free_share"] for row in group)
        nodes.append(NodeIdle(node, shares, cpu.get(node, math.inf), model, left if known else (), size))
        pools.append(pool.get(node, "default"))
    return nodes, pools


def _cpu_left(rows: Sequence[dict[str, Any]], context: Context) -> dict[str, float]:
    allowed = {key[1]: to_float(v) for key, v in hardware_facts(context.facts, "node", "allocatable_cpu").items()}
    asked = {r.pod: r.cpu_cores for r in requests(context.facts) if not math.isnan(r.cpu_cores)}
    pods: dict[str, set[str]] = {}
    for row in rows:
        pods.setdefault(row["node"], set()).update(json.loads(row["pods"]))
    return {
        node: max(cores - sum(asked.get(pod, 0.0) for pod in pods.get(node, ())), 0.0)
        for node, cores in allowed.items()
        if not math.isnan(cores)
    }


def wish_text(wish: Wish) -> str:
    """Return a request in words."""
    if wish.profile:
        return f"{wish.cards} x {wish.profile}" if wish.cards > 1 else wish.profile
    if not wish.cards:
        return f"no card, {wish.cpu_cores:g} CPU"
    what = f"{wish.share:.0%} of a card" if wish.share < 1 else ("a whole card" if wish.cards == 1 else "whole cards")
    many = f"{wish.cards} x " if wish.cards > 1 else ""
    memory = f" with {wish.memory_bytes / 2**30:.0f} GiB" if wish.memory_bytes else ""
    kind = f" of type {wish.gpu_type}" if wish.gpu_type else ""
    cpu = f", {wish.cpu_cores:g} CPU" if wish.cpu_cores else ""
    return f"{many}{what}{memory}{kind}{cpu}"
