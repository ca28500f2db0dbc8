"""The ledger: where every SM-second of every card went, at two levels, each term from its own definition.

Level 1: capacity = used + reserved + wasted + free + stranded + unobserved.
- used: the share of the card that slices use (`analyzer.shares`), at most the card.
- held but unused is reserved first, up to the declared floor or the forecast's upper quantile, then wasted.
- not held is stranded where no request of the demand mix fits into it, else free.
- unobserved: intervals without a sample, and shares whose holder's quota or use is not known.
Level 2: used = useful + contention + throttling + overhead + unrated.
- useful: solo cost times the work that was finished within its objective (`analyzer.useful`).
- contention: solo cost times work times how much longer and dearer (the smaller) a unit was than undisturbed.
- throttling: solo cost times work times how much a lowered clock stretched it.
- overhead: solo cost times the work that came too late, and use in intervals in which nothing was finished.
- unrated: use by work that has no unit to count.
What does not close is `unaccounted`; it is never put into another term.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analyzer.cards import cards
from analyzer.demand import Demand, demand, fits_free
from analyzer.facts import requests
from analyzer.findings import plain
from analyzer.mig import board_of
from analyzer.protocols import Context, Partition
from analyzer.reserve import reserved_shares
from analyzer.shares import Card
from analyzer.useful import WORK_COLUMNS, estimate_useful, hour_bins, measure_card_work, no_work, per_hour, sm_count_of
from collector.declarations import OWNER

LEVEL_1 = ("used", "reserved", "wasted", "free", "stranded", "unobserved")
LEVEL_2 = ("useful", "contention", "throttling", "overhead", "unrated")
_CARD = ["cluster", "node", "gpu"]
_KEY = [*_CARD, "slice", "tenant", "workload", "hour"]
_TERMS = ["capacity", "used", "held_unused", "free", "stranded", "unobserved"]


def measure_ledger(partition: Partition) -> pd.DataFrame:
    """Measure one node: a row a holding and hour, and a row (slice empty) a card and hour for what nobody holds.

    Returns:
        Columns cluster, node, gpu, slice, tenant, workload, hour (ms since the epoch), capacity, used, held_unused,
        free, stranded, unobserved (SM-seconds), `assumed_sms`, `estimated_quota`, and those of
        `analyzer.useful.measure_card_work`.
    """
    wanted = demand(requests(partition.facts), partition.window)
    frames = []
    for card in cards(partition):
        rows = _measure_card(card, wanted)
        work = measure_card_work(card).drop(columns=["used"])
        frames.append(rows.merge(work, on=_KEY, how="left", sort=False))
    if not frames:
        nothing = {name: pd.Series(dtype="float64") for name in (*_TERMS, "assumed_sms", "estimated_quota")}
        return no_work().drop(columns=["used"]).assign(**nothing)
    return pd.concat(frames, ignore_index=True)


def _measure_card(card: Card, wanted: Demand) -> pd.DataFrame:
    parts = divide(card, wanted)
    unit = sm_count_of(card) * card.interval_seconds
    first, hours = hour_bins(card)
    hourly = {name: per_hour(values, first) * unit for name, values in parts.items()}
    own = pd.DataFrame(
        {
            **card.holder(None),
            "hour": hours,
            "capacity": per_hour(np.ones(card.intervals), first) * unit,
            "used": hourly["unattributed"],
            "held_unused": 0.0,
            "free": hourly["free"],
            "stranded": hourly["stranded"],
            "unobserved": hourly["unobserved"],
            "assumed_sms": bool(np.isnan(card.sm_count)),
            "estimated_quota": False,
        }
    )
    frames = [own]
    for j, holding in enumerate(card.holdings):
        frames.append(
            pd.DataFrame(
                {
                    **card.holder(holding),
                    "hour": hours,
                    "capacity": 0.0,
                    "used": hourly["used"][:, j],
                    "held_unused": hourly["held_unused"][:, j],
                    "free": 0.0,
                    "stranded": 0.0,
                    "unobserved": hourly["unseen"][:, j],
                    "assumed_sms": bool(np.isnan(card.sm_count)),
                    "estimated_quota": bool(card.quota_estimated[j]),
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


def divide(card: Card, wanted: Demand) -> dict[str, np.ndarray]:
    """Divide each interval of a card into shares that sum to 1.

    Returns:
        `used`, `held_unused`, `unseen` (held, its use not known), each (T, S), and `unattributed` (used by nobody that
        is known), `free`, `stranded`, `unobserved`, each (T,).
    """
    seen = (
        ~np.isnan(card.activity) | (card.sampled & card.alive).any(axis=1) | (card.observed & ~card.alive.any(axis=1))
    )
    dark = ~seen
    used = np.where(dark[:, None], np.nan, card.used)
    unattributed = np.where(dark, 0.0, card.unattributed)
    quota = np.where(card.held, card.quota, 0.0)
    known = ~np.isnan(used)
    taken = np.where(known, used, 0.0)
    total = taken.sum(axis=1) + unattributed
    scale = 1.0 / np.maximum(total, 1.0)
    taken, unattributed = taken * scale[:, None], unattributed * scale
    rest = np.clip(1.0 - taken.sum(axis=1) - unattributed, 0.0, 1.0)
    # A holding whose use is not known: its quota is unseen, as far as the card has room for it.
    unseen = np.where(~known & card.held & seen[:, None], np.nan_to_num(quota, nan=0.0), 0.0)
    unseen *= (np.minimum(unseen.sum(axis=1), rest) / np.maximum(unseen.sum(axis=1), 1e-12))[:, None]
    rest = rest - unseen.sum(axis=1)
    idle_held = np.where(known, np.clip(np.nan_to_num(quota, nan=0.0) - taken, 0.0, None), 0.0)
    idle_held *= (np.minimum(idle_held.sum(axis=1), rest) / np.maximum(idle_held.sum(axis=1), 1e-12))[:, None]
    rest = np.clip(rest - idle_held.sum(axis=1), 0.0, 1.0)
    # Where somebody's quota is not known, nobody can say how much of the rest is held.
    vague = (np.isnan(quota) & card.held).any(axis=1)
    unobserved = np.where(dark, 1.0, np.where(vague, rest, 0.0))
    rest = np.where(dark | vague, 0.0, rest)
    taken[dark], idle_held[dark], unseen[dark] = 0.0, 0.0, 0.0
    unheld = np.clip(1.0 - np.nansum(quota, axis=1), 0.0, 1.0)
    profiles = {h.profile for h in card.holdings if h.kind == "mig" and h.profile}
    fits = fits_free(card, board_of(card.model, profiles), wanted, unheld)
    return {
        "used": taken,
        "held_unused": idle_held,
        "unseen": unseen,
        "unattributed": unattributed,
        "free": np.where(fits, rest, 0.0),
        "stranded": np.where(fits, 0.0, rest),
        "unobserved": unobserved,
    }


@dataclass(frozen=True, slots=True)
class Ledger:
    """Both levels, in SM-seconds: frames per card, per tenant, per hour, and one row for the fleet.

    Columns: the keys, `capacity`, the terms of level 1 and 2, `unaccounted_1`, `unaccounted_2`. A tenant has no
    capacity of its own: the column holds what was used, reserved, wasted or unobserved in its name.
    """

    gpus: pd.DataFrame
    tenants: pd.DataFrame
    hours: pd.DataFrame
    fleet: pd.Series
    assumed_sm_count: tuple[str, ...]  # cards whose SM count nobody told
    estimated_quota: tuple[str, ...]  # slices that an equal part of the card is taken for

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values: `fleet`, `gpus`, `tenants`, `hours`, each with `level_1` and `level_2`."""
        return {
            "unit": "SM-seconds",
            "fleet": _document(self.fleet, []),
            "gpus": [_document(row, _CARD) for _, row in self.gpus.iterrows()],
            "tenants": [_document(row, ["tenant"]) for _, row in self.tenants.iterrows()],
            "hours": [_document(row, ["hour"]) for _, row in self.hours.iterrows()],
            "assumed_sm_count": list(self.assumed_sm_count),
            "estimated_quota": list(self.estimated_quota),
        }


