"""The one sentence that a report opens with."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dashboard.report.model import Claims, LedgerPart, QueueLine, Service
from dashboard.views.text import percent, plural, seconds

_WORTH_SAYING = 0.005  # of the capacity
_LONG_WAIT_SECONDS = 60.0


def summarise(ledger: LedgerPart, services: Sequence[Service], claims: Claims, queues: Sequence[QueueLine]) -> str:
    """Return what matters most, in one sentence."""
    if not ledger.capacity_sm_seconds > 0:
        return "No card was observed in this time, so nothing can be said."
    ratios = {term.name: term.ratio for term in ledger.level_1}
    useful = next(term for term in ledger.level_2 if term.name == "useful").sm_seconds / ledger.capacity_sm_seconds
    used = (
        f"Of {plural(ledger.cards, 'card')}, {percent(ratios['used'])} of the compute was used and {percent(useful)} "
        f"did useful work, while {percent(ratios['wasted'])} was held and wasted"
    )
    parts = [used]
    if ratios["stranded"] >= _WORTH_SAYING:
        parts.append(f"{percent(ratios['stranded'])} lay in pieces that no request fits")
    parts += _promises(services)
    victims = {claim.victim for claim in claims.fights if claim.verdict == "holds"}
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
    tail = f"the worst, {worst.tenant}/{worst.workload}, in {percent(worst.kept_ratio)} of the time"
    return [f"{kept} of {plural(len(judged), 'online service')} kept their promise throughout, {tail}"]
