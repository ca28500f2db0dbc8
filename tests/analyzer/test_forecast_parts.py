"""The forecaster's parts: panel, experts, gate, bands, history from rows, back-test."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.facts import FACT_COLUMNS
from analyzer.forecast import FLEET, LoadForecaster, backtest, history_from_rows
from analyzer.forecast.backtest import COLUMNS
from analyzer.forecast.calibration import (
    LEVELS,
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
from analyzer.forecast.features import Panel, Rows, infer_step, make_panel
from analyzer.forecast.models import model_features

Values = npt.NDArray[np.float64]

START = datetime(2026, 1, 5, tzinfo=UTC)
DAY = 24


def no_facts() -> pd.DataFrame:
    frame = pd.DataFrame({name: pd.Series(dtype="str") for name in FACT_COLUMNS})
    return frame.astype({"from": "datetime64[ms, UTC]", "to": "datetime64[ms, UTC]"})


def panel_of(*series: Values | list[float], step_seconds: float = 3600.0) -> Panel:
    values = np.array(series, dtype=np.float64)
    names = tuple(f"s{i}" for i in range(len(values)))
    return Panel(names, step_seconds, int(START.timestamp() // step_seconds), values, np.ones(len(values)))


def ask(origin: int, horizon: int) -> Rows:
    return Rows(np.array([0]), np.array([origin]), np.array([horizon]))


def experts_at(panel: Panel, origin: int, horizon: int) -> dict[str, float]:
    return dict(zip(EXPERTS, expert_values(panel, ask(origin, horizon))[0], strict=True))


def history_of(values: Values | list[float], step_seconds: int = 3600, name: str = "s") -> pd.DataFrame:
    times = pd.Timestamp(START).as_unit("ms") + pd.to_timedelta(np.arange(len(values)) * step_seconds, unit="s")
    return pd.DataFrame({"series": name, "time": times, "value": np.asarray(values, np.float64)})


# Experts.


def test_experts_on_a_ramp_are_what_their_names_say() -> None:
    ramp = np.arange(10.0 * DAY)
    said = experts_at(panel_of(ramp), 200, 3)
    assert said["last"] == 200
    assert said["mean_1h"] == 200  # one step of an hour
    assert said["mean_1d"] == pytest.approx(200 - 11.5)
    assert said["daily"] == 203 - DAY
    assert said["weekly"] == 203 - 7 * DAY
    assert said["profile"] == pytest.approx(203 - 4 * DAY)  # mean of 1..7 days before
    assert said["shifted"] == pytest.approx(203)
    assert said["scaled"] == pytest.approx((203 - 4 * DAY) * 200 / (200 - 4 * DAY))
    assert said["trend"] == pytest.approx(203)


def test_the_same_slot_of_a_day_ahead_is_taken_from_a_day_that_was_seen() -> None:
    wave = np.sin(2 * np.pi * np.arange(10.0 * DAY) / DAY)
    panel = panel_of(wave)
    for horizon in (DAY, DAY + 1, 3 * DAY - 1):
        truth = np.sin(2 * np.pi * (150 + horizon) / DAY)
        assert experts_at(panel, 150, horizon)["profile"] == pytest.approx(truth)


def test_without_history_experts_fall_back_on_the_level() -> None:
    said = experts_at(panel_of([5.0]), 0, 1)
    assert set(said.values()) == {5.0}
    gap = experts_at(panel_of([5.0, np.nan, np.nan]), 2, 1)
    assert set(gap.values()) == {5.0}


def test_where_nothing_was_seen_experts_are_absent() -> None:
    assert np.isnan(expert_values(panel_of([np.nan, np.nan]), ask(1, 1))).all()


def test_block_experts_take_the_largest_value_of_the_path() -> None:
    wave = 10 + np.sin(2 * np.pi * np.arange(10.0 * DAY) / DAY)
    said = dict(zip(BLOCK_EXPERTS, block_expert_values(panel_of(wave), ask(7 * DAY, 12))[0], strict=True))
    assert said["profile"] == pytest.approx(11.0)  # the crest lies 6 hours ahead
    assert said["last"] == pytest.approx(10.0)
    assert said["recent_max"] == pytest.approx(10.0)
    assert said["recent_max"] == np.max(wave[7 * DAY - 11 : 7 * DAY + 1])


def test_truths_that_look_ahead_are_what_came() -> None:
    panel = panel_of([1.0, 5.0, np.nan, 3.0, np.nan, np.nan])
    assert leak_target(panel, ask(0, 3))[0] == 3.0
    assert leak_block_max(panel, ask(0, 3))[0] == 5.0
    assert np.isnan(leak_block_max(panel, ask(2, 3))[0])  # one of three was seen


any_value = st.one_of(st.floats(0, 1e3), st.just(float("nan")))


@settings(max_examples=60, deadline=None)
@given(st.lists(any_value, min_size=60, max_size=60), st.integers(0, 58), st.integers(1, 40), st.floats(0, 1e3))
def test_no_expert_and_no_feature_sees_past_its_origin(
    past: list[float], origin: int, horizon: int, later: float
) -> None:
    changed = past[: origin + 1] + [later] * (59 - origin)
    seen = []
    for values in (past, changed):
        panel = panel_of(values, step_seconds=7200.0)
        rows = ask(origin, horizon)
        experts, scale = expert_values(panel, rows), panel.scale(rows.series, rows.origin)
        features = model_features(panel, rows, experts, experts[:, 0], scale)
        parts = [experts[0], block_expert_values(panel, rows)[0], features[0], scale, panel.zero_share(rows)]
        seen.append(np.concatenate(parts))
    # Prefix sums of another future may differ in the last digits.
    np.testing.assert_allclose(seen[0], seen[1], rtol=1e-9, atol=1e-9)


# Panel.


def test_a_panel_averages_rows_of_one_step_and_keeps_gaps() -> None:
    history = history_of([1.0, 3.0, 10.0], 150)
    history = pd.concat([history, history_of([7.0], 150).assign(time=pd.Timestamp(START) + pd.Timedelta(minutes=15))])
    panel = make_panel(history, 300.0, START + timedelta(minutes=20), timedelta(days=1))
    np.testing.assert_allclose(panel.values[0] * panel.unit[0], [2.0, 10.0, np.nan, 7.0, np.nan])
    assert panel.columns == 5


def test_rows_after_now_and_before_the_length_are_not_in_the_panel() -> None:
    panel = make_panel(history_of(np.arange(100.0)), 3600.0, START + timedelta(hours=50), timedelta(hours=10))
    assert panel.values[0, -1] * panel.unit[0] == pytest.approx(50.0)
    assert panel.columns == 10


def test_an_absurd_spike_is_clipped_and_a_tenfold_shift_is_not() -> None:
    values = np.full(1000, 10.0)
    values[500], values[-3:] = 1e9, 100.0
    panel = make_panel(history_of(values), 3600.0, START + timedelta(hours=999), timedelta(days=100))
    tamed = panel.values[0] * panel.unit[0]
    assert tamed[500] == pytest.approx(510.0)
    assert tamed[-1] == pytest.approx(100.0)


def test_the_step_is_the_most_common_distance() -> None:
    history = pd.concat([history_of(np.ones(9), 60), history_of(np.ones(3), 3600, name="t")])
    assert infer_step(history) == 60.0
    assert infer_step(history[:1]) == 300.0
    assert infer_step(pd.concat([history[:1], history[-1:]])) == 300.0


def test_zero_share_counts_the_slot_and_the_last_hour() -> None:
    night = np.tile(np.where(np.arange(DAY) < 8, 0.0, 5.0), 10)
    panel = panel_of(night)
    sleeping, waking = panel.zero_share(ask(9 * DAY + 4, 1))[0], panel.zero_share(ask(9 * DAY + 12, 1))[0]
    assert sleeping > 0.7
    assert waking == 0.0
    by_night = panel.zero_share(ask(9 * DAY + 12, 14))[0]  # from noon to 2 o'clock
    assert by_night > 0.8


# Gate and bands.


def groups_of(series: list[int], series_count: int) -> Groups:
    return Groups(np.array(series, dtype=np.int64), np.zeros(len(series), np.int64), series_count, 1)


def test_the_gate_believes_who_was_right_and_shrinks_to_the_fleet() -> None:
    errors = np.array([[0.1, 1.0]] * 200 + [[1.0, 0.1]])
    weights = gate_weights(errors, groups_of([0] * 200 + [1], 2), np.ones((1, 2)), 6.0)
    assert weights.sum(axis=2) == pytest.approx(np.ones((3, 1)))
    assert weights[0, 0, 0] > 0.99
    assert weights[2, 0, 0] > 0.99  # the fleet
    assert weights[1, 0, 0] > 0.9  # one bad day of one series outweighs nothing


def test_the_gate_without_evidence_is_the_prior_and_ignores_who_did_not_learn() -> None:
    nobody = groups_of([], 1)
    even = gate_weights(np.empty((0, 3)), nobody, np.ones((1, 3)), 6.0)
    assert even[0, 0] == pytest.approx([1 / 3] * 3)
    two = gate_weights(np.empty((0, 3)), nobody, np.ones((1, 3)), 6.0, np.array([True, False, True]))
    assert two[0, 0] == pytest.approx([0.5, 0.0, 0.5])


def test_perfect_forecasts_all_round_share_the_say() -> None:
    weights = gate_weights(np.zeros((50, 2)), groups_of([0] * 50, 1), np.ones((1, 2)), 6.0)
    assert weights[0, 0] == pytest.approx([0.5, 0.5])


def test_sharpening_picks_the_single_best_only_where_mixing_harms() -> None:
    gate = np.array([[[0.6, 0.4]], [[0.6, 0.4]], [[0.6, 0.4]]])
    truth = np.zeros(400)
    exact_first = np.stack([np.zeros(200), np.ones(200)], axis=1)
    opposite = np.stack([np.full(200, 0.8), np.full(200, -1.0)], axis=1)
    candidates = np.concatenate([exact_first, opposite])
    sharpened = sharpen(gate, candidates, truth, groups_of([0] * 200 + [1] * 200, 2))
    assert sharpened[0, 0, 0] > 0.95
    assert sharpened[1, 0, 0] < 0.65
    assert sharpened.sum(axis=2) == pytest.approx(np.ones((3, 1)))


def test_the_conformal_table_holds_the_residuals_order_statistics() -> None:
    residuals = np.random.default_rng(0).permutation(np.arange(1.0, 10_000.0))  # 1 .. 9999
    table = conformal_table(residuals, groups_of([0] * 9999, 1), PRIOR_TABLE[None])
    wanted = table_quantiles(table[0], np.array([0.1, 0.5, 0.95]))[0]
    assert wanted == pytest.approx([1000, 5000, 9500], rel=0.01)


def test_without_residuals_the_band_is_the_prior_and_sorted() -> None:
    table = conformal_table(np.empty(0), groups_of([], 1), PRIOR_TABLE[None])
    assert table[0, 0] == pytest.approx(PRIOR_TABLE)
    assert (np.diff(PRIOR_TABLE) > 0).all()
    assert table_quantiles(table[0], np.array([0.0001, 0.9999]))[0] == pytest.approx(PRIOR_TABLE[[0, -1]])
    assert len(LEVELS) == len(PRIOR_TABLE)


def test_a_calmer_series_gets_a_narrower_band_than_the_fleet() -> None:
    rng = np.random.default_rng(1)
    residuals = np.concatenate([rng.normal(0, 1, 2000), rng.normal(0, 0.1, 60)])
    table = conformal_table(residuals, groups_of([0] * 2000 + [1] * 60, 2), PRIOR_TABLE[None])
    width = table[:, 0, -1] - table[:, 0, 0]
    assert width[1] < 0.5 * width[2]


def test_a_fleet_that_was_always_exact_gets_no_stretch() -> None:
    table = conformal_table(np.zeros(100), groups_of([0] * 100, 1), PRIOR_TABLE[None])
    assert np.abs(table[0, 0]).max() < np.abs(PRIOR_TABLE).max() / 4


def test_pinball_is_the_quantile_loss() -> None:
    loss = pinball(np.array([[[1.0, 3.0]]]), np.array([2.0]), np.array([0.1, 0.9]))
    assert loss[0, 0] == pytest.approx((0.1 * 1 + 0.1 * 1) / 2)


# History from rows.


def slice_rows(samples: list[tuple[int, str, str, float]]) -> pd.DataFrame:
    rows = [
        {
            "time": pd.Timestamp(START) + pd.Timedelta(minutes=minute),
            "cluster": "c",
            "node": "n",
            "gpu": "g",
            "slice": name,
            "tenant": "none" if workload == "none" else "team",
            "workload": workload,
            "sm_active_ratio": value,
        }
        for minute, name, workload, value in samples
    ]
    return pd.DataFrame(rows)


def test_history_sums_the_slices_that_live_and_follows_the_workload_across_pods() -> None:
    samples = [(m, "pod-1", "serve", 0.2) for m in range(10)]
    samples += [(m, "pod-2", "serve", 0.3) for m in range(5)]
    samples += [(m, "pod-3", "serve", 0.4) for m in range(5, 10)]
    samples += [(m, "free", "none", 0.01) for m in range(10)]
    history = history_from_rows(slice_rows(samples), "sm_active_ratio", timedelta(minutes=5))
    values = {name: list(own["value"]) for name, own in history.groupby("series")}
    assert values["c/team/serve"] == pytest.approx([0.5, 0.6])
    assert values[FLEET] == pytest.approx([0.51, 0.61])
    assert set(values) == {FLEET, "c/team/serve"}


def test_equal_names_in_two_clusters_are_two_series() -> None:
    here = slice_rows([(m, "pod-1", "serve", 0.2) for m in range(10)])
    there = slice_rows([(m, "pod-1", "serve", 0.5) for m in range(10)]).assign(cluster="d")
    history = history_from_rows(pd.concat([here, there]), "sm_active_ratio", timedelta(minutes=5))
    values = {name: list(own["value"]) for name, own in history.groupby("series")}
    assert values["c/team/serve"] == pytest.approx([0.2, 0.2])
    assert values["d/team/serve"] == pytest.approx([0.5, 0.5])
    assert values[FLEET] == pytest.approx([0.7, 0.7])


def test_a_step_in_which_a_living_slice_is_silent_is_absent() -> None:
    samples = [(m, "pod-1", "serve", 0.2) for m in range(15)]
    samples += [(m, "pod-2", "serve", float("nan") if 5 <= m < 10 else 0.3) for m in range(15)]
    history = history_from_rows(slice_rows(samples), "sm_active_ratio", timedelta(minutes=5))
    own = history[history["series"] == "c/team/serve"]["value"].to_numpy()
    np.testing.assert_allclose(own, [0.5, np.nan, 0.5])


def test_a_replica_that_never_reports_the_field_does_not_make_the_total_absent() -> None:
    samples = [(m, "pod-1", "serve", 0.2) for m in range(5)] + [(m, "pod-2", "serve", float("nan")) for m in range(5)]
    history = history_from_rows(slice_rows(samples), "sm_active_ratio", timedelta(minutes=5))
    assert history[history["series"] == "c/team/serve"]["value"].tolist() == pytest.approx([0.2])


def test_a_time_without_any_pod_is_absent_not_zero() -> None:
    samples = [(m, "pod-1", "serve", 0.2) for m in range(5)] + [(m, "pod-2", "serve", 0.2) for m in range(10, 15)]
    history = history_from_rows(slice_rows(samples), "sm_active_ratio", timedelta(minutes=5))
    own = history[history["series"] == "c/team/serve"]["value"].to_numpy()
    np.testing.assert_allclose(own, [0.2, np.nan, 0.2])


def test_ordinals_get_their_own_series_and_max_takes_the_largest_sample() -> None:
    samples = [(m, "pod-1", "serve", 0.1 * m) for m in range(5)] + [(m, "pod-2", "serve", 0.3) for m in range(5)]
    fact = dict.fromkeys(no_facts().columns, "") | {"kind": "slice", "cluster": "c", "node": "n", "gpu": "g"}
    fact |= {"slice": "pod-1", "name": "ordinal", "value": "3"}
    history = history_from_rows(
        slice_rows(samples), "sm_active_ratio", timedelta(minutes=5), aggregate="max", facts=pd.DataFrame([fact])
    )
    values = {name: list(own["value"]) for name, own in history.groupby("series")}
    assert values["c/team/serve#3"] == pytest.approx([0.4])
    assert values["c/team/serve"] == pytest.approx([0.7])


def test_rows_without_the_field_give_an_empty_history() -> None:
    rows = slice_rows([(0, "pod-1", "serve", float("nan"))])
    history = history_from_rows(rows, "sm_active_ratio", timedelta(minutes=5))
    assert history.empty
    assert list(history.columns) == ["series", "time", "value"]
    with pytest.raises(KeyError):
        history_from_rows(rows, "busy_ratio", timedelta(minutes=5))


# Back-test.


def noisy_wave(days: int, seed: int) -> Values:
    at = np.arange(days * 288)
    noise = np.random.default_rng(seed).normal(0, 0.4, len(at))
    wave: Values = 10 + 5 * np.sin(2 * np.pi * (at / 288 + seed / 7)) + noise
    return wave


def test_the_backtest_shows_error_beside_naive_rules_and_honest_intervals() -> None:
    history = pd.concat([history_of(noisy_wave(8, i), 300, name=f"s{i}") for i in range(8)])
    result = backtest(history, [timedelta(hours=1), timedelta(hours=6)], origins=30)
    assert list(result.columns) == list(COLUMNS)
    assert len(result) == 16
    assert (result["count"] > 20).all()
    assert 0.72 <= result["coverage_80"].mean() <= 0.92
    assert 0.91 <= result["coverage_95"].mean() <= 0.995
    far = result[result["horizon_seconds"] == 6 * 3600]
    assert (far["relative_to_last"] < 0.25).all()
    assert far["relative_to_daily"].mean() < 0.9
    assert result["mase"].mean() < 0.9
    assert result["relative_to_last"].to_numpy() == pytest.approx((result["mae"] / result["mae_last"]).to_numpy())


def test_a_backtest_says_nothing_where_nothing_can_be_said() -> None:
    empty = backtest(history_of([])[:0])
    assert empty.empty
    assert list(empty.columns) == list(COLUMNS)
    short = backtest(history_of([1.0, 2.0, 3.0]), [timedelta(hours=24)])
    assert short.empty
    assert backtest(history_of(np.full(40, np.nan))).empty


def test_a_backtest_of_a_constant_has_no_error_and_no_ratio() -> None:
    result = backtest(history_of(np.full(40, 3.0)), [timedelta(hours=1)], origins=5, forecaster=LoadForecaster())
    assert result["mae"].iloc[0] == pytest.approx(0.0, abs=1e-9)
    assert np.isnan(result["relative_to_last"].iloc[0])
    assert result["coverage_95"].iloc[0] == 1.0
