"""The source on a real card. Skips where no NVIDIA driver is there.

On a host with one: `python -m pytest tests/collector/nvml/test_device.py -s`. It changes nothing and needs no root;
`-s` shows what each card gave, what was absent and what was rejected.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pynvml
import pytest

from collector.conformance import SourceConformance
from collector.nvml import NvmlSource
from collector.plugins import SourceContext
from collector.settings import SourceSettings
from collector.support import why_absent
from tests.collector.nvml.conftest import Cycles

# GPM wants 100 ms between two samples; PCIe and power are sampled less often.
BETWEEN_SECONDS = 1.2
CYCLES = 4


@pytest.fixture
def source() -> Iterator[NvmlSource]:
    forget_library()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        pytest.skip(f"needs an NVIDIA driver: {error}")
    pynvml.nvmlShutdown()
    if hasattr(pynvml.nvmlLib, "fake_reset"):  # the loader gives what is loaded already under this name
        pytest.skip("needs an NVIDIA driver's own library: run this file alone")
    source = NvmlSource(SourceSettings(kind="nvml"), SourceContext(cluster="device", interval_seconds=1.0))
    yield source
    source.close()
    forget_library()


def forget_library() -> None:
    pynvml.nvmlLib = None
    pynvml._nvmlGetFunctionPointer_cache.clear()


def cycles_of(source: NvmlSource) -> Cycles:
    """Run some cycles in real time: what is measured needs it to pass."""
    cycles = Cycles(source)
    for number in range(CYCLES):
        if number:
            time.sleep(BETWEEN_SECONDS)
        cycles.batch = source.poll(datetime.now(UTC))
        cycles.seen += cycles.batch.facts
    return cycles


def test_each_card_gives_what_its_architecture_and_driver_have(source: NvmlSource) -> None:
    cycles = cycles_of(source)
    frame = cycles.rows("gpu")
    facts = {(fact.subject.gpu, fact.name): fact.value or "" for fact in cycles.seen if fact.subject.kind == "gpu"}
    sys.stdout.write(f"\n{frame.T}\n\n{cycles.rows('slice').T}\n\n{cycles.batch.rejects}\n\n{facts}\n")
    assert not frame.empty
    assert not cycles.batch.rejects
    for uuid, row in frame.iterrows():
        architecture, driver = facts[uuid, "architecture"], facts[uuid, "driver_version"]
        assert architecture
        assert facts[uuid, "cuda_version"]
        total = float(facts[uuid, "memory_total_bytes"])
        memory = row["memory_used_bytes"] + row["memory_free_bytes"] + row["memory_reserved_bytes"]
        assert memory == pytest.approx(total, rel=0.001)
        for name in ("power_watts", "temperature_celsius", "sm_clock_hertz", "memory_clock_hertz"):
            assert row[name] > 0, name
        if not why_absent("gpu.energy_joules", architecture, driver):
            mean_power = row["energy_joules"] / BETWEEN_SECONDS
            assert mean_power == pytest.approx(row["power_watts"], rel=0.5)
        profiled = not why_absent("gpu.sm_active_ratio", architecture, driver) and architecture in (
            "hopper",
            "blackwell",
        )
        if profiled:
            assert 0 <= row["sm_active_ratio"] <= 1
            assert row["sm_active_ratio"] <= row["engine_active_ratio"] + 0.05
        if facts[uuid, "mig"] == "disabled":
            assert 0 <= row["busy_ratio"] <= 1


def test_a_closed_source_starts_again(source: NvmlSource) -> None:
    first = source.poll(datetime.now(UTC)).rows["gpu"].num_rows
    source.close()
    assert source.poll(datetime.now(UTC)).rows["gpu"].num_rows == first


class TestOnTheDevice(SourceConformance):
    @pytest.fixture
    def source(self, source: NvmlSource) -> NvmlSource:
        return source

    @pytest.fixture
    def now(self) -> datetime:
        return datetime.now(UTC)

    @pytest.fixture
    def past(self) -> object:
        pytest.skip("the driver keeps no past")
