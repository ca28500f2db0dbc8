"""PyTorch's CUDA memory snapshots, as pickle or JSON: what the allocator holds, uses, and cannot give back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np
import orjson

from collector.batch import Batch, Event, Fact, Severity, Subject, make_rows
from collector.clock import EARLIEST, LATEST, to_ms
from collector.importing.log import LogPlace, NotImportableError, Tally
from collector.importing.plain_pickle import NotPlainError, load_plain
from collector.importing.text import TextFile
from collector.schema import UNKNOWN

# States of blocks that tensors hold, and that wait for a stream to be done with them, as versions spell them.
_USED = frozenset(("active_allocated",))
_PENDING = frozenset(("active_pending_free", "active_awaiting_free"))
_FREE = frozenset(("inactive",))
_MOST_BYTES = 1 << 50  # of a card


def read_snapshot(file: TextFile, place: LogPlace, tally: Tally) -> Iterator[Batch]:
    """Read one snapshot: a `slice` row for each card that its process holds memory on.

    The row stands at the last event of the snapshot, else at `place.start`, else at the file's own time, with a
    warning. `allocator_inactive_split_bytes` are the free bytes of segments that are partly in use.

    Raises:
        NotImportableError: it is no snapshot, or asks for more than containers and scalars.
    """
    content = file.content()
    segments, traces = _parts(_document(content), len(content))
    at = _last_event(traces)
    if at is None:
        at = place.start or place.file_time
        if place.start is None:
            tally.warn(f"a snapshot without events carries no time: taken as {at.isoformat()} (say --start)")
    devices = _devices(segments, tally)
    if not devices:
        raise NotImportableError("no segment of it can be read: expected device, total_size and blocks of each")
    tally.accepted += len(segments) - sum(count for count, _ in tally.rejected.values())
    tally.note("a snapshot names neither its process nor its card's UUID: taken as the card's holder, by its number")
    yield _batch(devices, at, place, list(_out_of_memory(traces, place)))


def _document(content: bytes) -> Any:
    try:
        return load_plain(content) if content[:1] == b"\x80" else orjson.loads(content)
    except NotPlainError:
        raise NotImportableError(
            "it asks for more than containers and numbers, hence would run code: it was not read"
        ) from None
    except ValueError as error:
        raise NotImportableError(f"expected a memory snapshot, got a damaged file: {str(error)[:80]}") from None


def _parts(document: Any, size: int) -> tuple[list[Any], list[Any]]:
    """Return segments and traces of a snapshot of so many bytes; older ones are the list of segments alone."""
    segments = document.get("segments") if isinstance(document, dict) else document
    if not isinstance(segments, list):
        raise NotImportableError("expected a PyTorch memory snapshot with its `segments`, got another document")
    traces = document.get("device_traces") if isinstance(document, dict) else None
    traces = traces if isinstance(traces, list) else []
    blocks = (segment.get("blocks") for segment in segments if isinstance(segment, dict))
    # A pickle may refer to one list many times: what it unfolds to must not outgrow what it is written in.
    if sum(len(part) for part in (*blocks, *traces) if isinstance(part, list)) > size:
        raise NotImportableError("expected a memory snapshot, got one that refers to the same blocks again and again")
    return segments, traces


def _devices(segments: list[Any], tally: Tally) -> dict[int, np.ndarray]:
    """Return device -> bytes reserved, allocated, and stuck in segments that are partly in use."""
    found: dict[int, np.ndarray] = {}
    for number, segment in enumerate(segments, 1):
        read = _segment(segment)
        if isinstance(read, str):
            tally.reject(f"segment: {read}", number)
            continue
        device, amounts = read
        found[device] = found.get(device, np.zeros(3)) + amounts
    return found


def _segment(segment: Any) -> tuple[int, np.ndarray] | str:
    """Return the device and the three amounts of a segment, or why it cannot be read."""
    if not isinstance(segment, Mapping) or not isinstance(segment.get("blocks"), list):
        return "expected a segment with its blocks"
    device: Any = segment.get("device", 0)
    reserved: Any = segment.get("total_size")
    if not _whole(device) or not _whole(reserved):
        return "expected whole numbers for device and total_size"
    sizes = dict.fromkeys((*_USED, *_PENDING, *_FREE), 0)
    for block in segment["blocks"]:
        if not isinstance(block, Mapping) or not _whole(block.get("size")):
            return "expected blocks with their size in bytes"
        state: Any = block.get("state")
        if not isinstance(state, str) or state not in sizes:
            return f"expected a state of a block, got {state[:40] if isinstance(state, str) else type(state).__name__}"
        sizes[state] += block["size"]
    if sum(sizes.values()) > reserved:
        return "its blocks hold more than the segment"
    used, pending, free = (sum(sizes[state] for state in states) for states in (_USED, _PENDING, _FREE))
    return device, np.array([reserved, used, free if used or pending else 0], dtype=np.float64)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_BYTES


def _events(traces: list[Any]) -> Iterator[tuple[int, Mapping[str, Any], datetime]]:
    """Yield (device, event, instant) of events that carry their time."""
    for device, trace in enumerate(traces):
        for event in trace if isinstance(trace, list) else []:
            at = _instant(event.get("time_us")) if isinstance(event, Mapping) else None
            if at is not None:
                yield device, event, at


def _instant(microseconds: Any) -> datetime | None:
    if not isinstance(microseconds, int | float):
        return None
    if not EARLIEST.timestamp() <= microseconds / 1e6 < LATEST.timestamp():
        return None
    return datetime.fromtimestamp(microseconds / 1e6, UTC)


def _last_event(traces: list[Any]) -> datetime | None:
    return max((at for _, _, at in _events(traces)), default=None)


def _out_of_memory(traces: list[Any], place: LogPlace) -> Iterator[Event]:
    for device, event, at in _events(traces):
        if event.get("action") == "oom":
            asked = event.get("size")
            said = f"asked for {asked} bytes" if _whole(asked) else "asked for more than there was"
            subject = Subject("slice", place.cluster, place.node, f"{place.node}/{device}", "whole")
            yield Event(subject, "oom", Severity.ERROR, f"out of memory: {said}", at)


def _batch(devices: dict[int, np.ndarray], at: datetime, place: LogPlace, events: list[Event]) -> Batch:
    cards = [f"{place.node}/{device}" for device in sorted(devices)]
    amounts = np.array([devices[device] for device in sorted(devices)])
    size = len(cards)
    tags = {
        "cluster": [place.cluster] * size,
        "node": [place.node] * size,
        "gpu": cards,
        "slice": ["whole"] * size,
        "tenant": [UNKNOWN] * size,
        "workload": [UNKNOWN] * size,
    }
    values = {
        "allocator_reserved_bytes": amounts[:, 0],
        "allocator_allocated_bytes": amounts[:, 1],
        "allocator_inactive_split_bytes": amounts[:, 2],
    }
    batch = Batch({"slice": make_rows("slice", [to_ms(at)] * size, tags, values)}, events=events)
    for card in cards:
        subject = Subject("gpu", place.cluster, place.node, card)
        batch.facts.append(Fact(subject, "identity", "assumed", at, "estimated"))
    return batch
