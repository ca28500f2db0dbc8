"""`trimtab collect` against exporters on loopback; Ctrl-C and SIGTERM lose nothing that was read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
import requests

from collector.protocols import SourceDescription
from collector.settings import StoreSettings
from collector.store import EmbeddedStore
from collector.window import Window
from dashboard.cli.collecting import only_collector, source_text, state_path
from dashboard.origin import is_simulated
from dashboard.stopping import stopped_by_signals
from sample_data.cluster.cluster import SimulatedCluster
from sample_data.cluster.presets import mixed
from sample_data.cluster.serve import ExporterServer
from tests import servers
from tests.collector import influx_double
from tests.conftest import wanted
from tests.dashboard.conftest import Ran
from tests.dashboard.exporters import Exporters, serving, simulated_texts


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return simulated_texts()


@pytest.fixture
def exporters(texts: dict[str, str]) -> Iterator[Exporters]:
    with serving(texts) as running:
        yield running


def rows(measurement: str) -> int:
    store = EmbeddedStore(StoreSettings(), read_only=True)
    try:
        span = store.span(measurement)
        return 0 if span is None else len(store.read(measurement, span))
    finally:
        store.close()


def test_one_cycle_at_a_given_instant(trimtab: Callable[..., Ran], exporters: Exporters) -> None:
    ran = trimtab("collect", "--target", exporters.url("dcgm"), "--once", "--now", "2026-01-05T00:00:30Z")
    assert ran.code == 0, ran.err
    assert ran.out == ""
    assert "0 rejects" in ran.err
    store = EmbeddedStore(StoreSettings(), read_only=True)
    span = store.span("gpu")
    assert span is not None
    assert span.start.isoformat() == "2026-01-05T00:00:00+00:00"
    frame = store.read("gpu", span)
    store.close()
    assert set(frame["node"]) == {"node-a"}
    assert len(frame) == 4
    assert frame["power_watts"].between(20, 700).all()


def test_a_second_collector_of_the_same_state_is_refused(trimtab: Callable[..., Ran], exporters: Exporters) -> None:
    folder = StoreSettings().path
    folder.mkdir(parents=True)
    once = ["collect", "--target", exporters.url("dcgm"), "--once", "--now", "2026-01-05T00:00:30Z"]
    with only_collector(state_path(folder, None)):
        ran = trimtab(*once)
        assert ran.code == 2, ran.err
        assert f"found process {os.getpid()}; stop it" in ran.err
        assert trimtab(*once, "--shard", "1/1").code == 0  # another part has a state of its own
    assert trimtab(*once).code == 0


def test_what_is_configured_is_collected(trimtab: Callable[..., Ran], exporters: Exporters, elsewhere: Path) -> None:
    (elsewhere / "trimtab.toml").write_text(
        f'[cluster]\nname = "lab"\n[[source]]\ntargets = ["{exporters.url("dcgm")}", "{exporters.url("kube")}"]\n'
    )
    assert trimtab("collect", "--once", "--now", "2026-01-05T00:00:00Z").code == 0
    store = EmbeddedStore(StoreSettings(), read_only=True)
    span = store.span("slice")
    assert span is not None
    frame = store.read("slice", span)
    store.close()
    assert set(frame["cluster"]) == {"lab"}
    assert "ocr" in set(frame["workload"])


def test_a_server_named_with_its_pod_gives_its_slice_latency(trimtab: Callable[..., Ran], elsewhere: Path) -> None:
    card = 'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-0",container="c",namespace="search",pod="ranker-0"} 50\n'
    with serving({"dcgm": card, "vllm": "vllm:num_requests_waiting 3\n"}) as exporters:
        (elsewhere / "trimtab.toml").write_text(
            f'[[source]]\ntargets = ["{exporters.url("dcgm")}"]\n'
            f'[[source]]\n[[source.targets]]\nurl = "{exporters.url("vllm")}"\nnode = "node-a"\n'
            'labels = { namespace = "search", pod = "ranker-0" }\n'
        )
        checked = trimtab("config", "check")
        assert checked.code == 0, checked.out
        listed = trimtab("config", "show").out
        assert "source.1.targets.0.labels.pod" in listed
        ran = trimtab("collect", "--once", "--now", "2026-01-05T00:00:00Z")
    assert ran.code == 0, ran.err
    assert "0 rejects" in ran.err
    store = EmbeddedStore(StoreSettings(), read_only=True)
    span = store.span("slice")
    assert span is not None
    frame = store.read("slice", span)
    store.close()
    assert frame[["tenant", "workload", "queue_depth_count"]].to_numpy().tolist() == [["search", "ranker", 3.0]]


def test_after_a_change_of_the_configuration_only_annotations_are_left(
    trimtab: Callable[..., Ran], elsewhere: Path
) -> None:
    card = 'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-0",container="c",namespace="search",pod="ranker-0"} 50\n'
    head = 'namespace="search",pod="ranker-0"'
    kube = (
        f'kube_pod_status_phase{{{head},phase="Running"}} 1\n'
        f'kube_pod_container_resource_requests{{{head},container="c",node="n",resource="nvidia_com_gpu"}} 1\n'
        f'kube_pod_annotations{{{head},annotation_trimtab_weight="2"}} 1\n'
    )
    origins = []
    with serving({"dcgm": card, "kube": kube}) as exporters:
        sources = f'[[source]]\ntargets = ["{exporters.url("dcgm")}", "{exporters.url("kube")}"]\n'
        for minute, declared in enumerate(('[[workload]]\nservice_class = "offline"\nfloor = 0.5\n', "")):
            (elsewhere / "trimtab.toml").write_text(sources + declared)
            assert trimtab("collect", "--once", "--now", f"2026-01-05T00:0{minute}:00Z").code == 0
            listed = trimtab("workloads", "--now", f"2026-01-05T00:0{minute + 1}:00Z", "--json")
            (row,) = json.loads(listed.out)["workloads"]
            said = {name: value["origin"] for name, value in row["values"].items()}
            origins.append({name: origin for name, origin in said.items() if origin != "default"})
    assert origins == [{"service_class": "config", "floor": "config", "weight": "annotation"}, {"weight": "annotation"}]


@pytest.mark.parametrize("order", [("dcgm", "kube"), ("kube", "dcgm")])
def test_exporters_in_tables_of_their_own_are_joined(
    trimtab: Callable[..., Ran], exporters: Exporters, elsewhere: Path, order: tuple[str, str]
) -> None:
    tables = [f'[[source]]\nname = "{path}"\ntargets = ["{exporters.url(path)}"]\n' for path in order]
    (elsewhere / "trimtab.toml").write_text("".join(tables))
    assert trimtab("collect", "--once", "--now", "2026-01-05T00:00:00Z").code == 0
    store = EmbeddedStore(StoreSettings(), read_only=True)
    span = store.span("slice")
    assert span is not None
    frame = store.read("slice", span)
    store.close()
    assert "ocr" in set(frame["workload"])
    assert not frame.duplicated(["time", "gpu", "slice"]).any()


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        ([], 2, "nothing to collect from: expected --target, --prometheus, --nvml or a [[source]] table"),
        (["--target", "node1:9400"], 2, "expected an address such as http://node1:9400/metrics, got 'node1:9400'"),
        (["--target", "http://127.0.0.1:9/metrics", "--once"], 4, "no source gave a row; `trimtab doctor` says why"),
        (["--prometheus", "http://127.0.0.1:9", "--once"], 4, "http://127.0.0.1:9: expected metric names"),
        (["--target", "http://127.0.0.1:9/metrics", "--now", "2026-01-05"], 2, "add --once"),
        (["--target", "http://x", "--interval", "0"], 2, "Invalid value for '--interval'"),
    ],
)
def test_what_cannot_be_collected_is_one_line(
    trimtab: Callable[..., Ran], arguments: list[str], code: int, expected: str
) -> None:
    ran = trimtab("collect", *arguments)
    assert (ran.code, ran.out) == (code, "")
    assert expected in ran.err
    assert ran.err.splitlines()[-1].startswith("trimtab: ")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_stopped_collector_has_lost_nothing(
    exporters: Exporters, elsewhere: Path, number: signal.Signals, code: int
) -> None:
    process = subprocess.Popen(  # noqa: S603  our own command
        [sys.executable, "-m", "dashboard.cli", "collect", "--target", exporters.url("dcgm"), "--interval", "1"],
        cwd=elsewhere,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TRIMTAB_LOG__FORMAT": "json"},
    )
    try:
        assert exporters.asked.wait(60)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out) == (code, "")
    assert "Traceback" not in err
    assert "stopped; every row that was read is in the store" in err
    # Every answer of an exporter with four cards became four rows; the last one as well.
    assert rows("gpu") == 4 * exporters.count
    assert '"level":"info"' in err


def test_a_second_interrupt_ends_at_once() -> None:
    with stopped_by_signals() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
        assert stop.by_interrupt
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_rows_of_the_simulators_exporters_are_simulated_and_real_ones_do_not_join_them(
    trimtab: Callable[..., Ran], exporters: Exporters
) -> None:
    cluster = SimulatedCluster(mixed(seed=3))
    cluster.step()
    with ExporterServer(cluster) as server:
        ran = trimtab("collect", "--target", server.targets()[0].url, "--once", "--now", "2026-01-05T00:01:00Z")
    assert ran.code == 0, ran.err
    store = EmbeddedStore(StoreSettings(), read_only=True)
    assert is_simulated(store)
    store.close()
    assert json.loads(trimtab("analyze", "--json").out)["simulated"] is True
    Path("real.toml").write_text('[cluster]\nname = "real"\n')
    real = trimtab("--config", "real.toml", "collect", "--target", exporters.url("dcgm"), "--once")
    assert real.code == 2
    assert "this store holds simulated rows and refuses real ones" in real.err


def test_a_stopped_collector_has_sent_what_it_read(exporters: Exporters, elsewhere: Path) -> None:
    with influx_double.running("2.8.0") as double:
        (elsewhere / "trimtab.toml").write_text(f'[influx]\nurl = "{double.url}"\n')
        process = subprocess.Popen(  # noqa: S603  our own command
            [sys.executable, "-m", "dashboard.cli", "collect", "--target", exporters.url("dcgm"), "--interval", "1"],
            cwd=elsewhere,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert exporters.asked.wait(60)
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
            process.wait()
        assert process.returncode == 0, err
        assert len(double.rows("trimtab", "gpu")) == 4 * exporters.count == rows("gpu")


def test_collect_feeds_influxdb_and_doctor_says_how_far_it_is(
    trimtab: Callable[..., Ran], exporters: Exporters, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with influx_double.running("2.8.0", token="hush-hush") as double:  # noqa: S106 - of a double
        monkeypatch.setenv("TRIMTAB_INFLUX__TOKEN", "hush-hush")
        (elsewhere / "trimtab.toml").write_text(f'[influx]\nurl = "{double.url}"\norg = "lab"\n')
        assert trimtab("config", "check").code == 0
        ran = trimtab("collect", "--target", exporters.url("dcgm"), "--once")
        assert ran.code == 0, ran.err
        rows = double.rows("trimtab", "gpu")
        assert len(rows) == 4
        assert all(fields["rows_count"] == 1.0 for _, _, fields in rows)
        assert {auth for _, auth, _ in double.requests} == {"Token hush-hush"}
        status = json.loads(trimtab("store", "status", "--json").out)["shippers"]
        assert [(s["name"], s["pending"]) for s in status] == [("influx", 0)]
        assert trimtab("store", "status").code == 0
        double.buckets["trimtab_hour"] = 0
        status = trimtab("store", "status")
        assert (status.code, "trimtab_hour keeps rows for ever, [influx] hour_days is 730" in status.out) == (1, True)
        checked = trimtab("doctor")
        assert "influxdb" in checked.out
        assert "hush-hush" not in ran.err + ran.out + checked.out + checked.err
    ran = trimtab("collect", "--target", exporters.url("dcgm"), "--once")
    assert ran.code == 0, ran.err
    assert "does not answer" in ran.err
    assert "wait in the embedded store" in ran.err
    assert "does not answer" in trimtab("doctor").out
    with influx_double.running("3.4.1", token="hush-hush") as double:  # noqa: S106 - of a double
        monkeypatch.setenv("TRIMTAB_INFLUX__URL", double.url)
        assert "InfluxDB 3 makes databases as they are written to" in trimtab("store", "prepare").out
        shipped = trimtab("store", "ship", "--json")
        assert json.loads(shipped.out)["pending"] == 0
        assert len(double.rows("trimtab", "gpu")) == 4
    forgotten = trimtab("store", "forget", "nonsense")
    assert (forgotten.code, "expected a shipper out of influx" in forgotten.err) == (2, True)
    assert trimtab("store", "forget", "influx").code == 0


def test_an_address_that_is_none_is_said_by_config_check(trimtab: Callable[..., Ran], elsewhere: Path) -> None:
    (elsewhere / "trimtab.toml").write_text('[influx]\nurl = "influx:8086"\ntoken_file = "nowhere"\n')
    checked = trimtab("config", "check")
    assert checked.code == 1
    assert "[influx]: `url`: expected an address such as http://influx:8086" in checked.out
    assert "`token_file`: expected a file at nowhere" in checked.out


@pytest.fixture
def past(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """Address of a real Prometheus with three minutes of a card, and the first one (s since the epoch)."""
    start = int(time.time() // 60 * 60 - 1800)
    series = 'DCGM_FI_DEV_POWER_USAGE{UUID="GPU-0",gpu="0",Hostname="n"}'
    page = "".join(f"{series} {100 + n} {1000 * (start + 60 * n)}\n" for n in range(3))
    bodies = iter([page])
    with (
        servers.pages({"/metrics": lambda: next(bodies, "")}) as url,
        wanted(servers.prometheus(tmp_path_factory.mktemp("past"), "3.16", [f"{url}/metrics"], 2.0)) as server,
    ):
        query = {"query": "count_over_time(DCGM_FI_DEV_POWER_USAGE[1h]) == 3"}
        address = f"{server.url}/api/v1/query"
        servers.await_true(
            lambda: bool(requests.get(address, params=query, timeout=10).json()["data"]["result"]), "three samples"
        )
        yield server.url, start


def test_backfill_fills_the_store_once(past: tuple[str, int], trimtab: Callable[..., Ran]) -> None:
    url, start = past
    now = datetime.fromtimestamp(start + 600, UTC).isoformat()
    arguments = ("collect", "--prometheus", url, "--backfill", "0.01", "--now", now)
    ran = trimtab(*arguments)
    assert ran.code == 0, ran.err
    assert "prometheus" in ran.err
    assert "100%" in ran.err
    with closing(EmbeddedStore(StoreSettings(), read_only=True)) as store:
        times = [start + 60 * n for n in range(3)]
        frame = store.read("gpu", Window(*(datetime.fromtimestamp(at, UTC) for at in (start, start + 3600))))
        assert [int(at.timestamp()) for at in frame["time"]] == times
        assert frame["power_watts"].tolist() == [100.0, 101.0, 102.0]
    again = trimtab(*arguments)
    assert again.code == 0
    assert " 0 rows" in again.err


def test_backfill_says_what_is_missing(exporters: Exporters, trimtab: Callable[..., Ran]) -> None:
    ran = trimtab("collect", "--target", exporters.url("dcgm"), "--backfill", "1")
    assert ran.code == 4
    assert "no source has rows since" in ran.err
    both = trimtab("collect", "--target", exporters.url("dcgm"), "--backfill", "1", "--once")
    assert both.code == 2
    assert "got both" in both.err


@pytest.mark.parametrize("seconds", ["inf", "1e308", "nan"])
def test_a_cycle_without_end_is_refused(trimtab: Callable[..., Ran], seconds: str) -> None:
    ran = trimtab("collect", "--once", "--target", "http://127.0.0.1:9/metrics", "--interval", seconds)
    assert ran.code == 2
    assert "Invalid value for '--interval'" in ran.err


@pytest.mark.parametrize("option", ["--target", "--prometheus"])
@pytest.mark.parametrize("scheme", ["ftp://", ""])
def test_a_password_in_an_address_that_is_none_is_not_told(
    trimtab: Callable[..., Ran], option: str, scheme: str
) -> None:
    ran = trimtab("collect", "--once", option, f"{scheme}user:hunter2@node/metrics?token=hunter2")
    assert ran.code == 2
    assert f"{scheme}user:********@node/metrics" in ran.err
    assert "hunter2" not in ran.err


@pytest.mark.parametrize("host", ["[::1/", "h:99999/", ":9090/"])
def test_a_prometheus_at_no_address_is_one_line(trimtab: Callable[..., Ran], host: str) -> None:
    ran = trimtab("collect", "--once", "--prometheus", f"http://{host}")
    assert ran.code == 2
    assert "expected an address such as http://prometheus:9090" in ran.err
    assert len(ran.err.splitlines()) == 1


def test_an_instant_at_the_end_of_time_is_refused(trimtab: Callable[..., Ran]) -> None:
    for now in ("0001-01-02", "9999-12-31T23:59:59"):
        ran = trimtab("collect", "--backfill", "30", "--now", now, "--prometheus", "http://127.0.0.1:9")
        assert ran.code == 2, ran.err
        assert "expected an instant from 1970 to 2200" in ran.err


def test_the_first_line_of_a_large_fleet_is_short() -> None:
    many = SourceDescription("scrape", "scrape", tuple(f"http://node{n}:9400" for n in range(2000)), 60.0)
    assert source_text(many, 60.0) == (
        "scrape: 2000 targets: http://node0:9400, http://node1:9400, http://node2:9400 and 1997 more, every 60 s"
    )
    assert source_text(SourceDescription("prometheus", "main", ("http://p",), 60.0), 30) == (
        "prometheus main: http://p, every 30 s"
    )
    assert source_text(SourceDescription("scrape", "lab", (), 60.0), 60) == "scrape lab: no targets, every 60 s"
