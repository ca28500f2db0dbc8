"""Threads for calls that may hang: they never keep the process from ending, as those of an executor do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_Job = tuple["Future[Any]", Callable[[], Any]]


class Workers:
    """Runs calls on daemon threads, made as they are needed and used again.

    Args:
        most: how many threads there may be; further calls wait.
        name: of the threads.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads = 0
        self._closed = False

    def submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a call on a thread; its result, or its exception, is the future's. Only one thread submits."""
        future: Future[T] = Future()
        if self._closed:
            future.cancel()
            return future
        self._jobs.put((future, lambda: call(*args, **kwargs)))
        if not self._idle.acquire(blocking=False) and self._threads < self._most:
            self._threads += 1
            threading.Thread(target=self._work, name=f"{self._name}-{self._threads}", daemon=True).start()
        return future

    def close(self) -> None:
        """Take no more calls; threads end when theirs is done, and calls that did not begin never will."""
        self._closed = True
        for _ in range(self._threads):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, call = job
            if self._closed or not future.set_running_or_notify_cancel():
                future.cancel()
                continue
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001  it is the caller's, who asks for the result
                future.set_exception(error)
            del job, future, call  # what a call returned may be large
            self._idle.release()
