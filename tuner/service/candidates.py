"""Open pairs that a probe may decide, with what the past says of its chances."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from analyzer.contention.experiment import VALID_FOR, experiments, holder_name
from analyzer.contention.probe import Ground, Prospect
from analyzer.findings import Finding, Role, SubjectRef, Verdict
from analyzer.settings import AnalyzeSettings
from collector.protocols import StoreReader
from collector.window import Window
from tuner.model import Target
from tuner.planner.probes import block_seconds
from tuner.planner.views import Candidate
from tuner.service.analyse import partition_of

_CODE = "TT101"
_OPEN = (Verdict.SUSPECTED, Verdict.CANNOT_TELL)
_MOST = 12  # looked at in one analysis; one card takes one probe at a time, and hours for it
_MOST_A_CARD = 3
_AGAIN = timedelta(days=1)  # after a probe that ended early


def find_candidates(
    store: StoreReader,
    findings: Sequence[Finding],
    window: Window,
    interval_seconds: float,
    settings: AnalyzeSettings,
    *,
    can_hold: Callable[[Target], bool],
) -> tuple[Candidate, ...]:
    """Return the open pairs on which a probe is worth a thought, suspected ones first, a few a card.

    Args:
        store: rows and facts.
        findings: of the last analysis.
        window: what was analysed.
        interval_seconds: grid of the rows.
        settings: of the analysis.
        can_hold: whether a slice can be held back and let go by the minute.
    """
    wanted = [f for f in open_pairs(findings) if can_hold(suspect_of(f))]
    if not wanted:
        return ()
    tried = experiments(store.facts(Window(window.end - VALID_FOR, window.end)), window.end)
    samples = round(block_seconds(interval_seconds) / interval_seconds)
    found: list[Candidate] = []
    looked: Counter[Target] = Counter()
    for finding in sorted(wanted, key=_most_likely):
        victim, suspect = finding.subject(Role.VICTIM), finding.subject(Role.SUSPECT)
        card = Target("card", victim.cluster, victim.node, victim.gpu)
        last = tried.get((victim.cluster, victim.node, victim.gpu, _name(victim), _name(suspect)))
        if looked[card] == _MOST_A_CARD or (
            last is not None and not _may_again(last.result.problem, last.at, window.end)
        ):
            continue
        if looked.total() == _MOST:
            break
        looked[card] += 1
        part = partition_of(store, (victim.cluster, victim.node), window, interval_seconds, settings)
        ground = Ground.of(part, victim.gpu, victim.slice, suspect.slice)
        if not isinstance(ground, str):
            found.append(
                Candidate(
                    finding=finding.id,
                    victim=_target(victim),
                    suspect=_target(suspect),
                    effect=math.nan if finding.effect is None else finding.effect.value,
                    suspected=finding.verdict is Verdict.SUSPECTED,
                    prospect=Prospect.of(ground, samples),
                )
            )
    return tuple(found)


def open_pairs(findings: Sequence[Finding]) -> list[Finding]:
    """Return the pairs of a card whose verdict is open."""
    return [f for f in findings if f.code == _CODE and f.verdict in _OPEN]


def suspect_of(finding: Finding) -> Target:
    """Return the slice that would be held back."""
    return _target(finding.subject(Role.SUSPECT))


def _most_likely(finding: Finding) -> tuple[bool, float, str]:
    effect = 0.0 if finding.effect is None or math.isnan(finding.effect.value) else finding.effect.value
    return finding.verdict is not Verdict.SUSPECTED, -effect, finding.id


def _may_again(problem: str, at: datetime, now: datetime) -> bool:
    return bool(problem) and now - at >= _AGAIN


def _name(subject: SubjectRef) -> str:
    return holder_name(subject.tenant, subject.workload, subject.slice)


def _target(subject: SubjectRef) -> Target:
    return Target("slice", subject.cluster, subject.node, subject.gpu, subject.slice)
