"""A driver that is not there, goes away, comes back; cards that get lost."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest

from collector.errors import UnreachableError
from collector.nvml import NvmlSource, cards
from collector.nvml import source as source_module
from collector.plugins import SourceContext
from collector.settings import SourceSettings
from tests.collector.nvml.conftest import GIB, HOPPER, TURING, Cycles, Driver

Start = Callable[..., Cycles]


def test_without_a_library_one_line_says_so(use_driver: Callable[[int], Driver], tmp_path: Path) -> None:
    missing = tmp_path / "libnvidia-ml.so.1"
    source = NvmlSource(SourceSettings(kind="nvml", library=missing), SourceContext())
    with pytest.raises(UnreachableError) as caught:
        source.poll(Cycles(source).now)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"nvml: expected the library {missing}, got ")
    source.close()


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        ("DRIVER_NOT_LOADED", "modprobe nvidia"),
        ("LIB_RM_VERSION_MISMATCH", "restart it"),
        ("NO_PERMISSION", "/dev/nvidiactl"),
        ("UNKNOWN", "nvidia-smi"),
    ],
)
def test_a_driver_that_does_not_start_is_told_in_one_line(
    driver: Driver, start: Start, error: str, advice: str
) -> None:
    driver.fail("nvmlInitWithFlags", getattr(pynvml, f"NVML_ERROR_{error}"))
    cycles = start(driver)
    with pytest.raises(UnreachableError, match=error.lower()) as caught:
        cycles.poll()
    assert advice in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_driver_that_comes_later_is_used(driver: Driver, start: Start) -> None:
    driver.add(TURING)
    driver.fail("nvmlInitWithFlags", pynvml.NVML_ERROR_DRIVER_NOT_LOADED, times=1)
    cycles = start(driver)
    with pytest.raises(UnreachableError):
        cycles.poll()
    cycles.poll()
    assert list(cycles.rows("gpu").index) == ["GPU-t4"]


def test_a_reload_of_the_driver_costs_no_cycle(driver: Driver, start: Start) -> None:
    driver.add(TURING)
    cycles = start(driver)
    cycles.poll()
    driver.reload()
    cycles.poll()
    assert list(cycles.rows("gpu").index) == ["GPU-t4"]
    assert cycles.events() == []
    assert driver.live[0] == 1
    assert driver.registered(0)


def test_another_driver_after_a_reload_is_an_event_and_nothing_is_counted_across(driver: Driver, start: Start) -> None:
    card = driver.add(HOPPER)
    cycles = start(driver)
    cycles.poll()
    driver.reload()
    driver.version("590.44.01", 13_010)
    driver.put(card, {"field:83": 2_000_000, "remapped_corrected": 3})
    cycles.poll()
    assert cycles.events() == [("version_changed", "GPU-h100")]  # of driver and CUDA together
    assert cycles.facts("driver_version") == {"GPU-h100": "590.44.01"}
    assert cycles.facts("cuda_version") == {"GPU-h100": "13.1"}
    for name in ("energy_joules", "pcie_rx_bytes_per_second", "throttle_power_ratio", "ecc_corrected_count"):
        assert math.isnan(cycles.value("gpu", "GPU-h100", name)), name
    assert cycles.value("gpu", "GPU-h100", "rows_remapped_corrected_count") == 2
    driver.put(card, {"field:83": 3_000_000})
    cycles.poll()
    assert cycles.value("gpu", "GPU-h100", "energy_joules") == 1000.0


def test_a_driver_that_goes_is_a_target_that_is_down_until_it_is_back(driver: Driver, start: Start) -> None:
    driver.add(TURING)
    cycles = start(driver)
    cycles.poll()
    driver.reload()
    driver.fail("nvmlInitWithFlags", pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    batch = cycles.poll()
    assert [(e.code, e.subject.object) for e in batch.events] == [("target_down", "nvml://node-a")]
    assert "driver_not_loaded" in batch.events[0].message
    assert not batch.rows
    driver.mend()
    cycles.poll()
    assert [code for code, _ in cycles.events()] == ["target_up"]
    assert list(cycles.rows("gpu").index) == ["GPU-t4"]


def test_a_driver_that_goes_within_a_cycle_twice_is_down(driver: Driver, start: Start) -> None:
    driver.add(TURING)
    cycles = start(driver)
    cycles.poll()
    driver.fail("nvmlDeviceGetPowerUsage", pynvml.NVML_ERROR_UNINITIALIZED)
    batch = cycles.poll()
    assert [event.code for event in batch.events] == ["target_down"]


@pytest.mark.parametrize("function", ["nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID", "nvmlDeviceGetFieldValues"])
def test_a_lost_card_is_an_event_and_the_others_go_on(driver: Driver, start: Start, function: str) -> None:
    card = driver.add(HOPPER)
    driver.add(TURING)
    cycles = start(driver)
    cycles.poll()
    driver.fail(function, pynvml.NVML_ERROR_GPU_IS_LOST, device=card)
    cycles.poll()
    assert list(cycles.rows("gpu").index) == ["GPU-t4"]
    assert ("nvml://node-a", "", "GPU-h100: gpu_is_lost") in {
        (str(r.subject.object), r.field, r.reason) for r in cycles.batch.rejects
    }
    cycles.poll()
    assert cycles.events() == [("card_lost", "GPU-h100")]
    assert list(cycles.rows("gpu").index) == ["GPU-t4"]
    driver.mend()
    cycles.poll()
    assert cycles.events() == [("card_returned", "GPU-h100")]
    assert sorted(cycles.rows("gpu").index) == ["GPU-h100", "GPU-t4"]


def test_a_card_without_a_uuid_is_counted_and_left_out(driver: Driver, start: Start) -> None:
    card = driver.add(HOPPER)
    driver.add(TURING)
    driver.fail("nvmlDeviceGetUUID", pynvml.NVML_ERROR_UNKNOWN, device=card)
    cycles = start(driver)
    cycles.poll()
    assert list(cycles.rows("gpu").index) == ["GPU-t4"]
    assert {reject.reason for reject in cycles.batch.rejects} == {"card 0: unknown"}


def test_a_name_that_is_no_text_does_not_end_the_cycle(driver: Driver, start: Start) -> None:
    driver.add(TURING)
    driver._library.fake_text(0, b"name", b"Tesla \xff\xfe")
    cycles = start(driver)
    cycles.poll()
    assert list(cycles.rows("gpu").index) == ["GPU-t4"]


def test_no_cards_is_no_error(driver: Driver, start: Start) -> None:
    cycles = start(driver)
    batch = cycles.poll()
    assert not batch.rows
    assert not batch.rejects


def test_nothing_is_left_open(driver: Driver, start: Start) -> None:
    card = driver.add(HOPPER)
    cycles = start(driver)
    for _ in range(4):
        cycles.poll()
    starts, samples, sets = driver.live
    assert (starts, samples, sets) == (1, 1, 1)  # one sample is kept for the next cycle
    driver.fail("nvmlGpmSampleGet", pynvml.NVML_ERROR_UNKNOWN, device=card)
    cycles.poll()
    assert driver.live == (1, 0, 1)
    driver.mend()
    cycles.poll()
    driver.fail("nvmlGpmSampleGet", pynvml.NVML_ERROR_GPU_IS_LOST, device=card)
    cycles.poll()
    assert driver.live == (1, 0, 1)
    driver.mend()
    cycles.poll()
    cycles.source.close()
    assert driver.live == (0, 0, 0)


def test_the_source_says_what_it_is(driver: Driver, start: Start) -> None:
    about = start(driver, name="the host").source.describe()
    assert (about.kind, about.name, about.targets) == ("nvml", "the host", ("nvml://node-a",))


def test_it_has_no_past(driver: Driver, start: Start) -> None:
    cycles = start(driver)
    assert list(cycles.source.backfill(cycles.now, cycles.now)) == []


def test_memory_of_a_card_adds_up(driver: Driver, start: Start) -> None:
    driver.add(HOPPER)
    cycles = start(driver)
    cycles.poll()
    row = cycles.rows("gpu").loc["GPU-h100"]
    total = row["memory_used_bytes"] + row["memory_free_bytes"] + row["memory_reserved_bytes"]
    assert total == 80 * GIB


def test_a_call_that_hangs_in_the_driver_holds_up_nobody(
    driver: Driver, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.add(TURING)
    monkeypatch.setattr(source_module, "_PATIENCE_SECONDS", 0.05)
    cycles = start(driver)
    cycles.poll()
    hangs, go = threading.Event(), threading.Event()
    power = cards._READINGS["nvml_power_milliwatts"]

    def hang(handle: object) -> object:
        hangs.set()
        go.wait()
        return power(handle)

    monkeypatch.setitem(cards._READINGS, "nvml_power_milliwatts", hang)
    stuck = threading.Thread(target=cycles.source.gather, args=(cycles.now,))
    stuck.start()
    assert hangs.wait(20)
    [scrape] = cycles.source.gather(cycles.now)
    assert scrape.error == "nvml: expected an answer, but a call of an earlier cycle still hangs in the driver"
    cycles.source.close()  # returns although the call does not
    assert stuck.is_alive()
    go.set()
    stuck.join()
    cycles.poll()
    assert list(cycles.rows("gpu").index) == ["GPU-t4"]
