"""What the doctor says of each kind of exporter: detected, partial, not seen from here, why, and what to do."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from collector.mappings import builtin_exporters, mapping_table
from dashboard.doctor.check import Check, State, Status
from dashboard.doctor.families import FamilyBook, families
from tests.collector.kube_api import TOKEN, Api, gpu_pod, serving
from tests.dashboard.conftest import Ran
from tests.dashboard.exporters import Exporters
from tests.dashboard.exporters import serving as serving_texts

WRITE = bool(os.environ.get("TRIMTAB_WRITE_GOLDEN"))
GOLDEN = Path(__file__).parent / "golden" / "doctor_families.txt"

DCGM = """\
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-1",Hostname="n1"} 50
DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="GPU-1",Hostname="n1"} 0
"""
WHOLE = """\
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-2",Hostname="n2",pod="a",namespace="b",container="c"} 50
DCGM_FI_PROF_SM_ACTIVE{gpu="0",UUID="GPU-2",Hostname="n2",pod="a",namespace="b",container="c"} 0.5
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0",UUID="GPU-2",Hostname="n2"} 5000
DCGM_FI_DEV_CLOCKS_EVENT_REASONS{gpu="0",UUID="GPU-2",Hostname="n2"} 0
DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="GPU-2",Hostname="n2"} 0
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-2",Hostname="n2"} 100
DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS{gpu="0",UUID="GPU-2",Hostname="n2"} 0
DCGM_FI_PROF_PCIE_RX_BYTES{gpu="0",UUID="GPU-2",Hostname="n2"} 100
"""
KSM = """\
kube_pod_status_phase{namespace="b",pod="a",phase="Running"} 1
kube_pod_container_resource_requests{namespace="b",pod="a",container="c",resource="nvidia_com_gpu",unit="integer"} 1
kube_pod_owner{namespace="b",pod="a",owner_kind="Job",owner_name="a"} 1
kube_pod_labels{namespace="b",pod="a",label_app_kubernetes_io_name="train"} 1
kube_pod_created{namespace="b",pod="a"} 1
kube_node_status_capacity{node="n2",resource="nvidia_com_gpu",unit="integer"} 1
kube_node_labels{node="n2"} 1
"""
HAMI = """\
vGPU_device_memory_usage_in_bytes{ctrname="c",deviceuuid="GPU-2",podname="a",podnamespace="b",vdeviceid="0"} 5
Device_last_kernel_of_container{ctrname="c",deviceuuid="GPU-2",podname="a",podnamespace="b",vdeviceid="0"} 5
"""


@pytest.fixture
def exporters(elsewhere: Path) -> Iterator[Exporters]:
    with serving_texts({"dcgm": DCGM, "whole": WHOLE, "kube": KSM, "hami": HAMI}) as running:
        yield running


def configure(text: str) -> None:
    path = Path("trimtab.toml")
    path.write_text(text)
    path.chmod(0o600)


def seen(text: str) -> dict[str, list[Check]]:
    """Return the checks of one target's series by family."""
    book = FamilyBook()
    series = []
    for line in text.splitlines():
        name, _, rest = line.partition("{")
        series.append((name.split(" ")[0], dict(re.findall(r'(\w+)="([^"]*)"', rest))))
    book.add("http://a", series, mapping_table())
    found: dict[str, list[Check]] = {}
    for check in book.checks():
        found.setdefault(check.family, []).append(check)
    return found


def missing(checks: list[Check]) -> list[str]:
    return [check.text.split(": no ", 1)[1].split(";")[0] for check in checks if check.state is State.PARTIAL]


def test_an_exporter_that_tells_everything_is_detected() -> None:
    (check,) = seen(WHOLE)["dcgm-exporter"]
    assert (check.state, check.text) == (State.DETECTED, "detected at 1 target")


def test_a_part_that_is_missing_is_named_with_what_to_do() -> None:
    checks = seen(DCGM)["dcgm-exporter"]
    parts = ["profiling metrics", "holders of cards", "energy", "throttling", "memory", "memory errors", "transfers"]
    assert missing(checks) == parts
    assert "-f /etc/dcgm-exporter/dcp-metrics-included.csv" in checks[0].advice
    assert {check.status for check in checks} == {Status.NOTE}


