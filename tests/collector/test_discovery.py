"""Where targets come from: a watched file, DNS, Kubernetes; what fails changes nothing and is told."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest
import yaml

from collector.discovery import Discovery, Refreshed
from collector.errors import ConfigurationError
from collector.plugins import SourceContext
from collector.scrape import ScrapeSource
from collector.settings import DnsSettings, SourceSettings, TargetSettings

GROUPS: list[dict[str, Any]] = [
    {"targets": ["n1:9400", "n2:9400"], "labels": {"node": "", "rack": "r1", "__metrics_path__": "/m"}},
    {"targets": ["n3:9400"], "labels": {"node": "n3", "__scheme__": "https"}},
]
YAML = """
- targets: [n1:9400, n2:9400]
  labels: {node: '', rack: r1, __metrics_path__: /m}
- targets: [n3:9400]
  labels: {node: n3, __scheme__: https}
"""
TOML = """
targets = [{url = "http://n1:9400/m", labels = {rack = "r1"}}, {url = "http://n2:9400/m", labels = {rack = "r1"}},
  {url = "https://n3:9400/metrics", node = "n3"}]
"""


def urls(discovery: Discovery) -> list[str]:
    return sorted(target.url for target in discovery())


def renew(path: Path, text: str) -> None:
    """Replace a file as an editor does, so that it is seen whatever the clock's resolution."""
    beside = path.with_name("beside")
    beside.write_text(text)
    beside.replace(path)


@pytest.mark.parametrize(
    ("name", "text"), [("t.json", json.dumps(GROUPS)), ("t.yml", YAML), ("t.yaml", YAML), ("t.toml", TOML)]
)
def test_a_file_of_targets_reads_the_same_in_every_shape(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    static = TargetSettings(url="http://n0:9400/metrics")
    discovery = Discovery(SourceSettings(targets=(static,), targets_file=path))
    assert list(discovery()) == [
        static,
        TargetSettings(url="http://n1:9400/m", labels={"rack": "r1"}),
        TargetSettings(url="http://n2:9400/m", labels={"rack": "r1"}),
        TargetSettings(url="https://n3:9400/metrics", node="n3"),
    ]


def test_a_file_is_watched_and_a_broken_version_keeps_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "targets.json"
    path.write_text(json.dumps([{"targets": ["a:1"]}]))
    discovery = Discovery(SourceSettings(targets_file=path))
    assert urls(discovery) == ["http://a:1/metrics"]
    assert discovery.notices() == []
    renew(path, json.dumps([{"targets": ["a:1", "b:1"]}]))
    assert urls(discovery) == ["http://a:1/metrics", "http://b:1/metrics"]
    renew(path, '[{"targets": ["c:1"')
    assert urls(discovery) == ["http://a:1/metrics", "http://b:1/metrics"]
    ((code, severity, message),) = discovery.notices()
    assert (code, severity) == ("discovery_failed", "warning")
    assert "expected targets" in message
    assert "the 2 targets of the version before are kept" in message
    assert urls(discovery) == ["http://a:1/metrics", "http://b:1/metrics"]
    assert discovery.notices() == []  # said once
    path.unlink()
    assert len(urls(discovery)) == 2
    assert "No such file" in discovery.notices()[0][2]
    renew(path, "[]")
    assert urls(discovery) == []
    assert [code for code, *_ in discovery.notices()] == ["discovery_recovered"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.json", "{}"),
        ("t.json", '[{"targets": "a:1"}]'),
        ("t.json", '[{"labels": {}}]'),
        ("t.json", '[{"targets": ["http://a:1/m"]}]'),
        ("t.json", '[{"targets": [5]}]'),
        ("t.json", '[{"target": ["a:1"]}]'),
        ("t.json", '["a:1"]'),
        ("t.yml", "- {targets: [a"),
        ("t.yml", "a: !!python/object/apply:os.system ['true']"),
        ("t.toml", "targets = [{rul = 5}]"),
        ("t.toml", "targets = "),
    ],
)
def test_a_file_that_is_none_of_targets_is_refused_at_the_start(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigurationError, match=r"expected targets \(") as caught:
        ScrapeSource(SourceSettings(targets_file=tmp_path / name), SourceContext())
    assert "\n" not in str(caught.value)


