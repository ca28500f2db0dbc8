"""The world that the guards judge by: what is held, seen, promised and remembered around a plan."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from collector.clock import Clock
from tuner import killswitch
from tuner.drift import frozen_targets, notice_drift
from tuner.guards import FAILED_PAST, PAST, Vitals, World
from tuner.model import Backend, Group, Target
from tuner.outcome import proven_kinds
from tuner.planner.probes import unrest
from tuner.planner.reserve import reserve_share
from tuner.record import GroupRecord
from tuner.service.watch import Sight
from tuner.settings import CalendarSettings, StateSettings, TunerSettings
from tuner.state import State
from tuner.state.plans import past_groups

_PROVEN_WINDOW = timedelta(days=7)  # a quiet night must not send the waves back to one


class Surroundings:
    """Puts the guards' world together, and remembers what it takes from one look to the next.

    Args:
        state: the state database.
        backend: what is steered.
        clock: time.
        settings: margins of the reserve.
        state_settings: where the kill switch is.
        calendars: spans in which nothing is changed.
        holder: name in the journal.
    """

    def __init__(
        self,
        state: State,
        backend: Backend,
        clock: Clock,
        settings: TunerSettings,
        state_settings: StateSettings,
        *,
        calendars: Sequence[CalendarSettings],
        holder: str,
    ) -> None:
        self._state = state
        self._backend = backend
        self._clock = clock
        self._settings = settings
        self._kill_switch = state_settings.kill_switch
        self._calendars = calendars
        self._holder = holder
        self._watching_since: datetime | None = None
        self._vitals: Vitals | None = None
        self._judged: Sight | None = None  # the sight that the vital signs are of
        self._ticks = (clock.now(), clock.monotonic())

    def notice(self, sight: Sight, now: datetime) -> None:
        """Remember since when rows are seen."""
        if self._watching_since is None and any(share > 0 for share in sight.coverage.values()):
            self._watching_since = now

    def past(self, now: datetime) -> list[GroupRecord]:
        """Return the groups that guards must remember."""
        return past_groups(self._state, since=now - PAST, failed_since=now - FAILED_PAST)

    def reserves(self, sight: Sight) -> dict[Target, float]:
        """Return the share that each online slice must keep."""
        online = [s for card in sight.planner.cards for s in card.slices if s.online]
        return {s.target: reserve_share(s, self._settings, hold=False) for s in online}

    def world(self, now: datetime, sight: Sight, groups: Sequence[Group]) -> World:
        """Return the world around groups, as of now."""
        past = self.past(now)
        drifted = self._drifted(past, sight, now)
        evicting = {k.name for k in sight.planner.knobs if k.can_evict}
        predicted = [(g, self._backend.predict(g)) for g in groups if any(c.knob in evicting for c in g.changes)]
        return World(
            now=now,
            state=sight.state,
            knobs=sight.planner.knobs,
            harmless_backend=self._backend.simulated or self._backend.changes_nothing,
            capacity=sight.capacity,
            health=sight.health,
            vitals=self._see_vitals(sight),
            past=past,
            proven=proven_kinds(self._state, since=now - _PROVEN_WINDOW),
            pause=killswitch.read(self._kill_switch),
            watching_since=self._watching_since,
            declarations=sight.declarations,
            calendars=self._calendars,
            peak_memory_bytes=sight.peak_memory_bytes,
            reserves=self.reserves(sight),
            coverage=sight.coverage,
            unrest={Target("card", c.cluster, c.node, c.gpu): unrest(c) for c in sight.planner.cards},
            frozen={**frozen_targets(past, now), **drifted},
            evictions={g.id: who for g, who in predicted if who is not None},
        )

    def _drifted(self, past: Sequence[GroupRecord], sight: Sight, now: datetime) -> dict[Target, str]:
        """Notice foreign values, except through a backend that pretends: what differs there may be its own pretence."""
        if self._backend.changes_nothing:
            return {}
        return notice_drift(self._state, past, sight.state, sight.planner.knobs, now=now, actor=self._holder)

    def _see_vitals(self, sight: Sight) -> Vitals:
        """Return the vital signs of a sight beside those of the one before it."""
        if self._judged is sight and self._vitals is not None:
            return self._vitals
        before, cards = self._vitals, len(sight.health)
        self._judged = sight
        self._vitals = Vitals(
            cards=cards,
            cards_before=cards if before is None else before.cards,
            cards_unhealthy=sum(bool(evidence) for evidence in sight.health.values()),
            activity=sight.activity,
            activity_before=sight.activity if before is None else before.activity,
            clock_jump_seconds=self._clock_jump(),
        )
        return self._vitals

    def _clock_jump(self) -> float:
        """Return by how many seconds the wall clock moved against the monotonic one since it was last asked."""
        clock, (wall, ticks) = self._clock, self._ticks
        self._ticks = (clock.now(), clock.monotonic())
        return (self._ticks[0] - wall).total_seconds() - (self._ticks[1] - ticks)
