"""Guards on what may be touched at all: kill switch, scope, protection, calendars, evictions."""

from __future__ import annotations

import fnmatch
import math
from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from collector.errors import ConfigurationError
from tuner.guards.mode import mode_of
from tuner.guards.world import Facts
from tuner.model import Change, Group, Mode
from tuner.settings import CalendarSettings, TunerSettings


def kill_switch(_group: Group, facts: Facts, _settings: TunerSettings) -> str | None:
    """Nothing new while the kill switch is on."""
    pause = facts.world.pause
    return None if pause.allows_new else str(pause)


def scope(group: Group, facts: Facts, _settings: TunerSettings) -> str | None:
    """Only knobs that exist, on targets that can be read back and hold what the plan thinks they hold."""
    if not group.changes:
        return "it changes nothing"
    seen = set()
    for change in group.changes:
        if (change.target, change.knob) in seen:
            return f"it changes {change.knob} of {change.target} twice"
        seen.add((change.target, change.knob))
        reason = _scope_of(change, facts)
        if reason is not None:
            return reason
    return None


def _scope_of(change: Change, facts: Facts) -> str | None:
    name = f"{change.knob} of {change.target}"
    knob, present = facts.knob(change), facts.present(change)
    if change.target not in facts.world.state.targets:
        return f"{change.target} cannot be read back"
    if knob is None:
        return f"the backend cannot set {name}"
    if math.isnan(present) or not math.isfinite(change.after):
        return f"{name} is {present:g} now and would become {change.after:g}: both must be numbers"
    if abs(present - change.before) > knob.quantum / 2:
        return f"{name} was planned from {change.before:g}, it is {present:g} now"
    if (present in knob.special) != (change.after in knob.special):  # all special: the knob is a list of choices
        special = present if present in knob.special else change.after
        return f"{name}: {special:g} means {knob.special[special]!r}, left to a person"
    return None


def simulation(_group: Group, facts: Facts, _settings: TunerSettings) -> str | None:
    """A simulated plan never reaches a real backend."""
    if facts.plan.simulated and not facts.world.harmless_backend:
        return "a simulated plan only goes to the simulator or a dry run"
    return None


def protection(group: Group, facts: Facts, settings: TunerSettings) -> str | None:
    """Protected workloads are never changed, undeclared ones never lowered."""
    for change in group.changes:
        tenant, workload = facts.subject(change)
        name = f"{tenant}/{workload}" if workload else tenant
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in settings.protected):
            return f"{name} is protected by configuration"
        if change.target.kind == "queue" and not workload:
            continue  # a queue holds many workloads; its floor is its own
        promise = facts.declaration(change)
        if promise is not None and promise.declared and promise.declaration.protected:
            return f"{name} is declared protected"
        if change.is_decrease and (promise is None or not promise.declared):
            return f"nobody declared {name or change.target}: it counts as online and is never lowered"
    return None


def frozen_target(group: Group, facts: Facts, _settings: TunerSettings) -> str | None:
    """A target rests after a foreign change or a lost answer."""
    for change in group.changes:
        said = facts.world.frozen.get(change.target)
        if said is not None:
            return f"{change.target} rests: {said}"
    return None


def calendar(_group: Group, facts: Facts, _settings: TunerSettings) -> str | None:
    """No change within a span that a calendar freezes."""
    for entry in facts.world.calendars:
        if entry.freeze and in_span(entry, facts.world.now):
            return f"calendar {entry.name!r} freezes {entry.start}-{entry.end} {entry.timezone}"
    return None


def prediction(group: Group, facts: Facts, settings: TunerSettings) -> str | None:
    """A change that can evict must say by name whom, before it is asked for or done; advice says that nobody knows."""
    return None if mode_of(group, facts, settings) is Mode.RECOMMEND else unpredicted(group, facts)


def unpredicted(group: Group, facts: Facts) -> str | None:
    """Return the words for a group that can evict, where nobody says whom."""
    evicting = any((knob := facts.knob(c)) is not None and knob.can_evict for c in group.changes)
    return "it can evict, and nobody has predicted whom" if evicting and group.id not in facts.world.evictions else None


def in_span(entry: CalendarSettings, now: datetime) -> bool:
    """Say whether `now` lies in a calendar's span, by the wall clock of its zone.

    A span that passes midnight belongs to the day on which it starts. When clocks go back the repeated hour counts
    both times; an hour that is skipped is never inside.

    Raises:
        ConfigurationError: the zone or a time of day is not understood.
    """
    try:
        local = now.astimezone(ZoneInfo(entry.timezone))
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise ConfigurationError(
            f"[[calendar]] {entry.name!r}: expected an IANA zone such as Europe/Berlin, got {entry.timezone!r}"
        ) from error
    start, end = _time_of_day(entry, entry.start), _time_of_day(entry, entry.end)
    today, yesterday = local.weekday() in entry.days, (local - timedelta(days=1)).weekday() in entry.days
    clock = local.time()
    if start == end:
        return today
    if start < end:
        return today and start <= clock < end
    return (today and clock >= start) or (yesterday and clock < end)


def _time_of_day(entry: CalendarSettings, text: str) -> time:
    try:
        return time.fromisoformat(text)
    except ValueError as error:
        raise ConfigurationError(f"[[calendar]] {entry.name!r}: expected HH:MM, got {text!r}") from error
