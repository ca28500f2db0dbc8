"""Logs of each format, with the values that are right by hand; what is missing in them is said, guessed or refused."""

from __future__ import annotations

import json
import math
import pickle
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from collector.importing.dcgmi import read_dcgmi
from collector.importing.log import NotImportableError
from collector.importing.monitors import read_dmon, read_pmon
from collector.importing.smi_xml import read_xml
from collector.importing.snapshot import read_snapshot
from collector.importing.tables import read_apps, read_query
from tests.collector.reading import Read, read

MIB = 2**20
START = datetime(2026, 5, 1, tzinfo=UTC)
FILE_TIME = datetime(2026, 4, 1, tzinfo=UTC)


def column(result: Read, name: str, measurement: str = "gpu") -> list[Any]:
    values = result.batch.rows[measurement].column(name).to_pylist()
    return [None if isinstance(value, float) and math.isnan(value) else value for value in values]


def seconds(result: Read, measurement: str = "gpu", start: datetime = START) -> list[float]:
    return [(at - start).total_seconds() for at in column(result, "time", measurement)]


def facts(result: Read) -> dict[tuple[str, str], str | None]:
    return {(fact.subject.slice or fact.subject.gpu, fact.name): fact.value for fact in result.batch.facts}


# ---- tables without headings, stamps or names of cards


def test_columns_are_named_by_the_user_and_empty_names_are_left_out() -> None:
    text = "2026/04/01 10:00:00.000, 7 %, whatever, 100 MiB\n2026/04/01 10:00:01.000, 9 %, x, 101 MiB\n"
    result = read(read_query, text, columns=("timestamp", "utilization.gpu", "", "memory.used"))
    assert column(result, "busy_ratio") == [0.07, 0.09]
    assert column(result, "memory_used_bytes") == [100 * MIB, 101 * MIB]


def test_a_log_with_a_heading_keeps_its_own() -> None:
    text = "timestamp, memory.used [MiB]\n2026/04/01 10:00:00, 5 MiB\n"
    assert column(read(read_query, text, columns=("timestamp", "memory.free")), "memory_used_bytes") == [5 * MIB]


def test_rows_without_stamps_are_counted_from_the_start() -> None:
    text = "power.draw [W], temperature.gpu\n10.00 W, 30\n11.00 W, 31\n"
    result = read(read_query, text, start=START, step_seconds=0.5)
    assert seconds(result) == [0.0, 0.5]
    assert not any("time" in warning for warning in result.warnings)
    guessed = read(read_query, text)
    assert seconds(guessed, start=FILE_TIME) == [0.0, 1.0]
    assert [w.split(" (")[1] for w in guessed.warnings if "time" in w] == ["say --start)", "say --interval)"]


def test_a_torn_line_keeps_its_time() -> None:
    text = "power.draw [W], temperature.gpu\n10.00 W, 30\n11.0\n12.00 W,\n13.00 W, 33\n1\0, 3\n14.00 W, 34\n"
    result = read(read_query, text, start=START, step_seconds=10.0)
    assert column(result, "power_watts") == [10, 12, 13, 14]
    assert seconds(result) == [0, 10, 20, 40]  # `11.0` holds no cell of a row: it may be any message
    assert sum(count for count, _ in result.rejected.values()) == 2


def test_unstamped_rows_of_named_cards_begin_a_cycle_when_a_card_comes_again() -> None:
    text = "index, power.draw [W]\n0, 10 W\n1, 20 W\n0, 11 W\n0, 12 W\n1, 22 W\n"
    result = read(read_query, text, start=START, step_seconds=1.0)
    assert list(zip(column(result, "gpu"), seconds(result), strict=True)) == [
        ("n1/0", 0),
        ("n1/1", 0),
        ("n1/0", 1),
        ("n1/0", 2),
        ("n1/1", 2),
    ]


