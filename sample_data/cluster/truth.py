"""What really happened: for tests and the scoreboard only; no source and no backend reads it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sample_data.cluster.pairs import Pair, true_pairs
from sample_data.cluster.spec import ClusterSpec

FloatArray = npt.NDArray[np.float64]


@dataclass(slots=True)
class Minute:
    """Truth of one minute."""

    useful: FloatArray  # per slice: solo SM-seconds of requests within their objective and of steps finished
    used: FloatArray  # per slice: SM-seconds in use
    demand: FloatArray  # per slice: share of the card that it could have used, had it been alone
    requests: FloatArray  # per service
    within: FloatArray  # per service
    activity: FloatArray  # per slice: how hard it pressed on its card, 0..1
    turn: FloatArray  # per slice: share of the time that it wanted in a rotation (0: not in one)
    energy_joules: FloatArray  # per card
    waits_seconds: tuple[float, ...]  # of jobs admitted in the minute
    lost_sm_seconds: float  # to restarts and evictions
    held_sm_seconds: float  # held by somebody
    waiting: int  # jobs that wait at the end of the minute
    quota: FloatArray  # per slice: share of the card that somebody holds; 0: nobody, or the card is gone
    contention: FloatArray  # per slice: SM-seconds that neighbours cost it
    throttling: FloatArray  # per slice: SM-seconds that a lowered clock cost it
    vain: FloatArray  # per slice: SM-seconds of requests that came too late, and of a job's minute after its end


@dataclass(slots=True)
class Truth:
    """All minutes so far."""

    spec: ClusterSpec
    services: tuple[str, ...]
    capacity_sm_seconds: float  # of all cards, in one minute
    minutes: list[Minute] = field(default_factory=list)
    open_waits_seconds: list[float] = field(default_factory=list)  # of jobs that still wait, set as time passes

    @property
    def pairs(self) -> list[Pair]:
        """Every ordered pair of slices on one card with its true effect in the run so far, planted or not."""
        activity = np.stack([m.activity for m in self.minutes])
        return true_pairs(self.spec, activity, np.stack([m.turn for m in self.minutes]))

    def useful_sm_seconds(self) -> FloatArray:
        """Useful SM-seconds of the fleet, a minute each."""
        return np.array([m.useful.sum() for m in self.minutes])

    def requests(self) -> FloatArray:
        """Requests, (minutes, services)."""
        return np.stack([m.requests for m in self.minutes])

    def within(self) -> FloatArray:
        """Requests within their objective, (minutes, services)."""
        return np.stack([m.within for m in self.minutes])
