"""The report, made of what was gathered: pure functions from frames, findings and records to the model."""

from __future__ import annotations

from dashboard.report.changes import build_changes
from dashboard.report.claims import build_claims
from dashboard.report.forecast import build_forecast
from dashboard.report.free import build_free, build_moves
from dashboard.report.gathered import Gathered
from dashboard.report.ledger import build_energy, build_ledger
from dashboard.report.migrations import build_migrations
from dashboard.report.model import Report
from dashboard.report.prices import Prices
from dashboard.report.quality import build_quality
from dashboard.report.queues import build_queues
from dashboard.report.services import build_services
from dashboard.report.summary import summarise


def build_report(gathered: Gathered, prices: Prices) -> Report:
    """Make the report; the same input gives the same report."""
    window = gathered.analysis.window
    ledger = build_ledger(gathered, prices)
    services, claims, queues = build_services(gathered), build_claims(gathered), build_queues(gathered)
    return Report(
        clusters=tuple(sorted(set(gathered.samples["cluster"]))),
        start=window.start,
        end=window.end,
        interval_seconds=gathered.interval_seconds,
        simulated=gathered.analysis.simulated,
        summary=summarise(ledger, services, claims, queues),
        ledger=ledger,
        services=services,
        claims=claims,
        migrations=build_migrations(gathered, prices, ledger),
        forecast=build_forecast(gathered),
        changes=build_changes(gathered),
        queues=queues,
        energy=build_energy(gathered, ledger),
        quality=build_quality(gathered),
        free=build_free(gathered),
        moves=build_moves(gathered),
    )
