"""Starts the Streamlit application as a process of its own, and says when it answers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import requests

from collector.clock import Clock, SystemClock
from collector.errors import UnreachableError
from dashboard.cli.output import say
from dashboard.config import Settings
from dashboard.settings import DashboardSettings
from dashboard.stopping import stopped_by_signals

APP = Path(__file__).with_name("app.py")
LOOPBACK = ("127.0.0.1", "::1")
_START_SECONDS = 60.0
_STOP_SECONDS = 10.0


def free_port(host: str, wanted: int) -> int:
    """Return the port to listen on: the wanted one, or any free one for 0.

    Raises:
        UnreachableError: another program listens there already, or the address is not one of this machine.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, wanted))
        except OSError as error:
            raise UnreachableError(
                f"cannot listen on {host} port {wanted}: {error.strerror}; choose another port, 0 for any"
            ) from error
        return int(probe.getsockname()[1])


def serve(settings: Settings, config: Path | None) -> None:
    """Serve the application and print its address, until SIGINT or SIGTERM.

    Raises:
        UnreachableError: the port is taken, or the application does not start, or ended by itself.
    """
    with stopped_by_signals() as stop, served(settings.dashboard, config) as (address, process):
        say(f"dashboard  {address}  (Ctrl-C ends it)")
        while not stop.wait(0.5):
            if process.poll() is not None:
                raise UnreachableError(f"the dashboard ended by itself with code {process.returncode}; start it again")


@contextmanager
def served(
    settings: DashboardSettings, config: Path | None, *, clock: Clock | None = None
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run the application until the block ends; yields its address, once it answers, and its process.

    Args:
        settings: where it listens.
        config: the configuration file that it reads; None: the one that is found in the usual places.
        clock: waits between looks at whether it answers.

    Raises:
        UnreachableError: the port is taken, or the application does not start.
    """
    port = free_port(settings.host, settings.port)
    command = [sys.executable, "-m", "streamlit", "run", str(APP), "--server.headless=true"]
    command += [f"--server.address={settings.host}", f"--server.port={port}", "--browser.gatherUsageStats=false"]
    if settings.host in LOOPBACK:  # a page elsewhere that renames itself to this address gets no answer
        command += [f"--server.allowedHosts={name}" for name in ("localhost", *LOOPBACK)]
    environment = {**os.environ, **({"TRIMTAB_CONFIG": str(config.resolve())} if config is not None else {})}
    # A group of its own: Ctrl-C reaches this process alone, which then ends the application in its own order.
    process = subprocess.Popen(  # noqa: S603  our own interpreter and file
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    name = "localhost" if settings.host in (*LOOPBACK, "0.0.0.0", "::") else settings.host  # noqa: S104
    address = f"http://{name}:{port}"
    try:
        _await_answer(f"{address}/_stcore/health", process.poll, clock or SystemClock())
        yield address, process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_answer(url: str, ended: Callable[[], int | None], clock: Clock) -> None:
    deadline = clock.monotonic() + _START_SECONDS
    while clock.monotonic() < deadline:
        if (code := ended()) is not None:
            raise UnreachableError(f"the dashboard ended with code {code} as it started; try `streamlit run {APP}`")
        try:
            if requests.get(url, timeout=2).text == "ok":
                return
        except requests.RequestException:
            pass  # not yet
        clock.wait(0.2)
    raise UnreachableError(f"the dashboard did not answer within {_START_SECONDS:g} s at {url}")
