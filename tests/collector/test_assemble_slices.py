"""Who holds a card, as exporters and Kubernetes say it, and what a slice's row may and may not hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import orjson
import pytest

from collector.batch import Fact
from collector.declarations import Objective, WorkloadDeclaration
from collector.settings import MappingSettings, TenantSettings

if TYPE_CHECKING:
    from tests.collector.conftest import Cycles

CARD, MONITOR, SCHEDULER, KUBE = "http://a/dcgm", "http://b/hami", "http://c/scheduler", "http://d/kube"


def dcgm(metric: str, value: object, *, uuid: str = "GPU-0", gpu: str = "0", **labels: str) -> str:
    every = {"gpu": gpu, "UUID": uuid, "modelName": "NVIDIA A100-SXM4-80GB", **labels}
    inside = ",".join(f'{name}="{text}"' for name, text in every.items())
    return f"{metric}{{{inside}}} {value}\n"


def held(pod: str, namespace: str = "ns", container: str = "c", **more: str) -> dict[str, str]:
    return {"container": container, "namespace": namespace, "pod": pod, **more}


def kube(pods: dict[str, dict[str, object]], strategy: str = "", extra: str = "") -> str:
    """kube-state-metrics text; a pod is `namespace/name` -> phase, node, owner, label, request, created and so on."""
    text = f'kube_node_status_allocatable{{node="node-a",resource="pods"}} 110\n{extra}'
    if strategy:
        text += f'kube_node_labels{{node="node-a",label_nvidia_com_gpu_sharing_strategy="{strategy}"}} 1\n'
    for key, pod in pods.items():
        namespace, name = key.split("/")
        head = f'namespace="{namespace}",pod="{name}"'
        for phase in ("Pending", "Running", "Succeeded", "Failed"):
            value = int(phase == pod.get("phase", "Running"))
            text += f'kube_pod_status_phase{{{head},phase="{phase}"}} {value}\n'
        if "owner" in pod:
            kind, _, owner = str(pod["owner"]).partition(":")
            text += f'kube_pod_owner{{{head},owner_kind="{kind}",owner_name="{owner}"}} 1\n'
        if "label" in pod:
            text += f'kube_pod_labels{{{head},label_app="{pod["label"]}"}} 1\n'
        for resource, amount in dict(pod.get("requests", {"nvidia_com_gpu": 1})).items():  # type: ignore[call-overload]
            where = f'{head},container="main",node="{pod.get("node", "node-a")}",resource="{resource}"'
            text += f"kube_pod_container_resource_requests{{{where}}} {amount}\n"
        for metric, field in (("created", "created"), ("start_time", "started"), ("completion_time", "completed")):
            if field in pod:
                text += f"kube_pod_{metric}{{{head}}} {pod[field]}\n"
        if "annotations" in pod:
            notes = ",".join(f'annotation_trimtab_{k}="{v}"' for k, v in dict(pod["annotations"]).items())  # type: ignore[call-overload]
            text += f"kube_pod_annotations{{{head},{notes}}} 1\n"
        if pod.get("oom"):
            reason = 'container="main",reason="OOMKilled"'
            text += f"kube_pod_container_status_last_terminated_reason{{{head},{reason}}} 1\n"
    return text


def slices(cycles: Cycles) -> dict[str, tuple[str, str]]:
    frame = cycles.frame("slice")
    return {str(name): (row["tenant"], row["workload"]) for name, row in frame.iterrows()}


def test_a_card_held_alone_is_one_whole_slice_with_the_cards_values(cycles: Cycles) -> None:
    labels = held("web-6d4b75cb6d-x8k2p")
    cycles.poll(dcgm("DCGM_FI_DEV_GPU_UTIL", 60, **labels) + dcgm("DCGM_FI_DEV_FB_USED", 10, **labels))
    assert slices(cycles) == {"whole": ("ns", "web")}
    row = cycles.frame("slice").iloc[0]
    assert (row["busy_ratio"], row["memory_used_bytes"], row["sm_quota_ratio"]) == (0.6, 10 * 2**20, 1.0)
    assert cycles.facts("kind") == {"whole": "whole"}
    assert cycles.facts("container") == {"whole": "c"}
    assert cycles.facts("pod") == {"whole": "ns/web-6d4b75cb6d-x8k2p"}


def test_a_free_card_beside_a_held_one_has_no_slice_and_one_without_any_names_is_unknown(cycles: Cycles) -> None:
    both = dcgm("DCGM_FI_DEV_GPU_UTIL", 60, **held("a")) + dcgm("DCGM_FI_DEV_GPU_UTIL", 0, uuid="GPU-1", gpu="1")
    cycles.poll(both)
    assert list(cycles.frame("slice")["gpu"]) == ["GPU-0"]
    cycles.poll({"http://bare/m": dcgm("DCGM_FI_DEV_GPU_UTIL", 0, uuid="GPU-9")})
    assert slices(cycles) == {"whole": ("unknown", "unknown")}


def test_an_instance_without_a_name_beside_named_ones_is_held_by_nobody(cycles: Cycles) -> None:
    one = dcgm("DCGM_FI_DEV_FB_USED", 1, GPU_I_ID="1", GPU_I_PROFILE="1g.10gb", **held("a"))
    two = dcgm("DCGM_FI_DEV_FB_USED", 1, GPU_I_ID="2", GPU_I_PROFILE="1g.10gb")
    cycles.poll(one + two)
    assert slices(cycles) == {"gi1": ("ns", "a"), "gi2": ("none", "none")}


def test_exported_labels_go_first_and_the_exporters_own_pod_holds_nothing(cycles: Cycles) -> None:
    own = {"namespace": "gpu-operator", "pod": "nvidia-dcgm-exporter-tl46n", "container": "exporter"}
    theirs = {"exported_namespace": "team", "exported_pod": "job-0", "exported_container": "main"}
    cycles.poll(dcgm("DCGM_FI_DEV_GPU_UTIL", 5, **own, **theirs))
    assert slices(cycles) == {"whole": ("team", "job")}
    cycles.poll({"http://other/m": dcgm("DCGM_FI_DEV_GPU_UTIL", 5, uuid="GPU-7", **own)})
    assert slices(cycles) == {"whole": ("unknown", "unknown")}


def test_reservation_pods_do_not_say_who_uses_the_card(cycles: Cycles) -> None:
    cycles.poll(dcgm("DCGM_FI_DEV_GPU_UTIL", 5, **held("runai-reservation-gpu-x", "runai-reservation")))
    assert slices(cycles) == {"whole": ("unknown", "unknown")}


def shared_text(*, device: bool, per_pod: tuple[int, int] = (52, 31)) -> str:
    text = ""
    for metric, value, own in (("DCGM_FI_DEV_GPU_UTIL", 87, per_pod), ("DCGM_FI_DEV_POWER_USAGE", 300, (300, 300))):
        text += dcgm(metric, value) if device else ""
        for pod, mine, number in zip("ab", own, "01", strict=True):
            text += dcgm(metric, mine if device else value, **held(pod, vgpu=number))
    return text


def test_copies_of_the_cards_value_are_never_written_to_slices(cycles: Cycles) -> None:
    cycles.poll(shared_text(device=False))
    card = cycles.frame("gpu").loc["GPU-0"]
    assert (card["busy_ratio"], card["power_watts"]) == (0.87, 300.0)
    assert cycles.frame("slice").empty
    assert cycles.facts("kind") == {"0": "timeslice"}
    assert cycles.facts("pod").keys() == {"0"}


def test_per_process_values_beside_the_devices_own_are_the_pods(cycles: Cycles) -> None:
    cycles.poll(shared_text(device=True))
    frame = cycles.frame("slice")
    assert list(frame.index) == ["ns/a/c/0", "ns/b/c/0"]
    assert list(frame["busy_ratio"]) == [0.52, 0.31]
    assert "power_watts" not in frame.columns
    assert cycles.frame("gpu").loc["GPU-0", "busy_ratio"] == 0.87
    assert cycles.frame("gpu").loc["GPU-0", "power_watts"] == 300.0


def test_per_process_values_stay_the_pods_when_the_cards_own_is_missing_from_a_scrape(cycles: Cycles) -> None:
    whole = shared_text(device=True)
    for text in (whole, whole.removeprefix(dcgm("DCGM_FI_DEV_GPU_UTIL", 87)), whole):
        cycles.poll(text)
        assert list(cycles.frame("slice")["busy_ratio"]) == [0.52, 0.31]
        card = cycles.frame("gpu").loc["GPU-0"]
        assert card["power_watts"] == 300.0
        assert card.get("busy_ratio", 0.87 if text is whole else None) == (0.87 if text is whole else None)


def test_a_copied_value_stands_in_for_the_cards_own(cycles: Cycles) -> None:
    whole = shared_text(device=True)
    for text in (whole, whole.replace(dcgm("DCGM_FI_DEV_POWER_USAGE", 300), "", 1), whole):
        cycles.poll(text)
        assert cycles.frame("gpu").loc["GPU-0", "power_watts"] == 300.0
        assert "power_watts" not in cycles.frame("slice").columns


@pytest.mark.parametrize(("strategy", "kind"), [("mps", "mps"), ("time-slicing", "timeslice")])
def test_the_nodes_label_says_how_cards_are_shared(cycles: Cycles, strategy: str, kind: str) -> None:
    pods: dict[str, dict[str, object]] = {"ns/a": {}, "ns/b": {}}
    cycles.poll({CARD: shared_text(device=True), KUBE: kube(pods, strategy)})
    assert {f.value for f in cycles.batch.facts if f.name == "kind"} == {kind}
    assert {f.provenance for f in cycles.batch.facts if f.name == "kind"} == {"measured"}


def test_one_name_on_a_card_that_is_shared_is_not_believed(cycles: Cycles) -> None:
    one = dcgm("DCGM_FI_DEV_GPU_UTIL", 60, **held("a"))
    cycles.poll({CARD: one, KUBE: kube({"ns/a": {}, "ns/b": {}}, "time-slicing")})
    assert cycles.frame("slice").empty
    assert cycles.frame("gpu").loc["GPU-0", "busy_ratio"] == 0.6


def test_a_name_that_changes_to_and_fro_is_unknown(cycles: Cycles) -> None:
    seen = []
    for pod in ("a", "b", "a", "b"):
        cycles.poll(dcgm("DCGM_FI_DEV_GPU_UTIL", 60, **held(pod)))
        assert len(cycles.frame("gpu")) == 1
        seen.append(slices(cycles)["whole"][1])
    assert seen == ["a", "b", "unknown", "unknown"]


def test_a_completed_pod_holds_nothing(cycles: Cycles) -> None:
    text = dcgm("DCGM_FI_DEV_GPU_UTIL", 0, **held("job-0"))
    cycles.poll({CARD: text, KUBE: kube({"ns/job-0": {"phase": "Running"}})})
    assert slices(cycles) == {"whole": ("ns", "job")}
    cycles.poll({CARD: text, KUBE: kube({"ns/job-0": {"phase": "Succeeded"}})})
    assert cycles.frame("slice").empty


@pytest.mark.parametrize(
    ("pod", "workload"),
    [
        ({"label": "checkout"}, "checkout"),
        ({"owner": "ReplicaSet:web-6d4b75cb6d"}, "web"),
        ({"owner": "StatefulSet:db"}, "db"),
        ({"owner": "Job:train-28391839"}, "train"),
        ({"owner": "Node:node-a"}, "web"),
        ({}, "web"),
    ],
)
def test_the_workload_is_the_pods_owner(cycles: Cycles, pod: dict[str, object], workload: str) -> None:
    text = dcgm("DCGM_FI_DEV_GPU_UTIL", 0, **held("web-6d4b75cb6d-x8k2p"))
    cycles.poll({CARD: text, KUBE: kube({"ns/web-6d4b75cb6d-x8k2p": pod})})
    assert slices(cycles) == {"whole": ("ns", workload)}


def test_tenants_are_resolved_by_table_and_replicas_of_a_set_are_numbered(
    cycles_with: Callable[..., Cycles],
) -> None:
    cycles = cycles_with(tenants=(TenantSettings(name="shop", namespaces=("ns-*",)),))
    text = dcgm("DCGM_FI_DEV_GPU_UTIL", 0, **held("db-3", "ns-live"))
    cycles.poll({CARD: text, KUBE: kube({"ns-live/db-3": {"owner": "StatefulSet:db"}})})
    assert slices(cycles) == {"whole": ("shop", "db")}
    assert cycles.facts("ordinal")["whole"] == "3"


def test_a_row_waits_one_interval_for_its_holder(cycles: Cycles) -> None:
    text = dcgm("DCGM_FI_DEV_GPU_UTIL", 50, **held("new-x"))
    first = cycles.poll({CARD: text, KUBE: kube({})})
    assert "slice" not in first.rows
    late = cycles.poll({CARD: text, KUBE: kube({"ns/new-x": {"label": "fresh"}})})
    frame = late.rows["slice"].to_pandas()
    assert list(frame["workload"]) == ["fresh", "fresh"]
    assert list(frame["time"].diff().dt.total_seconds().dropna()) == [60.0]


def test_a_holder_that_stays_unknown_is_written_as_unknown(cycles: Cycles) -> None:
    text = dcgm("DCGM_FI_DEV_GPU_UTIL", 50, **held("new-x"))
    rows = [cycles.poll({CARD: text, KUBE: kube({})}).rows.get("slice") for _ in range(3)]
    assert [0 if row is None else row.num_rows for row in rows] == [0, 2, 1]
    assert set(rows[1].to_pandas()["tenant"]) == {"unknown"}  # type: ignore[union-attr]


HAMI = (
    'hami_host_gpu_utilization_ratio{device_uuid="GPU-0",device_index="0",device_type="NVIDIA-NVIDIA H200"} 70\n'
    'hami_vgpu_memory_used_bytes{namespace="ns",pod="a",container="c",vdevice_index="0",device_uuid="GPU-0"} 2e9\n'
    'hami_vgpu_memory_limit_bytes{namespace="ns",pod="a",container="c",vdevice_index="0",device_uuid="GPU-0"} 8e9\n'
)


def hami_container(busy: float, idle: float, pod: str = "a") -> str:
    where = f'namespace="ns",pod="{pod}",container="c",vdevice_index="0",device_uuid="GPU-0"'
    return (
        f"hami_container_device_utilization_ratio{{{where}}} {busy}\n"
        f"hami_container_last_kernel_elapsed_seconds{{{where}}} {idle}\n"
    )


def test_hami_percent_under_the_name_ratio_and_memory_in_bytes(cycles: Cycles) -> None:
    cycles.poll(HAMI + hami_container(33, 1))
    row = cycles.frame("slice").loc["ns/a/c/0"]
    assert (row["busy_ratio"], row["memory_used_bytes"], row["memory_quota_bytes"]) == (0.33, 2e9, 8e9)
    assert row["idle_seconds"] == 1.0
    assert cycles.frame("gpu").loc["GPU-0", "busy_ratio"] == pytest.approx(0.7)
    assert cycles.facts("kind") == {"0": "vgpu"}


@pytest.mark.parametrize(
    ("busy", "idle", "value", "reason"),
    [
        (312, 1, 1.0, "above_1_capped"),
        (40, 3664, 0.0, "stuck_while_idle"),
        (0, 2, None, "zero_while_busy"),
        (0, 3664, 0.0, ""),
    ],
)
def test_a_containers_use_is_checked_against_its_last_kernel_and_the_card(
    cycles: Cycles, busy: float, idle: float, value: float | None, reason: str
) -> None:
    cycles.poll(HAMI + hami_container(busy, idle))
    row = cycles.frame("slice").loc["ns/a/c/0"]
    assert row.get("busy_ratio") == value
    assert [r.reason for r in cycles.batch.rejects] == ([reason] if reason else [])
    assert [r.subject.slice for r in cycles.batch.rejects] == (["ns/a/c/0"] if reason else [])


def test_old_hami_names_with_numbers_as_labels(cycles: Cycles) -> None:
    for context in ("0", "266338304"):
        where = 'ctrname="c",deviceuuid="GPU-0",podname="a",podnamespace="ns",vdeviceid="1"'
        cycles.poll(
            f'Device_memory_desc_of_container{{context="{context}",{where}}} 3e9\n'
            f"vGPU_device_memory_limit_in_bytes{{{where}}} 8e9\nDevice_utilization_desc_of_container{{{where}}} 50\n"
        )
        row = cycles.frame("slice").loc["ns/a/c/1"]
        assert (row["memory_used_bytes"], row["memory_quota_bytes"], row["busy_ratio"]) == (3e9, 8e9, 0.5)


def test_the_schedulers_allocation_joins_the_containers_slice(cycles: Cycles) -> None:
    where = 'container_index="0",device_uuid="GPU-0",namespace="ns",node="node-a",pod="a"'
    scheduler = f"hami_vgpu_core_allocated_ratio{{{where}}} 30\nhami_vgpu_memory_allocated_bytes{{{where}}} 9e9\n"
    cycles.poll({MONITOR: HAMI, SCHEDULER: scheduler})
    row = cycles.frame("slice").loc["ns/a/c/0"]
    assert (row["sm_quota_ratio"], row["memory_quota_bytes"]) == (0.3, 8e9)


def test_an_allocation_whose_container_was_never_seen_takes_its_name_from_kubernetes(cycles: Cycles) -> None:
    where = 'containeridx="1",deviceuuid="GPU-0",podnamespace="ns",nodename="node-a",podname="a"'
    cycles.poll({SCHEDULER: f"vGPUCoreAllocated{{{where}}} 45\n", KUBE: kube({"ns/a": {}})})
    row = cycles.frame("slice").loc["ns/a/main/0"]
    assert row["sm_quota_ratio"] == 0.45


def test_volcanos_pods_without_namespace_find_it_in_kubernetes(cycles: Cycles) -> None:
    text = 'volcano_vgpu_device_memory_allocation_for_a_certain_pod{NodeName="n",devID="GPU-0",podName="a"} 16384\n'
    cycles.poll({SCHEDULER: text, KUBE: kube({"team/a": {}})})
    row = cycles.frame("slice").loc["team/a/main/0"]
    assert (row["tenant"], row["memory_quota_bytes"], row["node"]) == ("team", 2**34, "n")


def vllm(count: float, *, fast: float, waiting: int = 3, engines: int = 1, prefix: str = "vllm:") -> str:
    text = ""
    for engine in range(engines):
        e = f'engine="{engine}",model_name="m"'
        text += f'{prefix}request_success_total{{{e},finished_reason="stop"}} {count}\n'
        text += f'{prefix}request_success_total{{{e},finished_reason="abort"}} {count / 10}\n'
        text += f"{prefix}generation_tokens_total{{{e}}} {count * 100}\n{prefix}num_requests_waiting{{{e}}} {waiting}\n"
        text += f"{prefix}kv_cache_usage_perc{{{e}}} 0.4\n{prefix}num_preemptions_total{{{e}}} {count / 100}\n"
        for bound, below in (("0.5", fast), ("1.0", count), ("+Inf", count)):
            text += f'{prefix}e2e_request_latency_seconds_bucket{{{e},le="{bound}"}} {below}\n'
        text += f"{prefix}inter_token_latency_seconds_sum{{{e}}} {count * 2.0}\n"
        text += f"{prefix}inter_token_latency_seconds_count{{{e}}} {count * 100}\n"
        text += f"{prefix}time_per_output_token_seconds_sum{{{e}}} {count * 9.0}\n"
        text += f"{prefix}time_per_output_token_seconds_count{{{e}}} {count * 100}\n"
    return text


def serving(cycles: Cycles, texts: list[str], card: str | None = None) -> dict[str, float]:
    card = card or dcgm("DCGM_FI_DEV_GPU_UTIL", 50, **held("llm-0", container="server"))
    for text in texts:
        cycles.poll(
            {CARD: card, "http://app/metrics": text},
            labels={"http://app/metrics": {"namespace": "ns", "pod": "llm-0", "container": "server"}},
        )
    row = cycles.frame("slice").iloc[0]
    return {str(name): float(value) for name, value in row.items() if isinstance(value, float)}


ONLINE = WorkloadDeclaration(match="llm", objective=Objective(quantity="e2e", share=0.99, bound_seconds=0.75))


@pytest.mark.parametrize("prefix", ["vllm:", "ray_vllm:", "ray_vllm_"])
def test_a_language_model_servers_interval(cycles_with: Callable[..., Cycles], prefix: str) -> None:
    cycles = cycles_with(declarations=(ONLINE,))
    row = serving(cycles, [vllm(100, fast=60, prefix=prefix), vllm(700, fast=360, prefix=prefix)])
    assert row["requests_per_second"] == pytest.approx(660 / 60)
    assert row["within_objective_per_second"] == pytest.approx((300 + 300 / 2) / 60)
    assert row["tokens_per_second"] == pytest.approx(60000 / 60)
    assert row["latency_p50_seconds"] == pytest.approx(0.5)
    assert "latency_p99_seconds" not in row  # 600 requests are fewer than 10 / (1 - 0.99)
    assert row["step_seconds"] == pytest.approx(0.02)
    assert row["steps_count"] == 60000
    assert (row["queue_depth_count"], row["kv_cache_used_ratio"], row["preemption_count"]) == (3.0, 0.4, 6.0)
    assert cycles.facts("latency_quantity") == {}  # told in the first cycle


def test_percentiles_need_ten_requests_beyond_them(cycles: Cycles) -> None:
    row = serving(cycles, [vllm(0, fast=0), vllm(1000, fast=0)])
    assert row["latency_p99_seconds"] == pytest.approx(0.995)
    assert "latency_p999_seconds" not in row
    assert "within_objective_per_second" not in row  # nobody promised anything


def test_engines_add_up_and_their_caches_are_averaged(cycles: Cycles) -> None:
    row = serving(cycles, [vllm(100, fast=60, engines=2), vllm(700, fast=360, engines=2)])
    assert row["requests_per_second"] == pytest.approx(2 * 660 / 60)
    assert (row["queue_depth_count"], row["kv_cache_used_ratio"]) == (6.0, 0.4)
    assert row["latency_p50_seconds"] == pytest.approx(0.5)


def test_a_server_that_starts_anew_and_one_after_a_gap_give_no_rate(cycles: Cycles) -> None:
    row = serving(cycles, [vllm(700, fast=360), vllm(100, fast=60)])
    assert not {"requests_per_second", "tokens_per_second", "latency_p50_seconds", "step_seconds"} & row.keys()
    assert "counter_reset" in cycles.events()
    cycles.now += 3 * (cycles.now - cycles.start)
    row = serving(cycles, [vllm(700, fast=360)])
    assert not {"requests_per_second", "latency_p50_seconds"} & row.keys()


def test_triton_with_microseconds_failures_and_a_first_response_that_is_the_whole(
    cycles_with: Callable[..., Cycles],
) -> None:
    def text(n: int) -> str:
        m = 'model="bert",version="1"'
        return (
            f"nv_inference_request_success{{{m}}} {n}\n"
            f'nv_inference_request_failure{{{m},reason="OTHER"}} {n // 10}\n'
            f"nv_inference_count{{{m}}} {n}\nnv_inference_compute_infer_duration_us{{{m}}} {n * 5000}\n"
            f"nv_inference_pending_request_count{{{m}}} 4\n"
            f'nv_inference_first_response_histogram_ms_bucket{{{m},le="100"}} {n // 2}\n'
            f'nv_inference_first_response_histogram_ms_bucket{{{m},le="+Inf"}} {n}\n'
        )

    declared = WorkloadDeclaration(match="llm", objective=Objective(quantity="e2e", bound_seconds=0.1))
    cycles = cycles_with(declarations=(declared,))
    first = serving(cycles, [text(0)])
    assert cycles.facts("latency_quantity") == {"whole": "ttft"}
    assert cycles.facts("provenance:latency_p99_seconds") == {"whole": "estimated"}
    row = serving(cycles, [text(600)])
    assert row["requests_per_second"] == pytest.approx(660 / 60)
    assert row["within_objective_per_second"] == pytest.approx(300 / 60)
    assert (row["step_seconds"], row["steps_count"]) == (pytest.approx(0.005), 600.0)
    assert (first["queue_depth_count"], row["queue_depth_count"]) == (4.0, 4.0)


def test_tritons_summaries_are_percentiles_as_they_stand(cycles: Cycles) -> None:
    text = "".join(
        f'nv_inference_request_summary_us{{model="m",version="1",quantile="{q}"}} {v}\n'
        for q, v in (("0.5", 5500), ("0.99", 10100), ("0.999", "NaN"))
    )
    row = serving(cycles, [text])
    assert row["latency_p50_seconds"] == pytest.approx(0.0055)
    assert row["latency_p99_seconds"] == pytest.approx(0.0101)
    assert "latency_p999_seconds" not in row


def test_a_text_generation_server_without_labels(cycles: Cycles) -> None:
    def text(n: int) -> str:
        return (
            f"tgi_request_count {n}\ntgi_request_generated_tokens_sum {n * 50}\ntgi_queue_size 2\n"
            f'tgi_request_duration_bucket{{le="2"}} {n}\ntgi_request_duration_bucket{{le="+Inf"}} {n}\n'
            f'tgi_batch_inference_duration_sum{{method="decode"}} {n * 2}\n'
            f'tgi_batch_inference_duration_count{{method="decode"}} {n * 100}\n'
            f'tgi_batch_inference_duration_sum{{method="prefill"}} {n * 99}\n'
            f'tgi_batch_inference_duration_count{{method="prefill"}} {n}\n'
        )

    row = serving(cycles, [text(0), text(120)])
    assert (row["requests_per_second"], row["tokens_per_second"], row["queue_depth_count"]) == (2.0, 100.0, 2.0)
    assert row["step_seconds"] == pytest.approx(0.02)
    assert row["latency_p50_seconds"] == pytest.approx(1.0)


def test_a_trainers_own_metrics_through_mappings(cycles_with: Callable[..., Cycles]) -> None:
    mappings = (
        MappingSettings(metric="trainer_steps_total", measurement="slice", field="steps_count", counter=True),
        MappingSettings(metric="trainer_step_seconds", measurement="slice", field="step_seconds", counter=True),
        MappingSettings(metric="trainer_reserved", measurement="slice", field="allocator_reserved_bytes", scale=1024),
    )
    cycles = cycles_with(mappings=mappings)

    def text(n: int) -> str:
        return (
            f"trainer_steps_total {n}\ntrainer_step_seconds_sum {n * 0.5}\ntrainer_step_seconds_count {n}\n"
            "trainer_reserved 1000\n"
        )

    row = serving(cycles, [text(10), text(40)])
    assert (row["steps_count"], row["step_seconds"], row["allocator_reserved_bytes"]) == (30.0, 0.5, 1024000.0)


def test_a_server_sits_on_its_pods_slice_of_ordinal_0_in_its_container(cycles: Cycles) -> None:
    card = "".join(
        dcgm("DCGM_FI_DEV_GPU_UTIL", 50, uuid=f"GPU-{n}", gpu=str(n), **held("llm-0", container=container))
        for n, container in ((2, "server"), (1, "server"), (0, "side"))
    )
    serving(cycles, [vllm(0, fast=0), vllm(60, fast=0)], card)
    told = {f.subject.gpu: f.value for f in cycles.batch.facts if f.name == "replica"}
    frame = cycles.frame("slice")
    assert told == {}  # told in the first cycle
    assert list(frame.loc[frame["requests_per_second"].notna(), "gpu"]) == ["GPU-1"]


def test_other_slices_of_a_replica_name_the_one_with_its_application_fields(cycles: Cycles) -> None:
    card = "".join(
        dcgm("DCGM_FI_DEV_GPU_UTIL", 50, uuid=f"GPU-{n}", gpu=str(n), **held("llm-0", container="server"))
        for n in (0, 1)
    )
    serving(cycles, [vllm(0, fast=0)], card)
    told = {f.subject.gpu: f.value for f in cycles.batch.facts if f.name == "replica"}
    assert told == {"GPU-1": "GPU-0/whole"}


def test_slices_that_went_while_the_collector_was_away_end_their_facts(cycles: Cycles) -> None:
    cycles.poll(dcgm("DCGM_FI_DEV_GPU_UTIL", 5, **held("a")) + dcgm("DCGM_FI_DEV_GPU_UTIL", 5, uuid="GPU-1", gpu="1"))
    later = type(cycles)(cycles.context)
    later.assembler.import_state(orjson.loads(orjson.dumps(cycles.assembler.export_state())))
    later.now = cycles.now
    later.poll(dcgm("DCGM_FI_DEV_GPU_UTIL", 5, uuid="GPU-1", gpu="1", **held("b")))
    ended = {(f.subject.gpu, f.name) for f in later.batch.facts if f.value is None}
    assert {("GPU-0", "kind"), ("GPU-0", "pod"), ("GPU-0", "tenant")} <= ended
    told = {(f.subject.gpu, f.name) for f in later.batch.facts if f.value is not None}
    assert ("GPU-1", "model") not in told


def test_a_server_whose_pod_holds_nothing_is_counted(cycles: Cycles) -> None:
    cycles.poll({"http://app/m": vllm(1, fast=1)}, labels={"http://app/m": {"namespace": "ns", "pod": "gone"}})
    assert cycles.rejects() == {("", "no slice known of this pod"): 1}
    assert cycles.batch.rejects[0].subject.object == "ns/gone"


def test_a_bare_hosts_server_says_its_card_itself(cycles: Cycles) -> None:
    for n in (0, 60):
        cycles.poll(
            {CARD: dcgm("DCGM_FI_DEV_GPU_UTIL", 50), "http://app/m": vllm(n, fast=0)},
            labels={"http://app/m": {"gpu": "GPU-0"}},
        )
    assert cycles.frame("slice").loc["whole", "requests_per_second"] == pytest.approx(66 / 60)


def test_promises_are_facts_of_workloads(cycles_with: Callable[..., Cycles]) -> None:
    cycles = cycles_with(declarations=(ONLINE,))
    card = dcgm("DCGM_FI_DEV_GPU_UTIL", 50, **held("llm-0")) + dcgm(
        "DCGM_FI_DEV_GPU_UTIL", 50, uuid="GPU-1", gpu="1", **held("batch-0")
    )
    notes = {"service_class": "offline", "weight": "2"}
    cycles.poll({CARD: card, KUBE: kube({"ns/llm-0": {}, "ns/batch-0": {"annotations": notes}})})
    # What is configured, and what is a default, is joined when facts are read.
    assert promises(cycles) == {
        ("ns/llm", "service_class"): ("unknown", "unknown"),
        ("ns/batch", "service_class"): ("offline", "declared"),
        ("ns/batch", "weight"): ("2", "declared"),
    }
    classes = {f.subject.gpu: (f.value, f.provenance) for f in cycles.batch.facts if is_class_of_a_slice(f)}
    assert classes == {"GPU-0": ("online", "declared"), "GPU-1": ("offline", "declared")}


def promises(cycles: Cycles) -> dict[tuple[str, str], tuple[str | None, str]]:
    facts = [f for f in cycles.batch.facts if f.subject.kind == "workload"]
    return {(f.subject.object, f.name): (f.value, f.provenance) for f in facts}


def is_class_of_a_slice(fact: Fact) -> bool:
    return fact.subject.kind == "slice" and fact.name == "service_class"


def test_an_objective_holds_only_what_the_annotations_say(cycles: Cycles) -> None:
    notes = {"objective_bound_seconds": "0.2", "protected": "True", "floor": "0.25"}
    cycles.poll(kube({"ns/a-0": {"annotations": notes}}))
    told = promises(cycles)
    assert orjson.loads(told["ns/a", "objective"][0] or "") == {"bound_seconds": 0.2}
    assert (told["ns/a", "protected"][0], told["ns/a", "floor"][0]) == ("true", "0.25")


def test_an_annotation_that_is_none_promises_nothing_and_leaves_the_others(cycles: Cycles) -> None:
    card = dcgm("DCGM_FI_DEV_GPU_UTIL", 50, **held("a-0"))
    notes = {"weight": "much", "objective_share": "0.9", "service_class": "offline"}
    cycles.poll({CARD: card, KUBE: kube({"ns/a-0": {"annotations": notes}})})
    assert promises(cycles) == {("ns/a", "service_class"): ("offline", "declared")}


def test_an_annotation_that_is_taken_away_ends_its_fact(cycles: Cycles) -> None:
    cycles.poll(kube({"ns/a-0": {"annotations": {"service_class": "offline", "weight": "2"}}}))
    cycles.poll(kube({"ns/a-0": {"annotations": {"service_class": "offline"}}}))
    assert promises(cycles) == {("ns/a", "weight"): (None, "measured")}
    cycles.poll(kube({"ns/a-0": {}}))
    assert promises(cycles) == {("ns/a", "service_class"): ("unknown", "unknown")}


def test_the_newest_pod_with_annotations_speaks_for_its_workload(cycles: Cycles) -> None:
    def pod(created: int, **notes: str) -> dict[str, object]:
        return {"created": created, "label": "a"} | ({"annotations": notes} if notes else {})

    pods = {"ns/a-1": pod(20, weight="3"), "ns/a-2": pod(10, weight="2"), "ns/a-3": pod(30)}
    cycles.poll(kube(pods))
    assert promises(cycles)["ns/a", "weight"] == ("3", "declared")
    for _ in range(3):
        cycles.poll(kube(pods))
        assert promises(cycles) == {}


def test_a_restart_with_another_configuration_leaves_no_old_promise(cycles_with: Callable[..., Cycles]) -> None:
    before = cycles_with(declarations=(ONLINE,))
    texts: dict[str, str | None] = {
        CARD: dcgm("DCGM_FI_DEV_GPU_UTIL", 50, **held("llm-0")),
        KUBE: kube({"ns/llm-0": {"annotations": {"weight": "2"}}}),
    }
    before.poll(texts)
    after = cycles_with(declarations=())
    after.assembler.import_state(orjson.loads(orjson.dumps(before.assembler.export_state())))
    after.now = before.now
    after.poll(texts)
    assert promises(after) == {}
    after.poll({**texts, KUBE: None})  # nobody can say what the annotations are
    assert promises(after) == {}


def test_who_waits_and_for_how_long(cycles: Cycles) -> None:
    begin = cycles.start.timestamp()
    wants = {"requests": {"nvidia_com_gpu": 2}, "created": begin - 90}
    pending = {**wants, "phase": "Pending", "node": ""}
    cycles.poll(kube({"team/x-0": pending, "team/y-0": {"created": begin - 500, "started": begin - 400}}))
    queue = cycles.frame("queue").loc["team"]
    assert (queue["pending_count"], queue["pending_gpu_count"], queue["allocated_gpu_count"]) == (1.0, 2.0, 1.0)
    assert (queue["oldest_wait_seconds"], queue["admitted_count"]) == (90.0, 0.0)
    cycles.poll(kube({"team/x-0": {**wants, "started": begin + 30}, "team/y-0": {"phase": "Succeeded"}}))
    queue = cycles.frame("queue").loc["team"]
    assert (queue["pending_count"], queue["allocated_gpu_count"], queue["admitted_count"]) == (0.0, 2.0, 1.0)
    assert (queue["wait_p50_seconds"], queue["wait_p95_seconds"]) == (120.0, 120.0)


def test_requests_are_dated_facts_of_pods(cycles: Cycles) -> None:
    begin = cycles.start.timestamp()
    mig = {"requests": {"nvidia_com_mig_1g_10gb": 2, "cpu": 4}, "created": begin - 60, "started": begin - 30}
    hami = {"requests": {"nvidia_com_gpu": 1, "nvidia_com_gpumem": 1024, "nvidia_com_gpucores": 30}}
    shared = {"requests": {"nvidia_com_gpu_shared": 2}}
    cycles.poll(
        kube({"team/m-0": mig, "team/h-0": hami, "team/s-0": shared, "team/cpu-only": {"requests": {"cpu": 1}}})
    )
    told = {(f.subject.object, f.name): f for f in cycles.batch.facts if f.subject.kind == "pod"}
    assert told.keys() == {(p, n) for p in ("team/m-0", "team/h-0", "team/s-0") for n in ("request", "started")}
    request = orjson.loads(told["team/m-0", "request"].value or "")
    assert (request["cards"], request["profile"], request["cpu"]) == (2.0, "1g.10gb", 4.0)
    assert request["share"] == pytest.approx(1 / 7)
    assert told["team/m-0", "request"].at.timestamp() == begin - 60
    assert told["team/m-0", "started"].at.timestamp() == begin - 30
    request = orjson.loads(told["team/h-0", "request"].value or "")
    assert (request["share"], request["memory_bytes"], request["tenant"]) == (0.3, 2**30, "team")
    request = orjson.loads(told["team/s-0", "request"].value or "")
    assert (request["cards"], request["share"]) == (2.0, None)
    assert cycles.frame("queue").loc["team", "allocated_gpu_count"] == pytest.approx(2 / 7 + 0.3 + 2)
    cycles.poll(kube({"team/m-0": {**mig, "phase": "Failed", "completed": begin + 10}}))
    ended = {(f.subject.object, f.name): f.at.timestamp() for f in cycles.batch.facts if f.value is None}
    assert ended["team/m-0", "request"] == begin + 10
    assert ended["team/h-0", "request"] == begin + 60


def test_quotas_of_namespaces_and_pools(cycles: Cycles) -> None:
    quota = 'kube_resourcequota{namespace="team",resource="requests.nvidia.com/gpu",type="hard"} 8\n'
    label = 'kube_pod_labels{namespace="team",pod="a-0",label_kai_scheduler_queue="research"} 1\n'
    cycles.poll(kube({"team/a-0": {}}, extra=quota + label))
    frame = cycles.frame("queue").reset_index().set_index("pool")
    assert frame.loc["default", "quota_gpu_count"] == 8.0
    assert frame.loc["research", "allocated_gpu_count"] == 1.0


def test_a_container_killed_for_memory_is_one_event(cycles: Cycles) -> None:
    for _ in range(2):
        cycles.poll(kube({"team/a-0": {"oom": True}}))
    assert cycles.events() == []
    cycles.poll(kube({"team/a-0": {}}))
    cycles.poll(kube({"team/a-0": {"oom": True}}))
    assert cycles.events() == ["oom"]


def test_nodes_tell_what_they_have(cycles: Cycles) -> None:
    extra = "".join(
        f'kube_node_status_allocatable{{node="n1",resource="{name}"}} {value}\n'
        for name, value in (("cpu", 96), ("memory", 5e11), ("nvidia_com_gpu", 8))
    )
    extra += 'kube_node_labels{node="n1",label_cloud_google_com_gke_nodepool="train"} 1\n'
    cycles.poll(kube({}, strategy="mps", extra=extra))
    told = {(f.subject.node, f.name): f.value for f in cycles.batch.facts if f.subject.kind == "node"}
    assert told == {
        ("n1", "allocatable_cpu"): "96",
        ("n1", "allocatable_memory_bytes"): "500000000000",
        ("n1", "allocatable_cards"): "8",
        ("n1", "pool"): "train",
        ("node-a", "sharing_strategy"): "mps",
    }
