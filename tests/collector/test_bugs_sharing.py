"""Known faults of exporters, rows 1 to 27: use under MIG, time-slicing, MPS, vGPU. Numbers as in `test_bugs.ROWS`."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from collector.exposition import Exposition, Series
from collector.importing.monitors import read_pmon
from collector.nvml.processes import Process, _plausible, _spread
from tests.collector.reading import read as read_log
from tests.collector.test_assemble_slices import CARD, KUBE, MONITOR, SCHEDULER, dcgm, held, kube, slices

if TYPE_CHECKING:
    from tests.collector.conftest import Cycles

MIB = 2**20
SM, ALL_SMS, MEMORY_SLICES = 14, 108, 8  # of 1g.10gb on an A100-80GB


def mig(metric: str, value: object, instance: int, profile: str = "1g.10gb", **labels: str) -> str:
    return dcgm(metric, value, GPU_I_ID=str(instance), GPU_I_PROFILE=profile, **labels)


def hami(metric: str, value: object, pod: str = "a", container: str = "c", **labels: str) -> str:
    every = {"device_uuid": "GPU-0", "vdevice_index": "0", "namespace": "ns", "pod": pod, "container": container}
    inside = ",".join(f'{name}="{text}"' for name, text in {**every, **labels}.items())
    return f"{metric}{{{inside}}} {value}\n"


def granted(pod: str = "a", index: str = "0", **labels: str) -> str:
    every = {
        "device_uuid": "GPU-0",
        "namespace": "ns",
        "pod": pod,
        "container_index": index,
        "node": "node-a",
        **labels,
    }
    inside = ",".join(f'{name}="{text}"' for name, text in every.items())
    return f"hami_vgpu_memory_allocated_bytes{{{inside}}} 4000\nhami_vgpu_core_allocated_ratio{{{inside}}} 30\n"


def capture(folder: Path, name: str) -> str:
    return (folder / "telemetry" / "captures" / name).read_text(encoding="utf-8")


def absent(row: object, field: str) -> bool:
    return field not in row.index or bool(np.isnan(row[field]))  # type: ignore[attr-defined,index]


def test_row_01_busy_time_under_mig_is_unknown_and_the_instances_activity_counts(cycles: Cycles) -> None:
    text = "".join(
        mig("DCGM_FI_DEV_GPU_UTIL", 0, n) + mig("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.9, n) for n in (1, 2)
    ) + mig("DCGM_FI_PROF_SM_ACTIVE", 0.5, 1)
    cycles.poll(text)
    assert absent(cycles.frame("gpu").loc["GPU-0"], "busy_ratio")
    rows = cycles.frame("slice")
    assert "busy_ratio" not in rows or rows["busy_ratio"].isna().all()
    assert rows.loc["gi1", "sm_active_ratio"] == pytest.approx(0.5 * SM / ALL_SMS)
    assert rows.loc["gi2", "engine_active_ratio"] == pytest.approx(0.9 * SM / ALL_SMS)


def test_row_01_of_a_real_scrape(cycles: Cycles, shared_dir: Path) -> None:
    cycles.poll(capture(shared_dir, "dcgm3_a100_mig_4active.prom"))
    assert cycles.frame("slice").loc["gi8", "engine_active_ratio"] == pytest.approx(0.408493 * 14 / 108)


BLANKS = (2147483632, 2147483635, 9223372036854775792, 9223372036854775794, 140737488355328.0, 140737488355330.0)


@pytest.mark.parametrize("blank", [*BLANKS, *(100 * value for value in BLANKS[2:])])
def test_row_02_a_blank_is_no_value(cycles: Cycles, blank: float) -> None:
    names = ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_PROF_SM_ACTIVE")
    cycles.poll("".join(dcgm(name, blank) for name in names) + dcgm("DCGM_FI_DEV_GPU_TEMP", 40))
    row = cycles.frame("gpu").loc["GPU-0"]
    assert row["temperature_celsius"] == 40
    assert all(absent(row, f) for f in ("busy_ratio", "memory_used_bytes", "power_watts", "sm_active_ratio"))
    assert sum(n for (_, reason), n in cycles.rejects().items() if reason in ("blank", "out_of_range")) == 4


def test_row_03_memory_of_an_instance_that_nobody_tells_is_unknown_until_another_source_does(cycles: Cycles) -> None:
    activity = mig("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.5, 1)
    cycles.poll(activity)
    row = cycles.frame("slice").loc["gi1"]
    assert absent(row, "memory_used_bytes")
    assert absent(row, "memory_quota_bytes")
    assert absent(cycles.frame("gpu").loc["GPU-0"], "memory_used_bytes")
    assert cycles.facts("profile") == {"gi1": "1g.10gb"}  # its size, for who needs one
    memory = mig("DCGM_FI_DEV_FB_USED", 7, 1) + mig("DCGM_FI_DEV_FB_FREE", 9000, 1)
    cycles.poll({CARD: activity, "http://other/m": memory})
    row = cycles.frame("slice").loc["gi1"]
    assert (row["memory_used_bytes"], row["memory_quota_bytes"]) == (7 * MIB, 9007 * MIB)


def test_row_04_instances_without_profiling_leave_the_cards_sum_open(cycles: Cycles) -> None:
    memory = "".join(mig("DCGM_FI_DEV_FB_USED", 5, n) for n in (1, 2))
    cycles.poll(memory + mig("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.5, 1))
    rows = cycles.frame("slice")
    assert rows.loc["gi1", "engine_active_ratio"] == pytest.approx(0.5 * SM / ALL_SMS)
    assert np.isnan(rows.loc["gi2", "engine_active_ratio"])
    assert absent(cycles.frame("gpu").loc["GPU-0"], "engine_active_ratio")


def test_row_05_what_is_the_cards_is_counted_once_and_never_a_slices(cycles: Cycles) -> None:
    def scrape(energy: int) -> str:
        return "".join(
            mig("DCGM_FI_DEV_POWER_USAGE", 100 + 10 * n, n)
            + mig("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", energy, n)
            + mig("DCGM_FI_DEV_GPU_TEMP", 40, n)
            + mig("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.5, n)
            for n in (1, 2, 3)
        )

    cycles.poll(scrape(1_000_000))
    cycles.poll(scrape(7_000_000))
    row = cycles.frame("gpu").loc["GPU-0"]
    assert row["power_watts"] == 120  # the mean of the copies
    assert row["energy_joules"] == 6000  # once, not three times
    assert not {"power_watts", "energy_joules", "temperature_celsius"} & set(cycles.frame("slice").columns)


def test_row_06_a_scrape_of_zeros_is_invalid_and_not_idle(cycles: Cycles) -> None:
    names = ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_POWER_USAGE")
    cycles.poll("".join(dcgm(name, 0) for name in names))
    assert cycles.frame("gpu").empty
    assert cycles.rejects() == {("", "zero_scrape"): 4}


def test_row_06_of_a_real_scrape(cycles: Cycles, shared_dir: Path) -> None:
    cycles.poll(capture(shared_dir, "gpuoperator_zero_after_mig.prom"))
    assert cycles.frame("gpu").empty
    assert cycles.rejects() == {("", "zero_scrape"): 8}


def test_row_07_a_running_pod_whose_instance_no_exporter_shows_is_told(cycles: Cycles) -> None:
    seen = mig("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.5, 1, **held("a"))
    wants = {"requests": {"nvidia_com_mig_1g_10gb": 1}}
    cycles.poll({CARD: seen, KUBE: kube({"ns/a": wants, "ns/b": wants})})
    uncovered = [str(r.subject) for r in cycles.batch.rejects if r.reason == "no slice known of this pod"]
    assert uncovered == ["test/ns/b"]


def test_row_08_a_profile_that_its_memory_gives_the_lie_to_is_told(cycles: Cycles) -> None:
    text = mig("DCGM_FI_DEV_FB_USED", 10_000, 1, "1g.10gb") + mig("DCGM_FI_DEV_FB_FREE", 10_000, 1, "1g.10gb")
    cycles.poll(text + mig("DCGM_FI_DEV_FB_RESERVED", 100, 1, "1g.10gb"))
    assert any("profile" in field or "profile" in reason for field, reason in cycles.rejects())
    assert cycles.frame("slice").loc["gi1", "memory_quota_bytes"] == 20_100 * MIB


def test_row_09_a_whole_card_is_the_weighted_sum_of_its_instances(cycles: Cycles) -> None:
    whole = dcgm("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.03)
    parts = mig("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 1.0, 1) + mig("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.5, 2, "2g.20gb")
    cycles.poll(whole + parts)
    expected = (1.0 * 14 + 0.5 * 28) / ALL_SMS
    assert cycles.frame("gpu").loc["GPU-0", "engine_active_ratio"] == pytest.approx(expected)


def test_row_09_of_a_real_scrape(cycles: Cycles, shared_dir: Path) -> None:
    cycles.poll(capture(shared_dir, "dcgm2_a100_mig_gpu_and_gi.prom"))
    assert cycles.frame("gpu")["engine_active_ratio"].iloc[0] == pytest.approx(0.995687 / 7)


@pytest.mark.parametrize(("value", "expected"), [(1.0, 1.0), (1.04, 1.0), (1.06, None), (-0.1, None)])
def test_row_10_a_little_above_1_is_1_and_more_is_dropped(cycles: Cycles, value: float, expected: float | None) -> None:
    cycles.poll(mig("DCGM_FI_PROF_SM_ACTIVE", value, 1) + mig("DCGM_FI_DEV_FB_USED", 5, 1))
    row = cycles.frame("slice").loc["gi1"]
    if expected is None:
        assert absent(row, "sm_active_ratio")
        assert cycles.rejects()["sm_active_ratio", "out_of_range"] >= 1
    else:
        assert row["sm_active_ratio"] == pytest.approx(expected * SM / ALL_SMS)


@pytest.mark.parametrize("blank", [9223372036854775794, 9223372036854775794 * 100, 140737488355328.0 * 100])
def test_row_11_transfers_are_the_cards_and_a_blank_is_absent(cycles: Cycles, blank: float) -> None:
    cycles.poll(mig("DCGM_FI_PROF_PCIE_TX_BYTES", blank, 1) + mig("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.5, 1))
    assert absent(cycles.frame("gpu").loc["GPU-0"], "pcie_tx_bytes_per_second")
    assert "pcie_tx_bytes_per_second" not in cycles.frame("slice").columns


PMON = "#Date Time gpu pid type sm mem command\n"


def test_row_13_use_of_a_process_on_mig_is_not_available() -> None:
    result = read_log(read_pmon, PMON + "20260401 10:00:00 0 77 C - - train\n")
    assert result.batch.rows["slice"].column("workload").to_pylist() == ["train"]
    assert "busy_ratio" not in result.batch.rows["slice"].column_names
    assert result.rejected == {}


def test_row_13_of_a_real_log(shared_dir: Path) -> None:
    result = read_log(read_pmon, capture(shared_dir, "nvsmi_h100mig_pmon_idle.txt"))
    assert (result.accepted, result.rejected, "slice" in result.batch.rows) == (5, {}, False)


def test_row_14_a_server_on_an_instance_takes_the_instances_figures(cycles: Cycles) -> None:
    card = mig("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.5, 1, **held("triton-0")) + mig("DCGM_FI_DEV_FB_USED", 7, 1)
    triton = 'nv_inference_pending_request_count{model="m",version="1"} 3\n'
    labels = {"http://t/metrics": {"namespace": "ns", "pod": "triton-0", "container": "c"}}
    cycles.poll({CARD: card, "http://t/metrics": triton}, labels=labels)
    row = cycles.frame("slice").loc["gi1"]
    assert (row["queue_depth_count"], row["memory_used_bytes"]) == (3, 7 * MIB)
    assert row["engine_active_ratio"] == pytest.approx(0.5 * SM / ALL_SMS)


def test_row_15_a_process_at_0_on_a_device_of_unknown_use_is_unknown(cycles: Cycles) -> None:
    labels = 'hostname="h",index="0",devicename="NVIDIA A100-SXM4-80GB",uuid="GPU-0"'
    text = f"gpu_utilization_Percentage{{{labels}}} NaN\ngpu_power_usage_W{{{labels}}} 80\n"
    text += f'process_gpu_sm_utilization_Percentage{{{labels},pid="7",username="u"}} 0\n'
    cycles.poll(text)
    for measurement in ("gpu", "slice"):
        frame = cycles.frame(measurement)
        assert "busy_ratio" not in frame or frame["busy_ratio"].isna().all()


def test_row_15_of_a_real_scrape(cycles: Cycles, shared_dir: Path) -> None:
    cycles.poll(capture(shared_dir, "nvitop_exporter_shim.prom"))
    frame = cycles.frame("slice")
    cut = frame[[str(name).startswith("gi") for name in frame.index]]
    assert cut.empty or "busy_ratio" not in cut or cut["busy_ratio"].isna().all()


def test_row_16_one_name_of_several_is_nobodys(cycles: Cycles) -> None:
    card = dcgm("DCGM_FI_DEV_GPU_UTIL", 60, **held("a")) + dcgm("DCGM_FI_DEV_FB_USED", 9, **held("a"))
    pods = kube({"ns/a": {}, "ns/b": {}}, strategy="time-slicing")
    cycles.poll({CARD: card, KUBE: pods})
    assert cycles.frame("slice").empty
    assert cycles.frame("gpu").loc["GPU-0", "busy_ratio"] == 0.6


def api_scrapes(document: str) -> list[tuple[float, Exposition]]:
    """Return (instant, body) of a range answer of the Prometheus API."""
    found: dict[float, Exposition] = {}
    for one in json.loads(document)["data"]["result"]:
        labels = dict(one["metric"])
        series = Series(labels.pop("__name__"), labels)
        for at, value in one["values"]:
            body = found.setdefault(float(at), Exposition(metadata=True))
            body.series.append(series)
            body.values.append(float(value))
    return sorted(found.items())


def test_row_17_a_name_that_changes_each_scrape_makes_no_second_card(cycles: Cycles, shared_dir: Path) -> None:
    from collector.assemble import Scrape  # noqa: PLC0415
    from collector.settings import TargetSettings  # noqa: PLC0415

    document = capture(shared_dir, "api_exported_pod_flapping.json")
    target = TargetSettings(url="job/instance")
    cards, tenants = set(), []
    for at, body in api_scrapes(document):
        batch = cycles.assembler.assemble(datetime.fromtimestamp(at, cycles.now.tzinfo), [Scrape(target, body)])
        table = batch.rows["gpu"].to_pydict()
        assert len(table["gpu"]) == 1
        assert not np.isnan(table["temperature_celsius"][0])
        cards |= set(table["gpu"])
        if "slice" in batch.rows:
            tenants += batch.rows["slice"].column("tenant").to_pylist()
    assert cards == {"GPU-0a000000-0000-4000-8000-000000000000"}
    assert "monitoring" not in tenants  # the exporter's own namespace is nobody's


def test_row_17_on_a_text_of_the_same_shape(cycles: Cycles) -> None:
    for pod in ("a", "b", "a", "b"):
        cycles.poll(dcgm("DCGM_FI_DEV_GPU_TEMP", 50, exported_pod=pod, exported_namespace="ns", pod="dcgm-exporter-x"))
        assert len(cycles.frame("gpu")) == 1
    assert slices(cycles) in ({}, {"whole": ("unknown", "unknown")})


def test_row_18_copies_on_every_pod_are_the_cards_and_no_pods(cycles: Cycles) -> None:
    text = "".join(
        dcgm(metric, value, **held(pod, vgpu=n))
        for metric, value in (("DCGM_FI_DEV_GPU_UTIL", 87), ("DCGM_FI_DEV_POWER_USAGE", 300))
        for n, pod in (("0", "a"), ("1", "b"))
    )
    cycles.poll(text)
    row = cycles.frame("gpu").loc["GPU-0"]
    assert (row["busy_ratio"], row["power_watts"]) == (0.87, 300)
    assert cycles.frame("slice").empty or cycles.frame("slice").drop(columns=["node"]).select_dtypes("number").empty


def test_row_19_use_of_processes_beside_the_devices_own_series(cycles: Cycles) -> None:
    text = dcgm("DCGM_FI_DEV_GPU_UTIL", 87) + dcgm("DCGM_FI_DEV_POWER_USAGE", 300)
    for n, (pod, use) in enumerate((("a", 52), ("b", 31), ("idle", 0))):
        labels = held(pod, vgpu=str(n))
        text += dcgm("DCGM_FI_DEV_GPU_UTIL", use, **labels) + dcgm("DCGM_FI_DEV_POWER_USAGE", 300, **labels)
    cycles.poll(text)
    assert cycles.frame("gpu").loc["GPU-0", "busy_ratio"] == 0.87
    rows = cycles.frame("slice")
    assert [rows.loc[f"ns/{pod}/c/0", "busy_ratio"] for pod in ("a", "b", "idle")] == [0.52, 0.31, 0.0]
    assert "power_watts" not in rows.columns


def test_row_19_of_a_real_scrape(cycles: Cycles, shared_dir: Path) -> None:
    cycles.poll(capture(shared_dir, "dcgm_vgpu_per_process_45.prom"))
    used = cycles.frame("slice")["busy_ratio"].sum()
    assert used <= cycles.frame("gpu")["busy_ratio"].iloc[0] == 0.87


def test_row_20_under_mps_a_single_name_is_not_believed(cycles: Cycles) -> None:
    card = dcgm("DCGM_FI_DEV_GPU_UTIL", 60, **held("a"))
    cycles.poll({CARD: card, KUBE: kube({"ns/a": {}, "ns/b": {}}, strategy="mps")})
    assert cycles.frame("slice").empty
    cycles.poll({CARD: card + dcgm("DCGM_FI_DEV_GPU_UTIL", 60, **held("b")), KUBE: kube({}, strategy="mps")})
    assert set(cycles.facts("kind").values()) == {"mps"}


def test_row_21_without_names_on_the_card_the_vgpu_layer_says_who(cycles: Cycles) -> None:
    card = dcgm("DCGM_FI_DEV_GPU_UTIL", 60) + dcgm("DCGM_FI_DEV_POWER_USAGE", 200)
    monitor = hami("hami_container_device_utilization_ratio", 40) + hami("hami_vgpu_memory_used_bytes", 1000)
    cycles.poll({CARD: card, MONITOR: monitor})
    rows = cycles.frame("slice")
    assert (rows.loc["ns/a/c/0", "busy_ratio"], rows.loc["ns/a/c/0", "memory_used_bytes"]) == (0.4, 1000)
    assert rows.loc["ns/a/c/0", "tenant"] == "ns"
    assert cycles.frame("gpu").loc["GPU-0", "power_watts"] == 200


def test_row_22_a_containers_use_is_capped_and_one_that_stands_still_is_idle(cycles: Cycles) -> None:
    monitor = hami("hami_container_device_utilization_ratio", 312) + hami(
        "hami_container_last_kernel_elapsed_seconds", 1
    )
    monitor += hami("hami_container_device_utilization_ratio", 55, "b")
    monitor += hami("hami_container_last_kernel_elapsed_seconds", 4000, "b")
    cycles.poll({CARD: dcgm("DCGM_FI_DEV_GPU_UTIL", 60), MONITOR: monitor})
    rows = cycles.frame("slice")
    assert (rows.loc["ns/a/c/0", "busy_ratio"], rows.loc["ns/b/c/0", "busy_ratio"]) == (1.0, 0.0)
    assert cycles.rejects() == {("busy_ratio", "above_1_capped"): 1, ("busy_ratio", "stuck_while_idle"): 1}


def test_row_22_of_a_real_scrape(cycles: Cycles, shared_dir: Path) -> None:
    cycles.poll(capture(shared_dir, "hami_legacy_memory_desc_counter.prom"))
    assert cycles.frame("slice").loc["default/llm-78c6/llm/0", "busy_ratio"] == 1.0


def test_row_23_0_on_a_busy_card_with_a_kernel_just_now_is_unknown(cycles: Cycles) -> None:
    monitor = hami("hami_container_device_utilization_ratio", 0) + hami("hami_container_last_kernel_elapsed_seconds", 2)
    cycles.poll({CARD: dcgm("DCGM_FI_DEV_GPU_UTIL", 95), MONITOR: monitor})
    assert np.isnan(cycles.frame("slice").loc["ns/a/c/0"].get("busy_ratio", np.nan))
    assert cycles.rejects() == {("busy_ratio", "zero_while_busy"): 1}
    cycles.poll({CARD: dcgm("DCGM_FI_DEV_GPU_UTIL", 0), MONITOR: monitor})
    assert cycles.frame("slice").loc["ns/a/c/0", "busy_ratio"] == 0.0


def test_row_24_what_is_granted_and_not_measured_is_of_unknown_use(cycles: Cycles) -> None:
    cycles.poll({CARD: dcgm("DCGM_FI_DEV_GPU_UTIL", 60), SCHEDULER: granted()})
    (row,) = (row for _, row in cycles.frame("slice").iterrows())
    assert (row["memory_quota_bytes"], row["sm_quota_ratio"]) == (4000, 0.3)
    assert absent(row, "busy_ratio")
    assert absent(row, "memory_used_bytes")


def test_row_25_an_empty_answer_is_an_error_and_not_idleness(cycles: Cycles) -> None:
    cycles.poll({CARD: dcgm("DCGM_FI_DEV_GPU_UTIL", 60), MONITOR: ""})
    assert cycles.events() == ["target_down"]
    assert cycles.rejects() == {("", "empty body"): 1}
    assert "busy_ratio" not in cycles.frame("slice") or cycles.frame("slice")["busy_ratio"].dropna().eq(0.6).all()


def test_row_26_what_remains_of_completed_pods_holds_nothing_and_containers_go_by_name(cycles: Cycles) -> None:
    monitor = hami("hami_vgpu_memory_used_bytes", 1, "done", "main") + hami(
        "hami_vgpu_memory_used_bytes", 2, "b", "main"
    )
    pods = kube({"ns/done": {"phase": "Succeeded"}, "ns/b": {}})
    # Its scheduler counts the init container: index 1 is the pod's only container with a card, `main`.
    scheduler = granted("done") + granted("b", index="1")
    cycles.poll({CARD: dcgm("DCGM_FI_DEV_GPU_UTIL", 60), MONITOR: monitor, SCHEDULER: scheduler, KUBE: pods})
    rows = cycles.frame("slice")
    assert list(rows.index) == ["ns/b/main/0"]
    assert (rows["memory_used_bytes"].iloc[0], rows["memory_quota_bytes"].iloc[0]) == (2, 4000)


@pytest.mark.parametrize(
    ("sample", "good"),
    [
        ({"pid": 7, "timeStamp": 9, "smUtil": 40}, True),
        ({"pid": 7, "timeStamp": 9, "smUtil": 100}, True),
        ({"pid": 7, "timeStamp": 9, "smUtil": 4294}, False),
    ],
)
def test_row_27_garbage_of_the_driver_is_dropped(sample: dict[str, int], good: bool) -> None:
    whole = SimpleNamespace(**{"memUtil": 0, "encUtil": 0, "decUtil": 0, **sample})
    assert _plausible(whole) is good
    result = read_log(read_pmon, PMON + f"20260401 10:00:00 0 7 C {sample['smUtil']} 0 train\n")
    assert ("busy_ratio" in result.batch.rows["slice"].column_names) is good


def test_row_27_samples_of_processes_that_are_gone_change_nobodys_mean() -> None:
    def sample(pid: int, use: int, at: int) -> SimpleNamespace:
        return SimpleNamespace(pid=pid, timeStamp=at, smUtil=use, memUtil=0, encUtil=0, decUtil=0)

    alive = Process(7, memory=None, mps=False)
    _spread([alive], [sample(7, 80, 1), sample(7, 40, 2), *(sample(5, 99, n) for n in range(100))])
    assert alive.busy == 60
