"""Many small answers at once, read by one thread as they come.

A thread for each costs more than the answers themselves: whoever wakes up finds the processor's caches filled by
somebody else, and hands over a body that lies in another core's. Whatever is unusual, large or slow is left to a thread
that waits for it.
"""

from __future__ import annotations

import math
import select
import time
from collections.abc import Iterator
from dataclasses import dataclass

from collector.fetch import HttpFetch, skew_seconds
from collector.settings import TargetSettings
from collector.wire import Exchange


@dataclass(frozen=True, slots=True)
class Heard:
    """What became of a question.

    start: when it was asked, of `time.monotonic`.
    body: None: a thread has to go on (`HttpFetch.ask` with `begun`).
    skew_seconds: how far the target's clock is ahead of ours; NaN where it does not say.
    """

    target: TargetSettings
    start: float
    body: memoryview | None = None
    skew_seconds: float = math.nan


@dataclass(frozen=True, slots=True)
class _Open:
    target: TargetSettings
    exchange: Exchange
    start: float
    deadline: float


class Burst:
    """Questions over kept connections, and their answers.

    Args:
        fetch: keeps the connections.
    """

    def __init__(self, fetch: HttpFetch) -> None:
        self._fetch = fetch
        self._open: dict[int, _Open] = {}
        self._poll = select.poll()

    def __len__(self) -> int:
        """Return how many questions are open."""
        return len(self._open)

    def ask(self, target: TargetSettings, timeout_seconds: float) -> bool:
        """Ask a target; False where a thread has to ask it."""
        exchange = self._fetch.begin(target)
        if exchange is None:
            return False
        now = time.monotonic()
        self._open[exchange.fileno()] = _Open(target, exchange, now, now + timeout_seconds)
        self._poll.register(exchange.fileno(), select.POLLIN)
        return True

    def hear(self, seconds: float) -> Iterator[Heard]:
        """Read answers for so long, or until none is open; give each that is whole, or that a thread has to go on with.

        What is open afterwards stays so.
        """
        end = time.monotonic() + seconds
        while self._open:
            until = min(end, *(one.deadline for one in self._open.values()))
            left = until - time.monotonic()
            for number, _ in self._poll.poll(max(0.0, 1000.0 * left)):
                one = self._open[number]
                whole = one.exchange.proceed()
                if whole is not False:
                    yield self._close(number, one, whole=bool(whole))
            if left <= 0:
                yield from self.leave(time.monotonic())
                if time.monotonic() >= end:
                    return

    def leave(self, overdue_at: float = math.inf) -> Iterator[Heard]:
        """Leave questions to threads: those whose time is over by an instant, all without one."""
        for number, one in list(self._open.items()):
            if one.deadline <= overdue_at:
                one.exchange.leave()
                yield self._close(number, one, whole=False)

    def _close(self, number: int, one: _Open, *, whole: bool) -> Heard:
        del self._open[number]
        self._poll.unregister(number)
        if not whole:
            return Heard(one.target, one.start)
        return Heard(one.target, one.start, one.exchange.body, skew_seconds(one.exchange.headers.get("date")))
