"""How `trimtab analyze` prints an analysis for people: findings, ledger, who holds idle, what is free, the census."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from rich.text import Text

from analyzer.findings import CLAIMS, Finding, Role, SubjectRef, Verdict
from analyzer.health_board import CardState, health_board
from analyzer.hollow import MEASURES, fleet_hollow
from analyzer.ledger import LEVEL_1, LEVEL_2
from collector.words import plural
from dashboard.cli.open_pairs import Probes
from dashboard.cli.output import note, print_table, say, say_origin
from dashboard.views.names import CardNames, card_names, named
from dashboard.views.text import gib, number, percent, seconds, stamp
from dashboard.views.waste import action_cards, tenant_table
from tuner.service.analyse import Analysis

NO_FINDING = "nothing was found"
STYLES = {Verdict.HOLDS: "bold red", Verdict.SUSPECTED: "yellow", Verdict.CANNOT_TELL: "dim", Verdict.NO_EFFECT: "dim"}
_MOST_FREE = 20
_MOST_HOLDERS = 12
_SHORT_ID = 12  # enough to tell findings of one code apart; `explain` takes any beginning


def print_analysis(analysis: Analysis, *, every: bool, hidden: frozenset[str] = frozenset()) -> None:
    """Print findings, ledger and census for people; findings in `hidden` are counted and not listed."""
    note(f"{analysis.window.start:%Y-%m-%d %H:%M} to {analysis.window.end:%Y-%m-%d %H:%M} UTC")
    say_origin(simulated=analysis.simulated)
    wanted = tuple(f for f in analysis.findings if f.id not in hidden)
    shown = tuple(f for f in wanted if every or f.verdict in CLAIMS)
    print_findings(shown, card_names(analysis.facts))
    if hidden:
        say(f"{plural(len(hidden), 'finding')} suppressed, not listed; `trimtab suppress` says which and why")
    rest = Counter(f.verdict.value for f in wanted if f not in shown)
    if rest:
        others = ", ".join(f"{count} {verdict}" for verdict, count in sorted(rest.items()))
        say(f"not listed: {others}; --all lists them")
    _print_cards(analysis)
    _print_idle(shown, card_names(analysis.facts))
    _print_ledger(analysis)
    _print_tenants(analysis)
    _print_hollow(analysis)
    _print_free(analysis)
    _print_moves(analysis)
    _print_waiting(analysis)
    _print_census(analysis)


def print_probes(probes: Probes, names: CardNames) -> None:
    """Print which probes would decide open pairs, and why others cannot be run; cards by their names."""
    for change_id, why in probes.planned.items():
        say(f"a probe is planned: {named(why, names)}; `trimtab changes show {change_id}`")
    for line in probes.withheld:
        say(named(line, names))


def print_findings(findings: tuple[Finding, ...], names: CardNames) -> None:
    """Print one line a finding, cards by their names."""
    print_table(
        ["code", "id", "verdict", "subject", "claim", ">effect", ">sure", ">coverage"],
        [
            (
                finding.code,
                finding.id[:_SHORT_ID],
                Text(finding.verdict.value, style=STYLES[finding.verdict]),
                subjects_text(finding, names),
                named(finding.claim, names),
                effect_text(finding),
                f"{finding.confidence:.0%}",
                f"{finding.coverage:.0%}",
            )
            for finding in findings
        ],
        empty=NO_FINDING,
    )


def subjects_text(finding: Finding, cards: CardNames) -> str:
    """Return who a finding speaks of: `suspect -> victim` for a pair."""
    by_role = {role: [_subject_text(s, cards) for s in finding.subjects if s.role is role] for role in Role}
    if by_role[Role.SUSPECT] and by_role[Role.VICTIM]:
        return f"{', '.join(by_role[Role.SUSPECT])} -> {', '.join(by_role[Role.VICTIM])}"
    names = [name for names in by_role.values() for name in names]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _subject_text(subject: SubjectRef, cards: CardNames) -> str:
    who = f"{subject.tenant}/{subject.workload}" if subject.workload else ""
    if not who and subject.gpu in cards:
        return cards[subject.gpu]
    where = "/".join(part for part in (subject.node, subject.gpu if not who else "") if part)
    return f"{who} on {where}" if who and where else who or where or subject.tenant or subject.cluster


def effect_text(finding: Finding) -> str:
    """Return the size of what is claimed, with its interval where it has one."""
    effect = finding.effect
    if effect is None:
        return "-"
    if effect.unit == "ratio":
        value, low, high = (f"{part:z.0%}" for part in (effect.value, effect.lower, effect.upper))
    elif effect.unit == "bytes":
        value, low, high = (f"{part / 2**30:.1f} GiB" for part in (effect.value, effect.lower, effect.upper))
    elif effect.unit == "seconds":
        value, low, high = (seconds(part) for part in (effect.value, effect.lower, effect.upper))
    else:
        unit = {"count": "", "gpu_hours": " card-hours"}.get(effect.unit, f" {effect.unit}")
        value, low, high = f"{effect.value:.3g}{unit}", f"{effect.lower:.3g}", f"{effect.upper:.3g}"
    return value if low == high else f"{value} ({low} to {high})"


def _print_ledger(analysis: Analysis) -> None:
    fleet = analysis.ledger.fleet
    capacity = float(fleet["capacity"])
    if not capacity > 0:
        return
    say("")
    for title, names in (
        ("where the capacity went", (*LEVEL_1, "unaccounted_1")),
        ("of it, used was", (*LEVEL_2, "unaccounted_2")),
    ):
        shares = (f"{name.removesuffix('_1').removesuffix('_2')} {fleet[name] / capacity:z.1%}" for name in names)
        say(f"{title}: {', '.join(shares)}")


def _print_cards(analysis: Analysis) -> None:
    """Print which cards should get no shared work; nothing where all may."""
    names = card_names(analysis.facts)
    out = [card for card in health_board(analysis.findings) if card.state is CardState.TAKE_OUT]
    if not out:
        return
    say("")
    print_table(
        ["card", "severity", "what to do"],
        [(names.get(c.gpu, f"{c.node} {c.gpu}"), c.severity, named(c.what_to_do, names)) for c in out],
        title="take these cards out of sharing",
    )


def _print_idle(findings: Sequence[Finding], names: CardNames) -> None:
    """Print whom to ask about what is held and idle, and how to check that it is; nothing where nothing is."""
    cards = action_cards(findings, names)
    if not cards:
        return
    say("")
    print_table(
        ["who", "state", "since (UTC)", "still so at", ">wasted", "holds", "ask", "how to check"],
        [
            (c.who, c.state, f["since"], f["still so"], f["wasted"], f["holds"], c.owner, c.check)
            for c in cards[:_MOST_HOLDERS]
            for f in [dict(c.facts)]
        ],
        title="who holds and does not use",
    )
    if len(cards) > _MOST_HOLDERS:
        say(f"and {len(cards) - _MOST_HOLDERS} more; --json lists them")


def _print_tenants(analysis: Analysis) -> None:
    """Print each tenant's part of all capacity, most wasted first; nothing where nobody held anything."""
    table = tenant_table(analysis.ledger, analysis.accounts)
    if table.empty:
        return
    shares = ["used", "useful", "reserved", "wasted", "unobserved"]
    say("")
    print_table(
        ["tenant", *(f">{name}" for name in shares), ">borrowed", ">starved", ">energy"],
        [
            (
                row["tenant"],
                *(percent(row[name] / 100, 1) for name in shares),
                *(number(row[name], "card-hours") for name in ("borrowed", "starved")),
                number(row["energy"], "kWh"),
            )
            for row in table.head(_MOST_HOLDERS).to_dict("records")
        ],
        title="by tenant, of all capacity",
    )
    if len(table) > _MOST_HOLDERS:
        say(f"and {len(table) - _MOST_HOLDERS} more; --json lists them")


