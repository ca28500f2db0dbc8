"""A kept HTTP connection to one target: every wait has one deadline, and of large bodies one at a time is read.

The library's client spends most of a small answer's time on its headers, which it reads as those of a mail, and on
writing the same request again and again. Here the request is written once, by the library, and usual headers are read
without it; whatever is unusual is the library's. Asking a target for 200 lines costs half of what it did.

A number that was cut off is another number, so what says its own length twice, wrongly or not at all is not believed: a
length that is no number, more bytes than it says, a chunk of another size.
"""

from __future__ import annotations

import http.client
import io
import mmap
import re
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, Self
from urllib.parse import urlsplit

import numpy as np

Body = bytes | bytearray | memoryview

# Bodies up to this size are read all at once; of larger ones only one at a time is in memory whole.
FREE_BYTES = 2**20
_HEAD_BYTES = 2**16  # read at once before the length of a body is known, and of a large one before its turn
_HELD_SECONDS = 0.25  # who is not done by then, because its bytes do not come, lets the others go on
_USUAL_START = (b"HTTP/1.1 200 ", b"HTTP/1.1 200\r\n")
_UNUSUAL_HEADERS = frozenset(("transfer-encoding", "connection"))
_LENGTH_DIGITS = 15  # Python refuses to read thousands of them
_OVERHEAD_BYTES = 2**18  # of status and headers, or of what stands behind the last chunk
_PIECE_BYTES = 2**20
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\n]*)?\r?\n")
_CHUNK_LINE_BYTES = 2**12


class Limits:
    """What one question may take: so many seconds from now, and a lock while it has a large body in memory.

    One thread uses it as a context, which ends without the lock; it may leave the lock to others and take it again.

    Args:
        seconds: for everything, from now on.
        lock: of all that read large bodies.
    """

    def __init__(self, seconds: float, lock: threading.Lock) -> None:
        self.deadline = time.monotonic() + seconds
        self.locked_until: float | None = None  # None: the lock is not held
        self._lock = lock

    def __enter__(self) -> Self:
        """Begin without the lock."""
        return self

    def __exit__(self, *_: object) -> None:
        """End without it."""
        self.unlock()

    def seconds_left(self) -> float:
        """Return the seconds until the deadline.

        Raises:
            TimeoutError: it has passed.
        """
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def lock(self) -> None:
        """Wait for the lock, unless it is held."""
        if self.locked_until is None:
            self._lock.acquire()
            self.locked_until = time.monotonic() + _HELD_SECONDS

    def unlock(self) -> None:
        """Let others have it."""
        if self.locked_until is not None:
            self.locked_until = None
            self._lock.release()


class Connection:
    """An HTTP connection whose every wait, for the handshake, the headers and each byte of a body, has one deadline.

    Attributes:
        usual: the last answer was a small one with usual headers, as it stands and over a connection that stays.
    """

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._http = connection
        self._wire: _Wire | None = None
        self.usual = False
        self._written: tuple[str, dict[str, str], bytes] = ("", {}, b"")

    def begin(self, url: str, headers: Mapping[str, str]) -> Exchange | None:
        """Send a GET without waiting; None where that cannot be, or where the last answer was no usual one."""
        if self._wire is None or not self.usual or not self._wire.is_plain:
            return None
        if not self._wire.is_readable() and self._wire.send_now(self._request(url, dict(headers))):
            return Exchange(self._wire)
        self.close()
        self._wire = None
        return None

    def ask(self, url: str, headers: Mapping[str, str], limits: Limits) -> Answer:
        """Send a GET and return the answer, its body still to be read.

        Raises:
            ConnectionError: the other side has closed the connection since, or said what it was not asked.
        """
        if self._wire is not None and self._wire.is_readable():
            raise ConnectionResetError
        if self._wire is None:
            self._http.timeout = limits.seconds_left()
            self._http.connect()
            self._wire = _Wire(self._http.sock, limits)
            self._http.sock = self._wire  # for the library to close
        self._wire.limits = limits
        self._wire.sendall(self._request(url, dict(headers)))
        return self._answer(self._wire)

    def go_on(self, limits: Limits) -> Answer:
        """Return the answer to what was begun and left, its body still to be read."""
        if self._wire is None:
            raise ConnectionError
        self._wire.limits = limits
        return self._answer(self._wire)

    def _answer(self, wire: _Wire) -> Answer:
        answer = Answer(wire)
        try:
            answer.begin()
        except BaseException:
            answer.close()
            raise
        self.usual = answer.is_usual
        return answer

    def close(self) -> None:
        """Close it."""
        self._http.close()

    def _request(self, url: str, headers: dict[str, str]) -> bytes:
        """Return the request as the library writes it."""
        if self._written[:2] != (url, headers):
            parts = urlsplit(url)
            path = parts._replace(scheme="", netloc="", fragment="").geturl() or "/"
            writer = http.client.HTTPConnection(self._http.host, self._http.port)
            writer.default_port = self._http.default_port
            ear = _Ear()
            writer.sock = ear  # all of a socket that is used for a request
            writer.request("GET", path if path.startswith("/") else f"/{path}", headers=headers)
            self._written = url, headers, ear.heard
        return self._written[2]


