"""What a report is made of, as it was read: frames, the analysis, the tuner's records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from dashboard.outlook import Outlook
from tuner.outcome import Outcome
from tuner.record import ChangeState, Drop, GroupRecord
from tuner.service.analyse import Analysis
from tuner.service.moves_plan import MovesPlan
from tuner.state import Suppression


@dataclass(frozen=True, slots=True)
class TunerRecords:
    """What the state database holds about the window."""

    counts: Mapping[ChangeState, int]
    groups: Sequence[GroupRecord]  # written, or waiting for an answer
    drops: Sequence[Drop]
    outcomes: Sequence[Outcome]
    suppressions: Sequence[Suppression]


@dataclass(frozen=True, slots=True)
class Gathered:
    """Everything that a report is made of.

    Attributes:
        analysis: of the window that the report is about.
        interval_seconds: grid of the rows.
        facts: as `Store.facts` returns them.
        served: length of an objective's window in seconds -> requests of each workload per such window: columns time,
            tenant, workload, requests, within, p99 (seconds).
        queues: raw rows of measurement `queue`.
        samples: columns cluster, node, gpu, samples: how many rows of each card have a value.
        rejects: as `Store.rejects` returns them.
        events: as `Store.events` returns them.
        energy: rows of `analyzer.energy.attribute_energy` of all nodes.
        outlook: forecasts; None: there are none, and `no_outlook` says why.
        no_outlook: see `outlook`.
        past: history of the fleet: columns time, value (cards used).
        records: of the tuner; None: there are none, and `no_records` says why.
        no_records: see `records`.
        mode: how far the tuner may go.
        plans: of moves, one an objective.
    """

    analysis: Analysis
    interval_seconds: float
    facts: pd.DataFrame
    served: Mapping[float, pd.DataFrame]
    queues: pd.DataFrame
    samples: pd.DataFrame
    rejects: pd.DataFrame
    events: pd.DataFrame
    energy: pd.DataFrame
    outlook: Outlook | None
    no_outlook: str
    past: pd.DataFrame
    records: TunerRecords | None
    no_records: str
    mode: str
    plans: Sequence[MovesPlan]
