"""Queues by the metrics of Kueue's controller, fractions by annotations, and servers that stand still."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.collector.conftest import Cycles

DCGM, SERVER = "http://a:9400/metrics", "http://s:8002/metrics"

KUEUE = """\
kueue_pending_workloads{cluster_queue="research",status="active"} 2
kueue_pending_workloads{cluster_queue="research",status="inadmissible"} 1
kueue_cluster_queue_nominal_quota{cohort="",cluster_queue="research",flavor="h100",resource="nvidia.com/gpu"} 8
kueue_cluster_queue_nominal_quota{cohort="",cluster_queue="research",flavor="a100",resource="nvidia.com/gpu"} 4
kueue_cluster_queue_nominal_quota{cohort="",cluster_queue="research",flavor="h100",resource="cpu"} 400
kueue_cluster_queue_resource_reservation{cohort="",cluster_queue="research",flavor="h100",resource="nvidia.com/gpu"} 6
kueue_pending_workloads{cluster_queue="batch",status="active"} 5
"""


def test_kueues_metrics_tell_of_cluster_queues(cycles: Cycles) -> None:
    cycles.poll(KUEUE)
    row = cycles.frame("queue").loc["research"]
    assert (row["quota_gpu_count"], row["allocated_gpu_count"], row["pending_count"]) == (12, 6, 3)
    assert math.isnan(row["pending_gpu_count"])  # how many cards they ask for, the metrics do not say
    assert len(cycles.frame("queue")) == 1  # a queue that grants no cards is none of ours


def test_a_share_by_annotation_is_a_request(cycles: Cycles) -> None:
    cycles.poll(
        'kube_pod_status_phase{namespace="lab",pod="half-0",phase="Pending"} 1\n'
        'kube_pod_annotations{namespace="lab",pod="half-0",annotation_gpu_fraction="0.5"} 1\n'
        'kube_pod_annotations{namespace="lab",pod="none-0",annotation_gpu_fraction="lots"} 1\n'
        'kube_pod_labels{namespace="lab",pod="half-0",label_kai_scheduler_queue="research"} 1\n'
    )
    row = cycles.frame("queue").loc["lab"]
    assert (row["pool"], row["pending_count"], row["pending_gpu_count"]) == ("research", 1, 0.5)
    asked = json.loads(cycles.facts("request")["half-0"] or "")
    assert (asked["cards"], asked["share"]) == (1, 0.5)


def card(minute: int, active: float) -> str:
    labels = '{gpu="0",UUID="GPU-1",Hostname="h1",pod="t-0",namespace="ns",container="c"}'
    return f"DCGM_FI_PROF_SM_ACTIVE{labels} {active}\nDCGM_FI_DEV_POWER_USAGE{labels} {100 + minute}\n"


@pytest.mark.parametrize(("active", "frozen"), [(0.6, True), (0.01, False)])
def test_a_server_whose_counters_stand_still_while_its_slice_works_is_stale(
    cycles: Cycles, active: float, frozen: bool
) -> None:
    server = 'nv_inference_count{model="m",version="1"} 50\nnv_inference_request_success{model="m",version="1"} 50\n'
    seen = []
    for minute in range(14):
        labels = {SERVER: {"namespace": "ns", "pod": "t-0", "container": "c"}}
        cycles.poll({DCGM: card(minute, active), SERVER: server}, labels=labels, node="")
        seen += [event.code for event in cycles.batch.events if event.code.startswith("source")]
    row = cycles.frame("slice").iloc[0]
    assert seen == (["source_frozen"] if frozen else [])
    # An idle service's counters stand still too: then they say that nothing was done.
    assert row.get("requests_per_second", math.nan) == pytest.approx(math.nan if frozen else 0.0, nan_ok=True)
    assert row["sm_active_ratio"] == active


def test_timestamps_of_a_source_tell_how_old_its_values_are(cycles: Cycles) -> None:
    stamp = int((cycles.start.timestamp() - 45) * 1000)
    cycles.poll("".join(f"{line} {stamp}\n" for line in card(0, 0.5).splitlines()))
    assert cycles.frame("gpu").loc["GPU-1", "source_age_seconds"] == 45
