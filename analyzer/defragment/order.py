"""The order of a plan's moves: each has room when its turn comes; those that wait for each other are done together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from analyzer.defragment.model import Fleet, Kind, Move, State
from analyzer.mig import Instance, boards, layout_faults


def in_order(fleet: Fleet, moves: Sequence[Move]) -> tuple[tuple[Move, ...], int]:
    """Return the moves so that each has room in its turn, and how many at the end wait for each other.

    Those at the end (pods that change places) must all be stopped before the first of them starts again.
    """
    state = State(fleet)
    layout: dict[int, Counter[Instance]] = {place: Counter() for place, card in enumerate(fleet.cards) if card.board}
    for pod in fleet.pods:
        for card in pod.cards:
            if card in layout and pod.shape.profile:
                layout[card][Instance(pod.shape.profile, pod.start)] += 1
    done: list[Move] = []
    waiting = sorted(moves, key=lambda m: (m.kind is not Kind.RESIZE, m.pod))
    while waiting:
        ready = next((move for move in waiting if _possible(fleet, state, layout, move)), None)
        if ready is None:
            return (*done, *waiting), len(waiting)
        _apply(fleet, state, layout, ready)
        done.append(ready)
        waiting.remove(ready)
    return tuple(done), 0


def _possible(fleet: Fleet, state: State, layout: dict[int, Counter[Instance]], move: Move) -> bool:
    if move.kind is Kind.RESIZE:
        return True
    pod = fleet.pods[move.pod]
    if move.node != pod.node and state.cpu[move.node] < pod.shape.cpu:
        return False
    for card in move.cards:
        if card in layout:
            there = layout[card].copy()
            if card in pod.cards:
                there[Instance(pod.shape.profile, pod.start)] -= 1
            there[Instance(pod.shape.profile, move.start)] += 1
            if layout_faults(boards()[fleet.cards[card].board], list(there.elements())):
                return False
        elif card not in pod.cards and (state.share[card] < pod.shape.share or state.memory[card] < pod.shape.memory):
            return False
    return True


def _apply(fleet: Fleet, state: State, layout: dict[int, Counter[Instance]], move: Move) -> None:
    pod = fleet.pods[move.pod]
    if move.kind is Kind.RESIZE:
        state.share[pod.cards[0]] += pod.shape.share - move.share
        return
    if pod.shape.profile:
        layout[pod.cards[0]][Instance(pod.shape.profile, pod.start)] -= 1
        layout[move.cards[0]][Instance(pod.shape.profile, move.start)] += 1
        state.cpu[pod.node] += pod.shape.cpu
        state.cpu[move.node] -= pod.shape.cpu
        return
    state.add(pod.shape, pod.node, pod.cards, -1)
    state.add(pod.shape, move.node, move.cards)
