"""Findings as the state database keeps them, turned back into findings, without what is out of date or suppressed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from analyzer.findings import Effect, Finding, Role, SubjectRef, Verdict
from collector.window import Window, parse_instant
from tuner.state import State
from tuner.state.findings import StoredFinding, list_findings, list_suppressions

_VERDICTS = {Verdict.HOLDS: 0, Verdict.SUSPECTED: 1, Verdict.CANNOT_TELL: 2, Verdict.NO_EFFECT: 3}


@dataclass(frozen=True, slots=True)
class Claims:
    """What the analyses say.

    Attributes:
        findings: worst first.
        as_of: end of the newest analysed window; None: nothing was analysed.
        suppressed: how many are hidden because somebody said so.
    """

    findings: tuple[Finding, ...] = ()
    as_of: datetime | None = None
    suppressed: int = 0

    def of(self, *prefixes: str, verdict: Verdict | None = None) -> list[Finding]:
        """Return the findings whose code starts with one of the prefixes, with that verdict."""
        return [f for f in self.findings if f.code.startswith(prefixes) and verdict in (None, f.verdict)]


def stored_claims(state: State, since: datetime) -> Claims:
    """Return what was found at or after `since`: of each code the findings of its newest analysis.

    A claim that the newest analysis of its code did not repeat no longer holds.
    """
    stored = list_findings(state, since=since)
    newest: dict[str, datetime] = {}
    for item in stored:
        newest[item.code] = max(newest.get(item.code, item.last_seen), item.last_seen)
    current = [finding_of(item) for item in stored if item.last_seen == newest[item.code]]
    if not current:
        return Claims()
    as_of = max(f.window.end for f in current)
    hiding = list_suppressions(state, active_at=as_of)
    shown = [f for f in current if not any(s.covers(f, as_of) for s in hiding)]
    return Claims(worst_first(shown), as_of, len(current) - len(shown))


def worst_first(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return findings by verdict, then by the size of the effect."""
    return tuple(sorted(findings, key=lambda f: (_VERDICTS[f.verdict], -abs(effect_size(f)), f.code, f.id)))


def effect_size(finding: Finding) -> float:
    """Return the claimed effect; 0 where none is measured."""
    return 0.0 if finding.effect is None or math.isnan(finding.effect.value) else finding.effect.value


def finding_of(stored: StoredFinding) -> Finding:
    """Return the finding that a stored document tells of; numbers that are null are NaN."""
    document = stored.document
    effect = document["effect"]
    return Finding(
        id=stored.id,
        code=stored.code,
        verdict=Verdict(stored.verdict),
        subjects=tuple(SubjectRef(**{**s, "role": Role(s["role"])}) for s in document["subjects"]),
        window=Window(parse_instant(document["window"]["start"]), parse_instant(document["window"]["end"])),
        claim=document["claim"],
        risk=document["risk"],
        confidence=_number(document["confidence"]),
        coverage=_number(document["coverage"]),
        effect=None
        if effect is None
        else Effect(_number(effect["value"]), effect["unit"], _number(effect["lower"]), _number(effect["upper"])),
        lag_seconds=document["lag_seconds"],
        channel=document["channel"],
        p=document["p"],
        q=document["q"],
        evidence=document["evidence"],
        needs=tuple(document["needs"]),
        simulated=document["simulated"],
    )


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)
