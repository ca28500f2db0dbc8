"""The laws of every source hold for this one, on a card in use, a cut one and an older one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

from collector.conformance import SourceConformance
from collector.nvml import NvmlSource
from collector.window import Window
from tests.collector.nvml.conftest import GIB, HOPPER, START, TURING, Cycles, Driver, Host


class TestNvmlSource(SourceConformance):
    @pytest.fixture
    def source(self, driver: Driver, start: Callable[..., Cycles], host: Host) -> NvmlSource:
        driver.add(HOPPER)
        shared = driver.add(TURING)
        cut = driver.add(HOPPER, uuid="GPU-cut", mig=1, mig_places=7)
        one = {"uuid": "MIG-one", "name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "memory_total": GIB, "memory_used": 5}
        driver.instance(cut, 0, 9, one, gpm={2: 50.0})
        for pid in (1, 2):
            host.process(pid)
            driver.process(shared, pid, GIB)
            driver.used(shared, pid, 1_000, 40)
        return start(driver).source

    @pytest.fixture
    def now(self) -> datetime:
        return START + timedelta(seconds=61)

    @pytest.fixture
    def past(self) -> Window:
        return Window(START, START + timedelta(hours=1))
