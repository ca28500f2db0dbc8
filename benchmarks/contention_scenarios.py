"""Scenarios of one card: each plants one confounder or one kind of true effect.

The designed pair is always victim `v`, suspect `a`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.signal import lfilter

from benchmarks.contention_worlds import DAY, Harm, World, ar1, base, bursts, daily


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
    harm = np.log1p(_size(w, 0.15, 0.5)) * w.hidden / 0.3
    w.harms.append(Harm("v", lambda _all: harm))
    w.activity["a"] = np.clip(0.7 * w.hidden + ar1(w.rng, w.n, 0.6, 0.04) + 0.1, 0, 1)


def _always_on(w: World) -> None:
    w.activity["a"] = np.clip(0.5 + w.rng.normal(0, 0.006, w.n), 0, 1)
    size = _size(w, 0.15, 0.5)
    w.harms.append(Harm("v", lambda all_: np.log1p(size) * all_["a"] / 0.5))
    w.true[("v", "a")] = size
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
    slow = w.slow("v") + w.noise["v"]
    w.absent["v"] = w.rng.random(w.n) < 0.5 / (1 + np.exp(-(slow - np.quantile(slow, 0.9)) / 0.03))


def _null_missing(w: World) -> None:
    _null_daily(w)
    busy = w.activity["a"] > np.quantile(w.activity["a"], 0.6)
    w.absent["v"] = busy & (w.rng.random(w.n) < 0.6)


def _true_lag(w: World) -> None:
    late, width = int(w.rng.integers(1, 6)), int(w.rng.integers(1, 4))
    w.hurt("v", "a", _size(w, 0.15, 0.5), lambda a: lfilter(np.ones(width) / width, [1.0], np.roll(a, late)))


def _null_randomwalk(w: World) -> None:
    w.activity["a"] = np.clip(0.4 + ar1(w.rng, w.n, 0.998, 0.12), 0, 1)
    w.noise["v"] = ar1(w.rng, w.n, 0.998, 0.12) + w.rng.normal(0, 0.01, w.n)


def _true_saturation(w: World) -> None:
    w.activity["a"] = np.clip(1.3 * w.activity["a"], 0, 1)
    w.harms.append(Harm("v", lambda all_: 1.5 * np.maximum(sum(all_.values()) - 0.45, 0)))
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
    w.noise["v"] = 0.05 * np.clip(w.rng.standard_t(w.rng.uniform(2.2, 3.5), w.n), -12, 12)
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
    w.hurt("v", "a", _size(w, 0.25, 0.6), lambda a: a * busy)


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
    world = base(scenario, SCENARIO_NUMBER[scenario], seed, number, 45 if "few" in scenario else n)
    SCENARIOS[scenario](world)
    return world