def interleaved(cards: int, cycles: int, *, step_ms: int = 1000, within_ms: int = 1) -> list[str]:
    at = datetime(2026, 4, 1)  # noqa: DTZ001  as nvidia-smi writes it
    lines = []
    for cycle in range(cycles):
        for card in range(cards):
            stamp = at + timedelta(milliseconds=cycle * step_ms + card * within_ms + 3)
            lines.append(f"{stamp:%Y/%m/%d %H:%M:%S}.{stamp.microsecond // 1000:03}, {card * 1000 + cycle} MiB")
    return lines


HEAD = "timestamp, memory.used [MiB]"


@pytest.mark.parametrize("cards", [2, 3, 8])
@pytest.mark.parametrize("within_ms", [0, 1])
def test_cards_in_turn_are_told_apart_by_the_waits_between_cycles(cards: int, within_ms: int) -> None:
    result = read(read_query, "\n".join([HEAD, *interleaved(cards, 5, within_ms=within_ms)]))
    assert column(result, "gpu") == [f"n1/{card}" for _ in range(5) for card in range(cards)]
    assert column(result, "memory_used_bytes") == [
        (card * 1000 + cycle) * MIB for cycle in range(5) for card in range(cards)
    ]
    assert f"taken as {cards} cards" in " ".join(result.warnings)
    said = read(read_query, "\n".join([HEAD, *interleaved(cards, 5, within_ms=within_ms)]), gpus=cards)
    assert column(said, "gpu") == column(result, "gpu")
    assert said.warnings == []


def test_a_cycle_with_a_lost_row_is_rejected_and_shifts_no_other() -> None:
    lines = interleaved(3, 6)
    del lines[7]
    result = read(read_query, "\n".join([HEAD, *lines]), gpus=3)
    assert result.rejected == {"expected 3 rows in turn, got another number: whose they are is open": (2, 8)}
    assert column(result, "memory_used_bytes")[6:9] == [(card * 1000 + 3) * MIB for card in range(3)]
    assert column(result, "gpu") == ["n1/0", "n1/1", "n1/2"] * 5


def test_a_torn_row_keeps_its_place_among_the_cards() -> None:
    lines = interleaved(3, 4)
    lines[4] = lines[4][:23] + ", 7 MiB, 8 MiB"
    result = read(read_query, "\n".join([HEAD, *lines]), gpus=3)
    assert column(result, "gpu") == ["n1/0", "n1/1", "n1/2", "n1/0", "n1/2", *["n1/0", "n1/1", "n1/2"] * 2]


def test_what_could_be_one_card_or_several_is_rejected_by_name() -> None:
    whole_seconds = "\n".join([HEAD, *(f"2026/04/01 10:00:{n // 2:02}, {n} MiB" for n in range(20))])
    with pytest.raises(NotImportableError, match=r"share a time stamp.*--gpus"):
        read(read_query, whole_seconds)
    assert set(column(read(read_query, whole_seconds, gpus=2), "gpu")) == {"n1/0", "n1/1"}
    assert set(column(read(read_query, whole_seconds, gpus=1), "gpu")) == {"n1/0"}


def test_unstamped_rows_that_look_like_several_cards_are_rejected_by_name() -> None:
    rows = "".join(f"{5000 * (n % 3) + n // 3} MiB, 30\n" for n in range(60))
    text = "memory.used [MiB], temperature.gpu\n" + rows
    with pytest.raises(NotImportableError, match=r"`memory.used` comes back every 3 rows.*--gpus \(3, or 1\)"):
        read(read_query, text)
    result = read(read_query, text, gpus=3, start=START, step_seconds=2.0)
    assert column(result, "gpu")[:4] == ["n1/0", "n1/1", "n1/2", "n1/0"]
    assert seconds(result)[:4] == [0, 0, 0, 2]


def test_a_query_without_anything_that_is_kept_is_rejected_by_name() -> None:
    with pytest.raises(NotImportableError, match="none of its columns"):
        read(read_query, "timestamp, index, fan.speed [%]\n2026/04/01 10:00:00, 0, 30 %\n")


