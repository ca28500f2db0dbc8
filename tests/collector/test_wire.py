"""Usual headers are read as the library reads them, and a large body that stalls holds up nobody."""

from __future__ import annotations

import http.client
import io
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from collector.wire import Answer, Connection, Exchange, Limits, _Wire

_SECONDS = 60.0
_LARGE = 3 * 2**20

_HEADERS = st.sampled_from(
    [
        b"Content-Length: 2",
        b"content-length: 2 ",
        b"Content-Length: 1",
        b"Content-Length: two",
        b"Content-Length: -2",
        b"Content-Length : 2",
        "Content-Length: \xb2".encode("iso-8859-1"),
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: identity",
        b"Connection: close",
        b"Connection: keep-alive",
        b"Content-Encoding: gzip",
        b"Date: Mon, 30 Nov 2026 12:00:00 GMT",
        b"Date:",
        b" folded: Content-Length: 5",
        b"no colon",
        b": empty",
        b"X-Text: a: b",
    ]
)
_STARTS = st.sampled_from(
    [b"HTTP/1.1 200 OK", b"HTTP/1.1 200 ", b"HTTP/1.1 200", b"HTTP/1.0 200 OK", b"HTTP/1.1 204 No", b"HTTP/1.1 404 No"]
)


class _Heard:
    """A socket that has received all it ever will."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, *_: object) -> io.BufferedReader:
        return io.BufferedReader(io.BytesIO(self._data))


def _begun(ours: Answer, theirs: http.client.HTTPResponse) -> bool:
    """Begin an answer; say whether it could be: where the lengths contradict each other, the library takes any."""
    lengths = {length.strip() for length in theirs.headers.get_all("content-length", [])}
    if len(lengths) > 1 or not lengths <= {"1", "2"}:
        with pytest.raises(http.client.HTTPException, match="a length that is none, or more than one"):
            ours.begin()
        return False
    ours.begin()
    return True


@given(_STARTS, st.lists(_HEADERS, max_size=5), st.sampled_from([b"\r\n", b"\n"]))
def test_an_answer_is_what_the_library_makes_of_it(start: bytes, headers: list[bytes], end: bytes) -> None:
    text = end.join([start, *headers, b"", b"2\r\nok\r\n0\r\n\r\n"])
    theirs = http.client.HTTPResponse(_Heard(text), method="GET")  # type: ignore[arg-type]
    ours = Answer(_Heard(text))  # type: ignore[arg-type]
    theirs.begin()
    if not _begun(ours, theirs):
        return
    assert (ours.status, ours.length, ours.chunked, ours.will_close) == (
        theirs.status,
        theirs.length,
        theirs.chunked,
        theirs.will_close,
    )
    for name in ("date", "content-encoding", "location"):
        assert ours.header(name) == theirs.getheader(name)
    if theirs.length is not None:
        assert bytes(ours.read_known(theirs.length)) == theirs.read()


@example(start=b"HTTP/1.1 200 OK", headers=[b"Content-Length: 2"], cuts=[5, 37], cut_off=True)
@given(
    start=_STARTS,
    headers=st.lists(_HEADERS, max_size=4),
    cuts=st.lists(st.integers(0, 200), max_size=3),
    cut_off=st.booleans(),
)
def test_what_is_read_as_it_comes_is_what_the_library_makes_of_it(
    start: bytes, headers: list[bytes], cuts: list[int], *, cut_off: bool
) -> None:
    text = b"\r\n".join([start, *headers, b"", b"ok" if cut_off else b"2\r\nok\r\n0\r\n\r\n"])
    ends = [*sorted(cuts), len(text)]
    theirs = http.client.HTTPResponse(_Heard(text), method="GET")  # type: ignore[arg-type]
    theirs.begin()
    here, there = socket.socketpair()
    with closing(here), closing(there), Limits(_SECONDS, threading.Lock()) as limits:
        here.settimeout(0.0)
        exchange = Exchange(wire := _Wire(here, limits))
        whole: bool | None = False
        for begin, end in zip([0, *ends], ends, strict=False):
            there.sendall(text[begin:end])
            whole = exchange.proceed() if whole is False else whole
        there.shutdown(socket.SHUT_WR)
        whole = exchange.proceed() if whole is False else whole
        if whole:
            assert (theirs.status, theirs.chunked, theirs.will_close) == (200, False, False)
            assert theirs.getheader("content-encoding") is None
            assert exchange.headers.get("date") == theirs.getheader("date")
            assert bytes(exchange.body) == theirs.read()
            return
        ours = Answer(wire)
        if not _begun(ours, theirs):
            return
        assert (ours.status, ours.length, ours.chunked) == (theirs.status, theirs.length, theirs.chunked)
        assert _read_to_end(ours) == _read_to_end(theirs)


def _read_to_end(answer: http.client.HTTPResponse) -> bytes | str:
    try:
        return answer.read()
    except http.client.HTTPException as error:
        return type(error).__name__


@contextmanager
def _answering(*pieces: bytes, go_on: threading.Event | None = None) -> Iterator[tuple[str, list[bytes]]]:
    """Answer one question with these pieces, the second and all others after `go_on`."""
    listener = socket.create_server(("127.0.0.1", 0))
    asked: list[bytes] = []

    def work() -> None:
        peer, _ = listener.accept()
        with peer:
            asked.append(peer.recv(65536))
            for number, piece in enumerate(pieces):
                if number and go_on is not None:
                    go_on.wait(_SECONDS)
                peer.sendall(piece)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    with listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/metrics?a=b", asked
    thread.join(_SECONDS)


def _read(url: str, limits: Limits) -> bytes:
    with (
        closing(Connection(http.client.HTTPConnection(url.split("/")[2]))) as connection,
        limits,
        connection.ask(url, {"Accept": "*/*"}, limits) as answer,
    ):
        return bytes(answer.read_known(answer.length or 0))


def _head(size: int) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size


def test_who_stalls_within_a_large_body_gives_the_lock_away() -> None:
    lock, others_are_done = threading.Lock(), threading.Event()
    large = b"x" * _LARGE
    bodies: list[bytes] = []
    half = _head(_LARGE) + large[: 2 * 2**20], large[2 * 2**20 :]
    with _answering(*half, go_on=others_are_done) as (slow, _), _answering(_head(_LARGE), large) as (prompt, _):
        thread = threading.Thread(target=lambda: bodies.append(_read(slow, Limits(_SECONDS, lock))))
        thread.start()
        assert _read(prompt, Limits(_SECONDS, lock)) == large  # and would wait for ever for a lock that is kept
        others_are_done.set()
        thread.join(_SECONDS)
    assert bodies == [large]
    assert not lock.locked()


def test_a_large_body_is_read_under_the_lock_and_a_small_one_without() -> None:
    lock = threading.Lock()
    with _answering(_head(2), b"ok") as (url, asked), lock:
        assert _read(url, Limits(_SECONDS, lock)) == b"ok"
    assert asked[0].startswith(b"GET /metrics?a=b HTTP/1.1\r\nHost: 127.0.0.1:")
    limits = Limits(_SECONDS, lock)
    with (
        _answering(_head(_LARGE), b"x" * _LARGE) as (url, _),
        closing(Connection(http.client.HTTPConnection(url.split("/")[2]))) as connection,
        limits,
        connection.ask(url, {}, limits) as answer,
    ):
        answer.read_known(_LARGE)
        assert lock.locked()
    assert not lock.locked()


def test_a_body_that_ends_early_is_told() -> None:
    lock = threading.Lock()
    with _answering(_head(5), b"four") as (url, _), pytest.raises(http.client.IncompleteRead):
        _read(url, Limits(_SECONDS, lock))
