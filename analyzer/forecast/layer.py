"""One learnt way of answering: for values at a horizon, or for the largest value of the next block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from analyzer.forecast.calibration import (
    PRIOR_TABLE,
    Groups,
    conformal_table,
    gate_weights,
    pinball,
    sharpen,
    table_quantiles,
)
from analyzer.forecast.experts import (
    BLOCK_EXPERTS,
    EXPERTS,
    block_expert_values,
    expert_values,
    leak_block_max,
    leak_target,
)
from analyzer.forecast.features import DAY_SECONDS, FloatArray, IntArray, Panel, Rows
from analyzer.forecast.models import DirectModels, fit_models, model_features

Kind = Literal["point", "block"]

# Upper ends of the horizon buckets, in seconds; what lies beyond the last one belongs to it.
BUCKETS: dict[Kind, tuple[float, ...]] = {
    "point": (900.0, 3600.0, 6 * 3600.0, 24 * 3600.0, 168 * 3600.0),
    "block": (900.0, 3600.0, 6 * 3600.0),
}
_PRIOR_GROWTH = np.array([0.7, 1.0, 1.5, 2.0, 2.5])  # of the prior's band, bucket by bucket
_QUESTIONS_PER_SERIES = 200
_QUESTIONS_PER_BUCKET = (1500, 5000)  # fewest, most: the cost of a fit does not grow with the fleet
_TRAINED_MOST = 10_000
_TRAIN_SHARE = 0.6
_NARROWEST = 0.05  # of the scale
_MODELS = 3  # candidates before the experts: their mixture, ridge, trees
_BANDS = 3
_JUDGED = np.array([0.1, 0.5, 0.9, 0.975])  # levels at which bands are compared

# Relative errors believed before anything was seen: near, the present counts; far, the day's profile does.
_PRIOR_NEAR = {"last": 0.8, "mean_15min": 0.8, "shifted": 0.9, "trend": 1.4, "recent_max": 0.8}
_PRIOR_FAR = {"daily": 0.9, "weekly": 0.9, "profile": 0.8, "mean_1d": 0.9, "last": 1.2, "trend": 1.7}


@dataclass(frozen=True, slots=True)
class Answer:
    """Per question and band: centre, width, share, and its row of the conformal table; in the panel's units."""

    centre: FloatArray  # (questions, bands); the first band's is the gate's
    width: FloatArray  # (questions, bands)
    share: FloatArray  # (questions, bands)
    table: FloatArray  # (questions, bands, levels)

    def quantiles(self, quantiles: FloatArray) -> FloatArray:
        """(questions, quantiles), sorted where `quantiles` is: the bands' quantiles, averaged by their shares."""
        bands = self.centre[:, :, None] + self.width[:, :, None] * table_quantiles(self.table, quantiles)
        values: FloatArray = (self.share[:, :, None] * bands).sum(axis=1)
        return values


@dataclass(frozen=True, slots=True)
class Layer:
    """What was learnt of one kind; the last series row of each array is the fleet's, for series never seen."""

    kind: Kind
    mixture: FloatArray  # (series + 1, buckets, experts)
    gate: FloatArray  # (series + 1, buckets, mixture + ridge + trees + experts)
    models: DirectModels
    share: FloatArray  # (series + 1, buckets, bands)
    table: FloatArray  # (series + 1, buckets, bands, levels)

    def answer(self, panel: Panel, rows: Rows, known: IntArray) -> Answer:
        """Answer the questions.

        Args:
            panel: what has been seen.
            rows: the questions.
            known: for each series of the panel its place in the fit; anything beyond is a series never seen.
        """
        learnt = np.minimum(known[rows.series], len(self.table) - 1)
        bucket = bucket_of(self.kind, panel, rows)
        experts = _experts(self.kind, panel, rows)
        base = (self.mixture[learnt, bucket] * experts).sum(axis=1)
        candidates, width = _candidates(panel, rows, experts, base, self.models)
        gated = (self.gate[learnt, bucket] * np.nan_to_num(candidates)).sum(axis=1)
        centre, widths = _bands(gated, experts[:, 0], width, panel.scale(rows.series, rows.origin))
        return Answer(centre, widths, self.share[learnt, bucket], self.table[learnt, bucket])


