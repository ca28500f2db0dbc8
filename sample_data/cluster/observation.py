"""Who holds a slice, and what one minute looked like from outside."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sample_data.cluster.latency import Sojourn
from sample_data.cluster.spec import SliceSpec
from sample_data.cluster.streams import hex_name

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Holder:
    """The pod that holds a slice."""

    namespace: str
    pod: str
    container: str
    workload: str
    created_minute: float
    started_minute: int


@dataclass(frozen=True, slots=True)
class Observation:
    """What one minute looked like from outside, per slice (or card); exporters print from this."""

    minute: int
    running: BoolArray  # held, and a process runs
    used: FloatArray  # share of the card's SM-time in use
    duty: FloatArray  # share of the minute in which it had a kernel on the card
    memory: FloatArray  # bytes
    service_seconds: FloatArray  # online: mean service time of a request; others: of a step (NaN: none)
    sojourn: Sojourn
    finished: FloatArray  # requests
    timed_out: FloatArray
    backlog: FloatArray
    load: FloatArray
    steps: FloatArray
    active_seconds: FloatArray  # of the trainers' step loops
    clock: FloatArray  # per card, factor
    activity: FloatArray  # 0..1, how hard it presses
    slowing: FloatArray


def first_holder(s: SliceSpec) -> Holder:
    """Return the pod that holds a slice when the simulation starts."""
    container = {"vllm": "vllm", "triton": "triton", "trainer": "train", "none": "notebook"}[s.app]
    if s.online:
        pod = f"{s.name}-{hex_name(9, 'rs', s.name)}-{hex_name(5, 'pod', s.name, s.ordinal)}"
    else:
        pod = f"{s.name}-{s.ordinal}"
    return Holder(s.tenant, pod, container, s.name, 0, 0)
