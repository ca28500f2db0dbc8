"""The fleet that rows and facts tell of, as the planner needs it: cards, who lies where, what may move, what is asked.

A card is left out, with the reason, where a holder's share or the start of an instance is not known: nothing is moved
from it or to it. Pods stay within their kind of card (model and way of sharing) unless what they asked for says more.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from analyzer.cards import cards
from analyzer.defragment.model import UNLIMITED, WHOLE, Card, Cost, Fleet, Node, Pod, Request, Shape, State
from analyzer.demand import Wish, demand, type_allows
from analyzer.facts import hardware_facts, records, requests, to_float
from analyzer.findings import Finding, Role, Verdict
from analyzer.mig import Instance, board_of, layout_faults
from analyzer.protocols import Partition
from collector.declarations import Owner, ResolvedWorkload
from collector.schema import NOBODY
from collector.window import Window

_CURRENT_INTERVALS = 3
_MIB = 1 << 20
_LOW = 0.05  # quantile of a card's power: about what it draws when it does nothing
_SHARING = ("mps", "timeslice", "vgpu")
ANY = "any"  # way of sharing of cards of which it is not told
_UNHEALTHY = ("TT601", "TT602", "TT604")
_APART = ("TT101", "TT111")
PLACEMENT_COLUMNS = [
    *("cluster", "node", "gpu", "slice", "tenant", "workload", "model", "kind", "profile", "pod"),
    *("quota", "estimated", "granted_bytes", "used_bytes", "peak_bytes", "total_bytes", "low_watts", "gone"),
]
Promises = Mapping[Owner, ResolvedWorkload]


@dataclass(frozen=True)
class Observed:
    """A fleet, what is asked of it, and what of it the planner may not touch.

    `waiting`: the demand waits now; else it is the mix of what was asked for in the window, as much as would fill what
    is free. `gpus`, `models` and `idle_watts` (the least that a card of its model draws; NaN: not metered) belong to
    the fleet's cards.
    """

    fleet: Fleet
    demand: tuple[Request, ...]
    waiting: bool
    gpus: tuple[str, ...]
    models: tuple[str, ...]
    idle_watts: tuple[float, ...]
    left_out: Mapping[str, int]  # reason -> cards
    protected: int  # pods that may not move


def measure_placement(partition: Partition) -> pd.DataFrame:
    """Return a row for each slice that lives on a node's cards now, and one without a slice for each card."""
    found = cards(partition)
    newest = max((card.newest for card in found), default=-1)
    rows: list[dict[str, Any]] = []
    for card in found:
        if card.nameless:
            continue
        both = card.of_card("memory_used_bytes") + card.of_card("memory_free_bytes")
        total = float(np.nanmax(both)) if not np.isnan(both).all() else math.nan
        power = card.of_card("power_watts")
        low = float(np.nanquantile(power, _LOW)) if not np.isnan(power).all() else math.nan
        gone = card.newest < newest - _CURRENT_INTERVALS
        place = {**card.place, "model": card.model}
        common = {**place, "total_bytes": total, "low_watts": low, "gone": gone}
        rows.append({**common, "slice": "", "tenant": NOBODY, "workload": NOBODY, "kind": "mig" if card.mig else ""})
        if gone:
            continue
        now = card.alive[max(card.newest - _CURRENT_INTERVALS, 0) : card.newest + 1].any(axis=0)
        used, granted = card.of_slices("memory_used_bytes"), card.of_slices("memory_quota_bytes")
        for j in np.flatnonzero(now):
            holding = card.holdings[j]
            last = int(np.flatnonzero(card.alive[:, j])[-1])
            own = used[:, j][~np.isnan(used[:, j])]
            grants = granted[:, j][~np.isnan(granted[:, j])]
            rows.append(
                {
                    **common,
                    "slice": holding.slice,
                    "tenant": holding.tenant,
                    "workload": holding.workload,
                    "kind": holding.kind,
                    "profile": holding.profile,
                    "pod": holding.pod,
                    "quota": float(card.quota[last, j]),
                    "estimated": bool(card.quota_estimated[j]),
                    "granted_bytes": float(grants[-1]) if len(grants) else math.nan,
                    "used_bytes": float(own[-1]) if len(own) else math.nan,
                    "peak_bytes": float(own.max()) if len(own) else math.nan,
                }
            )
    return pd.DataFrame(rows, columns=PLACEMENT_COLUMNS)