def test_the_names_of_newer_versions_count_as_well() -> None:
    renamed = WHOLE.replace("DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_SM_UTIL_RATIO")
    assert missing(seen(renamed)["dcgm-exporter"]) == []


def test_label_allow_lists_of_kube_state_metrics() -> None:
    checks = seen(KSM)["kube-state-metrics"]
    assert missing(checks) == ["trimtab annotations", "nodes' labels"]
    assert "--metric-annotations-allowlist=pods=[trimtab/service-class" in checks[0].advice
    told = KSM + 'kube_pod_annotations{namespace="b",pod="a",annotation_trimtab_weight="2"} 1\n'
    told = told.replace('node="n2"', 'node="n2",label_nvidia_com_gpu_count="8"')
    assert missing(seen(told)["kube-state-metrics"]) == []
    empty = told.replace('annotation_trimtab_weight="2"', 'annotation_trimtab_weight=""')
    assert missing(seen(empty)["kube-state-metrics"]) == ["trimtab annotations"]


# Of each kind of exporter but the above: what it must say to be detected, and what is missing where it says the first
# line alone.
KINDS = {
    "nvidia_gpu_exporter": (
        ['nvidia_smi_power_draw_watts{uuid="1",pod="a"} 9', 'nvidia_smi_energy_joules_total{uuid="1"} 9'],
        ["energy"],
    ),
    "nvitop-exporter": (['gpu_power_usage_W{uuid="GPU-1",index="0",hostname="n"} 9'], ["holders of cards", "energy"]),
    "amd-device-metrics-exporter": (
        [
            'gpu_power_usage{gpu_uuid="1",gpu_id="0",pod="a"} 9',
            'gpu_gfx_activity{gpu_uuid="1",gpu_id="0"} 9',
            'gpu_used_vram{gpu_uuid="1",gpu_id="0"} 9',
            'gpu_energy_consumed{gpu_uuid="1",gpu_id="0"} 9',
        ],
        ["activity", "memory", "energy"],
    ),
    "hami-scheduler": (
        [
            'vGPUMemoryAllocated{deviceuuid="GPU-1",podname="a",podnamespace="b",containeridx="0"} 9',
            'vGPUCoreAllocated{deviceuuid="GPU-1",podname="a",podnamespace="b",containeridx="0"} 9',
        ],
        ["shares of compute"],
    ),
    "node_exporter": (
        [
            'node_cpu_seconds_total{cpu="0",mode="idle"} 9',
            "node_memory_MemTotal_bytes 9",
            'node_network_receive_bytes_total{device="eth0"} 9',
            'node_disk_read_bytes_total{device="sda"} 9',
        ],
        ["memory", "network", "disks"],
    ),
    "vllm": (
        [
            'vllm:e2e_request_latency_seconds_bucket{model_name="m",le="1"} 9',
            'vllm:num_requests_waiting{model_name="m"} 9',
        ],
        ["queue"],
    ),
    "triton": (
        [
            'nv_inference_request_summary_us{model="m",quantile="0.99"} 9',
            'nv_inference_pending_request_count{model="m"} 9',
        ],
        ["queue"],
    ),
    "tgi": (['tgi_request_duration_bucket{le="1"} 9', "tgi_queue_size 9"], ["queue"]),
    "sglang": (
        ['sglang:e2e_request_latency_seconds_bucket{le="1"} 9', 'sglang:num_queue_reqs{model_name="m"} 9'],
        ["queue"],
    ),
}


@pytest.mark.parametrize("exporter", KINDS)
def test_each_kind_is_detected_or_partial(exporter: str) -> None:
    lines, lacking = KINDS[exporter]
    assert missing(seen(lines[0])[exporter]) == lacking
    if len(lines) > 1:
        (check,) = seen("\n".join(lines))[exporter]
        assert (check.state, check.text) == (State.DETECTED, "detected at 1 target")


def test_hosts_are_not_seen_without_node_exporter() -> None:
    assert seen(DCGM)["hosts"][0].state is State.UNSEEN
    assert "hosts" not in seen(DCGM + KINDS["node_exporter"][0][0])


def test_hami_without_its_other_half() -> None:
    found = seen(HAMI + DCGM)
    (check,) = found["HAMi's scheduler"]
    assert (check.state, check.status) == (State.UNSEEN, Status.NOTE)
    assert "shares of compute that containers were granted are not told" in check.text
    assert "HAMi's vGPUmonitor" not in found
    assert "HAMi's scheduler" not in seen(DCGM)  # no HAMi at all


