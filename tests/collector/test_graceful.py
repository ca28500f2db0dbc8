"""A collector that is told to stop: what it read is stored, and it ends in time although a target hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from collector.settings import StoreSettings
from collector.store import EmbeddedStore

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_the_collector_and_every_answer_that_it_got_is_a_row(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    answered: list[str] = []
    enough, release = threading.Event(), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/hangs":
                release.wait(60)
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f'DCGM_FI_DEV_POWER_USAGE{{gpu="0",UUID="GPU-{self.path}"}} 100\n'.encode())
            answered.append(self.path)
            if len(answered) >= 9:
                enough.set()

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = tmp_path / "trimtab.toml"
    paths = ("a", "b", "c", "hangs")
    targets = ", ".join(f'"http://127.0.0.1:{server.server_port}/{path}"' for path in paths)
    config.write_text(
        f"[cluster]\ninterval_seconds = 1\n[store]\npath = '{tmp_path / 'store'}'\n"
        f"[[source]]\ntargets = [{targets}]\ntimeout_seconds = 60\n"
    )
    child = subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, "-c", "from dashboard.cli import main; main()", "--config", str(config), "collect"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert enough.wait(60)
    child.send_signal(number)
    _, said = child.communicate(timeout=30)
    release.set()
    server.shutdown()
    server.server_close()
    assert child.returncode == code, said
    assert "Traceback" not in said
    store = EmbeddedStore(StoreSettings(path=tmp_path / "store"), read_only=True)
    span = store.span("gpu")
    assert span is not None
    rows = store.read("gpu", span, fields=["power_watts"])
    store.close()
    assert sorted(rows["gpu"].str.removeprefix("GPU-")) == sorted(answered)
    assert (rows["power_watts"] == 100).all()
