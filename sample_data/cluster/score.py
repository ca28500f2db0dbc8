"""The scoreboard: what a run was worth, from the truth; and what one who knew everything could have made of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sample_data.cluster.spec import ClusterSpec
from sample_data.cluster.truth import Truth

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Score:
    """Figures of one run.

    Attributes:
        useful_ratio: solo SM-seconds of requests within their objective and of finished steps, less what evictions
            threw away, over the SM-seconds of all cards.
        hourly_useful: the same, an hour each.
        kept: service -> share of its minutes with requests in which its promised share met the bound.
        kept_minutes, service_minutes: service -> the counts behind `kept`.
        wait_p50_seconds, wait_p95_seconds: of all queue jobs, those that still wait with their wait so far.
        waste_ratio: held and not used, over all cards.
        energy_kwh: of all cards.
        energy_per_useful_joules: joules for each useful SM-second.
    """

    useful_ratio: float
    hourly_useful: tuple[float, ...]
    kept: dict[str, float]
    kept_minutes: dict[str, int]
    service_minutes: dict[str, int]
    wait_p50_seconds: float
    wait_p95_seconds: float
    waste_ratio: float
    energy_kwh: float
    energy_per_useful_joules: float


def score(truth: Truth, spec: ClusterSpec) -> Score:
    """Return the figures of a run so far.

    Raises:
        ValueError: no minute has passed.
    """
    if not truth.minutes:
        raise ValueError("expected a run of at least one minute, got none; step the cluster first")
    lost = np.array([m.lost_sm_seconds for m in truth.minutes])
    useful = truth.useful_sm_seconds() - lost
    capacity = truth.capacity_sm_seconds
    hours = [useful[k : k + 60].sum() / (capacity * len(useful[k : k + 60])) for k in range(0, len(useful), 60)]
    requests, within = truth.requests(), truth.within()
    kept_minutes, service_minutes = {}, {}
    for k, service in enumerate(spec.services):
        asked = requests[:, k] > 0
        good = within[asked, k] >= service.objective.share * requests[asked, k]
        kept_minutes[service.name], service_minutes[service.name] = int(good.sum()), int(asked.sum())
    waits = [w for m in truth.minutes for w in m.waits_seconds] + truth.open_waits_seconds
    energy = float(sum(m.energy_joules.sum() for m in truth.minutes))
    used = float(sum(m.used.sum() for m in truth.minutes))
    held = float(sum(m.held_sm_seconds for m in truth.minutes))
    return Score(
        useful_ratio=float(useful.sum() / (capacity * len(useful))),
        hourly_useful=tuple(float(h) for h in hours),
        kept={n: kept_minutes[n] / max(service_minutes[n], 1) for n in kept_minutes},
        kept_minutes=kept_minutes,
        service_minutes=service_minutes,
        wait_p50_seconds=float(np.percentile(waits, 50)) if waits else 0.0,
        wait_p95_seconds=float(np.percentile(waits, 95)) if waits else 0.0,
        waste_ratio=max(held - used, 0.0) / (capacity * len(useful)),
        energy_kwh=energy / 3.6e6,
        energy_per_useful_joules=energy / max(float(useful.sum()), 1.0),
    )
