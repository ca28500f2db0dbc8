"""A source that hands a simulated cluster's rows over without text; the text path goes through the scrape source."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from collector.batch import Batch
from collector.errors import UnreachableError
from collector.protocols import SourceDescription
from sample_data.cluster.cluster import SimulatedCluster
from sample_data.cluster.spec import STEP_SECONDS


class SimulatedSource:
    """Polls a cluster that somebody else moves."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster

    def poll(self, now: datetime) -> Batch:
        """Return the rows of the cluster's last minute.

        Raises:
            UnreachableError: the cluster does not stand at `now`.
        """
        if now != self._cluster.now:
            raise UnreachableError(
                f"expected the cluster at {now.isoformat()}, it is at {self._cluster.now.isoformat()}: step it first"
            )
        return self._cluster.frames()

    def backfill(self, start: datetime, end: datetime) -> Iterator[Batch]:
        """A simulation has no past to read."""
        del start, end
        return iter(())

    def describe(self) -> SourceDescription:
        """Say what this source is."""
        return SourceDescription("simulator", self._cluster.spec.name, (), float(STEP_SECONDS))
