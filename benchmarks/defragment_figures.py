"""The planner of moves: a recorded fleet of 1,213 nodes, and small instances against exhaustive search."""

from __future__ import annotations

import csv
import gzip
import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from analyzer.defragment.bound import relax
from analyzer.defragment.free_cards import free_cards
from analyzer.defragment.model import UNLIMITED, WHOLE, Card, Fleet, Node, Pod, Request, Shape, State
from analyzer.defragment.planner import place_demand
from analyzer.defragment.room import make_room
from benchmarks.figures import Figure, figure

_STATE = "default_random_80_s42"
_MOST_MOVED = 0.03  # of the running pods
_INSTANCES = 200


def defragment(states: Path, scale: float) -> list[Figure]:
    """Plan for the recorded fleet and for small instances; without the recorded fleet that part is left out."""
    figures = small_instances()
    if not states.is_dir():
        print(f"plan for 1,213 nodes skipped: no {states} (set TRIMTAB_SHARED)", file=sys.stderr)
        return figures
    return [*fleet_plan(states, scale), *figures]


def read_fleet(states: Path, state: str) -> Fleet:
    """Read a recorded state: nodes, and which pod lies where."""
    nodes: list[Node] = []
    cards: list[Card] = []
    first: dict[str, tuple[int, int]] = {}
    for row in _rows(states / f"{state}_nodes.csv.gz"):
        first[row["node"]] = (len(nodes), len(cards))
        cards += [Card(len(nodes), f"{row['node']}/{n}") for n in range(int(row["gpus"]))]
        nodes.append(Node(row["node"], int(row["cpu_free_milli"]), row["model"]))
    pods = []
    for number, row in enumerate(_rows(states / f"{state}_pods.csv.gz")):
        node, start = first[row["node"]]
        lies_on = tuple(start + int(n) for n in row["gpu_index"].split(";") if n)
        shape = Shape(int(row["num_gpu"]), int(row["gpu_milli"]) if lies_on else 0, 0, int(row["cpu_milli"]))
        pods.append(Pod(f"pod-{number}", node, lies_on, shape))
    return Fleet(tuple(nodes), tuple(cards), tuple(pods))


def typical_demand(states: Path, workload: str, idle_cards: float) -> list[Request]:
    """Return the requests of the typical mix that want cards, as many as would fill so many idle cards."""
    mix = []
    for row in _rows(states / f"typical_{workload}.csv"):
        cards = int(row["num_gpu"])
        if cards:
            mix.append((Shape(cards, int(row["gpu_milli"]), 0, int(row["cpu_milli"])), float(row["p"])))
    scale = idle_cards / sum(part * shape.amount for shape, part in mix)
    return [Request(shape, round(part * scale)) for shape, part in mix if round(part * scale)]


def _rows(path: Path) -> list[dict[str, str]]:
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    return list(csv.DictReader(text.splitlines()))


def fleet_plan(states: Path, scale: float) -> list[Figure]:
    """Plan for the recorded fleet: time, moved pods, distance from the bound."""
    fleet = read_fleet(states, _STATE)
    idle = sum(max(share, 0) for share in State(fleet).share) / WHOLE
    demand = typical_demand(states, "default", idle)
    most = int(_MOST_MOVED * len(fleet.pods))
    start = time.process_time()
    plan = place_demand(fleet, demand, most)
    spent = time.process_time() - start
    started = time.process_time()
    freed = free_cards(fleet)
    emptied = time.process_time() - started
    name = "plan for 1,213 nodes"
    return [
        figure(f"{name}", spent, "CPU s", at_most=round(60 * scale, 2)),
        figure(f"{name}: moved, of {len(fleet.pods):,} pods", 100 * len(plan.moves) / len(fleet.pods), "%", at_most=3),
        figure(f"{name}: demand placed without a move", plan.before, "cards"),
        figure(
            f"{name}: demand placed, of {len(plan.moves)} moves",
            plan.placed,
            "cards",
            peer=plan.bound,
            peer_name="bound of as many moves",
        ),
        figure(f"{name}: below the bound", 100 * plan.gap, "%", at_most=3),
        figure("fewest cards: in use after", freed.used_after, "cards", peer=freed.at_least, peer_name="bound"),
        figure("fewest cards: in use before", freed.used_before, "cards"),
        figure("fewest cards: planned in", emptied, "CPU s"),
    ]


