"""What becomes of the pairs that watching leaves open: the probe that is planned for them, or why none is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from analyzer.findings import Role
from dashboard.cli.context import Context, opened_state
from dashboard.cli.tune import DRY_RUN
from dashboard.views.contention import sharing_kinds, slice_of
from tuner.backends.store_view import common_knobs
from tuner.planner.probes import PROBE, untried
from tuner.record import OPEN_STATES, WAITING_STATES
from tuner.service.candidates import open_pairs

if TYPE_CHECKING:
    from tuner.service.analyse import Analysis

_MOST = 200  # changes that are looked through


@dataclass(frozen=True, slots=True)
class Probes:
    """Probes that wait or run (id -> what they ask), and why there is none of other open pairs."""

    planned: dict[str, str]
    withheld: tuple[str, ...]


def probes_of(context: Context, analysis: Analysis, *, of_files: bool) -> Probes:
    """Return what the tuner does about the open pairs of an analysis; both empty where no pair is open.

    Where the tuner has made a plan, that plan says it. Else the knobs of the dry run do, where no other backend is
    configured; one that is configured is not asked here.

    Args:
        context: configuration and state.
        analysis: findings and facts.
        of_files: the rows are those of files, of which the tuner knows nothing.
    """
    found = open_pairs(analysis.findings)
    if not found:
        return Probes({}, ())
    planned: dict[str, str] = {}
    if context.has_state and not of_files:
        from tuner.state import latest_plan_id, list_groups, newest_notes  # noqa: PLC0415  SQLAlchemy loads slowly

        with opened_state(context) as state:
            records = list_groups(state, states=OPEN_STATES | WAITING_STATES, limit=_MOST)
            planned = {r.id: r.group.why for r in records if r.group.kind == PROBE}
            if latest_plan_id(state) is not None:
                return Probes(planned, newest_notes(state))
    if any(table.kind != DRY_RUN for table in context.settings.backend):
        return Probes(planned, ("no plan was made yet: `trimtab tune --once` says whether a probe decides them",))
    kinds = sharing_kinds(analysis.facts)
    withheld = untried([kinds.get(slice_of(finding.subject(Role.SUSPECT)), "") for finding in found], common_knobs())
    return Probes(planned, (withheld,) if withheld else ())
