"""Where nodes are measured: in this process, in a pool of processes, or on a Dask cluster; the answer is the same.

Nodes are read one after another and only a few are on their way at a time, so that a fleet never lies in memory whole.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from importlib.metadata import version
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from analyzer.protocols import Partition
from analyzer.settings import HERE, PROCESSES, SCHEDULER
from collector.errors import ConfigurationError, TrimtabError, UnreachableError
from collector.masking import mask_address

if TYPE_CHECKING:
    from distributed import Client

T = TypeVar("T")
_AHEAD = 2  # nodes on their way for each that measures: the next one is there when it has done
_SCHEDULER_SECONDS = 30.0  # until a scheduler answers
_FIRST_WORKER_SECONDS = 300.0  # a cluster that grows on demand starts one first
_ONE_AT_A_TIME = threading.Lock()


class MapNodes(Protocol):
    """Spreads nodes: a loop, a process pool, a Dask cluster."""

    def __call__(self, measure: Callable[[Partition], T], nodes: Iterable[Partition], /) -> Iterable[T]:
        """Measure every node; the results come in the order of the nodes."""


class _Pending(Protocol):
    """A result that is still to come: of `concurrent.futures`, or of Dask."""

    def result(self) -> Any: ...


@contextmanager
def spread(executor: str) -> Iterator[MapNodes]:
    """Open what `[analyze] executor` names, for as long as the context lasts.

    Args:
        executor: `here`, `processes` (one a core), `processes:N`, or the address of a Dask
            scheduler, such as tcp://host:8786.

    Raises:
        ConfigurationError: it is none of these, Dask is not installed, or the workers have another Trimtab.
        UnreachableError: no scheduler or worker answers, or one was lost on the way.
    """
    processes = PROCESSES.fullmatch(executor)
    if executor == HERE:
        yield map
    elif processes:
        with _processes(int(processes[1] or os.cpu_count() or 1)) as spread_out:
            yield spread_out
    elif SCHEDULER.fullmatch(executor):
        with _dask(executor) as spread_out:
            yield spread_out
    else:
        raise ConfigurationError(
            f"executor: expected here, processes, processes:N or the address of a Dask scheduler such as "
            f"tcp://host:8786, got {mask_address(executor)!r}"
        )


def _streamed(
    submit: Callable[[Callable[[Partition], T], Partition], _Pending], most: Callable[[], int]
) -> Callable[[Callable[[Partition], T], Iterable[Partition]], Iterator[T]]:
    """Return a map that keeps at most `most()` nodes on their way and gives the results in order."""

    def over(measure: Callable[[Partition], T], nodes: Iterable[Partition]) -> Iterator[T]:
        pending: deque[_Pending] = deque()
        for node in nodes:
            while len(pending) >= most():
                yield pending.popleft().result()
            pending.append(submit(measure, node))
        while pending:
            yield pending.popleft().result()

    return over


@contextmanager
def _processes(count: int) -> Iterator[MapNodes]:
    # `spawn`: a fork would copy the threads' locks of pyarrow and of the linear algebra, and hang on them.
    pool = ProcessPoolExecutor(count, mp_context=get_context("spawn"))
    try:
        yield _streamed(pool.submit, lambda: _AHEAD * count)
    except BrokenProcessPool as error:
        raise TrimtabError(
            "executor: a process that measured a node was killed, most likely for want of memory; "
            f"set [analyze] executor to processes:{max(count // 2, 1)} or here"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _dask(address: str) -> Iterator[MapNodes]:
    shown = mask_address(address)
    try:
        from distributed import CancelledError, Client, KilledWorker  # noqa: PLC0415  only who has a cluster needs it
        from distributed.comm.core import CommClosedError  # noqa: PLC0415
    except ImportError as error:
        raise ConfigurationError(
            f"executor: {shown} needs Dask, which is not installed: pip install 'trimtab[dask]'"
        ) from error
    try:
        # A client that finds nobody lives on for minutes, and tells of its end on stderr: knock before there is one.
        asyncio.run(_knock(address))
        client = Client(address, timeout=_SCHEDULER_SECONDS, set_as_default=False)
    except Exception as error:  # whoever is there may say anything
        raise UnreachableError(
            f"executor: expected a Dask scheduler at {shown}, got {type(error).__name__}; is it running there?"
        ) from error
    try:
        _meet(client, shown)

        def submit(measure: Callable[[Partition], T], node: Partition) -> _Pending:
            # A node's rows go to a worker and not into the task: the scheduler keeps tasks until they are done.
            there = client.scatter(node, hash=False)
            pending: _Pending = client.submit(measure_there, version("trimtab"), measure, there, pure=False)
            return pending

        yield _streamed(submit, lambda: _AHEAD * max(len(client.nthreads()), 1))
    except (CancelledError, KilledWorker, CommClosedError, TimeoutError) as error:
        raise UnreachableError(
            f"executor: a worker or the scheduler at {shown} was lost ({type(error).__name__}); give workers memory "
            "for the rows of two nodes, and run again"
        ) from error
    finally:
        client.close()


async def _knock(address: str) -> None:
    """Exchange the greetings of Dask with who is at an address; raises anything where that fails."""
    from distributed.comm import connect  # noqa: PLC0415  only who has a cluster needs it
    from distributed.security import Security  # noqa: PLC0415

    async def greet() -> None:
        found = await connect(address, timeout=_SCHEDULER_SECONDS, **Security().get_connection_args("client"))
        found.abort()

    await asyncio.wait_for(greet(), _SCHEDULER_SECONDS + 1.0)  # its own limit ends with the connection


def _meet(client: Client, address: str) -> None:
    """Wait for a first worker, and see that it can load what it is going to run."""
    try:
        hello = client.submit(measure_there, version("trimtab"), str, "", pure=False)
        hello.result(timeout=_FIRST_WORKER_SECONDS)
    except TimeoutError as error:
        raise UnreachableError(
            f"executor: the Dask scheduler at {address} had no worker for us within {_FIRST_WORKER_SECONDS:.0f} s; "
            "start workers, or wait until they are free"
        ) from error
    except ImportError as error:
        raise ConfigurationError(
            f"executor: expected Trimtab on the workers of {address}, got {error}; install the same version there"
        ) from error


def measure_there(expected: str, measure: Callable[[Any], T], node: Any) -> T:
    """Measure a node on a worker.

    One at a time: limits of the linear algebra and filters of warnings belong to the whole process.
    """
    found = version("trimtab")
    if found != expected:
        raise ConfigurationError(
            f"executor: expected Trimtab {expected} on the workers, got {found}; install the same version there"
        )
    with _ONE_AT_A_TIME:
        return measure(node)
