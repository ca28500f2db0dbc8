"""What PyTorch's allocator holds: segments of a card's memory and the blocks that they are cut into, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

_MOST_BYTES = 1 << 50  # of a card


class BlockState(StrEnum):
    """What a block is: a tensor's, waiting for a stream to be done with it, or free."""

    USED = "active_allocated"
    PENDING = "active_pending_free"
    FREE = "inactive"


# Versions spell the waiting state in two ways.
_STATES = {state.value: state for state in BlockState} | {"active_awaiting_free": BlockState.PENDING}


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a segment, in bytes; `requested` is what the tensor asked for (0: nobody's)."""

    size: int
    requested: int
    state: BlockState
    address: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """One piece of a card's memory that the allocator got from the driver, in bytes."""

    device: int
    total: int
    blocks: tuple[Block, ...]
    small: bool = False  # of the pool for blocks up to 1 MiB
    expandable: bool = False


def read_segment(segment: Any) -> Segment | str:
    """Return a segment of a snapshot, or in words why it cannot be read."""
    if not isinstance(segment, Mapping) or not isinstance(segment.get("blocks"), list):
        return "expected a segment with its blocks"
    device: Any = segment.get("device", 0)
    total: Any = segment.get("total_size")
    if not whole(device) or not whole(total):
        return "expected whole numbers for device and total_size"
    blocks = []
    for entry in segment["blocks"]:
        block = _block(entry)
        if isinstance(block, str):
            return block
        blocks.append(block)
    if sum(block.size for block in blocks) > total:
        return "its blocks hold more than the segment"
    small, expandable = segment.get("segment_type") == "small", segment.get("is_expandable") is True
    return Segment(device, total, tuple(blocks), small, expandable)


def _block(entry: Any) -> Block | str:
    if not isinstance(entry, Mapping) or not whole(entry.get("size")):
        return "expected blocks with their size in bytes"
    state: Any = entry.get("state")
    if not isinstance(state, str) or state not in _STATES:
        return f"expected a state of a block, got {state[:40] if isinstance(state, str) else type(state).__name__}"
    requested: Any = entry.get("requested_size", entry["size"])
    address: Any = entry.get("address", 0)
    if not whole(requested):
        return "expected requested_size in bytes"
    return Block(entry["size"], requested, _STATES[state], address if isinstance(address, int) else 0)


def whole(value: Any) -> bool:
    """Say whether a value is a whole number of bytes that a card can have."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_BYTES