def _document(row: pd.Series, keys: list[str]) -> dict[str, Any]:
    return {
        **{key: plain(row[key]) for key in keys},
        "capacity": plain(row["capacity"]),
        "level_1": {name: plain(row[name]) for name in LEVEL_1} | {"unaccounted": plain(row["unaccounted_1"])},
        "level_2": {name: plain(row[name]) for name in LEVEL_2} | {"unaccounted": plain(row["unaccounted_2"])},
    }


def conclude_ledger(frames: Iterable[pd.DataFrame], context: Context) -> Ledger:
    """Join the measures of all nodes into the ledger of the fleet; the order of `frames` does not matter."""
    parts = [frame for frame in frames if len(frame)]
    if not parts:
        return _empty()
    rows = pd.concat(parts, ignore_index=True).sort_values(_KEY, kind="stable", ignore_index=True)
    rows["unit"] = rows["unit"].fillna("")
    work = estimate_useful(rows[rows["solo_samples"].notna()][list(WORK_COLUMNS)])
    rows = rows.merge(work[[*_KEY, "cost", "step_seconds", "useful"]], on=_KEY, how="left", sort=False)
    rows["reserved"] = np.minimum(rows["held_unused"], _reserve(rows, context))
    rows["wasted"] = rows["held_unused"] - rows["reserved"]
    _level_2(rows)
    sums = ["capacity", *LEVEL_1, *LEVEL_2]
    gpus = _closed(rows.groupby(_CARD, sort=True)[sums].sum().reset_index())
    named = rows[rows["slice"] != ""].copy()
    named["capacity"] = named[list(LEVEL_1)].sum(axis=1)
    tenants = _closed(named.groupby("tenant", sort=True)[sums].sum().reset_index())
    hours = rows.groupby("hour", sort=True)[sums].sum().reset_index()
    hours["hour"] = pd.to_datetime(hours["hour"], unit="ms", utc=True)
    return Ledger(
        gpus=gpus,
        tenants=tenants,
        hours=_closed(hours),
        fleet=_closed(gpus[sums].sum().to_frame().T).iloc[0],
        assumed_sm_count=_named(rows, "assumed_sms", _CARD),
        estimated_quota=_named(rows, "estimated_quota", [*_CARD, "slice"]),
    )


