"""The real servers themselves: each starts, does the one thing that it is there for, and is gone afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import requests

from tests import servers
from tests.conftest import ROOT, wanted


def test_influxdb_2_takes_a_line_and_gives_it_back(influxdb2: servers.InfluxServer) -> None:
    _write_and_read(influxdb2)


def test_influxdb_1_takes_a_line_and_gives_it_back(influxdb1: servers.InfluxServer) -> None:
    _write_and_read(influxdb1)


def _write_and_read(server: servers.InfluxServer) -> None:
    headers = {"Authorization": f"Token {server.token}"}
    where = {"org": server.org, "bucket": server.bucket, "precision": "s"}
    written = requests.post(f"{server.url}/api/v2/write", params=where, headers=headers, data="m f=7 1", timeout=10)
    assert written.status_code == 204, written.text
    flux = {"query": f'from(bucket: "{server.bucket}") |> range(start: 0)', "type": "flux"}
    read = requests.post(
        f"{server.url}/api/v2/query", params={"org": server.org}, headers=headers, json=flux, timeout=10
    )
    assert read.status_code == 200, read.text
    (row,) = (line.split(",") for line in read.text.splitlines() if line.endswith(",m"))
    assert "7" in row


@pytest.mark.parametrize("version", get_args(servers.PrometheusVersion))
def test_prometheus_scrapes_its_targets(version: servers.PrometheusVersion, tmp_path: Path) -> None:
    port = servers.free_port()
    own = f"http://127.0.0.1:{port}/metrics"
    with wanted(servers.prometheus(tmp_path, version, [own], 0.2, port=port)) as server:
        build = requests.get(f"{server.url}/api/v1/status/buildinfo", timeout=10).json()["data"]["version"]
        assert build.startswith(version)
        servers.await_true(lambda: _up(server.url) == {"job-0": "1"}, "the target is up")
        assert server.process.cpu_seconds() > 0
        assert server.process.peak_bytes() > 10_000_000
    with pytest.raises(requests.ConnectionError):
        requests.get(f"{server.url}/-/ready", timeout=10)


def _up(url: str) -> dict[str, str]:
    answer = requests.get(f"{url}/api/v1/query", params={"query": "up"}, timeout=10).json()
    return {one["metric"]["job"]: one["value"][1] for one in answer["data"]["result"]}


def test_victoriametrics_takes_line_protocol(victoriametrics: servers.VictoriaServer) -> None:
    url = victoriametrics.url
    written = requests.post(f"{url}/write", params={"precision": "s"}, data="m,gpu=a f=7 1700000000", timeout=10)
    assert written.status_code == 204, written.text
    requests.get(f"{url}/internal/force_flush", timeout=10)
    found = requests.get(f"{url}/api/v1/export", params={"match[]": "m_f"}, timeout=10).json()
    assert (found["metric"]["gpu"], found["values"], found["timestamps"]) == ("a", [7], [1_700_000_000_000])


def test_an_influxdb_goes_on_with_the_data_of_an_earlier_run(tmp_path: Path) -> None:
    data = tmp_path / "kept"
    with wanted(servers.influxdb2(tmp_path, data=data)) as server:
        _write_and_read(server)
    with wanted(servers.influxdb2(tmp_path, data=data)) as server:
        _write_and_read(server)  # the same point again: still one row


def test_a_server_that_ends_at_once_says_why(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('no such flag'); raise SystemExit(3)"]
    with (
        pytest.raises(servers.ServerFailed, match=r"ended with 3 instead of serving:\nno such flag"),
        servers.running(command, tmp_path / "log", lambda: False),
    ):
        pytest.fail("it never served")


def test_the_process_ends_with_the_block_even_when_the_test_fails(tmp_path: Path) -> None:
    waits = [sys.executable, "-c", "import signal; signal.pause()"]
    pids = []

    def fail_inside() -> None:
        with servers.running(waits, tmp_path / "log", lambda: True) as process:
            pids.append(process.pid)
            os.kill(process.pid, 0)
            raise ValueError("the test's own")

    with pytest.raises(ValueError, match="the test's own"):
        fail_inside()
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def script(arguments: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [str(ROOT / ".ci" / "servers"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)  # noqa: S603


@pytest.fixture
def no_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRIMTAB_SERVERS", str(tmp_path / "cache"))
    return tmp_path


def test_a_missing_server_is_skipped_by_name(no_servers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRIMTAB_REQUIRE_SERVERS", raising=False)
    with (
        pytest.raises(pytest.skip.Exception, match=r"needs the server influxd-2\.8\.0: run `make servers`"),
        wanted(servers.influxdb2(no_servers)),
    ):
        pytest.fail("it is not there")


def test_a_missing_server_fails_where_servers_are_required(no_servers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB_REQUIRE_SERVERS", "1")
    with (
        pytest.raises(pytest.fail.Exception, match=r"TRIMTAB_REQUIRE_SERVERS=1.*prometheus-3\.16\.0"),
        wanted(servers.prometheus(no_servers)),
    ):
        pytest.fail("it is not there")


def test_the_script_and_the_fixtures_agree_on_names_and_places(no_servers: Path) -> None:
    names = [servers.INFLUXDB_1, servers.INFLUXDB_2, *servers.PROMETHEUS.values(), servers.VICTORIA_METRICS]
    for name in names[1:]:
        path = servers.cache_folder() / name / name.rpartition("-")[0]
        path.parent.mkdir(parents=True)
        path.write_text("")
        path.chmod(0o755)
        assert servers.server_binary(name) == path
    listed = script(["--list"], dict(os.environ))
    assert listed.returncode == 1
    assert sorted(listed.stdout.splitlines()) == sorted(
        [f"missing: {names[0]}", *(str(servers.server_binary(name)) for name in names[1:])]
    )


@pytest.mark.parametrize(("tool", "advice"), [("go", "install Go"), ("cargo", "install Rust")])
def test_the_script_names_the_tool_that_is_missing(no_servers: Path, tool: str, advice: str) -> None:
    tools = no_servers / "bin"
    tools.mkdir()
    for name in ("bash", "flock", "mkdir", "mktemp", "rm", "renice"):
        (tools / name).symlink_to(str(shutil.which(name)))
    if tool == "cargo":
        (tools / "go").symlink_to("/bin/true")
    ran = script(
        [servers.INFLUXDB_2],
        {"PATH": str(tools), "HOME": str(no_servers), "TRIMTAB_SERVERS": str(no_servers / "cache")},
    )
    assert ran.returncode == 2
    assert f"InfluxDB 2.8.0 needs {tool}" in ran.stderr
    assert advice in ran.stderr
    assert list((no_servers / "cache").glob("[a-z]*")) == []
