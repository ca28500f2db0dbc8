"""Worked cases of memory inside a process: the caching allocator, the key-value cache, recorded allocator snapshots."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import Any

from analyzer.allocator import AllocatorMeasure, measure_allocator
from analyzer.allocator_replay import CachingAllocator
from analyzer.kv_cache import CacheShape, cache_use
from collector.importing.segments import Segment, read_segment
from collector.importing.snapshot import memory_snapshot

Json = dict[str, Any]


def allocator(given: Json, _expect: Json) -> Json:
    """What an allocator holds after its operations, or as a snapshot of it says."""
    if "snapshot" in given:
        read = [read_segment(entry) for entry in given["snapshot"]]
        return _measured(measure_allocator([segment for segment in read if isinstance(segment, Segment)]))
    model = CachingAllocator(capacity=given["capacity_bytes"])
    for op in given["ops"]:
        if op["op"] == "malloc":
            model.malloc(op["name"], op["bytes"])
        elif op["op"] == "free":
            model.free(op["name"])
        else:
            model.empty_cache()
    measured = model.measure()
    return {
        **_measured(measured),
        "snapshot": [
            {
                "segment_type": "small" if segment.small else "large",
                "total_size": segment.total,
                "blocks": [
                    {"size": b.size, "requested_size": b.requested, "state": b.state.value} for b in segment.blocks
                ],
            }
            for segment in model.segments()
        ],
        "device_free_for_others": given["capacity_bytes"] - model.reserved,
        "recoverable_by_empty_cache": measured.releasable,
        "peak_reserved": model.peak_reserved,
        "peak_allocated": model.peak_allocated,
        "oom": model.out_of_memory,
        "segments_returned": model.segments_returned,
    }


def _measured(m: AllocatorMeasure) -> Json:
    return {
        "reserved": m.reserved,
        "allocated": m.allocated,
        "requested": m.requested,
        "active": m.active,
        "cached_free": m.cached_free,
        "releasable": m.releasable,
        "inactive_split": m.inactive_split,
        "largest_free_block": m.largest_free_block,
        "internal_waste": m.internal_waste,
        "n_segments": m.segments,
        "n_free_blocks": m.free_blocks,
        "external_frag": m.external_fragmentation,
        "inactive_split_ratio": m.inactive_split_ratio,
        "reserved_not_allocated_ratio": m.unused_ratio,
    }


def kvcache(given: Json, _expect: Json) -> Json:
    """Use and waste of a paged key-value cache."""
    names = ("layers", "kv_heads", "head_dim", "dtype_bytes")
    shape = CacheShape(**{name: given[name] for name in names}, block_tokens=given["block_size"])
    use = cache_use(
        shape,
        given["total_blocks"],
        given["seq_lens"],
        max_length=given["max_len"],
        shared_prefix=given["shared_prefix_tokens"],
    )
    return {
        "bytes_per_token": shape.bytes_per_token,
        "bytes_per_block": shape.bytes_per_block,
        "admitted": list(use.admitted),
        "used_blocks": use.used_blocks,
        "stored_tokens": use.stored_tokens,
        "wasted_tokens": use.wasted_tokens,
        "waste_ratio": use.waste_ratio,
        "cache_usage": use.used_ratio,
        "free_blocks": use.total_blocks - use.used_blocks,
        "waste_bytes": use.wasted_bytes,
        "contiguous_prealloc_tokens": use.contiguous_tokens,
        "contiguous_waste_ratio": use.contiguous_waste_ratio,
    }


def recorded_snapshots(folder: Path) -> list[tuple[str, Json, Json]]:
    """Return, for each recorded snapshot, its name, what we measure, and the reference."""
    found = []
    with (folder / "reference.csv").open() as file:
        for row in csv.DictReader(file):
            content = gzip.decompress((folder / "json" / f"{row['snapshot']}.json.gz").read_bytes())
            m = measure_allocator(memory_snapshot(content).segments)
            ours = {
                "segments": m.segments,
                "blocks_inactive": m.free_blocks,
                "reserved_bytes": m.reserved,
                "allocated_bytes": m.allocated,
                "requested_bytes": m.requested,
                "free_bytes": m.cached_free,
                "free_releasable_bytes": m.releasable,
                "free_stuck_bytes": m.inactive_split,
                "largest_free_block": m.largest_free_block,
                "other_state_bytes": m.active - m.allocated,
                "reserved_unused_ratio": m.unused_ratio,
                "stuck_ratio": m.inactive_split_ratio,
                "external_frag": m.external_fragmentation,
                "internal_frag": m.internal_fragmentation,
            }
            found.append((row["snapshot"], ours, {name: float(row[name]) for name in ours}))
    return found
