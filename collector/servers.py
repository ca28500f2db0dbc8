"""What application servers did in one interval: latencies, requests within the objective, steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collector.cycle import Numbers
from collector.declarations import Objective
from collector.latency import histogram_quantiles, requests_within
from collector.schema import SLICE
from collector.slots import ServerChannels

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_QUANTILES = {"latency_p50_seconds": 0.5, "latency_p99_seconds": 0.99, "latency_p999_seconds": 0.999}
_BY_DEFAULT = ("e2e", "ttft", "inter_token", "queue")
_FIELDS = (*_QUANTILES, "requests_per_second", "within_objective_per_second", "steps_count", "step_seconds")
_COLUMNS = np.array([SLICE.field_names.index(name) for name in _FIELDS])
_LATENCIES, _REQUESTS, _WITHIN, _STEPS, _STEP_SECONDS = slice(0, 3), 3, 4, 5, 6


@dataclass(frozen=True, slots=True)
class Quantity:
    """The quantity that a server's latencies are of (empty: none), and whether it stands for another one."""

    name: str
    stands_in: bool


class ServerBoard:
    """Reads the channels of all servers at once, cycle by cycle.

    Args:
        slices: number of the slice that each server sits on.
        servers: the servers, with all channels that they have by now.
        objectives: the promise that says which latency is asked for, and its bound, one a server.
    """

    def __init__(
        self, slices: Sequence[int], servers: Sequence[ServerChannels], objectives: Sequence[Objective | None]
    ) -> None:
        self.quantities = [_choose(server, one) for server, one in zip(servers, objectives, strict=True)]
        self._size = len(servers)
        # Of several servers on one slice the first that says something counts: the last is written first.
        self._order = [(n, seat) for n, seat in enumerate(slices)][::-1]
        self._seats = np.array([seat for _, seat in self._order], dtype=np.int64)
        self._alone = len(set(slices)) == len(slices)
        self._bounds = np.full((self._size, 0), np.inf)
        self._limits = np.array([math.nan if one is None else one.bound_seconds for one in objectives])
        self._step_scale = np.array([server.step_scale for server in servers])
        self._step_sums = _pairs([server.step_sums for server in servers])
        self._step_counts = _pairs([server.step_counts for server in servers])
        self._summaries: list[tuple[int, int, int]] = []  # server, quantile's column, channel
        grids: dict[int, dict[float, list[int]]] = {}
        for n, (server, quantity) in enumerate(zip(servers, self.quantities, strict=True)):
            if quantity.name in server.buckets:
                grids[n] = server.buckets[quantity.name]
            elif quantity.name:
                known = server.summaries[quantity.name]
                for column, quantile in enumerate(_QUANTILES.values()):
                    if quantile in known:
                        self._summaries.append((n, column, known[quantile]))
        self._lay_out_buckets(grids)

    def _lay_out_buckets(self, grids: dict[int, dict[float, list[int]]]) -> None:
        width = max((len(grid) for grid in grids.values()), default=0)
        self._bounds = np.full((self._size, width), np.inf)
        places: list[int] = []
        channels: list[int] = []
        last: list[tuple[int, int]] = []
        for n, grid in grids.items():
            bounds = sorted(grid)
            self._bounds[n, : len(bounds)] = bounds
            for column, bound in enumerate(bounds):
                places += [n * width + column] * len(grid[bound])
                channels += grid[bound]
            last += [(n, channel) for channel in grid[bounds[-1]]]
        self._bucket_places, self._bucket_channels = _ints(places), _ints(channels)
        self._last_servers, self._last_channels = _ints([n for n, _ in last]), _ints([c for _, c in last])

    def read(self, numbers: Numbers, interval_seconds: float, matrix: Floats) -> None:
        """Put what servers did in one interval on their slices, where those have no value yet.

        Args:
            numbers: the cycle's numbers.
            interval_seconds: the cycle; over a gap of more than two there is no rate and no percentile.
            matrix: slices x fields of the schema; changed in place.
        """
        if not self._size:
            return
        found = np.full((self._size, len(_FIELDS)), np.nan)
        self._read_steps(numbers, found)
        for n, column, channel in self._summaries:
            found[n, column] = numbers.levels[channel]
        if len(self._bucket_channels):
            self._read_buckets(numbers, interval_seconds, found)
        if self._alone:
            cells = np.ix_(self._seats, _COLUMNS)
            matrix[cells] = np.where(np.isnan(matrix[cells]), found[::-1], matrix[cells])
            return
        for n, seat in reversed(self._order):
            matrix[seat, _COLUMNS] = np.where(np.isnan(matrix[seat, _COLUMNS]), found[n], matrix[seat, _COLUMNS])

    def _read_steps(self, numbers: Numbers, found: Floats) -> None:
        counts, counted = _sums(self._step_counts, numbers.growth, self._size)
        totals, _ = _sums(self._step_sums, numbers.growth, self._size)
        has_sums = np.bincount(self._step_sums[0], minlength=self._size) > 0
        known = counted & has_sums
        found[known, _STEPS] = counts[known]
        worked = known & (counts > 0)
        found[worked, _STEP_SECONDS] = totals[worked] * self._step_scale[worked] / counts[worked]

    def _read_buckets(self, numbers: Numbers, interval_seconds: float, found: Floats) -> None:
        width = self._bounds.shape[1]
        total, told = _sums((self._bucket_places, self._bucket_channels), numbers.growth, self._bounds.size)
        cumulative = np.maximum.accumulate(total.reshape(-1, width), axis=1)
        elapsed = np.full(self._size, -np.inf)
        np.fmax.at(elapsed, self._last_servers, numbers.seconds[self._last_channels])
        known = told.reshape(-1, width).any(axis=1) & (elapsed > 0) & (elapsed <= 2 * interval_seconds + 1e-6)
        rows = np.flatnonzero(known)
        bounds, cumulative, elapsed = self._bounds[rows], cumulative[rows], elapsed[rows]
        found[rows, _LATENCIES] = histogram_quantiles(bounds, cumulative, tuple(_QUANTILES.values()))
        found[rows, _REQUESTS] = cumulative[:, -1] / elapsed
        found[rows, _WITHIN] = requests_within(bounds, cumulative, self._limits[rows]) / elapsed


def _choose(server: ServerChannels, objective: Objective | None) -> Quantity:
    """Return the quantity to use; a first response stands in for the whole request where nothing else is there."""
    there = server.summaries.keys() | server.buckets.keys()
    if objective is None:
        return Quantity(next((quantity for quantity in _BY_DEFAULT if quantity in there), ""), stands_in=False)
    if objective.quantity in there:
        return Quantity(objective.quantity, stands_in=False)
    stands_in = objective.quantity == "e2e" and "ttft" in there
    return Quantity("ttft" if stands_in else "", stands_in=stands_in)


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def _pairs(channels: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """Return (server, channel) of all channels."""
    return _ints([n for n, own in enumerate(channels) for _ in own]), _ints([c for own in channels for c in own])


def _sums(pairs: tuple[Ints, Ints], growth: Floats, size: int) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the sum of what is known at each place, and where anything is."""
    places, values = pairs[0], growth[pairs[1]]
    there = ~np.isnan(values)
    total = np.bincount(places, weights=np.where(there, values, 0.0), minlength=size).astype(np.float64)
    return total, np.bincount(places, weights=there, minlength=size) > 0
