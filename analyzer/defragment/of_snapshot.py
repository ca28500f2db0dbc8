"""The planner's fleet out of a snapshot: nobody's promises are told there, so every pod of it may move."""

from __future__ import annotations

import math
from collections import Counter

from analyzer.defragment.model import UNLIMITED, WHOLE, Card, Cost, Fleet, Node, Pod, Request, Shape, State
from analyzer.defragment.observed import ANY, Observed, shape_of, wish_text
from analyzer.demand import Wish
from analyzer.snapshot import Snapshot, SnapshotNode, SnapshotPod

_MIB = 1 << 20
_CLOSE = 1e-3  # of a card


def observe_snapshot(snapshot: Snapshot, move_minutes: float = 5.0) -> Observed:
    """Put a fleet together.

    Left out are cards that are cut, and nodes on which it is not told on which card a pod lies, or only what is free.

    Args:
        snapshot: nodes and pods.
        move_minutes: how long a workload that is moved is away.
    """
    nodes: list[Node] = []
    cards: list[Card] = []
    pods: list[Pod] = []
    models: list[str] = []
    left_out: Counter[str] = Counter()
    by_node: dict[str, list[SnapshotPod]] = {}
    for pod in snapshot.pods:
        by_node.setdefault(pod.node, []).append(pod)
    for node in snapshot.nodes.values():
        mine = by_node.get(node.name, [])
        if node.cut:
            left_out["it is cut: see the MIG part of the analysis"] += len(node.cut)
        if reason := _unclear(node, mine):
            left_out[reason] += node.whole_cards
            continue
        first, place = len(cards), len(nodes)
        memory = UNLIMITED if math.isnan(node.memory_bytes) else int(node.memory_bytes // _MIB)
        cards += [Card(place, f"{node.name}/{n}", memory) for n in range(node.whole_cards)]
        models += [node.model] * node.whole_cards
        taken = sum(pod.wish.cpu_cores * pod.count for pod in mine)
        free = node.cpu_cores - taken if node.free_cpu_cores is None else node.free_cpu_cores
        nodes.append(
            Node(node.name, UNLIMITED if math.isinf(free) else max(int(1000 * free), 0), f"{node.model}/{ANY}")
        )
        pods += [_pod(pod, place, first, move_minutes) for pod in mine for _ in range(pod.count)]
    fleet = Fleet(tuple(nodes), tuple(cards), tuple(pods))
    waiting = Counter({pod.wish: 0 for pod in by_node.get("", []) if pod.wish.cards})
    for pod in by_node.get("", []):
        if pod.wish.cards:
            waiting[pod.wish] += pod.count
    return Observed(
        fleet=fleet,
        demand=_demand(snapshot, fleet, waiting),
        waiting=bool(waiting),
        gpus=tuple(card.name for card in cards),
        models=tuple(models),
        idle_watts=(math.nan,) * len(cards),
        left_out=dict(left_out),
        protected=0,
    )


def _unclear(node: SnapshotNode, pods: list[SnapshotPod]) -> str:
    """Return why a node is left out; empty: it is not."""
    placed = [pod for pod in pods if pod.wish.cards and not pod.wish.profile]
    if any(len(pod.cards) < pod.wish.cards or max(pod.cards) >= node.whole_cards for pod in placed):
        return "on which card a pod lies is not told"
    if node.free_shares is not None:
        left = [1.0] * node.whole_cards
        for pod in placed:
            for card in pod.cards[: pod.wish.cards]:
                left[card] -= pod.wish.share * pod.count
        if any(abs(told - rest) > _CLOSE for told, rest in zip(node.free_shares, left, strict=True)):
            return "what is free is not what its pods leave"
    return ""


def _pod(pod: SnapshotPod, node: int, first: int, move_minutes: float) -> Pod:
    cut = bool(pod.wish.profile)
    cards = () if cut or not pod.wish.cards else tuple(first + card for card in pod.cards[: pod.wish.cards])
    cpu, memory = round(1000 * pod.wish.cpu_cores), math.ceil(pod.wish.memory_bytes / _MIB)
    # What it holds of the cut cards is not of this plan; its CPU is.
    shape = Shape(len(cards), round(1000 * pod.wish.share), memory, cpu) if cards else Shape(0, 0, 0, cpu)
    gib = pod.wish.memory_bytes * len(cards) / 2**30
    return Pod(pod.name, node, cards, shape, fixed=cut, cost=Cost(gib, 1, move_minutes, math.nan))


def _demand(snapshot: Snapshot, fleet: Fleet, waiting: Counter[Wish]) -> tuple[Request, ...]:
    """Return what waits; else the mix that is given, or what the pods ask for, scaled to what is free."""
    groups = {("", "", node.type) for node in fleet.nodes}

    def asked(wish: Wish) -> Shape | None:
        return None if wish.profile or not wish.cards else shape_of(wish, groups)

    if waiting:
        return tuple(Request(shape, n, wish_text(w)) for w, n in sorted(waiting.items()) if (shape := asked(w)))
    mix = snapshot.requests or Counter(pod.wish for pod in snapshot.pods for _ in range(pod.count))
    shapes = [(shape, count, wish_text(wish)) for wish, count in sorted(mix.items()) if (shape := asked(wish))]
    idle = sum(max(share, 0) for share in State(fleet).share) / WHOLE
    total = sum(count * shape.amount for shape, count, _ in shapes)
    scale = idle / total if total > 0 else 0.0
    return tuple(Request(shape, round(n * scale), text) for shape, n, text in shapes if round(n * scale))
