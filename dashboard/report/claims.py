"""Findings in the words of the report: who wastes, who disturbs whom, what is stranded, what limits, health."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from analyzer.codes import codes
from analyzer.contention.channel import CHANNEL_WORDS
from analyzer.findings import Finding, Role, SubjectRef, Verdict
from analyzer.health_board import CardHealth, health_board
from analyzer.hollow import HollowBusy
from collector.window import parse_instant
from collector.words import plural
from dashboard import svg
from dashboard.report.gathered import Gathered
from dashboard.report.model import Claim, Claims, HollowLine, Room, SickCard
from dashboard.report.view import (
    MOST_ROWS,
    Badge,
    Block,
    Card,
    Cards,
    Cell,
    Drawing,
    Note,
    Section,
    Table,
    drawn,
    more,
    numbers,
    prose,
    text,
)
from dashboard.report.words import amount, shorter
from dashboard.views.fragmentation import fleet_picture
from dashboard.views.names import CardNames, card_names, named
from dashboard.views.text import NO_DATA, number, percent, stamp
from tuner.state import Suppression

_FAMILY = {"TT1": "fights", "TT2": "stranded", "TT3": "waste", "TT4": "limits", "TT5": "risks", "TT6": "health"}
_CARDS = 6


def build_claims(gathered: Gathered) -> Claims:
    """Sort what holds or is suspected by what it speaks of; leave out what somebody suppressed."""
    parts: dict[str, list[Claim]] = {name: [] for name in _FAMILY.values()}
    undecided: Counter[str] = Counter()
    suppressed = 0
    names = card_names(gathered.analysis.facts)
    suppressions = gathered.records.suppressions if gathered.records is not None else ()
    shown: list[Finding] = []
    for finding in gathered.analysis.findings:
        if finding.verdict is Verdict.CANNOT_TELL:
            undecided[finding.code] += 1
        elif finding.verdict is not Verdict.NO_EFFECT:
            if any(s.covers(finding, gathered.analysis.window.end) for s in suppressions):
                suppressed += 1
            else:
                shown.append(finding)
                parts[_FAMILY[finding.code[:3]]].append(_claim(finding, names))
    found = {name: tuple(claims) for name, claims in parts.items()}
    return Claims(
        **found,
        undecided=dict(sorted(undecided.items())),
        suppressed=suppressed,
        rooms=tuple(room for f in fleet_picture(gathered.analysis.findings) for room in _rooms(f)),
        board=tuple(_sick(card, names) for card in health_board(shown)),
        hollow=tuple(_hollow(one) for one in gathered.analysis.hollow),
        idle_suppressions=_idle_suppressions(suppressions, gathered),
    )


def _sick(card: CardHealth, names: CardNames) -> SickCard:
    known = codes()
    why = dict.fromkeys(known[f.code].title if f.code in known else f.code for f in card.findings)
    name = names.get(card.gpu, f"{card.node} {card.gpu}")
    return SickCard(name, card.state.value, card.severity, ", ".join(why), named(card.what_to_do, names))


def _hollow(one: HollowBusy) -> HollowLine:
    return HollowLine(
        tenant=one.tenant,
        service_class=one.service_class,
        kind=one.kind,
        busy_card_hours=one.busy_card_seconds / 3600,
        sm_low_ratio=one.hollow["sm"],
        occupancy_low_ratio=one.hollow["occupancy"],
        tensor_low_ratio=one.hollow["tensor"],
        busy_overstates_sm_times=one.overstated,
    )


def _idle_suppressions(suppressions: Sequence[Suppression], gathered: Gathered) -> tuple[str, ...]:
    """Name the suppressions that have expired, and those that stood over the whole window and hid nothing in it."""
    window, told = gathered.analysis.window, []
    for s in suppressions:
        what = f"{s.code} on {s.subject} (number {s.id}, by {s.who})"
        if s.until is not None and s.until <= window.end:
            told.append(f"{what} expired on {stamp(s.until)}")
        elif s.at <= window.start and not any(s.covers(f, window.end) for f in gathered.analysis.findings):
            told.append(f"{what} hid nothing")
    return tuple(told)


def _claim(finding: Finding, names: CardNames) -> Claim:
    known = codes().get(finding.code)  # a plug-in's code has no page of ours
    effect, evidence = finding.effect, finding.evidence
    since = evidence.get("since") or evidence.get("first") or ""
    until = evidence.get("until") or ""
    return Claim(
        id=finding.id,
        code=finding.code,
        title=finding.code if known is None else known.title,
        verdict=finding.verdict.value,
        claim=named(finding.claim, names),
        who=_names([s for s in finding.subjects if s.role is not Role.VICTIM]),
        victim=_names([s for s in finding.subjects if s.role is Role.VICTIM]),
        where=", ".join(dict.fromkeys(filter(None, (_place(s) for s in finding.subjects)))),
        effect_value=math.nan if effect is None else effect.value,
        effect_lower=math.nan if effect is None else effect.lower,
        effect_upper=math.nan if effect is None else effect.upper,
        effect_unit="" if effect is None else effect.unit,
        channel=finding.channel or "",
        lag_seconds=math.nan if finding.lag_seconds is None else finding.lag_seconds,
        confidence=finding.confidence,
        coverage=finding.coverage,
        since=since.isoformat() if isinstance(since, datetime) else str(since),
        check=str(evidence.get("check") or ""),
        action=str(evidence.get("what_to_do") or ("" if known is None else known.action)).strip(),
        risk=finding.risk,
        owner=str(evidence.get("owner") or ""),
        until=until.isoformat() if isinstance(until, datetime) else str(until),
    )


def _names(subjects: Sequence[SubjectRef]) -> str:
    return ", ".join(dict.fromkeys(_name(s) for s in subjects))


def _name(s: SubjectRef) -> str:
    return f"{s.tenant}/{s.workload}" if s.workload else s.tenant or s.gpu or s.node or s.cluster


def _place(s: SubjectRef) -> str:
    return "/".join(part for part in (s.node, s.gpu) if part)


def waste_section(claims: Claims) -> Section:
    """Show idle holders as cards: who, since when, how to check."""
    title = "Who holds and does not use"
    if not claims.waste:
        none = "Nobody was found who held a slice for long without using it, or far more than was ever used of it."
        return Section("waste", title, (Note(none),))
    cards = tuple(
        Card(
            title=c.who,
            badge=_verdict(c),
            text=c.claim,
            facts=(
                ("finding", f"{c.code}, {c.title.lower()}"),
                ("size", _size(c)),
                *((("owner", c.owner),) if c.owner else ()),
                *((("since", stamp(parse_instant(c.since))),) if c.since else ()),
                *((("still so", f"at {stamp(parse_instant(c.until))}"),) if c.until and c.since else ()),
                ("how sure", f"{percent(c.confidence)}, on {percent(c.coverage)} of the samples"),
                ("may be wrong", c.risk),
                ("what to do", c.action),
            ),
            command=c.check,
        )
        for c in claims.waste[:_CARDS]
    )
    blocks: list[Block] = [Cards(cards)]
    if len(claims.waste) > _CARDS:
        blocks.append(claims_table(claims.waste[_CARDS:], "The others"))
    return Section("waste", title, tuple(blocks))


def _verdict(claim: Claim) -> Badge:
    return Badge(claim.verdict, "poor" if claim.verdict == Verdict.HOLDS else "fair")


def _size(c: Claim) -> str:
    value = amount(c.effect_value, c.effect_unit)
    if math.isnan(c.effect_value) or c.effect_lower == c.effect_upper:
        return value
    return f"{value} ({amount(c.effect_lower, c.effect_unit)} to {amount(c.effect_upper, c.effect_unit)})"


def claims_table(claims: Sequence[Claim], caption: str = "") -> Table:
    """Return one row a claim."""
    return Table(
        (*text("finding", "verdict"), *prose("claim"), *numbers("size", "sure", "coverage")),
        tuple(
            (c.code, _verdict(c), c.claim, _size(c), percent(c.confidence), percent(c.coverage))
            for c in claims[:MOST_ROWS]
        ),
        caption,
        more(len(claims), "finding"),
    )


def fights_section(claims: Claims) -> Section:
    """Show pairs: who slows whom on which card, by how much, through what, and how sure that is."""
    blocks: list[Block] = []
    pairs = claims.pairs
    apart = [claim for claim in claims.fights if claim.code == "TT111"]
    costs = [claim for claim in claims.fights if not claim.victim]
    if pairs:
        sizes = [size for c in pairs for size in (c.effect_value, c.effect_upper) if not math.isnan(size)]
        most = max(sizes, default=1.0) or 1.0
        blocks += [
            Table(
                (
                    *text("disturbs", "suffers"),
                    *numbers("slower by"),
                    *drawn(""),
                    *text("through", "where", "verdict"),
                    *numbers("sure"),
                ),
                tuple(_pair(c, most) for c in pairs[:MOST_ROWS]),
                "How much longer a unit of the victim's work takes while the other is busy; the line is the interval",
                more(len(pairs), "pair"),
            ),
            Note(pairs[0].action),
        ]
    else:
        blocks.append(Note("No two slices of one card are known to disturb each other.", "good"))
    if costs:
        blocks.append(claims_table(costs, "Workloads that lose too much by sharing, with whomever"))
    if apart:
        blocks.append(claims_table(apart, "Who must not share a card, met or not"))
    undecided = sum(count for code, count in claims.undecided.items() if code.startswith("TT10"))
    if undecided:
        text_ = f"For {plural(undecided, 'more pair')} it cannot be told; trimtab analyze contention --all says why."
        blocks.append(Note(text_))
    return Section("fights", "Who disturbs whom", tuple(blocks))


def _pair(c: Claim, most: float) -> tuple[Cell, ...]:
    label = shorter(c.claim)
    if math.isnan(c.effect_value):
        bar = svg.interval(0.0, 0.0, 0.0, label)
    else:
        bar = svg.interval(c.effect_value / most, c.effect_lower / most, c.effect_upper / most, label)
    return (
        c.who,
        c.victim,
        _size(c),
        Drawing(bar),
        CHANNEL_WORDS.get(c.channel, c.channel) or NO_DATA,
        c.where,
        _verdict(c),
        percent(c.confidence),
    )


def _rooms(finding: Finding) -> list[Room]:
    cluster = finding.subjects[0].cluster
    return [
        Room(
            cluster=cluster,
            pool=str(room["pool"]),
            model=str(room["model"]),
            cards=int(room["cards"]),
            free_cards=float(room["free_cards"]),
            largest_piece_ratio=float(room["largest_piece"]),
            most_whole_cards=int(room["most_whole_cards"]),
            fits_ratio=float(room["fits_part"]),
            biggest=str(room["biggest_placeable"] or ""),
        )
        for room in finding.evidence["rooms"]
    ]


def stranded_section(claims: Claims) -> Section:
    """Show what nobody can use, and what the free share of each pool and model can still take."""
    section = _topic("stranded", "What is stranded", claims.stranded, "Nothing that is free is out of reach.")
    if not claims.rooms:
        return section
    several = len({room.cluster for room in claims.rooms}) > 1
    table = Table(
        (
            *text("pool", "model"),
            *numbers("cards", "free", "largest piece", "whole on a node", "of the mix fits"),
            *prose("biggest request that fits"),
        ),
        tuple(
            (
                f"{room.cluster}: {room.pool}" if several else room.pool,
                room.model or NO_DATA,
                str(room.cards),
                f"{room.free_cards:.1f}",
                percent(room.largest_piece_ratio),
                str(room.most_whole_cards),
                percent(room.fits_ratio),
                room.biggest or "none",
            )
            for room in claims.rooms[:MOST_ROWS]
        ),
        "What still fits on shared and whole cards",
        more(len(claims.rooms), "room"),
    )
    return Section(section.id, section.title, (*section.blocks, table))


def limits_section(claims: Claims) -> Section:
    """Show what keeps work from running faster, first as counts; and how much of the busy time is hollow."""
    none = "No limit was found in the slices whose counters tell."
    section = _topic("limits", "What limits the work", claims.limits, none)
    kinds = Counter(c.title for c in claims.limits)
    blocks = section.blocks
    if kinds:
        words = ", ".join(f"{title.lower()}: {plural(count, 'slice')}" for title, count in sorted(kinds.items()))
        blocks = (Note(f"{words[:1].upper()}{words[1:]}."), *blocks)
    if claims.hollow:
        blocks = (*blocks, _hollow_table(claims.hollow))
    return Section(section.id, section.title, blocks)


def _hollow_table(lines: Sequence[HollowLine]) -> Table:
    return Table(
        (
            *text("tenant", "class", "held as"),
            *numbers("busy card-hours", "SM low", "occupancy low", "tensor low", "busy overstates"),
        ),
        tuple(
            (
                line.tenant,
                line.service_class,
                line.kind,
                number(line.busy_card_hours),
                percent(line.sm_low_ratio),
                percent(line.occupancy_low_ratio),
                percent(line.tensor_low_ratio),
                number(line.busy_overstates_sm_times, "times", 2),
            )
            for line in lines[:MOST_ROWS]
        ),
        "Hollow parts of the time in which cards report busy: SMs below 50 %, occupancy below 25 %, tensor below 10 %",
        more(len(lines), "row"),
    )


def health_section(claims: Claims) -> Section:
    """Show which cards to take out of sharing, and all that reported faults or went away."""
    section = _topic("health", "Health of the cards", claims.health, "No card reported a fault.")
    if not claims.board:
        return section
    board = Table(
        text("card", "state", "severity", "why") + prose("what to do"),
        tuple((card.card, card.state, card.severity, card.why, card.action) for card in claims.board[:MOST_ROWS]),
        "Cards with a fault, worst first",
        more(len(claims.board), "card"),
    )
    return Section(section.id, section.title, (board, *section.blocks))


def _topic(id_: str, title: str, claims: Sequence[Claim], none: str) -> Section:
    if not claims:
        return Section(id_, title, (Note(none, "good"),))
    # A fault's claim ends with what to do about it; that need not be said twice.
    actions = dict.fromkeys(f"{c.code}, {c.title}. {c.action}" for c in claims if c.action not in c.claim)
    return Section(id_, title, (claims_table(claims), *(Note(action) for action in actions)))
