"""The guard for level shifts: a deploy changes the level at once; what was learnt still speaks of the old one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analyzer.forecast.features import FloatArray, IntArray, Panel, Rows
from analyzer.forecast.layer import Layer

_AGES = (12, 8, 6, 4, 3)  # samples since the shift; later the experts have seen enough of the new level
_LOOKS = 3  # values that are compared, spread over the age
_BAND = np.array([0.05, 0.95])
_BAND_FACTOR = 3.0
_SMALLEST = 0.3  # relative change below which no shift is seen
_USUAL = (0.05, 0.95)  # quantiles of the history between which a level is nothing new


@dataclass(frozen=True, slots=True)
class Shift:
    """Per series: new level / foreseen level (NaN: no shift), and the last column before the shift."""

    ratio: FloatArray
    before: IntArray


def find_shift(point: Layer, panel: Panel, known: IntArray) -> Shift:
    """Compare the newest 3 to 12 values with what was foreseen just before them, the longest span first.

    A shift: three values spread over the span, the first and the newest among them, lie beyond three times the 90 %
    band around what was foreseen, all on the same side; their mean differs from it by 30 % or more and lies outside the
    5 % .. 95 % range of all values before (a series that goes on and off does not shift).
    """
    count = len(panel.series)
    shift = Shift(np.full(count, np.nan), np.zeros(count, np.int64))
    newest = panel.last_valid[:, -1] if count else np.empty(0, np.int64)
    looks = [np.linspace(1, age, _LOOKS).round().astype(np.int64) for age in _AGES]
    series = np.repeat(np.arange(count), len(_AGES))
    before = np.repeat(newest, len(_AGES)) - np.tile(_AGES, count)
    horizon = np.tile(np.stack(looks), (count, 1))
    able = before >= panel.first_valid[series]
    able &= np.isfinite(panel.values[series[:, None], np.maximum(before[:, None] + horizon, 0)]).all(axis=1)
    series, before, horizon = series[able], before[able], horizon[able]
    rows = Rows(np.repeat(series, _LOOKS), np.repeat(before, _LOOKS), horizon.ravel())
    answer = point.answer(panel, rows, known)
    room = (_BAND_FACTOR * np.abs(answer.quantiles(_BAND) - answer.centre[:, :1])).reshape(-1, _LOOKS, 2)
    foreseen = answer.centre[:, 0].reshape(-1, _LOOKS)
    truth = panel.values[rows.series, rows.origin + rows.horizon].reshape(-1, _LOOKS)
    below = (truth < foreseen - room[:, :, 0]).all(axis=1)
    above = (truth > foreseen + room[:, :, 1]).all(axis=1)
    old, new = foreseen.mean(axis=1), truth.mean(axis=1)
    large = np.abs(new - old) >= _SMALLEST * np.maximum(np.abs(old), np.abs(new))
    for place in np.flatnonzero((below | above) & large & (old > 1e-9) & (new >= 0)):
        name = series[place]
        if np.isfinite(shift.ratio[name]):
            continue
        past = panel.values[name, : before[place] + 1]
        usual = np.quantile(past[np.isfinite(past)], _USUAL)
        if not usual[0] <= new[place] <= usual[1]:
            shift.ratio[name] = new[place] / old[place]
            shift.before[name] = before[place]
    return shift
