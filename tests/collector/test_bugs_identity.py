"""Known faults of exporters, rows 49 to 77: names, duplicates, counters, time. Numbers as in `test_bugs.ROWS`."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from collector.batch import Severity
from collector.health import still_polls
from collector.schema import SLICE
from collector.settings import StoreSettings
from collector.store import EmbeddedStore
from collector.window import Window
from tests.collector.conftest import START
from tests.collector.test_assemble_slices import CARD, KUBE, dcgm, held, kube, slices
from tests.collector.test_bugs_sharing import ALL_SMS, SM, absent, capture, mig

if TYPE_CHECKING:
    import pandas as pd

    from tests.collector.conftest import Cycles

OWN = {"namespace": "gpu-operator", "pod": "nvidia-dcgm-exporter-tl46n", "container": "exporter"}


def card(cycles: Cycles, uuid: str = "GPU-0") -> pd.Series:
    return cycles.frame("gpu").loc[uuid]


def busy(value: float = 50, **labels: str) -> str:
    return dcgm("DCGM_FI_DEV_GPU_UTIL", value, **labels)


def energy(value: float) -> str:
    return dcgm("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", value)


def test_row_49_the_exporters_own_pod_is_not_the_workload(cycles: Cycles) -> None:
    theirs = {"exported_namespace": "team", "exported_pod": "job-0", "exported_container": "main"}
    cycles.poll(busy(**OWN, **theirs))
    assert slices(cycles) == {"whole": ("team", "job")}
    fresh = type(cycles)(cycles.context)
    fresh.poll(busy(**OWN))
    assert slices(fresh) == {"whole": ("unknown", "unknown")}


def test_row_50_instances_without_names_are_of_unknown_holders(cycles: Cycles) -> None:
    cycles.poll("".join(mig("DCGM_FI_DEV_FB_USED", 9, n, device="nvidia0/gi7") for n in (7, 8)))
    assert slices(cycles) == {"gi7": ("unknown", "unknown"), "gi8": ("unknown", "unknown")}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_row_51_a_pod_that_ended_holds_nothing_although_it_is_still_named(cycles: Cycles, phase: str) -> None:
    text = busy(**held("job"))
    cycles.poll({CARD: text, KUBE: kube({"ns/job": {"node": "node-a"}})})
    assert slices(cycles) == {"whole": ("ns", "job")}
    cycles.poll({CARD: text, KUBE: kube({"ns/job": {"node": "node-a", "phase": phase}})})
    assert ("ns", "job") not in slices(cycles).values()
    assert any(f.name == "pod" and f.value is None for f in cycles.batch.facts)  # the grant ends with the pod


def test_row_52_a_card_that_vanishes_while_its_target_answers_is_told(cycles: Cycles) -> None:
    cycles.poll(busy() + busy(uuid="GPU-1", gpu="1"))
    told = []
    for _ in range(3):
        cycles.poll(busy())
        told += cycles.events()
    assert told == ["card_lost"]


def test_row_53_series_of_two_jobs_are_one_instances(cycles: Cycles) -> None:
    text = "".join(
        mig("DCGM_FI_PROF_GR_ENGINE_ACTIVE", value, n, hpc_job=job)
        for n, value in ((1, 1.0), (2, 0.5))
        for job in ("77", "78")
    )
    cycles.poll(text)
    rows = cycles.frame("slice")
    assert rows.loc["gi1", "engine_active_ratio"] == pytest.approx(SM / ALL_SMS)
    assert card(cycles)["engine_active_ratio"] == pytest.approx(1.5 * SM / ALL_SMS)


def test_row_54_a_target_that_answers_500_is_down_and_its_cards_are_not_lost(cycles: Cycles) -> None:
    cycles.poll(busy())
    told = []
    for _ in range(3):
        cycles.poll("HTTP/1.1 500 Internal Server Error\n\ninternal server error\n")
        told += cycles.events()
        assert cycles.frame("gpu").empty
    assert told == ["target_down"]


def test_row_54_of_a_real_answer(cycles: Cycles, shared_dir: Path) -> None:
    cycles.poll(capture(shared_dir, "dcgm_exporter_500_duplicate.txt"))
    assert cycles.rejects() == {("", "body is an HTTP error, not an exposition"): 1}


def test_row_55_two_exporters_and_two_copies_are_one_card(cycles: Cycles) -> None:
    text = busy(60) + dcgm("DCGM_FI_DEV_POWER_USAGE", 200)
    cycles.poll({CARD: text + text, "http://second/m": text})
    assert len(cycles.frame("gpu")) == 1
    assert (card(cycles)["busy_ratio"], card(cycles)["power_watts"]) == (0.6, 200)


@pytest.mark.parametrize("said", ["localhost", "nvidia-dcgm-exporter-tl46n"])
@pytest.mark.parametrize("label", ["Hostname", "hostname"])
def test_row_56_the_node_is_not_what_a_pod_calls_itself(cycles: Cycles, said: str, label: str) -> None:
    address = "http://10.1.2.3:9400/metrics"
    cycles.poll({address: busy(**{label: said})}, node="")
    assert card(cycles)["node"] == "10.1.2.3"
    fresh = type(cycles)(cycles.context)
    fresh.poll({address: busy(**{label: said})}, labels={address: {"node": "worker-7"}}, node="")
    assert card(fresh)["node"] == "worker-7"


def test_row_56_of_a_real_scrape(cycles: Cycles, shared_dir: Path) -> None:
    cycles.poll({"http://worker-1:9400/metrics": capture(shared_dir, "dcgm4_h100_mixed_mig.prom")}, node="")
    assert set(cycles.frame("gpu")["node"]) == {"worker-1"}


def test_row_57_a_busy_card_whose_figures_never_move_is_stale(cycles: Cycles) -> None:
    text = busy(90) + dcgm("DCGM_FI_DEV_POWER_USAGE", 301.5) + dcgm("DCGM_FI_DEV_SM_CLOCK", 1410)
    text += dcgm("DCGM_FI_DEV_GPU_TEMP", 61)
    for _ in range(still_polls(60.0)):
        cycles.poll(text)
        assert card(cycles)["busy_ratio"] == 0.9
    cycles.poll(text)
    assert cycles.frame("gpu").empty or absent(card(cycles), "busy_ratio")
    assert ("", "stale") in cycles.rejects()


def test_row_57_an_idle_card_may_stand_still(cycles: Cycles) -> None:
    text = busy(0) + dcgm("DCGM_FI_DEV_POWER_USAGE", 50) + dcgm("DCGM_FI_DEV_SM_CLOCK", 210)
    for _ in range(still_polls(60.0) + 5):
        cycles.poll(text + dcgm("DCGM_FI_DEV_GPU_TEMP", 30))
    assert card(cycles)["busy_ratio"] == 0


def test_row_58_a_card_that_fell_off_the_bus_is_lost_and_may_come_back(cycles: Cycles) -> None:
    both = busy() + busy(uuid="GPU-1", gpu="1")
    cycles.poll(both)
    told = []
    for text in (busy(), busy(), busy(), both):
        cycles.poll(text)
        told += [(event.code, event.subject.gpu, event.severity) for event in cycles.batch.events]
    assert told == [("card_lost", "GPU-1", Severity.CRITICAL), ("card_returned", "GPU-1", Severity.INFO)]


def grown(cycles: Cycles, readings: list[float | None]) -> list[float]:
    """Return the energy of each reading's row in joules; None is a cycle without an answer."""
    found = []
    for reading in readings:
        cycles.poll({CARD: None} if reading is None else energy(reading) + busy())
        frame = cycles.frame("gpu")
        there = "energy_joules" in frame and len(frame)
        found.append(float(frame["energy_joules"].iloc[0]) if there else np.nan)
    return found


