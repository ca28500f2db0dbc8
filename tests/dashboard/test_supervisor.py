"""Loops as processes: who falls is started again, a wrong configuration ends all, and all end together."""

from __future__ import annotations

import math
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest

from collector.clock import VirtualClock
from dashboard import supervisor
from dashboard.cli.running import LOOPS
from dashboard.supervisor import supervise
from tests.dashboard.conftest import Ran

_HELLO = "import os, sys; open(sys.argv[1], 'w').write(f'{os.getpid()} {os.getpgid(0)}\\n')\n"
_STEADY = (  # says hello, waits for SIGTERM, says that it was ended
    "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
    + _HELLO
    + "signal.sigwait([signal.SIGTERM]); open(sys.argv[1] + '.' + str(os.getpid()), 'w').write('ended')\n"
)


class Watching(VirtualClock):
    """Instead of waiting it looks into a pipe for what the processes say; each line goes to `heard`."""

    def __init__(self, pipe: Path, heard: Callable[[list[str]], None]) -> None:
        super().__init__(datetime(2026, 1, 5, tzinfo=UTC))
        os.mkfifo(pipe)
        self._pipe = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
        self._heard = heard
        self.lines: list[str] = []

    def wait(self, seconds: float, stop: threading.Event | None = None) -> bool:
        if select.select([self._pipe], [], [], 0.05)[0]:
            self.lines += os.read(self._pipe, 4096).decode().splitlines()
            self._heard(self.lines)
        return super().wait(seconds, stop)


def command(text: str, *arguments: object) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", text, *map(str, arguments))


def test_all_run_in_one_group_and_end_together(tmp_path: Path) -> None:
    stop, pipe = threading.Event(), tmp_path / "pipe"
    clock = Watching(pipe, lambda lines: stop.set() if len(lines) == 2 else None)
    assert supervise({name: command(_STEADY, pipe) for name in "ab"}, stop, clock) == 0
    processes, groups = zip(*(line.split() for line in clock.lines), strict=True)
    assert set(groups) == {str(os.getpgid(0))}
    assert [(tmp_path / f"pipe.{process}").read_text() for process in processes] == ["ended", "ended"]


def test_one_that_falls_is_started_again_later_and_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_CALM_SECONDS", math.inf)  # the clock runs while the processes only begin
    stop, pipe = threading.Event(), tmp_path / "pipe"
    starts: list[float] = []

    def heard(lines: list[str]) -> None:
        starts.append(clock.monotonic())
        if len(lines) == 4:
            stop.set()

    clock = Watching(pipe, heard)
    assert supervise({"falls": command(_HELLO + "sys.exit(4)", pipe)}, stop, clock) == 0
    pauses = [later - earlier for earlier, later in pairwise(starts)]
    assert [pause >= least for pause, least in zip(pauses, (1.0, 2.0, 4.0), strict=True)] == [True] * 3


def test_a_wrong_configuration_ends_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_CALM_SECONDS", math.inf)
    pipe = tmp_path / "pipe"
    loops = {"wrong": command("import sys; sys.exit(2)"), "steady": command(_STEADY, pipe)}
    assert supervise(loops, threading.Event(), Watching(pipe, lambda _: None)) == 2


def test_a_configuration_that_becomes_wrong_ends_nobody_else(tmp_path: Path) -> None:
    stop, pipe = threading.Event(), tmp_path / "pipe"
    falls = _HELLO + "first = not os.path.exists(sys.argv[2]); open(sys.argv[2], 'w'); sys.exit(1 if first else 2)"
    clock = Watching(pipe, lambda lines: stop.set() if len(lines) == 3 else None)
    assert supervise({"falls": command(falls, pipe, tmp_path / "there")}, stop, clock) == 0
    assert len(clock.lines) == 3  # tried again after it said that its configuration is wrong


def test_who_ran_for_long_had_a_right_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_CALM_SECONDS", 0.0)
    stop, pipe = threading.Event(), tmp_path / "pipe"
    clock = Watching(pipe, lambda lines: stop.set() if len(lines) == 2 else None)
    assert supervise({"falls": command(_HELLO + "sys.exit(2)", pipe)}, stop, clock) == 0
    assert len(clock.lines) == 2


def test_what_cannot_be_started_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stop, later = threading.Event(), tmp_path / "later"

    class Counting(VirtualClock):
        def wait(self, seconds: float, stop: threading.Event | None = None) -> bool:
            if caplog.text.count("cannot be started") == 3 and stop is not None:
                stop.set()
            return super().wait(seconds, stop)

    assert supervise({"absent": (str(later),)}, stop, Counting(datetime(2026, 1, 5, tzinfo=UTC))) == 0
    assert [text in caplog.text for text in ("again in 1 s", "again in 2 s", "again in 4 s")] == [True] * 3


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children of their parent's end")
def test_where_the_supervisor_is_killed_its_loops_end_too(tmp_path: Path) -> None:
    loop = "import signal; print('up', flush=True); signal.pause()"
    text = (
        "import sys, threading\n"
        "from collector.clock import SystemClock\n"
        "from dashboard.supervisor import supervise\n"
        f"supervise({{'a': (sys.executable, '-S', '-c', {loop!r})}}, threading.Event(), SystemClock())\n"
    )
    killed = subprocess.Popen((sys.executable, "-c", text), stdout=subprocess.PIPE, text=True)  # noqa: S603  our own
    assert killed.stdout is not None
    assert killed.stdout.readline() == "up\n"
    killed.kill()
    rest, _ = killed.communicate(timeout=60)  # ends when nobody has the pipe open any more
    assert rest == ""


def test_the_command_starts_the_three_loops(trimtab: Callable[..., Ran], elsewhere: Path) -> None:
    assert LOOPS == ("collect", "tune", "dashboard")
    path = Path("trimtab.toml")
    path.write_text("[store]\npth = 1\n")
    path.chmod(0o600)
    ran = trimtab("run")
    assert (ran.code, "pth" in ran.err) == (2, True)
