"""What goes wrong between a cluster and its collector: targets that are down, pod names that flap or are stale."""

from __future__ import annotations

from sample_data.cluster.spec import MINUTES_PER_DAY, ClusterSpec
from sample_data.cluster.streams import stream

STALE_MINUTES = 6  # an exporter repeats a finished pod's name until the kubelet has forgotten it
LAST_WORDS_MINUTES = 4  # a card off the bus still shows its XID for so long
FLAP_EVERY, FLAP_MINUTES = 360, 3  # now and then a rotating card's own series carries one of its pods' names


class Outages:
    """When which target does not answer: each day one node's device exporter and one server, for some minutes."""

    def __init__(self, spec: ClusterSpec) -> None:
        self._spec = spec
        self._nodes = sorted({c.node for c in spec.cards})
        self._servers = [i for i, s in enumerate(spec.slices) if s.app in ("vllm", "triton")]
        self._days: dict[int, tuple[tuple[str, int, int], ...]] = {}
        self._now: tuple[int, frozenset[str]] = (-1, frozenset())

    def node_down(self, node: str, minute: int) -> bool:
        """Whether a node's device exporter is down in a minute."""
        return self._down(f"node {node}", minute)

    def server_down(self, index: int, minute: int) -> bool:
        """Whether the metrics of the server in a slice cannot be read in a minute."""
        return self._down(f"server {index}", minute)

    def _down(self, name: str, minute: int) -> bool:
        if not self._spec.quirks:
            return False
        if self._now[0] != minute:
            number, column = divmod(minute, MINUTES_PER_DAY)
            if number not in self._days:
                self._days[number] = self._draw(number)
            self._now = minute, frozenset(one for one, first, last in self._days[number] if first <= column < last)
        return name in self._now[1]

    def _draw(self, number: int) -> tuple[tuple[str, int, int], ...]:
        rng = stream(self._spec.seed, "outages", number)
        node = self._nodes[int(rng.integers(len(self._nodes)))]
        server = self._servers[int(rng.integers(len(self._servers)))]
        spans = []
        for name in (f"node {node}", f"server {server}"):
            first = int(rng.integers(60, MINUTES_PER_DAY - 60))
            spans.append((name, first, first + int(rng.integers(4, 9))))
        return tuple(spans)


def flapping(spec: ClusterSpec, card: int, minute: int) -> bool:
    """Whether a card's own series carries the name of one of its pods in a minute, so that nothing is its own."""
    c = spec.cards[card]
    return (
        spec.quirks and c.sharing == "timeslice" and c.index == 1 and minute % FLAP_EVERY >= FLAP_EVERY - FLAP_MINUTES
    )
