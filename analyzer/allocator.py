"""What a PyTorch allocator holds, uses and cannot give back, exact from a memory snapshot.

Reserved is what it got from the driver (nvidia-smi's `used` is reserved plus a context of some hundred MiB a process);
active is allocated plus what waits for a stream; cached = reserved - active. `releasable` lies in segments without a
live block, and `torch.cuda.empty_cache()` returns it; the rest of the cached bytes is stuck between live blocks.
External fragmentation is 1 - largest free block / free bytes, internal waste what rounding adds to requests.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from collector.importing.segments import BlockState, Segment

MIB = 1 << 20
_STUCK_SHARE = 0.2  # of what is reserved
_UNUSED_BYTES = 1 << 30
_RELEASABLE_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class AllocatorMeasure:
    """Bytes of one allocator (one process on one card), counts, and the ratios that follow."""

    reserved: int
    allocated: int
    requested: int
    active: int
    releasable: int
    inactive_split: int  # free, in segments that still hold a live block: cannot be returned
    largest_free_block: int
    segments: int
    free_blocks: int

    @property
    def cached_free(self) -> int:
        """Free bytes that the allocator keeps."""
        return self.releasable + self.inactive_split

    @property
    def internal_waste(self) -> int:
        """Bytes that rounding added to what tensors asked for."""
        return self.allocated - self.requested

    @property
    def internal_fragmentation(self) -> float:
        """1 - requested / allocated; 0 without anything allocated."""
        return 1 - self.requested / self.allocated if self.allocated else 0.0

    @property
    def external_fragmentation(self) -> float:
        """1 - largest free block / free bytes; 0 when nothing is free."""
        return 1 - self.largest_free_block / self.cached_free if self.cached_free else 0.0

    @property
    def inactive_split_ratio(self) -> float:
        """Stuck bytes over reserved bytes."""
        return self.inactive_split / self.reserved if self.reserved else 0.0

    @property
    def unused_ratio(self) -> float:
        """1 - allocated / reserved: what is reserved and holds no tensor."""
        return (self.reserved - self.allocated) / self.reserved if self.reserved else 0.0


def measure_allocator(segments: Iterable[Segment]) -> AllocatorMeasure:
    """Measure the segments of one process on one card."""
    reserved = allocated = requested = pending = releasable = stuck = largest = count = free_blocks = 0
    for segment in segments:
        count += 1
        reserved += segment.total
        live = free = 0
        for block in segment.blocks:
            if block.state is BlockState.FREE:
                free += block.size
                free_blocks += 1
                largest = max(largest, block.size)
            else:
                live += block.size
                if block.state is BlockState.USED:
                    allocated += block.size
                    requested += block.requested
                else:
                    pending += block.size
        if live:
            stuck += free
        else:
            releasable += free
    return AllocatorMeasure(
        reserved=reserved,
        allocated=allocated,
        requested=requested,
        active=allocated + pending,
        releasable=releasable,
        inactive_split=stuck,
        largest_free_block=largest,
        segments=count,
        free_blocks=free_blocks,
    )


def fragments(stuck_bytes: float, reserved_bytes: float, allocated_bytes: float) -> bool:
    """Say whether an allocator fragments enough to speak of it: a fifth is stuck, and a GiB holds no tensor."""
    unused = reserved_bytes - allocated_bytes
    return reserved_bytes > 0 and stuck_bytes > _STUCK_SHARE * reserved_bytes and unused > _UNUSED_BYTES


def much_releasable(releasable_bytes: float, reserved_bytes: float) -> bool:
    """Say whether an allocator could give back enough to speak of it: a GiB, and a tenth of what it holds."""
    return releasable_bytes > _UNUSED_BYTES and releasable_bytes > _RELEASABLE_SHARE * reserved_bytes
