"""Fixtures of this floor: a working directory of its own, and the command run in this process or in another."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from dashboard.cli.root import run


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command left: its exit code, and what it printed."""

    code: int
    out: str
    err: str


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, without variables of ours."""
    for name in list(os.environ):
        if name.startswith("TRIMTAB_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def trimtab(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run a command in this process."""

    def call(*arguments: str) -> Ran:
        capsys.readouterr()
        code = run(list(arguments))
        printed = capsys.readouterr()
        return Ran(code, printed.out, printed.err)

    return call


@pytest.fixture
def trimtab_process(elsewhere: Path) -> Callable[..., Ran]:
    """Run a command in a process of its own, as a shell would."""

    def call(*arguments: str, env: dict[str, str] | None = None) -> Ran:
        ran = subprocess.run(  # noqa: S603  our own command
            [sys.executable, "-m", "dashboard.cli", *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=elsewhere,
            env={**os.environ, **(env or {})},
        )
        return Ran(ran.returncode, ran.stdout, ran.stderr)

    return call
