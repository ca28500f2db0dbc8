"""Where nodes are measured changes nothing of the answer: here, in processes, on a Dask cluster with real sockets."""

from __future__ import annotations

import gc
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import dask
import pandas as pd
import pytest
from distributed import LocalCluster

from analyzer.protocols import Partition
from analyzer.settings import AnalyzeSettings
from collector.errors import ConfigurationError, TrimtabError, UnreachableError
from collector.store import FrameStore
from sample_data.cluster import SimulatedCluster
from sample_data.cluster.presets import mixed
from tuner.service import spread as spreading
from tuner.service.analyse import find, load_detectors, run_analysis
from tuner.service.spread import measure_there, spread

MINUTES = 40  # enough for pairs to be tested


@pytest.fixture(scope="module")
def store() -> FrameStore:
    cluster = SimulatedCluster(mixed(1))
    batches = []
    for _ in range(MINUTES):
        cluster.step()
        batches.append(cluster.frames())
    return FrameStore.of_batches(batches)


@contextmanager
def cluster_of(workers: int) -> Iterator[str]:
    """Start a Dask cluster in threads, over loopback on free ports; patient, as the machine may be busy."""
    patience = {"distributed.comm.timeouts.connect": "300s", "distributed.comm.timeouts.tcp": "300s"}
    with (
        dask.config.set(patience),
        LocalCluster(
            n_workers=workers,
            threads_per_worker=2,
            processes=False,
            protocol="tcp",
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
        ) as cluster,
    ):
        yield cluster.scheduler_address


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    with cluster_of(2) as address, pytest.MonkeyPatch.context() as patch:
        patch.setattr(spreading, "_SCHEDULER_SECONDS", 300.0)
        yield address


def answer(store: FrameStore, executor: str) -> bytes:
    """Return the whole document, findings and all, as bytes."""
    window = store.span("slice")
    assert window is not None
    settings = AnalyzeSettings(executor=executor)
    detectors = load_detectors(settings, ("contention", "fragmentation", "idle", "health"))
    found = run_analysis(store, window, interval_seconds=60.0, settings=settings, detectors=detectors)
    return json.dumps(found.to_json()).encode()


def test_here_processes_and_dask_give_the_same_answer_to_the_byte(store: FrameStore, scheduler: str) -> None:
    here = answer(store, "here")
    codes = {finding["code"] for finding in json.loads(here)["findings"]}
    assert "TT101" in codes
    assert answer(store, "processes:1") == here
    assert answer(store, scheduler) == here


def test_findings_alone_are_spread_as_well(store: FrameStore, scheduler: str) -> None:
    window = store.span("slice")
    assert window is not None
    answers = [
        find(
            store,
            window,
            pd.DataFrame(),
            interval_seconds=60.0,
            settings=AnalyzeSettings(executor=executor),
            detectors=load_detectors(AnalyzeSettings(), ("idle",)),
        )
        for executor in ("here", scheduler)
    ]
    assert [f.to_json() for f in answers[0]] == [f.to_json() for f in answers[1]]


@dataclass
class Later:
    """A result that is told when it is asked for."""

    number: int
    asked: list[int]

    def result(self) -> int:
        self.asked.append(self.number)
        return self.number


def test_only_a_few_nodes_are_read_ahead() -> None:
    read, asked = [], []

    def nodes() -> Iterator[int]:
        for number in range(7):
            read.append(number)
            yield number

    def submit(_measure: object, number: int) -> Later:
        return Later(number, asked)

    results = iter(spreading._streamed(submit, lambda: 2)(str, nodes()))  # type: ignore[arg-type]  # numbers for nodes
    ahead = []
    for number, result in enumerate(results):
        assert result == number
        ahead.append(len(read) - len(asked))
    assert asked == list(range(7))
    assert max(ahead) == 2


@pytest.mark.parametrize("executor", ["", "there", "processes:0", "processes:x", "host:8786", "http://host:8786"])
def test_what_is_no_executor_is_refused(executor: str) -> None:
    with (
        pytest.raises(ConfigurationError, match="expected here, processes, processes:N or the address"),
        spread(executor),
    ):
        pass


def test_a_scheduler_that_is_not_there_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setattr(spreading, "_SCHEDULER_SECONDS", 0.1)  # nobody listens: any patience is long enough
        with pytest.raises(UnreachableError, match=f"expected a Dask scheduler at {address}"), spread(address):
            pass


@pytest.mark.parametrize("address", ["tcp://127.0.0.1", "tcp://[::1", "tls://127.0.0.1:9"])
def test_an_address_that_dask_cannot_use_is_unreachable_at_once(address: str) -> None:
    with pytest.raises(UnreachableError, match="expected a Dask scheduler at t"), spread(address):
        pass
    gc.collect()  # no client is left whose end would be told


def test_who_takes_a_connection_and_says_nothing_is_no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spreading, "_SCHEDULER_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(UnreachableError, match=f"expected a Dask scheduler at {address}"), spread(address):
            pass


def test_a_password_in_the_address_of_a_scheduler_is_not_told() -> None:
    for address in ("tcp://u:hunter2@127.0.0.1:9", "http://u:hunter2@127.0.0.1:9"):
        with pytest.raises(TrimtabError) as caught, spread(address):
            pass
        assert "hunter2" not in str(caught.value)


def test_a_scheduler_without_workers_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster_of(0) as address:
        monkeypatch.setattr(spreading, "_FIRST_WORKER_SECONDS", 0.1)  # none ever comes
        with pytest.raises(UnreachableError, match=f"at {address} had no worker for us"), spread(address):
            pass


def test_workers_of_another_version_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"expected Trimtab 0\.0 on the workers, got"):
        measure_there("0.0", str, "")


def fails(_node: Partition) -> None:
    raise ValueError("a detector's own fault")


@pytest.mark.parametrize("executor", ["here", "dask"])
def test_an_error_of_a_detector_stays_what_it_is(executor: str, store: FrameStore, scheduler: str) -> None:
    where = scheduler if executor == "dask" else executor
    with pytest.raises(ValueError, match="own fault"), spread(where) as map_nodes:
        list(map_nodes(fails, [None]))  # type: ignore[list-item]  # nothing is measured
