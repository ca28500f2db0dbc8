"""Who is believed, and how wide the band is: gate weights and split-conformal tables, shrunk from series to fleet.

Both are learnt on held-out questions. A group is a (series, horizon bucket); the last series row is the fleet's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analyzer.forecast.features import FloatArray, IntArray

LEVELS = np.array([0.005, 0.01, 0.025, 0.05, *np.arange(0.1, 0.91, 0.05), 0.95, 0.975, 0.99, 0.995])
# Residuals in units of the scale while nothing was learnt: symmetric, Laplace with mean distance 0.5.
PRIOR_TABLE = np.where(LEVELS < 0.5, 0.5 * np.log(2 * LEVELS), -0.5 * np.log(2 * (1 - LEVELS)))

_GATE_ROWS = 20.0  # so many questions of its own weigh as much as the fleet's
_PRIOR_ROWS = 30.0
_TABLE_ROWS = 60.0


@dataclass(frozen=True, slots=True)
class Groups:
    """Which (series, bucket) each question belongs to."""

    series: IntArray
    bucket: IntArray
    series_count: int
    bucket_count: int

    def take(self, keep: npt.NDArray[np.bool_]) -> Groups:
        """Return the groups of the selected questions."""
        return Groups(self.series[keep], self.bucket[keep], self.series_count, self.bucket_count)


def gate_weights(
    errors: FloatArray, groups: Groups, prior: FloatArray, power: float, learnt: npt.NDArray[np.bool_] | None = None
) -> FloatArray:
    """Weights ~ (relative error)^-power per series and bucket, (series + 1, buckets, candidates), summing to 1.

    Relative: a candidate's mean absolute error over the mean of all candidates' on the same group. A series' relative
    errors are shrunk to the fleet's, and the fleet's to `prior` (buckets, candidates).

    Args:
        errors: (questions, candidates) absolute errors.
        groups: of the questions.
        prior: relative errors believed before anything was seen.
        power: how fast a worse candidate loses its say.
        learnt: candidates that may speak (None: all); the others get weight 0.
    """
    learnt = np.ones(prior.shape[1], dtype=bool) if learnt is None else learnt
    flat = groups.series * groups.bucket_count + groups.bucket
    cells = groups.series_count * groups.bucket_count
    count = np.bincount(flat, minlength=cells).astype(np.float64)
    sums = np.stack([np.bincount(flat, weights=np.nan_to_num(e), minlength=cells) for e in errors.T], axis=1)
    mean = sums / np.maximum(count, 1.0)[:, None]
    level = mean[:, learnt].mean(axis=1, keepdims=True)
    relative = np.where(level > 1e-12, mean / np.maximum(level, 1e-12), 1.0)
    relative = relative.reshape(groups.series_count, groups.bucket_count, errors.shape[1])
    count = count.reshape(groups.series_count, groups.bucket_count, 1)
    total = count.sum(axis=0)
    fleet = ((relative * count).sum(axis=0) + prior * _PRIOR_ROWS) / (total + _PRIOR_ROWS)
    own = (relative * count + fleet[None] * _GATE_ROWS) / (count + _GATE_ROWS)
    believed = np.concatenate([own, fleet[None]])
    weights: FloatArray = np.where(learnt, (believed + 0.01) ** -power, 0.0)
    weights /= weights.sum(axis=2, keepdims=True)
    return weights


def sharpen(gate: FloatArray, candidates: FloatArray, truth: FloatArray, groups: Groups) -> FloatArray:
    """Move each group's weights towards its single heaviest candidate where that alone was the better forecast.

    Mixing helps on smooth load and harms on steps; which of the two a group is, its held-out errors say (to the power
    of -12, shrunk to the fleet's as in `gate_weights`).
    """
    best = np.eye(gate.shape[2])[gate.argmax(axis=2)]
    said = np.nan_to_num(candidates)
    errors = np.stack(
        [np.abs((w[groups.series, groups.bucket] * said).sum(axis=1) - truth) for w in (gate, best)], axis=1
    )
    share = gate_weights(errors, groups, np.ones((groups.bucket_count, 2)), 12.0)
    sharpened: FloatArray = share[:, :, :1] * gate + share[:, :, 1:] * best
    return sharpened


def conformal_table(residuals: FloatArray, groups: Groups, prior: FloatArray) -> FloatArray:
    """Quantiles of held-out residuals at `LEVELS`, (series + 1, buckets, levels), shrunk series -> fleet -> prior.

    Split conformal: the k-th of n residuals stands for level k / (n + 1). The fleet's table is stretched to a series by
    the ratio of median absolute residuals before it is mixed with the series' own. `prior` is (buckets, levels).
    """
    table = np.empty((groups.series_count + 1, groups.bucket_count, len(LEVELS)))
    for bucket in range(groups.bucket_count):
        inside = groups.bucket == bucket
        pooled = residuals[inside]
        if not len(pooled):
            table[:, bucket] = prior[bucket]
            continue
        share = len(pooled) / (len(pooled) + _PRIOR_ROWS)
        fleet = share * _quantiles(pooled) + (1 - share) * prior[bucket]
        fleet_size = float(np.median(np.abs(pooled)))
        table[:, bucket] = fleet
        order = np.argsort(groups.series[inside], kind="stable")
        codes, starts = np.unique(groups.series[inside][order], return_index=True)
        for code, own in zip(codes, np.split(pooled[order], starts[1:]), strict=True):
            count = len(own)
            stretch = 1.0
            if fleet_size > 0:
                ratio = (float(np.median(np.abs(own))) + 0.05 * fleet_size) / (1.05 * fleet_size)
                stretch = ratio ** (count / (count + 10.0))
            own_share = count / (count + _TABLE_ROWS)
            table[code, bucket] = own_share * _quantiles(own) + (1 - own_share) * stretch * fleet
    return np.maximum.accumulate(table, axis=2)


def pinball(said: FloatArray, truth: FloatArray, quantiles: FloatArray) -> FloatArray:
    """Quantile loss, mean over `quantiles`: (questions, bands) of `said` (questions, bands, quantiles)."""
    over = truth[:, None, None] - said
    loss: FloatArray = np.maximum(quantiles * over, (quantiles - 1.0) * over).mean(axis=2)
    return loss


def table_quantiles(rows: FloatArray, quantiles: FloatArray) -> FloatArray:
    """Interpolate table rows (..., levels) at `quantiles`; beyond 0.005 and 0.995 the end values stand."""
    wanted = np.clip(quantiles, LEVELS[0], LEVELS[-1])
    right = np.clip(np.searchsorted(LEVELS, wanted), 1, len(LEVELS) - 1)
    weight = (wanted - LEVELS[right - 1]) / (LEVELS[right] - LEVELS[right - 1])
    values: FloatArray = rows[..., right - 1] * (1 - weight) + rows[..., right] * weight
    return values


def _quantiles(residuals: FloatArray) -> FloatArray:
    ordered = np.sort(residuals)
    quantiles: FloatArray = np.interp(LEVELS * (len(ordered) + 1) - 1, np.arange(len(ordered)), ordered)
    return quantiles
