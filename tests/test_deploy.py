"""The shape of deploy/: what Docker Compose would start, and with which rights."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from collector.collect import CycleReport
from collector.influx.client import read_token
from collector.self_metrics import CollectorMetrics, served
from dashboard.config import load_settings
from tests.conftest import ROOT

DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
every_service = pytest.mark.parametrize("name", SERVICES)


def test_compose_starts_influxdb_2_prometheus_and_trimtab() -> None:
    assert set(SERVICES) == {"influxdb", "prometheus", "prepare", "collect", "dashboard"}
    assert set(COMPOSE["volumes"]) == {"influxdb", "prometheus", "trimtab"}


@every_service
def test_ports_are_published_on_loopback_only(name: str) -> None:
    service = SERVICES[name]
    assert "network_mode" not in service
    assert "expose" not in service
    for port in service.get("ports", []):
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port), port


@every_service
def test_every_service_runs_with_the_least_rights(name: str) -> None:
    service = SERVICES[name]
    user = service["user"].split(":")
    assert all(part.isdigit() and int(part) > 0 for part in user), user
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["pids_limit"] > 0
    assert service["mem_limit"]
    assert "privileged" not in service
    assert "cap_add" not in service
    for volume in service["volumes"]:
        source, _, mode = volume.partition(":")
        assert source in COMPOSE["volumes"] or mode.endswith(":ro"), f"{volume}: a folder of the host is read-only"


@every_service
def test_every_service_has_a_health_check(name: str) -> None:
    if SERVICES[name]["restart"] == "no":
        assert SERVICES[name]["command"][:2] == ["store", "prepare"]  # it ends by itself, and others wait for that
        return
    check = SERVICES[name]["healthcheck"]
    assert check["test"][0] == "CMD"  # no shell: not every image has one
    assert check["interval"]
    assert check["timeout"]


def test_the_collector_is_healthy_while_cycles_are_stored() -> None:
    command: list[str] = SERVICES["collect"]["healthcheck"]["test"]
    listen = load_settings(DEPLOY / "trimtab.toml").settings.cluster.metrics_listen
    metrics = CollectorMetrics()

    def healthy() -> bool:
        own = [part.replace(f"127.0.0.1:{listen.rpartition(':')[2]}", address) for part in command[2:]]
        assert own != command[2:]
        own = [part.replace("timeout=4", "timeout=60") for part in own]  # the machine of a test may be busy
        return subprocess.run([sys.executable, *own], capture_output=True, check=False).returncode == 0  # noqa: S603 - our own file

    with served(metrics, "0") as url:
        address = url.removeprefix("http://").removesuffix("/metrics")
        assert not healthy()  # no cycle yet
        metrics.cycle(CycleReport(datetime.now(UTC)), 0.1)
        assert healthy()
        metrics.cycle(CycleReport(datetime.now(UTC) - timedelta(minutes=6)), 0.1)
        assert not healthy()


@every_service
def test_images_are_pinned_to_a_version(name: str) -> None:
    assert re.fullmatch(r"[a-z/]+:v?\d+\.\d+\.\d+", SERVICES[name]["image"])


@every_service
def test_secrets_come_from_outside_and_have_no_default(name: str) -> None:
    for key, value in SERVICES[name].get("environment", {}).items():
        if re.search("TOKEN|PASSWORD", key) and not key.endswith("_FILE"):
            assert re.fullmatch(r"\$\{[A-Z_]+:\?[^}]+\}", value), f"{key} must be required, without a default"
    example = (DEPLOY / "example.env").read_text()
    assert all(re.fullmatch(r"(#.*|[A-Z_]+=|)", line) for line in example.splitlines()), "no secret is shipped"
    assert "/deploy/.env" in (ROOT / ".gitignore").read_text().splitlines()


def test_only_who_sets_up_has_the_token_that_may_do_everything() -> None:
    has = {name for name, service in SERVICES.items() if "INFLUX_TOKEN" in str(service)}
    assert has == {"influxdb", "prepare"}
    file = SERVICES["prepare"]["command"][-1]
    for name in ("collect", "dashboard"):
        assert SERVICES[name]["environment"]["TRIMTAB_INFLUX__TOKEN_FILE"] == file
        assert any(file.startswith(volume.partition(":")[2]) for volume in SERVICES[name]["volumes"])
    assert SERVICES["collect"]["depends_on"]["prepare"] == {"condition": "service_completed_successfully"}


def test_who_waits_for_whom_exists_and_can_be_healthy() -> None:
    for service in SERVICES.values():
        for other, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_completed_successfully":
                assert SERVICES[other]["restart"] == "no"
                continue
            assert "healthcheck" in SERVICES[other]
            assert how["condition"] in {"service_healthy", "service_started"}


def test_the_configuration_in_the_container_is_one_that_loads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "influx.token"
    file.write_text("from-the-volume\n")
    monkeypatch.setenv("TRIMTAB_INFLUX__TOKEN_FILE", str(file))
    settings = load_settings(DEPLOY / "trimtab.toml").settings
    assert [(source.kind, source.url) for source in settings.source] == [("prometheus", "http://prometheus:9090")]
    assert settings.influx.url == "http://influxdb:8086"
    assert read_token(settings.influx) == "from-the-volume"
    start = SERVICES["influxdb"]["environment"]
    assert settings.influx.org == start["DOCKER_INFLUXDB_INIT_ORG"]
    assert settings.influx.bucket == start["DOCKER_INFLUXDB_INIT_BUCKET"]
    (volume,) = (v.partition(":")[2] for v in SERVICES["collect"]["volumes"] if v.startswith("trimtab:"))
    for path in (settings.store.path, settings.state.path, settings.state.kill_switch, settings.report.folder):
        assert path.is_relative_to(Path(volume)), f"{path} must lie in the volume, all else is read-only"


def test_mounted_files_exist_and_parse() -> None:
    for service in SERVICES.values():
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            if source not in COMPOSE["volumes"]:
                assert (DEPLOY / source).exists(), source
    scrape = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    (pattern,) = scrape[0]["file_sd_configs"][0]["files"]
    found = list((DEPLOY / "prometheus").glob(pattern.removeprefix("/etc/prometheus/")))
    assert found
    for targets in found:
        assert isinstance(yaml.safe_load(targets.read_text()), list)


def test_prometheus_scrapes_the_collector_itself() -> None:
    listen = load_settings(DEPLOY / "trimtab.toml").settings.cluster.metrics_listen
    scrape = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    (job,) = (job for job in scrape if job["job_name"] == "trimtab")
    assert job["static_configs"] == [{"targets": [f"collect:{listen.rpartition(':')[2]}"]}]
    assert "ports" not in SERVICES["collect"]


def test_the_image_is_built_from_the_lock_and_runs_without_rights() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    bases = [line.split()[1] for line in lines if line.startswith("FROM ")]
    assert bases
    assert all(re.fullmatch(r"python:\d+\.\d+\.\d+-slim-[a-z]+", base) for base in bases)
    text = "\n".join(lines)
    assert "--constraint requirements.lock" in text
    (user,) = (line.split()[1] for line in lines if line.startswith("USER "))
    assert user == SERVICES["collect"]["user"] == SERVICES["dashboard"]["user"]
    uv = re.search(r"^uv==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert uv is not None
    assert f"uv=={uv.group(1)} " in text
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    assert SERVICES["collect"]["image"] == f"trimtab:{version.group(1)}"
    allowed = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert "*" in allowed  # nothing goes in that is not named: no .env, no var/
    assert {"!collector", "!analyzer", "!tuner", "!dashboard", "!sample_data"} <= set(allowed)