def test_reasons_of_clocks_totals_and_cut_cards() -> None:
    head = (
        "timestamp, uuid, mig.mode.current, clocks_event_reasons.active, ecc.errors.corrected.volatile.total,"
        " pcie.link.gen.current, pcie.link.gen.max\n"
    )
    rows = ["Disabled, 0x0000000000000004, 7, 1, 4", "Disabled, 0x00000000000000A1, 9, 4, 4", "Enabled, odd, 2, 4, 4"]
    text = head + "".join(f"2026/04/01 10:00:0{n}, GPU-1, {row}\n" for n, row in enumerate(rows))
    result = read(read_query, text)
    assert column(result, "throttle_power_ratio") == [1, 0, None]
    assert column(result, "throttle_thermal_ratio") == [0, 1, None]
    assert column(result, "throttle_brake_ratio") == [0, 1, None]
    assert column(result, "ecc_corrected_count") == [None, 2, None]  # of a total: its growth; it fell at a reset
    assert [event.code for event in result.batch.events] == ["counter_reset"]
    assert len(result.batch.rows["slice"]) == 2  # a card that is cut is nobody's as a whole
    told = [(f.name, f.value, f.at.second) for f in result.batch.facts if f.name in ("mig", "pcie_generation")]
    assert told == [
        ("pcie_generation", "1", 0),
        ("mig", "disabled", 0),
        ("pcie_generation", "4", 1),
        ("mig", "enabled", 2),
    ]


def test_flags_tell_reasons_as_the_mask_does() -> None:
    name = "clocks_throttle_reasons"
    text = f"timestamp, uuid, {name}.gpu_idle, {name}.hw_slowdown, {name}.sync_boost\n" + "".join(
        f"2026/04/01 10:00:0{n}, GPU-1, {row}\n"
        for n, row in enumerate(["Not Active, Active, Active", "Active, Active, Not Active", "[N/A], [N/A], [N/A]"])
    )
    result = read(read_query, text)
    assert column(result, "throttle_brake_ratio") == [1, 0, None]  # an idle card's slowdown is no brake
    assert column(result, "throttle_other_ratio") == [1, 0, None]


def test_processes_without_stamps_or_cards() -> None:
    text = "pid, process_name, used_memory [MiB]\n7, /a/train, 5 MiB\n8, b, 6 MiB\n7, /a/train, 7 MiB\n"
    with pytest.raises(NotImportableError, match=r"no column names the cards.*--gpus 1"):
        read(read_apps, text)
    result = read(read_apps, text, gpus=1, start=START, step_seconds=60.0)
    start = int(START.timestamp())
    assert column(result, "slice", "slice") == [f"n1/7.{start}", f"n1/8.{start}", f"n1/7.{start}"]
    assert seconds(result, "slice") == [0, 0, 60]
    headerless = "2026/04/01 10:00:00, GPU-1, 7, a, 5 MiB\n"
    named = read(read_apps, headerless, columns=("timestamp", "gpu_uuid", "pid", "process_name", "used_gpu_memory"))
    assert column(named, "memory_used_bytes", "slice") == [5 * MIB]


# ---- dmon and pmon


DMON = """\
# gpu    pwr  gtemp     sm    mem     fb  rxpci  txpci
# Idx      W      C      %      %     MB   MB/s   MB/s
    0    100     50     80     30   1024     10     20
    1      9     30      -      0      4      0      0
# gpu    pwr  gtemp     sm    mem     fb  rxpci  txpci
    0    101     51     81     30   1024     10     20
"""


@pytest.mark.parametrize("comma", [False, True])
def test_dmon_without_stamps(comma: bool) -> None:
    text = re.sub(r"(?<=[^#\s]) +", ", ", DMON) if comma else DMON
    result = read(read_dmon, text, start=START, step_seconds=1.0)
    assert column(result, "busy_ratio") == [0.8, None, 0.81]
    assert column(result, "memory_used_bytes") == [1024 * MIB, 4 * MIB, 1024 * MIB]
    assert column(result, "pcie_tx_bytes_per_second") == [20e6, 0, 20e6]
    assert seconds(result) == [0, 0, 1]


