"""A seeded, deterministic cluster of shared GPUs: what real exporters would print of it, and the truth behind that.

`SimulatedCluster(spec)` moves in steps of one minute. It is read through the ordinary plug-ins (`fetch` and `targets`
for the scrape source, `frames` for rows without text, `SimulatorBackend` for changes). `truth` is for tests and the
scoreboard only. docs/simulator.md gives each formula.
"""

from __future__ import annotations

from sample_data.cluster.cluster import SimulatedCluster
from sample_data.cluster.spec import ClusterSpec

__all__ = ["ClusterSpec", "SimulatedCluster"]
