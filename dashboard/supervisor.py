"""Keeps several loops running as processes: one that falls is started again, and all end together."""

from __future__ import annotations

import ctypes
import logging
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from collector.clock import Clock
from collector.errors import ConfigurationError

_LOG = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
STOP_SECONDS = 60.0  # a collector finishes its cycle, a tuner its group
LONGEST_WAIT_SECONDS = 60.0
_CALM_SECONDS = 300.0  # who ran for so long falls as if for the first time
_SIGNAL_OF_PARENT = 1  # PR_SET_PDEATHSIG of Linux
_LIBC = ctypes.CDLL(None)  # loaded here: after a fork nothing is loaded any more


@dataclass(slots=True)
class _Loop:
    command: Sequence[str]
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    wait: float = 0.0
    due: float = field(default=-1.0)  # not before this instant
    ran: bool = False  # it ran for long, or fell of something else: its configuration was right once


def supervise(loops: Mapping[str, Sequence[str]], stop: threading.Event, clock: Clock) -> int:
    """Run commands until `stop` is set, or one of them says that its configuration is wrong.

    A process that ends is started again after 1 s, 2 s, ... 60 s. At the end all get SIGTERM at once and finish what
    they are at; who has not ended after a minute is killed. All are in this process's group: Ctrl-C reaches them too.
    Where this process itself is killed, they get SIGTERM from the system (Linux). A configuration that becomes wrong
    while the others run ends none of them: who fell is tried again.

    Args:
        loops: name -> command.
        stop: set from a signal handler.
        clock: time.

    Returns:
        0, or the exit code of the configuration error.
    """
    running = {name: _Loop(command) for name, command in loops.items()}
    try:
        while not stop.is_set():
            for name, loop in running.items():
                if loop.process is not None and (code := loop.process.poll()) is not None:
                    loop.process = None
                    calm = clock.monotonic() - loop.started >= _CALM_SECONDS
                    loop.ran = loop.ran or calm or code != ConfigurationError.exit_code
                    if not loop.ran:
                        _LOG.error("%s says that its configuration is wrong: all loops end", name)
                        return code
                    loop.wait = 1.0 if calm or not loop.wait else min(2 * loop.wait, LONGEST_WAIT_SECONDS)
                    loop.due = clock.monotonic() + loop.wait
                    _LOG.warning("%s ended with code %d; it is started again in %g s", name, code, loop.wait)
                if loop.process is None and clock.monotonic() >= loop.due:
                    loop.started = clock.monotonic()
                    loop.process = _start(name, loop)
            clock.wait(LOOK_SECONDS, stop)
    finally:
        _end([loop.process for loop in running.values() if loop.process is not None])
    return 0


def _start(name: str, loop: _Loop) -> subprocess.Popen[bytes] | None:
    try:
        process = subprocess.Popen(loop.command, preexec_fn=_end_with_parent)  # noqa: S603, PLW1509  our own commands; no thread is here
    except (OSError, subprocess.SubprocessError) as error:
        loop.wait = min(2 * loop.wait or 1.0, LONGEST_WAIT_SECONDS)
        loop.due = loop.started + loop.wait
        _LOG.warning("%s cannot be started: %s; it is tried again in %g s", name, error, loop.wait)
        return None
    _LOG.info("%s runs as process %d", name, process.pid)
    return process


def _end_with_parent() -> None:
    if hasattr(_LIBC, "prctl"):
        _LIBC.prctl(_SIGNAL_OF_PARENT, signal.SIGTERM)


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    for process in processes:
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            _LOG.warning("process %d has not ended within %g s and is killed", process.pid, STOP_SECONDS)
            process.kill()
            process.wait()
