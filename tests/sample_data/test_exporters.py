from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
import requests

from collector.errors import UnreachableError
from collector.exposition import Exposition, parse_exposition
from sample_data.cluster import ClusterSpec, SimulatedCluster
from sample_data.cluster.exporters.dcgm import DcgmExporter
from sample_data.cluster.readings import BOUND_BUCKET
from sample_data.cluster.serve import ExporterServer
from sample_data.cluster.source import SimulatedSource
from tests.sample_data.helpers import find, run


@pytest.fixture(scope="module")
def cluster(spec: ClusterSpec) -> SimulatedCluster:
    return run(SimulatedCluster(spec), 45)


def page(cluster: SimulatedCluster, part: str) -> Exposition:
    target = next(t for t in cluster.targets() if part in t.url)
    return parse_exposition(cluster.fetch(target))


def values(body: Exposition, name: str, **labels: str) -> list[float]:
    return [
        v
        for s, v in zip(body.series, body.values, strict=True)
        if s.name == name and all(s.labels.get(k) == w for k, w in labels.items())
    ]


def test_every_page_is_an_exposition(cluster: SimulatedCluster) -> None:
    for target in cluster.targets():
        body = parse_exposition(cluster.fetch(target))
        assert body.rejects == [], target.url
        assert body.series, target.url


def test_generations_of_the_device_exporter(cluster: SimulatedCluster) -> None:
    old, middle, new = (page(cluster, f"{node}:9400") for node in ("node-a", "node-b", "node-c"))
    labels = {s.name: list(s.labels) for s in old.series}["DCGM_FI_DEV_SM_CLOCK"]
    assert labels[:3] == ["gpu", "UUID", "device"]
    assert "pci_bus_id" not in labels
    assert {"GPU_I_ID", "GPU_I_PROFILE", "Hostname"} <= set(labels)
    assert "pci_bus_id" in middle.series[0].labels
    names = {s.name for s in new.series}
    assert {"DCGM_FI_DEV_BOARD_POWER_WATTS", "DCGM_FI_PROF_SM_UTIL_RATIO", "DCGM_FI_DEV_GPU_UTIL_RATIO"} <= names
    assert "DCGM_FI_DEV_POWER_USAGE" not in names
    assert "hostname" in new.series[0].labels
    assert list(new.series[0].labels) == sorted(new.series[0].labels)


def test_instances_repeat_the_cards_power_and_have_their_own_activity(cluster: SimulatedCluster) -> None:
    body = page(cluster, "node-a:9400")
    uuid = cluster.spec.cards[3].uuid
    power = values(body, "DCGM_FI_DEV_POWER_USAGE", UUID=uuid)
    assert len(power) == 7
    assert len(set(power)) == 1
    assert len(set(values(body, "DCGM_FI_PROF_SM_ACTIVE", UUID=uuid))) > 1
    assert values(body, "DCGM_FI_DEV_GPU_UTIL", UUID=uuid) == []


def test_shared_cards_have_a_series_of_their_own_and_one_for_each_pod(cluster: SimulatedCluster) -> None:
    body = page(cluster, "node-b:9400")
    uuid = cluster.spec.cards[4].uuid
    util = [s.labels for s in body.series if s.name == "DCGM_FI_DEV_GPU_UTIL" and s.labels["UUID"] == uuid]
    assert "pod" not in util[0]
    assert len(util) >= 4
    clocks = values(body, "DCGM_FI_DEV_SM_CLOCK", UUID=uuid)
    assert len(set(clocks)) == 1  # the pods' clocks are copies


