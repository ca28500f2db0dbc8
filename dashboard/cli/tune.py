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
from dashboard.cli.output import note, print_json, print_table, say
from dashboard.cli.tuning import PANEL
from dashboard.stopping import stopped_by_signals
from tuner.model import Backend, Mode
from tuner.settings import BackendSettings

if TYPE_CHECKING:
    from collector.store import EmbeddedStore
    from tuner.service.cycle import CycleResult, Tuner
    from tuner.state import State

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
    with opened_store(context) as store, opened_state(context, make=True) as state:
        tuner = make_tuner(context, store, state, clock=clock, mode=mode, backend=backend)
        try:
            tuner.watch.warm(clock.now(), history_length(context, store, clock))
            if once:
                result = tuner.run_once(clock.now())
                print_json(result_document(result)) if json else print_result(result)
                return
            note(f"a cycle every {context.settings.tuner.cycle_seconds:g} s until stopped; trimtab changes lists them")
            with stopped_by_signals() as stop:
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
    context: Context, store: EmbeddedStore, state: State, *, clock: Clock, mode: Mode | None, backend: str | None
) -> Tuner:
    """Put a tuner together from the configuration."""
    from tuner.service.analyse import load_detectors  # noqa: PLC0415  scikit-learn loads slowly
    from tuner.service.cycle import Tuner, TunerParts  # noqa: PLC0415

    settings = context.settings
    return Tuner(
        TunerParts(
            store=store,
            backend=make_backend(context, store, clock, backend),
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


def make_backend(context: Context, store: EmbeddedStore, clock: Clock, name: str | None) -> Backend:
    """Return the backend that was asked for; without any the dry run over what the store knows.

    Raises:
        ConfigurationError: there is no such backend, or it cannot stand alone.
    """
    tables = context.settings.backend
    if len(tables) > 1 and name is None:
        kinds = ", ".join(table.kind for table in tables)
        raise ConfigurationError(f"expected one [[backend]] or --backend NAME, got {len(tables)} tables: {kinds}")
    configured = tables[0] if tables else BackendSettings()
    kind = name or configured.kind
    if kind == "simulator":
        raise ConfigurationError("the backend `simulator` lives inside a simulated cluster; run `trimtab demo`")
    if kind == "dry-run":
        from tuner.backends.dry_run import DryRunBackend  # noqa: PLC0415
        from tuner.backends.store_view import common_knobs, read_store  # noqa: PLC0415

        return DryRunBackend(lambda: read_store(store, at=clock.now(), lookback=READ_BACK), common_knobs())
    made: Backend = load_plugin("trimtab.backends", kind)(configured)
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
