"""The plug-in points of this floor: detectors and forecasters. Both are pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

import pandas as pd

from analyzer.findings import Finding
from collector.declarations import Owner, ResolvedWorkload
from collector.window import Window

Needs = Mapping[str, Mapping[str, tuple[str, ...]]]  # code -> measurement -> fields without which it is withheld


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Partition:
    """One node's rows of all measurements over a window, facts as of their time, events and rejects.

    Frames are those that `Store.read` returns (raw rows). Without rows a frame is empty but has its columns.
    """

    cluster: str
    node: str
    window: Window
    interval_seconds: float
    gpu: pd.DataFrame
    slice: pd.DataFrame
    node_rows: pd.DataFrame
    facts: pd.DataFrame
    events: pd.DataFrame
    rejects: pd.DataFrame
    settings: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Withheld:
    """A verdict that could not be given: what about, which code, and which evidence is missing (for the census).

    `applicable` is False where nothing is missing: the code does not speak of such a subject.
    """

    code: str
    cluster: str
    node: str
    gpu: str
    slice: str
    reason: str
    applicable: bool = True


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What `conclude` returns: findings, and what could not be analysed."""

    findings: list[Finding]
    withheld: list[Withheld]


@dataclass(frozen=True, slots=True)
class Context:
    """What `conclude` may know beside the measures."""

    window: Window
    interval_seconds: float
    facts: pd.DataFrame
    queues: pd.DataFrame  # raw `queue` rows of the window
    forecasts: pd.DataFrame  # rows of `forecast_frame` (empty where none was made)
    declarations: Mapping[Owner, ResolvedWorkload]
    simulated: bool = False
    findings: tuple[Finding, ...] = ()  # of the codes that the detector `reads`


class Detector(Protocol):
    """Measures a node (pure, parallel) and concludes once (sorted input, hence equal whatever the engine).

    One that rests on the findings of others has an attribute `reads`, their codes: it concludes after them.
    """

    @property
    def codes(self) -> tuple[str, ...]:
        """Finding codes that it can give."""
        ...

    @property
    def needs(self) -> Needs:
        """Fields that each code needs; where one is absent only that verdict is withheld."""
        ...

    def measure(self, partition: Partition) -> pd.DataFrame:
        """Return what this node contributes; plain columns, one row a measured thing."""
        ...

    def conclude(self, measures: pd.DataFrame, context: Context) -> Conclusion:
        """Turn the measures of all nodes, sorted by their first columns, into findings."""
        ...


class Forecaster(Protocol):
    """Learns from history and says what may come, with quantiles.

    history: columns `series` (text), `time` (UTC), `value` (float64, NaN absent), on a regular grid a series.
    """

    def fit(self, history: pd.DataFrame) -> Forecaster:
        """Learn; returns self."""
        ...

    def forecast(
        self, history: pd.DataFrame, now: datetime, horizons: Sequence[timedelta], quantiles: Sequence[float]
    ) -> pd.DataFrame:
        """Return rows `series, made_at, target_time, horizon_seconds, quantile, value, reason`.

        A series that cannot be forecast has one row with value NaN and a reason in words; no other NaN leaves.
        """
        ...
