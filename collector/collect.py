"""The collector's loop: on the clock's grid, each source apart, what was read is written."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from collector.assemble import Assembler, Scrape
from collector.batch import Batch, Event, Severity, Subject
from collector.clock import Clock, grid_floor
from collector.errors import InputRejectedError, UnreachableError
from collector.memory import give_back_free_memory
from collector.plugins import SourceContext
from collector.protocols import Source, Store
from collector.readings import Readings
from collector.schedule import spread_seconds
from collector.scrape import ScrapeSource, Tally
from collector.slots import target_key
from collector.state_file import Dating, Resumable, StateFile
from collector.words import plural

if TYPE_CHECKING:
    from collector.self_metrics import CollectorMetrics

_LOG = logging.getLogger(__name__)
_BLINDNESS = "collector/blind"  # in the file of states, beside the names of sources
_MANY_FACTS = 1000  # in one cycle: a rack or more is new, and to learn of it takes far more than it leaves
_PATIENCE_SHARE = 0.75  # of the interval that a cycle waits for a source


@runtime_checkable
class Spreading(Protocol):
    """A source that spreads its requests over a part of the cycle, so that not all begin at once."""

    spread_seconds: float


@runtime_checkable
class Noticing(Protocol):
    """A source that has something to say of itself, such as targets that are not found any more."""

    def notices(self) -> list[tuple[str, Severity, str]]:
        """Return what came up since the last call: code, severity, message."""
        ...


@dataclass(slots=True)
class CycleReport:
    """What one cycle did: what was written, sources that could not be read with the reason.

    blind: clusters of which nothing at all was seen.
    """

    at: datetime
    rows: int = 0
    rejects: int = 0
    events: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    event_codes: Counter[str] = field(default_factory=Counter)
    reject_reasons: Counter[str] = field(default_factory=Counter)
    blind: set[str] = field(default_factory=set)


class Collector:
    """Polls sources and writes what they give.

    Several sources are polled at once. One that is slow, or that fails in whatever way, does not hold up the others:
    what it says counts in the next cycle.

    Args:
        sources: where rows come from; those that gather under one configuration share one assembler.
        store: where they are kept.
        clock: time.
        interval_seconds: length of a cycle.
        state_path: file for what sources must remember over a restart; None: nothing is remembered.
        metrics: counts what is done.

    Attributes:
        unwritten: cycles whose rows the store did not take.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        store: Store,
        clock: Clock,
        interval_seconds: float,
        *,
        state_path: Path | None = None,
        metrics: CollectorMetrics | None = None,
    ) -> None:
        self._sources = list(sources)
        self._names = _told_apart([source.describe().name for source in self._sources])
        scraping = zip(self._names, self._sources, strict=True)
        self._tallies = {name: source.tally for name, source in scraping if isinstance(source, ScrapeSource)}
        self._store = store
        self._clock = clock
        self._interval = interval_seconds
        self._metrics = metrics
        self.unwritten = 0
        self._readings = Readings(self._sources, patience_seconds=_PATIENCE_SHARE * interval_seconds)
        self._assemblers: dict[SourceContext, Assembler] = {}
        self._noticing: list[tuple[SourceContext, Noticing]] = []
        for source in self._readings.gathering.values():
            self._assemblers.setdefault(source.assembler.context, source.assembler)
            if isinstance(source, Noticing):
                self._noticing.append((source.assembler.context, source))
        self._blind = _Blindness()
        self._state = None if state_path is None else StateFile(state_path, self._list_keepers())
        if self._state is not None:
            self._state.load(store.written_until() if isinstance(store, Dating) else None)

    def run_once(self, now: datetime) -> CycleReport:
        """Poll each source once and write what they give; a source that fails does not hold up the others.

        Raises:
            InputRejectedError: the clock is far from reason.
            UnreachableError: the store cannot be written, or no source at all could be read.
        """
        start = time.perf_counter()
        report, stored = CycleReport(now), False
        try:
            self._cycle(now, report)
            stored = True
        finally:
            self.unwritten += not stored
            if self._metrics is not None:
                for name, tally in self._tallies.items():
                    self._metrics.source(name, tally)
                self._metrics.failed(report.failures)
                self._metrics.blind({of.cluster: of.cluster in report.blind for of in self._assemblers})
                self._metrics.cycle(report if stored else None, time.perf_counter() - start)
        if self._sources and len(report.failures) == len(self._sources):
            raise UnreachableError("; ".join(report.failures.values()))
        return report

    def run(self, stop: threading.Event) -> int:
        """Run cycles on the grid until `stop` is set; return how many were run.

        A cycle that has begun is finished and written. Cycles that were overslept are left out, not caught up.
        """
        for source in self._sources:
            if isinstance(source, Spreading):
                source.spread_seconds = spread_seconds(self._interval)
        cycles = 0
        while not stop.is_set():
            now = self._clock.now()
            try:
                report = self.run_once(now)
            except (UnreachableError, InputRejectedError) as error:
                _LOG.warning("cycle at %s: %s", now.isoformat(), error)
            except Exception as error:  # noqa: BLE001  whatever one cycle ends with, the next one comes
                _LOG.error("cycle at %s: unexpected %s; its rows are lost", now.isoformat(), type(error).__name__)
                _LOG.debug("cycle at %s", now.isoformat(), exc_info=error)
            else:
                _LOG.info("cycle at %s: %d rows, %d rejects", now.isoformat(), report.rows, report.rejects)
            cycles += 1
            if self._clock.wait(self._until_next(), stop):
                break
        self._readings.close()
        return cycles

    def _cycle(self, now: datetime, report: CycleReport) -> None:
        gathered: dict[SourceContext, dict[str, Scrape]] = {}
        for n, result in self._readings.take(now):
            name = self._names[n]
            if isinstance(result, Exception):
                self._fail(name, result, report)
            elif isinstance(result, Batch):
                try:
                    self._write(result, report)
                except (KeyError, TypeError, ValueError) as error:
                    self._fail(name, error, report)
            elif n in self._readings.gathering:
                if not isinstance(self._sources[n], ScrapeSource):
                    count_scrapes(self._tallies.setdefault(name, Tally()), result)
                add_scrapes(gathered.setdefault(self._readings.gathering[n].assembler.context, {}), result)
        batches = []
        for context, assembler in self._assemblers.items():
            batch, said = Batch(), list(gathered.get(context, {}).values())
            if context in gathered:
                batch = assembler.assemble(grid_floor(now, context.interval_seconds), said)
            self._look(context, batch, said, report)
            if context in gathered or batch.events:
                batches.append(batch)
        if self._state is not None:
            self._state.save_counters(now)
        for batch in batches:
            self._write(batch, report)
        if self._state is not None:
            self._state.save()
        _tidy_up(batches)

    def _write(self, batch: Batch, report: CycleReport) -> None:
        self._store.write(batch)
        report.rows += batch.row_count
        report.rejects += sum(reject.count for reject in batch.rejects)
        report.events += len(batch.events)
        report.event_codes.update(event.code for event in batch.events)
        for reject in batch.rejects:
            report.reject_reasons[reject.reason] += reject.count

    def _fail(self, name: str, error: Exception, report: CycleReport) -> None:
        """Note that a source failed; what a plug-in raises is said in one line, with the traceback for debugging."""
        said = str(error).partition("\n")[0]
        if not isinstance(error, UnreachableError):
            said = f"unexpected {type(error).__name__}: {said or 'no message'}"
            _LOG.debug("source %s", name, exc_info=error)
        report.failures[name] = said
        _LOG.warning("source %s: %s", name, said)

    def _look(self, context: SourceContext, batch: Batch, said: Sequence[Scrape], report: CycleReport) -> None:
        """Add what sources say of themselves, and say so when nothing at all is seen of a cluster, or again."""
        subject = Subject("cluster", context.cluster)
        for of, source in self._noticing:
            if of == context:
                batch.events += [Event(subject, *notice, report.at) for notice in source.notices()]
        answered = sum(one.body is not None or one.of_scheduler for one in said)
        if batch.row_count and answered:  # queues are told from what was known last; that is not to see
            blind = False
        elif any(one.resting for one in said) or (context.shard is not None and not said):
            blind = context.cluster in self._blind.clusters  # nothing was due
        else:
            blind = True
        if blind:
            report.blind.add(context.cluster)
        if blind == (context.cluster in self._blind.clusters):
            return
        if blind:
            self._blind.clusters.add(context.cluster)
            why = f"{answered} answered, and none of a card, a node or a queue" if answered else "none answered"
            seen = f"of {plural(len(said), 'target')} {why}" if said else "no source could be read, or none has targets"
            message = f"the collector sees nothing of {context.cluster}: {seen}"
            batch.events.append(Event(subject, "blind", Severity.CRITICAL, message, report.at))
        else:
            self._blind.clusters.discard(context.cluster)
            message = f"the collector sees {context.cluster} again"
            batch.events.append(Event(subject, "sees_again", Severity.INFO, message, report.at))

    def _until_next(self) -> float:
        """Return seconds until the grid's next instant."""
        seconds = self._clock.now().timestamp()
        return (math.floor(seconds / self._interval) + 1) * self._interval - seconds

    def _list_keepers(self) -> list[tuple[list[str], Resumable]]:
        """Return what must be remembered, each with the names of its sources."""
        shared: dict[SourceContext, list[str]] = {}
        keepers: list[tuple[list[str], Resumable]] = []
        for n, (name, source) in enumerate(zip(self._names, self._sources, strict=True)):
            if n in self._readings.gathering:
                shared.setdefault(self._readings.gathering[n].assembler.context, []).append(name)
            elif isinstance(source, Resumable):
                keepers.append(([name], source))
        assemblers = [(names, self._assemblers[context]) for context, names in shared.items()]
        return [*keepers, *assemblers, *([([_BLINDNESS], self._blind)] if assemblers else [])]


