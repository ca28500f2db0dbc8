"""Any functions may fail in any way, at any time: no value is made up, no cycle ends, all comes back."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pynvml
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collector.batch import Batch
from collector.conformance import SourceConformance
from collector.errors import UnreachableError
from tests.collector.nvml.conftest import GIB, HERE, HOPPER, TURING, Cycles, Driver, Host

FUNCTIONS = [*sorted(set(re.findall(r"\b(nvml[A-Z]\w+)\(", (HERE / "nvml.c").read_text())) - {"nvmlErrorString"}), "*"]
CODES = sorted({getattr(pynvml, name) for name in dir(pynvml) if name.startswith("NVML_ERROR_")})
# What grows by itself is not compared from cycle to cycle.
MOVING = ("energy_joules",)

faults = st.lists(
    st.tuples(
        st.sampled_from(FUNCTIONS), st.sampled_from(CODES), st.sampled_from([-1, 0, 1, 2, 300]), st.integers(1, 6)
    ),
    min_size=1,
    max_size=5,
)


def values(cycles: Cycles) -> dict[tuple[str, str, str], float]:
    """Return all values of the last batch: (gpu, slice, field) -> value."""
    found = {}
    for name in ("gpu", "slice"):
        for row in cycles.batch.rows[name].to_pylist() if name in cycles.batch.rows else ():
            for field, value in row.items():
                if isinstance(value, float) and not math.isnan(value) and field not in MOVING:
                    found[row["gpu"], row.get("slice", ""), field] = value
    return found


@pytest.fixture
def world(driver: Driver, start: Callable[..., Cycles], host: Host) -> tuple[Driver, Callable[[], Cycles]]:
    """Three cards: whole, shared by two processes, and cut."""
    driver.add(HOPPER)
    shared = driver.add(TURING, busy=5)
    cut = driver.add(HOPPER, uuid="GPU-cut", mig=1, mig_places=7)
    one = {"uuid": "MIG-one", "name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "memory_total": GIB, "memory_used": 5}
    driver.instance(cut, 0, 9, one, gpm={2: 50.0})
    for pid in (21, 22):
        host.process(pid)
        driver.process(shared, pid, GIB)
    return driver, lambda: start(driver)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(faults)
def test_faults_take_values_away_and_make_none_up(
    world: tuple[Driver, Callable[[], Cycles]], broken: list[tuple[str, int, int, int]]
) -> None:
    driver, begin = world
    cycles = begin()
    energy = [1e6]

    def poll() -> Batch:
        energy[0] += 1e6
        for card in (0, 2):
            driver.put(card, {"field:83": energy[0]})
        return cycles.poll()

    poll()
    poll()
    whole = values(cycles)
    assert len(whole) > 60
    for function, code, device, times in broken:
        driver.fail(function, code, device=device, times=times)
    for _ in range(3):
        try:
            batch = poll()
        except UnreachableError:  # nothing answers at all
            continue
        SourceConformance.check_rows(batch)
        for key, value in values(cycles).items():
            # Without MIG mode, or its instances, the cut card looks like a whole one; the older call of memory counts
            # the reserve in.
            if key[0] == "GPU-cut" or key[2].startswith("memory_") or key[1] in ("whole", ""):
                continue
            assert whole.get(key, value) == value, key
    driver.mend()
    poll()
    poll()
    poll()
    assert values(cycles) == whole
    cycles.source.close()
    assert driver.live[0] == 0
