"""Percentiles from runs of sorted files are those of the hash aggregate, to the last digit."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collector.conformance import HOUR, MINUTE, at, slice_rows, window
from collector.errors import UnreachableError
from collector.settings import StoreSettings
from collector.store import EmbeddedStore, runs

FIELDS = ["busy_ratio", "queue_depth_count", "step_seconds", "flops_per_second"]


def write(store: EmbeddedStore, minutes: list[float], seed: int) -> None:
    """Rows of three slices: one field whole, one with gaps, one that is no decimal, one absent."""
    rng = np.random.default_rng(seed)
    times, names = np.repeat(minutes, 3), ["a", "b", "c"] * len(minutes)
    keep = rng.random(len(times)) > 0.1
    gaps = np.where(rng.random(len(times)) < 0.3, np.nan, rng.integers(0, 9, len(times)))
    store.write(
        slice_rows(
            times[keep].tolist(),
            [name for name, kept in zip(names, keep, strict=True) if kept],
            busy_ratio=np.round(rng.random(len(times)), 3)[keep],
            queue_depth_count=gaps[keep],
            step_seconds=rng.random(len(times))[keep],
        )
    )


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10**6),
    cuts=st.lists(st.integers(1, 299), max_size=4, unique=True),
    late=st.booleans(),
    unsealed=st.booleans(),
    every=st.sampled_from([7, 30, 60]),
    percentile=st.sampled_from(["p1", "p50", "p95", "p99.9", "p100"]),
    span=st.sampled_from([(0, 4000), (13, 222), (60, 120), (290, 1500)]),
)
def test_runs_and_hashes_agree(
    tmp_path_factory: pytest.TempPathFactory,
    *,
    seed: int,
    cuts: list[int],
    late: bool,
    unsealed: bool,
    every: int,
    percentile: str,
    span: tuple[int, int],
) -> None:
    with closing(EmbeddedStore(StoreSettings(path=tmp_path_factory.mktemp("store"), seal_rows=1000))) as store:
        edges = [0, *sorted(cuts), 300]
        for n, (first, last) in enumerate(pairwise(edges)):
            write(store, list(range(first, last)), seed + n)
            store.seal()
        write(store, list(range(1439, 1500, 3)), seed + 20)  # over midnight: two files
        store.seal()
        if late:
            write(store, [float(m) for m in range(50, 90, 3)], seed + 9)
            store.seal()
        if unsealed:
            write(store, [float(m) for m in range(280, 310)], seed + 10)
        with pytest.MonkeyPatch.context() as patch:
            answers = []
            for worth in (1, 10**12):
                patch.setattr(runs, "WORTH_ROWS", worth)
                answers.append(
                    store.read("slice", window(*span), fields=FIELDS, every=every * MINUTE, aggregate=percentile)
                )
        assert len(answers[0]) > 0 or span[0] > 299
        pd.testing.assert_frame_equal(answers[0], answers[1], check_exact=True)


def test_runs_are_taken_where_they_are_worth_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "WORTH_ROWS", 1)
    asked: list[str] = []
    percentiles = runs.percentiles

    def counting(*arguments: object) -> object:
        asked.append("runs")
        return percentiles(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(runs, "percentiles", counting)
    with closing(EmbeddedStore(StoreSettings(path=tmp_path / "store"))) as store:
        write(store, list(range(120)), 1)
        store.seal()
        hour = window(0, 120)
        store.read("slice", hour, fields=FIELDS, every=HOUR, aggregate="p95")
        store.read("slice", hour, fields=["busy_ratio"], every=HOUR, aggregate={"busy_ratio": "p9"})
        assert len(asked) == 2
        store.read("slice", hour, fields=FIELDS, every=HOUR, aggregate="max")
        store.read("slice", hour, fields=FIELDS, by=["tenant"], every=HOUR, aggregate="p95")
        store.read("slice", hour, fields=FIELDS, every=HOUR, aggregate="p95", where={"slice": "a"})
        store.read("slice", hour, fields=FIELDS, by=["slice"], aggregate="p95")
        assert len(asked) == 2


def test_a_run_is_ranked_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "WORTH_ROWS", 1)
    with closing(EmbeddedStore(StoreSettings(path=tmp_path / "store"))) as store:
        minutes = list(range(20))
        store.write(slice_rows(minutes, ["a"] * 20, busy_ratio=[m / 100 for m in reversed(minutes)]))
        store.write(slice_rows([60], ["a"], busy_ratio=[np.nan], queue_depth_count=[3]))
        store.seal()
        frame = store.read("slice", window(0, 120), fields=FIELDS[:2], every=HOUR, aggregate="p95")
        assert frame["time"].tolist() == [at(0), at(60)]
        np.testing.assert_array_equal(frame["busy_ratio"], [0.18, np.nan])  # rank 19 of 20
        np.testing.assert_array_equal(frame["queue_depth_count"], [np.nan, 3])
        assert frame.attrs["tier"] == "raw"


def test_a_damaged_file_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "WORTH_ROWS", 1)
    with closing(EmbeddedStore(StoreSettings(path=tmp_path / "store"))) as store:
        write(store, [1, 2], 1)
        store.seal()
        (file,) = (tmp_path / "store" / "sealed").glob("slice-raw-*")
        file.write_bytes(b"nothing")
        with pytest.raises(UnreachableError, match=f"cannot read the sealed file .*{file.name}"):
            store.read("slice", window(0, 60), fields=FIELDS, every=timedelta(minutes=5), aggregate="p50")