PMON = """\
# gpu         pid   type     sm    mem    enc    dec     fb    command
# Idx           #    C/G      %      %      %      %     MB    name
"""


def test_pmon_gives_processes_and_says_mps() -> None:
    text = PMON + (
        "    0      20037     C      2      0     24      -    538    ffmpeg\n"
        "    0      20038   M+C   4294      0      -      -    681    my app\n"
        "    1          -     -      -      -      -      -      -    -\n"
        "    0      20037     C      3      0     27      -    540    ffmpeg\n"
        "    0          x     C      3      0     27      -    540    ffmpeg\n"
        "    0          0     C      3      0     27      -    540    ffmpeg\n"
    )
    result = read(read_pmon, text, start=START, step_seconds=1.0)
    first = int(START.timestamp())
    assert column(result, "slice", "slice") == [f"n1/20037.{first}", f"n1/20038.{first}", f"n1/20037.{first}"]
    assert column(result, "workload", "slice") == ["ffmpeg", "my app", "ffmpeg"]
    assert column(result, "busy_ratio", "slice") == [0.02, None, 0.03]
    assert column(result, "encoder_ratio", "slice") == [0.24, None, 0.27]
    assert column(result, "memory_used_bytes", "slice") == [538 * MIB, 681 * MIB, 540 * MIB]
    assert seconds(result, "slice") == [0, 0, 1]
    assert facts(result)[f"n1/20038.{first}", "kind"] == "mps"
    assert facts(result)["n1/1", "identity"] == "assumed"
    assert result.rejected["expected the number of a process"] == (2, 7)
    assert result.rejected["busy_ratio: out of range: 4294"] == (1, 4)
    assert result.accepted == 4


TOKYO = ZoneInfo("Asia/Tokyo")


def test_dmon_with_a_time_but_no_date_stands_on_the_day_of_its_start_and_passes_midnight() -> None:
    text = "#Time        gpu    pwr\n 23:59:59      0    10\n 00:00:01      0    11\n 23:59:58      0    12\n"
    result = read(read_dmon, text, start=datetime(2026, 5, 1, 12, tzinfo=TOKYO), zone=TOKYO)
    assert column(result, "time") == [
        datetime(2026, 5, 1, 23, 59, 59, tzinfo=TOKYO),
        datetime(2026, 5, 2, 0, 0, 1, tzinfo=TOKYO),
        datetime(2026, 5, 2, 23, 59, 58, tzinfo=TOKYO),
    ]
    guessed = read(read_dmon, text.replace(" 23:59:58", " noon    "))
    assert column(guessed, "time")[0].date() == FILE_TIME.date()
    assert any("carry no date" in warning for warning in guessed.warnings)
    assert guessed.rejected == {"expected a date and a time": (1, 4)}


def test_dmon_with_a_date_but_no_time_is_counted_and_must_stay_on_its_day() -> None:
    text = "#Date       gpu    pwr\n 20260501      0    10\n 20260501      0    11\n 20260502      0    12\n"
    result = read(read_dmon, text, zone=UTC)
    assert seconds(result) == [0, 1]
    assert result.rejected == {"expected a date and a time": (1, 4)}
    late = read(read_dmon, text, zone=UTC, start=START + timedelta(hours=23, minutes=59), step_seconds=30.0)
    assert column(late, "power_watts") == [10, 11, 12]
    assert len(read(read_dmon, "#Date gpu pwr\n yesterday 0 1\n").batch.rows) == 0


# ---- dcgmi


