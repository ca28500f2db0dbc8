"""What an operator reads of a pair: who slows whom, by how much, since when, through what, and what to do."""

from __future__ import annotations

import math
from datetime import datetime, timedelta

from analyzer.contention.channel import CHANNEL_WORDS
from analyzer.contention.record import PairMeasure
from analyzer.contention.verdict import Judgement
from analyzer.findings import Verdict
from collector.schema import UNKNOWN
from collector.words import plural

_PIN = "give them CPUs of their own, or move one of them to another node"
_APART = "move one of them to another node, or to cards that do not share the link"


def names(pair: PairMeasure) -> tuple[str, str]:
    """Return what victim and suspect are called: tenant and workload; beside it the slice where both are alike."""
    victim = _name(pair.victim_tenant, pair.victim_workload, pair.victim)
    suspect = _name(pair.suspect_tenant, pair.suspect_workload, pair.suspect)
    if victim == suspect and pair.victim != pair.suspect:
        victim, suspect = f"{victim} ({pair.victim})", f"{suspect} ({pair.suspect})"
    return victim, f"{suspect} on {pair.suspect_gpu}" if pair.suspect_gpu else suspect


def _name(tenant: str, workload: str, part: str) -> str:
    return part if workload in ("", UNKNOWN) else "/".join(filter(None, (tenant, workload)))


def describe(pair: PairMeasure, judgement: Judgement, start: datetime, interval_seconds: float) -> str:
    """Return the sentence that an operator reads.

    Args:
        pair: its measures.
        judgement: what was decided, its reasons in terms of "the victim" and "the suspect".
        start: begin of the window.
        interval_seconds: distance of its samples.
    """
    victim, suspect = names(pair)
    reason = _told(judgement.reason, victim, suspect)
    where = f"{victim} on {pair.gpu}"
    if judgement.verdict is Verdict.NO_EFFECT:
        return f"{where} is not slowed by {suspect}: {reason}"
    decide = ", or ".join(_told(need, victim, suspect) for need in judgement.needs)
    if judgement.verdict is Verdict.CANNOT_TELL:
        return f"whether {suspect} slows {where} cannot be told: {reason}; it would take {decide}"
    seen = f"{slower(pair)}, {_seen(pair, start, interval_seconds)}"
    if judgement.verdict is Verdict.SUSPECTED:
        return f"{seen}, but {reason}; it would take {decide}"
    return f"{seen}{through(pair)}; {_advice(pair, suspect)}"


def slower(pair: PairMeasure) -> str:
    """Say who is slower by how much, with its interval, while who is busy."""
    victim, suspect = names(pair)
    size = f"{pair.effect:z.0%} slower ({pair.effect_lower:z.0%} to {pair.effect_upper:z.0%})"
    late = f"{_span(pair.lag_seconds)} after" if pair.lag_seconds > 0 else "while"
    return f"{victim} on {pair.gpu} is {size} {late} {suspect} is busy"


def through(pair: PairMeasure) -> str:
    """Say through what, where it is known."""
    return f", through {CHANNEL_WORDS[pair.channel]}" if pair.channel else ""


def _seen(pair: PairMeasure, start: datetime, interval_seconds: float) -> str:
    """Say how often it was seen, and since when the two are there together."""
    times = f"{plural(round(pair.episodes), 'time')} " if pair.episodes >= 2 else ""
    first = 0.0 if math.isnan(pair.first_met) else pair.first_met
    since = f"since {start + timedelta(seconds=first * interval_seconds):%Y-%m-%d %H:%M} UTC"
    return f"{times}{since}{'' if first else ' or earlier'}"


def _advice(pair: PairMeasure, suspect: str) -> str:
    if pair.suspect_gpu:
        return _PIN if pair.channel == "host" else _APART
    if pair.victim_kind == pair.suspect_kind == "mig":
        return "move one of them to another card"
    return f"move one of them to another card, or lower the share of {suspect}"


def _told(text: str, victim: str, suspect: str) -> str:
    return text.replace("the victim", victim).replace("the suspect", suspect)


def _span(seconds: float) -> str:
    return f"{seconds / 60:g} min" if seconds >= 60 else f"{seconds:g} s"
