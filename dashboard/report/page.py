"""The whole report in words, in the order in which it is read."""

from __future__ import annotations

import math

from collector.words import plural
from dashboard.report.changes import changes_section
from dashboard.report.claims import fights_section, health_section, limits_section, stranded_section, waste_section
from dashboard.report.forecast import forecast_section
from dashboard.report.free import free_section
from dashboard.report.ledger import energy_section, ledger_section
from dashboard.report.migrations import migrations_section
from dashboard.report.model import Report
from dashboard.report.quality import census_section, quality_section
from dashboard.report.queues import queues_section
from dashboard.report.services import kept_tone, services_section
from dashboard.report.view import Page, Tile
from dashboard.report.words import cards, energy
from dashboard.views.text import length, number, percent, seconds, stamp

_MUCH_WASTE = 0.1


def make_page(report: Report) -> Page:
    """Put the report into words."""
    sections = (
        ledger_section(report.ledger),
        services_section(report.services, report.quality.undeclared),
        waste_section(report.claims),
        free_section(report.free, report.moves),
        fights_section(report.claims),
        stranded_section(report.claims),
        migrations_section(report.migrations),
        limits_section(report.claims),
        health_section(report.claims),
        forecast_section(report.forecast, report.claims.risks, report.ledger.cards),
        changes_section(report.changes),
        queues_section(report.queues),
        energy_section(report.energy, report.ledger.tenants),
        census_section(report.quality, report.claims.suppressed, report.claims.idle_suppressions),
        quality_section(report.quality),
    )
    return Page(
        title=f"GPU report: {', '.join(report.clusters) or 'no cluster'}",
        subtitle=f"{stamp(report.start)} to {stamp(report.end)} {report.end:%Y}, {length(report.end - report.start)}",
        summary=report.summary,
        simulated=report.simulated,
        tiles=_tiles(report),
        sections=sections,
        foot="Times are UTC. Cards are named by the beginning of their UUID. What is not known reads no data, never 0.",
    )


def _tiles(report: Report) -> tuple[Tile, ...]:
    ledger = report.ledger
    wasted = next(term for term in ledger.level_1 if term.name == "wasted")
    judged = [s for s in report.services if not math.isnan(s.kept_ratio)]
    windows = sum(s.windows for s in judged)
    kept = sum(s.kept_ratio * s.windows for s in judged) / windows if windows else math.nan
    pairs = sum(claim.verdict == "holds" for claim in report.claims.pairs)
    waits = [q.wait_p50_seconds for q in report.queues if not math.isnan(q.wait_p50_seconds)]
    per_useful = report.energy.per_useful_sm_second_joules
    metered = f"by the meters of {plural(report.energy.cards_metered, 'card')}"
    if not math.isnan(per_useful):
        metered = f"{number(per_useful, 'J')} a useful SM-second"
    much = not math.isnan(wasted.ratio) and wasted.ratio > _MUCH_WASTE
    return (
        Tile(
            "useful work",
            percent(ledger.useful_ratio),
            f"of the capacity of {plural(ledger.cards, 'card')}",
        ),
        Tile(
            "wasted", percent(wasted.ratio), f"{cards(wasted.cards)} cards, held and idle", "poor" if much else "plain"
        ),
        Tile("promises kept", percent(kept, 1), f"of the time, {plural(len(judged), 'service')}", kept_tone(kept)),
        Tile("disturbed pairs", str(pairs), "proven, on one card", "fair" if pairs else "plain"),
        Tile("median wait", seconds(max(waits, default=math.nan)), "for cards, in the slowest queue"),
        Tile("energy", energy(report.energy.joules), metered),
    )
