"""The application as a process of its own: it answers before its address is told, and ends with the command."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import requests

from collector.errors import UnreachableError
from dashboard import serve
from dashboard.settings import DashboardSettings


@pytest.fixture
def small_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An application that only says which configuration it was given."""
    app = tmp_path / "app.py"
    app.write_text("import os\nimport streamlit as st\nst.write(os.environ['TRIMTAB_CONFIG'])\n")
    monkeypatch.setattr(serve, "APP", app)
    return app


def test_a_port_that_is_taken_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UnreachableError, match=rf"cannot listen on 127\.0\.0\.1 port {port}"):
            serve.free_port("127.0.0.1", port)
    assert serve.free_port("127.0.0.1", 0) > 0


def test_an_address_of_another_machine_is_said() -> None:
    with pytest.raises(UnreachableError, match=r"cannot listen on 192\.0\.2\.1"):
        serve.free_port("192.0.2.1", 0)


def test_the_application_answers_and_ends_with_the_block(small_app: Path) -> None:
    with serve.served(DashboardSettings(port=0), small_app) as (address, process):
        assert address.startswith("http://localhost:")
        assert requests.get(f"{address}/_stcore/health", timeout=10).text == "ok"
        assert process.poll() is None
    assert process.poll() is not None
    with pytest.raises(requests.ConnectionError):
        requests.get(f"{address}/_stcore/health", timeout=2)


def test_an_application_that_does_not_start_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "APP", tmp_path / "absent.py")
    with pytest.raises(UnreachableError, match="ended with code"), serve.served(DashboardSettings(port=0), None):
        pass


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_tells_its_address_and_ends_on_a_signal(elsewhere: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "dashboard.cli", "dashboard", "--port", "0"],
        cwd=elsewhere,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("dashboard  http://localhost:"), process.stderr
        assert requests.get(f"{line.split()[1]}/_stcore/health", timeout=10).text == "ok"
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert err == ""
