"""The key-value cache of a model server: what paging wastes, against one contiguous piece a sequence.

Bytes a token are 2 (key and value) x layers x heads of the cache x head dimension x bytes of a number. A sequence
takes whole blocks, so it wastes less than one block; a piece of the longest length for each wastes the rest of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What one token takes in the cache, and how many tokens a block holds."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype_bytes: float
    block_tokens: int

    @property
    def bytes_per_token(self) -> float:
        """Bytes of the keys and values of one token."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype_bytes

    @property
    def bytes_per_block(self) -> float:
        """Bytes of a block."""
        return self.bytes_per_token * self.block_tokens


@dataclass(frozen=True, slots=True)
class CacheUse:
    """What sequences take in a cache of so many blocks."""

    admitted: tuple[int, ...]  # places of the sequences that got room, first come first served
    used_blocks: int
    total_blocks: int
    stored_tokens: int
    wasted_tokens: int
    wasted_bytes: float
    contiguous_tokens: int  # what one piece of the longest length for each admitted sequence would take
    contiguous_waste_ratio: float

    @property
    def waste_ratio(self) -> float:
        """Empty places in the blocks that are used, over all their places; 0 when none is used."""
        held = self.stored_tokens + self.wasted_tokens
        return self.wasted_tokens / held if held else 0.0

    @property
    def used_ratio(self) -> float:
        """Used blocks over all blocks, as servers report it; 0 for a cache without blocks."""
        return self.used_blocks / self.total_blocks if self.total_blocks else 0.0


def cache_use(
    shape: CacheShape, total_blocks: int, lengths: Sequence[int], *, max_length: int, shared_prefix: int = 0
) -> CacheUse:
    """Fill a paged cache, first come first served; a sequence that does not fit is passed over.

    Args:
        shape: sizes of the model's cache.
        total_blocks: blocks of the cache.
        lengths: tokens of each sequence, in the order of their arrival.
        max_length: tokens that a contiguous cache would set aside for each.
        shared_prefix: leading tokens that all sequences have in common; they share its whole blocks.
    """
    size = shape.block_tokens
    admitted = []
    used = stored = shared_blocks = 0
    for place, length in enumerate(lengths):
        shareable = min(length, shared_prefix) // size
        new_shared = max(shareable - shared_blocks, 0)
        own = length - shareable * size
        blocks = new_shared + math.ceil(own / size)
        if used + blocks > total_blocks:
            continue
        admitted.append(place)
        used += blocks
        stored += own + new_shared * size
        shared_blocks += new_shared
    wasted = used * size - stored
    contiguous = len(admitted) * max_length
    tokens = sum(lengths[place] for place in admitted)
    return CacheUse(
        admitted=tuple(admitted),
        used_blocks=used,
        total_blocks=total_blocks,
        stored_tokens=stored,
        wasted_tokens=wasted,
        wasted_bytes=wasted * shape.bytes_per_token,
        contiguous_tokens=contiguous,
        contiguous_waste_ratio=1 - tokens / contiguous if contiguous else 0.0,
    )
