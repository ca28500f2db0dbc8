"""Reads several sources at once: each apart, a slow one in the background, and no exception of one ends the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from datetime import datetime
from typing import Protocol, runtime_checkable

from collector.assemble import Assembler, Scrape
from collector.batch import Batch
from collector.protocols import Source
from collector.workers import Workers

Reading = Batch | list[Scrape] | Exception


@runtime_checkable
class Gathering(Protocol):
    """A source that can say what its targets said: what several such sources gather becomes rows together.

    One target tells of cards and another one of the pods on them, whichever table each stands in.
    """

    assembler: Assembler

    def gather(self, now: datetime) -> list[Scrape]:
        """Read all targets.

        Raises:
            UnreachableError: nothing at all could be read.
        """
        ...


class Readings:
    """Polls sources, cycle by cycle.

    Args:
        sources: they are known by their position.
        patience_seconds: that a cycle waits, in real time. A single source is waited for to its end.

    Attributes:
        gathering: those of the sources that gather, by their position.
    """

    def __init__(self, sources: Sequence[Source], *, patience_seconds: float) -> None:
        self._sources = sources
        # Asked once: what a protocol asks of an object's attributes takes longer than many a cycle's step.
        self.gathering = {n: source for n, source in enumerate(sources) if isinstance(source, Gathering)}
        self._patience = patience_seconds
        self._pool = Workers(len(sources), "source") if len(sources) > 1 else None
        self._running: dict[int, tuple[Future[Reading], datetime]] = {}
        self._known: dict[int, list[Scrape]] = {}  # targets of each source that answered last, without what they said

    def take(self, now: datetime) -> Iterator[tuple[int, Reading]]:
        """Poll all sources that are not still at it, and yield (position, what each gave), in their order.

        What was asked for in an earlier cycle says how old it is.
        """
        if self._pool is None:
            yield from ((n, self._read(n, now)) for n in range(len(self._sources)))
            return
        for n in range(len(self._sources)):
            if n not in self._running:
                self._running[n] = self._pool.submit(self._read, n, now), now
        wait([future for future, _ in self._running.values()], timeout=self._patience)
        for n in range(len(self._sources)):
            future, asked = self._running[n]
            if not future.done():
                yield n, list(self._known.get(n, ()))
                continue
            del self._running[n]
            age = (now - asked).total_seconds()
            result = future.result()
            if age > 0 and isinstance(result, list):
                result = [replace(scrape, age_seconds=scrape.age_seconds + age) for scrape in result]
            if isinstance(result, list):
                self._known[n] = [Scrape(one.target, None, resting=True) for one in result if not one.error]
            yield n, result

    def _read(self, n: int, now: datetime) -> Reading:
        """Return what a source gives, or the exception that it ends with: a plug-in may raise anything."""
        gathering = self.gathering.get(n)
        try:
            return self._sources[n].poll(now) if gathering is None else gathering.gather(now)
        except Exception as error:  # noqa: BLE001  the others are read all the same
            return error

    def close(self) -> None:
        """Leave what is under way."""
        if self._pool is not None:
            self._pool.close()
