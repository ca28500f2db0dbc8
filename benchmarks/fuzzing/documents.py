"""XML of nvidia-smi and memory snapshots: documents of the right structure, torn, spoilt and of strange types."""

from __future__ import annotations

import json
import math
import pickle
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from xml.sax.saxutils import escape

from benchmarks.fuzzing import words
from benchmarks.fuzzing.logs import ABSENT, START, compare, never_fails, read, rows
from collector.importing.log import NotImportableError
from collector.importing.smi_xml import read_xml
from collector.importing.snapshot import read_snapshot

MIB = 2.0**20
_XML: dict[str, tuple[str, str, float, int, int]] = {
    "utilization/gpu_util": ("busy_ratio", "%", 0.01, 0, 100),
    "utilization/memory_util": ("memory_busy_ratio", "%", 0.01, 0, 100),
    "fb_memory_usage/used": ("memory_used_bytes", "MiB", MIB, 0, 80_000),
    "fb_memory_usage/free": ("memory_free_bytes", "MiB", MIB, 0, 80_000),
    "temperature/gpu_temp": ("temperature_celsius", "C", 1.0, 1, 120),
    "gpu_power_readings/power_draw": ("power_watts", "W", 1.0, 5, 900),
    "clocks/sm_clock": ("sm_clock_hertz", "MHz", 1e6, 1, 3000),
}


def check_xml(random: Random) -> None:
    """Read a log of documents, some of them torn: the whole ones have their values."""
    parts, wanted = [], {}
    for n in range(random.randint(1, 4)):
        at = START + timedelta(seconds=n)
        text, values = _document(random, at)
        if random.random() < 0.2:
            parts.append(text[: random.randint(30, len(text) - 20)] + "\n")
            continue
        parts.append(text)
        wanted |= values
    content = "".join(parts)
    batches, _ = read(read_xml, content)
    compare(rows(batches, "gpu", "gpu"), wanted)
    never_fails(read_xml, words.spoilt(random, content.encode()))


def _document(random: Random, at: datetime) -> tuple[str, dict[tuple[str, datetime], dict[str, float]]]:
    gpus, wanted = "", {}
    for card in range(random.randint(1, 3)):
        groups: dict[str, str] = {}
        values: dict[str, float] = {}
        for path, (field, unit, factor, low, high) in _XML.items():
            kind = random.random()
            group, leaf = path.split("/")
            number = random.randint(low, high)
            if kind < 0.7:
                cell, values[field] = f"{number} {unit}", number * factor
            elif kind < 0.8:
                cell, values[field] = random.choice(ABSENT), math.nan
            elif kind < 0.9:
                cell, values[field] = random.choice(("Unknown Error", "garbage", f"{high + 10**6} {unit}")), math.nan
                if field in ("memory_used_bytes", "memory_free_bytes") and cell.startswith(str(high + 10**6)):
                    values[field] = (high + 10**6) * factor  # a card may have that much
            else:
                values[field] = math.nan
                continue
            groups[group] = groups.get(group, "") + f"<{leaf}>{cell}</{leaf}>"
        name = escape(words.text(random).replace("\n", " ").replace("\x00", ""))
        inside = "".join(f"<{group}>{leaves}</{group}>\n" for group, leaves in groups.items())
        gpus += f'<gpu id="0{card}"><product_name>{name}</product_name><uuid>GPU-{card}</uuid>\n{inside}</gpu>\n'
        wanted[f"GPU-{card}", at] = values
    head = '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n'
    stamp = f"{at:%a %b %d %H:%M:%S %Y}"
    return f"{head}<nvidia_smi_log>\n<timestamp>{stamp}</timestamp>\n{gpus}</nvidia_smi_log>\n", wanted


_STRANGE: tuple[Any, ...] = (None, "x", -1, 1.5, [], {}, True, 1 << 70, math.nan, ["a"], ("t",))
_STATES = ("active_allocated", "active_pending_free", "active_awaiting_free", "inactive")


def check_snapshot(random: Random) -> None:
    """Read a snapshot in one of its spellings: the amounts of the good segments are right, the others are counted."""
    segments: list[Any] = []
    wanted: dict[int, list[float]] = {}
    bad = 0
    for _ in range(random.randint(0, 12)):
        segment, amounts = _segment(random)
        if random.random() < 0.15:
            segments.append(_broken(random, segment))
            bad += 1
            continue
        segments.append(segment)
        own = wanted.setdefault(segment["device"], [0.0, 0.0, 0.0])
        wanted[segment["device"]] = [a + b for a, b in zip(own, amounts, strict=True)]
    last = random.randint(1_500_000_000_000_000, 1_900_000_000_000_000)
    trace = [{"action": "alloc", "size": 1, "time_us": last - n} for n in range(random.randint(1, 5))]
    document: Any = {"segments": segments, "device_traces": [trace, random.choice(_STRANGE[:6])]}
    stamped = random.random() < 0.7
    if not stamped:
        document = segments
    content = _dump(random, document)
    try:
        batches, tally = read(read_snapshot, content)
    except NotImportableError:
        words.require(not wanted, "a good snapshot was refused", document)
    else:
        found = rows(batches, "slice", "gpu")
        at = datetime.fromtimestamp(last / 1e6, UTC) if stamped else START
        words.require({gpu for gpu, _ in found} == {f"n1/{d}" for d in wanted}, "devices", list(found), wanted)
        for (gpu, time), row in found.items():
            words.require(abs((time - at).total_seconds()) < 0.002, "time", time, at)
            names = ("allocator_reserved_bytes", "allocator_allocated_bytes", "allocator_inactive_split_bytes")
            words.require_same("amounts", [row.get(name) for name in names], wanted[int(gpu.rpartition("/")[2])])
        words.require(sum(count for count, _ in tally.rejected.values()) == bad, "rejects", tally.rejected, bad)
    never_fails(read_snapshot, words.spoilt(random, content))


def _dump(random: Random, document: Any) -> bytes:
    if random.random() < 0.5:
        return pickle.dumps(document, random.choice((2, 3, 4, 5)))
    try:
        return json.dumps(document, allow_nan=False).encode()
    except ValueError:
        return pickle.dumps(document, 4)


def _segment(random: Random) -> tuple[dict[str, Any], list[float]]:
    blocks = [
        {"address": n, "size": random.randint(0, 1 << 30), "state": random.choice(_STATES)}
        for n in range(random.randint(0, 6))
    ]
    total = sum(block["size"] for block in blocks) + random.choice((0, 0, 512))
    used = sum(b["size"] for b in blocks if b["state"] == "active_allocated")
    busy = sum(b["size"] for b in blocks if b["state"] != "inactive")
    free = sum(b["size"] for b in blocks if b["state"] == "inactive")
    segment = {"device": random.randint(0, 3), "total_size": total, "blocks": blocks, "frames": words.text(random)}
    return segment, [float(total), float(used), float(free if busy else 0)]


def _broken(random: Random, segment: dict[str, Any]) -> Any:
    kind = random.randrange(6)
    if kind == 0:
        return random.choice(("x", 7, None, ["a"]))
    if kind == 1:
        return segment | {"total_size": random.choice((None, "1", -1, 1.5, True, 1 << 60))}
    if kind == 2:
        return segment | {"device": random.choice((None, "0", -1, 0.5, True))}
    if kind == 3:
        return segment | {"blocks": random.choice((None, {}, "x", [7]))}
    if kind == 4:
        return segment | {"blocks": [{"size": 1, "state": random.choice((None, "melted", 7, ["inactive"]))}]}
    return segment | {"total_size": 0, "blocks": [{"size": 1, "state": "inactive"}]}
