"""Did a change hurt? Before against after, for everybody it may have touched, against peers that nothing touched.

Not known never passes: a slice without numbers makes the verdict inconclusive, and inconclusive at the deadline is
rolled back where that is possible. A fall that the unchanged peers share is the day's, not ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from statistics import median
from typing import Any

from analyzer.findings import plain
from collector.window import Window
from tuner.model import Group, Knob, KnobEffect, Target
from tuner.outcome import record_outcome
from tuner.planner.views import SHARE_KNOB
from tuner.record import ChangeState, GroupRecord
from tuner.settings import TunerSettings
from tuner.undo import roll_back
from tuner.writer import Step, Writer

MIN_REQUESTS = 200.0  # below, a share of 99.9 % says nothing
LATENCY_LIMIT = 0.25  # without a known objective: the tail may grow by so much against the peers
THROUGHPUT_LIMIT = 0.25  # of offline work, beyond what its own cut of the quota explains
MIN_WATCH_SHARE = 0.3  # of the watch must have passed before a fail is believed
EXTENSIONS = 3  # an inconclusive watch goes on for so many times its length before it is rolled back
_Z = 1.96  # two-sided 95 %


class Verdict(StrEnum):
    """What the numbers say of a change."""

    PASS = "pass"  # noqa: S105 - a verdict
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class Measured:
    """One slice over one window; NaN is not known.

    Attributes:
        requests: number of requests in the window (failed ones included); 0 is a measured nothing.
        kept: share of them within the objective.
        latency_seconds: the tail that is promised, or p99.
        throughput: units of work a second (steps, tokens), for offline work.
    """

    requests: float = math.nan
    kept: float = math.nan
    latency_seconds: float = math.nan
    throughput: float = math.nan


@dataclass(frozen=True, slots=True)
class Evidence:
    """One slice before and after.

    Attributes:
        target: the slice.
        online: whether it has a latency promise.
        before: window that ends at the write.
        after: window that begins when the change had reached the work.
        quota_ratio: its compute share after / before (1: unchanged; NaN: not known).
    """

    target: Target
    online: bool
    before: Measured
    after: Measured
    quota_ratio: float = 1.0


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict, the sentence that explains it, and one line of numbers for each slice."""

    verdict: Verdict
    reason: str
    numbers: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ballot:
    """What one slice says; `voted` is false for one that was measured and had nothing to lose."""

    verdict: Verdict
    reason: str
    voted: bool = True


_CANNOT_HURT = Ballot(Verdict.PASS, "its neighbours have less: whatever troubles it is not this change", voted=False)
EvidenceReader = Callable[[Group, Window, Window], tuple[Sequence[Evidence], Sequence[Evidence]]]


def judge(
    affected: Sequence[Evidence], peers: Sequence[Evidence], *, regression_limit: float, gives_way: bool = False
) -> Judgement:
    """Return the verdict on a change.

    Args:
        affected: every slice on the cards or pools that were touched, the losers too.
        peers: slices that nothing touched, for what the day did to everybody.
        regression_limit: loss of the share of kept requests that is a fail.
        gives_way: the change only takes shares from offline work. A service that fares worse since does so in spite of
            it: setting it back would give its neighbour more.
    """
    ballots = [
        (e, _CANNOT_HURT if gives_way and e.online else ballot(e, peers, regression_limit=regression_limit))
        for e in affected
    ]
    numbers = {str(e.target): {"says": b.verdict.value, "why": b.reason, **_numbers(e)} for e, b in ballots}
    for verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE):
        found = [f"{e.target}: {b.reason}" for e, b in ballots if b.verdict is verdict]
        if found:
            return Judgement(verdict, "; ".join(found), numbers)
    if not ballots:
        return Judgement(Verdict.INCONCLUSIVE, "nothing was measured", numbers)
    lowered = [str(e.target) for e, b in ballots if not b.voted and e.online and not e.quota_ratio >= 1]
    voters = sum(b.voted for _, b in ballots)
    if lowered and not voters:
        return Judgement(Verdict.INCONCLUSIVE, f"lowered while quiet, not tried since: {', '.join(lowered)}", numbers)
    return Judgement(Verdict.PASS, f"{voters} of {len(ballots)} slices were at work and kept what they had", numbers)


