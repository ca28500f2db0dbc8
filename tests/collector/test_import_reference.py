"""Every recorded log and capture goes through, with the values that another reader found in it."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from collector.importing import Format, ImportOptions, import_files
from collector.settings import StoreSettings
from collector.store import EmbeddedStore
from collector.window import Window

ALL = Window(datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC))
START = datetime(2026, 4, 1, tzinfo=UTC)
MIB = 2**20

# Column of the reference -> (field, factor).
FIELDS = {
    "util_gpu_pct": ("busy_ratio", 0.01),
    "util_mem_pct": ("memory_busy_ratio", 0.01),
    "mem_used_mib": ("memory_used_bytes", MIB),
    "power_w": ("power_watts", 1.0),
    "temp_c": ("temperature_celsius", 1.0),
    "mem_temp_c": ("memory_temperature_celsius", 1.0),
}
# Beginning of a file's name -> what its user says of it.
SAID: dict[str, dict[str, object]] = {
    "plato": {
        "columns": "timestamp,utilization.gpu,utilization.memory,memory.used,memory.free,temperature.gpu,power.draw"
    },
    "llamacpp": {"columns": "timestamp,utilization.gpu,memory.used"},
    "txl": {"columns": "power.draw,temperature.gpu,temperature.memory,utilization.gpu,utilization.memory"},
    "txl_transformer_sin_500ms": {
        "columns": "power.draw,temperature.gpu,temperature.memory,utilization.gpu,utilization.memory",
        "step_seconds": 0.5,
    },
}
LOGS = (
    "gpu_glasses_multi.csv",
    "llamacpp_nounits.csv",
    "miris_v100.csv",
    "plato_headerless.csv",
    "qwen3asr_gpu_log.csv",
    "qwen3asr_gpu_log_v2.csv",
    "qwen3asr_stt_gpu_result_0331_100.csv",
    "qwen3asr_stt_gpu_result_0331_50.csv",
    "txl_tch_gan_gan_result_simple_nvidia_smi.txt",
    "txl_tch_gan_gan_result_t3_nvidia_smi1.txt",
    "txl_tch_gan_gan_result_t6_nvidia_smi1.txt",
    "txl_tch_gan_gan_result_t8_nvidia_smi1.txt",
    "txl_tch_gan_gan_result_t9_nvidia_smi1.txt",
    "txl_tf_yolov3_nvidia_smi1.log",
    "txl_transformer_double2_transformer_xl_nvidia_smi_1.txt",
    "txl_transformer_double2_transformer_xl_nvidia_smi_2.txt",
    "txl_transformer_sin_500ms_transformer_xl_nvidia_smi_1.txt",
    "txl_transformer_sin_500ms_transformer_xl_nvidia_smi_2.txt",
    "txl_transformer_sin_500ms_transformer_xl_nvidia_smi_3.txt",
    "txl_transformer_test_train_transformer_xl_nvidia_smi_1.txt",
    "txl_transformer_test_train_transformer_xl_nvidia_smi_2.txt",
)
# The stamps of this log are in a zone of their own; the reference has them as written.
ZONED = {"gpu_glasses_multi": pd.Timedelta(hours=8)}
# Its four cards print in turn; the reference took them for one.
IN_TURN = {"llamacpp_nounits": 4}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    opened = EmbeddedStore(StoreSettings(path=tmp_path / "store"))
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def reference(shared_dir: Path) -> pd.DataFrame:
    return pd.read_parquet(shared_dir / "data" / "gpu_logs" / "logs.parquet")


def options_for(name: str) -> ImportOptions:
    said = next((SAID[start] for start in sorted(SAID, key=len, reverse=True) if name.startswith(start)), {})
    words = str(said.get("columns", ""))
    return ImportOptions(
        start=START,
        step_seconds=said.get("step_seconds", 1.0),  # type: ignore[arg-type]
        columns=tuple(words.split(",")) if words else (),
        zone=UTC,
    )


def test_the_list_of_logs_is_whole(shared_dir: Path) -> None:
    assert sorted(LOGS) == sorted(p.name for p in (shared_dir / "data" / "gpu_logs" / "raw").iterdir())


@pytest.mark.parametrize("name", LOGS)
def test_a_log_has_the_values_of_the_reference(
    shared_dir: Path, reference: pd.DataFrame, store: EmbeddedStore, name: str
) -> None:
    (report,) = import_files([shared_dir / "data" / "gpu_logs" / "raw" / name], store, options_for(name)).files
    stem = name.rpartition(".")[0]
    wanted = reference[reference["log"] == stem].reset_index(drop=True)
    assert (report.status, report.accepted, report.rejected) == ("imported", len(wanted), {})
    got = store.read("gpu", ALL)
    assert len(got) == len(wanted)
    if stem in IN_TURN:
        cards = np.arange(len(wanted)) % IN_TURN[stem]
        assert any("print in turn" in warning for warning in report.warnings)
    else:
        cards = wanted["gpu"].to_numpy()
    times = wanted["ts"] - ZONED.get(stem, pd.Timedelta(0))
    if wanted["ts"].isna().all():
        times = pd.Series(START.replace(tzinfo=None) + pd.to_timedelta(wanted["t_rel_s"], unit="s"))
    wanted = wanted.assign(card=[f"{got['node'].iloc[0]}/{n}" for n in cards], at=times.dt.tz_localize("UTC"))
    wanted = wanted.sort_values(["card", "at"], kind="stable").reset_index(drop=True)
    assert got["gpu"].tolist() == wanted["card"].tolist()
    assert (got["time"].to_numpy() == wanted["at"].to_numpy()).all()
    for column, (field, factor) in FIELDS.items():
        values = got[field].to_numpy() if field in got else np.full(len(got), np.nan)
        np.testing.assert_allclose(values, wanted[column].to_numpy() * factor, rtol=1e-12)


# capture -> (format, accepted, rejected lines and cells); None: refused by name
CAPTURES: dict[str, tuple[Format, int, int] | tuple[Format, None, str]] = {
    "dcgmi_dmon_mig.txt": (Format.DCGMI_DMON, 7, 0),
    "dcgm_gpu_util_garbage.csv": (Format.SMI_QUERY, 7, 3),
    "log_100ms_power.csv": (Format.SMI_QUERY, 59, 0),
    "log_iso_tz_shifted_header.csv": (Format.SMI_QUERY, 43, 0),
    "nvsmi_h100mig_compute_apps.csv": (Format.SMI_APPS, 3, 0),
    "nvsmi_h100mig_dmon.txt": (Format.DMON, 5, 0),
    "nvsmi_h100mig_pmon_idle.txt": (Format.PMON, 5, 0),
    "nvsmi_h100mig_query_gpu.csv": (Format.SMI_QUERY, 1, 0),
    "nvsmi_l40s_compute_apps.csv": (Format.SMI_APPS, 2, 0),
    "nvsmi_l40s_dmon.txt": (Format.DMON, 5, 0),
    "nvsmi_l40s_pmon.txt": (Format.PMON, 10, 0),
    "nvsmi_windows_compute_apps.csv": (Format.SMI_APPS, 21, 0),
    "nvsmi_windows_pmon.txt": (Format.PMON, 105, 0),
    "own_openmetrics_exemplar.txt": (Format.EXPOSITION, None, "no sample in it belongs"),
    "api_exported_pod_flapping.json": (Format.JSON, None, "other JSON"),
    "dcgm_exporter_500_duplicate.txt": (Format.HTTP, None, "answered with an error"),
    "nvsmi_h100mig_L.txt": (Format.SMI_LIST, None, "list of devices"),
    "nvsmi_h200mig_L_multi_ci.txt": (Format.SMI_LIST, None, "list of devices"),
    "nvsmi_h200mig_accounted_apps.csv": (Format.ACCOUNTED, None, "finished processes"),
    "slurm_blank_python.txt": (Format.JSON, None, "other JSON"),
    "own_empty.prom": (Format.EMPTY, None, "nothing is in it"),
    "INDEX.md": (Format.UNKNOWN, None, "expected exposition text"),
}


def test_captures_go_through_or_are_refused_by_name(shared_dir: Path, store: EmbeddedStore) -> None:
    folder = shared_dir / "telemetry" / "captures"
    options = ImportOptions(start=START, step_seconds=1.0, zone=UTC)
    reports = {Path(f.path).name: f for f in import_files([folder], store, options).files}
    for name, (kind, accepted, rest) in CAPTURES.items():
        report = reports[name]
        assert report.format is kind, name
        if accepted is None:
            assert (report.status, str(rest) in report.reason) == ("rejected", True), (name, report.reason)
        else:
            assert (report.status, report.accepted, report.rejected_count) == ("imported", accepted, rest), name
    others = {name: report for name, report in reports.items() if name not in CAPTURES}
    assert {report.format for report in others.values()} == {Format.EXPOSITION, Format.COUNTERS}
    assert all(report.reason for report in others.values() if report.status == "rejected")


# capture, field, values of the first rows
FIRST: list[tuple[str, str, str, list[float]]] = [
    ("nvsmi_l40s_dmon.txt", "gpu", "busy_ratio", [0.10, 0.09, 0.09, 0.09, 0.10]),
    ("nvsmi_l40s_dmon.txt", "gpu", "encoder_ratio", [0.67, 0.59, 0.63, 0.59, 0.67]),
    ("nvsmi_h100mig_dmon.txt", "gpu", "power_watts", [438, 440, 437, 439, 439]),
    ("nvsmi_h100mig_dmon.txt", "gpu", "busy_ratio", [np.nan] * 5),
    ("dcgmi_dmon_mig.txt", "gpu", "sm_active_ratio", [0.101, 0.101, 0.099]),
    ("dcgmi_dmon_mig.txt", "gpu", "power_watts", [251.037, 250.981, 249.110]),
    ("dcgmi_dmon_mig.txt", "slice", "memory_used_bytes", [12000 * MIB, 12000 * MIB, 13 * MIB, 13 * MIB]),
    ("nvsmi_l40s_pmon.txt", "slice", "busy_ratio", [0.02, 0.02, 0.01, 0.0, 0.02, 0.06, 0.05, 0.08, 0.07, 0.05]),
    ("nvsmi_h100mig_query_gpu.csv", "gpu", "power_watts", [433.78]),
    ("nvsmi_h100mig_query_gpu.csv", "gpu", "memory_used_bytes", [11125 * MIB]),
    ("nvsmi_h100mig_compute_apps.csv", "slice", "memory_used_bytes", [2296 * MIB, 1272 * MIB, 7484 * MIB]),
    ("dcgm_gpu_util_garbage.csv", "gpu", "busy_ratio", [0, np.nan, 0, 0.97, np.nan, np.nan, 0.98]),
]


@pytest.mark.parametrize("case", FIRST, ids=lambda case: f"{case[0]}-{case[2]}")
def test_a_capture_has_its_values(
    shared_dir: Path, store: EmbeddedStore, case: tuple[str, str, str, list[float]]
) -> None:
    name, measurement, field, values = case
    options = ImportOptions(start=START, step_seconds=1.0, zone=UTC, node="n1")
    import_files([shared_dir / "telemetry" / "captures" / name], store, options)
    got = store.read(measurement, ALL)
    np.testing.assert_allclose(got[field].to_numpy() if field in got else np.full(len(got), np.nan), values)


SNAPSHOTS = [f"cs336w_medium_{size}_{what}" for size in (128, 256, 512, 1024) for what in ("inference", "training")]


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_a_snapshot_has_the_amounts_of_the_reference(shared_dir: Path, store: EmbeddedStore, name: str) -> None:
    folder = shared_dir / "data" / "memory_snapshots"
    reference = pd.read_csv(folder / "reference.csv").set_index("snapshot").loc[name]
    (report,) = import_files([folder / "json" / f"{name}.json.gz"], store, ImportOptions(node="n1")).files
    assert (report.format, report.status) == (Format.SNAPSHOT, "imported")
    assert report.accepted == reference["segments"]
    row = store.read("slice", ALL).iloc[0]
    assert row["allocator_reserved_bytes"] == reference["reserved_bytes"]
    assert row["allocator_allocated_bytes"] == reference["allocated_bytes"]
    assert row["allocator_inactive_split_bytes"] == reference["free_stuck_bytes"]
    with gzip.open(folder / "json" / f"{name}.json.gz", "rt") as file:
        last = max(int(piece.partition(",")[0].strip(" }]\n")) for piece in file.read().split('"time_us":')[1:])
    assert abs(row["time"].timestamp() * 1e6 - last) <= 1000