def test_dcgmi_gives_cards_their_energy_their_xids_and_the_memory_of_instances() -> None:
    text = (
        "#Entity   GPUTL  POWER    TOTEC    SMACT  FBUSD  FBTTL  XIDER\n"
        "ID               W        mJ\n"
        "GPU 2     97     251.0    1000000  0.5    1000   81559  0\n"
        "GPU-I 4   N/A    N/A      N/A      0.994  12     9856   N/A\n"
        "GPU 2     101    252.0    1250000  1.03   1000   81559  31\n"
        "#Entity   GPUTL  POWER    TOTEC    SMACT  FBUSD  FBTTL  XIDER\n"
        "GPU 2     98     253.0    500      N/A    1000   81559  31\n"
        "GPU 2     98     253.0    1500     9223372036854775794  1000   81559\n"
        "Switch 0  1  2  3  4  5  6  7\n"
        "dmon was stopped due to receiving a signal.\n"
        "what is this\n"
    )
    result = read(read_dcgmi, text, start=START, step_seconds=1.0)
    assert column(result, "gpu") == ["n1/2"] * 3
    assert column(result, "busy_ratio") == [0.97, None, 0.98]
    assert column(result, "sm_active_ratio") == [0.5, 1.0, None]
    assert column(result, "energy_joules") == [None, 250.0, None]
    assert seconds(result) == [0, 1, 2]
    rows = result.batch.rows["slice"].to_pylist()
    assert [(row["slice"], row["memory_used_bytes"], row["memory_quota_bytes"]) for row in rows] == [
        ("dcgm4", 12 * MIB, 9856 * MIB)
    ]
    assert facts(result)["dcgm4", "identity"] == "assumed"
    assert facts(result)["n1/2", "memory_total_bytes"] == str(81559 * MIB)
    assert sorted(event.message for event in result.batch.events) == [
        "XID 31: see the driver log",
        "energy_joules fell: its source started anew",
    ]
    assert result.rejected == {
        "busy_ratio: out of range: 101": (1, 5),
        "expected 7 columns, got another number": (1, 8),
        "Switch: such entities are not kept": (1, 9),
        "expected an entity such as `GPU 0`": (1, 11),
    }


def test_dcgmi_instances_of_several_cards_are_of_nobody_knows_which() -> None:
    text = "#Entity FBUSD\nID\nGPU 0 1\nGPU 1 2\nGPU-I 0 1\nGPU-CI 0 1\n"
    result = read(read_dcgmi, text, start=START, step_seconds=1.0)
    assert result.rejected == {
        "GPU-I: whose it is, is not told": (1, 5),
        "GPU-CI: whose it is, is not told": (1, 6),
    }
    assert "slice" not in result.batch.rows


# ---- XML


def document(stamp: str, gpus: str) -> str:
    return (
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n<nvidia_smi_log>\n'
        f"<timestamp>{stamp}</timestamp>\n<driver_version>570.1</driver_version><cuda_version>12.8</cuda_version>\n"
        f"{gpus}\n</nvidia_smi_log>\n"
    )


PLAIN = """<gpu id="00000000:01:00.0"><product_name>NVIDIA L4</product_name><uuid>GPU-1</uuid>
<mig_mode><current_mig>N/A</current_mig></mig_mode>
<fb_memory_usage><total>23034 MiB</total><reserved>470 MiB</reserved><used>1226 MiB</used>
<free>21338 MiB</free></fb_memory_usage>
<utilization><gpu_util>37 %</gpu_util><memory_util>5 %</memory_util><encoder_util>N/A</encoder_util></utilization>
<temperature><gpu_temp>51 C</gpu_temp><memory_temp>N/A</memory_temp></temperature>
<gpu_power_readings><instant_power_draw>41.00 W</instant_power_draw><average_power_draw>40.50 W</average_power_draw>
<current_power_limit>72.00 W</current_power_limit></gpu_power_readings>
<clocks><sm_clock>2040 MHz</sm_clock><mem_clock>6250 MHz</mem_clock></clocks>
<pci><tx_util>2000 KB/s</tx_util><rx_util>1000 KB/s</rx_util><replay_counter>3</replay_counter>
<pci_gpu_link_info><link_widths><max_link_width>16x</max_link_width></link_widths></pci_gpu_link_info></pci>
<clocks_event_reasons><clocks_event_reason_sw_power_cap>Active</clocks_event_reason_sw_power_cap></clocks_event_reasons>
<ecc_errors><volatile><sram_correctable>1</sram_correctable><dram_correctable>2</dram_correctable>
<dram_uncorrectable>N/A</dram_uncorrectable></volatile></ecc_errors>
<processes><process_info><pid>77</pid><type>M+C</type><process_name>/opt/a b/train</process_name>
<used_memory>700 MiB</used_memory></process_info><process_info><pid>78</pid><type>C</type>
<process_name>serve</process_name><used_memory>N/A</used_memory></process_info></processes></gpu>"""

