"""The last minutes of all slices, as columns: what each used of its card, what it was asked and what it kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.attribution import attribute
from collector.protocols import StoreReader
from collector.window import Window
from tuner.model import Target

Floats = npt.NDArray[np.float64]
_ACTIVITY = ("sm_active_ratio", "engine_active_ratio", "busy_ratio")
_FIELDS = (
    *_ACTIVITY,
    "sm_quota_ratio",
    "requests_per_second",
    "within_objective_per_second",
    "memory_used_bytes",
)
_TAGS = ["cluster", "node", "gpu", "slice", "tenant", "workload"]


@dataclass(frozen=True, slots=True)
class Live:
    """Rows of a short window, one array element a row; NaN absent, shares of the whole card."""

    rows: pd.DataFrame
    times_ms: npt.NDArray[np.int64]
    used: Floats
    quota: Floats
    requests: Floats
    within: Floats
    memory: Floats

    @property
    def met(self) -> Floats:
        """Share of the requests that met the objective, a row; NaN without requests."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(self.within / self.requests)

    @property
    def last_ms(self) -> float:
        """Time of the newest row."""
        return float(self.times_ms.max(initial=0))

    def holdings(self) -> Iterator[tuple[tuple[str, str], Target, npt.NDArray[np.intp]]]:
        """Yield ((tenant, workload), slice, indices of its rows), each slice in the hands of its last holder."""
        if self.rows.empty:
            return
        newest: dict[Target, tuple[tuple[str, str], npt.NDArray[np.intp]]] = {}
        grouped = self.rows.groupby(_TAGS, sort=True)
        tags = self.rows[_TAGS].to_numpy()
        groups = grouped.ngroup().to_numpy(np.intp)
        order = np.argsort(groups, kind="stable")
        for index in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
            cluster, node, gpu, slice_, tenant, workload = (str(v) for v in tags[index[0]])
            target = Target("slice", cluster, node, gpu, slice_)
            known = newest.get(target)
            if known is None or self.times_ms[index].max() > self.times_ms[known[1]].max():
                newest[target] = ((tenant, workload), index)
        for target, (holder, index) in newest.items():
            yield holder, target, index


def read_live(
    store: StoreReader, window: Window, *, granted: Mapping[Target, float], side_by_side: AbstractSet[Target]
) -> Live:
    """Read a window of slice and card rows and attribute each card's activity.

    Under MPS clients run side by side on their shares (weight: busy x quota); under time slicing and vGPU one runs at a
    time (weight: busy). A slice without a quota of its own weighs by busy alone.

    Args:
        store: where the rows are.
        window: a few minutes.
        granted: slice -> share that its running work has, as the backend reads it; it knows better than exporters do.
        side_by_side: slices under MPS.
    """
    rows = store.read("slice", window, fields=_FIELDS)
    cards = store.read("gpu", window, fields=_ACTIVITY)
    activity = _first_known(cards, _ACTIVITY)
    own = _first_known(rows, _ACTIVITY[:2])
    busy = rows["busy_ratio"].to_numpy(np.float64)
    slices = [Target("slice", *(str(v) for v in key)) for key in rows[_TAGS[:4]].to_numpy()]
    told = np.array([granted.get(target, np.nan) for target in slices], dtype=np.float64)
    quota = np.where(np.isnan(told), rows["sm_quota_ratio"].to_numpy(np.float64), told)
    index = pd.MultiIndex.from_frame(cards[["cluster", "node", "gpu", "time"]])
    keys = pd.MultiIndex.from_frame(rows[["cluster", "node", "gpu", "time"]])
    place = index.get_indexer(keys)
    moments, inverse = np.unique(np.where(place < 0, len(cards), place), return_inverse=True)
    known = np.append(activity, np.nan)[moments]
    side = np.array([target in side_by_side for target in slices], dtype=bool)
    weight = np.where(side & ~np.isnan(quota), busy * quota, busy)
    return Live(
        rows=rows,
        times_ms=rows["time"].to_numpy("datetime64[ms]").astype(np.int64),
        used=attribute(own, weight, inverse, known),
        quota=quota,
        requests=rows["requests_per_second"].to_numpy(np.float64),
        within=rows["within_objective_per_second"].to_numpy(np.float64),
        memory=rows["memory_used_bytes"].to_numpy(np.float64),
    )


def _first_known(frame: pd.DataFrame, names: tuple[str, ...]) -> Floats:
    values = frame[list(names)].to_numpy(np.float64)
    out = values[:, 0].copy()
    for column in range(1, values.shape[1]):
        out = np.where(np.isnan(out), values[:, column], out)
    return np.asarray(out)
