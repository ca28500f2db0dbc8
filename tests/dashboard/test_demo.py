"""`trimtab demo`: its tables, its folder, and what its configuration lets the other commands say."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from analyzer.findings import Finding, Role, SubjectRef, Verdict, make_finding
from collector.clock import VirtualClock
from collector.window import Window
from dashboard.config import load_settings
from dashboard.demo.board import _worst, some_of_each_code
from dashboard.demo.runs import _write_config
from dashboard.origin import SIMULATED
from sample_data.cluster.cluster import SimulatedCluster
from sample_data.cluster.presets import mixed
from sample_data.cluster.score import score
from tests.dashboard.conftest import Ran
from tuner.lease import Lease
from tuner.state import open_state


def _finding(code: str, gpu: str) -> Finding:
    start = mixed(1).start
    return make_finding(
        code,
        Verdict.HOLDS,
        (SubjectRef(Role.SUBJECT, cluster="c", node="n", gpu=gpu),),
        Window(start, start + timedelta(hours=1)),
        claim="",
        risk="",
        confidence=1.0,
        coverage=1.0,
    )


def test_a_code_with_many_findings_does_not_crowd_out_the_others() -> None:
    found = [
        _finding(code, f"g{n}") for code, count in (("TT101", 4), ("TT111", 9), ("TT604", 1)) for n in range(count)
    ]
    shown = [(f.code, f.subjects[0].gpu) for f in some_of_each_code(found, 6)]
    assert shown == [
        (code, f"g{n}")
        for code, n in (("TT101", 0), ("TT101", 1), ("TT101", 2), ("TT111", 0), ("TT111", 1), ("TT604", 0))
    ]
    assert some_of_each_code(found, 99) == found


def test_the_tables_and_what_is_left_behind(trimtab: Callable[..., Ran], elsewhere: Path) -> None:
    ran = trimtab("demo", "--headless", "--hours", "0.2", "--folder", "shown")
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert lines[0] == SIMULATED
    assert lines[1].startswith("0.2 simulated hours, seed 1")
    for row in ("useful utilisation", "  upper bound", "objectives kept, all services", "  worst service"):
        (found,) = (line for line in lines if line.startswith(row))
        assert found.removeprefix(row).split()[0] != "unknown"
    assert any("findings of the tuned run" in line for line in lines) or "nothing" in lines
    report = next(line for line in lines if line.startswith("report ")).split(maxsplit=1)[1]
    assert Path(report).is_file()

    settings = load_settings(Path("shown/trimtab.toml")).settings
    with_state = open_state(settings.state)
    assert Lease(with_state, "next", VirtualClock(mixed(1).start + timedelta(minutes=12))).acquire(), (
        "the tuner gave its lease back"
    )
    with_state.close()

    call = ("--config", "shown/trimtab.toml")
    assert trimtab("analyze", *call).out.splitlines()[0] == SIMULATED
    assert json.loads(trimtab("analyze", "--json", *call).out)["simulated"] is True
    assert trimtab("forecast", *call).out.splitlines()[0] == SIMULATED
    assert json.loads(trimtab("forecast", "--json", *call).out)["simulated"] is True
    assert trimtab("export", "rows", "--measurement", "slice", *call).code == 0
    assert trimtab("analyze", "--rows", "rows", *call).out.splitlines()[0] == SIMULATED

    again = trimtab("demo", "--headless", "--hours", "0.1", "--folder", "shown")
    assert again.code == 0, again.err


def test_a_folder_of_somebody_else_is_refused_and_kept(trimtab: Callable[..., Ran], elsewhere: Path) -> None:
    kept = elsewhere / "mine" / "thesis.txt"
    kept.parent.mkdir()
    kept.write_text("two years of work")
    ran = trimtab("demo", "--headless", "--hours", "0.1", "--folder", "mine")
    assert ran.code == 2
    assert "mine is not empty and no demo made it; name another folder with --folder" in ran.err
    assert kept.read_text() == "two years of work"


def test_a_folder_with_an_odd_name_gives_a_configuration_that_can_be_read(tmp_path: Path) -> None:
    folder = tmp_path / 'a "quoted" \\ back\nline'
    folder.mkdir()
    path = _write_config(folder, mixed(1))
    assert tomllib.loads(path.read_text())["store"]["path"] == str(folder / "store")
    assert load_settings(path).settings.report.folder == folder / "reports"


def test_without_a_service_no_service_is_the_worst() -> None:
    cluster = SimulatedCluster(mixed(1))
    cluster.step()
    scored = score(cluster.truth, cluster.spec)
    assert _worst(replace(scored, kept={}, service_minutes={}, kept_minutes={})) == "no service"
