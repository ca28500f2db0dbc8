"""TT502 on fleets whose memory is known by construction."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest

from analyzer.facts import FACT_COLUMNS
from analyzer.findings import Finding, Verdict
from analyzer.protocols import Conclusion, Context, Partition, Withheld
from analyzer.risk import ForecastRiskDetector, probability_above
from analyzer.settings import AnalyzeSettings
from collector.window import Window

START = datetime(2026, 1, 5, tzinfo=UTC)
GIB = 2.0**30
DAY = 288


def no_facts() -> pd.DataFrame:
    frame = pd.DataFrame({name: pd.Series(dtype="str") for name in FACT_COLUMNS})
    return frame.astype({"from": "datetime64[ms, UTC]", "to": "datetime64[ms, UTC]"})


def slice_rows(
    name: str, used: np.ndarray, *, quota: float | None = 40 * GIB, workload: str = "serve", gpu: str = "GPU-1"
) -> pd.DataFrame:
    times = pd.Timestamp(START).as_unit("ms") + pd.to_timedelta(np.arange(len(used)) * 300, unit="s")
    rows = pd.DataFrame({"time": times, "memory_used_bytes": used})
    if quota is not None:
        rows["memory_quota_bytes"] = quota
    tenant = "none" if workload == "none" else "team"
    return rows.assign(cluster="c", node="n", gpu=gpu, slice=name, tenant=tenant, workload=workload)


def analyse(
    rows: pd.DataFrame,
    *,
    gpu_rows: pd.DataFrame | None = None,
    facts: pd.DataFrame | None = None,
    settings: AnalyzeSettings | None = None,
    end: datetime | None = None,
) -> Conclusion:
    window = Window(START, end or START + timedelta(days=2))
    known = no_facts() if facts is None else facts
    gpu = pd.DataFrame({"time": [], "gpu": []}) if gpu_rows is None else gpu_rows
    part = Partition("c", "n", window, 300.0, gpu, rows, pd.DataFrame(), known, pd.DataFrame(), pd.DataFrame())
    detector = ForecastRiskDetector(settings)
    context = Context(window, 300.0, known, pd.DataFrame(), pd.DataFrame(), {}, simulated=True)
    return detector.conclude(detector.measure(part), context)


def only(conclusion: Conclusion) -> Finding:
    assert len(conclusion.findings) == 1, conclusion
    return conclusion.findings[0]


def leak(per_hour: float, start: float = 10 * GIB, days: int = 2) -> np.ndarray:
    noise = np.random.default_rng(0).normal(0, 0.02 * GIB, days * DAY)
    return start + per_hour * np.arange(days * DAY) / 12 + noise


def level(size: float = 20 * GIB, days: int = 2, seed: int = 0) -> np.ndarray:
    return size + np.random.default_rng(seed).normal(0, 0.2 * GIB, days * DAY)


def test_a_steady_leak_is_claimed_with_the_hour_at_which_it_passes_the_quota() -> None:
    # 10 GiB + 0.5 GiB/h: 34 GiB after two days, 40 GiB 12 hours later.
    finding = only(analyse(pd.concat([slice_rows("leaks", leak(0.5 * GIB)), slice_rows("steady", level())])))
    assert finding.code == "TT502"
    assert finding.verdict is Verdict.HOLDS
    assert finding.subjects[0].slice == "leaks"
    assert finding.effect is not None
    assert finding.effect.unit == "seconds"
    assert finding.effect.value in {12 * 3600.0, 18 * 3600.0}  # the first looked-at horizon past 12 h
    assert finding.effect.lower <= finding.effect.value <= finding.effect.upper
    assert finding.evidence["limit"] == "quota"
    assert finding.evidence["limit_bytes"] == 40 * GIB
    assert finding.evidence["backtest"]["mae"] < finding.evidence["backtest"]["mae_last"]
    assert "team/serve" in finding.claim
    assert finding.simulated
    assert finding.to_json()["evidence"]["when"].startswith("2026-01-07T")


def test_a_leak_that_stays_below_the_limit_for_a_day_is_not_claimed() -> None:
    assert analyse(slice_rows("a", leak(0.1 * GIB))).findings == []


def test_a_flat_reservation_right_at_the_limit_never_exceeds_it() -> None:
    assert analyse(slice_rows("a", np.full(2 * DAY, 40 * GIB))).findings == []


def test_use_above_a_lowered_quota_is_claimed_at_the_nearest_horizon() -> None:
    finding = only(analyse(slice_rows("a", level(), quota=15 * GIB)))
    assert finding.effect is not None
    assert finding.effect.value == 3600.0
    assert finding.confidence == 1.0


def test_without_a_quota_the_limit_is_what_the_others_leave_of_the_card() -> None:
    rows = pd.concat(
        [
            slice_rows("leaks", leak(0.5 * GIB), quota=None),
            slice_rows("other", np.full(2 * DAY, 42 * GIB), quota=None, workload="batch"),
        ]
    )
    times = rows["time"].unique()
    card = pd.DataFrame(
        {"time": times, "gpu": "GPU-1", "memory_used_bytes": 76 * GIB, "memory_free_bytes": 4 * GIB},
    )
    finding = next(f for f in analyse(rows, gpu_rows=card).findings if f.subjects[0].slice == "leaks")
    assert finding.evidence["limit"] == "card"
    assert finding.evidence["limit_bytes"] == pytest.approx(38 * GIB)
    fact = {"kind": "gpu", "cluster": "c", "node": "n", "gpu": "GPU-1", "slice": "", "object": ""}
    fact |= {"name": "memory_total_bytes", "value": str(82 * GIB), "provenance": "measured"}
    facts = pd.DataFrame([{**fact, "from": pd.Timestamp(START), "to": pd.NaT}])
    known = next(f for f in analyse(rows, gpu_rows=card, facts=facts).findings if f.subjects[0].slice == "leaks")
    assert known.evidence["limit_bytes"] == pytest.approx(40 * GIB)


def test_a_quota_above_the_card_does_not_count() -> None:
    card = pd.DataFrame({"gpu": ["GPU-1"], "memory_used_bytes": [20 * GIB], "memory_free_bytes": [18 * GIB]})
    finding = only(analyse(slice_rows("a", leak(0.5 * GIB), quota=80 * GIB), gpu_rows=card))
    assert finding.evidence["limit_bytes"] == 38 * GIB


def third(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(memory_used_bytes=rows["memory_used_bytes"].mask(np.arange(len(rows)) % 3 != 0))


@pytest.mark.parametrize(
    ("rows", "hours_later", "reason", "applicable"),
    [
        (slice_rows("a", np.full(DAY, np.nan)), 0, "no valid memory_used_bytes in the window", True),
        (
            slice_rows("a", level(), quota=None),
            0,
            "no limit known: neither memory_quota_bytes nor the memory of the card",
            True,
        ),
        (slice_rows("a", level(), workload="none"), 0, "nobody holds it", False),
        (third(slice_rows("a", level())), 0, "coverage 33% is below the floor 50%", True),
        (slice_rows("a", level()[:5]), 0, "less than 1 h of memory samples", True),
        (slice_rows("a", level()), 2, "no rows in the last hour: it is gone", False),
    ],
)
def test_what_cannot_be_judged_says_why(rows: pd.DataFrame, hours_later: int, reason: str, *, applicable: bool) -> None:
    end = rows["time"].iloc[-1].to_pydatetime() + timedelta(hours=hours_later, minutes=5)
    conclusion = analyse(rows, end=end)
    assert conclusion == Conclusion([], [Withheld("TT502", "c", "n", "GPU-1", "a", reason, applicable)])


def test_the_coverage_floor_is_a_setting() -> None:
    rows = slice_rows("a", leak(0.5 * GIB))
    finding = only(analyse(third(rows), settings=AnalyzeSettings(coverage_floor=0.2)))
    assert finding.coverage == pytest.approx(1 / 3, abs=0.01)


def test_less_than_a_day_of_history_is_at_most_suspected() -> None:
    rows = slice_rows("a", leak(1.0 * GIB, start=32 * GIB)[: DAY // 4])
    finding = only(analyse(rows, end=START + timedelta(hours=6)))
    assert finding.verdict is Verdict.SUSPECTED
    assert "less than a day" in finding.evidence["note"]


def test_no_rows_give_nothing() -> None:
    assert analyse(slice_rows("a", level())[:0]) == Conclusion([], [])


def test_the_share_above_a_limit_is_linear_between_quantiles() -> None:
    values = np.linspace(1.0, 17.0, 17)  # the median, the ninth of the levels, is 9
    assert probability_above(values, 9.0) == pytest.approx(0.5)
    assert probability_above(values, 9.5) == pytest.approx(0.45)
    assert probability_above(values, 0.5) == 1.0
    assert probability_above(values, 17.0) == 0.0
    assert probability_above(np.full(17, 4.0), 4.0) == 0.0
