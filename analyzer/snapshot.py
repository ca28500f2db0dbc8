"""A cluster at one instant, and what is stranded in it: the fragmentation analysis without any telemetry."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pandas as pd

from analyzer.demand import Demand, Wish, type_allows
from analyzer.facts import FACT_COLUMNS
from analyzer.fgd import EPSILON, EPSILON_BYTES, NodeIdle
from analyzer.findings import SCHEMA_VERSION, Finding
from analyzer.fleet_verdicts import fleet_evidence, judge_nodes, measure_demand
from analyzer.mig import measure
from analyzer.mig_recut import judge_recut
from analyzer.mig_verdicts import judge_card, mig_evidence, read_card
from analyzer.protocols import Context, Withheld
from collector.window import Window

_PARTS = 1_000_000  # weights of a mix are counted in millionths


@dataclass(frozen=True, slots=True)
class CutInstance:
    """A MIG instance; `start` None: not told where it begins; `holder` empty: nobody holds it."""

    profile: str
    start: int | None = None
    holder: str = ""


@dataclass(frozen=True, slots=True)
class SnapshotNode:
    """A node and its cards, which are of one model.

    cpu_cores: what it may give to pods (inf: not known). memory_bytes: of each card (NaN: not known).
    free_shares, free_cpu_cores: what is left, where the snapshot says that itself; pods on it are then not subtracted.
    cut: the instances of each MIG card; None for a card whose instances are not told apart.
    """

    name: str
    cards: int
    model: str = ""
    pool: str = "default"
    cpu_cores: float = math.inf
    memory_bytes: float = math.nan
    free_shares: tuple[float, ...] | None = None
    free_memory_bytes: tuple[float, ...] | None = None
    free_cpu_cores: float | None = None
    cut: tuple[tuple[CutInstance, ...] | None, ...] = ()

    @property
    def whole_cards(self) -> int:
        """Number of cards that are not cut."""
        return self.cards - len(self.cut)


@dataclass(frozen=True, slots=True)
class SnapshotPod:
    """A pod: what it asks for, where it runs (empty: it waits), and on which cards of the node (empty: not told)."""

    name: str
    wish: Wish
    node: str = ""
    cards: tuple[int, ...] = ()
    count: int = 1


@dataclass(slots=True)
class Snapshot:
    """Nodes, pods, and the demand mix where it is given (else what the pods ask for); what could not be read."""

    nodes: dict[str, SnapshotNode] = field(default_factory=dict)
    pods: list[SnapshotPod] = field(default_factory=list)
    requests: Counter[Wish] = field(default_factory=Counter)
    rejected: list[str] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)  # why -> nodes or cards

    def add(self, other: Snapshot) -> None:
        """Take in what another file said; a node said twice is that of the later file."""
        self.nodes |= other.nodes
        self.pods += other.pods
        self.requests += other.requests
        self.rejected += other.rejected
        self.left_out += other.left_out


@dataclass(frozen=True, slots=True)
class SnapshotAnalysis:
    """What is stranded in a snapshot."""

    snapshot: dict[str, Any]
    fragmentation: dict[str, Any] | None  # None: no card that is not cut, or nothing is asked for
    cut_cards: tuple[dict[str, Any], ...]
    findings: tuple[Finding, ...]
    withheld: tuple[Withheld, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the document that `trimtab analyze fragmentation --snapshot --json` prints."""
        return {
            "schema_version": SCHEMA_VERSION,
            "snapshot": self.snapshot,
            "fragmentation": self.fragmentation,
            "mig": list(self.cut_cards),
            "findings": [finding.to_json() for finding in self.findings],
            "withheld": [{"code": w.code, "node": w.node, "gpu": w.gpu, "reason": w.reason} for w in self.withheld],
        }


def analyse_snapshot(snapshot: Snapshot, window: Window, cluster: str = "snapshot") -> SnapshotAnalysis:
    """Analyse a snapshot.

    Args:
        snapshot: what was read.
        window: ends at the instant that the findings are dated with.
        cluster: name of the cluster in the findings.
    """
    nodes, pools, assumed, over = idle_nodes(snapshot)
    wanted = _demand(snapshot)
    shares = {wish: float(count) for wish, count in wanted.counts.items() if not wish.profile}
    empty = pd.DataFrame(columns=list(FACT_COLUMNS))
    context = Context(window, 0.0, empty, pd.DataFrame(), pd.DataFrame(), {})
    judged: list[Finding | Withheld] = []
    found = None
    whole = sum(len(node.left) for node in nodes)
    if whole and shares:
        found = measure_demand(nodes, pools, shares)
        judged += judge_nodes(cluster, found, wanted, context, (whole, whole))
    rows = [row for node in snapshot.nodes.values() for row in _cut_rows(node, cluster)]
    judged += judge_recut(rows, wanted, context)
    judged += [verdict for row in rows if (verdict := judge_card(row, wanted, context)) is not None]
    return SnapshotAnalysis(
        snapshot={
            "nodes": len(snapshot.nodes),
            "cards": sum(node.cards for node in snapshot.nodes.values()),
            "cut_cards": len(rows),
            "pods": sum(pod.count for pod in snapshot.pods if pod.node),
            "waiting": sum(pod.count for pod in snapshot.pods if not pod.node),
            "requests": "given" if snapshot.requests else "of the pods",
            "places_assumed": assumed,
            "nodes_over_given": over,
            "left_out": dict(snapshot.left_out),
            "rejected": snapshot.rejected,
        },
        fragmentation=None if found is None else fleet_evidence(found, wanted),
        cut_cards=tuple(_cut_card(row, wanted) for row in rows),
        findings=tuple(f for f in judged if isinstance(f, Finding)),
        withheld=tuple(w for w in judged if isinstance(w, Withheld)),
    )


