"""The simulated cluster as the rest of the product meets it: targets to scrape, or the same rows without text."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from collector.batch import Batch
from collector.settings import TargetSettings
from sample_data.cluster.frames import Frames
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
        self._frames = Frames(self.world, self.instruments)

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
        """Return what service discovery finds now."""
        raise NotImplementedError

    def fetch(self, target: TargetSettings) -> str:
        """Return the body that an exporter answers with.

        Raises:
            UnreachableError: the target does not answer.
        """
        raise NotImplementedError