def test_row_59_energy_that_falls_begins_anew_and_is_never_negative(cycles: Cycles) -> None:
    found = grown(cycles, [9_000_000, 9_600_000, 100_000, 700_000])
    np.testing.assert_allclose(found, [np.nan, 600, np.nan, 600])
    assert "counter_reset" in grown_events(cycles)


def grown_events(cycles: Cycles) -> list[str]:
    fresh = type(cycles)(cycles.context)
    told = []
    for reading in (9_000_000, 100_000):
        fresh.poll(energy(reading) + busy())
        told += fresh.events()
    return told


def test_row_59_of_a_real_card(cycles: Cycles, shared_dir: Path) -> None:
    told = []
    for name in ("dcgm3_a100_mig_disabled_doubled.prom", "dcgm3_a100_mig_idle_allocated.prom"):
        cycles.poll(capture(shared_dir, name))
        told += cycles.events()
        assert "energy_joules" not in cycles.frame("gpu") or (cycles.frame("gpu")["energy_joules"].dropna() >= 0).all()
    assert "counter_reset" in told


def test_row_60_rows_stand_at_the_time_of_the_scrape(cycles: Cycles) -> None:
    instant = int((START + timedelta(minutes=2)).timestamp() * 1000)
    head, value = busy(60).rstrip("\n").rsplit(" ", 1)
    told = []
    for offset_ms in (0, -30_000, -600_000, -600_000):
        cycles.poll(f"{head} {value} {instant + offset_ms}\n{head} {value} {instant + offset_ms}\n")
        assert len(cycles.frame("gpu")) == 1
        assert card(cycles)["time"] == cycles.now
        told.append(cycles.events())
    assert told == [[], [], ["clock_skew"], []]


