"""Seeded little worlds for the contention benchmark: four tasks on a card, their physics, and who slows whom in truth.

It knows nothing of the analyzer: it makes series by its own simple physics and lays them out as rows. Every card draws
its own physics (noise, tails, how latency grows with load, rhythm of the batch tasks, errors of measurement), so that
no threshold can be fitted to one world. A suspect can be throttled in given samples: its effects then follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.signal import lfilter

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
TASKS = ("v", "a", "c", "d")
DAY = 1440
START = pd.Timestamp("2026-03-02T00:00:00Z")


@dataclass(frozen=True)
class Physics:
    """What differs from card to card."""

    memory: tuple[float, float]  # range of the noise's AR(1) coefficient
    spread: tuple[float, float]  # range of the noise's standard deviation, in ln(time)
    tail: float  # degrees of freedom of the noise's shocks; 0: normal
    base_use: float  # of the victim's own queue at mean load
    queueing: float  # how strongly latency grows with use
    on: tuple[float, float]  # range of a batch task's mean run, in samples
    off: tuple[float, float]  # range of its mean pause
    level: tuple[float, float]  # range of its activity while it runs
    load_error: float  # relative error of the measured request rate
    inflation: float  # share of a slow-down that shows in the victim's own activity

    @classmethod
    def draw(cls, rng: np.random.Generator) -> Physics:
        return cls(
            memory=(0.2, 0.85),
            spread=(0.025, 0.075),
            tail=float(rng.choice([0.0, 0.0, 4.0])),
            base_use=float(rng.uniform(0.3, 0.5)),
            queueing=float(rng.uniform(0.2, 0.45)),
            on=(6.0, 40.0),
            off=(15.0, 90.0),
            level=(0.12, 0.35),
            load_error=float(rng.uniform(0.005, 0.025)),
            inflation=float(rng.uniform(0.3, 0.8)),
        )


@dataclass(frozen=True)
class Harm:
    """One planted effect: ln slow-down of the victim as a function of all activities."""

    victim: str
    of: Callable[[Mapping[str, Floats]], Floats]


@dataclass
class World:
    """One card. `cost` is ln(time per unit of work); `true` maps (victim, suspect) to the slow-down at full swing."""

    scenario: str
    kind: int
    seed: int
    number: int
    n: int
    rng: np.random.Generator
    physics: Physics
    step_seconds: float = 60.0
    load: dict[str, Floats] = field(default_factory=dict)  # offered, relative
    activity: dict[str, Floats] = field(default_factory=dict)
    noise: dict[str, Floats] = field(default_factory=dict)
    harms: list[Harm] = field(default_factory=list)
    hidden: Floats = field(default_factory=lambda: np.zeros(0))
    clock: Floats = field(default_factory=lambda: np.zeros(0))
    absent: dict[str, Bools] = field(default_factory=dict)
    true: dict[tuple[str, str], float] = field(default_factory=dict)
    undecidable: set[tuple[str, str]] = field(default_factory=set)

    def slow(self, task: str) -> Floats:
        """Return the ln slow-down of a task by others."""
        return np.sum([harm.of(self.activity) for harm in self.harms if harm.victim == task], axis=0) + np.zeros(self.n)

    def cost(self, task: str) -> Floats:
        """Return ln of the true time per unit of work."""
        queue = 0.0
        if task in self.load:
            use = np.clip(self.physics.base_use * self.load[task], 0, 0.93)
            queue = self.physics.queueing * use / (1 - use)
        return np.log(0.05) + queue + self.noise[task] + self.slow(task) - np.log(self.clock)

    def hurt(
        self, victim: str, suspect: str, size: float, shape: Callable[[Floats], Floats] = lambda activity: activity
    ) -> None:
        """Plant an effect: `size` is the slow-down at the suspect's full swing of `shape(activity)`."""
        low, high = np.quantile(shape(self.activity[suspect]), [0.02, 0.98])
        swing = max(float(high - low), 1e-9)
        self.harms.append(Harm(victim, lambda all_: np.log1p(size) * (shape(all_[suspect]) - low) / swing))
        self.true[(victim, suspect)] = size

    def throttled(self, suspect: str, when: Bools, share: float) -> World:
        """Return the same world, to the last random draw, with the suspect held to `share` of its activity at `when`.

        Only what truly depends on the suspect changes: the noise, the loads and whatever else drives them do not.
        """
        held = self.activity[suspect] * np.where(when, share, 1.0)
        return replace(self, activity=self.activity | {suspect: held})


