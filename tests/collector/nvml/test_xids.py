"""XIDs: caught as they come, told in the next cycle, waited for by nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pynvml
import pytest

from collector.nvml import xids
from tests.collector.nvml.conftest import GIB, HOPPER, TURING, Cycles, Driver

Start = Callable[..., Cycles]


def wait_until(done: Callable[[], bool]) -> None:
    """Let the listening thread take what is pending."""
    tick = threading.Event()
    deadline = time.monotonic() + 20
    while not done():
        assert time.monotonic() < deadline
        tick.wait(0.005)


def caught(driver: Driver, cycles: Cycles, count: int) -> None:
    listener = cycles.source._xids
    wait_until(lambda: driver.pending_events == 0 and sum(listener._counts.values()) == count)


def test_an_xid_is_an_event_of_its_card(driver: Driver, start: Start) -> None:
    driver.add(HOPPER)
    second = driver.add(TURING)
    cycles = start(driver)
    cycles.poll()
    assert cycles.events() == []
    driver.xid(second, 79)
    driver.xid(second, 31)
    driver.xid(second, 31)
    caught(driver, cycles, 3)
    cycles.poll()
    told = {(e.code, e.subject.gpu, e.severity.value, e.message) for e in cycles.batch.events}
    assert told == {
        ("xid", "GPU-t4", "critical", "XID 79: see the driver log"),
        ("xid", "GPU-t4", "warning", "XID 31: see the driver log (2 times)"),
    }
    cycles.poll()
    assert cycles.events() == []


def test_the_same_xid_again_is_told_again(driver: Driver, start: Start) -> None:
    card = driver.add(TURING)
    cycles = start(driver)
    cycles.poll()
    for _ in range(2):
        driver.xid(card, 94)
        caught(driver, cycles, 1)
        cycles.poll()
        assert [code for code, _ in cycles.events()] == ["xid"]


def test_an_xid_of_an_instance_is_of_its_slice(driver: Driver, start: Start) -> None:
    card = driver.add(HOPPER, mig=1, mig_places=7)
    one = {"uuid": "MIG-one", "name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "memory_total": GIB, "memory_used": 5}
    driver.instance(card, 0, 9, one, gpm={2: 50.0})
    cycles = start(driver)
    cycles.poll()
    cycles.poll()
    before = cycles.rows("slice").drop(columns="time").dropna(axis=1)
    driver.xid(card, 43, gi=9)
    driver.xid(card, 13, gi=4)  # of an instance that is gone
    caught(driver, cycles, 2)
    driver.put(card, {"power": 400_000})
    cycles.poll()
    assert sorted(cycles.events()) == [("xid", "GPU-h100"), ("xid", "gi9")]
    assert cycles.rows("slice").drop(columns="time").dropna(axis=1).equals(before)
    cycles.poll()
    assert cycles.facts("kind") == {}


def test_an_xid_of_a_card_that_fell_off_the_bus_is_still_told(driver: Driver, start: Start) -> None:
    card = driver.add(HOPPER)
    driver.add(TURING)
    cycles = start(driver)
    cycles.poll()
    driver.xid(card, 79)
    caught(driver, cycles, 1)
    driver.fail("*", pynvml.NVML_ERROR_GPU_IS_LOST, device=card)
    cycles.poll()
    assert ("xid", "GPU-h100") in cycles.events()
    assert list(cycles.rows("gpu").index) == ["GPU-t4"]


def test_a_cycle_waits_for_no_event(driver: Driver, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.add(TURING)
    waiting = threading.Event()
    go = threading.Event()

    def wait(event_set: object, milliseconds: int) -> object:
        waiting.set()
        go.wait()
        raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)

    monkeypatch.setattr(xids.pynvml, "nvmlEventSetWait_v2", wait)
    cycles = start(driver)
    cycles.poll()
    assert waiting.wait(20)
    cycles.poll()  # while the other thread waits
    assert list(cycles.rows("gpu").index) == ["GPU-t4"]
    assert not go.is_set()
    go.set()


def test_errors_of_the_wait_are_not_asked_for_in_a_loop(
    driver: Driver, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.add(TURING)
    pauses = []
    asked = threading.Event()

    def wait(event_set: object, milliseconds: int) -> object:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout)
            asked.set()
            return super().wait()  # until the source is closed

    monkeypatch.setattr(xids.pynvml, "nvmlEventSetWait_v2", wait)
    cycles = start(driver)
    cycles.source._xids._stop = Stop()
    cycles.poll()
    assert asked.wait(20)
    cycles.source.close()
    assert pauses == [1.0]


@pytest.mark.parametrize(
    ("error", "told"), [("NOT_SUPPORTED", False), ("FUNCTION_NOT_FOUND", False), ("UNKNOWN", True)]
)
@pytest.mark.parametrize("function", ["nvmlEventSetCreate", "nvmlDeviceRegisterEvents"])
def test_a_card_that_cannot_be_listened_to_is_read_all_the_same(
    driver: Driver, start: Start, function: str, error: str, *, told: bool
) -> None:
    driver.add(TURING)
    driver.fail(function, getattr(pynvml, f"NVML_ERROR_{error}"))
    cycles = start(driver)
    cycles.poll()
    reasons = {reject.reason for reject in cycles.batch.rejects}
    assert reasons == ({f"GPU-t4: XID events: {error.lower()}"} if told else set())
    assert list(cycles.rows("gpu").index) == ["GPU-t4"]


def test_the_thread_ends_with_the_source(driver: Driver, start: Start) -> None:
    driver.add(TURING)
    cycles = start(driver)
    cycles.poll()
    assert "nvml-xids" in {thread.name for thread in threading.enumerate()}
    cycles.source.close()
    assert "nvml-xids" not in {thread.name for thread in threading.enumerate()}


def test_after_a_reload_it_listens_again(driver: Driver, start: Start) -> None:
    card = driver.add(TURING)
    cycles = start(driver)
    cycles.poll()
    driver.reload()
    cycles.poll()
    driver.xid(card, 48)
    caught(driver, cycles, 1)
    cycles.poll()
    assert cycles.events() == [("xid", "GPU-t4")]


def test_a_card_that_could_not_be_listened_to_is_tried_again(driver: Driver, start: Start) -> None:
    card = driver.add(TURING)
    driver.fail("nvmlDeviceRegisterEvents", pynvml.NVML_ERROR_GPU_IS_LOST, times=1)
    cycles = start(driver)
    cycles.poll()
    assert {reject.reason for reject in cycles.batch.rejects} == {"GPU-t4: XID events: gpu_is_lost"}
    cycles.poll()
    assert not cycles.batch.rejects
    driver.xid(card, 48)
    caught(driver, cycles, 1)
    cycles.poll()
    assert cycles.events() == [("xid", "GPU-t4")]


def test_a_wait_that_hangs_in_the_driver_does_not_hold_up_the_end(
    driver: Driver, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.add(TURING)
    waiting, go = threading.Event(), threading.Event()

    def wait(event_set: object, milliseconds: int) -> object:
        waiting.set()
        go.wait()
        raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)

    monkeypatch.setattr(xids, "_PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(xids.pynvml, "nvmlEventSetWait_v2", wait)
    cycles = start(driver)
    cycles.poll()
    assert waiting.wait(20)
    cycles.source.close()
    assert driver.live[0] == 1  # nothing is taken away from under the call
    go.set()
    cycles.source.close()
    assert driver.live == (0, 0, 0)