@pytest.mark.parametrize("name", ["vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc"])
def test_row_61_the_cache_goes_by_either_name_and_is_a_ratio(cycles: Cycles, name: str) -> None:
    server = f'{name}{{model_name="m"}} 0.25\nvllm:num_requests_waiting{{model_name="m"}} 3\n'
    cycles.poll({"http://v/metrics": server}, labels={"http://v/metrics": {"gpu": "GPU-0"}})
    assert cycles.frame("slice").loc["whole", "kv_cache_used_ratio"] == 0.25


@pytest.mark.parametrize(("name", "expected"), [("vllm_v0.prom", 0.25), ("vllm_v1.prom", (0.41 + 0.38) / 2)])
def test_row_61_of_real_scrapes(cycles: Cycles, shared_dir: Path, name: str, expected: float) -> None:
    text = capture(shared_dir, name)
    cycles.poll({"http://v/metrics": text}, labels={"http://v/metrics": {"gpu": "GPU-0"}})
    assert cycles.frame("slice").loc["whole", "kv_cache_used_ratio"] == pytest.approx(expected)


def test_row_62_no_source_gives_a_slice_power_or_energy(cycles: Cycles) -> None:
    assert not {"power_watts", "energy_joules"} & set(SLICE.field_names)
    text = "".join(mig("DCGM_FI_DEV_POWER_USAGE", 100, n, **held(f"p{n}")) for n in (1, 2))
    cycles.poll(text + mig("DCGM_FI_DEV_FB_USED", 9, 1, **held("p1")))
    assert card(cycles)["power_watts"] == 100
    assert "power_watts" not in cycles.frame("slice").columns


def test_row_64_names_are_those_of_the_raw_line(cycles: Cycles) -> None:
    def text(value: int) -> str:
        return "# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter\n" + energy(value) + busy()

    cycles.poll(text(1_000_000))
    cycles.poll(text(3_000_000))
    assert card(cycles)["energy_joules"] == 2000


def test_row_65_instances_of_one_card_are_told_apart(cycles: Cycles) -> None:
    cycles.poll(mig("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.9, 1) + mig("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.1, 2))
    values = cycles.frame("slice")["engine_active_ratio"].tolist()
    assert values == pytest.approx([0.9 * SM / ALL_SMS, 0.1 * SM / ALL_SMS])


def test_row_65_of_a_real_scrape(cycles: Cycles, shared_dir: Path) -> None:
    cycles.poll(capture(shared_dir, "dcgm3_a100_mig_4active.prom"))
    values = cycles.frame("slice")["engine_active_ratio"]
    assert len(values) == 4
    assert values.max() == pytest.approx(0.408493 * 14 / 108)


def test_row_66_without_figures_of_use_a_card_is_of_unknown_use_and_ill_all_the_same(cycles: Cycles) -> None:
    text = dcgm("DCGM_FI_DEV_XID_ERRORS", 79) + dcgm("DCGM_FI_DEV_FB_TOTAL", 81920)
    cycles.poll(text + dcgm("DCGM_FI_DEV_ROW_REMAP_FAILURE", 0))
    for measurement in ("gpu", "slice"):
        frame = cycles.frame(measurement)
        assert "busy_ratio" not in frame or frame["busy_ratio"].isna().all()
    (event,) = [event for event in cycles.batch.events if event.code == "xid"]
    assert event.severity is Severity.CRITICAL


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('{"error": "target refused"}', "body is JSON, not an exposition"),
        ("[]", "body is JSON, not an exposition"),
        ("<html><body>404</body></html>", "body is HTML, not an exposition"),
        ("HTTP/1.1 404 Not Found\n", "body is an HTTP error, not an exposition"),
        ("no such service\n", "body is not an exposition"),
    ],
)
def test_row_67_what_is_no_scrape_is_one_reject_with_its_reason(cycles: Cycles, body: str, reason: str) -> None:
    cycles.poll(body)
    assert cycles.rejects() == {("", reason): 1}
    assert cycles.events() == ["target_down"]


NO_CARDS = "# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).\n# TYPE DCGM_FI_DEV_GPU_UTIL gauge\n"


def test_row_68_all_cards_gone_are_lost_and_not_absent_from_the_world(cycles: Cycles) -> None:
    cycles.poll(busy() + busy(uuid="GPU-1", gpu="1"))
    told = []
    for _ in range(3):
        cycles.poll(NO_CARDS)
        told += [(event.code, event.subject.gpu) for event in cycles.batch.events]
    assert sorted(told) == [("card_lost", "GPU-0"), ("card_lost", "GPU-1")]


