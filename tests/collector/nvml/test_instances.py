"""MIG: each instance's own figures, of the whole card; who holds it; a card that is cut anew."""

from __future__ import annotations

import math
from collections.abc import Callable

import pynvml
import pytest

from tests.collector.nvml.conftest import GIB, HOPPER, MIB, Cycles, Driver, Host

Start = Callable[..., Cycles]

# With MIG the driver gives neither use nor processes' use of the card.
_GONE = ("busy", "memory_busy", "encoder", "decoder", "process_use")
H200 = {key: value for key, value in HOPPER.items() if key not in _GONE} | {
    "uuid": "GPU-h200",
    "name": "NVIDIA H200",
    "mig": 1,
    "mig_places": 7,
    "memory_total": 141 * GIB,
}
THREE = {
    "uuid": "MIG-three",
    "name": "NVIDIA H200 MIG 3g.71gb",
    "memory_total": 69 * GIB,
    "memory_used": 40 * GIB,
    "memory_reserved": 600 * MIB,
}
ONE = {
    "uuid": "MIG-one",
    "name": "NVIDIA H200 MIG 1g.18gb",
    "memory_total": 16 * GIB,
    "memory_used": 2 * GIB,
    "memory_reserved": 100 * MIB,
}


@pytest.fixture
def cut(driver: Driver) -> Driver:
    """An H200 cut in two, at places 0 and 3."""
    card = driver.add(H200)
    driver.instance(card, 0, 1, THREE, gpm={1: 100.0, 2: 80.0, 3: 40.0, 5: 20.0, 10: 50.0})
    driver.instance(card, 3, 9, ONE, gpm={1: 50.0, 2: 50.0, 10: 10.0})
    return driver


def test_figures_of_an_instance_are_of_the_whole_card(cut: Driver, start: Start) -> None:
    cycles = start(cut)
    cycles.poll()
    assert "sm_active_ratio" not in cycles.rows("slice")  # a pair of samples needs two cycles
    cycles.poll()
    frame = cycles.rows("slice")
    assert sorted(frame.index) == ["gi1", "gi9"]
    three, one = 60 / 132, 16 / 132  # SMs of the profiles on an H200
    first = frame.loc["gi1"]
    expected = {
        "engine_active_ratio": three,
        "sm_active_ratio": 0.8 * three,
        "sm_occupancy_ratio": 0.4 * three,
        "tensor_active_ratio": 0.2 * three,
        "dram_active_ratio": 0.5 * 4 / 8,
        "memory_used_bytes": 40 * GIB,
        "memory_quota_bytes": 69 * GIB,
        "sm_quota_ratio": three,
    }
    assert {name: first[name] for name in expected} == pytest.approx(expected)
    assert frame.at["gi9", "sm_active_ratio"] == pytest.approx(0.5 * one)
    assert frame.at["gi9", "dram_active_ratio"] == pytest.approx(0.1 * 1 / 8)
    assert math.isnan(frame.at["gi9", "tensor_active_ratio"])
    assert not cycles.batch.rejects


def test_what_is_the_cards_stays_the_cards(cut: Driver, start: Start) -> None:
    cycles = start(cut)
    cycles.poll()
    assert cycles.value("gpu", "GPU-h200", "power_watts") == 412.5
    assert math.isnan(cycles.value("gpu", "GPU-h200", "busy_ratio"))
    assert cycles.facts("mig") == {"GPU-h200": "enabled"}
    assert cycles.facts("kind") == {"gi1": "mig", "gi9": "mig"}
    assert cycles.facts("profile") == {"gi1": "3g.71gb", "gi9": "1g.18gb"}


def test_compute_instances_share_their_gpu_instances_memory(cut: Driver, start: Start, host: Host) -> None:
    host.process(11, cgroup=host.container("a" * 64, "ml", "llama-0", "server"))
    cut.process(104, 11, GIB)
    cut.instance(0, 4, 1, THREE | {"uuid": "MIG-three-b", "name": "NVIDIA H200 MIG 1c.3g.71gb"}, gpm={})
    cut.put(100, {"gpm:2": 80.0})
    cut.put(0, {"gpm_of_gi:1": 100})
    cycles = start(cut)
    cycles.poll()
    cycles.poll()
    frame = cycles.rows("slice")
    assert sorted(frame.index) == ["gi1", "gi9"]
    assert frame.at["gi1", "memory_used_bytes"] == 40 * GIB
    assert (frame.at["gi1", "tenant"], frame.at["gi1", "workload"]) == ("ml", "llama")
    assert {f.value for f in cycles.batch.facts if f.name == "profile"} == set()  # told at the first sight


