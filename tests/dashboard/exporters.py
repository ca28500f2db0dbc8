"""Exporters on loopback: an HTTP server that answers each path with a text."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from sample_data.cluster import SimulatedCluster
from sample_data.cluster.presets import mixed


@dataclass(slots=True)
class Exporters:
    """Path -> text, changeable while it serves; `asked` is set at the first request, `count` counts them."""

    address: str
    texts: dict[str, str]
    asked: threading.Event = field(default_factory=threading.Event)
    count: int = 0

    def url(self, path: str) -> str:
        return f"{self.address}/{path}"


@contextmanager
def serving(texts: dict[str, str]) -> Iterator[Exporters]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            exporters.count += 1
            text = exporters.texts.get(self.path.removeprefix("/"))
            self.send_response(200 if text is not None else 404)
            self.end_headers()
            self.wfile.write((text or "").encode())
            exporters.asked.set()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    exporters = Exporters(f"http://127.0.0.1:{server.server_port}", dict(texts))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield exporters
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def simulated_texts() -> dict[str, str]:
    """Return what exporters say after a few minutes: `dcgm` of a MIG node, `dcgm_mps`, `kube`, `triton`."""
    cluster = SimulatedCluster(mixed(seed=3))
    for _ in range(3):
        cluster.step()
    found: dict[str, str] = {}
    for target in cluster.targets():
        text = cluster.fetch(target)
        for name, mark in (("dcgm", "DCGM_FI_"), ("kube", "kube_pod_"), ("triton", "nv_inference_")):
            if mark in text:
                found.setdefault("dcgm_mps" if name == "dcgm" and name in found else name, text)
    return found
