"""`trimtab export`, `trimtab store`, `trimtab workloads`: what a store holds, read back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from collector.batch import Batch, Fact, Subject, make_rows
from collector.settings import StoreSettings
from collector.store import EmbeddedStore, load_rows
from tests.dashboard.conftest import Ran

START = datetime(2026, 1, 5, tzinfo=UTC)
MINUTES = 120


def rows() -> Batch:
    """Two hours of one card: a slice of `ranker`, busy, and one held by nobody."""
    times = np.arange(MINUTES) * 60_000 + int(START.timestamp() * 1000)
    card = {"cluster": ["c"] * MINUTES, "node": ["n"] * MINUTES, "gpu": ["GPU-1"] * MINUTES}
    gpu = make_rows("gpu", times, card, {"sm_active_ratio": np.full(MINUTES, 0.5)})
    both = [
        make_rows(
            "slice",
            times,
            {**card, "slice": [name] * MINUTES, "tenant": [tenant] * MINUTES, "workload": [workload] * MINUTES},
            {"sm_quota_ratio": np.full(MINUTES, 0.5), "sm_active_ratio": np.full(MINUTES, activity)},
        )
        for name, tenant, workload, activity in (("gi1", "search", "ranker", 0.5), ("gi2", "none", "none", 0.0))
    ]
    slice_rows = pa.concat_tables(both)
    pod = Subject("workload", "c", object="search/ranker")
    facts = [Fact(pod, "weight", "3", START, "declared")]
    return Batch({"gpu": gpu, "slice": slice_rows}, facts)


@pytest.fixture
def store(elsewhere: Path) -> Path:
    """A store in the default place."""
    opened = EmbeddedStore(StoreSettings())
    opened.write(rows())
    opened.close()
    return elsewhere / "var/store"


@pytest.mark.parametrize("fmt", ["parquet", "csv"])
def test_what_is_exported_is_what_was_written(trimtab: Callable[..., Ran], store: Path, fmt: str) -> None:
    ran = trimtab("export", "out", "--format", fmt)
    assert ran.code == 0
    assert f"out/gpu.{fmt}" in ran.out.splitlines()
    back = load_rows([Path("out")])
    gpu = back.read("gpu", back.span("gpu"))  # type: ignore[arg-type]  # there are rows
    assert len(gpu) == MINUTES
    assert set(gpu["sm_active_ratio"]) == {0.5}
    assert gpu["time"].iloc[0] == pd.Timestamp(START)


def test_only_the_end_of_one_measurement(trimtab: Callable[..., Ran], store: Path) -> None:
    ran = trimtab("export", "out", "--window", "30m", "--measurement", "slice", "--json")
    assert json.loads(ran.out)["files"] == ["out/slice.parquet", "out/fact.parquet"]  # facts say what rows are
    back = load_rows([Path("out")])
    span = back.span("slice")
    assert span is not None
    # The window ends with the cycle of the newest row.
    assert span.start == START + timedelta(minutes=MINUTES - 30)


def test_an_unknown_measurement_is_a_wrong_call(trimtab: Callable[..., Ran], store: Path) -> None:
    ran = trimtab("export", "out", "--measurement", "gpus")
    assert ran.code == 2
    assert "got gpus" in ran.err


def test_without_a_store_the_commands_say_what_to_do(trimtab: Callable[..., Ran]) -> None:
    for call in (
        ["export", "out"],
        ["store", "info"],
        ["store", "compact"],
        ["store", "verify"],
        ["store", "backup", "copy"],
        ["workloads"],
    ):
        ran = trimtab(*call)
        assert ran.code == 4, call
        assert "run `trimtab collect` or `trimtab import` first" in ran.err
    assert not Path("var").exists()


def test_an_empty_store_is_said(trimtab: Callable[..., Ran]) -> None:
    EmbeddedStore(StoreSettings()).close()
    ran = trimtab("export", "out")
    assert ran.code == 3
    assert "expected rows in the store" in ran.err
    assert trimtab("store", "info").out.startswith("no rows\n")


def test_store_info_counts_and_compacting_moves_rows_to_files(trimtab: Callable[..., Ran], store: Path) -> None:
    before = json.loads(trimtab("store", "info", "--json").out)["store"]
    assert [(h["measurement"], h["rows"], h["unsealed"]) for h in before["holdings"]] == [
        ("gpu", MINUTES, MINUTES),
        ("slice", 2 * MINUTES, 2 * MINUTES),
    ]
    assert before["facts"] == 1
    assert trimtab("store", "compact").code == 0
    after = json.loads(trimtab("store", "info", "--json").out)["store"]
    raw = [h for h in after["holdings"] if h["tier"] == "raw"]
    assert [(h["measurement"], h["rows"], h["unsealed"], h["files"]) for h in raw] == [
        ("gpu", MINUTES, 0, 1),
        ("slice", 2 * MINUTES, 0, 1),
    ]
    assert "gpu" in trimtab("store", "info").out
    assert json.loads(trimtab("store", "compact", "--json").out)["files"] == len(list(store.glob("sealed/*.parquet")))


def test_verify_says_what_is_missing_and_a_copy_stands_in(trimtab: Callable[..., Ran], store: Path) -> None:
    assert trimtab("store", "compact").code == 0
    assert trimtab("store", "verify").out == "all is there and readable\n"
    assert trimtab("store", "backup", "copy").out.startswith("copied to copy: ")
    assert trimtab("store", "backup", "copy").code == 2
    (gone,) = store.glob("sealed/gpu-hour-*")
    gone.unlink()
    ran = trimtab("store", "verify", "--json")
    assert ran.code == 1
    (problem,) = json.loads(ran.out)["problems"]
    assert problem.startswith(f"{gone.name}: missing; ")
    shutil.rmtree(store)
    shutil.move("copy", store)
    assert json.loads(trimtab("store", "verify", "--json").out) == {"schema_version": 1, "ok": True, "problems": []}


def test_workloads_say_where_each_value_came_from(trimtab: Callable[..., Ran], store: Path) -> None:
    Path("trimtab.toml").write_text('[[workload]]\nmatch = "ranker"\nobjective = { bound_seconds = 0.2 }\n')
    document = json.loads(trimtab("workloads", "--json").out)
    assert document["undeclared"] == 0
    (ranker,) = document["workloads"]
    assert (ranker["tenant"], ranker["workload"], ranker["declared"]) == ("search", "ranker", True)
    assert ranker["values"]["objective"]["origin"] == "config"
    assert ranker["values"]["objective"]["value"]["bound_seconds"] == 0.2
    assert ranker["values"]["weight"] == {"value": 3.0, "origin": "annotation"}
    assert ranker["values"]["floor"] == {"value": 0.0, "origin": "default"}
    line = trimtab("workloads").out.splitlines()[1]
    assert "0.999 of e2e within 0.2 s (config)" in line
    assert "3 (annotation)" in line


def test_undeclared_workloads_are_counted(trimtab: Callable[..., Ran], elsewhere: Path) -> None:
    batch = rows()
    batch.facts.clear()
    opened = EmbeddedStore(StoreSettings())
    opened.write(batch)
    opened.close()
    ran = trimtab("workloads")
    assert "1 of 1 are undeclared: treated as online and protected" in ran.out
    assert json.loads(trimtab("workloads", "--json").out)["undeclared"] == 1
