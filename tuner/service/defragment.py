"""Plans of moves for the fleet of a store: read the present, plan by one of three objectives, put it into plain words.

They are advice: nothing here carries a move out.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import pandas as pd

from analyzer.defragment.free_cards import free_cards
from analyzer.defragment.model import WHOLE, Card, Cost, Fleet, Kind, Move, Placed, Request
from analyzer.defragment.observed import (
    PLACEMENT_COLUMNS,
    Observed,
    Promises,
    measure_placement,
    observe,
    shape_of,
    wish_text,
)
from analyzer.defragment.planner import place_demand
from analyzer.defragment.room import make_room
from analyzer.demand import Wish
from analyzer.findings import Finding
from analyzer.mig import boards
from analyzer.settings import AnalyzeSettings
from collector.errors import ConfigurationError
from collector.protocols import StoreReader
from collector.window import Window
from tuner.service.analyse import partitions
from tuner.service.moves_plan import CardChange, MovesPlan, Objective, Role, Share, Step

_PRESENT = timedelta(hours=6)
_MOST_MOVED, _AT_LEAST = 0.03, 5  # of the pods, and in a small fleet, where nobody says how many
_REQUEST = re.compile(r"^(?:(?P<cards>\d+)x)?(?P<what>\d+(?:\.\d+)?|\d+g\.\d+gb(?:\+\w+)?)$")


def present_fleet(
    store: StoreReader,
    window: Window,
    promises: Promises,
    *,
    interval_seconds: float,
    settings: AnalyzeSettings,
    findings: Iterable[Finding] = (),
) -> Observed:
    """Return the fleet as it stands at the end of a window, and what was asked of it in the window."""
    recent = Window(max(window.start, window.end - _PRESENT), window.end)
    parts = [measure_placement(p) for p in partitions(store, recent, interval_seconds, settings)]
    filled = [part for part in parts if len(part)]
    placement = pd.concat(filled, ignore_index=True) if filled else pd.DataFrame(columns=PLACEMENT_COLUMNS)
    facts = store.facts(window)
    return observe(placement, facts, window, promises, findings=findings, move_minutes=settings.move_minutes)


def parse_request(text: str) -> Wish:
    """Read a request: `0.5`, `2` (whole cards), `2x0.5` or `1g.10gb`, then `,memory=40,cpu=8,type=A100` as needed.

    Memory is in GiB of each card, CPU in cores.

    Raises:
        ConfigurationError: it says something else.
    """
    what, *options = [part.strip() for part in text.split(",")]
    found = _REQUEST.match(what)
    values: dict[str, str] = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals or name not in {"memory", "cpu", "type"}:
            raise ConfigurationError(f"expected memory=GIB, cpu=CORES or type=MODEL in a request, got {option!r}")
        values[name] = value
    try:
        memory, cpu = float(values.get("memory", "0")) * 2**30, float(values.get("cpu", "0"))
    except ValueError:
        raise ConfigurationError(f"expected numbers for memory and cpu, got {text!r}") from None
    if not (0 <= memory < math.inf and 0 <= cpu < math.inf):
        raise ConfigurationError(f"expected memory and cpu of 0 or more in a request, got {text!r}")
    if found is None:
        raise ConfigurationError(f"expected a request such as 0.5, 2, 2x0.5 or 1g.10gb, got {text!r}")
    cards, kind = int(found["cards"] or 1), values.get("type", "")
    if "g" in found["what"]:
        if cards < 1 or "memory" in values:
            raise ConfigurationError(f"expected an instance or more, whose memory its profile tells, got {text!r}")
        return Wish(cards, 1.0, 0.0, cpu, found["what"], kind)
    share = float(found["what"])
    if share > 1 and found["cards"] is None and share == int(share):
        cards, share = int(share), 1.0
    if not 0 < share <= 1 or cards < 1:
        raise ConfigurationError(f"expected a share above 0 and up to 1 of each card, got {text!r}")
    return Wish(cards, share, memory, cpu, "", kind)


def plan_moves(
    observed: Observed, objective: Objective, *, request: Wish | None = None, moves: int | None = None
) -> MovesPlan:
    """Plan by one objective.

    Args:
        observed: the fleet.
        objective: room for `request` with the fewest moves; most of the demand with at most so many moves; the fewest
            cards.
        request: of objective room; None: the largest that waits.
        moves: at most so many; None: 3 % of the pods (five in a small fleet), and for free-cards as many as it takes.
    """
    if objective is Objective.FREE_CARDS:
        return _freeing(observed, moves)
    if objective is Objective.ROOM:
        return _room(observed, request)
    fleet = observed.fleet
    most = moves if moves is not None else max(int(_MOST_MOVED * len(fleet.pods)), _AT_LEAST)
    if not observed.demand:
        return _no_plan(observed, objective, "", "nobody's requests are known")
    plan = place_demand(fleet, observed.demand, most)
    names = Counter(observed.demand[p.request].name for p in plan.placements)
    asked = "what waits now" if observed.waiting else "the mix of what was asked for, scaled to what is free"
    return MovesPlan(
        **_common(observed, asked, plan.moves, [(p, observed.demand[p.request]) for p in plan.placements]),
        objective=objective.value,
        together=plan.together,
        fits=tuple(sorted(names.items())),
        before=plan.before,
        placed=plan.placed,
        bound=plan.bound,
        gap=plan.gap,
        exact=plan.exact,
        none="",
    )


def _room(observed: Observed, request: Wish | None) -> MovesPlan:
    fleet = observed.fleet
    if request is not None:
        groups = {("", "", node.type) for node in fleet.nodes}
        shape, text = shape_of(request, groups), wish_text(request)
        if shape is None:
            return _no_plan(observed, Objective.ROOM, text, "no card is of a kind that it may use")
    elif observed.demand and observed.waiting:
        largest = max(observed.demand, key=lambda r: (r.shape.amount, r.shape.memory, r.name))
        shape, text = largest.shape, largest.name
    else:
        return _no_plan(observed, Objective.ROOM, "", "no request was named, and none waits")
    plan = make_room(fleet, shape)
    if plan is None:
        return _no_plan(observed, Objective.ROOM, text, "no moves of those that may move make room for it")
    return MovesPlan(
        **_common(observed, text, plan.moves, [(p, Request(shape, 1, text)) for p in plan.placements]),
        objective=Objective.ROOM.value,
        together=plan.together,
        fits=((text, 1),),
        before=plan.before,
        placed=plan.placed,
        bound=plan.bound,
        gap=0.0,
        exact=plan.exact,
        none="",
    )


def _freeing(observed: Observed, moves: int | None) -> MovesPlan:
    freed = free_cards(observed.fleet, moves=moves)
    common = _common(observed, "the fewest cards that hold today's work", freed.moves, ())
    common |= {
        "freed": tuple(observed.gpus[card] for card in freed.freed),
        "freed_models": tuple(observed.models[card] for card in freed.freed),
        "idle_watts": math.fsum(observed.idle_watts[card] for card in freed.freed),
    }
    return MovesPlan(
        **common,
        objective=Objective.FREE_CARDS.value,
        together=0,
        fits=(),
        before=float(freed.used_before),
        placed=float(freed.used_after),
        bound=float(freed.at_least),
        gap=freed.gap,
        exact=freed.used_after == freed.at_least,
        none="" if freed.freed else "no card can be emptied onto the others",
    )


def _common(
    observed: Observed, asked: str, moves: Sequence[Move], placements: Sequence[tuple[Placed, Request]]
) -> dict[str, Any]:
    fleet = observed.fleet
    steps = tuple(_step(observed, move) for move in moves)
    total = Cost()
    for step in steps:
        total += Cost(step.moved_gib, step.restarts, step.drain_minutes, step.lost_seconds)
    return {
        "asked": asked,
        "demand_waits": observed.waiting,
        "steps": steps,
        "cost": total,
        "freed": (),
        "freed_models": (),
        "idle_watts": 0.0,
        "changes": tuple(_changes(fleet, moves, placements)),
        "left_out": observed.left_out,
        "protected": observed.protected,
        "pods": len(fleet.pods),
        "cards": len(fleet.cards),
    }


def _no_plan(observed: Observed, objective: Objective, asked: str, why: str) -> MovesPlan:
    return MovesPlan(
        **_common(observed, asked, (), ()),
        objective=objective.value,
        together=0,
        fits=(),
        before=0.0,
        placed=0.0,
        bound=math.nan,
        gap=math.nan,
        exact=False,
        none=why,
    )


def _step(observed: Observed, move: Move) -> Step:
    fleet = observed.fleet
    pod = fleet.pods[move.pod]
    cost = Cost() if move.kind is Kind.RESIZE else pod.cost
    share = math.nan if pod.shape.profile else (move.share or pod.shape.share) / WHOLE
    return Step(
        kind=move.kind.value,
        pod=pod.name,
        tenant=pod.tenant,
        workload=pod.workload,
        from_node=fleet.nodes[pod.node].name,
        from_gpus=tuple(fleet.cards[card].name for card in pod.cards),
        to_node=fleet.nodes[move.node].name,
        to_gpus=tuple(fleet.cards[card].name for card in move.cards),
        to_start=move.start if move.start >= 0 else None,
        share=share,
        moved_gib=cost.moved_gib,
        restarts=cost.restarts,
        drain_minutes=cost.drain_minutes,
        lost_seconds=cost.lost_seconds,
    )


def _changes(fleet: Fleet, moves: Sequence[Move], placements: Sequence[tuple[Placed, Request]]) -> Iterable[CardChange]:
    """Yield the touched cards in the order of their node and name, with who lies on them before and after."""
    after: dict[int, tuple[tuple[int, ...], int, int]] = {m.pod: (m.cards, m.start, m.share) for m in moves}
    touched = {card for move in moves for card in (*fleet.pods[move.pod].cards, *move.cards)}
    if moves:  # a plan without moves changes nothing on the cards
        touched |= {card for placed, _ in placements for card in placed.cards}
    before: dict[int, list[int]] = {card: [] for card in touched}
    then: dict[int, list[int]] = {card: [] for card in touched}
    for number, pod in enumerate(fleet.pods):
        for card in touched.intersection(pod.cards):
            before[card].append(number)
        for card in touched.intersection(after[number][0] if number in after else pod.cards):
            then[card].append(number)
    for card in sorted(touched, key=lambda c: (fleet.nodes[fleet.cards[c].node].name, fleet.cards[c].name)):
        old: list[tuple[int, Share]] = []
        new: list[tuple[int, Share]] = []
        for numbers, found, role in ((before[card], old, Role.LEAVES), (then[card], new, Role.COMES)):
            for number in numbers:
                pod = fleet.pods[number]
                start, share = pod.start, 0
                if number in after and role is Role.COMES:
                    _, start, share = after[number]
                size = _size(fleet.cards[card], pod.shape.profile, share or pod.shape.share)
                stays = Role.PROTECTED if pod.fixed else Role.STAYS
                found.append((start, Share(pod.workload or pod.name, size, role if number in after else stays)))
        for placed, request in placements:
            if card in placed.cards:
                size = _size(fleet.cards[card], request.shape.profile, request.shape.share)
                new.append((placed.start, Share(request.name, size, Role.REQUEST)))
        yield CardChange(
            node=fleet.nodes[fleet.cards[card].node].name,
            gpu=fleet.cards[card].name,
            before=_laid_out(fleet.cards[card], old),
            after=_laid_out(fleet.cards[card], new),
        )


def _size(card: Card, profile: str, share: int) -> float:
    if card.board and profile:
        board = boards()[card.board]
        return board.profiles[profile].size / board.memory_slices
    return share / WHOLE


def _laid_out(card: Card, parts: Sequence[tuple[int, Share]]) -> tuple[Share, ...]:
    """Put parts in order, with what is free between and behind them; a cut card's by where they begin."""
    found: list[Share] = []
    at = 0.0
    slices = boards()[card.board].memory_slices if card.board else 1
    for start, share in sorted(parts, key=lambda part: (part[0], part[1].role is Role.REQUEST)):
        if card.board and start / slices > at + 1e-9:
            found.append(Share("", start / slices - at, Role.FREE))
            at = start / slices
        found.append(share)
        at += share.share
    if at < 1 - 1e-9:
        found.append(Share("", 1 - at, Role.FREE))
    return tuple(found)
