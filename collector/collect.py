"""The collector's loop: on the clock's grid, each source apart, what was read is written."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Protocol, runtime_checkable

from collector.assemble import Assembler, Scrape
from collector.batch import Batch
from collector.clock import Clock, grid_floor
from collector.errors import InputRejectedError, UnreachableError
from collector.plugins import SourceContext
from collector.protocols import Source, Store
from collector.slots import target_key
from collector.state_file import Resumable, StateFile

_LOG = logging.getLogger(__name__)


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


@dataclass(slots=True)
class CycleReport:
    """What one cycle did: rows and rejects written, sources that could not be read with the reason."""

    at: datetime
    rows: int = 0
    rejects: int = 0
    events: int = 0
    failures: dict[str, str] = field(default_factory=dict)


class Collector:
    """Polls sources and writes what they give.

    Args:
        sources: where rows come from; those that gather under one configuration share one assembler.
        store: where they are kept.
        clock: time.
        interval_seconds: length of a cycle.
        state_path: file for what sources must remember over a restart; None: nothing is remembered.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        store: Store,
        clock: Clock,
        interval_seconds: float,
        *,
        state_path: Path | None = None,
    ) -> None:
        self._sources = list(sources)
        self._store = store
        self._clock = clock
        self._interval = interval_seconds
        self._assemblers: dict[SourceContext, Assembler] = {}
        for source in self._sources:
            if isinstance(source, Gathering):
                self._assemblers.setdefault(source.assembler.context, source.assembler)
        self._state = None if state_path is None else StateFile(state_path)
        if self._state is not None:
            self._state.load(self._keepers())

    def run_once(self, now: datetime) -> CycleReport:
        """Poll each source once and write what they give; a source that fails does not hold up the others.

        Raises:
            InputRejectedError: the clock is far from reason.
            UnreachableError: the store cannot be written, or no source at all could be read.
        """
        report = CycleReport(now)
        for batch in self._read(now, report):
            self._store.write(batch)
            report.rows += batch.row_count
            report.rejects += sum(reject.count for reject in batch.rejects)
            report.events += len(batch.events)
        if self._state is not None:
            self._state.save(self._keepers())
        if self._sources and len(report.failures) == len(self._sources):
            raise UnreachableError("; ".join(report.failures.values()))
        return report

    def run(self, stop: threading.Event) -> int:
        """Run cycles on the grid until `stop` is set; return how many were run.

        A cycle that has begun is finished and written. Cycles that were overslept are left out, not caught up.
        """
        cycles = 0
        while not stop.is_set():
            now = self._clock.now()
            try:
                report = self.run_once(now)
            except (UnreachableError, InputRejectedError) as error:
                _LOG.warning("cycle at %s: %s", now.isoformat(), error)
            else:
                _LOG.info("cycle at %s: %d rows, %d rejects", now.isoformat(), report.rows, report.rejects)
            cycles += 1
            if self._clock.wait(self._until_next(), stop):
                break
        return cycles

    def _read(self, now: datetime, report: CycleReport) -> Iterator[Batch]:
        """Yield a batch of each source that makes its own, then one of all that was gathered."""
        gathered: dict[SourceContext, dict[str, Scrape]] = {}
        for source in self._sources:
            try:
                if isinstance(source, Gathering):
                    scrapes = source.gather(now)
                    add_scrapes(gathered.setdefault(source.assembler.context, {}), scrapes)
                else:
                    yield source.poll(now)
            except UnreachableError as error:
                name = source.describe().name
                report.failures[name] = str(error)
                _LOG.warning("source %s: %s", name, error)
        for context, said in gathered.items():
            instant = grid_floor(now, context.interval_seconds)
            yield self._assemblers[context].assemble(instant, list(said.values()))

    def _until_next(self) -> float:
        """Return seconds until the grid's next instant."""
        seconds = self._clock.now().timestamp()
        return (math.floor(seconds / self._interval) + 1) * self._interval - seconds

    def _keepers(self) -> list[tuple[list[str], Resumable]]:
        """Return what must be remembered, each with the names of its sources."""
        shared: dict[SourceContext, list[str]] = {}
        keepers: list[tuple[list[str], Resumable]] = []
        for source in self._sources:
            name = source.describe().name
            if isinstance(source, Gathering):
                shared.setdefault(source.assembler.context, []).append(name)
            elif isinstance(source, Resumable):
                keepers.append(([name], source))
        return keepers + [(names, self._assemblers[context]) for context, names in shared.items()]


def add_scrapes(known: dict[str, Scrape], scrapes: Sequence[Scrape]) -> None:
    """Add what targets said; of one that two sources read, as from two replicas of a Prometheus, an answer counts."""
    for scrape in scrapes:
        key = target_key(scrape.target)
        if key not in known or known[key].body is None:
            known[key] = scrape