def instant_window(end: Any) -> Window:
    """Return the window of an instant: the second that ends then."""
    return Window.last(end, timedelta(seconds=1))


def _demand(snapshot: Snapshot) -> Demand:
    waiting: Counter[Wish] = Counter()
    counts: Counter[Wish] = Counter()
    for pod in snapshot.pods:
        if pod.wish.cards:
            counts[pod.wish] += pod.count
            if not pod.node:
                waiting[pod.wish] += pod.count
    mix = snapshot.requests or counts
    return Demand(dict(sorted(mix.items())), dict(sorted(waiting.items())))


def idle_nodes(snapshot: Snapshot) -> tuple[list[NodeIdle], list[str], int, int]:
    """Return what each node has left on cards that are not cut, and its pool.

    Pods whose cards are told are subtracted there. Others are put on the fullest cards that can take them, as a packing
    scheduler would. The last two numbers: how many shares were placed so, and nodes on which more is given than is.
    """
    by_node: dict[str, list[SnapshotPod]] = {}
    for pod in snapshot.pods:
        if pod.node in snapshot.nodes:
            by_node.setdefault(pod.node, []).append(pod)
    nodes, pools, assumed, over = [], [], 0, 0
    for node in snapshot.nodes.values():
        left = list(node.free_shares or (1.0,) * node.whole_cards)
        room = list(node.free_memory_bytes or ((node.memory_bytes,) * len(left)))
        cpu = node.cpu_cores if node.free_cpu_cores is None else node.free_cpu_cores
        if node.free_shares is None:
            # What is told goes first, then the largest: a packing scheduler's order does not matter for them.
            mine = sorted(by_node.get(node.name, ()), key=lambda p: (not p.cards, -p.wish.share, p.name))
            fits = True
            for pod in mine:
                for _ in range(pod.count):
                    cpu -= pod.wish.cpu_cores if node.free_cpu_cores is None else 0.0
                    if pod.wish.cards and not pod.wish.profile:
                        assumed += not pod.cards and pod.wish.share < 1
                        fits &= _take(left, room, pod)
            over += not fits or cpu < -EPSILON
        elif node.free_cpu_cores is None:
            cpu -= sum(pod.wish.cpu_cores * pod.count for pod in by_node.get(node.name, ()))
        shares = tuple(round(min(max(share, 0.0), 1.0), 9) for share in left)
        if shares:
            known = not any(math.isnan(one) for one in room)
            memory = tuple(max(one, 0.0) for one in room) if known else ()
            nodes.append(NodeIdle(node.name, shares, max(cpu, 0.0), node.model, memory, node.memory_bytes))
            pools.append(node.pool)
    return nodes, pools, assumed, over


def _take(left: list[float], room: list[float], pod: SnapshotPod) -> bool:
    """Subtract a pod from the cards it is on, or from the fullest that can take it; say whether there was room."""
    wish = pod.wish
    cards = [card for card in pod.cards if card < len(left)]
    if not cards:
        can = [
            g
            for g, share in enumerate(left)
            if share >= wish.share - EPSILON and not room[g] < wish.memory_bytes - EPSILON_BYTES
        ]
        cards = sorted(can, key=lambda g: (left[g], g))[: wish.cards]
    for card in cards:
        left[card] -= wish.share
        room[card] -= wish.memory_bytes
    return len(cards) >= wish.cards and all(left[card] >= -EPSILON for card in cards)


def _cut_rows(node: SnapshotNode, cluster: str) -> list[dict[str, Any]]:
    """Return a row a cut card, as `FragmentationDetector.measure` makes them."""
    rows = []
    for number, instances in enumerate(node.cut, start=node.whole_cards):
        told = [
            [
                f"{i.profile}#{k}",
                i.profile,
                i.start,
                bool(i.holder),
                i.holder.split("/", maxsplit=1)[0] or "none",
                i.holder,
            ]
            for k, i in enumerate(instances or ())
        ]
        rows.append(
            {
                "cluster": cluster,
                "node": node.name,
                "gpu": f"card {number}",
                "model": node.model,
                "instances": json.dumps(told),
                "withheld": "which instances lie on which card of the node is not told" if instances is None else "",
            }
        )
    return rows


def _cut_card(row: Mapping[str, Any], wanted: Demand) -> dict[str, Any]:
    """Return what a cut card can still give, as JSON values."""
    told = {"node": row["node"], "gpu": row["gpu"], "model": row["model"]}
    seen = str(row["withheld"]) or read_card(row)
    if isinstance(seen, str):
        return {**told, "unknown": seen}
    board = seen.board
    asked = Counter(
        {
            wish.profile: count
            for wish, count in wanted.counts.items()
            if wish.profile in board.profiles and type_allows(wish, row["model"])
        }
    )
    mix = {profile: count / asked.total() for profile, count in sorted(asked.items())}
    least = min((measure(board, layout, mix) for layout in seen.possible), key=lambda m: m.stranded_memory_slices)
    return {
        **told,
        "board": board.name,
        "placements": board.placements,
        "layout_told": seen.placed,
        "instances": [[i.profile, i.start, i.held] for i in seen.instances],
        **mig_evidence(least),
    }


def mix_of(weights: Sequence[tuple[Wish, float]]) -> Counter[Wish]:
    """Return a mix of given weights as counts."""
    total = sum(weight for _, weight in weights)
    counts: Counter[Wish] = Counter()
    for wish, weight in weights:
        counts[wish] += round(_PARTS * weight / total) if total > 0 else 0
    return +counts
