"""Seeded little worlds for the contention benchmark: four tasks on a card, and the truth about who slows whom.

It knows nothing of the analyzer: it makes series by its own simple physics and lays them out as rows. Each scenario
plants one confounder or one kind of true effect; the designed pair is always victim `v`, suspect `a`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.signal import lfilter

Floats = NDArray[np.float64]
TASKS = ("v", "a", "c", "d")
DAY = 1440
START = pd.Timestamp("2026-03-02T00:00:00Z")


@dataclass
class World:
    """One card. `cost` is ln(time per unit of work); `true` maps (victim, suspect) to the slow-down at full swing."""

    scenario: str
    rng: np.random.Generator
    n: int
    number: int
    load: dict[str, Floats] = field(default_factory=dict)  # offered, relative
    activity: dict[str, Floats] = field(default_factory=dict)
    noise: dict[str, Floats] = field(default_factory=dict)
    slow: dict[str, Floats] = field(default_factory=dict)  # ln slow-down by others
    hidden: Floats = field(default_factory=lambda: np.zeros(0))
    clock: Floats = field(default_factory=lambda: np.zeros(0))
    absent: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    true: dict[tuple[str, str], float] = field(default_factory=dict)
    undecidable: set[tuple[str, str]] = field(default_factory=set)

    def cost(self, task: str) -> Floats:
        """Return ln of the true time per unit of work."""
        queue = 0.0
        if task in self.load:
            use = np.clip(0.55 * self.load[task], 0, 0.93)
            queue = 0.35 * use / (1 - use)
        throttle = np.log(1.0 / self.clock)
        return np.log(0.05) + queue + self.noise[task] + self.slow[task] + throttle

    def hurt(self, victim: str, suspect: str, size: float, shape: Floats | None = None) -> None:
        """Plant an effect: `size` is the slow-down at the suspect's full swing."""
        a = self.activity[suspect] if shape is None else shape
        low, high = np.quantile(a, [0.02, 0.98])
        swing = max(high - low, 1e-9)
        self.slow[victim] = self.slow[victim] + np.log1p(size) * (a - low) / swing
        self.true[(victim, suspect)] = size


def ar1(rng: np.random.Generator, n: int, rho: float, spread: float) -> Floats:
    """AR(1) noise with stationary standard deviation `spread`."""
    shocks = rng.normal(0, spread * np.sqrt(1 - rho**2), n)
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


def _online(w: World, task: str, phase: float) -> None:
    w.load[task] = daily(w.rng, w.n, phase)
    w.activity[task] = np.clip(0.12 * w.load[task] * np.exp(w.rng.normal(0, 0.03, w.n)), 0, 1)


def base(scenario: str, seed: int, number: int, n: int) -> World:
    """Return a card without any interference: v and d serve requests, a and c run in bursts."""
    rng = np.random.default_rng([seed, SCENARIO_NUMBER[scenario], number])
    w = World(scenario, rng, n, number)
    _online(w, "v", rng.uniform(0.2, 0.4))
    _online(w, "d", rng.uniform(0, 1))
    for task in ("a", "c"):
        w.activity[task] = bursts(rng, n, rng.uniform(8, 40), rng.uniform(20, 90), rng.uniform(0.12, 0.28))
    for task in TASKS:
        w.noise[task] = ar1(rng, n, rng.uniform(0.3, 0.8), rng.uniform(0.03, 0.07))
        w.slow[task] = np.zeros(n)
        w.absent[task] = rng.random(n) < 0.005
    w.hidden = np.zeros(n)
    w.clock = np.ones(n)
    return w


def _size(w: World, low: float, high: float) -> float:
    return float(w.rng.uniform(low, high))


def _null_indep(_w: World) -> None:
    """Nothing is planted."""


def _true_burst(w: World) -> None:
    w.hurt("v", "a", _size(w, 0.10, 0.49))


def _null_daily(w: World) -> None:
    follow = daily(w.rng, w.n, 0.3)
    w.load["v"] = daily(w.rng, w.n, 0.3)
    w.activity["v"] = np.clip(0.12 * w.load["v"], 0, 1)
    w.load["a"] = follow
    w.activity["a"] = np.clip(0.2 * follow * np.exp(w.rng.normal(0, 0.05, w.n)), 0, 1)


def _true_daily(w: World) -> None:
    _null_daily(w)
    w.hurt("v", "a", _size(w, 0.15, 0.5))


def _null_ownload(w: World) -> None:
    own = bursts(w.rng, w.n, 10, 60, 0.15)
    w.activity["a"] = np.clip(0.05 + 0.15 * w.load["v"] + own, 0, 1)


def _true_ownload(w: World) -> None:
    _null_ownload(w)
    w.hurt("v", "a", _size(w, 0.15, 0.5))


