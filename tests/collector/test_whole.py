"""Numbers in labels, names and annotations are anybody's: thousands of digits end nothing."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.gpu_models import gpu_models, profile_bytes, slice_share
from collector.kube import mig_profile
from collector.schedulers.slurm_jobs import cards_of_nodes, read_jobs
from collector.support import branch_of
from collector.whole import whole, whole_of
from tests.collector.conftest import Cycles

LONG = "9" * 5000
GOOD = 'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-good"} 5\n'


@given(st.integers(0, 10**15 - 1))
def test_a_number_within_reason_is_that_number(number: int) -> None:
    assert whole(str(number), -1) == number
    assert whole_of(float(number) + 0.25 * (number < 2**50), -1) == number


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "1_0", "+1", LONG, "9" * 16])
def test_a_text_that_is_none_or_beyond_reason_is_the_other_one(text: str) -> None:
    assert whole(text, 7) == 7


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e15, 1e300])
def test_a_float_that_is_none_or_beyond_reason_is_the_other_one(value: float) -> None:
    assert whole_of(value, 7) == 7


def test_names_with_numbers_beyond_reason_name_nothing() -> None:
    model = next(iter(gpu_models().values()))
    for profile in (f"{LONG}g.5gb", f"1g.{LONG}gb", f"1g.{'9' * 400}gb"):
        assert slice_share(model, profile) is None
        assert profile_bytes(profile) == 0.0
    assert mig_profile(f"nvidia_com_mig_{LONG}g_5gb") == ""
    assert branch_of(f"{LONG}.1") == 0
    assert cards_of_nodes(f"n1|gpu:{LONG}\nn2|gpu:a100:4\n") == {"n2": 4.0}


@pytest.mark.parametrize("number", ["1e300", "99999999999999999999"])
def test_jobs_with_numbers_beyond_reason_are_jobs(number: str) -> None:
    good = '{"job_id": 1, "job_state": ["PENDING"], "tres_per_job": "gres/gpu=2", "submit_time": 1767571200}'
    bad = good.replace('"job_id": 1', f'"job_id": 2, "node_count": {number}, "tasks": {number}, "cpus": {number}')
    jobs = list(read_jobs(f'{{"jobs": [{good}, {bad}]}}'))
    assert [(job.id, job.nodes, job.tasks, job.cpus) for job in jobs] == [("1", 1, 1, 0.0), ("2", 1, 1, 0.0)]


@pytest.mark.parametrize(
    "name", ["gpu", "GPU_I_ID", "GPU_I_PROFILE", "vgpu", "device", "DCGM_FI_DRIVER_VERSION", "pci_bus_id"]
)
@pytest.mark.parametrize("text", [LONG, f"1g.{LONG}gb", f"{LONG}g.5gb"])
def test_labels_beyond_reason_take_nothing_from_others(cycles: Cycles, name: str, text: str) -> None:
    bad = f'DCGM_FI_DEV_GPU_UTIL{{UUID="GPU-bad",pod="p",namespace="n",container="c",{name}="{text}"}} 5\n'
    kube = (
        f'kube_node_labels{{node="n",label_nvidia_com_gpu_replicas="{text}",label_nvidia_com_gpu_count="{text}"}} 1\n'
        'kube_node_status_allocatable{node="n",resource="nvidia_com_gpu",unit="integer"} +Inf\n'
        f'kube_node_status_allocatable{{node="n",resource="nvidia_com_mig_1g_{LONG}gb",unit="integer"}} 1e300\n'
    )
    for _ in range(2):
        cycles.poll({"http://good/": GOOD, "http://bad/": bad, "http://kube/": kube})
    assert cycles.frame("gpu").loc["GPU-good", "busy_ratio"] == 0.05
