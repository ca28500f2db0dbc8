"""`trimtab analyze`: findings with their evidence, the ledger, and the census of what could not be analysed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from analyzer.codes import codes
from analyzer.findings import Finding, Verdict
from collector.errors import ConfigurationError, InputRejectedError
from collector.protocols import StoreReader
from collector.window import Window, parse_duration, parse_instant
from dashboard.cli.allocator import devices_of, document, print_devices, read_memory_snapshot
from dashboard.cli.analysis_tables import print_analysis, print_probes
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
from dashboard.cli.open_pairs import probes_of
from dashboard.cli.output import print_json
from dashboard.cli.snapshot import print_snapshot
from dashboard.views.names import card_names
from tuner.service.analyse import Analysis, load_detectors, run_analysis
from tuner.service.moves_plan import Objective


class Family(StrEnum):
    """Families of findings."""

    CONTENTION = "contention"
    FRAGMENTATION = "fragmentation"
    IDLE = "idle"
    BOTTLENECK = "bottleneck"
    FORECAST = "forecast"
    HEALTH = "health"


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
        print_probes(probes, card_names(analysis.facts))
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
    from tuner.state import suppressed  # noqa: PLC0415  SQLAlchemy loads slowly

    with opened_state(context) as state:
        return suppressed(state, analysis.findings, analysis.window.end)
