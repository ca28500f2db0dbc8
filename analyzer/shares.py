"""Share arithmetic: who holds how much of each card, and who uses how much of it, interval by interval.

Activity of a slice, in order of trust: sm_active, engine_active, busy. A MIG instance and a slice with counters of its
own are measured. Under MPS, time slicing and vGPU only the time share of a slice's processes is known: the card's
measured activity is divided among its slices, weighed by busy x quota under MPS (clients run side by side on their
share of the SMs) and by busy under time slicing and vGPU (one runs at a time on all SMs). With enough samples the
weights are learnt from that first guess: by how the card's activity moves with each slice's units of work (requests,
steps) or, where that explains it better, with its busy time.
Matrices are (T intervals, S holdings); ratios are of the whole card; NaN is absent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.attribution import attribute, busy_weight, first_known, learn_use
from collector.schema import ACTIVITY, GPU, NOBODY

Matrix = npt.NDArray[np.float64]  # (T, S)
Vector = npt.NDArray[np.float64]  # (T,)
Mask = npt.NDArray[np.bool_]

# A slice's sample that is missing is bridged over at most so many intervals, to divide a card's measured activity.
_BRIDGE_INTERVALS = 5


@dataclass(frozen=True, slots=True)
class Holding:
    """One slice in the hands of one holder. `tenant` is `none` when nobody holds it."""

    slice: str
    tenant: str
    workload: str
    kind: str
    profile: str
    pod: str

    @property
    def held(self) -> bool:
        """True when somebody holds it."""
        return self.tenant != NOBODY


@dataclass(frozen=True)
class Card:
    """One card over a window, on the grid of the interval."""

    cluster: str
    node: str
    gpu: str
    model: str
    sm_count: float  # NaN: not known
    mig: bool
    interval_seconds: float
    start_ms: int
    holdings: tuple[Holding, ...]
    present: Mask  # the holding had a row
    _gpu_rows: pd.DataFrame  # of the node
    _gpu_where: np.ndarray  # which of them are this card's
    _gpu_bins: np.ndarray
    _slice_rows: pd.DataFrame  # of the node
    _slice_where: np.ndarray
    _slice_bins: np.ndarray
    _slice_columns: np.ndarray
    _wished: dict[str, float]  # pod -> share of a card that it asked for
    _profile_share: dict[str, float]  # MIG profile -> share of the card's SMs
    units: int = 0  # of which the device plug-in makes the card, under MPS or time slicing; 0: not told
    nameless: bool = False  # others count it and no exporter ever showed it

    @property
    def place(self) -> dict[str, Any]:
        """Return `cluster`, `node`, `gpu`: the first columns of what is measured of it."""
        return {"cluster": self.cluster, "node": self.node, "gpu": self.gpu}

    def holder(self, holding: Holding | None) -> dict[str, Any]:
        """Return `place` and `slice`, `tenant`, `workload`: the first columns of what is measured of a holding.

        Without one they are empty: what is said is said of the card.
        """
        if holding is None:
            return {**self.place, "slice": "", "tenant": "", "workload": ""}
        return {**self.place, "slice": holding.slice, "tenant": holding.tenant, "workload": holding.workload}

    @property
    def intervals(self) -> int:
        """Number of intervals of the window."""
        return int(self.present.shape[0])

    def times_ms(self) -> np.ndarray:
        """Return the start of each interval, in milliseconds since the epoch."""
        return self.start_ms + (np.arange(self.intervals) * self.interval_seconds * 1000).astype(np.int64)

    def of_card(self, field: str) -> Vector:
        """Return a field of the card's rows on the grid, (T,)."""
        out = np.full(self.intervals, np.nan)
        if field in self._gpu_rows:
            out[self._gpu_bins] = self._gpu_rows[field].to_numpy(np.float64)[self._gpu_where]
        return out

    def of_slices(self, field: str) -> Matrix:
        """Return a field of the slices' rows on the grid, (T, S)."""
        out = np.full(self.present.shape, np.nan)
        if field in self._slice_rows:
            values = self._slice_rows[field].to_numpy(np.float64)[self._slice_where]
            out[self._slice_bins, self._slice_columns] = values
        return out

    @cached_property
    def observed(self) -> np.ndarray:
        """Return where the card itself had a row that tells more than how old it is, (T,)."""
        out = np.zeros(self.intervals, dtype=bool)
        told = [name for name in GPU.field_names if name in self._gpu_rows and name != "source_age_seconds"]
        for name in told:
            out[self._gpu_bins[~np.isnan(self._gpu_rows[name].to_numpy(np.float64)[self._gpu_where])]] = True
        return out

    @cached_property
    def newest(self) -> int:
        """Return the index of the last interval in which the card or a slice of it had any row; -1: none."""
        rows = np.asarray(self.present.any(axis=1))
        rows[self._gpu_bins] = True
        where = np.flatnonzero(rows)
        return int(where[-1]) if len(where) else -1

    @cached_property
    def alive(self) -> Mask:
        """Return where each holding lives, (T, S): from its first row to its last, unless another has its slice."""
        seen = self.present
        alive: Mask = np.logical_or.accumulate(seen, axis=0) & np.logical_or.accumulate(seen[::-1], axis=0)[::-1]
        for j, holding in enumerate(self.holdings):
            rivals = [k for k, other in enumerate(self.holdings) if other.slice == holding.slice and k != j]
            if rivals:
                alive[:, j] &= seen[:, j] | ~alive[:, rivals].any(axis=1)
        return alive

    @cached_property
    def held(self) -> Mask:
        """Return where each holding lives and has a holder, (T, S)."""
        mask: Mask = self.alive & np.array([h.held for h in self.holdings], dtype=bool)
        return mask

    @cached_property
    def quota(self) -> Matrix:
        """Return the share of the card that each holding is entitled to, (T, S); 0 where it does not live.

        From the rows; else 1 for a whole card, the SM share of a MIG profile, or what the pod asked for; else, under
        MPS and time slicing, one of the units that the device plug-in makes of a card or, where nobody tells how many,
        an equal part for each holder (estimates both: see `quota_estimated`); else NaN.
        """
        quota = _carried(self.of_slices("sm_quota_ratio"))
        live = self.held.sum(axis=1)
        for j, holding in enumerate(self.holdings):
            unknown = np.isnan(quota[:, j])
            if self.quota_estimated[j]:
                quota[unknown, j] = 1.0 / np.maximum(live[unknown], max(self.units, 1))
            elif unknown.any():
                quota[unknown, j] = self._granted(holding)
        quota[~self.alive] = 0.0
        return quota

    @cached_property
    def quota_estimated(self) -> npt.NDArray[np.bool_]:
        """Return whose quota nothing tells, so that a unit or an equal part of the card is taken for it, (S,)."""
        told = ~np.isnan(self.of_slices("sm_quota_ratio")).all(axis=0)
        units = [h.kind in {"mps", "timeslice"} and math.isnan(self._granted(h)) for h in self.holdings]
        return np.asarray(~told & np.array(units, dtype=bool))

    def _granted(self, holding: Holding) -> float:
        if holding.kind == "whole":
            return 1.0
        if holding.kind == "mig":
            return self._profile_share.get(holding.profile, math.nan)
        return self._wished.get(holding.pod, math.nan)

    @cached_property
    def activity(self) -> Vector:
        """Return the card's own activity, (T,): sm_active, else engine_active, else busy."""
        return np.asarray(np.clip(first_known([self.of_card(name) for name in ACTIVITY]), 0.0, 1.0))

    @cached_property
    def sampled(self) -> Mask:
        """Return where a holding has a sample of its own activity, (T, S)."""
        own = first_known([self.of_slices(name) for name in ACTIVITY])
        whole = np.array([h.kind == "whole" for h in self.holdings], dtype=bool)
        mask: Mask = ~np.isnan(own) | (whole & self.present & ~np.isnan(self.activity)[:, None])
        return mask

    @cached_property
    def measured(self) -> np.ndarray:
        """Return which holdings have SM or engine counters of their own, (S,); the others' use is divided out."""
        own = first_known([self.of_slices("sm_active_ratio"), self.of_slices("engine_active_ratio")])
        alone = np.array([h.kind in {"whole", "mig"} for h in self.holdings], dtype=bool)
        result: np.ndarray = (~np.isnan(own)).any(axis=0) | alone
        return result

    @cached_property
    def used(self) -> Matrix:
        """Return the share of the card's SMs that each holding uses, (T, S); 0 where it does not live, NaN: unknown.

        The sum over holdings is at most 1.
        """
        own = np.where(self.alive & self.measured, self._own_use(), np.nan)
        busy = np.where(self.alive & ~self.measured, self._busy_weights, np.nan)
        used = self._divided(own, busy)
        if not self.measured.all():
            used = self._divided(own, self._learnt(own, busy, used))
        used[~self.alive] = 0.0
        return used

    def _divided(self, own: Matrix, weights: Matrix) -> Matrix:
        moments = np.repeat(np.arange(self.intervals), len(self.holdings))
        return attribute(own.ravel(), weights.ravel(), moments, self.activity).reshape(own.shape)

    def _learnt(self, own: Matrix, busy: Matrix, first_guess: Matrix) -> Matrix:
        """Return the weights of slices without counters as their loads explain the card's activity, (T, S)."""
        mine = np.flatnonzero(~self.measured)
        rest = np.clip(self.activity - np.nansum(own, axis=1), 0.0, 1.0)
        alive = self.alive[:, mine]
        guess = np.where(alive, first_guess[:, mine], 0.0)
        by_busy, by_work = (np.where(alive, load[:, mine], 0.0) for load in (busy, first_known([self._work(), busy])))
        counts_work = not np.array_equal(by_work, by_busy, equal_nan=True)
        loads = [by_work, by_busy] if counts_work else [by_busy]
        learnt = [found for load in loads if (found := learn_use(rest, load, guess)) is not None]
        weights = busy.copy()
        if learnt:
            best = min(learnt, key=lambda found: found.error).used
            weights[:, mine] = np.where(np.isnan(best), busy[:, mine], best)
            weights[~self.alive] = np.nan
        return weights

    def _work(self) -> Matrix:
        """Return the units of work done, (T, S); NaN in all intervals of a slice that counts none."""
        work = first_known([self.of_slices("requests_per_second"), self.of_slices("steps_count")])
        return _bridged(work, self.alive)

    @cached_property
    def unattributed(self) -> Vector:
        """Return the card's activity that no holding accounts for, (T,): only where nobody's processes were seen."""
        if self.mig or (self.measured & self.alive).any():
            return np.zeros(self.intervals)
        total = np.nansum(np.where(self.alive, self._busy_weights, 0.0), axis=1)
        return np.where((total > 0) | np.isnan(self.activity), 0.0, self.activity)

    @cached_property
    def basis(self) -> tuple[str, ...]:
        """Return by which field each holding's use is known, (S,); empty: by none."""
        fields = []
        for j, holding in enumerate(self.holdings):
            own = [name for name in ACTIVITY if not np.isnan(self.of_slices(name)[:, j]).all()]
            if not own and holding.kind == "whole":
                own = [name for name in ACTIVITY if not np.isnan(self.of_card(name)).all()]
            fields.append(own[0] if own else "")
        return tuple(fields)

    def _own_use(self) -> Matrix:
        own = first_known([self.of_slices("sm_active_ratio"), self.of_slices("engine_active_ratio")])
        busy = self.of_slices("busy_ratio")
        for j, holding in enumerate(self.holdings):
            if holding.kind == "whole":
                own[:, j] = np.where(np.isnan(own[:, j]), self.activity, own[:, j])
            if holding.kind == "mig":
                own[:, j] = np.where(np.isnan(own[:, j]), busy[:, j] * self.quota[:, j], own[:, j])
        return _bridged(np.clip(own, 0.0, 1.0), self.alive)

    @cached_property
    def _busy_weights(self) -> Matrix:
        busy = _bridged(np.clip(self.of_slices("busy_ratio"), 0.0, 1.0), self.alive)
        mps = np.array([h.kind == "mps" for h in self.holdings], dtype=bool)
        return busy_weight(busy, self.quota, mps)


def _carried(matrix: Matrix) -> Matrix:
    """Carry the last known value forward, then the first one back."""
    frame = pd.DataFrame(matrix).ffill().bfill()
    return frame.to_numpy(np.float64, copy=True)


def _bridged(matrix: Matrix, alive: Mask) -> Matrix:
    """Interpolate gaps of a few intervals inside the life of a holding."""
    gaps = np.isnan(matrix) & alive
    if not gaps.any():
        return matrix
    known = ~np.isnan(matrix)
    index = np.arange(len(matrix))[:, None]
    before = np.maximum.accumulate(np.where(known, index, -1), axis=0)
    after = np.minimum.accumulate(np.where(known, index, len(matrix) * 2)[::-1], axis=0)[::-1]
    rows, columns = np.nonzero(gaps & (before >= 0) & (after - before <= _BRIDGE_INTERVALS + 1))
    start, end = before[rows, columns], after[rows, columns]
    low, high = matrix[start, columns], matrix[end, columns]
    filled = matrix.copy()
    filled[rows, columns] = low + (high - low) * (rows - start) / (end - start)
    return filled
