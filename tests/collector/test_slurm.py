"""Slurm: texts as squeue and sinfo 22.05 print them, JSON of old and new, commands that misbehave."""

from __future__ import annotations

import json
import math
import stat
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from collector.assemble import Scrape
from collector.collect import add_scrapes
from collector.conformance import SourceConformance
from collector.demand import Ask, GpuRequest, SchedulerState
from collector.errors import ConfigurationError
from collector.plugins import SourceContext
from collector.schedulers.board import SchedulerBoard
from collector.schedulers.slurm import SlurmSource
from collector.schedulers.slurm_jobs import SlurmFormatError, asks_of, cards_of_nodes, read_jobs
from collector.settings import SourceSettings, TargetSettings
from collector.window import Window

START = datetime(2026, 1, 5, 1, tzinfo=UTC)
T0 = int(START.timestamp())


def line(job: str, state: str = "PENDING", **cells: object) -> str:
    """Return a line of squeue, padded as it pads."""
    row: dict[str, object] = {
        "id": job,
        "account": "team-a",
        "user": "ada",
        "partition": "gpu",
        "state": state,
        "submit": T0 - 600,
        "eligible": T0 - 600,
        "start": "N/A",
        "nodes": 1,
        "tasks": 1,
        "cpus": 8,
        "tres": "cpu=8,mem=500G,node=1,billing=8",
        "per_node": "N/A",
        "per_job": "N/A",
        "per_task": "N/A",
        "name": "train",
    } | cells
    name = row.pop("name")
    return "".join(f"{value!s:<32}|" for value in row.values()) + f"{name!s:<256}\n"


TEXT = "".join(
    (
        line("1", per_node="gres:gpu:a100:4"),
        line("2", account="(null)", nodes=2, per_node="gres:gpu:8", name="big|x"),
        line("3", per_job="gres:gpu:3"),
        line("4_0", per_node="gres:gpu:1"),
        line("4_1", per_node="gres:gpu:1"),
        line("5", name="no cards"),
        line("6", eligible="N/A", per_node="gres:gpu:1", name="held"),
        line("7", per_node="gres:shard:4"),
        line("9", partition="gpu,low", per_task="gres:gpu:2", tasks=3),
        line("10", "RUNNING", start=T0 - 60, tres="cpu=8,node=2,gres/gpu=16,gres/gpu:h100=16", nodes=2),
        line("11", "COMPLETED", start=T0 - 60, per_node="gres:gpu:1"),
    )
)


def test_jobs_become_requests() -> None:
    asks = asks_of(read_jobs(TEXT))
    told = {key: (ask.pods, ask.request.cards, ask.request.share, ask.pool, ask.gpu_type) for key, ask in asks.items()}
    assert told == {
        "team-a/1": (1, 4, 1, "gpu", "a100"),
        "ada/2": (2, 8, 1, "gpu", ""),  # without an account the user pays
        "team-a/3": (1, 3, 1, "gpu", ""),
        "team-a/4_0": (1, 1, 1, "gpu", ""),
        "team-a/4_1": (1, 1, 1, "gpu", ""),
        "team-a/7": (1, 1, None, "gpu", ""),  # how much a shard is, only the site knows
        "team-a/9": (1, 6, 1, "gpu", ""),
        "team-a/10": (2, 8, 1, "gpu", "h100"),
    }
    assert asks["ada/2"].workload == "big|x"
    assert asks["team-a/1"].granted is None
    assert asks["team-a/10"].granted == T0 - 60
    assert asks["ada/2"].card_equivalents == 16


def record(job: int, **fields: Any) -> dict[str, Any]:
    """Return a job as squeue's JSON has it."""
    return {
        "account": "team-a",
        "array_job_id": 0,
        "array_task_id": None,
        "array_task_string": "",
        "cpus": 8,
        "eligible_time": T0 - 600,
        "job_id": job,
        "job_state": "PENDING",
        "name": "train",
        "node_count": 1,
        "partition": "gpu",
        "start_time": 0,
        "submit_time": T0 - 600,
        "tasks": 1,
        "tres_alloc_str": "",
        "tres_per_job": "",
        "tres_per_node": "",
        "tres_per_task": "",
        "tres_req_str": "cpu=8,mem=500G,node=1,billing=8",
        "user_name": "ada",
    } | fields


def number(value: int | None) -> dict[str, Any]:
    """Wrap a number as newer versions do."""
    return {"set": value is not None, "infinite": False, "number": value or 0}


