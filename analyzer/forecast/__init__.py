"""Load forecasts: regression models and simple experts behind a gate, calibrated quantiles, their own back-test."""

from analyzer.forecast.backtest import backtest
from analyzer.forecast.forecaster import LoadForecaster
from analyzer.forecast.history import FLEET, history_from_rows

__all__ = ["FLEET", "LoadForecaster", "backtest", "history_from_rows"]
