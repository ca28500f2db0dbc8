"""The source `slurm`: jobs that wait and run, by `squeue`; cards of nodes, by `sinfo`. Nothing is ever changed."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime

from pydantic import Field

from collector.assemble import Assembler, Scrape
from collector.demand import SchedulerState
from collector.errors import ConfigurationError, UnreachableError
from collector.gathering import GatheringSource
from collector.plugins import SourceContext
from collector.protocols import SourceDescription
from collector.schedulers.options import read_options
from collector.schedulers.slurm_jobs import (
    SINFO_FORMAT,
    SQUEUE_FORMAT,
    SlurmFormatError,
    asks_of,
    cards_of_nodes,
    read_jobs,
)
from collector.settings import Section, SourceSettings, TargetSettings

_MAX_BYTES = 256 * 2**20


class SlurmOptions(Section):
    """`options` of a source of kind `slurm`."""

    squeue: str = Field("squeue", description="command that lists jobs, such as `ssh login1 squeue`")
    sinfo: str = Field("sinfo", description="command that lists nodes; empty: cards of nodes are not read")
    json_output: bool = Field(
        False, alias="json", description="ask squeue for JSON, which lists an array's waiting tasks as one job"
    )


class SlurmSource(GatheringSource):
    """Runs `squeue` and `sinfo`, with a time limit, and reads what they print.

    Args:
        settings: the `[[source]]` table: `options` and the time-out.
        context: cluster, interval, tenants (an account is looked up as a namespace).

    Raises:
        ConfigurationError: an option is not known, or a command is empty or badly quoted.
    """

    def __init__(self, settings: SourceSettings, context: SourceContext) -> None:
        options = read_options(SlurmOptions, settings)
        wanted = ["--json"] if options.json_output else ["-h", "-r", "-O", SQUEUE_FORMAT]
        self._squeue = [*_words("squeue", options.squeue), *wanted]
        self._sinfo = [*_words("sinfo", options.sinfo), "-h", "-N", "-o", SINFO_FORMAT] if options.sinfo else []
        self._timeout = settings.timeout_seconds
        self._name = settings.name or settings.kind
        self._context = context
        self._target = TargetSettings(url=f"slurm:{options.squeue}")
        self.assembler = Assembler(context)

    def gather(self, now: datetime) -> list[Scrape]:
        """List jobs and nodes once."""
        del now
        denied: dict[str, str] = {}
        try:
            asks = asks_of(read_jobs(run_command(self._squeue, self._timeout)))
        except (UnreachableError, SlurmFormatError) as error:
            return [Scrape(self._target, None, f"{self._target.url}: {error}")]
        cards: dict[str, float] = {}
        if self._sinfo:
            try:
                cards = cards_of_nodes(run_command(self._sinfo, self._timeout))
            except (UnreachableError, SlurmFormatError) as error:
                denied["nodes"] = str(error)
        return [Scrape(self._target, None, demand=SchedulerState(asks=asks, cards={"Slurm": cards}), denied=denied)]

    def describe(self) -> SourceDescription:
        """Say what this source is."""
        return SourceDescription("slurm", self._name, (self._target.url,), self._context.interval_seconds)


def _words(option: str, command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigurationError(f"options.{option}: expected a command, got {command!r} ({error})") from error
    if not words:
        raise ConfigurationError(f"options.{option}: expected a command such as {option}, got nothing")
    return words


def run_command(words: Sequence[str], timeout_seconds: float) -> str:
    """Run a command without input and return what it printed, times as seconds since the epoch.

    Raises:
        UnreachableError: it cannot be started, takes too long, prints too much, or fails.
    """
    environment = {**os.environ, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}
    late = threading.Event()
    with tempfile.TemporaryFile() as complaints:
        try:
            process = subprocess.Popen(  # noqa: S603  the command is the operator's own, and no shell reads it
                list(words),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=complaints,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise UnreachableError(f"expected to run {words[0]}, got {reason}") from error

        def stop() -> None:
            late.set()
            _kill(process)

        timer = threading.Timer(timeout_seconds, stop)
        timer.start()
        try:
            with process:
                printed = process.stdout.read(_MAX_BYTES + 1) if process.stdout is not None else b""
                if len(printed) > _MAX_BYTES:
                    _kill(process)
        finally:
            timer.cancel()
        complaints.seek(0)
        said = " ".join(complaints.read(2000).decode("utf-8", errors="replace").split())[:200]
    if late.is_set():
        raise UnreachableError(f"expected {words[0]} to end in {timeout_seconds:g} s, it did not")
    if len(printed) > _MAX_BYTES:
        raise UnreachableError(f"expected at most {_MAX_BYTES} bytes of {words[0]}, got more")
    if process.returncode:
        raise UnreachableError(f"{words[0]} ended with {process.returncode}: {said or 'no word'}")
    return printed.decode("utf-8", errors="replace")


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a command with all that it started: a child that keeps the pipe open would be waited for."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
