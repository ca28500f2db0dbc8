"""`trimtab analyze fragmentation --allocator`: tables for people, one document, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dashboard.cli.allocator import devices_of, document, print_devices, read_memory_snapshot
from tests.dashboard.conftest import Ran

MIB = 1 << 20


def snapshot(tmp_path: Path) -> Path:
    """A training that asks for a little more each step: eight pieces that no later step fits into."""
    segments, trace = [], []
    for n in range(1, 9):
        size = (96 + 4 * n) * MIB
        trace += [{"action": action, "addr": n << 32, "size": size} for action in ("alloc", "free_completed")]
        block = {"address": n << 32, "size": size, "requested_size": 0, "state": "inactive"}
        segments.append({"device": 0, "total_size": size, "segment_type": "large", "blocks": [block]})
    segments.append({"device": 0, "total_size": 5})
    path = tmp_path / "snapshot.json"
    path.write_text(json.dumps({"segments": segments, "device_traces": [trace]}))
    return path


def test_one_document(tmp_path: Path) -> None:
    read = read_memory_snapshot(snapshot(tmp_path))
    told = document(read, devices_of(read))
    assert told["rejected_segments"] == [{"segment": 9, "reason": "expected a segment with its blocks"}]
    (device,) = told["devices"]
    assert device["reserved_bytes"] == device["releasable_bytes"] == 912 * MIB
    assert device["external_fragmentation_ratio"] == pytest.approx(1 - 128 / 912)
    assert device["best_setting"] == "expandable_segments:True"


def test_tables_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    read = read_memory_snapshot(snapshot(tmp_path))
    print_devices(read, devices_of(read))
    out, err = capsys.readouterr()
    assert "segment 9 was left out: expected a segment with its blocks" in err
    assert "little of what it holds is stuck or releasable; expandable_segments:True would have saved 0.75 GiB" in out


def test_the_command(tmp_path: Path, trimtab: Callable[..., Ran]) -> None:
    path = snapshot(tmp_path)
    done = trimtab("analyze", "fragmentation", "--allocator", str(path), "--json")
    assert done.code == 0
    assert json.loads(done.out)["devices"][0]["segments"] == 8
    wrong = trimtab("analyze", "idle", "--allocator", str(path))
    assert wrong.code == 2
    assert "speaks of fragmentation" in wrong.err
    path.write_text("{}")
    refused = trimtab("analyze", "fragmentation", "--allocator", str(path))
    assert refused.code == 3
    assert "expected a PyTorch memory snapshot" in refused.err
    assert trimtab("analyze", "fragmentation", "--allocator", str(tmp_path / "none.json")).code == 3
