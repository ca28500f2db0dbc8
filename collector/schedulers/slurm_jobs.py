"""Slurm's words: jobs of `squeue` as text or JSON, cards of nodes of `sinfo`, as requests.

Fields and values as Slurm 22.05 writes them; newer JSON wraps numbers and lists states.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from collector.demand import Ask, GpuRequest
from collector.schedulers.objects import Json, items, table
from collector.whole import DIGITS, whole

# Widths cut what is longer; the name may hold anything, also a bar, and stands last.
_COLUMNS = {
    "JobArrayID": 64,
    "Account": 128,
    "UserName": 128,
    "Partition": 256,
    "State": 24,
    "SubmitTime": 32,
    "EligibleTime": 32,
    "StartTime": 32,
    "NumNodes": 12,
    "NumTasks": 12,
    "NumCPUs": 12,
    "tres-alloc": 1024,
    "tres-per-node": 256,
    "tres-per-job": 256,
    "tres-per-task": 256,
    "Name": 256,
}
SQUEUE_FORMAT = ",".join(f"{name}:{width}" + ("" if name == "Name" else "|") for name, width in _COLUMNS.items())
SINFO_FORMAT = "%N|%G"

_ABSENT = frozenset(("", "N/A", "(null)", "NONE", "Unknown"))
_HOLDING = frozenset(("RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STAGE_OUT", "STOPPED", "SIGNALING"))
_WAITING = frozenset(("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED"))
_GRES = re.compile(r"(?:gres[:/])?(gpu|mps|shard)(?::([^:=,()]+?))?[:=](\d{1,15})(?=$|[,(])")
_ARRAY_PART = re.compile(r"^(\d{1,15})(?:-(\d{1,15})(?::(\d{1,15}))?)?$")


@dataclass(frozen=True, slots=True)
class Job:
    """One job (or one task of an array). Times are seconds since the epoch; None: not set."""

    id: str
    account: str
    user: str
    partition: str
    state: str
    name: str
    submitted: float | None
    eligible: float | None
    started: float | None
    nodes: int
    tasks: int
    cpus: float
    allocated: str  # TRES, as `cpu=4,gres/gpu=2`
    per_node: str
    per_job: str
    per_task: str
    copies: int = 1  # tasks of an array that wait in one record


class SlurmFormatError(ValueError):
    """What was read is not what squeue or sinfo write."""


def read_jobs(text: str) -> Iterator[Job]:
    """Read squeue's output: JSON where it begins with a brace, else lines of `SQUEUE_FORMAT`.

    Raises:
        SlurmFormatError: a line or a document of another shape.
    """
    if text.lstrip().startswith("{"):
        try:
            document = table(orjson.loads(text))
        except orjson.JSONDecodeError as error:
            raise SlurmFormatError(f"expected squeue's JSON, got something else ({error})") from error
        for job in items(document.get("jobs")):
            yield _of_json(job)
        return
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            yield _of_line(line, number)


def _of_line(line: str, number: int) -> Job:
    cells = [cell.strip() for cell in line.split("|", len(_COLUMNS) - 1)]
    if len(cells) != len(_COLUMNS):
        raise SlurmFormatError(f"squeue line {number}: expected {len(_COLUMNS)} columns, got {len(cells)}")
    row = dict(zip(_COLUMNS, ("" if cell in _ABSENT else cell for cell in cells), strict=True))
    return Job(
        id=row["JobArrayID"],
        account=row["Account"],
        user=row["UserName"],
        partition=row["Partition"],
        state=row["State"],
        name=row["Name"],
        submitted=_time(row["SubmitTime"]),
        eligible=_time(row["EligibleTime"]),
        started=_time(row["StartTime"]),
        nodes=max(_int(row["NumNodes"]), 1),
        tasks=max(_int(row["NumTasks"]), 1),
        cpus=float(_int(row["NumCPUs"])),
        allocated=row["tres-alloc"],
        per_node=row["tres-per-node"],
        per_job=row["tres-per-job"],
        per_task=row["tres-per-task"],
    )


def _of_json(job: Json) -> Job:
    state = job.get("job_state")
    states = state if isinstance(state, list) else [state]
    task = _json_number(job.get("array_task_id"))
    array = _json_number(job.get("array_job_id"))
    number = f"{array:.0f}_{task:.0f}" if array and task is not None else f"{_json_number(job.get('job_id')) or 0:.0f}"
    return Job(
        id=number,
        account=_json_text(job, "account"),
        user=_json_text(job, "user_name"),
        partition=_json_text(job, "partition"),
        state=str(states[0] or "") if states else "",
        name=_json_text(job, "name"),
        submitted=_json_number(job.get("submit_time")) or None,
        eligible=_json_number(job.get("eligible_time")) or None,
        started=_json_number(job.get("start_time")) or None,
        nodes=int(max(_json_number(job.get("node_count")) or 1, 1)),
        tasks=int(max(_json_number(job.get("tasks")) or 1, 1)),
        cpus=_json_number(job.get("cpus")) or 0.0,
        allocated=_json_text(job, "tres_alloc_str") or _json_text(job, "tres_req_str"),
        per_node=_json_text(job, "tres_per_node"),
        per_job=_json_text(job, "tres_per_job"),
        per_task=_json_text(job, "tres_per_task"),
        copies=max(_array_size(_json_text(job, "array_task_string")), 1),
    )


def _json_text(job: Json, name: str) -> str:
    value = job.get(name)
    return value if isinstance(value, str) and value not in _ABSENT else ""


def _json_number(value: Any) -> float | None:
    """Return a number, also one that newer versions wrap: `{"set": true, "infinite": false, "number": 3}`."""
    if isinstance(value, Mapping):
        value = value.get("number") if value.get("set", True) and not value.get("infinite") else None
    known = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 10.0**DIGITS
    return float(value) if known else None


def _int(text: str) -> int:
    """Return a count; of a range (`2-4`) the least."""
    match = re.match(r"\d+", text)
    return whole(match.group()) if match else 0


def _time(text: str) -> float | None:
    if text.isdecimal():
        return float(whole(text)) or None
    try:  # a site's own SLURM_TIME_FORMAT, or a recording: local time without a zone
        return datetime.fromisoformat(text).astimezone().timestamp()
    except ValueError:
        return None


def _array_size(text: str) -> int:
    """Return how many tasks `0-9%2` or `1,3,5-9:2` names; 0 of an empty or cut list."""
    total = 0
    for part in text.partition("%")[0].split(","):
        match = _ARRAY_PART.match(part)
        if match:
            first, last, step = int(match.group(1)), match.group(2), int(match.group(3) or 1)
            total += 1 if last is None else max((int(last) - first) // max(step, 1) + 1, 0)
    return total


def asks_of(jobs: Iterable[Job]) -> dict[str, Ask]:
    """Return the jobs that ask for cards, or parts of them, by key.

    A job waits from when it was eligible: one that is held, or waits for another job or for an hour, waits for no card.
    """
    asks: dict[str, Ask] = {}
    for job in jobs:
        gpu, pods, kind = _request(job)
        holds = job.state in _HOLDING
        if gpu is None or not (holds or job.state in _WAITING):
            continue
        since = job.eligible or (job.submitted if holds else None)
        if since is None:
            continue
        who = job.account or job.user or "unknown"
        ask = Ask(
            key=f"{who}/{job.id}",
            namespace=who,
            workload=job.name or job.id,
            pool=job.partition.partition(",")[0] or "default",
            request=gpu,
            since=since,
            pods=pods * job.copies,
            granted=max(job.started or since, since) if holds else None,
            gpu_type=kind,
            to_pods=False,
        )
        asks[ask.key] = ask
    return asks


def _request(job: Job) -> tuple[GpuRequest | None, int, str]:
    """Return what one node's part of a job asks for, how many such parts, and the card's type.

    The total of TRES is complete where a site accounts for cards; else what was asked by node, job or task.
    """
    kinds = [_gres(text) for text in (job.per_node, job.per_job, job.per_task, job.allocated)]
    named = next((kind for found in kinds for _, kind in found.values() if kind), "")
    for found, factor in zip(kinds, (job.nodes, 1, job.tasks, 1), strict=True):
        if "gpu" in found:
            total, parts = found["gpu"][0] * factor, job.nodes
            if "gpu" in kinds[3]:
                total = kinds[3]["gpu"][0]
            even = parts if total % parts == 0 else 1
            return GpuRequest(total / even, 1.0, None, job.cpus / even, ""), even, named
        if "mps" in found or "shard" in found:
            # So many units of a card; how many there are of one, only the site's configuration knows.
            return GpuRequest(1.0, None, None, job.cpus / job.nodes, ""), job.nodes, named
    return None, 1, ""


def _gres(text: str) -> dict[str, tuple[int, str]]:
    """Return gres by name: how many, and of which type.

    A total beside its types (`gres/gpu=2,gres/gpu:a100=2`) counts once.
    """
    plain: dict[str, int] = {}
    typed: dict[str, int] = {}
    kinds: dict[str, str] = {}
    for name, kind, count in _GRES.findall(text):
        if kind:
            typed[name] = typed.get(name, 0) + int(count)
            kinds.setdefault(name, kind)
        else:
            plain[name] = plain.get(name, 0) + int(count)
    return {
        name: (count, kinds.get(name, ""))
        for name in plain.keys() | typed.keys()
        if (count := plain.get(name, typed.get(name, 0))) > 0
    }


def cards_of_nodes(text: str) -> dict[str, float]:
    """Return the cards of each node, of sinfo's lines of `SINFO_FORMAT` (a node stands there once a partition).

    Raises:
        SlurmFormatError: a line of another shape.
    """
    cards: dict[str, float] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        node, bar, gres = line.strip().partition("|")
        if not bar:
            raise SlurmFormatError(f"sinfo line {number}: expected node|gres, got {line.strip()[:60]!r}")
        found = _gres(gres)
        if "gpu" in found:
            cards[node] = float(found["gpu"][0])
    return cards
