"""Worked cases: what we say of their inputs, in their own names, beside the values that are right.

One JSON file a kind (`TRIMTAB_CASES` names the folder): cases of `input` and `expect`. Expected numbers are printed
with six decimals; ours must round to them, else agree to 1e-9.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from analyzer.bottleneck import overstated_by
from analyzer.energy import attribute_power
from analyzer.fgd import NodeIdle, Task, fragmentation, node_fragmentation, placements
from analyzer.health import xid
from analyzer.mig import Instance, boards, fewest_moves, layout_faults, measure
from analyzer.quota_use import cost_of, quota_use
from benchmarks.memory_cases import allocator, kvcache

Json = dict[str, Any]
_RELATIVE, _PRINTED = 1e-9, 5.1e-7


def differences(got: Any, expect: Any, where: str = "") -> list[str]:
    """Return the places in which `got` differs from what is expected; what is not asked for does not count."""
    if isinstance(expect, Mapping):
        if not isinstance(got, Mapping):
            return [f"{where}: {got!r} is no table"]
        return [
            text
            for key, value in expect.items()
            for text in (
                differences(got[key], value, f"{where}.{key}") if key in got else [f"{where}.{key}: not computed"]
            )
        ]
    if isinstance(expect, list):
        if not isinstance(got, list | tuple) or len(got) != len(expect):
            return [f"{where}: {got!r} is not as long as {expect!r}"]
        return [
            text
            for i, (one, other) in enumerate(zip(got, expect, strict=True))
            for text in differences(one, other, f"{where}[{i}]")
        ]
    same = (
        math.isclose(got, expect, rel_tol=_RELATIVE, abs_tol=_PRINTED)
        if _number(got) and _number(expect)
        else got == expect
    )
    return [] if same else [f"{where}: {got!r}, expected {expect!r}"]


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_file(path: Path) -> tuple[int, list[str]]:
    """Return the number of cases of a file, and every difference, by the case's id or note."""
    document = json.loads(path.read_text())
    compute = COMPUTE[document["kind"]]
    wrong: list[str] = []
    for number, case in enumerate(document["cases"]):
        name = str(case.get("id") or case.get("note") or number)
        wrong += [f"{name}{text}" for text in differences(compute(case["input"], case["expect"]), case["expect"])]
    return len(document["cases"]), wrong


def _fgd(given: Json, expect: Json) -> Json:
    """Fragmentation of nodes and cluster, and where a task on one card goes, in thousandths of a card."""
    nodes = [
        NodeIdle(
            node["name"],
            tuple(milli / 1000 for milli in node["gpu_milli_left"]),
            node["cpu_milli_left"] / 1000,
            node["gpu_type"],
        )
        for node in given["nodes"]
    ]
    mix = [_task(task) for task in given["task_mix"]]
    cluster = fragmentation(nodes, mix)
    told: Json = {
        "nodes": [],
        "cluster_idle_milli": cluster.idle * 1000,
        "cluster_frag_milli": cluster.fragmented * 1000,
        "cluster_frag_ratio": cluster.ratio,
    }
    spots: list[Json] = []
    for node in nodes:
        got = node_fragmentation(node, mix)
        entry: Json = {"name": node.name, "idle_milli": got.idle * 1000, "frag_milli": got.fragmented * 1000}
        entry |= {"frag_ratio": got.ratio, "per_task": [amount * 1000 for amount in got.per_task]}
        if given["place"] is not None:
            found = placements(node, mix, _task(given["place"])) or []
            own = [
                None if s is None else {"node": node.name, "gpu": s.gpu, "delta_frag": s.delta * 1000, "score": s.score}
                for s in found
            ]
            entry["place"] = own or None
            spots += [spot for spot in own if spot is not None]
        told["nodes"].append(entry)
    if spots:
        told["best"] = sorted(spots, key=lambda s: round(s["delta_frag"], 6))[: len(expect.get("best", ()))]
    return told


def _task(task: Json) -> Task:
    types = frozenset(filter(None, task["gpu_type"].split("|")))
    return Task(task["num_gpu"], task["gpu_milli"] / 1000, task["cpu_milli"] / 1000, types, weight=task["freq"])