def test_without_any_card_it_is_a_problem() -> None:
    found = seen(KSM)
    assert found["cards"][0].status is Status.PROBLEM
    assert found["inference servers"][0].status is Status.NOTE


def test_the_table_speaks_of_exporters_and_fields_that_exist() -> None:
    fields = {e.exporter: {row.field for row in e.metric} | {"event", "*"} for e in builtin_exporters()}
    for aspect in families().aspect:
        assert set(aspect.fields) <= fields[aspect.exporter], aspect
    kinds = set(fields) | {"kubernetes", "slurm", "user"}
    for absent in families().absent:
        assert absent.exporters | absent.beside <= kinds


def test_the_whole_answer_is_golden(trimtab: Callable[..., Ran], exporters: Exporters) -> None:
    targets = [exporters.url(name) for name in ("dcgm", "whole", "kube", "hami")]
    configure(f"[[source]]\ntargets = {json.dumps(targets)}\n")
    ran = trimtab("doctor", "--now", "2026-01-05T12:00:30Z")
    text = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", ran.out)
    lines = text.splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("note exporter"))
    last = next(n for n, line in enumerate(lines) if line.startswith("BAD  store"))
    told = "\n".join(lines[first:last]) + "\n"
    if WRITE:
        GOLDEN.write_text(told, encoding="utf-8")
    assert told == GOLDEN.read_text(encoding="utf-8")
    document = json.loads(trimtab("doctor", "--json", "--now", "2026-01-05T12:00:30Z").out)
    states = {(check["family"], check["state"]) for check in document["checks"] if check["family"]}
    assert states == {
        ("dcgm-exporter", "partial"),
        ("hami-monitor", "detected"),
        ("kube-state-metrics", "partial"),
        ("HAMi's scheduler", "not seen from here"),
        ("inference servers", "not seen from here"),
        ("hosts", "not seen from here"),
    }


def test_a_kubernetes_source_stands_for_kube_state_metrics(
    trimtab: Callable[..., Ran], elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists = {path: [] for path in ("/api/v1/nodes", "/api/v1/resourcequotas")}
    with serving(Api(lists={**lists, "/api/v1/pods": [gpu_pod("p-0")]}, refused={"/api/v1/nodes": 403})) as api:
        configure(f'[[source]]\nkind = "kubernetes"\nurl = "{api.url}"\n')
        monkeypatch.setenv("TRIMTAB_SOURCE__0__BEARER_TOKEN", TOKEN)
        ran = trimtab("doctor", "--now", "2026-01-05T12:00:30Z")
    assert "partial: " in ran.out
    assert "nodes cannot be read: HTTP 403: this account may not list it" in ran.out
    assert "-> on Kubernetes grant the account what deploy/kubernetes/rbac.yaml lists" in ran.out
    assert "answers: 1 queue rows" in ran.out
    assert "not seen from here: kube-state-metrics" not in ran.out
    assert "not seen from here: cards" in ran.out
    assert TOKEN not in ran.out + ran.err


def test_cards_that_are_counted_and_not_shown_and_those_shown_twice_are_named(
    trimtab: Callable[..., Ran], exporters: Exporters, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = {"metadata": {"name": "n1"}, "status": {"capacity": {"nvidia.com/gpu": "4"}, "allocatable": {}}}
    lists: dict[str, list[Any]] = {"/api/v1/nodes": [node], "/api/v1/pods": [], "/api/v1/resourcequotas": []}
    exporters.texts["again"] = DCGM
    targets = json.dumps([exporters.url("dcgm"), exporters.url("again")])
    with serving(Api(lists=lists)) as api:
        configure(f'[[source]]\ntargets = {targets}\n[[source]]\nkind = "kubernetes"\nurl = "{api.url}"\n')
        monkeypatch.setenv("TRIMTAB_SOURCE__1__BEARER_TOKEN", TOKEN)
        ran = trimtab("doctor", "--now", "2026-01-05T12:00:30Z")
    assert "n1: the scheduler counts 4 cards, exporters show 1: 3 not observed, which stays in capacity" in ran.out
    assert "n1: GPU-1 is there twice: dcgm-exporter shows it at 2 targets" in ran.out
    assert "-> add an exporter on that node" in ran.out
