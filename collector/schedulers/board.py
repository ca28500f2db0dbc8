"""What the schedulers' own interfaces said last, kept as long as nothing changes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from collector.demand import SchedulerState, merged_states
from collector.kube import KubeState

_Said = tuple[KubeState | None, SchedulerState | None]


@dataclass(slots=True)
class SchedulerBoard:
    """States by target; one that does not answer keeps what it said, so that nobody seems to have left."""

    demand: SchedulerState | None = None
    _said: dict[str, _Said] = field(default_factory=dict)
    _counted: tuple[KubeState | None, Collection[str], dict[str, dict[str, float]]] | None = None

    @property
    def kube(self) -> list[KubeState]:
        """Return what APIs of Kubernetes said, in the order in which they first spoke."""
        return [kube for kube, _ in self._said.values() if kube is not None]

    def jobs(self) -> dict[str, tuple[str, str]]:
        """Return the batch jobs that the schedulers know by number: account and name."""
        asks = self.demand.asks.values() if self.demand else ()
        return {
            number: (ask.namespace, ask.workload)
            for ask in asks
            if (number := ask.key.rpartition("/")[2]).isdecimal() and not ask.to_pods
        }

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
            self._counted = None
        return changed

    def counted(self, kube: KubeState | None, shared: Collection[str]) -> dict[str, dict[str, float]]:
        """Return who counts cards -> node -> how many, NaN where it does not tell.

        Args:
            kube: what is known of nodes.
            shared: nodes whose cards a vGPU layer shares out.
        """
        if self._counted is not None and self._counted[0] is kube and self._counted[1] is shared:
            return self._counted[2]
        counted: dict[str, dict[str, float]] = {}
        if kube is not None and (kube.capacity or kube.allocatable):
            nodes = kube.capacity.keys() | kube.allocatable.keys()
            counted["the scheduler"] = {node: kube.cards_of(node, shared=node in shared) for node in nodes}
        if self.demand is not None:
            counted |= {who: nodes for who, nodes in self.demand.cards.items() if nodes}
        self._counted = kube, shared, counted
        return counted
