"""The simulated cluster as the rest of the product meets it: targets to scrape, or the same rows without text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial

from collector.batch import Batch
from collector.errors import UnreachableError
from collector.settings import TargetSettings
from sample_data.cluster.exporters.dcgm import DcgmExporter, generation_of
from sample_data.cluster.exporters.hami import HamiExporter
from sample_data.cluster.exporters.kube import KubeExporter
from sample_data.cluster.exporters.servers import ServerExporter
from sample_data.cluster.frames import Frames
from sample_data.cluster.observation import Holder
from sample_data.cluster.quirks import Outages
from sample_data.cluster.readings import Instruments, Readings
from sample_data.cluster.simulation import World
from sample_data.cluster.spec import ClusterSpec
from sample_data.cluster.truth import Truth


class SimulatedCluster:
    """A seeded cluster that moves one minute a step.

    Two clusters of one spec see the same arrivals and noise, whatever is changed on one of them.
    """

    def __init__(self, spec: ClusterSpec) -> None:
        self.spec = spec
        self.world = World(spec)
        self.instruments = Instruments(self.world)
        self.outages = Outages(spec)
        self._frames = Frames(self.world, self.instruments, self.outages)
        kinds = {card.node: card.sharing for card in reversed(spec.cards)}
        self._dcgm = {node: DcgmExporter(self.world, node, generation_of(kinds[node])) for node in sorted(kinds)}
        self._hami = HamiExporter(self.world)
        self._kube = KubeExporter(self.world)
        self._servers = ServerExporter(self.world, self.instruments.edges.tolist())
        self._listed: tuple[int, list[tuple[TargetSettings, Callable[[], str | None]]]] = (-1, [])
        self._by_url: dict[str, Callable[[], str | None]] = {}
        self._pod_targets: dict[int, tuple[tuple[str, str, str], TargetSettings]] = {}

    @property
    def now(self) -> datetime:
        """The instant up to which everything has happened."""
        return self.world.now

    @property
    def truth(self) -> Truth:
        """What really happened; for tests and the scoreboard only."""
        return self.world.truth

    @property
    def readings(self) -> Readings:
        """What instruments measured in the last minute."""
        return self.instruments.read()

    def step(self) -> None:
        """Simulate one minute."""
        self.world.step()
        self.instruments.watch()

    def frames(self) -> Batch:
        """Return the rows, facts and events of the last minute, as a collector would have made them of the text."""
        return self._frames.batch()

    def targets(self) -> Sequence[TargetSettings]:
        """Return what service discovery finds now: exporters of nodes and cluster, and each pod's own page.

        Before the first minute nothing is up yet.
        """
        return [target for target, _ in self._pages()] if self.world.minute else []

    def fetch(self, target: TargetSettings) -> str:
        """Return the body that an exporter answers with.

        Raises:
            UnreachableError: the target does not answer, or nobody is there.
        """
        self._pages()
        page = self._by_url.get(target.url)
        text = page() if page is not None else None
        if text is None:
            raise UnreachableError("expected an exporter's answer, got none within the time limit")
        return text

    def _pages(self) -> list[tuple[TargetSettings, Callable[[], str | None]]]:
        if self._listed[0] == self.world.minute:
            return self._listed[1]
        world, readings = self.world, self.instruments.read()
        pages: list[tuple[TargetSettings, Callable[[], str | None]]] = [
            (TargetSettings(url=f"http://{node}:9400/metrics", node=node), partial(self._device, node, readings))
            for node in self._dcgm
        ]
        for node in sorted({c.node for c in self.spec.cards if c.sharing == "vgpu"}):
            pages.append(
                (TargetSettings(url=f"http://{node}:9394/metrics", node=node), partial(self._hami.monitor, readings))
            )
            pages.append(
                (TargetSettings(url="http://hami-scheduler:9395/metrics"), partial(self._hami.scheduler, readings))
            )
        pages.append((TargetSettings(url="http://kube-state-metrics:8080/metrics"), self._kube.text))
        for i, holder in enumerate(world.holders):
            if holder is None or self.spec.slices[i].app == "none" or holder.started_minute > readings.minute:
                continue
            pages.append((self._pod_target(i, holder), partial(self._pod, i, readings)))
        self._listed = (world.minute, pages)
        self._by_url = {target.url: page for target, page in reversed(pages)}
        return pages

    def _pod_target(self, index: int, holder: Holder) -> TargetSettings:
        names = (holder.namespace, holder.pod, holder.container)
        known = self._pod_targets.get(index)
        if known is None or known[0] != names:
            s = self.spec.slices[index]
            port = {"vllm": 8000, "triton": 8002, "trainer": 9102}[s.app]
            labels = {"namespace": holder.namespace, "pod": holder.pod, "container": holder.container}
            url = f"http://{holder.pod}.{holder.namespace}:{port}/metrics"
            target = TargetSettings(url=url, node=self.spec.cards[s.card].node, labels=labels)
            known = self._pod_targets[index] = (names, target)
        return known[1]

    def _device(self, node: str, readings: Readings) -> str | None:
        return None if self.outages.node_down(node, readings.minute) else self._dcgm[node].text(readings)

    def _pod(self, index: int, readings: Readings) -> str | None:
        down = self.outages.server_down(index, readings.minute)
        observation = self.world.observation
        running = observation is not None and bool(observation.running[index])
        return None if down or not running else self._servers.text(index, readings)
