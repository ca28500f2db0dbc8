"""Forecast: error and coverage on recorded load, beside the last value and the same time on the day before.

Needs the reference data: folder `data/load_series` under `TRIMTAB_SHARED` (default `../shared` beside the checkout).
Rolling origins over the last quarter of each series; fitted once before it, then only refreshed. Errors are MASE: each
series' mean absolute error over its mean one-day change, so that no series counts more for being larger.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
import pandas as pd

from analyzer.forecast import LoadForecaster, backtest
from benchmarks.figures import Figure, calibration_seconds, figure

HOUR = timedelta(hours=1)
HORIZONS = (HOUR, 6 * HOUR, 24 * HOUR)
ORIGINS = 40
_CALIBRATED_SECONDS = 0.25
_FLEET, _DAYS, _STEP_SECONDS = 40, 2, 300


def run() -> list[Figure]:
    """Return the figures: cost always, accuracy where the reference data are."""
    return [*cost(), *accuracy()]


def cost() -> list[Figure]:
    """CPU of a fit and of a refresh for 40 series with two days of 5-minute history."""
    rng = np.random.default_rng(0)
    steps = _DAYS * 86400 // _STEP_SECONDS
    at = np.arange(steps)
    times = pd.Timestamp("2026-01-05", tz="UTC").as_unit("ms") + pd.to_timedelta(at * _STEP_SECONDS, unit="s")
    parts = []
    for i in range(_FLEET):
        wave = rng.uniform(0.1, 0.5) * (1 + 0.8 * np.sin(2 * np.pi * (at / 288 + rng.random())))
        noisy = wave * np.exp(rng.normal(0, 0.1, steps))
        parts.append(pd.DataFrame({"series": f"team/w{i}", "time": times, "value": noisy}))
    history = pd.concat(parts, ignore_index=True)
    now = times[-1].to_pydatetime()
    model = LoadForecaster(step=timedelta(seconds=_STEP_SECONDS))
    slower = calibration_seconds() / _CALIBRATED_SECONDS

    def fit_all() -> None:
        model.fit(history).forecast_block_max(history, now, [HOUR], [0.9])

    fit = _best_seconds(fit_all, 2)
    refresh = _best_seconds(lambda: model.forecast_block_max(history, now, [HOUR], [0.5, 0.9, 0.975]), 10)
    return [
        figure("fit, 40 series x 2 days", fit / slower, "CPU s", at_most=3.0),
        figure("block refresh, 40 series x 2 days", 1000 * refresh / slower, "CPU ms", at_most=60.0),
    ]


def accuracy() -> list[Figure]:
    """Median error against the naive rules, and coverage of the intervals, by horizon."""
    shared = Path(os.environ.get("TRIMTAB_SHARED", Path(__file__).resolve().parents[2] / "shared"))
    folder = shared / "data" / "load_series"
    if not folder.is_dir():
        print(f"accuracy skipped: no {folder} (set TRIMTAB_SHARED)", file=sys.stderr)
        return []
    index = pd.read_csv(folder / "index.csv")
    rows = pd.read_parquet(folder / "load_series.parquet", columns=["series", "ts", "value"])
    rows = rows.rename(columns={"ts": "time"}).astype({"series": "str"})
    rows["time"] = rows["time"].dt.tz_localize("UTC")
    judged = []
    for _, group in index[index["days"] >= 2].groupby(["step_s", "end"]):
        history = rows[rows["series"].isin(group["series"])]
        model = LoadForecaster(step=timedelta(seconds=int(group["step_s"].iloc[0])), length=timedelta(days=42))
        judged.append(backtest(history, HORIZONS, forecaster=model, origins=ORIGINS))
    table = pd.concat(judged, ignore_index=True)
    figures = []
    for hours, most in ((1, 0.95), (6, 0.95), (24, 1.1)):
        own = table[table["horizon_seconds"] == hours * 3600.0]
        own = own[own["mase"] > 0]
        scale = own["mae"] / own["mase"]
        error = float(own["mase"].mean())
        last, daily = float((own["mae_last"] / scale).mean()), float((own["mae_daily"] / scale).mean())
        name = f"{hours} h, {len(own)} series"
        for peer, peer_name, bound in (
            (last, "last value", most),
            (daily, "same time, day before", most),
            (min(last, daily), "the better of the two", 1.1),
        ):
            row = figure(f"{name}: MASE of the median", error, "ratio", peer=peer, peer_name=peer_name)
            holds = error <= bound * peer
            figures.append(dataclasses.replace(row, bound=f"ratio <= {bound:g}", holds=holds))
        figures += [
            figure(f"{name}: in the 80 % interval", own["coverage_80"].mean(), "ratio", at_least=0.74, at_most=0.88),
            figure(f"{name}: in the 95 % interval", own["coverage_95"].mean(), "ratio", at_least=0.9, at_most=0.985),
        ]
    return figures


def _best_seconds(work: Callable[[], object], times: int) -> float:
    best = np.inf
    for _ in range(times):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return float(best)