class _Ear:
    """Hears what would be sent."""

    def __init__(self) -> None:
        self.heard = b""

    def sendall(self, data: bytes) -> None:
        self.heard += data


class Answer(http.client.HTTPResponse):
    """An answer, its body still to be read."""

    def __init__(self, wire: _Wire) -> None:
        super().__init__(wire, method="GET")  # type: ignore[arg-type]  # all of a socket that the library uses
        self._wire = wire
        self._usual: dict[str, str] | None = None

    def begin(self) -> None:
        """Read status and headers: usual ones here, all others by the library.

        Raises:
            HTTPException: they are no headers of an answer, or contradict each other.
        """
        self._wire.left = _OVERHEAD_BYTES
        head = self.fp.peek()
        end = head.find(b"\r\n\r\n")
        self._usual = _usual_headers(head[:end]) if end >= 0 else None
        if self._usual is None:
            super().begin()
            self._wire.left = None
            self._require_one_length()
            return
        self._wire.left = None
        self.fp.read(end + 4)
        self.status = self.code = 200
        self.version, self.reason = 11, ""
        self.chunked = self.will_close = False
        self.length = int(self._usual["content-length"])

    @property
    def is_usual(self) -> bool:
        """Say whether it is a small one with usual headers, as it stands and over a connection that stays."""
        return self._usual is not None and _is_small(self._usual)

    def _require_one_length(self) -> None:
        coding = (self.headers.get("transfer-encoding") or "identity").strip().lower()
        lengths = {text.strip(" \t") for text in self.headers.get_all("content-length") or ()}
        numbers = all(text.isascii() and text.isdigit() and len(text) <= _LENGTH_DIGITS for text in lengths)
        if coding not in ("chunked", "identity") or len(lengths) > 1 or not numbers:
            raise http.client.HTTPException("a length that is none, or more than one")

    def header(self, name: str) -> str | None:
        """Return a header, by its name in small letters."""
        return self.getheader(name) if self._usual is None else self._usual.get(name)

    def read_known(self, length: int) -> Body:
        """Return a body whose length is known; beyond `FREE_BYTES` under the lock."""
        body: Body = bytearray(length if length <= FREE_BYTES else _HEAD_BYTES)
        count = self._fill(memoryview(body))
        if length > FREE_BYTES and count == len(body):
            self._wire.limits.lock()
            # Pages of its own, taken as they are written and given back as soon as it is read: from the heap, which
            # others use meanwhile, a body leaves a hole that the next one may not fit into.
            body, first = memoryview(mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)), body
            body[:count] = first
            count += self._fill(body[count:])
        if count < length:
            raise http.client.IncompleteRead(b"", length - count)
        return body

    def _fill(self, view: memoryview) -> int:
        count = 0
        while count < len(view) and (more := self.fp.readinto(view[count:])):
            count += more
        return count

    @property
    def ends_with_connection(self) -> bool:
        """Whether nothing but the end of the connection says where the body ends."""
        return self.length is None and not self.chunked

    def has_more(self) -> bool:
        """Say whether more has come than the length says."""
        self._wire.waits = False
        try:
            return bool(self.fp.peek())
        finally:
            self._wire.waits = True

    def pieces(self) -> Iterator[bytes]:
        """Yield a body whose length is not known, piece by piece.

        Raises:
            HTTPException: a chunk is of another size than it says.
        """
        if self.chunked:
            yield from self._chunks()
            return
        while piece := self.fp.read(_PIECE_BYTES):
            yield piece

    def _chunks(self) -> Iterator[bytes]:
        while left := self._chunk_size():
            while left:
                piece = self.fp.read(min(left, _PIECE_BYTES))
                if not piece:
                    raise http.client.IncompleteRead(b"", left)
                left -= len(piece)
                yield piece
            if self.fp.readline(3) not in (b"\r\n", b"\n"):
                raise http.client.HTTPException("a chunk of another size than it says")
        self._wire.left = _OVERHEAD_BYTES
        while line := self.fp.readline(_OVERHEAD_BYTES):
            if line in (b"\r\n", b"\n"):
                break
        self._wire.left = None

    def _chunk_size(self) -> int:
        found = _CHUNK_SIZE.fullmatch(self.fp.readline(_CHUNK_LINE_BYTES))
        if found is None:
            raise http.client.IncompleteRead(b"")
        return int(found[1], 16)


