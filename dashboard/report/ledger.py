"""Where the capacity went, level by level, hour by hour and tenant by tenant; and the energy that it took."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

from analyzer.facts import hardware_facts, records
from analyzer.ledger import LEVEL_1, LEVEL_2
from collector.schema import NOBODY, UNKNOWN
from collector.words import plural
from dashboard import svg
from dashboard.report.capacity import EnergyPart, HourTerms, LedgerPart, TenantUse, Term
from dashboard.report.gathered import Gathered
from dashboard.report.prices import Prices
from dashboard.report.view import (
    MOST_ROWS,
    Block,
    Cell,
    Drawing,
    Figure,
    Key,
    Note,
    Section,
    Table,
    more,
    numbers,
    prose,
    text,
)
from dashboard.report.words import cards, energy, money, share
from dashboard.views.text import NO_DATA, number, seconds

MEANING = {
    "used": "work ran on it",
    "reserved": "held and idle on purpose: a declared floor, or room for the load that is forecast",
    "wasted": "held and idle, beyond any reserve",
    "free": "held by nobody, and some request fits there",
    "stranded": "held by nobody, and no request fits there",
    "unobserved": "no sample came, or nobody knows how much a holder holds",
    "useful": "work finished in time, at what it costs undisturbed",
    "contention": "extra cost while neighbours disturbed",
    "throttling": "extra cost while heat or the power cap slowed the clock",
    "overhead": "work that came too late, and use in which nothing was finished",
    "unrated": "work without a unit to count, such as requests or steps",
    "unaccounted": "what does not add up",
}
_HOLDERS = {NOBODY: "nobody", UNKNOWN: "not known"}


def build_ledger(gathered: Gathered, prices: Prices) -> LedgerPart:
    """Put the ledger into shares, average cards and money."""
    ledger = gathered.analysis.ledger
    hours = gathered.analysis.window.seconds / 3600
    count = len(ledger.gpus)
    fleet = ledger.fleet
    capacity, used = float(fleet["capacity"]), float(fleet["used"])
    models = {key[:3]: value for key, value in hardware_facts(gathered.facts, "gpu", "model").items()}
    keys = [(str(row["cluster"]), str(row["node"]), str(row["gpu"])) for row in records(ledger.gpus)]
    price = prices.of_fleet([models.get(key, "") for key in keys]) * hours
    joules = gathered.energy.groupby("tenant")["joules"].sum().to_dict()
    accounts = gathered.analysis.accounts.groupby("tenant")[["borrowed_gpu_seconds", "starved_gpu_seconds"]]
    taken = accounts.sum(min_count=1) / 3600
    tenants = []
    for row in records(ledger.tenants):
        held = float(row["used"]) + float(row["reserved"]) + float(row["wasted"])
        if not held > 0:
            continue
        wasted = _part(float(row["wasted"]), capacity)
        tenants.append(
            TenantUse(
                tenant=str(row["tenant"]),
                used_ratio=_part(float(row["used"]), capacity),
                useful_ratio=_part(float(row["useful"]), capacity),
                reserved_ratio=_part(float(row["reserved"]), capacity),
                wasted_ratio=wasted,
                wasted_card_hours=wasted * count * hours,
                energy_joules=float(joules.get(row["tenant"], math.nan)),
                cost=_part(held, capacity) * price,
                borrowed_card_hours=float(taken["borrowed_gpu_seconds"].get(row["tenant"], math.nan)),
                starved_card_hours=float(taken["starved_gpu_seconds"].get(row["tenant"], math.nan)),
            )
        )
    names_1, names_2 = [*LEVEL_1, "unaccounted_1"], [*LEVEL_2, "unaccounted_2"]
    return LedgerPart(
        cards=count,
        hours=hours,
        capacity_sm_seconds=capacity,
        used_sm_seconds=used,
        level_1=tuple(_term(n, float(fleet[n]), capacity, capacity, count) for n in names_1),
        level_2=tuple(_term(n, float(fleet[n]), used, capacity, count) for n in names_2),
        by_hour=tuple(
            HourTerms(
                row["hour"].to_pydatetime(),
                {_bare(n): _part(float(row[n]), float(row["capacity"])) for n in (*names_1, "useful")},
            )
            for row in records(ledger.hours)
        ),
        tenants=tuple(sorted(tenants, key=lambda t: (-t.wasted_ratio, t.tenant))),
        price=price,
        currency=prices.currency,
        assumed_sm_count=ledger.assumed_sm_count,
        estimated_quota=ledger.estimated_quota,
    )


def _term(name: str, amount: float, whole: float, capacity: float, count: int) -> Term:
    return Term(_bare(name), amount, _part(amount, whole), _part(amount, capacity) * count)


def _bare(name: str) -> str:
    return name.removesuffix("_1").removesuffix("_2")


def _part(amount: float, whole: float) -> float:
    return amount / whole if whole > 0 else math.nan


def build_energy(gathered: Gathered, ledger: LedgerPart) -> EnergyPart:
    """Sum the meters."""
    rows = gathered.energy
    known = len(rows) > 0
    joules = float(rows["joules"].sum()) if known else math.nan
    useful = next(t.sm_seconds for t in ledger.level_2 if t.name == "useful")
    return EnergyPart(
        joules=joules,
        pool_joules=float(rows.loc[rows["slice"] == "", "joules"].sum()) if known else math.nan,
        per_useful_sm_second_joules=_part(joules, useful),
        cards_metered=len(rows[["cluster", "node", "gpu"]].drop_duplicates()),
    )


def ledger_section(ledger: LedgerPart) -> Section:
    """Show both levels as a bar and a table that adds up, then hours and tenants."""
    title = "Where the capacity went"
    if not ledger.capacity_sm_seconds > 0:
        return Section("capacity", title, (Note("No card was observed."),))
    first, second = ledger.level_1, ledger.level_2
    length = seconds(ledger.hours * 3600)
    blocks: list[Block] = [
        Figure(_bar(first, title), "All cards over the whole time", _legend(first)),
        _terms_table(
            first, "of capacity", ("capacity", cards(ledger.cards), f"{plural(ledger.cards, 'card')}, {length}")
        ),
    ]
    if len(ledger.by_hour) > 1:
        blocks.append(Figure(_hours(ledger), "Hour by hour"))
    if ledger.used_sm_seconds > 0:
        used = next(t for t in first if t.name == "used")
        blocks += [
            Figure(_bar(second, "What the use was good for"), "What the use was good for", _legend(second)),
            _terms_table(second, "of what was used", ("used", cards(used.cards), "as in the table above")),
        ]
    if not math.isnan(ledger.price):
        wasted = next(t for t in first if t.name == "wasted")
        blocks.append(
            Note(
                f"At the configured prices these cards cost {money(ledger.price, ledger.currency)}; "
                f"what was held and idle is {money(ledger.price * wasted.ratio, ledger.currency)} of it."
            )
        )
    if ledger.tenants:
        blocks.append(_tenants(ledger))
    blocks += _doubts(ledger)
    return Section("capacity", title, tuple(blocks))


def _terms_table(terms: Sequence[Term], whole: str, total: tuple[str, str, str]) -> Table:
    rows: list[tuple[Cell, ...]] = [(t.name, share(t.ratio), cards(t.cards), MEANING[t.name]) for t in terms]
    name, amount, meaning = total
    rows.append((name, share(math.fsum(t.ratio for t in terms)), amount, meaning))
    return Table((*text(""), *numbers(whole, "in cards"), *prose("what it is")), tuple(rows))


def _bar(terms: Sequence[Term], label: str) -> Drawing:
    words = ", ".join(f"{t.name} {share(t.ratio)}" for t in terms)
    return Drawing(svg.stacked_bar([svg.Part(t.name, t.ratio, share(t.ratio)) for t in terms], f"{label}: {words}"))


def _legend(terms: Sequence[Term]) -> tuple[Key, ...]:
    return tuple(Key(t.name, t.name) for t in terms)


def _hours(ledger: LedgerPart) -> Drawing:
    names = [t.name for t in ledger.level_1]
    columns = [[svg.Part(name, hour.ratios[name]) for name in names] for hour in ledger.by_hour]
    starts = [hour.start for hour in ledger.by_hour]
    return Drawing(svg.stacked_columns(columns, hour_ticks(starts), "Where the capacity went, hour by hour"))


def hour_ticks(starts: Sequence[datetime]) -> list[svg.Tick]:
    """Return ticks for columns of one hour each: few enough for a telephone."""
    count = len(starts)
    step = next((step for step in (3, 6, 12, 24) if count / step <= 6), 24)
    return [
        svg.Tick(index / count, f"{start:%a} {start.day}" if start.hour == 0 else f"{start:%H:%M}")
        for index, start in enumerate(starts)
        if start.hour % step == 0
    ]


def _tenants(ledger: LedgerPart) -> Table:
    priced = not math.isnan(ledger.price)
    columns = (*text("tenant"), *numbers("used", "useful", "reserved", "wasted"))
    columns += numbers("wasted card-hours", "borrowed", "starved", "energy")
    rows: list[tuple[Cell, ...]] = []
    for t in ledger.tenants[:MOST_ROWS]:
        row: tuple[Cell, ...] = (
            _HOLDERS.get(t.tenant, t.tenant),
            *(share(ratio) for ratio in (t.used_ratio, t.useful_ratio, t.reserved_ratio, t.wasted_ratio)),
            number(t.wasted_card_hours),
            number(t.borrowed_card_hours),
            number(t.starved_card_hours),
            energy(t.energy_joules),
        )
        rows.append((*row, money(t.cost, ledger.currency)) if priced else row)
    return Table(
        (*columns, *numbers("cost")) if priced else columns,
        tuple(rows),
        "Tenants, as shares of the capacity of all cards; borrowed and starved in card-hours; most wasted first",
        more(len(ledger.tenants), "tenant"),
    )


def _doubts(ledger: LedgerPart) -> list[Block]:
    blocks: list[Block] = []
    if ledger.assumed_sm_count:
        blocks.append(Note(f"The SM count of {plural(len(ledger.assumed_sm_count), 'card')} was not told: assumed."))
    if ledger.estimated_quota:
        slices = plural(len(ledger.estimated_quota), "slice")
        blocks.append(Note(f"What share {slices} may use was not told: an equal part of the card was assumed."))
    return blocks


def energy_section(part: EnergyPart, tenants: Sequence[TenantUse]) -> Section:
    """Show the metered energy, and how it is attributed."""
    if math.isnan(part.joules):
        return Section("energy", "Energy", (Note(f"{NO_DATA}: no card reports power or energy."),))
    metered = f"{energy(part.joules)} by the meters of {plural(part.cards_metered, 'card')}"
    useful = part.per_useful_sm_second_joules
    if not math.isnan(useful):
        metered += f", {number(useful, 'J')} for a useful SM-second"
    known = sorted((t for t in tenants if not math.isnan(t.energy_joules)), key=lambda t: (-t.energy_joules, t.tenant))
    rows: list[tuple[Cell, ...]] = [
        (_HOLDERS.get(t.tenant, t.tenant), energy(t.energy_joules), share(t.energy_joules / part.joules))
        for t in known[:MOST_ROWS]
    ]
    rows.append(("idle power of what nobody holds", energy(part.pool_joules), share(part.pool_joules / part.joules)))
    caption = "Attributed by quota and activity; no source measures a tenant's energy"
    table = Table((*text("tenant"), *numbers("energy", "of all")), tuple(rows), caption, more(len(known), "tenant"))
    return Section("energy", "Energy", (Note(f"{metered}."), table))
