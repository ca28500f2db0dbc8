"""Which of a Prometheus's targets are ours: what else it scrapes may be down without a word."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import get_args

import pytest
import requests

from collector.batch import Batch, Severity
from collector.plugins import SourceContext
from collector.prometheus import PrometheusSource
from collector.prometheus_api import PrometheusApi
from collector.settings import SourceSettings
from tests import servers
from tests.collector.test_prometheus import START, Prometheus
from tests.conftest import wanted

every_version = pytest.mark.parametrize("version", get_args(servers.PrometheusVersion))


@pytest.fixture
def server() -> Iterator[Prometheus]:
    prometheus = Prometheus()
    yield prometheus
    prometheus.close()


@pytest.fixture
def source(server: Prometheus) -> Iterator[PrometheusSource]:
    made = source_of(server.url)
    yield made
    made.close()


def source_of(url: str) -> PrometheusSource:
    settings = SourceSettings.model_validate({"kind": "prometheus", "url": url, "timeout_seconds": 10})
    return PrometheusSource(settings, SourceContext(cluster="c", interval_seconds=60.0), pause=lambda _: None)


def minute(n: float) -> datetime:
    return START + timedelta(minutes=n)


def up(server: Prometheus, job: str, instance: str, minutes: list[int], value: float) -> None:
    times = [minute(n).timestamp() for n in minutes]
    server.add("up", {"job": job, "instance": instance}, times, [value] * len(times))


def card(server: Prometheus, job: str, instance: str, minutes: list[int]) -> None:
    """Let a target show a card of its own, and be up."""
    labels = {"UUID": f"GPU-{instance}", "gpu": "0", "Hostname": instance, "job": job, "instance": instance}
    times = [minute(n).timestamp() for n in minutes]
    server.add("DCGM_FI_DEV_POWER_USAGE", labels, times, [100.0 + n for n in minutes])
    up(server, job, instance, minutes, 1.0)


def told(batch: Batch) -> list[tuple[str, str]]:
    return sorted((event.code, event.subject.object or event.subject.gpu) for event in batch.events)


def test_of_what_is_none_of_ours_nothing_is_told(server: Prometheus, source: PrometheusSource) -> None:
    card(server, "dcgm", "a", [0, 1, 2])
    up(server, "mysql", "m", [0, 1, 2], 0.0)
    for n in range(3):
        batch = source.poll(minute(n))
        assert told(batch) == []
        assert batch.row_count == 1
    assert source.strangers_down() == ["mysql/m"]


def test_what_told_something_within_a_day_is_ours(server: Prometheus, source: PrometheusSource) -> None:
    card(server, "pods", "gone", [0, 1])
    card(server, "pods", "a", [600])
    up(server, "pods", "gone", [600], 0.0)
    for n in "bcd":
        up(server, "pods", n, [600], 1.0)  # a job of many pods: most are none of ours
    up(server, "pods", "never", [600], 0.0)
    assert told(source.poll(minute(600))) == [("target_down", "pods/gone")]
    assert source.strangers_down() == ["pods/never"]
    asked = len([query for query in server.queries if query.startswith("series")])
    source.poll(minute(600.5))
    assert len([query for query in server.queries if query.startswith("series")]) == asked > 0  # once of each


def test_what_never_told_anything_is_ours_where_most_of_its_job_is(
    server: Prometheus, source: PrometheusSource
) -> None:
    card(server, "dcgm", "a", [0])
    card(server, "dcgm", "b", [0])
    up(server, "dcgm", "x", [0], 1.0)
    for instance in ("c", "d", "e"):
        up(server, "dcgm", instance, [0], 0.0)
    assert told(source.poll(minute(0))) == [("target_down", f"dcgm/{n}") for n in "cde"]


def test_a_target_that_answers_without_its_cards_has_lost_them(server: Prometheus, source: PrometheusSource) -> None:
    card(server, "dcgm", "a", [0, 1])
    card(server, "dcgm", "b", [0, 1, 5, 6, 7, 8, 9])
    up(server, "dcgm", "a", [5, 6, 7, 8, 9], 1.0)  # its page is empty now, and it is up
    seen = [told(source.poll(minute(n))) for n in (0, 1, 5, 6, 7, 8, 9)]
    assert [codes for codes in seen if codes] == [[("card_lost", "GPU-a")]]


def test_one_that_was_down_and_is_no_target_any_more_is_told_once(server: Prometheus, source: PrometheusSource) -> None:
    card(server, "dcgm", "a", list(range(25)))
    card(server, "dcgm", "b", [0, 1])
    up(server, "dcgm", "b", [2, 3], 0.0)  # a pod that ends: down for a moment, then not there
    events = [event for n in range(25) for event in source.poll(minute(n)).events]
    about = [(event.code, event.severity) for event in events if event.subject.object == "dcgm/b"]
    assert about == [("target_down", Severity.ERROR), ("target_gone", Severity.INFO)]


def test_a_target_that_comes_back_without_anything_known_is_none_of_ours(
    server: Prometheus, source: PrometheusSource
) -> None:
    card(server, "dcgm", "a", list(range(25)))
    up(server, "dcgm", "b", [0, 1], 0.0)
    up(server, "dcgm", "b", list(range(2, 25)), 1.0)
    events = [event for n in range(25) for event in source.poll(minute(n)).events if event.subject.object == "dcgm/b"]
    assert [event.code for event in events] == ["target_down", "target_gone"]


def test_gone_targets_are_told_of_after_a_restart_too(server: Prometheus, source: PrometheusSource) -> None:
    card(server, "dcgm", "a", list(range(25)))
    up(server, "dcgm", "b", [0], 0.0)
    source.poll(minute(0))
    again = source_of(server.url)
    again.assembler.import_state(source.assembler.export_state())
    events = [event for n in range(3, 25) for event in again.poll(minute(n)).events]
    again.close()
    assert [(event.code, event.subject.object) for event in events] == [("target_gone", "dcgm/b")]


@every_version
def test_the_real_server_remembers_what_its_targets_told(version: servers.PrometheusVersion, tmp_path: Path) -> None:
    bodies = {"/card": lambda: 'DCGM_FI_DEV_POWER_USAGE{UUID="GPU-0",gpu="0",Hostname="n"} 100\n'}
    with servers.pages(bodies) as url:
        addresses = [f"{url}/card", f"{url}/stranger"]
        with wanted(servers.prometheus(tmp_path, version, addresses, 0.5)) as server:

            def is_up(value: int, count: int) -> None:
                def holds() -> bool:
                    query = {"query": f"up == {value}"}
                    answer = requests.get(f"{server.url}/api/v1/query", params=query, timeout=10).json()
                    return len(answer["data"]["result"]) == count

                servers.await_true(holds, f"{count} targets with up {value}")

            is_up(1, 1)
            is_up(0, 1)
            source = source_of(server.url)
            place = url.removeprefix("http://")
            assert told(source.poll(datetime.now(UTC))) == []
            assert source.strangers_down() == [f"job-1/{place}"]
            bodies.clear()
            is_up(0, 2)
            assert told(source.poll(datetime.now(UTC))) == [("target_down", f"job-0/{place}")]
            source.close()
            api = PrometheusApi(SourceSettings.model_validate({"kind": "prometheus", "url": server.url}))
            now, both = datetime.now(UTC), [("job-0", place), ("job-1", place)]
            names = ["DCGM_FI_DEV_POWER_USAGE", *(f"other_{n}" for n in range(50))]
            assert api.told(names, both, now - timedelta(days=1), now) == {both[0]}
            assert api.told(names[1:], both, now - timedelta(days=1), now) == set()
            api.close()
