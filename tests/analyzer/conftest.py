"""A small way to build a node's partition: rows as mappings of columns, facts as tuples."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import numpy as np
import pandas as pd
import pytest

from analyzer.facts import FACT_COLUMNS
from analyzer.protocols import Context, Partition
from collector.window import Window

START = datetime(2026, 1, 5, tzinfo=UTC)
_TAGS = {"gpu": ("cluster", "node", "gpu"), "slice": ("cluster", "node", "gpu", "slice", "tenant", "workload")}


class Node:
    """Collects rows, facts and events of one node and makes a partition of them."""

    def __init__(self, hours: float = 4.0, interval_seconds: float = 60.0, name: str = "node-a") -> None:
        self.window = Window(START, START + timedelta(hours=hours))
        self.interval = interval_seconds
        self.name = name
        self.count = int(self.window.seconds / interval_seconds)
        self._rows: dict[str, list[pd.DataFrame]] = {"gpu": [], "slice": [], "node": []}
        self._facts: list[dict[str, Any]] = []
        self._events: list[dict[str, Any]] = []

    def rows(
        self, measurement: str, tags: Mapping[str, str], fields: Mapping[str, Any], keep: np.ndarray | None = None
    ) -> None:
        times = pd.date_range(self.window.start, periods=self.count, freq=f"{self.interval}s").as_unit("ms")
        frame = pd.DataFrame({"time": times, "cluster": "c", "node": self.name, **tags})
        for name, values in fields.items():
            frame[name] = np.broadcast_to(np.asarray(values, dtype=np.float64), (self.count,))
        self._rows[measurement].append(frame if keep is None else frame[keep])

    def card(self, gpu: str = "GPU-1", keep: np.ndarray | None = None, sm_count: int = 100, **fields: Any) -> None:
        self.rows("gpu", {"gpu": gpu}, fields, keep)
        self.fact("gpu", "sm_count", str(sm_count), gpu=gpu)

    def slice(
        self,
        slice_id: str,
        *,
        gpu: str = "GPU-1",
        kind: str = "mps",
        tenant: str = "team",
        workload: str = "app",
        keep: np.ndarray | None = None,
        pod: str = "",
        profile: str = "",
        **fields: Any,
    ) -> None:
        self.rows("slice", {"gpu": gpu, "slice": slice_id, "tenant": tenant, "workload": workload}, fields, keep)
        self.fact("slice", "kind", kind, gpu=gpu, part=slice_id)
        if pod:
            self.fact("slice", "pod", pod, gpu=gpu, part=slice_id)
        if profile:
            self.fact("slice", "profile", profile, gpu=gpu, part=slice_id)

    def fact(
        self, kind: str, name: str, value: str, *, gpu: str = "", part: str = "", thing: str = "", **span: Any
    ) -> None:
        self._facts.append(
            {
                "kind": kind,
                "cluster": "c",
                "node": "" if kind in {"pod", "workload", "cluster"} else self.name,
                "gpu": gpu,
                "slice": part,
                "object": thing,
                "name": name,
                "value": value,
                "from": span.get("start", self.window.start),
                "to": span.get("end"),
                "provenance": "measured",
            }
        )

    def request(self, pod: str, *, waiting: bool = False, start: datetime | None = None, **wish: Any) -> None:
        self.fact("pod", "request", json.dumps(wish), thing=pod, start=start or self.window.start)
        if not waiting:
            self.fact("pod", "started", "1", thing=pod)

    def event(
        self, code: str, message: str, minute: float, gpu: str = "GPU-1", severity: str = "error", **about: str
    ) -> None:
        self._events.append(
            {
                "time": self.window.start + timedelta(minutes=minute),
                "kind": about.get("kind", "gpu"),
                "cluster": "c",
                "node": self.name,
                "gpu": gpu if about.get("kind") != "pod" else "",
                "slice": about.get("part", ""),
                "object": about.get("thing", ""),
                "code": code,
                "severity": severity,
                "message": message,
            }
        )

    def facts(self) -> pd.DataFrame:
        frame = pd.DataFrame(self._facts, columns=list(FACT_COLUMNS))
        return frame.astype({"from": "datetime64[ms, UTC]", "to": "datetime64[ms, UTC]"})

    def partition(self, **settings: object) -> Partition:
        columns = ["time", "kind", "cluster", "node", "gpu", "slice", "object", "code", "severity", "message"]
        events = pd.DataFrame(self._events, columns=columns).astype({"time": "datetime64[ms, UTC]"})
        return Partition(
            cluster="c",
            node=self.name,
            window=self.window,
            interval_seconds=self.interval,
            gpu=self._frame("gpu"),
            slice=self._frame("slice"),
            node_rows=self._frame("node"),
            facts=self.facts(),
            events=events,
            rejects=pd.DataFrame(),
            settings=settings,
        )

    def _frame(self, measurement: str) -> pd.DataFrame:
        if self._rows[measurement]:
            return pd.concat(self._rows[measurement], ignore_index=True)
        tags = _TAGS.get(measurement, ("cluster", "node"))
        empty = pd.DataFrame({tag: pd.Series(dtype="str") for tag in tags})
        empty.insert(0, "time", pd.Series(dtype="datetime64[ms, UTC]"))
        return empty

    def context(self, **rest: Any) -> Context:
        values: dict[str, Any] = {
            "window": self.window,
            "interval_seconds": self.interval,
            "facts": self.facts(),
            "queues": pd.DataFrame(),
            "forecasts": pd.DataFrame(),
            "declarations": {},
            **rest,
        }
        return Context(**values)


class MakeNode(Protocol):
    def __call__(self, hours: float = ..., interval_seconds: float = ..., name: str = ...) -> Node: ...


@pytest.fixture
def make_node() -> MakeNode:
    return Node
