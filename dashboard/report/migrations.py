"""Moves that would make room or free cards: what they bring, what they cost, cards before and after."""

from __future__ import annotations

import math
from collections.abc import Sequence

from collector.words import plural
from dashboard import svg
from dashboard.report.capacity import Freed, HourTerms, LedgerPart, MigrationPart
from dashboard.report.gathered import Gathered
from dashboard.report.prices import Prices
from dashboard.report.view import Block, Cell, Drawing, Key, Note, Section, Table, drawn, numbers, text
from dashboard.report.words import cards, energy, money
from dashboard.views.moves import ROLES, costs, left_alone, result, step_text, where
from dashboard.views.names import CardNames, card_names, named
from dashboard.views.text import NO_DATA, seconds
from tuner.service.moves_plan import CardChange, MovesPlan, Objective, Share, Step

_WEEK_HOURS = 168
_DAY_HOURS = 24
_MOST_STEPS = 15
_MOST_CARDS = 12
_LEGIBLE = 0.25  # a part of a card whose figure fits into it on a telephone too
TITLE = "What moves would bring"


def build_migrations(gathered: Gathered, prices: Prices, ledger: LedgerPart) -> MigrationPart:
    """Put plans beside what was really freed: predicted and realised are never one figure."""
    plans = {plan.objective: plan for plan in gathered.plans}
    freeing = plans.get(Objective.FREE_CARDS.value)
    return MigrationPart(
        demand=plans.get(Objective.DEMAND.value),
        freeing=freeing,
        predicted=None if freeing is None else _predicted(freeing, prices),
        realised=_realised(ledger, freeing),
        currency=prices.currency,
        names=dict(card_names(gathered.analysis.facts)),
    )


def _predicted(plan: MovesPlan, prices: Prices) -> Freed:
    hourly = prices.of_fleet(plan.freed_models) if plan.freed else 0.0
    return Freed(float(len(plan.freed)), hourly * _WEEK_HOURS, plan.idle_watts * _WEEK_HOURS * 3600)


def _realised(ledger: LedgerPart, plan: MovesPlan | None) -> Freed | None:
    """Compare the last day of the window with its first: what nobody held, in average cards; None: under two days."""
    hours = ledger.by_hour
    if len(hours) < 2 * _DAY_HOURS:
        return None
    first, last = _unheld(hours[:_DAY_HOURS]), _unheld(hours[-_DAY_HOURS:])
    freed = (last - first) * ledger.cards
    hourly = ledger.price / ledger.hours / ledger.cards if ledger.cards and ledger.hours > 0 else math.nan
    idle = plan.idle_watts / len(plan.freed) if plan is not None and plan.freed else math.nan
    return Freed(freed, freed * hourly * _WEEK_HOURS, freed * idle * _WEEK_HOURS * 3600)


def _unheld(hours: Sequence[HourTerms]) -> float:
    return math.fsum(hour.ratios["free"] + hour.ratios["stranded"] for hour in hours) / len(hours)


def migrations_section(part: MigrationPart) -> Section:
    """Show both plans: room for demand, and the fewest cards."""
    blocks: list[Block] = []
    for plan in (part.demand, part.freeing):
        if plan is not None:
            blocks += _plan_blocks(plan, part.names)
    if not blocks:
        return Section("migrations", TITLE, (Note("No plan was made: no card was seen."),))
    if part.freeing is not None and (part.freeing.freed or part.realised is not None):
        blocks.append(_freed_table(part))
    plan = part.demand or part.freeing
    if plan is not None:
        blocks.append(Note(left_alone(plan)))
    return Section("migrations", TITLE, tuple(blocks))


def _plan_blocks(plan: MovesPlan, names: CardNames) -> list[Block]:
    about = "Fewest cards" if plan.objective == Objective.FREE_CARDS else "Room for demand"
    if plan.none:
        return [Note(f"{about}: no plan, {plan.none}.")]
    asked = "" if plan.objective == Objective.FREE_CARDS else f" ({plan.asked})"
    if not plan.steps:
        return [Note(f"{about}{asked}: {result(plan)}.")]
    cost = costs(plan)
    return [
        Note(f"{about}{asked}: {result(plan)}. {cost[:1].upper()}{cost[1:]}."),
        _steps_table(plan.steps, names),
        *([_cards_table(plan.changes, names)] if plan.changes else []),
    ]


def _steps_table(steps: Sequence[Step], names: CardNames) -> Table:
    columns = (*numbers("step"), *text("move", "who", "from", "to"), *numbers("GiB", "away", "work lost"))
    rows: list[tuple[Cell, ...]] = [
        (
            str(number),
            step_text(step),
            f"{step.tenant}/{step.workload}" if step.workload else step.pod,
            where(step.from_node, step.from_gpus, names),
            where(step.to_node, step.to_gpus, names),
            f"{step.moved_gib:.1f}",
            f"{step.drain_minutes:g} min",
            NO_DATA if math.isnan(step.lost_seconds) else seconds(step.lost_seconds),
        )
        for number, step in enumerate(steps[:_MOST_STEPS], 1)
    ]
    left = len(steps) - _MOST_STEPS
    more = f"and {plural(left, 'more move')}, in the JSON report" if left > 0 else ""
    return Table(columns, tuple(rows), "In this order each has room when its turn comes", more)


def _cards_table(changes: Sequence[CardChange], names: CardNames) -> Table:
    columns = (*text("card"), *drawn("before"), *drawn("after"))
    rows: list[tuple[Cell, ...]] = [
        (
            named(change.gpu, names),
            Drawing(_bar(change.before, f"{named(change.gpu, names)} before")),
            Drawing(_bar(change.after, f"{named(change.gpu, names)} after")),
        )
        for change in changes[:_MOST_CARDS]
    ]
    seen = {part.role for change in changes[:_MOST_CARDS] for part in (*change.before, *change.after)}
    legend = tuple(Key(role.value, words) for role, words in ROLES.items() if role in seen)
    left = len(changes) - _MOST_CARDS
    more = f"and {plural(left, 'more card')}" if left > 0 else ""
    return Table(columns, tuple(rows), "Cards that change", more, legend)


def _bar(parts: Sequence[Share], label: str) -> str:
    words = ", ".join(f"{part.label or part.role.value} {part.share:.0%}" for part in parts)
    return svg.stacked_bar(
        [svg.Part(p.role.value, p.share, f"{p.share:.0%}" if p.share >= _LEGIBLE else "") for p in parts],
        f"{label}: {words}",
        22.0,
    )


def _freed_table(part: MigrationPart) -> Table:
    columns = (*text(""), *numbers("cards", "money a week", "energy a week"))
    rows: list[tuple[Cell, ...]] = []
    for name, freed in (
        ("predicted, by this plan", part.predicted),
        ("realised, last day against first", part.realised),
    ):
        if freed is None:
            rows.append((name, NO_DATA, NO_DATA, NO_DATA))
        else:
            joules = NO_DATA if math.isnan(freed.joules_a_week) else energy(freed.joules_a_week)
            cost = money(freed.cost_a_week, part.currency) if part.currency else NO_DATA
            rows.append((name, cards(freed.cards), cost, joules))
    caption = "Freed: energy is what such cards draw idle, saved only once they are switched off"
    return Table(columns, tuple(rows), caption)
