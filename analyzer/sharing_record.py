"""What a workload's unit of work costs in one mode, as moments over blocks of time that add up over a fleet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analyzer.findings import Verdict

MOMENTS = ("n", "y", "yy", "lag", "rated", "r", "rr", "ry", "ry_y", "ry_yy", "low", "high", "bandwidth", "beside")
_FEWEST_FOR_LINE = 18
_LEAST_ERROR = 0.01
_SPREAD_RATES = 0.1  # standard deviation of ln(rate) from which a line is fitted
_WIDE = 1.959964
_BLOCK_SECONDS, FILLED = 600.0, 0.5


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of a workload in one mode: moments over blocks of y = ln(granted SM-seconds per unit).

    `rated` counts blocks with a request rate; r = ln(rate); `bandwidth` is the mean of ln(memory share / SM share),
    `beside` for how much of the time its neighbours ran, summed over them.
    """

    blocks: float = 0.0
    mean: float = math.nan
    variance: float = math.nan
    correlation: float = 0.0  # of neighbouring blocks
    rated: float = 0.0
    rate: float = math.nan
    rate_variance: float = 0.0
    slope: float = math.nan
    residual: float = math.nan  # variance around the line
    rated_mean: float = math.nan
    low: float = math.nan
    high: float = math.nan
    bandwidth: float = 0.0
    beside: float = 0.0
    bound: str = ""
    alike: bool = True

    @classmethod
    def pooled(cls, rows: Sequence[Mapping[str, Any]]) -> Record:
        """Add up the moments of several holdings of one workload in one mode."""
        total = {name: float(sum(row[name] for row in rows)) for name in MOMENTS if name not in {"low", "high"}}
        n = total["n"]
        if n < 2:
            return cls(blocks=n)
        mean = total["y"] / n
        variance = max(total["yy"] / n - mean**2, 0.0)
        rated = total["rated"]
        line: dict[str, float] = {}
        if rated >= 2:
            rate = total["r"] / rated
            spread = max(total["rr"] / rated - rate**2, 0.0)
            rated_mean = total["ry_y"] / rated
            together = total["ry"] / rated - rate * rated_mean
            slope = together / spread if spread > 0 else math.nan
            around = max(total["ry_yy"] / rated - rated_mean**2 - (together**2 / spread if spread > 0 else 0.0), 0.0)
            line = {"rate": rate, "rate_variance": spread, "slope": slope, "residual": around, "rated_mean": rated_mean}
            line["low"] = min(row["low"] for row in rows if row["rated"])
            line["high"] = max(row["high"] for row in rows if row["rated"])
        return cls(
            blocks=n,
            mean=mean,
            variance=variance,
            correlation=float(np.clip(total["lag"] / n, 0.0, 0.9)),
            rated=rated,
            bandwidth=total["bandwidth"] / n,
            beside=total["beside"] / n,
            bound=next((row["bound"] for row in rows if row["bound"]), ""),
            alike=all(row["alike"] for row in rows),
            **line,
        )

    @property
    def effective(self) -> float:
        """Return the number of independent blocks."""
        return max(self.blocks * (1 - self.correlation) / (1 + self.correlation), 2.0)

    @property
    def lined(self) -> bool:
        """True when the request rate varies enough to follow the cost along it."""
        return self.alike and self.rated >= _FEWEST_FOR_LINE and math.sqrt(self.rate_variance) >= _SPREAD_RATES

    def at(self, rate: float) -> tuple[float, float]:
        """Return the mean at a request rate, and its variance; without a line the mean of all."""
        if not self.lined or math.isnan(rate):
            return self.mean, self.variance / self.effective
        part = self.effective * self.rated / self.blocks
        error = self.residual / part * (1 + (rate - self.rate) ** 2 / self.rate_variance)
        return self.rated_mean + self.slope * (rate - self.rate), error


@dataclass(frozen=True, slots=True)
class Comparison:
    """What sharing costs: parts of the work per granted SM-second (or bandwidth-second), with a 95 % interval.

    `growth` is by how much ln(cost) grows with each doubling of the request rate, `cost_high` the cost at the highest
    usual rate; NaN where the rate is not known or does not vary.
    """

    verdict: Verdict
    cost: float
    lower: float
    upper: float
    rate: float
    same_load: bool
    grows: bool
    growth: float
    cost_high: float


