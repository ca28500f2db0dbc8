"""What is measured of one directed pair: plain numbers and words, one row of the measures."""

from __future__ import annotations

import math
from dataclasses import dataclass

THROTTLE = "a short throttle of it"  # among the needs of a pair that only an experiment can decide


@dataclass(frozen=True, slots=True)
class PairMeasure:
    """One directed pair. Numbers are NaN where they were not computed; `untested` says why p is.

    `suspect_gpu` and `pressure` (the channels that are full) are told of pairs across cards alone (TT102). `needs` is
    what would decide an untested pair, `first_met` the sample of the window in which both were there first. Effects are
    ratios at the suspect's full (2 to 98 %) swing.
    """

    cluster: str
    node: str
    gpu: str
    victim: str
    suspect: str
    suspect_gpu: str = ""
    pressure: str = ""
    victim_tenant: str = ""
    victim_workload: str = ""
    suspect_tenant: str = ""
    suspect_workload: str = ""
    victim_kind: str = ""
    suspect_kind: str = ""
    suspect_serves: str = ""
    untested: str = ""
    needs: str = ""
    cost: str = ""
    cost_trust: float = math.nan
    activity: str = ""
    activity_trust: float = math.nan
    samples: float = math.nan
    coverage: float = math.nan
    controls: str = ""
    swing: float = math.nan
    episodes: float = math.nan
    first_met: float = math.nan
    p: float = math.nan
    z: float = math.nan
    correlation: float = math.nan
    lag_seconds: float = math.nan
    effect: float = math.nan
    effect_lower: float = math.nan
    effect_upper: float = math.nan
    influence_z: float = math.nan
    lead_z: float = math.nan
    lag_z: float = math.nan
    same_z: float = math.nan
    states: float = math.nan
    state_z: float = math.nan
    state_share: float = math.nan
    gap: float = math.nan
    shape_z: float = math.nan
    own_z: float = math.nan
    rhythm_z: float = math.nan
    memory: float = math.nan
    foresight_z: float = math.nan
    dose_z: float = math.nan
    rival: str = ""
    channel: str = ""
    channel_basis: str = ""
    twins: str = ""
    channel_shares: str = ""
