"""PyTorch's CUDA memory snapshots, as pickle or JSON: what the allocator holds, uses, and cannot give back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import orjson

from collector.batch import Batch, Event, Fact, Severity, Subject, make_rows
from collector.clock import EARLIEST, LATEST, to_ms
from collector.importing.log import LogPlace, NotImportableError, Tally
from collector.importing.plain_pickle import NotPlainError, load_plain
from collector.importing.segments import BlockState, Segment, read_segment, whole
from collector.importing.text import TextFile
from collector.schema import UNKNOWN


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """A snapshot's segments, the events of each device (as written), and why parts of it were left out."""

    segments: tuple[Segment, ...]
    traces: tuple[Any, ...]
    rejected: tuple[tuple[int, str], ...]  # (place from 1, reason) of segments


def memory_snapshot(content: bytes) -> MemorySnapshot:
    """Read a snapshot, pickle or JSON; nothing of a pickle runs.

    Raises:
        NotImportableError: it is no snapshot, or asks for more than containers and scalars.
    """
    entries, traces = _parts(_document(content), len(content))
    read = [read_segment(entry) for entry in entries]
    return MemorySnapshot(
        segments=tuple(segment for segment in read if isinstance(segment, Segment)),
        traces=tuple(traces),
        rejected=tuple((n, why) for n, why in enumerate(read, 1) if isinstance(why, str)),
    )


def read_snapshot(file: TextFile, place: LogPlace, tally: Tally) -> Iterator[Batch]:
    """Read one snapshot: a `slice` row for each card that its process holds memory on.

    The row stands at the last event of the snapshot, else at `place.start`, else at the file's own time, with a
    warning. `allocator_inactive_split_bytes` are the free bytes of segments that are partly in use.

    Raises:
        NotImportableError: it is no snapshot, or asks for more than containers and scalars.
    """
    snapshot = memory_snapshot(file.content())
    traces = list(snapshot.traces)
    at = _last_event(traces)
    if at is None:
        at = place.start or place.file_time
        if place.start is None:
            tally.warn(f"a snapshot without events carries no time: taken as {at.isoformat()} (say --start)")
    for number, why in snapshot.rejected:
        tally.reject(f"segment: {why}", number)
    devices = _devices(snapshot.segments)
    if not devices:
        raise NotImportableError("no segment of it can be read: expected device, total_size and blocks of each")
    tally.accepted += len(snapshot.segments)
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


def _devices(segments: Iterable[Segment]) -> dict[int, np.ndarray]:
    """Return device -> bytes reserved, allocated, and stuck in segments that are partly in use."""
    found: dict[int, np.ndarray] = {}
    for segment in segments:
        used, pending, free = (
            sum(block.size for block in segment.blocks if block.state is state) for state in BlockState
        )
        amounts = np.array([segment.total, used, free if used or pending else 0], dtype=np.float64)
        found[segment.device] = found.get(segment.device, np.zeros(3)) + amounts
    return found


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
            said = f"asked for {asked} bytes" if whole(asked) else "asked for more than there was"
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
