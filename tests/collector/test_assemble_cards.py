"""Cards and MIG instances: each reading that exporters get wrong, with the value that is right."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from collector.batch import Severity
from collector.settings import MappingSettings

if TYPE_CHECKING:
    from tests.collector.conftest import Cycles

MIB = 2**20
A100 = "NVIDIA A100-SXM4-40GB"


def dcgm(
    metric: str,
    value: object,
    *,
    gpu: str = "0",
    uuid: str = "GPU-0",
    model: str = A100,
    gi: str = "",
    profile: str = "1g.5gb",
    **labels: str,
) -> str:
    cut = {"GPU_I_PROFILE": profile, "GPU_I_ID": gi} if gi else {}
    every = {"gpu": gpu, "UUID": uuid, "device": f"nvidia{gpu}", "modelName": model, **cut, **labels}
    inside = ",".join(f'{name}="{text}"' for name, text in every.items())
    return f"{metric}{{{inside}}} {value}\n"


@pytest.mark.parametrize(
    ("metric", "raw", "field", "value"),
    [
        ("DCGM_FI_DEV_GPU_UTIL", 87, "busy_ratio", 0.87),
        ("DCGM_FI_DEV_GPU_UTIL_RATIO", 87, "busy_ratio", 0.87),
        ("dcgm_gpu_utilization", 87, "busy_ratio", 0.87),
        ("DCGM_FI_DEV_MEM_COPY_UTIL", 12, "memory_busy_ratio", 0.12),
        ("DCGM_FI_DEV_DEC_UTIL", 5, "decoder_ratio", 0.05),
        ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.5, "engine_active_ratio", 0.5),
        ("DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", 0.5, "engine_active_ratio", 0.5),
        ("DCGM_FI_PROF_SM_ACTIVE", 0.25, "sm_active_ratio", 0.25),
        ("DCGM_FI_PROF_TENSOR_UTIL_RATIO", 0.25, "tensor_active_ratio", 0.25),
        ("DCGM_FI_DEV_FB_USED", 1000, "memory_used_bytes", 1000 * MIB),
        ("DCGM_FI_DEV_FB_RESERVED", 500, "memory_reserved_bytes", 500 * MIB),
        ("DCGM_FI_DEV_BOARD_POWER_WATTS", 250.5, "power_watts", 250.5),
        ("dcgm_power_usage", 250.5, "power_watts", 250.5),
        ("DCGM_FI_DEV_GPU_TEMP_CELSIUS", 44, "temperature_celsius", 44.0),
        ("DCGM_FI_DEV_SM_CLOCK", 1410, "sm_clock_hertz", 1.41e9),
        ("DCGM_FI_PROF_PCIE_RX_BYTES", 5e6, "pcie_rx_bytes_per_second", 5e6),
        ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 0x4, "throttle_power_ratio", 1.0),
        ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 0x40, "throttle_thermal_ratio", 1.0),
        ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 0x8, "throttle_brake_ratio", 1.0),
        ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 0x9, "throttle_brake_ratio", 0.0),
        ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", 0x80, "throttle_brake_ratio", 1.0),
        ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 0x1, "throttle_other_ratio", 0.0),
        ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 0x10, "throttle_other_ratio", 1.0),
    ],
)
def test_names_old_and_new_in_base_units(cycles: Cycles, metric: str, raw: object, field: str, value: float) -> None:
    cycles.poll(dcgm(metric, raw))
    assert cycles.frame("gpu").loc["GPU-0", field] == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("metric", "raw", "reason"),
    [
        ("DCGM_FI_DEV_GPU_UTIL", 4294967295, "out_of_range"),
        ("DCGM_FI_DEV_GPU_UTIL", 9223372036854775794, "blank"),
        ("DCGM_FI_DEV_MEMORY_TEMP", 9223372036854775794, "blank"),
        ("DCGM_FI_DEV_FB_USED", 2147483633, "blank"),
        ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 140737488355328.0, "blank"),
        ("DCGM_FI_PROF_PCIE_TX_BYTES", 14073748835532800, "blank"),
        ("DCGM_FI_PROF_SM_ACTIVE", 1.06, "out_of_range"),
        ("DCGM_FI_PROF_SM_ACTIVE", "NaN", "not_a_number"),
        ("DCGM_FI_DEV_MEMORY_TEMP", 0, "out_of_range"),
    ],
)
def test_blanks_and_values_out_of_range_are_absent_and_counted(
    cycles: Cycles, metric: str, raw: object, reason: str
) -> None:
    cycles.poll(dcgm(metric, raw) + dcgm("DCGM_FI_DEV_POWER_USAGE", 100))
    row = cycles.frame("gpu").loc["GPU-0"]
    assert row.drop(["cluster", "node", "time", "power_watts", "source_age_seconds"]).dropna().empty
    assert row["power_watts"] == 100
    assert [reason for _, reason in cycles.rejects()] == [reason]
    assert cycles.batch.rejects[0].subject.gpu == "GPU-0"


def test_a_little_more_than_all_is_all(cycles: Cycles) -> None:
    cycles.poll(dcgm("DCGM_FI_PROF_SM_ACTIVE", 1.04))
    assert cycles.frame("gpu").loc["GPU-0", "sm_active_ratio"] == 1.0
    assert cycles.rejects() == {}


def test_zero_is_a_value(cycles: Cycles) -> None:
    cycles.poll(dcgm("DCGM_FI_DEV_GPU_UTIL", 0) + dcgm("DCGM_FI_DEV_POWER_USAGE", 60))
    assert cycles.frame("gpu").loc["GPU-0", "busy_ratio"] == 0.0


def mig_text(**values: object) -> str:
    """Two instances of an A100-40: gi1 is 2g.10gb, gi7 is 1g.5gb."""
    lines = ""
    for gi, profile, scale in (("1", "2g.10gb", 0.5), ("7", "1g.5gb", 1.0)):
        here = {"gi": gi, "profile": profile}
        lines += dcgm("DCGM_FI_PROF_SM_ACTIVE", 0.8 * scale, **here) + dcgm("DCGM_FI_PROF_DRAM_ACTIVE", 0.4, **here)
        lines += dcgm("DCGM_FI_DEV_FB_USED", 1000, **here) + dcgm("DCGM_FI_DEV_FB_FREE", 3864, **here)
        lines += dcgm("DCGM_FI_DEV_POWER_USAGE", 112 - 12 * scale, **here)
        lines += dcgm("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", values.get("energy", 6890956), **here)
        lines += dcgm("DCGM_FI_DEV_GPU_UTIL", 0, **here)
    return lines


def test_instances_are_converted_to_shares_of_the_whole_card(cycles: Cycles) -> None:
    cycles.poll(mig_text())
    slices = cycles.frame("slice").reset_index().set_index("slice")
    assert list(slices.index) == ["gi1", "gi7"]
    assert slices.loc["gi1", "sm_active_ratio"] == pytest.approx(0.4 * 28 / 108, rel=1e-12)
    assert slices.loc["gi7", "sm_active_ratio"] == pytest.approx(0.8 * 14 / 108, rel=1e-12)
    assert slices.loc["gi1", "dram_active_ratio"] == pytest.approx(0.4 * 2 / 8, rel=1e-12)
    assert slices.loc["gi7", "dram_active_ratio"] == pytest.approx(0.4 * 1 / 8, rel=1e-12)
    assert slices.loc["gi1", "sm_quota_ratio"] == pytest.approx(28 / 108, rel=1e-12)
    assert slices.loc["gi7", "memory_quota_bytes"] == 4864 * MIB
    assert "busy_ratio" not in slices.columns  # 0 under an instance is unknown, never idle
    assert cycles.facts("kind") == {"gi1": "mig", "gi7": "mig"}
    assert cycles.facts("profile") == {"gi1": "2g.10gb", "gi7": "1g.5gb"}


def test_a_cut_card_is_the_weighted_sum_and_parent_values_count_once(cycles: Cycles) -> None:
    cycles.poll(mig_text(energy=1_000_000))
    cycles.poll(mig_text(energy=1_600_000))
    card = cycles.frame("gpu").loc["GPU-0"]
    assert card["sm_active_ratio"] == pytest.approx((0.4 * 28 + 0.8 * 14) / 108, rel=1e-12)
    assert card["dram_active_ratio"] == pytest.approx(0.4 * 3 / 8, rel=1e-12)
    assert card["memory_used_bytes"] == 2000 * MIB
    assert card["power_watts"] == pytest.approx((106 + 100) / 2)
    assert card["energy_joules"] == pytest.approx(600.0)


def test_the_sum_over_instances_goes_before_the_cards_own_figure(cycles: Cycles) -> None:
    own = dcgm("DCGM_FI_PROF_SM_ACTIVE", 0.99) + dcgm("DCGM_FI_DEV_FB_USED", 4845) + dcgm("DCGM_FI_DEV_GPU_UTIL", 50)
    cycles.poll(own + mig_text())
    card = cycles.frame("gpu").loc["GPU-0"]
    assert card["sm_active_ratio"] == pytest.approx((0.4 * 28 + 0.8 * 14) / 108, rel=1e-12)
    assert card["memory_used_bytes"] == 4845 * MIB
    assert "busy_ratio" not in card.index


def test_a_sum_that_lacks_an_instance_is_not_the_cards(cycles: Cycles) -> None:
    text = mig_text() + dcgm("DCGM_FI_DEV_FB_USED", 5, gi="9")
    cycles.poll(text)
    assert "sm_active_ratio" not in cycles.frame("gpu").columns
    assert cycles.frame("gpu").loc["GPU-0", "memory_used_bytes"] == 2005 * MIB


def test_an_unknown_model_takes_the_share_from_the_profiles_name_and_says_so(cycles: Cycles) -> None:
    cycles.poll(dcgm("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.7, gi="3", profile="2g.10gb", model=""))
    assert cycles.frame("slice")["engine_active_ratio"].iloc[0] == pytest.approx(0.7 * 2 / 7)
    assert cycles.facts("provenance:engine_active_ratio") == {"gi3": "estimated"}


def test_after_a_recut_the_same_number_is_another_instance(cycles: Cycles) -> None:
    cycles.poll(dcgm("DCGM_FI_PROF_SM_ACTIVE", 0.5, gi="1", profile="1g.5gb"))
    cycles.poll(dcgm("DCGM_FI_PROF_SM_ACTIVE", 0.5, gi="1", profile="4g.20gb"))
    assert cycles.frame("slice")["sm_active_ratio"].iloc[0] == pytest.approx(0.5 * 56 / 108)
    assert cycles.facts("profile") == {"gi1": "4g.20gb"}


def test_a_card_that_is_cut_and_made_whole_again_is_read_as_what_it_is(cycles: Cycles) -> None:
    whole = dcgm("DCGM_FI_DEV_GPU_UTIL", 50) + dcgm("DCGM_FI_PROF_SM_ACTIVE", 0.4)
    first, second = (dcgm("DCGM_FI_PROF_SM_ACTIVE", 0.5, gi="1", profile=p) for p in ("1g.5gb", "4g.20gb"))
    seen = []
    for text in (whole, first, second, first, whole):
        cycles.poll(text)
        row = cycles.frame("gpu").loc["GPU-0"]
        seen.append((float(row["sm_active_ratio"]), row.get("busy_ratio")))
        kinds = {name: kind for name, kind in cycles.facts("kind").items() if kind}
        assert kinds in ({"whole": "whole"}, {"gi1": "mig"}, {})
    small, large = 0.5 * 14 / 108, 0.5 * 56 / 108
    assert [value for value, _ in seen] == pytest.approx([0.4, small, large, small, 0.4])
    assert [busy for _, busy in seen] == [0.5, None, None, None, 0.5]


@pytest.mark.parametrize(("profile", "wrong"), [("1g.5gb", False), ("2g.10gb", True), ("1g.3gb", True), ("odd", False)])
def test_a_profile_that_does_not_fit_the_instances_memory_is_counted(cycles: Cycles, profile: str, wrong: bool) -> None:
    here = {"gi": "1", "profile": profile}
    cycles.poll(dcgm("DCGM_FI_DEV_FB_USED", 4384, **here) + dcgm("DCGM_FI_DEV_FB_FREE", 480, **here))
    assert cycles.rejects() == ({("profile", "profile_mismatch"): 1} if wrong else {})


def test_instances_that_go_end_their_facts(cycles: Cycles) -> None:
    cycles.poll(mig_text())
    cycles.poll(dcgm("DCGM_FI_DEV_FB_USED", 1, gi="1", profile="2g.10gb"))
    assert cycles.facts("kind") == {"gi7": None}


def test_temperature_or_clock_zero_drops_the_whole_scrape_of_that_card(cycles: Cycles) -> None:
    dead = dcgm("DCGM_FI_DEV_GPU_TEMP", 0) + dcgm("DCGM_FI_DEV_POWER_USAGE", 0) + dcgm("DCGM_FI_DEV_GPU_UTIL", 0)
    alive = dcgm("DCGM_FI_DEV_GPU_TEMP", 40, gpu="1", uuid="GPU-1") + dcgm(
        "DCGM_FI_DEV_GPU_UTIL", 0, gpu="1", uuid="GPU-1"
    )
    cycles.poll(dead + alive)
    assert list(cycles.frame("gpu").index) == ["GPU-1"]
    assert cycles.rejects() == {("", "zero_scrape"): 3}


@pytest.mark.parametrize("busy", [True, False])
def test_profiling_counters_stuck_at_zero_are_invalid_on_a_busy_card(cycles: Cycles, busy: bool) -> None:
    text = dcgm("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0) + dcgm("DCGM_FI_PROF_DRAM_ACTIVE", 0)
    cycles.poll(text + dcgm("DCGM_FI_DEV_GPU_UTIL", 99 if busy else 0))
    row = cycles.frame("gpu").loc["GPU-0"]
    assert ("engine_active_ratio" in row.index) is not busy
    assert row["busy_ratio"] == (0.99 if busy else 0.0)
    assert cycles.rejects() == ({("engine_active_ratio", "prof_silent_zero"): 2} if busy else {})


def test_profiling_counters_stuck_at_zero_show_by_power_where_use_is_unknown(cycles: Cycles) -> None:
    cycles.poll(dcgm("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0, gi="7") + dcgm("DCGM_FI_DEV_POWER_USAGE", 390, gi="7"))
    assert cycles.rejects() == {("engine_active_ratio", "prof_silent_zero"): 2}
    assert list(cycles.frame("slice").columns).count("engine_active_ratio") == 0


def test_counters_become_increments_and_a_fall_begins_anew(cycles: Cycles) -> None:
    energies = [1_000_000, 7_000_000, 2_000_000, 5_000_000]
    seen = []
    for energy in energies:
        text = dcgm("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", energy) + dcgm("DCGM_FI_DEV_POWER_USAGE", 100)
        cycles.poll(text)
        seen.append(cycles.frame("gpu").loc["GPU-0"].get("energy_joules", math.nan))
        assert ("counter_reset" in cycles.events()) is (energy == 2_000_000)
    assert math.isnan(seen[0])
    assert math.isnan(seen[2])
    assert [seen[1], seen[3]] == [6000.0, 3000.0]


@pytest.mark.parametrize(("skip", "energy", "errors"), [(0, 60.0, 4.0), (1, 60.0, 4.0), (2, math.nan, 4.0)])
def test_over_a_gap_energy_is_unknown_and_error_counts_are_kept(
    cycles: Cycles, skip: int, energy: float, errors: float
) -> None:
    def text(joules: int, count: int) -> str:
        return dcgm("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", joules * 1000) + dcgm(
            "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", count
        )

    cycles.poll(text(100, 3))
    cycles.poll(text(160, 7), skip=skip)
    row = cycles.frame("gpu").loc["GPU-0"]
    assert row.get("energy_joules", math.nan) == pytest.approx(energy, nan_ok=True)
    assert row["pcie_replay_count"] == errors


def test_counters_go_on_after_a_restart(cycles_with: Callable[..., Cycles]) -> None:
    first, second = cycles_with(), cycles_with()
    first.poll(dcgm("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 1_000_000) + dcgm("DCGM_FI_DEV_XID_ERRORS", 31))
    second.assembler.import_state(first.assembler.export_state())
    second.now = first.now
    second.poll(dcgm("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 1_500_000) + dcgm("DCGM_FI_DEV_XID_ERRORS", 31))
    assert second.frame("gpu").loc["GPU-0", "energy_joules"] == 500.0
    assert "xid" not in second.events()


def test_nanoseconds_of_throttling_become_a_share_of_the_time(cycles: Cycles) -> None:
    for nanoseconds in (0, 15_000_000_000):
        cycles.poll(
            dcgm("DCGM_FI_DEV_POWER_VIOLATION", nanoseconds) + dcgm("DCGM_FI_DEV_THERMAL_VIOLATION", 8 * nanoseconds)
        )
    row = cycles.frame("gpu").loc["GPU-0"]
    assert row["throttle_power_ratio"] == pytest.approx(0.25)
    assert row["throttle_thermal_ratio"] == 1.0


def test_of_two_names_for_one_thing_only_the_newest_counts(cycles: Cycles) -> None:
    for nanoseconds in (0, 6_000_000_000):
        cycles.poll(
            dcgm("DCGM_FI_DEV_POWER_VIOLATION", nanoseconds)
            + dcgm("DCGM_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP_NS", 2 * nanoseconds)
        )
    assert cycles.frame("gpu").loc["GPU-0", "throttle_power_ratio"] == pytest.approx(0.2)


def test_kinds_of_nvlink_errors_add_up(cycles: Cycles) -> None:
    for count in (1, 4):
        cycles.poll(
            dcgm("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", count)
            + dcgm("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", 2 * count)
        )
    assert cycles.frame("gpu").loc["GPU-0", "nvlink_error_count"] == 9.0


def test_an_xid_is_an_event_when_it_changes_and_not_a_count(cycles: Cycles) -> None:
    seen = []
    for code in (0, 31, 31, 79, 0, 79):
        cycles.poll(dcgm("DCGM_FI_DEV_XID_ERRORS", code, err_msg="why" if code == 79 else ""))
        seen += [(e.message, e.severity) for e in cycles.batch.events if e.code == "xid"]
    assert seen == [
        ("XID 31: see the driver log", Severity.WARNING),
        ("XID 79: why", Severity.CRITICAL),
        ("XID 79: why", Severity.CRITICAL),
    ]
    assert cycles.frame("gpu").empty


def test_an_xid_on_all_instances_is_the_cards_and_on_one_is_its_own(cycles: Cycles) -> None:
    def text(first: int, second: int) -> str:
        return dcgm("DCGM_FI_DEV_XID_ERRORS", first, gi="1") + dcgm("DCGM_FI_DEV_XID_ERRORS", second, gi="2")

    cycles.poll(text(0, 0))
    cycles.poll(text(31, 0))
    assert [e.subject.slice for e in cycles.batch.events if e.code == "xid"] == ["gi1"]
    cycles.poll(text(79, 79))
    assert [(e.subject.kind, e.message) for e in cycles.batch.events if e.code == "xid"] == [
        ("gpu", "XID 79: see the driver log")
    ]


def test_repeats_of_an_xid_show_in_the_counts(cycles: Cycles) -> None:
    seen = []
    for total, window in ((2, 2), (2, 1), (5, 1), (5, 2)):
        cycles.poll(
            dcgm("DCGM_EXP_XID_ERRORS_TOTAL", total, xid="31")
            + dcgm("DCGM_EXP_XID_ERRORS_COUNT", window, xid="43", window_size_in_ms="300000")
        )
        seen.append([e.message for e in cycles.batch.events if e.code == "xid"])
    assert seen == [
        ["XID 43: see the driver log (2 times)"],
        [],
        ["XID 31: see the driver log (3 times)"],
        ["XID 43: see the driver log"],
    ]


def test_a_uuid_given_to_two_cards_is_not_believed(cycles: Cycles) -> None:
    shared = "".join(dcgm("DCGM_FI_DEV_GPU_UTIL", 0, gpu=n, uuid="VM-PASSTHROUGH") for n in "01")
    cycles.poll(shared + dcgm("DCGM_FI_DEV_GPU_UTIL", 5, gpu="2", uuid="GPU-2"))
    assert list(cycles.frame("gpu").index) == ["GPU-2"]
    assert cycles.rejects() == {("", "one UUID for several cards"): 2}


def test_a_card_without_uuid_is_named_by_node_and_index(cycles: Cycles) -> None:
    cycles.poll('DCGM_FI_DEV_GPU_UTIL{gpu="3"} 50\nDCGM_FI_DEV_GPU_UTIL 10\n')
    assert list(cycles.frame("gpu").index) == ["node-a/3"]
    assert cycles.facts("identity") == {"3": "assumed"}
    assert cycles.rejects() == {("", "no device named"): 1}


def test_facts_of_a_card_are_told_once_and_versions_are_events(cycles: Cycles) -> None:
    def text(driver: str) -> str:
        memory = dcgm("DCGM_FI_DEV_FB_USED", 1, DCGM_FI_DRIVER_VERSION=driver, pci_bus_id="00000000:1B:00.0")
        return memory + dcgm("DCGM_FI_DEV_FB_FREE", 40000) + dcgm("DCGM_FI_DEV_FB_RESERVED", 535)

    cycles.poll(text("550.54"))
    told = {f.name: f.value for f in cycles.batch.facts if f.subject.kind == "gpu"}
    assert told == {
        "model": A100,
        "driver_version": "550.54",
        "pci_bus_id": "00000000:1B:00.0",
        "ordinal": "0",
        "mig": "disabled",
        "sm_count": "108",
        "architecture": "ampere",
        "max_sm_clock_hertz": "1410000000",
        "pcie_generation_max": "4",
        "nvlink_peak_bytes_per_second": "600000000000",
        "memory_total_bytes": str(40536 * MIB),
        "source": "dcgm-exporter",
        "sample_window": "0",
    }
    cycles.poll(text("550.54"))
    assert (cycles.batch.facts, cycles.events()) == ([], [])
    cycles.poll(text("570.10"))
    assert [(f.name, f.value) for f in cycles.batch.facts] == [("driver_version", "570.10")]
    assert cycles.events() == ["version_changed"]


def test_the_preferred_exporter_wins_and_the_other_fills_gaps(cycles: Cycles) -> None:
    hami = (
        'hami_host_gpu_utilization_ratio{device_uuid="GPU-0",device_index="0"} 40\n'
        'hami_host_gpu_memory_used_bytes{device_uuid="GPU-0",device_index="0"} 5e9\n'
    )
    cycles.poll({"http://b/hami": hami, "http://a/dcgm": dcgm("DCGM_FI_DEV_GPU_UTIL", 55)})
    row = cycles.frame("gpu").loc["GPU-0"]
    assert (row["busy_ratio"], row["memory_used_bytes"]) == (0.55, 5e9)
    cycles.poll({"http://b/hami": hami, "http://a/dcgm": dcgm("DCGM_FI_DEV_GPU_UTIL", 255)})
    assert cycles.frame("gpu").loc["GPU-0", "busy_ratio"] == pytest.approx(0.4)


def test_two_exporters_of_one_kind_count_once(cycles: Cycles) -> None:
    text = dcgm("DCGM_FI_DEV_POWER_USAGE", 300) + dcgm("DCGM_FI_PROF_SM_ACTIVE", 0.4)
    cycles.poll({"http://a/metrics": text, "http://b/metrics": text.replace("0.4", "0.6")})
    row = cycles.frame("gpu").loc["GPU-0"]
    assert (len(cycles.frame("gpu")), row["power_watts"], row["sm_active_ratio"]) == (1, 300.0, 0.4)


def test_users_own_metric_of_a_card(cycles_with: Callable[..., Cycles]) -> None:
    mapping = MappingSettings(metric="my_watts", measurement="gpu", field="power_watts", scale=0.001)
    cycles = cycles_with(mappings=(mapping,))
    cycles.poll('my_watts{UUID="GPU-0"} 250000\n' + dcgm("DCGM_FI_DEV_POWER_USAGE", 100))
    assert cycles.frame("gpu").loc["GPU-0", "power_watts"] == 250.0


def test_nvidia_gpu_exporters_uuid_gets_its_prefix(cycles: Cycles) -> None:
    uuid = "1c67088e-9ecb-4564-bb97-6151ecc2ef64"
    text = f'nvidia_smi_utilization_gpu_ratio{{uuid="{uuid}"}} 0.5\nnvidia_smi_power_draw_watts{{uuid="{uuid}"}} 70\n'
    cycles.poll(text + f'nvidia_smi_gpu_info{{uuid="{uuid}",name="Tesla T4",index="1",driver_version="590"}} 1\n')
    assert cycles.frame("gpu").loc[f"GPU-{uuid}", "busy_ratio"] == 0.5
    assert cycles.facts("model") == {f"GPU-{uuid}": "Tesla T4"}


def test_mig_without_visible_instances_does_not_pretend_to_be_a_whole_card(cycles: Cycles) -> None:
    uuid = "1c67088e-9ecb-4564-bb97-6151ecc2ef64"
    text = f'nvidia_smi_power_draw_watts{{uuid="{uuid}"}} 70\nnvidia_smi_mig_mode_current{{uuid="{uuid}"}} '
    cycles.poll(text + "1\n")
    assert cycles.frame("slice").empty
    assert cycles.facts("mig") == {f"GPU-{uuid}": "enabled"}
    cycles.poll(text + "0\n")
    assert cycles.facts("mig") == {f"GPU-{uuid}": "disabled"}
    assert cycles.facts("kind") == {"whole": "whole"}


def test_amd_sensors_come_from_the_first_partition_and_links_add_up(cycles: Cycles) -> None:
    def text(energy: int, sent: int) -> str:
        head = 'gpu_uuid="00000000-0000",gpu_id="2",hostname="h"'
        return (
            f'amd_gpu_gfx_activity{{{head},gpu_partition_id="0"}} 30\n'
            f'amd_gpu_gfx_activity{{{head},gpu_partition_id="1"}} 0\n'
            f'gpu_energy_consumed{{{head},gpu_partition_id="4294967295"}} {energy}\n'
            f'gpu_xgmi_link_tx{{{head},link_index="0"}} {sent}\ngpu_xgmi_link_tx{{{head},link_index="1"}} {sent}\n'
        )

    cycles.poll(text(1_000_000, 0))
    cycles.poll(text(61_000_000, 600))
    row = cycles.frame("gpu").loc["node-a/2"]
    assert row["busy_ratio"] == 0.3
    assert row["energy_joules"] == pytest.approx(60.0)
    assert row["nvlink_tx_bytes_per_second"] == pytest.approx(2 * 600 * 1024 / 60)
