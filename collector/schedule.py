"""When each target is asked: on the source's own grid, spread a little, less often while it does not answer."""

from __future__ import annotations

from dataclasses import dataclass

from collector.sharding import stable_hash

LONGEST_REST_SECONDS = 300.0  # between two tries of a target that does not answer
_PROMPT_TRIES = 2  # failures after which a target is still asked in the next cycle
_SPREAD_SHARE, _LONGEST_SPREAD_SECONDS = 0.1, 3.0


@dataclass(slots=True)
class Turn:
    """What is known of one target's turns. `next_ms`: the instant before which it is not asked."""

    failures: int = 0
    next_ms: int = 0


def is_due(turn: Turn, now_ms: int, interval_ms: int) -> bool:
    """Say whether a target is asked in the cycle that begins at `now_ms`.

    A cycle may begin a little before or after its place on the grid: half a second is no reason to leave a turn out.
    """
    return now_ms + min(500, interval_ms // 4) >= turn.next_ms


def plan_next(turn: Turn, now_ms: int, interval_ms: int, *, failed: bool) -> None:
    """Note how a turn ended and when the next one comes.

    Turns stand on the grid of `interval_ms`, whatever the last one took: nothing drifts. After three failures in a row
    a target rests, each time twice as long, up to five minutes or its interval, whichever is longer.
    """
    turn.failures = turn.failures + 1 if failed else 0
    rests = max(0, turn.failures - _PROMPT_TRIES)
    longest = max(1, int(LONGEST_REST_SECONDS * 1000) // interval_ms)
    turns = min(2 ** min(rests, 20), longest)
    turn.next_ms = (now_ms // interval_ms + turns) * interval_ms


def spread_seconds(interval_seconds: float) -> float:
    """Return over how long the requests of one cycle are spread: a tenth of the interval, three seconds at most."""
    return min(_SPREAD_SHARE * interval_seconds, _LONGEST_SPREAD_SECONDS)


def offset_share(key: str) -> float:
    """Return where in that span a target's own place is, 0 to 1: the same in every cycle and after a restart."""
    return stable_hash(key) / 2.0**64
