"""Best layouts and fewest moves over several cards, against exhaustive search."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.mig import Board, Instance, boards, fewest_moves, layout_faults
from analyzer.mig_layout import CutCard, best_layout
from analyzer.mig_moves import Move, fewest_moves_among

A100, A30 = boards()["A100-40GB"], boards()["A30-24GB"]
NAMES = ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")


@st.composite
def layout(draw: st.DrawFn, board: Board = A100, most: int = 5) -> tuple[Instance, ...]:
    found: list[Instance] = []
    for _ in range(draw(st.integers(0, most))):
        profile = board.profiles[draw(st.sampled_from(sorted(n for n, p in board.profiles.items() if p.plain)))]
        wanted = [*found, Instance(profile.name, draw(st.sampled_from(profile.starts)))]
        if not layout_faults(board, wanted):
            found = wanted
    return tuple(sorted(found))


def packings(cards: Sequence[tuple[Board, tuple[Instance, ...]]], queue: Sequence[str]) -> Iterator[int]:
    """Yield, of every way to place or leave out each request, how many are placed: plain enumeration."""
    if not queue:
        yield 0
        return
    yield from packings(cards, queue[1:])
    for i, (board, there) in enumerate(cards):
        for start in board.profiles[queue[0]].starts if queue[0] in board.profiles else ():
            more = (*there, Instance(queue[0], start))
            if not layout_faults(board, more):
                rest = packings([*cards[:i], (board, more), *cards[i + 1 :]], queue[1:])
                yield from (1 + placed for placed in rest)


@settings(max_examples=25)
@given(st.lists(layout(), min_size=1, max_size=2), st.lists(st.sampled_from(NAMES), max_size=4))
def test_the_best_layout_serves_as_many_as_any(kept: list[tuple[Instance, ...]], queue: list[str]) -> None:
    cards = [CutCard(f"c{i}", A100, instances) for i, instances in enumerate(kept)]
    got = best_layout(cards, Counter(queue))
    assert got.value == max(packings([(A100, one) for one in kept], queue))
    assert sum(got.served.values()) == got.value
    for card, created in zip(cards, got.created, strict=True):
        assert not layout_faults(A100, (*card.instances, *created))
    assert Counter(i.profile for one in got.created for i in one) == Counter(got.served)


def test_worth_decides_and_spare_cards_stay_empty() -> None:
    one = [CutCard("a", A100)]
    assert best_layout(one, {"7g.40gb": 1, "1g.5gb": 3}).served == {"1g.5gb": 3, "7g.40gb": 0}
    assert best_layout(one, {"7g.40gb": 1, "1g.5gb": 3}, {"7g.40gb": 7.0, "1g.5gb": 1.0}).served["7g.40gb"] == 1
    spare = best_layout([CutCard(name, A100) for name in "abcd"], {"1g.5gb": 7, "3g.20gb": 2})
    assert sum(map(bool, spare.created)) == 2
    assert best_layout(one, {"9g.9gb": 2, "1g.6gb": 1}).value == 0
    assert best_layout([], {"1g.5gb": 1}).value == 0
    assert best_layout(one, {}).created == ((),)


def test_boards_of_two_kinds_serve_what_each_can() -> None:
    got = best_layout([CutCard("a", A100), CutCard("b", A30)], {"1g.6gb": 5, "4g.20gb": 2})
    assert got.served == {"1g.6gb": 4, "4g.20gb": 1}


def test_a_fleet_is_solved_to_the_end() -> None:
    # 20 cards take three 2g each, 280 a 3g and a 4g: 10 requests are left, and no other way leaves fewer.
    cards = [CutCard(f"c{i}", A100) for i in range(300)]
    got = best_layout(cards, {"3g.20gb": 280, "4g.20gb": 290, "2g.10gb": 60})
    assert got.value == 620
    assert all(got.created)


def exhaustive_moves(cards: Sequence[CutCard], request: str) -> int | None:
    """Take out ever larger sets of movable instances and try every way to put them and the request back."""
    movable = [(i, instance) for i, card in enumerate(cards) for instance in card.movable]
    for count in range(len(movable) + 1):
        for chosen in itertools.combinations(movable, count):
            left = [Counter(card.instances) for card in cards]
            for i, instance in chosen:
                left[i][instance] -= 1
            bare = [(card.board, tuple(rest.elements())) for card, rest in zip(cards, left, strict=True)]
            queue = [request, *(instance.profile for _, instance in chosen)]
            if any(placed == len(queue) for placed in packings(bare, queue)):
                return count
    return None


@st.composite
def cards_to_clear(draw: st.DrawFn) -> list[CutCard]:
    found = []
    for i in range(draw(st.integers(1, 2))):
        instances = draw(layout(most=4))
        fixed = draw(st.sets(st.sampled_from(range(5)), max_size=1))
        movable = tuple(instance for k, instance in enumerate(instances) if k not in fixed)
        found.append(CutCard(f"c{i}", A100, instances, movable))
    return found


@settings(max_examples=30, deadline=None)
@given(cards_to_clear(), st.sampled_from(NAMES))
def test_moves_are_the_fewest_and_can_be_carried_out(cards: list[CutCard], request: str) -> None:
    room = fewest_moves_among(cards, request, most_moves=3)
    want = exhaustive_moves(cards, request)
    if want is None or want > 3:
        assert room is None
        return
    assert room is not None
    assert room.exact
    assert len(room.moves) == want
    after = [Counter(card.instances) for card in cards]
    for move in room.moves:
        assert Instance(move.profile, move.start) in cards[move.card].movable
        after[move.card][Instance(move.profile, move.start)] -= 1
    for move in room.moves:
        after[move.to_card][Instance(move.profile, move.to_start)] += 1
    after[room.card][Instance(request, room.start)] += 1
    for card, instances in zip(cards, after, strict=True):
        assert not layout_faults(card.board, tuple(instances.elements()))


@settings(max_examples=40)
@given(layout(), st.sampled_from(NAMES))
def test_on_one_card_it_is_the_exhaustive_count(instances: tuple[Instance, ...], request: str) -> None:
    room = fewest_moves_among([CutCard("c", A100, instances, instances)], request, most_moves=7)
    want = fewest_moves(A100, instances, request)
    assert (None if room is None else len(room.moves)) == want


def test_a_neighbour_takes_what_must_leave() -> None:
    full = CutCard("a", A100, (Instance("1g.5gb", 0), Instance("3g.20gb", 4)), (Instance("1g.5gb", 0),))
    other = CutCard("b", A100, (Instance("4g.20gb", 0),))
    room = fewest_moves_among([full, other], "4g.20gb")
    assert room is not None
    assert (room.card, room.start) == (0, 0)
    assert room.moves == (Move("1g.5gb", 0, 0, 1, 4),)
    protected = CutCard("a", A100, full.instances)
    assert fewest_moves_among([protected, other], "4g.20gb") is None


def test_wrong_input_is_refused() -> None:
    with pytest.raises(ValueError, match="placements are known"):
        best_layout([CutCard("a", boards()["RTX-PRO-5000-48GB"])], {"1g.12gb": 1})
    with pytest.raises(ValueError, match="can have on a, got"):
        best_layout([CutCard("a", A100, (Instance("1g.5gb", 7),))], {"1g.5gb": 1})
    with pytest.raises(ValueError, match="expected movable instances that are on a"):
        fewest_moves_among([CutCard("a", A100, (), (Instance("1g.5gb", 0),))], "1g.5gb")
