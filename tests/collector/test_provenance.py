"""Where each number comes from: measured, estimated or unknown; over how long; who held what with which quota."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest

from collector.gpu_models import gpu_models
from collector.rows import PIPES
from collector.settings import TenantSettings
from tests.collector.test_assemble_slices import dcgm, held, kube

if TYPE_CHECKING:
    from tests.collector.conftest import Cycles

DCGM, KUBE, HAMI = "http://a/dcgm", "http://d/kube", "http://b/hami"


def origin(cycles: Cycles, name: str) -> dict[str, str]:
    return {fact.subject.slice: fact.provenance for fact in cycles.batch.facts if fact.name == name}


# -- FLOP/s ----------------------------------------------------------------------------------------------------------


def test_flops_are_activity_times_the_peak_of_each_pipe(cycles: Cycles) -> None:
    pipes = {"TENSOR": 0.5, "FP64": 0.1, "FP32": 0.2, "FP16": 0.0}
    cycles.poll("".join(dcgm(f"DCGM_FI_PROF_PIPE_{pipe}_ACTIVE", value, **held("a")) for pipe, value in pipes.items()))
    row = cycles.frame("slice").loc["whole"]
    assert row["flops_per_second"] == pytest.approx(0.5 * 312e12 + 0.1 * 9.7e12 + 0.2 * 19.5e12)
    assert cycles.facts("provenance:flops_per_second") == {"test": "estimated"}


def test_flops_of_an_instance_are_of_its_share_of_the_card(cycles: Cycles) -> None:
    cycles.poll(dcgm("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 1.0, GPU_I_ID="1", GPU_I_PROFILE="3g.40gb"))
    assert cycles.frame("slice").loc["gi1", "flops_per_second"] == pytest.approx(42 / 108 * 312e12)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (dcgm("DCGM_FI_DEV_GPU_UTIL", 50, **held("a")), "no pipe is read"),
        (dcgm("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 0.5, modelName="Imaginary 9000", **held("a")), "model not known"),
        (dcgm("DCGM_FI_PROF_PIPE_FP64_ACTIVE", 0.5, modelName="NVIDIA A10G", **held("a")), "peak not known"),
    ],
)
def test_flops_are_absent_without_pipe_model_or_peak(cycles: Cycles, text: str, why: str) -> None:
    cycles.poll(text)
    frame = cycles.frame("slice")
    assert "flops_per_second" not in frame.columns or frame["flops_per_second"].isna().all(), why


def test_a_pipe_that_rests_needs_no_peak(cycles: Cycles) -> None:
    both = dcgm("DCGM_FI_PROF_PIPE_FP64_ACTIVE", 0.0, modelName="NVIDIA A10G", **held("a"))
    cycles.poll(both + dcgm("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 0.5, modelName="NVIDIA A10G", **held("a")))
    assert cycles.frame("slice").loc["whole", "flops_per_second"] == pytest.approx(35e12)


def test_encoder_and_decoder_of_a_card_held_alone_are_its_slices_and_of_a_shared_one_nobodys(cycles: Cycles) -> None:
    def text(**labels: str) -> str:
        return dcgm("DCGM_FI_DEV_ENC_UTIL", 40, **labels) + dcgm("DCGM_FI_DEV_DEC_UTIL", 10, **labels)

    cycles.poll(text(**held("a")))
    row = cycles.frame("slice").loc["whole"]
    assert (row["encoder_ratio"], row["decoder_ratio"]) == (0.4, 0.1)
    cycles.poll(text(**held("a", vgpu="0")) + text(**held("b", vgpu="1")))
    assert cycles.frame("slice").empty
    assert cycles.frame("gpu").loc["GPU-0", "encoder_ratio"] == 0.4


# -- provenance ------------------------------------------------------------------------------------------------------


def test_a_share_that_nobody_measures_is_unknown_and_one_that_is_read_is_measured(cycles: Cycles) -> None:
    cycles.poll(
        dcgm("DCGM_FI_DEV_POWER_USAGE", 200, **held("a", vgpu="0"))
        + dcgm("DCGM_FI_DEV_POWER_USAGE", 200, **held("b", vgpu="1"))
    )
    assert set(cycles.facts("provenance").values()) == {"unknown"}
    container = 'namespace="ns",pod="c",container="c",device_uuid="GPU-8",vdevice_index="0"'
    cycles.poll({HAMI: f"hami_vgpu_memory_used_bytes{{{container}}} 1\n"})
    assert cycles.facts("provenance") == {"0": None}  # it is measured, as all is of which nothing is told
    assert cycles.facts("source") == {"0": "hami-monitor"}


def test_owners_by_kubernetes_are_measured_by_a_pods_name_estimated_by_table_declared(
    cycles_with: Callable[..., Cycles],
) -> None:
    cycles = cycles_with(tenants=(TenantSettings(name="search", namespaces=("ns",)),))
    text = dcgm("DCGM_FI_DEV_GPU_UTIL", 5, **held("web-6d4b75cb6d-x8k2p"))
    cycles.poll(text)
    assert origin(cycles, "tenant") == {"whole": "declared"}
    assert origin(cycles, "workload") == {"whole": "estimated"}
    cycles.poll({DCGM: text, KUBE: kube({"ns/web-6d4b75cb6d-x8k2p": {"owner": "StatefulSet:web"}})})
    assert cycles.facts("workload") == {}  # the same name: nothing new is told
    other = cycles_with()
    other.poll({DCGM: text, KUBE: kube({"ns/web-6d4b75cb6d-x8k2p": {"owner": "StatefulSet:web"}})})
    assert (origin(other, "tenant"), origin(other, "workload")) == ({"whole": "measured"}, {"whole": "measured"})


def test_an_unknown_holder_is_unknown(cycles: Cycles) -> None:
    cycles.poll(dcgm("DCGM_FI_DEV_GPU_UTIL", 5))
    assert (origin(cycles, "tenant"), origin(cycles, "workload")) == ({"whole": "unknown"}, {"whole": "unknown"})


# -- over how long ---------------------------------------------------------------------------------------------------


def test_a_cards_and_an_instances_samples_know_their_window(cycles: Cycles) -> None:
    cycles.poll(
        dcgm("DCGM_FI_PROF_SM_ACTIVE", 0.5, GPU_I_ID="1", GPU_I_PROFILE="3g.40gb")
        + dcgm("DCGM_FI_DEV_FB_USED", 10, GPU_I_ID="1", GPU_I_PROFILE="3g.40gb")
        + dcgm("DCGM_FI_DEV_POWER_USAGE", 300)
        + dcgm("DCGM_FI_DEV_GPU_TEMP", 40)
    )
    assert cycles.facts("sample_window") == {
        "GPU-0": "0; 1: power_watts; 30: sm_active_ratio",
        "gi1": "0; 30: sm_active_ratio",
    }


def test_a_slice_that_is_its_whole_card_says_nothing_that_the_card_says(cycles: Cycles) -> None:
    cycles.poll(dcgm("DCGM_FI_DEV_GPU_UTIL", 50, **held("a")))
    assert cycles.frame("slice").loc["whole", "busy_ratio"] == 0.5
    assert cycles.facts("source") == {"GPU-0": "dcgm-exporter"}
    assert cycles.facts("sample_window").keys() == {"GPU-0"}
    assert cycles.facts("provenance") == {}


def test_the_window_is_that_of_the_exporter_whose_value_counts(cycles: Cycles) -> None:
    bare = "1c67088e-9ecb-4564-bb97-6151ecc2ef64"
    smi = f'nvidia_smi_power_draw_watts{{uuid="{bare}"}} 70\nnvidia_smi_temperature_gpu{{uuid="{bare}"}} 50\n'
    cycles.poll({DCGM: dcgm("DCGM_FI_DEV_POWER_USAGE", 80, uuid=f"GPU-{bare}"), "http://s/smi": smi})
    assert cycles.facts("source")[f"GPU-{bare}"] == "dcgm-exporter,nvidia_gpu_exporter"
    assert "1: power_watts" in str(cycles.facts("sample_window")[f"GPU-{bare}"])


# -- changes ---------------------------------------------------------------------------------------------------------


def hami(limit: int, cores: int) -> str:
    names = 'namespace="ns",pod="job-0",{}="{}",device_uuid="GPU-0"'
    monitor = names.format("container", "c") + ',vdevice_index="0"'
    scheduler = names.format("container_index", "0") + ',node="node-a"'
    return (
        f"hami_vgpu_memory_limit_bytes{{{monitor}}} {limit}\n"
        f"hami_vgpu_memory_used_bytes{{{monitor}}} 5\nhami_vgpu_core_allocated_ratio{{{scheduler}}} {cores}\n"
    )


def test_quotas_are_facts_and_a_change_is_one_event(cycles: Cycles) -> None:
    cycles.poll(hami(8_000_000_000, 30))
    assert cycles.facts("sm_quota_ratio") == {"0": "0.3"}
    assert cycles.facts("memory_quota_bytes") == {"0": "8000000000"}
    assert "quota_changed" not in cycles.events()
    cycles.poll(hami(8_000_000_000, 30))
    assert cycles.batch.facts == []
    cycles.poll(hami(9_000_000_000, 50))
    assert cycles.facts("sm_quota_ratio") == {"0": "0.5"}
    changes = [event.message for event in cycles.batch.events if event.code == "quota_changed"]
    assert changes == [
        "test/node-a/GPU-0/ns/job-0/c/0: sm_quota_ratio 0.3 is now 0.5; memory_quota_bytes 8000000000 is now 9000000000"
    ]


def test_a_rounding_of_an_instances_memory_or_a_missing_sample_is_no_change(cycles: Cycles) -> None:
    def text(used: int, free: int | None) -> str:
        result = dcgm("DCGM_FI_DEV_FB_USED", used, GPU_I_ID="1", GPU_I_PROFILE="1g.10gb")
        return result + (
            "" if free is None else dcgm("DCGM_FI_DEV_FB_FREE", free, GPU_I_ID="1", GPU_I_PROFILE="1g.10gb")
        )

    cycles.poll(text(1000, 8728))
    assert cycles.facts("memory_quota_bytes") == {"gi1": str(9728 * 2**20)}
    for used, free in ((2000, 7727), (2000, None), (2000, 7728)):
        cycles.poll(text(used, free))
        assert cycles.facts("memory_quota_bytes") == {}
        assert cycles.events() == []


def test_another_owner_of_a_card_is_an_event_and_ends_the_old_fact(cycles: Cycles) -> None:
    cycles.poll(dcgm("DCGM_FI_DEV_GPU_UTIL", 5, **held("a-0")))
    cycles.poll(dcgm("DCGM_FI_DEV_GPU_UTIL", 5, **held("b-0", "other")))
    assert cycles.facts("tenant") == {"whole": "other"}
    changed = [event.message for event in cycles.batch.events if event.code == "owner_changed"]
    assert changed == ["test/node-a/GPU-0/whole: tenant ns is now other; workload a is now b"]


def test_driver_cuda_and_vbios_are_facts_and_their_steps_one_event(cycles: Cycles) -> None:
    def text(driver: str, cuda: str) -> str:
        return dcgm("DCGM_FI_DEV_GPU_UTIL", 5, DCGM_FI_DRIVER_VERSION=driver, DCGM_FI_CUDA_DRIVER_VERSION=cuda)

    cycles.poll(text("550.54", "12040"))
    cycles.poll(text("570.10", "12080"))
    assert cycles.facts("driver_version") == {"GPU-0": "570.10"}
    assert cycles.facts("cuda_version") == {"GPU-0": "12080"}
    assert cycles.events() == ["version_changed"]


# -- the data sheet ----------------------------------------------------------------------------------------------


def test_the_driver_knows_the_architecture_better_than_the_model(cycles: Cycles) -> None:
    text = dcgm("DCGM_FI_DEV_GPU_UTIL", 5, modelName="Tesla T4")
    cycles.poll(
        text + dcgm("DCGM_FI_DEV_GPU_UTIL", 5, uuid="GPU-1", gpu="1", modelName="Tesla T4", architecture="ampere")
    )
    assert cycles.facts("architecture") == {"GPU-0": "turing", "GPU-1": "ampere"}


def test_peaks_are_of_known_types_and_a_type_that_is_left_out_is_not_known() -> None:
    types = {"fp64", "fp64_tensor", "fp32", "tf32_tensor", "fp16", "fp16_tensor", "fp8_tensor"}
    assert set(PIPES.values()) <= types
    for model in gpu_models().values():
        assert set(model.peaks) <= types, model.key
        assert all(math.isfinite(peak) and peak >= 0 for peak in model.peaks.values())
        assert model.peaks["fp16_tensor"] >= 0
    assert "fp64" not in gpu_models()["a10g"].peaks
    assert np.isclose(gpu_models()["mi300x"].peaks["fp16_tensor"], 1307.4e12)
