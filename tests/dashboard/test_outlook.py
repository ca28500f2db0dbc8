"""`trimtab forecast`: the history follows the workload, and each forecast stands beside its own error."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from analyzer.settings import ForecastSettings
from collector.batch import Batch, Fact, Subject, make_rows
from collector.settings import StoreSettings
from collector.store import EmbeddedStore, load_rows
from dashboard.cli.context import interval_of
from dashboard.outlook import read_history, unit_of
from tests.dashboard.conftest import Ran

START = datetime(2026, 1, 5, tzinfo=UTC)
STEP = 300
COUNT = 3 * 288


def batch() -> Batch:
    """Three days of one card in 5-minute rows: `ranker` with a daily rhythm, `trainer` steady, `gone` on day one."""
    hours = np.arange(COUNT) * STEP / 3600
    loads = {
        "ranker": 0.3 + 0.2 * np.sin(2 * math.pi * hours / 24),
        "trainer": np.full(COUNT, 0.25),
        "gone": np.full(288, 0.1),
    }
    times = np.arange(COUNT) * STEP * 1000 + int(START.timestamp() * 1000)
    tables = []
    for index, (name, load) in enumerate(loads.items()):
        n = len(load)
        tags = {"cluster": ["c"] * n, "node": ["n"] * n, "gpu": ["GPU-1"] * n, "slice": [f"gi{index}"] * n}
        tags |= {"tenant": ["search"] * n, "workload": [name] * n}
        fields = {"sm_active_ratio": load, "sm_quota_ratio": np.full(n, 0.5), "memory_used_bytes": np.full(n, 2.0**30)}
        tables.append(make_rows("slice", times[:n], tags, fields))
    card = {"cluster": ["c"] * COUNT, "node": ["n"] * COUNT, "gpu": ["GPU-1"] * COUNT}
    total = loads["ranker"] + loads["trainer"] + np.where(hours < 24, 0.1, 0.0)
    facts = [Fact(Subject("cluster", "c"), "interval_seconds", str(STEP), START)]
    facts += [
        Fact(Subject("slice", "c", "n", "GPU-1", f"gi{index}"), "kind", "mig", START) for index in range(len(loads))
    ]
    return Batch(
        {"gpu": make_rows("gpu", times, card, {"sm_active_ratio": total}), "slice": pa.concat_tables(tables)}, facts
    )


@pytest.fixture
def store(elsewhere: Path) -> Path:
    opened = EmbeddedStore(StoreSettings())
    opened.write(batch())
    opened.close()
    return elsewhere


@pytest.mark.usefixtures("store")
def test_history_holds_each_workload_and_the_fleet() -> None:
    opened = EmbeddedStore(StoreSettings(), read_only=True)
    assert interval_of(opened, 60.0) == STEP
    end = START + timedelta(days=3, minutes=2)  # a step has just begun
    history = read_history(opened, end, "used", ForecastSettings(), STEP)
    opened.close()
    by = {str(name): frame.set_index("time")["value"] for name, frame in history.groupby("series")}
    assert set(by) == {"fleet", "c/search/ranker", "c/search/trainer", "c/search/gone"}
    noon = START + timedelta(days=1, hours=12)
    assert by["c/search/trainer"][noon] == pytest.approx(0.25)
    assert by["fleet"][noon] == pytest.approx(by["c/search/ranker"][noon] + 0.25)
    assert by["c/search/gone"].index.max() == START + timedelta(days=1, seconds=-STEP)
    assert by["fleet"].index.max() == START + timedelta(days=3, seconds=-STEP)


@pytest.mark.usefixtures("store")
def test_forecasts_come_with_their_own_error_and_work_from_files_alone(trimtab: Callable[..., Ran]) -> None:
    ran = trimtab("forecast", "--horizon", "6h", "--json")
    assert ran.code == 0
    document = json.loads(ran.out)
    assert document["unit"] == "cards"
    assert document["made_at"] == "2026-01-08T00:00:00Z"
    found = {entry["series"]: entry for entry in document["forecasts"]}
    assert list(found) == ["fleet", "c/search/ranker", "c/search/trainer"]
    assert "1 series had no value in the last hour" in ran.err
    assert found["c/search/trainer"]["quantiles"]["0.5"] == pytest.approx(0.25, abs=0.01)
    ranker = found["c/search/ranker"]
    assert ranker["target_time"] == "2026-01-08T06:00:00Z"
    assert ranker["quantiles"]["0.1"] <= ranker["quantiles"]["0.5"] <= ranker["quantiles"]["0.975"]
    # At 06:00 the rhythm is at its top, six hours after the middle: the last value would be 0.2 too low.
    assert ranker["quantiles"]["0.5"] == pytest.approx(0.5, abs=0.05)
    assert ranker["backtest"]["relative_to_last"] < 0.5
    assert trimtab("export", "rows").code == 0
    again = json.loads(trimtab("forecast", "--rows", "rows", "--horizon", "6h", "--json").out)
    assert again == document


@pytest.mark.usefixtures("store")
def test_a_table_for_people(trimtab: Callable[..., Ran]) -> None:
    ran = trimtab("forecast", "--horizon", "6h", "--series", "c/search/trainer", "--field", "memory_used_bytes")
    line = ran.out.splitlines()[1]
    assert line.split()[:4] == ["c/search/trainer", "6", "h", "1.00"]
    assert "memory_used_bytes in bytes" in ran.err


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["--field", "sm_activ_ratio"], 2, "the nearest known one is `sm_active_ratio`"),
        (["--series", "c/search/rankr"], 3, "the nearest known one is `c/search/ranker`"),
        (["--horizon", "soon"], 2, "expected a length of time"),
        (["--field", "tokens_per_second"], 3, "no slice has a value of tokens_per_second in the last 28 days"),
        (["--rows", "nowhere"], 3, "expected a .parquet or .csv file or a folder of them, got nowhere"),
    ],
)
def test_what_cannot_be_forecast_is_said(
    trimtab: Callable[..., Ran], arguments: list[str], code: int, expected: str
) -> None:
    ran = trimtab("forecast", *arguments)
    assert (ran.code, ran.out) == (code, "")
    assert expected in ran.err


def test_the_interval_shows_in_the_rows_where_nobody_noted_it(store: Path, trimtab: Callable[..., Ran]) -> None:
    assert trimtab("export", "rows", "--measurement", "slice").code == 0
    assert interval_of(load_rows([store / "rows"]), 60.0) == STEP
    nothing = EmbeddedStore(StoreSettings(path=Path("empty")))
    assert interval_of(nothing, 60.0) == 60.0
    nothing.close()


def test_units() -> None:
    assert [unit_of(name) for name in ("used", "busy_ratio", "memory_used_bytes")] == ["cards", "cards", "bytes"]
