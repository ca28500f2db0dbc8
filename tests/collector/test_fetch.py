"""Who the collector is to an exporter, and whom it believes: tokens, passwords, certificates, kept connections."""

from __future__ import annotations

import gzip
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme
from pydantic import SecretStr, ValidationError

from collector.errors import ConfigurationError, UnreachableError
from collector.fetch import HttpFetch
from collector.settings import Credentials, SourceSettings, TargetSettings


class Server:
    """Echoes who asks; counts connections."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.connections = 0
        self.asked: list[tuple[str, str]] = []
        self.hang_up = False
        self.packed = b""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                outer.connections += 1

            def do_GET(self) -> None:
                outer.asked.append((self.path, self.headers.get("Authorization", "")))
                body = outer.packed or f"{self.headers.get('Authorization')}".encode()
                self.send_response(200)
                if outer.packed:
                    self.send_header("Content-Encoding", "gzip")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                # It says nothing of it: the client finds out with its next request.
                self.close_connection = outer.hang_up

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]  # refused clients are expected
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        scheme = "http" if context is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def fetched(url: str, source: SourceSettings | None = None, auth: Credentials | None = None) -> str:
    fetch = HttpFetch(source or SourceSettings())
    try:
        return fetch(TargetSettings(url=url, auth=auth))
    finally:
        fetch.close()


def test_a_target_has_credentials_of_its_own_or_those_of_its_source(server: Server, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    source = SourceSettings(bearer_token_file=token)
    assert fetched(server.url, source) == "Bearer first"
    token.write_text("second\n")  # such files are rotated
    assert fetched(server.url, source) == "Bearer second"
    basic = Credentials(username="u", password=SecretStr("p:w"))
    assert fetched(server.url, source, basic) == "Basic dTpwOnc="
    assert fetched(server.url.replace("//", "//u:p%3Aw@"), source) == "Basic dTpwOnc="
    assert fetched(server.url) == "None"


def test_a_token_that_is_gone_is_a_target_down_and_a_wrong_one_is_said_at_the_start(
    server: Server, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    fetch = HttpFetch(SourceSettings(bearer_token_file=token))
    token.unlink()
    with pytest.raises(UnreachableError, match="expected a file that can be read"):
        fetch(TargetSettings(url=server.url))
    fetch.close()
    with pytest.raises(ConfigurationError, match="expected a file that can be read"):
        HttpFetch(SourceSettings(bearer_token_file=token))
    assert server.asked == []  # nobody is asked without the token


@pytest.mark.parametrize(
    "wrong",
    [
        {"username": "u", "bearer_token": "t"},
        {"password": "p"},
        {"key_file": "k.pem"},
    ],
)
def test_credentials_that_contradict_each_other_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="expected"):
        Credentials.model_validate(wrong)


def test_connections_are_kept_and_one_that_the_other_side_closed_is_made_anew(server: Server) -> None:
    fetch, target = HttpFetch(SourceSettings()), TargetSettings(url=server.url)
    for _ in range(3):
        fetch(target)
    assert server.connections == 1
    server.hang_up = True
    fetch(target)
    server.hang_up = False
    fetch(target)
    assert len(server.asked) == 5  # nothing was lost, and nothing asked twice
    assert server.connections == 2
    fetch.close()


def test_packed_answers_are_unpacked_and_damaged_ones_refused(server: Server) -> None:
    server.packed = gzip.compress(b"up 1\n")
    assert fetched(server.url) == "up 1\n"
    server.packed = server.packed[:-6]
    with pytest.raises(UnreachableError, match="expected an answer, got gzip that is none, or was cut off"):
        fetched(server.url)
    server.packed = b"up 1\n"
    with pytest.raises(UnreachableError, match="expected an answer, got gzip that is none, or was cut off"):
        fetched(server.url)


@pytest.fixture
def authority(tmp_path: Path) -> trustme.CA:
    made = trustme.CA()
    made.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    made.issue_cert("collector@test").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "client.pem"))
    return made


def test_mutual_tls_shows_our_certificate_and_checks_theirs(authority: trustme.CA, tmp_path: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(context)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    server = Server(context)
    ours = Credentials(ca_file=tmp_path / "ca.pem", cert_file=tmp_path / "client.pem")
    assert fetched(f"{server.url}/m", auth=ours) == "None"
    assert server.asked == [("/m", "")]
    with pytest.raises(UnreachableError, match=r"certificate that is not trusted"):
        fetched(server.url)  # we do not know their authority
    with pytest.raises(UnreachableError, match="expected an answer, got"):
        fetched(server.url, auth=Credentials(ca_file=tmp_path / "ca.pem"))  # they do not know us
    server.close()


def test_certificates_that_cannot_be_read_are_said_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("no certificate")
    with pytest.raises(ConfigurationError, match=r"bad\.pem: expected certificates \(PEM\)"):
        HttpFetch(SourceSettings(ca_file=tmp_path / "bad.pem"))
    with pytest.raises(ConfigurationError, match=r"none\.pem: expected certificates \(PEM\)"):
        HttpFetch(SourceSettings(cert_file=tmp_path / "none.pem"))
