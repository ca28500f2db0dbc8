"""Gets a target's text over HTTP: kept connections, one deadline for the whole of an answer, and who we are."""

from __future__ import annotations

import http.client
import math
import ssl
import threading
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from functools import lru_cache
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from collector.errors import ConfigurationError, UnreachableError, no_connection
from collector.login import MAX_REDIRECTS, REDIRECTS, leads_away, login_of, without_login
from collector.masking import mask_address
from collector.settings import Credentials, SourceSettings, TargetSettings
from collector.wire import FREE_BYTES, Answer, Body, Connection, Exchange, Limits

_MAX_BYTES = 256 * 2**20
_PIECE_BYTES = 2**20
_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")
_SAID = {
    http.client.IncompleteRead: "one that was cut off",
    zlib.error: "gzip that is none, or was cut off",
}
_NO_TEXT = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"\x1f\x8b": "gzip that does not say so"}
_ACCEPT = "text/plain;version=0.0.4, application/openmetrics-text;version=1.0.0;q=0.5"


class HttpFetch:
    """Gets a target's text over HTTP; a target is asked by one thread at a time, over a connection of its own.

    Args:
        settings: time-out and credentials of all targets that have none of their own.

    Raises:
        ConfigurationError: a file that the settings name cannot be read, or a token is none.
        UnreachableError: when called: not all of an answer in time, a status other than 200, or an answer that is too
            big.
    """

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._connections: dict[str, Connection] = {}
        for credentials in (settings, *(target.auth for target in settings.targets if target.auth is not None)):
            _tls(*_files(credentials))
            login_of(credentials)()  # what is wrong with it is said at the start

    def __call__(self, target: TargetSettings) -> str:
        """Return the body as text."""
        with Limits(target.timeout_seconds or self._settings.timeout_seconds, threading.Lock()) as limits:
            return str(self.ask(target, limits)[0], "utf-8", errors="replace")

    def begin(self, target: TargetSettings) -> Exchange | None:
        """Send a question over the kept connection and do not wait; None where `ask` has to be called."""
        connection = self._connections.get(target.url)
        if connection is None or not connection.usual:
            return None
        try:
            return connection.begin(*_question(target, self._settings))
        except (ConfigurationError, OSError, ValueError):
            return None  # who asks again says what is wrong

    def ask(self, target: TargetSettings, limits: Limits, *, begun: bool = False) -> tuple[Body, float]:
        """Return the body, and by how many seconds the exporter's clock is ahead of ours (NaN: not said).

        HTTP's Date has whole seconds, so a clock that is right may seem half a second off.

        Args:
            target: who is asked.
            limits: of the question; where the body is a large one, its lock is held when this returns.
            begun: it was asked by `begin` and the exchange was left.
        """
        try:
            body, skew = self._body(target, limits, begun=begun)
            _require_text(body, target)
        # The address itself may be no address (ValueError), which the library finds out at different depths.
        except (http.client.HTTPException, OSError, ValueError, zlib.error) as error:
            self.forget(target.url)
            place = mask_address(target.url)
            raise UnreachableError(f"{place}: expected an answer, got {_reason(error, limits)}") from error
        except ConfigurationError as error:  # a file is gone since the start
            self.forget(target.url)
            raise UnreachableError(str(error)) from error
        except BaseException:  # what is left of an answer must not be taken for the next one
            self.forget(target.url)
            raise
        return body, skew

    def forget(self, url: str) -> None:
        """Close the connection that is kept to a target."""
        connection = self._connections.pop(url, None)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Close kept connections."""
        for url in list(self._connections):
            self.forget(url)

    def _body(self, target: TargetSettings, limits: Limits, *, begun: bool) -> tuple[Body, float]:
        """Get an answer, over a few redirects; another host does not get the credentials."""
        credentials: Credentials | None = target.auth or self._settings
        url, headers = _question(target, self._settings)
        answer = self._ask_again(target.url, url, headers, credentials, limits, begun=begun)
        try:
            for _ in range(MAX_REDIRECTS):
                location = answer.header("location")
                if location is None or answer.status not in REDIRECTS:
                    break
                answer.close()
                self.forget(target.url)
                following = without_login(urljoin(url, location))[0]
                if leads_away(url, following):
                    headers.pop("Authorization", None)
                    credentials = None
                url = following
                answer = _ask(_connect(url, credentials), url, headers, limits)
            if answer.status in REDIRECTS:
                place = mask_address(target.url)
                raise UnreachableError(f"{place}: expected an answer, got more than {MAX_REDIRECTS} redirects")
            if answer.status != 200:
                raise UnreachableError(f"{mask_address(target.url)}: expected HTTP 200, got {answer.status}")
            skew = skew_seconds(answer.header("date"))
            body = _read(answer, target, limits)
        finally:
            answer.close()  # else its connection stays open as long as anybody knows it
        if answer.will_close:
            self.forget(target.url)
        return body, skew

    def _ask_again(
        self,
        key: str,
        url: str,
        headers: Mapping[str, str],
        credentials: Credentials | None,
        limits: Limits,
        *,
        begun: bool,
    ) -> Answer:
        """Ask over the kept connection, or hear what was asked there.

        Once more over a new one where the other side has closed it meanwhile.
        """
        kept = self._connections.get(key)
        if kept is not None:
            try:
                return kept.go_on(limits) if begun else kept.ask(url, headers, limits)
            except (http.client.HTTPException, ConnectionError):
                self.forget(key)
        connection = self._connections[key] = _connect(url, credentials)
        return connection.ask(url, headers, limits)


def _question(target: TargetSettings, settings: SourceSettings) -> tuple[str, dict[str, str]]:
    """Return the address without a log-in, and headers."""
    url, login = without_login(target.url)
    headers = {"Accept": _ACCEPT, "Accept-Encoding": "gzip", "User-Agent": "trimtab"}
    if login := login or login_of(target.auth or settings)():
        headers["Authorization"] = login
    return url, headers


def _ask(connection: Connection, url: str, headers: Mapping[str, str], limits: Limits) -> Answer:
    """Ask once over a connection that closes with its answer."""
    try:
        return connection.ask(url, {**headers, "Connection": "close"}, limits)
    finally:
        connection.close()


def _connect(url: str, credentials: Credentials | None) -> Connection:
    parts = urlsplit(url)
    host, port = parts.hostname, parts.port
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError("no HTTP address")
    if parts.scheme == "http":
        return Connection(http.client.HTTPConnection(host, port))
    return Connection(http.client.HTTPSConnection(host, port, context=_tls(*_files(credentials))))


def _files(credentials: Credentials | None) -> tuple[Path | None, Path | None, Path | None]:
    if credentials is None:
        return None, None, None
    return credentials.ca_file, credentials.cert_file, credentials.key_file


@lru_cache(maxsize=256)
def _tls(ca_file: Path | None, cert_file: Path | None, key_file: Path | None) -> ssl.SSLContext:
    """Return how to speak TLS: the server is always verified, and we show a certificate where there is one."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
        if cert_file is not None:
            context.load_cert_chain(cert_file, key_file)
    except OSError as error:
        files = " ".join(str(path) for path in (ca_file, cert_file, key_file) if path)
        reason = error.strerror or type(error).__name__
        raise ConfigurationError(f"{files}: expected certificates (PEM) that can be read, got: {reason}") from error
    return context


