"""The forecaster on series whose future is known, on every hostile history, and its laws."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.forecast import LoadForecaster, backtest
from analyzer.forecast.forecaster import COLUMNS, CONSTANT, NO_VALUE, SHIFTED, SHORT, STALE

Values = npt.NDArray[np.float64]

START = datetime(2026, 1, 5, tzinfo=UTC)
HOUR = timedelta(hours=1)
HORIZONS = [HOUR, 6 * HOUR, 24 * HOUR]
LEVELS = [0.025, 0.1, 0.5, 0.9, 0.975]


def history_of(step_seconds: int = 3600, **series: Values | list[float]) -> pd.DataFrame:
    parts = []
    for name, values in series.items():
        times = pd.Timestamp(START).as_unit("ms") + pd.to_timedelta(np.arange(len(values)) * step_seconds, unit="s")
        parts.append(pd.DataFrame({"series": name, "time": times, "value": np.asarray(values, np.float64)}))
    return pd.concat(parts, ignore_index=True)


def newest(history: pd.DataFrame) -> datetime:
    instant = history["time"].max().to_pydatetime()
    assert isinstance(instant, datetime)
    return instant


def fitted(history: pd.DataFrame, **options: float) -> LoadForecaster:
    return LoadForecaster(step=timedelta(seconds=options.get("step_seconds", 3600))).fit(history)


def table(said: pd.DataFrame) -> pd.DataFrame:
    return said.pivot(index="horizon_seconds", columns="quantile", values="value")


def daily_wave(days: int, per_day: int = 24, noise: float = 1.0) -> Values:
    at = np.arange(days * per_day)
    rng = np.random.default_rng(1)
    wave: Values = 10 + 4 * np.sin(2 * np.pi * at / per_day) + rng.normal(0, noise, len(at))
    return wave


# Right values.


@pytest.mark.parametrize("level", [0.0, 7.0, -3.0])
def test_a_constant_stays_constant_with_zero_width_and_says_so(level: float) -> None:
    history = history_of(s=np.full(10 * 24, level))
    model = fitted(history)
    said = model.forecast(history, newest(history), HORIZONS, LEVELS)
    assert (said["value"] == level).all()
    assert (said["reason"] == CONSTANT).all()
    block = model.forecast_block_max(history, newest(history), [HOUR], [0.5, 0.975])
    assert (block["value"] == level).all()


def test_a_sinusoid_is_followed_at_every_horizon() -> None:
    history = history_of(s=daily_wave(28, noise=0.0))
    now = newest(history)
    said = table(fitted(history).forecast(history, now, HORIZONS, LEVELS))
    last = 28 * 24 - 1
    for hours in (1, 6, 24):
        truth = 10 + 4 * np.sin(2 * np.pi * (last + hours) / 24)
        assert said.loc[hours * 3600.0, 0.5] == pytest.approx(truth, abs=0.3)
        assert said.loc[hours * 3600.0, 0.025] - 1e-6 <= truth <= said.loc[hours * 3600.0, 0.975] + 1e-6


def test_the_block_maximum_of_a_sinusoid_is_its_crest() -> None:
    per_day = 288
    history = history_of(300, s=daily_wave(4, per_day, noise=0.0))
    crest_in_half_an_hour = history[history["time"] < START + timedelta(days=3, hours=5, minutes=30)]
    model = fitted(crest_in_half_an_hour, step_seconds=300)
    now = newest(crest_in_half_an_hour)
    said = model.forecast_block_max(crest_in_half_an_hour, now, [HOUR], [0.5, 0.9])
    assert said["value"].iloc[0] == pytest.approx(14.0, abs=0.3)
    assert (said["horizon_seconds"] == 3600.0).all()


def test_after_a_step_the_forecast_stands_on_the_new_level() -> None:
    steps = np.concatenate([np.full(24 * 20, 2.0), np.full(24 * 8, 5.0)])
    history = history_of(s=steps)
    said = table(fitted(history).forecast(history, newest(history), HORIZONS, LEVELS))
    assert said[0.5].to_numpy() == pytest.approx([5.0, 5.0, 5.0], rel=0.05)


@pytest.mark.parametrize(("step_seconds", "days"), [(3600, 14), (300, 2)])
@pytest.mark.parametrize("shifted", [3, 6])
def test_three_samples_after_a_tenfold_shift_the_median_is_near_the_new_level(
    step_seconds: int, days: int, shifted: int
) -> None:
    per_day = 86400 // step_seconds
    wave = daily_wave(days, per_day, noise=0.5)
    before = wave.copy()
    wave[-shifted:] *= 10
    history = history_of(step_seconds, s=wave)
    model = fitted(history_of(step_seconds, s=before[:-shifted]), step_seconds=step_seconds)
    said = model.forecast(history, newest(history), HORIZONS[:2], LEVELS)
    assert (said["reason"] == SHIFTED).all()
    last = len(wave) - 1
    for hours in (1, 6):
        truth = 100 + 40 * np.sin(2 * np.pi * (last + hours * 3600 / step_seconds) / per_day)
        assert table(said).loc[hours * 3600.0, 0.5] == pytest.approx(truth, rel=0.5)
    # The band spans both worlds: the shift may be a burst that ends.
    assert table(said).loc[3600.0, 0.025] < 20


def test_a_load_that_falls_silent_keeps_its_upper_quantile() -> None:
    wave = daily_wave(3, 288, noise=0.5)
    model = fitted(history_of(300, s=wave), step_seconds=300)
    wave[-4:] = 0.0
    history = history_of(300, s=wave)
    said = table(model.forecast(history, newest(history), [HOUR], LEVELS))
    assert said.loc[3600.0, 0.5] == pytest.approx(0.0, abs=1e-9)
    assert said.loc[3600.0, 0.975] > 8


def test_a_series_that_goes_on_and_off_does_not_shift() -> None:
    on_off = np.where(np.arange(28 * 24) % 12 < 3, 20.0, 1.0) + np.random.default_rng(0).normal(0, 0.1, 28 * 24)
    history = history_of(s=on_off)[: 27 * 24 + 3]  # ends three samples into a burst
    said = fitted(history).forecast(history, newest(history), [HOUR], LEVELS)
    assert (said["reason"] == "").all()


def test_usually_idle_is_an_exact_zero_and_the_burst_stays_in_the_tail() -> None:
    rng = np.random.default_rng(2)
    sparse = np.where(rng.random(28 * 24) < 0.06, rng.uniform(5, 15, 28 * 24), 0.0)
    sparse[-6:] = 0.0
    history = history_of(s=sparse)
    said = table(fitted(history).forecast(history, newest(history), [HOUR], LEVELS))
    assert said.loc[3600.0, 0.025] == 0.0
    assert said.loc[3600.0, 0.5] == 0.0
    assert said.loc[3600.0, 0.975] > 0.0


def test_a_fleet_of_waves_is_forecast_better_than_by_either_naive_rule() -> None:
    rng = np.random.default_rng(3)
    at = np.arange(10 * 24)
    parts = {
        f"s{i:02d}": rng.uniform(1, 5) * (2 + np.sin(2 * np.pi * (at + i) / 24)) * np.exp(rng.normal(0, 0.05, len(at)))
        for i in range(40)
    }
    result = backtest(history_of(**parts), [6 * HOUR], origins=12)
    assert len(result) == 40
    assert result["relative_to_last"].mean() < 0.3
    assert result["relative_to_daily"].mean() < 1.0


# Hostile histories.


def hostile() -> dict[str, Values]:
    wave = daily_wave(14)
    size = len(wave)
    rng = np.random.default_rng(4)
    cases = {
        "18 points": wave[:18],
        "30 points": wave[:30],
        "2 points": wave[:2],
        "1 point": wave[:1],
        "gap of 5 days": np.where((np.arange(size) > 120) & (np.arange(size) < 240), np.nan, wave),
        "ends in a gap": np.where(np.arange(size) >= size - 6, np.nan, wave),
        "60 % absent": np.where(rng.random(size) < 0.6, np.nan, wave),
        "95 % zeros": np.where(rng.random(size) < 0.95, 0.0, wave),
        "tenfold at the end": np.where(np.arange(size) >= size - 6, 10 * wave, wave),
        "one spike": np.where(np.arange(size) == 100, 1e9, wave),
        "one spike at the end": np.where(np.arange(size) == size - 1, 1e9, wave),
        "first half zero": np.where(np.arange(size) < size // 2, 0.0, wave),
        "infinite": np.where(np.arange(size) % 100 == 99, np.inf, np.where(np.arange(size) == 5, -np.inf, wave)),
        "huge": wave * 1e300,
        "tiny": wave * 1e-300,
        "spike of zeros": np.where(np.arange(size) == size - 20, 1e9, 0.0),
        "only the oldest value": np.where(np.arange(size) == size - 200, 5.0, np.nan),
    }
    return {name: np.asarray(values, np.float64) for name, values in cases.items()}


class Zoo:
    """All hostile histories side by side, fitted together: no series may spoil another."""

    def __init__(self) -> None:
        self.values = hostile()
        self.history = history_of(**self.values)
        now = newest(self.history)
        model = fitted(self.history)
        self.said = model.forecast(self.history, now, HORIZONS, LEVELS)
        self.block = model.forecast_block_max(self.history, now, [3 * HOUR], LEVELS)


@pytest.fixture(scope="module")
def zoo() -> Zoo:
    return Zoo()


@pytest.mark.parametrize("case", hostile())
def test_a_hostile_history_gives_finite_sorted_bounded_quantiles(zoo: Zoo, case: str) -> None:
    largest = np.nanmax(zoo.values[case][np.isfinite(zoo.values[case])])
    for frame, count in ((zoo.said, 3), (zoo.block, 1)):
        assert list(frame.columns) == list(COLUMNS)
        grid = table(frame[frame["series"] == case]).to_numpy()
        assert grid.shape == (count, len(LEVELS))
        assert np.isfinite(grid).all()
        assert (grid >= 0).all()
        assert (np.diff(grid, axis=1) >= 0).all()
        assert grid.max() <= 3 * largest


@pytest.mark.parametrize("case", ["gap of 5 days", "one spike", "infinite", "60 % absent"])
def test_damage_far_in_the_past_leaves_the_median_where_it_was(zoo: Zoo, case: str) -> None:
    said = table(zoo.said[zoo.said["series"] == case])
    truth = 10 + 4 * np.sin(2 * np.pi * (14 * 24 - 1 + np.array([1, 6, 24])) / 24)
    assert said[0.5].to_numpy() == pytest.approx(truth, abs=2.5)


def test_two_points_give_their_level_with_a_wide_band_and_say_why() -> None:
    history = history_of(300, s=[8.0, 10.0])
    said = fitted(history, step_seconds=300).forecast(history, newest(history), [HOUR], LEVELS)
    low, _, middle, _, high = said["value"]
    assert 8.0 <= middle <= 10.5
    assert low < 5
    assert high > 14
    assert (said["reason"] == SHORT).all()


def test_unfitted_it_answers_from_recent_values() -> None:
    history = history_of(300, s=[8.0, 10.0, 9.0])
    said = LoadForecaster().forecast(history, newest(history), [HOUR], [0.5, 0.9])
    assert 8.0 <= said["value"].iloc[0] <= 10.0
    assert said["value"].iloc[1] > 10.0
    block = LoadForecaster().forecast_block_max(history, newest(history), [HOUR], [0.5])
    assert block["value"].iloc[0] >= 9.0


def test_without_a_single_value_there_is_no_forecast_but_a_reason() -> None:
    history = history_of(b=np.full(50, np.nan), a=daily_wave(2)[:48])
    said = fitted(history).forecast(history, newest(history), HORIZONS, LEVELS)
    hopeless = said[said["series"] == "b"]
    assert len(hopeless) == 1
    assert np.isnan(hopeless["value"].iloc[0])
    assert hopeless["reason"].iloc[0] == NO_VALUE
    assert said[said["series"] == "a"]["value"].notna().all()
    assert said["series"].is_monotonic_increasing
    alone = history_of(b=np.full(50, np.nan))
    assert len(fitted(alone).forecast(alone, newest(alone), HORIZONS, LEVELS)) == 1


def test_a_silent_series_is_marked_stale() -> None:
    history = history_of(s=np.append(daily_wave(3), [np.nan] * 6))
    said = fitted(history).forecast(history, newest(history), [HOUR], LEVELS)
    assert (said["reason"] == STALE).all()


def test_a_series_never_seen_in_the_fit_gets_what_the_fleet_taught() -> None:
    # Every series of the fleet is a clean daily wave, so a new one with three days of its own gets a narrow band.
    fleet = history_of(**{f"s{i}": i + daily_wave(10, noise=0.01) for i in range(10)})
    young = history_of(new=daily_wave(3, noise=0.01))
    wide = LoadForecaster(step=HOUR).forecast(young, newest(young), [HOUR], [0.1, 0.9])["value"]
    taught = fitted(fleet).forecast(young, newest(young), [HOUR], [0.1, 0.9])["value"]
    assert taught.iloc[1] - taught.iloc[0] < 0.5 * (wide.iloc[1] - wide.iloc[0])


def test_a_capacity_bounds_every_quantile() -> None:
    history = history_of(s=daily_wave(14))
    model = LoadForecaster(step=HOUR, capacity={"s": 11.0}).fit(history)
    assert model.forecast(history, newest(history), HORIZONS, LEVELS)["value"].max() <= 11.0
    assert model.forecast_block_max(history, newest(history), [HOUR], LEVELS)["value"].max() <= 11.0


def test_a_reservation_never_lies_below_present_use() -> None:
    wave = daily_wave(3, 288)
    wave[-1] = 30.0
    history = history_of(300, s=wave)
    said = fitted(history, step_seconds=300).forecast_block_max(history, newest(history), [HOUR], [0.1, 0.5])
    assert (said["value"] >= 30.0).all()


def test_negative_history_may_be_forecast_negative() -> None:
    history = history_of(s=daily_wave(28) - 12)
    said = table(fitted(history).forecast(history, newest(history), [HOUR], LEVELS))
    assert said.loc[3600.0, 0.5] == pytest.approx(-2.0, abs=1.5)
    assert said.loc[3600.0, 0.025] < said.loc[3600.0, 0.5]


def test_an_empty_history_gives_an_empty_forecast() -> None:
    empty = history_of(s=[1.0])[:0]
    model = LoadForecaster().fit(empty)
    assert list(model.forecast(empty, START, HORIZONS, LEVELS).columns) == list(COLUMNS)
    assert model.forecast(empty, START, HORIZONS, LEVELS).empty
    assert model.forecast_block_max(empty, START, [HOUR], LEVELS).empty


def test_target_times_and_order_are_as_asked() -> None:
    history = history_of(300, a=[1.0, 2.0, 3.0], b=[1.0, 2.0, 3.0])
    now = newest(history) + timedelta(seconds=17)
    said = fitted(history, step_seconds=300).forecast(history, now, [6 * HOUR, HOUR], [0.9, 0.5])
    assert list(said["series"]) == ["a"] * 4 + ["b"] * 4
    assert list(said["quantile"][:4]) == [0.5, 0.9, 0.5, 0.9]
    assert list(said["horizon_seconds"][:4]) == [3600.0, 3600.0, 21600.0, 21600.0]
    assert said["target_time"].iloc[0].to_pydatetime() == now + HOUR
    assert said["made_at"].iloc[0].to_pydatetime() == now


def test_the_same_seed_gives_the_same_forecast_to_the_last_digit() -> None:
    history = history_of(a=daily_wave(14), b=daily_wave(14)[::-1])
    first = fitted(history).forecast(history, newest(history), HORIZONS, LEVELS)
    second = fitted(history.sample(frac=1.0, random_state=0)).forecast(history, newest(history), HORIZONS, LEVELS)
    pd.testing.assert_frame_equal(first, second)


@pytest.mark.parametrize(
    ("now", "horizons", "levels", "text"),
    [
        (START.replace(tzinfo=None), [HOUR], [0.5], "aware"),
        (START, [timedelta(0)], [0.5], "horizons"),
        (START, [], [0.5], "horizons"),
        (START, [HOUR], [1.0], "quantiles"),
        (START, [HOUR], [], "quantiles"),
    ],
)
def test_nonsense_is_refused_with_what_was_expected(
    now: datetime, horizons: list[timedelta], levels: list[float], text: str
) -> None:
    with pytest.raises(ValueError, match=f"expected .*{text}"):
        LoadForecaster().forecast(history_of(s=[1.0]), now, horizons, levels)


def test_a_history_without_columns_or_zones_is_refused() -> None:
    with pytest.raises(ValueError, match="value missing"):
        LoadForecaster().fit(history_of(s=[1.0]).drop(columns="value"))
    naive = history_of(s=[1.0])
    naive["time"] = naive["time"].dt.tz_localize(None)
    with pytest.raises(ValueError, match="aware UTC times"):
        LoadForecaster().forecast(naive, START, [HOUR], [0.5])


# Laws.

any_value = st.one_of(
    st.floats(0, 1e6, allow_subnormal=False), st.just(0.0), st.just(float("nan")), st.just(float("inf"))
)
histories = st.lists(any_value, min_size=2, max_size=60)


@settings(max_examples=25, deadline=None)
@given(past=histories, future=histories, other=histories)
def test_changing_the_future_changes_no_forecast(past: list[float], future: list[float], other: list[float]) -> None:
    now = START + timedelta(hours=len(past) - 1)
    model = fitted(history_of(s=past))
    said = [
        ask(history_of(s=past + later), now)
        for later in (future, other)
        for ask in (
            lambda h, t: model.forecast(h, t, HORIZONS, LEVELS),
            lambda h, t: model.forecast_block_max(h, t, [HOUR], LEVELS),
        )
    ]
    pd.testing.assert_frame_equal(said[0], said[2])
    pd.testing.assert_frame_equal(said[1], said[3])


@settings(max_examples=25, deadline=None)
@given(past=histories, levels=st.lists(st.floats(0.001, 0.999), min_size=1, max_size=9, unique=True))
def test_quantiles_are_sorted_finite_and_within_bounds(past: list[float], levels: list[float]) -> None:
    history = history_of(s=past)
    model = LoadForecaster(step=HOUR, capacity={"s": 2e6}).fit(history)
    for said in (
        model.forecast(history, newest(history), HORIZONS, levels),
        model.forecast_block_max(history, newest(history), [HOUR], levels),
    ):
        if not np.isfinite(past).any():
            assert list(said["reason"]) == [NO_VALUE]
            continue
        grid = table(said).to_numpy()
        assert np.isfinite(grid).all()
        assert (np.diff(grid, axis=1) >= 0).all()
        assert (grid >= 0).all()
        assert (grid <= 2e6 * (1 + 1e-12)).all()


@settings(max_examples=15, deadline=None)
@given(past=st.lists(st.floats(0.1, 1e3), min_size=2, max_size=60), factor=st.sampled_from([2.0**-20, 0.5, 1024.0]))
def test_units_do_not_matter(past: list[float], factor: float) -> None:
    small, large = history_of(s=past), history_of(s=[factor * v for v in past])
    one = fitted(small).forecast(small, newest(small), HORIZONS, LEVELS)["value"].to_numpy()
    other = fitted(large).forecast(large, newest(large), HORIZONS, LEVELS)["value"].to_numpy()
    assert other == pytest.approx(factor * one, rel=1e-6)


def test_a_series_next_to_nothing_is_forecast_under_any_capacity() -> None:
    history = history_of(s=[5e-324] * 48)
    model = LoadForecaster(step=HOUR, capacity={"s": 2e6}).fit(history)
    assert (model.forecast(history, newest(history), HORIZONS, [0.5])["value"] < 1e-300).all()
