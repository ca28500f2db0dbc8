"""What nobody told is NaN in evidence and accounts, never 0; and what was told still counts."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.known import known_mean, known_most, known_sum
from analyzer.slice_account import measure_account
from analyzer.waiting import measure_waiting
from collector.window import Window
from tests.analyzer.conftest import START, MakeNode
from tests.analyzer.test_exhaustion import filling
from tests.analyzer.test_exhaustion import judge as exhaustion
from tests.analyzer.test_exhaustion import queue as pool_queue
from tests.analyzer.test_health_errors import only as health
from tests.analyzer.test_hollow import hollow
from tests.analyzer.test_memory_detectors import only as memory
from tests.analyzer.test_slice_account import queue
from tests.analyzer.test_waiting import queue_rows


@given(st.lists(st.one_of(st.floats(-1e6, 1e6), st.just(math.nan)), max_size=12))
def test_only_what_is_known_counts(values: list[float]) -> None:
    table, known = np.array(values, dtype=np.float64), [v for v in values if not math.isnan(v)]
    answers = known_sum(table), known_mean(table), known_most(table)
    if not known:
        assert all(map(math.isnan, answers))
        return
    assert answers[0] == pytest.approx(math.fsum(known), abs=1e-6)
    assert answers[1] == pytest.approx(math.fsum(known) / len(known), abs=1e-6)
    assert answers[2] == max(known)


def test_counters_that_no_exporter_shows_are_absent_from_the_evidence(make_node: MakeNode) -> None:
    node = make_node()
    node.card(sm_active_ratio=0.5, ecc_corrected_count=1.0)
    told = health(node, "TT602")
    assert told.evidence["ecc_corrected_count"] == 240
    assert math.isnan(told.evidence["ecc_uncorrected_count"])
    assert math.isnan(told.evidence["rows_remapped_corrected_count"])
    assert told.effect is not None
    assert told.effect.value == 240
    assert told.claim.startswith("GPU-1 on node-a: 240 corrected memory errors (60.0 an hour); nothing breaks")


def test_a_remap_that_only_a_fact_tells_has_no_size(make_node: MakeNode) -> None:
    node = make_node()
    node.card(sm_active_ratio=0.5)
    node.fact("gpu", "row_remap_failure", "1", gpu="GPU-1")
    told = health(node, "TT602")
    assert told.effect is None
    assert math.isnan(told.evidence["corrected_an_hour"])


def test_a_power_brake_without_a_thermal_counter(make_node: MakeNode) -> None:
    node = make_node()
    node.card(sm_active_ratio=0.5, throttle_brake_ratio=0.3)
    told = health(node, "TT603")
    assert "by a hardware power brake in 30% of the time" in told.claim
    assert (told.evidence["brake_share"], math.isnan(told.evidence["thermal_share"])) == (pytest.approx(0.3), True)


def test_accounts_of_what_is_not_known(make_node: MakeNode) -> None:
    node = make_node()
    node.card(power_watts=100.0)
    node.slice("a", sm_quota_ratio=0.5, memory_used_bytes=1.0)
    rows = measure_account(node.partition()).set_index("slice")
    for name in ("used_sm_seconds", "borrowed_gpu_seconds", "starved_gpu_seconds"):
        assert math.isnan(rows.loc["a", name]), name
    assert math.isnan(rows.loc["", "used_sm_seconds"])


def test_an_instance_is_never_starved_though_nothing_tells_what_it_asks(make_node: MakeNode) -> None:
    node = make_node()
    node.card(sm_active_ratio=0.2)
    node.slice("gi1", kind="mig", sm_quota_ratio=0.5, sm_active_ratio=0.2)
    rows = measure_account(node.partition()).set_index("slice")
    assert (rows.loc["gi1", "starved_gpu_seconds"], rows.loc["gi1", "borrowed_gpu_seconds"]) == (0.0, 0.0)


def test_busy_time_beside_an_unknown_neighbour_is_nobodys(make_node: MakeNode) -> None:
    node = make_node(hours=2)
    blind = np.arange(120) < 60
    node.card(busy_ratio=1.0, sm_active_ratio=np.where(blind, np.nan, 0.4))
    node.slice("a", sm_quota_ratio=0.5, busy_ratio=0.5)
    node.slice("b", workload="other", sm_quota_ratio=0.5, busy_ratio=np.where(blind, np.nan, 0.5))
    assert sum(one.busy_card_seconds for one in hollow(node)) == pytest.approx(3600, rel=0.1)


def test_a_tenant_of_which_nobody_says_whether_it_waits_gives_nothing() -> None:
    from analyzer.quota_moves import quota_moves  # noqa: PLC0415

    rows = pd.concat([queue("quiet", 1.0, math.nan), queue("eager", 4.0, 3.0)])
    assert quota_moves([], rows, 60.0) == ()


def test_a_queue_that_tells_only_its_oldest_wait() -> None:
    window = Window(START, START + pd.Timedelta(days=1).to_pytimedelta())
    rows = queue_rows((0, math.nan, math.nan, 60.0)).assign(admitted_count=math.nan)
    (told,) = measure_waiting([], rows, window, 60.0)
    assert all(map(math.isnan, (told.admitted, told.unmet_card_hours, told.waiting_now)))
    assert told.to_json()["admitted"] is None


def test_a_pool_that_does_not_tell_what_waits_is_judged_by_what_is_taken(make_node: MakeNode) -> None:
    queues = pd.concat(
        [
            pool_queue("a", 24, quota=4, allocated=4, pending=math.nan),
            pool_queue("b", 24, quota=8, allocated=1, pending=math.nan),
        ]
    )
    got = exhaustion(filling(make_node, 24, []), queues=queues)
    assert [(f.evidence["pool"], f.verdict.value) for f in got.findings] == [("a", "holds"), ("b", "no effect found")]


def test_a_cache_whose_server_counts_no_preemption(make_node: MakeNode) -> None:
    node = make_node()
    node.card()
    node.slice("whole", kind="whole", kv_cache_used_ratio=0.97)
    told = memory(node, "TT243")
    assert told.verdict.value == "suspected"
    assert math.isnan(told.evidence["preempted"])
