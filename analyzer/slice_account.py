"""One row a holding and one a card: state now, quota, true use, borrowed, starved and energy, each with its provenance.

True use is weighed by SMs: a kernel on one SM is not a busy card. Energy is attributed (`analyzer.energy`): the rows of
a card sum to what its own meter counted. What is free now comes from the same classifier as who is idle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd

from analyzer.cards import cards
from analyzer.demand import free_memory
from analyzer.energy import card_energy
from analyzer.facts import records, requests
from analyzer.findings import plain
from analyzer.holding_state import State, ended_pods, idle_stretch, instant, last_of, memory_used, state_of
from analyzer.known import known_mean, known_sum
from analyzer.protocols import Partition
from analyzer.settings import AnalyzeSettings
from analyzer.shares import Card
from analyzer.starvation import SHARED, Taking, takings
from analyzer.useful import sm_count_of
from collector.schema import NOBODY

# Rows of a slice may lag so many intervals behind its node's newest and still be the present state.
CURRENT_INTERVALS = 3
_LEAST_FREE = 0.005  # share of a card below which it is rounding

ACCOUNT_KEY = ("cluster", "node", "gpu", "slice", "tenant", "workload")  # slice empty: the card, what nobody holds
COLUMNS = (
    *ACCOUNT_KEY,
    "kind",
    "profile",
    "model",
    "pod",
    "state",  # empty: it is there no more
    "since_ms",  # of the state, where it is not active
    "quota_ratio",
    "quota_provenance",
    "used_ratio",  # of the card, mean over its life
    "used_provenance",
    "of_quota_ratio",  # NaN: no quota
    "busy_ratio",
    "overstated_by",  # busy over used
    "used_sm_seconds",
    "borrowed_gpu_seconds",
    "starved_gpu_seconds",
    "memory_used_bytes",  # newest
    "free_ratio",  # of the card, now
    "free_memory_bytes",
    "joules",
    "joules_provenance",
)


def measure_account(partition: Partition) -> pd.DataFrame:
    """Return the accounts of one node: columns `COLUMNS`, in the order of cards and slices."""
    settings = AnalyzeSettings.model_validate(partition.settings)
    found = [card for card in cards(partition) if not card.nameless]
    newest = max((card.newest for card in found), default=-1)
    gone = ended_pods(requests(partition.facts))
    rows: list[dict[str, Any]] = []
    for card in found:
        rows += _of_card(card, newest, settings, gone)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _of_card(card: Card, newest: int, settings: AnalyzeSettings, gone: Mapping[str, datetime]) -> list[dict[str, Any]]:
    taking, energy = takings(card), card_energy(card)
    place = {**card.place, "model": card.model}
    seen = newest - CURRENT_INTERVALS
    own = {**place, **_card_row(card, current=card.newest >= seen)}
    if energy is not None:
        own |= {"joules": energy.pool, "joules_provenance": "measured" if energy.metered else "estimated"}
    rows = [own]
    for j, holding in enumerate(card.holdings):
        row: dict[str, Any] = {**place, **_holding_row(card, j, taking)}
        if energy is not None and holding.held:
            row |= {"joules": float(energy.slices[j]), "joules_provenance": "estimated"}
        if last_of(card.alive[:, j]) >= seen:
            row |= _now(card, j, settings, gone)
        rows.append(row)
    return rows


def _card_row(card: Card, *, current: bool) -> dict[str, Any]:
    """What nobody holds of a card now; a cut card's free instances are rows of their own."""
    row: dict[str, Any] = {
        "slice": "",
        "tenant": "",
        "workload": "",
        "kind": "mig" if card.mig else "",
        "profile": "",
        "pod": "",
        "state": "",
        "used_ratio": known_mean(card.activity),
        "used_provenance": "unknown" if np.isnan(card.activity).all() else "measured",
        "busy_ratio": known_mean(card.of_card("busy_ratio")),
    }
    row["overstated_by"] = _over(row["busy_ratio"], row["used_ratio"])
    row["used_sm_seconds"] = known_sum(card.activity) * sm_count_of(card) * card.interval_seconds
    if card.mig or not current:
        return row
    held = np.where(card.held, card.quota, 0.0).sum(axis=1)  # NaN where a holder's quota is not known
    free = np.clip(1.0 - held, 0.0, 1.0)
    now = free[card.newest]
    if not now >= _LEAST_FREE:
        return row
    less = last_of(~(free[: card.newest + 1] >= now - _LEAST_FREE))
    memory = free_memory(card)
    return row | {
        "state": State.FREE.value,
        "since_ms": card.start_ms + (less + 1) * int(card.interval_seconds * 1000),
        "free_ratio": float(now),
        "free_memory_bytes": float(memory[card.newest]),
    }