class NameServer:
    """A DNS server on loopback; `records` holds (name, type) -> texts, what is missing does not exist."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], list[str]] = {}
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            wire, client = self._socket.recvfrom(4096)
            if wire == b"end":
                return
            asked = dns.message.from_wire(wire)
            question = asked.question[0]
            answer = dns.message.make_response(asked)
            answer.flags |= dns.flags.RA
            kind = dns.rdatatype.to_text(question.rdtype)
            texts = self.records.get((question.name.to_text(omit_final_dot=True), kind))
            if texts is None:
                answer.set_rcode(dns.rcode.NXDOMAIN)
            else:
                answer.answer.append(dns.rrset.from_text(question.name, 5, "IN", kind, *texts))
            self._socket.sendto(answer.to_wire(), client)

    def close(self) -> None:
        host, _, port = self.address.partition(":")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"end", (host, int(port)))
        self._thread.join()
        self._socket.close()


@pytest.fixture
def names() -> Iterator[NameServer]:
    server = NameServer()
    yield server
    server.close()


def test_addresses_and_services_in_dns_are_targets(names: NameServer) -> None:
    names.records["gpus.test", "A"] = ["10.0.0.2", "10.0.0.1"]
    names.records["gpus.test", "AAAA"] = ["fd00::1"]
    names.records["_m._tcp.gpus.test", "SRV"] = ["0 1 9401 n1.test.", "0 1 9402 n2.test."]
    tables = (
        DnsSettings(name="gpus.test", server=names.address, labels={"rack": "r"}),
        DnsSettings(name="gpus.test", type="AAAA", server=names.address, port=9394, path="/m", scheme="https"),
        DnsSettings(name="_m._tcp.gpus.test", type="SRV", server=names.address),
    )
    discovery = Discovery(SourceSettings(dns=tables))
    found = {target.url: target.labels for target in discovery()}
    assert found == {
        "http://10.0.0.1:9400/metrics": {"rack": "r"},
        "http://10.0.0.2:9400/metrics": {"rack": "r"},
        "https://[fd00::1]:9394/m": {},
        "http://n1.test:9401/metrics": {},
        "http://n2.test:9402/metrics": {},
    }
    discovery.close()


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until what a thread does is done."""
    limit = threading.Event()
    for _ in range(1000):
        if condition():
            return
        limit.wait(0.01)
    raise AssertionError("it never happened")


def test_a_name_that_is_gone_keeps_its_targets_and_is_told(names: NameServer) -> None:
    names.records["gpus.test", "A"] = ["10.0.0.1"]
    table = DnsSettings(name="gpus.test", server=names.address, refresh_seconds=0.001)
    discovery = Discovery(SourceSettings(dns=(table,)))
    assert urls(discovery) == ["http://10.0.0.1:9400/metrics"]
    del names.records["gpus.test", "A"]
    told: list[str] = []

    def said(code: str) -> bool:
        assert urls(discovery) == ["http://10.0.0.1:9400/metrics"]
        told.extend(f"{one}: {text}" for one, _, text in discovery.notices())
        return any(text.startswith(code) for text in told)

    eventually(lambda: said("discovery_failed"))
    assert told == [
        "discovery_failed: DNS gpus.test: expected A records, got NXDOMAIN; the 1 targets found before are kept"
    ]
    names.records["gpus.test", "A"] = ["10.0.0.1"]
    eventually(lambda: said("discovery_recovered"))
    discovery.close()


def pod(name: str, ip: str, **changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "metadata": {"name": name, "namespace": "gpu"},
        "spec": {
            "nodeName": f"node-{name}",
            "containers": [
                {"name": "side"},
                {"name": "exporter", "ports": [{"name": "metrics", "containerPort": 9400}]},
            ],
        },
        "status": {"phase": "Running", "podIP": ip},
    }
    for key, value in changes.items():
        made[key] = {**made[key], **value}
    return made


