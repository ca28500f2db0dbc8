"""How long requests take: one sojourn distribution, from which every percentile, bucket and share within a bound comes.

The mean wait is Sakasegawa's approximation of a G/G/m queue (Kingman's formula for m = 1); sojourn times are lognormal
with that mean and the variance of service plus wait. Work that the server cannot finish in the minute stays in a
backlog; what waits longer than the time-out is given up and counts as outside.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

FloatArray = npt.NDArray[np.float64]

ARRIVAL_SCV = 1.3  # squared coefficient of variation of the gaps between requests: a little burstier than Poisson
STATIONARY_LIMIT = 0.97  # beyond this load the backlog tells the wait, not the stationary formula
TIMEOUT_SECONDS = 20.0
_CLOSED = 1e-9  # requests a second below which a server answers nobody


@dataclass(frozen=True, slots=True)
class Sojourn:
    """Lognormal sojourn times, one distribution an element."""

    mu: FloatArray
    sigma: FloatArray

    def quantile(self, q: float) -> FloatArray:
        """Seconds within which a share `q` of the requests is answered."""
        return np.asarray(np.exp(self.mu + self.sigma * ndtri(q)))

    def share_within(self, bound_seconds: FloatArray) -> FloatArray:
        """Share of requests answered within a bound; bounds broadcast against the distributions."""
        return np.asarray(ndtr((np.log(bound_seconds) - self.mu) / self.sigma))

    @property
    def mean(self) -> FloatArray:
        """Mean, seconds."""
        return np.asarray(np.exp(self.mu + self.sigma**2 / 2))


def sojourn(
    service_seconds: FloatArray, load: FloatArray, lanes: FloatArray, cv: FloatArray, delay_seconds: FloatArray
) -> Sojourn:
    """Return the distribution of sojourn times.

    Args:
        service_seconds: mean time of one request once it runs.
        load: offered work over capacity, 0..; beyond the stationary limit it is cut there.
        lanes: requests that can run at once without slowing one another (>= 1).
        cv: coefficient of variation of the service time.
        delay_seconds: wait that the backlog adds for everyone.
    """
    rho = np.minimum(load, STATIONARY_LIMIT)
    m = np.maximum(lanes, 1.0)
    wait = service_seconds / m * rho ** (np.sqrt(2 * (m + 1)) - 1) / (1 - rho) * (ARRIVAL_SCV + cv**2) / 2
    mean = service_seconds + wait + delay_seconds
    variance = (cv * service_seconds) ** 2 + wait**2
    sigma2 = np.log1p(variance / mean**2)
    return Sojourn(np.log(mean) - sigma2 / 2, np.sqrt(sigma2))


@dataclass(frozen=True, slots=True)
class Served:
    """What became of the requests of one minute: finished + timed out + backlog = arrived + backlog before."""

    finished: FloatArray
    timed_out: FloatArray
    backlog: FloatArray
    delay_seconds: FloatArray


def serve(arrived: FloatArray, backlog: FloatArray, capacity_per_second: FloatArray, seconds: float) -> Served:
    """Pass one minute of requests through servers that can finish `capacity_per_second` each."""
    offered = arrived + backlog
    finished = np.minimum(offered, capacity_per_second * seconds)
    rest = offered - finished
    kept = np.minimum(rest, capacity_per_second * TIMEOUT_SECONDS)
    mean_backlog, open_server = (backlog + kept) / 2, capacity_per_second > _CLOSED
    delay = np.divide(mean_backlog, capacity_per_second, out=np.zeros_like(kept), where=open_server)
    return Served(finished, rest - kept, kept, delay)
