"""Rows as files and as frames: what goes out comes back, and what cannot be read is said in one line."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from collector.batch import Batch, Event, Fact, Reject, Severity, Subject
from collector.conformance import DAY, START, at, slice_rows, window
from collector.errors import InputRejectedError
from collector.settings import StoreSettings
from collector.store import EmbeddedStore, FrameStore, export_rows, load_rows
from collector.window import Window

WEEK = Window(START, START + 7 * DAY)


def lab_batch() -> Batch:
    rng = np.random.default_rng(5)
    minutes = list(range(0, 3000, 10))
    values = np.where(rng.random(300) < 0.1, np.nan, rng.random(300))
    batch = slice_rows(minutes, ["NA"] * 150 + ['odd, "name"'] * 150, busy_ratio=values.tolist())
    who = Subject("slice", "lab", "node-a", "GPU-1", "NA")
    batch.facts += [
        Fact(who, "kind", "mps", at(0)),
        Fact(who, "kind", "mig", at(9)),
        Fact(who, "tenant", "null", at(0)),
    ]
    batch.events.append(Event(who, "oom", Severity.ERROR, "line one\nline two", at(3)))
    batch.rejects.append(Reject(who, "busy_ratio", "above 1.05", at(4), 3))
    return batch


@pytest.mark.parametrize("fmt", ["parquet", "csv"])
def test_what_is_exported_comes_back_to_the_last_digit(tmp_path: Path, fmt: str) -> None:
    store = EmbeddedStore(StoreSettings(path=tmp_path / "store"))
    store.write(lab_batch())
    files = export_rows(store, tmp_path / "out", WEEK, fmt="csv" if fmt == "csv" else "parquet")
    assert [f.name for f in files] == [
        f"{name}.{fmt}" for name in ("gpu", "slice", "node", "queue", "fact", "event", "reject")
    ]
    for paths in ([tmp_path / "out"], files):
        back = load_rows(paths)
        pd.testing.assert_frame_equal(back.read("slice", WEEK), store.read("slice", WEEK))
        pd.testing.assert_frame_equal(back.facts(), store.facts())
        pd.testing.assert_frame_equal(
            back.facts(window(3, 4), names=["kind"]), store.facts(window(3, 4), names=["kind"])
        )
        pd.testing.assert_frame_equal(back.events(WEEK), store.events(WEEK))
        pd.testing.assert_frame_equal(back.rejects(WEEK), store.rejects(WEEK))
        assert back.read("gpu", WEEK).empty
        back.close()
    store.close()


def test_only_the_window_and_the_measurements_asked_for_are_written_and_the_facts_always(tmp_path: Path) -> None:
    store = FrameStore.of_batches([lab_batch()])
    file, facts = export_rows(store, tmp_path, Window(at(1435), at(1455)), measurements=["slice"])
    frame = pd.read_parquet(file)
    assert sorted(frame["time"].unique()) == [at(1440), at(1450)]
    assert sorted(tmp_path.iterdir()) == [facts, file]
    assert len(pd.read_parquet(facts)) > 0
    with pytest.raises(KeyError, match="nonsense"):
        export_rows(store, tmp_path, WEEK, measurements=["nonsense"])


def test_several_files_of_a_measurement_are_laid_under_one_another(tmp_path: Path) -> None:
    (tmp_path / "gpu-1.csv").write_text("time,cluster,node,gpu,power_watts\n2026-01-05T00:00:00Z,c,n,g,100\n")
    (tmp_path / "gpu-2.csv").write_text("time,cluster,node,gpu,power_watts\n2026-01-05 01:01+01:00,c,n,g,NaN\n")
    (tmp_path / "notes.txt").write_text("not rows")
    frame = load_rows([tmp_path]).read("gpu", window(0, 9))
    assert frame["time"].tolist() == [at(0), at(1)]
    np.testing.assert_array_equal(frame["power_watts"], [100, np.nan])
    assert frame["energy_joules"].isna().all()


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("cards.csv", "time\n", "named after one of"),
        ("gpus.csv", "time\n", "named after one of"),
        ("gpu.csv", "time,cluster,node,gpu,power_watts\n2026-01-05T00:00:00Z,c,n,g,hot\n", "cannot read"),
        ("gpu.csv", "time,cluster,node,gpu\nyesterday,c,n,g\n", "not ISO 8601"),
        ("gpu.csv", "time,cluster,node\n2026-01-05T00:00:00Z,c,n\n", "expected a value of gpu"),
        ("gpu.parquet", "PAR", "cannot read"),
        ("fact.csv", "kind,cluster\ngpu,c\n", "node, gpu"),
        ("gpu.txt", "time\n", r"\.parquet or \.csv"),
    ],
)
def test_files_that_cannot_be_read_are_rejected_in_one_line(
    tmp_path: Path, name: str, content: str, problem: str
) -> None:
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(InputRejectedError, match=problem) as caught:
        load_rows([file])
    assert "\n" not in str(caught.value)


def test_nothing_to_read_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputRejectedError, match="found none"):
        load_rows([tmp_path])
    with pytest.raises(InputRejectedError, match="got none"):
        load_rows([])


def test_frames_may_leave_out_what_is_absent(caplog: pytest.LogCaptureFixture) -> None:
    base = {"cluster": "c", "node": "n", "gpu": "g", "slice": ["a", "b"]}
    frame = pd.DataFrame({"time": [at(0), at(1)], **base, "tenant": ["x", None], "busy_ratio": [1, 0], "colour": "red"})
    with caplog.at_level(logging.WARNING):
        store = FrameStore({"slice": frame})
    assert "colour" in caplog.text
    rows = store.read("slice", window(0, 9), fields=["busy_ratio"])
    assert rows[["tenant", "workload", "busy_ratio"]].to_numpy().tolist() == [
        ["x", "unknown", 1],
        ["unknown", "unknown", 0],
    ]
    assert store.facts().empty
    assert store.events(WEEK).empty


@pytest.mark.parametrize(
    "times",
    [
        [1_767_571_200_000, 1_767_571_260_000],
        ["2026-01-05T00:00:00", "2026-01-05T00:01:00+00:00"],
        pd.to_datetime(["2026-01-05 00:00", "2026-01-05 00:01"]),
        pd.to_datetime(["2026-01-05 01:00+01:00", "2026-01-05 01:01+01:00"]),
    ],
)
def test_times_of_frames(times: object) -> None:
    frame = pd.DataFrame({"time": times, "cluster": "c", "node": "n", "cpu_busy_ratio": [0.1, 0.2]})
    store = FrameStore({"node": frame})
    assert store.read("node", window(0, 9))["time"].tolist() == [at(0), at(1)]


@pytest.mark.parametrize("time", ["1999-12-31T23:59:59.999", "2100-01-01", "1601-01-01", "9999-12-31T23:59:59"])
def test_times_out_of_reason_are_rejected(tmp_path: Path, time: str) -> None:
    frame = pd.DataFrame({"time": [at(0).isoformat(), time], "cluster": "c", "node": "n", "cpu_busy_ratio": 0.1})
    with pytest.raises(InputRejectedError, match=f"from 2000 to 2100, got {time}"):
        FrameStore({"node": frame})
    rows = slice_rows([0], ["a"], busy_ratio=[0.1]).rows["slice"]
    far = pa.array([np.datetime64(time, "ms")]).cast(rows.schema.field("time").type)
    store = EmbeddedStore(StoreSettings(path=tmp_path / "store"))
    with pytest.raises(InputRejectedError, match=f"from 2000 to 2100, got {time}"):
        store.write(Batch({"slice": rows.set_column(rows.column_names.index("time"), "time", far)}))
    assert store.span("slice") is None
    store.close()


def test_text_in_a_field_is_rejected() -> None:
    frame = pd.DataFrame({"time": [at(0)], "cluster": "c", "node": "n", "cpu_busy_ratio": ["high"]})
    with pytest.raises(InputRejectedError, match="cpu_busy_ratio"):
        FrameStore({"node": frame})
