"""What the schedulers' own interfaces said last, kept as long as nothing changes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from collector.demand import SchedulerState, merged_states
from collector.kube import KubeState

_OF = "@"

_Said = tuple[KubeState | None, SchedulerState | None]


@dataclass(slots=True)
class SchedulerBoard:
    """States by target; one that does not answer keeps what it said, so that nobody seems to have left.

    Job numbers are a scheduler's own: where two give jobs to one cluster, each job is named with its scheduler.
    """

    demand: SchedulerState | None = None
    _said: dict[str, _Said] = field(default_factory=dict)
    _batch: set[str] = field(default_factory=set)  # targets that ever told of batch jobs
    _counted: tuple[KubeState | None, Collection[str], dict[str, dict[str, float]]] | None = None

    @property
    def kube(self) -> list[KubeState]:
        """Return what APIs of Kubernetes said, in the order in which they first spoke."""
        return [kube for kube, _ in self._said.values() if kube is not None]

    def jobs(self) -> dict[str, tuple[str, str]]:
        """Return batch jobs by number: account and name; a number that two jobs have names none."""
        found: dict[str, set[tuple[str, str]]] = {}
        for ask in self.demand.asks.values() if self.demand else ():
            number = ask.key.rpartition("/")[2].partition(_OF)[0]
            if number.isdecimal() and not ask.to_pods:
                found.setdefault(number, set()).add((ask.namespace, ask.workload))
        return {number: next(iter(who)) for number, who in found.items() if len(who) == 1}

    def take(self, said: Mapping[str, _Said]) -> bool:
        """Keep what was said by target; say whether any of it is new."""
        changed = False
        for key, states in said.items():
            if states != (None, None) and self._said.get(key) != states:
                self._said[key] = states
                changed = True
        if changed:
            demands = {key: demand for key, (_, demand) in self._said.items() if demand is not None}
            self._batch |= {key for key, one in demands.items() if any(not a.to_pods for a in one.asks.values())}
            several = self._batch if len(self._batch) > 1 else set()
            named = [_with_scheduler(one, key) if key in several else one for key, one in demands.items()]
            self.demand = merged_states(named) if named else None
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


def _with_scheduler(state: SchedulerState, target: str) -> SchedulerState:
    """Return a state whose batch jobs are named with the scheduler that numbers them."""
    name = target.removeprefix("slurm:")
    asks = [a if a.to_pods else replace(a, key=f"{a.key}{_OF}{name}") for a in state.asks.values()]
    return replace(state, asks={ask.key: ask for ask in asks})
