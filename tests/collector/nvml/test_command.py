"""The command on a host with a driver and without one, in a process of its own: the loader finds the library."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest

from tests.collector.nvml.conftest import TURING

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path, build: Callable[[int], Path]) -> Run:
    """Run the command with the library on the loader's path, or without."""

    def call(*arguments: str, driver: bool) -> subprocess.CompletedProcess[str]:
        said = {"count": 1, "driver": "580.65.06"}
        entries = [f"-1 {key} {value}" for key, value in said.items()]
        entries += [f"0 {key} {value}" for key, value in TURING.items()]
        env = os.environ | {"NVML_TEST": ";".join(entries)}
        if driver:
            env["LD_LIBRARY_PATH"] = str(build(570).parent)
        command = [sys.executable, "-m", "dashboard.cli", *arguments]
        return subprocess.run(  # noqa: S603  our own command
            command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False
        )

    return call


def has_driver() -> bool:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    pynvml.nvmlShutdown()
    return True


without_driver = pytest.mark.skipif(has_driver(), reason="this host has an NVIDIA driver")


def test_collect_and_doctor_with_a_driver(run: Run, tmp_path: Path) -> None:
    ran = run("collect", "--nvml", "--once", driver=True)
    assert ran.returncode == 0, ran.stderr
    assert "1 row, 0 rejects" in ran.stderr
    (tmp_path / "trimtab.toml").write_text('[[source]]\nkind = "nvml"\nnode = "node-a"\n')
    told = run("doctor", driver=True).stdout
    assert "answers: 1 gpu rows" in told
    assert "nvml://node-a: nvml (" in told
    assert "no card is measured" not in told


@without_driver
def test_without_a_driver_there_is_one_clear_line(run: Run, tmp_path: Path) -> None:
    ran = run("collect", "--nvml", "--once", driver=False)
    assert ran.returncode == 4
    assert "Traceback" not in ran.stderr
    [line] = [line for line in ran.stderr.splitlines() if line.startswith("trimtab: nvml: ")]
    assert "libnvidia-ml.so.1 was not found: is the NVIDIA driver installed here?" in line
    (tmp_path / "trimtab.toml").write_text('[[source]]\nkind = "nvml"\n')
    told = run("doctor", driver=False)
    assert told.returncode == 1
    assert "libnvidia-ml.so.1 was not found" in told.stdout
    assert "does nvidia-smi work on this host?" in told.stdout
