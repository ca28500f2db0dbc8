"""Which mode holds for a group: the fleet's, or that of a table for its cluster, tenant or kind."""

from __future__ import annotations

import fnmatch

from tuner.guards.world import Facts
from tuner.model import Group, Mode
from tuner.settings import TunerSettings

_CAUTION = {Mode.RECOMMEND: 0, Mode.APPROVE: 1, Mode.AUTO: 2}


def mode_of(group: Group, facts: Facts, settings: TunerSettings) -> Mode:
    """Return the most careful mode of all that a group touches; the first table that matches speaks for a change."""
    modes = [settings.mode]
    if group.changes:
        modes = [_mode_of(c.target.cluster, facts.subject(c)[0], group.kind, settings) for c in group.changes]
    return min(modes, key=_CAUTION.__getitem__)


def _mode_of(cluster: str, tenant: str, kind: str, settings: TunerSettings) -> Mode:
    for rule in settings.modes:
        if (
            fnmatch.fnmatchcase(cluster, rule.cluster)
            and fnmatch.fnmatchcase(tenant, rule.tenant)
            and fnmatch.fnmatchcase(kind, rule.kind)
        ):
            return rule.mode
    return settings.mode