def test_json_of_22_05_says_the_same() -> None:
    jobs = [
        record(1, tres_per_node="gres:gpu:a100:4"),
        record(2, account="", node_count=2, tres_per_node="gres:gpu:8"),
        record(4, array_job_id=4, array_task_string="0-3%2", tres_per_node="gres:gpu:1"),
        record(6, eligible_time=0, tres_per_node="gres:gpu:1"),
        record(10, job_state="RUNNING", start_time=T0 - 60, tres_alloc_str="gres/gpu=16", node_count=2),
    ]
    asks = asks_of(read_jobs(json.dumps({"meta": {}, "errors": [], "jobs": jobs})))
    assert {key: (ask.pods, ask.request.cards) for key, ask in asks.items()} == {
        "team-a/1": (1, 4),
        "ada/2": (2, 8),
        "team-a/4": (4, 1),  # four tasks wait in one record
        "team-a/10": (2, 8),
    }
    assert asks["team-a/10"].granted == T0 - 60


def test_json_of_newer_versions_wraps_numbers_and_lists_states() -> None:
    job = record(
        12,
        job_state=["PENDING", "REQUEUED"],
        array_job_id=number(12),
        array_task_id=number(3),
        eligible_time=number(T0 - 300),
        submit_time=number(T0 - 600),
        start_time=number(None),
        node_count=number(1),
        cpus=number(8),
        tasks=number(1),
        tres_req_str="cpu=8,gres/gpu=2",
    )
    asks = asks_of(read_jobs(json.dumps({"jobs": [job, "nonsense", {}]})))
    assert list(asks) == ["team-a/12_3"]
    assert asks["team-a/12_3"].request.cards == 2
    assert asks["team-a/12_3"].since == T0 - 300


def test_nodes_stand_once_however_many_partitions() -> None:
    text = "n1|gpu:a100:8(S:0-1),shard:16|\nn1|gpu:a100:8(S:0-1),shard:16\nn2|(null)\nn3|gpu:a100:2,gpu:h100:6\n\n"
    assert cards_of_nodes(text) == {"n1": 8, "n3": 8}


@pytest.mark.parametrize("text", ["slurm_load_jobs error: Unable to contact slurm controller", "1|2|3", "{", "{]"])
def test_what_squeue_does_not_print_is_refused(text: str) -> None:
    with pytest.raises(SlurmFormatError, match="expected"):
        list(read_jobs(text))


def test_what_sinfo_does_not_print_is_refused() -> None:
    with pytest.raises(SlurmFormatError, match="expected node"):
        cards_of_nodes("slurm_load_partitions: Unable to contact slurm controller")


