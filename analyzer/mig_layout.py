"""Which layouts of cut (MIG) cards serve a demand best: exact, for a card, a rack or a fleet.

Of each card the patterns are listed: the largest sets of wanted instances that fit around what stays on it. Choosing a
pattern a card is an integer programme with few variables, since cards that are alike share theirs; HiGHS solves it to
the end. What stays on a card stays in its place: nobody is moved (`analyzer.mig_moves` says what moving would buy).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from analyzer.mig import Board, Instance, layout_faults

_PER_CARD = 1e-3  # worth of leaving a card alone; of all cards together less than half a request


@dataclass(frozen=True, slots=True)
class CutCard:
    """A card that is cut: what stays on it, and which of that may be moved (none: everything stays in its place)."""

    name: str
    board: Board
    instances: tuple[Instance, ...] = ()
    movable: tuple[Instance, ...] = ()


@dataclass(frozen=True, slots=True)
class Layout:
    """What to create on each card beside what stays, and what of the demand is then served."""

    created: tuple[tuple[Instance, ...], ...]
    served: Mapping[str, int]
    value: float


def best_layout(
    cards: Sequence[CutCard], requests: Mapping[str, int], values: Mapping[str, float] | None = None
) -> Layout:
    """Return layouts that serve the most valuable part of `requests`; of equal ones, on the fewest cards.

    Args:
        cards: boards whose placements are known, with what stays on them.
        requests: how many instances of each profile are wanted; a profile that no board has is not served.
        values: worth of serving one instance of a profile (above 0); 1 without.

    Raises:
        ValueError: a card's layout cannot exist, or its board's placements are unknown.
    """
    wanted = tuple(sorted(name for name, count in requests.items() if count > 0))
    groups: dict[tuple[str, tuple[Instance, ...]], list[int]] = {}
    for i, card in enumerate(cards):
        check(card)
        groups.setdefault((card.board.name, tuple(sorted(card.instances))), []).append(i)
    options: list[tuple[list[int], list[tuple[Instance, ...]]]] = []
    for members in groups.values():
        card = cards[members[0]]
        limits = tuple(min(requests[name], card.board.memory_slices) for name in wanted)
        options.append((members, patterns(card.board, tuple(sorted(card.instances)), wanted, limits)))
    worth = np.array([1.0 if values is None else values[name] for name in wanted])
    chosen = _choose(options, wanted, np.array([requests[name] for name in wanted]), worth)
    created: list[tuple[Instance, ...]] = [() for _ in cards]
    left = Counter({name: requests[name] for name in wanted})
    for (members, listed), counts in zip(options, chosen, strict=True):
        free = iter(members)
        for pattern, count in zip(listed, counts, strict=True):
            for _ in range(count):
                kept = []
                for instance in pattern:
                    if left[instance.profile] > 0:
                        left[instance.profile] -= 1
                        kept.append(instance)
                if kept:
                    created[next(free)] = tuple(kept)
    served = {name: requests[name] - left[name] for name in wanted}
    return Layout(tuple(created), served, float(worth @ np.array([served[name] for name in wanted], dtype=float)))


def check(card: CutCard) -> None:
    """Check that a card can be cut as it is said to be.

    Raises:
        ValueError: it cannot, or its board's placements are unknown.
    """
    if card.board.placements == "unknown":
        raise ValueError(f"expected a board whose placements are known, got {card.board.name} for {card.name}")
    faults = layout_faults(card.board, card.instances)
    if faults:
        raise ValueError(f"expected a layout that {card.board.name} can have on {card.name}, got {'; '.join(faults)}")


def _choose(
    options: Sequence[tuple[Sequence[int], Sequence[tuple[Instance, ...]]]],
    wanted: Sequence[str],
    requests: np.ndarray,
    worth: np.ndarray,
) -> list[list[int]]:
    """Return how many cards of each group take each pattern.

    Variables: a count a pattern (y) and what is served of each profile (s); s <= what the patterns hold.
    """
    columns = [pattern for _, listed in options for pattern in listed]
    if not columns or not wanted:
        return [[0] * len(listed) for _, listed in options]
    from scipy.optimize import Bounds, LinearConstraint, milp  # noqa: PLC0415  loads slowly

    held = np.array([[sum(i.profile == name for i in pattern) for pattern in columns] for name in wanted], dtype=float)
    group = np.zeros((len(options), len(columns)))
    at = 0
    for g, (_, listed) in enumerate(options):
        group[g, at : at + len(listed)] = 1.0
        at += len(listed)
    sizes = np.array([len(members) for members, _ in options], dtype=float)
    count = len(columns)
    rows = np.block([[-held, np.eye(len(wanted))], [group, np.zeros((len(options), len(wanted)))]])
    found = milp(
        c=np.concatenate([np.full(count, worth.min() * min(_PER_CARD, 0.5 / sizes.sum())), -worth]),
        constraints=LinearConstraint(rows, ub=np.concatenate([np.zeros(len(wanted)), sizes])),
        bounds=Bounds(0.0, np.concatenate([group.T @ sizes, requests.astype(float)])),
        integrality=np.ones(count + len(wanted)),
        options={"mip_rel_gap": 0.0},
    )
    if found.x is None:
        raise RuntimeError(f"the search for a layout ended without one: {found.message}")
    counts = np.rint(found.x[:count]).astype(int).tolist()
    result, at = [], 0
    for _, listed in options:
        result.append(counts[at : at + len(listed)])
        at += len(listed)
    return result


@cache
def patterns(
    board: Board, kept: tuple[Instance, ...], wanted: tuple[str, ...], limits: tuple[int, ...]
) -> list[tuple[Instance, ...]]:
    """Return the largest sets of wanted instances that fit beside `kept`, one layout for each set.

    A set that is part of another one is left out. `limits` says how many of each of `wanted` are of use.
    """
    seen: dict[tuple[int, ...], tuple[Instance, ...]] = {}
    for counts, layout in _fillings(board, kept, wanted, limits):
        if counts not in seen or _spread(layout) < _spread(seen[counts]):
            seen[counts] = layout
    largest = [
        layout
        for counts, layout in seen.items()
        if layout
        and not any(other != counts and all(a >= b for a, b in zip(other, counts, strict=True)) for other in seen)
    ]
    return sorted(largest)


def _spread(layout: tuple[Instance, ...]) -> tuple[tuple[str, int], ...]:
    return tuple((i.profile, i.start) for i in layout)


def _fillings(
    board: Board, kept: tuple[Instance, ...], wanted: Sequence[str], limits: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], tuple[Instance, ...]]]:
    """Yield every set of wanted instances that fits, with a layout of it; a (mask, set) is visited once."""
    shapes = [board.profiles.get(name) for name in wanted]
    used = Counter(i.profile for i in kept)
    mask = 0
    for instance in kept:
        mask |= ((1 << board.profiles[instance.profile].size) - 1) << instance.start
    compute = board.compute_slices - sum(board.profiles[i.profile].compute for i in kept)
    stack: list[tuple[int, int, tuple[int, ...], tuple[Instance, ...]]] = [
        (mask, compute, (0,) * len(wanted), ()),
    ]
    visited = {(mask, (0,) * len(wanted))}
    while stack:
        mask, compute, counts, layout = stack.pop()
        yield counts, tuple(sorted(layout))
        for k, profile in enumerate(shapes):
            if profile is None or counts[k] >= limits[k] or profile.compute > compute:
                continue
            if used[profile.name] + counts[k] >= profile.most:
                continue
            more = (*counts[:k], counts[k] + 1, *counts[k + 1 :])
            for start in profile.starts:
                bits = ((1 << profile.size) - 1) << start
                if mask & bits or (mask | bits, more) in visited:
                    continue
                visited.add((mask | bits, more))
                stack.append((mask | bits, compute - profile.compute, more, (*layout, Instance(profile.name, start))))
