"""Exporters that trickle, flood, send round in circles or have an address that is none: each is its own failure."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from pydantic import SecretStr

from collector import fetch as fetching
from collector.errors import UnreachableError
from collector.fetch import HttpFetch
from collector.settings import SourceSettings, TargetSettings

_MIB = 2**20


class Handler(BaseHTTPRequestHandler):
    """Answers by path."""

    stop = threading.Event()

    def do_GET(self) -> None:
        """Answer."""
        kind = self.path.strip("/")
        hops = {"circle": "/circle", "moved": "/plain", "away": f"http://localhost:{self.server.server_port}/plain"}  # type: ignore[attr-defined]  # an HTTP server
        if kind == "headers":
            self._send(b"HTTP/1.0 200 OK\r\nX-Trickle: ")
            while not self.stop.wait(0.05):
                self._send(b"x")
            return
        self.send_response(302 if kind in hops else 200)
        if kind in hops:
            self.send_header("Location", hops[kind])
        if kind == "packed":
            self.send_header("Content-Encoding", "gzip")
        if kind == "announced":
            self.send_header("Content-Length", str(300 * _MIB))
        self.end_headers()
        if kind == "trickle":
            while not self.stop.wait(0.05):
                self._send(b"#")
        elif kind == "packed":
            self._send(gzip.compress(bytes(64 * _MIB)))
        elif kind == "flood":
            while self._send(bytes(_MIB)):
                pass
        else:
            self._send(f"authorized {self.headers.get('Authorization')} é\n".encode())

    def _send(self, data: bytes) -> bool:
        try:
            self.wfile.write(data)
        except OSError:
            self.stop.set()
            return False
        return True

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    Handler.stop.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    Handler.stop.set()
    server.shutdown()
    server.server_close()


def fetched(url: str, timeout_seconds: float = 5.0) -> str:
    fetch = HttpFetch(SourceSettings(timeout_seconds=timeout_seconds, bearer_token=SecretStr("t0ken")))
    try:
        return fetch(TargetSettings(url=url))
    finally:
        fetch.close()


@pytest.mark.parametrize("kind", ["trickle", "headers"])
def test_an_exporter_that_trickles_is_left_at_the_time_out(url: str, kind: str) -> None:
    with pytest.raises(UnreachableError, match="expected an answer, got no answer in time"):
        fetched(f"{url}/{kind}", 0.3)


@pytest.mark.parametrize("kind", ["flood", "packed"])
def test_an_answer_that_is_too_big_is_not_read_to_its_end(url: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "_MAX_BYTES", _MIB)
    with pytest.raises(UnreachableError, match=f"expected at most {_MIB} bytes, got more"):
        fetched(f"{url}/{kind}")


def test_redirects_are_followed_and_the_token_stays_with_its_host(url: str) -> None:
    assert fetched(f"{url}/plain") == "authorized Bearer t0ken é\n"
    assert fetched(f"{url}/moved") == "authorized Bearer t0ken é\n"
    assert fetched(f"{url}/away") == "authorized None é\n"


def test_redirects_in_a_circle_end(url: str) -> None:
    with pytest.raises(UnreachableError, match="got more than 5 redirects"):
        fetched(f"{url}/circle")


@pytest.mark.parametrize("address", ["http://" + "a" * 300 + "/", "http://[::1/", "http://.a./", "http://h:99999999/"])
def test_an_address_that_is_none_is_unreachable(address: str) -> None:
    with pytest.raises(UnreachableError, match="expected an answer, got"):
        fetched(address)


def test_a_password_in_an_address_is_not_told() -> None:
    with pytest.raises(UnreachableError) as caught:
        fetched("http://u:hunter2@127.0.0.1:9/metrics")
    assert "hunter2" not in str(caught.value)


def test_a_size_that_is_announced_too_big_is_refused(url: str) -> None:
    with pytest.raises(UnreachableError, match=f"expected at most {256 * _MIB} bytes, got more"):
        fetched(f"{url}/announced")
