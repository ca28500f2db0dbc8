"""What is kept on purpose: a declared floor, or room for the load that an online workload is forecast to have.

The forecast is made from the analysed window itself, hour by hour as the ledger counts, so that whoever analyses the
same window gets the same reserve. With little history the highest hour seen stands in its place: the band of a forecast
from so few hours would keep the whole card.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta

import numpy as np
import pandas as pd

from analyzer.forecast import LoadForecaster
from analyzer.protocols import Context
from collector.declarations import OWNER, Owner, ResolvedWorkload

QUANTILE = 0.9  # as the tuner keeps it for online work unless told otherwise
EACH = "#each"
_HOUR = timedelta(hours=1)
_AHEAD = [hours * _HOUR for hours in range(1, 25)]
_FEWEST_HOURS = 36  # of fewer hours no daily rhythm can be learnt
_CARD_HOUR = ["cluster", "node", "gpu", "hour"]


def forecast_reserve(ledger_rows: Iterable[pd.DataFrame], promises: Mapping[Owner, ResolvedWorkload]) -> pd.DataFrame:
    """Forecast what each slice of the declared online workloads will use in the day after the window.

    Args:
        ledger_rows: as `analyzer.ledger.measure_ledger` returns them, one frame a node, in any order.
        promises: by workload; of those that are not declared online nothing is forecast.

    Returns:
        Columns series (`cluster/tenant/workload#each`), quantile, value (mean use of a slice over an hour, in cards).
    """
    history = use_history(ledger_rows, {key for key, promise in promises.items() if _serves(promise)})
    if history.empty:
        return pd.DataFrame({"series": pd.Series(dtype="str"), "quantile": np.empty(0), "value": np.empty(0)})
    known = history.groupby("series")["value"].count()
    long = history[history["series"].isin(known.index[known >= _FEWEST_HOURS])]
    short = history[history["series"].isin(known.index[known < _FEWEST_HOURS])]
    highest = short.groupby("series")["value"].max()
    told = pd.DataFrame({"series": highest.index, "quantile": QUANTILE, "value": highest.to_numpy()})
    if long.empty:
        return told
    end = (history["time"].max() + _HOUR).to_pydatetime()
    ahead = LoadForecaster(step=_HOUR).fit(long).forecast(long, end, _AHEAD, [QUANTILE])
    return pd.concat([ahead[list(told.columns)], told], ignore_index=True)


def use_history(ledger_rows: Iterable[pd.DataFrame], owners: set[Owner]) -> pd.DataFrame:
    """Return the mean use of a slice of each of those workloads, hour by hour.

    Returns:
        Columns series, time (start of the hour, UTC), value (cards; NaN: a slice was not seen for half of the hour).
    """
    parts = [_of_node(rows, owners) for rows in ledger_rows if len(rows)] if owners else []
    rows = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=[*OWNER, "hour", "cards"])
    hourly = rows.sort_values([*OWNER, "hour", "cards"], kind="stable").groupby([*OWNER, "hour"], sort=True)["cards"]
    table = hourly.mean().where(hourly.count() == hourly.size()).reset_index()
    return pd.DataFrame(
        {
            "series": ["/".join(owner) + EACH for owner in table[OWNER].itertuples(index=False, name=None)],
            "time": pd.to_datetime(table["hour"].astype("int64"), unit="ms", utc=True),
            "value": table["cards"].astype("float64"),
        }
    ).astype({"series": "str"})


def _of_node(rows: pd.DataFrame, owners: set[Owner]) -> pd.DataFrame:
    """Return the hours in which slices of those workloads lived, with `cards`, the mean use in each."""
    mine = rows[[owner in owners for owner in rows[OWNER].itertuples(index=False, name=None)]]
    mine = mine[(mine[["used", "held_unused", "unobserved"]].sum(axis=1) > 0)]
    of_card = rows[rows["slice"] == ""].set_index(_CARD_HOUR)
    card = of_card[["capacity", "unobserved"]].reindex(pd.MultiIndex.from_frame(mine[_CARD_HOUR]))
    seen = (card["capacity"] - card["unobserved"]).to_numpy()
    thin = seen < mine["sm_count"].to_numpy() * _HOUR.total_seconds() / 2
    dark = thin | (mine["unobserved"] > mine["used"] + mine["held_unused"]).to_numpy()
    use = mine["used"].to_numpy() / np.where(dark, np.nan, seen)
    return mine[[*OWNER, "hour"]].assign(cards=use)


def _serves(promise: ResolvedWorkload) -> bool:
    return promise.declared and promise.declaration.service_class == "online"


def reserved_shares(context: Context) -> dict[Owner, float]:
    """Return the share of a card that each workload keeps on purpose in each of its slices.

    The larger of its declared floor and, for an online one, the highest quantile of its forecast use in cards, of which
    series `cluster/tenant/workload#each` speaks.
    """
    forecasts = context.forecasts
    peaks: dict[str, float] = {}
    if len(forecasts):
        top = forecasts[(forecasts["quantile"] == forecasts["quantile"].max()) & forecasts["value"].notna()]
        peaks = top.groupby("series")["value"].max().to_dict()
    shares = {}
    for key, promise in context.declarations.items():
        if promise.declared:
            peak = peaks.get("/".join(key) + EACH, 0.0) if _serves(promise) else 0.0
            shares[key] = max(promise.declaration.floor, min(peak, 1.0))
    return shares
