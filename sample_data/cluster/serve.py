"""Serves a simulated cluster's exporters over HTTP on loopback, for a collector that scrapes addresses.

`GET /` lists the pages, one address a line; each target's page lies under `/<host>/metrics`, where `<host>` is the host
name and port that the target would have in its cluster. Every page begins with the series `trimtab_simulated`: rows
made of it never pass for real ones.
"""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from collector.assemble import SIMULATED_METRIC
from collector.errors import UnreachableError
from collector.settings import TargetSettings
from sample_data.cluster.cluster import SimulatedCluster


class ExporterServer:
    """An HTTP server over a cluster that somebody else steps; use it as a context manager.

    Args:
        cluster: what is served; it must have made a step.
        port: 0 takes a free one.
    """

    def __init__(self, cluster: SimulatedCluster, port: int = 0) -> None:
        self._cluster = cluster
        self._marker = f'# TYPE {SIMULATED_METRIC} gauge\n{SIMULATED_METRIC}{{cluster="{cluster.spec.name}"}} 1\n'
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = outer.answer(self.path)
                self.send_response(status)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
                del format, args  # a scrape a second is no news

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """Base address."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def targets(self) -> list[TargetSettings]:
        """Return the cluster's targets with addresses on this server; node and labels stay as they are."""
        with self._lock:
            found = self._cluster.targets()
        return [t.model_copy(update={"url": f"{self.url}/{urlsplit(t.url).netloc}/metrics"}) for t in found]

    def step(self) -> None:
        """Step the cluster while no page is being written."""
        with self._lock:
            self._cluster.step()

    def answer(self, path: str) -> tuple[int, bytes]:
        """Return status and body for a path: 404 for an unknown one, 503 for a target that is down."""
        with self._lock:
            hosts = {urlsplit(t.url).netloc: t for t in self._cluster.targets()}
            if path == "/":
                return 200, "".join(f"{self.url}/{host}/metrics\n" for host in hosts).encode()
            target = hosts.get(path.removeprefix("/").removesuffix("/metrics"))
            if target is None:
                return 404, b"no such target\n"
            try:
                return 200, (self._marker + self._cluster.fetch(target)).encode()
            except UnreachableError as error:
                return 503, f"{error}\n".encode()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
