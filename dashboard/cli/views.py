"""What people look at: workloads, doctor."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from collector.declarations import OWNER, Owner, ResolvedWorkload
from collector.window import Window, parse_duration
from dashboard.cli.context import Json, Now, context_of, instant, newest_instant, opened_store
from dashboard.cli.output import print_json, print_table, say, say_marked
from dashboard.doctor import Status, examine

PANEL = "Look"


def register(app: typer.Typer) -> None:
    """Add the commands to the root."""
    app.command(rich_help_panel=PANEL)(workloads)
    app.command(rich_help_panel="Start")(doctor)


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
        slices = store.read("slice", span, fields=["sm_quota_ratio"], by=OWNER, aggregate="count")
        promises = resolve_promises(store.facts(span), slices, context.settings.workload)
    rows = list(promises.items())
    undeclared = sum(not row.declared for _, row in rows)
    if json:
        print_json({"schema_version": 1, "undeclared": undeclared, "workloads": [_document(*row) for row in rows]})
        return
    several = len({owner[0] for owner in promises}) > 1
    print_table(
        [*(["cluster"] if several else []), "tenant", "workload", "class", "objective", "weight", "floor", "protected"],
        [[*(owner if several else owner[1:]), *_row(row)] for owner, row in rows],
        empty=f"no workload held a slice in the last {window}",
    )
    if undeclared:
        say(
            f"{undeclared} of {len(rows)} are undeclared: treated as online and protected, never lowered; "
            "declare them with [[workload]] or trimtab/... annotations"
        )


MARKS = {Status.OK: ("ok  ", "green"), Status.NOTE: ("note", "cyan"), Status.PROBLEM: ("BAD ", "bold red")}


def doctor(ctx: typer.Context, now: Now = None, json: Json = False) -> None:
    """Check configuration, sources, store, state and backend; say whether empty means idle or broken.

    Nothing is changed. Exit 1 when there is a problem.
    """
    found = examine(context_of(ctx).loaded, instant(now))
    if json:
        checks = list(found)
        problems = sum(check.status is Status.PROBLEM for check in checks)
        print_json({"schema_version": 1, "ok": problems == 0, "problems": problems, "checks": checks})
        raise typer.Exit(1 if problems else 0)
    problems = 0
    for check in found:
        problems += check.status is Status.PROBLEM
        mark, style = MARKS[check.status]
        say_marked(mark, style, f"{check.topic}: {check.text}")
        if check.advice and check.status is not Status.OK:
            say(f"       -> {check.advice}")  # not broken into lines: it may be copied
    say("all is well" if not problems else f"{problems} problem{'s' if problems > 1 else ''}")
    raise typer.Exit(1 if problems else 0)


def _row(row: ResolvedWorkload) -> list[Text]:
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
    return [_with_origin(text, row.origin.get(name, "default")) for name, text in cells]


def _with_origin(text: str, origin: str) -> Text:
    return Text.assemble(text, (f" ({origin})", "dim" if origin == "default" else "cyan"))


def _document(owner: Owner, row: ResolvedWorkload) -> dict[str, object]:
    values = row.declaration.model_dump(mode="json", exclude={"match", "tenant"})
    return {
        **dict(zip(OWNER, owner, strict=True)),
        "declared": row.declared,
        "values": {name: {"value": value, "origin": row.origin.get(name, "default")} for name, value in values.items()},
    }
