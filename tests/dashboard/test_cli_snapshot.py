"""`trimtab analyze fragmentation --snapshot`: files, output, exit codes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.dashboard.conftest import Ran

Trimtab = Callable[..., Ran]

NODES = {
    "nodes": [
        {"name": "a", "model": "NVIDIA A100-SXM4-80GB", "cards": 2, "free_shares": [0.4, 0.6], "free_cpu_cores": 8},
        {"name": "m", "model": "NVIDIA A100-SXM4-40GB", "instances_by_card": [[{"profile": "1g.5gb", "start": 0}]]},
    ],
    "pods": [{"name": "x/\x1b[31mred", "cards": 1}, {"share": 7}],
}


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.json.gz"
    path.write_bytes(gzip.compress(json.dumps(NODES).encode()))
    return path


def test_one_json_document(snapshot: Path, trimtab: Trimtab) -> None:
    got = trimtab("analyze", "fragmentation", "--snapshot", str(snapshot), "--json", "--now", "2026-01-05T00:00:00Z")
    assert got.code == 0
    told = json.loads(got.out)
    assert told["schema_version"] == 1
    assert told["snapshot"]["cards"] == 3
    assert told["snapshot"]["rejected"] == [f"{snapshot}: pods[1]: expected a share above 0 and at most 1, got 7"]
    assert told["fragmentation"]["free_cards"] == pytest.approx(1.0)
    assert told["mig"][0]["largest_placeable"] == "3g.20gb"
    [finding] = [f for f in told["findings"] if f["code"] == "TT211"]
    assert (finding["verdict"], finding["window"]["end"]) == ("holds", "2026-01-05T00:00:00Z")


def test_tables_for_people(snapshot: Path, trimtab: Trimtab) -> None:
    got = trimtab("analyze", "fragmentation", "--snapshot", str(snapshot))
    assert got.code == 0
    assert "1.0 cards' worth of share is free, 1.0 of it (100 %) does not serve what is asked for" in got.out
    assert "what still fits" in got.out
    assert "cards that are cut" in got.out
    assert "rejected: " in got.err
    assert "\x1b" not in got.out
    assert trimtab("analyze", "fragmentation", "--snapshot", str(snapshot), "--fail-on", "TT211").code == 1


def test_what_cannot_be_read_is_one_line(tmp_path: Path, snapshot: Path, trimtab: Trimtab) -> None:
    broken = tmp_path / "broken.csv"
    broken.write_text("a,b\n")
    requests = tmp_path / "requests.csv"
    requests.write_text("share,weight\n0.5,1\n")
    torn = tmp_path / "torn.gz"
    torn.write_bytes(snapshot.read_bytes()[:40])
    for arguments, code in (
        (("fragmentation", "--snapshot", str(broken)), 3),
        (("fragmentation", "--snapshot", str(tmp_path / "none")), 3),
        (("fragmentation", "--snapshot", str(torn)), 3),
        (("fragmentation", "--snapshot", str(requests)), 3),
        (("idle", "--snapshot", str(snapshot)), 2),
        (("fragmentation", "--snapshot", str(snapshot), "--rows", str(snapshot)), 2),
    ):
        got = trimtab("analyze", *arguments)
        assert got.code == code, arguments
        assert "expected" in got.err
        assert got.err.count("\n") == 1
