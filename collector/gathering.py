"""What sources that gather texts and answers have in common: rows are made of them by an assembler, cycle by cycle."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from datetime import datetime

from collector.assemble import Assembler, Scrape
from collector.batch import Batch
from collector.clock import grid_floor


class GatheringSource(ABC):
    """A source whose `poll` makes rows of what it gathers; without more it has no past.

    Attributes:
        assembler: keeps what must be remembered between cycles; several sources of one configuration share one.
    """

    assembler: Assembler

    @abstractmethod
    def gather(self, now: datetime) -> list[Scrape]:
        """Read all targets; one that does not answer says so.

        Raises:
            UnreachableError: nothing at all could be read.
        """

    def poll(self, now: datetime) -> Batch:
        """Make rows of what is gathered; they stand on the cycle's grid.

        Raises:
            UnreachableError: as `gather`.
        """
        return self.assembler.assemble(grid_floor(now, self.assembler.context.interval_seconds), self.gather(now))

    def backfill(self, start: datetime, end: datetime) -> Iterator[Batch]:
        """Yield nothing: it tells of now alone."""
        del start, end
        yield from ()
