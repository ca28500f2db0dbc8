"""Real servers on loopback, for tests and benchmarks: InfluxDB 2 and 1, Prometheus 2 and 3, VictoriaMetrics.

`make servers` puts the binaries into a cache outside the checkout. Each function here is a context manager: it starts
one server on a free port with its data in the folder given, waits until it answers, and ends the process that it
started, and no other.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import requests

INFLUXDB_2 = "influxd-2.8.0"
INFLUXDB_1 = "influxd-1.13.2"
VICTORIA_METRICS = "victoria-metrics-1.79"
PROMETHEUS: Mapping[str, str] = {"2.42": "prometheus-2.42", "3.16": "prometheus-3.16.0"}

PrometheusVersion = Literal["2.42", "3.16"]

_READY_SECONDS = 60.0
_STOP_SECONDS = 20.0
_LOG_LINES = 20
_PROCESS_CLOCK = 2  # Linux: with a process's number, the clock of its CPU time (clock_getcpuclockid)
_TOKEN = "trimtab-tests"  # noqa: S105 - of a server that lives as long as its test
_PASSWORD = "trimtab-tests"  # noqa: S105 - likewise


class ServerMissing(Exception):  # noqa: N818 - it names a state of this machine
    """The binary is not in the cache."""


class ServerFailed(Exception):  # noqa: N818 - likewise
    """The server ended or did not answer in time; the message ends with the end of its log."""


@dataclass(frozen=True, slots=True)
class Process:
    """A server that runs: its process, and the file that it logs to."""

    pid: int
    log: Path

    def cpu_seconds(self) -> float:
        """Return the CPU seconds, user and system, that the process has used."""
        return time.clock_gettime(~self.pid << 3 | _PROCESS_CLOCK)

    def peak_bytes(self) -> int:
        """Return the largest resident memory that the process has had."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024


@dataclass(frozen=True, slots=True)
class InfluxServer:
    """An InfluxDB with an empty bucket.

    With version 1 `bucket` is `database/retention-policy`, `org` is `-` and the token `user:password` (not checked).
    """

    url: str
    token: str
    org: str
    bucket: str
    process: Process


@dataclass(frozen=True, slots=True)
class PrometheusServer:
    """A Prometheus that answers."""

    url: str
    version: str
    process: Process


@dataclass(frozen=True, slots=True)
class VictoriaServer:
    """A single-node VictoriaMetrics; it takes InfluxDB's line protocol under /write and /api/v2/write."""

    url: str
    process: Process


def cache_folder() -> Path:
    """Return the folder that `make servers` fills."""
    given = os.environ.get("TRIMTAB_SERVERS")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trimtab" / "servers"


def server_binary(name: str) -> Path:
    """Return the binary of a server such as `influxd-2.8.0`.

    Raises:
        ServerMissing: it is not in the cache.
    """
    path = cache_folder() / name / name.rpartition("-")[0]
    if not os.access(path, os.X_OK):
        raise ServerMissing(f"needs the server {name}: run `make servers` (looked for {path})")
    return path


def free_port() -> int:
    """Return a port of loopback that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(
    command: Sequence[str | Path], log: Path, ready: Callable[[], bool], *, environment: Mapping[str, str] | None = None
) -> Iterator[Process]:
    """Run a server until the block ends; enter the block when `ready` says so.

    Args:
        command: program and arguments.
        log: file for its output, written anew.
        ready: tells whether it answers; an exception of requests means not yet.
        environment: variables beside those of this process.

    Raises:
        ServerFailed: it ended, or did not answer within a minute.
    """
    with log.open("wb") as out:
        child = subprocess.Popen(  # noqa: S603 - the command is the caller's
            list(map(str, command)),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,  # Ctrl-C ends the tests, and they end the server
        )
    try:
        _await(child, log, ready)
        yield Process(child.pid, log)
    finally:
        _end(child)


def _await(child: subprocess.Popen[bytes], log: Path, ready: Callable[[], bool]) -> None:
    name = Path(str(child.args[0])).name if isinstance(child.args, list) else "server"
    limit = time.monotonic() + _READY_SECONDS
    while True:
        try:
            if ready():
                return
        except requests.RequestException:
            pass
        if child.poll() is not None:
            raise ServerFailed(f"{name} ended with {child.returncode} instead of serving:\n{log_end(log)}")
        if time.monotonic() > limit:
            raise ServerFailed(f"{name} did not answer within {_READY_SECONDS:g} s:\n{log_end(log)}")
        try:
            child.wait(0.05)  # a server that ends is noticed at once
        except subprocess.TimeoutExpired:
            continue


def await_true(condition: Callable[[], bool], what: str) -> None:
    """Wait until something is so that the server will bring about by itself, such as a scrape.

    Raises:
        ServerFailed: it is not so within a minute.
    """
    limit = time.monotonic() + _READY_SECONDS
    while not condition():
        if time.monotonic() > limit:
            raise ServerFailed(f"expected within {_READY_SECONDS:g} s: {what}")
        time.sleep(0.05)


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is not None:
        return
    child.send_signal(signal.SIGTERM)
    try:
        child.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def log_end(log: Path) -> str:
    """Return the last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:]) if log.exists() else "(no log)"


