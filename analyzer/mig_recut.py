"""TT222, TT223: waiting MIG requests that another cut would serve, without moving anybody and by moving few.

TT222 re-cuts only instances that nobody holds: exact over all cut cards of a cluster. TT223 is about what still waits
then: the fewest held instances that must move for it, of workloads that are declared and not protected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analyzer.demand import Demand
from analyzer.findings import Effect, Finding, Role, SubjectRef, Verdict, make_finding
from analyzer.mig import Instance, layout_faults, measure
from analyzer.mig_layout import CutCard, best_layout
from analyzer.mig_moves import Room, fewest_moves_among
from analyzer.mig_verdicts import SeenCard, SeenInstance, read_card
from analyzer.protocols import Context, Withheld

RECUT_CODES = ("TT222", "TT223")

_MOST_REQUESTS = 5  # kinds of waiting request for which moves are searched
_MOST_CARDS = 64  # among which moves are searched: those with most room


@dataclass(frozen=True, slots=True)
class _Placed:
    """A card with the layout that is taken for it."""

    seen: SeenCard
    held: tuple[tuple[SeenInstance, Instance], ...]
    spare: tuple[Instance, ...]  # held by nobody


def judge_recut(rows: Sequence[Mapping[str, Any]], wanted: Demand, context: Context) -> list[Finding | Withheld]:
    """Judge the cut cards of one cluster together; `rows` are of `FragmentationDetector.measure`, code TT221."""
    judged: list[Finding | Withheld] = []
    cards: list[_Placed] = []
    for row in rows:
        seen = str(row["withheld"]) or read_card(row)
        if isinstance(seen, str):
            judged += [Withheld(code, row["cluster"], row["node"], row["gpu"], "", seen) for code in RECUT_CODES]
        else:
            cards.append(_place(seen))
    waiting = Counter[str]()
    for wish, count in wanted.waiting.items():
        if wish.profile:
            waiting[wish.profile] += count * wish.cards
    if not cards or not waiting:
        return judged
    waiting = waiting - Counter(i.profile for card in cards for i in card.spare)  # a free instance will serve these
    as_they_are = best_layout([_cut(card, keep_spare=True) for card in cards], waiting)
    waiting = waiting - Counter(as_they_are.served)  # and these find free slices
    if not waiting:
        return judged
    better = best_layout([_cut(card, keep_spare=False) for card in cards], waiting)
    judged += [_better(card, created, context) for card, created in zip(cards, better.created, strict=True) if created]
    left = waiting - Counter(better.served)
    after = [
        CutCard(str(number), card.seen.board, (*(i for _, i in card.held), *created), _movable(card, context))
        for number, (card, created) in enumerate(zip(cards, better.created, strict=True))
    ]
    for profile in sorted(left, key=lambda name: (-left[name], name))[:_MOST_REQUESTS]:
        finding = _moved(cards, after, profile, left[profile], context)
        judged += [] if finding is None else [finding]
    return judged


def _place(seen: SeenCard) -> _Placed:
    """Return the card with the layout told, else with one that leaves most open around what is held."""
    return min((_laid(seen, layout) for layout in seen.possible), key=_closed)


def _closed(card: _Placed) -> tuple[int, tuple[Instance, ...]]:
    held = tuple(sorted(i for _, i in card.held))
    return -measure(card.seen.board, held).capability, held


def _laid(seen: SeenCard, layout: Sequence[Instance]) -> _Placed:
    left = list(layout)
    held, spare = [], []
    # Instances whose start is told take their own place first.
    for instance in sorted(seen.instances, key=lambda i: (i.start is None, i.slice)):
        there = next(p for p in left if p.profile == instance.profile and instance.start in {None, p.start})
        left.remove(there)
        if instance.held:
            held.append((instance, there))
        else:
            spare.append(there)
    return _Placed(seen, tuple(held), tuple(spare))


def _cut(card: _Placed, *, keep_spare: bool) -> CutCard:
    there = tuple(i for _, i in card.held)
    return CutCard(card.seen.name, card.seen.board, (*there, *card.spare) if keep_spare else there)


def _movable(card: _Placed, context: Context) -> tuple[Instance, ...]:
    """Return the instances that may move: whoever promised nothing counts as protected."""
    free = []
    for seen, instance in card.held:
        known = context.declarations.get((card.seen.row["cluster"], seen.tenant, seen.workload))
        if known is not None and known.declared and not known.declaration.protected:
            free.append(instance)
    return tuple(free)


def _destroyed(card: _Placed, created: Sequence[Instance]) -> list[Instance]:
    """Return which spare instances must go for the new ones; the others stay."""
    there = [*(i for _, i in card.held), *created]
    gone = []
    for instance in card.spare:
        if layout_faults(card.seen.board, [*there, instance]):
            gone.append(instance)
        else:
            there.append(instance)
    return gone


def _better(card: _Placed, created: Sequence[Instance], context: Context) -> Finding:
    gone = _destroyed(card, created)
    text = ", ".join(_text(i) for i in created)
    how = (
        f"if what nobody holds were cut anew: destroy {', '.join(_text(i) for i in gone)}"
        if gone
        else "if its free slices were cut: nothing needs to be destroyed"
    )
    waiting = f"{len(created)} waiting {'requests' if len(created) > 1 else 'request'}"
    claim = f"{card.seen.name}: {waiting} would fit ({text}) {how}"
    return make_finding(
        "TT222",
        Verdict.HOLDS if card.seen.placed else Verdict.SUSPECTED,
        (_subject(card),),
        context.window,
        claim=claim,
        risk="the request may be withdrawn, and what nobody holds now may be wanted soon",
        confidence=_confidence([card]),
        coverage=1.0,
        effect=Effect(float(len(created)), "requests", float(len(created)), float(len(created))),
        evidence={
            "board": card.seen.board.name,
            "placements": card.seen.board.placements,
            "placed": card.seen.placed,
            "held": [[i.profile, i.start] for _, i in card.held],
            "destroy": [[i.profile, i.start] for i in gone],
            "create": [[i.profile, i.start] for i in created],
        },
        simulated=context.simulated,
    )


def _moved(
    cards: Sequence[_Placed], after: Sequence[CutCard], profile: str, waiting: int, context: Context
) -> Finding | None:
    """Return who has to move for one more instance of `profile`; None where no move of what may move helps."""
    roomy = sorted(range(len(after)), key=lambda i: (_used(after[i]), i))[:_MOST_CARDS]
    room = fewest_moves_among([after[i] for i in sorted(roomy)], profile)
    if room is None or not room.moves:
        return None
    chosen = sorted(roomy)
    target = cards[chosen[room.card]]
    touched = [target, *(cards[chosen[n]] for move in room.moves for n in (move.card, move.to_card))]
    moves = ", ".join(
        f"{move.profile}@{move.start}"
        + (f" of {cards[chosen[move.card]].seen.row['gpu']}" if move.card != room.card else "")
        + f" to {move.to_start}"
        + (f" of {cards[chosen[move.to_card]].seen.row['gpu']}" if move.to_card != move.card else "")
        for move in room.moves
    )
    count = len(room.moves)
    how = "instances move" if count > 1 else "instance moves"
    return make_finding(
        "TT223",
        Verdict.HOLDS if all(card.seen.placed for card in touched) else Verdict.SUSPECTED,
        (_subject(target),),
        context.window,
        claim=(f"{target.seen.name}: a waiting {profile} fits if {count} {how} ({moves}); {waiting} such wait"),
        risk="a moved instance is destroyed and made anew: its work stops, and starts from its last checkpoint",
        confidence=_confidence(touched),
        coverage=1.0,
        effect=Effect(float(count), "moves", float(count), float(count)),
        evidence={
            "profile": profile,
            "start": room.start,
            "moves": [_move(cards, chosen, room, n) for n in range(count)],
            "fewest": room.exact,
            "waiting": waiting,
        },
        simulated=context.simulated,
    )


def _used(card: CutCard) -> int:
    return sum(card.board.profiles[i.profile].size for i in card.instances)


def _move(cards: Sequence[_Placed], chosen: Sequence[int], room: Room, number: int) -> dict[str, Any]:
    move = room.moves[number]
    source, target = cards[chosen[move.card]], cards[chosen[move.to_card]]
    who = next((s for s, i in source.held if (i.profile, i.start) == (move.profile, move.start)), None)
    return {
        "profile": move.profile,
        "gpu": source.seen.row["gpu"],
        "start": move.start,
        "to_gpu": target.seen.row["gpu"],
        "to_start": move.to_start,
        "slice": "" if who is None else who.slice,
        "tenant": "" if who is None else who.tenant,
        "workload": "" if who is None else who.workload,
    }


def _text(instance: Instance) -> str:
    return f"{instance.profile}@{instance.start}"


def _subject(card: _Placed) -> SubjectRef:
    row = card.seen.row
    return SubjectRef(Role.SUBJECT, row["cluster"], row["node"], row["gpu"])


def _confidence(cards: Sequence[_Placed]) -> float:
    placed = all(card.seen.placed for card in cards)
    published = all(card.seen.board.placements == "published" for card in cards)
    return (0.95 if placed else 0.5) * (1.0 if published else 0.85)
