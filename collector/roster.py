"""Lists that say mostly the same things in the same order from scrape to scrape."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

Item = TypeVar("Item", bound=Hashable)

_SLACK = 64


def merged(before: Sequence[Item], now: Sequence[Item]) -> list[Item]:
    """Return `now` with those of `before` that it lacks put where they stood; `now` alone where that makes no sense.

    It makes none where an item stands twice, where the order is another, or where most of `before` is gone.
    """
    places = {item: place for place, item in enumerate(before)}
    present = set(now)
    if len(present) < len(now) or len(places.keys() - present) > len(now) // 4 + _SLACK:
        return list(now)
    result: list[Item] = []
    place = 0
    for item in now:
        there = places.get(item)
        if there is not None:
            if there < place:
                return list(now)
            result += [one for one in before[place:there] if one not in present]
            place = there + 1
        result.append(item)
    result += [one for one in before[place:] if one not in present]
    return result
