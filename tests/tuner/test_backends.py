from __future__ import annotations

from datetime import datetime, timedelta

import pandas as pd
import pytest

from collector.clock import VirtualClock
from collector.store import FrameStore
from tests.tuner.fakes import KNOBS, START, backend_with, change, group, held, queue_target, slice_target
from tuner.backends import DryRunBackend, common_knobs, read_store
from tuner.backends.conformance import BackendConformance
from tuner.model import ApplyStatus, Backend, BackendState, Eviction, Target, TargetState

A, B, Q = slice_target("a"), slice_target("b"), queue_target("red")


def states() -> list[TargetState]:
    return [
        held(A, {"sm_quota_ratio": 0.2}),
        held(B, {"sm_quota_ratio": 0.6, "memory_quota_bytes": float(2**30)}, kind="vgpu"),
        held(Q, {"quota_gpu_count": 8.0}),
    ]


class TestFakeBackend(BackendConformance):
    @pytest.fixture
    def backend(self) -> Backend:
        return backend_with(VirtualClock(START), *states())


class TestSlowFakeBackend(BackendConformance):
    @pytest.fixture
    def backend(self) -> Backend:
        self.clock = VirtualClock(START)
        return backend_with(self.clock, *states(), faults=["late"] * 20)

    def settle(self, backend: Backend) -> None:
        self.clock.advance(60)


class TestDryRun(BackendConformance):
    @pytest.fixture
    def backend(self) -> Backend:
        real = {s.target: s for s in states()}
        return DryRunBackend(
            lambda: BackendState(START, real), KNOBS, lambda g: [Eviction(g.changes[0].target, "j", 1, "")]
        )


def test_dry_run_says_what_it_would_do_and_touches_nothing() -> None:
    real = backend_with(VirtualClock(START), *states())
    dry = DryRunBackend(real.read, real.knobs())
    wanted = group(change(A, 0.2, 0.5), change(B, 0.6, 0.3))
    assert dry.apply(wanted, {A: "1", B: "1"}).status is ApplyStatus.APPLIED
    assert [line[:54] for line in dry.said] == [
        "would set sm_quota_ratio of slice c/n0/GPU-0/b from 0.",
        "would set sm_quota_ratio of slice c/n0/GPU-0/a from 0.",
    ]
    assert dry.read([A]).targets[A].values == {"sm_quota_ratio": 0.5}
    assert dry.read([A]).targets[A].generation == "1+1"
    assert real.writes == []
    assert (dry.simulated, dry.changes_nothing) == (False, True)
    assert dry.predict(wanted) is None  # nobody knows, which is not nobody


def test_what_really_changes_ends_the_pretence() -> None:
    real = backend_with(VirtualClock(START), *states())
    dry = DryRunBackend(real.read, real.knobs())
    dry.apply(group(change(A, 0.2, 0.5)), {A: "1"})
    dry.apply(group(change(A, 0.5, 0.6)), {A: "1+1"})
    assert dry.read().targets[A].generation == "1+2"
    real.foreign(change(A, 0.2, 0.4), 0.4)
    assert dry.read().targets[A].values == {"sm_quota_ratio": 0.4}


def test_a_value_without_a_knob_cannot_be_set() -> None:
    target = Target("slice", "c", "n0", "GPU-0", "p")
    real = BackendState(START, {target: held(target, {"priority": 1.0})})
    dry = DryRunBackend(lambda: real, KNOBS)
    assert dry.apply(group(change(target, 1, 2, "priority")), {target: "1"}).status is ApplyStatus.REFUSED


def rows(at: datetime, **columns: object) -> dict[str, object]:
    return {"time": at.isoformat(), "cluster": "c", **columns}


def test_the_store_as_a_backend() -> None:
    later = START + timedelta(minutes=5)
    slices = pd.DataFrame(
        [
            rows(START, node="n0", gpu="G", slice="a", tenant="red", workload="api", sm_quota_ratio=0.2),
            rows(later, node="n0", gpu="G", slice="a", tenant="red", workload="api", sm_quota_ratio=0.3),
            rows(START, node="n0", gpu="G", slice="whole", tenant="red", workload="train"),
        ]
    )
    queues = pd.DataFrame([rows(later, pool="p", tenant="red", quota_gpu_count=4.0)])
    facts = pd.DataFrame(
        {
            "kind": ["slice", "gpu"],
            "cluster": "c",
            "node": "n0",
            "gpu": "G",
            "slice": ["a", ""],
            "object": "",
            "name": ["kind", "model"],
            "value": ["mps", "H200"],
            "from": pd.to_datetime([START, START]),
            "to": pd.to_datetime([None, None], utc=True),
            "provenance": "measured",
        }
    )
    store = FrameStore({"slice": slices, "queue": queues}, facts=facts)
    state = read_store(store, at=later, lookback=timedelta(minutes=10))
    a, whole = Target("slice", "c", "n0", "G", "a"), Target("slice", "c", "n0", "G", "whole")
    queue = Target("queue", "c", name="p/red")
    assert set(state.targets) == {a, whole, queue}
    assert state.targets[a].values == {"sm_quota_ratio": 0.3}
    assert state.targets[a].facts == {"kind": "mps", "tenant": "red", "workload": "api"}
    assert state.targets[whole].values == {}  # absent is not zero
    assert state.targets[queue].values == {"quota_gpu_count": 4.0}
    assert state.read_at == START  # the oldest row that is used
    assert (
        read_store(store, at=later, lookback=timedelta(minutes=10)).targets[a].generation == state.targets[a].generation
    )
    empty = read_store(store, at=START + timedelta(days=1), lookback=timedelta(minutes=10))
    assert empty.targets == {}
    assert empty.read_at == START + timedelta(days=1) - timedelta(minutes=10)


def test_common_knobs_know_the_kinds() -> None:
    knobs = {(k.name, k.sharing): k for k in common_knobs()}
    assert knobs["sm_quota_ratio", "mps"].effect.value == "new_work_only"
    assert knobs["sm_quota_ratio", "vgpu"].effect.value == "needs_restart"
    assert knobs["quota_gpu_count", None].can_evict
    assert ("sm_quota_ratio", "timeslice") not in knobs