def _named(rows: pd.DataFrame, flag: str, keys: list[str]) -> tuple[str, ...]:
    marked = rows[rows[flag].astype(bool)][keys].drop_duplicates()
    return tuple("/".join(parts) for parts in marked.itertuples(index=False, name=None))


def _level_2(rows: pd.DataFrame) -> None:
    rated = rows["cost"].notna()
    cost = rows["cost"].fillna(0.0)
    late = (rows["work"] - rows["finished"]).clip(lower=0.0)
    rows["useful"] = rows["useful"].fillna(0.0)
    # A slice that is never left alone is hurt even in its calmest hour, seen beside its calmer sisters.
    dearer, slower = rows["solo_cost"] / rows["cost"], rows["solo_step_seconds"] / rows["step_seconds"]
    always = (dearer.where(dearer <= slower, slower) - 1).clip(lower=0.0).fillna(0.0)
    rows["contention"] = (cost * (rows["contended_work"] * (1 + always) + rows["work"] * always)).fillna(0.0)
    rows["throttling"] = (cost * rows["throttled_work"]).fillna(0.0)
    rows["overhead"] = np.where(rated, cost * late.fillna(0.0) + rows["barren"].fillna(0.0), 0.0)
    rows["unrated"] = np.where(rated, 0.0, rows["used"])


def _reserve(rows: pd.DataFrame, context: Context) -> np.ndarray:
    """Return how much of what a holding did not use in an hour was kept on purpose, in SM-seconds.

    Use counts against the reserve.
    """
    reserves = reserved_shares(context)
    owners = rows[OWNER].itertuples(index=False, name=None)
    share = np.array([reserves.get(owner, 0.0) for owner in owners], dtype=np.float64)
    span = rows[rows["slice"] == ""].set_index([*_CARD, "hour"])["capacity"]
    capacity = span.reindex(pd.MultiIndex.from_frame(rows[[*_CARD, "hour"]])).to_numpy()
    return np.asarray(np.clip(share * capacity - rows["used"].to_numpy(), 0.0, None))


def _closed(table: pd.DataFrame) -> pd.DataFrame:
    table["unaccounted_1"] = table["capacity"] - table[list(LEVEL_1)].sum(axis=1)
    table["unaccounted_2"] = table["used"] - table[list(LEVEL_2)].sum(axis=1)
    return table


def _empty() -> Ledger:
    columns = ["capacity", *LEVEL_1, "unaccounted_1", *LEVEL_2, "unaccounted_2"]
    zero = pd.Series(0.0, index=columns)
    return Ledger(
        gpus=pd.DataFrame(columns=[*_CARD, *columns]),
        tenants=pd.DataFrame(columns=["tenant", *columns]),
        hours=pd.DataFrame(columns=["hour", *columns]),
        fleet=zero,
        assumed_sm_count=(),
        estimated_quota=(),
    )