class Site:
    """Commands of ours under a folder, that print what a file says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.command("squeue", 'echo "$@" > "$0.asked"; echo "$SLURM_TIME_FORMAT" >> "$0.asked"; cat "$0.txt"')
        self.command("sinfo", 'cat "$0.txt"')
        self.say("squeue", "")
        self.say("sinfo", "n1|gpu:8\n")

    def command(self, name: str, script: str) -> None:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def say(self, name: str, text: str) -> None:
        (self.folder / f"{name}.txt").write_text(text)

    def source(self, *, timeout: float = 10.0, **options: str | bool) -> SlurmSource:
        named = {name: str(self.folder / name) for name in ("squeue", "sinfo")} | options
        settings = SourceSettings(kind="slurm", options=named, timeout_seconds=timeout)
        return SlurmSource(settings, SourceContext(cluster="test"))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_job_waits_runs_and_ends(site: Site) -> None:
    source = site.source()
    site.say("squeue", line("1", per_node="gres:gpu:4") + line("2", "RUNNING", start=T0 - 300, per_node="gres:gpu:2"))
    batch = source.poll(START)
    row = batch.rows["queue"].to_pylist()[0]
    assert (row["pool"], row["tenant"]) == ("gpu", "team-a")
    assert (row["pending_count"], row["pending_gpu_count"], row["allocated_gpu_count"]) == (1, 4, 2)
    assert row["oldest_wait_seconds"] == 600
    assert math.isnan(row["quota_gpu_count"])
    assert {(f.subject.object, f.name) for f in batch.facts} == {
        ("team-a/1", "request"),
        ("team-a/2", "request"),
        ("team-a/2", "started"),
    }
    asked = (site.folder / "squeue.asked").read_text()
    assert asked.startswith("-h -r -O JobArrayID:64|,Account:128|")
    assert asked.endswith("%s\n")

    site.say("squeue", line("1", "RUNNING", start=T0 + 30, per_node="gres:gpu:4"))
    batch = source.poll(START + timedelta(minutes=1))
    row = batch.rows["queue"].to_pylist()[0]
    assert (row["pending_count"], row["allocated_gpu_count"], row["admitted_count"]) == (0, 4, 1)
    assert row["wait_p95_seconds"] == 630
    ended = {(f.subject.object, f.name) for f in batch.facts if f.value is None}
    assert ended == {("team-a/2", "request"), ("team-a/2", "started")}
    site.say("squeue", "")
    batch = source.poll(START + timedelta(minutes=2))
    assert {f.subject.object for f in batch.facts if f.value is None} == {"team-a/1"}


def test_json_is_asked_for(site: Site) -> None:
    site.say("squeue", json.dumps({"jobs": [record(1, tres_per_node="gres:gpu:4")]}))
    batch = site.source(json=True).poll(START)
    assert (site.folder / "squeue.asked").read_text().startswith("--json\n")
    assert batch.rows["queue"].to_pylist()[0]["pending_gpu_count"] == 4


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "echo 'slurm_load_jobs error: no controller' >&2; exit 1",
            "ended with 1: slurm_load_jobs error: no controller",
        ),
        ("sleep 30", "to end in 0.3 s, it did not"),
        ("sleep 30 & sleep 30", "to end in 0.3 s, it did not"),
        ("echo unexpected", "expected 16 columns, got 1"),
    ],
)
def test_a_command_that_misbehaves_is_a_target_that_is_down(site: Site, script: str, said: str) -> None:
    site.command("squeue", script)
    batch = site.source(timeout=0.3 if "sleep" in script else 10.0).poll(START)
    assert [event.code for event in batch.events] == ["target_down"]
    assert said in batch.events[0].message
    assert "queue" not in batch.rows


def test_warnings_of_a_command_are_no_jobs(site: Site) -> None:
    site.command("squeue", 'echo "squeue: warning: something" >&2; cat "$0.txt"')
    site.say("squeue", line("1", per_node="gres:gpu:4"))
    assert site.source().poll(START).rows["queue"].num_rows == 1


def test_nodes_that_cannot_be_listed_cost_no_job(site: Site) -> None:
    site.say("squeue", line("1", per_node="gres:gpu:4"))
    site.command("sinfo", "exit 3")
    batch = site.source().poll(START)
    assert [event.code for event in batch.events] == ["source_denied"]
    assert "nodes cannot be read: " in batch.events[0].message
    assert batch.rows["queue"].num_rows == 1


def test_a_command_that_is_not_there(site: Site) -> None:
    batch = site.source(squeue="/nowhere/squeue").poll(START)
    assert "expected to run /nowhere/squeue, got No such file" in batch.events[0].message


@pytest.mark.parametrize("options", [{"squeue": ""}, {"squeue": "'"}, {"sqeue": "x"}, {"json": "often"}])
def test_configuration_that_names_no_command(options: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=r"options\."):
        SlurmSource(SourceSettings(kind="slurm", options=options), SourceContext())


class TestSlurmSource(SourceConformance):
    """The laws of every source."""

    @pytest.fixture
    def source(self, site: Site) -> SlurmSource:
        site.say("squeue", TEXT)
        return site.source()

    @pytest.fixture
    def now(self) -> datetime:
        return START + timedelta(seconds=61)

    @pytest.fixture
    def past(self) -> Window:
        return Window(START, START + timedelta(hours=1))


def test_the_same_command_on_two_hosts_is_two_targets() -> None:
    sources = [
        SlurmSource(SourceSettings(kind="slurm", options={"squeue": f"ssh {host} squeue"}), SourceContext())
        for host in ("login1", "login2")
    ]
    targets = [source.describe().targets for source in sources]
    assert targets == [("slurm:ssh login1 squeue",), ("slurm:ssh login2 squeue",)]


def test_what_a_scheduler_said_is_not_replaced_by_a_failure() -> None:
    target = TargetSettings(url="slurm:squeue")
    answer, failure = Scrape(target, None, demand=SchedulerState()), Scrape(target, None, "late")
    for scrapes in ([answer, failure], [failure, answer]):
        known: dict[str, Scrape] = {}
        add_scrapes(known, scrapes)
        assert list(known.values()) == [answer]


def test_equal_job_numbers_of_two_slurm_clusters_are_two_jobs() -> None:
    def asked(account: str, name: str, numbers: Sequence[int]) -> SchedulerState:
        request = GpuRequest(1.0, 1.0, None, 0.0, "")
        asks = [Ask(f"{account}/{n}", account, name, "gpu", request, 0.0, to_pods=False) for n in numbers]
        return SchedulerState(asks={ask.key: ask for ask in asks})

    board = SchedulerBoard()
    board.take({"slurm:ssh east squeue": (None, asked("vision", "train", (7, 8)))})
    assert board.demand is not None
    assert set(board.demand.asks) == {"vision/7", "vision/8"}
    board.take({"slurm:ssh west squeue": (None, asked("vision", "serve", (7, 9)))})
    assert {key: ask.workload for key, ask in board.demand.asks.items()} == {
        "vision/7@ssh east squeue": "train",
        "vision/8@ssh east squeue": "train",
        "vision/7@ssh west squeue": "serve",
        "vision/9@ssh west squeue": "serve",
    }
    assert board.jobs() == {"8": ("vision", "train"), "9": ("vision", "serve")}  # of 7 nobody can say whose it is
    board.take({"slurm:ssh west squeue": (None, SchedulerState())})  # its queue is empty: names stay what they were
    assert set(board.demand.asks) == {"vision/7@ssh east squeue", "vision/8@ssh east squeue"}
