"""Consent: which mode holds for a change, and the yes or no of a person."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal

from sqlalchemy import insert

from collector.errors import RefusedError
from collector.words import plural
from tuner.guards.chain import GuardedPlan
from tuner.guards.mode import mode_of
from tuner.guards.pace import predicted_evictions
from tuner.guards.permission import unpredicted
from tuner.guards.world import FAILED_PAST, Facts, World, domain_of
from tuner.journal import StateMovedError, step_in
from tuner.model import Group, KnobEffect, Mode
from tuner.record import ChangeState, Decision, GroupRecord
from tuner.settings import TunerSettings
from tuner.state.database import State
from tuner.state.plans import get_group
from tuner.state.tables import ApprovalRow

Role = Literal["viewer", "operator", "admin"]
ACTING_ROLES: frozenset[str] = frozenset({"operator", "admin"})
REGRESSIONS_THAT_DISARM = 3


def decide(group: Group, facts: Facts, settings: TunerSettings) -> tuple[Decision, str]:
    """Say what happens to a group that the guards kept: written down, asked for, or done, and why.

    Also in mode auto a person is asked for what cannot be undone at will: drains, reboots, restarts of online work,
    restarts of offline work unless `auto_restart_offline`, evictions unless `auto_evict`, and for a kind of change
    that was rolled back three times on the same card within a day. For a probe a person is always asked.
    """
    mode = mode_of(group, facts, settings)
    if mode is Mode.RECOMMEND:
        return "write_down", "; ".join(filter(None, ("mode recommend", unpredicted(group, facts))))
    if group.trial is not None:
        return "ask", "it slows work on purpose, to learn: a person says yes first"
    if mode is Mode.APPROVE:
        return "ask", "mode approve"
    reason = _needs_a_person(group, facts, settings)
    return ("go", "mode auto") if reason is None else ("ask", reason)


def _needs_a_person(group: Group, facts: Facts, settings: TunerSettings) -> str | None:
    effects = facts.effects(group)
    for effect in (KnobEffect.NEEDS_DRAIN, KnobEffect.NEEDS_REBOOT):
        if effect in effects:
            return f"it {effect.value.replace('_', ' ')}"
    restarted = [c for c in group.changes if (k := facts.knob(c)) is not None and k.effect is KnobEffect.NEEDS_RESTART]
    for change in restarted:
        promise = facts.declaration(change)
        if promise is None or not promise.declared or promise.declaration.service_class == "online":
            return f"it restarts online work ({change.target})"
    if restarted and not settings.auto_restart_offline:
        return "it restarts offline work, and auto_restart_offline is off"
    evicted = predicted_evictions(group, facts)
    if evicted and not settings.auto_evict:
        names = ", ".join(sorted({e.workload for e in facts.world.evictions[group.id]}))
        return f"it lets the scheduler evict {evicted} of {names}, and auto_evict is off"
    return _disarmed(group, facts)


def _disarmed(group: Group, facts: Facts) -> str | None:
    for domain in sorted({domain_of(c.target) for c in group.changes}):
        failures = [
            r
            for r in facts.domain_failures.get(domain, ())
            if r.group.kind == group.kind and facts.world.now - (r.settled_at or r.updated_at) < FAILED_PAST
        ]
        if len(failures) >= REGRESSIONS_THAT_DISARM:
            return f"{group.kind} was rolled back {plural(len(failures), 'time')} on {domain} within a day"
    return None


def propose(guarded: GuardedPlan, world: World, settings: TunerSettings, *, now: datetime) -> list[GroupRecord]:
    """Turn the kept groups into records with their consent, ready for `record_plan`."""
    facts = Facts(world, guarded.plan)
    records = []
    for group in guarded.groups:
        decision, reason = decide(group, facts, settings)
        records.append(
            GroupRecord(
                group=group,
                plan_id=guarded.plan.id,
                state=ChangeState.PLANNED,
                decision=decision,
                reason=reason,
                made_at=now,
                updated_at=now,
                simulated=guarded.plan.simulated,
                until=now + timedelta(seconds=settings.approval_seconds) if decision == "ask" else None,
                restarts=facts.restarts(group),
                evictions=predicted_evictions(group, facts),
            )
        )
    return records


def approve(
    state: State, group_id: str, *, who: str, why: str, role: str, now: datetime, until: datetime | None = None
) -> GroupRecord:
    """Say yes to a group that waits; the tuner carries it out in its next cycle, after looking again.

    Args:
        state: the state database.
        group_id: what is approved.
        who: the person.
        why: the reason, for the journal.
        role: `operator` or `admin`.
        now: time of the answer.
        until: when the approval ends; None: when the ask would have ended.

    Raises:
        RefusedError: the role may not, who or why is missing, the time is over, or the group does not wait for an
            answer.
    """
    record = _asked(state, group_id, who=who, why=why, role=role, now=now)
    end = until or record.until
    if end is not None and end <= now:
        raise RefusedError(f"expected an approval that ends after {now.isoformat()}, got {end.isoformat()}")
    _answer(state, record, ChangeState.APPROVED, who=who, why=why, now=now, until=end)
    return _known(state, group_id)


def reject(state: State, group_id: str, *, who: str, why: str, role: str, now: datetime) -> GroupRecord:
    """Say no to a group that waits, or take an approval back before it is carried out.

    Raises:
        RefusedError: as `approve`.
    """
    record = _asked(state, group_id, who=who, why=why, role=role, now=now)
    _answer(state, record, ChangeState.REFUSED, who=who, why=why, now=now, until=None)
    return _known(state, group_id)


def request_roll_back(state: State, group_id: str, *, who: str, why: str, role: str, now: datetime) -> GroupRecord:
    """Ask for a change to be undone; the tuner does it when it next settles what is open.

    Raises:
        RefusedError: the role may not, who or why is missing, or the change is not in force.
    """
    _may(role, who, why)
    record = _known(state, group_id)
    if record.state not in {ChangeState.VERIFYING, ChangeState.CONFIRMED}:
        raise RefusedError(
            f"change {group_id} is {record.state.value}: only one that is in force (verifying, confirmed) can be "
            "rolled back"
        )
    _answer(state, record, ChangeState.ROLLING_BACK, who=who, why=why, now=now, until=None)
    return _known(state, group_id)


def _may(role: str, who: str, why: str) -> None:
    if role not in ACTING_ROLES:
        raise RefusedError(f"expected the role operator or admin, got {role!r}; ask somebody who may")
    if not who.strip() or not why.strip():
        raise RefusedError("an answer needs who and why: expected both, got an empty text; say why")


def _asked(state: State, group_id: str, *, who: str, why: str, role: str, now: datetime) -> GroupRecord:
    _may(role, who, why)
    record = _known(state, group_id)
    waits = record.state in {ChangeState.PLANNED, ChangeState.APPROVED} and record.decision == "ask"
    if not waits:
        how = record.state.value if record.decision == "ask" else f"{record.state.value}, to {record.decision}"
        raise RefusedError(f"change {group_id} is {how}: it does not wait for an answer")
    if record.until is not None and record.until <= now:
        raise RefusedError(f"change {group_id} waited until {record.until.isoformat()}: its time is over; plan again")
    return record


def _answer(
    state: State, record: GroupRecord, to: ChangeState, *, who: str, why: str, now: datetime, until: datetime | None
) -> None:
    body = {"who": who, "why": why, "until": None if until is None else until.isoformat()}
    try:
        with state.writing() as connection:
            step_in(connection, record.id, to, at=now, actor=who, reason=why, body=body, until=until)
            connection.execute(
                insert(ApprovalRow).values(group_id=record.id, decision=to.value, who=who, why=why, at=now, until=until)
            )
    except StateMovedError as error:
        raise RefusedError(str(error)) from error


def _known(state: State, group_id: str) -> GroupRecord:
    record = get_group(state, group_id)
    if record is None:
        raise RefusedError(f"expected a change {group_id!r}, found none; `trimtab changes` lists them")
    return record
