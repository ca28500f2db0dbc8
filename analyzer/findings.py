"""Findings: one claim each, with its evidence and how it could be wrong. The JSON names are a contract."""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from collector.window import Window

SCHEMA_VERSION = 1


class Verdict(StrEnum):
    """What the evidence allows to say."""

    HOLDS = "holds"
    SUSPECTED = "suspected"
    NO_EFFECT = "no effect found"
    CANNOT_TELL = "cannot tell"


CLAIMS = (Verdict.HOLDS, Verdict.SUSPECTED)  # what somebody may act on


class Role(StrEnum):
    """Which part a subject plays in a finding."""

    VICTIM = "victim"
    SUSPECT = "suspect"
    SUBJECT = "subject"


@dataclass(frozen=True, slots=True)
class SubjectRef:
    """A subject of a finding; parts that do not apply are empty strings."""

    role: Role
    cluster: str
    node: str = ""
    gpu: str = ""
    slice: str = ""
    workload: str = ""
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Effect:
    """Size of what is claimed, with its interval, in `unit` (a ratio of 0.2 is 20 %)."""

    value: float
    unit: str
    lower: float
    upper: float


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing an analyzer claims. Build it with `make_finding`, which derives the stable id."""

    id: str
    code: str
    verdict: Verdict
    subjects: tuple[SubjectRef, ...]
    window: Window
    claim: str  # the plain sentence an operator reads
    risk: str  # how it could be wrong
    confidence: float  # 0..1
    coverage: float  # share of the expected samples that were present, 0..1
    effect: Effect | None = None
    lag_seconds: float | None = None
    channel: str | None = None
    p: float | None = None
    q: float | None = None
    evidence: dict[str, Any] = field(default_factory=dict)  # JSON values only
    needs: tuple[str, ...] = ()  # for `cannot tell`: what would decide it
    simulated: bool = False

    def subject(self, role: Role) -> SubjectRef:
        """Return the first subject in `role`.

        Raises:
            LookupError: no subject plays that role.
        """
        for subject in self.subjects:
            if subject.role is role:
                return subject
        raise LookupError(f"{self.code} {self.id} has no {role.value}")

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, NaN as null."""
        return {
            "id": self.id,
            "code": self.code,
            "verdict": self.verdict.value,
            "subjects": [{**asdict(s), "role": s.role.value} for s in self.subjects],
            "window": {"start": _iso(self.window.start), "end": _iso(self.window.end)},
            "effect": None if self.effect is None else {k: plain(v) for k, v in asdict(self.effect).items()},
            "lag_seconds": plain(self.lag_seconds),
            "channel": self.channel,
            "p": plain(self.p),
            "q": plain(self.q),
            "confidence": plain(self.confidence),
            "coverage": plain(self.coverage),
            "claim": self.claim,
            "risk": self.risk,
            "evidence": plain(self.evidence),
            "needs": list(self.needs),
            "simulated": self.simulated,
        }


def finding_id(code: str, subjects: tuple[SubjectRef, ...], channel: str | None = None) -> str:
    """Return the id that the same claim on the same subjects keeps from day to day."""
    parts = [code, channel or ""]
    for s in sorted(subjects, key=lambda s: (s.role, s.cluster, s.node, s.gpu, s.slice, s.workload, s.tenant)):
        parts += [s.role.value, s.cluster, s.node, s.gpu, s.slice, s.workload, s.tenant]
    return f"{code.lower()}-{hashlib.sha256(chr(31).join(parts).encode()).hexdigest()[:12]}"


def make_finding(code: str, verdict: Verdict, subjects: tuple[SubjectRef, ...], window: Window, **rest: Any) -> Finding:
    """Build a finding with its stable id (the channel is evidence, not identity)."""
    return Finding(id=finding_id(code, subjects), code=code, verdict=verdict, subjects=subjects, window=window, **rest)


def plain(value: Any) -> Any:
    """Turn numpy scalars, NaN, infinities, datetimes and nested containers into JSON values."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, datetime):
        return _iso(value)
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _iso(instant: datetime) -> str:
    return instant.isoformat().replace("+00:00", "Z")
