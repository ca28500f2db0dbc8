"""TT211 to TT214, fleet demand that no longer fits; TT221 to TT223, how cut (MIG) cards are cut: measured a card."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from analyzer.cards import cards
from analyzer.demand import demand, free_memory
from analyzer.facts import hardware_facts, records, requests, to_float
from analyzer.findings import Finding
from analyzer.fleet_verdicts import FLEET_CODES, judge_fleet
from analyzer.mig_recut import RECUT_CODES, judge_recut
from analyzer.mig_verdicts import judge_card
from analyzer.protocols import Conclusion, Context, Needs, Partition, Withheld
from analyzer.shares import Card

_CURRENT_INTERVALS = 3
_MIG_CODES = ("TT221", *RECUT_CODES)

_COLUMNS = [
    "cluster",
    "node",
    "gpu",
    "code",
    "model",
    "free_share",
    "free_memory_bytes",
    "memory_bytes",
    "instances",
    "pods",
    "withheld",
]


class FragmentationDetector:
    """Measures what is free on each card now, and what of the demand it can still serve."""

    codes = (*FLEET_CODES, *_MIG_CODES)
    needs: ClassVar[Needs] = {
        **{code: {"slice": ("sm_quota_ratio",)} for code in FLEET_CODES},
        **{code: {} for code in _MIG_CODES},
    }

    def measure(self, partition: Partition) -> pd.DataFrame:
        """Return a row a card: TT211 for cards that are shared or whole, TT221 for cards that are cut."""
        found = cards(partition)
        newest = max((card.newest for card in found), default=-1)
        starts = hardware_facts(partition.facts, "slice", "placement")
        rows = []
        for card in found:
            row: dict[str, Any] = {**card.place, "model": card.model}
            row |= {"code": "TT221" if card.mig else "TT211", "withheld": ""}
            row["pods"] = json.dumps(sorted({h.pod for h in card.holdings if h.pod}))
            if card.newest < newest - _CURRENT_INTERVALS:
                rows.append({**row, "withheld": "the card is not there now"})
            elif card.mig:
                rows.append({**row, "instances": json.dumps(_instances(card, newest, starts))})
            else:
                rows.append({**row, **_free(card, newest)})
        return pd.DataFrame(rows, columns=_COLUMNS)

    def conclude(self, measures: pd.DataFrame, context: Context) -> Conclusion:
        """Judge each cluster's free share and each cut card against the demand mix."""
        if measures.empty:
            return Conclusion([], [])
        wanted = demand(requests(context.facts), context.window)
        ordered = measures.sort_values(["cluster", "node", "gpu"], kind="stable")
        findings: list[Finding] = []
        withheld: list[Withheld] = []
        for cluster in sorted(set(ordered["cluster"])):
            rows = records(ordered[ordered["cluster"] == cluster])
            shared = [row for row in rows if row["code"] == "TT211"]
            cut = [row for row in rows if row["code"] == "TT221"]
            withheld += [
                Withheld(code, row["cluster"], row["node"], row["gpu"], "", "not a MIG card", applicable=False)
                for row in shared
                for code in _MIG_CODES
            ]
            judged = [*judge_fleet(str(cluster), shared, wanted, context), *judge_recut(cut, wanted, context)]
            for verdict in [*judged, *(judge_card(row, wanted, context) for row in cut)]:
                if isinstance(verdict, Finding):
                    findings.append(verdict)
                elif verdict is not None:
                    withheld.append(verdict)
        return Conclusion(findings, withheld)


def _current(card: Card, newest: int) -> np.ndarray:
    """Return which holdings live now, (S,)."""
    return np.asarray(card.alive[max(newest - _CURRENT_INTERVALS, 0) : newest + 1].any(axis=0))


def _instances(card: Card, newest: int, starts: Mapping[tuple[str, str, str, str], str]) -> list[list[Any]]:
    """Return the fields of `SeenInstance` of each instance that exists now."""
    now = _current(card, newest)
    found: dict[str, list[Any]] = {}
    for j, holding in enumerate(card.holdings):
        if now[j]:
            start = to_float(starts.get((card.cluster, card.node, card.gpu, holding.slice)))
            before = found.get(holding.slice)
            if before is None or holding.held or not before[3]:
                place = None if math.isnan(start) else int(start)
                owner = [holding.held, holding.tenant, holding.workload]
                found[holding.slice] = [holding.slice, holding.profile, place, *owner]
    return [found[name] for name in sorted(found)]


def _free(card: Card, newest: int) -> dict[str, Any]:
    now = _current(card, newest)
    held = now & np.array([h.held for h in card.holdings], dtype=bool)
    last = [int(np.flatnonzero(card.alive[:, j])[-1]) for j in np.flatnonzero(held)]
    quotas = [card.quota[t, j] for t, j in zip(last, np.flatnonzero(held), strict=True)]
    if any(math.isnan(q) for q in quotas) or (held & card.quota_estimated).any():
        return {"withheld": "a holder's quota is not known"}
    room = free_memory(card)
    total = card.of_card("memory_used_bytes") + card.of_card("memory_free_bytes")
    known = ~np.isnan(room) & ~np.isnan(total)
    left, size = (float(room[known][-1]), float(total[known][-1])) if known.any() else (math.nan, math.nan)
    return {"free_share": max(1.0 - sum(quotas), 0.0), "free_memory_bytes": left, "memory_bytes": size}