def _print_hollow(analysis: Analysis) -> None:
    """Print how much of the busy time is hollow; nothing where no card was busy, or none tells more."""
    fleet = fleet_hollow(analysis.hollow)
    if fleet is None or all(math.isnan(share) for share in fleet.hollow.values()):
        return
    say("")
    print_table(
        ["who", "class", "held as", ">busy card-hours", *(f">{name} low" for name in MEASURES), ">busy overstates"],
        [
            (
                h.tenant or "all",
                h.service_class,
                h.kind,
                number(h.busy_card_seconds / 3600),
                *(percent(h.hollow[name]) for name in MEASURES),
                "no data" if math.isnan(h.overstated) else f"{h.overstated:.1f} times",
            )
            for h in [fleet, *analysis.hollow[:_MOST_HOLDERS]]
        ],
        title="of the time that cards report busy, how much is hollow",
    )


def _print_free(analysis: Analysis) -> None:
    """Print what nobody holds now; nothing where all is held."""
    if not analysis.free:
        return
    names = card_names(analysis.facts)
    say("")
    say(f"free now, {plural(len(analysis.free), 'place')}:")
    print_table(
        ["card", "slice", ">share", ">memory", "since (UTC)"],
        [
            (named(f.gpu, names), f.profile or "-", percent(f.share), gib(f.memory_bytes), stamp(f.since))
            for f in analysis.free[:_MOST_FREE]
        ],
    )
    if len(analysis.free) > _MOST_FREE:
        say(f"and {len(analysis.free) - _MOST_FREE} more; --json lists them")


