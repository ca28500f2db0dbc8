"""The part of reading that is the same for every store whose rows DuckDB can see."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from collector.clock import from_ms
from collector.protocols import Aggregate, Where
from collector.schema import MEASUREMENTS
from collector.store import query, runs
from collector.store.engine import Engine
from collector.store.hot import measurement_of
from collector.store.recent import fits, recent_rows
from collector.store.request import RAW, Pieces, Request, make_request
from collector.window import Window

if TYPE_CHECKING:
    import pandas as pd


class RowReader(ABC):
    """Reads rows by checked requests."""

    @abstractmethod
    def facts(self, window: Window | None = None, *, names: Sequence[str] | None = None) -> pd.DataFrame:
        """Return facts valid at some time in `window`; see `StoreReader.facts`."""

    @abstractmethod
    def answer(self, request: Request) -> pd.DataFrame:
        """Return the frame that a request asks for."""

    def run(self, engine: Engine, request: Request, pieces: Pieces, hot: pa.Table) -> pd.DataFrame:
        """Answer a request from its pieces; where it groups by holders, those still unknown are looked up in facts."""
        if fits(request, pieces, hot):
            return query.to_frame(recent_rows(request, hot), request, RAW)
        if runs.fits(request, pieces):
            return query.to_frame(runs.percentiles(engine, request, pieces, hot), request, RAW)
        owner: dict[str, pa.Table] = {}
        if request.names_holders and engine.run(query.select_unresolved(request, pieces), hot=hot).num_rows:
            window = Window(from_ms(request.start), from_ms(request.end))
            owner["owner"] = _owners(self.facts(window, names=request.spec.extra_tags))
        statement, tier = query.statement(request, pieces, resolve=bool(owner))
        return query.to_frame(engine.run(statement, hot=hot, **owner), request, tier)

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


def _owners(facts: pd.DataFrame) -> pa.Table:
    """Return facts about slices as `cluster, node, gpu, slice, name, value, t_from, t_to` (ms; far away while open)."""
    slices = facts[facts["kind"] == "slice"]
    columns: dict[str, pa.Array] = {
        name: pa.array(slices[name], pa.string()) for name in ("cluster", "node", "gpu", "slice", "name", "value")
    }
    columns["t_from"] = pa.array(slices["from"].astype("int64"))
    ends = slices["to"].astype("int64").where(slices["to"].notna(), 2**62)
    columns["t_to"] = pa.array(ends)
    return pa.table(columns)
