"""What an application server did in one interval: latencies, requests within the objective, steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from collector.cycle import Numbers
from collector.declarations import Objective
from collector.latency import histogram_quantile, requests_within
from collector.slots import ServerChannels

_QUANTILES = {"latency_p50_seconds": 0.5, "latency_p99_seconds": 0.99, "latency_p999_seconds": 0.999}
_BY_DEFAULT = ("e2e", "ttft", "inter_token", "queue")


@dataclass(slots=True)
class ServerReading:
    """Values by field; the quantity that the latencies are of, and whether it stands for another one."""

    values: dict[str, float] = field(default_factory=dict)
    quantity: str = ""
    stands_in: bool = False


@dataclass(slots=True)
class ServerReader:
    """Reads one server's channels cycle by cycle."""

    server: ServerChannels
    _grids: dict[str, tuple[int, list[float], list[list[int]]]] = field(default_factory=dict)

    def read(self, numbers: Numbers, objective: Objective | None, interval_seconds: float) -> ServerReading:
        """Return what one interval showed.

        Args:
            numbers: the cycle's numbers.
            objective: the promise that says which latency is asked for, and its bound.
            interval_seconds: the cycle; over a gap of more than two there is no rate and no percentile.
        """
        reading = ServerReading()
        growth, seconds = numbers.growth, numbers.seconds
        self._steps(reading.values, growth)
        quantity, reading.stands_in = self._choose(objective.quantity if objective else "")
        reading.quantity = quantity
        if not quantity:
            return reading
        if quantity not in self.server.buckets:
            for name, quantile in _QUANTILES.items():
                channel = self.server.summaries[quantity].get(quantile)
                if channel is not None:
                    reading.values[name] = numbers.levels[channel]
            return reading
        bounds, columns = self._grid(quantity)
        elapsed = max((seconds[channel] for channel in columns[-1]), default=math.nan)
        cumulative = _cumulative(columns, growth)
        if not cumulative or not 0 < elapsed <= 2 * interval_seconds + 1e-6:
            return reading
        for name, quantile in _QUANTILES.items():
            reading.values[name] = histogram_quantile(bounds, cumulative, quantile)
        reading.values["requests_per_second"] = cumulative[-1] / elapsed
        if objective is not None:
            within = requests_within(bounds, cumulative, objective.bound_seconds)
            reading.values["within_objective_per_second"] = within / elapsed
        return reading

    def _steps(self, values: dict[str, float], growth: list[float]) -> None:
        counts = [growth[n] for n in self.server.step_counts if not math.isnan(growth[n])]
        if not counts or not self.server.step_sums:
            return
        count = values["steps_count"] = sum(counts)
        if count > 0:
            total = sum(growth[n] for n in self.server.step_sums if not math.isnan(growth[n]))
            values["step_seconds"] = total * self.server.step_scale / count

    def _choose(self, wanted: str) -> tuple[str, bool]:
        """Return the quantity to use; a first response stands in for the whole request where nothing else is there."""
        there = {**self.server.summaries, **self.server.buckets}
        if wanted:
            if wanted in there:
                return wanted, False
            return ("ttft", True) if wanted == "e2e" and "ttft" in there else ("", False)
        return next((quantity for quantity in _BY_DEFAULT if quantity in there), ""), False

    def _grid(self, quantity: str) -> tuple[list[float], list[list[int]]]:
        """Return ascending bounds and the channels of each."""
        buckets = self.server.buckets[quantity]
        size = sum(len(channels) for channels in buckets.values())
        known = self._grids.get(quantity)
        if known is None or known[0] != size:
            bounds = sorted(buckets)
            known = self._grids[quantity] = (size, bounds, [buckets[bound] for bound in bounds])
        return known[1], known[2]


def _cumulative(columns: list[list[int]], growth: list[float]) -> list[float]:
    """Return the interval's requests at or below each bound, never falling; empty where no part is known."""
    result: list[float] = []
    known, before = False, 0.0
    for channels in columns:
        total = 0.0
        for channel in channels:
            increment = growth[channel]
            if not math.isnan(increment):
                total += increment
                known = True
        before = max(total, before)
        result.append(before)
    return result if known else []
