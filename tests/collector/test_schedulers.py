"""Kueue, KAI, Volcano and pods of the Kubernetes API, over a server of ours that answers recorded shapes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from collector.batch import Batch
from collector.conformance import SourceConformance
from collector.errors import ConfigurationError
from collector.plugins import SourceContext
from collector.schedulers.kubernetes import LISTS, KubernetesSource
from collector.schedulers.objects import instant, quantity
from collector.settings import SourceSettings, TenantSettings
from collector.window import Window
from tests.collector.kube_api import (
    TOKEN,
    Api,
    cluster_queue,
    gpu_pod,
    kueue_workload,
    local_queue,
    serving,
)

START = datetime(2026, 1, 5, 1, tzinfo=UTC)
KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
PODS, NODES, QUOTAS = "/api/v1/pods", "/api/v1/nodes", "/api/v1/resourcequotas"
KAI = "/apis/scheduling.run.ai/v2/queues"
VOLCANO = "/apis/scheduling.volcano.sh/v1beta1"


@pytest.fixture
def api() -> Iterator[Api]:
    with serving(Api(lists={PODS: [], NODES: [], QUOTAS: []})) as running:
        yield running


class Polled:
    """A source over the server, minute after minute."""

    def __init__(self, api: Api, *, timeout: float = 10.0, **context: Any) -> None:
        settings = SourceSettings(kind="kubernetes", url=api.url, bearer_token=TOKEN, timeout_seconds=timeout)
        self.source = KubernetesSource(settings, SourceContext(cluster="test", **context))
        self.now = START - timedelta(minutes=1)
        self.batch = Batch()

    def poll(self, minutes: int = 1) -> Batch:
        self.now += timedelta(minutes=minutes)
        self.batch = self.source.poll(self.now)
        return self.batch

    def queue(self, pool: str, tenant: str) -> dict[str, float]:
        rows = [row for row in self.queues() if (row["pool"], row["tenant"]) == (pool, tenant)]
        assert len(rows) == 1, self.queues()
        return rows[0]

    def queues(self) -> list[dict[str, Any]]:
        table = self.batch.rows.get("queue")
        return [] if table is None else table.to_pylist()

    def facts(self, name: str) -> dict[str, tuple[str | None, datetime]]:
        return {f.subject.object: (f.value, f.at) for f in self.batch.facts if f.name == name and f.value is not None}

    def ended(self, name: str) -> dict[str, datetime]:
        return {f.subject.object: f.at for f in self.batch.facts if f.name == name and f.value is None}

    def events(self) -> list[tuple[str, str]]:
        return [(event.code, event.message) for event in self.batch.events]


@pytest.fixture
def polled(api: Api) -> Iterator[Polled]:
    polled = Polled(api)
    yield polled
    polled.source.close()


@pytest.mark.parametrize(
    ("text", "value"),
    [("4", 4.0), ("500m", 0.5), ("2Gi", 2.0**31), ("1e3", 1000.0), ("1.5", 1.5), (8, 8.0), ("128974848", 128974848.0)],
)
def test_quantities(text: object, value: float) -> None:
    assert quantity(text) == value


@pytest.mark.parametrize("text", ["", "four", "1 Gi", None, True, "--1", "nan", {"x": 1}])
def test_what_is_no_quantity_is_absent(text: object) -> None:
    assert math.isnan(quantity(text))


def test_instants() -> None:
    assert instant("2026-01-05T01:00:00Z") == START.timestamp()
    assert instant("2026-01-05T01:00:00") is None  # without a zone nobody knows when
    assert instant("soon") is None
    assert instant(7) is None


def test_pods_that_wait_and_run_are_rows_and_facts(api: Api, polled: Polled) -> None:
    api.lists[PODS] = [
        gpu_pod("waits-0", cards=2, created="2026-01-05T00:50:00Z"),
        gpu_pod("runs-0", cards=4, node="n1", created="2026-01-05T00:00:00Z"),
        gpu_pod("web-0", cards=0, node="n1"),  # no card: none of our business
    ]
    polled.poll()
    row = polled.queue("default", "team-a")
    assert (row["pending_count"], row["pending_gpu_count"], row["allocated_gpu_count"]) == (1, 2, 4)
    assert row["oldest_wait_seconds"] == 600
    facts = polled.facts("request")
    assert set(facts) == {"team-a/waits-0", "team-a/runs-0"}
    asked = json.loads(facts["team-a/waits-0"][0] or "")
    assert (asked["cards"], asked["share"], asked["tenant"], asked["pool"]) == (2, 1, "team-a", "default")
    assert facts["team-a/waits-0"][1] == datetime(2026, 1, 5, 0, 50, tzinfo=UTC)
    assert set(polled.facts("started")) == {"team-a/runs-0"}
    # Bound at 01:00:30: it had waited 10 minutes and a half.
    api.lists[PODS][0] = gpu_pod(
        "waits-0", cards=2, created="2026-01-05T00:50:00Z", node="n2", started="2026-01-05T01:00:30Z"
    )
    polled.poll()
    row = polled.queue("default", "team-a")
    assert (row["admitted_count"], row["wait_p50_seconds"], row["wait_p95_seconds"]) == (1, 630, 630)
    assert (row["pending_count"], row["allocated_gpu_count"]) == (0, 6)
    del api.lists[PODS][0]
    polled.poll()
    assert polled.ended("request") == {"team-a/waits-0": polled.now}


def test_lists_come_in_pages(api: Api, polled: Polled) -> None:
    api.page = 3
    api.lists[PODS] = [gpu_pod(f"p-{n}") for n in range(10)]
    polled.poll()
    assert polled.queue("default", "team-a")["pending_count"] == 10
    assert sum(path.startswith(f"{PODS}?") for path in api.asked) == 4
    assert "limit=500" in api.asked[0]


def test_a_list_whose_pages_expire_is_begun_anew(api: Api, polled: Polled) -> None:
    api.page = 4
    api.lists[PODS] = [gpu_pod(f"p-{n}") for n in range(10)]
    api.expiring[PODS] = 2
    polled.poll()
    assert polled.queue("default", "team-a")["pending_count"] == 10
    assert polled.events() == []
    api.expiring[PODS] = 99
    polled.poll()
    code, message = polled.events()[0]
    assert code == "source_denied"
    assert "pods cannot be read: its pages expire faster than they are read" in message


def test_a_right_that_is_missing_costs_only_its_part(api: Api, polled: Polled) -> None:
    api.lists |= {f"{KUEUE}/clusterqueues": [cluster_queue()], f"{KUEUE}/localqueues": [local_queue(pending=3)]}
    api.refused = {f"{KUEUE}/workloads": 403, PODS: 403}
    polled.poll()
    assert [message.split(": ", 1)[1] for code, message in polled.events() if code == "source_denied"] == [
        "pods cannot be read: HTTP 403: this account may not list it",
        "Kueue workloads cannot be read: HTTP 403: this account may not list it",
    ]
    row = polled.queue("research", "team-a")
    assert (row["quota_gpu_count"], row["allocated_gpu_count"], row["pending_count"]) == (8, 4, 3)
    # How many cards the three ask for, and since when, only the workloads say.
    assert math.isnan(row["pending_gpu_count"])
    assert math.isnan(row["oldest_wait_seconds"])
    polled.poll()
    assert polled.events() == []  # said once
    api.refused = {}
    api.lists[f"{KUEUE}/workloads"] = [kueue_workload("w", cards=2)]
    polled.poll()
    assert {code for code, _ in polled.events()} == {"source_granted"}
    assert polled.queue("research", "team-a")["pending_gpu_count"] == 2


def test_a_token_that_is_not_accepted_is_a_target_that_is_down(api: Api) -> None:
    settings = SourceSettings(kind="kubernetes", url=api.url, bearer_token=f"not-{TOKEN}")
    source = KubernetesSource(settings, SourceContext(cluster="test"))
    batch = source.poll(START)
    assert [(e.code, e.message) for e in batch.events] == [
        ("target_down", f"{api.url}: HTTP 401: the token is not accepted")
    ]
    assert TOKEN not in str(batch)
    source.close()


def test_silence_is_waited_for_as_long_as_configured(api: Api) -> None:
    polled = Polled(api, timeout=0.2)
    api.silent.set()
    polled.poll()
    assert polled.events() == [("target_down", f"{api.url}: expected an answer, got no answer in time")]
    api.silent.clear()
    polled.poll()
    assert [code for code, _ in polled.events()] == ["target_up"]
    polled.source.close()


@pytest.mark.parametrize("body", [b"<html>", b'{"items": [1, null, {"metadata": 3}]}', b"[]", b'{"items": {}}'])
def test_nonsense_is_no_crash(api: Api, polled: Polled, body: bytes) -> None:
    for paths in LISTS.values():
        api.bodies[paths[0]] = body
    polled.poll()
    assert polled.queues() == []
    if body.startswith(b"<"):
        assert polled.events()[0][0] == "target_down"
        assert "expected JSON" in polled.events()[0][1]


def test_kueue_workloads_wait_are_granted_and_hand_over_to_pods(api: Api, polled: Polled) -> None:
    api.lists |= {
        f"{KUEUE}/clusterqueues": [cluster_queue(quota="8", reserved="0", pending=1)],
        f"{KUEUE}/localqueues": [local_queue(reserved="0")],
        f"{KUEUE}/workloads": [kueue_workload("job-train-1", pods=2, cards=4, created="2026-01-05T00:30:00Z")],
    }
    polled.poll()
    row = polled.queue("research", "team-a")
    assert (row["quota_gpu_count"], row["allocated_gpu_count"]) == (8, 0)
    assert (row["pending_count"], row["pending_gpu_count"], row["oldest_wait_seconds"]) == (1, 8, 1800)
    value, since = polled.facts("request")["team-a/job-train-1"]
    asked = json.loads(value or "")
    assert since == datetime(2026, 1, 5, 0, 30, tzinfo=UTC)
    assert (asked["cards"], asked["pods"], asked["pool"], asked["workload"]) == (4, 2, "research", "train")
    assert polled.facts("started") == {}

    api.lists[f"{KUEUE}/workloads"] = [
        kueue_workload("job-train-1", pods=2, cards=4, created="2026-01-05T00:30:00Z", admitted="2026-01-05T01:00:30Z")
    ]
    api.lists[f"{KUEUE}/localqueues"] = [local_queue(reserved="8", pending=0)]
    api.lists[PODS] = [
        gpu_pod(
            f"train-{n}",
            cards=4,
            node="n1",
            created="2026-01-05T01:00:31Z",
            owner=("Job", "train"),
            labels={"kueue.x-k8s.io/queue-name": "main"},
        )
        for n in range(2)
    ]
    polled.poll()
    row = polled.queue("research", "team-a")
    assert (row["allocated_gpu_count"], row["pending_count"], row["pending_gpu_count"]) == (8, 0, 0)
    # One wait, the workload's, from its submission; its pods came later and waited for nothing.
    assert (row["admitted_count"], row["wait_p50_seconds"]) == (1, 1830)
    granted = datetime(2026, 1, 5, 1, 0, 30, tzinfo=UTC)
    assert polled.facts("started")["team-a/job-train-1"][1] == granted
    assert polled.ended("request") == {"team-a/job-train-1": granted + timedelta(milliseconds=1)}
    asked = json.loads(polled.facts("request")["team-a/train-0"][0] or "")
    assert (asked["queued_as"], asked["pool"]) == ("team-a/job-train-1", "research")


def test_kueue_shapes_that_ask_for_nothing(api: Api, polled: Polled) -> None:
    api.lists |= {
        f"{KUEUE}/clusterqueues": [],
        f"{KUEUE}/localqueues": [local_queue()],
        f"{KUEUE}/workloads": [
            kueue_workload("done", finished=True, admitted="2026-01-05T00:10:00Z"),
            kueue_workload("gated", owner=("Pod", "gated-0")),  # the pod asks for itself
            kueue_workload("cpu", cards=0),
            kueue_workload("again", cards=1, admitted="", evicted="2026-01-05T00:40:00Z"),
        ],
    }
    polled.poll()
    facts = polled.facts("request")
    assert set(facts) == {"team-a/again"}
    # Evicted, it waits anew, from then on.
    assert facts["team-a/again"][1] == datetime(2026, 1, 5, 0, 40, tzinfo=UTC)


def test_kueue_of_an_older_version(api: Api, polled: Polled) -> None:
    old = "/apis/kueue.x-k8s.io/v1beta1"
    api.lists |= {
        f"{old}/clusterqueues": [cluster_queue()],
        f"{old}/localqueues": [local_queue()],
        f"{old}/workloads": [kueue_workload("w", cards=3)],
    }
    polled.poll()
    assert polled.queue("research", "team-a")["pending_gpu_count"] == 3


def test_a_queue_that_several_tenants_share_is_nobody_s_own(api: Api) -> None:
    api.lists |= {
        f"{KUEUE}/clusterqueues": [cluster_queue(quota="16", reserved="6", pending=0)],
        f"{KUEUE}/localqueues": [
            local_queue("team-a", reserved="4", pending=0),
            local_queue("team-b", reserved="2", pending=0),
        ],
        f"{KUEUE}/workloads": [],
    }
    polled = Polled(api, tenants=(TenantSettings(name="alpha", namespaces=("team-a",)),))
    polled.poll()
    assert [(row["tenant"], row["quota_gpu_count"], row["allocated_gpu_count"]) for row in polled.queues()] == [
        ("alpha", pytest.approx(math.nan, nan_ok=True), 4),
        ("none", 16, 0),
        ("team-b", pytest.approx(math.nan, nan_ok=True), 2),
    ]
    polled.source.close()


def kai_queue(name: str, parent: str = "", **gpu: float) -> dict[str, Any]:
    """Return a queue of KAI."""
    spec: dict[str, Any] = {"resources": {"gpu": gpu}}
    if parent:
        spec["parentQueue"] = parent
    return {"metadata": {"name": name}, "spec": spec, "status": {}}


def test_kai_queues_tell_quota_and_use_and_pods_tell_who_waits(api: Api, polled: Polled) -> None:
    leaf = kai_queue("research", "department", quota=16, limit=32)
    leaf["status"] = {"allocated": {"nvidia.com/gpu": "12"}, "requested": {"nvidia.com/gpu": "20"}}
    api.lists[KAI] = [kai_queue("department", quota=64), leaf, kai_queue("idle", "department", quota=-1)]
    api.lists[PODS] = [
        gpu_pod("whole-0", "lab", cards=8, labels={"kai.scheduler/queue": "research"}),
        gpu_pod(
            "half-0",
            "lab",
            cards=0,
            labels={"kai.scheduler/queue": "research"},
            annotations={"gpu-fraction": "0.5"},
        ),
    ]
    polled.poll()
    row = polled.queue("research", "lab")
    assert (row["quota_gpu_count"], row["allocated_gpu_count"]) == (16, 12)
    assert (row["pending_count"], row["pending_gpu_count"]) == (2, 8.5)
    # A parent grants through its children; a queue that nobody uses bears its own name; -1 is no limit.
    assert {(r["pool"], r["tenant"]): r["quota_gpu_count"] for r in polled.queues()} == {
        ("research", "lab"): 16,
        ("idle", "idle"): -1,
    }
    api.lists[PODS] = []
    polled.poll()
    assert polled.queue("research", "lab")["pending_gpu_count"] == 8  # requested beyond what it holds


def test_volcano_groups_ask_until_their_pods_are_made(api: Api, polled: Polled) -> None:
    group = {
        "metadata": {
            "name": "mpi-1",
            "namespace": "team-b",
            "creationTimestamp": "2026-01-05T00:45:00Z",
            "ownerReferences": [{"kind": "Job", "name": "mpi"}],
        },
        "spec": {"minMember": 2, "queue": "hpc", "minResources": {"nvidia.com/gpu": "16", "cpu": "64"}},
        "status": {"phase": "Pending"},
    }
    queue = {
        "metadata": {"name": "hpc"},
        "spec": {"weight": 1, "deserved": {"nvidia.com/gpu": "24"}, "capability": {"nvidia.com/gpu": "32"}},
        "status": {"allocated": {"nvidia.com/gpu": "0"}, "pending": 1, "state": "Open"},
    }
    api.lists |= {f"{VOLCANO}/queues": [{"metadata": {"name": "root"}}, queue], f"{VOLCANO}/podgroups": [group]}
    polled.poll()
    row = polled.queue("hpc", "team-b")
    assert (row["quota_gpu_count"], row["pending_gpu_count"], row["oldest_wait_seconds"]) == (24, 16, 900)
    asked = json.loads(polled.facts("request")["team-b/mpi-1"][0] or "")
    assert (asked["cards"], asked["pods"], asked["cpu"]) == (8, 2, 32)
    api.lists[PODS] = [
        gpu_pod(
            f"mpi-{n}",
            "team-b",
            cards=8,
            labels={"volcano.sh/queue-name": "hpc"},
            annotations={"scheduling.k8s.io/group-name": "mpi-1"},
        )
        for n in range(2)
    ]
    polled.poll()
    row = polled.queue("hpc", "team-b")
    assert (row["pending_count"], row["pending_gpu_count"]) == (2, 16)
    assert set(polled.ended("request")) == {"team-b/mpi-1"}


def test_what_cannot_be_is_rejected_with_its_place(api: Api, polled: Polled) -> None:
    api.lists |= {
        KAI: [kai_queue("a", quota=-7), kai_queue("b", quota=8)],
        f"{KUEUE}/clusterqueues": [cluster_queue("huge", quota="1e18", reserved="0", pending=0)],
    }
    polled.poll()
    assert {row["pool"]: row["quota_gpu_count"] for row in polled.queues()} == {
        "a": pytest.approx(math.nan, nan_ok=True),
        "b": 8,
        "huge": pytest.approx(math.nan, nan_ok=True),
    }
    assert sorted((r.subject.object, r.field, r.reason) for r in polled.batch.rejects) == [
        ("a/a", "quota_gpu_count", "out_of_range"),
        ("huge/huge", "quota_gpu_count", "out_of_range"),
    ]


def test_namespace_quotas_and_nodes(api: Api, polled: Polled) -> None:
    api.lists[QUOTAS] = [
        {"metadata": {"name": n, "namespace": "team-a"}, "status": {"hard": {"requests.nvidia.com/gpu": hard}}}
        for n, hard in (("wide", "12"), ("tight", "6"))
    ]
    api.lists[NODES] = [
        {
            "metadata": {"name": "n1", "labels": {"nvidia.com/gpu.sharing-strategy": "mps"}},
            "status": {
                "allocatable": {"cpu": "63", "memory": "515Gi", "nvidia.com/gpu": "7"},
                "capacity": {"cpu": "64", "memory": "528Gi", "nvidia.com/gpu": "8"},
            },
        }
    ]
    polled.poll()
    assert polled.queue("default", "team-a")["quota_gpu_count"] == 6
    told = {f.name: f.value for f in polled.batch.facts if f.subject.node == "n1"}
    assert told["allocatable_cards"] == "7"
    assert told["allocatable_memory_bytes"] == f"{515 * 2**30}"
    assert told["sharing_strategy"] == "mps"


def test_units_of_a_shared_card_are_no_cards(api: Api, polled: Polled) -> None:
    labels = {"nvidia.com/gpu.sharing-strategy": "mps", "nvidia.com/gpu.replicas": "4"}
    status = {"allocatable": {"nvidia.com/gpu.shared": "8"}}
    api.lists[NODES] = [{"metadata": {"name": "n1", "labels": labels}, "status": status}]
    polled.poll()
    told = {f.name: f.value for f in polled.batch.facts if f.subject.node == "n1"}
    assert (told["allocatable_cards"], told["card_replicas"]) == ("2", "4")


def test_out_of_memory_of_a_container_is_an_event(api: Api, polled: Polled) -> None:
    pod = gpu_pod("t-0", node="n1")
    pod["status"]["containerStatuses"] = [
        {"name": "main", "lastState": {"terminated": {"reason": "OOMKilled", "finishedAt": "2026-01-05T00:59:00Z"}}}
    ]
    api.lists[PODS] = [pod]
    polled.poll()
    assert [event.code for event in polled.batch.events] == ["oom"]


def test_a_pod_that_ended_ends_its_request_when_it_did(api: Api, polled: Polled) -> None:
    api.lists[PODS] = [gpu_pod("t-0", node="n1")]
    polled.poll()
    pod = gpu_pod("t-0", node="n1", phase="Succeeded")
    pod["status"]["containerStatuses"] = [
        {"name": "main", "state": {"terminated": {"reason": "Completed", "finishedAt": "2026-01-05T01:00:40Z"}}}
    ]
    api.lists[PODS] = [pod]
    polled.poll()
    assert polled.ended("request") == {"team-a/t-0": datetime(2026, 1, 5, 1, 0, 40, tzinfo=UTC)}


def test_nothing_but_lists_is_asked_and_the_manifest_grants_them_all(api: Api, polled: Polled) -> None:
    polled.poll()
    asked = {path.partition("?")[0] for path in api.asked}
    assert asked == {path for paths in LISTS.values() for path in paths}
    manifest = Path(__file__).parents[2] / "deploy" / "kubernetes" / "rbac.yaml"
    roles = [part for part in yaml.safe_load_all(manifest.read_text()) if part["kind"] == "ClusterRole"]
    rules = roles[0]["rules"]
    assert {verb for rule in rules for verb in rule["verbs"]} <= {"list", "watch"}
    granted = {(group, kind) for rule in rules for group in rule["apiGroups"] for kind in rule["resources"]}
    wanted = set()
    for path in asked:
        parts = path.strip("/").split("/")
        wanted.add(("" if parts[0] == "api" else parts[1], parts[-1]))
    assert wanted <= granted


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kubconfig": "x"}, "options.kubconfig"),
        ({"kubeconfig": "/nowhere/config"}, "expected `url`, `options.kubeconfig` or a pod"),
        ({"ca_file": "/nowhere/ca.crt"}, "options.ca_file: expected a file of certificates"),
        ({}, "expected `url`, `options.kubeconfig` or a pod with a service account"),
    ],
)
def test_configuration_that_names_no_server(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said.replace("`", ".")):
        KubernetesSource(SourceSettings(kind="kubernetes", options=options), SourceContext())


@pytest.mark.parametrize(
    "login",
    [{"bearer_token_file": "token"}, {"username": "me"}, {"cert_file": "me.pem"}],
    ids=lambda one: next(iter(one)),
)
def test_a_log_in_that_would_have_no_effect_is_refused(login: dict[str, Any]) -> None:
    settings = SourceSettings(kind="kubernetes", url="http://127.0.0.1:1", **login)
    with pytest.raises(ConfigurationError, match=next(iter(login))):
        KubernetesSource(settings, SourceContext())


def test_a_kubeconfig_names_server_and_token(api: Api, tmp_path: Path) -> None:
    api.lists[PODS] = [gpu_pod("p-0")]
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "other",
        "clusters": [{"name": "c", "cluster": {"server": api.url}}],
        "users": [{"name": "u", "user": {"token": TOKEN}}],
        "contexts": [
            {"name": "other", "context": {"cluster": "c", "user": "nobody"}},
            {"name": "ours", "context": {"cluster": "c", "user": "u"}},
        ],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    settings = SourceSettings(kind="kubernetes", options={"kubeconfig": str(path), "context": "ours"})
    source = KubernetesSource(settings, SourceContext(cluster="test"))
    assert source.describe().targets == (api.url,)
    assert source.poll(START).rows["queue"].num_rows == 1
    source.close()


class TestKubernetesSource(SourceConformance):
    """The laws of every source."""

    @pytest.fixture
    def source(self, api: Api, polled: Polled) -> KubernetesSource:
        api.lists[PODS] = [gpu_pod("p-0", created="2026-01-05T00:30:00Z"), gpu_pod("q-0", "team-b", node="n1")]
        api.lists[KAI] = [kai_queue("research", quota=4)]
        return polled.source

    @pytest.fixture
    def now(self) -> datetime:
        return START + timedelta(seconds=61)

    @pytest.fixture
    def past(self) -> Window:
        return Window(START, START + timedelta(hours=1))

    @pytest.fixture
    def secrets(self) -> tuple[str, ...]:
        return (TOKEN,)
