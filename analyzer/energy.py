"""Energy of slices: attributed, never measured; what the slices get and what the pool keeps sums to the card's meter.

P_i = P_idle q_i + (P - P_idle) w_i, with q_i the quota and w_i the slice's part of the card's measured activity. Idle
power that no quota covers, and dynamic power while nothing was seen to run, belong to the pool.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analyzer.cards import cards
from analyzer.protocols import Partition
from analyzer.shares import Card, Matrix, Vector

_QUIET = 0.02  # activity up to which a card shows its idle power
_IDLE_QUANTILE = 0.1
_KEY = ["cluster", "node", "gpu", "slice", "tenant", "workload"]


def attribute_power(idle_watts: float, total_watts: Vector, activity: Matrix, quota: Matrix) -> tuple[Matrix, Vector]:
    """Divide a card's power among its slices.

    Args:
        idle_watts: what the card draws when nothing runs.
        total_watts: (T,), what the meter says; below idle it is all idle power.
        activity: (T, S), each slice's part in what runs, in any unit; NaN counts as none.
        quota: (T, S), shares of the card; where they sum to more than 1 they are scaled to 1.

    Returns:
        Watts of the slices (T, S) and of the pool (T,); together they are `total_watts`.
    """
    idle = np.minimum(total_watts, idle_watts)
    granted = np.nan_to_num(quota, nan=0.0)
    granted = granted / np.maximum(granted.sum(axis=1), 1.0)[:, None]
    work = np.nan_to_num(activity, nan=0.0)
    total = work.sum(axis=1)
    part = work / np.where(total > 0, total, 1.0)[:, None]
    watts = idle[:, None] * granted + (total_watts - idle)[:, None] * part
    return watts, total_watts - watts.sum(axis=1)


def idle_watts(card: Card) -> float:
    """Return a card's idle power: a low quantile of the samples in which it was quiet, else its lowest; NaN: none."""
    power = card.of_card("power_watts")
    known = power[~np.isnan(power)]
    if not len(known):
        return np.nan
    use = np.where(np.isnan(card.activity), np.where(card.alive, card.used, 0.0).sum(axis=1), card.activity)
    quiet = power[~np.isnan(power) & (use <= _QUIET)]
    return float(np.quantile(quiet, _IDLE_QUANTILE)) if len(quiet) else float(known.min())


@dataclass(frozen=True, slots=True)
class CardEnergy:
    """Joules of a card over the window: what each holding got (S,), what belongs to nobody, and whether a meter ran."""

    slices: Vector
    pool: float
    metered: bool  # False: some of it is power times time


def card_energy(card: Card) -> CardEnergy | None:
    """Attribute what a card's meter counted; None: it shows neither energy nor power.

    The meter's increments are divided; where a row has none, its power times the interval stands in.
    """
    idle = idle_watts(card)
    if np.isnan(idle):
        return None
    seconds = card.interval_seconds
    meter = card.of_card("energy_joules")
    joules = np.where(np.isnan(meter), card.of_card("power_watts") * seconds, meter)
    known = ~np.isnan(joules)
    held = np.where(card.held, card.quota, 0.0)[known]
    slices, pool = attribute_power(idle, joules[known] / seconds, np.where(card.held, card.used, 0.0)[known], held)
    return CardEnergy(slices.sum(axis=0) * seconds, float(pool.sum()) * seconds, bool((~np.isnan(meter))[known].all()))


def attribute_energy(partition: Partition) -> pd.DataFrame:
    """Attribute each card's metered energy over the window.

    Returns:
        Columns cluster, node, gpu, slice, tenant, workload, joules: a row a holding, and one with an empty slice for
        the pool of each card. Rows of a card sum to what its meter counted.
    """
    rows = []
    for card in cards(partition):
        energy = card_energy(card)
        if energy is None:
            continue
        place = (card.cluster, card.node, card.gpu)
        rows.append((*place, "", "", "", energy.pool))
        for holding, total in zip(card.holdings, energy.slices, strict=True):
            if holding.held:
                rows.append((*place, holding.slice, holding.tenant, holding.workload, float(total)))
    return pd.DataFrame(rows, columns=[*_KEY, "joules"])