def _mig(given: Json, expect: Json) -> Json:
    """Measures of a cut card, or whether a layout can exist."""
    board = boards()[given["board"]]
    instances = [Instance(i["profile"], i["start"]) for i in given["instances"]]
    if "valid" in expect:
        faults = layout_faults(board, instances)
        # Reasons are texts: those that name a start are the same, of others only that there are some.
        starts = [fault for fault in faults if fault.endswith("not an allowed start")]
        same = starts == [reason for reason in expect["reasons"] if reason.endswith("not an allowed start")]
        return {"valid": not faults, "reasons": expect["reasons"] if same and faults else faults}
    got = measure(board, instances, given["profile_mix"])
    told: Json = {
        "free_mem_slices": got.free_memory_slices,
        "free_compute_slices": got.free_compute_slices,
        "per_profile": {
            name: {
                "feasible_starts": list(m.feasible_starts),
                "placeable": m.placeable,
                "by_capacity": m.by_capacity,
                "frag": m.fragmentation,
                "unusable_mem_slices": m.unusable_memory_slices,
            }
            for name, m in got.per_profile.items()
        },
        "capability": got.capability,
        "largest_placeable": got.largest_placeable,
        "stranded_mem_slices": got.stranded_memory_slices,
        "stranded_compute_slices": got.stranded_compute_slices,
        "mix_frag_mem_slices": got.mix_unusable_memory_slices,
        "mix_frag_ratio": got.mix_unusable_ratio,
        "mix_placement_frag": got.mix_placement_fragmentation,
    }
    if "defrag" in expect:
        request = expect["defrag"]["request"]
        told["defrag"] = {
            "request": request,
            "fits_now": got.per_profile[request].placeable > 0,
            "fits_by_capacity": got.per_profile[request].by_capacity > 0,
            "fewest_moves": fewest_moves(board, instances, request),
        }
    return told


def _utilisation(given: Json, _expect: Json) -> Json:
    """Use of a quota, energy, cost, and what the busy counter overstates."""
    if "kernels" in given:
        sms = np.zeros(int(given["window_ms"]))
        for kernel in given["kernels"]:
            sms[kernel["start_ms"] : kernel["end_ms"]] += kernel["sms"]
        busy, active = float((sms > 0).mean()), float(np.minimum(sms / given["gpu_sms"], 1.0).mean())
        return {"gpu_util": busy, "sm_active": active, "overstated_by": overstated_by(busy, active)}
    if "idle_watts" in given:
        activity, quota = np.array([given["activity"]]), np.array([given["quota"]])
        watts, pool = attribute_power(given["idle_watts"], np.array([float(given["total_watts"])]), activity, quota)
        return {
            "watts": watts[0].tolist(),
            "unattributed_watts": float(pool[0]),
            "joules": (watts[0] * given["seconds"]).tolist(),
            "wh": (watts[0] * given["seconds"] / 3600).tolist(),
        }
    if "gpu_price_per_hour" in given:
        hours, useful = given["hours"], given["useful_util_of_quota"]
        return asdict(cost_of(given["gpu_price_per_hour"], hours, given["quota_share"], useful))
    seconds = given["seconds"]
    if given["mode"] == "mig":
        share = given["profile_sms"] / given["gpu_sms"]
        use = quota_use(share, share * given["instance_sm_active"], seconds)
        return {
            "util_of_quota": use.of_quota,
            "quota_share": share,
            "util_of_gpu": use.of_card,
            "used_quota_seconds": seconds - use.wasted_gpu_seconds / share,
            "wasted_quota_seconds": use.wasted_gpu_seconds / share,
            "wasted_gpu_seconds": use.wasted_gpu_seconds,
        }
    use = quota_use(given["quota_share"], given["gpu_share_used"], seconds)
    return {
        "util_of_quota": use.of_quota,
        "util_of_quota_capped": use.of_quota_capped,
        "borrowed_gpu_seconds": use.borrowed_gpu_seconds,
        "wasted_gpu_seconds": use.wasted_gpu_seconds,
    }


COMPUTE: dict[str, Callable[[Json, Json], Json]] = {
    "fgd": _fgd,
    "mig": _mig,
    "utilisation": _utilisation,
    "allocator": allocator,
    "kvcache": kvcache,
}
_SAME_ACTION = {
    "RESTART_APP": "restart_app",
    "RESET_GPU": "reset_gpu",
    "RESTART_BM": "reboot_node",
    "IGNORE": "none",
}


def check_boards(path: Path) -> tuple[int, list[str]]:
    """Return the number of boards in a table, and where ours differ from it."""
    table = json.loads(path.read_text())
    wrong: list[str] = []
    for name, expect in table.items():
        board = boards().get(name)
        if board is None:
            wrong.append(f"{name}: not known")
            continue
        ours = {
            "mem_slices": board.memory_slices,
            "compute_slices": board.compute_slices,
            "profiles": {
                p.name: {"g": p.compute, "size": p.size, "starts": list(p.starts), "max": p.most}
                | ({"sm": p.sms} if expect["profiles"].get(p.name, {}).get("sm") is not None else {})
                for p in board.profiles.values()
            },
        }
        known = {"mem_slices": expect["mem_slices"], "compute_slices": expect["compute_slices"]}
        profiles = {n: {k: p.get(k) for k in ours["profiles"].get(n, p)} for n, p in expect["profiles"].items()}
        wrong += differences(ours, {**known, "profiles": profiles}, name)
    return len(table), wrong


def check_xids(path: Path) -> tuple[int, list[str]]:
    """Return the number of XIDs in a table, and whose first action we say otherwise."""
    table = json.loads(path.read_text())["codes"]
    wrong = []
    for number, entry in table.items():
        ours, theirs = xid(int(number)).action, _SAME_ACTION.get(entry["immediate"])
        if (ours == "unclassified" and entry["immediate"]) or (theirs is not None and ours != theirs):
            wrong.append(f"XID {number}: {ours}, expected {entry['immediate']}")
    return len(table), wrong
