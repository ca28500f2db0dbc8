"""Regression models, one for all series: they learn what the experts' mixture gets wrong, in units of its scale."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import Ridge
from threadpoolctl import ThreadpoolController

from analyzer.forecast.features import DAY_SECONDS, FloatArray, Panel, Rows

_FEWEST_RIDGE = 100
_FEWEST_TREES = 1000
_CLIP = 10.0
_QUANTILES = (0.1, 0.5, 0.9)
# Small work on many threads waits for the slowest: on a busy machine one thread is up to twenty times faster.
_THREADS = ThreadpoolController()


def model_features(panel: Panel, rows: Rows, experts: FloatArray, base: FloatArray, scale: FloatArray) -> FloatArray:
    """Columns that the models see: experts against the base, horizon, clock, calendar, recent movement; all finite."""
    target_seconds = (panel.first_slot + rows.origin + rows.horizon) * panel.step_seconds
    angle = 2 * np.pi * (target_seconds % DAY_SECONDS) / DAY_SECONDS
    weekday = (target_seconds // DAY_SECONDS + 3) % 7  # the epoch was a Thursday
    low = rows.origin - panel.steps(3600) + 1
    count = np.maximum(panel.window("count", rows.series, low, rows.origin), 1.0)
    mean = panel.window("value", rows.series, low, rows.origin) / count
    square = panel.window("square", rows.series, low, rows.origin) / count
    columns = [
        *((experts - base[:, None]) / scale[:, None]).T,
        base / scale,
        np.log1p(rows.horizon * panel.step_seconds / 3600),
        np.sin(angle),
        np.cos(angle),
        (weekday >= 5).astype(np.float64),
        np.sqrt(np.maximum(square - mean**2, 0.0)) / scale,
        panel.window("zero", rows.series, low, rows.origin) / count,
    ]
    features: FloatArray = np.clip(np.nan_to_num(np.stack(columns, axis=1)), -_CLIP, _CLIP)
    return features


@dataclass(frozen=True, slots=True)
class DirectModels:
    """Fitted models of (truth - base) / scale: a ridge regression and boosted trees for the quantiles .1, .5, .9."""

    ridge: Ridge | None
    trees: tuple[HistGradientBoostingRegressor, ...]

    def centres(self, features: FloatArray) -> FloatArray:
        """(rows, 2): what ridge and the median trees add to the base; NaN where a model was not learnt."""
        out = np.full((len(features), 2), np.nan)
        with _THREADS.limit(limits=1):
            if self.ridge is not None and len(features):
                out[:, 0] = self.ridge.predict(features)
            if self.trees and len(features):
                out[:, 1] = self.trees[1].predict(features)
        return out

    def width(self, features: FloatArray) -> FloatArray:
        """(rows,): distance of the trees' .1 and .9 quantiles; NaN without trees."""
        if not self.trees or not len(features):
            return np.full(len(features), np.nan)
        with _THREADS.limit(limits=1):
            width: FloatArray = self.trees[2].predict(features) - self.trees[0].predict(features)
        return width


def fit_models(features: FloatArray, residual: FloatArray, seed: int) -> DirectModels:
    """Learn from (truth - base) / scale; with fewer than 100 (ridge) or 1,000 (trees) rows a model is left out."""
    residual = np.clip(residual, -_CLIP, _CLIP)
    with _THREADS.limit(limits=1):
        ridge = Ridge(alpha=10.0).fit(features, residual) if len(residual) >= _FEWEST_RIDGE else None
        if len(residual) < _FEWEST_TREES:
            return DirectModels(ridge, ())
        return DirectModels(ridge, tuple(_trees(quantile, seed).fit(features, residual) for quantile in _QUANTILES))


def _trees(quantile: float, seed: int) -> HistGradientBoostingRegressor:
    return HistGradientBoostingRegressor(
        loss="quantile",
        quantile=quantile,
        max_iter=60,
        learning_rate=0.12,
        max_leaf_nodes=12,
        min_samples_leaf=40,
        max_bins=64,
        early_stopping=False,
        random_state=seed,
    )
