"""Findings by their stable id, and suppressions."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import RowMapping, delete, insert, or_, select, update

from analyzer.findings import Finding
from collector.errors import RefusedError
from tuner.state.codec import JsonObject, canonical, parse
from tuner.state.database import State
from tuner.state.tables import FindingRow, SuppressionRow


@dataclass(frozen=True, slots=True)
class StoredFinding:
    """A finding's document, when it was first and last seen."""

    id: str
    code: str
    verdict: str
    first_seen: datetime
    last_seen: datetime
    document: JsonObject


@dataclass(frozen=True, slots=True)
class Suppression:
    """A code (or prefix) and a subject glob that somebody does not want to see."""

    id: int
    code: str
    subject: str
    who: str
    why: str
    at: datetime
    until: datetime | None
    last_used: datetime | None

    def covers(self, finding: Finding, now: datetime) -> bool:
        """Say whether it hides `finding` at `now`: code by prefix, subject by glob on its id or what it speaks of.

        That is, of any subject: tenant/workload, cluster/node/gpu/slice, or its node, card or tenant alone.
        """
        if (self.until is not None and now >= self.until) or not finding.code.startswith(self.code):
            return False
        paths = [finding.id]
        for s in finding.subjects:
            paths += [f"{s.tenant}/{s.workload}", "/".join(p for p in (s.cluster, s.node, s.gpu, s.slice) if p)]
            paths += [name for name in (s.node, s.gpu, s.tenant) if name]
        return any(fnmatch.fnmatchcase(path, self.subject) for path in paths)


def record_findings(state: State, findings: Sequence[Finding], now: datetime) -> None:
    """Keep findings: a known id gets the new document and `last_seen`, in one transaction."""
    if not findings:
        return
    latest = {f.id: f for f in findings}
    values = {
        f.id: {
            "code": f.code,
            "verdict": f.verdict.value,
            "last_seen": now,
            "confidence": f.confidence,
            "simulated": f.simulated,
            "document": canonical(f.to_json()),
        }
        for f in latest.values()
    }
    with state.writing() as connection:
        known = set(connection.scalars(select(FindingRow.id).where(FindingRow.id.in_(latest))))
        for finding_id in sorted(known):
            connection.execute(update(FindingRow).where(FindingRow.id == finding_id).values(values[finding_id]))
        new = [{"id": i, "first_seen": now, **v} for i, v in values.items() if i not in known]
        if new:
            connection.execute(insert(FindingRow), new)


def list_findings(state: State, *, since: datetime | None = None, code: str = "") -> list[StoredFinding]:
    """Return findings last seen at or after `since`, whose code starts with `code`, newest first."""
    query = select(FindingRow.__table__).where(FindingRow.code.startswith(code, autoescape=True))
    if since is not None:
        query = query.where(FindingRow.last_seen >= since)
    with state.reading() as connection:
        rows = connection.execute(query.order_by(FindingRow.last_seen.desc(), FindingRow.id)).mappings().all()
    return [
        StoredFinding(r["id"], r["code"], r["verdict"], r["first_seen"], r["last_seen"], parse(r["document"]))
        for r in rows
    ]


def add_suppression(
    state: State, *, code: str, subject: str, who: str, why: str, now: datetime, until: datetime | None
) -> Suppression:
    """Hide findings of `code` on subjects that match the glob `subject`, until `until` (None: for ever).

    Raises:
        RefusedError: no reason or no name is given, or it has already expired.
    """
    if not who.strip() or not why.strip():
        raise RefusedError("a suppression needs who and why: expected both, got an empty text; say why")
    if until is not None and until <= now:
        raise RefusedError(f"expected an expiry after {now.isoformat()}, got {until.isoformat()}; give a later one")
    values = {"code": code, "subject": subject, "who": who, "why": why, "at": now, "until": until, "last_used": None}
    with state.writing() as connection:
        row = connection.execute(insert(SuppressionRow).values(values).returning(SuppressionRow.id)).scalar_one()
    return Suppression(row, code, subject, who, why, now, until, None)


def list_suppressions(state: State, *, active_at: datetime | None = None) -> list[Suppression]:
    """Return suppressions, oldest first; with `active_at`, only those that hold then."""
    query = select(SuppressionRow.__table__).order_by(SuppressionRow.id)
    if active_at is not None:
        query = query.where(or_(SuppressionRow.until.is_(None), SuppressionRow.until > active_at))
    with state.reading() as connection:
        return [_suppression(row) for row in connection.execute(query).mappings()]


def remove_suppression(state: State, suppression_id: int) -> bool:
    """Forget a suppression; return whether there was one."""
    with state.writing() as connection:
        return connection.execute(delete(SuppressionRow).where(SuppressionRow.id == suppression_id)).rowcount == 1


def suppressed(state: State, findings: Sequence[Finding], now: datetime) -> dict[str, int]:
    """Return id of a finding -> number of the suppression that hides it at `now`; note which were of use."""
    active = list_suppressions(state, active_at=now)
    covering = {f.id: [s.id for s in active if s.covers(f, now)] for f in findings}
    used = {number for numbers in covering.values() for number in numbers}
    if used:
        with state.writing() as connection:
            connection.execute(update(SuppressionRow).where(SuppressionRow.id.in_(used)).values(last_used=now))
    return {finding: numbers[0] for finding, numbers in covering.items() if numbers}


def unsuppressed(state: State, findings: Sequence[Finding], now: datetime) -> list[Finding]:
    """Return the findings that nothing hides at `now`; note which suppressions were of use."""
    hidden = suppressed(state, findings, now)
    return [f for f in findings if f.id not in hidden]


def _suppression(row: RowMapping) -> Suppression:
    return Suppression(**row)
