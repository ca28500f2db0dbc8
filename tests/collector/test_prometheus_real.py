"""PrometheusSource against the real servers, 2.42 and 3.16: what they scraped is what our own scrape says."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import pandas as pd
import pytest
import requests
import trustme

from collector.errors import UnreachableError
from collector.plugins import SourceContext
from collector.prometheus import PrometheusSource
from collector.prometheus_api import PrometheusApi
from collector.schema import MEASUREMENTS
from collector.scrape import ScrapeSource
from collector.settings import SourceSettings
from sample_data.cluster import SimulatedCluster
from sample_data.cluster.presets import mixed
from sample_data.cluster.serve import ExporterServer
from tests import servers
from tests.conftest import wanted

# Of the password `hunter2`, made once: the library that makes them is not one of ours.
_BCRYPT = "$2b$04$6hafbNMr26Y0ssCDYpdmHeHhk5FUC15vb0qzkXf.VXJKQvDZvT2D6"
_STEP_SECONDS = 15
_SAMPLES = 40
_HOSTILE = 'a"b\\c\nd} or up{'

every_version = pytest.mark.parametrize("version", get_args(servers.PrometheusVersion))


def settings(url: str, **more: object) -> SourceSettings:
    return SourceSettings.model_validate({"kind": "prometheus", "url": url, "timeout_seconds": 20, **more})


def scraped(server: servers.PrometheusServer, query: str, count: int) -> None:
    """Wait until so many series answer a query."""

    def enough() -> bool:
        answer = requests.get(f"{server.url}/api/v1/query", params={"query": query}, timeout=10).json()
        return len(answer["data"]["result"]) >= count

    servers.await_true(enough, f"{count} series of {query}")


@every_version
def test_a_simulated_cluster_behind_prometheus_gives_the_rows_of_a_direct_scrape(
    version: servers.PrometheusVersion, tmp_path: Path
) -> None:
    cluster = SimulatedCluster(mixed(1))
    for _ in range(3):
        cluster.step()
    with ExporterServer(cluster) as exporters:
        targets = exporters.targets()
        addresses = [target.url for target in targets]
        labels = [{**target.labels, **({"node": target.node} if target.node else {})} for target in targets]
        with wanted(servers.prometheus(tmp_path, version, addresses, 3.0, labels=labels)) as server:
            scraped(server, "up == 1", len(targets))
            context = SourceContext(cluster="demo", interval_seconds=60.0)
            through = PrometheusSource(settings(server.url), context)
            now = datetime.now(UTC)
            batch = through.poll(now)
            direct = ScrapeSource(SourceSettings(kind="scrape", targets=tuple(targets), timeout_seconds=20), context)
            expected = direct.poll(now)
            direct.close()
            through.close()
    families = {name.replace(":", "_").partition("_")[0] for name in through._names or ()}
    assert {"DCGM", "vllm", "kube"} <= families
    for name in ("gpu", "slice", "queue"):
        ours, theirs = (_frame(one.rows.get(name), name) for one in (batch, expected))
        assert len(theirs) > 0
        pd.testing.assert_frame_equal(ours, theirs, check_like=True)


def _frame(table: Any, name: str) -> pd.DataFrame:
    frame = table.to_pandas().drop(columns="source_age_seconds", errors="ignore")
    return cast("pd.DataFrame", frame.set_index(list(MEASUREMENTS[name].key)).sort_index())


@pytest.fixture(scope="module", params=get_args(servers.PrometheusVersion))
def history(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[servers.PrometheusServer, datetime]]:
    """A server with ten minutes of samples of two cards, a sample on each quarter of a minute."""
    start = datetime.fromtimestamp(time.time() // 60 * 60 - 1200, UTC)
    lines = ["# TYPE DCGM_FI_DEV_POWER_USAGE gauge"]
    for card, cluster in (("GPU-0", r"a\"b\\c\nd} or up{"), ("GPU-1", "plain")):
        labels = f'UUID="{card}",gpu="{card[-1]}",Hostname="node-a",cluster="{cluster}"'
        for n in range(_SAMPLES):
            at = int(start.timestamp() * 1000) + 1000 * _STEP_SECONDS * n
            lines.append(f"DCGM_FI_DEV_POWER_USAGE{{{labels}}} {100 + n + int(card[-1]) / 2} {at}")
    bodies = iter(["\n".join(lines) + "\n"])
    folder = tmp_path_factory.mktemp("history")
    with (
        servers.pages({"/metrics": lambda: next(bodies, "")}) as url,
        wanted(servers.prometheus(folder, request.param, [f"{url}/metrics"], 5.0)) as server,
    ):
        scraped(server, f"count_over_time(DCGM_FI_DEV_POWER_USAGE[1h]) == {_SAMPLES}", 2)
        yield server, start


@pytest.mark.parametrize("chunk_seconds", [15, 30, 47, 600])
def test_every_sample_comes_once_whatever_the_chunks(
    history: tuple[servers.PrometheusServer, datetime], chunk_seconds: int
) -> None:
    server, start = history
    end = start + timedelta(seconds=_SAMPLES * _STEP_SECONDS)
    api = PrometheusApi(settings(server.url))
    found: dict[str, list[int]] = {"GPU-0": [], "GPU-1": []}
    at = start
    while at < end:
        stop = min(at + timedelta(seconds=chunk_seconds), end)
        for answer in api.samples(["DCGM_FI_DEV_POWER_USAGE"], at, stop):
            parts = np.split(answer.times_ms, np.cumsum(answer.counts)[:-1])
            for metric, times in zip(answer.metrics, parts, strict=True):
                found[metric["UUID"]] += times.tolist()
        at = stop
    api.close()
    first_ms = int(start.timestamp() * 1000)
    wanted_times = [first_ms + 1000 * _STEP_SECONDS * n for n in range(_SAMPLES)]
    assert found == {"GPU-0": wanted_times, "GPU-1": wanted_times}


def test_a_backfill_has_the_newest_sample_of_each_cycle(history: tuple[servers.PrometheusServer, datetime]) -> None:
    server, start = history
    source = PrometheusSource(settings(server.url), SourceContext(cluster="test"))
    batches = list(source.backfill(start, start + timedelta(minutes=30)))
    source.close()
    rows = [
        row
        for batch in batches
        if "gpu" in batch.rows
        for row in batch.rows["gpu"].to_pylist()
        if row["gpu"] == "GPU-1"
    ]
    assert [row["time"] for row in rows] == [start + timedelta(minutes=n) for n in range(10)]
    assert [row["power_watts"] for row in rows] == [103.5 + 4 * n for n in range(10)]


def test_labels_to_match_are_values_and_never_questions(history: tuple[servers.PrometheusServer, datetime]) -> None:
    server, start = history
    for cluster, card in ((_HOSTILE, "GPU-0"), ("plain", "GPU-1")):
        source = PrometheusSource(settings(server.url, match={"cluster": cluster}), SourceContext(cluster="test"))
        assert source.discover(start, start + timedelta(minutes=10)) == ("DCGM_FI_DEV_POWER_USAGE",)
        batches = list(source.backfill(start, start + timedelta(minutes=10)))
        source.close()
        assert {row["gpu"] for batch in batches for row in batch.rows["gpu"].to_pylist()} == {card}
    with pytest.raises(ValueError, match="expected names of labels"):
        settings(server.url, match={'cluster="a"} or up{x': "b"})


@every_version
def test_a_series_that_ends_is_absent_at_the_next_scrape(version: servers.PrometheusVersion, tmp_path: Path) -> None:
    line = (
        'DCGM_FI_DEV_GPU_UTIL{{UUID="GPU-0",gpu="0",Hostname="n",exported_pod="{pod}",exported_namespace="team"}} 50\n'
    )
    page = [line.format(pod="old")]
    with (
        servers.pages({"/metrics": lambda: page[0]}) as url,
        wanted(servers.prometheus(tmp_path, version, [f"{url}/metrics"], 0.5)) as server,
    ):
        scraped(server, 'DCGM_FI_DEV_GPU_UTIL{exported_pod="old"}', 1)
        page[0] = line.format(pod="new")
        scraped(server, 'DCGM_FI_DEV_GPU_UTIL{exported_pod="new"}', 1)
        source = PrometheusSource(settings(server.url), SourceContext(cluster="test"))
        batch = source.poll(datetime.now(UTC))
        page[0] = "\n"
        scraped(server, "absent(DCGM_FI_DEV_GPU_UTIL)", 1)
        gone = source.poll(datetime.now(UTC) + timedelta(seconds=1))
        source.close()
    assert [row["workload"] for row in batch.rows["slice"].to_pylist()] == ["new"]
    assert gone.row_count == 0


@every_version
def test_log_ins_by_password_and_by_certificate(
    version: servers.PrometheusVersion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = tmp_path / "others.pem"
    trustme.CA().cert_pem.write_to_path(others)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(others))  # `ca_file` counts more
    authority = trustme.CA()
    ca, key, cert = (tmp_path / name for name in ("ca.pem", "key.pem", "cert.pem"))
    authority.cert_pem.write_to_path(ca)
    issued = authority.issue_cert("127.0.0.1", "localhost")
    issued.private_key_pem.write_to_path(key)
    for number, blob in enumerate(issued.cert_chain_pems):
        blob.write_to_path(cert, append=number > 0)
    own = tmp_path / "own.pem"
    authority.issue_cert("collector@example.com").private_key_and_cert_chain_pem.write_to_path(own)
    password = tmp_path / "password"
    password.write_text("hunter2\n")
    web = (
        f"basic_auth_users: {{trimtab: '{_BCRYPT}'}}\n"
        f"tls_server_config: {{cert_file: {cert}, key_file: {key}, client_ca_file: {ca}, "
        "client_auth_type: RequireAndVerifyClientCert}\n"
    )
    with wanted(servers.prometheus(tmp_path, version, web_config=web)) as server:
        good = {"username": "trimtab", "password_file": password, "ca_file": ca, "cert_file": own}
        api = PrometheusApi(settings(server.url, **good))
        assert list(api.samples(["up"], datetime.now(UTC) - timedelta(minutes=1), datetime.now(UTC)))
        api.close()
        wrong = [
            ({**good, "password_file": ca}, "HTTP 401"),
            ({key: value for key, value in good.items() if key != "cert_file"}, "certificate|ConnectionError"),
            ({key: value for key, value in good.items() if key != "ca_file"}, "a certificate that is not trusted"),
        ]
        for login, words in wrong:
            api = PrometheusApi(settings(server.url, **login), pause=lambda _: None)
            with pytest.raises(UnreachableError, match=words) as caught:
                list(api.samples(["up"], datetime.now(UTC) - timedelta(minutes=1), datetime.now(UTC)))
            api.close()
            assert "hunter2" not in str(caught.value)


def test_victoriametrics_answers_in_the_same_way(victoriametrics: servers.VictoriaServer) -> None:
    start = datetime.fromtimestamp(time.time() // 60 * 60 - 1200, UTC)
    stamps = [int(start.timestamp() * 1000) + 1000 * _STEP_SECONDS * n for n in range(_SAMPLES)]
    labels = r'UUID="GPU-0",gpu="0",Hostname="node-a",cluster="a\"b"'
    page = "".join(f"DCGM_FI_DEV_POWER_USAGE{{{labels}}} {100 + n} {at}\n" for n, at in enumerate(stamps))
    requests.post(f"{victoriametrics.url}/api/v1/import/prometheus", data=page, timeout=10).raise_for_status()
    requests.get(f"{victoriametrics.url}/internal/force_flush", timeout=10).raise_for_status()
    source = PrometheusSource(settings(victoriametrics.url, match={"cluster": 'a"b'}), SourceContext(cluster="test"))
    batches = list(source.backfill(start, start + timedelta(minutes=30)))
    source.close()
    assert [batch.rows["gpu"].to_pylist()[0]["power_watts"] for batch in batches] == [103.0 + 4 * n for n in range(10)]
