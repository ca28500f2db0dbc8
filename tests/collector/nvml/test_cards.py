"""What a card says, in the schema's units; what it does not say; and what it says wrongly."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pynvml
import pytest

from tests.collector.nvml.conftest import GIB, HOPPER, MIB, TURING, Cycles, Driver

Start = Callable[..., Cycles]


def test_each_reading_of_a_card_becomes_its_field_in_base_units(driver: Driver, start: Start) -> None:
    card = driver.add(HOPPER)
    cycles = start(driver)
    cycles.poll()
    driver.put(
        card,
        {
            "field:83": 1_000_000 + 24_000_000,  # mJ
            "field:197": 5_000_000 + 600_000_000,
            "field:198": 7_000_000 + 1_200_000_000,
            "field:138:4294967295": 1_000 + 60_000,  # KiB
            "field:139:4294967295": 2_000 + 120_000,
            "field:74": 15e9,  # ns of a minute
            "field:269": 3e9,
            "field:270": 3e9,
            "field:271": 6e9,
            "field:38": 1 + 2,
            "field:52": 4 + 5,
            "ecc:0": 3 + 4,
            "pcie_replay": 2 + 1,
            "remapped_corrected": 2,
        },
    )
    cycles.poll()
    row = cycles.rows("gpu").loc["GPU-h100"]
    expected = {
        "busy_ratio": 0.80,
        "memory_busy_ratio": 0.30,
        "encoder_ratio": 0.05,
        "decoder_ratio": 0.07,
        "engine_active_ratio": 0.91,
        "sm_active_ratio": 0.64,
        "sm_occupancy_ratio": 0.40,
        "tensor_active_ratio": 0.22,
        "dram_active_ratio": 0.35,
        "fp64_active_ratio": 0.0,
        "fp32_active_ratio": 0.125,
        "fp16_active_ratio": 0.01,
        "memory_used_bytes": 20 * GIB,
        "memory_free_bytes": 59 * GIB,
        "memory_reserved_bytes": GIB,
        "power_watts": 412.5,
        "energy_joules": 24_000.0,
        "temperature_celsius": 61.0,
        "memory_temperature_celsius": 70.0,
        "sm_clock_hertz": 1.755e9,
        "memory_clock_hertz": 2.619e9,
        "pcie_tx_bytes_per_second": 1e7,
        "pcie_rx_bytes_per_second": 2e7,
        "nvlink_tx_bytes_per_second": 1024e3,
        "nvlink_rx_bytes_per_second": 2048e3,
        "throttle_power_ratio": 0.25,
        "throttle_thermal_ratio": 0.10,
        "throttle_brake_ratio": 0.10,
        "ecc_corrected_count": 4.0,
        "ecc_uncorrected_count": 0.0,
        "rows_remapped_corrected_count": 1.0,
        "rows_remapped_uncorrected_count": 0.0,
        "pcie_replay_count": 1.0,
        "nvlink_error_count": 7.0,
        "source_age_seconds": 0.0,
    }
    assert {name: row[name] for name in expected} == pytest.approx(expected)
    assert row["node"] == "node-a"
    assert not cycles.batch.rejects


def test_facts_of_a_card(driver: Driver, start: Start) -> None:
    driver.add(HOPPER)
    cycles = start(driver)
    cycles.poll()
    told = {fact.name: fact.value for fact in cycles.batch.facts if fact.subject.kind == "gpu"}
    assert told == {
        "model": "NVIDIA H100 80GB HBM3",
        "ordinal": "0",
        "architecture": "hopper",
        "driver_version": "580.65.06",
        "cuda_version": "13.0",
        "pci_bus_id": "00000000:1B:00.0",
        "mig": "disabled",
        "memory_total_bytes": str(80 * GIB),
        "power_limit_watts": "700",
        "max_sm_clock_hertz": "1980000000",
        "max_memory_clock_hertz": "2619000000",
        "pcie_generation": "5",
        "pcie_generation_max": "5",
        "pcie_lanes": "16",
        "pcie_lanes_max": "16",
        "row_remap_pending": "1",
        "row_remap_failure": "0",
        "sm_count": "132",
        "nvlink_peak_bytes_per_second": "900000000000",
        "source": "nvml",
        "sample_window": "0; 1: busy_ratio, decoder_ratio, encoder_ratio, memory_busy_ratio, power_watts",
    }
    cycles.poll()
    (windows,) = (str(fact.value) for fact in cycles.batch.facts if fact.name == "sample_window")
    (of_cycle,) = (part for part in windows.split("; ") if part.startswith("cycle: "))
    assert {"sm_active_ratio", "dram_active_ratio"} <= set(of_cycle.removeprefix("cycle: ").split(", "))


def test_an_older_card_lacks_fields_and_no_value_stands_in(driver: Driver, start: Start) -> None:
    driver.add(TURING)
    cycles = start(driver)
    cycles.poll()
    cycles.poll()
    row = cycles.rows("gpu").loc["GPU-t4"].dropna()
    assert set(row.index) == {
        *("time", "cluster", "node", "busy_ratio", "memory_busy_ratio", "power_watts", "temperature_celsius"),
        *("memory_used_bytes", "memory_free_bytes", "memory_reserved_bytes", "sm_clock_hertz", "memory_clock_hertz"),
        *("pcie_rx_bytes_per_second", "pcie_tx_bytes_per_second", "source_age_seconds"),
        *("throttle_power_ratio", "throttle_thermal_ratio", "throttle_brake_ratio", "throttle_other_ratio"),
    }
    assert (row["pcie_tx_bytes_per_second"], row["pcie_rx_bytes_per_second"]) == (3e5, 2e5)
    assert row["memory_free_bytes"] == 15 * GIB - 2 * GIB - 256 * MIB
    assert not cycles.batch.rejects


@pytest.mark.parametrize(
    ("reasons", "throttled"),
    [
        (0x1, set()),
        (0x4, {"power"}),
        (0x20, {"thermal"}),
        (0x40, {"thermal"}),
        (0x80, {"brake"}),
        (0x8, {"brake"}),
        (0x9, set()),
        (0x10, {"other"}),
        (0x102, set()),
    ],
)
def test_throttle_reasons_where_there_are_no_counters(
    driver: Driver, start: Start, reasons: int, throttled: set[str]
) -> None:
    driver.add(TURING, reasons=reasons)
    cycles = start(driver)
    cycles.poll()
    row = cycles.rows("gpu").loc["GPU-t4"]
    found = {name for name in ("power", "thermal", "brake", "other") if row[f"throttle_{name}_ratio"] == 1}
    assert found == throttled


# What each function feeds, and a field that shows it.
_FED = {
    "nvmlDeviceGetUtilizationRates": "busy_ratio",
    "nvmlDeviceGetEncoderUtilization": "encoder_ratio",
    "nvmlDeviceGetDecoderUtilization": "decoder_ratio",
    "nvmlDeviceGetPowerUsage": "power_watts",
    "nvmlDeviceGetTemperature": "temperature_celsius",
    "nvmlDeviceGetClockInfo": "sm_clock_hertz",
    "nvmlDeviceGetTotalEccErrors": "ecc_corrected_count",
    "nvmlDeviceGetPcieReplayCounter": "pcie_replay_count",
    "nvmlDeviceGetRemappedRows": "rows_remapped_corrected_count",
    "nvmlDeviceGetFieldValues": "energy_joules",
    "nvmlGpmMetricsGet": "sm_active_ratio",
    "nvmlGpmSampleGet": "sm_active_ratio",
    "nvmlGpmSampleAlloc": "sm_active_ratio",
    "nvmlDeviceGetMemoryInfo_v2": "memory_used_bytes",
}
_ABSENT = ("NOT_SUPPORTED", "NOT_FOUND", "FUNCTION_NOT_FOUND", "ARGUMENT_VERSION_MISMATCH", "NO_DATA", "DEPRECATED")
_INVALID = ("TIMEOUT", "UNKNOWN", "NO_PERMISSION", "RESET_REQUIRED", "IRQ_ISSUE", "MEMORY", "INSUFFICIENT_SIZE")


@pytest.mark.parametrize("error", [*_ABSENT, *_INVALID])
def test_an_error_takes_its_own_field_and_no_other(driver: Driver, start: Start, error: str) -> None:
    card = driver.add(HOPPER)
    driver.add(TURING, busy=5)
    energy = itertools.count(1_000_000, 1_000_000)
    cycles = start(driver)

    def poll() -> None:
        driver.put(card, {"field:83": next(energy)})  # what never moves would be a frozen source
        cycles.poll()

    poll()
    poll()
    whole = cycles.rows("gpu")
    other = whole.loc["GPU-t4"].dropna().drop("time").to_dict()
    for function, field in _FED.items():
        assert not math.isnan(cycles.value("gpu", "GPU-h100", field)), function
        driver.fail(function, getattr(pynvml, f"NVML_ERROR_{error}"), device=-1 if function.endswith("Alloc") else card)
        poll()
        told = {reason for (subject, name, reason) in cycles.rejects() if (subject, name) == ("GPU-h100", field)}
        if error in _INVALID:
            assert math.isnan(cycles.value("gpu", "GPU-h100", field)), function
            assert told == {error.lower()}, function
        elif function == "nvmlDeviceGetMemoryInfo_v2":
            assert cycles.value("gpu", "GPU-h100", field) == 21 * GIB  # the older call counts the reserve in
            assert math.isnan(cycles.value("gpu", "GPU-h100", "memory_reserved_bytes"))
        else:
            assert math.isnan(cycles.value("gpu", "GPU-h100", field)), function
            assert not cycles.batch.rejects, function
        kept = "power_watts" if function != "nvmlDeviceGetPowerUsage" else "temperature_celsius"
        assert cycles.value("gpu", "GPU-h100", kept) == whole.at["GPU-h100", kept]
        assert cycles.rows("gpu").loc["GPU-t4"].dropna().drop("time").to_dict() == other, function
        driver.mend()
        poll()
        poll()  # a counter and a pair of samples need two


@pytest.mark.parametrize(
    ("error", "reason"),
    [("NOT_SUPPORTED", None), ("INVALID_ARGUMENT", None), ("TIMEOUT", "timeout"), ("UNKNOWN", "unknown")],
)
def test_each_entry_of_a_field_query_has_its_own_error(
    driver: Driver, start: Start, error: str, reason: str | None
) -> None:
    card = driver.add(HOPPER)
    driver.fail("field:82", getattr(pynvml, f"NVML_ERROR_{error}"), device=card)
    cycles = start(driver)
    cycles.poll()
    assert math.isnan(cycles.value("gpu", "GPU-h100", "memory_temperature_celsius"))
    assert cycles.rejects() == ({("GPU-h100", "memory_temperature_celsius", reason): 1} if reason else {})


@pytest.mark.parametrize(("kind", "value"), [(0, 70.0), (1, 70.0), (3, 70.0), (5, 70.0)])
def test_a_field_is_read_in_the_type_that_it_says(driver: Driver, start: Start, kind: int, value: float) -> None:
    driver.add(HOPPER, **{"field_type:82": kind})
    cycles = start(driver)
    cycles.poll()
    assert cycles.value("gpu", "GPU-h100", "memory_temperature_celsius") == value


def test_a_field_of_an_unknown_type_is_invalid(driver: Driver, start: Start) -> None:
    driver.add(HOPPER, **{"field_type:82": 17})
    cycles = start(driver)
    cycles.poll()
    assert cycles.rejects() == {("GPU-h100", "memory_temperature_celsius", "unknown_value_type"): 1}


def test_a_memory_temperature_of_0_is_a_card_without_the_sensor(driver: Driver, start: Start) -> None:
    driver.add(HOPPER, **{"field:82": 0})
    cycles = start(driver)
    cycles.poll()
    assert math.isnan(cycles.value("gpu", "GPU-h100", "memory_temperature_celsius"))
    assert not cycles.batch.rejects


def test_garbage_is_out_of_range_and_counted(driver: Driver, start: Start) -> None:
    driver.add(TURING, busy=4_294_967_295, power=4e9)
    cycles = start(driver)
    cycles.poll()
    assert math.isnan(cycles.value("gpu", "GPU-t4", "busy_ratio"))
    assert math.isnan(cycles.value("gpu", "GPU-t4", "power_watts"))
    assert cycles.rejects() == {
        ("GPU-t4", "busy_ratio", "out_of_range"): 1,
        ("GPU-t4", "power_watts", "out_of_range"): 1,
    }


def test_an_old_driver_lacks_functions_and_the_rest_is_read(use_driver: Callable[[int], Driver], start: Start) -> None:
    old = use_driver(450)
    old.add(HOPPER)
    old.process(0, 4242, 3 * GIB)
    cycles = start(old)
    cycles.poll()
    cycles.poll()
    row = cycles.rows("gpu").loc["GPU-h100"]
    assert row["memory_used_bytes"] == 21 * GIB
    assert row["busy_ratio"] == 0.8
    absent = ("memory_reserved_bytes", "sm_active_ratio", "rows_remapped_corrected_count")
    assert all(name not in row or math.isnan(row[name]) for name in absent)
    assert {reason.partition(":")[0] for _, _, reason in cycles.rejects()} == {"process not seen here"}


@pytest.mark.parametrize(
    ("version", "pcie", "brake", "thermal"),
    [
        ("535.183.01", 1e5, 0.0, 0.5),
        ("555.42.02", 1e7, 0.0, 0.5),
        ("575.51.03", 1e7, 0.0, 0.5),
        ("580.65.06", 1e7, 0.1, 0.05),
    ],
)
def test_a_number_that_meant_something_else_before_is_not_asked_for(
    driver: Driver, start: Start, *, version: str, pcie: float, brake: float, thermal: float
) -> None:
    driver.version(version, 12_000)
    card = driver.add(HOPPER, **{"field:75": 0, "pcie_throughput:0": 100, "pcie_throughput:1": 100})
    driver.remove(card, "gpm")
    cycles = start(driver)
    cycles.poll()
    driver.put(card, {"field:197": 5e6 + 6e8, "field:270": 3e9, "field:271": 6e9, "field:75": 30e9, "field:83": 2e6})
    cycles.poll()
    assert cycles.value("gpu", "GPU-h100", "pcie_tx_bytes_per_second") == pytest.approx(pcie)
    assert cycles.value("gpu", "GPU-h100", "throttle_brake_ratio") == pytest.approx(brake)
    assert cycles.value("gpu", "GPU-h100", "throttle_thermal_ratio") == pytest.approx(thermal)


def test_link_errors_since_hopper_are_those_of_each_link(driver: Driver, start: Start) -> None:
    card = driver.add(
        HOPPER, **{"field:91": 18, "field:161:3": 10, "field:162:3": 1, "field:163:17": 5, "field:161": 2}
    )
    driver.remove(card, "field:38", "field:52")
    cycles = start(driver)
    cycles.poll()
    driver.put(card, {"field:161:3": 12, "field:163:17": 6, "field:161": 6, "field:83": 2e6})
    cycles.poll()
    assert cycles.value("gpu", "GPU-h100", "nvlink_error_count") == 2 + 1 + 4


def test_a_card_without_links_has_no_link_errors(driver: Driver, start: Start) -> None:
    driver.add(TURING, **{"field:91": 0, "field:161": 5})
    cycles = start(driver)
    cycles.poll()
    cycles.poll()
    assert math.isnan(cycles.value("gpu", "GPU-t4", "nvlink_error_count"))
