"""Machines that share one job and instance of a Prometheus: a row for each card, and no row of what is of nobody."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from collector.batch import Batch
from collector.mappings import mapping_table
from collector.prometheus_roster import Roster
from tests.collector.test_prometheus import START, Prometheus, source_of

SHARED = {"job": "dcgm", "instance": "dcgm:9400"}
STEP = 15


@pytest.fixture
def server() -> Iterator[Prometheus]:
    prometheus = Prometheus()
    yield prometheus
    prometheus.close()


def times(offset: float = 0.0, step: int = STEP, minutes: int = 10) -> list[float]:
    return [START.timestamp() + offset + second for second in range(0, 60 * minutes, step)]


def machine(
    server: Prometheus,
    name: str,
    stamps: list[float],
    *,
    up: dict[str, str] | None = None,
    host: str = "",
    labels: dict[str, str] | None = None,
    watts: float = 100.0,
) -> None:
    """Two cards of a machine; their energy grows by 3000 J a scrape."""
    for index in range(2):
        said = {"UUID": f"GPU-{name}{index}", "gpu": str(index), "Hostname": host or name, **SHARED, **(labels or {})}
        server.add("DCGM_FI_DEV_POWER_USAGE", said, stamps, [watts + index] * len(stamps))
        server.add("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", said, stamps, [1e6 + 3e6 * n for n in range(len(stamps))])
    server.add("up", {**SHARED, **(up or {})}, stamps, [1.0] * len(stamps))


def cards(batch: Batch) -> dict[tuple[str, str], float | None]:
    rows = batch.rows["gpu"].to_pylist() if "gpu" in batch.rows else []
    return {(row["node"], row["gpu"]): row.get("power_watts") for row in rows}


WANTED = {(name, f"GPU-{name}{n}"): 100.0 * watts + n for watts, name in enumerate("abc", 1) for n in range(2)}


@pytest.mark.parametrize("labelled", [True, False])
def test_each_card_of_machines_that_share_an_instance_has_its_rows(server: Prometheus, labelled: bool) -> None:
    for n, name in enumerate("abc"):
        up = {"pod": f"dcgm-exporter-{name}"} if labelled else {"port": "metrics"}
        machine(server, name, times(4.0 * n), up=up, watts=100.0 * (n + 1))
    source = source_of(server)
    for minute in range(2, 8):
        batch = source.poll(START + timedelta(minutes=minute, seconds=14))
        assert cards(batch) == WANTED
        assert [event.code for event in batch.events if event.code.startswith("target")] == []
        if minute > 2:
            energy = {row["gpu"]: row["energy_joules"] for row in batch.rows["gpu"].to_pylist()}
            assert energy == {f"GPU-{name}{index}": 4 * 3000.0 for name in "abc" for index in range(2)}
    batches = list(source.backfill(START, START + timedelta(minutes=10)))
    assert [cards(batch) for batch in batches] == [WANTED] * 10
    (shared,) = source.shared_addresses()
    assert (shared.address, shared.machines, shared.mixed) == ("dcgm/dcgm:9400", ("a", "b", "c"), 0)
    assert shared.alternates is not labelled


def test_a_service_that_leads_to_another_machine_each_time(server: Prometheus) -> None:
    for n, name in enumerate("abc"):
        machine(server, name, times(STEP * n, step=3 * STEP), watts=100.0 * (n + 1))
    source = source_of(server)
    for minute in range(2, 8):
        batch = source.poll(START + timedelta(minutes=minute))
        assert cards(batch) == WANTED  # each was seen within two intervals
        assert batch.rejects == []
    (shared,) = source.shared_addresses()
    assert shared.alternates


def test_one_exporter_that_shows_many_hosts_is_no_address_that_alternates(server: Prometheus) -> None:
    for n, name in enumerate("abc"):
        machine(server, name, times(), watts=100.0 * (n + 1))
    source = source_of(server)
    assert cards(source.poll(START + timedelta(minutes=5))) == WANTED
    (shared,) = source.shared_addresses()
    assert (shared.alternates, shared.mixed) == (False, 0)


def test_one_of_them_that_is_down_is_down_alone(server: Prometheus) -> None:
    for n, name in enumerate("ab"):
        pod = {"pod": f"dcgm-exporter-{name}"}
        stamps = times(4.0 * n, minutes=5 if name == "a" else 10)
        machine(server, name, stamps, up=pod, labels=pod)
    late = [stamp for stamp in times() if stamp >= START.timestamp() + 300]
    server.add("up", {**SHARED, "pod": "dcgm-exporter-a"}, late, [0.0] * len(late))
    source = source_of(server)
    assert {node for node, _ in cards(source.poll(START + timedelta(minutes=4)))} == {"a", "b"}
    batch = source.poll(START + timedelta(minutes=5, seconds=10))
    assert {node for node, _ in cards(batch)} == {"b"}
    assert [(e.code, e.subject.object) for e in batch.events] == [("target_down", "dcgm/dcgm:9400/a")]


def test_all_behind_one_up_are_down_with_it(server: Prometheus) -> None:
    for n, name in enumerate("ab"):
        machine(server, name, times(STEP * n, step=2 * STEP, minutes=5))
    server.add("up", SHARED, times(301, minutes=2), [0.0] * 8)
    source = source_of(server)
    assert len(cards(source.poll(START + timedelta(minutes=4)))) == 4
    batch = source.poll(START + timedelta(minutes=5, seconds=5))
    assert cards(batch) == {}
    assert {e.code for e in batch.events} == {"target_down"}


def test_a_successor_of_an_exporter_is_the_same_machine(server: Prometheus) -> None:
    """A pod that was replaced has another name, and the same cards: what the old one said has ended."""
    for pod, stamps, watts in (("old", times(minutes=5), 100.0), ("new", times(301, minutes=5), 200.0)):
        machine(server, "a", stamps, up={"pod": pod}, host=pod, watts=watts)
    source = source_of(server)
    source.poll(START + timedelta(minutes=4))
    batch = source.poll(START + timedelta(minutes=5, seconds=20))
    assert source.shared_addresses() == []
    assert sorted(cards(batch).values()) == [200.0, 201.0]


def test_what_is_of_several_machines_at_once_is_of_none(server: Prometheus) -> None:
    """Cards by their index alone, machines without a name: both write the same series, which is refused."""
    for n in range(2):
        stamps = times(4.0 * n)
        for index in range(2):
            said = {"gpu": str(index), **SHARED}
            server.add("DCGM_FI_DEV_POWER_USAGE", said, stamps, [100.0 * (n + 1)] * len(stamps))
        server.add("up", {**SHARED, "pod": f"p{n}"}, stamps, [1.0] * len(stamps))
    server.samples = {key: (labels, sorted(samples)) for key, (labels, samples) in server.samples.items()}
    source = source_of(server)
    batch = source.poll(START + timedelta(minutes=5))
    assert cards(batch) == {}
    (reject,) = batch.rejects
    assert (reject.subject.object, reject.reason, reject.count) == (
        "dcgm/dcgm:9400",
        "several machines behind one address",
        2,
    )
    (shared,) = source.shared_addresses()
    assert shared.mixed == 2


def test_hosts_are_told_apart_by_the_labels_of_up(server: Prometheus) -> None:
    """node_exporter names no host on most of its series: Prometheus' own labels do."""
    for n, name in enumerate("ab"):
        stamps = times(4.0 * n)
        labels = {**SHARED, "pod": f"node-exporter-{name}"}
        server.add("node_uname_info", {**labels, "nodename": name}, stamps, [1.0] * len(stamps))
        for field, value in (("MemTotal", 100.0), ("MemAvailable", 90.0 - 40 * n)):
            server.add(f"node_memory_{field}_bytes", labels, stamps, [value] * len(stamps))
        server.add("up", labels, stamps, [1.0] * len(stamps))
    batch = source_of(server).poll(START + timedelta(minutes=5))
    used = {row["node"]: row["memory_used_bytes"] for row in batch.rows["node"].to_pylist()}
    assert used == {"a": 10.0, "b": 50.0}


def test_machines_keep_their_names_when_hosts_are_joined() -> None:
    roster = Roster(mapping_table(()))
    for host, card in (("a", "GPU-0"), ("b", "GPU-1"), ("c", "GPU-2"), ("c", "GPU-0"), ("d", "GPU-3")):
        labels = {"__name__": "DCGM_FI_DEV_POWER_USAGE", "UUID": card, "Hostname": host, **SHARED}
        roster.number(labels)
    roster.settle((), (), ())
    assert [roster.targets[target].url.rpartition("/")[2] for target in roster.target_of] == ["a", "b", "a", "a", "d"]
