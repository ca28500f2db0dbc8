"""The parts of the report about capacity: where it went, who waits, what is free, what moves would free, energy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime

from tuner.service.moves_plan import MovesPlan


@dataclass(frozen=True, slots=True)
class Term:
    """One term of the ledger: its share of what the level divides, and how many average cards that is."""

    name: str
    sm_seconds: float
    ratio: float  # level 1: of capacity; level 2: of what was used
    cards: float


@dataclass(frozen=True, slots=True)
class HourTerms:
    """One hour of the fleet: the terms of level 1, and `useful`, as shares of its capacity."""

    start: datetime
    ratios: dict[str, float]


@dataclass(frozen=True, slots=True)
class TenantUse:
    """What was used, wasted and spent in a tenant's name; the ratios are of the fleet's capacity."""

    tenant: str
    used_ratio: float
    useful_ratio: float
    reserved_ratio: float
    wasted_ratio: float
    wasted_card_hours: float
    energy_joules: float
    cost: float  # of what was used, reserved and wasted; NaN where no price is configured
    borrowed_card_hours: float = math.nan  # used beyond its shares
    starved_card_hours: float = math.nan  # of its shares, asked for and not got


@dataclass(frozen=True, slots=True)
class LedgerPart:
    """Where the capacity of all cards went; both levels sum to what they divide."""

    cards: int
    hours: float
    capacity_sm_seconds: float
    used_sm_seconds: float
    level_1: tuple[Term, ...]
    level_2: tuple[Term, ...]
    by_hour: tuple[HourTerms, ...]
    tenants: tuple[TenantUse, ...]
    price: float  # of all cards over the window; NaN where a card has no price
    currency: str
    assumed_sm_count: tuple[str, ...]
    estimated_quota: tuple[str, ...]

    def ratio(self, name: str) -> float:
        """Return a term of level 1 as a share of the capacity."""
        return next(term.ratio for term in self.level_1 if term.name == name)

    @property
    def useful_ratio(self) -> float:
        """Useful work as a share of the capacity; NaN where no work had a unit to count."""
        terms = {term.name: term.sm_seconds for term in self.level_2}
        if not self.capacity_sm_seconds > 0 or (terms["useful"] == 0 and terms["unrated"] > 0):
            return math.nan
        return terms["useful"] / self.capacity_sm_seconds


@dataclass(frozen=True, slots=True)
class QueueLine:
    """Waiting for cards, per pool and tenant. Waits are of requests that started in the window.

    unmet_card_hours: cards asked for and not granted, times how long.
    """

    cluster: str
    pool: str
    tenant: str
    started: float
    wait_p50_seconds: float
    wait_p95_seconds: float
    waiting_now: float
    longest_now_seconds: float
    unmet_card_hours: float
    pending_mean: float
    quota_cards: float
    allocated_mean_cards: float


@dataclass(frozen=True, slots=True)
class FreeLine:
    """A card, a share of one, or an instance that nobody holds at the end of the window."""

    card: str
    piece: str
    model: str
    share_ratio: float
    memory_bytes: float
    since: datetime


@dataclass(frozen=True, slots=True)
class MoveLine:
    """Quota that could go from one tenant to another; `unit` is `ratio` (of a card) or `cards`."""

    donor: str
    receiver: str
    place: str
    unit: str
    lower: float
    target: float
    upper: float
    why: str


@dataclass(frozen=True, slots=True)
class EnergyPart:
    """Metered energy of the cards; tenants' parts are attributed, never measured."""

    joules: float
    pool_joules: float  # belongs to nobody
    per_useful_sm_second_joules: float
    cards_metered: int


@dataclass(frozen=True, slots=True)
class Freed:
    """Cards that nobody needs to hold, what they cost in a week, and what they draw idle; NaN: not known."""

    cards: float
    cost_a_week: float
    joules_a_week: float


@dataclass(frozen=True, slots=True)
class MigrationPart:
    """Plans of moves: for demand, and for the fewest cards; what the latter predicts, and what was really freed.

    `realised` is what nobody held on the last day of the window, less that of its first; None: under two days.
    """

    demand: MovesPlan | None
    freeing: MovesPlan | None
    predicted: Freed | None
    realised: Freed | None
    currency: str
    names: dict[str, str]  # of cards
