"""`trimtab import`: what became of each file, and the exit code that says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from collector.errors import ConfigurationError
from collector.settings import StoreSettings
from collector.store import EmbeddedStore
from dashboard.cli.importing import parse_zone
from tests.dashboard.conftest import Ran

LOG = """timestamp, index, uuid, name, utilization.gpu [%], memory.used [MiB], power.draw [W]
2026/01/05 12:00:00.000, 0, GPU-aaaaaaaa-0000-0000-0000-000000000001, NVIDIA A100-SXM4-80GB, 50 %, 1024 MiB, 300.00 W
2026/01/05 12:00:01.000, 0, GPU-aaaaaaaa-0000-0000-0000-000000000001, NVIDIA A100-SXM4-80GB, 60 %, 1024 MiB, 310.00 W
this line was torn
2026/01/05 12:00:02.000, 0, GPU-aaaaaaaa-0000-0000-0000-000000000001, NVIDIA A100-SXM4-80GB, 70 %, 1024 MiB, 320.00 W
"""


@pytest.fixture
def log(elsewhere: Path) -> Path:
    path = elsewhere / "node7.csv"
    path.write_text(LOG)
    return path


def gpu_rows() -> list[tuple[datetime, str, float]]:
    store = EmbeddedStore(StoreSettings(), read_only=True)
    span = store.span("gpu")
    assert span is not None
    frame = store.read("gpu", span)
    store.close()
    return [
        (time.to_pydatetime(), str(node), float(watts))
        for time, node, watts in zip(frame["time"], frame["node"], frame["power_watts"], strict=True)
    ]


def test_one_bad_line_loses_no_file_and_importing_again_changes_nothing(trimtab: Callable[..., Ran], log: Path) -> None:
    ran = trimtab("import", "node7.csv", "--tz", "+01:00")
    assert ran.code == 0, ran.err
    noon = datetime(2026, 1, 5, 11, tzinfo=UTC)
    expected = [(noon + timedelta(seconds=i), "node7", 300.0 + 10 * i) for i in range(3)]
    assert gpu_rows() == expected
    assert "(first in line 4)" in ran.out
    assert ran.err == ""
    again = json.loads(trimtab("import", "node7.csv", "--tz", "+01:00", "--json").out)
    assert again["files"][0]["status"] == "imported before"
    assert gpu_rows() == expected


def test_a_guessed_zone_is_a_warning_and_under_strict_a_rejection(trimtab: Callable[..., Ran], log: Path) -> None:
    ran = trimtab("import", "node7.csv", "--strict")
    assert ran.code == 3
    assert "node7.csv: rejected: --strict:" in ran.out
    assert ran.err.splitlines()[-1].startswith("trimtab: none of 1 files could be used")
    ran = trimtab("import", "node7.csv", "--node", "other")
    assert ran.code == 0
    assert "node7.csv: " in ran.err
    assert {node for _, node, _ in gpu_rows()} == {"other"}


def test_what_is_no_log_is_rejected_by_name_beside_what_is(trimtab: Callable[..., Ran], log: Path) -> None:
    (log.parent / "shopping.txt").write_text("milk\nbread\n")
    ran = trimtab("import", "shopping.txt", "--json")
    assert ran.code == 3
    assert json.loads(ran.out)["files"][0]["status"] == "rejected"
    both = trimtab("import", "shopping.txt", "node7.csv", "--tz", "UTC")
    assert both.code == 0
    assert "shopping.txt: rejected: " in both.out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["nowhere.csv"], "expected a file or a folder, got 'nowhere.csv', which is not there"),
        (["node7.csv", "--tz", "Mars/Base"], "expected a zone such as Europe/Berlin or +02:00, got 'Mars/Base'"),
        (["node7.csv", "--start", "noon"], "expected an instant such as"),
        (["node7.csv", "--columns", "timestamp,powr.draw"], "'powr.draw' is not known; did you mean 'power.draw'?"),
        (["node7.csv", "--columns", "a,b"], "expected names such as timestamp,utilization.gpu"),
        (["node7.csv", "--gpus", "0"], "--gpus"),
        (["node7.csv", "--interval", "-1"], "--interval"),
    ],
)
def test_a_wrong_call_is_code_2(trimtab: Callable[..., Ran], log: Path, arguments: list[str], expected: str) -> None:
    ran = trimtab("import", *arguments)
    assert ran.code == 2
    assert expected in ran.err


def test_a_log_without_heading_stamps_and_names_of_cards(trimtab: Callable[..., Ran], elsewhere: Path) -> None:
    (elsewhere / "n1.txt").write_text("10.00 W, 7 %\n20.00 W, 8 %\n11.00 W, 9 %\n21.00 W, 9 %\n")
    refused = trimtab("import", "n1.txt")
    assert (refused.code, "--columns" in refused.out) == (3, True)
    call = ("import", "n1.txt", "--columns", "power.draw,utilization.gpu", "--gpus", "2")
    times = ("--start", "2026-01-05T12:00:00Z", "--interval", "0.5")
    assert trimtab(*call, "--strict").code == 3
    assert trimtab(*call, *times, "--strict").code == 0
    noon = datetime(2026, 1, 5, 12, tzinfo=UTC)
    assert sorted(gpu_rows(), key=lambda row: row[2]) == [
        (noon, "n1", 10.0),
        (noon + timedelta(seconds=0.5), "n1", 11.0),
        (noon, "n1", 20.0),
        (noon + timedelta(seconds=0.5), "n1", 21.0),
    ]


def test_zones() -> None:
    noon = datetime(2026, 7, 1, 12)  # noqa: DTZ001  the zone is what is tested
    offsets = {"+02:00": 2, "-0530": -5.5, "Europe/Berlin": 2, "UTC": 0}
    for text, hours in offsets.items():
        assert noon.replace(tzinfo=parse_zone(text)).utcoffset() == timedelta(hours=hours)
    with pytest.raises(ConfigurationError):
        parse_zone("+99:00")


@pytest.mark.parametrize("seconds", ["inf", "1e300"])
def test_rows_that_are_ages_apart_are_refused_before_a_file_is_read(
    trimtab: Callable[..., Ran], log: Path, seconds: str
) -> None:
    ran = trimtab("import", log.name, "--interval", seconds)
    assert ran.code == 2
    assert "Invalid value for '--interval'" in ran.err