def compare(solo: Record, shared: Record, limit: float, *, bandwidth: bool, stretch: float = 1.0) -> Comparison:
    """Compare two records of a workload at the same request rate, where it is known of both.

    Args:
        solo: alone, or while its neighbours rest.
        shared: beside others.
        limit: cost from which it must not share.
        bandwidth: it is memory bandwidth that counts.
        stretch: how many times more neighbours cost than lies between the two, where they only rest in the first: cost
            is taken to grow in proportion to how long they run. The verdict rests on what was seen, not on what that
            adds: the interval reaches from the one to the other.
    """
    rate = math.nan
    same_load = True
    if solo.lined and shared.lined:
        rate = float(np.clip(shared.rate, solo.low, solo.high))
        same_load = solo.low <= shared.high and shared.low <= solo.high
        rate = float(np.clip(rate, shared.low, shared.high)) if same_load else rate
    more = shared.bandwidth - solo.bandwidth if bandwidth else 0.0
    (one, one_error), (two, two_error) = solo.at(rate), shared.at(rate)
    error = math.sqrt(one_error + two_error + _LEAST_ERROR**2)
    difference = two - one + more
    least, most = difference - _WIDE * error, difference + _WIDE * error
    cost, lower, upper = (
        1 - math.exp(-value) for value in (stretch * difference, min(least, stretch * least), max(most, stretch * most))
    )
    grows, growth, high = False, math.nan, math.nan
    if solo.lined and shared.lined and same_load:
        steeper = shared.slope - solo.slope
        doubt = math.sqrt(sum(r.residual / (r.effective * r.rate_variance) for r in (solo, shared)))
        top = min(shared.high, solo.high)
        high = 1 - math.exp(-(shared.at(top)[0] - solo.at(top)[0] + more))
        growth = steeper * math.log(2)
        grows = steeper - _WIDE * doubt > 0 and high > limit
    if (lower > limit and same_load) or grows:
        verdict = Verdict.HOLDS
    elif cost > limit:
        verdict = Verdict.SUSPECTED
    elif upper < limit:
        verdict = Verdict.NO_EFFECT
    else:
        verdict = Verdict.CANNOT_TELL
    return Comparison(
        verdict, cost, lower, upper, math.exp(rate) if not math.isnan(rate) else rate, same_load, grows, growth, high
    )


def block_moments(
    y: np.ndarray,
    r: np.ndarray,
    more: np.ndarray,
    beside: np.ndarray,
    *,
    interval_seconds: float,
    least_filled: float = FILLED,
) -> dict[str, float]:
    """Return sums over blocks of ten minutes of which at least so much is there."""
    step = max(round(_BLOCK_SECONDS / interval_seconds), 1)
    whole = len(y) // step * step
    parts = y[:whole].reshape(-1, step)
    known = np.isfinite(parts)
    filled = known.sum(axis=1) >= max(least_filled * step, 1)
    if not filled.any():
        return dict.fromkeys(MOMENTS, 0.0)
    parts, known = parts[filled], known[filled]
    count = known.sum(axis=1)
    block = np.where(known, parts, 0.0).sum(axis=1) / count
    rates = np.where(known, r[:whole].reshape(-1, step)[filled], np.nan)
    told = np.isfinite(rates).sum(axis=1)
    rate = np.where(told > 0, np.nansum(rates, axis=1) / np.maximum(told, 1), np.nan)
    share, running = (
        np.where(known, np.nan_to_num(series[:whole].reshape(-1, step)[filled]), 0.0).sum(axis=1) / count
        for series in (more, beside)
    )
    rated = np.isfinite(rate)
    centred = block - block.mean()
    spread = float((centred**2).sum())
    lag = float((centred[1:] * centred[:-1]).sum()) / spread if spread > 0 else 0.0
    known_rates = rate[rated]
    return {
        "n": float(len(block)),
        "y": float(block.sum()),
        "yy": float((block**2).sum()),
        "lag": lag * len(block),
        "rated": float(rated.sum()),
        "r": float(known_rates.sum()),
        "rr": float((known_rates**2).sum()),
        "ry": float((known_rates * block[rated]).sum()),
        "ry_y": float(block[rated].sum()),
        "ry_yy": float((block[rated] ** 2).sum()),
        "low": float(np.quantile(known_rates, 0.05)) if rated.any() else 0.0,
        "high": float(np.quantile(known_rates, 0.95)) if rated.any() else 0.0,
        "bandwidth": float(share.sum()),
        "beside": float(running.sum()),
    }
