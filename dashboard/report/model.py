"""What the weekly report says, as data: the JSON report is this, and the others are words made of it.

Amounts stand in the units that their names end with; a ratio is 0..1; NaN is absent (null in JSON), never 0.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from analyzer.findings import plain
from dashboard.report.capacity import EnergyPart, FreeLine, LedgerPart, MigrationPart, MoveLine, QueueLine

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Service:
    """An online service: how often it kept its promise, counted over windows of the objective's own length."""

    name: str  # tenant/workload, behind its cluster where there are several
    cluster: str
    tenant: str
    workload: str
    quantity: str
    share: float
    bound_seconds: float
    window_seconds: float
    requests: float
    within_ratio: float  # of the requests
    windows: int  # with requests
    kept_ratio: float  # of those windows
    worst_p99_seconds: float
    by_hour: tuple[tuple[datetime, float], ...]  # kept ratio; NaN: no requests
    missing: str  # why there is no figure; empty: there is


@dataclass(frozen=True, slots=True)
class Claim:
    """A finding in the words of the report: what, who, where, how much, how sure, what to do."""

    id: str
    code: str
    title: str
    verdict: str
    claim: str
    who: str
    victim: str  # of a pair, else empty
    where: str
    effect_value: float
    effect_lower: float
    effect_upper: float
    effect_unit: str
    channel: str
    lag_seconds: float
    confidence: float
    coverage: float
    since: str
    check: str
    action: str
    risk: str
    owner: str = ""  # whom to ask about what is held; `unknown` where nobody tells
    until: str = ""  # so long it was seen to be so


@dataclass(frozen=True, slots=True)
class SickCard:
    """One card with a fault: what to do with it (`state`), how grave, why, and the advice of its gravest finding."""

    card: str
    state: str
    severity: str
    why: str
    action: str


@dataclass(frozen=True, slots=True)
class HollowLine:
    """Busy time of one tenant, class and sharing kind, and the parts of it that were hollow; NaN: nobody tells."""

    tenant: str
    service_class: str
    kind: str
    busy_card_hours: float
    sm_low_ratio: float
    occupancy_low_ratio: float
    tensor_low_ratio: float
    busy_overstates_sm_times: float


@dataclass(frozen=True, slots=True)
class Room:
    """What the cards of one model in one pool can still take; `biggest` is empty where no request fits."""

    cluster: str
    pool: str
    model: str
    cards: int
    free_cards: float
    largest_piece_ratio: float
    most_whole_cards: int
    fits_ratio: float
    biggest: str


@dataclass(frozen=True, slots=True)
class Claims:
    """The findings that hold or are suspected, by what they speak of; the health board, the hollow-busy map.

    `undecided` counts by code what cannot be told; `suppressed` is how many findings somebody did not want to see;
    `idle_suppressions` names those that have expired or hid nothing.
    """

    waste: tuple[Claim, ...]
    fights: tuple[Claim, ...]
    stranded: tuple[Claim, ...]
    limits: tuple[Claim, ...]
    risks: tuple[Claim, ...]
    health: tuple[Claim, ...]
    undecided: dict[str, int]
    suppressed: int
    board: tuple[SickCard, ...] = ()
    hollow: tuple[HollowLine, ...] = ()
    idle_suppressions: tuple[str, ...] = ()
    rooms: tuple[Room, ...] = ()

    @property
    def pairs(self) -> tuple[Claim, ...]:
        """Fights that took place, each of a victim and a suspect; what would happen to others is a prediction."""
        return tuple(c for c in self.fights if c.victim and c.code != "TT111")


@dataclass(frozen=True, slots=True)
class ForecastLine:
    """What one series will need, in cards, and how wrong such forecasts were on its own past."""

    series: str
    horizon_seconds: float
    target_time: datetime | None
    quantiles: dict[str, float]
    error: float  # mean absolute error of the median, in cards
    relative_to_last: float  # that error / error of repeating the last value; below 1 is better
    coverage_80: float  # share of truths within the 80 % interval
    note: str


@dataclass(frozen=True, slots=True)
class ForecastPart:
    """Forecasts of the fleet and of the workloads that are alive; `missing` says why there is none."""

    made_at: datetime | None
    lines: tuple[ForecastLine, ...]
    past: tuple[tuple[datetime, float], ...]  # of the fleet, in cards used
    missing: str


@dataclass(frozen=True, slots=True)
class ChangeLine:
    """A group of changes: what it does, why, and what became of it."""

    id: str
    at: datetime
    state: str
    kind: str
    what: tuple[str, ...]
    why: str
    reason: str  # of the last step
    confidence: float
    times: int  # how often the same was asked for; the newest is told


@dataclass(frozen=True, slots=True)
class DropCount:
    """How often a guard said no, or less, and the reason that it gave most often."""

    guard: str
    action: str
    count: int
    example: str


@dataclass(frozen=True, slots=True)
class PromiseCheck:
    """Predicted against realised, of all groups of one kind that were verified."""

    kind: str
    passed: int
    other: int
    predicted_sm_seconds_per_hour: float  # median of what was predicted
    realised_ratio: float  # median of the relative gain that was measured


@dataclass(frozen=True, slots=True)
class ChangesPart:
    """What the tuner did, would do, and decided against; `missing` says why nothing is known."""

    mode: str
    counts: dict[str, int]  # state -> groups
    made: tuple[ChangeLine, ...]
    rolled_back: tuple[ChangeLine, ...]
    would: tuple[ChangeLine, ...]
    drops: tuple[DropCount, ...]
    promises: tuple[PromiseCheck, ...]
    missing: str


@dataclass(frozen=True, slots=True)
class Unanalysed:
    """One code, and how many of its subjects nothing could be said about, by reason."""

    code: str
    title: str
    subjects: int
    analysed: int
    withheld: int
    not_applicable: int
    reasons: dict[str, int]


@dataclass(frozen=True, slots=True)
class CardCoverage:
    """How many of the samples that a card should have given are there."""

    cluster: str
    node: str
    gpu: str
    coverage: float


@dataclass(frozen=True, slots=True)
class RejectLine:
    """Samples of one field that were turned away for one reason."""

    field: str
    reason: str
    subjects: int
    count: float


@dataclass(frozen=True, slots=True)
class QualityPart:
    """How complete the rows are that everything rests on."""

    nodes: int
    cards: int
    slices: int
    coverage: float  # mean over the cards
    worst: tuple[CardCoverage, ...]  # those below 95 %, worst first
    rejects: tuple[RejectLine, ...]
    events: dict[str, int]
    unanalysed: tuple[Unanalysed, ...]
    undeclared: tuple[str, ...]  # workloads that nobody promised anything about


@dataclass(frozen=True, slots=True)
class Report:
    """The whole report."""

    clusters: tuple[str, ...]
    start: datetime
    end: datetime
    interval_seconds: float
    simulated: bool
    summary: str
    ledger: LedgerPart
    services: tuple[Service, ...]
    claims: Claims
    migrations: MigrationPart
    forecast: ForecastPart
    changes: ChangesPart
    queues: tuple[QueueLine, ...]
    energy: EnergyPart
    quality: QualityPart
    free: tuple[FreeLine, ...] = ()
    moves: tuple[MoveLine, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, NaN as null."""
        document: dict[str, Any] = plain({"schema_version": SCHEMA_VERSION, **asdict(self)})
        return document
