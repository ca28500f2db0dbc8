"""What the schedulers' own interfaces said last, kept as long as nothing changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from collector.demand import SchedulerState, merged_states
from collector.kube import KubeState

_Said = tuple[KubeState | None, SchedulerState | None]


@dataclass(slots=True)
class SchedulerBoard:
    """States by target; one that does not answer keeps what it said, so that nobody seems to have left."""

    demand: SchedulerState | None = None
    _said: dict[str, _Said] = field(default_factory=dict)

    @property
    def kube(self) -> list[KubeState]:
        """Return what APIs of Kubernetes said, in the order in which they first spoke."""
        return [kube for kube, _ in self._said.values() if kube is not None]

    def take(self, said: Mapping[str, _Said]) -> bool:
        """Keep what was said by target; say whether any of it is new."""
        changed = False
        for key, states in said.items():
            if states != (None, None) and self._said.get(key) != states:
                self._said[key] = states
                changed = True
        if changed:
            demands = [demand for _, demand in self._said.values() if demand is not None]
            self.demand = merged_states(demands) if demands else None
        return changed
