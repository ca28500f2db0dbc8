"""The detectors of this floor keep what any detector must keep."""

from __future__ import annotations

import numpy as np
import pytest

from analyzer.bottleneck import BottleneckDetector
from analyzer.conformance import DetectorConformance
from analyzer.exhaustion import ExhaustionDetector
from analyzer.fragmentation import FragmentationDetector
from analyzer.health import HealthDetector
from analyzer.health_errors import HardwareDetector
from analyzer.health_metrics import MetricsDetector
from analyzer.idle import IdleDetector
from analyzer.isolation import IsolationDetector
from analyzer.protocols import Context, Detector, Partition
from tests.analyzer.conftest import Node


def busy_node() -> Node:
    node = Node(hours=4)
    half = np.arange(node.count) < 120
    counters = {"sm_active_ratio": 0.2, "engine_active_ratio": 0.9, "dram_active_ratio": 0.7, "fp16_active_ratio": 0.1}
    node.card("GPU-1", **counters)
    node.card("GPU-2", **counters)
    node.card("GPU-3", keep=half, **counters)
    node.fact("gpu", "model", "NVIDIA A100-SXM4-40GB", gpu="GPU-4")
    node.card("GPU-4", power_watts=100.0)
    for gpu in ("GPU-1", "GPU-2"):
        node.slice("a", gpu=gpu, sm_quota_ratio=0.6, busy_ratio=0.4, workload="app")
        node.slice("b", gpu=gpu, sm_quota_ratio=0.2, busy_ratio=np.where(half, 0.5, 0.0), workload="idle")
    node.slice("whole", gpu="GPU-3", kind="whole", keep=half)
    node.slice("gi1", gpu="GPU-4", kind="mig", profile="1g.5gb", sm_active_ratio=0.01)
    node.card("GPU-5", throttle_thermal_ratio=0.3, ecc_uncorrected_count=1.0)
    node.slice("v", gpu="GPU-5", kind="vgpu", memory_used_bytes=2e10, memory_quota_bytes=1e10)
    node.request("ns/piece", cards=1, share=0.3)
    node.request("ns/cut", cards=1, profile="4g.20gb")
    node.event("xid", "XID 79: fell off", 119, gpu="GPU-3")
    node.event("card_lost", "gone", 120, gpu="GPU-3")
    return node


class _Ours(DetectorConformance):
    makes: type[Detector]
    tells: frozenset[str] = frozenset()  # of its codes, those that the node gives; empty: all

    def detector(self) -> Detector:
        return self.makes()

    def partition(self) -> Partition:
        return busy_node().partition()

    def context(self) -> Context:
        return busy_node().context()

    def test_the_node_gives_findings_of_every_kind(self) -> None:
        detector = self.detector()
        found = detector.conclude(detector.measure(self.partition()), self.context()).findings
        assert {f.code for f in found} >= (self.tells or set(detector.codes))


def wasteful_node() -> Node:
    """Every state of a holding, and shares of every wrong size."""
    node = Node(hours=30)
    half = np.arange(node.count) < 900
    memory = {"memory_used_bytes": 2e9, "memory_quota_bytes": 20e9}
    node.card("GPU-1", sm_active_ratio=0.3)
    node.slice("abandoned", sm_quota_ratio=0.2, busy_ratio=0.0, workload="gone")
    node.slice("held", sm_quota_ratio=0.2, busy_ratio=np.where(half, 0.5, 0.0), workload="idle")
    node.slice("wide", kind="vgpu", sm_quota_ratio=0.6, busy_ratio=0.1, workload="wide", **memory)
    late = {"requests_per_second": 10.0, "within_objective_per_second": np.where(half, 10.0, 5.0)}
    tight = {"sm_quota_ratio": 0.4, "sm_active_ratio": np.where(half, 0.1, 0.4), **late}
    node.card("GPU-2", sm_active_ratio=np.where(half, 0.4, 1.0))
    node.slice("tight", gpu="GPU-2", workload="tight", **tight)
    asks = {"sm_active_ratio": np.where(half, 0.3, 0.1), "queue_depth_count": 4.0}
    node.slice("starved", gpu="GPU-2", workload="starved", sm_quota_ratio=0.3, **asks)
    node.slice("taker", gpu="GPU-2", workload="taker", sm_quota_ratio=0.3, sm_active_ratio=np.where(half, 0.1, 0.5))
    return node


class TestIdle(_Ours):
    makes = IdleDetector

    def partition(self) -> Partition:
        return wasteful_node().partition()

    def context(self) -> Context:
        return wasteful_node().context()


class TestFragmentation(_Ours):
    makes = FragmentationDetector
    tells = frozenset({"TT211", "TT221"})


class TestExhaustion(_Ours):
    makes = ExhaustionDetector

    def partition(self) -> Partition:
        return wasteful_node().partition()

    def context(self) -> Context:
        return wasteful_node().context()


class TestBottleneck(_Ours):
    makes = BottleneckDetector
    tells = frozenset({"TT402"})


class TestHealth(_Ours):
    makes = HealthDetector


class TestHardware(_Ours):
    makes = HardwareDetector


class TestMetrics(_Ours):
    makes = MetricsDetector
    tells = frozenset({"TT608"})


class TestIsolation(_Ours):
    makes = IsolationDetector


def test_makers_are_the_subclass_s_task() -> None:
    suite = DetectorConformance()
    for maker in (suite.detector, suite.partition, suite.context):
        with pytest.raises(NotImplementedError):
            maker()
