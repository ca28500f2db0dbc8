"""Signals as an event: a loop ends after the cycle that it is in."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Stop(threading.Event):
    """Set by a signal; `by_interrupt` says whether that was Ctrl-C."""

    by_interrupt = False


@contextmanager
def stopped_by_signals() -> Iterator[Stop]:
    """Give an event that SIGINT and SIGTERM set; a second Ctrl-C interrupts at once."""
    stop = Stop()

    def on_signal(number: int, _frame: object) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.by_interrupt = number == signal.SIGINT
        stop.set()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