def _read(answer: Answer, target: TargetSettings, limits: Limits) -> Body:
    """Read a body; neither a trickle nor a flood (also one that was packed) is waited for."""
    body: Body
    if answer.length is not None:
        if answer.length > _MAX_BYTES:
            raise _too_big(target)
        body = answer.read_known(answer.length)
        if answer.has_more():
            raise UnreachableError(f"{mask_address(target.url)}: expected as many bytes as the answer says, got more")
    else:
        body = _gathered(answer.pieces(), target, limits)
    coding = (answer.header("content-encoding") or "identity").strip().lower()
    if coding in ("gzip", "x-gzip"):
        return _gathered(_unpacked(body), target, limits)
    if answer.ends_with_connection and body and body[-1:] != b"\n":
        raise http.client.IncompleteRead(b"")  # nothing else says that it is whole
    if coding != "identity":
        raise UnreachableError(f"{mask_address(target.url)}: expected text, plain or gzip, got {coding[:20]!r}")
    return body


def _gathered(pieces: Iterable[bytes], target: TargetSettings, limits: Limits) -> bytes:
    """Put pieces together; of bodies that turn out to be large only one at a time."""
    known, size = [], 0
    for piece in pieces:
        known.append(piece)
        size += len(piece)
        if size > _MAX_BYTES:
            raise _too_big(target)
        if size > FREE_BYTES:
            limits.lock()
    return b"".join(known)


def _unpacked(packed: Body) -> Iterator[bytes]:
    """Unpack gzip, which may be several of them one behind the other, piece by piece."""
    left: Body = packed
    while left:
        unpacker = zlib.decompressobj(wbits=31)
        while left and not unpacker.eof:
            yield unpacker.decompress(left, _PIECE_BYTES)
            left = unpacker.unconsumed_tail
        if not unpacker.eof:
            raise zlib.error("cut off")
        left = unpacker.unused_data


def _require_text(body: Body, target: TargetSettings) -> None:
    """Check that a body does not begin as what is no text of ours does.

    Raises:
        UnreachableError: it does.
    """
    for start, kind in _NO_TEXT.items():
        if body[: len(start)] == start:
            raise UnreachableError(f"{mask_address(target.url)}: expected text in UTF-8, got {kind}")


def _too_big(target: TargetSettings) -> UnreachableError:
    return UnreachableError(f"{mask_address(target.url)}: expected at most {_MAX_BYTES} bytes, got more")


def skew_seconds(date: str | None) -> float:
    """Return by how many seconds a clock is ahead of ours that wrote a header `Date`; NaN where it is no date."""
    if date is None:
        return math.nan
    return _seconds_of(date) + 0.5 - time.time()


@lru_cache(maxsize=256)  # many targets answer within the same second
def _seconds_of(date: str) -> float:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (IndexError, OverflowError, TypeError, ValueError):  # dates of anybody's making
        return math.nan


def _reason(error: Exception, limits: Limits) -> str:
    if time.monotonic() >= limits.deadline or isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ssl.SSLError):
        if error.reason in _NO_TLS:
            return "no TLS; is it http:// ?"
        return "a certificate that is not trusted, or none of ours that it trusts (ca_file, cert_file)"
    if type(error) is http.client.HTTPException and str(error):
        return str(error)
    said = next((text for kind, text in _SAID.items() if isinstance(error, kind)), "")
    return said or no_connection(error) or type(error).__name__
