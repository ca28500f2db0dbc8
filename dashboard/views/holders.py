"""Who holds which share of which card, what they use of it, and whether their promise is kept."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analyzer.cards import cards
from analyzer.facts import hardware_facts
from analyzer.known import known_mean
from analyzer.settings import AnalyzeSettings
from analyzer.shares import Card
from collector.declarations import OWNER, Owner, ResolvedWorkload, WorkloadDeclaration
from collector.protocols import StoreReader
from collector.window import Window
from tuner.service.analyse import partitions
from tuner.service.promises import objective_share, resolve_promises

COLUMNS = (
    "cluster",
    "node",
    "gpu",
    "index",
    "model",
    "slice",
    "kind",
    "profile",
    "tenant",
    "workload",
    "service_class",
    "pod",
    "quota",
    "quota_estimated",
    "used",
    "memory_quota_bytes",
    "memory_used_bytes",
    "requests_per_second",
    "promised",
    "kept",
    "first_seen",
    "last_seen",
)
_ROUNDING = 1e-6  # rates are rounded by their exporters: a share so near to the promise is kept
CARD_COLUMNS = ("cluster", "node", "gpu", "index", "model", "activity", "last_seen")


def read_holders(
    store: StoreReader, window: Window, interval_seconds: float, declarations: Sequence[WorkloadDeclaration]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the holdings of a window (one row a slice and holder), and the cards that they lie on.

    Returns:
        Holdings with `COLUMNS`: quota (newest) and used (mean while it lived) are shares of the card, `kept` is the
        share of the intervals with requests in which at least the promised share met the objective; NaN absent.
        Cards with `CARD_COLUMNS`: `activity` is the mean, `last_seen` is NaT for a card that only facts know.
    """
    facts = store.facts(window)
    ordinals = hardware_facts(facts, "gpu", "ordinal")
    held = store.read("slice", window, fields=["sm_quota_ratio"], by=OWNER, aggregate="count")
    promises = resolve_promises(facts, held, declarations)
    holdings: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    for partition in partitions(store, window, interval_seconds, AnalyzeSettings()):
        for card in cards(partition):
            about = {
                "cluster": card.cluster,
                "node": card.node,
                "gpu": card.gpu,
                "index": ordinals.get((card.cluster, card.node, card.gpu, ""), ""),
                "model": card.model,
            }
            times = pd.to_datetime(card.times_ms(), unit="ms", utc=True)
            found.append(
                {
                    **about,
                    "activity": known_mean(card.activity),
                    "last_seen": times[card.newest] if card.newest >= 0 else pd.NaT,
                }
            )
            holdings += [{**about, **row} for row in _of_card(card, times, promises)]
    cards_frame = pd.DataFrame(found, columns=list(CARD_COLUMNS))
    frame = pd.DataFrame(holdings, columns=list(COLUMNS))
    for table in (cards_frame, frame):
        table["last_seen"] = pd.to_datetime(table["last_seen"], utc=True)
    frame["first_seen"] = pd.to_datetime(frame["first_seen"], utc=True)
    return frame, cards_frame


def _of_card(
    card: Card, times: pd.DatetimeIndex, promises: Mapping[Owner, ResolvedWorkload]
) -> Iterator[dict[str, Any]]:
    matrices = {
        name: card.of_slices(name)
        for name in ("memory_quota_bytes", "memory_used_bytes", "requests_per_second", "within_objective_per_second")
    }
    for j, holding in enumerate(card.holdings):
        lives = np.flatnonzero(card.present[:, j])
        alive = card.alive[:, j]
        promise = promises.get((card.cluster, holding.tenant, holding.workload))
        promised = objective_share(promise)
        requests, within = matrices["requests_per_second"][:, j], matrices["within_objective_per_second"][:, j]
        yield {
            "slice": holding.slice,
            "kind": holding.kind,
            "profile": holding.profile,
            "tenant": holding.tenant,
            "workload": holding.workload,
            "service_class": promise.declaration.service_class if promise is not None and promise.declared else "",
            "pod": holding.pod,
            "quota": float(card.quota[lives[-1], j]),
            "quota_estimated": bool(card.quota_estimated[j]),
            "used": known_mean(card.used[alive, j]),
            "memory_quota_bytes": _last(matrices["memory_quota_bytes"][:, j]),
            "memory_used_bytes": _last(matrices["memory_used_bytes"][:, j]),
            "requests_per_second": known_mean(requests),
            "promised": promised,
            "kept": kept_intervals(requests, within, promised),
            "first_seen": times[lives[0]],
            "last_seen": times[lives[-1]],
        }


def kept_intervals(requests: np.ndarray, within: np.ndarray, promised: float) -> float:
    """Return the share of the intervals with requests in which at least `promised` of them met the objective.

    NaN where nothing is promised or no interval with requests is known.
    """
    with np.errstate(invalid="ignore"):
        judged = (requests > 0) & ~np.isnan(within)
    if math.isnan(promised) or not judged.any():
        return math.nan
    return float((within[judged] / requests[judged] >= promised - _ROUNDING).mean())


def _last(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known[-1]) if len(known) else math.nan


def read_kept(store: StoreReader, window: Window, declarations: Sequence[WorkloadDeclaration]) -> pd.DataFrame:
    """Return by hour how the services kept their promises: `time`, `judged` and `kept` (counts of slice intervals).

    An interval is judged where requests came to a workload that promised something.
    """
    rows = store.read("slice", window, fields=["requests_per_second", "within_objective_per_second"])
    promises = resolve_promises(store.facts(window), rows, declarations)
    shares = {key: objective_share(promise) for key, promise in promises.items()}
    promised = np.array([shares.get(owner, math.nan) for owner in rows[OWNER].itertuples(index=False, name=None)])
    asked, within = rows["requests_per_second"], rows["within_objective_per_second"]
    judged = ((asked > 0) & within.notna() & ~np.isnan(promised)).to_numpy()
    kept = judged & (within / asked >= promised - _ROUNDING).to_numpy()
    table = pd.DataFrame({"time": rows["time"].dt.floor("h"), "judged": judged, "kept": kept})
    return table.groupby("time", as_index=False)[["judged", "kept"]].sum()
