"""What findings claim of single slices, as the planner asks: who hurts whom, and whose memory grows."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analyzer.findings import Finding, Role, SubjectRef, Verdict
from tuner.model import Target


@dataclass(frozen=True, slots=True)
class Claims:
    """Claims that hold, by slice: ids of the pairs (TT101) it is part of, and bytes it is forecast to use (TT502)."""

    suspect_in: Mapping[Target, Sequence[str]]
    victim_in: Mapping[Target, Sequence[str]]
    memory_bytes: Mapping[Target, float]


def claims_of(findings: Sequence[Finding], quantile: float) -> Claims:
    """Sort findings by slice.

    Args:
        findings: the latest of all kinds.
        quantile: of the memory forecast; the next one told from there upwards is taken.
    """
    suspects: dict[Target, list[str]] = defaultdict(list)
    victims: dict[Target, list[str]] = defaultdict(list)
    growing: dict[Target, float] = {}
    for finding in findings:
        if finding.verdict is not Verdict.HOLDS:
            continue
        for subject in finding.subjects:
            target = _slice_of(subject)
            if finding.code == "TT101":
                (suspects if subject.role is Role.SUSPECT else victims)[target].append(finding.id)
            elif finding.code == "TT502":
                growing[target] = max(growing.get(target, -math.inf), _forecast_bytes(finding, quantile))
    return Claims(suspects, victims, growing)


def _forecast_bytes(finding: Finding, quantile: float) -> float:
    told = sorted((float(level), float(size)) for level, size in finding.evidence["forecast_bytes"].items())
    return next((size for level, size in told if level >= quantile), told[-1][1])


def _slice_of(subject: SubjectRef) -> Target:
    return Target("slice", subject.cluster, subject.node, subject.gpu, subject.slice)