def test_energy_is_a_counter_of_millijoules(spec: ClusterSpec) -> None:
    cluster = run(SimulatedCluster(spec.replace(quirks=False)), 1)
    uuid = spec.cards[4].uuid
    first = values(page(cluster, "node-b:9400"), "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", UUID=uuid)[0]
    run(cluster, 1)
    body = page(cluster, "node-b:9400")
    second = values(body, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", UUID=uuid)[0]
    watts = values(body, "DCGM_FI_DEV_POWER_USAGE", UUID=uuid)[0]
    assert (second - first) / 1000 / 60 == pytest.approx(watts, rel=0.05)


def test_hami_ratios_are_percent(cluster: SimulatedCluster) -> None:
    cores = values(page(cluster, "hami-scheduler"), "hami_vgpu_core_allocated_ratio")
    assert 16.0 in cores
    assert max(values(page(cluster, "node-c:9394"), "hami_container_device_utilization_ratio")) > 1.5


def test_servers_count_the_promised_bound(cluster: SimulatedCluster) -> None:
    server = find(cluster.spec, "chat")
    bound = cluster.instruments.edges[server, BOUND_BUCKET]
    service = next(s for s in cluster.spec.services if s.name == "chat")
    assert bound == pytest.approx(service.objective.bound_seconds)
    body = page(cluster, "chat")
    name = "vllm:e2e_request_latency_seconds_bucket"
    within = values(body, name, le=f"{bound:.10g}")[0]
    counts = [v for s, v in zip(body.series, body.values, strict=True) if s.name == name]
    assert 0 < within <= counts[-1]
    assert counts == sorted(counts)


def test_a_finished_pods_name_stays_for_a_while(spec: ClusterSpec) -> None:
    cluster = SimulatedCluster(spec)
    exporter = DcgmExporter(cluster.world, "node-a", "3.3")
    for _ in range(600):
        run(cluster, 1)
        text = exporter.text(cluster.readings)
        ended = [job for minute, _, job in cluster.world.finished_jobs if minute == cluster.world.minute - 1]
        held = {h.pod for h in cluster.world.holders if h is not None}
        stale = set(re.findall(r'pod="(mig-job[^"]*)"', text)) - held
        if any(job.arrival.job_class == "mig" for job in ended) and stale:
            break
    else:
        pytest.fail("no pod ended on the MIG node within ten hours")
    assert stale <= {job.pod for _, _, job in cluster.world.finished_jobs}
    for _ in range(10):
        run(cluster, 1)
        text = exporter.text(cluster.readings)
    assert not stale & set(re.findall(r'pod="(mig-job[^"]*)"', text))


def test_a_lost_card_says_79_and_falls_silent(spec: ClusterSpec) -> None:
    card = dataclasses.replace(spec.cards[11], fails_at_minute=100)
    cluster = SimulatedCluster(spec.replace(cards=(*spec.cards[:11], card, *spec.cards[12:]), quirks=False))
    seen = []
    for _ in range(110):
        run(cluster, 1)
        body = page(cluster, "node-c:9400")
        xid = values(body, "DCGM_FI_DEV_XID_ERROR", UUID=card.uuid)
        seen.append((xid[0] if xid else None, bool(values(body, "DCGM_FI_DEV_BOARD_POWER_WATTS", UUID=card.uuid))))
    assert seen[5] == (0.0, True)
    assert seen[50] == (63.0, True)
    assert seen[101] == (79.0, False)
    assert seen[109] == (None, False)
    assert cluster.readings.ecc_corrected[0] == 0


def test_targets_that_are_down_say_so(spec: ClusterSpec) -> None:
    cluster = SimulatedCluster(spec)
    down = 0
    for _ in range(1440):
        cluster.world.minute += 1
        down += any(cluster.outages.node_down(c.node, cluster.world.minute) for c in spec.cards)
    assert 4 <= down <= 16
    fresh = run(SimulatedCluster(spec), 1)
    with pytest.raises(UnreachableError, match="expected an exporter's answer"):
        fresh.fetch(fresh.targets()[0].model_copy(update={"url": "http://nobody:1/metrics"}))


def test_quirks_lose_samples_and_none_without_them(spec: ClusterSpec) -> None:
    lost = {}
    for quirks in (True, False):
        cluster = SimulatedCluster(spec.replace(quirks=quirks))
        lost[quirks] = sum(int(np.isnan(run(cluster, 1).readings.power).sum()) for _ in range(60))
    assert 0 < lost[True] < 60
    assert lost[False] == 0


def test_pages_over_http(spec: ClusterSpec) -> None:
    cluster = run(SimulatedCluster(spec.replace(quirks=False)), 2)
    with ExporterServer(cluster) as server:
        targets = server.targets()
        assert requests.get(server.url, timeout=5).text.count("\n") == len(targets)
        answer = requests.get(targets[0].url, timeout=5)
        marker, _, text = answer.text.partition('cluster="demo"} 1\n')
        assert (answer.status_code, text) == (200, cluster.fetch(cluster.targets()[0]))
        assert marker.endswith("\ntrimtab_simulated{")
        assert requests.get(f"{server.url}/nobody:1/metrics", timeout=5).status_code == 404
        cluster.world.restart(find(spec, "ocr"))
        server.step()
        ocr = next(t for t in server.targets() if "/ocr-" in t.url)
        assert requests.get(ocr.url, timeout=5).status_code == 503


def test_source_polls_the_present_only(spec: ClusterSpec) -> None:
    cluster = run(SimulatedCluster(spec), 1)
    source = SimulatedSource(cluster)
    assert source.poll(cluster.now).row_count > 60
    assert source.describe().kind == "simulator"
    assert list(source.backfill(spec.start, cluster.now)) == []
    with pytest.raises(UnreachableError, match="step it first"):
        source.poll(spec.start)


def test_nothing_can_be_read_before_the_first_step(spec: ClusterSpec) -> None:
    with pytest.raises(LookupError, match="step"):
        _ = SimulatedCluster(spec).readings
    assert SimulatedCluster(spec).targets() == []
