"""The state database: findings, plans, groups, drops, approvals, journal, lease, suppressions, outcomes.

Small functions over an open `State`; they take and return frozen records, never rows.
"""

from tuner.state.database import State, open_state
from tuner.state.findings import (
    StoredFinding,
    Suppression,
    add_suppression,
    list_findings,
    list_suppressions,
    record_findings,
    remove_suppression,
    suppressed,
    unsuppressed,
)
from tuner.state.plans import (
    count_states,
    get_group,
    latest_plan_id,
    list_drops,
    list_groups,
    newest_notes,
    open_groups,
    past_groups,
    waiting_groups,
)

__all__ = [
    "State",
    "StoredFinding",
    "Suppression",
    "add_suppression",
    "count_states",
    "get_group",
    "latest_plan_id",
    "list_drops",
    "list_findings",
    "list_groups",
    "list_suppressions",
    "newest_notes",
    "open_groups",
    "open_state",
    "past_groups",
    "record_findings",
    "remove_suppression",
    "suppressed",
    "unsuppressed",
    "waiting_groups",
]