CUT = """<gpu id="00000000:02:00.0"><product_name>NVIDIA H100 80GB HBM3</product_name><uuid>GPU-2</uuid>
<mig_mode><current_mig>Enabled</current_mig></mig_mode>
<fb_memory_usage><total>81559 MiB</total><used>7500 MiB</used></fb_memory_usage>
<utilization><gpu_util>N/A</gpu_util></utilization>
<gpu_power_readings><power_draw>433.78 W</power_draw></gpu_power_readings>
<mig_devices>
<mig_device><index>0</index><gpu_instance_id>2</gpu_instance_id><compute_instance_id>0</compute_instance_id>
<device_attributes><shared><multiprocessor_count>16</multiprocessor_count></shared></device_attributes>
<fb_memory_usage><total>40448 MiB</total><used>7484 MiB</used></fb_memory_usage></mig_device>
<mig_device><index>1</index><gpu_instance_id>2</gpu_instance_id><compute_instance_id>1</compute_instance_id>
<device_attributes><shared><multiprocessor_count>32</multiprocessor_count></shared></device_attributes>
<fb_memory_usage><total>40448 MiB</total><used>7484 MiB</used></fb_memory_usage></mig_device>
<mig_device><index>2</index><gpu_instance_id>9</gpu_instance_id>
<device_attributes><shared><multiprocessor_count>16</multiprocessor_count></shared></device_attributes>
<fb_memory_usage><total>9984 MiB</total><used>16 MiB</used></fb_memory_usage></mig_device></mig_devices>
<processes><process_info><gpu_instance_id>2</gpu_instance_id><pid>21198</pid><process_name>./gpu_burn</process_name>
<used_memory>7484 MiB</used_memory></process_info></processes></gpu>"""


def test_xml_of_one_document() -> None:
    result = read(read_xml, document("Tue Jul 14 09:00:44 2026", PLAIN + CUT))
    assert column(result, "gpu") == ["GPU-1", "GPU-2"]
    assert column(result, "time") == [datetime(2026, 7, 14, 9, 0, 44, tzinfo=UTC)] * 2
    row = result.batch.rows["gpu"].to_pylist()[0]
    assert {name: row[name] for name in ("busy_ratio", "memory_busy_ratio", "power_watts", "temperature_celsius")} == {
        "busy_ratio": 0.37,
        "memory_busy_ratio": 0.05,
        "power_watts": 40.5,
        "temperature_celsius": 51.0,
    }
    assert row["memory_reserved_bytes"] == 470 * MIB
    assert row["pcie_tx_bytes_per_second"] == 2e6
    assert row["throttle_power_ratio"] == 1.0
    assert row["sm_clock_hertz"] == 2.04e9
    assert column(result, "busy_ratio")[1] is None
    slices = {row["slice"]: row for row in result.batch.rows["slice"].to_pylist()}
    start = int(datetime(2026, 7, 14, 9, 0, 44, tzinfo=UTC).timestamp())
    assert list(slices) == [f"n1/77.{start}", f"n1/78.{start}", "gi2", "gi9"]
    assert slices[f"n1/77.{start}"]["workload"] == "train"
    assert slices[f"n1/77.{start}"]["memory_used_bytes"] == 700 * MIB
    assert slices["gi2"]["memory_used_bytes"] == 7484 * MIB  # two compute instances show the same memory
    assert slices["gi2"]["sm_quota_ratio"] == pytest.approx(48 / 132)
    assert (slices["gi2"]["workload"], slices["gi9"]["workload"]) == ("gpu_burn", "unknown")
    told = facts(result)
    assert told["GPU-1", "memory_total_bytes"] == str(23034 * MIB)
    assert told["GPU-1", "power_limit_watts"] == "72"
    assert told["GPU-1", "pcie_lanes_max"] == "16"
    assert told["GPU-1", "cuda_version"] == "12.8"
    assert told["GPU-2", "mig"] == "enabled"
    assert (told["gi2", "kind"], told[f"n1/77.{start}", "kind"]) == ("mig", "mps")


