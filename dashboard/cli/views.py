"""What people look at: workloads, doctor, dashboard, report, demo."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from collector.declarations import ResolvedWorkload
from collector.window import Window, parse_duration
from dashboard.cli.context import Json, Now, context_of, newest_instant, opened_store
from dashboard.cli.output import print_json, print_table, say

PANEL = "Look"


def register(app: typer.Typer) -> None:
    """Add the commands to the root."""
    app.command(rich_help_panel=PANEL)(workloads)


def workloads(
    ctx: typer.Context,
    window: Annotated[
        str, typer.Option("--window", metavar="LENGTH", help="How far back a workload may have held a slice.")
    ] = "2d",
    now: Now = None,
    json: Json = False,
) -> None:
    """List every workload with what was promised about it, and where each value came from."""
    from tuner.service.promises import resolve_promises  # noqa: PLC0415  pandas loads slowly

    context = context_of(ctx)
    length = parse_duration(window)
    with opened_store(context) as store:
        span = Window.last(newest_instant(store, now, context.settings.cluster.interval_seconds), length)
        slices = store.read("slice", span, fields=["sm_quota_ratio"], by=["tenant", "workload"], aggregate="count")
        promises = resolve_promises(store.facts(span), slices, context.settings.workload)
    rows = list(promises.values())
    undeclared = sum(not row.declared for row in rows)
    if json:
        print_json({"schema_version": 1, "undeclared": undeclared, "workloads": [_document(row) for row in rows]})
        return
    print_table(
        ["tenant", "workload", "class", "objective", "weight", "floor", "protected"],
        [_row(row) for row in rows],
        empty=f"no workload held a slice in the last {window}",
    )
    if undeclared:
        say(
            f"{undeclared} of {len(rows)} are undeclared: treated as online and protected, never lowered; "
            "declare them with [[workload]] or trimtab/... annotations"
        )


def _row(row: ResolvedWorkload) -> list[object]:
    declared = row.declaration
    objective = declared.objective
    promise = (
        "-"
        if objective is None
        else f"{objective.share:.4g} of {objective.quantity} within {objective.bound_seconds:g} s"
    )
    cells: list[tuple[str, str]] = [
        ("service_class", declared.service_class),
        ("objective", promise),
        ("weight", f"{declared.weight:g}"),
        ("floor", f"{declared.floor:g}"),
        ("protected", "yes" if declared.protected else "no"),
    ]
    shown = [_with_origin(text, row.origin.get(name, "default")) for name, text in cells]
    return [row.tenant, row.workload, *shown]


def _with_origin(text: str, origin: str) -> Text:
    return Text.assemble(text, (f" ({origin})", "dim" if origin == "default" else "cyan"))


def _document(row: ResolvedWorkload) -> dict[str, object]:
    values = row.declaration.model_dump(mode="json", exclude={"match", "tenant"})
    return {
        "tenant": row.tenant,
        "workload": row.workload,
        "declared": row.declared,
        "values": {name: {"value": value, "origin": row.origin.get(name, "default")} for name, value in values.items()},
    }
