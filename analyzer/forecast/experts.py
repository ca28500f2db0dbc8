"""Simple forecasts, all series at once, blind to everything after the origin, tolerant of gaps."""

from __future__ import annotations

import numpy as np

from analyzer.forecast.features import FloatArray, Panel, Rows

EXPERTS = (
    "last",
    "mean_15min",
    "mean_1h",
    "mean_1d",
    "daily",
    "weekly",
    "profile",
    "shifted",
    "scaled",
    "trend",
)
BLOCK_EXPERTS = (*EXPERTS, "recent_max")
_PATH_POINTS = 12  # a block's path is looked at in at most so many places


def expert_values(panel: Panel, rows: Rows) -> FloatArray:
    """Forecasts of every expert, (rows, experts) in the order of `EXPERTS`; NaN only where nothing was seen at all.

    last; means of the last 15 min, hour, day; same slot (+- 1 step) one day and one week before; mean of the same slot
    over 7 days (profile); the profile moved (shifted) or stretched (scaled) to the last hour's level; a least-squares
    line through the last day (trend). What lacks history falls back on the next simpler expert.
    """
    i, origin, target = rows.series, rows.origin, rows.origin + rows.horizon
    day, hour = panel.day, panel.steps(3600)
    last = panel.last(i, origin)
    mean_15min = _or(panel.mean(i, origin - panel.steps(900) + 1, origin), last)
    mean_1h = _or(panel.mean(i, origin - hour + 1, origin), last)
    mean_1d = _or(panel.mean(i, origin - day + 1, origin), last)
    same_day = target - -(-rows.horizon // day) * day
    same_week = target - -(-rows.horizon // (7 * day)) * 7 * day
    daily = _or(panel.mean(i, same_day - 1, np.minimum(same_day + 1, origin)), mean_1d)
    profile = _or(panel.profile(i, same_day + day), daily)
    weekly = _or(panel.mean(i, same_week - 1, np.minimum(same_week + 1, origin)), profile)
    recent_profile = panel.profile_mean(i, origin - hour + 1, origin)
    shifted = _or(profile + mean_1h - recent_profile, mean_1h)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(recent_profile > 0, mean_1h / recent_profile, np.nan)
    scaled = _or(profile * np.clip(ratio, 0.2, 5.0), shifted)
    trend = _or(_trend(panel, rows), mean_1h)
    return np.stack([last, mean_15min, mean_1h, mean_1d, daily, weekly, profile, shifted, scaled, trend], axis=1)


def block_expert_values(panel: Panel, rows: Rows) -> FloatArray:
    """Forecasts of the maximum over the next `horizon` steps, (rows, experts) in the order of `BLOCK_EXPERTS`.

    Each expert's path is evaluated in up to 12 places and its largest value taken; `recent_max` is the largest value of
    as many steps before the origin.
    """
    out = np.full((len(rows), len(BLOCK_EXPERTS)), np.nan)
    for length in np.unique(rows.horizon):
        at = np.flatnonzero(rows.horizon == length)
        part = rows.take(at)
        path = np.unique(np.linspace(1, length, min(int(length), _PATH_POINTS)).round().astype(np.int64))
        steps = Rows(np.repeat(part.series, len(path)), np.repeat(part.origin, len(path)), np.tile(path, len(at)))
        out[at, :-1] = expert_values(panel, steps).reshape(len(at), len(path), -1).max(axis=1)
        back = part.origin[:, None] - np.arange(int(length))[None, :]
        seen = np.where(back >= 0, panel.values[part.series[:, None], np.maximum(back, 0)], np.nan)
        recent = np.fmax.reduce(seen, axis=1)
        out[at, -1] = _or(recent, out[at, 0])
    return out


def leak_target(panel: Panel, rows: Rows) -> FloatArray:
    """What came true at origin + horizon (looks ahead: for learning and scoring only)."""
    truth: FloatArray = panel.values[rows.series, rows.origin + rows.horizon]
    return truth


def leak_block_max(panel: Panel, rows: Rows) -> FloatArray:
    """The largest value of the next `horizon` steps; NaN where less than half was seen (looks ahead: for learning)."""
    out = np.full(len(rows), np.nan)
    for length in np.unique(rows.horizon):
        at = np.flatnonzero(rows.horizon == length)
        ahead = rows.origin[at][:, None] + np.arange(1, int(length) + 1)[None, :]
        seen = panel.values[rows.series[at][:, None], ahead]
        enough = 2 * np.isfinite(seen).sum(axis=1) >= length
        out[at] = np.where(enough, np.fmax.reduce(seen, axis=1), np.nan)
    return out


def _trend(panel: Panel, rows: Rows) -> FloatArray:
    low, high = rows.origin - panel.day + 1, rows.origin
    count, at, at2, value, at_value = (
        panel.window(what, rows.series, low, high) for what in ("count", "at", "at2", "value", "at_value")
    )
    count = np.where(count >= 3, count, np.nan)
    middle = at / count
    variance = at2 / count - middle**2
    slope = (at_value / count - middle * value / count) / np.where(variance > 0, variance, np.nan)
    return value / count + slope * (rows.origin + rows.horizon - middle)


def _or(first: FloatArray, second: FloatArray) -> FloatArray:
    return np.where(np.isfinite(first), first, second)
