"""What each section says, in the order in which it is read."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta

from dashboard import svg
from dashboard.report.model import ChangeLine, Claim, ForecastLine, ForecastPart, LedgerPart, Report, Service, Term
from dashboard.report.view import (
    Badge,
    Block,
    Card,
    Cards,
    Cell,
    Drawing,
    Figure,
    Key,
    Note,
    Page,
    Section,
    Table,
    Tile,
    Tone,
)
from dashboard.report.words import (
    NO_DATA,
    amount_text,
    cards_text,
    duration_text,
    energy_text,
    instant_text,
    money,
    number,
    percent,
    plural,
)

_MOST_ROWS = 20
_MOST_CARDS = 8
_MEANING = {
    "used": "work ran on it",
    "reserved": "held and idle, kept on purpose: a declared floor or the load that is forecast",
    "wasted": "held and idle, for no reason that is known",
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
_CHANNELS = {
    "sm": "compute",
    "dram": "memory bandwidth",
    "l2": "cache",
    "pcie": "PCIe",
    "nvlink": "NVLink",
    "cpu": "host",
}


def page(report: Report) -> Page:
    """Put the report into words."""
    name = ", ".join(report.clusters) or "no cluster"
    span = f"{instant_text(report.start)} to {instant_text(report.end)} {report.end:%Y} UTC"
    length = duration_text((report.end - report.start).total_seconds())
    sections = (
        _ledger(report.ledger),
        _services(report),
        _waste(report),
        _fights(report),
        _stranded(report),
        _limits(report),
        _health(report),
        _forecast(report.forecast, report.claims.risks),
        _changes(report),
        _queues(report),
        _energy(report),
        _census(report),
        _quality(report),
    )
    return Page(
        title=f"GPU report: {name}",
        subtitle=f"{span} ({length})",
        summary=report.summary,
        simulated=report.simulated,
        tiles=_tiles(report),
        sections=sections,
        foot="Made by Trimtab. All times are UTC. A figure that could not be had reads `no data`; it is never 0.",
    )


def _tiles(report: Report) -> tuple[Tile, ...]:
    terms = {t.name: t for t in report.ledger.level_1}
    useful = next(t for t in report.ledger.level_2 if t.name == "useful")
    capacity = report.ledger.capacity_sm_seconds
    judged = [s for s in report.services if not math.isnan(s.kept_ratio)]
    kept = sum(s.kept_ratio * s.windows for s in judged) / sum(s.windows for s in judged) if judged else math.nan
    holding = sum(c.verdict == "holds" for c in report.claims.fights)
    waits = [q.wait_p50_seconds for q in report.queues if not math.isnan(q.wait_p50_seconds)]
    return (
        Tile(
            "useful work",
            percent(useful.sm_seconds / capacity if capacity else math.nan),
            f"of {plural(report.ledger.cards, 'card')}",
            "good",
        ),
        Tile(
            "held and idle",
            percent(terms["wasted"].ratio),
            cards_text(terms["wasted"].cards),
            "poor" if terms["wasted"].ratio > 0.1 else "plain",
        ),
        Tile("promises kept", percent(kept), f"of the time, {plural(len(judged), 'service')}", _kept_tone(kept)),
        Tile("fights", str(holding), "pairs on one card, proven", "fair" if holding else "good"),
        Tile("waiting", duration_text(max(waits)) if waits else NO_DATA, "median wait of the slowest queue"),
        Tile(
            "energy",
            energy_text(report.energy.joules),
            f"{number(report.energy.per_useful_sm_second_joules)} J a useful SM-second"
            if not math.isnan(report.energy.per_useful_sm_second_joules)
            else NO_DATA,
        ),
    )


def _kept_tone(ratio: float) -> Tone:
    if math.isnan(ratio):
        return "plain"
    return "good" if ratio >= 0.999 else "fair" if ratio >= 0.95 else "poor"


def _ledger(ledger: LedgerPart) -> Section:
    if not ledger.capacity_sm_seconds > 0:
        return Section("ledger", "Where the capacity went", (Note("No card was observed."),))
    first = [t for t in ledger.level_1]
    blocks: list[Block] = [
        Figure(_bar(first, "Where the capacity went"), "All cards over the whole time", _keys(first)),
        Table(
            ("", ">of capacity", ">as whole cards", "what it is"),
            tuple((t.name, percent(t.ratio), number(t.cards), _MEANING[t.name]) for t in first)
            + (
                (
                    "capacity",
                    "100 %",
                    number(float(ledger.cards)),
                    f"{plural(ledger.cards, 'card')} for {duration_text(ledger.hours * 3600)}",
                ),
            ),
        ),
    ]
    if len(ledger.by_hour) > 1:
        names = [t.name for t in first if t.name != "unaccounted"]
        columns = [[svg.Part(n, max(hour.ratios[n], 0.0)) for n in names] for hour in ledger.by_hour]
        starts = [hour.start for hour in ledger.by_hour]
        chart = svg.stacked_columns(columns, _hour_ticks(starts), "Where the capacity went, hour by hour")
        blocks.append(Figure(Drawing(chart, ""), "Hour by hour"))
    second = list(ledger.level_2)
    blocks += [
        Note("And of what was used:"),
        Figure(_bar(second, "What the use was good for"), "What the use was good for", _keys(second)),
        Table(
            ("", ">of use", ">as whole cards", "what it is"),
            tuple((t.name, percent(t.ratio), number(t.cards), _MEANING[t.name]) for t in second)
            + (("used", "100 %", number(sum(t.cards for t in second)), "as in the table above"),),
        ),
    ]
    if not math.isnan(ledger.price):
        wasted = next(t for t in ledger.level_1 if t.name == "wasted")
        blocks.append(
            Note(
                f"At the configured prices these cards cost {money(ledger.price, ledger.currency)}; what was held and idle cost {money(ledger.price * wasted.ratio, ledger.currency)} of it."
            )
        )
    blocks.append(_tenants(ledger))
    if ledger.assumed_sm_count:
        blocks.append(
            Note(
                f"The SM count of {plural(len(ledger.assumed_sm_count), 'card')} is not known and was assumed.", "fair"
            )
        )
    if ledger.estimated_quota:
        blocks.append(
            Note(
                f"The quota of {plural(len(ledger.estimated_quota), 'slice')} is not reported; an equal part of the card was taken."
            )
        )
    return Section("ledger", "Where the capacity went", tuple(blocks))


def _bar(terms: Sequence[Term], label: str) -> Drawing:
    words = ", ".join(f"{t.name} {percent(t.ratio)}" for t in terms)
    return Drawing(svg.stacked_bar([svg.Part(t.name, t.sm_seconds) for t in terms], f"{label}: {words}"), words)


def _keys(terms: Sequence[Term]) -> tuple[Key, ...]:
    return tuple(Key(t.name, t.name) for t in terms if t.sm_seconds > 0)


def _hour_ticks(starts: Sequence[datetime]) -> list[svg.Tick]:
    span = len(starts)
    step = 24 if span > 60 else 12 if span > 30 else 6 if span > 12 else 3
    return [
        svg.Tick((i + 0.0) / span, f"{t:%a %d}" if t.hour == 0 else f"{t:%H:%M}")
        for i, t in enumerate(starts)
        if t.hour % step == 0
    ]


def _tenants(ledger: LedgerPart) -> Table:
    priced = not math.isnan(ledger.price)
    head = ("tenant", ">used", ">useful", ">reserved", ">held and idle", ">idle card-hours", ">energy")
    rows: list[tuple[Cell, ...]] = []
    for t in ledger.tenants[:_MOST_ROWS]:
        row: tuple[Cell, ...] = (
            t.tenant, percent(t.used_ratio), percent(t.useful_ratio), percent(t.reserved_ratio), percent(t.wasted_ratio),
            number(t.wasted_card_hours), energy_text(t.energy_joules),
        )  # fmt: skip
        rows.append((*row, money(t.cost, ledger.currency)) if priced else row)
    return Table(
        (*head, ">cost") if priced else head,
        tuple(rows),
        "Tenants, of the capacity of all cards; those with most idle first",
        _more(len(ledger.tenants), len(rows), "tenant"),
    )


def _more(count: int, shown: int, word: str) -> str:
    return f"and {plural(count - shown, f'more {word}')}" if count > shown else ""


def _services(report: Report) -> Section:
    services = report.services
    blocks: list[Block] = []
    if not services:
        blocks.append(
            Note("No online workload has a declared promise; declare them under [[workload]] or by annotation.")
        )
    else:
        blocks.append(Table(
            ("service", "promise", ">kept", "~hour by hour", ">requests", ">within", ">worst p99"),
            tuple(_service_row(s) for s in services),
            "A minute counts as kept when the promised share of its requests met the bound",
        ))  # fmt: skip
        blocks.append(Note("One cell is one hour: all windows kept, at least 95 % of them, fewer, or no requests."))
    undeclared = report.quality.undeclared
    if undeclared:
        names = ", ".join(undeclared[:5]) + (f" and {len(undeclared) - 5} more" if len(undeclared) > 5 else "")
        blocks.append(
            Note(f"Nobody promised anything about {names}; they are treated as online and are never lowered.")
        )
    return Section("services", "Promises to online services", tuple(blocks))


def _service_row(s: Service) -> tuple[Cell, ...]:
    promise = f"{percent(s.share, 1)} of {s.quantity} within {duration_text(s.bound_seconds)}"
    name = f"{s.tenant}/{s.workload}"
    if s.missing:
        return (name, promise, NO_DATA, s.missing, NO_DATA, NO_DATA, NO_DATA)
    words = f"{name}: kept {percent(s.kept_ratio)} of {s.windows} windows"
    drawing = Drawing(svg.strip([ratio for _, ratio in s.by_hour], words), "")
    return (
        name,
        promise,
        Badge(percent(s.kept_ratio), _kept_tone(s.kept_ratio)),
        drawing,
        number(s.requests),
        percent(s.within_ratio, 2),
        duration_text(s.worst_p99_seconds),
    )


def _verdict(claim: Claim) -> Badge:
    return Badge(claim.verdict, "poor" if claim.verdict == "holds" else "fair")


def _waste(report: Report) -> Section:
    claims = report.claims.waste
    if not claims:
        return Section("waste", "Who holds and does not use", (Note("Nobody, as far as can be told.", "good"),))
    cards = tuple(
        Card(
            title=c.who,
            badge=_verdict(c),
            text=c.claim,
            facts=(
                ("finding", f"{c.code}, {c.title}"),
                ("size", _effect(c)),
                ("since", _since(c.since)),
                ("how sure", f"{percent(c.confidence)}, coverage {percent(c.coverage)}"),
                ("could be wrong", c.risk),
                ("what to do", c.action),
            ),
            command=c.check,
        )
        for c in claims[:_MOST_CARDS]
    )
    blocks: list[Block] = [Cards(cards)]
    if len(claims) > _MOST_CARDS:
        blocks.append(_claims_table(claims[_MOST_CARDS:], "More of them"))
    return Section("waste", "Who holds and does not use", tuple(blocks))


def _since(text: str) -> str:
    try:
        return instant_text(datetime.fromisoformat(text))
    except ValueError:
        return text or NO_DATA


def _effect(c: Claim) -> str:
    value = amount_text(c.effect_value, c.effect_unit)
    if math.isnan(c.effect_value) or c.effect_lower == c.effect_upper:
        return value
    return f"{value} ({amount_text(c.effect_lower, c.effect_unit)} to {amount_text(c.effect_upper, c.effect_unit)})"


def _claims_table(claims: Sequence[Claim], caption: str) -> Table:
    return Table(
        ("finding", "", "claim", ">size", ">sure", ">coverage"),
        tuple(
            (c.code, _verdict(c), c.claim, _effect(c), percent(c.confidence), percent(c.coverage))
            for c in claims[:_MOST_ROWS]
        ),
        caption,
        _more(len(claims), min(len(claims), _MOST_ROWS), "finding"),
    )


def _fights(report: Report) -> Section:
    claims = report.claims.fights
    undecided = report.claims.undecided.get("TT101", 0)
    blocks: list[Block] = []
    if not claims:
        blocks.append(Note("No pair on one card is known to disturb each other.", "good"))
    else:
        most = max(max(c.effect_upper, c.effect_value) for c in claims)
        rows: list[tuple[Cell, ...]] = []
        for c in claims[:_MOST_ROWS]:
            bar = svg.interval(c.effect_value, c.effect_lower, c.effect_upper, most, c.claim)
            rows.append(
                (c.who, c.victim, Drawing(bar, ""), _effect(c), _CHANNELS.get(c.channel, c.channel) or NO_DATA, c.where,
                 _verdict(c), percent(c.confidence))
            )  # fmt: skip
        blocks.append(
            Table(
                ("disturbs", "suffers", "~", ">slower by", "through", "where", "verdict", ">sure"),
                tuple(rows),
                "Time for a unit of the victim's work, while the other is busy; the line is the interval",
                _more(len(claims), len(rows), "pair"),
            )
        )
        blocks.append(Note(claims[0].action))
    if undecided:
        blocks.append(
            Note(
                f"For {plural(undecided, 'more pair')} it cannot be told; `trimtab analyze contention --all` says what would decide it."
            )
        )
    return Section("fights", "Who disturbs whom", tuple(blocks))


def _topic(id_: str, title: str, claims: Sequence[Claim], none: str) -> Section:
    if not claims:
        return Section(id_, title, (Note(none, "good"),))
    actions = dict.fromkeys(f"{c.code}, {c.title}: {c.action}" for c in claims)
    return Section(id_, title, (_claims_table(claims, ""), *(Note(text) for text in actions)))


def _stranded(report: Report) -> Section:
    return _topic("stranded", "What is stranded", report.claims.stranded, "Nothing: what is free can be had.")


def _limits(report: Report) -> Section:
    claims = report.claims.limits
    if not claims:
        return Section(
            "limits",
            "What limits the work",
            (Note("No limit was found, or the counters that show it are not exported."),),
        )
    kinds = Counter(c.title for c in claims)
    words = ", ".join(f"{title.lower()}: {plural(count, 'slice')}" for title, count in kinds.most_common())
    return Section("limits", "What limits the work", (Note(words), _claims_table(claims, "")))


def _health(report: Report) -> Section:
    return _topic("health", "Health of the cards", report.claims.health, "No card reported a fault.")


def _forecast(part: ForecastPart, risks: Sequence[Claim]) -> Section:
    blocks: list[Block] = []
    if part.missing or part.made_at is None:
        blocks.append(Note(f"There is no forecast: {part.missing}."))
    else:
        fleet = [line for line in part.lines if line.series == "fleet" and line.quantiles]
        if fleet:
            blocks.append(_fan(part, fleet))
        rows = [_forecast_row(line) for line in part.lines[: 2 * _MOST_ROWS]]
        blocks.append(
            Table(
                (
                    "series",
                    ">ahead",
                    ">median",
                    ">80 % of the time",
                    ">97.5 % below",
                    ">own error",
                    ">vs repeating the last",
                    "note",
                ),
                tuple(rows),
                "In cards; the error is the mean absolute error of the same forecaster on its own past",
                _more(len(part.lines), len(rows), "forecast"),
            )
        )
    if risks:
        blocks.append(_claims_table(risks, "What is about to run out"))
    return Section("forecast", "The days ahead", tuple(blocks))


def _forecast_row(line: ForecastLine) -> tuple[Cell, ...]:
    q = line.quantiles
    low, high = q.get("0.1", math.nan), q.get("0.9", math.nan)
    band = NO_DATA if math.isnan(low) else f"{number(low)} to {number(high)}"
    return (
        line.series,
        duration_text(line.horizon_seconds),
        number(q.get("0.5", math.nan)),
        band,
        number(q.get("0.975", math.nan)),
        number(line.error),
        NO_DATA if math.isnan(line.relative_to_last) else f"{line.relative_to_last:.2f}",
        line.note,
    )


def _fan(part: ForecastPart, fleet: Sequence[ForecastLine]) -> Figure:
    assert part.made_at is not None, "the caller looked"  # noqa: S101
    begin = part.past[0][0] if part.past else part.made_at
    end = part.made_at + timedelta(seconds=max(line.horizon_seconds for line in fleet))
    span = (end - begin).total_seconds()
    values = [v for _, v in part.past if not math.isnan(v)]
    top = (
        max([*values, *(line.quantiles["0.9"] for line in fleet if "0.9" in line.quantiles)], default=1.0) * 1.08 or 1.0
    )
    now = next((v for _, v in reversed(part.past) if not math.isnan(v)), math.nan)

    def across(at: datetime) -> float:
        return (at - begin).total_seconds() / span

    here = across(part.made_at)
    ahead = [(here, now / top, now / top, now / top)] if not math.isnan(now) else []
    ahead += [
        (here + line.horizon_seconds / span, *(line.quantiles[q] / top for q in ("0.1", "0.5", "0.9")))
        for line in fleet
        if {"0.1", "0.5", "0.9"} <= set(line.quantiles)
    ]
    days = [
        begin.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=i)
        for i in range(int(span / 86400) + 3)
    ]
    ticks = [svg.Tick(across(d), f"{d:%a %d}") for d in days if begin <= d <= end]
    if len(ticks) < 3:
        ticks = [
            svg.Tick(across(d + timedelta(hours=h)), f"{h:02d}:00")
            for d in days
            for h in (0, 6, 12, 18)
            if begin <= d + timedelta(hours=h) <= end
        ]
    label = "Cards used by the fleet, and what may come"
    chart = svg.fan(
        [(across(t), v / top) for t, v in part.past], ahead, ticks,
        [svg.Tick(0.5, f"{number(top / 2)} cards"), svg.Tick(1.0, f"{number(top)}")], label,
    )  # fmt: skip
    return Figure(
        Drawing(chart, ""), label, (Key("past", "was"), Key("band", "80 % of the time"), Key("median", "median"))
    )


def _changes(report: Report) -> Section:
    part = report.changes
    blocks: list[Block] = []
    if part.missing:
        return Section("changes", "What the tuner did", (Note(f"Nothing: {part.missing}."),))
    counts = ", ".join(f"{count} {state.replace('_', ' ')}" for state, count in part.counts.items())
    blocks.append(Note(f"Mode {part.mode}. Groups of changes: {counts or 'none'}."))
    if part.made:
        blocks.append(_change_table(part.made, "Made"))
    if part.rolled_back:
        blocks.append(_change_table(part.rolled_back, "Rolled back"))
    if part.would:
        blocks.append(_change_table(part.would, "Would be made"))
    if part.promises:
        blocks.append(
            Table(
                ("kind", ">held", ">did not", ">predicted, SM-seconds an hour", ">realised gain"),
                tuple(
                    (
                        p.kind,
                        str(p.passed),
                        str(p.other),
                        number(p.predicted_sm_seconds_per_hour),
                        percent(p.realised_ratio),
                    )
                    for p in part.promises
                ),
                "Predicted against realised (medians)",
            )
        )
    if part.drops:
        blocks.append(
            Table(
                ("guard", "", "reason", ">times"),
                tuple((d.guard, d.action, d.reason, str(d.count)) for d in part.drops[:_MOST_ROWS]),
                "What guards decided against",
                _more(len(part.drops), min(len(part.drops), _MOST_ROWS), "reason"),
            )
        )
    return Section("changes", "What the tuner did", tuple(blocks))


def _change_table(lines: Sequence[ChangeLine], caption: str) -> Table:
    return Table(
        ("when", "kind", "change", "why", "outcome"),
        tuple(
            (
                instant_text(line.at),
                line.kind,
                "; ".join(line.what),
                line.why,
                f"{line.state.replace('_', ' ')}: {line.reason}",
            )
            for line in lines[:_MOST_ROWS]
        ),
        caption,
        _more(len(lines), min(len(lines), _MOST_ROWS), "change"),
    )


def _queues(report: Report) -> Section:
    if not report.queues:
        return Section("queues", "Waiting for cards", (Note("No queue and no request was observed."),))
    return Section("queues", "Waiting for cards", (
        Table(
            ("tenant", ">started", ">median wait", ">95 % within", ">waiting now", ">longest now", ">waiting, mean"),
            tuple(
                (q.tenant, f"{q.started:,}", duration_text(q.wait_p50_seconds), duration_text(q.wait_p95_seconds),
                 number(q.waiting_now), duration_text(q.longest_now_seconds), number(q.pending_mean))
                for q in report.queues[:_MOST_ROWS]
            ),
            "Waits of the requests that started in this time",
            _more(len(report.queues), min(len(report.queues), _MOST_ROWS), "tenant"),
        ),
    ))  # fmt: skip


def _energy(report: Report) -> Section:
    energy = report.energy
    if math.isnan(energy.joules):
        return Section("energy", "Energy", (Note(f"{NO_DATA}: no card reports power or energy."),))
    rows: list[tuple[Cell, ...]] = [
        (t.tenant, energy_text(t.energy_joules), percent(t.energy_joules / energy.joules))
        for t in sorted(
            report.ledger.tenants,
            key=lambda t: (-t.energy_joules if t.energy_joules == t.energy_joules else 0, t.tenant),
        )[:_MOST_ROWS]  # noqa: PLR0124
    ]
    rows.append(
        (
            "nobody: idle power of what is not held",
            energy_text(energy.pool_joules),
            percent(energy.pool_joules / energy.joules),
        )
    )
    text = f"{energy_text(energy.joules)} by the meters of {plural(energy.cards_metered, 'card')}; {number(energy.per_useful_sm_second_joules)} J a useful SM-second."
    return Section(
        "energy",
        "Energy",
        (
            Note(text),
            Table(
                ("tenant", ">energy", ">share"),
                tuple(rows),
                "Attributed to tenants by quota and activity; no source measures it",
            ),
        ),
    )


def _census(report: Report) -> Section:
    quality = report.quality
    rows = []
    for u in quality.unanalysed:
        why = Counter(u.reasons).most_common(2)
        rows.append(
            (
                u.code,
                u.title,
                f"{u.analysed:,} of {u.subjects:,}",
                f"{u.withheld:,}",
                f"{u.not_applicable:,}",
                "; ".join(f"{n} {reason}" for reason, n in why),
            )
        )
    return Section("census", "What could not be analysed", (
        Note(f"{plural(quality.nodes, 'node')}, {plural(quality.cards, 'card')}, {plural(quality.slices, 'slice')} in all."),
        Table(("code", "", ">analysed", ">withheld", ">not meant", "why not"), tuple(rows)),
    ))  # fmt: skip


def _quality(report: Report) -> Section:
    quality = report.quality
    blocks: list[Block] = [
        Note(
            f"{percent(quality.coverage)} of the samples that the cards should have given are there.",
            _kept_tone(quality.coverage),
        )
    ]
    if quality.worst:
        blocks.append(
            Table(
                ("card", ">samples there"),
                tuple((f"{c.node}/{c.gpu}", percent(c.coverage)) for c in quality.worst[:_MOST_ROWS]),
                "Cards with gaps",
                _more(len(quality.worst), min(len(quality.worst), _MOST_ROWS), "card"),
            )
        )
    if quality.rejects:
        blocks.append(
            Table(
                ("field", "reason", ">subjects", ">samples"),
                tuple((r.field, r.reason, str(r.subjects), number(r.count)) for r in quality.rejects[:_MOST_ROWS]),
                "Samples that were turned away",
                _more(len(quality.rejects), min(len(quality.rejects), _MOST_ROWS), "reason"),
            )
        )
    if quality.events:
        blocks.append(
            Note("Events: " + ", ".join(f"{code} {count}" for code, count in sorted(quality.events.items())) + ".")
        )
    return Section("quality", "How good the data is", tuple(blocks))
