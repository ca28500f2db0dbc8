"""A step of a version is an event and a fact, never workload: nothing is counted across it."""

from __future__ import annotations

import math

import pytest

from collector.assemble import Assembler
from tests.collector.conftest import Cycles


def body(driver: str, *, energy: float, remapped: int = 0) -> str:
    labels = f'gpu="0",UUID="GPU-1",modelName="NVIDIA H100 80GB HBM3",DCGM_FI_DRIVER_VERSION="{driver}"'
    return (
        f"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{labels}}} {energy}\n"
        f"DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS{{{labels}}} {remapped}\n"
        f"DCGM_FI_DEV_POWER_USAGE{{{labels}}} {energy / 1e6}\n"
    )


def test_a_new_driver_is_an_event_and_no_energy_is_counted_across_it(cycles: Cycles) -> None:
    cycles.poll(body("550.54", energy=1e6))
    cycles.poll(body("550.54", energy=3e6))
    assert cycles.frame("gpu").at["GPU-1", "energy_joules"] == 2000.0
    cycles.poll(body("570.86", energy=9e6, remapped=2))  # higher by chance, although it counts from another start
    row = cycles.frame("gpu").loc["GPU-1"]
    assert "energy_joules" not in row or math.isnan(row["energy_joules"])
    assert row["rows_remapped_uncorrected_count"] == 2.0  # kept by the card itself
    assert [(e.code, e.message) for e in cycles.batch.events] == [
        ("version_changed", "test/node-a/GPU-1: driver_version 550.54 is now 570.86")
    ]
    assert cycles.facts("driver_version") == {"GPU-1": "570.86"}
    cycles.poll(body("570.86", energy=10e6, remapped=2))
    assert cycles.frame("gpu").at["GPU-1", "energy_joules"] == 1000.0


def test_the_step_is_noticed_over_a_restart_of_the_collector(cycles: Cycles) -> None:
    cycles.poll(body("550.54", energy=1e6))
    state = cycles.assembler.export_state()
    cycles.assembler = Assembler(cycles.context)
    cycles.assembler.import_state(state)
    cycles.poll(body("570.86", energy=9e6))
    assert "energy_joules" not in cycles.frame("gpu") or math.isnan(cycles.frame("gpu").at["GPU-1", "energy_joules"])
    assert "version_changed" in cycles.events()


def test_the_same_version_over_a_restart_goes_on_counting(cycles: Cycles) -> None:
    cycles.poll(body("550.54", energy=1e6))
    state = cycles.assembler.export_state()
    cycles.assembler = Assembler(cycles.context)
    cycles.assembler.import_state(state)
    cycles.poll(body("550.54", energy=9e6))
    assert cycles.frame("gpu").at["GPU-1", "energy_joules"] == 8000.0


def exporter(version: str, energy: float) -> str:
    return body("550.54", energy=energy) + f'some_exporter_build_info{{version="{version}",revision="abc"}} 1\n'


def test_a_new_version_of_an_exporter_is_an_event_of_its_target(cycles: Cycles) -> None:
    cycles.poll(exporter("1.2.0", 1e6))
    facts = [f for f in cycles.batch.facts if f.name == "exporter_version"]
    assert [(f.subject.node, f.subject.object, f.value) for f in facts] == [
        ("node-a", "http://a:9400/metrics", "some_exporter 1.2.0")
    ]
    cycles.poll(exporter("1.2.0", 2e6))
    assert not cycles.events()
    cycles.poll(exporter("1.3.0", 5e6))
    assert cycles.events() == ["version_changed"]
    row = cycles.frame("gpu").loc["GPU-1"]
    assert "energy_joules" not in row or math.isnan(row["energy_joules"])
    cycles.poll(exporter("1.3.0", 6e6))
    assert cycles.frame("gpu").at["GPU-1", "energy_joules"] == pytest.approx(1000.0)


def test_another_target_goes_on_counting(cycles: Cycles) -> None:
    other = exporter("1.2.0", 1e6).replace("GPU-1", "GPU-2")
    cycles.poll({"http://a:9400/metrics": exporter("1.2.0", 1e6), "http://b:9400/metrics": other})
    cycles.poll(
        {
            "http://a:9400/metrics": exporter("1.3.0", 2e6),
            "http://b:9400/metrics": other.replace(" 1000000.0\n", " 3000000.0\n"),
        }
    )
    frame = cycles.frame("gpu")
    assert math.isnan(frame.at["GPU-1", "energy_joules"])
    assert frame.at["GPU-2", "energy_joules"] == 2000.0
