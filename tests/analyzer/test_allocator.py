"""The allocator and the key-value cache: worked cases, real snapshots, own examples, laws."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.allocator import MIB, AllocatorMeasure, fragments, measure_allocator, much_releasable
from analyzer.allocator_replay import (
    AllocatorSettings,
    Ask,
    CachingAllocator,
    best_setting,
    compare_settings,
    replay,
    steps_of,
)
from analyzer.kv_cache import CacheShape, cache_use
from collector.importing.segments import Segment, read_segment
from collector.importing.snapshot import memory_snapshot


def near(value: float) -> Any:
    return pytest.approx(value, rel=1e-9, abs=6e-7)  # ratios are printed with six decimals


def segments_of(entries: list[dict[str, Any]]) -> list[Segment]:
    read = [read_segment(entry) for entry in entries]
    assert all(isinstance(segment, Segment) for segment in read), read
    return [segment for segment in read if isinstance(segment, Segment)]


def run(case: dict[str, Any]) -> CachingAllocator:
    allocator = CachingAllocator(capacity=case["capacity_bytes"])
    for op in case["ops"]:
        if op["op"] == "malloc":
            allocator.malloc(op["name"], op["bytes"])
        elif op["op"] == "free":
            allocator.free(op["name"])
        else:
            assert op["op"] == "empty_cache", op
            allocator.empty_cache()
    return allocator


def as_expected(m: AllocatorMeasure) -> dict[str, float]:
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


def test_worked_cases(cases_dir: Path) -> None:
    cases = json.loads((cases_dir / "allocator.json").read_text())["cases"]
    assert cases
    for case in cases:
        expect = case["expect"]
        if "snapshot" in case["input"]:
            measured = measure_allocator(segments_of(case["input"]["snapshot"]))
        else:
            allocator = run(case["input"])
            measured = allocator.measure()
            told = [
                {
                    "segment_type": "small" if segment.small else "large",
                    "total_size": segment.total,
                    "blocks": [
                        {"size": b.size, "requested_size": b.requested, "state": b.state.value} for b in segment.blocks
                    ],
                }
                for segment in allocator.segments()
            ]
            assert told == expect["snapshot"], case["id"]
            assert case["input"]["capacity_bytes"] - allocator.reserved == expect["device_free_for_others"], case["id"]
            assert measured.releasable == expect["recoverable_by_empty_cache"], case["id"]
            assert allocator.peak_reserved == expect["peak_reserved"], case["id"]
            assert allocator.peak_allocated == expect["peak_allocated"], case["id"]
            assert allocator.out_of_memory == expect["oom"], case["id"]
            assert allocator.segments_returned == expect["segments_returned"], case["id"]
        for name, value in as_expected(measured).items():
            assert value == near(expect[name]), (case["id"], name)


def test_worked_cases_of_the_cache(cases_dir: Path) -> None:
    cases = json.loads((cases_dir / "kvcache.json").read_text())["cases"]
    assert cases
    for case in cases:
        given_, expect = case["input"], case["expect"]
        names = ("layers", "kv_heads", "head_dim", "dtype_bytes")
        shape = CacheShape(**{name: given_[name] for name in names}, block_tokens=given_["block_size"])
        use = cache_use(
            shape,
            given_["total_blocks"],
            given_["seq_lens"],
            max_length=given_["max_len"],
            shared_prefix=given_["shared_prefix_tokens"],
        )
        assert shape.bytes_per_token == expect["bytes_per_token"], case["id"]
        assert shape.bytes_per_block == expect["bytes_per_block"], case["id"]
        assert list(use.admitted) == expect["admitted"], case["id"]
        assert use.used_blocks == expect["used_blocks"], case["id"]
        assert use.total_blocks - use.used_blocks == expect["free_blocks"], case["id"]
        assert (use.stored_tokens, use.wasted_tokens) == (expect["stored_tokens"], expect["wasted_tokens"]), case["id"]
        assert use.waste_ratio == near(expect["waste_ratio"]), case["id"]
        assert use.used_ratio == near(expect["cache_usage"]), case["id"]
        assert use.wasted_bytes == expect["waste_bytes"], case["id"]
        assert use.contiguous_tokens == expect["contiguous_prealloc_tokens"], case["id"]
        assert use.contiguous_waste_ratio == near(expect["contiguous_waste_ratio"]), case["id"]


def test_real_snapshots(shared_dir: Path) -> None:
    folder = shared_dir / "data" / "memory_snapshots"
    reference = pd.read_csv(folder / "reference.csv").set_index("snapshot")
    assert len(reference) == 8
    for name, row in reference.iterrows():
        snapshot = memory_snapshot(gzip.decompress((folder / "json" / f"{name}.json.gz").read_bytes()))
        assert not snapshot.rejected
        m = measure_allocator(snapshot.segments)
        counted = (m.segments, m.free_blocks, m.reserved, m.allocated, m.requested, m.cached_free)
        wanted = ("segments", "blocks_inactive", "reserved_bytes", "allocated_bytes", "requested_bytes", "free_bytes")
        assert counted == tuple(row[column] for column in wanted), name
        assert (m.releasable, m.inactive_split) == (row["free_releasable_bytes"], row["free_stuck_bytes"]), name
        assert m.largest_free_block == row["largest_free_block"], name
        assert m.active - m.allocated == row["other_state_bytes"], name
        assert m.unused_ratio == near(row["reserved_unused_ratio"]), name
        assert m.inactive_split_ratio == near(row["stuck_ratio"]), name
        assert m.external_fragmentation == near(row["external_frag"]), name
        assert m.internal_fragmentation == near(row["internal_frag"]), name


def block(size: int, state: str, requested: int = 0) -> dict[str, Any]:
    return {"size": size, "requested_size": requested, "state": state}


def test_stuck_and_releasable_are_told_apart() -> None:
    held = {"total_size": 40, "blocks": [block(10, "active_allocated", 7), block(30, "inactive")]}
    empty = {"total_size": 100, "blocks": [block(100, "inactive")]}
    m = measure_allocator(segments_of([held, empty]))
    assert (m.releasable, m.inactive_split, m.internal_waste) == (100, 30, 3)
    assert m.external_fragmentation == pytest.approx(1 - 100 / 130)
    assert m.internal_fragmentation == pytest.approx(0.3)


@pytest.mark.parametrize("spelling", ["active_pending_free", "active_awaiting_free"])
def test_both_spellings_of_a_waiting_block(spelling: str) -> None:
    entry = {"total_size": 30, "blocks": [block(20, spelling, 20), block(10, "inactive")]}
    m = measure_allocator(segments_of([entry]))
    assert (m.active, m.allocated, m.inactive_split, m.releasable) == (20, 0, 10, 0)


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"total_size": 1}, "with its blocks"),
        ({"total_size": -1, "blocks": []}, "whole numbers"),
        ({"total_size": 1, "blocks": [{"state": "inactive"}]}, "size in bytes"),
        ({"total_size": 1, "blocks": [{"size": 1, "state": "other"}]}, "a state of a block, got other"),
        ({"total_size": 1, "blocks": [{"size": 1, "requested_size": "x", "state": "inactive"}]}, "requested_size"),
        ({"total_size": 1, "blocks": [{"size": 2, "state": "inactive"}]}, "more than the segment"),
    ],
)
def test_what_is_no_segment_is_named(entry: dict[str, Any], why: str) -> None:
    read = read_segment(entry)
    assert isinstance(read, str)
    assert why in read


def test_a_growing_batch_is_served_in_place_by_an_expandable_segment() -> None:
    steps: list[Ask] = []
    for n in range(1, 9):  # each step needs a little more; the last one's tensors are freed first
        steps += [Ask((n, "a"), (96 + 4 * n) * MIB), Ask((n, "a"), 0)]
    advice = compare_settings(steps)
    assert advice[0].setting == ""
    assert advice[0].peak_reserved == sum((96 + 4 * n) * MIB for n in range(1, 9))
    best = best_setting(advice)
    assert best is not None
    assert best.setting == "expandable_segments:True"
    assert best.peak_reserved == 140 * MIB  # 128 MiB in pages of 20 MiB


def test_a_growing_segment_that_went_back_is_mapped_anew() -> None:
    allocator = CachingAllocator(100 * MIB, AllocatorSettings(expandable=True))
    allocator.malloc("small", 100)
    allocator.malloc("large", 60 * MIB)
    allocator.free("small")
    allocator.free("large")
    assert allocator.malloc("all", 100 * MIB)
    assert (allocator.reserved, allocator.allocated) == (100 * MIB, 100 * MIB)


def test_large_blocks_stay_whole_under_a_split_limit() -> None:
    allocator = CachingAllocator(settings=AllocatorSettings(max_split_bytes=64 * MIB))
    allocator.malloc("big", 200 * MIB)
    allocator.free("big")
    allocator.malloc("little", 12 * MIB)
    assert allocator.reserved == 212 * MIB
    allocator.malloc("again", 190 * MIB)  # takes the 200 MiB piece, whole
    assert allocator.reserved == 212 * MIB
    assert allocator.measure().inactive_split == 0
    allocator.malloc("third", 80 * MIB)
    allocator.free("again")
    allocator.malloc("much less", 100 * MIB)  # a piece 20 MiB or more too large is left alone
    assert allocator.reserved == (212 + 80 + 100) * MIB


def test_a_full_card_gets_back_what_is_wholly_free() -> None:
    allocator = CachingAllocator(capacity=100 * MIB)
    allocator.malloc("a", 60 * MIB)
    allocator.free("a")
    assert allocator.malloc("b", 80 * MIB)
    assert (allocator.reserved, allocator.segments_returned) == (80 * MIB, 1)
    assert not allocator.malloc("c", 30 * MIB)
    assert allocator.out_of_memory
    allocator.free("c")  # never granted
    assert allocator.allocated == 80 * MIB


def test_steps_begin_with_what_lived_before_the_events() -> None:
    blocks = [
        {"address": 0, "size": 512, "requested_size": 100, "state": "active_allocated"},
        {"address": 512, "size": 512, "requested_size": 0, "state": "inactive"},
    ]
    segments = segments_of([{"total_size": 1024, "blocks": blocks}])
    trace = [
        {"action": "free_completed", "addr": 4096, "size": 700},
        {"action": "alloc", "addr": 4096, "size": 300},
        {"action": "alloc", "addr": "?", "size": 1},
        "no event",
        {"action": "free_completed", "addr": 4096, "size": 300},
    ]
    steps = steps_of(segments, trace)
    assert [step.size for step in steps] == [100, 700, 0, 300, 0]
    assert replay(steps).allocated == 512


def test_a_replay_of_a_real_training_comes_near_to_what_it_reserved(shared_dir: Path) -> None:
    path = shared_dir / "data" / "memory_snapshots" / "json" / "cs336w_medium_512_training.json.gz"
    snapshot = memory_snapshot(gzip.decompress(path.read_bytes()))
    steps = steps_of(snapshot.segments, snapshot.traces[0])
    end = replay(steps)
    measured = measure_allocator(snapshot.segments)
    assert end.measure().allocated == pytest.approx(measured.allocated, rel=0.001)
    assert measured.allocated < end.peak_reserved <= measured.reserved
    assert all(a.peak_reserved >= end.peak_allocated for a in compare_settings(steps))


def test_events_of_no_known_kind_are_left_out() -> None:
    alloc = {"action": "alloc", "addr": 4096, "size": 512}
    strange = [{"addr": 1, "size": 2}, {**alloc, "action": []}, {**alloc, "action": {}}, {**alloc, "addr": "x"}, None]
    assert [step.size for step in steps_of([], [*strange, alloc])] == [512]


def test_thresholds() -> None:
    gib = float(1 << 30)
    assert fragments(3 * gib, 10 * gib, 6 * gib)
    assert not fragments(1 * gib, 10 * gib, 6 * gib)  # a tenth is stuck
    assert not fragments(0.5 * gib, 1 * gib, 0.4 * gib)  # less than a GiB holds no tensor
    assert not fragments(math.nan, 10 * gib, 6 * gib)
    assert much_releasable(2 * gib, 10 * gib)
    assert not much_releasable(2 * gib, 30 * gib)


sizes = st.integers(1, 30 * MIB)
scripts = st.lists(st.tuples(st.integers(0, 5), sizes), min_size=1, max_size=40)


@given(scripts, st.sampled_from([AllocatorSettings(), AllocatorSettings(64 * MIB), AllocatorSettings(expandable=True)]))
def test_laws_of_the_model(script: list[tuple[int, int]], settings: AllocatorSettings) -> None:
    allocator = CachingAllocator(capacity=400 * MIB, settings=settings)
    held: dict[int, int] = {}
    for name, size in script:  # a name that lives is freed, another one allocated
        if name in held:
            allocator.free(name)
            del held[name]
        elif allocator.malloc(name, size):
            held[name] = size
        m = allocator.measure()
        assert m.reserved == allocator.reserved <= 400 * MIB
        assert m.allocated == allocator.allocated
        assert m.requested == sum(held.values())
        assert m.reserved == m.allocated + m.cached_free
    allocator.empty_cache()
    assert settings.expandable or allocator.measure().releasable == 0


@given(st.lists(st.integers(1, 300), max_size=8), st.integers(1, 40), st.integers(0, 60), st.integers(0, 64))
def test_laws_of_the_cache(lengths: list[int], block_tokens: int, total: int, prefix: int) -> None:
    shape = CacheShape(2, 2, 8, 2, block_tokens)
    use = cache_use(shape, total, lengths, max_length=300, shared_prefix=prefix)
    assert use.used_blocks <= total
    assert 0 <= use.wasted_tokens <= max(len(use.admitted) * (block_tokens - 1), 0)
    assert use.stored_tokens + use.wasted_tokens == use.used_blocks * block_tokens
    plain = cache_use(shape, 10**6, lengths, max_length=300)
    assert plain.wasted_tokens == sum(-n % block_tokens for n in lengths)