def test_xml_of_several_documents_loses_only_the_torn_ones() -> None:
    whole = [
        document(f"Tue Jul 14 09:00:4{n} 2026", PLAIN.replace("<sram_correctable>1", f"<sram_correctable>{n}"))
        for n in range(4)
    ]
    torn = whole[1].partition("<clocks>")[0]
    text = whole[0] + torn + "\n" + whole[2] + whole[3].replace("2026</timestamp>", "</timestamp>") + whole[1] + torn
    result = read(read_xml, text)
    assert [at.second for at in column(result, "time")] == [40, 42, 41]
    assert column(result, "ecc_corrected_count") == [None, 2, None]
    size = whole[0].count("\n")
    assert result.rejected["expected a whole XML document: its end is missing"] == (2, size + 1)
    assert any("<timestamp>" in reason for reason in result.rejected)


def test_xml_that_would_grow_or_reach_out_is_rejected() -> None:
    head = '<?xml version="1.0"?><!DOCTYPE nvidia_smi_log'
    bomb = f'{head} [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><nvidia_smi_log>&b;</nvidia_smi_log>\n'
    file = f'{head} [<!ENTITY x SYSTEM "file:///etc/passwd">]><nvidia_smi_log>&x;</nvidia_smi_log>\n'
    result = read(read_xml, bomb + file + document("Tue Jul 14 09:00:44 2026", PLAIN))
    assert result.accepted == 3
    assert result.rejected == {"expected a whole XML document: EntitiesForbidden": (2, 1)}


# ---- memory snapshots


def snapshot(**changes: Any) -> dict[str, Any]:
    """Two devices; on device 0 one segment partly in use, one wholly free, one that waits for a stream."""
    blocks = {
        "used": [("active_allocated", 600), ("inactive", 300), ("active_pending_free", 100)],
        "free": [("inactive", 500)],
        "waiting": [("active_awaiting_free", 40), ("inactive", 60)],
        "other": [("active_allocated", 7)],
    }
    segments = [
        {
            "device": int(name == "other"),
            "address": 1 << 40,
            "total_size": sum(size for _, size in parts),
            "blocks": [{"state": state, "size": size, "address": 1} for state, size in parts],
        }
        for name, parts in blocks.items()
    ]
    trace = [
        {"action": "alloc", "size": 5, "time_us": 1_783_874_041_000_000},
        {"action": "oom", "size": 4096, "device_free": 1, "time_us": 1_783_874_042_500_000},
    ]
    return {"segments": segments, "device_traces": [trace, []]} | changes


@pytest.mark.parametrize(
    "dump", [lambda s: pickle.dumps(s, 4), lambda s: pickle.dumps(s, 2), lambda s: json.dumps(s).encode()]
)
def test_a_snapshot_tells_what_the_allocator_holds(dump: Any) -> None:
    result = read(read_snapshot, dump(snapshot()))
    assert column(result, "gpu", "slice") == ["n1/0", "n1/1"]
    assert column(result, "allocator_reserved_bytes", "slice") == [1600, 7]
    assert column(result, "allocator_allocated_bytes", "slice") == [600, 7]
    assert column(result, "allocator_inactive_split_bytes", "slice") == [360, 0]  # not the wholly free segment's 500
    at = datetime.fromtimestamp(1_783_874_042.5, UTC)
    assert column(result, "time", "slice") == [at] * 2
    assert [(e.code, e.message, e.at, e.subject.gpu) for e in result.batch.events] == [
        ("oom", "out of memory: asked for 4096 bytes", at, "n1/0")
    ]
    assert result.accepted == 4


