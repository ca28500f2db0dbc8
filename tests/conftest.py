"""Fixtures that all floors use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings

from tests import servers

pytest.register_assert_rewrite("collector.conformance", "tuner.backends.conformance")

# The same examples everywhere, and no failure for want of speed: `python -m benchmarks fuzz` looks for new ones.
settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")

Server = TypeVar("Server")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Folder of reference captures and data; tests that need it skip where it is absent."""
    folder = Path(os.environ.get("TRIMTAB_SHARED", ROOT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip(f"needs the reference data folder (set TRIMTAB_SHARED; looked in {folder})")
    return folder


@pytest.fixture(scope="session")
def cases_dir() -> Path:
    """Folder of worked cases (`TRIMTAB_CASES`)."""
    folder = os.environ.get("TRIMTAB_CASES")
    if not folder or not Path(folder).is_dir():
        pytest.skip("needs the worked cases (set TRIMTAB_CASES to their folder)")
    return Path(folder)


@contextmanager
def wanted(server: AbstractContextManager[Server]) -> Iterator[Server]:
    """Run a server of tests/servers.py; where its binary is missing, skip, or fail with TRIMTAB_REQUIRE_SERVERS=1."""
    with ExitStack() as stack:
        try:
            running = stack.enter_context(server)
        except servers.ServerMissing as missing:
            if os.environ.get("TRIMTAB_REQUIRE_SERVERS") == "1":
                pytest.fail(f"TRIMTAB_REQUIRE_SERVERS=1, but this test {missing}")
            pytest.skip(str(missing))
        yield running


@pytest.fixture(scope="module")
def influxdb2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.InfluxServer]:
    """An InfluxDB 2.8.0; a test that needs an empty bucket makes one of its own."""
    with wanted(servers.influxdb2(tmp_path_factory.mktemp("influxdb2"))) as server:
        yield server


@pytest.fixture(scope="module")
def influxdb1(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.InfluxServer]:
    """An InfluxDB 1.13.2 with Flux; a test that needs an empty database makes one of its own."""
    with wanted(servers.influxdb1(tmp_path_factory.mktemp("influxdb1"))) as server:
        yield server


@pytest.fixture(scope="module")
def victoriametrics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.VictoriaServer]:
    """A VictoriaMetrics 1.79."""
    with wanted(servers.victoriametrics(tmp_path_factory.mktemp("victoriametrics"))) as server:
        yield server
