"""Running probes: block by block, from their consent to a dated result, and always back to the former share.

A probe belongs to the process that began it, which alone knows in which block it is: what another one finds running
(after a crash, after the lease changed hands) it sets back and ends.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from analyzer.contention.experiment import (
    Experiment,
    describe_result,
    experiment_fact,
    holder_name,
    result_to_json,
)
from analyzer.contention.probe import MAX_LAG, BlockPair, Ground, ProbeResult, analyse_probe, coins, nothing
from analyzer.settings import AnalyzeSettings
from collector.batch import Batch, Event, Severity, Subject
from collector.protocols import Store
from collector.window import Window
from tuner.model import Trial
from tuner.outcome import record_outcome
from tuner.planner.probes import incident, unrest
from tuner.planner.views import CardView, SliceView
from tuner.record import ChangeState, GroupRecord
from tuner.service.analyse import partition_of
from tuner.service.watch import Sight
from tuner.settle import settle
from tuner.state.plans import open_groups
from tuner.switch import switch
from tuner.undo import roll_back
from tuner.writer import Recheck, Step, Writer

_LOG = logging.getLogger(__name__)
EVENT = "probe"
_HISTORY = timedelta(days=1)  # before the probe: what its analysis learns the victim's noise from
_LATE_BLOCKS = 3.0  # a block that lasts so many times its length was slept through
_ROWS_LATE = 2.0  # intervals until the last rows are stored


class _Phase(StrEnum):
    REHEARSAL = "rehearsal"  # throttled once, to see that it works
    REST = "rest"
    FIRST = "first"
    SECOND = "second"
    RIPE = "ripe"  # over: the last rows are on their way


@dataclass(slots=True)
class _Run:
    """Where a probe of ours is."""

    begun: datetime
    phase: _Phase = _Phase.REHEARSAL
    since: datetime | None = None
    start: datetime | None = None  # of the pair under way
    middle: datetime | None = None
    next_at: datetime | None = None
    pairs: list[BlockPair] = field(default_factory=list)
    over: str = ""  # why it must end, where the way back was held up


@dataclass(frozen=True, slots=True)
class TrialParts:
    """What the runner of probes works with."""

    store: Store
    writer: Writer
    analyze: AnalyzeSettings
    interval_seconds: float
    max_age_seconds: float


class Trials:
    """Runs the probes that were begun by this process, and ends those that were not."""

    def __init__(self, parts: TrialParts) -> None:
        self._parts = parts
        self._runs: dict[str, _Run] = {}

    @property
    def running(self) -> list[GroupRecord]:
        """Probes that are under way, ours or not."""
        return [r for r in open_groups(self._parts.writer.state) if r.group.trial is not None]

    def begin(self, group_id: str) -> None:
        """Take charge of a probe that this process has just written."""
        self._runs[group_id] = _Run(self._parts.writer.clock.now())

    def stop(self, reason: str) -> None:
        """End the probes of this process, because it leaves; what cannot be set back now the next one sets back.

        Raises:
            LeaseLostError: another tuner acts: it sets back what is throttled.
        """
        for record in self.running:
            if record.id in self._runs and record.state is ChangeState.VERIFYING:
                self._stop(record, reason)

    def step(self, sight: Sight, still_ok: Recheck) -> list[Step]:
        """Move every probe on, as of now.

        Args:
            sight: the fleet as it is seen now.
            still_ok: the guards for one more throttled block.

        Returns:
            What became of those that ended.

        Raises:
            LeaseLostError: another tuner acts: it sets back what is throttled.
        """
        steps = []
        for record in self.running:
            if record.state is ChangeState.VERIFYING and record.group.trial is not None:
                ended = self._one(record, record.group.trial, sight, still_ok)
                if ended is not None:
                    steps.append(ended)
            elif record.state is ChangeState.ROLLING_BACK:  # a person ended it, or its way back takes long
                settle(self._parts.writer, record)
        return [*steps, *self._ended_by_others()]

    def _ended_by_others(self) -> list[Step]:
        """Write down that nothing was decided by the probes that a person, or a foreign value, has ended."""
        steps = []
        for group_id, run in list(self._runs.items()):
            record = self._parts.writer.get(group_id)
            if not record.is_open:
                del self._runs[group_id]
                self._tell(record, nothing(len(run.pairs), f"it ended early: {record.reason}"), record.reason)
                steps.append(Step(record.id, record.state, record.reason))
        return steps

    def _one(self, record: GroupRecord, trial: Trial, sight: Sight, still_ok: Recheck) -> Step | None:
        run = self._runs.get(record.id)
        if run is None:
            return self._stop(record, "the process that ran it is gone")
        card, victim, suspect = _look(record, trial, sight)
        against = run.over or self._against(run, trial, card, victim, suspect)
        if against:
            return self._stop(record, against)
        assert card is not None and victim is not None and suspect is not None  # noqa: S101, PT018 - no reason against
        if run.phase is _Phase.RIPE:
            return self._conclude(record, trial, run)
        problem = self._move(record, trial, run, (card, victim, suspect), still_ok)
        return None if problem is None else self._stop(record, problem)

    def _against(
        self, run: _Run, trial: Trial, card: CardView | None, victim: SliceView | None, suspect: SliceView | None
    ) -> str:
        """Say what ends a probe before its time, or nothing."""
        pause = self._parts.writer.pause()
        if not pause.allows_new:
            return str(pause)
        if card is None or victim is None or suspect is None:
            return "one of the two is not on the card any more"
        if max(victim.age_seconds, suspect.age_seconds) > self._parts.max_age_seconds:
            return "their rows are too old to see what it does"
        found = incident(card)
        if found or run.since is None or run.phase not in {_Phase.REHEARSAL, _Phase.FIRST, _Phase.SECOND}:
            return found
        lasted = self._now() - run.since
        if lasted < timedelta():  # else the block would last until the clock has caught up
            return "the clock was set back in a block"
        return "a block was slept through" if lasted > timedelta(seconds=_LATE_BLOCKS * trial.block_seconds) else ""

    def _move(
        self,
        record: GroupRecord,
        trial: Trial,
        run: _Run,
        views: tuple[CardView, SliceView, SliceView],
        still_ok: Recheck,
    ) -> str | None:
        """Begin, turn or end a block where it is time; return why the share could not be switched."""
        card, victim, suspect = views
        throttled_first = coins(trial.seed, trial.pairs)[min(len(run.pairs), trial.pairs - 1)]
        block = timedelta(seconds=trial.block_seconds)
        now, calm = self._now(), not unrest(card)
        problem: str | None = None
        match run.phase:
            case _Phase.REHEARSAL:
                problem = self._switch(record, run, _Phase.REHEARSAL, on=False)
                self._rest(run, trial)
            case _Phase.REST:
                if len(run.pairs) >= trial.pairs or now - run.begun >= timedelta(seconds=trial.longest_seconds):
                    run.phase, run.since = _Phase.RIPE, now
                elif calm and _at_work(trial, victim, suspect) and (run.next_at is None or now >= run.next_at):
                    if throttled_first:
                        problem = self._switch(record, run, _Phase.FIRST, on=True, still_ok=still_ok)
                    run.phase, run.start = _Phase.FIRST, self._now()
                    run.since = run.start
            case _Phase.FIRST | _Phase.SECOND if not calm:
                problem = self._switch(record, run, run.phase, on=False)  # this pair is lost, not the probe
                self._rest(run, trial)
            case _Phase.FIRST if run.since is not None and now - run.since >= block:
                problem = self._switch(record, run, _Phase.SECOND, on=not throttled_first, still_ok=still_ok)
                run.phase, run.middle = _Phase.SECOND, self._now()
                run.since = run.middle
            case _Phase.SECOND if run.since is not None and now - run.since >= block:
                if not throttled_first:
                    problem = self._switch(record, run, _Phase.REST, on=False)
                assert run.start is not None and run.middle is not None  # noqa: S101, PT018 - set by the phases before
                run.pairs.append(BlockPair(run.start, run.middle, self._now(), throttled_first))
                self._rest(run, trial)
        return problem

    def _switch(
        self, record: GroupRecord, run: _Run, phase: _Phase, *, on: bool, still_ok: Recheck | None = None
    ) -> str | None:
        block = {"pair": len(run.pairs) + 1, "block": phase.value}
        return switch(self._parts.writer, record, on=on, block=block, still_ok=still_ok)

    def _rest(self, run: _Run, trial: Trial) -> None:
        began = run.start if run.start is not None else run.begun
        run.phase, run.since, run.start, run.middle = _Phase.REST, None, None, None
        run.next_at = began + timedelta(seconds=trial.every_seconds)

    def _stop(self, record: GroupRecord, reason: str) -> Step:
        """Set back, and write down that nothing was decided."""
        run = self._runs.get(record.id)
        pairs = 0 if run is None else len(run.pairs)
        if run is not None:
            run.over = reason
        return self._end(record, nothing(pairs, f"it ended early: {reason}"), f"the probe ended early: {reason}")

    def _conclude(self, record: GroupRecord, trial: Trial, run: _Run) -> Step | None:
        """Analyse once the last rows are there."""
        waits = (MAX_LAG + _ROWS_LATE) * self._parts.interval_seconds
        if run.since is not None and self._now() - run.since < timedelta(seconds=waits):
            return None
        victim, suspect = trial.victim, record.group.changes[0].target
        window = Window(run.begun - _HISTORY, self._now())
        span = self._parts.store.span("slice")
        if span is not None and window.start < span.start < window.end:
            window = Window(span.start, window.end)
        node = (victim.cluster, victim.node)
        part = partition_of(self._parts.store, node, window, self._parts.interval_seconds, self._parts.analyze)
        ground = Ground.of(part, victim.gpu, victim.slice, suspect.slice)
        result = nothing(0, ground) if isinstance(ground, str) else analyse_probe(ground, run.pairs)
        return self._end(record, result, f"the probe is over: {describe_result(result)}")

    def _end(self, record: GroupRecord, result: ProbeResult, reason: str) -> Step:
        step = roll_back(self._parts.writer, record, reason, {"probe": result_to_json(result)})
        if step.state is ChangeState.VERIFYING:
            return step  # the kill switch holds it: again in the next pass
        self._runs.pop(record.id, None)
        self._tell(record, result, reason)
        if not result.problem:
            record_outcome(self._parts.writer.state, record.group, "pass", math.nan, self._now())
        return step

    def _tell(self, record: GroupRecord, result: ProbeResult, reason: str) -> None:
        """Write the result as a dated fact of the card and an event of the victim."""
        trial, change = record.group.trial, record.group.changes[0]
        assert trial is not None  # noqa: S101 - only probes come here
        target = trial.victim
        card = Subject("gpu", target.cluster, target.node, target.gpu)
        names = (
            holder_name(trial.victim_tenant, trial.victim_workload, target.slice),
            holder_name(change.tenant, change.workload, change.target.slice),
        )
        at = self._now()
        slice_ = Subject("slice", target.cluster, target.node, target.gpu, target.slice)
        message = f"{names[1]} was held back now and then beside {names[0]} ({record.id}): {reason}"
        self._parts.store.write(
            Batch(
                facts=[experiment_fact(card, *names, Experiment(result, record.id, at))],
                events=[Event(slice_, EVENT, Severity.INFO, message, at)],
            )
        )
        _LOG.info("%s: %s", record.id, reason)

    def _now(self) -> datetime:
        return self._parts.writer.clock.now()


def _look(
    record: GroupRecord, trial: Trial, sight: Sight
) -> tuple[CardView | None, SliceView | None, SliceView | None]:
    suspect = record.group.changes[0].target
    for card in sight.planner.cards:
        views = {view.target: view for view in card.slices}
        if suspect in views or trial.victim in views:
            return card, views.get(trial.victim), views.get(suspect)
    return None, None, None


def _at_work(trial: Trial, victim: SliceView, suspect: SliceView) -> bool:
    return suspect.used >= trial.busy_share and victim.used > 0
