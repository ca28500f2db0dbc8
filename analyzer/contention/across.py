"""Pairs across the cards of a node: only where PCIe, NVLink or the host is so full that one can reach the other.

A node of eight cards has hundreds of pairs that share nothing but an idle bus. Testing them all would find chance, and
raise the bar for those that do fight.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from analyzer.contention.pairs import Across, Place, measure_victim, met
from analyzer.contention.record import PairMeasure
from analyzer.contention.series import Card, Floats, Lane

NO_PRESSURE = "not tested: no shared pressure"
LINK_FULL = 0.6  # of the link's peak in one direction
HOST_FULL = 0.9  # of the node's CPUs
PRESSED_SHARE = 0.05  # of the samples
_USED = 0.02  # of the link's peak: a victim's card that uses less does not depend on it


def pressures(card: Card) -> tuple[str, ...]:
    """Return the channels that are full because of this card (PCIe, NVLink) or of its node (host)."""
    full = [name for name, use in _links(card).items() if _share(use >= LINK_FULL) >= PRESSED_SHARE]
    return (*full, *(("host",) if _share(card.host >= HOST_FULL) >= PRESSED_SHARE else ()))


def measure_across(cards: list[Card], place: Place) -> list[PairMeasure]:
    """Measure pairs of different cards through channels under pressure; a lane without any such pair has one row.

    That row names no suspect and is `NO_PRESSURE`.
    """
    full = {card.gpu: pressures(card) for card in cards}
    result = []
    for card in cards:
        needed = {"host", *(name for name, use in _links(card).items() if _share(use >= _USED) >= PRESSED_SHARE)}
        reach = {gpu: tuple(c for c in channels if c in needed) for gpu, channels in full.items() if gpu != card.gpu}
        for victim in card.lanes:
            rows = _victim(card, victim, [(c, reach[c.gpu]) for c in cards if reach.get(c.gpu)], place)
            result += rows or [_untested(card, victim, place)]
    return result


def _victim(card: Card, victim: Lane, others: list[tuple[Card, tuple[str, ...]]], place: Place) -> list[PairMeasure]:
    across: dict[str, Across] = {}
    suspects: list[Lane] = []
    for other, channels in others:
        for lane in other.lanes:
            mine = (lane.tenant, lane.workload) == (victim.tenant, victim.workload)
            if lane.activity is not None and met(victim, lane) and not mine:
                # A slice's name is its own card's: with the card before it, it is the node's.
                named = replace(lane, slices=(*lane.slices[:-1], f"{other.gpu}/{lane.slices[-1]}"))
                suspects.append(named)
                across[named.slices[-1]] = Across(other, channels)
    if not suspects:
        return []
    beside = [lane for lane in card.lanes if lane is not victim]
    rows = measure_victim(card, victim, suspects, replace(place, across=across), beside)
    return [
        replace(row, suspect=row.suspect.removeprefix(f"{gpu}/"), suspect_gpu=gpu)
        for row in rows
        for gpu in [across[row.suspect].card.gpu]
    ]


def _untested(card: Card, victim: Lane, place: Place) -> PairMeasure:
    return PairMeasure(
        cluster=place.cluster,
        node=place.node,
        gpu=card.gpu,
        victim=victim.slices[-1],
        suspect="",
        suspect_gpu="*",
        untested=NO_PRESSURE,
    )


def _links(card: Card) -> dict[str, Floats]:
    series = {"pcie": card.pcie, "nvlink": card.nvlink}
    return {name: series[name] / peak for name, peak in card.peaks.items()}


def _share(where: np.ndarray) -> float:
    return float(where.mean()) if where.size else 0.0
