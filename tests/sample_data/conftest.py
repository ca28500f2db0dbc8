"""Clusters that several tests read; whoever changes one makes its own."""

from __future__ import annotations

import pytest

from sample_data.cluster import ClusterSpec, SimulatedCluster
from sample_data.cluster.presets import mixed


@pytest.fixture(scope="session")
def spec() -> ClusterSpec:
    return mixed(1)


@pytest.fixture(scope="session")
def morning(spec: ClusterSpec) -> SimulatedCluster:
    """The preset after its first six hours; read only."""
    cluster = SimulatedCluster(spec)
    for _ in range(360):
        cluster.step()
    return cluster
