"""Guards on how often and how widely: in flight, cooldown, oscillation, blacklist, breaker, budgets, waves."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import TypeVar

from collector.words import plural
from tuner.guards.chain import Ruling
from tuner.guards.world import Facts, PastChange, domain_of
from tuner.model import Change, Group, Target
from tuner.record import FAILED_STATES, ChangeState, GroupRecord
from tuner.settings import TunerSettings

T = TypeVar("T")
BUDGET_WINDOW = timedelta(hours=1)  # by the wall clock: a faster cycle must not buy more changes
OSCILLATION_WINDOW = timedelta(hours=4)
MAX_SIGN_CHANGES = 3
RETURN_FACTOR = 2.0  # A -> B -> A within so many cooldowns is a swing, not a plan
FAILURE_RESET = timedelta(hours=3)
FAILURE_DOUBLINGS = 3
BLACKLIST_CAP = timedelta(hours=24)
BREAKER_FAILURES = 3
BREAKER_REST = timedelta(minutes=10)
FIRST_WAVE, NEXT_WAVE_SHARE, LAST_WAVE_SHARE = 1, 0.1, 0.5
PROVEN_FOR_LAST_WAVE = 5

_BACKEND_FAILURES = {ChangeState.NOT_APPLIED, ChangeState.REFUSED}


def in_flight(groups: Sequence[Group], facts: Facts, _settings: TunerSettings) -> Iterator[Ruling]:
    """One change under way on a card, pool or target; the first group of a plan wins.

    The fast path may follow a change of the same card that is only being watched: that one is then superseded.
    """
    taken: dict[Target, str] = {}
    for group in groups:
        domains = {domain_of(c.target) for c in group.changes}
        reason = None
        for domain in sorted(domains):
            record = facts.open_domains.get(domain)
            passing = group.fast and record is not None and record.state is ChangeState.VERIFYING
            # A probe is not overtaken: it must first set back what it holds.
            if record is not None and (not passing or record.group.trial is not None):
                reason = f"{record.id} is {record.state.value} on {domain}"
            elif domain in taken and group.trial is None:  # a probe is only asked for: it waits for its turn
                reason = f"{taken[domain]} of the same plan changes {domain} first"
        if reason is not None:
            yield Ruling(group.id, reason)
        elif group.trial is None:
            taken.update(dict.fromkeys(domains, group.id))


def cooldown(group: Group, facts: Facts, settings: TunerSettings) -> str | None:
    """A target rests after a change, longer after each failure; the fast path waits only after failures."""
    for change in group.changes:
        past = facts.history.get((change.target, change.knob))
        if not past:
            continue
        failures = _recent_failures(past, facts)
        rest = settings.cooldown_seconds * 2 ** min(failures, FAILURE_DOUBLINGS)
        if group.fast and not failures:
            continue
        last = past[-1].record.settled_at or past[-1].at
        left = rest - (facts.world.now - max(last, past[-1].at)).total_seconds()
        if left > 0:
            after = f" after {failures} failures" if failures else ""
            return f"{change.target} rests for {left / 60:.0f} more minutes{after}"
    return None


def _recent_failures(past: Sequence[PastChange], facts: Facts) -> int:
    """Count the failures in a row at the end, none older than the reset."""
    count = 0
    for item in reversed(past):
        if item.record.state not in FAILED_STATES or facts.world.now - item.at > FAILURE_RESET:
            break
        count += 1
    return count


def oscillation(group: Group, facts: Facts, settings: TunerSettings) -> str | None:
    """A target that swings is left alone until its swings are out of the window."""
    for change in group.changes:
        past = [
            p
            for p in facts.history.get((change.target, change.knob), ())
            if facts.world.now - p.at <= OSCILLATION_WINDOW and p.record.state not in FAILED_STATES
        ]
        if not past:
            continue
        signs = [p.direction for p in past] + [-1 if change.is_decrease else 1]
        turns = sum(a != b for a, b in pairwise(signs))
        if turns > MAX_SIGN_CHANGES:
            return f"{change.target} turned {turns} times in {OSCILLATION_WINDOW.seconds // 3600} h: quarantined"
        last = past[-1]
        knob = facts.knob(change)
        slack = 0.0 if knob is None else knob.quantum / 2
        swing = timedelta(seconds=RETURN_FACTOR * settings.cooldown_seconds)
        back = abs(change.after - last.change.before) <= slack
        if back and facts.world.now - last.at < swing and not group.fast:
            return f"{change.target} would go back to {change.after:g} within {swing.seconds // 60} min"
    return None


def blacklist(group: Group, facts: Facts, settings: TunerSettings) -> str | None:
    """What was rolled back is not tried again in the same direction, for a time that doubles with repeats."""
    for change in group.changes:
        direction = -1 if change.is_decrease else 1
        failed = [
            p
            for p in facts.history.get((change.target, change.knob), ())
            if p.direction == direction and p.record.state in {ChangeState.ROLLED_BACK, ChangeState.ROLLBACK_BLOCKED}
        ]
        if not failed:
            continue
        rest = timedelta(seconds=settings.blacklist_seconds * 2 ** (len(failed) - 1))
        rest = min(rest, max(BLACKLIST_CAP, timedelta(seconds=settings.blacklist_seconds)))
        ended = failed[-1].record.settled_at or failed[-1].at
        if facts.world.now - ended < rest:
            word = "lowering" if change.is_decrease else "raising"
            until = (ended + rest).isoformat(timespec="minutes")
            times = plural(len(failed), "time")
            return f"{word} {change.knob} of {change.target} was rolled back {times}: not before {until}"
    return None


def breaker(_group: Group, facts: Facts, _settings: TunerSettings) -> str | None:
    """After three failures of the backend in a row nothing is written for a while."""
    settled = [r for r in facts.records if r.settled_at is not None]
    settled.sort(key=lambda r: r.settled_at or r.made_at)
    last = settled[-BREAKER_FAILURES:]
    if len(last) < BREAKER_FAILURES or any(r.state not in _BACKEND_FAILURES for r in last):
        return None
    since = facts.world.now - (last[-1].settled_at or last[-1].updated_at)
    if since < BREAKER_REST:
        rest = _minutes(BREAKER_REST - since)
        return f"the backend failed {BREAKER_FAILURES} times in a row: nothing is written for {rest}"
    return None


def budgets(groups: Sequence[Group], facts: Facts, settings: TunerSettings) -> Iterator[Ruling]:
    """Changes in the last hour: of the fleet, a card, a tenant; restarts and evictions too."""
    window = [r for r in facts.records if _spends(r, facts)]
    fleet = sum(_writes(r.group) for r in window)
    cards: Counter[Target] = Counter()
    tenants: Counter[str] = Counter()
    for record in window:
        cards.update(_times(_cards(record.group.changes), record.group))
        tenants.update(_times(_tenants(record.group.changes, facts), record.group))
    restarts = sum(r.restarts for r in window)
    evictions = sum(r.evictions for r in window)
    for group in groups:
        new_cards = _times(_cards(group.changes), group)
        new_tenants = _times(_tenants(group.changes, facts), group)
        new_restarts, new_evictions = facts.restarts(group), predicted_evictions(group, facts)
        checks: list[tuple[str, int, int, int]] = [
            ("the fleet", fleet, _writes(group), settings.changes_per_hour),
            *((str(c), cards[c], n, settings.changes_per_gpu_hour) for c, n in new_cards.items()),
            *((f"tenant {t}", tenants[t], n, settings.changes_per_tenant_hour) for t, n in new_tenants.items()),
            ("restarts", restarts, new_restarts, settings.restarts_per_hour),
            ("evictions", evictions, new_evictions, settings.evictions_per_hour),
        ]
        over = next((c for c in checks if c[2] > 0 and c[1] + c[2] > c[3]), None)
        if over is not None:
            name, spent, wanted, budget = over
            yield Ruling(group.id, f"budget of {name}: {spent} of {budget} spent in the last hour, it needs {wanted}")
            continue
        fleet += _writes(group)
        cards.update(new_cards)
        tenants.update(new_tenants)
        restarts += new_restarts
        evictions += new_evictions


def _spends(record: GroupRecord, facts: Facts) -> bool:
    """Say whether a group wrote within the last hour: a probe writes as long as it runs."""
    lately = record.intent_at is not None and facts.world.now - record.intent_at < BUDGET_WINDOW
    return lately or (record.group.trial is not None and record.is_open)


def _writes(group: Group) -> int:
    """Return how many changes a group makes within an hour: a probe makes its change again for each pair of blocks."""
    if group.trial is None:
        return len(group.changes)
    return min(group.trial.pairs, math.ceil(BUDGET_WINDOW.total_seconds() / group.trial.every_seconds))


def _times(names: Iterable[T], group: Group) -> Counter[T]:
    """Count names, as often as the group writes."""
    times = 1 if group.trial is None else _writes(group)
    return Counter({name: count * times for name, count in Counter(names).items()})


def predicted_evictions(group: Group, facts: Facts) -> int:
    """Return how many evictions are predicted for a group."""
    return sum(e.count for e in facts.world.evictions.get(group.id, ()))


def waves(groups: Sequence[Group], facts: Facts, _settings: TunerSettings) -> Iterator[Ruling]:
    """A kind of change goes first to one place, then to a tenth of the cards, then to half at once.

    The next wave comes when changes of the kind were confirmed; a failure in the last hours sends it back one wave.
    """
    cards = max(facts.world.vitals.cards if facts.world.vitals is not None else 0, 1)
    flying = Counter(r.group.kind for r in facts.records if r.is_open)
    failed = {
        r.group.kind
        for r in facts.records
        if r.state in {ChangeState.ROLLED_BACK, ChangeState.ROLLBACK_BLOCKED}
        and facts.world.now - (r.settled_at or r.updated_at) < BUDGET_WINDOW
        and not r.is_over_trial
    }
    for group in groups:
        if group.fast:
            continue
        limit = wave_limit(facts.world.proven.get(group.kind, 0), cards, failed=group.kind in failed)
        if flying[group.kind] >= limit:
            yield Ruling(group.id, f"wave of {limit}: {flying[group.kind]} changes of kind {group.kind} are under way")
        else:
            flying[group.kind] += 1


def wave_limit(proven: int, cards: int, *, failed: bool) -> int:
    """Return how many groups of a kind may be under way: 1, then a tenth of the cards, then half of them."""
    wave = (0 if proven == 0 else 1 if proven < PROVEN_FOR_LAST_WAVE else 2) - int(failed)
    if wave <= 0:
        return FIRST_WAVE
    return max(math.ceil((NEXT_WAVE_SHARE if wave == 1 else LAST_WAVE_SHARE) * cards), FIRST_WAVE + wave)


def _cards(changes: Iterable[Change]) -> list[Target]:
    return [domain_of(c.target) for c in changes if c.target.kind != "queue"]


def _tenants(changes: Iterable[Change], facts: Facts) -> list[str]:
    return [tenant for c in changes if (tenant := facts.subject(c)[0])]


def _minutes(span: timedelta) -> str:
    return f"{max(span.total_seconds() / 60, 1):.0f} min"
