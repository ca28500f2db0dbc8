"""Exporters' bodies, written by hand after their shape, with the right rows, facts and holders."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collector.plugins import SourceContext
from collector.settings import TenantSettings

if TYPE_CHECKING:
    from tests.collector.conftest import Cycles

MIB = 2**20
A100_SM = 108


def lines(*samples: tuple[str, dict[str, str], object]) -> str:
    """Write samples as an exposition."""
    text = ""
    for name, labels, value in samples:
        inside = ",".join(f'{label}="{said}"' for label, said in labels.items())
        text += f"{name}{{{inside}}} {value}\n"
    return text


# -- node_exporter ---------------------------------------------------------------------------------------------------


def host(minute: int, *, available: int = 24, cpus: int = 2) -> str:
    """A host whose CPU 0 idles a quarter and waits an eighth of the time; the others idle half of it."""
    text = f"node_memory_MemTotal_bytes {64 * MIB}\nnode_memory_MemAvailable_bytes {available * MIB}\n"
    text += 'node_exporter_build_info{version="1.9.1",goversion="go1.24"} 1\n'
    seconds = 60 * minute
    for cpu in range(cpus):
        share = (
            {"idle": 0.25, "iowait": 0.125, "user": 0.5, "system": 0.125} if cpu == 0 else {"idle": 0.5, "user": 0.5}
        )
        for mode, part in share.items():
            text += f'node_cpu_seconds_total{{cpu="{cpu}",mode="{mode}"}} {1000 + seconds * part}\n'
    for device, rate in (("eth0", 100), ("eth1", 20), ("lo", 9999), ("veth1a2b", 9999), ("bond0", 9999)):
        text += f'node_network_receive_bytes_total{{device="{device}"}} {seconds * rate}\n'
        text += f'node_network_transmit_bytes_total{{device="{device}"}} {seconds * rate / 2}\n'
    for device, rate in (
        ("nvme0n1", 5),
        ("sda", 7),
        ("dm-0", 9999),
        ("md127", 9999),
        ("nvme0n1p2", 9999),
        ("sda1", 9999),
    ):
        text += f'node_disk_read_bytes_total{{device="{device}"}} {seconds * rate}\n'
        text += f'node_disk_written_bytes_total{{device="{device}"}} {seconds * rate * 2}\n'
    return text


def test_a_hosts_cpu_memory_network_and_disks(cycles: Cycles) -> None:
    cycles.poll(host(0))
    first = cycles.frame("node").loc["node-a"]
    assert first["memory_used_bytes"] == 40 * MIB
    assert "cpu_busy_ratio" not in first.index
    cycles.poll(host(1))
    row = cycles.frame("node").loc["node-a"]
    assert row["cpu_busy_ratio"] == pytest.approx((0.625 + 0.5) / 2)
    assert row["cpu_iowait_ratio"] == pytest.approx(0.125 / 2)
    assert (row["network_rx_bytes_per_second"], row["network_tx_bytes_per_second"]) == (120.0, 60.0)
    assert (row["disk_read_bytes_per_second"], row["disk_write_bytes_per_second"]) == (12.0, 24.0)
    assert cycles.batch.rejects == []


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.fixed_dictionaries({mode: st.integers(0, 600) for mode in ("idle", "iowait", "user", "system", "steal")}),
        min_size=1,
        max_size=4,
    ),
    st.randoms(use_true_random=False),
)
def test_busy_waiting_and_idle_are_all_of_a_hosts_time_in_whatever_order(
    cpus: list[dict[str, int]], order: Random
) -> None:
    from tests.collector.conftest import Cycles  # noqa: PLC0415  a fresh one for each example

    cycles = Cycles(SourceContext(cluster="test"))
    for grown in (0, 1):
        rows = [
            ("node_cpu_seconds_total", {"cpu": str(n), "mode": mode}, 50 + grown * seconds)
            for n, cpu in enumerate(cpus)
            for mode, seconds in cpu.items()
        ]
        order.shuffle(rows)
        cycles.poll(lines(*rows))
    total = sum(sum(cpu.values()) for cpu in cpus)
    frame = cycles.frame("node")
    if not total:
        assert frame.empty
        return
    row = frame.loc["node-a"]
    idle = sum(cpu["idle"] for cpu in cpus) / total
    assert row["cpu_busy_ratio"] + row["cpu_iowait_ratio"] + idle == pytest.approx(1.0)
    assert row["cpu_iowait_ratio"] == pytest.approx(sum(cpu["iowait"] for cpu in cpus) / total)


def test_without_what_is_available_a_hosts_memory_is_unknown(cycles: Cycles) -> None:
    text = host(1).replace(f"node_memory_MemAvailable_bytes {24 * MIB}\n", "")
    cycles.poll(text)
    assert "node" not in cycles.batch.rows or "memory_used_bytes" not in cycles.frame("node").columns


def test_a_host_that_starts_anew_or_was_away_gives_no_rate(cycles: Cycles) -> None:
    for minute in (10, 11):
        cycles.poll(host(minute))
    cycles.poll(host(0))
    row = cycles.frame("node").loc["node-a"]
    assert list(row.dropna().index) == ["time", "cluster", "memory_used_bytes"]
    cycles.poll(host(30), skip=5)
    assert "cpu_busy_ratio" not in cycles.frame("node").loc["node-a"].dropna().index


def test_a_hosts_exporter_tells_its_version_and_a_new_one_is_an_event(cycles: Cycles) -> None:
    cycles.poll(host(0))
    cycles.poll(host(1).replace("1.9.1", "1.10.0"))
    assert "version_changed" in cycles.events()
    assert [fact.value for fact in cycles.batch.facts if fact.name == "exporter_version"] == ["node_exporter 1.10.0"]


def test_two_hosts_behind_one_prometheus_are_two_rows(cycles: Cycles) -> None:
    cycles.poll({"http://n1:9100/metrics": host(0), "http://n2:9100/metrics": host(0, available=60)}, node="")
    assert dict(cycles.frame("node")["memory_used_bytes"]) == {"n1": 40 * MIB, "n2": 4 * MIB}


@pytest.mark.parametrize(
    ("url", "extra", "node"),
    [
        ("node-exporter/10.0.0.5:9100", 'node_uname_info{nodename="gpu-7",machine="x86_64"} 1\n', "gpu-7"),
        ("http://10.0.0.5:9100/metrics", 'node_uname_info{nodename="gpu-7",machine="x86_64"} 1\n', "gpu-7"),
        ("http://gpu-8:9100/metrics", "", "gpu-8"),
        ("node-exporter/gpu-9:9100", "", "gpu-9"),
    ],
)
def test_a_hosts_name_is_its_own_else_that_of_its_address(cycles: Cycles, url: str, extra: str, node: str) -> None:
    text = host(0).replace("node_memory_MemTotal_bytes", 'node_memory_MemTotal_bytes{instance="gpu-9:9100"}')
    text = text.replace("node_memory_MemAvailable_bytes", 'node_memory_MemAvailable_bytes{instance="gpu-9:9100"}')
    cycles.poll({url: text + extra}, node="")
    assert node in cycles.frame("node").index


# -- dcgm-exporter of DCGM 4.7 ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "raw", "field", "value"),
    [
        ("DCGM_FI_DEV_GPU_UTIL_RATIO", 87, "busy_ratio", 0.87),  # 4.6: another name of the percent
        ("DCGM_FI_DEV_GPU_UTIL_RATIO", 0.87, "busy_ratio", 0.87),  # 4.7: a field of its own
        ("DCGM_FI_DEV_GPU_UTIL_RATIO", 0, "busy_ratio", 0.0),
        ("DCGM_FI_DEV_MEMORY_UTIL_RATIO", 0.4, "memory_busy_ratio", 0.4),
        ("DCGM_FI_DEV_ENC_UTIL_RATIO", 1, "encoder_ratio", 1.0),
        ("DCGM_FI_DEV_FB_USED_BYTES", 5e9, "memory_used_bytes", 5e9),
        ("DCGM_FI_DEV_SM_CLOCK_HERTZ", 1.41e9, "sm_clock_hertz", 1.41e9),
    ],
)
def test_fields_in_base_units(cycles: Cycles, metric: str, raw: float, field: str, value: float) -> None:
    cycles.poll(lines((metric, {"gpu": "0", "UUID": "GPU-0"}, raw)))
    assert cycles.frame("gpu").loc["GPU-0", field] == pytest.approx(value)


def test_a_one_that_may_be_a_percent_or_all_is_neither(cycles: Cycles) -> None:
    card = {"gpu": "0", "UUID": "GPU-0"}
    cycles.poll(lines(("DCGM_FI_DEV_GPU_UTIL_RATIO", card, 1), ("DCGM_FI_DEV_GPU_TEMP", card, 40)))
    assert "busy_ratio" not in cycles.frame("gpu").columns
    assert cycles.rejects() == {("busy_ratio", "unit_not_clear"): 1}


def test_energy_and_throttling_in_base_units_and_remapped_rows_by_their_newer_names(cycles: Cycles) -> None:
    card = {"gpu": "0", "UUID": "GPU-0"}
    for n in (0, 1):
        cycles.poll(
            lines(
                ("DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", card, 6000 * n),
                ("DCGM_FI_DEV_GPU_POWER_THROTTLE_SECONDS_TOTAL", card, 15 * n),
                ("DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL", card, 2 * n),
            )
        )
    row = cycles.frame("gpu").loc["GPU-0"]
    assert (row["energy_joules"], row["throttle_power_ratio"], row["rows_remapped_corrected_count"]) == (6000, 0.25, 2)


# -- nvitop-exporter -------------------------------------------------------------------------------------------------


def nvitop(*, instances: bool) -> str:
    def device(index: str, uuid: str, model: str, values: dict[str, object]) -> str:
        labels = {"devicename": model, "hostname": "h", "index": index, "uuid": uuid}
        return lines(*((name, labels, value) for name, value in values.items()))

    text = 'nvitop_info{cuda_driver_version="12.8",driver_version="570.86",hostname="h"} 1.0\n'
    text += device(
        "0", "GPU-cut", "NVIDIA H200",
        {"gpu_utilization_Percentage": "NaN" if instances else 30.0, "gpu_power_usage_W": 400.0,
         "gpu_memory_used_MiB": 600.0, "gpu_memory_free_MiB": 400.0, "gpu_memory_total_MiB": 1005.0},
    )  # fmt: skip
    if instances:
        text += device(
            "0:1", "MIG-5f0e-1", "NVIDIA H200 MIG 1g.18gb",
            {"gpu_utilization_Percentage": "NaN", "gpu_power_usage_W": "NaN", "gpu_memory_used_MiB": 10000.0,
             "gpu_memory_free_MiB": 6300.0, "gpu_memory_total_MiB": 16384.0},
        )  # fmt: skip
        text += 'process_gpu_sm_utilization_Percentage{index="0:1",uuid="MIG-5f0e-1",pid="7",hostname="h"} 0.0\n'
    return text


def test_nvitop_names_with_units_and_not_available_is_absent_without_a_reject(cycles: Cycles) -> None:
    cycles.poll(nvitop(instances=False))
    row = cycles.frame("gpu").loc["GPU-cut"]
    assert (row["busy_ratio"], row["power_watts"], row["memory_used_bytes"]) == (0.3, 400.0, 600 * MIB)
    assert cycles.facts("memory_total_bytes") == {"GPU-cut": str(1005 * MIB)}
    assert cycles.facts("driver_version") == {"GPU-cut": "570.86"}
    assert cycles.facts("cuda_version") == {"GPU-cut": "12.8"}
    assert cycles.facts("mig") == {"GPU-cut": "disabled"}
    assert cycles.batch.rejects == []


def test_an_instance_whose_number_nobody_tells_is_no_slice_and_the_card_not_whole(cycles: Cycles) -> None:
    cycles.poll(nvitop(instances=True))
    assert cycles.frame("slice").empty
    assert "busy_ratio" not in cycles.frame("gpu").columns
    assert cycles.facts("mig") == {"GPU-cut": "enabled"}
    assert cycles.rejects() == {("", "MIG instance of a card that is not known"): 5}


def test_an_instance_that_another_exporter_places_is_read(cycles: Cycles) -> None:
    info = {
        "uuid": "GPU-cut",
        "mig_uuid": "MIG-5f0e-1",
        "gpu_instance_id": "9",
        "compute_instance_id": "0",
        "profile": "1g.18gb",
    }
    place = lines(("nvidia_smi_mig_info", info, 1))
    for texts in ({"http://a/nvitop": nvitop(instances=True), "http://b/smi": place},) * 2:
        cycles.poll(texts)
    row = cycles.frame("slice").loc["gi9"]
    assert (row["memory_used_bytes"], row["gpu"]) == (10000 * MIB, "GPU-cut")
    assert row["sm_quota_ratio"] == pytest.approx(16 / 132)
    assert cycles.batch.rejects == []


# -- nvidia_gpu_exporter under MIG -----------------------------------------------------------------------------------

BARE = "1c67088e-9ecb-4564-bb97-6151ecc2ef64"


def test_instances_of_nvidia_gpu_exporter_with_the_profile_of_their_info(cycles: Cycles) -> None:
    def instance(name: str, value: object) -> tuple[str, dict[str, str], object]:
        return name, {"uuid": BARE, "gpu_instance_id": "2"}, value

    info = {"uuid": BARE, "gpu_instance_id": "2", "compute_instance_id": "0", "profile": "1c.3g.20gb", "mig_uuid": "x"}
    cycles.poll(
        lines(
            ("nvidia_smi_gpu_info", {"uuid": BARE, "name": "NVIDIA A100-SXM4-40GB", "index": "0"}, 1),
            instance("nvidia_smi_mig_memory_used_bytes", 7 * MIB),
            instance("nvidia_smi_mig_sm_activity_ratio", 0.5),
            instance("nvidia_smi_mig_tensor_activity_ratio", 0.25),
            ("nvidia_smi_mig_info", info, 1),
            ("nvidia_smi_power_draw_watts", {"uuid": BARE}, 200),
        )
    )
    row = cycles.frame("slice").loc["gi2"]
    assert row["memory_used_bytes"] == 7 * MIB
    assert row["sm_active_ratio"] == pytest.approx(0.5 * 42 / A100_SM)
    assert row["sm_quota_ratio"] == pytest.approx(42 / A100_SM)
    assert row["flops_per_second"] == pytest.approx(0.25 * 42 / A100_SM * 312e12)
    assert cycles.facts("profile") == {"gi2": "3g.20gb"}
    assert cycles.frame("gpu").loc[f"GPU-{BARE}", "power_watts"] == 200.0


def test_two_reasons_of_heat_add_up(cycles: Cycles) -> None:
    for seconds in (0, 12):
        cycles.poll(
            lines(
                *(
                    (
                        f"nvidia_smi_clocks_event_reasons_counters_{kind}_thermal_slowdown_seconds",
                        {"uuid": BARE},
                        seconds,
                    )
                    for kind in ("hw", "sw")
                )
            )
        )
    assert cycles.frame("gpu").loc[f"GPU-{BARE}", "throttle_thermal_ratio"] == pytest.approx(0.4)


# -- AMD -------------------------------------------------------------------------------------------------------------


def amd(
    *, board: str, gpu_id: int, partition: int, mode: str, memory: str = "nps1", pod: str = "", **values: object
) -> str:
    labels = {
        "card_model": "102-G30211-0C", "card_series": "AMD Instinct MI300X OAM", "serial_number": board,
        "gpu_id": str(gpu_id), "gpu_partition_id": str(partition), "gpu_uuid": f"{board}-{partition}",
        "gpu_compute_partition_type": mode, "gpu_memory_partition_type": memory, "hostname": "h",
        "driver_version": "6.12.12", "pod": pod, "namespace": "ns" if pod else "", "container": "c" if pod else "",
    }  # fmt: skip
    return lines(*((name, labels, value) for name, value in values.items()))


def test_an_undivided_amd_card_is_whole(cycles: Cycles) -> None:
    cycles.poll(
        amd(board="b1", gpu_id=3, partition=0, mode="spx", pod="job-0", gpu_gfx_activity=40, gpu_used_vram=1000,
            gpu_power_usage=600)
    )  # fmt: skip
    card = cycles.frame("gpu").loc["b1-0"]
    assert (card["busy_ratio"], card["memory_used_bytes"], card["power_watts"]) == (0.4, 1000 * MIB, 600.0)
    row = cycles.frame("slice").loc["whole"]
    assert (row["tenant"], row["workload"], row["busy_ratio"]) == ("ns", "job", 0.4)
    assert cycles.facts("model") == {"b1-0": "AMD Instinct MI300X OAM"}
    assert cycles.facts("driver_version") == {"b1-0": "6.12.12"}


def test_partitions_are_slices_and_the_cards_sensors_stand_on_the_first(cycles: Cycles) -> None:
    text = "".join(
        amd(board=board, gpu_id=first + n, partition=n, mode="dpx", pod=f"job-{board}{n}", gpu_gfx_activity=90,
            gpu_power_usage=500 if n == 0 else 0, gpu_used_vram=100 if n == 0 else 0, gpu_prof_sm_active=50 + 20 * n)
        for board, first in (("b1", 40), ("b2", 7))
        for n in (1, 0)
    )  # fmt: skip
    cycles.poll(text)
    cards = cycles.frame("gpu")
    assert sorted(cards.index) == ["b1-0", "b2-0"]
    assert list(cards["power_watts"]) == [500.0, 500.0]
    assert list(cards["memory_used_bytes"]) == [100 * MIB] * 2
    assert "busy_ratio" not in cards.columns
    assert list(cards["sm_active_ratio"]) == [pytest.approx((0.5 + 0.7) / 2)] * 2
    rows = cycles.frame("slice")
    assert sorted(rows.index) == ["p0", "p0", "p1", "p1"]
    second = rows[rows["gpu"] == "b1-0"].loc["p1"]
    assert (second["tenant"], second["sm_quota_ratio"], second["sm_active_ratio"]) == ("ns", 0.5, pytest.approx(0.35))
    assert "memory_used_bytes" not in rows.columns
    assert "power_watts" not in rows.columns
    assert set(cycles.facts("kind").values()) == {"mig"}
    assert set(cycles.facts("profile").values()) == {"dpx/nps1"}
    assert cycles.batch.rejects == []


def test_memory_that_is_divided_like_the_compute_units_is_the_partitions_own(cycles: Cycles) -> None:
    cycles.poll(
        "".join(
            amd(board="b1", gpu_id=n, partition=n, mode="qpx", memory="nps4", gpu_used_vram=100 + n, gpu_free_vram=900,
                gpu_total_vram=1000)
            for n in range(4)
        )
    )  # fmt: skip
    assert list(cycles.frame("slice")["memory_used_bytes"]) == [(100 + n) * MIB for n in range(4)]
    assert cycles.frame("gpu").loc["b1-0", "memory_used_bytes"] == 406 * MIB
    assert cycles.facts("memory_total_bytes").get("b1-0") != str(1000 * MIB)


def test_a_partition_without_its_first_is_counted_and_not_given_to_another_card(cycles: Cycles) -> None:
    cycles.poll(amd(board="", gpu_id=5, partition=3, mode="cpx", gpu_power_usage=0, gpu_prof_sm_active=10))
    assert cycles.frame("gpu").empty
    assert cycles.rejects() == {("", "partition of a card that is not known"): 2}


# -- HAMi, Volcano ---------------------------------------------------------------------------------------------------


def in_container(pod: str, uuid: str, place: str = "0", container: str = "c") -> dict[str, str]:
    return {"namespace": "ns", "pod": pod, "container": container, "vdevice_index": place, "device_uuid": uuid}


def test_a_container_that_hami_gave_a_mig_instance_holds_it(cycles: Cycles) -> None:
    given = in_container("job-0", "GPU-0") | {
        "mig_uuid": "MIG-7", "profile": "2g.20gb", "gpu_instance_id": "3", "compute_instance_id": "0"
    }  # fmt: skip
    cycles.poll(
        {
            "http://a/hami": lines(
                ("hami_mig_device_info", given, 1),
                ("hami_vgpu_memory_used_bytes", in_container("job-0", "MIG-7"), 5 * MIB),
                ("hami_container_device_utilization_ratio", in_container("job-0", "MIG-7"), 0),
            ),
            "http://b/dcgm": lines(
                (
                    "DCGM_FI_PROF_SM_ACTIVE",
                    {
                        "gpu": "0",
                        "UUID": "GPU-0",
                        "modelName": "NVIDIA A100-SXM4-80GB",
                        "GPU_I_ID": "3",
                        "GPU_I_PROFILE": "2g.20gb",
                    },
                    0.5,
                )
            ),
        }
    )
    row = cycles.frame("slice").loc["gi3"]
    assert (row["tenant"], row["workload"], row["memory_used_bytes"]) == ("ns", "job", 5 * MIB)
    assert row["sm_active_ratio"] == pytest.approx(0.5 * 28 / A100_SM)
    assert "busy_ratio" not in cycles.frame("slice").columns  # the monitor's 0 is none
    assert cycles.facts("kind") == {"gi3": "mig"}


def test_shares_inside_an_instance_say_which_one(cycles: Cycles) -> None:
    pods = ("a-0", "b-0")
    cycles.poll(
        "".join(
            lines(
                (
                    "hami_mig_device_info",
                    in_container(pod, "GPU-0") | {"mig_uuid": "MIG-7", "profile": "2g.20gb", "gpu_instance_id": "3"},
                    1,
                ),
                ("hami_vgpu_memory_used_bytes", in_container(pod, "MIG-7"), (n + 1) * MIB),
                ("hami_vgpu_memory_limit_bytes", in_container(pod, "MIG-7"), 0 if n else 9 * MIB),
            )
            for n, pod in enumerate(pods)
        )
    )
    rows = cycles.frame("slice")
    assert list(rows["memory_used_bytes"]) == [MIB, 2 * MIB]
    assert list(rows.index) == ["ns/a-0/c/0", "ns/b-0/c/0"]
    assert rows.loc["ns/a-0/c/0", "memory_quota_bytes"] == 9 * MIB
    assert rows["memory_quota_bytes"].isna().loc["ns/b-0/c/0"]  # 0 is no limit
    assert {(f.subject.slice, f.value) for f in cycles.batch.facts if f.name == "instance"} == {
        ("ns/a-0/c/0", "gi3"), ("ns/b-0/c/0", "gi3")
    }  # fmt: skip
    assert set(cycles.facts("profile").values()) == {"2g.20gb"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('hami_gpu_memory_limit_bytes{node="n",device_uuid="GPU-0",device_index="0"} 5e10', "50000000000"),
        ('GPUDeviceMemoryLimit{nodeid="n",deviceuuid="GPU-0",deviceidx="0"} 5e10', "50000000000"),
        ('GPUDeviceMemoryLimit{nodeid="n",deviceuuid="GPU-0",devicebrand="Tesla"} 8192', str(8192 * MIB)),
        ('volcano_vgpu_device_memory_limit{NodeName="n",devID="GPU-0"} 32768', str(32768 * MIB)),
    ],
)
def test_what_a_scheduler_may_give_of_a_card_is_a_fact(cycles: Cycles, text: str, value: str) -> None:
    cycles.poll({"http://a/s": text + "\n", "http://b/d": 'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-0"} 5\n'})
    assert cycles.facts("schedulable_memory_bytes") == {"GPU-0": value}


@pytest.mark.parametrize(
    "line",
    [
        'hami_vgpu_core_allocated_ratio{namespace="ns",pod="p",container_index="0",device_uuid="GPU-0",node="n"} 0',
        'volcano_vgpu_device_core_allocation_for_a_certain_pod{NodeName="n",devID="GPU-0",podName="p"} 0',
    ],
)
def test_no_cores_is_no_limit_and_not_a_quota_of_nothing(cycles: Cycles, line: str) -> None:
    cycles.poll(line + "\n")
    assert cycles.frame("slice").empty
    assert cycles.batch.rejects == []


def test_hamis_host_figures_of_temperature_power_and_errors(cycles: Cycles) -> None:
    labels = {"node": "node-a", "device_index": "0", "device_uuid": "GPU-0", "device_type": "NVIDIA-NVIDIA H200"}
    for errors in (4, 6):
        cycles.poll(
            lines(
                ("hami_host_gpu_temperature_celsius", labels, 61),
                ("hami_host_gpu_power_usage_watts", labels, 430.5),
                ("hami_host_gpu_ecc_errors_total", labels | {"error_type": "corrected"}, errors),
                ("hami_host_gpu_ecc_errors_total", labels | {"error_type": "uncorrected"}, 1),
            )
        )
    row = cycles.frame("gpu").loc["GPU-0"]
    assert (row["temperature_celsius"], row["power_watts"]) == (61.0, 430.5)
    assert (row["ecc_corrected_count"], row["ecc_uncorrected_count"]) == (2.0, 0.0)


# -- servers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["sglang:", "sglang_"])
def test_sglang_counts_ranks_once_and_engines_together(cycles: Cycles, prefix: str) -> None:
    def text(n: int) -> str:
        result = ""
        for dp in ("0", "1"):
            for tp in ("0", "1"):
                labels = f'model_name="m",engine_type="unified",tp_rank="{tp}",dp_rank="{dp}"'
                result += (
                    f"{prefix}num_requests_total{{{labels}}} {n}\n"
                    f"{prefix}generation_tokens_total{{{labels}}} {50 * n}\n"
                    f"{prefix}num_queue_reqs{{{labels}}} 3\n{prefix}token_usage{{{labels}}} 0.25\n"
                    f"{prefix}num_retracted_requests_total{{{labels}}} {n // 60}\n"
                    f'{prefix}e2e_request_latency_seconds_bucket{{{labels},le="1"}} {n}\n'
                    f'{prefix}e2e_request_latency_seconds_bucket{{{labels},le="+Inf"}} {n}\n'
                    f"{prefix}inter_token_latency_seconds_sum{{{labels}}} {n * 0.5}\n"
                    f"{prefix}inter_token_latency_seconds_count{{{labels}}} {n * 50}\n"
                )
        return result

    pod = {"namespace": "ns", "pod": "llm-0", "container": "c"}
    card = lines(("DCGM_FI_DEV_GPU_UTIL", {"gpu": "0", "UUID": "GPU-0", **pod}, 50))
    for n in (0, 60):
        cycles.poll({"http://a/dcgm": card, "http://llm/m": text(n)}, labels={"http://llm/m": pod})
    row = cycles.frame("slice").loc["whole"]
    assert (row["requests_per_second"], row["tokens_per_second"]) == (2.0, 100.0)
    assert (row["queue_depth_count"], row["kv_cache_used_ratio"], row["preemption_count"]) == (6.0, 0.25, 2.0)
    assert row["latency_p50_seconds"] == pytest.approx(0.5)
    assert row["step_seconds"] == pytest.approx(0.01)


def test_tritons_figures_of_the_card_are_the_cards(cycles: Cycles) -> None:
    for joules in (100, 160):
        cycles.poll(
            lines(
                ("nv_gpu_utilization", {"gpu_uuid": "GPU-0"}, 0.5),
                ("nv_gpu_memory_used_bytes", {"gpu_uuid": "GPU-0"}, 7e9),
                ("nv_energy_consumption", {"gpu_uuid": "GPU-0"}, joules),
            )
        )
    row = cycles.frame("gpu").loc["GPU-0"]
    assert (row["busy_ratio"], row["memory_used_bytes"], row["energy_joules"]) == (0.5, 7e9, 60.0)


# -- the user's table ------------------------------------------------------------------------------------------------


def test_cards_that_nobody_names_belong_to_the_tenant_of_their_node_or_uuid(
    cycles_with: Callable[..., Cycles],
) -> None:
    tenants = (TenantSettings(name="vision", nodes=("node-*",)), TenantSettings(name="speech", gpus=("GPU-9*",)))
    cycles = cycles_with(tenants=tenants)
    cycles.poll('DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-1"} 5\n')
    assert list(cycles.frame("slice")["tenant"]) == ["vision"]
    assert list(cycles.frame("slice")["workload"]) == ["unknown"]
    cycles.poll('DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-91"} 5\n', node="other")
    assert list(cycles.frame("slice")["tenant"]) == ["speech"]