def small_instances() -> list[Figure]:
    """Compare bound, plans and fewest moves with exhaustive search on small instances."""
    rng = np.random.default_rng(23)
    held = best = room_right = 0
    for _ in range(_INSTANCES):
        fleet, demand = small_instance(rng)
        moves = int(rng.integers(0, 3))
        wanted = exhaustive_demand(fleet, demand, moves)
        held += relax(fleet, demand, moves).bound >= wanted - 1e-9
        best += abs(place_demand(fleet, demand, moves).placed - wanted) < 1e-9
        shape = demand[0].shape
        plan = make_room(fleet, shape)
        room_right += (None if plan is None else len(plan.moves)) == exhaustive_moves(fleet, shape)
    of = f"of {_INSTANCES} small instances"
    return [
        figure(f"bound at least the best, {of}", held / _INSTANCES, "ratio", at_least=1.0),
        figure(f"demand placed as exhaustive search does, {of}", best / _INSTANCES, "ratio"),
        figure(f"fewest moves for one request, {of}", room_right / _INSTANCES, "ratio", at_least=0.95),
    ]


def small_instance(rng: np.random.Generator) -> tuple[Fleet, list[Request]]:
    """Draw one or two nodes of two or three cards, up to six pods (some protected), and up to three requests."""
    nodes: list[Node] = []
    cards: list[Card] = []
    pods: list[Pod] = []
    for n in range(int(rng.integers(1, 3))):
        first, count = len(cards), int(rng.integers(2, 4))
        free = [WHOLE] * count
        nodes.append(Node(f"n{n}", int(rng.choice([4000, 12000, UNLIMITED]))))
        cards += [Card(n, f"n{n}/{i}") for i in range(count)]
        for _ in range(int(rng.integers(1, 5))):
            share, card = int(rng.choice([200, 300, 400, 500, 700])), int(rng.integers(count))
            if free[card] >= share and len(pods) < 6:
                free[card] -= share
                shape = Shape(1, share, 0, int(rng.choice([1000, 2000, 4000])))
                pods.append(Pod(f"p{len(pods)}", n, (first + card,), shape, fixed=bool(rng.random() < 0.15)))
    demand = []
    for _ in range(int(rng.integers(1, 4))):
        share = int(rng.choice([300, 500, 600, WHOLE, WHOLE]))
        count = int(rng.integers(1, 3)) if share == WHOLE else 1
        demand.append(Request(Shape(count, share, 0, int(rng.choice([1000, 4000])))))
    return Fleet(tuple(nodes), tuple(cards), tuple(pods)), demand


def exhaustive_demand(fleet: Fleet, demand: Sequence[Request], moves: int) -> float:
    """Try every set of at most so many pods to take up, every set of requests, and every way to put all down."""
    shapes = [request.shape for request in demand for _ in range(request.count)]
    subsets = [list(s) for size in range(len(shapes) + 1) for s in itertools.combinations(shapes, size)]
    subsets.sort(key=lambda subset: -sum(shape.amount for shape in subset))
    best = 0.0
    for chosen in _movable(fleet, moves):
        for subset in subsets:
            amount = sum(shape.amount for shape in subset)
            if amount <= best:
                break
            if _fits_all(fleet, chosen, subset):
                best = amount
    return best


def exhaustive_moves(fleet: Fleet, shape: Shape) -> int | None:
    """Return the fewest pods to take up so that all of them and one more of a shape fit; None: it never does."""
    for chosen in _movable(fleet, len(fleet.pods)):
        if _fits_all(fleet, chosen, [shape]):
            return len(chosen)
    return None


def _movable(fleet: Fleet, most: int) -> Iterator[tuple[int, ...]]:
    loose = [number for number, pod in enumerate(fleet.pods) if not pod.fixed]
    for size in range(min(most, len(loose)) + 1):
        yield from itertools.combinations(loose, size)


def _fits_all(fleet: Fleet, chosen: Sequence[int], requests: Sequence[Shape]) -> bool:
    state = State(fleet)
    for number in chosen:
        pod = fleet.pods[number]
        state.add(pod.shape, pod.node, pod.cards, -1)
    queue = [fleet.pods[number].shape for number in chosen] + list(requests)
    return _put_down(fleet, state, sorted(queue, key=lambda shape: -shape.amount))


def _put_down(fleet: Fleet, state: State, queue: Sequence[Shape]) -> bool:
    if not queue:
        return True
    shape = queue[0]
    for node in range(len(fleet.nodes)):
        if state.cpu[node] < shape.cpu:
            continue
        free = [card for card in state.by_node[node] if state.share[card] >= shape.share]
        for cards in itertools.combinations(free, shape.cards):
            state.add(shape, node, cards)
            if _put_down(fleet, state, queue[1:]):
                state.add(shape, node, cards, -1)
                return True
            state.add(shape, node, cards, -1)
    return False
