"""Servers that lie about their answers: none is believed, none fills the memory, none speaks for the next question."""

from __future__ import annotations

import gzip
import select
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from collector import fetch as fetching
from collector.errors import UnreachableError
from collector.fetch import HttpFetch
from collector.plugins import SourceContext
from collector.scrape import ScrapeSource
from collector.settings import SourceSettings, TargetSettings
from collector.wire import Limits

START = datetime(2026, 1, 5, tzinfo=UTC)
_SECONDS = 60.0
_TEXT = b"x 1234\n"
_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
_PLAIN = b"HTTP/1.1 200 OK\r\n\r\n"

Piece = bytes | Callable[[socket.socket], None]


def answer(body: bytes, *headers: bytes, length: bytes | None = None) -> bytes:
    said = b"Content-Length: " + (b"%d" % len(body) if length is None else length)
    return b"\r\n".join([b"HTTP/1.1 200 OK", *headers, said, b"", body])


def for_ever(piece: bytes) -> Callable[[socket.socket], None]:
    """Send a piece again and again, until nobody listens."""

    def send(peer: socket.socket) -> None:
        with suppress(OSError):
            while True:
                peer.sendall(piece)

    return send


@contextmanager
def serving(*answers: Sequence[Piece]) -> Iterator[tuple[str, list[int]]]:
    """Give these answers, each in pieces; after an empty piece the connection is closed.

    Yields the address, and for each question the number of the connection that it came over.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    asked: list[int] = []
    waiting = iter(answers)

    def speak(peer: socket.socket, number: int) -> None:
        with peer, suppress(OSError):
            while peer.recv(65536):
                asked.append(number)
                for piece in next(waiting, ()):
                    if callable(piece):
                        piece(peer)
                    elif piece:
                        peer.sendall(piece)
                    else:
                        return

    def accept() -> None:
        with suppress(OSError):
            for number in range(99):
                threading.Thread(target=speak, args=(listener.accept()[0], number), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    with listener:
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/metrics", asked
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # which ends a wait for the next connection
            thread.join(_SECONDS)


class Impatient(Limits):
    """Sends a question, and has no time left once the server has it."""

    def __init__(self, asked: threading.Event) -> None:
        super().__init__(_SECONDS, threading.Lock())
        self._asked = asked
        self._sent = False

    def seconds_left(self) -> float:
        if self._sent:
            self._asked.wait(_SECONDS)
            raise TimeoutError
        self._sent = True
        return super().seconds_left()


def ask(fetch: HttpFetch, url: str, limits: Limits | None = None) -> bytes:
    with limits or Limits(_SECONDS, threading.Lock()) as known:
        return bytes(fetch.ask(TargetSettings(url=url), known)[0])


@pytest.fixture
def fetch() -> Iterator[HttpFetch]:
    made = HttpFetch(SourceSettings(timeout_seconds=_SECONDS))
    yield made
    made.close()


PACKED = gzip.compress(_TEXT)
BELIEVED = {
    "plain": [answer(_TEXT)],
    "without a last line break": [answer(_TEXT[:-1])],
    "said twice alike": [answer(_TEXT, b"Content-Length: 7")],
    "to its end": [_PLAIN + _TEXT, b""],
    "in chunks": [_CHUNKED + b"4\r\nx 12\r\n3;a=b\r\n34\n\r\n0\r\nTrailer: t\r\n\r\n"],
    "in chunks, with a length": [_CHUNKED[:-2] + b"Content-Length: 2\r\n\r\n7\r\nx 1234\n\r\n0\r\n\r\n"],
    "lines that end otherwise": [
        b"HTTP/1.1 200 OK\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n7\r\nx 1234\n\r\n0\r\n\r\n"
    ],
    "packed": [answer(PACKED, b"Content-Encoding: gzip")],
    "packed, in capitals": [answer(PACKED, b"Content-Encoding: GZIP")],
    "packed, in two": [answer(gzip.compress(b"x 12") + gzip.compress(b"34\n"), b"Content-Encoding: x-gzip")],
    "after a hint": [b"HTTP/1.1 100 Continue\r\n\r\n" + answer(_TEXT)],
    "a date beyond reason": [answer(_TEXT, b"Date: Mon, 30 Nov 99999999999999999999 12:00:00 GMT")],
    "a date that is none": [answer(_TEXT, b"Date: \0, 0 0 0 0 0 +99999999999")],
    "a number of a date without end": [answer(_TEXT, b"Date: Mon, " + b"9" * 6000 + b" Nov 2026 12:00:00 GMT")],
}
NOT_BELIEVED = {
    "longer than it says": ([answer(_TEXT, length=b"4")], "expected as many bytes as the answer says, got more"),
    "two lengths": ([answer(_TEXT, b"Content-Length: 4")], "a length that is none, or more than one"),
    "a list of lengths": ([answer(_TEXT, length=b"4, 4")], "a length that is none"),
    "a negative length": ([answer(_TEXT, length=b"-1"), b""], "a length that is none"),
    "a length with a sign": ([answer(_TEXT, length=b"+4")], "a length that is none"),
    "a length as Python writes it": ([answer(_TEXT, length=b"0_4")], "a length that is none"),
    "a length beyond reason": ([answer(_TEXT, length=b"9" * 6000), b""], "a length that is none"),
    "shorter than it says": ([answer(_TEXT, length=b"9"), b""], "one that was cut off"),
    "cut off in a line": ([_PLAIN + b"x 12", b""], "one that was cut off"),
    "an unknown coding of its length": (
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n7\r\nx 1234\n\r\n0\r\n\r\n", b""],
        "a length that is none",
    ),
    "a chunk of no size": ([_CHUNKED + b"zz\r\n" + _TEXT, b""], "one that was cut off"),
    "a chunk of negative size": ([_CHUNKED + b"-1\r\n", for_ever(_TEXT)], "one that was cut off"),
    "a chunk longer than it says": ([_CHUNKED + b"4\r\nx 1234\n\r\n0\r\n\r\n"], "a chunk of another size than it says"),
    "a last chunk that is missing": ([_CHUNKED + b"7\r\nx 1234\n\r\n", b""], "one that was cut off"),
    "trailers without end": (
        [_CHUNKED + b"7\r\nx 1234\n\r\n0\r\n", for_ever(b"T: a\r\n" * 999)],
        "headers without end",
    ),
    "headers without end": ([b"HTTP/1.1 200 OK\r\n", for_ever(b"A: b\r\n" * 999)], "got more than 100 headers"),
    "a header without end": ([b"HTTP/1.1 200 OK\r\nA: ", for_ever(b"b" * 9999)], "got LineTooLong"),
    "hints without end": ([for_ever(b"HTTP/1.1 100 Continue\r\n\r\n" * 99)], "headers without end"),
    "a status line without end": ([b"HTTP/1.1 200 ", for_ever(b"O" * 9999)], "got LineTooLong"),
    "a status beyond reason": ([b"HTTP/1.1 " + b"2" * 5000 + b" OK\r\n\r\n", b""], "got BadStatusLine"),
    "no headers": ([_TEXT, b""], "got BadStatusLine"),
    "nothing": ([b""], "got RemoteDisconnected"),
    "a part": ([answer(_TEXT).replace(b"200", b"206")], "expected HTTP 200, got 206"),
    "no content": ([b"HTTP/1.1 204 No Content\r\n\r\n"], "expected HTTP 200, got 204"),
    "another protocol": ([b"HTTP/1.1 101 Switching Protocols\r\n\r\n"], "expected HTTP 200, got 101"),
    "a way to a file": (
        [b"HTTP/1.1 302 F\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n"],
        "got ValueError",
    ),
    "a way that is none": ([b"HTTP/1.1 302 F\r\nLocation: /\0 \r\nContent-Length: 0\r\n\r\n"], "got InvalidURL"),
    "gzip that is none": ([answer(_TEXT, b"Content-Encoding: gzip")], "gzip that is none, or was cut off"),
    "gzip that is cut off": ([answer(PACKED[:-4], b"Content-Encoding: gzip")], "gzip that is none, or was cut off"),
    "gzip and something": ([answer(PACKED + b"y 2\n", b"Content-Encoding: gzip")], "gzip that is none, or was cut off"),
    "gzip that does not say so": ([answer(PACKED)], "expected text in UTF-8, got gzip"),
    "another packing": ([answer(_TEXT, b"Content-Encoding: br")], "expected text, plain or gzip, got 'br'"),
    "another alphabet": ([answer(_TEXT.decode().encode("utf-16"))], "expected text in UTF-8, got UTF-16"),
}


@pytest.mark.parametrize("kind", BELIEVED)
def test_an_unusual_answer_is_read(fetch: HttpFetch, kind: str) -> None:
    with serving(BELIEVED[kind]) as (url, _):
        assert ask(fetch, url).rstrip(b"\n") == _TEXT.rstrip(b"\n")


@pytest.mark.parametrize("kind", NOT_BELIEVED)
def test_an_answer_that_contradicts_itself_is_refused_and_the_next_one_is_asked_anew(
    fetch: HttpFetch, kind: str
) -> None:
    pieces, said = NOT_BELIEVED[kind]
    with serving(pieces, [answer(_TEXT)]) as (url, asked):
        with pytest.raises(UnreachableError) as caught:
            ask(fetch, url)
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)
        assert ask(fetch, url) == _TEXT
    assert asked[-1] > asked[0]


def test_what_comes_unasked_on_a_kept_connection_answers_nothing(fetch: HttpFetch) -> None:
    """A second answer to the first question is not that of the second one."""
    go_on = threading.Event()

    def later(peer: socket.socket) -> None:
        go_on.wait(_SECONDS)
        peer.sendall(answer(b"x 666\n"))

    with serving([answer(b"x 1\n"), later], [answer(b"x 2\n")], [answer(b"x 3\n")]) as (url, asked):
        assert ask(fetch, url) == b"x 1\n"
        go_on.set()
        (connection,) = fetch._connections.values()
        assert select.select([connection._http.sock._sock], [], [], _SECONDS)[0]  # it is here, and nobody asked
        assert ask(fetch, url) == b"x 2\n"
        assert ask(fetch, url) == b"x 3\n"
    assert asked == [0, 1, 1]


def test_after_a_time_out_the_late_answer_is_not_taken_for_the_next_one(fetch: HttpFetch) -> None:
    asked_again, go_on = threading.Event(), threading.Event()

    def late(peer: socket.socket) -> None:
        asked_again.set()
        go_on.wait(_SECONDS)
        peer.sendall(answer(b"x 666\n"))

    with serving([answer(b"x 1\n")], [late], [answer(b"x 3\n")]) as (url, asked):
        assert ask(fetch, url) == b"x 1\n"
        with pytest.raises(UnreachableError, match="no answer in time"):
            ask(fetch, url, Impatient(asked_again))
        go_on.set()
        assert ask(fetch, url) == b"x 3\n"
    assert asked == [0, 0, 1]


def test_a_connection_that_was_closed_between_two_questions_is_made_anew(fetch: HttpFetch) -> None:
    with serving([answer(_TEXT), b""], [answer(_TEXT), b""], [answer(_TEXT)]) as (url, asked):
        assert [ask(fetch, url) for _ in range(3)] == [_TEXT] * 3
    assert asked == [0, 1, 2]


def test_an_error_that_nobody_expected_leaves_no_connection(fetch: HttpFetch, monkeypatch: pytest.MonkeyPatch) -> None:
    def surprised(_: object) -> float:
        raise RuntimeError

    with serving([answer(b"x 1\n")], [answer(b"x 2\n")]) as (url, asked):
        with monkeypatch.context() as patched:
            patched.setattr(fetching, "skew_seconds", surprised)
            with pytest.raises(RuntimeError):
                ask(fetch, url)
        assert ask(fetch, url) == b"x 2\n"
    assert asked == [0, 1]


@pytest.mark.parametrize("packed", [True, False])
def test_a_body_that_turns_out_to_be_large_is_read_under_the_lock(fetch: HttpFetch, packed: bool) -> None:
    """A thousand small answers that unpack to much are not in memory at once."""
    large, lock = b"x 1\n" * 2**19, threading.Lock()
    chunk = b"%X\r\n%s\r\n0\r\n\r\n" % (len(large), large)
    pieces = answer(gzip.compress(large), b"Content-Encoding: gzip") if packed else _CHUNKED + chunk
    with serving([pieces]) as (url, _), Limits(_SECONDS, lock) as limits:
        body, _ = fetch.ask(TargetSettings(url=url), limits)
        assert lock.locked()
    assert body == large
    assert not lock.locked()


@pytest.mark.parametrize(
    "second",
    [
        answer(
            b'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-0"} 6\n', b"Date: Mon, 30 Nov 99999999999999999999 12:00:00 GMT"
        ),
        answer(_TEXT, length=b"9" * 6000),
        answer(b"\xff\x00 {\x00" * 99),
        answer(b"x" * 99_999, length=b"99998"),
        b"\0" * 99,
        b"HTTP/1.1 200 OK\r\n" + b"\0: \xff\r\n" * 99 + b"Content-Length: 0\r\n\r\n",
    ],
)
def test_a_target_that_turns_hostile_harms_no_other_one(second: bytes) -> None:
    """Prompt targets are read by one thread together."""
    text = b'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-%d"} 5\n'
    with (
        serving([answer(text % 0)], [answer(text % 0)], [second, b""], [b""]) as (bad, asked),
        serving(*[[answer(text % 1)]] * 3) as (good, _),
    ):
        targets = tuple(TargetSettings(url=url) for url in (bad, good))
        source = ScrapeSource(SourceSettings(targets=targets, timeout_seconds=_SECONDS), SourceContext(cluster="c"))
        for minute in range(3):
            said = {one.target.url: one for one in source.gather(START + timedelta(minutes=minute))}
        source.close()
    assert said[good].body is not None
    assert not said[good].error
    assert len(asked) >= 3


def test_who_speaks_no_tls_is_told_so(fetch: HttpFetch) -> None:
    with (
        serving([b"HTTP/1.1 400 Bad Request\r\n\r\n", b""]) as (url, _),
        pytest.raises(UnreachableError, match=r"got no TLS; is it http:// \?"),
    ):
        ask(fetch, url.replace("http:", "https:"))


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=200))
@example(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nx 1")
def test_whatever_bytes_come_end_in_an_answer_or_in_the_one_error(data: bytes) -> None:
    made = HttpFetch(SourceSettings(timeout_seconds=_SECONDS))
    with serving([b"HTTP/1.1 200 OK\r\n" + data, b""], [b""]) as (url, _), suppress(UnreachableError):
        ask(made, url)
    made.close()
