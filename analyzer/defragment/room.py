"""Room for one request with the fewest moves: on which node, which pods leave, and where they go.

Every plan must take away from the node that it chooses at least as many pods as are in the request's way there. Nodes
are tried in the order of that number, each with an integer program over what may leave and where it fits elsewhere; the
answer is proven once no untried node could do with fewer.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from analyzer.defragment.exact import Exact, fewest_moves
from analyzer.defragment.model import UNLIMITED, Fleet, Move, Placed, Plan, Pod, Request, Shape, State, cost_of
from analyzer.defragment.order import in_order
from analyzer.mig import Instance, boards

_TRIED = 24  # nodes
_TARGETS = 3  # nodes to which each pod may go
_FEW_PODS = 8


@dataclass(frozen=True)
class _Crowd:
    """Pods by card and by node, and what is free: read once for all nodes."""

    fleet: Fleet
    state: State
    on_card: dict[int, list[int]]
    on_node: dict[int, list[int]]


def make_room(fleet: Fleet, shape: Shape) -> Plan | None:
    """Return the plan of fewest moves after which one more of this shape fits; None: none was found.

    Its `bound` is as `placed`; `exact` says whether fewer moves are proven not to do.
    """
    crowd = _read(fleet)
    in_the_way = [(count, node) for node in range(len(fleet.nodes)) if (count := _in_the_way(crowd, node, shape)) >= 0]
    in_the_way.sort()
    best: tuple[float, Exact, int] | None = None
    proven = False
    for tried, (least, node) in enumerate(in_the_way):
        if best is not None and least > len(best[1].moves):
            proven = True
            break
        if tried >= _TRIED:
            proven = best is not None and least >= len(best[1].moves)
            break
        found = _on_node(crowd, node, shape)
        if found is None:
            continue
        weight = len(found.moves) + 1e-4 * cost_of(fleet, found.moves).weight
        if best is None or weight < best[0]:
            best = (weight, found, node)
    else:
        proven = True
    if best is None:
        return None
    moves, together = in_order(fleet, best[1].moves)
    fits = float(not moves) * shape.amount
    least = min(count for count, _ in in_the_way)
    return Plan(
        moves=moves,
        placements=best[1].placements,
        before=fits,
        placed=shape.amount,
        bound=shape.amount,
        exact=proven or len(moves) == least,
        cost=cost_of(fleet, moves),
        together=together,
    )


def _read(fleet: Fleet) -> _Crowd:
    on_card: dict[int, list[int]] = {place: [] for place in range(len(fleet.cards))}
    on_node: dict[int, list[int]] = {node: [] for node in range(len(fleet.nodes))}
    for number, pod in enumerate(fleet.pods):
        on_node[pod.node].append(number)
        for card in pod.cards:
            on_card[card].append(number)
    return _Crowd(fleet, State(fleet), on_card, on_node)


def _in_the_way(crowd: _Crowd, node: int, shape: Shape) -> int:
    """Return how many pods at least must leave their place so that a shape fits on a node; -1: it never does."""
    fleet, state = crowd.fleet, crowd.state
    if not shape.allows(fleet.nodes[node].type):
        return -1
    counts = sorted(
        count
        for card in state.by_node[node]
        if not fleet.cards[card].closed
        and bool(fleet.cards[card].board) == bool(shape.profile)
        and (count := _on_card(crowd, card, shape)) >= 0
    )
    if len(counts) < shape.cards:
        return -1
    # Whole-card pods on several cards are counted once: the largest count is a safe lower bound with CPU's.
    several = any(len(fleet.pods[p].cards) > 1 for p in crowd.on_node[node])
    chosen = counts[: shape.cards]
    cards = (max(chosen) if several else sum(chosen)) if chosen else 0
    lacking = shape.cpu - state.cpu[node]
    for_cpu = 0
    if lacking > 0:
        loose = sorted((fleet.pods[p].shape.cpu for p in crowd.on_node[node] if not fleet.pods[p].fixed), reverse=True)
        for cpu in loose:
            if lacking <= 0:
                break
            lacking -= cpu
            for_cpu += 1
        if lacking > 0:
            return -1
    return max(cards, for_cpu)


def _on_card(crowd: _Crowd, card: int, shape: Shape) -> int:
    pods = [crowd.fleet.pods[p] for p in crowd.on_card[card]]
    if shape.profile:
        return _on_cut_card(crowd.fleet.cards[card].board, pods, shape.profile)
    share = shape.share - crowd.state.share[card]
    memory = shape.memory - crowd.state.memory[card]
    loose = [pod for pod in pods if not pod.fixed]
    count = 0
    for amounts, lacking in (
        ([max(pod.shape.share, pod.shape.share - pod.smaller_share) for pod in loose], share),
        ([pod.shape.memory for pod in loose], memory),
    ):
        needed, left = 0, lacking
        for amount in sorted(amounts, reverse=True):
            if left <= 0:
                break
            left -= amount
            needed += 1
        if left > 0:
            return -1
        count = max(count, needed)
    return count


def _on_cut_card(board_name: str, pods: Sequence[Pod], profile_name: str) -> int:
    board = boards()[board_name]
    if profile_name not in board.profiles:
        return -1
    profile = board.profiles[profile_name]
    placed = [(Instance(pod.shape.profile, pod.start), pod.fixed) for pod in pods]
    best = -1
    for count in range(min(len(placed), _FEW_PODS) + 1):
        for gone in itertools.combinations(range(len(placed)), count):
            if any(placed[i][1] for i in gone):
                continue
            kept = [instance for i, (instance, _) in enumerate(placed) if i not in gone]
            taken = {s for i in kept for s in range(i.start, i.start + board.profiles[i.profile].size)}
            copies = sum(i.profile == profile_name for i in kept)
            free = any(taken.isdisjoint(range(start, start + profile.size)) for start in profile.starts)
            if free and copies < profile.most:
                return count
    return best


def _on_node(crowd: _Crowd, node: int, shape: Shape) -> Exact | None:
    """Solve for one node: its pods may move within it or to the nodes where they fit most tightly; others stay."""
    fleet = crowd.fleet
    targets = _targets(crowd, node)
    nodes = [node, *targets]
    rename = {old: new for new, old in enumerate(nodes)}
    cards = [card for old in nodes for card in crowd.state.by_node[old]]
    card_names = {old: new for new, old in enumerate(cards)}
    pods = [p for old in nodes for p in crowd.on_node[old]]
    small = Fleet(
        nodes=tuple(replace(fleet.nodes[old], type="here" if old == node else "there") for old in nodes),
        cards=tuple(replace(fleet.cards[c], node=rename[fleet.cards[c].node]) for c in cards),
        pods=tuple(
            replace(
                fleet.pods[p],
                node=rename[fleet.pods[p].node],
                cards=tuple(card_names[c] for c in fleet.pods[p].cards),
                fixed=fleet.pods[p].fixed or fleet.pods[p].node != node,
                shape=replace(fleet.pods[p].shape, types=frozenset()),
            )
            for p in pods
        ),
        apart=fleet.apart,
    )
    found = fewest_moves(small, [Request(replace(shape, types=frozenset({"here"})))])
    if found is None:
        return None
    moves = tuple(
        replace(move, pod=pods[move.pod], node=nodes[move.node], cards=tuple(cards[c] for c in move.cards))
        for move in found.moves
    )
    if not all(_allowed(fleet, move) for move in moves):
        return None
    placements = tuple(
        Placed(p.request, nodes[p.node], tuple(cards[c] for c in p.cards), p.start) for p in found.placements
    )
    return Exact(moves, placements, found.placed)


def _allowed(fleet: Fleet, move: Move) -> bool:
    return fleet.pods[move.pod].shape.allows(fleet.nodes[move.node].type)


def _targets(crowd: _Crowd, node: int) -> list[int]:
    """Return the nodes to which some pod of `node` could go, the tightest for each of its shapes."""
    fleet, state = crowd.fleet, crowd.state
    found: dict[int, None] = {}
    loose = {fleet.pods[p].shape for p in crowd.on_node[node] if not fleet.pods[p].fixed}
    for shape in sorted(loose, key=lambda s: (-s.amount, s.cpu, s.profile)):
        fitting = []
        for other in range(len(fleet.nodes)):
            if other == node:
                continue
            if shape.profile:
                room = _in_the_way(crowd, other, shape) == 0
                over = 0 if room else -1
            else:
                cards = state.fitting(shape, other)
                over = -1 if cards is None else sum(state.share[c] for c in cards)
            if over >= 0:
                spare = state.cpu[other] if state.cpu[other] < UNLIMITED // 2 else 0
                fitting.append((over, spare, other))
        for _, _, other in sorted(fitting)[:_TARGETS]:
            found[other] = None
    return list(found)