def ballot(evidence: Evidence, peers: Sequence[Evidence], *, regression_limit: float) -> Ballot:
    """Let one slice speak: the share of kept requests, else its tail latency, else its throughput."""
    return _online(evidence, peers, regression_limit) if evidence.online else _offline(evidence, peers)


def _online(evidence: Evidence, peers: Sequence[Evidence], limit: float) -> Ballot:
    before, after = evidence.before, evidence.after
    if math.isnan(before.requests) or math.isnan(after.requests):
        return Ballot(Verdict.INCONCLUSIVE, "its requests are not known")
    if after.requests < MIN_REQUESTS:
        if before.requests < MIN_REQUESTS:
            return Ballot(Verdict.PASS, "it was quiet before and after", voted=False)
        return Ballot(Verdict.INCONCLUSIVE, f"only {after.requests:.0f} requests since")
    return _kept(evidence, peers, limit) if not math.isnan(after.kept) else _latency(evidence, peers)


def _latency(evidence: Evidence, peers: Sequence[Evidence]) -> Ballot:
    before, after = evidence.before, evidence.after
    if math.isnan(before.latency_seconds) or math.isnan(after.latency_seconds):
        return Ballot(Verdict.INCONCLUSIVE, "neither kept requests nor latency are known")
    grew = _relative(before.latency_seconds, after.latency_seconds) - _drift(peers, "latency_seconds", online=True)
    if grew > LATENCY_LIMIT:
        return Ballot(Verdict.FAIL, f"its tail latency grew by {grew:.0%} more than its peers'")
    return Ballot(Verdict.PASS, "its latency held")


def _kept(evidence: Evidence, peers: Sequence[Evidence], limit: float) -> Ballot:
    before, after = evidence.before, evidence.after
    was = 1.0 if math.isnan(before.kept) else before.kept  # without a past it is measured against the promise
    shared = [
        e.after.kept - e.before.kept
        for e in peers
        if e.online and not math.isnan(e.after.kept - e.before.kept) and e.after.requests >= MIN_REQUESTS
    ]
    drift = min(median(shared), 0.0) if shared else 0.0
    lost = was + drift - after.kept
    if lost <= limit:
        return Ballot(Verdict.PASS, f"{after.kept:.2%} of its requests kept their objective")
    noise = _Z * math.sqrt(max(after.kept * (1 - after.kept), 1e-6) / after.requests)
    if lost - noise <= limit:
        return Ballot(Verdict.INCONCLUSIVE, f"kept fell by {lost:.1%} give or take {noise:.1%}")
    return Ballot(Verdict.FAIL, f"kept requests fell from {was:.2%} to {after.kept:.2%}")


def _offline(evidence: Evidence, peers: Sequence[Evidence]) -> Ballot:
    before, after = evidence.before.throughput, evidence.after.throughput
    if math.isnan(before) or math.isnan(after):
        return Ballot(Verdict.INCONCLUSIVE, "its throughput is not known")
    if before <= 0:
        return Ballot(Verdict.PASS, "it did nothing before", voted=after > 0)
    lost = -(_relative(before, after) - min(_drift(peers, "throughput", online=False), 0.0))
    cut = 0.0 if math.isnan(evidence.quota_ratio) else max(1.0 - evidence.quota_ratio, 0.0)
    if lost > cut + THROUGHPUT_LIMIT:
        return Ballot(Verdict.FAIL, f"its throughput fell by {lost:.0%}, its quota by {cut:.0%}")
    return Ballot(Verdict.PASS, "its throughput held")