class _Blindness:
    """Which clusters nothing at all is seen of; remembered, so that after a restart `sees_again` is still told."""

    def __init__(self) -> None:
        self.clusters: set[str] = set()

    def export_state(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"clusters": sorted(self.clusters)}

    def import_state(self, state: Mapping[str, Any]) -> None:
        """Go on from them."""
        self.clusters = set(map(str, state.get("clusters", [])))


def _tidy_up(batches: Sequence[Batch]) -> None:
    if sum(len(batch.facts) for batch in batches) > _MANY_FACTS:
        give_back_free_memory()


def _told_apart(names: Sequence[str]) -> list[str]:
    """Return the names with a number behind each that was there before: state and metrics of sources go by name."""
    result: list[str] = []
    for name in names:
        number, one = 1, name
        while one in result:
            number += 1
            one = f"{name} {number}"
        result.append(one)
    return result


def count_scrapes(tally: Tally, scrapes: Sequence[Scrape]) -> None:
    """Add what a source says of its targets that does not count by itself."""
    tally.targets = len(scrapes)
    for scrape in scrapes:
        tally.failed += bool(scrape.error)
        if not scrape.error and not scrape.resting:
            tally.answered += 1
            tally.samples += len(scrape.body.series) if scrape.body is not None else 0


def add_scrapes(known: dict[str, Scrape], scrapes: Sequence[Scrape]) -> None:
    """Add what targets said; of one that two sources read, as from two replicas of a Prometheus, an answer counts."""
    for scrape in scrapes:
        key = target_key(scrape.target)
        before = known.get(key)
        if before is None or (before.body is None and not before.of_scheduler):
            known[key] = scrape