def _usual_headers(head: bytes) -> dict[str, str] | None:
    """Return the headers of an answer of known length over a connection that stays; None where anything is unusual."""
    if not head.startswith(_USUAL_START):
        return None
    lines = head.decode("iso-8859-1").split("\r\n")[1:]
    if not head.count(b"\r") == head.count(b"\n") == len(lines):
        return None  # lines that end otherwise
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    length = fields.get("content-length", "")
    # A header that is folded, doubled or broken is the library's to judge.
    usual = (
        len(fields) == len(lines)
        and (length.isascii() and length.isdigit() and len(length) <= _LENGTH_DIGITS)
        and _UNUSUAL_HEADERS.isdisjoint(fields)
        and all(name and name == name.strip() for name in fields)
    )
    return fields if usual else None


def _is_small(headers: Mapping[str, str]) -> bool:
    return int(headers["content-length"]) <= FREE_BYTES and "content-encoding" not in headers


class Exchange:
    """A question that was sent, and as much of its answer as there was to read without waiting.

    Attributes:
        headers: of the answer, by their names in small letters; empty until they are there.
        body: what is there of the body; all of it once `proceed` returns True.
    """

    def __init__(self, wire: _Wire) -> None:
        self.headers: dict[str, str] = {}
        self.body = memoryview(b"")
        self._wire = wire
        self._head = b""
        self._count = 0

    def fileno(self) -> int:
        """Return the number of the socket."""
        return self._wire.fileno()

    def proceed(self) -> bool | None:
        """Read what is there.

        Returns:
            True: the body is whole. False: more is to come. None: the connection was left to who waits for answers,
            with all that was read, because the answer is no usual one; or it ended.
        """
        try:
            while True:
                if not self.headers:
                    more = self._wire.receive_now(_HEAD_BYTES)
                    self._head += more
                    if not more or not self._begin_body():
                        break
                else:
                    count = self._wire.receive_now_into(self.body[self._count :])
                    self._count += count
                    if not count:
                        break
                if self.headers and self._count == len(self.body):
                    if self._wire.is_readable():
                        break  # the end, or more than the length says
                    return True
        except BlockingIOError:
            return False
        except OSError:
            pass
        self.leave()
        return None

    def leave(self) -> None:
        """Leave the connection to who waits for answers, with all that was read."""
        self._wire.put_back(self._head + bytes(self.body[: self._count]))

    def _begin_body(self) -> bool:
        """Begin the body where the head is there; False where this is no answer for us."""
        end = self._head.find(b"\r\n\r\n")
        if end < 0:
            return len(self._head) < _HEAD_BYTES
        headers = _usual_headers(self._head[:end])
        if headers is None or not _is_small(headers):
            return False
        rest, length = self._head[end + 4 :], int(headers["content-length"])
        if len(rest) > length:
            return False
        self.body = np.empty(length, dtype=np.uint8).data  # unlike a bytearray not filled with zeros first
        self.body[: len(rest)] = rest
        self.headers, self._head, self._count = headers, self._head[: end + 4], len(rest)
        return True


