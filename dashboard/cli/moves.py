"""`trimtab analyze fragmentation --plan`: which moves make room, what they cost, and how near to the best that is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from analyzer.defragment.of_snapshot import observe_snapshot
from analyzer.demand import Wish
from analyzer.findings import SCHEMA_VERSION
from analyzer.settings import AnalyzeSettings
from collector.errors import ConfigurationError
from collector.protocols import StoreReader
from collector.words import plural
from dashboard.cli.output import note, print_json, print_table, say, say_origin
from dashboard.cli.snapshot import read_snapshots
from dashboard.views.moves import costs, result, step_text, where
from dashboard.views.names import CardNames, card_names
from tuner.service.analyse import Analysis
from tuner.service.defragment import parse_request, plan_moves, present_fleet
from tuner.service.moves_plan import MovesPlan, Objective

# What binds a plan: what is granted too much, which cards are unhealthy, who hurts whom.
BINDING = ("idle", "health", "contention", "colocation")


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What `--plan`, `--for` and `--moves` say."""

    objective: Objective
    request: Wish | None
    moves: int | None


def plan_options(
    objective: Objective | None, request: str | None, moves: int | None, *, fragmentation: bool
) -> PlanOptions | None:
    """Return what kind of plan is asked for; None: none.

    Raises:
        ConfigurationError: options that do not fit together, or a request that cannot be read.
    """
    if objective is None:
        if request is not None or moves is not None:
            raise ConfigurationError("--for and --moves speak of a plan: expected --plan beside them")
        return None
    if not fragmentation:
        raise ConfigurationError("--plan speaks of fragmentation: say `trimtab analyze fragmentation --plan ...`")
    if request is not None and objective is not Objective.ROOM:
        raise ConfigurationError("--for names a request to make room for: expected it beside --plan room")
    return PlanOptions(objective, None if request is None else parse_request(request), moves)


def show_plan(
    store: StoreReader,
    analysis: Analysis,
    options: PlanOptions,
    settings: AnalyzeSettings,
    *,
    interval_seconds: float,
    json: bool,
) -> None:
    """Make a plan for the end of the analysed window and print it."""
    observed = present_fleet(
        store,
        analysis.window,
        analysis.declarations,
        interval_seconds=interval_seconds,
        settings=settings,
        findings=analysis.findings,
    )
    plan = plan_moves(observed, options.objective, request=options.request, moves=options.moves)
    if json:
        print_json({"schema_version": SCHEMA_VERSION, "simulated": analysis.simulated, "plan": plan.to_json()})
    else:
        print_plan(plan, card_names(analysis.facts), simulated=analysis.simulated)


def plan_snapshot(paths: Sequence[Path], options: PlanOptions, settings: AnalyzeSettings, *, json: bool) -> None:
    """Make a plan for a cluster's snapshot and print it; nobody's promises are told there: all pods may move."""
    observed = observe_snapshot(read_snapshots(paths), settings.move_minutes)
    plan = plan_moves(observed, options.objective, request=options.request, moves=options.moves)
    if json:
        print_json({"schema_version": SCHEMA_VERSION, "simulated": False, "plan": plan.to_json()})
    else:
        print_plan(plan, {}, simulated=False)


def print_plan(plan: MovesPlan, names: CardNames, *, simulated: bool) -> None:
    """Print a plan for people: what it does, step by step, and what it leaves alone."""
    say_origin(simulated=simulated)
    pods = plural(plan.pods, "pod")
    say(f"{plural(plan.cards, 'card')}, {pods}, {plan.protected} of them protected: these never move")
    for reason, count in plan.left_out.items():
        note(f"{plural(count, 'card')} left out: {reason}")
    if plan.none:
        say(f"no plan: {plan.none}" + (f" ({plan.asked})" if plan.asked else ""))
        return
    say(f"asked: {plan.asked}")
    say(result(plan))
    if plan.steps:
        print_table(
            [">#", "move", "who", "from", "to", ">GiB", ">away", ">work lost"],
            [
                (
                    number,
                    step_text(step),
                    f"{step.tenant}/{step.workload}" if step.workload else step.pod,
                    where(step.from_node, step.from_gpus, names),
                    where(step.to_node, step.to_gpus, names),
                    f"{step.moved_gib:.1f}",
                    f"{step.drain_minutes:g} min",
                    "not known" if math.isnan(step.lost_seconds) else f"{step.lost_seconds / 60:.0f} min",
                )
                for number, step in enumerate(plan.steps, 1)
            ],
            title="in this order",
        )
        if plan.together:
            say(f"the last {plan.together} change places: stop all of them before the first starts again")
        say(costs(plan))
    if plan.fits:
        fits = [(request, count) for request, count in plan.fits]
        print_table(["request", ">fit"], fits, title="what then fits")
    say("this is advice: nothing is moved")
