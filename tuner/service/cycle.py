"""One tuner: a full cycle, the fast path between cycles, and the loop that runs both on a clock."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial

from analyzer.findings import Finding
from analyzer.protocols import Detector
from analyzer.settings import AnalyzeSettings
from collector.clock import Clock
from collector.declarations import WorkloadDeclaration
from collector.errors import UnreachableError
from collector.protocols import Store
from collector.window import Window, parse_duration
from tuner.consent import propose
from tuner.edge import read_backend
from tuner.execute import execute
from tuner.guards import TRIAL_GUARDS, World, domain_of, run_guards, still_allowed
from tuner.journal import LeaseLostError, StateMovedError, expire_waiting, prune_plans, record_plan
from tuner.lease import Lease
from tuner.model import Backend, BackendState, Group, KnobEffect, Plan
from tuner.outcome import list_outcomes, track_record
from tuner.place import undone_id
from tuner.planner import make_plan, plan_fast
from tuner.planner.probes import why_not
from tuner.planner.views import SHARE_KNOB, Candidate
from tuner.record import OPEN_STATES, ChangeState, Drop, GroupRecord
from tuner.service.analyse import find
from tuner.service.candidates import find_candidates, open_pairs, suspect_of
from tuner.service.evidence import EvidenceReader, WindowCache
from tuner.service.held import sharing_kinds
from tuner.service.readback import quota_rows
from tuner.service.spread import MapNodes
from tuner.service.surroundings import Surroundings
from tuner.service.trials import TrialParts, Trials
from tuner.service.undo import lacks_room, raised_since
from tuner.service.watch import Sight, Watch
from tuner.settings import CalendarSettings, StateSettings, TunerSettings
from tuner.settle import recover
from tuner.state import State
from tuner.state.findings import record_findings, unsuppressed
from tuner.state.plans import get_group, open_groups, plan_exists, waiting_groups
from tuner.verify import watch
from tuner.writer import PATIENCE_SECONDS, REVALIDATE_SECONDS, Step, Writer

_LOG = logging.getLogger(__name__)
_PRUNE_EVERY = timedelta(days=1)
_LEASE_CYCLES = 3.0  # a lease outlives so many cycles, so that a slow one is not taken for dead
_STANDS_BY = "another tuner holds the lease: this one stands by"


@dataclass(frozen=True, slots=True)
class CycleResult:
    """What one cycle did.

    Attributes:
        now: its instant.
        held: why nothing was planned at all; empty: a plan was made.
        plan_id: the plan that was written; empty: none.
        kept: groups that passed the guards.
        drops: what guards decided against.
        steps: what became of groups that were carried out or settled.
    """

    now: datetime
    held: str = ""
    plan_id: str = ""
    kept: tuple[GroupRecord, ...] = ()
    drops: tuple[Drop, ...] = ()
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class TunerParts:
    """What a tuner is made of."""

    store: Store
    backend: Backend
    state: State
    clock: Clock
    settings: TunerSettings
    state_settings: StateSettings
    interval_seconds: float
    analyze: AnalyzeSettings = field(default_factory=AnalyzeSettings)
    detectors: Mapping[str, Detector] = field(default_factory=dict)
    declarations: Sequence[WorkloadDeclaration] = ()
    calendars: Sequence[CalendarSettings] = ()
    holder: str = "tuner"
    map_nodes: MapNodes | None = None  # else as `[analyze] executor` says
    read_back: bool = True  # quotas that the backend tells become rows; not where it has them from the store itself


class Tuner:
    """Plans, guards, asks, applies and verifies; one of them acts at a time.

    Each call takes `now`, so that a day can be replayed in a second.
    """

    def __init__(self, parts: TunerParts) -> None:
        self._parts = parts
        harmless = parts.backend.simulated or parts.backend.changes_nothing
        self._surroundings = Surroundings(
            parts.state,
            parts.backend,
            parts.clock,
            parts.settings,
            parts.state_settings,
            calendars=parts.calendars,
            holder=parts.holder,
        )
        self._watch = Watch(
            parts.store,
            parts.backend,
            parts.settings,
            interval_seconds=parts.interval_seconds,
            declarations=parts.declarations,
        )
        self._lease = Lease(
            parts.state, parts.holder, parts.clock, seconds=_LEASE_CYCLES * parts.settings.cycle_seconds
        )
        self._writer = Writer(
            parts.state,
            parts.backend,
            parts.clock,
            self._lease,
            parts.state_settings.kill_switch,
            actor=parts.holder,
            revalidate_seconds=0.0 if harmless else REVALIDATE_SECONDS,
            patience_seconds=0.0 if harmless else PATIENCE_SECONDS,
            may_undo=self._may_undo,
        )
        self._windows = WindowCache(parts.store, parts.interval_seconds)
        self._findings: tuple[Finding, ...] = ()
        self._analysed_at: datetime | None = None
        self._pruned_at: datetime | None = None
        self._candidates: tuple[Candidate, ...] = ()
        self._trials = Trials(
            TrialParts(
                store=parts.store,
                writer=self._writer,
                analyze=parts.analyze,
                interval_seconds=parts.interval_seconds,
                max_age_seconds=parts.settings.max_age_seconds,
            )
        )
        self._sight: Sight | None = None

    @property
    def watch(self) -> Watch:
        """What the tuner remembers of the fleet."""
        return self._watch

    def close(self) -> None:
        """End the probes that run, and give the lease back, so that the next tuner need not wait for its end."""
        try:
            self._trials.stop("the tuner was stopped")
        except (LeaseLostError, UnreachableError) as error:
            _LOG.warning("tuner: a probe is left to the next one: %s", error)
        self._lease.release()

    def run_once(self, now: datetime) -> CycleResult:
        """Run one full cycle as of `now`.

        Raises:
            LeaseLostError: another tuner took over in the middle; nothing was written after that.
        """
        if not self._lease.acquire():
            return CycleResult(now, held=_STANDS_BY)
        steps = list(recover(self._writer))
        expire_waiting(self._parts.state, now=now, actor=self._parts.holder)
        self._prune(now)
        try:
            sight = self._look(now)
        except UnreachableError as error:
            return CycleResult(now, held=str(error), steps=tuple(steps))
        steps += self._step_trials(sight)
        planner = replace(
            sight.planner,
            confidence=track_record(list_outcomes(self._parts.state), now),
            candidates=self._untouched_candidates(),
            open_pairs=self._open_pairs(sight),
        )
        if self._parts.read_back and sight.newest is not None:
            # No later than what a collector wrote: else a slice that fell silent would look alive.
            self._parts.store.write(quota_rows(sight.state, sight.newest, self._parts.interval_seconds))
        judged = self._verify(sight)
        steps += judged
        if any(step.state is ChangeState.ROLLED_BACK for step in judged):
            return CycleResult(now, held="a change was rolled back: the next cycle plans anew", steps=tuple(steps))
        return self._carry_out(make_plan(planner, self._parts.settings), sight, steps)

    def fast_once(self, now: datetime) -> CycleResult:
        """Run the fast path as of `now`: only for objectives that are missed, only what they need.

        Raises:
            LeaseLostError: another tuner took over.
        """
        try:
            sight = self._see(now)  # findings are renewed by full cycles alone, under the lease
        except UnreachableError as error:
            return CycleResult(now, held=str(error))
        plan = plan_fast(sight.planner, self._parts.settings)
        if not plan.groups and not self._trials.running:
            return CycleResult(now)
        if not self._lease.acquire():
            return CycleResult(now, held=_STANDS_BY)
        steps = self._step_trials(sight)
        return self._carry_out(plan, sight, steps) if plan.groups else CycleResult(now, steps=tuple(steps))

    def run(self, stop: threading.Event) -> None:
        """Run cycles and the fast path on the clock until `stop` is set.

        A cycle that fails because somebody was faster, or something does not answer, is told and tried again.
        """
        settings, clock = self._parts.settings, self._parts.clock
        next_cycle = clock.now()
        while not stop.is_set():
            now = clock.now()
            try:
                if now >= next_cycle:
                    _tell("cycle", self.run_once(now))
                    next_cycle = now + timedelta(seconds=settings.cycle_seconds)
                else:
                    _tell("fast path", self.fast_once(now))
            except (LeaseLostError, StateMovedError, UnreachableError) as error:
                _LOG.warning("tuner at %s: %s", now.isoformat(), error)
            if clock.wait(settings.fast_seconds, stop):
                return

    def analyse(self, now: datetime) -> tuple[Finding, ...]:
        """Renew the findings over the configured window, as far as rows go back, and remember them."""
        parts = self._parts
        window = Window.last(now, parse_duration(parts.analyze.window))
        span = parts.store.span("slice")
        if span is not None and window.start < span.start < window.end:
            window = Window(span.start, window.end)
        findings = find(
            parts.store,
            window,
            interval_seconds=parts.interval_seconds,
            settings=parts.analyze,
            detectors=parts.detectors,
            declarations=parts.declarations,
            forecasts=self._watch.forecasts(),
            map_nodes=parts.map_nodes,
        )
        self.remember(findings, now)
        if parts.settings.probe_pairs:
            self._candidates = self._find_candidates(window)
        return findings

    def _find_candidates(self, window: Window) -> tuple[Candidate, ...]:
        parts = self._parts
        knobs = tuple(parts.backend.knobs())
        live = tuple(k for k in knobs if k.name == SHARE_KNOB and k.effect is KnobEffect.LIVE)
        if not live or not open_pairs(self._findings):
            return ()
        kinds = sharing_kinds(read_backend(parts.backend))
        return find_candidates(
            parts.store,
            self._findings,
            window,
            parts.interval_seconds,
            parts.analyze,
            can_hold=lambda target: target in kinds and not why_not(kinds[target], knobs),
        )

    def remember(self, findings: Sequence[Finding], now: datetime) -> None:
        """Write findings down and let the next plans rest on them."""
        record_findings(self._parts.state, findings, now)
        self._findings = tuple(unsuppressed(self._parts.state, findings, now))
        self._analysed_at = now

    def _prune(self, now: datetime) -> None:
        """Let old plans go that led to nothing, once a day."""
        if self._pruned_at is None or now - self._pruned_at >= _PRUNE_EVERY:
            kept = timedelta(days=self._parts.state_settings.plan_days)
            asked = timedelta(seconds=self._parts.settings.approval_seconds)  # what waits for an answer stays
            before = now - max(kept, asked)
            prune_plans(self._parts.state, before, at=now, actor=self._parts.holder)
            self._pruned_at = now

    def _look(self, now: datetime) -> Sight:
        every = timedelta(seconds=self._parts.settings.analyze_seconds)
        if self._parts.detectors and (self._analysed_at is None or now - self._analysed_at >= every):
            self.analyse(now)
        return self._see(now)

    def _see(self, now: datetime) -> Sight:
        sight = self._sight = self._watch.look(now, self._findings)
        self._surroundings.notice(sight, now)
        return sight

    def _verify(self, sight: Sight) -> list[Step]:
        """Judge what is being watched: keep it, roll it back, or go on watching."""
        under_way = open_groups(self._parts.state)
        watched = [r for r in under_way if r.state is ChangeState.VERIFYING and r.group.trial is None]
        if not watched:
            return []
        online = frozenset(s.target for card in sight.planner.cards for s in card.slices if s.online)
        reader = EvidenceReader(self._windows, online)
        return [
            watch(
                record,
                writer=self._writer,
                knobs=sight.planner.knobs,
                read_evidence=reader,
                settings=self._parts.settings,
                now=sight.planner.now,
            )
            for record in watched
        ]

    def _step_trials(self, sight: Sight) -> list[Step]:
        """Move running probes on; what one of them showed is for the next analysis, which comes at once."""
        steps = self._trials.step(sight, partial(self._may_throttle, sight))
        if steps:
            self._analysed_at, self._candidates = None, ()
        return steps

    def _may_throttle(self, sight: Sight, group: Group, fresh: BackendState) -> str | None:
        world = self._surroundings.world(self._parts.clock.now(), sight, [group])
        return still_allowed(
            group,
            world,
            fresh,
            self._parts.settings,
            simulated=sight.planner.simulated,
            guards=TRIAL_GUARDS,
        )

    def _open_pairs(self, sight: Sight) -> tuple[str, ...]:
        kinds = sharing_kinds(sight.state)
        return tuple(kinds[s] for f in open_pairs(self._findings) if (s := suspect_of(f)) in kinds)

    def _untouched_candidates(self) -> tuple[Candidate, ...]:
        taken = {domain_of(c.target) for r in self._trials.running for c in r.group.changes}
        return tuple(c for c in self._candidates if domain_of(c.suspect) not in taken)

    def _carry_out(self, plan: Plan, sight: Sight, steps: list[Step]) -> CycleResult:
        parts, now = self._parts, plan.made_at
        if plan_exists(parts.state, plan.id):
            return CycleResult(now, f"{plan.id} was made already: there is one plan an instant", steps=tuple(steps))
        approved = [r for r in waiting_groups(parts.state) if r.state is ChangeState.APPROVED]
        world = self._surroundings.world(now, sight, [*plan.groups, *(r.group for r in approved)])
        guarded = run_guards(plan, world, parts.settings)
        records = propose(guarded, world, parts.settings, now=now)
        written = record_plan(
            parts.state, plan, records, guarded.drops, actor=parts.holder, now=now, fence=self._lease.fence
        )
        for record in [*(r for r in written if r.decision == "go"), *approved]:
            still_ok = partial(self._still_allowed, world, record.simulated)
            steps.append(execute(self._writer, record.id, still_ok=still_ok))
            if record.group.trial is not None and steps[-1].state in OPEN_STATES:
                self._trials.begin(record.id)
        return CycleResult(now, "", plan.id, tuple(written), guarded.drops, tuple(steps))

    def _may_undo(self, undo: Group, fresh: BackendState) -> str | None:
        parts, now = self._parts, self._parts.clock.now()
        record = get_group(parts.state, undone_id(undo))
        domains = frozenset() if record is None else raised_since(record, self._surroundings.past(now))
        if not domains:
            return None
        sight = self._sight or self._look(now)
        return lacks_room(
            undo,
            BackendState(fresh.read_at, {**parts.backend.read().targets, **fresh.targets}),
            domains,
            knobs=sight.planner.knobs,
            capacity=sight.capacity,
            reserves=self._surroundings.reserves(sight),
            settings=parts.settings,
        )

    def _still_allowed(self, world: World, simulated: bool, group: Group, fresh: BackendState) -> str | None:
        return still_allowed(group, world, fresh, self._parts.settings, simulated=simulated)


def _tell(what: str, result: CycleResult) -> None:
    if result.held:
        _LOG.warning("%s at %s: held: %s", what, result.now.isoformat(), result.held)
    elif result.plan_id:
        kept, drops, steps = len(result.kept), len(result.drops), len(result.steps)
        _LOG.info(
            "%s at %s: %s, %d kept, %d drops, %d steps",
            what,
            result.now.isoformat(),
            result.plan_id,
            kept,
            drops,
            steps,
        )
