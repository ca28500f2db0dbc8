"""The one sentence that a report opens with."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dashboard.report.model import Claims, LedgerPart, QueueLine, Service
from dashboard.report.words import cards_text, duration_text, percent, plural


def summarise(ledger: LedgerPart, services: Sequence[Service], claims: Claims, queues: Sequence[QueueLine]) -> str:
    """Return what matters most, in one sentence."""
    if not ledger.capacity_sm_seconds > 0:
        return "No card was observed in this time, so nothing can be said."
    terms = {term.name: term for term in ledger.level_1}
    useful = next(term for term in ledger.level_2 if term.name == "useful")
    capacity = ledger.capacity_sm_seconds
    parts = [
        f"Of {plural(ledger.cards, 'card')}, {percent(terms['used'].ratio)} of the compute was used and "
        f"{percent(useful.sm_seconds / capacity)} did useful work, while {percent(terms['wasted'].ratio)} "
        f"({cards_text(terms['wasted'].cards)}) was held and idle"
    ]
    if terms["stranded"].ratio >= 0.005:
        parts.append(f"{percent(terms['stranded'].ratio)} lay in pieces that no request fits")
    judged = [s for s in services if not math.isnan(s.kept_ratio)]
    if judged:
        full = sum(s.kept_ratio >= 1 for s in judged)
        worst = judged[0]
        tail = (
            "" if full == len(judged) else f", the worst ({worst.workload}) in {percent(worst.kept_ratio)} of the time"
        )
        parts.append(f"{full} of {plural(len(judged), 'online service')} kept the promise throughout{tail}")
    holding = [c for c in claims.fights if c.verdict == "holds"]
    if holding:
        parts.append(
            f"{plural(len({c.victim for c in holding}), 'workload')} suffered from a neighbour on the same card"
        )
    if (waits := [q.wait_p95_seconds for q in queues if not math.isnan(q.wait_p95_seconds)]) and max(waits) >= 60:
        parts.append(f"jobs waited up to {duration_text(max(waits))} (95 % of them less) to start")
    return "; ".join(parts) + "."