def _relative(before: float, after: float) -> float:
    return after / before - 1.0 if before > 0 else (0.0 if after <= 0 else math.inf)


def _drift(peers: Sequence[Evidence], name: str, *, online: bool) -> float:
    pairs = [(getattr(e.before, name), getattr(e.after, name)) for e in peers if e.online is online]
    moves = [_relative(b, a) for b, a in pairs if b > 0 and not math.isnan(a)]
    return median(moves) if moves else 0.0


def _numbers(evidence: Evidence) -> dict[str, Any]:
    values = {"before": asdict(evidence.before), "after": asdict(evidence.after), "quota_ratio": evidence.quota_ratio}
    return {k: plain(v) for k, v in values.items()}


def realised_gain(affected: Sequence[Evidence]) -> float:
    """Return the mean relative gain in throughput of the offline slices, NaN where none is known."""
    moves = [
        _relative(e.before.throughput, e.after.throughput)
        for e in affected
        if not e.online and e.before.throughput > 0 and not math.isnan(e.after.throughput)
    ]
    return sum(moves) / len(moves) if moves else math.nan


def watch(
    record: GroupRecord,
    *,
    writer: Writer,
    knobs: Sequence[Knob],
    read_evidence: EvidenceReader,
    settings: TunerSettings,
    now: datetime,
) -> Step:
    """Judge one verifying group as of `now`: keep it, roll it back, or go on watching.

    A fail is acted on as soon as enough was seen; a pass waits for the whole watch. What cannot be set back at will
    (drain, reboot, eviction) is never rolled back by itself: a person is asked.

    Raises:
        ValueError: the group is not being watched.
    """
    if record.state is not ChangeState.VERIFYING or record.applied_at is None:
        raise ValueError(f"expected a change that is verifying, got {record.id} in {record.state.value}")
    turned = [k for c in record.group.changes for k in knobs if (k.name, k.target_kind) == (c.knob, c.target.kind)]
    began = record.applied_at + timedelta(
        seconds=max((k.restart_seconds + k.read_back_seconds for k in turned), default=0)
    )
    length = timedelta(seconds=settings.verify_seconds)
    if now < began + length * MIN_WATCH_SHARE:
        return Step(record.id, record.state, "being watched")
    affected, peers = read_evidence(
        record.group, Window(record.applied_at - length, record.applied_at), Window(began, now)
    )
    own = {e.target for e in affected if e.online}
    gives_way = all(c.knob == SHARE_KNOB and c.is_decrease and c.target not in own for c in record.group.changes)
    judgement = judge(affected, peers, regression_limit=settings.regression_limit, gives_way=gives_way)
    over = now >= began + length
    given_up = now >= began + length * (1 + EXTENSIONS)
    body = {"verdict": judgement.verdict.value, "numbers": judgement.numbers}
    if judgement.verdict is Verdict.PASS and over:
        outcome = writer.step(record, ChangeState.CONFIRMED, judgement.reason, body)
        record_outcome(writer.state, record.group, judgement.verdict.value, realised_gain(affected), now)
        return outcome
    failed = judgement.verdict is Verdict.FAIL or (judgement.verdict is Verdict.INCONCLUSIVE and given_up)
    if not failed:
        return Step(record.id, record.state, f"{judgement.verdict.value} so far: {judgement.reason}")
    final = any(k.effect in {KnobEffect.NEEDS_DRAIN, KnobEffect.NEEDS_REBOOT} for k in turned) or record.evictions > 0
    if final:
        reason = f"{judgement.reason}; it cannot be undone at will, a person decides"
        outcome = writer.step(record, ChangeState.ROLLBACK_BLOCKED, reason, body)
    else:
        outcome = roll_back(writer, record, judgement.reason, body)
    if outcome.state is not ChangeState.VERIFYING:  # else the kill switch holds it: judged again later
        record_outcome(writer.state, record.group, judgement.verdict.value, realised_gain(affected), now)
    return outcome
