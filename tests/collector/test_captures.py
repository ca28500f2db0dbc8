"""Recorded outputs of real exporters, read through, with the values that are right by hand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from collector.mappings import mapping_table

if TYPE_CHECKING:
    from tests.collector.conftest import Cycles

MIB = 2**20
A100_SM, A100_SLICES = 108, 8
GPU_A = "GPU-473571f2-fb37-ef7e-50fe-9885b74a23cd"
DOUBLED = "GPU-7099682b-a20d-2bcc-74ab-b9060454d81e"
README = "GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52"
T4_HELD, T4_FREE = "GPU-7a2e92f2-be71-d37e-a744-541600ffc722", "GPU-5f587dd4-6505-0873-c6db-8324dbfe5ba9"
BOTH = "GPU-34319582-d595-d1c7-d1d2-179bcfa61660"
OWN_0 = "GPU-0a000000-0000-4000-8000-000000000000"
HAMI = "GPU-00552014-5c87-89ac-b1a6-7b53aa24b0ec"
DEMO = "GPU-1c67088e-9ecb-4564-bb97-6151ecc2ef64"
NVITOP_H200, NVITOP_A100 = "GPU-00000000-0000-4000-8000-000000000000", "GPU-11111111-1111-4111-8111-111111111111"
NGE = "GPU-00000000-0000-0000-0000-000000000000"
H100_1 = "GPU-21c6d9d7-46cd-7e91-99c3-7b6a06a3faea"

# file, measurement, subject (card or slice), field, value; None: the field must be absent
VALUES: list[tuple[str, str, str, str, float | str | None]] = [
    ("dcgm3_a100_mig_4active.prom", "slice", "gi8", "engine_active_ratio", 0.408493 * 14 / A100_SM),
    ("dcgm3_a100_mig_4active.prom", "slice", "gi8", "dram_active_ratio", 0.250816 / A100_SLICES),
    ("dcgm3_a100_mig_4active.prom", "slice", "gi8", "memory_used_bytes", 4384 * MIB),
    ("dcgm3_a100_mig_4active.prom", "slice", "gi5", "sm_quota_ratio", 28 / A100_SM),
    ("dcgm3_a100_mig_4active.prom", "slice", "gi8", "power_watts", None),
    ("dcgm3_a100_mig_4active.prom", "gpu", GPU_A, "engine_active_ratio", 0.408493 * 14 / A100_SM),
    ("dcgm3_a100_mig_4active.prom", "gpu", GPU_A, "power_watts", (2 * 112.252 + 2 * 106.463) / 4),
    ("dcgm3_a100_mig_4active.prom", "gpu", GPU_A, "memory_used_bytes", (6 + 4384 + 6 + 13) * MIB),
    ("dcgm3_a100_mig_4active.prom", "gpu", GPU_A, "busy_ratio", None),
    ("dcgm3_a100_mig_1active.prom", "slice", "gi9", "engine_active_ratio", 0.999892 * 14 / A100_SM),
    ("dcgm3_a100_mig_1active.prom", "slice", "gi9", "memory_quota_bytes", (4384 + 480) * MIB),
    ("dcgm3_a100_mig_idle_allocated.prom", "slice", "*", "engine_active_ratio", 0.0),
    ("dcgm3_a100_mig_enabled_no_instances.prom", "gpu", "*", "power_watts", 75.96),
    ("dcgm3_a100_mig_enabled_no_instances.prom", "gpu", "*", "busy_ratio", None),
    ("dcgm3_a100_mig_enabled_no_instances.prom", "gpu", "*", "memory_used_bytes", None),
    ("dcgm3_a100_mig_disabled_doubled.prom", "gpu", DOUBLED, "power_watts", 45.999),
    ("dcgm3_a100_mig_disabled_doubled.prom", "gpu", DOUBLED, "energy_joules", None),
    ("dcgm3_t4_reservation_pod.prom", "gpu", T4_HELD, "power_watts", 28.722),
    ("dcgm3_t4_reservation_pod.prom", "gpu", T4_FREE, "memory_used_bytes", 5 * MIB),
    ("dcgm3_t4_reservation_pod.prom", "slice", "whole", "tenant", "unknown"),
    ("dcgm_readme_blank_value.prom", "gpu", README, "sm_clock_hertz", 139e6),
    ("dcgm_readme_blank_value.prom", "gpu", README, "memory_temperature_celsius", None),
    ("dcgm_readme_empty_pod.prom", "gpu", README, "memory_clock_hertz", 405e6),
    ("dcgm2_a100_mig_gpu_and_gi.prom", "slice", "gi13", "engine_active_ratio", 0.995687 / 7),
    ("dcgm2_a100_mig_gpu_and_gi.prom", "gpu", BOTH, "engine_active_ratio", 0.995687 / 7),
    ("dcgm2_a100_mig_gpu_and_gi.prom", "gpu", BOTH, "memory_used_bytes", 4845 * MIB),
    ("dcgm2_a100_mig_gpu_and_gi.prom", "gpu", BOTH, "pcie_rx_bytes_per_second", 97863601.0),
    ("dcgm4_h100_mixed_mig.prom", "slice", "gi11", "memory_used_bytes", 14 * MIB),
    ("dcgm4_h100_mixed_mig.prom", "gpu", H100_1, "memory_free_bytes", 81079 * MIB),
    ("dcgm4_h100_mixed_mig.prom", "gpu", H100_1, "node", "exporter"),
    ("dcgm_vgpu_per_process_45.prom", "gpu", OWN_0, "busy_ratio", 0.87),
    ("dcgm_vgpu_per_process_45.prom", "gpu", OWN_0, "memory_used_bytes", 30595 * MIB),
    ("dcgm_vgpu_per_process_45.prom", "slice", "ns/a/c/0", "busy_ratio", 0.52),
    ("dcgm_vgpu_per_process_45.prom", "slice", "ns/b/c/0", "memory_used_bytes", 18000 * MIB),
    ("dcgm_vgpu_per_process_45.prom", "slice", "ns/idle/c/0", "busy_ratio", 0.0),
    ("hami_legacy_memory_desc_counter.prom", "slice", "default/llm-78c6/llm/0", "busy_ratio", 1.0),
    ("hami_legacy_memory_desc_counter.prom", "slice", "default/llm-78c6/llm/0", "memory_used_bytes", 19876938752.0),
    ("hami_legacy_memory_desc_counter.prom", "slice", "default/llm-78c6/llm/0", "memory_quota_bytes", 2.4e10),
    ("hami_legacy_memory_desc_counter.prom", "slice", "default/llm-78c6/llm/1", "memory_used_bytes", 0.0),
    ("hami_monitor_legacy.prom", "slice", "default/2-1-3-pod-1/2-1-3-pod-1/0", "memory_quota_bytes", 2.62144e9),
    ("hami_monitor_legacy.prom", "gpu", HAMI, "memory_used_bytes", 2.87244288e8),
    ("hami_monitor_new.prom", "slice", "default/vgpu-share/cuda/0", "idle_seconds", 3664.0),
    ("hami_monitor_new.prom", "slice", "default/vgpu-share/cuda/0", "memory_quota_bytes", 2.097152e10),
    ("hami_scheduler_new.prom", "slice", "default/ascend310p-pod/Ascend310P/0", "sm_quota_ratio", 0.5),
    ("hami_scheduler_new.prom", "slice", "default/pod-0/unknown/0", "memory_quota_bytes", 4000 * MIB),
    ("hami_scheduler_testwants.prom", "slice", "default/amd-pod/0/0", "sm_quota_ratio", 0.5),
    ("volcano_vgpu.prom", "slice", "*", "memory_quota_bytes", 16384 * MIB),
    ("hami_lab_elided_labels.prom", "gpu", "68496E64-...", "memory_used_bytes", 1.937768448e9),
    ("nge_demo_seeded.prom", "gpu", DEMO, "busy_ratio", None),
    ("nge_demo_seeded.prom", "gpu", DEMO, "power_watts", 627.4),
    ("nge_demo_seeded.prom", "slice", "gi2", "memory_used_bytes", 4.2883309544e10),
    ("nge_demo_seeded.prom", "slice", "gi2", "sm_quota_ratio", 60 / 132),
    ("nge_demo_seeded.prom", "slice", "gi2", "memory_quota_bytes", 4.2883309544e10 + 3.2971181613e10 + 3.81178347e8),
    ("nge_demo_seeded.prom", "slice", "gi7", "memory_used_bytes", 9.74140845e8),
    ("nvitop_exporter_shim.prom", "gpu", NVITOP_A100, "busy_ratio", 0.87),
    ("nvitop_exporter_shim.prom", "gpu", NVITOP_A100, "memory_busy_ratio", 0.41),
    ("nvitop_exporter_shim.prom", "gpu", NVITOP_A100, "power_watts", 251.037),
    ("nvitop_exporter_shim.prom", "gpu", NVITOP_A100, "sm_clock_hertz", 1.41e9),
    ("nvitop_exporter_shim.prom", "gpu", NVITOP_A100, "pcie_rx_bytes_per_second", 200.0 * MIB),
    ("nvitop_exporter_shim.prom", "gpu", NVITOP_A100, "nvlink_rx_bytes_per_second", None),
    ("nvitop_exporter_shim.prom", "gpu", NVITOP_H200, "busy_ratio", None),
    ("nvitop_exporter_shim.prom", "gpu", NVITOP_H200, "memory_used_bytes", 61000 * MIB),
    ("nvitop_exporter_shim.prom", "gpu", NVITOP_H200, "node", "node-a"),
    ("nvitop_exporter_shim.prom", "slice", "whole", "gpu", NVITOP_A100),
    ("nge_h100mig_load.prom", "gpu", NGE, "power_watts", 433.78),
    ("nge_h100mig_load.prom", "gpu", NGE, "sm_clock_hertz", 1.98e9),
    ("nge_h100mig_load.prom", "gpu", NGE, "busy_ratio", None),
    ("amd_clock_xgmi_docs.prom", "gpu", "xxxx/0", "sm_clock_hertz", 132e6),
    ("amd_clock_xgmi_docs.prom", "gpu", "xxxx/0", "memory_clock_hertz", 900e6),
    ("ksm_pod_gpu_requests.prom", "queue", "ns1", "pending_gpu_count", 1.0),
    ("vllm_v0.prom", "slice", "whole", "kv_cache_used_ratio", 0.25),
    ("vllm_v1.prom", "slice", "whole", "kv_cache_used_ratio", (0.41 + 0.38) / 2),
    ("tgi_router.prom", "slice", "whole", "queue_depth_count", 2.0),
    ("triton_trtllm.prom", "slice", "whole", "kv_cache_used_ratio", 0.4875),
    ("triton_trtllm.prom", "slice", "whole", "queue_depth_count", 0.0),
]

# file -> (field, reason) -> count of rejects; an empty one: nothing is rejected
REJECTS: dict[str, dict[tuple[str, str], int]] = {
    "dcgm3_a100_mig_4active.prom": {("", "no metric name"): 1},
    "dcgm3_a100_mig_disabled_doubled.prom": {("", "no metric name"): 2, ("", "value is not a number"): 1},
    "dcgm_readme_blank_value.prom": {("", "no metric name"): 2, ("memory_temperature_celsius", "blank"): 1},
    "gpuoperator_zero_after_mig.prom": {("", "zero_scrape"): 8},
    "hami_legacy_memory_desc_counter.prom": {("busy_ratio", "above_1_capped"): 1},
    "dcgm_labelless_samples.prom": {("", "no device named"): 1},
    "dcgm_exporter_500_duplicate.txt": {("", "body is an HTTP error, not an exposition"): 1},
    "nvsmi_l40s_pmon.txt": {("", "body is not an exposition"): 1},
    "slurm_blank_python.txt": {("", "body is JSON, not an exposition"): 1},
    "own_empty.prom": {("", "empty body"): 1},
    "own_no_gpus.prom": {},
    "own_unescaped_label.prom": {},
    "nvitop_exporter_shim.prom": {("", "MIG instance of a card that is not known"): 32},
    "nge_demo_seeded.prom": {},
    "hami_scheduler_new.prom": {},
    "volcano_vgpu.prom": {},
    "dcgm_vgpu_per_process_45.prom": {},
}


def read(cycles: Cycles, folder: Path, file: str) -> None:
    serves = file.startswith(("vllm", "tgi", "triton"))
    labels = {"http://exporter/metrics": {"gpu": "GPU-0"} if serves else {}}
    text = (folder / "telemetry" / "captures" / file).read_text(encoding="utf-8")
    cycles.poll({"http://exporter/metrics": text}, labels=labels, node="")


@pytest.mark.parametrize("case", VALUES, ids=lambda case: "-".join(map(str, case[:4])))
def test_the_right_value(cycles: Cycles, shared_dir: Path, case: tuple[str, str, str, str, float | str | None]) -> None:
    file, measurement, subject, field, value = case
    read(cycles, shared_dir, file)
    frame = cycles.frame(measurement)
    row = frame.iloc[0] if subject == "*" else frame.loc[subject]
    if isinstance(value, str):
        assert row[field] == value
    elif value is None:
        assert field not in row.index or row.isna()[field]
    else:
        assert row[field] == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize("file", REJECTS)
def test_what_is_rejected(cycles: Cycles, shared_dir: Path, file: str) -> None:
    read(cycles, shared_dir, file)
    assert cycles.rejects() == REJECTS[file]


def test_all_captures_go_through_and_only_what_is_no_exposition_is_down(cycles: Cycles, shared_dir: Path) -> None:
    down = set()
    for path in sorted((shared_dir / "telemetry" / "captures").iterdir()):
        if path.suffix in (".prom", ".txt"):
            fresh = type(cycles)(cycles.context)
            read(fresh, shared_dir, path.name)
            down |= {path.name} if "target_down" in fresh.events() else set()
    exposition_texts = {"own_openmetrics_exemplar.txt"}
    logs = {p.name for p in (shared_dir / "telemetry" / "captures").glob("*.txt")} - exposition_texts
    assert down == logs | {"own_empty.prom"}


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("own_unescaped_label.prom", 'XID 31: GPU memory page fault ("MMU")'),
        ("dcgm_xid_window_name_mismatch.prom", "XID 42: see the driver log"),
    ],
)
def test_an_xid_in_a_capture_is_an_event(cycles: Cycles, shared_dir: Path, file: str, message: str) -> None:
    read(cycles, shared_dir, file)
    assert [event.message for event in cycles.batch.events] == [message]


def test_the_energy_counter_of_one_card_in_three_states_falls_at_the_reset(cycles: Cycles, shared_dir: Path) -> None:
    for file in ("dcgm3_a100_mig_disabled_doubled.prom", "dcgm3_a100_mig_idle_allocated.prom"):
        read(cycles, shared_dir, file)
    assert "counter_reset" in cycles.events()
    assert "energy_joules" not in cycles.frame("gpu").columns


# Fields of the exporter's own lists that go nowhere, and why.
UNMAPPED = {
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": "readers do not agree on its unit",
    "dcgm_nvlink_bandwidth_total": "readers do not agree on its unit",
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS": "of NVIDIA's own vGPU, no part of the schema",
    "DCGM_FI_DEV_PCIE_TX_THROUGHPUT": "the driver does not tell it any more",
    "DCGM_FI_DEV_PCIE_RX_THROUGHPUT": "the driver does not tell it any more",
    "DCGM_FI_DRIVER_VERSION": "a label",
    "dcgm_board_limit_violation": "none of the four kinds of throttling",
    "dcgm_low_util_violation": "rest, not throttling",
    "dcgm_reliability_violation": "none of the four kinds of throttling",
    "dcgm_retired_pages_sbe": "pages of cards before Ampere, no part of the schema",
    "dcgm_retired_pages_dbe": "pages of cards before Ampere, no part of the schema",
    "dcgm_retired_pages_pending": "pages of cards before Ampere, no part of the schema",
}


@pytest.mark.parametrize(
    "file",
    [
        "counters_default_2.4.7.csv",
        "counters_default_3.3.9.csv",
        "counters_default_4.5.3.csv",
        "counters_1x_compat.csv",
    ],
)
def test_every_field_that_the_exporter_gives_by_default_is_mapped_or_left_out_with_a_reason(
    shared_dir: Path, file: str
) -> None:
    text = (shared_dir / "telemetry" / "captures" / file).read_text(encoding="utf-8")
    fields = [line.split(",")[0].strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert len(fields) > 15
    known = {*mapping_table().names, *UNMAPPED}
    assert [field for field in fields if field not in known] == []
