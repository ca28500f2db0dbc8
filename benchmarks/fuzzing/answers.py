"""JSON answers: a Prometheus server's, and the objects of Kubernetes and Slurm."""

from __future__ import annotations

import json
import math
from random import Random
from typing import Any

import orjson

from benchmarks.fuzzing import words
from collector.kube import KubeState
from collector.prometheus_answer import BadAnswerError, read_range
from collector.schedulers.kai import read_kai
from collector.schedulers.kueue import read_kueue
from collector.schedulers.objects import quantity
from collector.schedulers.pods import add_node, add_pod, add_quota, read_pod
from collector.schedulers.slurm_jobs import SlurmFormatError, read_jobs
from collector.schedulers.volcano import read_volcano


def check_prometheus(random: Random) -> None:
    """Read a range answer, however its JSON is laid out: labels, counts, times and values are as generated."""
    metrics, counts, times, values, result = [], [], [], [], []
    for _ in range(random.randint(0, 6)):
        metric = {"__name__": words.name(random, ":")} | {
            words.name(random): _label(random) for _ in range(random.randint(0, 4))
        }
        pairs = []
        for n in range(random.randint(0, 6)):
            at = 1_700_000_000 + n * 15 + random.choice((0, random.randint(0, 999) / 1000))
            text = random.choice(("NaN", "+Inf", "-Inf", "0", "1e-5", repr(random.uniform(-1e9, 1e9)), "9.2e18"))
            pairs.append([at, text])
            times.append(round(at * 1000))
            values.append(float(text))
        one = {"metric": metric, "values": pairs}
        if not pairs and random.random() < 0.5:
            del one["values"]
        result.append(one if random.random() < 0.8 else dict(reversed(one.items())))
        metrics.append(metric)
        counts.append(len(pairs))
    document = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    body = json.dumps(document).encode() if random.random() < 0.3 else orjson.dumps(document)
    answer = read_range(body)
    words.require_same("metrics", list(answer.metrics), metrics)
    words.require_same("counts", answer.counts.tolist(), counts)
    words.require_same("times", answer.times_ms.tolist(), times)
    words.require_same("values", answer.values.tolist(), values)
    try:
        read_range(words.spoilt(random, body))
    except BadAnswerError:
        return


def _label(random: Random) -> str:
    return random.choice(('},"values":[[', "]]", "],[", words.text(random), words.text(random)))


_QUANTITIES: tuple[tuple[Any, float], ...] = (
    ("4", 4.0),
    ("500m", 0.5),
    ("2Gi", 2.0 * 2**30),
    ("1e3", 1000.0),
    ("1.5k", 1500.0),
    (".5", 0.5),
    (8, 8.0),
    (0.25, 0.25),
    ("0", 0.0),
)
_NO_QUANTITIES: tuple[Any, ...] = (
    "",
    "x",
    "1 2",
    "4Q",
    None,
    True,
    [],
    {},
    "1e",
    "--1",
    "nan",
    "inf",
    "1e999",
    10**400,
)


def check_kube(random: Random) -> None:
    """Read objects of Kubernetes and Slurm with right and wrong types at every place."""
    for value, number in random.sample(_QUANTITIES, 3):
        words.require_same("quantity", [quantity(value)], [number])
    for value in random.sample(_NO_QUANTITIES, 3):
        words.require(math.isnan(quantity(value)), "a quantity that is none", value, quantity(value))
    _check_pod(random)
    state = KubeState()
    for use in (add_pod, add_node, add_quota):
        use(state, _object(random, 4))
    objects = [_object(random, 5) for _ in range(3)]
    read_kueue(objects, objects, objects)
    read_kai(objects)
    read_volcano(objects, objects, ())
    _check_slurm(random)


def _check_pod(random: Random) -> None:
    phase = random.choice(("Pending", "Running", "Succeeded", "Failed"))
    containers, wanted = [], {}
    for n in range(random.randint(0, 4)):
        good = random.random() < 0.8
        value, number = random.choice(_QUANTITIES) if good else (random.choice(_NO_QUANTITIES), math.nan)
        where = random.choice(("limits", "requests"))
        containers.append({"name": f"c{n}", "resources": {where: {"nvidia.com/gpu": value}}})
        if good:
            wanted["nvidia_com_gpu"] = wanted.get("nvidia_com_gpu", 0.0) + number
        if random.random() < 0.2:
            containers.append(random.choice((None, "x", 7, {"resources": random.choice((None, [], "x"))})))
    item = {
        "metadata": {"name": "p", "namespace": words.text(random), "labels": {"app": words.text(random)}},
        "spec": {"nodeName": "n1", "containers": containers},
        "status": {"phase": phase},
    }
    for part in ("metadata", "spec", "status"):
        for key in random.sample(("ownerReferences", "conditions", "containerStatuses", "annotations", "x"), 2):
            item[part].setdefault(key, _junk(random, 2))
    pod = read_pod(item)
    words.require(pod is not None and (pod.phase, pod.node) == (phase, "n1"), "pod", pod)
    words.require(pod is not None and pod.requests == wanted, "requests", pod, wanted)


def _object(random: Random, depth: int) -> dict[str, Any]:
    return {key: _junk(random, depth - 1) for key in random.sample(_KEYS, random.randint(0, 12))}


def _junk(random: Random, depth: int) -> Any:
    """Return an object with the keys that Kubernetes uses and anything at all behind them."""
    if depth == 0 or random.random() < 0.2:
        return random.choice((*_NO_QUANTITIES, "2026-04-01T00:00:00Z", "4", 1, "True", words.text(random), -1, 1.5))
    if random.random() < 0.3:
        return [_junk(random, depth - 1) for _ in range(random.randint(0, 3))]
    keys = random.sample(_KEYS, random.randint(0, 9))
    return {key: _junk(random, depth - 1) for key in keys}


_KEYS = (
    *("metadata", "spec", "status", "name", "namespace", "labels", "annotations", "creationTimestamp", "conditions"),
    *("type", "lastTransitionTime", "containers", "resources", "limits", "requests", "nvidia.com/gpu", "podSets"),
    *("count", "template", "queueName", "clusterQueue", "admission", "resourceGroups", "flavors", "nominalQuota"),
    *("flavorsReservation", "total", "ownerReferences", "kind", "controller", "allocatable", "capacity", "hard"),
    *("requests.nvidia.com/gpu", "gpu-fraction", "gpu-memory", "phase", "nodeName", "containerStatuses", "state"),
    *("terminated", "finishedAt", "reason", "pendingWorkloads", "minMember", "queue", "priority", "allocated", "quota"),
)


def _check_slurm(random: Random) -> None:
    jobs = []
    for n in range(random.randint(0, 4)):
        job: dict[str, Any] = {"job_id": 100 + n, "job_state": ["RUNNING"], "account": words.text(random), "cpus": 4}
        for key in random.sample(
            ("submit_time", "node_count", "tasks", "array_task_id", "array_task_string", "name"), 3
        ):
            job[key] = _junk(random, 2)
        jobs.append(job)
    try:
        found = list(read_jobs(json.dumps({"jobs": jobs})))
    except SlurmFormatError:
        words.require(any(v == 10**400 for job in jobs for v in _values(job)), "jobs were refused", jobs)
        return
    words.require_same("states", [job.state for job in found], ["RUNNING"] * len(jobs))
    words.require_same("cpus", [job.cpus for job in found], [4.0] * len(jobs))


def _values(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for one in value.values() for leaf in _values(one)]
    if isinstance(value, list):
        return [leaf for one in value for leaf in _values(one)]
    return [value]
