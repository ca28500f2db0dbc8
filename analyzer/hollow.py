"""The hollow-busy map: how much of the time that cards report as busy is hollow, by tenant, class and sharing kind.

Busy says only that some kernel ran. While it ran (means over an interval, divided by its busy part) it was hollow where
SM activity was below a half (ineffective, by DCGM's own rule), occupancy below a quarter, or tensor activity below a
tenth. Busy time of a shared card is divided among its holders by their use of it; of a MIG instance its engine stands
for busy, all of its own share.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analyzer.attribution import first_known
from analyzer.cards import cards
from analyzer.facts import records
from analyzer.findings import plain
from analyzer.protocols import Partition
from analyzer.shares import Card
from collector.declarations import Owner, ResolvedWorkload
from collector.schema import UNKNOWN

MEASURES: Mapping[str, tuple[str, float]] = {
    "sm": ("sm_active_ratio", 0.5),
    "occupancy": ("sm_occupancy_ratio", 0.25),
    "tensor": ("tensor_active_ratio", 0.1),
}
_KEY = ["tenant", "workload", "kind"]
_SUMS = ["busy", "sm_seconds", *(f"{part}_{name}" for name in MEASURES for part in ("known", "hollow"))]
_COLUMNS = ["cluster", "node", "gpu", *_KEY, *_SUMS]


@dataclass(frozen=True, slots=True)
class HollowBusy:
    """One tenant and class (or all): card-seconds that were reported busy, and the parts of them that were hollow.

    `hollow` is by measure (`sm`, `occupancy`, `tensor`): the share of busy time below its threshold, of the time in
    which the measure is known; NaN where it never is. `known` is that part. `overstated` is busy over SM activity.
    """

    cluster: str
    tenant: str
    service_class: str
    kind: str
    workloads: int
    busy_card_seconds: float
    hollow: Mapping[str, float]
    known: Mapping[str, float]
    overstated: float

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "cluster": self.cluster,
            "tenant": self.tenant,
            "service_class": self.service_class,
            "kind": self.kind,
            "workloads": self.workloads,
            "busy_card_seconds": plain(self.busy_card_seconds),
            "hollow": {name: plain(value) for name, value in self.hollow.items()},
            "known": {name: plain(value) for name, value in self.known.items()},
            "busy_overstates_sm_times": plain(self.overstated),
        }


def measure_hollow(partition: Partition) -> pd.DataFrame:
    """Return one row a holding that was busy: seconds of a card, each relative to what the holding holds of it."""
    rows = [row for card in cards(partition) for row in _of_card(card)]
    return pd.DataFrame(rows, columns=_COLUMNS)


def _of_card(card: Card) -> list[dict[str, Any]]:
    busy = np.clip(card.of_card("busy_ratio"), 0.0, 1.0)
    own = {name: card.of_card(field) for name, (field, _) in MEASURES.items()}
    shared = [j for j, h in enumerate(card.holdings) if h.held and h.kind not in {"whole", "mig"}]
    # NaN, and nobody's busy time, where what one of them uses is not known.
    total = np.where(card.held, card.used, 0.0)[:, shared].sum(axis=1)
    rows = []
    for j, holding in enumerate(card.holdings):
        if not holding.held:
            continue
        alive = card.alive[:, j]
        seen, measures, share = busy, own, np.where(alive, 1.0, 0.0)
        if holding.kind == "mig":
            quota = np.where(card.quota[:, j] > 0, card.quota[:, j], np.nan)
            seen = first_known(
                [card.of_slices("busy_ratio")[:, j], card.of_slices("engine_active_ratio")[:, j] / quota]
            )
            measures = {name: card.of_slices(field)[:, j] / quota for name, (field, _) in MEASURES.items()}
            share = np.where(alive, np.nan_to_num(quota), 0.0)
        elif j in shared:
            used = np.where(alive, np.nan_to_num(card.used[:, j]), 0.0)
            share = np.divide(used, total, out=np.zeros_like(used), where=total > 0)
        seconds = np.nan_to_num(np.clip(seen, 0.0, 1.0)) * share * card.interval_seconds
        if not seconds.any():
            continue
        row: dict[str, Any] = {
            **card.place,
            "tenant": holding.tenant,
            "workload": holding.workload,
            "kind": holding.kind,
            "busy": float(seconds.sum()),
            "sm_seconds": float(np.nansum(np.where(seconds > 0, np.clip(measures["sm"], 0.0, 1.0) * share, 0.0)))
            * card.interval_seconds,
        }
        for name, (_, low) in MEASURES.items():
            known = np.isfinite(measures[name])
            row[f"known_{name}"] = float(seconds[known].sum())
            row[f"hollow_{name}"] = float(seconds[known & (measures[name] < low * seen)].sum())
        rows.append(row)
    return rows


def conclude_hollow(
    measures: Sequence[pd.DataFrame], declarations: Mapping[Owner, ResolvedWorkload]
) -> tuple[HollowBusy, ...]:
    """Add up over the fleet, most hollow time first."""
    filled = [frame for frame in measures if len(frame)]
    if not filled:
        return ()
    groups: dict[tuple[str, str, str, str], list[dict[str, Any]]] = {}
    for row in records(pd.concat(filled, ignore_index=True).sort_values(_COLUMNS[:6], kind="stable")):
        promise = declarations.get((row["cluster"], row["tenant"], row["workload"]))
        known = promise is not None and promise.declared
        service_class = str(promise.declaration.service_class) if promise is not None and known else UNKNOWN
        groups.setdefault((row["cluster"], row["tenant"], service_class, row["kind"]), []).append(row)
    found = [_sum(key, rows) for key, rows in groups.items()]
    return tuple(sorted(found, key=lambda h: (-_hollow_seconds(h), h.cluster, h.tenant, h.service_class, h.kind)))


def _hollow_seconds(one: HollowBusy) -> float:
    share = one.hollow["sm"]
    return 0.0 if math.isnan(share) else share * one.busy_card_seconds


def _sum(key: tuple[str, str, str, str], rows: Iterable[Mapping[str, Any]]) -> HollowBusy:
    rows = list(rows)
    total = {name: float(sum(row[name] for row in rows)) for name in _SUMS}
    return HollowBusy(
        *key,
        workloads=len({row["workload"] for row in rows}),
        busy_card_seconds=total["busy"],
        hollow={name: _part(total[f"hollow_{name}"], total[f"known_{name}"]) for name in MEASURES},
        known={name: _part(total[f"known_{name}"], total["busy"]) for name in MEASURES},
        overstated=_part(total["known_sm"], total["sm_seconds"]),
    )


def _part(value: float, whole: float) -> float:
    return value / whole if whole > 0 else math.nan


def fleet_hollow(found: Sequence[HollowBusy]) -> HollowBusy | None:
    """Return the sum over all tenants; None without any busy time."""
    if not found:
        return None
    seconds = sum(h.busy_card_seconds for h in found)

    def mean(name: str, of: str) -> float:
        weights = [h.busy_card_seconds * (1.0 if of == "known" else _zero(h.known[name])) for h in found]
        return _part(sum(w * _zero(getattr(h, of)[name]) for w, h in zip(weights, found, strict=True)), sum(weights))

    known_sm = sum(h.busy_card_seconds * _zero(h.known["sm"]) for h in found)
    active = sum(_zero(h.busy_card_seconds * h.known["sm"] / h.overstated) for h in found if h.overstated > 0)
    return HollowBusy(
        "", "", "", "", sum(h.workloads for h in found), seconds,
        {name: mean(name, "hollow") for name in MEASURES}, {name: mean(name, "known") for name in MEASURES},
        _part(known_sm, active),
    )  # fmt: skip


def _zero(value: float) -> float:
    return 0.0 if math.isnan(value) else value
