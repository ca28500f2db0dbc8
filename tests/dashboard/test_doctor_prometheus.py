"""What the doctor says of targets behind a Prometheus: how many, which share an address, and how to look at them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from dashboard.config import load_settings
from dashboard.doctor.check import Check, Status
from dashboard.doctor.sources import examine_sources
from tests.collector.test_prometheus import START, Prometheus
from tests.collector.test_prometheus_shared import SHARED, STEP, machine, times

NOW = START + timedelta(minutes=5)


@pytest.fixture
def server(elsewhere: Path) -> Iterator[Prometheus]:
    prometheus = Prometheus()
    yield prometheus
    prometheus.close()


def checks(table: str) -> list[Check]:
    path = Path("trimtab.toml")
    path.write_text(f"[[source]]\n{table}\n")
    path.chmod(0o600)
    return list(examine_sources(load_settings().settings, NOW))


def behind(server: Prometheus) -> list[Check]:
    return checks(f'kind = "prometheus"\nurl = "{server.url}"')


def test_targets_are_counted_not_the_servers_that_know_them(server: Prometheus) -> None:
    for name in "abc":
        own = {"instance": f"10.0.0.{name}:9400"}
        machine(server, name, times(), up=own, labels=own)
    found = behind(server)
    (dcgm,) = {check.text.partition(":")[0] for check in found if check.topic == "exporter dcgm-exporter"}
    assert dcgm == "partial at 3 targets"
    told = [check.text for check in found if check.text.startswith(server.url)]
    assert told == [f"{server.url}: dcgm-exporter (12 series), 0 series of no use"]
    assert any(check.text == "answers: 6 gpu rows" for check in found)


def test_machines_that_share_an_address_are_told_of(server: Prometheus) -> None:
    for n, name in enumerate("ab"):
        machine(server, name, times(4.0 * n), up={"pod": name})
    (shared,) = [check for check in behind(server) if "share" in check.text]
    assert (shared.status, shared.text) == (
        Status.NOTE,
        "dcgm/dcgm:9400: 2 machines share this job and instance; told apart as a, b",
    )


def test_a_service_before_all_exporters_is_a_problem(server: Prometheus) -> None:
    for n, name in enumerate("ab"):
        machine(server, name, times(STEP * n, step=2 * STEP))
    (found,) = [check for check in behind(server) if check.text.startswith("partial: dcgm/dcgm:9400")]
    assert found.status is Status.PROBLEM
    assert "each scrape shows another one of 2 machines" in found.text
    assert "scrape each pod" in found.advice


def test_what_cannot_be_told_apart_makes_it_blind_and_says_why(server: Prometheus) -> None:
    for n in range(2):
        stamps = times(4.0 * n)
        server.add("DCGM_FI_DEV_POWER_USAGE", {"gpu": "0", **SHARED}, stamps, [100.0 + n] * len(stamps))
        server.add("up", {**SHARED, "pod": f"p{n}"}, stamps, [1.0] * len(stamps))
    found = behind(server)
    problems = [check.text for check in found if check.status is Status.PROBLEM]
    assert "answers, and no row can be made of what it says" in problems
    assert "partial: dcgm/dcgm:9400: 1 series of several machines have the same labels, and are left out" in problems


def test_a_target_that_prometheus_cannot_scrape_is_looked_at_there(server: Prometheus) -> None:
    machine(server, "a", times(minutes=2))
    server.add("up", SHARED, times(290, minutes=1), [0.0] * 4)
    (down,) = [check for check in behind(server) if check.text.startswith("dcgm/dcgm:9400: Prometheus says")]
    assert down.advice == "Prometheus itself cannot scrape dcgm/dcgm:9400: its page /targets says why"
    assert not any("curl" in check.advice for check in behind(server))


def test_a_command_of_slurm_is_to_be_run_by_hand(elsewhere: Path) -> None:
    found = checks('kind = "slurm"\noptions = { squeue = "/nowhere/squeue", sinfo = "" }')
    (down,) = [check for check in found if check.text.startswith("slurm:/nowhere/squeue")]
    assert down.advice == "run it by hand as this user: /nowhere/squeue"