def _holding_row(card: Card, j: int, taking: Taking) -> dict[str, Any]:
    holding, alive = card.holdings[j], card.alive[:, j]
    quota, used = card.quota[alive, j], card.used[alive, j]
    told = "unknown" if np.isnan(quota).all() else "estimated" if card.quota_estimated[j] else "measured"
    known = ~np.isnan(used)
    unit = card.interval_seconds
    busy = card.of_slices("busy_ratio")[:, j]
    if holding.kind == "whole":
        busy = np.where(np.isnan(busy) & alive, card.of_card("busy_ratio"), busy)
    memory = memory_used(card, j)
    memory = memory[~np.isnan(memory)]
    both = known & (quota > 0)
    asks_told = holding.kind not in SHARED or taking.told[:, j].any()
    row: dict[str, Any] = {
        "slice": holding.slice,
        "tenant": holding.tenant,
        "workload": holding.workload,
        "kind": holding.kind,
        "profile": holding.profile,
        "pod": holding.pod,
        "state": "",
        "quota_ratio": float(quota[-1]),
        "quota_provenance": told,
        "used_ratio": known_mean(used),
        "used_provenance": "unknown" if not known.any() else "measured" if card.measured[j] else "estimated",
        "of_quota_ratio": float(used[both].sum() / quota[both].sum()) if both.any() else math.nan,
        "busy_ratio": known_mean(busy),
        "used_sm_seconds": known_sum(used) * sm_count_of(card) * unit,
        "borrowed_gpu_seconds": float(taking.borrowed[:, j].sum() * unit) if both.any() else math.nan,
        "starved_gpu_seconds": float(taking.starved[:, j].sum() * unit) if asks_told else math.nan,
        "memory_used_bytes": float(memory[-1]) if len(memory) else math.nan,
    }
    return row | {"overstated_by": _over(row["busy_ratio"], row["used_ratio"])}


def _now(card: Card, j: int, settings: AnalyzeSettings, gone: Mapping[str, datetime]) -> dict[str, Any]:
    stretch = idle_stretch(card, j, settings.idle_activity)
    state = state_of(card, j, stretch, settings, gone)
    row: dict[str, Any] = {"state": state.value}
    if state is State.FREE:
        alive = card.alive[:, j]
        row["since_ms"] = card.start_ms + int(np.argmax(alive)) * int(card.interval_seconds * 1000)
        row["free_ratio"] = float(card.quota[last_of(alive), j])
        told = card.of_slices("memory_quota_bytes")[:, j]
        row["free_memory_bytes"] = float(told[~np.isnan(told)][-1]) if (~np.isnan(told)).any() else math.nan
    elif state not in {State.ACTIVE, State.UNKNOWN}:
        row["since_ms"] = stretch.since_ms
    return row


def _over(busy: float, used: float) -> float:
    return busy / used if used > 0 else math.nan


@dataclass(frozen=True, slots=True)
class FreeNow:
    """A card, a share of one, or a MIG instance that nobody holds now. NaN: not known."""

    cluster: str
    node: str
    gpu: str
    slice: str
    profile: str
    model: str
    share: float  # of the card
    memory_bytes: float
    since: datetime

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        document: dict[str, Any] = plain(asdict(self))
        return document


def free_now(accounts: pd.DataFrame) -> tuple[FreeNow, ...]:
    """Return what is free now, the largest shares first.

    Args:
        accounts: rows of `measure_account` of all nodes.
    """
    free = accounts[accounts["state"] == State.FREE.value]
    found = [
        FreeNow(
            cluster=row["cluster"],
            node=row["node"],
            gpu=row["gpu"],
            slice=row["slice"],
            profile=row["profile"],
            model=row["model"],
            share=row["free_ratio"],
            memory_bytes=row["free_memory_bytes"],
            since=instant(row["since_ms"]),
        )
        for row in records(free)
    ]
    return tuple(sorted(found, key=lambda f: (-np.nan_to_num(f.share), f.cluster, f.node, f.gpu, f.slice)))


def no_accounts() -> pd.DataFrame:
    """Return an empty frame of accounts."""
    return pd.DataFrame(columns=list(COLUMNS))


def accounts_document(accounts: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the accounts as plain JSON values; `since` is an instant."""
    held = accounts[accounts["tenant"] != NOBODY]
    rows = []
    for row in records(held):
        since = row.pop("since_ms")
        rows.append(plain({**row, "since": None if math.isnan(since) else instant(since)}))
    return rows
