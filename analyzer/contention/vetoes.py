"""Checks that each remove one confounder from a significant pair."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from analyzer.contention.series import Floats, correlation

_RELATED = 0.4
_STRONGER = 1.5


@dataclass(frozen=True, slots=True)
class Rival:
    """Another source of the same pressure: a co-runner, or activity that nobody accounts for."""

    name: str
    values: Floats  # filtered as the suspect is


def influence(outcome: Floats, regressor: Floats) -> float:
    """Return the z that is left after dropping the most influential contiguous quarter of the window.

    Args:
        outcome: whitened (rank-normalised) victim residual.
        regressor: the suspect's whitened residual at the winning shape and lag.
    """
    both = np.isfinite(outcome) & np.isfinite(regressor)
    parts = np.where(both, np.nan_to_num(outcome) * np.nan_to_num(regressor), 0.0)
    width = max(1, parts.size // 4)
    sums = np.concatenate([[0.0], np.cumsum(parts)])
    windows = sums[width:] - sums[:-width]
    worst = int(np.argmax(windows))
    rest = np.concatenate([parts[:worst], parts[worst + width :]])
    scale = math.sqrt(float(rest @ rest))
    return float(rest.sum()) / scale if scale > 0 else 0.0


def dominant_rival(outcome: Floats, suspect: Floats, rivals: list[Rival]) -> str:
    """Return the rival that moves with the suspect and explains the victim far better, or an empty string."""
    related = [rival for rival in rivals if abs(correlation(suspect, rival.values, 7)) > _RELATED]
    if not related:
        return ""
    columns = np.column_stack([suspect, *(rival.values for rival in related)])
    good = np.isfinite(columns).all(axis=1) & np.isfinite(outcome)
    if good.sum() < 4 * columns.shape[1]:
        return ""
    table = columns[good] - columns[good].mean(axis=0)
    spread = table.std(axis=0)
    table = table / np.where(spread > 0, spread, 1.0)
    weights, *_ = np.linalg.lstsq(table, outcome[good] - outcome[good].mean(), rcond=None)
    strongest = int(np.argmax(weights[1:]))
    return related[strongest].name if weights[1 + strongest] > _STRONGER * max(float(weights[0]), 0.0) else ""


def episodes(values: Floats, low: float, high: float) -> int:
    """Count how often a series rises above the middle of its range (with a dead band of a fifth of the range).

    Args:
        values: finite ones.
        low: lower end of the range.
        high: its upper end.
    """
    up, down = low + 0.6 * (high - low), low + 0.4 * (high - low)
    state = np.where(values > up, 1, np.where(values < down, -1, 0))
    state = state[state != 0]
    return int((state[:1] == 1).sum() + ((state[1:] == 1) & (state[:-1] == -1)).sum())
