"""Questions to a server that misbehaves: it stalls, floods, redirects, wants a log-in, says that it is too much."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import orjson
import pytest
import requests

from collector import prometheus_api
from collector.errors import UnreachableError
from collector.http import reason_of
from collector.prometheus_api import PrometheusApi, TooMuchError, quoted, selector
from collector.settings import SourceSettings

START = datetime(2026, 1, 5, tzinfo=UTC)
END = START + timedelta(minutes=1)
Answer = tuple[int, dict[str, str], bytes]


class Server:
    """Answers each POST with what `answer` makes of its query, and keeps what it was asked."""

    def __init__(self) -> None:
        self.answer: Callable[[str], Answer] = lambda _: (200, {}, matrix())
        self.asked: list[tuple[str, dict[str, str], dict[str, str]]] = []
        self.stop = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                form = {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()}
                self._reply(form)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                self._reply({key: values[0] for key, values in parse_qs(body).items()})

            def _reply(self, form: dict[str, str]) -> None:
                outer.asked.append((self.path, form, dict(self.headers.items())))
                status, headers, body = outer.answer(form.get("query", self.path))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if headers.get("X-Endless"):
                    self.end_headers()
                    piece = body * 1000
                    while not outer.stop.wait(0.0 if len(body) > 1 else 0.05):
                        try:
                            self.wfile.write(piece)
                        except OSError:
                            return
                    return
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.stop.set()
        self._server.shutdown()
        self._server.server_close()


def matrix(*series: tuple[dict[str, str], list[list[object]]]) -> bytes:
    result = [{"metric": metric, "values": values} for metric, values in series]
    return orjson.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})


def error(words: str) -> bytes:
    return orjson.dumps({"status": "error", "errorType": "execution", "error": words})


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    yield one
    one.close()


def api_of(server: Server, **settings: object) -> tuple[PrometheusApi, list[float]]:
    pauses: list[float] = []
    table = {"kind": "prometheus", "url": server.url, "timeout_seconds": 3, **settings}
    return PrometheusApi(SourceSettings.model_validate(table), pause=pauses.append), pauses


def test_a_question_names_metrics_and_labels_and_escapes_both(server: Server) -> None:
    hostile = 'a"b\\c\nd\r} or up{'
    api, _ = api_of(server, match={"cluster": hostile})
    server.answer = lambda query: (200, {}, matrix() if "[" in query else b'{"status":"success","data":["up"]}')
    assert list(api.samples(["m:one", "od.d"], START, END))
    ((path, form, headers),) = server.asked
    assert path == "/api/v1/query"
    assert form["query"] == ('{__name__=~"m:one|od\\\\x{2e}d",cluster="a\\"b\\\\c\\nd\\r} or up{"}[61s]')
    assert (form["time"], form["timeout"]) == (f"{END.timestamp():.3f}", "3s")
    assert headers["Accept-Encoding"] == "identity"
    assert api.names(START, END) == ["up"]
    assert server.asked[-1][1]["match[]"] == '{cluster="a\\"b\\\\c\\nd\\r} or up{"}'
    assert selector(["up"], {}) == '{__name__=~"up"}'
    assert quoted("é") == '"é"'


def test_borders_are_cut_to_the_half_open_window(server: Server) -> None:
    at = START.timestamp()
    values = [[at - 0.001, "0"], [at, "1"], [at + 59.999, "2"], [at + 60, "3"]]
    server.answer = lambda _: (200, {}, matrix(({"__name__": "a"}, values), ({"__name__": "b"}, values[:1])))
    (answer,) = api_of(server)[0].samples(["a", "b"], START, END)
    assert answer.values.tolist() == [1.0, 2.0]
    assert answer.counts.tolist() == [2, 0]


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_what_passes_is_asked_again(server: Server, status: int) -> None:
    answers = iter([(status, {}, b"busy"), (status, {}, b"busy"), (200, {}, matrix())])
    server.answer = lambda _: next(answers)
    api, pauses = api_of(server)
    assert len(list(api.samples(["up"], START, END))) == 1
    assert pauses == [0.2, 1.0]


def test_what_does_not_pass_is_said_after_three_tries(server: Server) -> None:
    server.answer = lambda _: (503, {"Retry-After": "3600"}, b"busy")
    api, pauses = api_of(server)
    with pytest.raises(UnreachableError, match="expected samples, got HTTP 503"):
        list(api.samples(["up"], START, END))
    assert pauses == [0.2, 1.0]


def test_what_is_too_much_is_asked_for_in_halves(server: Server) -> None:
    def answer(query: str) -> Answer:
        names = re.findall(r"m\d", query)
        if len(names) > 1:
            return 422, {}, error("query processing would load too many samples into memory in query execution")
        return 200, {}, matrix(({"__name__": names[0]}, [[START.timestamp(), "1"]]))

    server.answer = answer
    api, _ = api_of(server)
    found = [one.metrics[0]["__name__"] for one in api.samples(["m1", "m2", "m3"], START, END)]
    assert found == ["m1", "m2", "m3"]
    server.answer = lambda _: (503, {}, error("query timed out in expression evaluation"))
    with pytest.raises(TooMuchError, match="query timed out"):
        list(api.samples(["m1"], START, END))


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (400, error("parse error:\n unexpected"), "expected samples, got parse error: unexpected$"),
        (401, b"", "HTTP 401 .bearer_token, bearer_token_file or username"),
        (404, b"<html>", "HTTP 404 .is `url` the base address"),
        (200, b"<html>", "something that is no answer of Prometheus"),
        (200, b'{"status":"success","data":{"resultType":"vector","result":[]}}', "no matrix"),
    ],
)
def test_errors_are_one_line_in_words(server: Server, status: int, body: bytes, words: str) -> None:
    server.answer = lambda _: (status, {}, body)
    with pytest.raises(UnreachableError, match=words) as caught:
        list(api_of(server)[0].samples(["up"], START, END))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("body", [b'{"status":"success","data":{"a":1}}', b'{"status":"success"}', b"[7]", b"<html>"])
def test_names_that_are_none_are_refused(server: Server, body: bytes) -> None:
    server.answer = lambda _: (200, {}, body)
    with pytest.raises(UnreachableError, match="expected metric names, got"):
        api_of(server)[0].names()


def test_an_endless_body_is_left_at_its_limit(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus_api, "MAX_BYTES", 1 << 20)
    server.answer = lambda _: (200, {"X-Endless": "1"}, b'{"status":')
    api, _ = api_of(server)
    with pytest.raises(TooMuchError, match="expected at most 1048576 bytes, got more"):
        list(api.samples(["up"], START, END))
    with pytest.raises(UnreachableError, match="expected metric names, got more"):
        api.names()


def test_a_body_that_trickles_is_left_at_the_time_out(server: Server) -> None:
    server.answer = lambda _: (200, {"X-Endless": "1"}, b" ")
    api, pauses = api_of(server, timeout_seconds=0.3)
    with pytest.raises(UnreachableError, match="expected an answer, got no answer in time"):
        list(api.samples(["up"], START, END))
    with pytest.raises(UnreachableError, match="expected metric names, got no answer in time"):
        api.names()
    assert pauses == []  # its time is used up


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_keeps_the_question(server: Server, status: int) -> None:
    server.answer = lambda query: (
        (status, {"Location": "/moved/api/v1/query"}, b"")
        if server.asked[-1][0] == "/api/v1/query"
        else (200, {}, matrix(({"__name__": query}, [[START.timestamp(), "1"]])))
    )
    login = {"bearer_token": "t0ken"}
    (answer,) = api_of(server, **login)[0].samples(["up"], START, END)
    assert answer.metrics[0]["__name__"].startswith('{__name__=~"up"}')
    assert server.asked[-1][2]["Authorization"] == "Bearer t0ken"


def test_a_redirect_that_drops_the_question_is_said(server: Server) -> None:
    server.answer = lambda _: (303, {"Location": "/login"}, b"")
    with pytest.raises(UnreachableError, match=r"HTTP 303 \(a redirect that drops the question"):
        list(api_of(server)[0].samples(["up"], START, END))


def test_a_redirect_to_another_host_does_not_get_the_log_in(server: Server) -> None:
    elsewhere = Server()
    try:
        server.answer = lambda _: (307, {"Location": f"{elsewhere.url}/api/v1/query"}, b"")
        login = {"username": "u", "password": "hunter2"}
        list(api_of(server, **login)[0].samples(["up"], START, END))
        assert "Authorization" in server.asked[-1][2]
        assert "Authorization" not in elsewhere.asked[-1][2]
    finally:
        elsewhere.close()


def test_a_password_in_the_address_is_sent_and_never_told(server: Server) -> None:
    host = server.url.removeprefix("http://")
    api = PrometheusApi(SourceSettings(kind="prometheus", url=f"http://u:hunter2@{host}"), pause=lambda _: None)
    list(api.samples(["up"], START, END))
    assert server.asked[-1][2]["Authorization"] == "Basic dTpodW50ZXIy"
    server.answer = lambda _: (500, {}, b"u:hunter2")
    with pytest.raises(UnreachableError) as caught:
        list(api.samples(["up"], START, END))
    assert "hunter2" not in f"{caught.value}{api.place}"
    server.close()
    for ask in (api.names, lambda: list(api.samples(["up"], START, END))):
        with pytest.raises(UnreachableError) as caught:
            ask()
        assert "hunter2" not in str(caught.value)


def test_a_server_that_is_not_there_is_told_in_words() -> None:
    table = {"kind": "prometheus", "url": "http://127.0.0.1:9", "timeout_seconds": 3}
    api = PrometheusApi(SourceSettings.model_validate(table), pause=lambda _: None)
    with pytest.raises(UnreachableError, match=r"expected metric names, got none: nothing listens there"):
        api.names()
    api.close()
    unknown = requests.ConnectionError()
    unknown.__cause__ = socket.gaierror(-2, "Name or service not known")
    assert reason_of(unknown) == "none: the name of the host is not known here"