class _Wire:
    """A socket that waits until the deadline and no longer; it stays open as long as an answer is read from it.

    Who has the lock and lets the others wait too long for its bytes gives it away.

    Attributes:
        limits: of the question that is answered.
        left: bytes that may still come before it is too much; None: any number.
        waits: for what is not there yet.
    """

    def __init__(self, sock: socket.socket, limits: Limits) -> None:
        self.limits = limits
        self.left: int | None = None
        self.waits = True
        self._sock = sock
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._ahead = b""  # read, and not taken yet
        self._readers = 0
        self._closed = False

    def makefile(self, *_: object, **__: object) -> io.BufferedReader:
        """Return the reading side."""
        self._readers += 1
        return io.BufferedReader(_Reader(self))

    def sendall(self, data: bytes) -> None:
        """Send all of it."""
        self._sock.settimeout(self.limits.seconds_left())
        self._sock.sendall(data)

    @property
    def is_plain(self) -> bool:
        """Say whether it is a socket without TLS."""
        return type(self._sock) is socket.socket

    def fileno(self) -> int:
        """Return the number of the socket."""
        return self._sock.fileno()

    def send_now(self, data: bytes) -> bool:
        """Send without waiting; say whether all of it went."""
        self._sock.settimeout(0.0)
        try:
            return self._sock.send(data) == len(data)
        except OSError:
            return False

    def receive_now(self, size: int) -> bytes:
        """Receive what is there; nothing at the end.

        Raises:
            BlockingIOError: nothing is there yet.
        """
        return self._sock.recv(size)

    def receive_now_into(self, buffer: Any) -> int:
        """Receive what is there; 0 at the end.

        Raises:
            BlockingIOError: nothing is there yet.
        """
        return self._sock.recv_into(buffer)

    def put_back(self, data: bytes) -> None:
        """Let the next reader begin with what was read."""
        self._ahead = data

    def is_readable(self) -> bool:
        """Say whether there is something to read now, be it the end."""
        # What TLS has unpacked already is not the socket's any more.
        return bool(self._poll.poll(0)) or (isinstance(self._sock, ssl.SSLSocket) and self._sock.pending() > 0)

    def receive(self, buffer: Any) -> int | None:
        """Receive what is there, at least a byte; 0 at the end, None where nothing is and nobody waits."""
        if self._ahead:
            size = min(len(buffer), len(self._ahead))
            buffer[:size], self._ahead = self._ahead[:size], self._ahead[size:]
            return size
        if not self.waits:
            return self._receive_if_there(buffer)
        count = self._receive(buffer)
        if self.left is not None:
            self.left -= count
            if self.left < 0:
                raise http.client.HTTPException("headers without end")
        return count

    def _receive_if_there(self, buffer: Any) -> int | None:
        if not self.is_readable():
            return None
        self._sock.settimeout(0.0)
        try:
            return self._sock.recv_into(buffer)
        except OSError:  # also of TLS, which has received something, and nothing of the answer
            return None

    def _receive(self, buffer: Any) -> int:
        if self.limits.locked_until is not None:
            left = self.limits.locked_until - time.monotonic()
            try:
                if left > 0:
                    self._sock.settimeout(min(left, self.limits.seconds_left()))
                    return self._sock.recv_into(buffer)
            except TimeoutError:
                pass
            self.limits.unlock()
        self._sock.settimeout(self.limits.seconds_left())
        return self._sock.recv_into(buffer)

    def close(self) -> None:
        """Close it once nobody reads from it."""
        self._closed = True
        if not self._readers:
            self._sock.close()

    def release(self) -> None:
        """A reader is done."""
        self._readers -= 1
        if self._closed:
            self.close()


class _Reader(io.RawIOBase):
    def __init__(self, wire: _Wire) -> None:
        self._wire = wire

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        return self._wire.receive(buffer)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._wire.release()
