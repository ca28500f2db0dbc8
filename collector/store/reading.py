"""The part of reading that is the same for every store whose rows DuckDB can see."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import pandas as pd

from collector.protocols import Aggregate, Where
from collector.schema import MEASUREMENTS
from collector.store.hot import measurement_of
from collector.store.query import Request, make_request
from collector.window import Window


class RowReader(ABC):
    """Reads rows by checked requests."""

    @abstractmethod
    def answer(self, request: Request) -> pd.DataFrame:
        """Return the frame that a request asks for."""

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
        """Return rows or aggregates; see `StoreReader.read`. `frame.attrs["tier"]` says which tier answered."""
        return self.answer(
            make_request(measurement, window, fields=fields, where=where, by=by, every=every, aggregate=aggregate)
        )

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
        tick = timedelta(milliseconds=1)
        rows = self.read(measurement, Window(at - lookback + tick, at + tick), fields=fields, where=where)
        return rows.drop_duplicates(list(measurement_of(measurement).key), keep="last", ignore_index=True)

    def partitions(self, window: Window) -> list[tuple[str, str]]:
        """Return the (cluster, node) pairs that have rows in `window`, sorted."""
        found: set[tuple[str, str]] = set()
        for spec in MEASUREMENTS.values():
            if "node" in spec.key:
                pairs = self.read(spec.name, window, fields=(), by=("cluster", "node"))
                found.update(zip(pairs["cluster"], pairs["node"], strict=True))
        return sorted(found)