def ar1(rng: np.random.Generator, n: int, rho: float, spread: float, tail: float = 0.0) -> Floats:
    """AR(1) noise with stationary standard deviation `spread`; `tail`: degrees of freedom of its shocks."""
    wild = rng.standard_t(tail, n) * np.sqrt((tail - 2) / tail) if tail else rng.normal(0, 1, n)
    shocks = wild * spread * np.sqrt(1 - rho**2)
    shocks[0] = rng.normal(0, spread)
    return lfilter([1.0], [1.0, -rho], shocks)


def bursts(rng: np.random.Generator, n: int, on: float, off: float, level: float) -> Floats:
    """Activity of a batch task: runs of `on` minutes at about `level`, pauses of `off` minutes."""
    out = np.zeros(n)
    at = int(rng.exponential(off))
    while at < n:
        length = max(2, int(rng.exponential(on)))
        out[at : at + length] = level * rng.uniform(0.8, 1.1)
        at += length + max(2, int(rng.exponential(off)))
    jitter = np.where(out > 0, ar1(rng, n, 0.5, 0.03), 0.0)
    return np.clip(out + jitter + rng.uniform(0, 0.01, n), 0.0, 1.0)


def daily(rng: np.random.Generator, n: int, phase: float, depth: float = 0.5) -> Floats:
    """Relative load of an online service: a daily cycle, slow noise, Poisson noise."""
    cycle = 1 + depth * np.sin(2 * np.pi * (np.arange(n) / DAY - phase))
    mean = np.maximum(cycle * np.exp(ar1(rng, n, 0.9, 0.08)), 0.05)
    return rng.poisson(mean * 600) / 600


def online(w: World, task: str, phase: float) -> None:
    w.load[task] = daily(w.rng, w.n, phase)
    w.activity[task] = np.clip(0.12 * w.load[task] * np.exp(w.rng.normal(0, 0.03, w.n)), 0, 1)


def base(scenario: str, kind: int, seed: int, number: int, n: int) -> World:
    """Return a card without any interference: v and d serve requests, a and c run in bursts.

    `kind`, the number of the scenario, `seed` and the card's `number` decide every draw.
    """
    rng = np.random.default_rng([seed, kind, number])
    physics = Physics.draw(rng)
    w = World(scenario, kind, seed, number, n, rng, physics)
    online(w, "v", rng.uniform(0.2, 0.4))
    online(w, "d", rng.uniform(0, 1))
    for task in ("a", "c"):
        w.activity[task] = bursts(
            rng, n, rng.uniform(*physics.on), rng.uniform(*physics.off), rng.uniform(*physics.level)
        )
    for task in TASKS:
        w.noise[task] = ar1(rng, n, rng.uniform(*physics.memory), rng.uniform(*physics.spread), physics.tail)
        w.absent[task] = rng.random(n) < 0.005
    w.hidden = np.zeros(n)
    w.clock = np.ones(n)
    return w


def rows(world: World) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Lay a world out as `gpu` and `slice` rows, with a little measurement noise."""
    rng = np.random.default_rng([world.seed, world.kind, world.number, 7])
    time = START + pd.to_timedelta(np.arange(world.n) * world.step_seconds, unit="s")
    gpu = f"GPU-{world.scenario}-{world.number}"
    total = world.hidden.copy()
    parts = []
    for task in TASKS:
        cost, slow = world.cost(task), world.slow(task)
        # Work takes longer when somebody is in the way, so the victim's own activity rises with it; what its pipes
        # and its memory interface carry does not.
        active = np.clip(world.activity[task] * np.exp(world.physics.inflation * slow), 0, 1)
        total += active
        table = {
            "time": time,
            "cluster": "bench",
            "node": world.scenario,
            "gpu": gpu,
            "slice": f"ns/{task}-0/main/0",
            "tenant": "ns",
            "workload": task,
            "sm_active_ratio": active,
            "dram_active_ratio": np.clip(0.6 * world.activity[task] * np.exp(rng.normal(0, 0.02, world.n)), 0, 1),
            "tensor_active_ratio": np.clip(0.4 * world.activity[task] * np.exp(rng.normal(0, 0.02, world.n)), 0, 1),
        }
        shown = np.exp(cost + rng.normal(0, 0.005, world.n))
        if task in world.load:
            shown[world.absent[task]] = np.nan
            seen = 1 + rng.normal(0, world.physics.load_error, world.n)
            table["requests_per_second"] = 20 * world.load[task] * seen
            table["latency_p50_seconds"] = shown
        else:
            shown[world.absent[task] | (world.activity[task] < 0.05)] = np.nan
            table["step_seconds"] = shown
        parts.append(pd.DataFrame(table))
    device = pd.DataFrame(
        {
            "time": time,
            "cluster": "bench",
            "node": world.scenario,
            "gpu": gpu,
            "sm_active_ratio": np.clip(total, 0, 1.05),
            "sm_clock_hertz": 1.755e9 * world.clock,
        }
    )
    return device, pd.concat(parts, ignore_index=True)