def prior_layer(kind: Kind) -> Layer:
    """The layer before any fit: the prior's mixture of experts, the prior's wide band."""
    prior, buckets = _prior(kind), len(BUCKETS[kind])
    nobody = Groups(np.empty(0, np.int64), np.empty(0, np.int64), 0, buckets)
    gate = np.zeros((1, buckets, _MODELS + prior.shape[1]))
    gate[:, :, 0] = 1.0
    mixture = gate_weights(np.empty((0, prior.shape[1])), nobody, prior, 3.0)
    share = np.zeros((1, buckets, _BANDS))
    share[:, :, 0] = 1.0
    table = np.repeat(_prior_table(kind)[None, :, None], _BANDS, axis=2)
    return Layer(kind, mixture, gate, DirectModels(None, ()), share, table)


def fit_layer(kind: Kind, panel: Panel, seed: int) -> Layer:
    """Learn from a panel.

    Questions are drawn at random phases. The oldest 60 % of their span teaches the experts' mixture and the models
    (without questions whose answer lies in the newer part); of the newer part one half decides the gate and the bands'
    shares, the other half calibrates the bands.
    """
    rng = np.random.default_rng(seed)
    rows = _draw(kind, panel, rng)
    truth = (leak_target if kind == "point" else leak_block_max)(panel, rows)
    seen = np.isfinite(truth) & (panel.last_valid[rows.series, rows.origin] >= 0)
    rows, truth = rows.take(seen), truth[seen]
    if not len(rows):
        return prior_layer(kind)
    groups = Groups(rows.series, bucket_of(kind, panel, rows), len(panel.series), len(BUCKETS[kind]))
    split = np.quantile(rows.origin, _TRAIN_SHARE)
    train, held = rows.origin + rows.horizon <= split, rows.origin >= split
    calibrate = held & (rng.random(len(rows)) < 0.5)
    decide = held & ~calibrate

    prior = _prior(kind)
    experts = _experts(kind, panel, rows)
    mixture = gate_weights(np.abs(experts - truth[:, None])[train], groups.take(train), prior, 3.0)
    base = (mixture[groups.series, groups.bucket] * experts).sum(axis=1)
    scale = panel.scale(rows.series, rows.origin)
    taught = np.flatnonzero(train)
    if len(taught) > _TRAINED_MOST:
        taught = np.sort(rng.choice(taught, _TRAINED_MOST, replace=False))
    features = model_features(panel, rows.take(taught), experts[taught], base[taught], scale[taught])
    models = fit_models(features, ((truth - base) / scale)[taught], seed)

    candidates = np.full((len(rows), _MODELS + experts.shape[1]), np.nan)
    width = np.ones(len(rows))
    candidates[held], width[held] = _candidates(panel, rows.take(held), experts[held], base[held], models)
    learnt = np.asarray(np.isfinite(candidates[held]).all(axis=0))
    learnt[1:_MODELS] &= decide.any()  # what nothing has tested does not speak
    gate_prior = np.concatenate([np.full((len(prior), _MODELS), 0.75), prior], axis=1)
    errors = np.abs(candidates - truth[:, None])[decide]
    gate = gate_weights(errors, groups.take(decide), gate_prior, 6.0, learnt)
    gate = sharpen(gate, candidates[decide], truth[decide], groups.take(decide))
    gated = (gate[groups.series, groups.bucket] * np.nan_to_num(candidates)).sum(axis=1)
    centre, widths = _bands(gated, experts[:, 0], width, scale)
    residuals = (truth[:, None] - centre) / widths
    own = groups.take(calibrate)
    tables = [conformal_table(residuals[calibrate, band], own, _prior_table(kind)) for band in range(_BANDS)]
    table = np.stack(tables, axis=2) * _inflation(kind, panel, split)[None, :, None, None]
    said = centre[:, :, None] + widths[:, :, None] * table_quantiles(table[groups.series, groups.bucket], _JUDGED)
    losses = pinball(said[decide], truth[decide], _JUDGED)
    share = gate_weights(losses, groups.take(decide), np.ones((len(prior), _BANDS)), 4.0)
    return Layer(kind, mixture, gate, models, share, table)