def test_before_hopper_an_instance_has_memory_and_no_activity(driver: Driver, start: Start) -> None:
    a100 = {k: v for k, v in H200.items() if not k.startswith("gpm")} | {
        "uuid": "GPU-a100",
        "name": "NVIDIA A100-SXM4-40GB",
        "architecture": 7,
    }
    card = driver.add(a100)
    driver.instance(card, 0, 2, ONE | {"name": "NVIDIA A100-SXM4-40GB MIG 1g.5gb"}, gpm={})
    cycles = start(driver)
    cycles.poll()
    cycles.poll()
    row = cycles.rows("slice").loc["gi2"].dropna()
    assert row["memory_used_bytes"] == 2 * GIB
    assert not [name for name in row.index if name.endswith("_active_ratio") or name == "busy_ratio"]
    assert not [reject for reject in cycles.batch.rejects if reject.field.endswith("_ratio")]


def test_an_instance_that_fails_does_not_take_the_other(cut: Driver, start: Start) -> None:
    cycles = start(cut)
    cycles.poll()
    cut.fail("nvmlDeviceGetMemoryInfo_v2", pynvml.NVML_ERROR_TIMEOUT, device=100)
    cut.fail("nvmlGpmMigSampleGet", pynvml.NVML_ERROR_UNKNOWN, times=1)
    cycles.poll()
    frame = cycles.rows("slice")
    assert list(frame.index) == ["gi9"]  # nothing is left of the other: no row without a value
    assert frame.at["gi9", "memory_used_bytes"] == 2 * GIB
    assert frame.at["gi9", "sm_active_ratio"] == pytest.approx(0.5 * 16 / 132)
    assert cycles.rejects()["gi1", "memory_used_bytes", "timeout"] == 1
    assert cycles.rejects()["gi1", "sm_active_ratio", "unknown"] == 1


def test_a_cut_anew_ends_the_old_slices_and_their_samples(cut: Driver, start: Start) -> None:
    cycles = start(cut)
    cycles.poll()
    cycles.poll()
    cut.remove(0, "mig_device:0", "mig_device:3")
    cut.instance(0, 1, 5, ONE, gpm={2: 10.0})
    cycles.poll()
    assert sorted(cycles.rows("slice").index) == ["gi5"]
    assert cycles.facts("kind") == {"gi1": None, "gi9": None, "gi5": "mig"}
    assert cut.live[1] == 1
    cycles.poll()
    assert cycles.value("slice", "gi5", "sm_active_ratio") == pytest.approx(0.1 * 16 / 132)


def test_mig_without_instances_is_no_whole_card(driver: Driver, start: Start) -> None:
    driver.add(H200)
    cycles = start(driver)
    cycles.poll()
    assert cycles.rows("slice").empty
    assert list(cycles.rows("gpu").index) == ["GPU-h200"]


def test_holders_of_instances(cut: Driver, start: Start, host: Host) -> None:
    host.process(11, cgroup=host.container("a" * 64, "ml", "llama-0", "server", uid="u-1"))
    cut.process(100, 11, GIB)
    cycles = start(cut)
    cycles.poll()
    frame = cycles.rows("slice")
    assert (frame.at["gi1", "tenant"], frame.at["gi1", "workload"]) == ("ml", "llama")
    assert (frame.at["gi9", "tenant"], frame.at["gi9", "workload"]) == ("none", "none")
    assert cycles.facts("pod") == {"gi1": "ml/llama-0"} or cycles.facts("pod") == {"llama-0": "ml/llama-0"}


def test_the_kubelet_knows_holders_that_run_nothing(cut: Driver, start: Start, host: Host) -> None:
    host.container("b" * 64, "ml", "idle-0", "main", uid="u-2")
    host.checkpoint(("u-2", "main", {"0": ["MIG-one"]}))
    cycles = start(cut)
    cycles.poll()
    frame = cycles.rows("slice")
    assert (frame.at["gi9", "tenant"], frame.at["gi9", "workload"]) == ("ml", "idle")
    assert frame.at["gi1", "tenant"] == "none"


def test_a_process_in_an_instance_that_is_not_seen_is_a_holder_that_is_not_known(cut: Driver, start: Start) -> None:
    cut.process(103, 99, GIB)
    cycles = start(cut)
    cycles.poll()
    assert cycles.rows("slice")["tenant"].tolist() == ["unknown", "unknown"]


def test_a_bare_process_in_an_instance_is_a_holder_that_is_not_known(cut: Driver, start: Start, host: Host) -> None:
    host.process(12)
    cut.process(103, 12, GIB)
    cycles = start(cut)
    cycles.poll()
    assert cycles.rows("slice").at["gi9", "tenant"] == "unknown"