def _react(w: World, delay: int) -> None:
    """The suspect answers the victim's own slowness: evenly, to incidents, or by a threshold; half have own work."""
    style = w.number % 4
    if style == 1:  # incidents of the victim
        w.noise["v"] = w.noise["v"] + bursts(w.rng, w.n, 4, 60, 0.25)
    if style == 3:  # heavy tails
        w.noise["v"] = w.noise["v"] + 0.03 * np.clip(w.rng.standard_t(3, w.n), -6, 6)
    # Odd cards feel the whole latency, even ones a part of it that nobody measures.
    seen = w.cost("v") if w.number % 2 else w.noise["v"]
    felt = np.roll(seen - seen.mean(), delay) / seen.std()
    reaction = np.where(felt > 1.0, 0.3, 0.0) if style == 2 else 0.08 * felt
    own = bursts(w.rng, w.n, 15, 90, 0.1) if w.number % 2 else 0.0
    w.activity["a"] = np.clip(0.2 + reaction + own + w.rng.normal(0, 0.02, w.n), 0, 1)


def _third_party(w: World) -> None:
    w.hurt("v", "c", _size(w, 0.15, 0.5))
    w.activity["a"] = np.clip(0.8 * w.activity["c"] + ar1(w.rng, w.n, 0.6, 0.04) + 0.1, 0, 1)


def _hidden_third(w: World) -> None:
    w.hidden = bursts(w.rng, w.n, 20, 60, 0.3)
    w.slow["v"] = w.slow["v"] + np.log1p(_size(w, 0.15, 0.5)) * w.hidden / 0.3
    w.activity["a"] = np.clip(0.7 * w.hidden + ar1(w.rng, w.n, 0.6, 0.04) + 0.1, 0, 1)


def _always_on(w: World) -> None:
    w.activity["a"] = np.clip(0.5 + w.rng.normal(0, 0.006, w.n), 0, 1)
    w.slow["v"] = w.slow["v"] + np.log1p(_size(w, 0.15, 0.5)) * w.activity["a"] / 0.5
    w.true[("v", "a")] = 0.3
    w.undecidable.add(("v", "a"))


def _arrival_step(w: World) -> None:
    at = int(w.rng.uniform(0.3, 0.7) * w.n)
    w.activity["a"] = np.where(np.arange(w.n) >= at, 0.5, 0.0) + np.abs(w.rng.normal(0, 0.006, w.n))
    w.hurt("v", "a", _size(w, 0.15, 0.5))
    w.undecidable.add(("v", "a"))


def _few_samples(w: World) -> None:
    w.activity["a"] = bursts(w.rng, w.n, 5, 6, 0.4)
    w.hurt("v", "a", _size(w, 0.25, 0.65))


def _null_few(w: World) -> None:
    ramp = np.linspace(0, 1, w.n)
    w.activity["a"] = np.clip(0.1 + 0.4 * ramp + w.rng.normal(0, 0.02, w.n), 0, 1)
    w.noise["v"] = w.noise["v"] + 0.25 * ramp


def _missing_mcar(w: World) -> None:
    w.hurt("v", "a", _size(w, 0.15, 0.5))
    w.absent["v"] = w.rng.random(w.n) < 0.4
    for _ in range(3):
        at = int(w.rng.uniform(0, w.n - 40))
        w.absent["v"][at : at + 40] = True


def _missing_mnar(w: World) -> None:
    w.hurt("v", "a", _size(w, 0.15, 0.5))
    slow = w.slow["v"] + w.noise["v"]
    w.absent["v"] = w.rng.random(w.n) < 0.5 / (1 + np.exp(-(slow - np.quantile(slow, 0.9)) / 0.03))


def _null_missing(w: World) -> None:
    _null_daily(w)
    busy = w.activity["a"] > np.quantile(w.activity["a"], 0.6)
    w.absent["v"] = busy & (w.rng.random(w.n) < 0.6)


def _true_lag(w: World) -> None:
    late = int(w.rng.integers(3, 6))
    smeared = lfilter(np.ones(3) / 3, [1.0], np.roll(w.activity["a"], late))
    w.hurt("v", "a", _size(w, 0.15, 0.5), smeared)


def _null_randomwalk(w: World) -> None:
    w.activity["a"] = np.clip(0.4 + ar1(w.rng, w.n, 0.998, 0.12), 0, 1)
    w.noise["v"] = ar1(w.rng, w.n, 0.998, 0.12) + w.rng.normal(0, 0.01, w.n)


def _true_saturation(w: World) -> None:
    w.activity["a"] = np.clip(1.3 * w.activity["a"], 0, 1)
    together = w.activity["a"] + w.activity["c"] + w.activity["v"] + w.activity["d"]
    w.slow["v"] = w.slow["v"] + 1.5 * np.maximum(together - 0.4, 0)
    w.true[("v", "a")] = w.true[("v", "c")] = w.true[("v", "d")] = 0.15
    w.undecidable |= {("v", "c"), ("v", "d")}


