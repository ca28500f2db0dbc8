"""Known faults of exporters, rows 28 to 48: wrong values, blanks, units, XIDs. Numbers as in `test_bugs.ROWS`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from collector.batch import Severity
from collector.importing.tables import read_apps, read_query
from tests.collector.reading import read as read_log
from tests.collector.test_assemble_slices import CARD, dcgm, held
from tests.collector.test_bugs_sharing import absent, capture

if TYPE_CHECKING:
    import pandas as pd

    from tests.collector.conftest import Cycles

MIB = 2**20


def card(cycles: Cycles, uuid: str = "GPU-0") -> pd.Series:
    return cycles.frame("gpu").loc[uuid]


@pytest.mark.parametrize("garbage", [4294967295, 1_000_000, 808_334_905, 2619, 101, -1])
def test_row_28_garbage_is_dropped_and_its_series_kept(cycles: Cycles, garbage: int) -> None:
    cycles.poll(dcgm("DCGM_FI_DEV_GPU_UTIL", garbage) + dcgm("DCGM_FI_DEV_POWER_USAGE", 200))
    assert absent(card(cycles), "busy_ratio")
    assert card(cycles)["power_watts"] == 200
    assert sum(cycles.rejects().values()) == 1
    cycles.poll(dcgm("DCGM_FI_DEV_GPU_UTIL", 97) + dcgm("DCGM_FI_DEV_POWER_USAGE", 200))
    assert card(cycles)["busy_ratio"] == 0.97


def test_row_28_of_a_real_log(shared_dir: Path) -> None:
    result = read_log(read_query, capture(shared_dir, "dcgm_gpu_util_garbage.csv"))
    busy = result.batch.rows["gpu"].column("busy_ratio").to_numpy()
    np.testing.assert_allclose(busy, [0, np.nan, 0, 0.97, np.nan, np.nan, 0.98])
    assert [reject.reason for reject in result.batch.rejects] == [
        f"out of range: {garbage}" for garbage in (4294967295, 808334905, 2619)
    ]


@pytest.mark.parametrize("blank", [140737488355328.0, 140737488355331.0, 14073748835532800.0])
def test_row_29_a_blank_of_profiling_leaves_the_other_metrics(cycles: Cycles, blank: float) -> None:
    text = dcgm("DCGM_FI_PROF_SM_ACTIVE", blank) + dcgm("DCGM_FI_PROF_DRAM_ACTIVE", blank)
    cycles.poll(text + dcgm("DCGM_FI_DEV_POWER_USAGE", 69.437) + dcgm("DCGM_FI_DEV_FB_USED", 0))
    assert absent(card(cycles), "sm_active_ratio")
    assert absent(card(cycles), "dram_active_ratio")
    assert (card(cycles)["power_watts"], card(cycles)["memory_used_bytes"]) == (69.437, 0)


def test_row_29_a_dump_of_a_program_is_refused_by_name(cycles: Cycles, shared_dir: Path) -> None:
    cycles.poll(capture(shared_dir, "slurm_blank_python.txt"))
    assert cycles.rejects() == {("", "body is JSON, not an exposition"): 1}


@pytest.mark.parametrize(("busy", "power"), [(99, 80), (0, 390)])
def test_row_30_profiling_at_0_on_a_busy_or_hot_card_is_stuck(cycles: Cycles, busy: int, power: int) -> None:
    text = dcgm("DCGM_FI_DEV_GPU_UTIL", busy) + dcgm("DCGM_FI_DEV_POWER_USAGE", power)
    text += dcgm("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0) + dcgm("DCGM_FI_PROF_SM_ACTIVE", 0)
    cycles.poll(text)
    assert absent(card(cycles), "engine_active_ratio")
    assert absent(card(cycles), "sm_active_ratio")
    assert card(cycles)["busy_ratio"] == busy / 100  # what stands in, with less confidence
    assert cycles.rejects() == {("engine_active_ratio", "prof_silent_zero"): 2}


def test_row_30_profiling_at_0_on_an_idle_card_is_0(cycles: Cycles) -> None:
    cycles.poll(dcgm("DCGM_FI_DEV_GPU_UTIL", 0) + dcgm("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0))
    assert card(cycles)["engine_active_ratio"] == 0


def test_row_31_the_unit_comes_from_the_name_and_not_from_the_help(cycles: Cycles) -> None:
    text = "# HELP DCGM_FI_PROF_GR_ENGINE_ACTIVE Ratio of time the graphics engine is active (in %).\n"
    text += dcgm("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.37) + dcgm("DCGM_FI_DEV_GPU_UTIL_RATIO", 37)
    cycles.poll(text)
    assert (card(cycles)["engine_active_ratio"], card(cycles)["busy_ratio"]) == (0.37, 0.37)


def test_row_32_violations_are_nanoseconds_whatever_the_help_says(cycles: Cycles) -> None:
    head = "# HELP DCGM_FI_DEV_POWER_VIOLATION Throttling duration due to power constraints (in us).\n"
    cycles.poll(head + dcgm("DCGM_FI_DEV_POWER_VIOLATION", 1_000_000_000))
    cycles.poll(head + dcgm("DCGM_FI_DEV_POWER_VIOLATION", 1_000_000_000 + 15_000_000_000))
    assert card(cycles)["throttle_power_ratio"] == pytest.approx(15 / 60)


@pytest.mark.parametrize("declared", ["counter", "gauge"])
def test_row_33_transfers_are_rates_even_where_they_are_declared_counters(cycles: Cycles, declared: str) -> None:
    def text(value: int) -> str:
        names = ("DCGM_FI_PROF_PCIE_TX_BYTES", "DCGM_FI_PROF_NVLINK_RX_BYTES")
        return "".join(f"# TYPE {name} {declared}\n" + dcgm(name, value) for name in names)

    cycles.poll(text(5_000_000))
    assert card(cycles)["pcie_tx_bytes_per_second"] == 5_000_000
    cycles.poll(text(4_000_000))
    assert card(cycles)["pcie_tx_bytes_per_second"] == 4_000_000
    assert card(cycles)["nvlink_rx_bytes_per_second"] == 4_000_000


def test_row_34_throughput_that_is_never_told_is_absent(cycles: Cycles) -> None:
    cycles.poll(dcgm("DCGM_FI_DEV_GPU_UTIL", 50))
    assert absent(card(cycles), "pcie_tx_bytes_per_second")
    # The old names count KB and are of no use: they are not taken for the others.
    cycles.poll(dcgm("DCGM_FI_DEV_GPU_UTIL", 50) + dcgm("DCGM_FI_DEV_PCIE_TX_THROUGHPUT", 9))
    assert absent(card(cycles), "pcie_tx_bytes_per_second")


def test_row_35_a_cards_memory_is_used_free_and_reserved_together(cycles: Cycles) -> None:
    text = dcgm("DCGM_FI_DEV_FB_USED", 1000) + dcgm("DCGM_FI_DEV_FB_FREE", 79_000)
    cycles.poll(text + dcgm("DCGM_FI_DEV_FB_RESERVED", 1559))
    assert cycles.facts("memory_total_bytes") == {"GPU-0": str(81_559 * MIB)}
    log = "timestamp, uuid, memory.total [MiB], memory.reserved [MiB], memory.used [MiB], memory.free [MiB]\n"
    rows = ["GPU-1, 81559 MiB, 479 MiB, 11125 MiB, 69955 MiB", "GPU-2, 81559 MiB, 481 MiB, 0 MiB, 81078 MiB"]
    result = read_log(read_query, log + "".join(f"2026/04/01 10:00:00, {row}\n" for row in rows))
    table = result.batch.rows["gpu"].to_pydict()
    totals = {f.subject.gpu: f.value for f in result.batch.facts if f.name == "memory_total_bytes"}
    for n, gpu in enumerate(table["gpu"]):
        parts = (table[f"memory_{part}_bytes"][n] for part in ("used", "free", "reserved"))
        assert sum(parts) == float(totals[gpu])  # type: ignore[arg-type]


def test_row_36_memory_bandwidth_is_not_memory_fill(cycles: Cycles) -> None:
    text = dcgm("DCGM_FI_DEV_MEM_COPY_UTIL", 80) + dcgm("DCGM_FI_DEV_FB_USED", 100)
    cycles.poll(text)
    assert (card(cycles)["memory_busy_ratio"], card(cycles)["memory_used_bytes"]) == (0.8, 100 * MIB)


def test_row_37_nvlink_bytes_stand_as_one_source_declares_them(cycles: Cycles) -> None:
    one = dcgm("DCGM_FI_PROF_NVLINK_TX_BYTES", 1000)
    cycles.poll({CARD: one, "http://other/m": dcgm("DCGM_FI_PROF_NVLINK_TX_BYTES", 1080)})
    assert card(cycles)["nvlink_tx_bytes_per_second"] in (1000, 1080)  # never their mean or sum
    assert len(cycles.frame("gpu")) == 1


def test_row_38_unified_memory_is_unknown_and_a_memory_of_0_degrees_no_value(cycles: Cycles) -> None:
    labels = {"modelName": "NVIDIA GB10"}
    text = "".join(
        dcgm(name, value, **labels)
        for name, value in (
            ("DCGM_FI_DEV_GPU_UTIL", 90),
            ("DCGM_FI_DEV_GPU_TEMP", 60),
            ("DCGM_FI_DEV_MEMORY_TEMP", 0),
            ("DCGM_FI_DEV_MEM_COPY_UTIL", 0),
        )
    )
    cycles.poll(text)
    assert absent(card(cycles), "memory_used_bytes")
    assert absent(card(cycles), "memory_temperature_celsius")
    assert card(cycles)["temperature_celsius"] == 60


def test_row_39_a_new_version_is_an_event(cycles: Cycles) -> None:
    cycles.poll(dcgm("DCGM_FI_DEV_POWER_USAGE", 50, DCGM_FI_DRIVER_VERSION="550.54.15"))
    assert cycles.facts("driver_version") == {"GPU-0": "550.54.15"}
    cycles.poll(dcgm("DCGM_FI_DEV_POWER_USAGE", 100, DCGM_FI_DRIVER_VERSION="570.86.15"))
    assert cycles.facts("driver_version") == {"GPU-0": "570.86.15"}
    assert cycles.events() == ["version_changed"]


def test_row_40_empty_and_overflowing_cells_are_blank(cycles: Cycles) -> None:
    text = "timestamp, uuid, utilization.gpu [%], power.draw [W]\n"
    rows = [", 20.00 W", "18446744073709551615 %, ", "[N/A], 9e99 W", "7 %, 21.00 W"]
    result = read_log(read_query, text + "".join(f"2026/04/01 10:00:0{n}, GPU-1, {r}\n" for n, r in enumerate(rows)))
    table = result.batch.rows["gpu"].to_pydict()
    np.testing.assert_allclose(table["busy_ratio"], [np.nan, np.nan, np.nan, 0.07])
    np.testing.assert_allclose(table["power_watts"], [20, np.nan, np.nan, 21])
    cycles.poll(dcgm("DCGM_FI_DEV_GPU_UTIL", 1.8446744073709552e19) + dcgm("DCGM_FI_DEV_GPU_TEMP", 40))
    assert absent(card(cycles), "busy_ratio")


def test_row_41_a_value_that_is_no_number_loses_only_its_line(cycles: Cycles) -> None:
    text = dcgm("DCGM_FI_DEV_GPU_UTIL", 50) + dcgm("DCGM_FI_DEV_FB_USED", "ERROR - FAILED TO CONVERT TO STRING")
    cycles.poll(text + dcgm("DCGM_FI_DEV_POWER_USAGE", 200))
    assert (card(cycles)["busy_ratio"], card(cycles)["power_watts"]) == (0.5, 200)
    assert absent(card(cycles), "memory_used_bytes")
    assert cycles.rejects() == {("", "value is not a number"): 1}


def test_row_42_texts_in_cells_are_absent_and_err_is_an_event() -> None:
    text = "timestamp, uuid, utilization.gpu [%], power.draw [W]\n"
    rows = ["[N/A], ERR!", "[Not Supported], [Unknown Error]", "3 %, 20.00 W"]
    result = read_log(read_query, text + "".join(f"2026/04/01 10:00:0{n}, GPU-1, {r}\n" for n, r in enumerate(rows)))
    assert [event.code for event in result.batch.events] == ["device_error"] * 2
    np.testing.assert_allclose(result.batch.rows["gpu"].column("busy_ratio").to_numpy(), [np.nan, np.nan, 0.03])


def test_row_42_of_a_real_log(shared_dir: Path) -> None:
    result = read_log(read_query, capture(shared_dir, "nvsmi_h100mig_query_gpu.csv"))
    (row,) = result.batch.rows["gpu"].to_pylist()
    assert (row["power_watts"], row["memory_used_bytes"]) == (433.78, 11125 * MIB)
    assert "busy_ratio" not in row
    assert result.rejected == {}
    assert result.batch.events == []


def test_row_43_a_servers_figure_of_the_device_is_not_its_own(cycles: Cycles) -> None:
    triton = 'nv_gpu_memory_used_bytes{gpu_uuid="GPU-0"} 30000000000\nnv_gpu_utilization{gpu_uuid="GPU-0"} 0.9\n'
    triton += 'nv_inference_pending_request_count{model="m",version="1"} 3\n'
    labels = {"http://t/metrics": {"namespace": "ns", "pod": "triton-0", "container": "c"}}
    text = {CARD: dcgm("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.1, **held("triton-0", vgpu="0")), "http://t/metrics": triton}
    cycles.poll(text, labels=labels)
    rows = cycles.frame("slice")
    assert rows["queue_depth_count"].tolist() == [3]
    assert "memory_used_bytes" not in rows or rows["memory_used_bytes"].isna().all()
    assert "busy_ratio" not in rows or rows["busy_ratio"].isna().all()


def amd(metric: str, value: object, gpu: str, partition: str) -> str:
    labels = {"gpu_id": gpu, "gpu_partition_id": partition, "hostname": "n1", "card_model": "", "serial_number": ""}
    labels["gpu_uuid"] = "00000000-0000-0000-0000-000000000000"
    inside = ",".join(f'{name}="{text}"' for name, text in labels.items())
    return f"{metric}{{{inside}}} {value}\n"


def test_row_44_amd_cards_without_a_uuid_are_named_by_host_and_number(cycles: Cycles) -> None:
    text = amd("gpu_gfx_activity", 40, "0", "4294967295") + amd("gpu_gfx_activity", 60, "1", "NA")
    text += amd("gpu_power_usage", 300, "0", "0") + amd("gpu_power_usage", 0, "0", "1")
    cycles.poll(text, node="")
    rows = cycles.frame("gpu")
    assert sorted(rows.index) == ["n1/0", "n1/1"]
    assert (rows.loc["n1/0", "busy_ratio"], rows.loc["n1/1", "busy_ratio"]) == (0.4, 0.6)
    assert rows.loc["n1/0", "power_watts"] == 300  # the other partitions' 0 is no reading of a sensor
    assert cycles.facts("identity") == {"0": "assumed", "1": "assumed"}


def test_row_45_an_xid_is_told_once_and_counted_where_there_is_a_count(cycles: Cycles) -> None:
    told = []
    for code in (0, 31, 31, 31, 0, 31):
        cycles.poll(dcgm("DCGM_FI_DEV_XID_ERRORS", code))
        told.append([event.message.partition(":")[0] for event in cycles.batch.events])
    assert told == [[], ["XID 31"], [], [], [], ["XID 31"]]
    fresh, counted = type(cycles)(cycles.context), []
    for count in (2, 2, 5):
        fresh.poll(dcgm("DCGM_EXP_XID_ERRORS_TOTAL", count, xid="94"))
        counted += [event.message for event in fresh.batch.events]
    assert counted == ["XID 94: see the driver log (3 times)"]


def test_row_46_a_45_that_hides_a_62_sends_to_the_log(cycles: Cycles) -> None:
    cycles.poll(dcgm("DCGM_FI_DEV_XID_ERRORS", 0))
    cycles.poll(dcgm("DCGM_FI_DEV_XID_ERRORS", 45))
    (event,) = cycles.batch.events
    assert (event.message, event.severity) == ("XID 45: see the driver log", Severity.WARNING)


def test_row_47_no_series_of_xids_is_no_error_only_while_the_target_is_up(cycles: Cycles) -> None:
    cycles.poll(dcgm("DCGM_FI_DEV_GPU_UTIL", 50))
    assert cycles.events() == []
    cycles.poll({"http://a:9400/metrics": None})
    assert cycles.events() == ["target_down"]
    cycles.poll(dcgm("DCGM_FI_DEV_GPU_UTIL", 50) + dcgm("DCGM_FI_DEV_XID_ERRORS", 79))
    assert sorted(cycles.events()) == ["target_up", "xid"]


@pytest.mark.parametrize("name", ["DCGM_EXP_XID_ERRORS_COUNT", "DCGM_FI_DEV_XID_ERRORS_ACTIVE"])
def test_row_48_a_count_in_a_window_falls_again_and_goes_by_either_name(cycles: Cycles, name: str) -> None:
    told = []
    for count in (1, 3, 3, 1, 2):
        head = "# TYPE DCGM_EXP_XID_ERRORS_COUNT counter\n"
        cycles.poll(head + dcgm(name, count, xid="42", window_size_in_ms="300000"))
        told.append([event.message for event in cycles.batch.events])
        assert "counter_reset" not in cycles.events()
    once, twice = "XID 42: see the driver log", "XID 42: see the driver log (2 times)"
    assert told == [[once], [twice], [], [], [once]]


def test_row_48_of_a_real_scrape(cycles: Cycles, shared_dir: Path) -> None:
    cycles.poll(capture(shared_dir, "dcgm_xid_window_name_mismatch.prom"))
    assert [event.message for event in cycles.batch.events] == ["XID 42: see the driver log"]


def test_row_63_memory_that_a_process_does_not_tell_is_not_0() -> None:
    head = "timestamp, gpu_uuid, pid, process_name, used_gpu_memory [MiB]\n"
    rows = ["GPU-1, 7, a, [N/A]", "GPU-1, 8, b, 0 MiB"]
    result = read_log(read_apps, head + "".join(f"2026/04/01 10:00:00, {row}\n" for row in rows))
    np.testing.assert_allclose(result.batch.rows["slice"].column("memory_used_bytes").to_numpy(), [np.nan, 0])
