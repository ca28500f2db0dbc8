"""Raw rows that are not sealed yet, without a query: what a tuner asks for every minute, a few hundred rows.

The answer is that of `query.select_raw` to the last bit; for so few rows planning a statement takes longer than the
work itself.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from collector.store.request import RAW, Pieces, Request

_MOST_ROWS = 20_000  # beyond, the query engine sorts faster


def fits(request: Request, pieces: Pieces, hot: pa.Table) -> bool:
    """Say whether a request is one for raw rows of which none is sealed, and they are few."""
    return request.by is None and not pieces.of(RAW) and hot.num_rows <= _MOST_ROWS


def recent_rows(request: Request, hot: pa.Table) -> pa.Table:
    """Return raw rows sorted by key then time: columns `t`, tags, fields.

    Args:
        request: asks for raw rows.
        hot: as `hot.gather` lays them: `t`, tags, `seq`, fields (null for absent).
    """
    spec = request.spec
    rows = _where(hot, request, spec.key)
    times = rows.column("t").to_numpy()
    rows = rows.filter(pa.array((times >= request.start) & (times < request.end)))
    rows = rows.take(pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in (*spec.key, "t", "seq")]))
    if rows.num_rows:
        rows = _each_once(rows, request)
    return _where(rows, request, spec.extra_tags).select(["t", *spec.tags, *request.fields])


def _where(rows: pa.Table, request: Request, tags: tuple[str, ...]) -> pa.Table:
    for tag, values in request.where.items():
        if tag in tags:
            rows = rows.filter(pc.is_in(rows.column(tag), pa.array(values, pa.string())))
    return rows


def _each_once(rows: pa.Table, request: Request) -> pa.Table:
    """Merge rows of one key and time, which stand in order of `seq`: tags of the first, each field's last value."""
    spec = request.spec
    again = np.ones(rows.num_rows - 1, dtype=bool)
    for name in ("t", *spec.key):
        column = rows.column(name).combine_chunks()
        again &= pc.equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
    if not again.any():
        return rows
    starts = np.flatnonzero(np.r_[True, ~again])
    columns = {name: rows.column(name).take(pa.array(starts)) for name in ("t", *spec.tags)}
    for name in request.fields:
        columns[name] = pa.array(_last_known(rows.column(name).to_numpy(), starts), from_pandas=True)
    return pa.table(columns)


def _last_known(values: npt.NDArray[np.float64], starts: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
    where = np.maximum.reduceat(np.where(np.isnan(values), -1, np.arange(len(values))), starts)
    return np.where(where >= 0, values[where], np.nan)