def _null_throttle(w: World) -> None:
    hot = bursts(w.rng, w.n, 15, 80, 0.3)
    w.clock = np.clip(1 - hot, 0.5, 1.0)
    w.activity["a"] = np.clip((0.25 + ar1(w.rng, w.n, 0.7, 0.04)) / w.clock, 0, 1)


def _true_mutual(w: World) -> None:
    w.hurt("v", "a", _size(w, 0.15, 0.5))
    w.hurt("a", "v", _size(w, 0.15, 0.5))


def _true_weak(w: World) -> None:
    w.hurt("v", "a", _size(w, 0.03, 0.06))


def _heavy(w: World) -> None:
    w.noise["v"] = 0.05 * np.clip(w.rng.standard_t(2.5, w.n), -12, 12)
    w.activity["a"] = bursts(w.rng, w.n, 8, 150, 0.4)


def _null_heavy(w: World) -> None:
    _heavy(w)


def _true_heavy(w: World) -> None:
    _heavy(w)
    w.hurt("v", "a", _size(w, 0.2, 0.5))


def _null_hourly(w: World) -> None:
    minute = np.arange(w.n) % 60
    w.activity["a"] = np.clip(np.where(minute < 8, 0.4, 0.05) + w.rng.normal(0, 0.02, w.n), 0, 1)
    w.noise["v"] = w.noise["v"] + np.where(minute < 6, 0.2, 0.0)


def _null_deploy(w: World) -> None:
    at = int(w.rng.uniform(0.3, 0.7) * w.n)
    after = np.arange(w.n) >= at
    w.activity["a"] = np.clip(np.where(after, 0.5, 0.2) + ar1(w.rng, w.n, 0.5, 0.02), 0, 1)
    w.noise["v"] = w.noise["v"] + np.where(after, 0.2, 0.0)


def _true_interact(w: World) -> None:
    busy = w.load["v"] > np.median(w.load["v"])
    w.hurt("v", "a", _size(w, 0.25, 0.6), w.activity["a"] * busy)


def _true_multi(w: World) -> None:
    w.hurt("v", "a", _size(w, 0.15, 0.5))
    w.hurt("v", "c", _size(w, 0.15, 0.5))


SCENARIOS: dict[str, Callable[[World], None]] = {
    "null_indep": _null_indep,
    "true_burst": _true_burst,
    "null_daily": _null_daily,
    "true_daily": _true_daily,
    "null_ownload": _null_ownload,
    "true_ownload": _true_ownload,
    "null_reverse_lag": lambda w: _react(w, 1 + w.number % 3),
    "null_reverse_sync": lambda w: _react(w, 0),
    "third_party": _third_party,
    "hidden_third": _hidden_third,
    "always_on": _always_on,
    "arrival_step": _arrival_step,
    "few_samples": _few_samples,
    "null_few": _null_few,
    "missing_mcar": _missing_mcar,
    "missing_mnar": _missing_mnar,
    "null_missing": _null_missing,
    "true_lag": _true_lag,
    "null_randomwalk": _null_randomwalk,
    "true_saturation": _true_saturation,
    "null_throttle": _null_throttle,
    "true_mutual": _true_mutual,
    "true_weak": _true_weak,
    "null_heavy": _null_heavy,
    "true_heavy": _true_heavy,
    "null_hourly": _null_hourly,
    "null_deploy": _null_deploy,
    "true_interact": _true_interact,
    "true_multi": _true_multi,
}
SCENARIO_NUMBER = {name: number for number, name in enumerate(SCENARIOS)}


def make_world(scenario: str, seed: int, number: int, n: int = 2 * DAY) -> World:
    """Make one card of a scenario; the few-samples scenarios are always 45 minutes long."""
    world = base(scenario, seed, number, 45 if "few" in scenario else n)
    SCENARIOS[scenario](world)
    return world


def rows(world: World) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Lay a world out as `gpu` and `slice` rows, with a little measurement noise."""
    rng = np.random.default_rng([world.number, world.n, 7])
    time = START + pd.to_timedelta(np.arange(world.n), unit="min")
    gpu = f"GPU-{world.scenario}-{world.number}"
    total = world.hidden.copy()
    parts = []
    for task in TASKS:
        cost = world.cost(task)
        # Work takes longer when somebody is in the way, so the victim's own activity rises with it.
        active = np.clip(world.activity[task] * np.exp(0.5 * world.slow[task]), 0, 1)
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
            "dram_active_ratio": np.clip(0.6 * active + rng.normal(0, 0.01, world.n), 0, 1),
        }
        shown = np.exp(cost + rng.normal(0, 0.005, world.n))
        if task in world.load:
            shown[world.absent[task]] = np.nan
            table["requests_per_second"] = 20 * world.load[task] * (1 + rng.normal(0, 0.02, world.n))
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
