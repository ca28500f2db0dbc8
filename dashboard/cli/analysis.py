"""`trimtab analyze`: findings with their evidence, the ledger, and the census of what could not be analysed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from analyzer.codes import codes
from analyzer.findings import CLAIMS, Finding, Role, SubjectRef, Verdict
from analyzer.health_board import CardState, health_board
from analyzer.hollow import MEASURES, fleet_hollow
from analyzer.ledger import LEVEL_1, LEVEL_2
from collector.errors import ConfigurationError, InputRejectedError
from collector.protocols import StoreReader
from collector.window import Window, parse_duration, parse_instant
from dashboard.cli.allocator import devices_of, document, print_devices, read_memory_snapshot
from dashboard.cli.context import (
    Context,
    Json,
    Now,
    Rows,
    context_of,
    flag,
    interval_of,
    newest_instant,
    opened_rows,
    opened_state,
)
from dashboard.cli.moves import BINDING, plan_options, plan_snapshot, show_plan
from dashboard.cli.open_pairs import Probes, probes_of
from dashboard.cli.output import note, print_json, print_table, say, say_origin
from dashboard.cli.snapshot import print_snapshot
from dashboard.views.names import CardNames, card_names, named
from dashboard.views.text import gib, number, percent, plural, seconds, stamp
from tuner.service.analyse import Analysis, load_detectors, run_analysis
from tuner.service.defragment import Objective

NO_FINDING = "nothing was found"
STYLES = {Verdict.HOLDS: "bold red", Verdict.SUSPECTED: "yellow", Verdict.CANNOT_TELL: "dim", Verdict.NO_EFFECT: "dim"}


class Family(StrEnum):
    """Families of findings."""

    CONTENTION = "contention"
    FRAGMENTATION = "fragmentation"
    IDLE = "idle"
    BOTTLENECK = "bottleneck"
    FORECAST = "forecast"
    HEALTH = "health"


_MOST_FREE = 20
_SHORT_ID = 12  # enough to tell findings of one code apart; `explain` takes any beginning
_DETECTORS = {  # else the one of the family's name
    Family.CONTENTION: ("contention", "colocation", "sharing-cost"),
    Family.FRAGMENTATION: ("fragmentation", "sharing-memory", "allocator"),
    Family.FORECAST: ("forecast", "exhaustion"),
    Family.HEALTH: ("health", "health-errors", "health-metrics", "isolation"),
}


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    app.command(rich_help_panel="Look")(analyze)


def analyze(
    ctx: typer.Context,
    family: Annotated[
        Family | None,
        typer.Argument(
            metavar="[FAMILY]",
            help="Only contention, fragmentation, idle, bottleneck, forecast or health; else all of them.",
        ),
    ] = None,
    *,
    rows: Rows = None,
    snapshot: Annotated[
        list[Path] | None,
        typer.Option(
            "--snapshot",
            metavar="FILE",
            help="With fragmentation: a cluster at one instant, as JSON, CSV or `kubectl get nodes,pods -A -o json`.",
        ),
    ] = None,
    window: Annotated[
        str | None, typer.Option("--window", metavar="LENGTH", help="Such as 6h or 2d; else that of [analyze].")
    ] = None,
    now: Now = None,
    select: Annotated[
        list[str] | None, typer.Option("--select", metavar="CODE", help="Only this code or beginning of codes (TT3).")
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option("--ignore", metavar="CODE", help="Leave out this code or beginning of codes.")
    ] = None,
    fail_on: Annotated[
        list[str] | None,
        typer.Option("--fail-on", metavar="CODE", help="Exit 1 when a finding with such a code holds (TT6; TT: any)."),
    ] = None,
    allocator: Annotated[
        Path | None,
        typer.Option(
            "--allocator",
            metavar="FILE",
            help="With fragmentation: a PyTorch memory snapshot; what it holds, and what setting would help.",
        ),
    ] = None,
    plan: Annotated[
        Objective | None,
        typer.Option(
            "--plan",
            metavar="room|demand|free-cards",
            help="With fragmentation: moves that make room for a request, for most of the demand, or free cards.",
        ),
    ] = None,
    request: Annotated[
        str | None,
        typer.Option(
            "--for", metavar="REQUEST", help="With --plan room: 0.5, 2, 1g.10gb; also 0.5,memory=20,type=A100."
        ),
    ] = None,
    moves: Annotated[
        int | None,
        typer.Option("--moves", metavar="N", min=0, help="With --plan: at most so many; else 3 % of the pods, or 5."),
    ] = None,
    executor: Annotated[
        str | None,
        typer.Option(
            "--executor",
            metavar="WHERE",
            help="Where nodes are measured: here, processes, processes:N or a Dask scheduler (tcp://host:8786).",
        ),
    ] = None,
    every: Annotated[bool, flag("--all", help="Also list what cannot be told, and pairs without effect.")] = False,
    json: Json = False,
) -> None:
    """Find who wastes, who fights, what is stranded and what is about to break.

    The window ends with the newest row, or at --now.
    """
    if allocator is not None:
        if family is not Family.FRAGMENTATION:
            raise ConfigurationError("--allocator speaks of fragmentation: say `trimtab analyze fragmentation`")
        memory = read_memory_snapshot(allocator)
        devices = devices_of(memory)
        if json:
            print_json(document(memory, devices))
        else:
            print_devices(memory, devices)
        return
    options = plan_options(plan, request, moves, fragmentation=family is Family.FRAGMENTATION)
    _known_codes(fail_on)
    context = context_of(ctx)
    if snapshot:
        if family is not Family.FRAGMENTATION or rows:
            raise ConfigurationError("expected `analyze fragmentation --snapshot FILE`, without --rows")
        if options is not None:
            plan_snapshot(snapshot, options, context.settings.analyze, json=json)
            return
        found = print_snapshot(snapshot, context.clock.now() if now is None else parse_instant(now), json=json)
        _fail(found.findings, fail_on)
        return
    settings = context.settings.analyze
    changed = {"select": select, "ignore": ignore}
    settings = settings.model_copy(update={key: tuple(value) for key, value in changed.items() if value})
    if executor is not None:
        settings = settings.model_copy(update={"executor": executor})
    families = _DETECTORS.get(family, (family.value,)) if family else ()
    detectors = load_detectors(settings, families if options is None else BINDING)
    if not detectors:
        raise ConfigurationError("no detector is left: the selected codes are given by none; see `trimtab explain`")
    with opened_rows(context, rows) as store:
        configured, length = context.settings.cluster.interval_seconds, window or settings.window
        looked_at = Window.last(newest_instant(store, now, configured), parse_duration(length))
        interval = interval_of(store, configured, looked_at)
        span = analysed_window(store, now, length, interval)
        analysis = run_analysis(
            store,
            span,
            interval_seconds=interval,
            settings=settings,
            detectors=detectors,
            declarations=context.settings.workload,
        )
        if options is not None:
            show_plan(store, analysis, options, settings, interval_seconds=interval, json=json)
            return
    hidden = {} if rows else hidden_ids(context, analysis)
    probes = probes_of(context, analysis, of_files=bool(rows))
    if json:
        print_json({**analysis.to_json(), "suppressed": hidden, "probes": asdict(probes)})
    else:
        print_analysis(analysis, every=every, hidden=frozenset(hidden))
        _print_probes(probes)
    _fail([f for f in analysis.findings if f.id not in hidden], fail_on)


def _known_codes(fail_on: Sequence[str] | None) -> None:
    for code in fail_on or ():
        if not any(known.startswith(code) for known in codes()):
            raise ConfigurationError(
                f"expected a finding code or its beginning as --fail-on, such as TT6, got {code!r}"
            )


def _fail(findings: Iterable[Finding], fail_on: Sequence[str] | None) -> None:
    holding = {f.code for f in findings if f.verdict is Verdict.HOLDS}
    if any(code.startswith(prefix) for code in holding for prefix in fail_on or ()):
        raise typer.Exit(1)


def analysed_window(store: StoreReader, now: str | None, length: str, interval_seconds: float) -> Window:
    """Return the window that ends at `now`, else with the newest row, cut to where rows begin.

    Raises:
        InputRejectedError: there is no row in it.
    """
    window = Window.last(newest_instant(store, now, interval_seconds), parse_duration(length))
    starts = [span.start for name in ("gpu", "slice", "queue") if (span := store.span(name)) is not None]
    oldest = min(starts, default=window.end)
    if oldest >= window.end or not store.partitions(window):
        text = f"expected rows between {window.start:%Y-%m-%d %H:%M} and {window.end:%Y-%m-%d %H:%M} UTC, found none"
        raise InputRejectedError(f"{text}; set --window or --now")
    return Window(max(window.start, oldest), window.end)


def hidden_ids(context: Context, analysis: Analysis) -> dict[str, int]:
    """Return id -> number of the suppression that hides it, of the findings that somebody does not want to see."""
    if not context.has_state:
        return {}
    from tuner.state import list_suppressions  # noqa: PLC0415  SQLAlchemy loads slowly

    with opened_state(context) as state:
        active = list_suppressions(state, active_at=analysis.window.end)
    covered = (
        (f.id, next((s.id for s in active if s.covers(f, analysis.window.end)), None)) for f in analysis.findings
    )
    return {finding: number for finding, number in covered if number is not None}


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
    _print_ledger(analysis)
    _print_hollow(analysis)
    _print_free(analysis)
    _print_moves(analysis)
    _print_waiting(analysis)
    _print_census(analysis)


def _print_probes(probes: Probes) -> None:
    for change_id, why in probes.planned.items():
        say(f"a probe is planned: {why}; `trimtab changes show {change_id}`")
    for line in probes.withheld:
        say(line)


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
        value, low, high = f"{effect.value:.0%}", f"{effect.lower:.0%}", f"{effect.upper:.0%}"
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
        shares = (f"{name.removesuffix('_1').removesuffix('_2')} {fleet[name] / capacity:.1%}" for name in names)
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


def _print_hollow(analysis: Analysis) -> None:
    """Print how much of the busy time is hollow; nothing where no card was busy."""
    fleet = fleet_hollow(analysis.hollow)
    if fleet is None:
        return
    told = [(name, fleet.hollow[name]) for name in MEASURES if not math.isnan(fleet.hollow[name])]
    if told:
        parts = ", ".join(f"{name} low {share:.0%}" for name, share in told)
        times = "" if math.isnan(fleet.overstated) else f"; busy overstates the SMs {fleet.overstated:.1f} times"
        say(f"of the time that cards report busy: {parts}{times}")


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
    say(f"{census.nodes} nodes, {census.cards} cards, {census.slices} slices")
    rows = []
    for code in census.codes:
        reasons = sorted(code.reasons.items(), key=lambda item: -item[1])
        why = "; ".join(f"{count} {reason}" for reason, count in reasons[:2])
        rows.append((code.code, f"{code.analysed} of {code.subjects}", code.withheld, code.not_applicable, why))
    print_table(["code", ">analysed", ">withheld", ">not meant", "why"], rows)
