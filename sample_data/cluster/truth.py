"""What really happened: for tests and the scoreboard only; no source and no backend reads it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Pair:
    """One ordered pair of slices on a card: what the suspect really does to the victim.

    `effect` is the relative slow-down of the victim at the suspect's full swing (98 % against 2 % of its activity),
    by counterfactual physics: everything else as it was.
    """

    node: str
    gpu: str
    kind: str
    victim: str  # workload#ordinal
    suspect: str
    effect: float
    planted: bool
    decoy: str  # name of the decoy, or empty
    channel: str  # the strongest channel


@dataclass(slots=True)
class Minute:
    """Truth of one minute."""

    useful: FloatArray  # per slice: solo SM-seconds of requests within their objective and of steps finished
    used: FloatArray  # per slice: SM-seconds in use
    demand: FloatArray  # per slice: share of the card that it could have used, had it been alone
    requests: FloatArray  # per service
    within: FloatArray  # per service
    energy_joules: FloatArray  # per card
    waits_seconds: tuple[float, ...]  # of jobs admitted in the minute
    lost_sm_seconds: float  # to restarts and evictions
    held_sm_seconds: float  # held by somebody
    waiting: int  # jobs that wait at the end of the minute


@dataclass(slots=True)
class Truth:
    """All minutes so far."""

    services: tuple[str, ...]
    capacity_sm_seconds: float  # of all cards, in one minute
    minutes: list[Minute] = field(default_factory=list)
    open_waits_seconds: list[float] = field(default_factory=list)  # of jobs that still wait, set as time passes
    pairs: list[Pair] = field(default_factory=list)

    def useful_sm_seconds(self) -> FloatArray:
        """Useful SM-seconds of the fleet, a minute each."""
        return np.array([m.useful.sum() for m in self.minutes])

    def requests(self) -> FloatArray:
        """Requests, (minutes, services)."""
        return np.stack([m.requests for m in self.minutes])

    def within(self) -> FloatArray:
        """Requests within their objective, (minutes, services)."""
        return np.stack([m.within for m in self.minutes])