def test_row_68_of_a_real_scrape(cycles: Cycles, shared_dir: Path) -> None:
    assert capture(shared_dir, "own_no_gpus.prom").startswith("# HELP")
    cycles.poll(capture(shared_dir, "own_no_gpus.prom"))
    assert (cycles.rejects(), cycles.events()) == ({}, [])


def test_row_69_another_card_in_the_same_place_is_another_card(cycles: Cycles) -> None:
    place = {"pci_bus_id": "00000000:1B:00.0", "gpu": "0"}
    first = busy(10, **place) + energy(9_000_000)
    cycles.poll(first)
    second = busy(20, uuid="GPU-9", **place)
    second += dcgm("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 9_900_000, uuid="GPU-9", **place)
    told = []
    for _ in range(3):
        cycles.poll(second)
        told += [(event.code, event.subject.gpu) for event in cycles.batch.events]
    assert list(cycles.frame("gpu").index) == ["GPU-9"]
    assert any(gpu == "GPU-0" for _, gpu in told)  # the old one ended
    # Nothing of the old card's counters counts for the new one.
    fresh = type(cycles)(cycles.context)
    fresh.poll(first)
    fresh.poll(second)
    assert "energy_joules" not in fresh.frame("gpu") or np.isnan(card(fresh, "GPU-9")["energy_joules"])


def test_row_70_one_uuid_for_several_cards_is_no_uuid(cycles: Cycles) -> None:
    text = "".join(busy(0, uuid="VM-PASSTHROUGH", gpu=str(n)) for n in range(4)) + busy(70, uuid="GPU-7", gpu="7")
    cycles.poll(text)
    assert list(cycles.frame("gpu").index) == ["GPU-7"]
    assert cycles.rejects() == {("", "one UUID for several cards"): 4}


def test_row_71_a_file_that_is_served_for_ever_is_frozen(cycles: Cycles) -> None:
    text = busy(90) + energy(5_000_000) + dcgm("DCGM_FI_DEV_POWER_USAGE", 300) + dcgm("DCGM_FI_DEV_SM_CLOCK", 1400)
    for _ in range(still_polls(60.0) + 2):
        cycles.poll(text + dcgm("DCGM_FI_DEV_GPU_TEMP", 60))
    assert cycles.frame("gpu").empty or absent(card(cycles), "busy_ratio")
    assert ("", "stale") in cycles.rejects()


def test_row_72_a_unit_that_nobody_agrees_on_is_not_read(cycles: Cycles) -> None:
    cycles.poll(busy() + dcgm("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", 123_456))
    cycles.poll(busy() + dcgm("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", 223_456))
    assert absent(card(cycles), "nvlink_rx_bytes_per_second")
    assert absent(card(cycles), "nvlink_tx_bytes_per_second")


def test_row_73_a_link_error_is_no_xid(cycles: Cycles) -> None:
    for count in (10, 79):
        cycles.poll(busy() + dcgm("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", count))
        assert "xid" not in cycles.events()
    assert card(cycles)["nvlink_error_count"] == 69


def test_row_74_a_0_counts_in_a_mean(tmp_path: Path, cycles: Cycles) -> None:
    store = EmbeddedStore(StoreSettings(path=tmp_path / "store"))
    for value in (0, 0, 90):
        cycles.poll(busy(value))
        store.write(cycles.batch)
    window = Window(START, START + timedelta(minutes=3))
    mean = store.read("gpu", window, every=timedelta(minutes=3), aggregate="mean")
    assert mean["busy_ratio"].tolist() == [pytest.approx(0.3)]
    store.close()


def test_row_75_a_target_that_answers_for_many_machines_is_refused(cycles: Cycles) -> None:
    service = "http://dcgm-service:9400/metrics"
    told = []
    for n in (1, 2, 1, 3):
        cycles.poll({service: busy(uuid=f"GPU-{n}", Hostname=f"node-{n}")}, node="")
        told.append(cycles.rejects())
    assert ("", "several machines behind one address") in told[-1]
    assert cycles.frame("gpu").empty


def test_row_76_energy_over_a_reset_is_the_sum_of_its_segments(cycles: Cycles) -> None:
    found = grown(cycles, [1_000_000, 4_000_000, 50_000, 2_050_000])
    assert np.nansum(found) == 3000 + 2000  # never the highest less the lowest


def test_row_77_a_stall_is_not_filled(cycles: Cycles) -> None:
    found = grown(cycles, [1_000_000, None, 7_000_000, None, None, 90_000_000, 96_000_000])
    # One answer missed is still a span of two intervals; three are a gap, and what grew in it is of no minute.
    np.testing.assert_allclose(found, [np.nan, np.nan, 6000, np.nan, np.nan, np.nan, 6000])
