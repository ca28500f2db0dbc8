"""The one sentence that a report opens with."""

from __future__ import annotations

import math
from collections.abc import Sequence

from collector.words import plural
from dashboard.report.capacity import LedgerPart, QueueLine
from dashboard.report.model import Claims, Service
from dashboard.views.text import percent, seconds

_WORTH_SAYING = 0.005  # of the capacity
_LONG_WAIT_SECONDS = 60.0


def summarise(ledger: LedgerPart, services: Sequence[Service], claims: Claims, queues: Sequence[QueueLine]) -> str:
    """Return what matters most, in one sentence."""
    if not ledger.capacity_sm_seconds > 0:
        return "No card was observed in this time, so nothing can be said."
    useful = ledger.useful_ratio
    done = "how much of it was useful is not known" if math.isnan(useful) else f"{percent(useful)} did useful work"
    parts = [
        f"Of the compute of {plural(ledger.cards, 'card')}, {percent(ledger.ratio('used'))} was used and {done}",
        f"{percent(ledger.ratio('wasted'))} was held and wasted",
    ]
    if ledger.ratio("stranded") >= _WORTH_SAYING:
        parts.append(f"{percent(ledger.ratio('stranded'))} lay in pieces that no request fits")
    parts += _promises(services)
    victims = {claim.victim for claim in claims.pairs if claim.verdict == "holds"}
    if victims:
        parts.append(f"{plural(len(victims), 'workload')} suffered from a neighbour on the same card")
    waits = [q.wait_p95_seconds for q in queues if not math.isnan(q.wait_p95_seconds)]
    if waits and max(waits) >= _LONG_WAIT_SECONDS:
        parts.append(f"in the slowest queue 95 % of the jobs started within {seconds(max(waits))}")
    return "; ".join(parts) + "."


def _promises(services: Sequence[Service]) -> list[str]:
    judged = [service for service in services if not math.isnan(service.kept_ratio)]
    if not judged:
        return []
    kept = sum(service.kept_ratio >= 1 for service in judged)
    worst = judged[0]
    if kept == len(judged):
        return [f"all {plural(kept, 'online service')} kept their promise throughout"]
    tail = f"the worst, {worst.name}, in {percent(worst.kept_ratio)} of the time"
    return [f"{kept} of {plural(len(judged), 'online service')} kept their promise throughout, {tail}"]
