"""The two plug-in points of this floor: where rows come from, and where they are kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Protocol

from collector.batch import Batch
from collector.window import Window

if TYPE_CHECKING:
    import pandas as pd

Aggregate = str  # mean, min, max, sum, count, first, last, or pNN / pNN.N (nearest rank)
Where = Mapping[str, str | Sequence[str]]  # tag -> value, or any of several values


@dataclass(frozen=True, slots=True)
class SourceDescription:
    """What a source is, for `doctor` and the logs; never holds secrets."""

    kind: str
    name: str
    targets: tuple[str, ...]
    interval_seconds: float


class Source(Protocol):
    """Where rows come from."""

    def poll(self, now: datetime) -> Batch:
        """Read what is there now. Targets that fail become events and rejects, not exceptions.

        Raises:
            UnreachableError: nothing at all could be read.
        """
        ...

    def backfill(self, start: datetime, end: datetime) -> Iterator[Batch]:
        """Read what was there in [start, end), oldest first, in bounded memory; empty where the source has no past."""
        ...

    def describe(self) -> SourceDescription:
        """Say what this source is."""
        ...


class StoreReader(Protocol):
    """The reading half of a store; passes `collector.conformance.StoreReaderConformance`.

    A frame that comes back has `time` (datetime64[ms, UTC]), the tags as text, the asked fields as float64 with NaN for
    absent, sorted by key then time. Windows are [start, end); buckets of `every` are aligned to the epoch and labelled
    with their start. Duplicates (same key and time) merge field by field, last write wins, NaN overwrites nothing.
    """

    def read(
        self,
        measurement: str,
        window: Window,
        *,
        fields: Sequence[str] | None = None,
        where: Where | None = None,
        by: Sequence[str] | None = None,
        every: timedelta | None = None,
        aggregate: Aggregate | Mapping[str, Aggregate] = "mean",
    ) -> pd.DataFrame:
        """Return rows of `measurement` in `window`.

        Without `every` and `by`: raw rows. With `every`: one row a bucket and group; with `by` alone: one row a group
        over the window. `by` defaults to the measurement's key. `aggregate` is one name for all fields or one a field;
        a group without a single value of a field gives NaN (count gives 0).

        Raises:
            KeyError: unknown measurement, field or tag.
            ValueError: unknown aggregate.
        """
        ...

    def latest(
        self,
        measurement: str,
        *,
        at: datetime,
        lookback: timedelta,
        fields: Sequence[str] | None = None,
        where: Where | None = None,
    ) -> pd.DataFrame:
        """Return the newest row of each key in (at - lookback, at]; keys without one are absent."""
        ...

    def facts(self, window: Window | None = None, *, names: Sequence[str] | None = None) -> pd.DataFrame:
        """Return facts valid at some time in `window` (None: all).

        Columns: kind, cluster, node, gpu, slice, object, name, value, from, to (NaT: still so), provenance.
        """
        ...

    def events(self, window: Window) -> pd.DataFrame:
        """Return events in `window`: time, kind, cluster, node, gpu, slice, object, code, severity, message."""
        ...

    def rejects(self, window: Window) -> pd.DataFrame:
        """Return rejects in `window`: time, kind, cluster, node, gpu, slice, object, field, reason, count."""
        ...

    def partitions(self, window: Window) -> list[tuple[str, str]]:
        """Return the (cluster, node) pairs that have rows in `window`, sorted."""
        ...

    def span(self, measurement: str) -> Window | None:
        """Return [oldest row, newest row + 1 ms), or None when there is no row."""
        ...

    def close(self) -> None:
        """Release files and threads; nothing that was written is lost."""
        ...


class Store(StoreReader, Protocol):
    """Where rows are kept. Every implementation passes `collector.conformance.StoreConformance`."""

    def write(self, batch: Batch) -> None:
        """Keep a batch, all or nothing, before returning."""
        ...

    def delete(self, measurement: str, window: Window, where: Where | None = None) -> int:
        """Delete rows; return how many went."""
        ...

    def retain(self, now: datetime) -> int:
        """Drop what is older than the tiers' retention; return how many rows went."""
        ...
