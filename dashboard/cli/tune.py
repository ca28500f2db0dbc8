"""`trimtab tune`: plan, guard, ask or act, verify; once or in a loop."""

from __future__ import annotations

import os
import socket
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from collector.clock import Clock, VirtualClock
from collector.errors import ConfigurationError
from collector.plugins import load_plugin
from collector.protocols import StoreReader
from collector.window import parse_instant
from dashboard.cli.changes import change_text, document
from dashboard.cli.context import Context, Json, Now, Once, context_of, interval_of, opened_state, opened_store
from dashboard.cli.logs import start_logging
from dashboard.cli.output import note, print_json, print_table, say, say_origin
from dashboard.cli.tuning import PANEL
from dashboard.config import Settings
from dashboard.origin import is_simulated
from dashboard.stopping import stopped_by_signals
from tuner.backends.dry_run import DryRunBackend
from tuner.backends.store_view import common_knobs, read_store
from tuner.model import Backend, Mode
from tuner.settings import BackendSettings

if TYPE_CHECKING:
    from collector.protocols import Store
    from tuner.service.cycle import CycleResult, Tuner
    from tuner.state import State

DRY_RUN = "dry-run"
DECISIONS = {"write_down": "recommended", "ask": "waits for an answer", "go": "carried out"}
READ_BACK = timedelta(minutes=15)  # a quota that no row told for so long is unknown


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    app.command(rich_help_panel=PANEL)(tune)


def tune(
    ctx: typer.Context,
    *,
    mode: Annotated[
        Mode | None,
        typer.Option("--mode", metavar="recommend|approve|auto", help="How far it may go; else that of [tuner]."),
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option("--backend", metavar="NAME", help="What carries changes out; else that of [[backend]]."),
    ] = None,
    once: Once = False,
    now: Now = None,
    json: Json = False,
) -> None:
    """Plan changes of quotas; write them down, ask for them, or carry them out and watch them.

    recommend writes down what it would do and changes nothing; approve waits for `trimtab changes approve`; auto acts
    within the guards. `trimtab pause` stops it at once.
    """
    context = context_of(ctx)
    if (now is not None or json) and not once:
        raise ConfigurationError("--now and --json speak of one cycle; expected --once beside them, found none; add it")
    clock: Clock = context.clock if now is None else VirtualClock(parse_instant(now))
    start_logging(context.settings.log)
    chosen = chosen_backend(context.settings, backend)
    dry = chosen.kind == DRY_RUN  # it has quotas from the store; what others tell becomes rows
    with opened_store(context, read_only=dry) as store, opened_state(context, make=True) as state:
        tuner = make_tuner(context, store, state, clock=clock, mode=mode, backend=chosen)
        try:
            tuner.watch.warm(clock.now(), history_length(context, store, clock))
            if once:
                result = tuner.run_once(clock.now())
                simulated = is_simulated(store)
                if json:
                    print_json({**result_document(result), "simulated": simulated})
                else:
                    say_origin(simulated=simulated)
                    print_result(result)
                return
            with stopped_by_signals() as stop:
                note(f"a cycle every {context.settings.tuner.cycle_seconds:g} s until stopped; see `trimtab changes`")
                tuner.run(stop)
            if stop.by_interrupt:
                raise typer.Exit(130)
        finally:
            tuner.close()


def history_length(context: Context, store: StoreReader, clock: Clock) -> timedelta:
    """Return how far back there is something to learn from, at most `[forecast] history_days`."""
    most = timedelta(days=context.settings.forecast.history_days)
    span = store.span("slice")
    return timedelta() if span is None else max(min(most, clock.now() - span.start), timedelta())


def make_tuner(
    context: Context, store: Store, state: State, *, clock: Clock, mode: Mode | None, backend: BackendSettings
) -> Tuner:
    """Put a tuner together from the configuration."""
    from tuner.service.analyse import load_detectors  # noqa: PLC0415  scikit-learn loads slowly
    from tuner.service.cycle import Tuner, TunerParts  # noqa: PLC0415

    settings = context.settings
    return Tuner(
        TunerParts(
            store=store,
            backend=make_backend(backend, store, clock),
            read_back=backend.kind != DRY_RUN,
            state=state,
            clock=clock,
            settings=settings.tuner if mode is None else settings.tuner.model_copy(update={"mode": mode}),
            state_settings=settings.state,
            interval_seconds=interval_of(store, settings.cluster.interval_seconds),
            analyze=settings.analyze,
            detectors=load_detectors(settings.analyze),
            declarations=settings.workload,
            calendars=settings.calendar,
            holder=f"{socket.gethostname()}:{os.getpid()}",
        )
    )


def chosen_backend(settings: Settings, name: str | None) -> BackendSettings:
    """Return the table of the backend that was asked for, else the one that is configured, else the dry run's.

    Raises:
        ConfigurationError: several are configured and none was asked for, or it lives inside the demo only.
    """
    tables = settings.backend
    if len(tables) > 1 and name is None:
        kinds = ", ".join(table.kind for table in tables)
        raise ConfigurationError(f"expected one [[backend]] or --backend NAME, got {len(tables)} tables: {kinds}")
    named = [table for table in tables if name in (None, table.kind)]
    found = named[0] if named else BackendSettings(kind=name or DRY_RUN)
    if found.kind == "simulator":
        raise ConfigurationError("the backend `simulator` lives inside a simulated cluster; run `trimtab demo`")
    return found


def make_backend(chosen: BackendSettings, store: StoreReader, clock: Clock) -> Backend:
    """Build a backend: the dry run over what the store knows, or a plug-in from its table.

    Raises:
        ConfigurationError: no plug-in of that name is installed.
    """
    if chosen.kind == DRY_RUN:
        return DryRunBackend(lambda: read_store(store, at=clock.now(), lookback=READ_BACK), common_knobs())
    made: Backend = load_plugin("trimtab.backends", chosen.kind)(chosen)
    return made


def print_result(result: CycleResult) -> None:
    """Print one cycle for people."""
    if result.held:
        say(f"held: {result.held}")
    print_table(
        ["id", "what becomes of it", "change", "why"],
        [
            (
                record.id,
                DECISIONS[record.decision],
                "; ".join(change_text(change) for change in record.group.changes),
                record.group.why,
            )
            for record in result.kept
        ],
        empty="nothing to change",
    )
    dropped = Counter(drop.guard for drop in result.drops if drop.action == "dropped")
    if dropped:
        say("guards dropped: " + ", ".join(f"{count} {guard}" for guard, count in dropped.most_common()))
    for step in result.steps:
        say(f"{step.group_id}: {step.state.value}, {step.reason}")


def result_document(result: CycleResult) -> dict[str, object]:
    """Return one cycle as JSON values."""
    return {
        "schema_version": 1,
        "now": result.now,
        "held": result.held or None,
        "plan_id": result.plan_id or None,
        "changes": [document(record) for record in result.kept],
        "drops": [
            {"group_id": drop.group_id, "guard": drop.guard, "action": drop.action, "reason": drop.reason}
            for drop in result.drops
        ],
        "steps": [
            {"group_id": step.group_id, "state": step.state.value, "reason": step.reason} for step in result.steps
        ],
    }