def _print_moves(analysis: Analysis) -> None:
    """Print whose quota could go to whom."""
    if not analysis.moves:
        return
    names = card_names(analysis.facts)
    say("")
    say("quota that could move:")
    print_table(
        ["from", "to", "where", ">how much", "why"],
        [
            (
                "/".join(filter(None, (m.donor_tenant, m.donor_workload))),
                "/".join(filter(None, (m.receiver_tenant, m.receiver_workload))),
                named(m.place, names),
                f"{_much(m.target, m.unit)} ({_much(m.lower, m.unit)} to {_much(m.upper, m.unit)})",
                m.why,
            )
            for m in analysis.moves
        ],
    )


def _much(amount: float, unit: str) -> str:
    return f"{amount:.0%}" if unit == "ratio" else number(amount, unit)


def _print_waiting(analysis: Analysis) -> None:
    """Print who waited for cards; nothing where nobody did."""
    waiting = analysis.waiting
    if not waiting:
        return
    say("")
    several = len({w.cluster for w in waiting}) > 1
    print_table(
        ["tenant", "pool", ">unmet", ">granted", ">median", ">95 %", ">now"],
        [
            (
                f"{w.cluster}: {w.tenant}" if several else w.tenant,
                w.pool,
                number(w.unmet_card_hours),
                number(w.admitted),
                seconds(w.wait_p50_seconds),
                seconds(w.wait_p95_seconds),
                number(w.waiting_now),
            )
            for w in waiting
        ],
        title="waiting for cards: unmet card-hours; waits of those that were granted; how many wait now",
    )


def _print_census(analysis: Analysis) -> None:
    census = analysis.census
    say("")
    counts = (plural(census.nodes, "node"), plural(census.cards, "card"), plural(census.slices, "slice"))
    say(", ".join(counts))
    rows = []
    for code in census.codes:
        reasons = sorted(code.reasons.items(), key=lambda item: -item[1])
        why = "; ".join(f"{count} {reason}" for reason, count in reasons[:2])
        rows.append((code.code, f"{code.analysed} of {code.subjects}", code.withheld, code.not_applicable, why))
    print_table(["code", ">analysed", ">withheld", ">not meant", "why"], rows)