def observe(
    placement: pd.DataFrame,
    facts: pd.DataFrame,
    window: Window,
    promises: Promises,
    *,
    findings: Iterable[Finding] = (),
    move_minutes: float = 5.0,
) -> Observed:
    """Put a fleet together.

    Args:
        placement: rows of `measure_placement` of all nodes.
        facts: of the window.
        window: whose requests are the demand; its end is now.
        promises: of the workloads; those of whom nobody promised anything are protected.
        findings: of the analysis: cards that are unhealthy get nothing, pairs that hurt each other are kept apart, and
            what is granted far too much may be made smaller in its place.
        move_minutes: how long a workload that is moved is away.
    """
    found = tuple(findings)
    builder = _Builder(facts, window, promises, found, move_minutes)
    for rows in _by_card(placement):
        builder.card(rows)
    return builder.result()


def _by_card(placement: pd.DataFrame) -> list[list[dict[str, Any]]]:
    ordered = placement.sort_values(["cluster", "node", "gpu", "slice"], kind="stable")
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in records(ordered):
        groups.setdefault((row["cluster"], row["node"], row["gpu"]), []).append(row)
    return list(groups.values())


class _Builder:
    def __init__(
        self,
        facts: pd.DataFrame,
        window: Window,
        promises: Promises,
        findings: Sequence[Finding],
        move_minutes: float,
    ) -> None:
        self.window, self.promises, self.move_minutes = window, promises, move_minutes
        self.starts = hardware_facts(facts, "slice", "placement")
        asked = requests(facts)
        self.wanted = demand(asked, window)
        self.cpu_of = {r.pod: r.cpu_cores for r in asked if not math.isnan(r.cpu_cores)}
        self.began = {r.pod: r.started for r in asked if r.started is not None}
        self.cpu_free = _cpu_free(facts)
        holding = [f for f in findings if f.verdict is Verdict.HOLDS]
        self.unhealthy = {s.gpu for f in holding if f.code in _UNHEALTHY for s in f.subjects if s.gpu}
        self.apart = frozenset(
            frozenset((s.tenant, s.workload) for s in f.subjects) for f in holding if f.code in _APART
        )
        self.smaller = {
            (s.gpu, s.slice): float(f.evidence["target_ratio"])
            for f in holding
            if f.code == "TT311" and f.evidence.get("target_ratio") is not None
            for s in f.subjects
            if s.role is Role.SUBJECT
        }
        self.groups: dict[tuple[str, str, str], int] = {}
        self.nodes: list[tuple[str, str, str]] = []  # cluster, node, type
        self.cards: list[Card] = []
        self.gpus: list[str] = []
        self.models: list[str] = []
        self.low_watts: dict[str, float] = {}
        self.kinds: Counter[tuple[str, str, str]] = Counter()
        self.pieces: list[tuple[dict[str, Any], int]] = []
        self.closed: set[int] = set()
        self.left_out: Counter[str] = Counter()

    def card(self, rows: list[dict[str, Any]]) -> None:
        """Add a card with those who live on it, or count why it is left out."""
        first, living = rows[0], rows[1:]
        held = [row for row in living if row["tenant"] != NOBODY]
        kinds = {row["kind"] for row in living}
        if first["gone"]:
            self.left_out["it is not there now"] += 1
            return
        if "mig" in kinds or first["kind"] == "mig":
            self._cut_card(first, held if "mig" in kinds else [], living)
            return
        if any(row["estimated"] or not row["quota"] >= 0 for row in held):
            self.left_out["a holder's share is not known"] += 1
            return
        if len({row["kind"] for row in held}) > 1:
            self.left_out["it is shared in two ways at once"] += 1
            return
        kind = next(iter({row["kind"] for row in held} or kinds - {"unknown"}), "")
        total = first["total_bytes"]
        self._add(first, kind, Card(-1, first["gpu"], int(total // _MIB) if total > 0 else UNLIMITED), held)

    def _cut_card(self, first: dict[str, Any], held: list[dict[str, Any]], living: list[dict[str, Any]]) -> None:
        board = board_of(first["model"], {row["profile"] for row in living if row["kind"] == "mig"})
        known = board is not None and board.placements != "unknown"
        if board is None or not known or any(row["profile"] not in board.profiles for row in held):
            self.left_out["no placement table for its model"] += 1
            return
        for row in held:
            start = to_float(self.starts.get((row["cluster"], row["node"], row["gpu"], row["slice"])))
            if math.isnan(start):
                self.left_out["where its instances begin is not told"] += 1
                return
            row["start"] = int(start)
        if layout_faults(board, [Instance(row["profile"], row["start"]) for row in held]):
            self.left_out["its instances cannot lie as told"] += 1
            return
        self._add(first, "mig", Card(-1, first["gpu"], board=board.name), held)

    def _add(self, first: dict[str, Any], kind: str, card: Card, held: list[dict[str, Any]]) -> None:
        place = len(self.cards)
        self.cards.append(card)
        self.gpus.append(first["gpu"])
        self.models.append(first["model"])
        if not math.isnan(first["low_watts"]):
            self.low_watts[first["model"]] = min(self.low_watts.get(first["model"], math.inf), first["low_watts"])
        self.nodes.append((first["cluster"], first["node"], f"{first['model']}/{kind}"))
        if kind and kind != "mig":
            self.kinds[first["cluster"], first["node"], kind] += 1
        if first["gpu"] in self.unhealthy:
            self.closed.add(place)
        self.pieces += [(row, place) for row in held]

    def result(self) -> Observed:
        """Return the fleet: cards in groups of one node, model and way of sharing; a pod's pieces put together."""
        group_of = [self._group(place) for place in range(len(self.cards))]
        sizes = Counter(group_of)
        on_node = Counter((cluster, node) for cluster, node, _ in self.nodes)
        nodes = []
        for (cluster, node, type_), number in sorted(self.groups.items(), key=lambda item: item[1]):
            free = self.cpu_free.get((cluster, node), math.nan)
            part = sizes[number] / on_node[cluster, node]  # a node of several kinds of cards: each has its part
            cpu = UNLIMITED if math.isnan(free) else int(free * 1000 * part)
            nodes.append(Node(node, cpu, type_))
        for place, group in enumerate(group_of):
            card = self.cards[place]
            self.cards[place] = replace(card, node=group, closed=place in self.closed)
        pods = self._pods(group_of, nodes)
        fleet = Fleet(tuple(nodes), tuple(self.cards), tuple(pods), self.apart)
        asked, waiting = self._demand(fleet)
        return Observed(
            fleet=fleet,
            demand=asked,
            waiting=waiting,
            gpus=tuple(self.gpus),
            models=tuple(self.models),
            idle_watts=tuple(self.low_watts.get(model, math.nan) for model in self.models),
            left_out=dict(sorted(self.left_out.items())),
            protected=sum(pod.fixed and bool(pod.workload) for pod in pods),
        )

    def _group(self, place: int) -> int:
        cluster, node, type_ = self.nodes[place]
        model, kind = type_.rsplit("/", 1)
        if not kind:  # nobody lives there: shared as the others of its node are
            own = {k: n for (c, h, k), n in self.kinds.items() if (c, h) == (cluster, node)}
            kind = max(sorted(own), key=lambda k: own[k], default="whole")
        return self.groups.setdefault((cluster, node, f"{model}/{kind}"), len(self.groups))

    def _pods(self, group_of: Sequence[int], nodes: Sequence[Node]) -> list[Pod]:
        together: dict[tuple[str, str, str], list[tuple[dict[str, Any], int]]] = {}
        for row, place in self.pieces:
            own = row["pod"] or f"{row['gpu']}/{row['slice']}"
            together.setdefault((row["cluster"], row["node"], own), []).append((row, place))
        pods = []
        for (_, _, name), pieces in together.items():
            row, place = pieces[0]
            places = tuple(dict.fromkeys(place for _, place in pieces))
            same = len({group_of[p] for p in places}) == 1 and len({r["kind"] for r, _ in pieces}) == 1
            if not same or len(places) < len(pieces):  # pieces of one pod that do not move as one
                pods += [self._pod(f"{name}/{r['slice']}", [(r, p)], group_of, nodes, fixed=True) for r, p in pieces]
            else:
                pods.append(self._pod(name, pieces, group_of, nodes, fixed=False))
        return pods

    def _pod(
        self,
        name: str,
        pieces: Sequence[tuple[dict[str, Any], int]],
        group_of: Sequence[int],
        nodes: Sequence[Node],
        *,
        fixed: bool,
    ) -> Pod:
        row, place = pieces[0]
        promise = self.promises.get((row["cluster"], row["tenant"], row["workload"]))
        cut = row["kind"] == "mig"
        held = [r["granted_bytes"] if r["granted_bytes"] > 0 else r["peak_bytes"] for r, _ in pieces]
        memory = max((h for h in held if h > 0), default=0.0) if row["kind"] in _SHARING else 0.0
        share = 0 if cut else max(round(1000 * max(r["quota"] for r, _ in pieces)), 1)
        shape = Shape(
            cards=len(pieces),
            share=share,
            memory=math.ceil(memory / _MIB),
            cpu=round(1000 * self.cpu_of.get(row["pod"], 0.0)),
            types=frozenset({nodes[group_of[place]].type}),
            profile=row["profile"] if cut else "",
        )
        smaller = self.smaller.get((row["gpu"], row["slice"]), math.nan)
        several = cut and len(pieces) > 1
        return Pod(
            name=name,
            node=group_of[place],
            cards=tuple(p for _, p in pieces),
            shape=shape,
            fixed=fixed or several or promise is None or not promise.declared or promise.declaration.protected,
            start=int(row["start"]) if cut else -1,
            smaller_share=0 if math.isnan(smaller) or cut else min(math.ceil(1000 * smaller), share),
            cost=self._cost(pieces, promise),
            tenant=row["tenant"],
            workload=row["workload"],
        )

    def _cost(self, pieces: Sequence[tuple[dict[str, Any], int]], promise: ResolvedWorkload | None) -> Cost:
        used = sum(r["used_bytes"] for r, _ in pieces if r["used_bytes"] > 0)
        lost = 0.0  # of an online service no work is lost
        if promise is None or promise.declaration.service_class == "offline":
            began = self.began.get(pieces[0][0]["pod"])
            age = math.nan if began is None else max((self.window.end - began).total_seconds(), 0.0)
            every = 0.0 if promise is None else promise.declaration.checkpoint_seconds
            lost = float(np.fmin(every / 2, age)) if every > 0 else age
        return Cost(used / 2**30, 1, self.move_minutes, lost)

    def _demand(self, fleet: Fleet) -> tuple[tuple[Request, ...], bool]:
        waiting = [(wish, count) for wish, count in self.wanted.waiting.items() if count]
        if waiting:
            asked = [Request(shape, count, wish_text(wish)) for wish, count in waiting if (shape := self._shape(wish))]
            return tuple(asked), True
        mix = [(wish, count) for wish, count in self.wanted.counts.items()]
        shapes = [(shape, count, wish_text(wish)) for wish, count in mix if (shape := self._shape(wish))]
        idle = sum(max(share, 0) for share, card in zip(State(fleet).share, fleet.cards, strict=True) if not card.board)
        total = sum(count * shape.amount for shape, count, _ in shapes if not shape.profile)
        scale = idle / WHOLE / total if total > 0 else 0.0
        asked = [
            Request(shape, max(round(count * (scale if not shape.profile else 1.0)), 1), text)
            for shape, count, text in shapes
        ]
        return tuple(asked), False

    def _shape(self, wish: Wish) -> Shape | None:
        """Return what a wish takes here; None: no card of the fleet is of a kind that it may use."""
        return shape_of(wish, self.groups)


def shape_of(wish: Wish, groups: Iterable[tuple[str, str, str]]) -> Shape | None:
    """Return the shape of a wish on these groups of cards (cluster, node, `model/kind`); None: no group allows it."""
    types = set()
    for _, _, type_ in groups:
        model, kind = type_.rsplit("/", 1)
        suits = kind == "mig" if wish.profile else kind != "mig" and (wish.share >= 1 or kind in (*_SHARING, ANY))
        if suits and type_allows(wish, model):
            types.add(type_)
    if not types:
        return None
    share = 0 if wish.profile else math.ceil(round(1000 * wish.share, 6))
    cpu, memory = round(1000 * wish.cpu_cores), math.ceil(wish.memory_bytes / _MIB)
    return Shape(wish.cards, share, memory, cpu, frozenset(types), wish.profile)


def wish_text(wish: Wish) -> str:
    """Return a wish in words."""
    if wish.profile:
        what = wish.profile
    elif wish.share < 1:
        what = f"{wish.share:.0%} of a card"
    else:
        what = "a whole card" if wish.cards == 1 else "whole cards"
    many = f"{wish.cards} x " if wish.cards > 1 else ""
    memory = f" with {wish.memory_bytes / 2**30:.0f} GiB" if wish.memory_bytes else ""
    kind = f" of type {wish.gpu_type}" if wish.gpu_type else ""
    return f"{many}{what}{memory}{kind}"


def _cpu_free(facts: pd.DataFrame) -> dict[tuple[str, str], float]:
    """Return node -> cores that nobody asked for, where the facts tell both."""
    allowed = hardware_facts(facts, "node", "allocatable_cpu")
    taken = hardware_facts(facts, "node", "requested_cpu")
    return {
        key[:2]: max(to_float(value) - to_float(taken.get(key)), 0.0)
        for key, value in allowed.items()
        if not math.isnan(to_float(value) - to_float(taken.get(key)))
    }