def _answers(url: str, status: int = 200) -> Callable[[], bool]:
    return lambda: requests.get(url, timeout=5).status_code == status


def _folder(parent: Path, name: str) -> Path:
    """Make a folder that no server before had: several may share one test's folder."""
    number = 0
    while True:
        folder = parent / f"{name}-{number}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            return folder


def _place(folder: Path, port: int) -> tuple[Path, str]:
    """Return the folder, made where it is absent, and the address on loopback; port 0 takes a free one."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder, f"127.0.0.1:{port or free_port()}"


@contextmanager
def influxdb2(tmp: Path, *, port: int = 0, data: Path | None = None) -> Iterator[InfluxServer]:
    """Run InfluxDB 2.8.0, set up with one organisation and one bucket without a limit of age.

    Args:
        tmp: folder for its data and log.
        port: 0 takes a free one.
        data: folder of an earlier run to go on from; None: it begins empty.

    Raises:
        ServerMissing: its binary is not in the cache.
        ServerFailed: it does not come up.
    """
    binary = server_binary(INFLUXDB_2)
    folder, address = _place(data or _folder(tmp, "influxdb2"), port)
    url = f"http://{address}"
    command = [binary, "run", "--bolt-path", folder / "influxd.bolt", "--engine-path", folder / "engine"]
    command += ["--sqlite-path", folder / "influxd.sqlite", "--http-bind-address", address]
    command += ["--reporting-disabled", "--log-level", "warn"]
    home = {"HOME": str(folder), "INFLUXD_CONFIG_PATH": str(folder)}
    with running(command, folder / "log", _answers(f"{url}/health"), environment=home) as process:
        _set_up(url, folder / "log")
        yield InfluxServer(url, _TOKEN, "trimtab", "trimtab", process)


def _set_up(url: str, log: Path) -> None:
    """Make user, organisation, bucket and token, unless an earlier run on this data did."""
    if not requests.get(f"{url}/api/v2/setup", timeout=10).json()["allowed"]:
        return
    wanted = {"username": "trimtab", "password": _PASSWORD, "org": "trimtab", "bucket": "trimtab", "token": _TOKEN}
    answer = requests.post(f"{url}/api/v2/setup", json={**wanted, "retentionPeriodSeconds": 0}, timeout=30)
    if answer.status_code != 201:
        raise ServerFailed(f"setup answered {answer.status_code} {answer.text}:\n{log_end(log)}")


@contextmanager
def influxdb1(tmp: Path, *, port: int = 0, data: Path | None = None) -> Iterator[InfluxServer]:
    """Run InfluxDB 1.13.2 with Flux, without authentication, with the database `trimtab`.

    Args:
        tmp: folder for its data and log.
        port: 0 takes a free one.
        data: folder of an earlier run to go on from; None: it begins empty.

    Raises:
        ServerMissing: its binary is not in the cache.
        ServerFailed: it does not come up.
    """
    binary = server_binary(INFLUXDB_1)
    folder, address = _place(data or _folder(tmp, "influxdb1"), port)
    url = f"http://{address}"
    settings = folder / "influxdb.conf"
    settings.write_text(
        f'reporting-disabled = true\nbind-address = "127.0.0.1:{free_port()}"\n'
        f'[meta]\ndir = "{folder}/meta"\n'
        f'[data]\ndir = "{folder}/data"\nwal-dir = "{folder}/wal"\nmax-series-per-database = 0\n'
        f'[http]\nbind-address = "{address}"\nflux-enabled = true\nlog-enabled = false\n'
        '[monitor]\nstore-enabled = false\n[logging]\nlevel = "warn"\n'
    )
    command = [binary, "run", "-config", settings]
    home = {"HOME": str(folder)}
    with running(command, folder / "log", _answers(f"{url}/ping", 204), environment=home) as process:
        answer = requests.post(f"{url}/query", data={"q": "CREATE DATABASE trimtab"}, timeout=30)
        if answer.status_code != 200 or "error" in answer.text:
            raise ServerFailed(f"CREATE DATABASE answered {answer.text}:\n{log_end(folder / 'log')}")
        yield InfluxServer(url, "trimtab:trimtab", "-", "trimtab/autogen", process)


@contextmanager
def pages(bodies: Mapping[str, Callable[[], str]]) -> Iterator[str]:
    """Serve texts such as metrics pages on loopback; yields the base address.

    Args:
        bodies: path -> what gives its text each time that it is asked for.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = bodies[self.path]().encode() if self.path in bodies else b""
            self.send_response(200 if self.path in bodies else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def prometheus(
    tmp: Path,
    version: PrometheusVersion = "3.16",
    scrape: Sequence[str] = (),
    interval: float = 1.0,
    *,
    labels: Sequence[Mapping[str, str]] = (),
    port: int = 0,
    arguments: Sequence[str] = (),
    web_config: str = "",
) -> Iterator[PrometheusServer]:
    """Run a Prometheus that scrapes the addresses given, each under a job of its own (`job-0`, `job-1`, ...).

    Args:
        tmp: folder for its data and log.
        version: which one.
        scrape: addresses of metrics pages, such as http://127.0.0.1:1234/metrics.
        interval: seconds between scrapes, a whole number of milliseconds.
        labels: of each address, what service discovery would add (such as namespace and pod); empty: nothing.
        port: 0 takes a free one.
        arguments: more command line.
        web_config: YAML of a web configuration file (basic_auth_users, tls_server_config); with one, the server is
            entered when it listens, since this function has neither password nor certificate.

    Raises:
        ServerMissing: its binary is not in the cache.
        ServerFailed: it does not come up.
    """
    binary = server_binary(PROMETHEUS[version])
    folder = _folder(tmp, f"prometheus-{version}")
    address = f"127.0.0.1:{port or free_port()}"
    settings = folder / "prometheus.yml"
    settings.write_text(_scrape_settings(scrape, interval, labels or [{} for _ in scrape]))
    command = [binary, f"--config.file={settings}", f"--storage.tsdb.path={folder / 'data'}"]
    command += [f"--web.listen-address={address}", "--log.level=warn", "--web.enable-admin-api", *arguments]
    scheme = "http"
    if web_config:
        (folder / "web.yml").write_text(web_config)
        command.append(f"--web.config.file={folder / 'web.yml'}")
        scheme = "https" if "tls_server_config" in web_config else "http"
    url = f"{scheme}://{address}"
    ready = (lambda: _listens(address)) if web_config else _answers(f"{url}/-/ready")
    with running(command, folder / "log", ready) as process:
        yield PrometheusServer(url, version, process)


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def _scrape_settings(scrape: Sequence[str], interval: float, labels: Sequence[Mapping[str, str]]) -> str:
    every = f"{round(interval * 1000)}ms"
    lines = [f"global: {{scrape_interval: {every}, scrape_timeout: {every}}}", "scrape_configs:"]
    for number, (address, added) in enumerate(zip(scrape, labels, strict=True)):
        parts = urlsplit(address)
        lines += [
            f"- job_name: job-{number}",
            f"  scheme: {parts.scheme}",
            f"  metrics_path: {parts.path or '/metrics'}",
            f"  static_configs: [{{targets: ['{parts.netloc}'], labels: {json.dumps(dict(added))}}}]",
        ]
    return "\n".join(lines if scrape else lines[:1]) + "\n"


@contextmanager
def victoriametrics(tmp: Path, *, port: int = 0) -> Iterator[VictoriaServer]:
    """Run VictoriaMetrics, one node; rows are visible at once after `GET /internal/force_flush`.

    Args:
        tmp: folder for its data and log.
        port: 0 takes a free one.

    Raises:
        ServerMissing: its binary is not in the cache.
        ServerFailed: it does not come up.
    """
    binary = server_binary(VICTORIA_METRICS)
    folder = _folder(tmp, "victoriametrics")
    address = f"127.0.0.1:{port or free_port()}"
    url = f"http://{address}"
    command = [binary, f"-storageDataPath={folder / 'data'}", f"-httpListenAddr={address}", "-loggerLevel=WARN"]
    command += ["-retentionPeriod=100y", "-search.latencyOffset=0s"]
    with running(command, folder / "log", _answers(f"{url}/health")) as process:
        yield VictoriaServer(url, process)
