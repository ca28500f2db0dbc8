"""From slice rows to load history that follows the workload, not the pod."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzer.forecast.features import FloatArray, IntArray, to_milliseconds
from collector.schema import NOBODY, UNKNOWN

FLEET = "fleet"


def history_from_rows(
    slice_rows: pd.DataFrame,
    field: str,
    step: timedelta,
    *,
    aggregate: str = "mean",
    facts: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Turn slice rows into history of each workload's total, of each ordinal, and of the fleet.

    A series follows the workload across pods and cards: at each step it is the sum over the slices that live then. A
    step in which a living slice gave no value is absent (NaN), never a smaller sum; slices that never report the field
    (replicas whose application values stand on ordinal 0) do not count. Rows held by nobody or by an unknown holder
    are in `fleet` only.

    Args:
        slice_rows: raw rows of measurement `slice`.
        field: a column that adds up over slices: a ratio of the whole card, bytes, a rate.
        step: grid of the result.
        aggregate: `mean` or `max` of a slice's samples within a step.
        facts: facts frame; slice facts `ordinal` add the series `cluster/tenant/workload#ordinal`.

    Returns:
        Columns series (`cluster/tenant/workload`, the same with `#ordinal`, `fleet`), time (step start, UTC), value.

    Raises:
        KeyError: the rows lack `field` or a tag.
    """
    tags = ["cluster", "node", "gpu", "slice", "tenant", "workload"]
    rows = slice_rows[["time", *tags, field]].rename(columns={field: "value"})
    rows = rows[rows.groupby(tags, observed=True)["value"].transform("count") > 0]
    if rows.empty:
        return _history_frame([], np.empty(0, "datetime64[ms]"), np.empty(0))
    step_ms = int(step.total_seconds() * 1000)
    slots = to_milliseconds(rows["time"]) // step_ms
    cell, holders = _group_ids(rows, tags)
    first = int(slots.min())
    width = int(slots.max()) - first + 1
    grid = np.full((len(holders), width), np.nan)
    by_cell = pd.Series(rows["value"].to_numpy(np.float64)).groupby([cell, slots - first])
    per_step = by_cell.max() if aggregate == "max" else by_cell.mean()
    at = per_step.index
    grid[at.get_level_values(0).to_numpy(), at.get_level_values(1).to_numpy()] = per_step.to_numpy()
    alive = np.zeros_like(grid, dtype=bool)
    span = pd.Series(slots - first).groupby(cell).agg(["min", "max"])
    for index, low, high in span.itertuples():
        alive[index, low : high + 1] = True
    names, sums = [], []
    for name, members in _series_members(holders, facts).items():
        total = np.where(alive[members], grid[members], 0.0).sum(axis=0)
        lives = np.flatnonzero(alive[members].any(axis=0))
        total[~alive[members].any(axis=0)] = np.nan
        names.append(pd.Series(np.repeat(name, lives[-1] - lives[0] + 1)))
        sums.append(
            pd.DataFrame({"slot": np.arange(lives[0], lives[-1] + 1), "value": total[lives[0] : lives[-1] + 1]})
        )
    table = pd.concat(sums, ignore_index=True)
    times = (table["slot"].to_numpy() + first) * step_ms
    return _history_frame(
        pd.concat(names, ignore_index=True), times.astype("datetime64[ms]"), table["value"].to_numpy()
    )


def _group_ids(rows: pd.DataFrame, tags: Sequence[str]) -> tuple[IntArray, pd.DataFrame]:
    groups = rows.groupby(list(tags), observed=True, sort=True)
    ids: IntArray = groups.ngroup().to_numpy(np.int64).astype(np.int64)
    holders = rows[list(tags)].assign(id=ids).drop_duplicates("id").sort_values("id").reset_index(drop=True)
    return ids, holders


def _series_members(holders: pd.DataFrame, facts: pd.DataFrame | None) -> dict[str, list[int]]:
    ordinals: dict[tuple[str, ...], str] = {}
    if facts is not None:
        of_slices = facts[(facts["kind"] == "slice") & (facts["name"] == "ordinal")]
        for row in of_slices.itertuples(index=False):
            ordinals[(str(row.cluster), str(row.node), str(row.gpu), str(row.slice))] = str(row.value)
    members: dict[str, list[int]] = {}
    for row in holders.itertuples(index=False):
        index = int(row.id)  # type: ignore[arg-type]  # pandas types a tuple's fields loosely
        members.setdefault(FLEET, []).append(index)
        if row.workload in (NOBODY, UNKNOWN) or row.tenant in (NOBODY, UNKNOWN):
            continue
        name = f"{row.cluster}/{row.tenant}/{row.workload}"
        members.setdefault(name, []).append(index)
        ordinal = ordinals.get((str(row.cluster), str(row.node), str(row.gpu), str(row.slice)))
        if ordinal is not None:
            members.setdefault(f"{name}#{ordinal}", []).append(index)
    return dict(sorted(members.items()))


def _history_frame(
    names: Sequence[str] | pd.Series, times: npt.NDArray[np.datetime64], values: FloatArray
) -> pd.DataFrame:
    time = pd.DatetimeIndex(times).as_unit("ms").tz_localize("UTC")
    return pd.DataFrame({"series": pd.Series(names, dtype="str"), "time": time, "value": values})