@contextmanager
def api_server(pods: list[dict[str, Any]], denied: threading.Event, asked: list[str]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(403 if denied.is_set() else 200)
            self.end_headers()
            refused = {"kind": "Status", "message": "pods is forbidden"}
            self.wfile.write(json.dumps(refused if denied.is_set() else {"items": pods, "metadata": {}}).encode())

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def kubeconfig(path: Path, url: str) -> Path:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(config))
    return path


def test_running_pods_that_a_selector_matches_are_targets_on_their_nodes(tmp_path: Path) -> None:
    pods = [
        pod("a", "10.0.0.1"),
        pod("b", "fd00::2"),
        pod("pending", "", status={"phase": "Pending"}),
        pod("done", "10.0.0.3", status={"phase": "Succeeded"}),
        pod("leaving", "10.0.0.4", metadata={"deletionTimestamp": "2026-01-05T00:00:00Z"}),
        pod("portless", "10.0.0.5", spec={"containers": [{"name": "x"}]}),
    ]
    denied, asked = threading.Event(), list[str]()
    with api_server(pods, denied, asked) as url:
        table = {
            "namespace": "gpu",
            "kubeconfig": str(kubeconfig(tmp_path / "k", url)),
            "refresh_seconds": 0.001,
        }
        discovery = Discovery(SourceSettings.model_validate({"kubernetes": table}))
        expected = [
            TargetSettings(url="http://10.0.0.1:9400/metrics", node="node-a"),
            TargetSettings(url="http://[fd00::2]:9400/metrics", node="node-b"),
        ]
        assert list(discovery()) == expected
        assert urlsplit(asked[0]).path == "/api/v1/namespaces/gpu/pods"  # a role in the namespace is enough
        assert parse_qs(urlsplit(asked[0]).query)["labelSelector"] == ["app.kubernetes.io/name=dcgm-exporter"]
        denied.set()
        told: list[str] = []

        def said() -> bool:
            assert list(discovery()) == expected
            told.extend(text for _, _, text in discovery.notices())
            return bool(told)

        eventually(said)
        assert "HTTP 403" in told[0]
        discovery.close()


def test_pods_that_are_servers_themselves_are_named_in_their_samples(tmp_path: Path) -> None:
    with api_server([pod("a", "10.0.0.1")], threading.Event(), []) as url:
        table = {"kubeconfig": str(kubeconfig(tmp_path / "k", url)), "workloads": True, "port": 9400, "selector": ""}
        discovery = Discovery(SourceSettings.model_validate({"kubernetes": table}))
        (target,) = discovery()
        assert target.labels == {"namespace": "gpu", "pod": "a", "container": "exporter"}
        discovery.close()


def test_outside_of_kubernetes_without_a_kubeconfig_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigurationError, match="service account"):
        Discovery(SourceSettings.model_validate({"kubernetes": {}}))


def test_the_role_that_is_shipped_grants_to_list_pods_and_no_more() -> None:
    path = Path(__file__).parents[2] / "deploy" / "kubernetes" / "discovery.yaml"
    rules = [rule for document in yaml.safe_load_all(path.read_text()) for rule in document.get("rules", [])]
    assert rules == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]


def test_whatever_a_look_up_ends_with_is_told_and_it_looks_again() -> None:
    found = (TargetSettings(url="http://n1:9400/metrics"),)
    looks: Iterator[Callable[[], Any]] = iter([lambda: found, lambda: {}["port"], lambda: found * 2])

    def pods() -> Any:
        return next(looks)()

    refreshed = Refreshed("pods", pods, refresh_seconds=0.0)

    def look() -> int:
        refreshed.targets()
        while refreshed._future is not None:
            wait([refreshed._future])
            refreshed._take(refreshed._future, 0.0)
        return len(refreshed._targets)

    assert look() == 1
    assert look() == 1
    assert refreshed.problem == "unexpected KeyError; the 1 targets found before are kept"
    assert look() == 2
    assert refreshed.problem == ""
    refreshed.close()