def test_an_old_snapshot_is_a_list_and_stands_where_the_user_says() -> None:
    result = read(read_snapshot, pickle.dumps(snapshot()["segments"]), start=START)
    assert seconds(result, "slice") == [0, 0]
    assert seconds(read(read_snapshot, json.dumps(snapshot(device_traces=None)).encode()), "slice", FILE_TIME) == [0, 0]


def test_segments_that_make_no_sense_are_counted_and_lose_no_other() -> None:
    segments = snapshot()["segments"]
    good = segments[3]
    bad = [
        "text",
        {**good, "total_size": -1},
        {**good, "device": True},
        {**good, "blocks": [{"state": "active_allocated", "size": 8}]},
        {**good, "blocks": [{"state": "melted", "size": 1}]},
        {**good, "blocks": [{"state": ["active_allocated"], "size": 1}]},
        {**good, "blocks": [{"state": "inactive"}]},
    ]
    result = read(read_snapshot, pickle.dumps([*bad, good]), start=START)
    assert (result.accepted, sum(count for count, _ in result.rejected.values())) == (1, len(bad))
    assert column(result, "allocator_reserved_bytes", "slice") == [7]
    with pytest.raises(NotImportableError, match="no segment of it can be read"):
        read(read_snapshot, pickle.dumps(bad))


class Runs:
    """A pickle of this would run a command."""

    ran = False

    def __reduce__(self) -> Any:
        return _run, ()


def _run() -> None:
    Runs.ran = True


def twice(depth: int) -> Any:
    """A tuple of tuples of tuples: its hash visits 2 ** depth of them."""
    value: Any = (1,)
    for _ in range(depth):
        value = (value, value)
    return value


def with_key(key: bytes) -> bytes:
    return b"\x80\x04}" + key + b"K\x01s."


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (pickle.dumps({"segments": [Runs()]}), "would run code"),
        (pickle.dumps({1, 2}, 2), "would run code"),
        (b"\x80\x02cos\nsystem\n(S'true'\ntR.", "would run code"),
        (b"\x80\x02P0\n.", "would run code"),
        (b"\x80\x04\x82\x01.", "would run code"),
        (pickle.dumps([1, 2], 4), "no segment"),
        (pickle.dumps({"a": 1}, 4), "its `segments`"),
        (b"\x80\x04r\xff\xff\xff\x7f.", "damaged"),
        (b"\x80\x05\x96" + b"\xff" * 8, "damaged"),
        (b"\x80\x04]", "damaged"),
        (with_key(pickle.dumps(twice(60), 4)[2:-1]), "damaged"),
        (b'{"segments": [', "damaged"),
        (b'{"segments": 7}', "its `segments`"),
        (b"[" * 100_000 + b"]" * 100_000, "damaged"),
    ],
)
def test_what_is_no_snapshot_is_rejected_and_nothing_of_it_runs(content: bytes, reason: str) -> None:
    with pytest.raises(NotImportableError, match=reason):
        read(read_snapshot, content)
    assert not Runs.ran


def test_a_snapshot_that_refers_to_its_blocks_again_and_again_is_rejected() -> None:
    blocks = [{"state": "inactive", "size": 0}] * 1000
    with pytest.raises(NotImportableError, match="again and again"):
        read(read_snapshot, pickle.dumps([{"total_size": 1, "blocks": blocks}] * 1000))


def test_plain_containers_of_every_protocol_are_read() -> None:
    from collector.importing.plain_pickle import load_plain  # noqa: PLC0415

    value = {"a": [1, 2.5, None, True, b"x", (3, "ü")], 7: {"b": bytearray(b"y")}, "s": {1, 2}, "f": frozenset((1,))}
    assert load_plain(pickle.dumps(value, 5)) == value
    assert not math.isnan(load_plain(pickle.dumps(1.5, 0)))
