"""The runner of the analyses: partitions out of a store, measured per node, concluded once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import pandas as pd

from analyzer.protocols import Partition
from analyzer.settings import AnalyzeSettings
from collector.protocols import Store
from collector.window import Window

A = TypeVar("A")
B = TypeVar("B")
MapNodes = Callable[[Callable[[A], B], Iterable[A]], Iterable[B]]  # a loop, a process pool's map, Dask's map


def partitions(store: Store, window: Window, interval_seconds: float, settings: AnalyzeSettings) -> Iterator[Partition]:
    """Yield one partition a node, in order of (cluster, node)."""
    facts, events, rejects = store.facts(window), store.events(window), store.rejects(window)
    options = settings.model_dump()
    for cluster, node in store.partitions(window):
        where = {"cluster": cluster, "node": node}
        yield Partition(
            cluster=cluster,
            node=node,
            window=window,
            interval_seconds=interval_seconds,
            gpu=store.read("gpu", window, where=where),
            slice=store.read("slice", window, where=where),
            node_rows=store.read("node", window, where=where),
            facts=_about(facts, cluster, node),
            events=_about(events, cluster, node),
            rejects=_about(rejects, cluster, node),
            settings=options,
        )


def _about(frame: pd.DataFrame, cluster: str, node: str) -> pd.DataFrame:
    """Rows about this node, and those about no node at all (workloads, pods, the cluster)."""
    return frame[(frame["cluster"] == cluster) & frame["node"].isin([node, ""])]