def _bands(gated: FloatArray, last: FloatArray, width: FloatArray, scale: FloatArray) -> tuple[FloatArray, FloatArray]:
    # Around the gate's centre as wide as the models say, or in proportion to it; around the last value in proportion.
    centre = np.stack([gated, gated, last], axis=1)
    widths = np.stack([width, np.abs(gated) + 0.1 * scale, np.abs(last) + 0.1 * scale], axis=1)
    return centre, widths


def bucket_of(kind: Kind, panel: Panel, rows: Rows) -> IntArray:
    """Return the horizon bucket of each question."""
    ends = np.array(BUCKETS[kind])
    return np.minimum(np.searchsorted(ends, rows.horizon * panel.step_seconds), len(ends) - 1)


def _candidates(
    panel: Panel, rows: Rows, experts: FloatArray, base: FloatArray, models: DirectModels
) -> tuple[FloatArray, FloatArray]:
    scale = panel.scale(rows.series, rows.origin)
    features = model_features(panel, rows, experts, base, scale)
    learnt = base[:, None] + scale[:, None] * models.centres(features)
    width = models.width(features)
    width = scale * np.where(np.isfinite(width), np.maximum(width, _NARROWEST), 1.0)
    return np.concatenate([base[:, None], learnt, experts], axis=1), width


def _experts(kind: Kind, panel: Panel, rows: Rows) -> FloatArray:
    return (expert_values if kind == "point" else block_expert_values)(panel, rows)


def _prior(kind: Kind) -> FloatArray:
    names = EXPERTS if kind == "point" else BLOCK_EXPERTS
    near = [_PRIOR_NEAR.get(name, 1.0) for name in names]
    far = [_PRIOR_FAR.get(name, 1.0) for name in names]
    return np.array([near if end <= 3600 else far for end in BUCKETS[kind]])


def _prior_table(kind: Kind) -> FloatArray:
    table: FloatArray = PRIOR_TABLE[None, :] * _PRIOR_GROWTH[: len(BUCKETS[kind]), None]
    return table


def _inflation(kind: Kind, panel: Panel, split: float) -> FloatArray:
    # Few independent days stand behind the band: sqrt(1 + horizon / calibrated span + 0.1 day / calibrated span).
    span = (panel.columns - split) * panel.step_seconds
    return np.sqrt(1.0 + (np.array(BUCKETS[kind]) * 0.5 + 0.1 * DAY_SECONDS) / span)


def _draw(kind: Kind, panel: Panel, rng: np.random.Generator) -> Rows:
    # Distinct questions at random phases whose answers lie within the panel, some for every horizon bucket.
    first = panel.first_valid
    starters = np.flatnonzero(first < panel.columns - 1)
    per_bucket = int(np.clip(_QUESTIONS_PER_SERIES * len(starters), *_QUESTIONS_PER_BUCKET))
    parts = []
    shortest = 1
    for end in BUCKETS[kind]:
        longest = max(shortest, panel.steps(end) if end >= panel.step_seconds else 1)
        able = starters[first[starters] + shortest < panel.columns]
        if len(able):
            series = rng.choice(able, per_bucket)
            room = panel.columns - 1 - first[series]
            horizon = rng.integers(shortest, np.minimum(longest, room), endpoint=True)
            origin = rng.integers(first[series], panel.columns - 1 - horizon, endpoint=True)
            parts.append(np.stack([series, origin, horizon]))
        shortest = longest + 1
    table = np.unique(np.concatenate(parts, axis=1), axis=1) if parts else np.empty((3, 0), np.int64)
    return Rows(*table.astype(np.int64))
